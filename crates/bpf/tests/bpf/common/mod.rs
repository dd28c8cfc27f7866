//! A child whose every step the test decides, and the kernel part to watch it with
#![allow(dead_code, clippy::unwrap_used, missing_docs, unreachable_pub)]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, RawFd};

use varve_bpf::{Event, Kernel, LoadOptions, Region, TrackFlags, Vanish};
use varve_model::Pid;

pub const PAGE: u64 = 4096;

/// Loads the programs; says why the test is skipped where that cannot work
pub fn kernel() -> Option<Kernel> {
    kernel_with(&LoadOptions::default())
}

pub fn kernel_with(options: &LoadOptions) -> Option<Kernel> {
    // SAFETY: no arguments, cannot fail
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: this test needs root to load BPF programs");
        return None;
    }
    if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        eprintln!("skipped: this kernel has no type information (CONFIG_DEBUG_INFO_BTF)");
        return None;
    }
    Some(Kernel::load(options).unwrap())
}

/// The child's side: tells a number, then waits to be let on
pub struct Stage {
    out: File,
    into: File,
}

impl Stage {
    pub fn step(&mut self, value: u64) {
        self.out.write_all(&value.to_ne_bytes()).unwrap();
        self.into.read_exact(&mut [0]).unwrap();
    }
}

/// The parent's side; the child is killed when it is dropped
pub struct Puppet {
    pub pid: Pid,
    out: File,
    into: File,
    reaped: bool,
}

fn pipe() -> (File, File) {
    let mut ends: [RawFd; 2] = [0; 2];
    // SAFETY: room for two descriptors, which are new
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    }
}

impl Puppet {
    pub fn new(act: impl FnOnce(&mut Stage)) -> Puppet {
        let (from_child, to_parent) = pipe();
        let (from_parent, to_child) = pipe();
        // SAFETY: the child runs only the closure and leaves by _exit; glibc keeps malloc usable
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            drop((from_child, to_child));
            let mut stage = Stage {
                out: to_parent,
                into: from_parent,
            };
            act(&mut stage);
            // SAFETY: ends the child without running the test harness's exit handlers
            unsafe { libc::_exit(7) };
        }
        Puppet {
            pid: Pid(pid as u32),
            out: from_child,
            into: to_child,
            reaped: false,
        }
    }

    /// Waits until the child reaches its next step, and gives its number
    pub fn wait_step(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.out.read_exact(&mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    pub fn go(&mut self) {
        self.into.write_all(&[1]).unwrap();
    }

    pub fn clear(&self) {
        for what in ["1", "4"] {
            std::fs::write(format!("/proc/{}/clear_refs", self.pid), what).unwrap();
        }
    }

    /// Lets the child run to its end; its wait status
    pub fn finish(&mut self) -> i32 {
        self.go();
        self.reap()
    }

    pub fn reap(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: waits for our own child
        unsafe { libc::waitpid(self.pid.0 as i32, &raw mut status, 0) };
        self.reaped = true;
        status
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        if !self.reaped {
            // SAFETY: our own child, not yet reaped
            unsafe { libc::kill(self.pid.0 as i32, libc::SIGKILL) };
            self.reap();
        }
    }
}

/// Page numbers of a bitmap relative to `base`, as far as they lie in `[base, base + pages)`
pub fn pages_of(region: &Region, bits: &[u64; 8], base: u64, pages: u64) -> Vec<u64> {
    let small = region.leaf.bytes().0 == PAGE;
    (0..if small { 512u64 } else { 1 })
        .filter(|bit| bits[(bit / 64) as usize] >> (bit % 64) & 1 != 0)
        .map(|bit| region.base.0 + bit * PAGE)
        .filter(|at| (base..base + pages * PAGE).contains(at))
        .map(|at| (at - base) / PAGE)
        .collect()
}

/// What a walk reports as touched in a range
pub fn walk_touched(kernel: &mut Kernel, pid: Pid, base: u64, pages: u64) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    let stats = kernel
        .walk(pid, &mut |region| {
            all.extend(pages_of(region, &region.touched(), base, pages));
        })
        .unwrap();
    assert_eq!(stats.table_failures, 0);
    all
}

/// All vanish events of a process that are in the ring now
pub fn vanished(kernel: &mut Kernel, pid: Pid, mut sink: impl FnMut(&Vanish<'_>)) {
    kernel
        .events(&mut |event| {
            if let Event::Vanish(vanish) = event
                && vanish.pid == pid
            {
                sink(&vanish);
            }
        })
        .unwrap();
}

pub fn track(kernel: &Kernel, puppet: &Puppet) {
    kernel.track(puppet.pid, TrackFlags::DEFAULT).unwrap();
}

/// A new mapping of small pages
pub fn map_small(pages: u64) -> u64 {
    map(pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
}

pub fn map(pages: u64, flags: i32, fd: i32) -> u64 {
    // SAFETY: a new mapping at an address that the kernel chooses
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            (pages * PAGE) as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            fd,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        libc::madvise(at, (pages * PAGE) as usize, libc::MADV_NOHUGEPAGE);
        at as u64
    }
}

pub fn write_page(base: u64, page: u64) {
    // SAFETY: the callers give pages of mappings of their own
    unsafe { ((base + page * PAGE) as *mut u8).write_volatile(1) }
}

pub fn read_page(base: u64, page: u64) -> u8 {
    // SAFETY: the callers give pages of mappings of their own
    unsafe { ((base + page * PAGE) as *const u8).read_volatile() }
}

pub fn write_all(base: u64, pages: u64) {
    (0..pages).for_each(|page| write_page(base, page));
}

pub fn set<const N: usize>(pages: [u64; N]) -> BTreeSet<u64> {
    pages.into_iter().collect()
}
