//! The decoders against instructions that were executed: at every one of them, what `locate` says is compared with what the
//! emulator accessed. It may say nothing; it may never say what is not so.
#![allow(clippy::unwrap_used)]

mod emulator;
mod judge;

use std::ops::Range;
use std::path::{Path, PathBuf};

use self::emulator::{Arm, X86, around, build, functions, trace};
use self::judge::{Executed, Tally, judge};
use varve_access::{Steps, Unknown, aarch64, x86};
use varve_model::Address;

/// Instructions of a run that are looked at.
const MAX: usize = 60_000;

type Codes<C> = Vec<(Range<Address>, C)>;

fn arm_codes(functions: &[(u64, Vec<u8>)]) -> Codes<aarch64::Code> {
    let codes = functions
        .iter()
        .map(|(address, bytes)| aarch64::Code::decode(bytes, Address(*address)));
    codes.map(|code| (code.range(), code)).collect()
}

fn x86_codes(functions: &[(u64, Vec<u8>)]) -> Codes<x86::Code> {
    let codes = functions
        .iter()
        .map(|(address, bytes)| x86::Code::decode(bytes, Address(*address)));
    codes.map(|code| (code.range(), code)).collect()
}

fn judge_arm(codes: &Codes<aarch64::Code>, run: &[Executed<Arm>], steps: Steps) -> Tally {
    judge(run, steps, &|ip, registers: &Arm, _, steps| {
        Some(around(codes, ip)?.locate(Address(ip), &registers.0, steps))
    })
}

fn judge_x86(codes: &Codes<x86::Code>, run: &[Executed<X86>], steps: Steps) -> Tally {
    judge(run, steps, &|ip, registers: &X86, memory, steps| {
        Some(around(codes, ip)?.locate(Address(ip), &registers.0, memory, steps))
    })
}

/// The same without the program's memory.
fn judge_x86_by_registers(codes: &Codes<x86::Code>, run: &[Executed<X86>]) -> Tally {
    judge(run, Steps::All, &|ip, registers: &X86, _, steps| {
        Some(around(codes, ip)?.locate(Address(ip), &registers.0, &Unknown, steps))
    })
}

fn none_is_wrong(name: &str, tally: &Tally) {
    println!("{name}: {tally}");
    let first: Vec<_> = tally.wrong.iter().take(5).collect();
    assert!(first.is_empty(), "{name}: {first:#?}");
}

#[test]
fn every_way_of_addressing_of_aarch64_is_resolved() {
    let folder = tempfile::tempdir().unwrap();
    let (program, run) = arm_forms(folder.path());
    let codes = arm_codes(&functions(&program));
    let tally = judge_arm(&codes, &run, Steps::All);
    none_is_wrong("aarch64.S", &tally);
    only_vectors_are_untold(&tally);
}

/// Everything is resolved but what depends on vectors, masks and predicates, and there is such.
fn only_vectors_are_untold(tally: &Tally) {
    let depends =
        |unresolved: &&String| !unresolved.contains("Vector") && !unresolved.contains("Gather");
    let others: Vec<_> = tally.unresolved.iter().filter(depends).collect();
    assert!(others.is_empty(), "{others:#?}");
    assert!(
        tally.none["gather"] > 0 && tally.none["vector"] > 0,
        "{tally}"
    );
}

fn arm_forms(folder: &Path) -> (PathBuf, Vec<Executed<Arm>>) {
    let program = build("aarch64-linux-gnu-gcc", "aarch64.S", &["-nostdlib"], folder);
    let run = trace::<Arm>("qemu-aarch64", &program, MAX);
    (program, run)
}

#[test]
fn compiled_code_of_aarch64_is_resolved() {
    for level in ["-O0", "-O2"] {
        let folder = tempfile::tempdir().unwrap();
        let options = [level, "-march=armv8.1-a"];
        let program = build(
            "aarch64-linux-gnu-gcc",
            "natural.c",
            &options,
            folder.path(),
        );
        let run = trace::<Arm>("qemu-aarch64", &program, MAX);
        let codes = arm_codes(&functions(&program));
        let tally = judge_arm(&codes, &run, Steps::All);
        none_is_wrong(&format!("natural.c {level}, AArch64"), &tally);
        assert!(tally.steps > 10_000 && tally.behind > 1000, "{tally}");
        assert_eq!(tally.resolved, tally.accessing, "{:?}", tally.unresolved);
        let blind = judge_arm(&codes, &run, Steps::Blind);
        println!("  without asking for branches: {} wrong", blind.wrong.len());
        assert!(!blind.wrong.is_empty());
    }
}

#[test]
fn every_way_of_addressing_of_x86_is_resolved() {
    let folder = tempfile::tempdir().unwrap();
    let program = build("gcc", "x86.c", &["-O1", "-no-pie"], folder.path());
    let run = trace::<X86>("qemu-x86_64", &program, MAX);
    let codes = x86_codes(&functions(&program));
    let tally = judge_x86(&codes, &run, Steps::All);
    none_is_wrong("x86.c", &tally);
    only_vectors_are_untold(&tally);
}

#[test]
fn compiled_code_of_x86_is_resolved() {
    for options in [["-O0", "-march=x86-64"], ["-O2", "-march=x86-64-v3"]] {
        let folder = tempfile::tempdir().unwrap();
        let program = build("gcc", "natural.c", &options, folder.path());
        let run = trace::<X86>("qemu-x86_64", &program, MAX);
        let codes = x86_codes(&functions(&program));
        let tally = judge_x86(&codes, &run, Steps::All);
        none_is_wrong(&format!("natural.c {}, x86-64", options[0]), &tally);
        assert!(tally.steps > 10_000 && tally.behind > 1000, "{tally}");
        assert_eq!(tally.resolved, tally.accessing, "{:?}", tally.unresolved);
        let blind = judge_x86(&codes, &run, Steps::Blind);
        println!("  without asking for branches: {} wrong", blind.wrong.len());
        assert!(!blind.wrong.is_empty());
        let without = judge_x86_by_registers(&codes, &run);
        let lost = |tally: &Tally| tally.none.get("overwritten").copied().unwrap_or(0);
        println!(
            "  overwritten: {}, without memory {}",
            lost(&tally),
            lost(&without)
        );
        none_is_wrong("without memory", &without);
        // What is not optimised keeps its variables on the stack.
        assert!(options[0] != "-O0" || 2 * lost(&tally) < lost(&without));
    }
}
