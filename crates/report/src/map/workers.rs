//! The time bins of the map, filled by two threads in turns: each bin stands for itself.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::Scope;

use varve_analyse::Run;
use varve_model::{PageRange, Pages, Time};
use varve_objects::Span;

use super::column::{Column, Filler};
use super::grid::GridPass;

const FILLERS: usize = 2;
/// Runs of a message, and messages that a filler may be behind: 12 MB for both.
const RUNS: usize = 4096;
const BEHIND: usize = 64;

enum Message {
    Begin(Time, Time),
    Runs(Vec<Run>),
    /// Others may have touched these.
    Possibly(Vec<Run>),
    /// The end of this time bin.
    End(usize),
}

/// The threads that fill, as the one that reads sees them.
pub(super) struct Workers {
    fillers: Vec<SyncSender<Message>>,
    done: Receiver<(usize, Column)>,
    bin: usize,
}

impl Workers {
    pub(super) fn start<'scope, 'a: 'scope>(
        scope: &'scope Scope<'scope, '_>,
        pass: &GridPass<'a>,
        spans: &'a [Span],
    ) -> Workers {
        let (sender, done) = channel();
        let fillers = (0..FILLERS).map(|_| {
            let (messages, inbox) = sync_channel(BEHIND);
            let (filler, sender) = (pass.filler(spans), sender.clone());
            scope.spawn(move || fill(filler, &inbox, &sender));
            messages
        });
        Workers {
            fillers: fillers.collect(),
            done,
            bin: 0,
        }
    }

    /// Begins an interval of a time bin.
    pub(super) fn begin(&mut self, bin: usize, start: Time, end: Time, pass: &mut GridPass<'_>) {
        if bin != self.bin {
            self.tell(Message::End(self.bin));
            self.bin = bin;
            for (bin, column) in self.done.try_iter() {
                pass.put(bin, &column);
            }
        }
        self.tell(Message::Begin(start, end));
    }

    /// Adds runs of the interval.
    pub(super) fn touch(&mut self, runs: &[Run]) {
        for runs in runs.chunks(RUNS) {
            self.tell(Message::Runs(runs.to_vec()));
        }
    }

    /// Adds runs of the interval that others may have touched.
    pub(super) fn possibly(&mut self, runs: &[Run]) {
        for runs in runs.chunks(RUNS) {
            self.tell(Message::Possibly(runs.to_vec()));
        }
    }

    /// Ends the last time bin and waits for all of them.
    pub(super) fn finish(mut self, pass: &mut GridPass<'_>) {
        self.tell(Message::End(self.bin));
        self.fillers.clear();
        for (bin, column) in self.done {
            pass.put(bin, &column);
        }
    }

    fn tell(&mut self, message: Message) {
        // A filler ends only when it is given nothing more, or by a panic, which the scope hands on.
        let _ = self.fillers[self.bin % FILLERS].send(message);
    }
}

fn fill(mut filler: Filler<'_>, inbox: &Receiver<Message>, done: &Sender<(usize, Column)>) {
    for message in inbox {
        match message {
            Message::Begin(start, end) => filler.begin(start, end),
            Message::Runs(runs) => touch(&mut filler, &runs, false),
            Message::Possibly(runs) => touch(&mut filler, &runs, true),
            Message::End(bin) => {
                if done.send((bin, filler.take())).is_err() {
                    return;
                }
            }
        }
    }
}

fn touch(filler: &mut Filler<'_>, runs: &[Run], possibly: bool) {
    for run in runs {
        let range = PageRange {
            first: run.first,
            count: Pages(run.end.0 - run.first.0),
        };
        filler.touch(run.pid, range, possibly);
    }
}
