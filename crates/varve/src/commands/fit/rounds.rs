//! Runs under limits, by turns.

use std::ffi::OsString;
use std::path::PathBuf;

use varve_model::{Bytes, Duration};
use varve_sys::Signals;
use varve_tier::fit::{FitPoint, FitRuns, FitWay, Predicted};

use super::FitArguments;
use super::machine::{Ended, Machine};
use crate::commands::Failure;

/// One way to run the program.
struct Way {
    runs: FitRuns,
    words: Vec<OsString>,
    /// The limit that is set here; `tier apply` sets its own.
    limit: Option<Bytes>,
    reads: Vec<u64>,
}

/// All of them.
pub(super) struct Rounds<'a> {
    arguments: &'a FitArguments,
    curve: &'a [FitPoint],
    first: &'a Ended,
    ways: Vec<Way>,
}

impl<'a> Rounds<'a> {
    /// Without a limit alone. `first` is the run that was made so already.
    pub(super) fn new(
        arguments: &'a FitArguments,
        curve: &'a [FitPoint],
        first: &'a Ended,
    ) -> Rounds<'a> {
        let mut rounds = Rounds {
            arguments,
            curve,
            first,
            ways: Vec::new(),
        };
        rounds.add(FitWay::Unlimited, None, None, arguments.command.clone());
        rounds
    }

    fn add(
        &mut self,
        way: FitWay,
        memory: Option<Bytes>,
        predicted: Option<Predicted>,
        words: Vec<OsString>,
    ) {
        self.ways.push(Way {
            runs: FitRuns {
                way,
                memory,
                wall_ns: Vec::new(),
                median_ns: None,
                slowdown: None,
                predicted_slowdown: predicted.map(|p| p.slowdown),
                predicted_reads: predicted.map(|p| p.paged.reads),
                reads: None,
                stalled_share: None,
                out_of_memory: 0,
                too_slow: 0,
            },
            limit: memory.filter(|_| way == FitWay::Kernel),
            words,
            reads: Vec::new(),
        });
    }

    fn point(&self, memory: Bytes) -> Option<&FitPoint> {
        self.curve.iter().find(|p| p.memory == memory)
    }

    /// The kernel's own reclaim.
    pub(super) fn add_kernel(&mut self, memory: Bytes) {
        let predicted = self.point(memory).map(|p| p.kernel);
        let words = self.arguments.command.clone();
        self.add(FitWay::Kernel, Some(memory), predicted, words);
    }

    /// The plan, by this program's `tier apply`.
    pub(super) fn add_planned(&mut self, memory: Bytes, plan: PathBuf) {
        let Ok(own) = std::env::current_exe() else {
            return;
        };
        let predicted = self.point(memory).map(|p| p.planned);
        let mut words: Vec<OsString> = vec![own.into()];
        for word in ["tier", "apply", "--quiet", "--backend", "swap", "--memory"] {
            words.push(word.into());
        }
        words.push(memory.0.to_string().into());
        words.push(plan.into());
        words.push("--".into());
        words.extend(self.arguments.command.iter().cloned());
        self.add(FitWay::Planned, Some(memory), predicted, words);
    }

    /// Runs all, by turns.
    pub(super) fn run(
        mut self,
        machine: &mut Machine,
        signals: &mut Signals,
        progress: &dyn Fn(f64),
    ) -> Result<Vec<FitRuns>, Failure> {
        let rounds = self.arguments.rounds as usize;
        let most = Machine::longest(self.first.wall);
        let count = self.ways.len();
        for round in 0..rounds {
            for turn in 0..count {
                // Each comes at each place, so that what changes while time passes meets all.
                let way = &mut self.ways[(turn + round) % count];
                if way.runs.out_of_memory + way.runs.too_slow > 0 {
                    continue;
                }
                let ended = machine.run(&way.words, way.limit, signals, Some(most), None)?;
                note(way, &ended, self.arguments.expect_exit)?;
                progress((round * count + turn + 1) as f64 / (rounds * count) as f64);
            }
        }
        if rounds == 0 {
            self.ways[0].runs.wall_ns.push(self.first.wall);
        }
        let whole = middle(&self.ways[0].runs.wall_ns);
        let done = self.ways.into_iter().map(|mut way| {
            way.runs.median_ns = middle(&way.runs.wall_ns);
            way.runs.slowdown = way
                .runs
                .median_ns
                .zip(whole)
                .map(|(own, whole)| own.0 as f64 / whole.0.max(1) as f64 - 1.0);
            way.reads.sort_unstable();
            way.runs.reads = way.reads.get(way.reads.len() / 2).copied();
            way.runs
        });
        Ok(done.collect())
    }
}

/// What a run says.
fn note(way: &mut Way, ended: &Ended, expected: i32) -> Result<(), Failure> {
    let runs = &mut way.runs;
    if ended.too_slow {
        runs.too_slow += 1;
        return Ok(());
    }
    if ended.out_of_memory || ended.code == 128 + libc_kill() {
        runs.out_of_memory += 1;
        return Ok(());
    }
    if ended.code != expected {
        return Err(Failure {
            what: format!(
                "a run ended with exit code {}, and others with {expected}",
                ended.code
            ),
            hint: Some("fit runs that always end in the same way".to_owned()),
            code: super::FAILED,
        });
    }
    runs.wall_ns.push(ended.wall);
    way.reads.push(ended.reads);
    if let Some(us) = ended.stalled_us {
        let share = (us as f64 * 1000.0 / ended.wall.0.max(1) as f64).min(1.0);
        runs.stalled_share = Some(runs.stalled_share.unwrap_or(0.0).max(share));
    }
    Ok(())
}

/// SIGKILL.
const fn libc_kill() -> i32 {
    9
}

fn middle(times: &[Duration]) -> Option<Duration> {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
    Some(Duration(sorted[low].0.midpoint(sorted[high].0)))
}
