//! The preload library: allocations, mappings and thread stacks with call stacks.
//!
//! Loaded with `LD_PRELOAD`, it wraps the C library's allocation, mapping and thread functions and
//! reports them to the recorder through one shared-memory ring per process (`varve-preload-abi`).
//! It must not change what the program does, so:
//! - It keeps no file descriptor, prints nothing, takes no lock that a signal handler or a forked
//!   child could wait for, and leaves `errno` alone: its own system calls bypass the C library.
//! - Its own memory comes from [`arena`], never from the program's heap, and what the C library allocates for it from [`scratch`].
//! - Its thread-local state lives in the static TLS block ([`thread`]): reaching it never allocates.
//! - Without a ring (no `VARVE_PRELOAD_DIR`, chroot, a recorder that is gone) it only passes calls on.
//!
//! A program that brings its own `malloc` in its executable keeps it: symbol resolution prefers
//! the executable. An allocator in a shared library is wrapped like the C library's. `operator new`
//! is seen where it calls `malloc`, as libstdc++ and libc++ do.
//!
//! One allocation's way: [`heap`] calls the real function, then asks [`pages`] whether the object
//! is small and its page has an owner (done, a few nanoseconds); else [`unwind`] walks the stack,
//! [`sites`] turns it into a number, and [`process`] writes the record. Where a plan is applied there is no record: [`placing`] looks up
//! what is to be done with the objects of that call stack, and does it.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod arena;
mod budget;
mod children;
mod ends;
mod events;
mod executions;
mod gate;
mod handler;
mod heap;
mod inherited;
mod limits;
mod loader;
mod locking;
mod maps;
mod memory;
mod modules;
mod operations;
mod own;
mod pages;
mod placing;
mod proc;
mod process;
mod real;
mod reservations;
mod roots;
mod scope;
mod scratch;
mod sites;
mod symbols;
mod sys;
mod thread;
mod threads;
mod transfers;
mod unloading;
mod unwind;
mod waits;
mod writes;

// The compiler's stack unwinder, for Rust's own panics: linked in, because a preloaded library must not
// bring libgcc_s into programs that do not have it.
#[link(name = "gcc_eh", kind = "static", modifiers = "+whole-archive,-bundle")]
unsafe extern "C" {}

#[global_allocator]
static ARENA: arena::Arena = arena::Arena::new();

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

// Among the last that run when the program returns from `main` or calls `exit`.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = handler::leave;

/// Panics, and says whether that was caught, as where the call stacks of programs are walked. It can be looked up.
#[unsafe(no_mangle)]
extern "C" fn varve_preload_catches_panics() -> bool {
    let panics = || assert!(std::hint::black_box(false));
    std::panic::catch_unwind(panics).is_err()
}

extern "C" fn start() {
    // A panic would print. There should be none; if there is one, it is caught where it happens.
    std::panic::set_hook(Box::new(|_| {}));
    gate::passed();
    real::resolve();
    scope::note_start();
    handler::note_statics();
    threads::announce_main();
    placing::begin();
}
