//! Offline unwinding, against gdb's own idea of the same stopped program.

use crate::common::{compile, exists, text};
use varve_model::{Address, Bytes, Pid, SiteId, Time};
use varve_symbols::{AddressSpaces, Locator, Mapping, Snapshot, Stack, Unwinder, symbolize};

const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
__attribute__((noinline)) int innermost(int n) { volatile char pad[300]; memset((char *)pad, n, sizeof pad); return pad[n] + n; }
__attribute__((noinline)) int compare(const void *a, const void *b) {
    int result = innermost(*(const int *)a) - *(const int *)b;
    return result + (getenv("NEVER") != NULL);
}
__attribute__((noinline)) int through_libc(int n) {
    int list[4] = {n, 3, 2, 1};
    qsort(list, 4, sizeof(int), compare);
    return list[0];
}
__attribute__((noinline)) int recurse(int depth, int n) {
    char pad[depth * 16 + 16];
    memset(pad, n, sizeof pad);
    int result = depth ? recurse(depth - 1, n) : through_libc(n);
    return result + pad[depth];
}
int main(int argc, char **argv) { (void)argv; return recurse(6, argc) == 12345; }
"#;

fn mapping(line: &str, pid: Pid) -> Option<Mapping> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let perms = fields.next()?.to_owned();
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let path = fields.nth(2).unwrap_or_default().to_owned();
    Some(Mapping {
        pid,
        address: Address(start),
        bytes: Bytes(end - start),
        perms,
        offset: Bytes(offset),
        path,
        called: None,
        file: None,
        build_id: None,
        from: Time(0),
        to: None,
    })
}

#[test]
fn stacks_without_frame_pointers_agree_with_gdb() {
    if !exists("gdb") {
        eprintln!("skipped: there is no gdb on this machine");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, flags) in [
        ("plain.c", ["-g", "-O2", "-fomit-frame-pointer", "-pie"]),
        ("fixed.c", ["-g0", "-O1", "-fomit-frame-pointer", "-no-pie"]),
        (
            "pointers.c",
            ["-g", "-O2", "-fno-omit-frame-pointer", "-pie"],
        ),
    ] {
        let path = compile(folder.path(), name, SOURCE, &flags);
        let maps = folder.path().join("maps");
        let stack = folder.path().join("stack");
        let commands = format!(
            "set confirm off\nset debuginfod enabled off\nbreak innermost\nrun\n\
             python open('{}', 'w').write(open('/proc/%d/maps' % gdb.selected_inferior().pid).read())\n\
             dump binary memory {} $sp $sp+4096\n\
             python print('IP', int(gdb.parse_and_eval('(unsigned long)$pc')), int(gdb.parse_and_eval('(unsigned long)$sp')), int(gdb.parse_and_eval('(unsigned long)$rbp')))\n\
             python f = gdb.newest_frame()\n\
             python\nwhile f:\n  if f.type() == gdb.NORMAL_FRAME: print('FRAME', f.pc())\n  f = f.older()\nend\nkill\nquit\n",
            text(&maps),
            text(&stack)
        );
        let script = folder.path().join("script");
        std::fs::write(&script, commands).unwrap();
        let output = crate::common::must(
            "gdb",
            &["-q", "-batch", "-nx", "-x", text(&script), text(&path)],
        );
        let numbers = |prefix: &str| -> Vec<Vec<u64>> {
            output
                .lines()
                .filter_map(|line| line.strip_prefix(prefix))
                .map(|line| {
                    line.split_whitespace()
                        .map(|word| word.parse().unwrap())
                        .collect()
                })
                .collect()
        };
        let registers = numbers("IP ").remove(0);
        let truth: Vec<u64> = numbers("FRAME ").into_iter().flatten().collect();
        assert!(truth.len() >= 10, "{output}");
        let pid = Pid(u32::MAX);
        let all: Vec<Mapping> = std::fs::read_to_string(&maps)
            .unwrap()
            .lines()
            .filter_map(|line| mapping(line, pid))
            .collect();
        let spaces = AddressSpaces::new(&all);
        let bytes = std::fs::read(&stack).unwrap();
        let mut unwinder = Unwinder::new(Locator::default());
        let snapshot = Snapshot {
            pid,
            at: Time(1),
            ip: Address(registers[0]),
            sp: Address(registers[1]),
            bp: Address(registers[2]),
            stack: &bytes,
        };
        let ours: Vec<u64> = unwinder
            .unwind(&spaces, &snapshot)
            .iter()
            .map(|address| address.0)
            .collect();
        // gdb stops at main; what lies beyond it is the C library's start-up.
        assert!(ours.len() >= truth.len(), "{name}: {ours:x?} {truth:x?}");
        assert_eq!(ours[..truth.len()], truth[..], "{name}");
        let frames = ours.iter().map(|address| Address(*address)).collect();
        let stack = Stack {
            site: SiteId(0),
            pid,
            at: Some(Time(1)),
            frames,
        };
        let functions: Vec<Option<String>> = symbolize(&Locator::default(), &spaces, &[stack])
            .stacks
            .remove(0)
            .into_iter()
            .map(|frame| frame.function)
            .collect();
        assert_eq!(functions[0].as_deref(), Some("innermost"));
        assert!(
            functions
                .iter()
                .flatten()
                .any(|function| function.ends_with("qsort") || function.ends_with("qsort_r")),
            "{functions:?}"
        );
        assert!(
            functions
                .iter()
                .any(|function| function.as_deref() == Some("main"))
        );
        // Cut and absent stacks end the list, and nothing else.
        for length in [0, 7, 100, 700] {
            let cut = Snapshot {
                stack: &bytes[..length],
                ..snapshot
            };
            let short = unwinder.unwind(&spaces, &cut);
            assert!(!short.is_empty() && short.len() <= ours.len());
            assert!(
                short
                    .iter()
                    .zip(&ours)
                    .all(|(short, long)| short.0 == *long)
            );
        }
        let garbage: Vec<u8> = (0..4096u32)
            .map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        unwinder.unwind(
            &spaces,
            &Snapshot {
                stack: &garbage,
                ..snapshot
            },
        );
        let start = std::time::Instant::now();
        for _ in 0..10_000 {
            assert_eq!(unwinder.unwind(&spaces, &snapshot).len(), ours.len());
        }
        eprintln!(
            "{name}: {} ns per stack of {} frames",
            start.elapsed().as_nanos() / 10_000,
            ours.len()
        );
    }
}
