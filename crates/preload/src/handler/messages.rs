//! The handler's end of the conversation with the recorder (`varve-preload-abi`, `traps`).

use varve_preload_abi::DEVICE;

use crate::sys;

/// A connected datagram socket that keeps the bounds of messages.
#[derive(Clone, Copy)]
pub(super) struct Socket(pub(super) i32);

/// What came.
pub(super) enum Message {
    /// So many words.
    Words(usize),
    /// The device from which userfaultfds are made.
    Device(i32),
    /// Nothing yet.
    Nothing,
    /// The recorder is gone.
    End,
}

/// What there is to do.
pub(super) struct Ready {
    pub(super) pages: bool,
    pub(super) words: bool,
    /// The program asks for something.
    pub(super) asked: bool,
}

/// One control message with one descriptor.
#[repr(C, align(8))]
struct Control {
    header: libc::cmsghdr,
    descriptor: i32,
    padding: i32,
    /// Room for who sent it, which nobody asked for.
    more: [u64; 6],
}

fn control(descriptor: i32) -> Control {
    Control {
        header: libc::cmsghdr {
            cmsg_len: std::mem::offset_of!(Control, padding),
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        },
        descriptor,
        padding: 0,
        more: [0; 6],
    }
}

/// The header of a message of these bytes, with room for control messages.
fn header(data: &mut libc::iovec, control: *mut Control, bytes: usize) -> libc::msghdr {
    // SAFETY: zeroes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = data;
    message.msg_iovlen = 1;
    message.msg_control = control.cast();
    message.msg_controllen = bytes;
    message
}

impl Socket {
    /// Sends words; whether they were taken. Never waits: a recorder that stands still must not hold up the program.
    pub(super) fn send(self, words: &[u64], descriptor: Option<i32>) -> bool {
        let mut data = libc::iovec {
            iov_base: words.as_ptr().cast_mut().cast(),
            iov_len: size_of_val(words),
        };
        let mut with = control(descriptor.unwrap_or(-1));
        let bytes = if descriptor.is_some() {
            std::mem::offset_of!(Control, more)
        } else {
            0
        };
        let message = header(&mut data, &raw mut with, bytes);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the message points to what lives here, with the sizes that it states; the kernel reads it.
        let sent = unsafe {
            sys::call(
                libc::SYS_sendmsg,
                [
                    self.0 as usize,
                    &raw const message as usize,
                    flags as usize,
                    0,
                    0,
                    0,
                ],
            )
        };
        sent >= 0
    }

    pub(super) fn receive(self, words: &mut [u64]) -> Message {
        let mut data = libc::iovec {
            iov_base: words.as_mut_ptr().cast(),
            iov_len: size_of_val(words),
        };
        let mut with = control(-1);
        with.header.cmsg_type = 0;
        let mut message = header(&mut data, &raw mut with, size_of::<Control>());
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the message points to what lives here, with the sizes that it states.
        let got = unsafe {
            sys::call(
                libc::SYS_recvmsg,
                [
                    self.0 as usize,
                    &raw mut message as usize,
                    flags as usize,
                    0,
                    0,
                    0,
                ],
            )
        };
        let again = [-libc::EAGAIN as isize, -libc::EINTR as isize];
        if again.contains(&got) {
            return Message::Nothing;
        }
        let count = usize::try_from(got).unwrap_or(0) / 8;
        if count == 0 {
            return Message::End;
        }
        let has_one = message.msg_controllen >= std::mem::offset_of!(Control, padding)
            && with.header.cmsg_type == libc::SCM_RIGHTS;
        if words.first() == Some(&DEVICE) && has_one {
            return Message::Device(with.descriptor);
        }
        Message::Words(count)
    }
}

/// Waits until there is something to do; only looks where `has_more` to do anyway. The descriptors are those that speak of
/// pages, of the recorder's words, and of what the program asks; negative ones say nothing.
pub(super) fn wait(sources: [i32; 3], has_more: bool) -> Ready {
    let mut all = sources.map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    let limit = if has_more { 0 } else { usize::MAX };
    // SAFETY: as many structs as stated, which live here.
    unsafe {
        sys::call(
            libc::SYS_poll,
            [all.as_mut_ptr() as usize, all.len(), limit, 0, 0, 0],
        )
    };
    let [pages, words, asked] = all.map(|one| one.revents != 0);
    Ready {
        pages: has_more || pages,
        words,
        asked,
    }
}

pub(super) fn close(descriptor: i32) {
    // SAFETY: a descriptor of the handler's own; it is not used again.
    unsafe { sys::call(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0, 0]) };
}
