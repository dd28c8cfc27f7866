//! Pages that go between two walks are reported before they go
// SAFETY of all blocks below: each call acts on a mapping, a descriptor or the process of a child that
// was made for it and does nothing else afterwards
#![allow(clippy::undocumented_unsafe_blocks)]

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;

use crate::common::{
    PAGE, Puppet, kernel, kernel_with, map, map_small, pages_of, read_page, set, track, vanished,
    write_all, write_page,
};
use varve_model::Address;

use varve_bpf::{Event, Hooks, Kernel, LoadOptions, TrackFlags, VanishCause, VanishHooks};

const PAGES: u64 = 2048;

/// What asks for the lock of the mappings, and what is seen as a system call alone
const BOTH: &[VanishHooks] = &[VanishHooks::Locks, VanishHooks::Calls];
const CALLS: &[VanishHooks] = &[VanishHooks::Calls];

fn seen(kernel: &mut Kernel, puppet: &Puppet, wanted: VanishCause, base: u64) -> BTreeSet<u64> {
    let mut pages = BTreeSet::new();
    vanished(kernel, puppet.pid, |vanish| {
        if vanish.cause == wanted {
            for region in vanish.regions() {
                pages.extend(pages_of(&region, &region.touched(), base, PAGES));
            }
        }
    });
    assert_eq!(kernel.dropped().unwrap().total(), 0);
    pages
}

/// Touches all pages; after the clear touches three and lets `act` make them vanish
fn check(
    by: &[VanishHooks],
    cause: VanishCause,
    make: impl Fn() -> u64 + Copy,
    act: impl Fn(u64) + Copy,
    expected: BTreeSet<u64>,
) {
    let ways = by.iter().flat_map(|vanish| {
        [
            (*vanish, true, Hooks::Best),
            (*vanish, true, Hooks::Portable),
            (*vanish, false, Hooks::Best),
        ]
    });
    for (vanish, hooked, hooks) in ways {
        let options = LoadOptions {
            hooks,
            vanish,
            ..LoadOptions::default()
        };
        let Some(mut kernel) = kernel_with(&options) else {
            return;
        };
        let mut puppet = Puppet::new(move |stage| {
            let base = make();
            write_all(base, PAGES);
            stage.step(base);
            write_page(base, 1);
            read_page(base, 700);
            read_page(base, PAGES - 1);
            act(base);
            stage.step(0);
        });
        let base = puppet.wait_step();
        puppet.clear();
        let flags = if hooked {
            TrackFlags::DEFAULT
        } else {
            TrackFlags::DEFAULT.without(TrackFlags::VANISH)
        };
        kernel.track(puppet.pid, flags).unwrap();
        puppet.go();
        if matches!(cause, VanishCause::Exec | VanishCause::Exit) {
            puppet.reap();
        } else {
            puppet.wait_step();
        }
        let pages = seen(&mut kernel, &puppet, cause, base);
        if hooked {
            assert_eq!(pages, expected, "{cause:?} {vanish:?} {hooks:?}");
        } else {
            assert!(pages.is_empty(), "negative control: {cause:?} {pages:?}");
        }
    }
}

fn touched() -> BTreeSet<u64> {
    set([1, 700, PAGES - 1])
}

fn small() -> u64 {
    map_small(PAGES)
}

fn shared_file() -> u64 {
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGES * PAGE).unwrap();
    // The descriptor stays open in the child under this number
    // SAFETY: duplicates a descriptor of our own
    unsafe { assert_eq!(libc::dup2(file.as_raw_fd(), 900), 900) };
    map(PAGES, libc::MAP_SHARED, 900)
}

const ALL: usize = (PAGES * PAGE) as usize;

#[test]
fn munmap() {
    let act = |base: u64| unsafe {
        assert_eq!(libc::munmap(base as *mut _, ALL), 0);
    };
    check(BOTH, VanishCause::Unmap, small, act, touched());
}

#[test]
fn munmap_of_a_part() {
    let act = |base: u64| unsafe {
        let part = (base + 600 * PAGE) as *mut _;
        assert_eq!(libc::munmap(part, 200 * PAGE as usize), 0);
    };
    check(BOTH, VanishCause::Unmap, small, act, set([700]));
}

#[test]
fn mremap_that_moves() {
    let act = |base: u64| unsafe {
        let target = map_small(PAGES);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let moved = libc::mremap(base as *mut _, ALL, ALL, flags, target as *mut libc::c_void);
        assert_eq!(moved as u64, target);
    };
    check(BOTH, VanishCause::Remap, small, act, touched());
}

#[test]
fn brk_that_shrinks() {
    let make = || unsafe {
        let start = (libc::sbrk(0) as u64).next_multiple_of(PAGE);
        assert_eq!(libc::brk((start + PAGES * PAGE) as *mut _), 0);
        libc::madvise(start as *mut _, ALL, libc::MADV_NOHUGEPAGE);
        start
    };
    let act = |base: u64| unsafe {
        assert_eq!(libc::brk((base + 2 * PAGE) as *mut _), 0);
    };
    check(BOTH, VanishCause::Brk, make, act, set([700, PAGES - 1]));
}

#[test]
fn madvise_dontneed() {
    let act = |base: u64| unsafe {
        assert_eq!(libc::madvise(base as *mut _, ALL, libc::MADV_DONTNEED), 0);
    };
    check(CALLS, VanishCause::Advise, small, act, touched());
}

#[test]
fn madvise_free() {
    let act = |base: u64| unsafe {
        assert_eq!(libc::madvise(base as *mut _, ALL, libc::MADV_FREE), 0);
    };
    check(CALLS, VanishCause::Advise, small, act, touched());
}

#[test]
fn madvise_cold() {
    let act = |base: u64| unsafe {
        assert_eq!(libc::madvise(base as *mut _, ALL, libc::MADV_COLD), 0);
    };
    check(BOTH, VanishCause::Advise, small, act, touched());
}

#[test]
fn madvise_remove() {
    let act = |base: u64| unsafe {
        assert_eq!(libc::madvise(base as *mut _, ALL, libc::MADV_REMOVE), 0);
    };
    let make = || map(PAGES, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
    check(BOTH, VanishCause::Advise, make, act, touched());
}

#[test]
fn process_madvise() {
    let act = |base: u64| unsafe {
        let part = libc::iovec {
            iov_base: base as *mut _,
            iov_len: ALL,
        };
        let me = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
        let cold = libc::MADV_COLD;
        libc::syscall(libc::SYS_process_madvise, me, &raw const part, 1, cold, 0);
    };
    check(BOTH, VanishCause::Advise, small, act, touched());
}

#[test]
fn mmap_over() {
    let act = |base: u64| unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let at = libc::mmap(base as *mut _, ALL, libc::PROT_READ, flags, -1, 0);
        assert_eq!(at as u64, base);
    };
    check(BOTH, VanishCause::Overmap, small, act, touched());
}

#[test]
fn shmdt() {
    let make = || unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, ALL, 0o600);
        let at = libc::shmat(id, std::ptr::null(), 0);
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        assert_ne!(at as i64, -1);
        at as u64
    };
    let act = |base: u64| unsafe { assert_eq!(libc::shmdt(base as *const _), 0) };
    check(BOTH, VanishCause::ShmDetach, make, act, touched());
}

#[test]
fn ftruncate() {
    let act = |_| unsafe { assert_eq!(libc::ftruncate(900, 0), 0) };
    check(CALLS, VanishCause::Truncate, shared_file, act, touched());
}

#[test]
fn fallocate_that_punches() {
    let act = |_| unsafe {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        assert_eq!(libc::fallocate(900, mode, 0, ALL as i64), 0);
    };
    check(CALLS, VanishCause::Truncate, shared_file, act, touched());
}

/// Touches all pages of a file; after the clear touches three, whereupon this process, which is not
/// tracked, does something to them
fn check_by_another(
    by: &[VanishHooks],
    cause: VanishCause,
    act: impl Fn(&tempfile::NamedTempFile, u32, u64),
) {
    let ways = by.iter().flat_map(|vanish| {
        [
            (*vanish, TrackFlags::DEFAULT),
            (*vanish, TrackFlags::DEFAULT.without(TrackFlags::VANISH)),
        ]
    });
    for (vanish, flags) in ways {
        let options = LoadOptions {
            vanish,
            ..LoadOptions::default()
        };
        let Some(mut kernel) = kernel_with(&options) else {
            return;
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PAGES * PAGE).unwrap();
        let fd = file.as_file().as_raw_fd();
        let mut puppet = Puppet::new(move |stage| {
            let base = map(PAGES, libc::MAP_SHARED, fd);
            write_all(base, PAGES);
            stage.step(base);
            write_page(base, 1);
            read_page(base, 700);
            read_page(base, PAGES - 1);
            stage.step(0);
        });
        let base = puppet.wait_step();
        puppet.clear();
        kernel.track(puppet.pid, flags).unwrap();
        puppet.go();
        puppet.wait_step();
        act(&file, puppet.pid.0, base);
        let pages = seen(&mut kernel, &puppet, cause, base);
        if flags == TrackFlags::DEFAULT {
            assert_eq!(pages, touched(), "{cause:?} {vanish:?}");
        } else {
            assert!(pages.is_empty(), "negative control: {cause:?} {pages:?}");
        }
    }
}

#[test]
fn ftruncate_by_another() {
    check_by_another(CALLS, VanishCause::Truncate, |file, _, _| {
        file.as_file().set_len(0).unwrap();
    });
}

#[test]
fn truncate_by_name_by_another() {
    check_by_another(CALLS, VanishCause::Truncate, |file, _, _| {
        let path = std::ffi::CString::new(file.path().to_str().unwrap()).unwrap();
        assert_eq!(unsafe { libc::truncate(path.as_ptr(), 0) }, 0);
    });
}

#[test]
fn fallocate_by_another() {
    check_by_another(CALLS, VanishCause::Truncate, |file, _, _| unsafe {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let fd = file.as_file().as_raw_fd();
        assert_eq!(libc::fallocate(fd, mode, 0, ALL as i64), 0);
    });
}

#[test]
fn process_madvise_by_another() {
    check_by_another(BOTH, VanishCause::Advise, |_, pid, base| unsafe {
        let pidfd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        assert!(pidfd >= 0);
        // More ranges than are read one by one, and few
        for parts in [64, 1] {
            let part = ALL / parts;
            let range = |i| libc::iovec {
                iov_base: (base as usize + i * part) as *mut libc::c_void,
                iov_len: part,
            };
            let ranges: Vec<_> = (0..parts).map(range).collect();
            let done = libc::syscall(
                libc::SYS_process_madvise,
                pidfd,
                ranges.as_ptr(),
                parts,
                libc::MADV_COLD,
                0,
            );
            assert_eq!(done, ALL as i64);
        }
        libc::close(pidfd as i32);
    });
}

/// The negative control is the test before: without the word that it clears parts the same call is looked at.
#[test]
fn parts_that_the_recorder_clears_are_not_looked_at() {
    for vanish in BOTH {
        let options = LoadOptions {
            vanish: *vanish,
            ..LoadOptions::default()
        };
        let Some(mut kernel) = kernel_with(&options) else {
            return;
        };
        kernel.clears_parts().unwrap();
        let mut puppet = Puppet::new(move |stage| {
            let base = map(PAGES, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
            stage.step(base);
            write_all(base, PAGES);
            stage.step(0);
        });
        let base = puppet.wait_step();
        kernel.track(puppet.pid, TrackFlags::DEFAULT).unwrap();
        puppet.go();
        puppet.wait_step();
        let cooling = varve_sys::Cooling::open(puppet.pid).unwrap();
        let (start, end) = (Address(base), Address(base + ALL as u64));
        cooling.clear(puppet.pid, start, end).unwrap();
        let pages = seen(&mut kernel, &puppet, VanishCause::Advise, base);
        assert!(pages.is_empty(), "{vanish:?} {pages:?}");
        assert_eq!(kernel.dropped().unwrap().vanish_walks, 0);
        // It did clear, and a walk of a part ends where it is asked to.
        let mut accessed = 0;
        let part = varve_bpf::Part {
            start,
            end: Some(end),
            ..Default::default()
        };
        let mut count = |r: &varve_bpf::Region| {
            accessed += r.accessed.iter().map(|w| w.count_ones()).sum::<u32>();
        };
        let (stats, rest) = kernel.walk_part(puppet.pid, &part, &mut count).unwrap();
        assert_eq!((stats.present_pages, rest), (PAGES, None));
        assert!(accessed < PAGES as u32 / 8, "{accessed}");
        let most = varve_bpf::Part {
            most: Some(1),
            ..part
        };
        let (stats, rest) = kernel.walk_part(puppet.pid, &most, &mut |_| ()).unwrap();
        assert!(stats.present_pages <= 512 && stats.present_pages >= 1);
        assert!(rest.is_none_or(|at| at > start && at.0 % (2 << 20) == 0));
    }
}

/// Programs that see pages go end in one that looks at them. Where the kernel does not take it, that is a loss, and all else is reported.
#[test]
fn pages_that_no_program_looks_at_are_a_loss() {
    for vanish in BOTH {
        let options = LoadOptions {
            vanish: *vanish,
            left_out: vec!["look_at_pages"],
            ..LoadOptions::default()
        };
        let Some(mut kernel) = kernel_with(&options) else {
            return;
        };
        assert_eq!(kernel.missing_promised(), 1, "{vanish:?}");
        let mut puppet = Puppet::new(|stage| {
            let base = map_small(PAGES);
            write_all(base, PAGES);
            stage.step(base);
            unsafe { libc::munmap(base as *mut libc::c_void, (PAGES * PAGE) as usize) };
            stage.step(0);
        });
        puppet.wait_step();
        track(&kernel, &puppet);
        let lost = |kernel: &Kernel| kernel.dropped().unwrap().vanish_walks;
        let before = lost(&kernel);
        puppet.go();
        puppet.wait_step();
        let unmapped = lost(&kernel);
        assert!(unmapped > before, "{vanish:?}");
        puppet.finish();
        let mut ends = 0;
        kernel
            .events(&mut |event| match event {
                Event::Exit(exit) if exit.pid == puppet.pid => ends += 1,
                Event::Vanish(vanish) => assert_ne!(vanish.cause, VanishCause::Unmap),
                _ => {}
            })
            .unwrap();
        assert_eq!(ends, 1, "{vanish:?}");
        assert!(lost(&kernel) > unmapped, "{vanish:?}");
    }
}

#[test]
fn an_open_that_cuts_a_mapped_file_is_a_loss() {
    let options = LoadOptions {
        vanish: VanishHooks::Calls,
        ..LoadOptions::default()
    };
    let Some(mut kernel) = kernel_with(&options) else {
        return;
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let other = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(PAGES * PAGE).unwrap();
    let fd = file.as_file().as_raw_fd();
    let mut puppet = Puppet::new(move |stage| {
        let base = map(PAGES, libc::MAP_SHARED, fd);
        write_all(base, PAGES);
        stage.step(base);
    });
    puppet.wait_step();
    kernel.track(puppet.pid, TrackFlags::DEFAULT).unwrap();
    let lost = |kernel: &Kernel| kernel.dropped().unwrap().vanish_walks;
    let before = lost(&kernel);
    std::fs::File::create(other.path()).unwrap();
    std::fs::File::open(file.path()).unwrap();
    assert_eq!(lost(&kernel), before, "negative control");
    std::fs::File::create(file.path()).unwrap();
    assert_eq!(lost(&kernel), before + 1);
    vanished(&mut kernel, puppet.pid, |_| ());
}

#[test]
fn exec() {
    let act = |_| unsafe {
        let path = c"/bin/true".as_ptr();
        libc::execv(path, [path, std::ptr::null()].as_ptr());
    };
    check(BOTH, VanishCause::Exec, small, act, touched());
}

#[test]
fn exec_while_threads_run() {
    let act = |base: u64| {
        for _ in 0..8 {
            std::thread::spawn(move || {
                loop {
                    read_page(base, 1);
                }
            });
        }
        let path = c"/bin/true".as_ptr();
        unsafe { libc::execv(path, [path, std::ptr::null()].as_ptr()) };
    };
    check(BOTH, VanishCause::Exec, small, act, touched());
}

#[test]
fn exit() {
    let act = |_| unsafe { libc::_exit(0) };
    check(BOTH, VanishCause::Exit, small, act, touched());
}

#[test]
fn exit_while_threads_run() {
    let act = |_| {
        for _ in 0..20 {
            std::thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        unsafe { libc::_exit(0) };
    };
    check(BOTH, VanishCause::Exit, small, act, touched());
}

#[test]
fn exit_of_the_last_of_several_threads() {
    let act = |_| {
        for _ in 0..3 {
            std::thread::spawn(|| unsafe {
                libc::usleep(20_000);
                libc::syscall(libc::SYS_exit, 0);
            });
        }
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    };
    check(BOTH, VanishCause::Exit, small, act, touched());
}

#[test]
fn killed() {
    let act = |_| unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
    };
    check(BOTH, VanishCause::Exit, small, act, touched());
}

#[test]
fn crashed() {
    let act = |_| unsafe {
        libc::signal(libc::SIGABRT, libc::SIG_DFL);
        libc::raise(libc::SIGABRT);
    };
    check(BOTH, VanishCause::Exit, small, act, touched());
}

#[test]
fn a_vfork_child_does_not_end_its_parents_memory() {
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        let base = small();
        write_all(base, PAGES);
        stage.step(base);
        std::process::Command::new("/bin/true").status().unwrap();
        stage.step(0);
    });
    let base = puppet.wait_step();
    track(&kernel, &puppet);
    puppet.go();
    puppet.wait_step();
    let mut pages = 0;
    kernel
        .events(&mut |event| {
            if let varve_bpf::Event::Vanish(vanish) = event {
                for region in vanish.regions() {
                    pages += pages_of(&region, &region.touched(), base, PAGES).len();
                }
            }
        })
        .unwrap();
    assert_eq!(pages, 0);
}
