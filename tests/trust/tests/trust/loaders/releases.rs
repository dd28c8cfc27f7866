//! Programs of other Debian releases, with older and newer C libraries: they do under each kind of recording what they do alone.
//!
//! `cargo xtask roots` makes the root folders; what is not there is skipped. Nothing here writes to them, except empty folders on which
//! something is mounted.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use varve_faults::{Ended, Stage, check_trace, varve_binary};
use varve_model::ObjectKind;
use varve_trace::Trace;
use varve_trace::tables::{ObjectRow, ProcessRow};

/// A program of a root folder.
struct Program {
    /// Its file within the folder.
    file: &'static str,
    arguments: &'static [&'static str],
    code: i32,
    /// Whether it has objects that are large enough to be seen one by one, and ends in order.
    has_heap: bool,
}

const PROGRAMS: [Program; 6] = [
    Program {
        file: "/bin/dash",
        arguments: &["-c", "echo one; echo two >&2; exit 3"],
        code: 3,
        has_heap: false,
    },
    // It has children of the same release, one of which starts threads: before glibc 2.34 these are in a library of their own.
    Program {
        file: "/bin/dash",
        arguments: &[
            "-c",
            "seq 200000 | sort --parallel=2 -S 64M -rn | gzip -9n | gzip -dc | cksum; echo three >&2; exit 4",
        ],
        code: 4,
        has_heap: false,
    },
    Program {
        file: "/usr/bin/perl",
        arguments: &[
            "-e",
            r#"my %h; $h{$_} = "x" x $_ for 1..2000; print length(join "", map { $h{$_} } sort { $a <=> $b } keys %h), "\n"; warn "four\n"; exit 7"#,
        ],
        code: 7,
        has_heap: true,
    },
    Program {
        file: "/usr/bin/sort",
        arguments: &["-S", "8M", "-r", "/usr/share/common-licenses/GPL-3"],
        code: 0,
        has_heap: true,
    },
    Program {
        file: "/usr/bin/dpkg",
        arguments: &["--compare-versions", "1.10", "lt", "1.9"],
        code: 1,
        has_heap: false,
    },
    // Of C++.
    Program {
        file: "/usr/bin/apt-config",
        arguments: &["dump"],
        code: 0,
        has_heap: true,
    },
];

/// A program of a release that has it only where somebody has put it there.
const PYTHON: Program = Program {
    file: "/usr/bin/python3",
    arguments: &[
        "-c",
        "import sys; print(sum(len(str(n)) for n in [*range(100000)])); sys.exit(9)",
    ],
    code: 9,
    has_heap: true,
};

/// The root folder of a release, or a line that says that it is not there.
fn root(suite: &str) -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository.join("target"), PathBuf::from);
    let root = target.join("roots").join(suite);
    if root.join(".complete").is_file() {
        return Some(root.canonicalize().unwrap());
    }
    // As `scripts/test` looks for it.
    println!(
        "skip there is no root folder of Debian {suite}: `cargo xtask roots` makes it, once, where a mirror has the release"
    );
    None
}

/// The programs that a root folder has, of which all but one are in each.
fn programs(root: &Path) -> impl Iterator<Item = &'static Program> {
    let python = root.join("usr/bin/python3").exists().then_some(&PYTHON);
    PROGRAMS.iter().chain(python)
}

/// A way in which programs of a root folder are run, as words in front of theirs.
struct Way {
    words: Vec<String>,
    /// What stands before the path of the program's file.
    before: String,
    /// The loader, where it is run as the program.
    loader: Option<PathBuf>,
    /// Who sees its objects, and the reasons of which one says why not the library.
    objects: (&'static str, &'static [&'static str]),
}

impl Way {
    fn new(words: &[&str], before: &str, objects: (&'static str, &'static [&'static str])) -> Way {
        Way {
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            before: before.to_owned(),
            loader: None,
            objects,
        }
    }

    /// The command of a program, whose messages go to the file `said`: what the recorder says goes to its own.
    fn command(&self, program: &Program) -> Vec<String> {
        let script = r#"exec "$@" 2>said"#;
        let mut command = ["sh", "-c", script, "sh"].map(str::to_owned).to_vec();
        command.extend(self.words.iter().cloned());
        command.push(format!("{}{}", self.before, program.file));
        command.extend(program.arguments.iter().map(|word| (*word).to_owned()));
        command
    }

    /// Runs the programs alone and under each kind of recording, and compares.
    fn require(&self, root: &Path) {
        let stage = Stage::new();
        for program in programs(root) {
            let command = self.command(program);
            let mut alone = stage.command(&command[0]);
            alone.args(&command[1..]);
            let alone = Outcome::of(&stage, stage.run(alone));
            assert_eq!(alone.code, program.code, "{command:?}: {alone:?}");
            let records: [&[&str]; 3] = [
                &["record"],
                &["record", "--backend", "fault"],
                &["alloc", "record"],
            ];
            for words in records {
                let recorded = Outcome::of(&stage, stage.run(recording(&stage, words, &command)));
                assert_eq!(recorded, alone, "{words:?} {command:?}");
                if words[0] == "record" {
                    self.require_objects(&stage, program, words);
                }
            }
        }
    }

    /// Requires that the trace says who saw the program's objects, and that it has some where the library did.
    fn require_objects(&self, stage: &Stage, program: &Program, words: &[&str]) {
        check_trace(&stage.path("trace.varve")).expect("a trace");
        let trace = Trace::open(&stage.path("trace.varve")).unwrap();
        let rows: Vec<ProcessRow> = trace.rows().unwrap();
        // Each word in front executes what follows, so that the program is the last that the first process was.
        let first = rows.iter().min_by_key(|row| row.born_ns);
        let pid = first.expect("a process").pid;
        let row = rows.iter().rfind(|row| row.pid == pid).unwrap();
        // A link may have been followed: `python3` is `python3.11`.
        let runs = self.loader.as_deref().unwrap_or(Path::new(program.file));
        let (name, runs) = (file_name(Path::new(&row.exe)), file_name(runs));
        assert!(name.starts_with(&runs), "{words:?}: no {runs} in {rows:?}");
        let found = (row.objects.as_deref(), row.objects_why.as_deref());
        let (from, reasons) = self.objects;
        let is_right = found.0 == Some(from)
            && found
                .1
                .map_or(reasons.is_empty(), |why| reasons.contains(&why));
        assert!(is_right, "{words:?} {}: {found:?}", program.file);
        if program.has_heap && from == "preload" {
            let objects: Vec<ObjectRow> = trace.rows().unwrap();
            let of_heap = |o: &&ObjectRow| o.pid == row.pid && o.kind == ObjectKind::Heap;
            assert_ne!(
                objects.iter().filter(of_heap).count(),
                0,
                "{words:?} {}",
                program.file
            );
        }
    }
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// `varve WORDS --force -o trace.varve -- COMMAND`.
fn recording<S: AsRef<OsStr>>(
    stage: &Stage,
    words: &[&str],
    command: &[S],
) -> std::process::Command {
    let mut varve = stage.command(varve_binary());
    varve
        .args(words)
        .args(["--force", "-o", "trace.varve", "--"]);
    varve.args(command);
    varve
}

/// What can be seen of a program from outside.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Outcome {
    fn of(stage: &Stage, ended: Ended) -> Outcome {
        let said = stage.path("said");
        let outcome = Outcome {
            code: ended.code,
            stdout: ended.text(),
            stderr: fs::read_to_string(&said).unwrap_or_else(|e| format!("{e}: {}", ended.stderr)),
        };
        let _ = fs::remove_file(said);
        outcome
    }
}

/// The library is not there, so that the kernel alone sees what the programs do.
fn in_its_root(suite: &str) {
    let Some(root) = root(suite) else { return };
    let folder = root.to_str().unwrap();
    // What ends before the recorder looks at its root folder is known to lack the library in its environment alone.
    let objects: (_, &[_]) = ("kernel", &["root", "removed"]);
    Way::new(&["chroot", folder], "", objects).require(&root);
    Way::new(&["unshare", &format!("--root={folder}")], "", objects).require(&root);
}

/// Mounts in the root folder what the library needs: itself, the list of those to be preloaded, and the recorder's socket.
const WITH_LIBRARY: &str = r#"
    root=$1 library=$2
    shift 2
    mount --rbind /dev "$root/dev" && mount --bind "$library" "$root$library" || exit 125
    if [ -d /var/cache/varve ]; then mount --bind /var/cache/varve "$root/var/cache/varve" || exit 125; fi
    exec chroot "$root" "$@"
"#;

fn in_its_root_with_the_library(suite: &str) {
    let Some(root) = root(suite) else { return };
    let binary = varve_binary();
    let library = binary.parent().unwrap();
    for place in [library, Path::new("/var/cache/varve")] {
        fs::create_dir_all(root.join(place.strip_prefix("/").unwrap())).unwrap();
    }
    let (folder, library) = (root.to_str().unwrap(), library.to_str().unwrap());
    let words = ["unshare", "--mount", "sh", "-c", WITH_LIBRARY, "sh"];
    let words = [&words[..], &[folder, library]].concat();
    Way::new(&words, "", ("preload", &[])).require(&root);
}

/// The release's own loader is the program, under the name of its file, and takes the libraries from the root folder.
fn by_its_loader(suite: &str) {
    let Some(root) = root(suite) else { return };
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let loader = fs::read_dir(&libraries)
        .unwrap()
        .map(|entry| entry.unwrap())
        .find(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_file = entry.file_type().unwrap().is_file();
            is_file && name.starts_with("ld-") && name.contains(".so")
        })
        .expect("a loader")
        .path();
    let words = [
        loader.to_str().unwrap(),
        "--library-path",
        libraries.to_str().unwrap(),
    ];
    let way = Way::new(&words, root.to_str().unwrap(), ("preload", &[]));
    let loader = Some(loader);
    Way { loader, ..way }.require(&root);
}

macro_rules! releases {
    ($($suite:ident)*) => {
        $(
            mod $suite {
                #[test]
                fn programs_in_its_root_folder() {
                    super::in_its_root(stringify!($suite));
                }

                #[test]
                fn programs_in_its_root_folder_with_the_library() {
                    super::in_its_root_with_the_library(stringify!($suite));
                }

                #[test]
                fn programs_run_by_its_loader() {
                    super::by_its_loader(stringify!($suite));
                }
            }
        )*
    };
}

releases!(bullseye bookworm trixie);
