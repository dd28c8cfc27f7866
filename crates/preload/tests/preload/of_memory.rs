//! The library's own functions for memory do what their names say, for each length and overlap.

use std::ffi::{c_char, c_int, c_void};

use proptest::prelude::*;

crate::memory::functions!("own_memcpy" "own_memmove" "own_memset" "own_memcmp" "own_bcmp" "own_strlen");

unsafe extern "C" {
    fn own_memcpy(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void;
    fn own_memmove(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void;
    fn own_memset(to: *mut c_void, value: c_int, bytes: usize) -> *mut c_void;
    fn own_memcmp(one: *const c_void, other: *const c_void, bytes: usize) -> c_int;
    fn own_bcmp(one: *const c_void, other: *const c_void, bytes: usize) -> c_int;
    fn own_strlen(text: *const c_char) -> usize;
}

/// Enough for each way that a length is treated.
const MOST: usize = 1200;

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 131 + at / 251) as u8).collect()
}

/// Lengths near which another way begins, and what lies between.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=130).chain(500..=530).chain(1008..=1056).chain([MOST])
}

#[test]
fn each_length_is_copied_and_no_byte_beside_it() {
    for bytes in lengths() {
        for (to, from) in [(3, 7), (0, 16), (5, 5)] {
            let source = pattern(MOST + 64);
            let mut place = vec![0xee; MOST + 64];
            let mut right = place.clone();
            right[to..to + bytes].copy_from_slice(&source[from..from + bytes]);
            let at = place[to..].as_mut_ptr().cast();
            let given = unsafe { own_memcpy(at, source[from..].as_ptr().cast(), bytes) };
            assert_eq!(given, at);
            assert!(place == right, "{bytes} bytes from {from} to {to}");
        }
    }
}

#[test]
fn each_overlap_is_moved() {
    for bytes in lengths() {
        for shift in [1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 100] {
            for (to, from) in [(0, shift), (shift, 0)] {
                let mut place = pattern(MOST + 128);
                let mut right = place.clone();
                right.copy_within(from..from + bytes, to);
                let start = place.as_mut_ptr();
                let at = unsafe { start.add(to) }.cast();
                let given = unsafe { own_memmove(at, start.add(from).cast(), bytes) };
                assert_eq!(given, at);
                assert!(place == right, "{bytes} bytes from {from} to {to}");
            }
        }
    }
}

#[test]
fn each_length_is_filled_and_no_byte_beside_it() {
    for bytes in lengths() {
        for value in [0, 0x5a, 0xff, 0x1a5] {
            let mut place = pattern(MOST + 64);
            let mut right = place.clone();
            right[9..9 + bytes].fill(value as u8);
            let at = place[9..].as_mut_ptr().cast();
            assert_eq!(unsafe { own_memset(at, value, bytes) }, at);
            assert!(place == right, "{bytes} bytes of {value}");
        }
    }
}

proptest! {
    #[test]
    fn bytes_are_ordered_as_numbers(mut one: Vec<u8>, at: prop::sample::Index, value: u8) {
        one.push(value);
        let mut other = one.clone();
        other[at.index(one.len())] = value;
        let (a, b): (*const c_void, *const c_void) = (one.as_ptr().cast(), other.as_ptr().cast());
        let (ordered, same) =
            unsafe { (own_memcmp(a, b, one.len()), own_bcmp(a, b, one.len())) };
        prop_assert_eq!(ordered.cmp(&0), one.cmp(&other));
        prop_assert_eq!(same == 0, one == other);
    }

    #[test]
    fn strings_end_at_their_zero(text in "[a-z]{0,80}") {
        let whole = [text.as_bytes(), b"\0more\0"].concat();
        prop_assert_eq!(unsafe { own_strlen(whole.as_ptr().cast()) }, text.len());
    }
}
