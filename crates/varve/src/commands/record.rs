//! `varve record`.

mod finish;
mod repeated;
pub(super) mod values;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use varve_model::{Backend, Bytes, Duration, Pid};
use varve_record::{
    Ablation, CountsChoice, HoldChoice, RecordError, RecordOptions, SamplesChoice, TargetChoice,
    TrapsChoice, VanishChoice, WritesChoice,
};
use varve_report::quoted_path;
use varve_sys::ThpPolicy;
use varve_trace::{Existing, IntervalChoice, Trace};

use self::finish::finish;
pub(super) use self::finish::put_in_order;
use self::repeated::Repeated;
pub(super) use self::values::SamplesArgument;
use self::values::{
    DEFAULT_RATE, HoldArgument, IntervalArgument, MAX_HOLD, MaxHoldArgument, SHORT_INTERVAL, Thp,
    Vanish, Writes, ablation, backends,
};
use super::Failure;
use crate::arguments::Writing;
use crate::libraries::{PLUGIN, PRELOAD, plugin, preload};
use crate::values::{Moment, Share, Size, process};

/// The smallest heap object with a row of its own, where nothing else is asked for.
const MIN_OBJECT: Bytes = Bytes(4096);

#[derive(Debug, Args)]
#[command(
    override_usage = "varve record [OPTIONS] -- <COMMAND>...\n       varve record [OPTIONS] -p <PID>\n       varve record [OPTIONS] --every <TIME> --for <TIME> --to <STORE> --name <NAME>"
)]
#[command(after_help = "\
Examples:
  varve record -- ./solver input.dat       record a command, to solver.varve
  varve record -p 1234 -o db.varve         record a running process until Ctrl-C
  varve record --overhead 2% -- ./server   let it take 2 % longer at most
  varve record --backend exact -- ./prog   count every access, many times slower
  varve record --name redis-server --every 10m --for 10s --to /srv/traces
                                           record a service over and over, into a store

Signals to the recorder: SIGINT (Ctrl-C) ends the recording, SIGUSR1 pauses it and has it go on.
The exit code is the command's own; 125 where nothing could be recorded, 126 and 127 as in a shell.")]
pub(crate) struct Record {
    /// Trace folder to write [default: NAME.varve, or NAME-2.varve and so on where that is there already]
    #[arg(short, long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) writing: Writing,

    /// Record a process that runs already, until it ends or Ctrl-C
    #[arg(short, long, value_name = "PID", conflicts_with = "command", value_parser = process)]
    pub(crate) pid: Option<u32>,

    /// How touches are found: `scan` (accessed bits, at full speed), `fault` (besides, the first access to each
    /// page in an interval traps, which gives its exact address, thread, CPU, time, instruction and kind: many
    /// times slower), or `exact` (every access counted by page, thread and kind, in an emulator: many times slower)
    #[arg(long, value_name = "HOW", default_value = "scan", value_parser = backends())]
    pub(crate) backend: Backend,

    /// With `--backend fault`: trap accesses to as many pages, chosen at random, as cost this share of the run time
    #[arg(long, value_name = "SHARE")]
    pub(crate) fault_budget: Option<Share>,

    /// With `--backend exact`: begin an interval every so many accesses [default: the whole run is one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 60))]
    pub(crate) interval_accesses: Option<u64>,

    /// How much longer the program may take for being recorded: intervals, from 50ms up, and the rate of samples are
    /// chosen by what they are measured to cost
    #[arg(long, value_name = "SHARE", default_value = "5%")]
    pub(crate) overhead: Share,

    /// Length of an interval, 10ms to 60m, whatever it costs
    #[arg(long, value_name = "TIME")]
    pub(crate) interval: Option<IntervalArgument>,

    /// Let the program run for this long before its accesses are recorded, such as 5s
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub(crate) delay: Moment,

    /// Record no longer than this, such as 30s or 5m; the program goes on
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Option<Moment>,

    /// Do not record children
    #[arg(long)]
    pub(crate) no_follow: bool,

    /// Smallest heap object with a life of its own; smaller ones are pooled by page
    /// [default: 4KiB, and more where those cost more than --overhead permits]
    #[arg(long, value_name = "SIZE")]
    pub(crate) min_object: Option<Size>,

    /// `never`: give the command no huge pages, so that every touch is seen at 4 KiB
    #[arg(long, value_name = "POLICY", default_value = "system")]
    pub(crate) thp: Thp,

    /// Do not preload the library that reports heap objects
    #[arg(long)]
    pub(crate) no_preload: bool,

    /// Distinguish writes from reads: `auto` where that is free; `on` also where it costs a fault per first
    /// write of a page in an interval, and splits huge pages that are written; or `off`
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) writes: Writes,

    /// How pages are seen that go within an interval: by `locks` (as the locks of mappings are asked for, and by comparing what
    /// is resident at its two ends: a page that went unseen counts as perhaps touched) or `exact` (at every system call, which
    /// makes those of all programs of the machine two to three times as slow)
    #[arg(long, value_name = "HOW", default_value = "locks")]
    pub(crate) vanish: Vanish,

    /// Samples of what each thread waits for, per second of each CPU: a rate such as `4000/s`, whatever it costs, or `off`.
    /// Their weight is time at an instruction, not a number of accesses. `pebs`, `ibs` and `spe` are samples of accesses by
    /// the processor itself, with latency and memory level; `auto` takes those where they are [default: up to 1000/s, as
    /// `--overhead` allows]
    #[arg(long, value_name = "RATE")]
    pub(crate) samples: Option<SamplesArgument>,

    /// What holds the target still between the reading and the clearing of its bits: `cgroup` (the
    /// freezer), `ptrace` (slower with many threads), or `auto`: nothing where the kernel lets both be one step
    /// (`varve doctor`: atomic clearing), else the first that works
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub(crate) hold: HoldArgument,

    /// How long the target may be held at a time, 100µs (`us` will do) to 60s. Where reading and clearing all of its memory takes longer it is held
    /// several times, for a part each: what it accesses meanwhile may stand in both intervals [default: 10ms]
    #[arg(long, value_name = "TIME")]
    pub(crate) max_hold: Option<MaxHoldArgument>,

    /// Leave out a mechanism, to show what it is for: flush, hold, page-flags, vanish, behind, protect
    #[arg(long, hide = true, value_delimiter = ',', value_parser = ablation)]
    pub(crate) without: Vec<Ablation>,

    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", required_unless_present_any = ["pid", "every", "each", "selected", "to"])]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) repeated: Box<Repeated>,
}

/// What makes the preload library one that every program finds.
pub(crate) const LISTABLE: &str = "put varve and the library into a folder that everybody can read, without spaces or colons in its path";

/// Gives the preload library the path by which every program of the target finds what it can load, or none.
///
/// # Errors
/// Why there is no such path; nothing is preloaded then.
pub(crate) fn list_library(options: &mut RecordOptions) -> Result<(), String> {
    let Some(library) = options.preload.take() else {
        return Ok(());
    };
    let listed = varve_record::listed_library(&library);
    let path = listed.map_err(|why| format!("{} is not preloaded: {why}", library.display()))?;
    options.preload = Some(path);
    Ok(())
}

/// The exit code where nothing could be recorded.
const NOTHING_RECORDED: u8 = 125;

pub(crate) fn run(arguments: &Record) -> Result<ExitCode, Failure> {
    if let Some(every) = arguments.repeated.every {
        return repeated::run(arguments, every);
    }
    if let Some(SamplesArgument::Hardware(source)) = arguments.samples
        && let Some(what) = varve_record::refusal(source)
    {
        return Err(Failure {
            what,
            hint: Some(
                "`--samples 1000/s` samples by the clock of each CPU, on any machine".into(),
            ),
            code: NOTHING_RECORDED,
        });
    }
    let mut options = resolve(arguments)?;
    let library_is_missing =
        options.preload.is_none() && !arguments.no_preload && arguments.pid.is_none();
    if arguments.pid.is_none()
        && let Err(why) = list_library(&mut options)
    {
        varve_ui::warning(format!("{why}. Objects come from the kernel's view alone"));
        varve_ui::hint(LISTABLE);
    }
    let is_part = arguments.duration.is_some() || arguments.delay.0 > Duration(0);
    if options.counts.is_some() && is_part {
        return Err(Failure::new(
            "`--backend exact` counts from the beginning of the program to its end: `--delay` and `--duration` mean nothing with it",
            Some("end the recording with Ctrl-C"),
        ));
    }
    if arguments.interval_accesses.is_some() && options.counts.is_none() {
        return Err(Failure::new(
            "only `--backend exact` counts accesses: `--interval-accesses` means nothing without it"
                .to_owned(),
            Some("give both, or `--interval TIME`".to_owned()),
        ));
    }
    if arguments.fault_budget.is_some() && arguments.backend != Backend::Fault {
        return Err(Failure::new(
            "only `--backend fault` traps accesses: `--fault-budget` means nothing without it"
                .to_owned(),
            Some("give both".to_owned()),
        ));
    }
    if arguments.max_hold.is_some() && arguments.backend != Backend::Scan {
        return Err(Failure::new(
            "only `--backend scan` can hold the target for a part of its memory: `--max-hold` means nothing with another",
            Some("leave one of the two out"),
        ));
    }
    if arguments.max_hold.is_some() && options.writes == WritesChoice::On {
        varve_ui::warning(
            "where `--writes on` protects pages, all of them are protected in one hold: `--max-hold` does not limit it",
        );
    }
    if library_is_missing && options.counts.is_none() {
        varve_ui::warning(format!(
            "{PRELOAD} was not found beside this program: objects come from the kernel's view alone"
        ));
        varve_ui::hint("put it beside the varve program, or name it in VARVE_PRELOAD");
    }
    let is_preloaded =
        options.preload.is_some() && arguments.pid.is_none() && options.counts.is_none();
    if is_preloaded && varve_record::gains_rights(&arguments.command) {
        varve_ui::warning(
            "this command gains rights by its file (setuid, setgid or capabilities), so that nothing can be preloaded: \
             objects come from the kernel's view alone",
        );
        varve_ui::hint(
            "to see its heap objects, record a copy without these bits and capabilities",
        );
    }
    if is_preloaded && let Some(why) = varve_record::why_not_loaded(&arguments.command) {
        varve_ui::warning(format!(
            "this program {why}, so that nothing is preloaded into it: its objects come from the kernel's view alone",
        ));
    }
    record_with(options, CLOSING)
}

/// Records, and puts the trace in order.
pub(super) fn record_with(options: RecordOptions, closing: Closing) -> Result<ExitCode, Failure> {
    let recorded = varve_record::record(&options);
    super::live::clear();
    finish(recorded.map_err(failure)?, closing)
}

/// What is said at the end of a recording.
#[derive(Clone, Copy)]
pub(super) struct Closing {
    /// What was recorded.
    pub(super) lines: fn(&Trace) -> Vec<String>,
    /// What reads it, as the end of a sentence.
    pub(super) next: fn(&Path) -> String,
}

const CLOSING: Closing = Closing {
    lines: super::closing::lines,
    next: |folder| format!("read it with `varve report {}`", quoted_path(folder)),
};

/// What counts every access, where that is asked for.
fn counts(arguments: &Record) -> Result<Option<CountsChoice>, Failure> {
    if arguments.backend != Backend::Exact {
        return Ok(None);
    }
    let plugin = plugin()?.ok_or(RecordError::NoPlugin(PLUGIN));
    Ok(Some(CountsChoice {
        plugin: plugin.map_err(failure)?,
        interval_accesses: arguments.interval_accesses.unwrap_or(0),
    }))
}

pub(super) fn resolve(arguments: &Record) -> Result<RecordOptions, Failure> {
    let target = match arguments.pid {
        Some(pid) => TargetChoice::Attach(Pid(pid)),
        None => TargetChoice::Command(arguments.command.clone()),
    };
    Ok(RecordOptions {
        output: match &arguments.output {
            Some(path) => arguments.writing.output(path.clone(), Existing::Refuse),
            None => arguments
                .writing
                .output(default_output(&target), Existing::Number),
        },
        target,
        interval: interval(arguments),
        overhead: arguments.overhead.0,
        follow: !arguments.no_follow,
        min_object: arguments.min_object.map_or(MIN_OBJECT, |size| size.0),
        min_object_adapts: arguments.min_object.is_none(),
        thp: match (arguments.thp, arguments.backend) {
            // Pages are trapped one by one: huge ones would only be split.
            (Thp::Never, _) | (_, Backend::Fault) => ThpPolicy::Never,
            (Thp::System, _) => ThpPolicy::System,
        },
        preload: if arguments.no_preload {
            None
        } else {
            preload()?
        },
        writes: match arguments.writes {
            Writes::Auto => WritesChoice::Auto,
            Writes::On => WritesChoice::On,
            Writes::Off => WritesChoice::Off,
        },
        vanish: match arguments.vanish {
            Vanish::Exact => VanishChoice::Exact,
            Vanish::Locks => VanishChoice::Locks,
        },
        samples: match arguments.samples {
            None => SamplesChoice::Within { rate: DEFAULT_RATE },
            Some(SamplesArgument::Off) => SamplesChoice::Off,
            Some(SamplesArgument::Clock(rate)) => SamplesChoice::Clock { rate },
            Some(SamplesArgument::Auto) => SamplesChoice::Auto { rate: DEFAULT_RATE },
            Some(SamplesArgument::Hardware(source)) => SamplesChoice::Hardware {
                source,
                rate: DEFAULT_RATE,
            },
        },
        hold: match arguments.hold {
            HoldArgument::Auto => HoldChoice::Auto,
            HoldArgument::Cgroup => HoldChoice::Cgroup,
            HoldArgument::Ptrace => HoldChoice::Ptrace,
        },
        max_hold: arguments.max_hold.map_or(MAX_HOLD, |most| most.0),
        traps: match (arguments.backend, arguments.fault_budget) {
            (Backend::Fault, None) => TrapsChoice::All,
            (Backend::Fault, Some(share)) => TrapsChoice::Budget(share.0),
            _ => TrapsChoice::Off,
        },
        counts: counts(arguments)?,
        operations: None,
        pages: true,
        delay: arguments.delay.0,
        show: shows(arguments).then_some(super::live::show as varve_record::Show),
        duration: arguments.duration.map(|d| d.0),
        without: arguments.without.clone(),
        tell: |sentence| varve_ui::note(sentence),
    })
}

/// How long intervals are. What trapped accesses cost grows with the program's own progress, not with the number of
/// intervals, so that a budget would only make these longer.
fn interval(arguments: &Record) -> IntervalChoice {
    match (arguments.interval, arguments.backend) {
        (Some(IntervalArgument(length)), _) => IntervalChoice::Fixed(length),
        (None, Backend::Fault) => IntervalChoice::Default(SHORT_INTERVAL),
        (None, _) => IntervalChoice::Auto {
            overhead: arguments.overhead.0,
        },
    }
}

/// Whether a line says how the recording goes: where a person looks at it, and the program does not write to the same
/// terminal.
fn shows(arguments: &Record) -> bool {
    let is_free = arguments.pid.is_some() || !std::io::stdout().is_terminal();
    is_free && std::io::stderr().is_terminal()
}

fn default_output(target: &TargetChoice) -> PathBuf {
    let name = match target {
        TargetChoice::Command(words) => words
            .first()
            .and_then(|w| Path::new(w).file_name())
            .map_or_else(|| "trace".into(), |n| n.to_string_lossy().into_owned()),
        TargetChoice::Attach(pid) => format!("pid-{pid}"),
    };
    PathBuf::from(format!("{name}.varve"))
}

pub(super) fn failure(error: RecordError) -> Failure {
    let (what, hint) = error.message();
    Failure {
        what,
        hint,
        code: error.exit_code(),
    }
}
