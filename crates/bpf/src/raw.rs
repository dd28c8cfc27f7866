//! BPF system calls that are made without libbpf's objects

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::abi::Plain;

fn check(result: i32) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(())
}

pub(crate) fn map_update<V: Plain>(map: BorrowedFd<'_>, key: u32, value: &V) -> io::Result<()> {
    // SAFETY: key and value have the sizes with which the map was made
    check(unsafe {
        libbpf_sys::bpf_map_update_elem(
            map.as_raw_fd(),
            std::ptr::from_ref(&key).cast(),
            std::ptr::from_ref(value).cast(),
            0,
        )
    })
}

pub(crate) fn map_lookup<V: Plain>(map: BorrowedFd<'_>, key: u32) -> io::Result<V> {
    let mut value = V::default();
    // SAFETY: key and value have the sizes with which the map was made
    check(unsafe {
        libbpf_sys::bpf_map_lookup_elem(
            map.as_raw_fd(),
            std::ptr::from_ref(&key).cast(),
            std::ptr::from_mut(&mut value).cast(),
        )
    })?;
    Ok(value)
}

/// The key after this one, or the first; none after the last
pub(crate) fn map_next_key(map: BorrowedFd<'_>, key: Option<u32>) -> Option<u32> {
    let mut next = 0u32;
    let key = key.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both keys have the size with which the map was made; a null key means the beginning
    let result = unsafe {
        libbpf_sys::bpf_map_get_next_key(
            map.as_raw_fd(),
            key.cast(),
            std::ptr::from_mut(&mut next).cast(),
        )
    };
    (result == 0).then_some(next)
}

pub(crate) fn map_delete(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    // SAFETY: the key has the size with which the map was made
    check(unsafe {
        libbpf_sys::bpf_map_delete_elem(map.as_raw_fd(), std::ptr::from_ref(&key).cast())
    })
}

/// Runs a program of type `syscall`; results come back in the context
pub(crate) fn run<C: Plain>(program: BorrowedFd<'_>, context: &mut C) -> io::Result<()> {
    // The kernel refuses any other field for this type of program, ctx_out too
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ctx_in: std::ptr::from_mut(context).cast(),
        ctx_size_in: size_of::<C>() as u32,
        ..Default::default()
    };
    // SAFETY: the context is writable and of the stated size; the kernel copies it back into it
    check(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) })
}

/// Whether the kernel permits no program on any of its functions: it says so before it looks at the program or for the
/// function
pub(crate) fn forbids_programs_on_functions() -> bool {
    // r0 = 0; exit
    let code = [(0xb7, 0), (0x95, 0)].map(|(code, imm)| libbpf_sys::bpf_insn {
        code,
        imm,
        ..Default::default()
    });
    let options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t,
        expected_attach_type: libbpf_sys::BPF_TRACE_FEXIT,
        // Of a type that is no function
        attach_btf_id: 1,
        ..Default::default()
    };
    // SAFETY: the strings, the instructions and the options live until the call returns
    let result = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_TRACING,
            std::ptr::null(),
            c"GPL".as_ptr(),
            code.as_ptr(),
            code.len() as libbpf_sys::size_t,
            std::ptr::from_ref(&options).cast_mut(),
        )
    };
    if result >= 0 {
        // SAFETY: the descriptor is new and nobody else's
        drop(unsafe { OwnedFd::from_raw_fd(result) });
    }
    result == -libc::EPERM
}

/// What the kernel knows of a program
pub(crate) fn info(program: BorrowedFd<'_>) -> io::Result<libbpf_sys::bpf_prog_info> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut bytes = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: info is writable and of the stated size
    check(unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut bytes)
    })?;
    Ok(info)
}

/// The same of a map whose keys are structs, with the value of each key; what comes or goes meanwhile may be in it or not
pub(crate) fn map_entries<K: Plain, V: Plain>(map: BorrowedFd<'_>) -> Vec<(K, V)> {
    let mut found = Vec::new();
    let mut key: Option<K> = None;
    // Where an entry goes meanwhile the kernel begins anew; the bound is for safety
    for _ in 0..1 << 18 {
        let mut next = K::default();
        let before = key.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: keys have the size with which the map was made; a null key means the beginning
        let result = unsafe {
            libbpf_sys::bpf_map_get_next_key(
                map.as_raw_fd(),
                before.cast(),
                std::ptr::from_mut(&mut next).cast(),
            )
        };
        if result != 0 {
            break;
        }
        let mut value = V::default();
        // SAFETY: key and value have the sizes with which the map was made
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_elem(
                map.as_raw_fd(),
                std::ptr::from_ref(&next).cast(),
                std::ptr::from_mut(&mut value).cast(),
            )
        };
        if result == 0 {
            found.push((next, value));
        }
        key = Some(next);
    }
    found
}

/// Removes an entry of such a map
pub(crate) fn map_remove<K: Plain>(map: BorrowedFd<'_>, key: &K) {
    // SAFETY: the key has the size with which the map was made. One that is gone is gone
    unsafe {
        libbpf_sys::bpf_map_delete_elem(map.as_raw_fd(), std::ptr::from_ref(key).cast());
    }
}

// SAFETY: one integer
unsafe impl Plain for u64 {}

// SAFETY: likewise
unsafe impl Plain for u32 {}
