//! What a recorder says to its watchdogs.
//!
//! An order is a letter and its fields, each ended by a zero byte: any path can be said so. Descriptors come as the
//! socket's own messages (`SCM_RIGHTS`), with the first byte of the order that they belong to.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use varve_model::Pid;
use varve_sys::{MovedPages, SharedStops, ZramDevice};

const ROOM: usize = rustix::cmsg_space!(ScmRights(MovedPages::DESCRIPTORS));

/// What the watchdog is to care for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// The process of the recorder; the descriptor of [`varve_sys::share_stops`] comes with it.
    Recorder(Pid),
    /// A cgroup that the recorder makes, and the one to which its processes return.
    Made(PathBuf, PathBuf),
    /// A cgroup of somebody else's, which the recorder freezes now and then, and has marked while it does.
    Found(PathBuf),
    /// The run folder.
    RunFolder(PathBuf),
    /// A cgroup with a limit of memory that the recorder makes, and the one to which its processes return.
    Limited(PathBuf, PathBuf),
    /// Make a zram device, and say which ([`made_bytes`]): whoever may be killed at any moment cannot make one, as nobody would know of it.
    MakeZram,
    /// A zram device that the recorder swaps to.
    Zram(ZramDevice),
    /// The process of the first watchdog, for the second.
    First(Pid),
    /// Pages that a fault handler moves, and where its journal lies; the descriptors of a [`varve_sys::MovedPages`] come with
    /// it.
    Moved(u64),
    /// The recorder has cleaned up itself.
    End,
}

impl Order {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let number;
        let sequence;
        let (letter, fields): (u8, Vec<&OsStr>) = match self {
            Order::Recorder(pid) => {
                number = OsString::from(pid.to_string());
                (b'p', vec![&number])
            }
            Order::Made(path, parent) => (b'm', vec![path.as_os_str(), parent.as_os_str()]),
            Order::Found(path) => (b'f', vec![path.as_os_str()]),
            Order::RunFolder(path) => (b'r', vec![path.as_os_str()]),
            Order::First(pid) => {
                number = OsString::from(pid.to_string());
                (b'w', vec![&number])
            }
            Order::Moved(journal) => {
                number = OsString::from(journal.to_string());
                (b'h', vec![&number])
            }
            Order::Limited(path, home) => (b'l', vec![path.as_os_str(), home.as_os_str()]),
            Order::MakeZram => (b'n', Vec::new()),
            Order::Zram(device) => {
                number = OsString::from(device.number.to_string());
                sequence = OsString::from(device.sequence.to_string());
                (b'z', vec![&number, &sequence])
            }
            Order::End => (b'e', Vec::new()),
        };
        let mut bytes = vec![letter];
        for field in fields {
            bytes.extend_from_slice(field.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    /// Reads the next order; none at the end, and where the stream ends in the middle of one.
    pub fn read(orders: &mut impl BufRead) -> Option<Order> {
        let mut letter = [0];
        orders.read_exact(&mut letter).ok()?;
        let mut field = || {
            let mut bytes = Vec::new();
            orders.read_until(0, &mut bytes).ok()?;
            (bytes.pop()? == 0).then(|| PathBuf::from(OsString::from_vec(bytes)))
        };
        match letter[0] {
            b'p' => Some(Order::Recorder(Pid(field()?.to_str()?.parse().ok()?))),
            b'm' => Some(Order::Made(field()?, field()?)),
            b'f' => Some(Order::Found(field()?)),
            b'r' => Some(Order::RunFolder(field()?)),
            b'w' => Some(Order::First(Pid(field()?.to_str()?.parse().ok()?))),
            b'h' => Some(Order::Moved(field()?.to_str()?.parse().ok()?)),
            b'l' => Some(Order::Limited(field()?, field()?)),
            b'n' => Some(Order::MakeZram),
            b'z' => Some(Order::Zram(ZramDevice {
                number: field()?.to_str()?.parse().ok()?,
                sequence: field()?.to_str()?.parse().ok()?,
            })),
            b'e' => Some(Order::End),
            _ => None,
        }
    }
}

/// Sends an order and the descriptors that belong to it.
pub(super) fn send(
    socket: &UnixStream,
    order: &Order,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = order.encode();
    let mut room = [MaybeUninit::uninit(); ROOM];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    // A watchdog that somebody has stopped reads nothing: its orders are short and few, and fit into the socket.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Bytes of [`made_bytes`].
pub(super) const MADE_BYTES: usize = 16;

/// What a watchdog answers to [`Order::MakeZram`]: the error number, or 0; the device's number; that of the disk.
pub(super) fn made_bytes(made: &io::Result<ZramDevice>) -> [u8; MADE_BYTES] {
    let mut bytes = [0; MADE_BYTES];
    match made {
        Ok(device) => {
            bytes[4..8].copy_from_slice(&device.number.to_ne_bytes());
            bytes[8..].copy_from_slice(&device.sequence.to_ne_bytes());
        }
        Err(e) => {
            let error = e.raw_os_error().unwrap_or(libc::EIO);
            bytes[..4].copy_from_slice(&error.to_ne_bytes());
        }
    }
    bytes
}

/// The reverse of [`made_bytes`].
pub(super) fn made_of(bytes: [u8; MADE_BYTES]) -> io::Result<ZramDevice> {
    let [a, b, c, d, e, f, g, h, sequence @ ..] = bytes;
    match i32::from_ne_bytes([a, b, c, d]) {
        0 => Ok(ZramDevice {
            number: u32::from_ne_bytes([e, f, g, h]),
            sequence: u64::from_ne_bytes(sequence),
        }),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Descriptors that have come.
#[derive(Clone, Debug, Default)]
pub(super) struct Came(Arc<Mutex<VecDeque<OwnedFd>>>);

impl Came {
    /// The next ones that belong together, with the address of the journal.
    pub(super) fn take(&self, journal: u64) -> Option<MovedPages> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MovedPages::DESCRIPTORS {
            return None;
        }
        let some: Vec<OwnedFd> = all.drain(..MovedPages::DESCRIPTORS).collect();
        let all = some.try_into().ok()?;
        Some(MovedPages::from_descriptors(all, journal))
    }

    /// The memory in which the recorder says what it holds, whose descriptor comes with its process.
    pub(super) fn take_stops(&self) -> Option<SharedStops> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        SharedStops::open(all.pop_front()?).ok()
    }
}

/// The watchdog's end of the socket.
pub(super) struct Incoming {
    socket: OwnedFd,
    came: Came,
}

impl Incoming {
    pub(super) fn new(socket: OwnedFd) -> (Incoming, Came) {
        let came = Came::default();
        let incoming = Incoming {
            socket,
            came: came.clone(),
        };
        (incoming, came)
    }
}

impl Read for Incoming {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut room = [MaybeUninit::uninit(); ROOM];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let mut pieces = [IoSliceMut::new(bytes)];
        let got = match recvmsg(&self.socket, &mut pieces, &mut control, flags) {
            // Whoever types orders by hand has no descriptors to give.
            Err(rustix::io::Errno::NOTSOCK) => return Ok(rustix::io::read(&self.socket, bytes)?),
            got => got?,
        };
        let mut all = self.came.0.lock().unwrap_or_else(PoisonError::into_inner);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                all.extend(descriptors);
            }
        }
        Ok(got.bytes)
    }
}
