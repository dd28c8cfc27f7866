//! The file of counts of this process: asked for at the start and in each forked child. The recorder makes it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use varve_preload_abi::channel::Kind;
use varve_preload_abi::client::{Absent, Address, Connection};
use varve_qemu_counter_abi::{MAX_BYTES, layout as at};

use crate::{api, control, slots};

/// Addresses that are set aside for the file; memory is used only for what is written. The smaller ones are for
/// targets whose address space is limited.
const SIZES: [u64; 3] = [MAX_BYTES, 4 << 30, 256 << 20];
/// The file's memory is reserved in pieces of this size.
const PIECE: u64 = 64 << 10;

/// Where the recorder listens.
static ADDRESS: OnceLock<Address> = OnceLock::new();
/// The mapped file; null where this process has none, and counts nothing.
static BASE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static BYTES: AtomicU64 = AtomicU64::new(0);
/// How much of the file is reserved.
static RESERVED: AtomicU64 = AtomicU64::new(0);
/// Held while a piece of the file is reserved.
static BUSY: AtomicBool = AtomicBool::new(false);

/// Asks for the file of a program that begins. Nothing is counted where the recorder is gone.
pub(crate) fn begin(folder: &[u8], identity: &[u8]) -> io::Result<()> {
    let address = Address::new(folder, identity).ok_or(io::ErrorKind::InvalidInput)?;
    ask(ADDRESS.get_or_init(|| address))
}

/// Asks for the file of a child that was forked; its parent's is not mapped there.
pub(crate) extern "C" fn begin_in_child() {
    let counted = BASE.swap(null_mut(), Ordering::Relaxed);
    BUSY.store(false, Ordering::Relaxed);
    slots::forget_all();
    let asked = ADDRESS.get().map_or(Ok(()), ask);
    if asked.is_err() && !counted.is_null() {
        control::count_uncounted();
    }
}

fn ask(address: &Address) -> io::Result<()> {
    let connection = Connection::open(address).map_err(|absent| match absent {
        Absent::Gone => io::ErrorKind::NotFound,
        Absent::Refused => io::ErrorKind::PermissionDenied,
    })?;
    let said = connection.say(Kind::Counts, None);
    let answer = said.then(|| connection.answer(Kind::Counts)).flatten();
    let answer = answer.ok_or(io::ErrorKind::PermissionDenied)?;
    // SAFETY: the kernel has just put both into this process's table, for this answer alone.
    let [shared, own] = answer
        .descriptors
        .map(|d| unsafe { OwnedFd::from_raw_fd(d) });
    control::open(&shared)?;
    make(&own, answer.number)
}

fn make(file: &OwnedFd, born: u64) -> io::Result<()> {
    let mut made = Err(io::ErrorKind::OutOfMemory.into());
    for size in SIZES {
        made = map(file, size);
        if made.is_ok() {
            break;
        }
    }
    let (base, size) = made?;
    RESERVED.store(0, Ordering::Relaxed);
    BYTES.store(size, Ordering::Relaxed);
    if !populate(base, 0, PIECE) {
        // SAFETY: the mapping was made above and nobody knows of it.
        unsafe { libc::munmap(base.cast(), size as usize) };
        return Err(io::ErrorKind::StorageFull.into());
    }
    RESERVED.store(PIECE, Ordering::Relaxed);
    BASE.store(base, Ordering::Release);
    word(at::AT_PID).store(u64::from(std::process::id()), Ordering::Relaxed);
    word(at::AT_BORN).store(born, Ordering::Relaxed);
    word(at::AT_FREE).store(at::HEADER_BYTES, Ordering::Relaxed);
    word(at::AT_VERSION).store(at::VERSION, Ordering::Relaxed);
    word(at::AT_MAGIC).store(at::MAGIC, Ordering::Release);
    Ok(())
}

fn map(file: &OwnedFd, size: u64) -> io::Result<(*mut u8, u64)> {
    // SAFETY: a new mapping of a file that is as long as this.
    let base = unsafe {
        libc::mmap(
            null_mut(),
            size as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // A forked child that counted in its parent's tables would spoil them.
    // SAFETY: the mapping was made above.
    if unsafe { libc::madvise(base, size as usize, libc::MADV_DONTFORK) } != 0 {
        let error = io::Error::last_os_error();
        // SAFETY: as above; nobody knows of it yet.
        unsafe { libc::munmap(base, size as usize) };
        return Err(error);
    }
    Ok((base.cast(), size))
}

/// Writes the path of the executable into the header, once a thread of the program runs: before, the emulator has none.
pub(crate) fn note_path(base: *mut u8) {
    let length = word(at::AT_PATH);
    if length.load(Ordering::Relaxed) != 0 {
        return;
    }
    // SAFETY: the emulator returns a string of its own, or null.
    let path = unsafe {
        let path = api::qemu_plugin_path_to_binary();
        if path.is_null() {
            return;
        }
        CStr::from_ptr(path)
    };
    let bytes = &path.to_bytes()[..path.count_bytes().min(at::MAX_PATH)];
    // SAFETY: the header was reserved, and has room for the longest path.
    unsafe {
        base.add(at::AT_PATH as usize + 8)
            .copy_from(bytes.as_ptr(), bytes.len())
    };
    length.store(bytes.len() as u64, Ordering::Relaxed);
}

/// The mapped file, if there is one.
pub(crate) fn base() -> Option<*mut u8> {
    let base = BASE.load(Ordering::Acquire);
    (!base.is_null()).then_some(base)
}

/// A word of the file, which must have been reserved, of a process that has one.
pub(crate) fn word(offset: u64) -> &'static AtomicU64 {
    // SAFETY: the mapping lives as long as the process; callers name reserved words only.
    unsafe { &*BASE.load(Ordering::Relaxed).add(offset as usize).cast() }
}

/// Counts accesses that no table can hold.
pub(crate) fn count_lost() {
    if base().is_some() {
        word(at::AT_LOST).fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a program that this one is about to become and that is not counted.
pub(crate) fn count_unfollowed() {
    if base().is_some() {
        word(at::AT_UNFOLLOWED).fetch_add(1, Ordering::Relaxed);
    }
}

/// Room in the file, zeroed: its offset, a multiple of 64. `None` where the disk or the file is full.
pub(crate) fn allocate(bytes: u64) -> Option<u64> {
    let base = base()?;
    let bytes = bytes.next_multiple_of(64);
    while BUSY.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
    let free = word(at::AT_FREE);
    let from = free.load(Ordering::Relaxed);
    let to = from
        .checked_add(bytes)
        .filter(|to| *to <= BYTES.load(Ordering::Relaxed));
    let room = to.filter(|to| reserve(base, *to));
    if let Some(to) = room {
        free.store(to, Ordering::Relaxed);
    }
    BUSY.store(false, Ordering::Release);
    room.map(|_| from)
}

/// Makes sure that everything below `to` can be written.
fn reserve(base: *mut u8, to: u64) -> bool {
    let reserved = RESERVED.load(Ordering::Relaxed);
    if to <= reserved {
        return true;
    }
    let to = to.next_multiple_of(PIECE);
    let done = populate(base, reserved, to - reserved);
    if done {
        RESERVED.store(to, Ordering::Relaxed);
    }
    done
}

/// Gives back the memory of a table that has moved.
pub(crate) fn give_back(offset: u64, bytes: u64) {
    let from = offset.next_multiple_of(4096);
    let to = (offset + bytes) & !4095;
    if let (Some(base), true) = (base(), to > from) {
        // SAFETY: the range lies in the mapped file and holds an old table only, which nobody reads any more.
        unsafe {
            libc::madvise(
                base.add(from as usize).cast(),
                (to - from) as usize,
                libc::MADV_REMOVE,
            )
        };
    }
}

/// Makes the pages of a mapped file before they are written: where there is no room for them, this fails, and
/// a write would end the program.
pub(crate) fn populate(base: *mut u8, offset: u64, bytes: u64) -> bool {
    /// From Linux 5.14 on.
    const MADV_POPULATE_WRITE: libc::c_int = 23;
    // SAFETY: the range lies in a mapping of ours; its content stays.
    let done = unsafe {
        libc::madvise(
            base.add(offset as usize).cast(),
            bytes as usize,
            MADV_POPULATE_WRITE,
        )
    };
    done == 0
}
