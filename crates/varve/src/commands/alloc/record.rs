//! `varve alloc record`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, ValueEnum};
use varve_analyse::format;
use varve_model::Bytes;
use varve_record::{OperationsChoice, OwnAllocator, RecordOptions, own_allocator};
use varve_report::quoted_path;
use varve_trace::Trace;

use super::super::record::{self, Closing, SamplesArgument};
use super::Failure;
use super::allocators;
use crate::arguments::{Arguments, Command, Writing};
use crate::values::{Share, Size, process};

#[derive(Debug, Args)]
#[command(
    override_usage = "varve alloc record [OPTIONS] -- <COMMAND>...\n       varve alloc record [OPTIONS] -p <PID>"
)]
#[command(after_help = "\
A command's operations are counted by a library in its process, at some nanoseconds each. Of a process that runs already, and of a command that has its \
allocator in itself, programs in the kernel count them (uprobes): each operation takes microseconds longer then, and how many is said before.

Every operation is counted, and one in so many is timed. System calls and page faults within operations are seen by programs in \
the kernel, which make the system calls of all programs of the machine a little slower while it is recorded; the report says by how much.")]
pub(crate) struct AllocRecord {
    /// Trace folder to write [default: NAME.varve, or NAME-2.varve and so on where that is there already]
    #[arg(short, long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) writing: Writing,

    /// Record a process that runs already, until it ends or Ctrl-C; it goes on
    #[arg(short, long, value_name = "PID", conflicts_with_all = ["command", "allocator"], value_parser = process)]
    pub(crate) pid: Option<u32>,

    /// Run the command with this allocator instead of its own: jemalloc, tcmalloc, mimalloc, tbb, scudo, snmalloc, rpmalloc, or
    /// the path of a library
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) allocator: Option<String>,

    /// `off`: record allocator operations alone, without pages, objects and samples
    #[arg(long, value_name = "WHEN", default_value = "on")]
    pub(crate) pages: Pages,

    /// Time one operation in so many, on average; 1: all
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) time_every: u32,

    /// Report one block, with its call stack and its end, to so many bytes of allocations, on average; `off`: of none
    #[arg(long, value_name = "BYTES", default_value = "512KiB", value_parser = sampling)]
    pub(crate) sample_every: Bytes,

    /// How much longer the program may take for its pages and samples: intervals, from 50ms up, and the rate of samples are
    /// chosen by what they are measured to cost
    #[arg(long, value_name = "SHARE", default_value = "5%")]
    pub(crate) overhead: Share,

    /// Samples of what each thread waits for, per second of each CPU: a rate such as `4000/s`, whatever it costs, or `off`
    /// [default: up to 1000/s, as `--overhead` allows]
    #[arg(long, value_name = "RATE")]
    pub(crate) samples: Option<SamplesArgument>,

    /// Do not record children
    #[arg(long)]
    pub(crate) no_follow: bool,

    /// Record no longer than this, such as 30s or 5m; the program goes on
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Option<String>,

    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "pid")]
    pub(crate) command: Vec<OsString>,
}

/// Bytes from one sampled block to the next; `off`: none is sampled.
fn sampling(text: &str) -> Result<Bytes, String> {
    match text {
        "off" => Ok(Bytes(0)),
        _ => text.parse::<Size>().map(|size| size.0),
    }
}

/// Whether pages are recorded too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pages {
    On,
    Off,
}

pub(super) fn run(arguments: &AllocRecord) -> Result<ExitCode, Failure> {
    let options = resolve(arguments)?;
    record::record_with(options, CLOSING)
}

/// What is said at the end.
const CLOSING: Closing = Closing {
    lines,
    next: |folder| format!("read it with `varve alloc report {}`", quoted_path(folder)),
};

/// The verdict, and what it rests on.
fn lines(trace: &Trace) -> Vec<String> {
    match super::judge(trace, None) {
        Ok(Some(judged)) => {
            let mut lines = vec![judged.verdict().sentence.clone()];
            let about = judged.trace();
            lines.extend(about.why_uncounted().map(str::to_owned));
            let said = judged.counted().and_then(|of| of.allocators_diagnosis());
            let said = said.map(|d| d.id);
            let reasons = judged.diagnoses().iter().filter(|d| Some(d.id) != said);
            lines.extend(reasons.map(|d| format!("also: {}", d.title)));
            let seeming = judged.undecided().iter();
            lines.extend(
                seeming.map(|d| format!("perhaps: {} (the run is too short to say so)", d.title)),
            );
            let (plain, with) = (about.plain_call_ns, about.call_ns);
            if let Some(longer) = about.probe_ns {
                lines.push(format!(
                    "cost: each allocator operation took {} longer",
                    format::duration(longer)
                ));
            }
            lines.push(format!(
                "cost: a system call of any program on this machine took {} while operations were recorded, {} before",
                format::duration(with),
                format::duration(plain)
            ));
            lines
        }
        // What cannot be read is reported by `varve alloc report`.
        _ => Vec::new(),
    }
}

/// The options of `varve record` for this command, and those of its own.
fn resolve(arguments: &AllocRecord) -> Result<RecordOptions, Failure> {
    let mut line: Vec<OsString> = vec!["varve".into(), "record".into()];
    if let Some(output) = &arguments.output {
        line.extend(["--output".into(), output.into()]);
    }
    if arguments.writing.force {
        line.push("--force".into());
    }
    if arguments.writing.share {
        line.push("--share".into());
    }
    if arguments.no_follow {
        line.push("--no-follow".into());
    }
    if let Some(duration) = &arguments.duration {
        line.extend(["--duration".into(), duration.into()]);
    }
    match arguments.pid {
        Some(pid) => line.extend(["--pid".into(), pid.to_string().into()]),
        None => {
            line.push("--".into());
            line.extend(arguments.command.iter().cloned());
        }
    }
    let parsed = Arguments::try_parse_from(line);
    let Command::Record(mut plain) = parsed.unwrap_or_else(|error| error.exit()).command else {
        return Err(Failure::new("this is no command to record", None::<String>));
    };
    plain.overhead = arguments.overhead;
    plain.samples = arguments.samples;
    let mut options = record::resolve(&plain)?;
    let allocator = match &arguments.allocator {
        Some(text) => allocators::resolve(text)?,
        None => None,
    };
    let probes = match arguments.pid {
        Some(_) => true,
        None => has_own_allocator(arguments)?,
    };
    options.operations = Some(OperationsChoice {
        every: arguments.time_every,
        sample_bytes: arguments.sample_every,
        allocator,
        probes,
    });
    options.pages = arguments.pages == Pages::On;
    if probes {
        return Ok(options);
    }
    if options.preload.is_none() {
        return Err(Failure {
            what: format!(
                "{} was not found beside this program: nobody can count operations without it",
                crate::libraries::PRELOAD
            ),
            hint: Some("put it beside the varve program, or name it in VARVE_PRELOAD".into()),
            code: 125,
        });
    }
    record::list_library(&mut options).map_err(|what| Failure {
        what,
        hint: Some(record::LISTABLE.to_owned()),
        code: 125,
    })?;
    if let Some(why) = varve_record::why_not_loaded(&arguments.command) {
        return Err(Failure {
            what: format!(
                "this program {why}, so that the library that counts allocator operations is not loaded into it"
            ),
            hint: Some("its pages are recorded all the same: `varve record`".into()),
            code: 125,
        });
    }
    if varve_record::gains_rights(&arguments.command) {
        return Err(Failure {
            what: "this command gains rights by its file (setuid, setgid or capabilities), so that nothing can be preloaded and its operations cannot be counted".into(),
            hint: Some("record a copy without these bits and capabilities".into()),
            code: 125,
        });
    }
    Ok(options)
}

/// Whether the command has its allocator in itself, so that probes have to count.
fn has_own_allocator(arguments: &AllocRecord) -> Result<bool, Failure> {
    match own_allocator(&arguments.command) {
        OwnAllocator::No => Ok(false),
        OwnAllocator::Yes if arguments.allocator.is_some() => Err(Failure {
            what: "this command has its allocator in itself: no other one can be put in its place"
                .into(),
            hint: Some("leave `--allocator` out".into()),
            code: 125,
        }),
        OwnAllocator::Yes => Ok(true),
        OwnAllocator::Nameless => {
            varve_ui::warning(
                "this command loads no libraries and has no symbols: if it has an allocator in itself, that cannot be found, and its operations are not counted",
            );
            varve_ui::hint(
                "use one that was linked without -s, or stripped of debug information alone (strip --strip-debug)",
            );
            Ok(false)
        }
    }
}
