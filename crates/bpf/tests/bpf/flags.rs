//! Touches that leave no accessed bit are found in the page flags

use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use crate::common::{
    PAGE, Puppet, kernel, map, map_small, pages_of, read_page, set, walk_touched, write_all,
};
use varve_bpf::{Kernel, PageFlags};
use varve_model::Pid;

const PAGES: u64 = 64;

/// Whether direct reads go around the processor: others accept O_DIRECT and copy all the same
fn is_on_a_disk(folder: &std::path::Path) -> bool {
    const EXT4: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    const BTRFS: i64 = 0x9123_683e;
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(folder.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: all zeroes is a value of statfs; the path ends with zero
    let kind = unsafe {
        let mut facts: libc::statfs = std::mem::zeroed();
        if libc::statfs(path.as_ptr(), &raw mut facts) != 0 {
            return false;
        }
        facts.f_type
    };
    [EXT4, XFS, BTRFS].contains(&kind)
}

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

#[test]
fn a_direct_read_is_seen_through_the_page_flags_only() {
    direct(Direction::Read, |puppet| {
        // Soft-dirty tracking would make the kernel take a fault for its write, which sets the bit
        std::fs::write(format!("/proc/{}/clear_refs", puppet.pid), "1").unwrap();
    });
}

#[test]
fn a_direct_write_is_seen_through_the_page_flags_only() {
    direct(Direction::Write, Puppet::clear);
}

fn direct(direction: Direction, clear: impl Fn(&Puppet)) {
    let Some(mut kernel) = kernel() else { return };
    // In a test machine only $TMPDIR may be a real disk, elsewhere only the build folder
    let folders = [
        std::env::temp_dir(),
        env!("CARGO_TARGET_TMPDIR").into(),
        "/var/tmp".into(),
    ];
    let Some(folder) = folders.iter().find(|folder| is_on_a_disk(folder)) else {
        eprintln!(
            "skipped: none of {folders:?} is on a file system that reads past the page cache"
        );
        return;
    };
    let folder = tempfile::tempdir_in(folder).unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![5; (PAGES * PAGE) as usize]).unwrap();
    let opened = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path);
    let Ok(mut file) = opened else {
        eprintln!("skipped: the file system of {path:?} has no O_DIRECT");
        return;
    };
    let mut puppet = Puppet::new(move |stage| {
        let base = map_small(PAGES);
        write_all(base, PAGES);
        stage.step(base);
        // SAFETY: pages of our own that nothing else refers to
        let buffer = unsafe {
            std::slice::from_raw_parts_mut((base + 10 * PAGE) as *mut u8, 3 * PAGE as usize)
        };
        match direction {
            Direction::Read => file.read_exact(buffer).unwrap(),
            Direction::Write => file.write_all(buffer).unwrap(),
        }
        stage.step(0);
    });
    let base = puppet.wait_step();
    clear(&puppet);
    assert_eq!(walk_touched(&mut kernel, puppet.pid, base, PAGES), set([]));
    puppet.go();
    puppet.wait_step();
    kernel.set_page_flags(PageFlags::Ignore).unwrap();
    assert_eq!(
        walk_touched(&mut kernel, puppet.pid, base, PAGES),
        set([]),
        "negative control: without the flags nobody sees it"
    );
    kernel.set_page_flags(PageFlags::Check).unwrap();
    assert_eq!(
        walk_touched(&mut kernel, puppet.pid, base, PAGES),
        set([10, 11, 12])
    );
    clear(&puppet);
    assert_eq!(walk_touched(&mut kernel, puppet.pid, base, PAGES), set([]));
}

#[test]
fn pinned_pages_are_reported() {
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        let base = map_small(PAGES);
        write_all(base, PAGES);
        // io_uring_setup(4) and registration of one buffer of two pages
        let mut parameters = [0u64; 15];
        let buffer = libc::iovec {
            iov_base: (base + 30 * PAGE) as *mut _,
            iov_len: 2 * PAGE as usize,
        };
        // SAFETY: arguments of the sizes that the calls want
        let result = unsafe {
            let ring = libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr());
            libc::syscall(libc::SYS_io_uring_register, ring, 0, &raw const buffer, 1)
        };
        stage.step(base);
        stage.step(u64::from(result == 0));
    });
    let base = puppet.wait_step();
    puppet.go();
    if puppet.wait_step() == 0 {
        eprintln!("skipped: no io_uring here");
        return;
    }
    puppet.clear();
    let mut pinned = Vec::new();
    kernel
        .walk(puppet.pid, &mut |region| {
            pinned.extend(pages_of(region, &region.pinned, base, PAGES));
        })
        .unwrap();
    assert_eq!(pinned, [30, 31]);
}

/// The pages that the flags tell of: those of the process's own, and those that others may have set
fn flagged(kernel: &mut Kernel, pid: Pid, base: u64) -> (Vec<u64>, Vec<u64>) {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    kernel
        .walk(pid, &mut |region| {
            let known: [u64; 8] = std::array::from_fn(|i| region.young[i] | region.referenced[i]);
            own.extend(pages_of(region, &known, base, PAGES));
            others.extend(pages_of(region, &region.others, base, PAGES));
        })
        .unwrap();
    (own, others)
}

/// Reads pages of another process past its mappings, which sets `PG_referenced` and no accessed bit
fn peek(puppet: &Puppet, base: u64, first: u64, count: u64) {
    use std::os::unix::fs::FileExt;
    let memory = std::fs::File::open(format!("/proc/{}/mem", puppet.pid)).unwrap();
    let mut bytes = vec![0; (count * PAGE) as usize];
    memory
        .read_exact_at(&mut bytes, base + first * PAGE)
        .unwrap();
}

/// Hands a page to a pipe, for which the kernel takes the page as it does for `O_DIRECT`
fn splice(address: u64) {
    let mut ends = [0; 2];
    let bytes = libc::iovec {
        iov_base: address as *mut _,
        iov_len: PAGE as usize,
    };
    // SAFETY: a pipe of its own, closed before anybody writes to the page
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        assert_eq!(
            libc::vmsplice(ends[1], &raw const bytes, 1, 0),
            PAGE as isize
        );
        for end in ends {
            libc::close(end);
        }
    }
}

/// A forked child that only waits; it shares all anonymous memory until it is ended
fn sleeper() -> i32 {
    // SAFETY: the child waits for a signal and does nothing else
    unsafe {
        let parent = libc::getpid();
        let pid = libc::fork();
        if pid == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // Its parent may be gone already.
            while libc::getppid() == parent {
                libc::pause();
            }
            libc::_exit(0);
        }
        pid
    }
}

fn end(pid: i32) {
    // SAFETY: a child of this process that it has not waited for yet
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

#[test]
fn flags_of_anonymous_pages_are_the_processs_own_until_it_shares_them() {
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        let base = map_small(PAGES);
        write_all(base, PAGES);
        stage.step(base);
        let child = sleeper();
        stage.step(0);
        end(child);
        stage.step(0);
    });
    let base = puppet.wait_step();
    for (step, own) in [true, false, true].into_iter().enumerate() {
        if step > 0 {
            puppet.go();
            puppet.wait_step();
        }
        puppet.clear();
        assert_eq!(flagged(&mut kernel, puppet.pid, base), (vec![], vec![]));
        peek(&puppet, base, 20, 3);
        let pages = vec![20, 21, 22];
        let expected = if own {
            (pages, vec![])
        } else {
            (vec![], pages)
        };
        assert_eq!(flagged(&mut kernel, puppet.pid, base), expected);
    }
}

#[test]
fn flags_of_huge_pages_are_the_processs_own_until_it_shares_them() {
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        const HUGE: u64 = 512;
        let base = map_small(2 * HUGE).next_multiple_of(HUGE * PAGE);
        // SAFETY: advice on pages of the new mapping
        unsafe {
            libc::madvise(base as *mut _, (HUGE * PAGE) as usize, libc::MADV_HUGEPAGE);
        }
        write_all(base, HUGE);
        stage.step(base);
        splice(base + 20 * PAGE);
        stage.step(0);
        let child = sleeper();
        stage.step(0);
        splice(base + 20 * PAGE);
        stage.step(0);
        end(child);
    });
    let base = puppet.wait_step();
    let mut huge = false;
    kernel
        .walk(puppet.pid, &mut |r| {
            huge |= r.base.0 == base && r.leaf == varve_bpf::Leaf::Huge2M;
        })
        .unwrap();
    if !huge {
        eprintln!("skipped: no huge page was to be had");
        return;
    }
    for own in [true, false] {
        puppet.clear();
        assert_eq!(flagged(&mut kernel, puppet.pid, base), (vec![], vec![]));
        puppet.go();
        puppet.wait_step();
        let expected = if own {
            (vec![0], vec![])
        } else {
            (vec![], vec![0])
        };
        assert_eq!(flagged(&mut kernel, puppet.pid, base), expected);
        if own {
            puppet.go();
            puppet.wait_step();
        }
    }
}

#[test]
fn flags_of_files_and_shared_memory_may_be_others() {
    let Some(mut kernel) = kernel() else { return };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![5; (PAGES * PAGE) as usize]).unwrap();
    file.flush().unwrap();
    for shared_memory in [false, true] {
        let path = file.path().to_owned();
        let mut puppet = Puppet::new(move |stage| {
            use std::os::fd::AsRawFd;
            let file = std::fs::File::open(path).unwrap();
            let base = if shared_memory {
                map(PAGES, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)
            } else {
                map(PAGES, libc::MAP_PRIVATE, file.as_raw_fd())
            };
            for page in 0..PAGES {
                read_page(base, page);
            }
            stage.step(base);
        });
        let base = puppet.wait_step();
        puppet.clear();
        assert_eq!(flagged(&mut kernel, puppet.pid, base), (vec![], vec![]));
        if shared_memory {
            peek(&puppet, base, 20, 3);
        } else {
            use std::os::unix::fs::FileExt;
            let mut bytes = vec![0; 3 * PAGE as usize];
            file.as_file().read_exact_at(&mut bytes, 20 * PAGE).unwrap();
        }
        let (own, others) = flagged(&mut kernel, puppet.pid, base);
        assert_eq!(own, [], "nobody can know that");
        assert!(
            [20, 21, 22].iter().all(|page| others.contains(page)),
            "shared memory {shared_memory}: {others:?}"
        );
        assert!(
            walk_touched(&mut kernel, puppet.pid, base, PAGES).is_superset(&set([20, 21, 22])),
            "the bound holds them"
        );
    }
}
