//! What a process and the recorder say to each other when they meet.
//!
//! The recorder listens on one socket ([`SOCKET`], SEQPACKET) in a folder that only it can write to. A process connects,
//! makes sure who listens ([`crate::client`]), and says what it wants in one message of [`HELLO_WORDS`] words, with a
//! descriptor where there is one to be handed over. The recorder takes the process from the kernel, asks the kernel
//! whether it is tracked ([`crate::server`]), and answers in one message of [`ANSWER_WORDS`] words, with descriptors, or
//! closes the connection.

/// The name of the socket in the folder.
pub const SOCKET: &str = "s";
/// "VARVECHN", read as a little-endian word: the first of a hello.
pub(crate) const HELLO: u64 = u64::from_le_bytes(*b"VARVECHN");
/// Words of a hello: [`HELLO`], the version of the layout, the kind, and a number that depends on it.
pub(crate) const HELLO_WORDS: usize = 4;
/// Words of an answer: the kind, and a number that depends on it.
pub(crate) const ANSWER_WORDS: usize = 2;
/// Descriptors in one answer at most.
pub(crate) const MAX_DESCRIPTORS: usize = 2;
/// How long a process waits for a recorder that is stopped before it goes on without, in milliseconds.
pub(crate) const PATIENCE_MS: u64 = 100;
/// The same for one that is busy.
pub(crate) const MAX_PATIENCE_MS: u64 = 2_000;

/// What a process wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A ring; a userfaultfd may come with the hello. The answer has its bytes and its memory.
    Ring,
    /// A connection for its fault handler, which speaks first when the recorder has (`traps`).
    Handler,
    /// A file of counts. The answer has the time at which the program began, the file that all share and its own file.
    Counts,
    /// Memory for the tables of allocator operations; the number of the hello is the distance from the thread pointer to what runs
    /// ([`crate::operations::Running`]). The answer has its bytes and its memory.
    Operations,
    /// The memory through which objects are placed ([`crate::placing`]). The answer has its bytes and its memory.
    Placing,
    /// Which place of a plan the call stack of an object belongs to; the number of the hello is that of the question. The answer has
    /// the place's number plus one, or zero, and no descriptor.
    Site,
}

impl Kind {
    pub(crate) fn word(self) -> u64 {
        match self {
            Kind::Ring => 1,
            Kind::Handler => 2,
            Kind::Counts => 3,
            Kind::Operations => 4,
            Kind::Placing => 5,
            Kind::Site => 6,
        }
    }

    pub(crate) fn of(word: u64) -> Option<Kind> {
        [
            Kind::Ring,
            Kind::Handler,
            Kind::Counts,
            Kind::Operations,
            Kind::Placing,
            Kind::Site,
        ]
        .into_iter()
        .find(|kind| kind.word() == word)
    }
}

/// Which folder it is, whatever stands at its path by now, and whose.
///
/// The number of a file system, a file's number in it and the time at which it was made never come back together, and
/// nobody can choose them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The recorder's user, in its own user namespace.
    pub uid: u32,
    /// The file system, as `major << 32 | minor`.
    pub device: u64,
    /// The folder's number.
    pub inode: u64,
    /// When it was made, nanoseconds since 1970; 0 where the file system does not know.
    pub made_ns: u64,
}

impl Identity {
    /// From the text that [`std::fmt::Display`] gives.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Identity> {
        let text = std::str::from_utf8(text).ok()?;
        let mut numbers = text.split(':').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let identity = Identity {
            uid: u32::try_from(next()?).ok()?,
            device: next()?,
            inode: next()?,
            made_ns: next()?,
        };
        next().is_none().then_some(identity)
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Identity {
            uid,
            device,
            inode,
            made_ns,
        } = self;
        write!(f, "{uid}:{device}:{inode}:{made_ns}")
    }
}

/// The identity of a folder as the kernel gives it.
pub(crate) fn identity_of(found: &libc::statx, uid: u32) -> Identity {
    let made = found.stx_btime;
    let known = found.stx_mask & libc::STATX_BTIME != 0;
    let made_ns = made.tv_sec.unsigned_abs() * 1_000_000_000 + u64::from(made.tv_nsec);
    Identity {
        uid,
        device: u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor),
        inode: found.stx_ino,
        made_ns: if known { made_ns } else { 0 },
    }
}

/// One control message with as many descriptors as an answer has at most.
#[repr(C, align(8))]
pub(crate) struct Control {
    pub(crate) header: libc::cmsghdr,
    pub(crate) descriptors: [i32; MAX_DESCRIPTORS],
}

impl Control {
    /// Bytes of a message with so many descriptors.
    pub(crate) fn bytes(count: usize) -> usize {
        size_of::<libc::cmsghdr>() + count * size_of::<i32>()
    }

    /// A message with these descriptors.
    pub(crate) fn with(descriptors: &[i32]) -> Control {
        let mut control = Control {
            header: libc::cmsghdr {
                cmsg_len: Control::bytes(descriptors.len()),
                cmsg_level: libc::SOL_SOCKET,
                cmsg_type: libc::SCM_RIGHTS,
            },
            descriptors: [-1; MAX_DESCRIPTORS],
        };
        for (to, descriptor) in control.descriptors.iter_mut().zip(descriptors) {
            *to = *descriptor;
        }
        control
    }

    /// The descriptors of a message that the kernel filled.
    pub(crate) fn received(&self, length: usize) -> &[i32] {
        let is_some = length > size_of::<libc::cmsghdr>()
            && self.header.cmsg_level == libc::SOL_SOCKET
            && self.header.cmsg_type == libc::SCM_RIGHTS;
        let bytes = self.header.cmsg_len.min(length);
        let count = bytes.saturating_sub(size_of::<libc::cmsghdr>()) / size_of::<i32>();
        match is_some {
            true => self.descriptors.get(..count).unwrap_or(&self.descriptors),
            false => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_read_as_it_was_written() {
        let identity = Identity {
            uid: 7,
            device: 1 << 40,
            inode: 3,
            made_ns: u64::MAX,
        };
        let text = identity.to_string();
        assert_eq!(Identity::parse(text.as_bytes()), Some(identity));
        for wrong in ["", "1:2:3", "1:2:3:4:5", "1:2:3:x", "-1:2:3:4"] {
            assert_eq!(Identity::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
