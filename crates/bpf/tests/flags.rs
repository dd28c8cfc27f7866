//! Touches that leave no accessed bit are found in the page flags
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use common::{PAGE, Puppet, kernel, map_small, pages_of, set, walk_touched, write_all};
use varve_bpf::PageFlags;

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
fn pinned_pages_are_told() {
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
