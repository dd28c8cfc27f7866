//! `varve record`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use varve_model::Pid;
use varve_record::{
    ExactOptions, HoldChoice, RecordError, RecordOptions, SamplesChoice, Summary, TargetChoice,
    TrapsChoice, WritesChoice,
};
use varve_sys::ThpPolicy;
use varve_trace::IntervalChoice;

use super::Failure;
use crate::arguments::{
    BackendArgument, HoldArgument, IntervalArgument, Record, SamplesArgument, Thp, USUAL_RATE,
    Writes,
};

/// The preload library's file name.
const AGENT: &str = "libvarve_agent.so";
/// The file name of the emulator's plugin.
const PLUGIN: &str = "libvarve_exact.so";

/// The exit code where nothing could be recorded.
const NOTHING_RECORDED: u8 = 125;

pub(crate) fn run(arguments: &Record) -> Result<ExitCode, Failure> {
    if let SamplesArgument::Hardware(source) = arguments.samples
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
    let mut options = resolve(arguments);
    if arguments.backend == BackendArgument::Exact {
        return exact(arguments, &options);
    }
    if arguments.interval_accesses.is_some() {
        return Err(Failure::new(
            "only `--backend exact` counts accesses: `--interval-accesses` means nothing without it"
                .to_owned(),
            Some("give both, or `--interval TIME`".to_owned()),
        ));
    }
    if arguments.fault_budget.is_some() && arguments.backend != BackendArgument::Fault {
        return Err(Failure::new(
            "only `--backend fault` traps accesses: `--fault-budget` means nothing without it"
                .to_owned(),
            Some("give both".to_owned()),
        ));
    }
    if arguments.hold == HoldArgument::Auto {
        let (hold, why) = HoldChoice::detect(&options.target);
        if let Some(why) = why {
            let (what, hint) = why.told();
            varve_ui::warning(format!("the target is held by ptrace: {what}"));
            if let Some(hint) = hint {
                varve_ui::hint(hint);
            }
        }
        options.hold = hold;
    }
    if options.preload.is_none() && !arguments.no_preload && arguments.pid.is_none() {
        varve_ui::warning(format!(
            "{AGENT} was not found beside this program: objects come from the kernel's view alone"
        ));
        varve_ui::hint("put it beside the varve program, or name it in VARVE_AGENT");
    }
    let is_preloaded = options.preload.is_some() && arguments.pid.is_none();
    if is_preloaded && varve_record::gains_rights(&arguments.command) {
        varve_ui::warning(
            "this command changes its user or group (setuid), so that nothing can be preloaded: \
             objects come from the kernel's view alone",
        );
        varve_ui::hint("to see its heap objects, record a copy without the setuid and setgid bits");
    }
    let summary = varve_record::record(&options).map_err(failure)?;
    finish(&options.output, summary)
}

fn exact(arguments: &Record, options: &RecordOptions) -> Result<ExitCode, Failure> {
    let plugin = plugin().ok_or(RecordError::NoPlugin(PLUGIN));
    let exact = ExactOptions {
        plugin: plugin.map_err(failure)?,
        interval_accesses: arguments.interval_accesses.unwrap_or(0),
    };
    let summary = varve_record::record_exact(options, &exact).map_err(failure)?;
    finish(&options.output, summary)
}

fn resolve(arguments: &Record) -> RecordOptions {
    let target = match arguments.pid {
        Some(pid) => TargetChoice::Attach(Pid(pid)),
        None => TargetChoice::Command(arguments.command.clone()),
    };
    RecordOptions {
        output: arguments
            .output
            .clone()
            .unwrap_or_else(|| default_output(&target)),
        target,
        interval: match arguments.interval {
            IntervalArgument::Fixed(length) => IntervalChoice::Fixed(length),
            IntervalArgument::Auto => IntervalChoice::Auto {
                overhead: arguments.overhead.0,
            },
        },
        follow: !arguments.no_follow,
        min_object: arguments.min_object.0,
        thp: match (arguments.thp, arguments.backend) {
            // Pages are trapped one by one: huge ones would only be split.
            (Thp::Never, _) | (_, BackendArgument::Fault) => ThpPolicy::Never,
            (Thp::System, _) => ThpPolicy::System,
        },
        preload: if arguments.no_preload { None } else { agent() },
        writes: match arguments.writes {
            Writes::Auto => WritesChoice::Auto,
            Writes::On => WritesChoice::On,
            Writes::Off => WritesChoice::Off,
        },
        samples: match arguments.samples {
            SamplesArgument::Off => SamplesChoice::Off,
            SamplesArgument::Clock(rate) => SamplesChoice::Clock { rate },
            SamplesArgument::Auto => SamplesChoice::Auto { rate: USUAL_RATE },
            SamplesArgument::Hardware(source) => SamplesChoice::Hardware {
                source,
                rate: USUAL_RATE,
            },
        },
        hold: match arguments.hold {
            HoldArgument::Auto | HoldArgument::Cgroup => HoldChoice::Cgroup,
            HoldArgument::Ptrace => HoldChoice::Ptrace,
        },
        traps: match (arguments.backend, arguments.fault_budget) {
            (BackendArgument::Fault, None) => TrapsChoice::All,
            (BackendArgument::Fault, Some(share)) => TrapsChoice::Budget(share.0),
            _ => TrapsChoice::Off,
        },
        without: arguments.without.clone(),
    }
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

/// The preload library.
pub(crate) fn agent() -> Option<PathBuf> {
    beside("VARVE_AGENT", AGENT)
}

/// The emulator's plugin.
pub(crate) fn plugin() -> Option<PathBuf> {
    beside("VARVE_EXACT", PLUGIN)
}

/// A library: named by the caller, beside the program, or in the library folder of an
/// installation.
fn beside(variable: &str, name: &str) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(variable) {
        return Some(named.into());
    }
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    [folder.join(name), folder.join("../lib/varve").join(name)]
        .into_iter()
        .find(|p| p.is_file())
}

pub(super) fn failure(error: RecordError) -> Failure {
    let (what, hint) = error.told();
    Failure {
        what,
        hint,
        code: error.exit_code(),
    }
}

fn finish(folder: &Path, summary: Summary) -> Result<ExitCode, Failure> {
    let code = summary.exit_code.map_or(0, |c| c as u8);
    if let Some(trouble) = &summary.trouble {
        let (what, hint) = trouble.told();
        varve_ui::error(format!("the recording ended early: {what}"));
        if let Some(hint) = hint {
            varve_ui::hint(hint);
        }
    }
    let ordered =
        super::recover::put_in_order(folder, varve_trace::State::Finished, summary.manifest);
    if let Err(failure) = ordered {
        // The target has run and its code counts; what was written can be put in order later.
        if summary.trouble.is_none() {
            varve_ui::error(format!("the trace is not in order yet: {}", failure.what));
            varve_ui::hint(
                failure
                    .hint
                    .unwrap_or_else(|| format!("`varve report {}` tries again", folder.display())),
            );
        }
        return Ok(ExitCode::from(code));
    }
    varve_ui::note(format!(
        "wrote {0}; read it with `varve report {0}`",
        folder.display()
    ));
    Ok(ExitCode::from(code))
}
