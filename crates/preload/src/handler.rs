//! The fault handler: a process that shares this one's memory, to trap the first access to each page in an interval.
//!
//! Only somebody whose memory it is may move pages of it (`UFFDIO_MOVE`), and whoever does so must not be among the
//! threads that the recorder holds still. So the library makes, where the recorder asks for it, a process by
//! `clone(CLONE_VM)`. Nobody waits for it (it has no exit signal, and ends before the program does: [`ending`]), no
//! signal reaches it (its own session, all blocked), it holds none of the program's descriptors, and it has no rights
//! ([`rights`]).
//!
//! While the recorder holds the program, the handler moves every resident page of private anonymous memory to a place
//! its shadow: another address, always the same distance away, so that the page tables are all the state there is. When
//! the program runs on, the first access to a page traps; the handler moves the page back and wakes the thread. When
//! the recorder is gone, everything is put back and the handler ends.
//!
//! It runs with the thread pointer of the thread that made it, so nothing here may use thread-local storage, nor touch
//! memory that may be moved: it would wait for itself. Its own memory is left alone ([`exempt::Exempt`]). Left alone are
//! also the pages of thread control blocks: at a thread's end the kernel clears the id there without waiting for
//! anybody, and a join would wait forever; and those of arguments and environment, which `ps` shows of every process.
//!
//! Nobody may wait for it in vain: it reads whatever the kernel has to say, however much that is ([`backlog`]), and every
//! wait of its own has a bound, or ends with the memory itself.

mod backlog;
mod drain;
mod ending;
mod exempt;
mod filter;
mod launch;
pub(crate) mod maps;
mod memory;
mod messages;
mod mover;
mod place;
mod protect;
mod ranges;
mod resolve;
mod rights;
mod steady;

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use varve_preload_abi::{
    ENDING, HELLO, MAX_WORDS, PLACES, Protect, Protected, READY, RESOLVED, THREADS, WHO,
};

use crate::{inherited, sys};
use ending::Ending;
pub(crate) use ending::{is_own, leave, of_this_process, reap};
pub(crate) use exempt::{note_arguments, note_statics};
use messages::{Message, Socket};
use mover::Watch;
use ranges::Range;
use resolve::Handler;
use rights::Taken;

/// What the handler's process is called.
pub(crate) const NAME: &CStr = c"varve-handler";

static WANTED: AtomicBool = AtomicBool::new(false);

/// The recorder asks for fault handlers.
pub(crate) fn want() {
    WANTED.store(true, Ordering::Relaxed);
}

/// Makes the process's handler, with a connection to the recorder. Where that fails, nothing of this process is trapped,
/// and the recorder says so. No tracer sees the handler, so it is not made where that could keep it from its calls.
pub(crate) fn start() {
    if WANTED.load(Ordering::Relaxed) && !inherited::may_need_a_tracer() {
        launch::launch();
    }
}

/// What the handler does until its end; it runs on `stack`. `asked` says when the program asks it to end.
fn live(socket: Socket, asked: i32, taken: Taken, stack: Range) {
    let mut words = [0u64; MAX_WORDS];
    let Some(mut handler) = begin(socket, asked, taken, stack, &mut words) else {
        return;
    };
    loop {
        let sources = [handler.front.descriptor, socket.0, asked];
        let ready = messages::wait(sources, handler.has_more());
        if ready.pages {
            handler.resolve_batch();
        }
        if ready.asked
            && let Some(ending) = ending::hear(asked)
        {
            if ending != Ending::Forget {
                socket.send(&[ENDING], None);
            }
            let (resolved, empty) = match ending {
                Ending::Keep => handler.release(),
                Ending::KeepAlone => {
                    handler.cools = true;
                    handler.release()
                }
                Ending::Forget => handler.resolved(),
            };
            socket.send(&[RESOLVED, resolved, empty], None);
            return;
        }
        if !ready.words {
            continue;
        }
        match socket.receive(&mut words) {
            Message::Words(count) => {
                let message = words.get(..count).unwrap_or_default();
                if let [THREADS, threads @ ..] = message {
                    handler.exempt.add_threads(threads);
                } else if let Some(protect) = Protect::decode(message) {
                    let protected = handler.protect(&protect);
                    answer(&mut handler, socket, &protected, &mut words);
                } else {
                    let (resolved, empty) = handler.resolved();
                    socket.send(&[RESOLVED, resolved, empty], None);
                    return;
                }
            }
            Message::Device(descriptor) => messages::close(descriptor),
            Message::Nothing => {}
            Message::End => break,
        }
    }
    // The recorder is gone: the program shall find all that it has.
    handler.release();
}

/// Says that it is there when it is asked, waits for the device and makes what is needed.
fn begin(
    socket: Socket,
    asked: i32,
    taken: Taken,
    stack: Range,
    words: &mut [u64],
) -> Option<Handler> {
    loop {
        if messages::wait([-1, socket.0, asked], false).asked {
            return None;
        }
        match socket.receive(words) {
            Message::Device(device) => {
                let watches = Watch::from_device(device).zip(Watch::from_device(device));
                messages::close(device);
                let (front, back) = watches?;
                let handler =
                    Handler::new(front, back, taken, stack).filter(|_| back.begin_as_back())?;
                // What the front needs, only a privileged process may ask for: the recorder does.
                socket.send(&[READY, handler.backlog.journal()], Some(front.descriptor));
                return Some(handler);
            }
            Message::Words(1) if words.first() == Some(&WHO) => {
                socket.send(&[HELLO], None);
            }
            Message::Words(_) | Message::End => return None,
            Message::Nothing => {}
        }
    }
}

/// Says which memory it was that pages are newly moved to, and what was done.
fn answer(
    handler: &mut Handler,
    socket: Socket,
    protected: &Protected,
    words: &mut [u64; MAX_WORDS],
) {
    let mut said = 0;
    while said < handler.fresh.as_slice().len() {
        let (kind, rest) = words.split_at_mut(1);
        kind.copy_from_slice(&[PLACES]);
        let places = handler.fresh.as_slice().get(said..).unwrap_or_default();
        let mut count = 0;
        for (pair, range) in rest.chunks_exact_mut(2).zip(places) {
            if let [start, bytes] = pair {
                (*start, *bytes) = (range.start, range.bytes());
                count += 1;
            }
        }
        let message = words.get(..1 + 2 * count).unwrap_or_default();
        if count == 0 || !socket.send(message, None) {
            break;
        }
        said += count;
    }
    // What the recorder has no room for now, it hears the next time.
    handler.fresh.remove_first(said);
    socket.send(&protected.encode(), None);
}

/// Ends the handler.
fn end() -> ! {
    loop {
        // SAFETY: takes an integer, does not return.
        unsafe { sys::call(libc::SYS_exit_group, [0; 6]) };
    }
}
