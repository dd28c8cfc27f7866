//! What a fit needs of the machine, and leaves as it was: a cgroup for each run, and a swap device.

use std::ffi::OsString;
use std::fs::File;
use std::io::Seek;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration as Wait, Instant};

use varve_analyse::format;
use varve_model::{Bytes, Duration};
use varve_record::{Order, RecordError, Watchdog};
use varve_sys::{
    GroupUsage, LimitError, LimitKind, LimitPlace, LimitedGroup, Signals, ZramError, ZramSwap,
};

use super::sample::Sampler;
use crate::commands::Failure;

/// No limit, for a group of which only the use is asked.
const UNLIMITED: Bytes = Bytes(1 << 60);
/// What a program may have above its limit while nothing can leave.
const SLACK: u64 = 64 << 20;
/// A run that takes so many times as long as without a limit is ended.
pub(super) const MAX_TIMES: u64 = 10;
/// And no sooner than after this time.
const MIN_LIMIT: Duration = Duration(10_000_000_000);

/// How a run ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended {
    pub(super) wall: Duration,
    pub(super) cpu: Duration,
    pub(super) code: i32,
    /// The most memory that counted.
    pub(super) peak: Bytes,
    /// The most of it that was the kernel's own.
    pub(super) kernel: Bytes,
    /// Pages without a file that were read again.
    pub(super) reads: u64,
    /// Microseconds in which all waited for memory.
    pub(super) stalled_us: Option<u64>,
    /// Whether the kernel ended it for want of memory, or it had to be let over the limit.
    pub(super) out_of_memory: bool,
    /// Whether it was ended because it took too long.
    pub(super) too_slow: bool,
    pub(super) output: Vec<u8>,
}

/// Why something cannot be prepared.
#[derive(Debug)]
struct Cannot(Failure);

impl From<ZramError> for Cannot {
    fn from(error: ZramError) -> Cannot {
        Cannot(Failure::new(&error, Some(error.hint())))
    }
}

impl From<RecordError> for Cannot {
    fn from(error: RecordError) -> Cannot {
        Cannot(Failure::new(&error, None::<String>))
    }
}

fn limited(error: LimitError) -> Failure {
    Failure::new(&error, Some(error.hint()))
}

/// The machine, prepared.
pub(super) struct Machine {
    place: LimitPlace,
    /// Removed before the watchdogs end.
    _zram: Option<ZramSwap>,
    watchdog: Watchdog,
    runs: u64,
}

impl Machine {
    /// Looks whether all is there, and makes a swap device where one is asked for.
    pub(super) fn prepare(zram: Option<Bytes>) -> Result<Machine, Failure> {
        if varve_sys::effective_user() != 0 {
            return Err(Failure::new(
                "fitting takes root: it limits memory and swaps",
                Some("run it by sudo"),
            ));
        }
        let place = LimitPlace::find().map_err(limited)?;
        if zram.is_none() && varve_sys::swap_devices().is_empty() {
            return Err(Failure::new(
                "there is no swap: under a limit nothing of a program could leave its memory",
                Some(
                    "`--zram 4GiB` makes a swap device of compressed memory, and removes it afterwards",
                ),
            ));
        }
        let started = Watchdog::start_for(zram.is_some()).map_err(|e| Cannot::from(e).0);
        let mut watchdog = started?;
        let zram = match zram {
            None => None,
            Some(bytes) => {
                let made = watchdog.make_swap(bytes);
                Some(made.map_err(|cannot: Cannot| cannot.0)?)
            }
        };
        Ok(Machine {
            place,
            _zram: zram,
            watchdog,
            runs: 0,
        })
    }

    /// Swap has to take what a limit keeps out.
    pub(super) fn must_hold(&self, peak: Bytes) -> Result<(), Failure> {
        let free = varve_sys::free_swap();
        if free.0 >= peak.0 {
            return Ok(());
        }
        Err(Failure::new(
            format!(
                "the program needs {}, and only {} of swap are free: a limit could not work",
                format::bytes(peak),
                format::bytes(free)
            ),
            Some("add swap, or give a larger size to --zram"),
        ))
    }

    pub(super) fn swap_name(&self) -> String {
        let devices = varve_sys::swap_devices();
        devices
            .into_iter()
            .next()
            .map_or_else(String::new, |(path, _)| path)
    }

    fn group(&mut self, limit: Option<Bytes>) -> Result<Group, Failure> {
        self.runs += 1;
        let path = self.place.name();
        let order = Order::Limited(path.clone(), self.place.home.clone());
        self.watchdog.order(&order).map_err(|e| Cannot::from(e).0)?;
        let kind = match self.place.is_v1 {
            true => LimitKind::Max,
            false => LimitKind::High,
        };
        let made = LimitedGroup::create(self.place.clone(), path, kind, limit.unwrap_or(UNLIMITED));
        let group = Group {
            group: made.map_err(limited)?,
            limit,
            over: 0,
        };
        if let Some(limit) = limit {
            match self.place.is_v1 {
                // Who finds no room waits, and is let go on: see `Group::look`.
                true => put(group.path(), "memory.oom_control", "1"),
                false => put(group.path(), "memory.max", &(limit.0 + SLACK).to_string()),
            }
        }
        Ok(group)
    }

    /// Runs a command, under a limit or without. `most` is the time after which it is ended.
    pub(super) fn run(
        &mut self,
        words: &[OsString],
        limit: Option<Bytes>,
        signals: &mut Signals,
        most: Option<Duration>,
        sampler: Option<&mut Sampler>,
    ) -> Result<Ended, Failure> {
        self.run_fed(words, limit, signals, most, sampler, None)
    }

    /// The same, of a command that reads a file and whose output is wanted.
    pub(super) fn run_fed(
        &mut self,
        words: &[OsString],
        limit: Option<Bytes>,
        signals: &mut Signals,
        most: Option<Duration>,
        mut sampler: Option<&mut Sampler>,
        input: Option<&File>,
    ) -> Result<Ended, Failure> {
        let mut group = self.group(limit)?;
        let (program, rest) = words
            .split_first()
            .ok_or_else(|| Failure::new("there is no command", None::<String>))?;
        let shown = program.to_string_lossy().into_owned();
        let cannot = |e: std::io::Error| {
            Failure::new(
                format!("cannot run {shown}: {e}"),
                Some("give the path of a program that runs by itself"),
            )
        };
        let mut command = Command::new(program);
        command
            .args(rest)
            .stderr(Stdio::null())
            .stdin(Stdio::null());
        command.stdout(match input {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        });
        if let Some(file) = input {
            let mut copy = file.try_clone().map_err(cannot)?;
            copy.rewind().map_err(cannot)?;
            command.stdin(copy);
        }
        varve_sys::have_join(&mut command, group.path()).map_err(cannot)?;
        let stalled = varve_sys::stalled(Some(group.path()));
        let began = Instant::now();
        let mut child = signals.spawn(&mut command).map_err(cannot)?;
        let reader = child.stdout.take().map(|mut output| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = std::io::Read::read_to_end(&mut output, &mut text);
                text
            })
        });
        let mut ended = Ended::default();
        let most = most.map(|most| Wait::from_nanos(most.0));
        let mut look = || {
            let usage = GroupUsage::of(group.path());
            ended.kernel = ended.kernel.max(usage.kernel);
            let stays = group.look();
            if let Some(sampler) = sampler.as_deref_mut() {
                sampler.look(&group.group.members());
            }
            ended.too_slow = most.is_some_and(|most| began.elapsed() > most);
            ended.out_of_memory |= !stays;
            let goes_on = stays && !ended.too_slow;
            if !goes_on {
                varve_sys::kill_group(group.path());
            }
            goes_on
        };
        let used = varve_sys::wait_measured_while(&child, began, signals, &mut look);
        let used = used.map_err(cannot)?;
        // What it left running must not go on without a limit.
        varve_sys::kill_group(group.path());
        if let Some(signal) = used.interrupted {
            return Err(Failure::interrupted(signal, "nothing was fitted"));
        }
        ended.output = reader.and_then(|r| r.join().ok()).unwrap_or_default();
        let usage = GroupUsage::of(group.path());
        ended.wall = used.wall;
        ended.cpu = used.cpu;
        ended.code = used.code;
        ended.peak = GroupUsage::peak(group.path()).unwrap_or(used.peak);
        ended.reads = usage.anonymous_refaults;
        ended.out_of_memory |= group.over > 0 || group.group.killed() > 0;
        ended.stalled_us = stalled
            .zip(varve_sys::stalled(Some(group.path())))
            .map(|(before, after)| after.saturating_sub(before));
        Ok(ended)
    }

    /// The time after which a run is ended.
    pub(super) fn longest(unlimited: Duration) -> Duration {
        Duration(unlimited.0.saturating_mul(MAX_TIMES).max(MIN_LIMIT.0))
    }
}

/// A group that a run is in.
struct Group {
    group: LimitedGroup,
    limit: Option<Bytes>,
    /// Bytes by which the limit is raised at the moment or was at most.
    over: u64,
}

impl Group {
    fn path(&self) -> &Path {
        self.group.path()
    }

    /// In cgroup v1 a program that finds no room waits for somebody to give it some: the limit is raised a little, as
    /// `memory.high` would let it. False where that does not help.
    fn look(&mut self) -> bool {
        let Some(limit) = self.limit else { return true };
        let control: PathBuf = self.path().join("memory.oom_control");
        let text = std::fs::read_to_string(control).unwrap_or_default();
        if !text.lines().any(|line| line.trim() == "under_oom 1") {
            return true;
        }
        self.over += (limit.0 / 64).max(1 << 20);
        if self.over > SLACK {
            return false;
        }
        put(
            self.path(),
            "memory.limit_in_bytes",
            &(limit.0 + self.over).to_string(),
        );
        true
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        varve_sys::kill_group(self.path());
    }
}

/// Writes to a file of a group; where it is not there, the kernel has no such thing.
fn put(group: &Path, name: &str, text: &str) {
    let path = group.join(name);
    if path.exists() {
        let _ = std::fs::write(path, text);
    }
}
