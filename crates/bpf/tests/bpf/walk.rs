//! What the walk of the page tables sees

use std::collections::BTreeSet;

use crate::common::{
    PAGE, Puppet, kernel, kernel_with, map, map_small, pages_of, read_page, set, walk_touched,
    write_all, write_page,
};
use varve_bpf::{BpfError, Leaf, LoadOptions};
use varve_model::Pid;

const PAGES: u64 = 16384;

#[test]
fn only_pages_touched_after_the_clear_are_touched() {
    let Some(mut kernel) = kernel() else { return };
    let wanted = set([0, 5, 63, 64, 511, 512, 4000, PAGES - 1]);
    let pages = wanted.clone();
    let mut puppet = Puppet::new(move |stage| {
        let base = map_small(PAGES);
        write_all(base, PAGES);
        stage.step(base);
        pages.iter().for_each(|page| {
            read_page(base, *page);
        });
        stage.step(0);
        pages.iter().for_each(|page| write_page(base, *page));
        stage.step(0);
    });
    let base = puppet.wait_step();
    assert_eq!(
        walk_touched(&mut kernel, puppet.pid, base, PAGES).len() as u64,
        PAGES
    );
    puppet.clear();
    assert_eq!(walk_touched(&mut kernel, puppet.pid, base, PAGES), set([]));
    puppet.go();
    puppet.wait_step();
    assert_eq!(walk_touched(&mut kernel, puppet.pid, base, PAGES), wanted);
    puppet.clear();
    puppet.go();
    puppet.wait_step();
    assert_eq!(walk_touched(&mut kernel, puppet.pid, base, PAGES), wanted);
}

#[test]
fn pages_far_from_each_other_are_all_found() {
    let Some(mut kernel) = kernel() else { return };
    let base = 1u64 << 44;
    let mut wanted = BTreeSet::new();
    // Entries of each level of tables, at and around the borders of what the walk passes by at a time
    let gaps = [0, 1, 6, 7, 8, 9, 15, 127, 128, 129, 136, 255, 256, 504, 511];
    for level in [21, 30, 39] {
        wanted.extend(gaps.iter().map(|gap| base + (gap << level)));
    }
    // Behind the first entry of each, too
    wanted.extend(
        gaps.iter()
            .map(|gap| base + (3 << 39) + (gap << 30) + (5 << 21)),
    );
    // Not beyond the end of an address space of 47 bits
    wanted.retain(|at| *at < (1 << 47) - PAGE);
    let places = wanted.clone();
    let mut puppet = Puppet::new(move |stage| {
        for at in &places {
            // SAFETY: a new mapping where nothing is mapped
            let got = unsafe {
                libc::mmap(
                    *at as *mut _,
                    PAGE as usize,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                    -1,
                    0,
                )
            };
            assert_eq!(got as u64, *at);
            write_page(*at, 0);
        }
        stage.step(0);
    });
    puppet.wait_step();
    let mut found = BTreeSet::new();
    kernel
        .walk(puppet.pid, &mut |region| {
            for at in &wanted {
                let pages = pages_of(region, &region.touched(), *at, 1);
                found.extend(pages.first().map(|_| *at));
            }
        })
        .unwrap();
    assert_eq!(found, wanted);
}

#[test]
fn a_small_output_is_filled_again_and_again() {
    let options = LoadOptions {
        walk_regions: 2,
        ..LoadOptions::default()
    };
    let Some(mut kernel) = kernel_with(&options) else {
        return;
    };
    let mut puppet = Puppet::new(|stage| {
        let base = map_small(PAGES);
        write_all(base, PAGES);
        stage.step(base);
    });
    let base = puppet.wait_step();
    assert_eq!(
        walk_touched(&mut kernel, puppet.pid, base, PAGES).len() as u64,
        PAGES
    );
    let stats = kernel.walk(puppet.pid, &mut |_| {}).unwrap();
    assert!(stats.calls > 16, "{stats:?}");
    let status = std::fs::read_to_string(format!("/proc/{}/statm", puppet.pid)).unwrap();
    let resident: u64 = status.split(' ').nth(1).unwrap().parse().unwrap();
    // The walk also counts what the resident counter does not: the zero page, the vdso, maps of the
    // kernel's type information that another test has open
    assert!(
        (resident.saturating_sub(64)..resident + 4096).contains(&stats.present_pages),
        "{stats:?} {resident}"
    );
}

#[test]
fn what_is_there_is_reported_touched_or_not() {
    let options = LoadOptions {
        walk_regions: 2,
        ..LoadOptions::default()
    };
    let Some(mut kernel) = kernel_with(&options) else {
        return;
    };
    let mut puppet = Puppet::new(|stage| {
        let base = map_small(PAGES);
        write_all(base, PAGES);
        stage.step(base);
        let advise = |first: u64, pages: u64, advice| {
            let address = (base + first * PAGE) as *mut libc::c_void;
            // SAFETY: advice on a mapping of our own, which is not read by anybody else
            unsafe { libc::madvise(address, (pages * PAGE) as usize, advice) };
        };
        advise(10, 3, libc::MADV_DONTNEED);
        advise(100, 800, libc::MADV_FREE);
        write_page(base, 101);
        stage.step(0);
    });
    let (base, pid) = (puppet.wait_step(), puppet.pid);
    let there = |kernel: &mut varve_bpf::Kernel| {
        let mut pages = std::collections::BTreeSet::new();
        let mut last = 0;
        let residents = &mut |resident: &varve_bpf::Resident| {
            assert!(resident.base.0 >= last);
            last = resident.base.0;
            for page in 0..512 {
                let address = resident.base.0 + page * PAGE;
                let is_there = resident.pages[page as usize / 64] >> (page % 64) & 1 != 0;
                if is_there && (base..base + PAGES * PAGE).contains(&address) {
                    pages.insert((address - base) / PAGE);
                }
            }
        };
        kernel.walk_all(pid, &mut |_| {}, residents).unwrap();
        pages
    };
    puppet.clear();
    assert_eq!(there(&mut kernel), (0..PAGES).collect());
    puppet.go();
    puppet.wait_step();
    let goes = |page: u64| (10..13).contains(&page) || (page != 101 && (100..900).contains(&page));
    assert_eq!(
        there(&mut kernel),
        (0..PAGES).filter(|p| !goes(*p)).collect()
    );
}

#[test]
fn huge_pages_count_at_their_own_size() {
    let Some(mut kernel) = kernel() else { return };
    const HUGE: u64 = 512;
    let mut puppet = Puppet::new(|stage| {
        let area = map_small(16 * HUGE);
        let base = area.next_multiple_of(HUGE * PAGE);
        // SAFETY: advice on a mapping of our own
        unsafe {
            libc::madvise(
                base as *mut _,
                (8 * HUGE * PAGE) as usize,
                libc::MADV_HUGEPAGE,
            )
        };
        write_all(base, 8 * HUGE);
        stage.step(base);
        read_page(base, 3 * HUGE + 77);
        stage.step(0);
    });
    let base = puppet.wait_step();
    let mut huge = Vec::new();
    kernel
        .walk(puppet.pid, &mut |region| {
            if region.leaf == Leaf::Huge2M && region.base.0 >= base {
                assert!(!region.hugetlb);
                huge.push((region.base.0 - base) / (HUGE * PAGE));
            }
        })
        .unwrap();
    if huge.len() < 8 {
        eprintln!("skipped: the kernel gave {} of 8 huge pages", huge.len());
        return;
    }
    assert_eq!(huge, [0, 1, 2, 3, 4, 5, 6, 7]);
    puppet.clear();
    puppet.go();
    puppet.wait_step();
    assert_eq!(
        walk_touched(&mut kernel, puppet.pid, base, 8 * HUGE),
        set([3 * HUGE])
    );
}

#[test]
fn hugetlb_pages_are_sticky() {
    let Some(mut kernel) = kernel() else { return };
    let pool = "/proc/sys/vm/nr_hugepages";
    let before = std::fs::read_to_string(pool).unwrap();
    let wanted = before.trim().parse::<u32>().unwrap() + 4;
    std::fs::write(pool, wanted.to_string()).unwrap();
    let mut puppet = Puppet::new(|stage| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
        let base = map(4 * 512, flags, -1);
        write_page(base, 512);
        stage.step(base);
    });
    let base = puppet.wait_step();
    puppet.clear();
    let mut sticky = Vec::new();
    kernel
        .walk(puppet.pid, &mut |region| {
            if region.hugetlb {
                sticky.extend(pages_of(region, &region.sticky, base, 4 * 512));
            }
        })
        .unwrap();
    puppet.finish();
    std::fs::write(pool, before).unwrap();
    assert_eq!(sticky, [512]);
}

#[test]
fn pages_without_permissions_keep_their_bits() {
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        // All in one region, because its count of present pages is looked at
        let base = map_small(1024).next_multiple_of(512 * PAGE);
        write_all(base, 64);
        stage.step(base);
        read_page(base, 9);
        // SAFETY: a mapping of our own, not touched again
        unsafe { libc::mprotect(base as *mut _, 64 * PAGE as usize, libc::PROT_NONE) };
        stage.step(0);
    });
    let base = puppet.wait_step();
    puppet.clear();
    puppet.go();
    puppet.wait_step();
    assert_eq!(walk_touched(&mut kernel, puppet.pid, base, 64), set([9]));
    let mut present = 0;
    kernel
        .walk(puppet.pid, &mut |region| {
            if !pages_of(region, &region.touched(), base, 64).is_empty() {
                present = region.present;
            }
        })
        .unwrap();
    assert!(present >= 64, "{present}");
}

#[test]
fn the_zero_page_is_sticky() {
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        let base = map_small(64);
        read_page(base, 3);
        stage.step(base);
    });
    let base = puppet.wait_step();
    puppet.clear();
    let mut sticky = Vec::new();
    let mut accessed = Vec::new();
    kernel
        .walk(puppet.pid, &mut |region| {
            sticky.extend(pages_of(region, &region.sticky, base, 64));
            accessed.extend(pages_of(region, &region.accessed, base, 64));
        })
        .unwrap();
    assert_eq!((sticky, accessed), (vec![3], vec![]));
}

#[test]
fn a_process_whose_first_thread_ended_is_still_found() {
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        let base = map_small(8);
        std::thread::scope(|scope| {
            let stage = &mut *stage;
            scope.spawn(move || {
                // SAFETY: cannot fail
                let first = unsafe { libc::getpid() };
                // A first thread that has ended stays, as a zombie, until the others have
                let stat = format!("/proc/{first}/task/{first}/stat");
                while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
                    std::thread::yield_now();
                }
                write_page(base, 5);
                stage.step(base);
                // SAFETY: ends the whole child
                unsafe { libc::_exit(0) };
            });
            // SAFETY: ends the first thread only
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        });
    });
    let base = puppet.wait_step();
    assert_eq!(walk_touched(&mut kernel, puppet.pid, base, 8), set([5]));
    puppet.finish();
}

#[test]
fn a_process_that_is_not_there_is_an_error() {
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|_| {});
    let pid = puppet.pid;
    puppet.reap();
    let error = kernel.walk(pid, &mut |_| {}).unwrap_err();
    assert!(matches!(error, BpfError::NoProcess(_)), "{error}");
    // Kernel threads have no memory
    let error = kernel.walk(Pid(2), &mut |_| {}).unwrap_err();
    assert!(matches!(error, BpfError::NoProcess(_)), "{error}");
}
