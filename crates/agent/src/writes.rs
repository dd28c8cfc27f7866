//! A userfaultfd for the recorder, through which it protects this process's pages and so sees writes.
//!
//! It is made when the process gets its ring, sent to the recorder's socket and closed here: the program
//! never sees the descriptor. Nothing that fails matters; the recorder then knows of no writes.

use std::sync::atomic::{AtomicBool, Ordering};

use varve_agent_ring::WRITES_SOCKET;

use crate::sys;

static WANTED: AtomicBool = AtomicBool::new(false);

/// `UFFD_USER_MODE_ONLY`: the kind that every process may have. In the mode that the recorder asks
/// for, nothing is ever left to user space to resolve.
const USER_MODE_ONLY: i32 = 1;

/// The recorder asks for userfaultfds.
pub(crate) fn want() {
    WANTED.store(true, Ordering::Relaxed);
}

/// Makes one and sends it to the socket in the folder.
pub(crate) fn hand_over(folder: &[u8]) {
    if !WANTED.load(Ordering::Relaxed) {
        return;
    }
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: takes an integer, makes a descriptor.
    let fault = unsafe { sys::call(libc::SYS_userfaultfd, [flags as usize, 0, 0, 0, 0, 0]) };
    if fault < 0 {
        return;
    }
    send(folder, WRITES_SOCKET, fault as i32);
    close(fault);
}

fn close(descriptor: isize) {
    // SAFETY: a descriptor of this module's own; it is not used again.
    unsafe { sys::call(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0, 0]) };
}

#[repr(C, align(8))]
struct Control {
    header: libc::cmsghdr,
    descriptor: i32,
    padding: i32,
}

/// Sends a descriptor to a socket of the recorder's in the folder, with one byte.
pub(crate) fn send(folder: &[u8], name: &str, descriptor: i32) {
    let mut to = libc::sockaddr_un {
        sun_family: libc::AF_UNIX as u16,
        sun_path: [0; 108],
    };
    let name = name.as_bytes();
    let path = folder.iter().chain(b"/").chain(name);
    // One byte stays zero.
    if folder.len() + 1 + name.len() >= to.sun_path.len() {
        return;
    }
    for (to, byte) in to.sun_path.iter_mut().zip(path) {
        *to = byte.cast_signed();
    }
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes integers, makes a descriptor.
    let socket = unsafe {
        sys::call(
            libc::SYS_socket,
            [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0],
        )
    };
    if socket < 0 {
        return;
    }
    let data = libc::iovec {
        iov_base: (&raw mut to).cast(),
        iov_len: 1,
    };
    let control = Control {
        header: libc::cmsghdr {
            cmsg_len: std::mem::offset_of!(Control, padding),
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        },
        descriptor,
        padding: 0,
    };
    // SAFETY: zeroes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut to).cast();
    message.msg_namelen = size_of::<libc::sockaddr_un>() as u32;
    message.msg_iov = (&raw const data).cast_mut();
    message.msg_iovlen = 1;
    message.msg_control = (&raw const control).cast_mut().cast();
    message.msg_controllen = size_of::<Control>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message points to locals with the sizes that it states, which the kernel only reads.
    unsafe {
        sys::call(
            libc::SYS_sendmsg,
            [
                socket as usize,
                &raw const message as usize,
                flags as usize,
                0,
                0,
                0,
            ],
        )
    };
    close(socket);
}
