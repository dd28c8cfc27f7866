//! Whoever loads the library: other C libraries than that of the build, and programs that must not have it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSymbol};

use crate::common::{Bench, library, lines};

/// Its loader finds all that it names, whatever else is loaded, and no other library can put itself in front of what it calls.
#[test]
fn it_needs_nothing_of_other_libraries() {
    let bytes = std::fs::read(library()).unwrap();
    let file = ElfFile64::<Endianness>::parse(&*bytes).unwrap();
    let undefined = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined())
        .map(|symbol| (symbol.name().unwrap().to_owned(), symbol.is_weak()));
    let undefined: Vec<_> = undefined.filter(|(name, _)| !name.is_empty()).collect();
    // The loader's list of modules, which debuggers read too.
    assert_eq!(undefined, [("_r_debug".to_owned(), true)]);
    let (header, endian) = (file.elf_header(), file.endian());
    let sections = header.sections(endian, &*bytes).unwrap();
    let (entries, _) = sections.dynamic(endian, &*bytes).unwrap().unwrap();
    let tags = entries.iter().map(|entry| entry.d_tag(endian));
    let names_others = |tag: &_| [elf::DT_NEEDED, elf::DT_VERNEED].contains(tag);
    assert_eq!(tags.filter(names_others).count(), 0);
}

/// A thread and an object of its own, which the library is to see.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void *work(void *unused) { return memset(malloc(3 << 20), 1, 3 << 20); }
int main(void) {
    pthread_t thread;
    void *block;
    pthread_create(&thread, NULL, work, NULL);
    pthread_join(thread, &block);
    printf("%d\n", ((char *)block)[12345]);
    free(block);
    return 7;
}
"#;

/// The files of the C library that this test itself has loaded: its loader, and the library.
fn c_library() -> [PathBuf; 2] {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    ["/ld-linux-x86-64.so.2", "/libc.so.6"].map(|name| {
        let mut paths = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5));
        paths.find(|path| path.ends_with(name)).unwrap().into()
    })
}

/// Renames versions that came after 2.17 and that the program does without, as if there were none of them.
fn without_versions(file: &Path, to: &Path, program: &[u8]) {
    let mut bytes = std::fs::read(file).unwrap();
    for minor in 18..60 {
        let name = format!("GLIBC_2.{minor}\0");
        let has = |bytes: &[u8]| {
            let mut pieces = bytes.windows(name.len());
            pieces.position(|piece| piece == name.as_bytes())
        };
        if has(program).is_some() {
            continue;
        }
        while let Some(at) = has(&bytes) {
            bytes[at..at + 9].copy_from_slice(b"GLIBC_9.9");
        }
    }
    std::fs::write(to, bytes).unwrap();
    let mode = std::fs::metadata(file).unwrap().permissions();
    std::fs::set_permissions(to, mode).unwrap();
}

#[test]
fn a_c_library_of_other_versions_loads_it() {
    let bench = Bench::new();
    let [loader, c_library] = c_library();
    let folder = bench.folder.path().join("old");
    std::fs::create_dir(&folder).unwrap();
    let moved = folder.join("ld.so");
    let options = [
        format!("-Wl,-dynamic-linker,{}", moved.display()),
        format!("-Wl,-rpath,{}", folder.display()),
    ];
    let program = bench.compile("old.c", PROGRAM, &options.each_ref().map(String::as_str));
    let code = std::fs::read(&program).unwrap();
    without_versions(&loader, &moved, &code);
    without_versions(&c_library, &folder.join("libc.so.6"), &code);
    let alone = Command::new(&program).output().unwrap();
    assert_eq!(alone.status.code(), Some(7), "{alone:?}");
    let (output, rings) = bench.run(&mut Command::new(&program));
    assert_eq!(output, alone);
    let found = rings.iter().flat_map(|ring| ring.births());
    assert_eq!(found.filter(|(_, _, bytes)| *bytes == 3 << 20).count(), 1);
}

/// It prints what it was started with, and has a fault which address sanitizers report where asked.
const TELLING: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
int main(int count, char **words) {
    char name[16];
    prctl(PR_GET_NAME, name);
    const char *list = getenv("LD_PRELOAD");
    printf("%s %d %s", name, count, list ? list : "no list");
    for (int i = 0; i < count; i++) printf(" [%s]", words[i]);
    char *block = memset(malloc(1 << 20), 1, 1 << 20);
    printf(" %d\n", block[4321]);
    free(block);
    return 3;
}
"#;

/// gcc's sanitizers are libraries, of which one ends programs where another library comes first; clang's lie in the program.
#[test]
fn programs_with_sanitizers_begin_again_without_it() {
    let gcc = ["address", "leak", "thread"].map(|kind| ("gcc", kind));
    let clang = ["address", "leak", "thread", "memory"].map(|kind| ("clang", kind));
    for (compiler, kind) in gcc.into_iter().chain(clang) {
        let bench = Bench::new();
        let source = bench.folder.path().join("telling.c");
        std::fs::write(&source, TELLING).unwrap();
        let program = bench.folder.path().join("program");
        let built = Command::new(compiler)
            .args(["-O1", "-g", &format!("-fsanitize={kind}"), "-o"])
            .args([&program, &source])
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", lines(&built).join("\n"));
        // It is called as it is named, not as its file is.
        let link = bench.folder.path().join("called so");
        std::os::unix::fs::symlink(&program, &link).unwrap();
        let command = || {
            let mut command = Command::new(&link);
            command.args(["a word", "", "another"]).env("EMPTY", "");
            command
        };
        let alone = command().output().unwrap();
        assert_eq!(alone.status.code(), Some(3), "{compiler} {kind}: {alone:?}");
        assert_eq!(lines(&alone).len(), 1, "{compiler} {kind}: {alone:?}");
        let (output, rings) = bench.run(&mut command());
        same(&output, &alone, &format!("{compiler} {kind}"));
        assert!(rings.is_empty());
    }
}

fn same(output: &Output, alone: &Output, which: &str) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&output.stdout), text(&alone.stdout), "{which}");
    assert_eq!(text(&output.stderr), text(&alone.stderr), "{which}");
    assert_eq!(output.status, alone.status, "{which}");
}

/// What the list has beside this library stays in it.
#[test]
fn a_program_that_begins_again_keeps_the_rest_of_its_list() {
    let bench = Bench::new();
    let other = bench.compile("other.so", "int varve_test_other;", &[]);
    let source = bench.folder.path().join("telling.c");
    std::fs::write(&source, TELLING).unwrap();
    let program = bench.folder.path().join("program");
    let built = Command::new("clang")
        .args(["-O1", "-fsanitize=address", "-o"])
        .args([&program, &source])
        .status()
        .unwrap();
    assert!(built.success());
    let (own, other) = (library().to_str().unwrap(), other.to_str().unwrap());
    for list in [
        format!("{other}:{own}:{other}"),
        format!("{own} {other}:{other}"),
        format!("{own}:{other}:{own}:{other}"),
    ] {
        let output = Command::new(&program)
            .env("LD_PRELOAD", &list)
            .output()
            .unwrap();
        let right = format!("program 1 {other}:{other} [{}] 1", program.display());
        assert_eq!(lines(&output), [right], "{list}");
        assert_eq!(output.status.code(), Some(3));
    }
}

/// It makes the library's folder unreachable in one of these ways, then runs a program.
const NARROWING: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/landlock.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
static int landlock(void) {
    struct landlock_ruleset_attr what = { .handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE };
    int rules = syscall(SYS_landlock_create_ruleset, &what, sizeof what, 0);
    if (rules < 0) return 77;
    const char *folders[] = { "/usr", "/lib", "/lib64", "/bin", "/etc" };
    for (int i = 0; i < 5; i++) {
        struct landlock_path_beneath_attr beneath = { LANDLOCK_ACCESS_FS_READ_FILE, open(folders[i], O_PATH) };
        if (beneath.parent_fd >= 0) syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0);
    }
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return syscall(SYS_landlock_restrict_self, rules, 0) ? 78 : 0;
}
static int over(const char *folder) {
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return 77;
    return mount("none", folder, "tmpfs", 0, NULL) ? 78 : 0;
}
int main(int count, char **words) {
    int code = strcmp(words[1], "landlock") ? over(words[2]) : landlock();
    if (code) return code;
    execlp("sh", "sh", "-c", "echo ran; echo ${LD_PRELOAD-no list}; exit 5", NULL);
    return 79;
}
"#;

/// Programs that shut themselves in start others without a word of the loader's.
#[test]
fn a_program_that_shuts_the_library_out_drops_it_from_its_list() {
    let bench = Bench::new();
    let program = bench.compile("narrowing.c", NARROWING, &[]);
    // Not where the rest of what programs load lies.
    let folder = bench.folder.path().join("library");
    std::fs::create_dir(&folder).unwrap();
    let copy = folder.join("libvarve_preload.so");
    std::fs::copy(library(), &copy).unwrap();
    for how in ["landlock", "mount"] {
        let output = Command::new(&program)
            .arg(how)
            .arg(&folder)
            .env("LD_PRELOAD", &copy)
            .output()
            .unwrap();
        // A kernel without Landlock, or a user that may not mount.
        if output.status.code() == Some(77) {
            println!("skipped: this machine has no {how}");
            continue;
        }
        assert_eq!(lines(&output), ["ran", "no list"], "{how}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*said), (Some(5), ""), "{how}");
    }
}

/// The unwinder that is linked in finds its tables and fills its registers without the C library. A panic prints nothing.
#[test]
fn a_panic_within_the_library_is_caught() {
    const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    _Bool (*catches)(void) = (_Bool (*)(void))dlsym(RTLD_DEFAULT, "varve_preload_catches_panics");
    for (int i = 0; i < 3; i++) printf("%d\n", catches());
    return malloc(100000) == NULL;
}
"#;
    let bench = Bench::new();
    let program = bench.compile("panics.c", SOURCE, &["-ldl"]);
    let (output, rings) = bench.run(&mut Command::new(&program));
    assert_eq!(lines(&output), ["1", "1", "1"], "{output:?}");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    assert!(!rings.is_empty());
}
