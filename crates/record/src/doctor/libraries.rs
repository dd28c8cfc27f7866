//! The libraries that are loaded into the target, and the folder where it meets the recorder.

use std::path::PathBuf;

use varve_symbols::{DebugServer, NoClient};

use super::{Check, Standing};

pub(super) fn preloading(preload: Result<Option<PathBuf>, String>) -> Check {
    let found = match preload {
        Ok(Some(path)) => Ok(path.display().to_string()),
        Ok(None) => Err((
            "libvarve_preload.so is not beside this program".to_owned(),
            "build it with `cargo build --release -p varve-preload`, or name it in VARVE_PRELOAD",
        )),
        Err(why) => Err((why, "`varve record --no-preload` does without it")),
    };
    Check::new(
        "preload library",
        "reports heap objects, with call stacks",
        found,
        Standing::Missing,
    )
    .feature("heap objects with call stacks")
}

/// What `--backend exact` needs; `plugin` is where the emulator's plugin lies. It is recorded by the programs in the kernel, as all is.
pub fn examine_exact(plugin: Result<Option<PathBuf>, String>, can_record: bool) -> Check {
    let emulator = crate::probes::counts::emulator();
    let found = match (emulator, plugin) {
        _ if !can_record => Err(("nothing can be recorded here, see above".to_owned(), "")),
        (None, _) => Err((
            format!("{} is not installed", crate::state::emulator::EMULATOR),
            "apt-get install qemu-user",
        )),
        (_, Err(why)) => Err((why, "")),
        (_, Ok(None)) => Err((
            "libvarve_qemu_counter.so is not beside this program".to_owned(),
            "build it with `cargo build --release -p varve-qemu-counter`, or name it in VARVE_QEMU_COUNTER",
        )),
        (Some(emulator), Ok(Some(plugin))) => {
            Ok(format!("{}, {}", emulator.display(), plugin.display()))
        }
    };
    Check::new(
        "emulator",
        "counts every access (--backend exact)",
        found,
        Standing::Missing,
    )
    .feature("every access counted (--backend exact)")
}

/// Where names of stripped programs come from besides this machine's debug files.
pub(super) fn debug_servers() -> Check {
    let found = match DebugServer::of_environment() {
        Ok(Some(_)) => Ok("those of DEBUGINFOD_URLS are asked as names are looked for".to_owned()),
        Ok(None) => Ok("DEBUGINFOD_URLS names none".to_owned()),
        Err(NoClient) => Err((
            "DEBUGINFOD_URLS names some, and debuginfod-find, which asks them, is not installed"
                .to_owned(),
            "apt-get install debuginfod",
        )),
    };
    Check::new(
        "debug file servers",
        "names and lines of stripped programs",
        found,
        Standing::Missing,
    )
}

pub(super) fn rings() -> Check {
    Check::new(
        "ring folder",
        "where recorded processes meet the recorder",
        crate::target::run_folder::RunFolder::create(|_| Ok(()))
            .map(|a| {
                a.path()
                    .parent()
                    .map_or_else(String::new, |p| p.display().to_string())
            })
            .map_err(|e| (e.to_string(), "make /dev/shm or /tmp writable")),
        Standing::Missing,
    )
}
