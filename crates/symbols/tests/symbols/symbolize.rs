//! Functions, files and lines of compiled programs, against `addr2line -i -f -e`.

use std::path::{Path, PathBuf};

use crate::common::{C, CPP, FORTRAN, RUST, compile, exists, mappings, must, text};
use varve_model::{Address, ObjectKind, Pid, SiteId};
use varve_symbols::{AddressSpaces, Asked, Frame, Locator, Mapping, Namer, Stack, symbolize};

const BIAS: u64 = 0x5555_5555_4000;

fn frames(all: &[Mapping], addresses: &[u64]) -> Vec<Vec<Frame>> {
    let stacks: Vec<Stack> = addresses
        .iter()
        .map(|address| Stack {
            site: SiteId(0),
            pid: Pid(1),
            at: None,
            frames: vec![Address(*address)],
        })
        .collect();
    symbolize(&Locator::default(), &AddressSpaces::new(all), &stacks).stacks
}

/// Addresses of call instructions in the program's own functions, with the addresses that they return to.
fn calls(path: &Path, functions: &[&str]) -> Vec<(u64, u64)> {
    let listing = must("objdump", &["-d", "--no-show-raw-insn", text(path)]);
    let mut inside = false;
    let mut found = Vec::new();
    let mut pending: Option<u64> = None;
    for line in listing.lines() {
        if line.ends_with(">:") {
            // A call that ends its function, to one that never returns: five bytes.
            found.extend(pending.take().map(|call| (call, call + 5)));
            inside = functions.iter().any(|function| line.contains(function));
        } else if let Some((address, code)) = line.trim().split_once(':') {
            let Ok(address) = u64::from_str_radix(address, 16) else {
                continue;
            };
            if let Some(call) = pending.take() {
                found.push((call, address));
            }
            if inside && code.contains("call") {
                pending = Some(address);
            }
        }
    }
    found
}

/// What binutils says: function and line for each inlined call, innermost first.
fn truth(path: &Path, address: u64) -> Vec<(String, String)> {
    let output = must(
        "addr2line",
        &["-i", "-f", "-C", "-e", text(path), &format!("{address:#x}")],
    );
    let lines: Vec<&str> = output.lines().collect();
    lines
        .chunks(2)
        .map(|pair| {
            let line = pair[1].split(" (disc").next().unwrap();
            (
                pair[0].split(['(', '<']).next().unwrap().to_owned(),
                line.to_owned(),
            )
        })
        .collect()
}

#[test]
fn lines_and_inlined_calls_agree_with_addr2line() {
    let folder = tempfile::tempdir().unwrap();
    let mut programs: Vec<(PathBuf, u64, &[&str])> = Vec::new();
    for (link, fpie) in [("-pie", "-fPIE"), ("-no-pie", "-fno-pie")] {
        for flags in [["-g", "-O0"], ["-g", "-O2"], ["-gdwarf-4", "-O2"]] {
            let name = format!("app{link}{}{}.c", flags[0], flags[1]);
            let path = compile(folder.path(), &name, C, &[link, fpie, flags[0], flags[1]]);
            programs.push((
                path,
                if link == "-pie" { BIAS } else { 0 },
                &["deep", "setup", "main"],
            ));
        }
    }
    programs.push((
        compile(folder.path(), "cpp.cc", CPP, &["-g", "-O2"]),
        BIAS,
        &["prepare", "main"],
    ));
    programs.push((
        compile(folder.path(), "rs.rs", RUST, &["-g", "-O"]),
        BIAS,
        &["setup"],
    ));
    if exists("gfortran") {
        let source = FORTRAN.replace("      ", " ");
        programs.push((
            compile(folder.path(), "fortran.f90", &source, &["-g"]),
            BIAS,
            &["fill_", "MAIN__"],
        ));
    } else {
        eprintln!("Fortran is skipped: there is no gfortran on this machine");
    }
    let mut compared = 0;
    let mut inlined = 0;
    for (path, bias, functions) in programs {
        let all = mappings(&path, bias);
        let addresses: Vec<u64> = calls(&path, functions)
            .into_iter()
            .map(|(call, _)| call)
            .collect();
        assert!(!addresses.is_empty(), "{}", path.display());
        let biased: Vec<u64> = addresses.iter().map(|address| address + bias).collect();
        for (address, frames) in addresses.iter().zip(frames(&all, &biased)) {
            let truth = truth(&path, *address);
            let ours: Vec<String> = frames
                .iter()
                .map(|frame| {
                    format!(
                        "{}:{}",
                        frame.file.as_deref().unwrap_or("??"),
                        frame.line.map_or("?".to_owned(), |line| line.to_string())
                    )
                })
                .collect();
            let lines: Vec<String> = truth
                .iter()
                .map(|(_, line)| line.replace("/./", "/"))
                .collect();
            assert_eq!(ours, lines, "{} {address:#x} {frames:?}", path.display());
            if path.extension().is_none() && functions.contains(&"deep") {
                let names: Vec<&str> = frames
                    .iter()
                    .filter_map(|frame| frame.function.as_deref())
                    .collect();
                let expected: Vec<&str> = truth.iter().map(|(name, _)| name.as_str()).collect();
                assert_eq!(names, expected);
            }
            compared += 1;
            inlined += frames.len() - 1;
        }
    }
    assert!(compared > 40 && inlined > 3, "{compared} {inlined}");
}

const LAMBDAS: &str = r#"
#include <cstdlib>
static char *volatile kept;

struct Counter {
    int base;
    [[gnu::noinline]] int operator()(int n) const {
        kept = (char *)malloc(n + base); // method
        return base;
    }
};

template <class F> [[gnu::noinline]] int twice(F f) { return f(1) + f(2); }

int main(int argc, char **) {
    auto outer = [&](int n) { // outer
        kept = (char *)malloc(n); // in outer
        auto inner = [argc] { // inner

            kept = (char *)malloc(argc); // in inner
            return argc;
        };
        return inner();
    };
    return twice(outer) + Counter{argc}(3);
}
"#;

/// GCC says where a lambda begins of its type alone. The lines are those of the source.
#[test]
fn lambdas_begin_where_they_are_written() {
    let line = |mark: &str| {
        let at = LAMBDAS.lines().position(|line| line.ends_with(mark));
        at.unwrap() as u32 + 1
    };
    let folder = tempfile::tempdir().unwrap();
    for compiler in ["g++", "clang++"].into_iter().filter(|c| exists(c)) {
        for optimize in ["-O0", "-O2"] {
            let source = folder.path().join("lambdas.cc");
            std::fs::write(&source, LAMBDAS).unwrap();
            let path = folder.path().join("lambdas");
            must(
                compiler,
                &["-g", optimize, text(&source), "-o", text(&path)],
            );
            let all = mappings(&path, BIAS);
            let backs: Vec<u64> = calls(&path, &["main", "operator()", "clE", "twice"])
                .into_iter()
                .map(|(_, back)| back + BIAS)
                .collect();
            let stacks: Vec<Stack> = backs
                .iter()
                .map(|back| Stack {
                    site: SiteId(0),
                    pid: Pid(1),
                    at: None,
                    frames: vec![Address(0x10), Address(*back)],
                })
                .collect();
            let found: Vec<Frame> =
                symbolize(&Locator::default(), &AddressSpaces::new(&all), &stacks)
                    .stacks
                    .into_iter()
                    .flatten()
                    .collect();
            for (code, begins) in [
                ("// in outer", line("// outer")),
                ("// in inner", line("// inner")),
                ("// method", line("// method") - 1),
            ] {
                let there: Vec<&Frame> = found
                    .iter()
                    .filter(|frame| frame.line == Some(line(code)))
                    .collect();
                assert!(!there.is_empty(), "{compiler} {optimize} {code}: {found:?}");
                for frame in there {
                    assert_eq!(
                        frame.function_line,
                        Some(begins),
                        "{compiler} {optimize} {code}"
                    );
                }
            }
        }
    }
}

#[test]
fn return_addresses_belong_to_the_call_before_them() {
    let folder = tempfile::tempdir().unwrap();
    let source = "#include <stdlib.h>\nvoid stop(void) __attribute__((noreturn));\n__attribute__((noinline)) void caller(void) {\n  stop();\n}\nvoid after(void) {}\nvoid stop(void) { exit(0); }\nint main(void) { caller(); }\n";
    let path = compile(
        folder.path(),
        "app.c",
        source,
        &["-g", "-O2", "-fno-inline"],
    );
    let (call, back) = calls(&path, &["<caller>"])[0];
    assert!(back > call);
    let stack = Stack {
        site: SiteId(0),
        pid: Pid(1),
        at: None,
        frames: vec![Address(0), Address(back + BIAS)],
    };
    let all = mappings(&path, BIAS);
    let found = symbolize(&Locator::default(), &AddressSpaces::new(&all), &[stack])
        .stacks
        .remove(0);
    assert_eq!(found[1].function.as_deref(), Some("caller"));
    assert_eq!(found[1].line, Some(4));
    assert_eq!(found[1].address, Address(back + BIAS));
    assert_eq!(
        found[0],
        Frame {
            address: Address(0),
            ..Frame::default()
        }
    );
}

#[test]
fn without_lines_the_function_is_known_and_no_line_is_made_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), "app.c", C, &["-g0", "-O2"]);
    let addresses = calls(&path, &["<deep>"]);
    let found = frames(&mappings(&path, BIAS), &[addresses[0].0 + BIAS]).remove(0);
    assert_eq!(found[0].function.as_deref(), Some("deep"));
    assert_eq!((found[0].file.as_deref(), found[0].line), (None, None));
    must("strip", &["--strip-all", text(&path)]);
    let found = frames(&mappings(&path, BIAS), &[addresses[0].0 + BIAS]).remove(0);
    assert_eq!(
        (found[0].function.as_deref(), found[0].module.as_deref()),
        (None, Some("app"))
    );
    let name = Namer::new(vec![PathBuf::new()]).site(Asked::One(ObjectKind::Heap), &found);
    assert!(name.starts_with("heap from app+0x"), "{name}");
}

#[test]
fn sites_get_the_names_of_their_variables() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), "app.c", C, &["-g", "-O2"]);
    let back = calls(&path, &["<deep>"])[0].1;
    let line = C
        .lines()
        .position(|line| line.contains("double *matrix"))
        .unwrap()
        + 1;
    let all = mappings(&path, BIAS);
    let name = |namer: &mut Namer| {
        let stack = Stack {
            site: SiteId(0),
            pid: Pid(1),
            at: None,
            frames: vec![Address(0x10), Address(back + BIAS)],
        };
        let found = symbolize(&Locator::default(), &AddressSpaces::new(&all), &[stack])
            .stacks
            .remove(0);
        namer.site(Asked::One(ObjectKind::Heap), &found)
    };
    let expected = format!("matrix (app.c:{line}, in deep)");
    assert_eq!(name(&mut Namer::new(vec![PathBuf::new()])), expected);
    // Without the source, the variable declared on that line.
    std::fs::remove_file(folder.path().join("app.c")).unwrap();
    assert_eq!(name(&mut Namer::new(vec![PathBuf::new()])), expected);
}

#[test]
fn containers_are_named_by_who_fills_them() {
    let folder = tempfile::tempdir().unwrap();
    for optimize in ["-O0", "-O2"] {
        let path = compile(folder.path(), "app.cc", CPP, &["-g", optimize]);
        let all = mappings(&path, BIAS);
        let mut namer = Namer::new(vec![PathBuf::new()]);
        let names: Vec<String> = calls(&path, &["prepare"])
            .into_iter()
            .map(|(_, back)| {
                let stack = Stack {
                    site: SiteId(0),
                    pid: Pid(1),
                    at: None,
                    frames: vec![Address(0x10), Address(back + BIAS)],
                };
                let found = symbolize(&Locator::default(), &AddressSpaces::new(&all), &[stack])
                    .stacks
                    .remove(0);
                namer.site(Asked::One(ObjectKind::Heap), &found)
            })
            .collect();
        for variable in ["rows (app.cc:", "cells (app.cc:"] {
            assert!(
                names.iter().any(|name| name.starts_with(variable)
                    && name.ends_with("in physics::Solver::prepare)")),
                "{names:?}"
            );
        }
    }
}

/// The largest libraries of this machine: a thousand addresses each, in seconds and without their weight in memory.
#[test]
fn large_libraries_take_seconds() {
    let mut candidates: Vec<PathBuf> = [
        "/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1",
        "/usr/lib/chromium/chromium",
    ]
    .iter()
    .map(PathBuf::from)
    .collect();
    candidates.push(std::env::current_exe().unwrap());
    candidates.extend(std::env::var_os("VARVE_LARGE_ELF").map(PathBuf::from));
    for path in candidates.into_iter().filter(|path| path.exists()) {
        let all = mappings(&path, BIAS);
        let code = all
            .iter()
            .find(|mapping| mapping.perms.contains('x'))
            .unwrap();
        let addresses: Vec<u64> = (1..=1000)
            .map(|step| code.address.0 + step * (code.bytes.0 / 1001))
            .collect();
        let start = std::time::Instant::now();
        let found = frames(&all, &addresses);
        let elapsed = start.elapsed();
        let known = found
            .iter()
            .filter(|frames| frames[0].function.is_some())
            .count();
        let lines = found
            .iter()
            .filter(|frames| frames[0].line.is_some())
            .count();
        let start = std::time::Instant::now();
        let statics =
            varve_symbols::StaticsReader::new(Locator::default(), varve_model::Bytes(4096))
                .read(&all);
        let peak = std::fs::read_to_string("/proc/self/status").unwrap();
        let peak = peak
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap()
            .to_owned();
        eprintln!(
            "{}: {known} functions, {lines} lines in {elapsed:?}; {} statics in {:?}; {peak}",
            path.display(),
            statics.objects.len(),
            start.elapsed()
        );
        // A guard against work without end, which takes hours.
        assert!(elapsed.as_secs() < 600);
    }
}
