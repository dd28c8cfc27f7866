//! What was recorded, whether all of it, and what that cost.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Backend, Bytes, Capability, Duration, LossPart, Pid, Time};
use varve_trace::tables::{IntervalRow, ProcessRow};
use varve_trace::{ClockUnit, IntervalChoice, Manifest, State, TrapsNote};

use crate::{Known, format};

/// What was recorded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceFacts {
    /// Whether every loss counter is zero and the recording ended in order.
    pub complete: bool,
    /// The parts in which something may be missing; none where the trace is complete.
    pub incomplete: BTreeSet<LossPart>,
    /// The completeness statement, a sentence or more.
    pub statement: String,
    /// How far the recording got.
    pub state: State,
    /// Loss counters that are not zero.
    pub losses: BTreeMap<String, u64>,
    /// What made the trace.
    pub backend: Backend,
    /// How many intervals; null in a trace without touches, as are all figures of intervals.
    #[serde(serialize_with = "Known::plain")]
    pub intervals: Known<u64>,
    /// From the start of the first interval to the end of the last.
    pub duration_ns: Duration,
    /// The part of it in which the recording was paused, or, where a phase was selected, the program was not in it.
    pub paused_ns: Duration,
    /// From the beginning of the recording to that of what is shown, where a time was selected; else null.
    pub offset_ns: Option<Duration>,
    /// The length of the whole recording.
    pub whole_ns: Duration,
    /// How long the program ran before the recording began, where that was asked for.
    pub delay_ns: Duration,
    /// The beginning of the recording, `CLOCK_MONOTONIC`; all times here are on this clock.
    pub start_ns: Time,
    /// The beginning, nanoseconds since 1970; null where unknown.
    #[serde(serialize_with = "Known::plain")]
    pub start_unix_ns: Known<u64>,
    /// How long intervals were to be: as asked for, or the backend's own length; null where the recorder chose by cost, or in a trace
    /// without touches.
    pub interval_ns: Option<Duration>,
    /// Whether somebody asked for the length of the intervals.
    pub interval_asked: bool,
    /// The accesses of an interval where those were asked for, 0: the whole run is one; else null.
    pub interval_accesses: Option<u64>,
    /// The median length of the intervals.
    #[serde(serialize_with = "Known::plain")]
    pub median_interval_ns: Known<Duration>,
    /// The shortest of them but the last, which ends with the recording.
    #[serde(serialize_with = "Known::plain")]
    pub shortest_interval_ns: Known<Duration>,
    /// The longest of them.
    #[serde(serialize_with = "Known::plain")]
    pub longest_interval_ns: Known<Duration>,
    /// The command line.
    pub command: Vec<String>,
    /// Whether the program ran already when the recording began.
    pub attached: bool,
    /// What held the target, such as `cgroup`; `fexit` where nothing needed to; empty where nobody knows.
    pub hold: String,
    /// The exit code as a shell would show it, where the end was seen.
    pub exit_code: Option<i32>,
    /// The varve that recorded.
    pub varve: String,
    /// The machine; null where unknown.
    #[serde(serialize_with = "Known::plain")]
    pub machine: Known<MachineFacts>,
    /// How many first accesses were trapped, with `--backend fault`.
    pub traps: Option<TrapsNote>,
    /// What the trace has: figures that would be made of what it lacks are null.
    pub capabilities: BTreeSet<Capability>,
    /// What of the trace is shown, as a person said it; null where all is.
    pub selected: Option<String>,
    /// What all times count.
    pub clock_unit: ClockUnit,
    /// Rows of the table of touches.
    #[serde(serialize_with = "Known::plain")]
    pub touch_rows: Known<u64>,
    /// Rows of touches whose interval is not in the table of intervals, or comes after a later one. Their pages
    /// count in all but the working set.
    #[serde(serialize_with = "Known::plain")]
    pub stray_rows: Known<u64>,
}

impl TraceFacts {
    /// Whether the trace has this.
    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }

    /// Whether no accessed page can be missing, whatever else may be.
    pub fn has_all_pages(&self) -> bool {
        !self.incomplete.contains(&LossPart::Pages)
    }

    /// Whether neither accessed pages nor objects can be missing, so that figures of the touches of objects are whole.
    pub fn has_all_of_objects(&self) -> bool {
        !self.incomplete.iter().any(|part| part.concerns_objects())
    }

    /// How long accesses were recorded: without the pauses.
    pub fn recorded_ns(&self) -> Duration {
        self.duration_ns - self.paused_ns
    }

    /// Whether intervals are longer than asked for, by more than a tenth.
    pub fn is_lengthened(&self) -> bool {
        let lengths = self.interval_ns.zip(self.longest_interval_ns.value());
        lengths.is_some_and(|(asked, longest)| longest.0 > asked.0.saturating_add(asked.0 / 10))
    }
}

/// The machine of the recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineFacts {
    /// `uname -r`.
    pub kernel: String,
    /// `uname -m`.
    pub architecture: String,
    /// The CPU's name.
    pub cpu: String,
    /// Logical CPUs online.
    pub cpus: u32,
    /// Physical memory.
    pub memory_bytes: Bytes,
    /// Memory nodes (NUMA); null where nobody said.
    pub nodes: Option<u32>,
}

/// What recording cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Overhead {
    /// How long the target was held, all intervals together: from the order to stand still, which some threads follow before
    /// others, to its release. What runs until all stand still is in the interval too.
    pub held_ns: Duration,
    /// The time of which that is a part: what was recorded, and the last hold, which comes behind the last interval.
    pub held_of_ns: Duration,
    /// The part of it between the intervals, in which all threads stood still.
    pub stood_ns: Duration,
    /// The longest single hold.
    pub longest_hold_ns: Duration,
    /// What that had to do; null where nobody was held.
    pub longest_hold_work: Option<HoldWork>,
    /// How long one was to be at most; null where nobody was to be held.
    pub max_hold_ns: Option<Duration>,
    /// Intervals with a hold that was longer.
    pub long_hold_intervals: u64,
    /// CPU time of the recorder while the target ran.
    pub recorder_cpu_ns: Duration,
    /// The recorder's peak resident memory; 0 where unknown.
    pub recorder_peak_bytes: Bytes,
    /// How much longer the program took; null where nobody measured it: of a part of a trace, and where accesses were trapped.
    pub slowdown: Option<Slowdown>,
}

impl Overhead {
    /// The longest hold; where it was longer than asked for, how often one was.
    pub fn longest_hold(&self) -> String {
        let longest = format::duration(self.longest_hold_ns);
        match self.max_hold_ns {
            Some(most) if self.long_hold_intervals > 0 => format!(
                "{longest}{}; longer than the permitted {} in {}",
                self.longest_hold_work
                    .map_or_else(String::new, |work| work.in_words(self.longest_hold_ns)),
                format::duration(most),
                format::counted(self.long_hold_intervals, "interval")
            ),
            _ => longest,
        }
    }
}

/// What the longest hold of an interval had to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HoldWork {
    /// The part of it until all threads stood still.
    pub stopping_ns: Duration,
    /// Mappings of all processes.
    pub mappings: u64,
    /// Their resident pages.
    pub resident_pages: u64,
}

impl HoldWork {
    /// None where nobody was held.
    pub fn of(row: &IntervalRow) -> Option<HoldWork> {
        (row.longest_hold_ns > Duration(0)).then_some(HoldWork {
            stopping_ns: row.longest_stop_ns,
            mappings: row.mappings,
            resident_pages: row.resident_pages,
        })
    }

    /// It, to follow how long the hold took.
    pub fn in_words(&self, hold: Duration) -> String {
        // The rest is the smaller part, whatever it was spent on.
        if self.stopping_ns.0.saturating_mul(2) >= hold.0 {
            return format!(
                " ({} of it until all threads stood still)",
                format::duration(self.stopping_ns)
            );
        }
        format!(
            " ({} and {} to go through)",
            format::counted(self.mappings, "mapping"),
            format::counted(self.resident_pages, "resident page")
        )
    }
}

/// How many processes were recorded from `start` on. Each has a row for each program that it ran, and some end before a delay
/// is over.
pub fn recorded_processes(rows: &[ProcessRow], start: Time) -> u64 {
    let pids: BTreeSet<Pid> = since(rows, start).map(|row| row.pid).collect();
    pids.len() as u64
}

/// How many programs they ran: a process that runs another one begins anew.
pub fn recorded_programs(rows: &[ProcessRow], start: Time) -> u64 {
    since(rows, start).count() as u64
}

fn since(rows: &[ProcessRow], start: Time) -> impl Iterator<Item = &ProcessRow> {
    rows.iter()
        .filter(move |row| row.died_ns.is_none_or(|died| died >= start))
}

/// How much longer the program took for being recorded, as it was measured meanwhile: shares of the time that it would have
/// taken by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, TS)]
pub struct Slowdown {
    /// What it was to be at most; null where the length of intervals was forced.
    pub asked: Option<f64>,
    /// What it was: the sum of the six that follow.
    pub measured: f64,
    /// It was held.
    pub held: f64,
    /// First accesses to pages whose bit had been cleared.
    pub first_accesses: f64,
    /// Samples interrupted it.
    pub samples: f64,
    /// The preload library in it reported objects.
    pub objects: f64,
    /// Programs in the kernel reported its faults, mappings, threads and processes.
    pub reports: f64,
    /// The recorder worked where it could have.
    pub contention: f64,
    /// Whether the recording was too short for intervals to be chosen by what was measured: under half a second.
    pub short: bool,
    /// Programs whose beginnings and ends took longer too, which nobody measured and `measured` leaves out; 0 where they are
    /// too few to matter: a hundredth of the time, by what one took where it was measured.
    pub beginnings: u64,
}

/// What the beginning and the end of a process take longer while it is recorded, on the machine of
/// `bench/runs/2026-11-24-start.json`.
const BEGINNING: Duration = Duration(600_000);

/// Of a shorter recording most is its first interval and its end, which nobody could choose.
const SHORT: Duration = Duration(500_000_000);

/// What a recorder takes to begin and to end is most of a shorter one.
pub const TOO_SHORT: Duration = Duration(20_000_000);

impl Slowdown {
    /// What the manifest says of a recording of this length, pauses left out, and of so many programs; none where nothing was measured, no
    /// interval ended, or the program was over too soon for a share of its time to mean anything.
    pub fn of(manifest: &Manifest, recorded: Duration, programs: u64) -> Option<Slowdown> {
        let has = |capability| manifest.has(capability);
        let is_measured = matches!(manifest.backend, Backend::Scan)
            && !has(Capability::Emulated)
            && recorded >= TOO_SHORT;
        if !is_measured || manifest.traps.is_some() {
            return None;
        }
        let o = &manifest.overhead;
        let parts = [
            o.held_ns,
            o.first_accesses_ns,
            o.samples_ns,
            o.objects_ns,
            o.reports_ns,
            o.contention_ns,
        ];
        let lost: f64 = parts.iter().map(|part| part.0 as f64).sum();
        let plain = recorded.0 as f64 - lost;
        if lost <= 0.0 || plain <= 0.0 {
            return None;
        }
        let [held, first_accesses, samples, objects, reports, contention] =
            parts.map(|part| part.0 as f64 / plain);
        Some(Slowdown {
            asked: match manifest.options.interval {
                IntervalChoice::Auto { overhead } => Some(overhead),
                _ => None,
            },
            measured: lost / plain,
            held,
            first_accesses,
            samples,
            objects,
            reports,
            contention,
            short: recorded < SHORT,
            beginnings: match programs.saturating_mul(BEGINNING.0) > recorded.0 / 100 {
                true if programs > 1 => programs,
                _ => 0,
            },
        })
    }

    /// `asked 5 %, measured 3.8 %: held 1.9, first accesses 1.2, samples 0.7, objects 0.4, recorder's work 0`.
    pub fn in_words(&self) -> String {
        let percent = |share: f64| format!("{:.1}", 100.0 * share);
        let asked = match self.asked {
            Some(asked) => format!("asked {} %, ", percent(asked)),
            None => String::new(),
        };
        let beginnings = match self.beginnings {
            0 => String::new(),
            n => format!(
                "; not in it: most of the beginnings and ends of {n} programs (roughly 0.6 ms more for each, as measured on another machine)"
            ),
        };
        format!(
            "{asked}measured {} %{}: held {}, first accesses {}, samples {}, objects {}, reports {}, recorder's CPU {}{beginnings}",
            percent(self.measured),
            self.why_more(),
            percent(self.held),
            percent(self.first_accesses),
            percent(self.samples),
            percent(self.objects),
            percent(self.reports),
            percent(self.contention)
        )
    }
}

/// What is measured may be so many times what was asked before a reason is given.
const FAR_MORE: f64 = 1.2;

impl Slowdown {
    /// Why it was more than what was asked, where that is known, in parentheses.
    fn why_more(&self) -> &'static str {
        let Some(asked) = self.asked.filter(|asked| self.measured > *asked) else {
            return "";
        };
        let far = self.measured > FAR_MORE * asked;
        if self.short {
            " (too short a recording to keep to it)"
        } else if far && self.beginnings > 0 {
            " (many programs begin and end: each has its price, whatever the length of intervals)"
        } else if far && self.reports > asked / 2.0 {
            " (what is reported of faults, mappings, forks and marks has its price, whatever the length of intervals)"
        } else if far && self.held >= self.contention {
            " (each hold took long, as it does with many threads or on a busy machine, and the recording ended before longer intervals had made up for that)"
        } else if far {
            " (what the target did gave the recorder much to do, whatever the length of intervals)"
        } else {
            ""
        }
    }
}

/// Programs of processes whose objects come from the same place for the same reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectSource {
    /// `preload`, the library in them, or `kernel`, system calls alone.
    pub from: String,
    /// Why not the library, as `processes` of the trace says it.
    pub why: Option<String>,
    /// How many.
    pub programs: u64,
    /// The file name of one of them.
    pub example: String,
}

/// Why the preload library reported nothing of a program, in words; none where the word is not known.
#[must_use]
pub fn why_not_preloaded(word: &str) -> Option<&'static str> {
    Some(match word {
        "static" => "it loads no libraries",
        "rights" => "it gained rights by its file",
        "replaced" => "LD_PRELOAD was replaced",
        "removed" => "LD_PRELOAD was removed",
        "cleared" => "its environment was cleared",
        "root" => "its root folder lacks the library",
        "bits" => "32 bits",
        "musl" => "its C library is musl",
        "sanitizer" => "a sanitizer stands in front of its allocator",
        "unanswered" => "the library did not connect",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_costs_far_more_than_asked_has_a_reason() {
        let asked = Slowdown {
            asked: Some(0.05),
            measured: 0.32,
            reports: 0.075,
            ..Slowdown::default()
        };
        let said = asked.in_words();
        assert!(
            said.contains("measured 32.0 % (what is reported of"),
            "{said}"
        );
        // Ten thousand threads, which take long to stop.
        let held = Slowdown {
            reports: 0.01,
            held: 0.25,
            contention: 0.06,
            ..asked
        };
        let said = held.in_words();
        assert!(said.contains("(each hold took long"), "{said}");
        let busy = Slowdown {
            held: 0.01,
            contention: 0.3,
            ..held
        };
        let said = busy.in_words();
        assert!(said.contains("gave the recorder much to do"), "{said}");
        let many = Slowdown {
            beginnings: 501,
            ..asked
        };
        let said = many.in_words();
        assert!(said.contains("(many programs begin and end"), "{said}");
        let short = Slowdown {
            short: true,
            ..many
        };
        assert!(short.in_words().contains("(too short a recording"));
        // What was kept, or was not asked for, needs none.
        for slowdown in [
            Slowdown {
                measured: 0.05,
                ..many
            },
            Slowdown {
                asked: None,
                ..many
            },
        ] {
            let said = slowdown.in_words();
            assert!(!said.contains(" %(") && !said.contains("% ("), "{said}");
        }
    }
}
