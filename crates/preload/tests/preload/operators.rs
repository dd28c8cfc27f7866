//! C++ libraries that are loaded for themselves alone, as every plug-in is: each finds the operators that it finds without the
//! preload library, and a call of one is as cheap.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::Bench;

/// It works with each library that it is given, closes it, and says whether the loader left a message and how often the preload
/// library, where it is loaded, asked the loader for its list. A `+` before a library leaves it open.
const HOST: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
    for (int i = 1; i < count; i++) {
        int stays = *words[i] == '+';
        void *library = dlopen(words[i] + stays, RTLD_NOW | RTLD_LOCAL);
        if (!library) { puts(dlerror()); return 2; }
        void (*work)(void) = (void (*)(void))dlsym(library, "work");
        work();
        const char *message = dlerror();
        printf("%s\n", message ? message : "no message");
        if (!stays) dlclose(library);
    }
    unsigned *asked = dlsym(RTLD_DEFAULT, "varve_preload_lists_read");
    fprintf(stderr, "%u", asked ? *asked : 0);
    return 0;
}
"#;

/// A library that allocates with the operators that it finds.
const PLAIN: &str = r#"
#include <cstdio>
struct Row { char text[40]; };
extern "C" void work() {
    size_t bytes = 0;
    for (int i = 0; i < 100000; i++) {
        Row *row = new Row;
        row->text[i % 40] = 1;
        bytes += sizeof *row;
        delete row;
        delete[] new char[i % 100 + 1];
    }
    printf("%zu\n", bytes);
}
"#;

/// A library that others need: it makes objects for them. Neither they nor it bring the C++ library along, which would never be
/// unloaded.
const MAKER: &str = r#"
extern "C" int *make(int value) { return new int(value); }
extern "C" void take(int *object) { delete object; }
"#;

/// A library with operators of its own, which others that are loaded with it find too: they know their blocks by a number.
fn own(number: u32) -> String {
    format!(
        r#"
#include <cstdio>
#include <cstdlib>
#include <new>
extern "C" int *make(int);
extern "C" void take(int *);
static int made, taken;
__attribute__((visibility("default"))) void *operator new(size_t bytes) {{
    auto *block = static_cast<unsigned *>(malloc(bytes + 16));
    *block = {number};
    made++;
    return block + 4;
}}
__attribute__((visibility("default"))) void operator delete(void *object) noexcept {{
    auto *block = static_cast<unsigned *>(object) - 4;
    if (*block != {number}) {{ puts("not mine"); abort(); }}
    taken++;
    free(block);
}}
__attribute__((visibility("default"))) void operator delete(void *object, size_t) noexcept {{ operator delete(object); }}
extern "C" void work() {{
    for (int i = 0; i < 1000; i++) {{
        delete make(i);
        take(new int(i));
    }}
    printf("{number}: %d made, %d taken\n", made, taken);
}}
"#
    )
}

struct Libraries {
    bench: Bench,
    host: PathBuf,
}

impl Libraries {
    fn new() -> Self {
        let bench = Bench::new();
        let host = compile(&bench, "host.c", HOST, &["-ldl"]);
        Libraries { bench, host }
    }

    fn library(&self, name: &str, source: &str, needs: &[&str]) -> PathBuf {
        let flags = [&["-shared", "-fPIC", "-Wl,--no-as-needed"], needs].concat();
        compile(&self.bench, &format!("{name}.cc"), source, &flags)
    }

    /// Runs the host with the preload library, which does what it does without it. Gives how often the loader was asked.
    fn same(&self, words: &[String]) -> u32 {
        let command = || {
            let mut command = Command::new(&self.host);
            command.args(words);
            command
        };
        let plain = command().output().unwrap();
        assert!(plain.status.success(), "{plain:?}");
        let (watched, rings) = self.bench.run(&mut command());
        assert!(!rings.is_empty());
        assert_eq!(text(&watched.stdout), text(&plain.stdout));
        assert_eq!(watched.status, plain.status);
        asked(&watched)
    }
}

fn compile(bench: &Bench, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let file = bench.folder.path().join(name);
    let program = file.with_extension("so");
    std::fs::write(&file, source).unwrap();
    let done = Command::new("gcc")
        .args(["-O1", "-fno-builtin", "-fno-exceptions", "-w", "-o"])
        .arg(&program)
        .arg(&file)
        .args(flags)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    program
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn asked(of: &Output) -> u32 {
    text(&of.stderr).parse().unwrap()
}

fn word(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[test]
fn operators_are_looked_up_once_for_each_module() {
    let libraries = Libraries::new();
    let plain = libraries.library("plain", PLAIN, &["-lstdc++"]);
    let other = libraries.library("other", PLAIN, &["-lstdc++"]);
    let stays = |path: &Path| format!("+{}", word(path));
    let asked = libraries.same(&[stays(&plain), stays(&other)]);
    // At the start, and of each of the two and of the C++ library, which calls operators of its own: each time twice, one call
    // within the other.
    assert!((1..=20).contains(&asked), "{asked}");
}

#[test]
fn libraries_find_the_operators_of_what_they_were_loaded_with() {
    let libraries = Libraries::new();
    let maker = libraries.library("maker", MAKER, &[]);
    let another = libraries.library("another", MAKER, &[]);
    let one = libraries.library("one", &own(1), &[&word(&maker)]);
    let two = libraries.library("two", &own(2), &[&word(&another)]);
    let plain = libraries.library("plain", PLAIN, &["-lstdc++"]);
    libraries.same(&[word(&one), word(&two), word(&plain), word(&one)]);
    let open = format!("+{}", word(&plain));
    libraries.same(&[open, format!("+{}", word(&one)), word(&two)]);
}

#[test]
fn libraries_that_lie_where_others_lay_find_their_own() {
    let libraries = Libraries::new();
    let maker = libraries.library("maker", MAKER, &[]);
    let words =
        (1..=6).map(|n| word(&libraries.library(&n.to_string(), &own(n), &[&word(&maker)])));
    let words: Vec<String> = words.collect();
    // Closed before the next one is opened: the kernel gives each the same place.
    libraries.same(&words);
}

#[test]
fn a_library_keeps_the_operators_of_what_it_was_loaded_with() {
    let libraries = Libraries::new();
    let maker = libraries.library("maker", MAKER, &[]);
    let work = "extern \"C\" int *make(int); extern \"C\" void take(int *); extern \"C\" int printf(const char *, ...);\n\
                extern \"C\" void work() { for (int i = 0; i < 1000; i++) take(make(i)); printf(\"done\\n\"); }";
    let user = libraries.library("user", work, &[&word(&maker), "-lstdc++"]);
    let one = libraries.library("one", &own(1), &[&word(&maker)]);
    libraries.same(&[format!("+{}", word(&one)), word(&user), word(&one)]);
}
