//! The command line: each flag, its parser and its help in one place.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use varve_analyse::Section;
use varve_model::{Backend, Bytes, Duration, ImportFormat, ObjectKind};
use varve_record::Ablation;
use varve_trace::{Access, Existing, Output};

/// See what a Linux program does with its memory: every page, over time, down to the object, thread
/// and line of code.
#[derive(Debug, Parser)]
#[command(
    name = "varve",
    version,
    arg_required_else_help = true,
    infer_subcommands = true,
    after_help = "\
To begin:
  varve doctor                 see what this machine can record
  varve record -- ./program    record a program, to program.varve
  varve report program.varve   read what it did with its memory"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Record every page that a program touches
    Record(Record),
    /// Show what a recording holds
    Report(Report),
    /// Write a trace's accesses for another tool
    Export(Export),
    /// Make a trace of what another tool recorded
    Import(Import),
    /// Put the trace of a killed recorder in order
    Recover(Recover),
    /// Tell what this machine can record, and how to enable the rest
    Doctor(Doctor),
    #[command(hide = true)]
    Watchdog {
        /// The recorder, for the watchdog that waits for the first to fail
        #[arg(long)]
        second_of: Option<u32>,
    },
}

/// The command line that was meant where the command to record stands without `--` before it.
pub(crate) fn without_dashes(error: &clap::Error, words: &[String]) -> Option<String> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let is_record = |word: &String| word.len() >= 3 && "record".starts_with(word.as_str());
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let is_meant = error.kind() == ErrorKind::UnknownArgument
        && words.get(1).is_some_and(is_record)
        && !wrong.starts_with('-');
    let at = words.iter().position(|word| word == wrong)?;
    is_meant.then(|| {
        let (options, command) = words.split_at(at);
        format!("varve {} -- {}", options[1..].join(" "), command.join(" "))
    })
}

/// Whether `--section help` was typed, which no section is called.
pub(crate) fn asks_for_sections(error: &clap::Error, words: &[String]) -> bool {
    let is_asked = |pair: &[String]| pair[0] == "--section" && pair[1] == "help";
    error.kind() == clap::error::ErrorKind::ValueValidation
        && (words.windows(2).any(is_asked) || words.iter().any(|word| word == "--section=help"))
}

/// How a new trace is written.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Writing {
    /// Replace an earlier trace of that name
    #[arg(short, long)]
    pub(crate) force: bool,

    /// Let everybody on this machine read the trace, which holds command lines and addresses
    #[arg(long)]
    pub(crate) share: bool,
}

impl Writing {
    /// The folder to write, where `existing` says what is done about one that is there.
    pub(crate) fn output(self, path: PathBuf, existing: Existing) -> Output {
        Output {
            path,
            existing: match self.force {
                true => Existing::Replace,
                false => existing,
            },
            access: match self.share {
                true => Access::Shared,
                false => Access::Private,
            },
        }
    }
}

#[derive(Debug, Args)]
#[command(
    override_usage = "varve record [OPTIONS] -- <COMMAND>...\n       varve record [OPTIONS] -p <PID>"
)]
#[command(after_help = "\
Examples:
  varve record -- ./solver input.dat       record a command, to solver.varve
  varve record -p 1234 -o db.varve         record a running process until Ctrl-C
  varve record --interval auto -- ./server choose the interval so that the cost stays under 3 %
  varve record --backend exact -- ./prog   count every access, many times slower

Signals to the recorder: SIGINT (Ctrl-C) ends the recording, SIGUSR1 pauses it and has it go on.
The exit code is the command's own; 125 where nothing could be recorded, 126 and 127 as in a shell.")]
pub(crate) struct Record {
    /// Trace folder to write [default: NAME.varve, or NAME-2.varve and so on where that is there already]
    #[arg(short, long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) writing: Writing,

    /// Record a process that runs already, until it ends or Ctrl-C
    #[arg(short, long, value_name = "PID", conflicts_with = "command")]
    pub(crate) pid: Option<u32>,

    /// How touches are found: `scan` (accessed bits, at full speed), `fault` (besides, the first access to each
    /// page in an interval traps, which tells its exact address, thread, CPU, time, instruction and kind: many
    /// times slower), or `exact` (every access counted by page, thread and kind, in an emulator: many times slower)
    #[arg(long, value_name = "HOW", default_value = "scan", value_parser = backends())]
    pub(crate) backend: Backend,

    /// With `--backend fault`: trap accesses to as many pages, chosen at random, as cost this share of the run time
    #[arg(long, value_name = "SHARE")]
    pub(crate) fault_budget: Option<Share>,

    /// With `--backend exact`: begin an interval every so many accesses [default: the whole run is one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 60))]
    pub(crate) interval_accesses: Option<u64>,

    /// Length of an interval: 10ms to 60m, or `auto`
    #[arg(long, value_name = "TIME", default_value = "50ms")]
    pub(crate) interval: IntervalArgument,

    /// Cost that `--interval auto` keeps under, as a share of the run time
    #[arg(long, value_name = "SHARE", default_value = "3%")]
    pub(crate) overhead: Share,

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
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub(crate) min_object: Size,

    /// `never`: give the command no huge pages, so that every touch is seen at 4 KiB
    #[arg(long, value_name = "POLICY", default_value = "system")]
    pub(crate) thp: Thp,

    /// Do not preload the library that tells heap objects apart
    #[arg(long)]
    pub(crate) no_preload: bool,

    /// Tell writes from reads: `auto` where that is free; `on` also where it costs a fault per first
    /// write of a page in an interval, and splits huge pages that are written; or `off`
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) writes: Writes,

    /// Samples of what each thread waits for, per second of each CPU: a rate such as `1000/s`, or `off`. Their weight is
    /// time at an instruction, not a number of accesses. `pebs`, `ibs` and `spe` are samples of accesses by the processor
    /// itself, with latency and memory level; `auto` takes those where they are, else `1000/s`
    #[arg(long, value_name = "RATE", default_value = "1000/s")]
    pub(crate) samples: SamplesArgument,

    /// What holds the target still between the reading and the clearing of its bits: `cgroup` (the
    /// freezer), `ptrace` (slower with many threads), or `auto`: the first that works
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub(crate) hold: HoldArgument,

    /// Leave out a mechanism, to show what it is for: flush, hold, page-flags, vanish, behind, arm
    #[arg(long, hide = true, value_delimiter = ',', value_parser = ablation)]
    pub(crate) without: Vec<Ablation>,

    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "pid")]
    pub(crate) command: Vec<OsString>,
}

/// What of a trace is shown.
#[derive(Clone, Debug, Args)]
pub(crate) struct Filter {
    /// Only objects of this name; `*` and `?` stand for letters
    #[arg(long, value_name = "NAME")]
    pub(crate) object: Option<String>,

    /// Only objects of this kind
    #[arg(long, value_name = "KIND", value_parser = object_kind)]
    pub(crate) kind: Option<ObjectKind>,

    /// Only this process
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,

    /// Only this thread, by number or name; samples, page faults and counts name threads, touched pages do not
    #[arg(long, value_name = "THREAD")]
    pub(crate) thread: Option<String>,

    /// Only from this time on: seconds since the beginning, or `300ms`
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<Moment>,

    /// Only up to this time
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<Moment>,
}

impl Filter {
    /// Whether nothing is left out.
    pub(crate) const fn is_all(&self) -> bool {
        self.object.is_none()
            && self.kind.is_none()
            && self.pid.is_none()
            && self.thread.is_none()
            && self.from.is_none()
            && self.to.is_none()
    }
}

/// A time since the beginning of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(pub(crate) Duration);

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "give seconds such as 1.5, or a time such as 300ms, 2s or 1m".to_owned();
        let (number, unit) = split_unit(text);
        let factor = match unit {
            "ms" => 1e6,
            "" | "s" => 1e9,
            "m" | "min" => 60e9,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        Ok(Moment(Duration((number * factor) as u64)))
    }
}

fn object_kind(word: &str) -> Result<ObjectKind, String> {
    let kinds: Vec<&str> = ObjectKind::ALL.iter().map(|k| k.as_str()).collect();
    word.parse()
        .map_err(|_| format!("the kinds are {}", kinds.join(", ")))
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  varve report solver.varve                              what it used, what is hot, what to do
  varve report solver.varve --section objects,sharing    more of these
  varve report solver.varve --section help               what there is
  varve report solver.varve --html page.html             the map of time and addresses, for a browser
  varve report solver.varve --json | jq .findings")]
pub(crate) struct Report {
    /// Trace folder, as `varve record` wrote it
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,

    /// Show these sections in full; `help` lists their names
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        conflicts_with = "all"
    )]
    pub(crate) section: Vec<Section>,

    #[command(flatten)]
    pub(crate) filter: Filter,

    /// Give advice for this kind of machine too, where the trace is of another
    #[arg(long = "for", value_name = "MACHINE")]
    pub(crate) advice: Option<MachineArgument>,

    /// Show every section in full
    #[arg(long)]
    pub(crate) all: bool,

    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,

    /// Write one offline page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Write a picture of time x address, for papers
    #[arg(long, value_name = "FILE")]
    pub(crate) png: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  varve import perf.data -o solver.varve              samples of `perf mem record`
  perf script --show-mmap-events > samples.txt        the same as text, with objects
  varve import samples.txt -o solver.varve
  varve import mmap_trace_bfs.csv munmap_trace_bfs.csv memory_trace_bfs.csv -o bfs.varve

Formats (docs/import.md), told apart by what the files hold:
  perf-data    perf.data with addresses, such as of `perf mem record`; also of DAMON's tracepoint
  perf-script  the text of `perf script`
  mitos        samples of Mitos and MemAxes, of both generations
  iiswc22      memory_trace, mmap_trace and munmap_trace of the IISWC 2022 artifact
  damon        damo's records: JSON, compressed JSON, text of `perf script`
  lackey       valgrind --tool=lackey --trace-mem=yes
  moca         Moca's trace, and its structs.csv
  tabarnac     NAME.full.page.csv, NAME.structs.csv and NAME.stackmap.csv

What a format does not tell, the reports show as absent.")]
pub(crate) struct Import {
    /// Files of one tool
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Trace folder to write
    #[arg(short, long, value_name = "FOLDER")]
    pub(crate) output: PathBuf,

    #[command(flatten)]
    pub(crate) writing: Writing,

    /// Take the files for this format, whatever they look like
    #[arg(long, value_name = "FORMAT", value_parser = import_format)]
    pub(crate) format: Option<ImportFormat>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A trace can be read without this too. It is quicker afterwards, and counts of `--backend exact` that the recorder had not
written stay in it for good.")]
pub(crate) struct Recover {
    /// Trace folder
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  varve export solver.varve --format csv -o -            every access, to standard output
  varve export solver.varve --format firefox -o p.json   for https://profiler.firefox.com
  varve export solver.varve --format folded -o - | flamegraph.pl > flames.svg

Samples are written where the trace has any, else page faults, else touched pages; of `--backend fault`
the accesses that faulted or were trapped.

The exit code is 0 where all was written; 1 where the trace cannot be read, any table of it is damaged, or the file cannot be
written; 2 where the arguments are wrong.")]
pub(crate) struct Export {
    /// Trace folder
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,

    #[command(flatten)]
    pub(crate) filter: Filter,

    /// What to write
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: ExportArgument,

    /// File to write; `-` for standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// `varve export --format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ExportArgument {
    /// Lines like those of `perf script` of a recording of `perf mem`
    PerfScript,
    /// JSON of the Firefox Profiler
    Firefox,
    /// JSON of speedscope
    Speedscope,
    /// Folded stacks, for flame graphs
    Folded,
    /// Comma-separated values
    Csv,
}

impl ExportArgument {
    pub(crate) const fn resolved(self) -> varve_report::export::ExportFormat {
        use varve_report::export::ExportFormat;
        match self {
            ExportArgument::PerfScript => ExportFormat::PerfScript,
            ExportArgument::Firefox => ExportFormat::Firefox,
            ExportArgument::Speedscope => ExportFormat::Speedscope,
            ExportArgument::Folded => ExportFormat::Folded,
            ExportArgument::Csv => ExportFormat::Csv,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,

    /// Remove what recorders that were killed left, and let go what they held
    #[arg(long)]
    pub(crate) clean: bool,
}

/// `--interval`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum IntervalArgument {
    Fixed(Duration),
    Auto,
}

const MIN_MS: f64 = 10.0;
const MAX_MS: f64 = 3_600_000.0;

impl FromStr for IntervalArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(IntervalArgument::Auto);
        }
        let (number, unit) = split_unit(text);
        let factor = match unit {
            "ms" => 1.0,
            "s" => 1e3,
            "m" | "min" => 60e3,
            _ => return Err("give a time such as 50ms, 2s or 5m, or `auto`".into()),
        };
        let ms: f64 = number.parse::<f64>().map_err(|e| e.to_string())? * factor;
        if !(MIN_MS..=MAX_MS).contains(&ms) {
            return Err("an interval is 10ms at least and 60m at most".into());
        }
        Ok(IntervalArgument::Fixed(Duration((ms * 1e6) as u64)))
    }
}

/// A share, given as `3%` or `0.03`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share(pub(crate) f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let number: f64 = number
            .parse()
            .map_err(|_| "give a share such as 3%".to_owned())?;
        let share = match unit {
            "%" => number / 100.0,
            "" => number,
            _ => return Err("give a share such as 3%".into()),
        };
        if share > 0.0 && share <= 1.0 {
            Ok(Share(share))
        } else {
            Err("a share lies above 0 % and is 100 % at most".into())
        }
    }
}

/// A number of bytes, given as `4096`, `4k`, `4KiB`, `2M` or `1GiB`; units are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) Bytes);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            _ => return Err("give a size such as 4096, 64KiB or 2MiB".into()),
        };
        let number: u64 = number
            .parse()
            .map_err(|_| "give a whole number of bytes, KiB, MiB or GiB".to_owned())?;
        let bytes = number.checked_mul(1 << shift).filter(|b| *b > 0);
        bytes
            .map(|b| Size(Bytes(b)))
            .ok_or_else(|| "that is not a size that memory can have".into())
    }
}

/// `--samples`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SamplesArgument {
    /// None
    Off,
    /// So many per second of each CPU
    Clock(u32),
    /// What the processor itself samples, where it does, and else the usual rate
    Auto,
    /// What the processor itself samples
    Hardware(varve_model::SampleSource),
}

/// The default rate, and that of `auto`.
pub(crate) const USUAL_RATE: u32 = 1000;

/// Above this a CPU does little else.
const HIGHEST_RATE: u32 = 20_000;

impl FromStr for SamplesArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => return Ok(SamplesArgument::Off),
            "auto" => return Ok(SamplesArgument::Auto),
            "pebs" | "ibs" | "spe" => {
                let source = text.parse().map_err(|e| format!("{e}"))?;
                return Ok(SamplesArgument::Hardware(source));
            }
            _ => {}
        }
        let number = text.strip_suffix("/s").unwrap_or(text);
        match number.parse() {
            Ok(rate @ 1..=HIGHEST_RATE) => Ok(SamplesArgument::Clock(rate)),
            _ => Err(format!(
                "give a rate from 1/s to {HIGHEST_RATE}/s, `auto`, `pebs`, `ibs`, `spe` or `off`"
            )),
        }
    }
}

/// `--for`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MachineArgument {
    /// Several memory nodes
    Numa,
}

/// `--thp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Thp {
    /// As the system has it
    System,
    /// No huge pages
    Never,
}

/// `--hold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HoldArgument {
    /// A freezer of cgroup v2 where one can be used, else ptrace
    Auto,
    /// A freezer or nothing
    Cgroup,
    /// Every thread is stopped
    Ptrace,
}

/// `--writes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Writes {
    /// Where the kernel has soft-dirty bits
    Auto,
    /// Also through userfaultfd
    On,
    /// Nowhere
    Off,
}

/// What a recording can be made with.
fn backends() -> impl TypedValueParser<Value = Backend> {
    let help = |backend| match backend {
        Backend::Scan => "Accessed bits",
        Backend::Fault => "The first access to each page in an interval trapped",
        Backend::Exact => "Every access counted",
        Backend::Import(_) => "",
    };
    let values = Backend::RECORDERS.map(|b| PossibleValue::new(b.as_str()).help(help(b)));
    PossibleValuesParser::new(values).try_map(|word| word.parse::<Backend>())
}

fn import_format(word: &str) -> Result<ImportFormat, String> {
    word.parse().map_err(|_| {
        let words: Vec<&str> = ImportFormat::ALL.iter().map(|f| f.as_str()).collect();
        format!("one of {}", words.join(", "))
    })
}

fn ablation(word: &str) -> Result<Ablation, String> {
    Ablation::from_name(word)
        .ok_or_else(|| "one of flush, hold, page-flags, vanish, behind, arm".to_owned())
}

fn split_unit(text: &str) -> (&str, &str) {
    let at = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    (number, unit.trim())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_command_without_dashes_is_understood() {
        let meant = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let error = Arguments::try_parse_from(&words).err();
            error.and_then(|e| without_dashes(&e, &words))
        };
        let with = |text: &str| Some(text.to_owned());
        assert_eq!(meant("varve record ls"), with("varve record -- ls"));
        assert_eq!(
            meant("varve record -o t.varve ls -l"),
            with("varve record -o t.varve -- ls -l")
        );
        assert_eq!(meant("varve record --nonsense"), None);
        assert_eq!(meant("varve report t.varve u"), None);
    }

    #[test]
    fn times_shares_and_sizes_are_read() {
        let ms = |n: u64| Ok(IntervalArgument::Fixed(Duration(n * 1_000_000)));
        assert_eq!("50ms".parse::<IntervalArgument>(), ms(50));
        assert_eq!("1.5s".parse::<IntervalArgument>(), ms(1500));
        assert_eq!("2m".parse::<IntervalArgument>(), ms(120_000));
        assert!("9ms".parse::<IntervalArgument>().is_err());
        assert!("50".parse::<IntervalArgument>().is_err());
        let moment = |ms: u64| Ok(Moment(Duration(ms * 1_000_000)));
        assert_eq!("1.5".parse::<Moment>(), moment(1500));
        assert_eq!("300ms".parse::<Moment>(), moment(300));
        assert!("-1".parse::<Moment>().is_err() && "1h".parse::<Moment>().is_err());
        assert_eq!("3%".parse(), Ok(Share(0.03)));
        assert_eq!("0.03".parse(), Ok(Share(0.03)));
        assert!("0".parse::<Share>().is_err());
        assert_eq!("4KiB".parse(), Ok(Size(Bytes(4096))));
        assert_eq!("2M".parse(), Ok(Size(Bytes(2 << 20))));
        assert!("99999999999999999999G".parse::<Size>().is_err());
        assert!("x".parse::<Size>().is_err());
        assert_eq!("off".parse(), Ok(SamplesArgument::Off));
        assert_eq!("4000/s".parse(), Ok(SamplesArgument::Clock(4000)));
        assert_eq!("50".parse(), Ok(SamplesArgument::Clock(50)));
        assert_eq!("auto".parse(), Ok(SamplesArgument::Auto));
        let ibs = SamplesArgument::Hardware(varve_model::SampleSource::Ibs);
        assert_eq!("ibs".parse(), Ok(ibs));
        assert!("0/s".parse::<SamplesArgument>().is_err());
        assert!("90000/s".parse::<SamplesArgument>().is_err());
    }
}
