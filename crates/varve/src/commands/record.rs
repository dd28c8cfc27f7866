//! `varve record`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use varve_model::{Backend, Duration, Pid};
use varve_record::{
    CountsChoice, HoldChoice, RecordError, RecordOptions, SamplesChoice, Summary, TargetChoice,
    TrapsChoice, WritesChoice,
};
use varve_report::quoted_path;
use varve_sys::ThpPolicy;
use varve_trace::{Destination, Existing, IntervalChoice, Moved, State, Trace, TraceFolder};

use super::{Failure, closing};
use crate::arguments::{
    HoldArgument, IntervalArgument, Record, SamplesArgument, Thp, USUAL_RATE, Writes,
};
use crate::libraries::{PLUGIN, PRELOAD, plugin, preload};

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
    let mut options = resolve(arguments)?;
    let library_is_missing =
        options.preload.is_none() && !arguments.no_preload && arguments.pid.is_none();
    if let Some(library) = options.preload.take_if(|_| arguments.pid.is_none()) {
        match varve_record::reachable_library(&library) {
            Ok(path) => options.preload = Some(path),
            Err(why) => {
                varve_ui::warning(format!(
                    "{} is not preloaded: {why}. Objects come from the kernel's view alone",
                    library.display()
                ));
                varve_ui::hint(
                    "put varve and the library into a folder that everybody can read, without spaces or colons in its path",
                );
            }
        }
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
            "this command changes its user or group (setuid), so that nothing can be preloaded: \
             objects come from the kernel's view alone",
        );
        varve_ui::hint("to see its heap objects, record a copy without the setuid and setgid bits");
    }
    let recorded = varve_record::record(&options);
    super::live::clear();
    finish(recorded.map_err(failure)?)
}

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

fn resolve(arguments: &Record) -> Result<RecordOptions, Failure> {
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
            HoldArgument::Auto => HoldChoice::Auto,
            HoldArgument::Cgroup => HoldChoice::Cgroup,
            HoldArgument::Ptrace => HoldChoice::Ptrace,
        },
        traps: match (arguments.backend, arguments.fault_budget) {
            (Backend::Fault, None) => TrapsChoice::All,
            (Backend::Fault, Some(share)) => TrapsChoice::Budget(share.0),
            _ => TrapsChoice::Off,
        },
        counts: counts(arguments)?,
        delay: arguments.delay.0,
        show: shows(arguments).then_some(super::live::show as varve_record::Show),
        duration: arguments.duration.map(|d| d.0),
        without: arguments.without.clone(),
        tell: |sentence| varve_ui::note(sentence),
    })
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
    let (what, hint) = error.told();
    Failure {
        what,
        hint,
        code: error.exit_code(),
    }
}

/// Puts the trace in order, and waits for a target that goes on.
fn finish(mut summary: Summary) -> Result<ExitCode, Failure> {
    // What was attached to may be there still, with the files that it has mapped.
    varve_record::settle_for_finish(summary.exit_code.is_none());
    let ended = summary.exit_code;
    let waiting = summary.waiting.take();
    write(summary);
    let code = match waiting {
        Some(target) => target.wait().map_err(failure)?,
        None => ended.unwrap_or(0),
    };
    Ok(ExitCode::from(code as u8))
}

/// Puts the trace in order and says where it is, or why it is not.
fn write(summary: Summary) {
    if let Some(trouble) = &summary.trouble {
        let (what, hint) = trouble.told();
        varve_ui::error(format!("the recording ended early: {what}"));
        if let Some(hint) = hint {
            varve_ui::hint(hint);
        }
    }
    if !summary.held_by.is_empty() {
        varve_ui::note(&summary.held_by);
    }
    let folder = summary.folder;
    let interruptible = varve_record::interruptible(
        format!(
            "interrupted: {0} is not in order yet, as of a recorder that was killed; `varve recover {1}` puts it in order",
            folder.path().display(),
            quoted_path(folder.path())
        ),
        |sentence| varve_ui::note(sentence),
    );
    let ordered = folder.trace().map_err(Failure::from).and_then(|mut trace| {
        trace.manifest = summary.manifest;
        put_in_order(&folder, trace, State::Finished)
    });
    drop(interruptible);
    // Somebody may have moved it while it was written.
    let path = match folder.moved() {
        Some(Moved::To(now)) => {
            varve_ui::warning(format!(
                "{} was moved while it was written, and is {} now",
                folder.path().display(),
                now.display()
            ));
            now
        }
        None | Some(Moved::Removed) => folder.path().to_owned(),
    };
    let trace = match ordered {
        Ok(trace) => trace,
        Err(failure) => {
            // The target has run and its code counts; what was written can be put in order later.
            if summary.trouble.is_none() {
                varve_ui::error(format!("the trace is not in order yet: {}", failure.what));
                varve_ui::hint(failure.hint.unwrap_or_else(|| {
                    format!("`varve recover {}` tries again", quoted_path(&path))
                }));
            }
            return;
        }
    };
    closing::lines(&trace).iter().for_each(varve_ui::note);
    varve_ui::note(format!(
        "wrote {}; read it with `varve report {}`",
        path.display(),
        quoted_path(&path)
    ));
}

/// Merges what a recorder wrote, gives names to its objects and settles the manifest.
pub(super) fn put_in_order(
    folder: &TraceFolder,
    trace: Trace,
    state: State,
) -> Result<Trace, Failure> {
    let progress = varve_ui::Progress::new("Writing the trace");
    let to = Destination::from(folder);
    Ok(varve_attribute::finish_trace(
        trace,
        &to,
        state,
        &mut |share| progress.set(share),
    )?)
}
