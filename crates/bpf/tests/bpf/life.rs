//! Processes, threads, faults and mappings

use std::collections::BTreeSet;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::common::{PAGE, Puppet, kernel, kernel_with, map_small, read_page, track, write_page};
use varve_bpf::{
    Access, Event, ForkKind, Kernel, LoadOptions, MappingCall, Mode, OPERATION_PROGRAMS, TrackFlags,
};
use varve_model::{Address, Bytes, Pages};

const STORM: usize = 300;

#[test]
fn a_storm_of_threads_is_complete() {
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        stage.step(0);
        for _ in 0..STORM / 10 {
            let threads: Vec<_> = (0..10).map(|_| std::thread::spawn(|| ())).collect();
            threads.into_iter().for_each(|t| t.join().unwrap());
        }
        stage.step(0);
    });
    puppet.wait_step();
    track(&kernel, &puppet);
    puppet.go();
    puppet.wait_step();
    let (mut born, mut died, mut stacks) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    kernel
        .events(&mut |event| match event {
            Event::Fork(fork) if fork.parent == puppet.pid => {
                assert_eq!((fork.kind, fork.pid), (ForkKind::Thread, puppet.pid));
                assert!(fork.tls.is_some());
                born.insert(fork.tid);
                stacks.insert(fork.stack_pointer.unwrap());
            }
            Event::Exit(exit) if exit.pid == puppet.pid => {
                assert!(!exit.last);
                died.insert(exit.tid);
            }
            _ => {}
        })
        .unwrap();
    assert_eq!(born.len(), STORM);
    assert!(stacks.iter().all(|sp| sp.0 > 4096));
    // The last thread may still be on its way out
    assert!(
        died.is_subset(&born) && died.len() >= STORM - 10,
        "{}",
        died.len()
    );
    assert_eq!(kernel.dropped().unwrap().total(), 0);
}

/// Threads that come and go tell more than a small ring holds: whoever cannot take events is woken, and
/// makes room.
#[test]
fn a_ring_that_fills_wakes_and_can_be_relieved() {
    const STEPS: usize = 40;
    const AT_ONCE: usize = 30;
    for relieved in [true, false] {
        let small = LoadOptions {
            ring_bytes: 64 << 10,
            ..LoadOptions::default()
        };
        let Some(mut kernel) = kernel_with(&small) else {
            return;
        };
        let mut puppet = Puppet::new(|stage| {
            for _ in 0..STEPS {
                stage.step(0);
                let threads: Vec<_> = (0..AT_ONCE).map(|_| std::thread::spawn(|| ())).collect();
                threads.into_iter().for_each(|t| t.join().unwrap());
            }
            stage.step(0);
        });
        puppet.wait_step();
        // Their beginnings and ends, and nothing else.
        kernel.track(puppet.pid, TrackFlags::FOLLOW).unwrap();
        let woken = Woken::new(&kernel);
        let mut wakes = 0;
        for _ in 0..STEPS {
            puppet.go();
            puppet.wait_step();
            wakes += usize::from(woken.now());
            if relieved {
                kernel.relieve();
            }
        }
        assert!(wakes > 0, "a ring that fills wakes its reader");
        let mut born = BTreeSet::new();
        kernel
            .events(&mut |event| {
                if let Event::Fork(fork) = event {
                    born.insert((fork.time, fork.tid));
                }
            })
            .unwrap();
        let lost = kernel.dropped().unwrap().life;
        if relieved {
            assert_eq!((born.len(), lost), (STEPS * AT_ONCE, 0));
        } else {
            assert!(lost > 0 && born.len() < STEPS * AT_ONCE, "{}", born.len());
        }
    }
}

/// Whether the reader of the ring was woken since this was last asked.
struct Woken(OwnedFd);

impl Woken {
    fn new(kernel: &Kernel) -> Woken {
        // SAFETY: a new descriptor, and an event that lives until the call
        unsafe {
            let epoll = OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC));
            let mut event = libc::epoll_event {
                events: (libc::EPOLLIN | libc::EPOLLET) as u32,
                u64: 0,
            };
            let ring = kernel.event_fd().as_raw_fd();
            let added =
                libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, ring, &raw mut event);
            assert_eq!(added, 0);
            let woken = Woken(epoll);
            assert!(!woken.now(), "the ring is empty");
            woken
        }
    }

    fn now(&self) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event
        unsafe { libc::epoll_wait(self.0.as_raw_fd(), &raw mut event, 1, 0) == 1 }
    }
}

#[test]
fn a_storm_of_processes_is_followed() {
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        let base = map_small(4);
        stage.step(base);
        for _ in 0..STORM {
            // SAFETY: the child touches one page and ends
            unsafe {
                let pid = libc::fork();
                if pid == 0 {
                    write_page(base, 2);
                    libc::_exit(3);
                }
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
        }
        stage.step(0);
    });
    let base = puppet.wait_step();
    track(&kernel, &puppet);
    puppet.go();
    puppet.wait_step();
    let (mut born, mut died, mut seen) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    kernel
        .events(&mut |event| match event {
            Event::Fork(fork) => {
                assert_eq!(fork.kind, ForkKind::Process);
                assert!(fork.tracked);
                born.insert(fork.pid);
            }
            Event::Exit(exit) => {
                assert_eq!((exit.last, exit.wait_status), (true, 3 << 8));
                died.insert(exit.pid);
            }
            Event::Vanish(vanish) => {
                let touched = |region: varve_bpf::Region| {
                    crate::common::pages_of(&region, &region.touched(), base, 4).contains(&2)
                };
                if vanish.regions().any(touched) {
                    seen.insert(vanish.pid);
                }
            }
            _ => {}
        })
        .unwrap();
    assert_eq!(born.len(), STORM);
    assert_eq!(died, born);
    assert_eq!(seen, born, "every child's page was read before it went");
    assert_eq!(kernel.dropped().unwrap().total(), 0);
}

#[test]
fn without_follow_children_are_left_alone() {
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        stage.step(0);
        std::process::Command::new("/bin/true").status().unwrap();
        stage.step(0);
    });
    puppet.wait_step();
    let flags = TrackFlags::DEFAULT.without(TrackFlags::FOLLOW);
    kernel.track(puppet.pid, flags).unwrap();
    puppet.go();
    puppet.wait_step();
    kernel
        .events(&mut |event| match event {
            Event::Fork(fork) => assert!(!fork.tracked),
            Event::Exec(exec) => panic!("{exec:?}"),
            Event::Exit(exit) => panic!("{exit:?}"),
            _ => {}
        })
        .unwrap();
}

#[test]
fn exec_and_names_are_reported() {
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        stage.step(0);
        let path = c"/bin/true".as_ptr();
        // SAFETY: strings and a list that live until the call
        unsafe {
            libc::prctl(libc::PR_SET_NAME, c"varved".as_ptr());
            libc::execv(path, [path, std::ptr::null()].as_ptr());
        }
    });
    puppet.wait_step();
    track(&kernel, &puppet);
    let status = puppet.finish();
    let (mut paths, mut names, mut end) = (Vec::new(), Vec::new(), None);
    kernel
        .events(&mut |event| match event {
            Event::Exec(exec) => {
                assert_ne!(exec.mm.0, 0);
                paths.push(exec.path.to_vec());
            }
            Event::Comm(comm) => names.push(comm.name.to_vec()),
            Event::Exit(exit) => end = Some((exit.last, exit.wait_status)),
            _ => {}
        })
        .unwrap();
    assert_eq!(paths, [b"/bin/true"]);
    assert_eq!(names, [b"varved".to_vec(), b"true".to_vec()]);
    assert_eq!(end, Some((true, status)));
}

/// Touches so many pages and gives them back
fn have_for_a_moment(pages: u64) {
    let base = map_small(pages);
    (0..pages).for_each(|page| write_page(base, page));
    // SAFETY: memory of our own that nothing refers to
    unsafe { libc::munmap(base as *mut libc::c_void, (pages * PAGE) as usize) };
}

/// The most pages of this process that were resident, as getrusage reports it
fn own_peak() -> u64 {
    // SAFETY: zeroes are a valid rusage
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` lives for the call, which fills it
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    usage.ru_maxrss as u64 * 1024 / PAGE
}

/// Of memory that comes and goes the peak knows, and says what getrusage does.
#[test]
fn a_peak_of_resident_memory_is_that_of_getrusage() {
    const MOMENT: u64 = 8192;
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        stage.step(0);
        have_for_a_moment(MOMENT);
        stage.step(own_peak());
    });
    puppet.wait_step();
    track(&kernel, &puppet);
    puppet.go();
    let peak = Pages(puppet.wait_step());
    puppet.finish();
    assert!(peak > Pages(MOMENT), "{peak:?}");
    let mut ends = Vec::new();
    kernel
        .events(&mut |event| {
            if let Event::Exit(exit) = event {
                ends.push(exit.peak);
            }
        })
        .unwrap();
    assert_eq!(ends.len(), 1);
    assert_eq!(ends[0].process, Some(peak));
    assert!(ends[0].program.is_none_or(|read| read == peak), "{ends:?}");
}

/// What runs after an exec is smaller than what ran before: the process's peak is that of before.
#[test]
fn a_peak_of_resident_memory_is_of_its_program() {
    const MOMENT: u64 = 8192;
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        have_for_a_moment(MOMENT);
        stage.step(own_peak());
        let path = c"/bin/true".as_ptr();
        // SAFETY: a string and a list that live until the call
        unsafe { libc::execv(path, [path, std::ptr::null()].as_ptr()) };
    });
    let peak = Pages(puppet.wait_step());
    track(&kernel, &puppet);
    puppet.finish();
    let (mut before, mut after) = (None, None);
    kernel
        .events(&mut |event| match event {
            Event::Exec(exec) => before = Some(exec.peak),
            Event::Exit(exit) => after = Some(exit.peak),
            _ => {}
        })
        .unwrap();
    let (before, after) = (before.unwrap(), after.unwrap());
    assert_eq!(before.process, Some(peak));
    assert!(
        before.program.is_none_or(|read| read == peak),
        "{before:?} {peak:?}"
    );
    assert_eq!(after.process, Some(peak));
    assert!(
        after.program.is_none_or(|read| read < Pages(MOMENT)),
        "{after:?}"
    );
}

#[test]
fn faults_tell_address_and_access() {
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        let base = map_small(64);
        stage.step(base);
        write_page(base, 3);
        read_page(base, 8);
        let mut file = std::fs::File::open("/dev/zero").unwrap();
        // SAFETY: a page of our own that nothing else refers to
        let buffer = unsafe { std::slice::from_raw_parts_mut((base + 20 * PAGE) as *mut u8, 4096) };
        file.read_exact(buffer).unwrap();
        stage.step(0);
    });
    let base = puppet.wait_step();
    track(&kernel, &puppet);
    puppet.go();
    puppet.wait_step();
    let mut faults = Vec::new();
    kernel
        .events(&mut |event| {
            if let Event::Fault(fault) = event
                && (base..base + 64 * PAGE).contains(&fault.address.0)
            {
                assert_eq!(fault.pid, puppet.pid);
                let user = fault.ip.0 >> 47 == 0;
                assert_eq!(user, fault.mode == Mode::User);
                faults.push(((fault.address.0 - base) / PAGE, fault.access, fault.mode));
            }
        })
        .unwrap();
    assert_eq!(
        faults,
        [
            (3, Access::Write, Mode::User),
            (8, Access::Read, Mode::User),
            (20, Access::Write, Mode::Kernel),
        ]
    );
}

#[test]
fn mapping_calls_come_with_stacks() {
    let Some(mut kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        let marker = [0x0123_4567_89ab_cdef_u64; 4];
        stage.step(marker.as_ptr() as u64);
        let base = map_small(77);
        // SAFETY: a mapping of our own
        unsafe { libc::munmap(base as *mut _, 77 * PAGE as usize) };
        stage.step(base);
        std::hint::black_box(marker);
    });
    let marker = puppet.wait_step();
    kernel
        .track(puppet.pid, TrackFlags::DEFAULT | TrackFlags::STACKS)
        .unwrap();
    puppet.go();
    let base = puppet.wait_step();
    let mut calls = Vec::new();
    kernel
        .events(&mut |event| {
            if let Event::Mapping(mapping) = event {
                assert!(mapping.entered <= mapping.time);
                let stack = mapping.stack.unwrap();
                assert!(stack.ip.0 > 4096 && stack.sp.0 % 8 == 0);
                let at = (marker - stack.sp.0) as usize;
                assert_eq!(
                    stack.bytes[at..at + 8],
                    0x0123_4567_89ab_cdef_u64.to_ne_bytes()
                );
                calls.push((mapping.call, mapping.result));
            }
        })
        .unwrap();
    let [(MappingCall::Map { bytes, fd, .. }, at), (unmap, 0)] = calls[..] else {
        panic!("{calls:?}");
    };
    assert_eq!((bytes, fd, at as u64), (Bytes(77 * PAGE), -1, base));
    let wanted = MappingCall::Unmap {
        address: Address(base),
        bytes: Bytes(77 * PAGE),
    };
    assert_eq!(unmap, wanted);
}

#[test]
fn a_recording_without_what_the_promise_rests_on_knows_that() {
    let missing = |left_out: &[&'static str]| {
        let options = LoadOptions {
            left_out: left_out.to_vec(),
            ..LoadOptions::default()
        };
        kernel_with(&options).map(|kernel| kernel.missing_promised())
    };
    let Some(none) = missing(&[]) else { return };
    assert_eq!(none, 0, "this machine lacks nothing");
    assert_eq!(missing(&["lock_asked", "signal_deliver"]), Some(2));
    assert_eq!(missing(&["task_rename"]), Some(0));
}

#[test]
fn the_programs_of_operations_are_one_mechanism() {
    let found = |operations: bool, left_out: &[&'static str]| {
        let options = LoadOptions {
            operations,
            left_out: left_out.to_vec(),
            ..LoadOptions::default()
        };
        let kernel = kernel_with(&options)?;
        let mut known = kernel.capabilities().iter();
        let of_operations = known.find(|c| c.name == OPERATION_PROGRAMS);
        Some(of_operations.map(|c| (c.available, c.detail.clone())))
    };
    let Some(all) = found(true, &[]) else { return };
    assert_eq!(all, Some((true, "loaded".to_owned())));
    let why = "operation_call_enter: switched off".to_owned();
    let lacking = found(true, &["operation_call_enter"]);
    assert_eq!(lacking, Some(Some((false, why))));
    assert_eq!(found(false, &[]), Some(None));
}
