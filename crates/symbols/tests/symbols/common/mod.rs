//! Programs compiled while the tests run, and what other tools say of them.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

use varve_model::{Address, Bytes, Pid, Time};
use varve_symbols::Mapping;

pub(crate) const C: &str = r#"
#include <stdlib.h>
#include <stdio.h>
#include <stdint.h>
double grid[64][64] = {{1.0}};
static char scratch[12345];
const int table[4096] = {1, 2, 3};
char zeroed[100000];
_Thread_local char private_copy[8192];
int small_one, small_two[10];
char *volatile keep;

__attribute__((noinline)) void *deep(size_t n) {
    double *matrix = malloc(n * sizeof(double));
    keep = (char *)matrix;
    return matrix;
}
static inline __attribute__((always_inline)) void *middle(size_t n) {
    static char buffer[5000];
    buffer[n % 5000] = 1;
    keep = buffer;
    return deep(n);
}
__attribute__((noinline)) void *setup(size_t n) {
    static char buffer[6000];
    buffer[n % 6000] = 1;
    keep = buffer;
    void *result = middle(n);
    keep = scratch;
    return result;
}
int main(int argc, char **argv) {
    (void)argv;
    keep = (char *)setup((size_t)argc * 1000);
    printf("%p %d\n", (void *)keep, table[argc] + small_one + small_two[argc % 10] + zeroed[argc] + private_copy[argc]);
    return grid[0][0] > 2.0;
}
"#;

pub(crate) const CPP: &str = r#"
#include <vector>
#include <memory>
#include <cstdio>
namespace physics {
double field[1024] = {1.0};
struct Solver {
    static int counts[2048];
    std::vector<double> rows;
    __attribute__((noinline)) void prepare(unsigned long n) {
        static char workspace[9000];
        workspace[n % 9000] = 1;
        rows.resize(n);
        auto cells = std::make_unique<double[]>(n);
        std::printf("%p %p %p\n", (void *)workspace, (void *)rows.data(), (void *)cells.get());
    }
};
int Solver::counts[2048] = {7};
}
namespace { volatile char hidden[7000]; }
int main(int argc, char **) {
    physics::Solver solver;
    solver.prepare(1000ul * argc);
    hidden[argc] = 1;
    return physics::field[argc] + physics::Solver::counts[argc] + hidden[argc] > 100;
}
"#;

pub(crate) const FORTRAN: &str = "
      subroutine fill(n)
      integer n, i
      double precision u(1000), v(2000)
      common /fields/ u, v
      double precision, save :: local(3000)
      do i = 1, 1000
        u(i) = n
        local(i) = n
        v(i) = local(i)
      end do
      end
      program main
      double precision u(1000), v(2000)
      common /fields/ u, v
      double precision, allocatable :: grid(:,:)
      allocate(grid(100, 100))
      grid = 1
      call fill(3)
      print *, u(1) + v(2) + grid(1, 1)
      end
";

pub(crate) const RUST: &str = r#"
pub mod app {
    pub static TABLE: [u64; 1024] = [7; 1024];
    pub static mut STATE: [u8; 10000] = [0; 10000];
    #[inline(never)]
    pub fn setup(n: usize) -> Vec<u8> {
        let matrix = vec![1u8; n];
        std::hint::black_box(&matrix);
        matrix
    }
}
fn main() {
    let n = std::env::args().count();
    let v = app::setup(n * 5000);
    unsafe { (&raw mut app::STATE[n]).write_volatile(1) };
    println!("{} {}", v.len() as u64 + std::hint::black_box(&app::TABLE)[n], unsafe { (&raw const app::STATE[n]).read_volatile() });
}
"#;

/// Runs a tool; `None` where it is missing or fails.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    if !output.status.success() {
        eprintln!(
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        return None;
    }
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) fn must(program: &str, arguments: &[&str]) -> String {
    run(program, arguments).unwrap_or_else(|| panic!("{program} {arguments:?} failed"))
}

pub(crate) fn exists(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// Compiles a source; the compiler follows from the extension.
pub(crate) fn compile(folder: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, source).expect("the temporary folder is writable");
    let out = path.with_extension("");
    let compiler = match path.extension().and_then(|extension| extension.to_str()) {
        Some("c") => "gcc",
        Some("cc") => "g++",
        Some("f90" | "f") => "gfortran",
        _ => "rustc",
    };
    let mut arguments = flags.to_vec();
    arguments.extend([text(&path), "-o", text(&out)]);
    must(compiler, &arguments);
    out
}

/// The mappings that the loader would make of a file, from the program headers as `readelf` tells them.
pub(crate) fn mappings(path: &Path, bias: u64) -> Vec<Mapping> {
    let listing = must("readelf", &["-lW", text(path)]);
    let hex = |text: &str| {
        u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("readelf prints hexadecimal")
    };
    let loads = listing
        .lines()
        .filter(|line| line.trim_start().starts_with("LOAD"));
    loads
        .map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (offset, address, size) = (hex(fields[1]), hex(fields[2]), hex(fields[5]));
            let flags = fields[6..fields.len() - 1].join("");
            let start = address & !4095;
            let has = |flag: char| {
                if flags.contains(flag) {
                    flag.to_ascii_lowercase()
                } else {
                    '-'
                }
            };
            Mapping {
                pid: Pid(1),
                address: Address(start + bias),
                bytes: Bytes((address + size).next_multiple_of(4096) - start),
                perms: format!(
                    "r{}{}p",
                    if flags.contains('W') { 'w' } else { '-' },
                    if has('E') == 'e' { 'x' } else { '-' }
                ),
                offset: Bytes(offset & !4095),
                path: text(path).to_owned(),
                called: None,
                file: None,
                build_id: None,
                from: Time(0),
                to: None,
            }
        })
        .collect()
}
