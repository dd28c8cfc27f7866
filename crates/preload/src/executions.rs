//! Programs that are executed where no more files may be open (RLIMIT_NOFILE).
//!
//! The loader can open nothing there, and says so of each library that is to be preloaded on the program's standard error.
//! Alone it says that of the first library that the program itself needs, where it needs any. So where an execution leaves
//! no number for a descriptor, this library is not in the list that the next program gets: neither in the one that a
//! program hands over (`execve`, as shells do), nor in its own, which it executes others with after it has set the limit.
//! As long as one number is free the loader needs no more: it closes what it has mapped.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr::NonNull;

use crate::roots::{self, NAME, Shorter};
use crate::{loader, process, real, sys};

/// A number for a descriptor is looked for below this; under a higher limit there is one.
const MAX_LOOKED_AT: u64 = 1024;

/// Whether the next program could open a file: below the limit there is a number that is free, or whose descriptor the
/// execution closes.
fn has_room() -> bool {
    if process::is_confined() {
        return true;
    }
    let limit = sys::limit(libc::RLIMIT_NOFILE).unwrap_or(u64::MAX);
    limit > MAX_LOOKED_AT || (0..limit as usize).any(is_free)
}

fn is_free(descriptor: usize) -> bool {
    let arguments = [descriptor, libc::F_GETFD as usize, 0, 0, 0, 0];
    // SAFETY: takes integers.
    let flags = unsafe { sys::call(libc::SYS_fcntl, arguments) };
    flags < 0 || flags & libc::FD_CLOEXEC as isize != 0
}

/// A list of variables in memory of its own.
struct Variables {
    memory: NonNull<u8>,
    bytes: usize,
}

impl Variables {
    /// The same variables without this library among those to be preloaded; none where it is not there.
    ///
    /// # Safety
    /// Null, or a list of C strings that ends in null.
    unsafe fn without_library(list: *const *const c_char) -> Option<Variables> {
        let own = loader::file_of(process::some_code())?.to_bytes();
        // SAFETY: as the caller says; the copy has as many places.
        unsafe {
            let mut count = 0;
            let mut found = None;
            while !list.is_null() && !(*list.add(count)).is_null() {
                let entry = CStr::from_ptr(*list.add(count)).to_bytes();
                if let Some(items) = entry.strip_prefix(NAME) {
                    found = Some((count, roots::without(items, own)));
                }
                count += 1;
            }
            let (place, shorter) = found?;
            let bytes = (count + 1) * size_of::<*const c_char>();
            let memory = match shorter {
                Shorter::Same => return None,
                Shorter::List(_) | Shorter::Nothing => sys::map_anonymous(bytes)?,
            };
            let copy: *mut *const c_char = memory.as_ptr().cast();
            copy.copy_from_nonoverlapping(list, count);
            match shorter {
                Shorter::List(entry) => *copy.add(place) = entry,
                _ => copy
                    .add(place)
                    .copy_from(list.add(place + 1), count - place),
            }
            Some(Variables { memory, bytes })
        }
    }
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    variables: *const *const c_char,
) -> c_int {
    let shorter = match has_room() {
        true => None,
        // SAFETY: the caller's list.
        false => unsafe { Variables::without_library(variables) },
    };
    let list = shorter.as_ref().map_or(variables, |shorter| {
        shorter.memory.as_ptr().cast_const().cast()
    });
    // SAFETY: the caller's arguments, or a list like the caller's.
    let failed = unsafe { real::get().execve(path, arguments, list) };
    if let Some(Variables { memory, bytes }) = shorter {
        // SAFETY: mapped above; nobody else knows of it.
        unsafe { sys::unmap(memory, bytes) };
    }
    failed
}

/// Looks at what a limit of the process's has changed (`setrlimit`, `prlimit`), which was set or not.
pub(crate) fn after_limit(result: c_int, resource: c_uint) {
    if result == 0 && resource == libc::RLIMIT_NOFILE && !has_room() {
        roots::leave_list();
    }
}
