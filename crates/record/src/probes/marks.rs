//! What programs say of their own work: phases and events, by `varve/mark.h` or the crate `varve-mark`.
//!
//! A mark is a system call that changes nothing (`brk(0)`, with the name in arguments that the kernel does not look at), so that it comes in order with all
//! other events of the kernel's part. Programs make it only where an environment variable says that somebody records. Where a program is
//! emulated the emulator answers the call by itself, and its plugin makes it once more.

use std::collections::{HashMap, HashSet};

use varve_bpf::{Event, Exit, Kernel, Mark, MarkKind};
use varve_model::{Capability, Duration, Pid, Tid, Time};
use varve_trace::tables::{BegunMarkRow, EndedMarkRow};
use varve_trace::{Manifest, TraceError, TraceWriter};

use super::{Kind, Launch, Probe, Setup, Started, load_nothing};
use crate::state::State;
use crate::target::channel::Channel;
use crate::{RecordError, TargetChoice};

pub(crate) const KIND: Kind = Kind {
    load: load_nothing,
    start,
};

fn start(setup: &mut Setup<'_>) -> Result<Started, RecordError> {
    let options = setup.options;
    let (may_tell, is_told) = match options.target {
        TargetChoice::Command(_) => (
            options.preload.is_some(),
            std::env::var_os(VARIABLE).is_some(),
        ),
        TargetChoice::Attach(pid) => (false, has_variable(pid)),
    };
    if !may_tell && !is_told {
        setup.manifest.capabilities.remove(&Capability::Marks);
    }
    Ok(Some(Box::new(Marks {
        may_tell,
        ..Marks::default()
    })))
}

/// Whether a process that runs already was started so that it makes its marks.
fn has_variable(pid: Pid) -> bool {
    let variables = std::fs::read(format!("/proc/{}/environ", pid.0)).unwrap_or_default();
    let mut variables = variables.split(|byte| *byte == 0);
    variables.any(|v| {
        v.strip_prefix(VARIABLE.as_bytes())
            .is_some_and(|rest| rest.starts_with(b"="))
    })
}

/// Has programs make their marks.
const VARIABLE: &str = "VARVE_MARKS";
/// Phases and events that a recording keeps.
const MAX_MARKS: u64 = 1 << 20;
/// What a mark takes of the program, on the machine of `bench/runs/2026-11-26-marks.json`.
const MARK: Duration = Duration(1_700);
/// Different names that it keeps.
const MAX_NAMES: usize = 4096;

/// The probe.
#[derive(Default)]
struct Marks {
    /// Whether the program's environment may say that somebody records: without the preload library nothing is added to it.
    may_tell: bool,
    /// Phases that are open, by thread, the innermost last: number and name.
    open: HashMap<Pid, HashMap<Tid, Vec<(u64, String)>>>,
    names: HashSet<String>,
    next: u64,
    /// All that came, ends of phases too, and what was left out.
    heard: u64,
    begun: Vec<BegunMarkRow>,
    ended: Vec<EndedMarkRow>,
    /// Marks that came before the recording began.
    discarded: Time,
    left_out: LeftOut,
}

/// Marks that the trace does not have: of a phase its beginning and its end are two.
#[derive(Default)]
struct LeftOut {
    /// Beyond the number that is kept.
    many: u64,
    /// With names beyond the number of those that are kept.
    names: u64,
    /// Whose names could not be read.
    unreadable: u64,
    /// Ends of phases that had not begun on their thread.
    ends: u64,
    /// The same, where beginnings may have been dropped.
    beginnings: u64,
    /// Names that were cut.
    cut: u64,
    /// For which there was no room on their way.
    dropped: u64,
}

impl Marks {
    fn take(&mut self, mark: &Mark<'_>) {
        self.heard += 1;
        if mark.name.is_empty() && mark.bytes > 0 {
            self.left_out.unreadable += 1;
            return;
        }
        let name = String::from_utf8_lossy(mark.name).into_owned();
        if mark.kind == MarkKind::End {
            self.end(mark, &name);
            return;
        }
        if self.next >= MAX_MARKS {
            self.left_out.many += 1;
            return;
        }
        if !self.names.contains(&name) {
            if self.names.len() >= MAX_NAMES {
                self.left_out.names += 1;
                return;
            }
            self.names.insert(name.clone());
        }
        self.left_out.cut += u64::from(mark.bytes as usize > mark.name.len());
        let number = self.next;
        self.next += 1;
        let is_phase = mark.kind == MarkKind::Begin;
        if is_phase {
            let threads = self.open.entry(mark.pid).or_default();
            let open = threads.entry(mark.tid).or_default();
            open.push((number, name.clone()));
        }
        self.begun.push(BegunMarkRow {
            mark: number,
            time_ns: mark.time,
            pid: mark.pid,
            tid: mark.tid,
            kind: if is_phase { "phase" } else { "event" }.into(),
            name,
        });
    }

    /// Ends the innermost phase of that name on the thread.
    fn end(&mut self, mark: &Mark<'_>, name: &str) {
        let threads = self.open.get_mut(&mark.pid);
        let open = threads.and_then(|threads| threads.get_mut(&mark.tid));
        let found = open.and_then(|open| {
            let at = open.iter().rposition(|(_, of)| of == name)?;
            Some(open.remove(at).0)
        });
        match found {
            Some(number) => self.ended.push(EndedMarkRow {
                mark: number,
                time_ns: mark.time,
                said: true,
            }),
            None => *self.why_not_open(name) += 1,
        }
    }

    /// As what the end of a phase counts whose beginning the trace does not have.
    fn why_not_open(&mut self, name: &str) -> &mut u64 {
        let is_known = self.names.contains(name);
        let left = &mut self.left_out;
        match (left.names, left.many, left.dropped) {
            (1.., ..) if !is_known => &mut left.names,
            (_, 1.., _) => &mut left.many,
            // Its beginning may be one of those for which there was no room.
            (.., 1..) => &mut left.beginnings,
            _ => &mut left.ends,
        }
    }

    fn close(&mut self, open: Vec<(u64, String)>, time: Time) {
        self.ended
            .extend(open.into_iter().map(|(mark, _)| EndedMarkRow {
                mark,
                time_ns: time,
                said: false,
            }));
    }

    /// A thread ended: so do its phases.
    fn thread_ended(&mut self, exit: &Exit) {
        let threads = self.open.get_mut(&exit.pid);
        if let Some(open) = threads.and_then(|threads| threads.remove(&exit.tid)) {
            self.close(open, exit.time);
        }
    }
}

/// What is to be said of the price of so many marks: where it is more than a hundredth of the time.
fn note_of_cost(heard: u64, recorded: Duration) -> Option<String> {
    let took = heard.saturating_mul(MARK.0);
    (took > recorded.0 / 100 && heard > 1).then(|| {
        format!(
            "{heard} marks came from the program, and each is a system call while somebody records, of roughly 1.7 µs, as measured on another machine, {:.2} s in \
             all. The measured cost has a part of that only, among the reports. No interval changes it.",
            took as f64 / 1e9
        )
    })
}

impl LeftOut {
    fn notes(&self) -> impl Iterator<Item = String> {
        let of_program = |why: &str| {
            [
                format!("mark of the program is left out: {why}."),
                format!("marks of the program are left out: {why}."),
            ]
        };
        let of_ends = |why: &str| {
            [
                format!("end of a phase is left out: {why}."),
                format!("ends of phases are left out: {why}."),
            ]
        };
        let notes = [
            (self.many, of_program("a recording keeps 1,048,576 phases and events")),
            (self.names, of_program("a recording keeps 4,096 different names")),
            (self.unreadable, of_program("the name could not be read")),
            (self.dropped, of_program("there was no room when the program made them")),
            (self.ends, of_ends("no phase of that name was open on the thread")),
            (self.beginnings, of_ends("the beginning may be among the marks for which there was no room")),
            (
                self.cut,
                [
                    "mark of the program has a name longer than 128 bytes: the rest of it is left out.".to_owned(),
                    "marks of the program have names longer than 128 bytes: the rest of those is left out.".to_owned(),
                ],
            ),
        ];
        notes
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, [one, many])| match count {
                1 => format!("1 {one}"),
                more => format!("{more} {many}"),
            })
    }
}

impl Probe for Marks {
    fn launch(&self, launch: &mut Launch, _channel: Option<&Channel>) -> Result<(), RecordError> {
        if self.may_tell {
            launch.environment.push((VARIABLE, "1".into()));
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, _state: &mut State) {
        match event {
            Event::Mark(mark) if mark.time >= self.discarded => self.take(mark),
            Event::Exit(exit) => self.thread_ended(exit),
            _ => (),
        }
    }

    fn image_ends(&mut self, pid: Pid, time: Time, _state: &mut State) {
        for open in self.open.remove(&pid).into_iter().flatten() {
            self.close(open.1, time);
        }
    }

    fn apply(&mut self, kernel: &mut Kernel) -> Result<(), RecordError> {
        self.left_out.dropped = kernel.dropped_marks()?;
        Ok(())
    }

    fn discard(&mut self, until: Time) {
        self.discarded = until;
    }

    fn write(&mut self, writer: &mut TraceWriter) -> Result<(), TraceError> {
        // A recorder that is killed in between leaves ends without beginnings.
        writer.append(&self.ended)?;
        self.ended.clear();
        writer.append(&self.begun)?;
        self.begun.clear();
        Ok(())
    }

    fn finish(&mut self, manifest: &mut Manifest, _is_whole: bool) {
        if self.heard > 0 {
            manifest.capabilities.insert(Capability::Marks);
        }
        let recorded = manifest
            .clock
            .end_ns
            .0
            .saturating_sub(manifest.clock.start_ns.0);
        manifest
            .notes
            .extend(note_of_cost(self.heard, Duration(recorded)));
        manifest.notes.extend(self.left_out.notes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(marks: &mut Marks, kind: MarkKind, name: &str) {
        marks.take(&Mark {
            time: Time(1),
            pid: Pid(1),
            tid: Tid(1),
            kind,
            bytes: name.len() as u32,
            name: name.as_bytes(),
        });
    }

    #[test]
    fn of_a_phase_that_is_left_out_both_marks_count() {
        let mut marks = Marks::default();
        for number in 0..5000 {
            let name = number.to_string();
            mark(&mut marks, MarkKind::Begin, &name);
            mark(&mut marks, MarkKind::End, &name);
        }
        let notes: Vec<String> = marks.left_out.notes().collect();
        assert_eq!(
            notes,
            ["1808 marks of the program are left out: a recording keeps 4,096 different names."]
        );
        assert_eq!(marks.heard, 10_000);
        // An end of a name that is kept has another reason.
        mark(&mut marks, MarkKind::End, "0");
        assert_eq!(
            marks.left_out.notes().nth(1).as_deref(),
            Some("1 end of a phase is left out: no phase of that name was open on the thread.")
        );
    }

    /// As those of a function that calls itself. Others that began later go on.
    #[test]
    fn of_phases_of_one_name_the_innermost_ends() {
        let mut marks = Marks::default();
        for name in ["solve", "solve", "step"] {
            mark(&mut marks, MarkKind::Begin, name);
        }
        for _ in 0..3 {
            mark(&mut marks, MarkKind::End, "solve");
        }
        mark(&mut marks, MarkKind::End, "step");
        let ended: Vec<u64> = marks.ended.iter().map(|row| row.mark).collect();
        assert_eq!(ended, [1, 0, 2]);
        assert_eq!(marks.left_out.ends, 1);
    }

    #[test]
    fn the_price_of_marks_is_said_where_it_matters() {
        let second = Duration(1_000_000_000);
        assert_eq!(note_of_cost(1000, second), None);
        let note = note_of_cost(1_200_000, second).unwrap();
        assert!(
            note.contains("1200000 marks") && note.contains("2.04 s"),
            "{note}"
        );
    }
}
