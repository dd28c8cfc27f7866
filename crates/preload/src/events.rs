//! From calls to records.

use varve_preload_abi::{AllocKind, Event};

use crate::pages::{self, Owning};
use crate::thread::{self, Nesting};
use crate::{placing, process, sys, unwind};

/// A heap object was born. Small objects on owned pages, the common case, end here.
#[inline]
pub(crate) fn born(address: u64, bytes: usize, kind: AllocKind) {
    if placing::is_on() {
        return placing::born(address, bytes);
    }
    if bytes >= process::min_object() {
        recorded(address, bytes as u64, kind);
        return;
    }
    if !pages::is_owned(address) {
        pooled(address);
    }
    let last = address + bytes.saturating_sub(1) as u64;
    if (address ^ last) >> 12 != 0 && !pages::is_owned(last) {
        pooled(last);
    }
}

/// A heap object is about to die; when, nanoseconds, if it was a recorded one.
#[inline]
pub(crate) fn dying(address: u64) -> Option<u64> {
    match pages::may_start(address) && pages::is_start(address) {
        true => forgotten(address),
        false => None,
    }
}

/// The same, with the place of one that a plan has placed.
#[inline]
pub(crate) fn dying_in_place(address: u64) -> (Option<u64>, Option<usize>) {
    match placing::is_on() {
        true => (None, placing::dying(address)),
        false => (dying(address), None),
    }
}

#[inline(never)]
fn recorded(address: u64, bytes: u64, kind: AllocKind) {
    let thread = thread::current();
    thread.enter(|nesting| {
        let Some(ring) = process::ring(nesting) else {
            return;
        };
        process::follow_min_object(&ring);
        pages::disown(address, bytes);
        if !pages::add_start(address) {
            return ring.count_roomless();
        }
        let began = sys::now_ns();
        let site = unwind::site(thread, nesting, &ring);
        let event = Event::Alloc {
            address,
            bytes,
            kind,
        };
        if !process::emit(&ring, thread, began, site, event) {
            // Its death would be the death of nothing.
            pages::take_start(address);
        }
        thread.spent_since(began, &ring);
    });
}

/// A block is one of those that are sampled, since a time in nanoseconds.
pub(crate) fn sampled(address: u64, bytes: u64, since: u64) {
    let thread = thread::current();
    thread.enter(|nesting| {
        let Some(ring) = process::ring(nesting) else {
            return;
        };
        if !pages::add_start(address) {
            return ring.count_roomless();
        }
        let began = sys::now_ns();
        let site = unwind::site(thread, nesting, &ring);
        let event = Event::Sampled { address, bytes };
        process::emit(&ring, thread, since, site, event);
        thread.spent_since(began, &ring);
    });
}

#[inline(never)]
fn pooled(address: u64) {
    let thread = thread::current();
    thread.enter(|nesting| {
        // The first that can be named gets the page.
        if nesting == Nesting::Nested {
            return;
        }
        let Some(ring) = process::ring(nesting) else {
            return;
        };
        match pages::own(address) {
            Owning::New => {}
            Owning::Before => return,
            Owning::NoRoom => return ring.count_roomless(),
        }
        let began = sys::now_ns();
        let site = unwind::site(thread, nesting, &ring);
        let page = address >> 12;
        if !process::emit(&ring, thread, began, site, Event::PageOwner { page }) {
            pages::disown(page << 12, 4096);
        }
        thread.spent_since(began, &ring);
    });
}

#[inline(never)]
fn forgotten(address: u64) -> Option<u64> {
    if placing::is_on() {
        placing::dying(address);
        return None;
    }
    if !pages::take_start(address) {
        return None;
    }
    let began = sys::now_ns();
    let thread = thread::current();
    thread.enter(|nesting| {
        if let Some(ring) = process::ring(nesting) {
            process::emit(&ring, thread, began, 0, Event::Free { address });
            thread.spent_since(began, &ring);
        }
    });
    Some(began)
}

/// The address space changed.
pub(crate) fn mapped(time_ns: u64, event: Event<'_>) {
    if process::reports_no_objects() || placing::is_on() {
        return;
    }
    let thread = thread::current();
    thread.enter(|nesting| {
        let Some(ring) = process::ring(nesting) else {
            return;
        };
        let began = sys::now_ns();
        let site = unwind::site(thread, nesting, &ring);
        process::emit(&ring, thread, time_ns, site, event);
        thread.spent_since(began, &ring);
    });
}
