//! Whom a hold would end, by a filter of system calls

use std::sync::{Arc, Barrier};

use crate::common::{Puppet, kernel};

/// From now on the calling thread is refused one system call
fn refuse(call: libc::c_long) {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = [
        instruction(load, 0, 0, 0),
        instruction(equal, 0, 1, call as u32),
        instruction(answer, 0, 0, refusal),
        instruction(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        let set = libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program);
        assert_eq!(set, 0);
    }
}

#[test]
fn whoever_may_not_go_on_with_a_wait_dies_of_holds() {
    let Some(kernel) = kernel() else { return };
    let mut puppet = Puppet::new(|stage| {
        stage.step(0);
        refuse(libc::SYS_socket);
        stage.step(1);
        let both = Arc::new(Barrier::new(2));
        let others = Arc::clone(&both);
        let thread = std::thread::spawn(move || {
            refuse(libc::SYS_restart_syscall);
            others.wait();
            others.wait();
        });
        both.wait();
        stage.step(2);
        both.wait();
        thread.join().unwrap();
    });
    let tracked = kernel.tracked().unwrap();
    let mut dies = || {
        puppet.wait_step();
        let dies = tracked.dies_of_holds(puppet.pid);
        puppet.go();
        dies
    };
    assert!(!dies(), "no filter");
    assert!(!dies(), "a filter of another call");
    assert!(dies(), "a filter of one thread");
}
