//! Counts of every access: the target runs under an emulator, whose plugin counts (`--backend exact`).
//!
//! Nothing is held, scanned or cleared. The kernel's events still report processes, threads and mappings, and the
//! preload library, which is emulated with the program, heap objects. The counts lie in shared files
//! (`varve-qemu-counter-abi`) and are read when the target has ended, or the recorder ([`recovery`]).

pub(crate) mod recovery;
mod rows;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use varve_model::{Backend, Capability};
use varve_qemu_counter_abi::{CONTROL, Control, Program};
use varve_trace::{IntervalChoice, Manifest, TraceFolder};

use self::rows::Run;
use super::{Ending, Kind, Launch, Probe, Setup, Started, load_nothing};
use crate::state::emulator::EMULATOR;
use crate::target::channel::{Channel, CountFiles};
use crate::{CountsChoice, RecordError, TargetChoice};

pub(crate) const KIND: Kind = Kind {
    load: load_nothing,
    start,
};

fn start(setup: &mut Setup<'_>) -> Result<Started, RecordError> {
    let options = setup.options;
    let Some(choice) = &options.counts else {
        return Ok(None);
    };
    if matches!(options.target, TargetChoice::Attach(_)) {
        return Err(RecordError::Uncountable {
            path: PathBuf::from("a process that runs already"),
            why: "it would have to run in the emulator from its beginning",
        });
    }
    let emulator = emulator().ok_or(RecordError::NoEmulator(EMULATOR))?;
    let folder = setup.run_folder.unwrap_or(Path::new("")).to_owned();
    let made = make_control(&folder, choice.interval_accesses);
    let control = made.map_err(RecordError::system("make the file that all counts share"))?;
    setup.offers.counts = Some(CountFiles {
        folder: folder.clone(),
        control,
    });
    setup.emulated = true;
    describe(setup.manifest, choice);
    Ok(Some(Box::new(Counts {
        emulator,
        choice: choice.clone(),
        follow: options.follow,
        folder,
    })))
}

/// The emulator, if it is installed.
pub(crate) fn emulator() -> Option<PathBuf> {
    crate::target::preflight::found(Path::new(EMULATOR))
}

fn make_control(folder: &Path, length: u64) -> std::io::Result<std::fs::File> {
    let path = folder.join(CONTROL);
    Control::create(&path, length)?;
    std::fs::File::options().read(true).write(true).open(path)
}

fn describe(manifest: &mut Manifest, choice: &CountsChoice) {
    manifest.backend = Backend::Exact;
    manifest.capabilities.extend([
        Capability::Counts,
        Capability::ExactCounts,
        Capability::Writes,
        Capability::Emulated,
    ]);
    manifest.options.interval =
        IntervalChoice::Accesses(choice.interval_accesses.next_multiple_of(64));
    manifest.features.writes = Some("exact".into());
    manifest.features.page_flags = false;
    manifest.features.hold = "none".into();
    manifest.notes.push(
        "The program ran under an emulator: times are those of the emulated run, many times longer than the program's own."
            .into(),
    );
}

/// The probe.
struct Counts {
    emulator: PathBuf,
    choice: CountsChoice,
    follow: bool,
    folder: PathBuf,
}

impl Probe for Counts {
    /// Has the emulator run the command. What would be preloaded into the program is the emulator's to preload.
    fn launch(&self, launch: &mut Launch, channel: Option<&Channel>) -> Result<(), RecordError> {
        let preloads = |(name, _): &mut (&str, OsString)| *name == "LD_PRELOAD";
        let ours = launch.environment.extract_if(.., preloads).next();
        let others = std::env::var_os("LD_PRELOAD").filter(|list| !list.is_empty());
        let preloaded = ours.map(|(_, list)| list).or(others);
        // For the emulator itself.
        launch.environment.push(("LD_PRELOAD", OsString::new()));
        launch.command = self.emulated(&launch.command, preloaded, channel)?;
        Ok(())
    }

    /// Reads the counts.
    fn end(&mut self, ending: &mut Ending<'_>) -> Result<(), RecordError> {
        let run = Run {
            began: ending.began,
            end: ending.ended,
            only: (!self.follow).then_some(ending.root.0),
        };
        let tables = &mut ending.state.tables;
        let losses = rows::write(&self.folder, &run, ending.writer, &mut tables.intervals)?;
        for (kind, total) in losses {
            tables.lost_in_all(ending.ended, kind, total);
        }
        Ok(())
    }

    fn finish(&mut self, _: &mut Manifest, is_whole: bool) {
        if is_whole {
            recovery::note_done(&self.folder);
        }
    }

    fn traced(&mut self, folder: &TraceFolder) -> Result<(), RecordError> {
        let noted = recovery::note_pending(&self.folder, folder);
        noted.map_err(RecordError::system("note whose the counts are"))
    }
}

impl Counts {
    /// The command as the emulator is to be given it.
    fn emulated(
        &self,
        command: &[OsString],
        preloaded: Option<OsString>,
        channel: Option<&Channel>,
    ) -> Result<Vec<OsString>, RecordError> {
        let given = Path::new(command.first().map_or("".as_ref(), OsString::as_os_str));
        let path = crate::target::preflight::found(given).unwrap_or_else(|| given.to_owned());
        let (kind, program, arguments) = Program::resolve(&path, command);
        let why = match kind {
            Program::Native => None,
            Program::GainsRights => Some("it gains rights by its setuid or setgid bits"),
            _ => Some("it is not an executable for x86-64"),
        };
        if let Some(why) = why {
            return Err(RecordError::Uncountable { path: program, why });
        }
        let mut plugin = self.choice.plugin.clone().into_os_string();
        for ((_, value), name) in channel
            .into_iter()
            .flat_map(Channel::environment)
            .zip(["folder", "identity"])
        {
            plugin.push(",");
            plugin.push(name);
            plugin.push("=");
            plugin.push(value);
        }
        let mut wrapped: Vec<OsString> = vec![self.emulator.clone().into()];
        wrapped.extend(["-cpu", "max", "-plugin"].map(OsString::from));
        wrapped.push(plugin);
        match preloaded {
            Some(list) => {
                let mut variable = OsString::from("LD_PRELOAD=");
                variable.push(list);
                wrapped.extend(["-E".into(), variable]);
            }
            None => wrapped.extend(["-U", "LD_PRELOAD"].map(OsString::from)),
        }
        wrapped.push("-0".into());
        wrapped.push(arguments.first().cloned().unwrap_or_default());
        wrapped.push(program.into());
        wrapped.extend(arguments.into_iter().skip(1));
        Ok(wrapped)
    }
}
