//! Programs that change their root folder or what is mounted, or forbid themselves files (Landlock).
//!
//! Their children would not find the library any more, and the loader would say so on their standard error. So the
//! library takes itself out of the list of those to be preloaded where it is out of reach.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};

use crate::transfers::raw;
use crate::{loader, own, process, real, sys};

/// How the variable begins that lists what is to be preloaded.
pub(crate) const NAME: &[u8] = b"LD_PRELOAD=";
const PAGE: usize = 4096;

/// Looks at what a system call has changed.
fn after_narrowing(number: c_long) {
    check();
    // It may have been the time namespace.
    if number == libc::SYS_setns && !process::is_confined() {
        own::learn_clock();
    }
}

/// Takes this library out of the list, if it is not where the list says any more.
#[cold]
fn check() {
    // It may end the program to open a file.
    if process::is_confined() {
        return;
    }
    real::keeping_errno(|| {
        let Some(path) = loader::file_of(process::some_code()) else {
            return;
        };
        // Some rules, as Landlock's, only hold where a file is opened.
        if sys::ReadFile::open(path).is_none() {
            // SAFETY: the program is in a call of its own that nobody makes from two threads with an environment
            // that changes.
            unsafe { drop_from_list(path.to_bytes()) };
        }
    });
}

/// Takes this library out of the list.
#[cold]
pub(crate) fn leave_list() {
    if let Some(path) = loader::file_of(process::some_code()) {
        // SAFETY: as above.
        unsafe { drop_from_list(path.to_bytes()) };
    }
}

/// # Safety
/// Nobody changes the environment meanwhile.
unsafe fn drop_from_list(own: &[u8]) {
    // SAFETY: the environment is a list of C strings that ends in null, and its slots are writable.
    unsafe {
        let mut slot = own::environment();
        while !slot.is_null() && !(*slot).is_null() {
            let entry = CStr::from_ptr(*slot).to_bytes();
            if let Some(list) = entry.strip_prefix(NAME) {
                match without(list, own) {
                    Shorter::Same => {}
                    Shorter::List(entry) => *slot = entry,
                    Shorter::Nothing => {
                        let mut at = slot;
                        while !(*at).is_null() {
                            *at = *at.add(1);
                            at = at.add(1);
                        }
                        continue;
                    }
                }
            }
            slot = slot.add(1);
        }
    }
}

/// Whether an item of the list stands for this file: what the loader puts in place of a token is not compared.
pub(crate) fn is_file(item: &[u8], file: &[u8]) -> bool {
    const TOKEN: &[u8] = b"$LIB";
    let token = item.windows(TOKEN.len()).position(|piece| piece == TOKEN);
    let Some(at) = token else {
        return item == file;
    };
    let (before, behind) = (&item[..at], &item[at + TOKEN.len()..]);
    before.len() + behind.len() <= file.len() && file.starts_with(before) && file.ends_with(behind)
}

/// What is left of a list.
pub(crate) enum Shorter {
    /// All.
    Same,
    /// A new variable, in memory of its own that stays.
    List(*mut c_char),
    /// Nothing.
    Nothing,
}

/// A list of libraries to be preloaded without this file.
pub(crate) fn without(list: &[u8], own: &[u8]) -> Shorter {
    let items = || list.split(|b| matches!(b, b':' | b' '));
    if items().all(|item| !is_file(item, own)) {
        return Shorter::Same;
    }
    let mut others = items()
        .filter(|item| !item.is_empty() && !is_file(item, own))
        .peekable();
    if others.peek().is_none() {
        return Shorter::Nothing;
    }
    let bytes = (NAME.len() + list.len() + 1).next_multiple_of(PAGE);
    let Some(memory) = sys::map_anonymous(bytes) else {
        return Shorter::Same;
    };
    let start: *mut u8 = memory.as_ptr();
    let mut length = 0;
    let mut put = |piece: &[u8]| {
        // SAFETY: what is put is not longer than the old variable, for which there is room.
        unsafe { start.add(length).copy_from(piece.as_ptr(), piece.len()) };
        length += piece.len();
    };
    put(NAME);
    while let Some(item) = others.next() {
        put(item);
        if others.peek().is_some() {
            put(b":");
        }
    }
    Shorter::List(start.cast())
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn chroot(path: *const c_char) -> c_int {
    // SAFETY: the caller's arguments.
    let result = unsafe { real::get().chroot(path) };
    if result == 0 {
        check();
    }
    result
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setns(descriptor: c_int, kind: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    let result = unsafe { real::get().setns(descriptor, kind) };
    if result == 0 {
        after_narrowing(libc::SYS_setns);
    }
    result
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    let result = unsafe { real::get().unshare(flags) };
    if result == 0 && flags & libc::CLONE_NEWNS != 0 {
        check();
    }
    result
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mount(
    source: *const c_char,
    target: *const c_char,
    kind: *const c_char,
    flags: c_ulong,
    data: *const c_void,
) -> c_int {
    // SAFETY: the caller's arguments.
    let result = unsafe { real::get().mount(source, target, kind, flags, data) };
    if result == 0 {
        check();
    }
    result
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn umount2(target: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    let result = unsafe { real::get().umount2(target, flags) };
    if result == 0 {
        check();
    }
    result
}

/// What `syscall` does for system calls after which files may be out of reach. They have two arguments at most.
pub(crate) extern "C" fn narrowing_call(number: c_long, first: usize, second: usize) -> isize {
    let result = raw(number, [first, second, 0, 0, 0, 0]);
    if result == 0 {
        after_narrowing(number);
    }
    result
}
