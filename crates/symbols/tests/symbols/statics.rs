//! Static objects of compiled programs, against `nm`, `readelf` and the sources.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{C, CPP, FORTRAN, RUST, compile, exists, mappings, must, text};
use varve_model::{Address, Bytes, ObjectKind, PageRange, Time};
use varve_objects::{Layer, Owners, Span};
use varve_symbols::{
    BuildId, DebugInfo, Locator, ModuleStatus, Place, StaticObject, Statics, StaticsReader,
    Unusable,
};

const BIAS: u64 = 0x5555_5555_4000;
const MIN_SIZE: u64 = 4096;

fn read(path: &Path, bias: u64) -> Statics {
    StaticsReader::new(Locator::default(), Bytes(MIN_SIZE)).read(&mappings(path, bias))
}

fn status(statics: &Statics) -> &ModuleStatus {
    &statics.modules.first().unwrap().status
}

/// Variables of our own, without the remainders.
fn variables(statics: &Statics) -> Vec<&StaticObject> {
    statics
        .objects
        .iter()
        .filter(|object| matches!(object.place, Place::Variable { .. }))
        .collect()
}

/// What `nm` says: address and size of every data symbol of a page or more.
fn truth(path: &Path) -> BTreeMap<(u64, u64), Vec<String>> {
    let mut all: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
    let tls = must("readelf", &["-sW", text(path)]);
    for line in must("nm", &["-S", "--defined-only", text(path)]).lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [address, size, kind, name] = fields[..] else {
            continue;
        };
        let is_tls = tls
            .lines()
            .any(|line| line.contains(" TLS ") && line.ends_with(&format!(" {name}")));
        if !"bBdDrRgGsSvVuC".contains(kind) || is_tls {
            continue;
        }
        let size = u64::from_str_radix(size, 16).unwrap();
        if size >= MIN_SIZE {
            all.entry((u64::from_str_radix(address, 16).unwrap(), size))
                .or_default()
                .push(name.to_owned());
        }
    }
    all
}

fn agrees_with_nm(path: &Path, statics: &Statics, bias: u64) {
    let truth = truth(path);
    assert!(!truth.is_empty());
    let ours: BTreeMap<(u64, u64), &str> = variables(statics)
        .into_iter()
        .map(|object| {
            (
                (object.address.0 - bias, object.bytes.0),
                object.name.as_str(),
            )
        })
        .collect();
    for key in truth.keys() {
        assert!(
            ours.contains_key(key),
            "{} misses {:?} {:x?}: {ours:x?}",
            path.display(),
            truth[key],
            key
        );
    }
    let extra: Vec<_> = ours
        .iter()
        .filter(|(key, _)| !truth.contains_key(key))
        .collect();
    // Members of COMMON blocks have no symbols of their own.
    assert!(
        extra.iter().all(|(_, name)| name.contains('/')),
        "{}: {extra:x?}",
        path.display()
    );
}

fn find<'a>(statics: &'a Statics, name: &str) -> &'a StaticObject {
    let all: Vec<&str> = statics
        .objects
        .iter()
        .map(|object| object.name.as_str())
        .collect();
    statics
        .objects
        .iter()
        .find(|object| object.name == name)
        .unwrap_or_else(|| panic!("no {name} in {all:?}"))
}

fn line_of(source: &str, what: &str) -> u32 {
    u32::try_from(source.lines().position(|line| line.contains(what)).unwrap() + 1).unwrap()
}

/// Every page of every mapping belongs to something, and each variable to itself.
fn every_page_has_an_owner(path: &Path, statics: &Statics, bias: u64) {
    let spans: Vec<Span> = statics
        .objects
        .iter()
        .map(|object| Span {
            pid: object.pid,
            layer: match object.place {
                Place::Mapping => Layer::MAPPING,
                Place::Segment => Layer::SEGMENT,
                Place::Variable { depth } => Layer::variable(depth),
            },
            address: object.address,
            bytes: object.bytes,
            born: object.born,
            died: object.died.unwrap_or(Span::FOREVER),
        })
        .collect();
    let mut owners = Owners::new(&spans);
    owners.advance(Time(1), Time(2));
    for mapping in mappings(path, bias) {
        owners.owners(
            mapping.pid,
            PageRange::of_bytes(mapping.address, mapping.bytes),
            |pages, shares| {
                let bytes: u64 = shares.iter().map(|share| share.bytes.0).sum();
                assert_eq!(bytes, 4096, "{} {pages:?} {shares:?}", path.display());
            },
        );
    }
}

#[test]
fn c_programs_in_all_variants() {
    let folder = tempfile::tempdir().unwrap();
    for link in ["-pie", "-no-pie"] {
        for debug in ["-g", "-g0", "-gdwarf-4", "-g3"] {
            for optimize in ["-O0", "-O2"] {
                let compile_as = if link == "-pie" { "-fPIE" } else { "-fno-pie" };
                let name = format!("app{link}{debug}{optimize}.c");
                let path = compile(
                    folder.path(),
                    &name,
                    C,
                    &[
                        link,
                        debug,
                        optimize,
                        compile_as,
                        if debug == "-g3" {
                            "-gz=zlib"
                        } else {
                            "-gz=none"
                        },
                    ],
                );
                let bias = if link == "-pie" { BIAS } else { 0 };
                let statics = read(&path, bias);
                agrees_with_nm(&path, &statics, bias);
                every_page_has_an_owner(&path, &statics, bias);
                assert!(
                    !statics
                        .objects
                        .iter()
                        .any(|object| object.name.contains("private_copy")),
                    "TLS has no address"
                );
                let grid = find(&statics, "grid");
                assert_eq!(
                    (grid.kind, grid.bytes),
                    (ObjectKind::Static, Bytes(64 * 64 * 8))
                );
                if debug == "-g0" {
                    assert_eq!(
                        *status(&statics),
                        ModuleStatus::Found(DebugInfo::SymbolsOnly)
                    );
                    assert_eq!(grid.line, None);
                    continue;
                }
                assert_eq!(*status(&statics), ModuleStatus::Found(DebugInfo::Inside));
                assert_eq!(grid.line, Some(line_of(C, "double grid")));
                assert_eq!(
                    Path::new(grid.file.as_deref().unwrap()),
                    folder.path().join(&name)
                );
                assert_eq!(find(&statics, "setup::buffer").bytes, Bytes(6000));
                assert_eq!(find(&statics, "middle::buffer").bytes, Bytes(5000));
                assert_eq!(
                    find(&statics, "scratch").line,
                    Some(line_of(C, "static char scratch"))
                );
            }
        }
    }
}

#[test]
fn separate_debug_files_are_found_and_proven() {
    let folder = tempfile::tempdir().unwrap();
    for (name, place) in [("beside.c", ""), ("below.c", ".debug/")] {
        let path = compile(folder.path(), name, C, &["-g", "-O2"]);
        let full = read(&path, BIAS);
        let debug = folder.path().join(format!(
            "{place}{}.debug",
            text(path.file_name().map(Path::new).unwrap())
        ));
        std::fs::create_dir_all(debug.parent().unwrap()).unwrap();
        must("objcopy", &["--only-keep-debug", text(&path), text(&debug)]);
        must("strip", &["--strip-all", text(&path)]);
        must(
            "objcopy",
            &[
                &format!("--add-gnu-debuglink={}", text(&debug)),
                text(&path),
            ],
        );
        let statics = read(&path, BIAS);
        assert_eq!(
            *status(&statics),
            ModuleStatus::Found(DebugInfo::Separate(debug.clone()))
        );
        let names = |statics: &Statics| -> Vec<(String, u64, Option<u32>)> {
            variables(statics)
                .iter()
                .map(|object| (object.name.clone(), object.address.0, object.line))
                .collect()
        };
        assert_eq!(names(&statics), names(&full));
        // Another build's debug file beside it proves nothing.
        let other = compile(
            folder.path(),
            "other.c",
            &C.replace("12345", "54321"),
            &["-g", "-O2"],
        );
        must(
            "objcopy",
            &["--only-keep-debug", text(&other), text(&debug)],
        );
        let statics = read(&path, BIAS);
        assert!(
            matches!(
                status(&statics),
                ModuleStatus::Found(DebugInfo::Stripped { build_id: Some(_) })
            ),
            "{:?}",
            status(&statics)
        );
        assert!(status(&statics).hint().unwrap().contains("debug package"));
        assert!(variables(&statics).is_empty());
        every_page_has_an_owner(&path, &statics, BIAS);
    }
}

#[test]
fn debug_files_by_build_id_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), "app.c", C, &["-g", "-Wl,--build-id=sha1"]);
    let notes = must("readelf", &["-nW", text(&path)]);
    let id = notes
        .lines()
        .find_map(|line| line.split_once("Build ID: "))
        .unwrap()
        .1
        .trim()
        .to_owned();
    let debug = folder
        .path()
        .join("debug/.build-id")
        .join(&id[..2])
        .join(format!("{}.debug", &id[2..]));
    std::fs::create_dir_all(debug.parent().unwrap()).unwrap();
    must("objcopy", &["--only-keep-debug", text(&path), text(&debug)]);
    must("strip", &["--strip-all", text(&path)]);
    let locator = Locator {
        debug_folders: vec![folder.path().join("debug")],
        ..Locator::default()
    };
    let mut all = mappings(&path, BIAS);
    for mapping in &mut all {
        mapping.build_id = BuildId::from_hex(&id);
    }
    let statics = StaticsReader::new(locator.clone(), Bytes(MIN_SIZE)).read(&all);
    assert_eq!(
        *status(&statics),
        ModuleStatus::Found(DebugInfo::Separate(debug))
    );
    assert!(find(&statics, "setup::buffer").line.is_some());
    // Another file under that name is not the one that ran.
    compile(
        folder.path(),
        "app.c",
        &C.replace("12345", "54321"),
        &["-g"],
    );
    let statics = StaticsReader::new(locator, Bytes(MIN_SIZE)).read(&all);
    assert!(
        matches!(
            status(&statics),
            ModuleStatus::Unusable(Unusable::BuildIdMismatch { .. })
        ),
        "{:?}",
        status(&statics)
    );
    assert!(statics.objects.is_empty());
}

#[test]
fn stripped_symbols_leave_the_variables_of_dwarf() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), "app.c", C, &["-g"]);
    let full = read(&path, BIAS);
    // No symbol table, only debug information.
    must(
        "objcopy",
        &[
            "--remove-section=.symtab",
            "--remove-section=.strtab",
            text(&path),
        ],
    );
    let statics = read(&path, BIAS);
    let names = |statics: &Statics| -> Vec<(String, u64)> {
        variables(statics)
            .iter()
            .map(|object| (object.name.clone(), object.address.0))
            .collect()
    };
    assert!(names(&statics).len() >= 6);
    assert_eq!(names(&statics), names(&full));
}

#[test]
fn cpp_names_read_as_written() {
    let folder = tempfile::tempdir().unwrap();
    for debug in ["-g", "-g0"] {
        let path = compile(folder.path(), "app.cc", CPP, &[debug, "-O1"]);
        let statics = read(&path, BIAS);
        agrees_with_nm(&path, &statics, BIAS);
        let field = find(&statics, "physics::field");
        assert_eq!(
            field.line,
            (debug == "-g").then(|| line_of(CPP, "double field"))
        );
        find(&statics, "physics::Solver::counts");
        find(&statics, "physics::Solver::prepare::workspace");
        find(&statics, "(anonymous namespace)::hidden");
    }
}

#[test]
fn rust_names_read_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(
        folder.path(),
        "app.rs",
        RUST,
        &["-g", "-O", "--crate-name", "app"],
    );
    let statics = read(&path, BIAS);
    agrees_with_nm(&path, &statics, BIAS);
    assert_eq!(find(&statics, "app::app::TABLE").bytes, Bytes(8192));
    assert_eq!(
        find(&statics, "app::app::STATE").line,
        Some(line_of(RUST, "static mut STATE"))
    );
}

#[test]
fn fortran_common_blocks_and_their_members() {
    if !exists("gfortran") {
        eprintln!("skipped: there is no gfortran on this machine");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = compile(
        folder.path(),
        "app.f90",
        FORTRAN.replace("      ", " ").as_str(),
        &["-g"],
    );
    let statics = read(&path, BIAS);
    agrees_with_nm(&path, &statics, BIAS);
    let block = find(&statics, "common /fields/");
    assert_eq!(block.bytes, Bytes(24000));
    let u = find(&statics, "fields/u");
    let v = find(&statics, "fields/v");
    assert_eq!(
        (u.address, u.bytes, v.bytes),
        (block.address, Bytes(8000), Bytes(16000))
    );
    assert_eq!(v.address, Address(block.address.0 + 8000));
    assert!(u.place > block.place);
    find(&statics, "fill::local");
}

#[test]
fn shared_libraries_of_this_machine_agree_with_nm() {
    // The dynamic symbols are what a stripped library still has.
    for path in [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    ] {
        // As the kernel names what is mapped: without links.
        let Ok(path) = Path::new(path).canonicalize() else {
            continue;
        };
        let path = path.as_path();
        let statics = read(path, 0x7f00_0000_0000);
        every_page_has_an_owner(path, &statics, 0x7f00_0000_0000);
        assert!(
            statics
                .objects
                .iter()
                .any(|object| object.name.ends_with(".text"))
        );
        constants_agree_with_readelf(path, &statics, 0x7f00_0000_0000);
    }
}

/// Whatever lies in a section of constants has that section's name.
fn constants_agree_with_readelf(path: &Path, statics: &Statics, bias: u64) {
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let mut large = 0;
    for line in must("readelf", &["-SW", text(path)]).lines() {
        let Some((_, line)) = line.split_once("] ") else {
            continue;
        };
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [name, _, address, _, size, _, "A", ..] = fields[..] else {
            continue;
        };
        for inner in [hex(address), hex(address) + hex(size) - 1] {
            let address = Address(inner + bias);
            let mut holding = statics.objects.iter().filter(|object| {
                object.place == Place::Segment
                    && object.address <= address
                    && address < object.address + object.bytes
            });
            let holder = &holding.next().unwrap().name;
            assert!(holding.next().is_none(), "{name}");
            match hex(size) {
                4096.. => assert!(holder.ends_with(&format!(" {name}")), "{holder}: {name}"),
                _ => assert!(
                    holder.contains(name) || holder.ends_with("/..."),
                    "{holder}: {name}"
                ),
            }
        }
        large += usize::from(hex(size) >= 4096);
    }
    assert!(large > 3, "{large} sections of {}", path.display());
}

#[test]
fn missing_and_foreign_files_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), "app.c", C, &["-g"]);
    let all = mappings(&path, BIAS);
    std::fs::remove_file(&path).unwrap();
    let mut reader = StaticsReader::new(Locator::default(), Bytes(MIN_SIZE));
    assert!(matches!(
        status(&reader.read(&all)),
        ModuleStatus::Unusable(Unusable::Unreadable(_))
    ));
    std::fs::write(&path, "#!/bin/sh\n").unwrap();
    let mut reader = StaticsReader::new(Locator::default(), Bytes(MIN_SIZE));
    assert_eq!(
        *status(&reader.read(&all)),
        ModuleStatus::Unusable(Unusable::NotElf)
    );
}
