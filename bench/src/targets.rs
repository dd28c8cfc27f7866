//! The small C programs that the benchmarks measure.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::Common;
use crate::error::{Error, Result};
use crate::launch::Program;

/// The built targets, and a place for traces; removed on drop.
#[derive(Debug)]
pub(crate) struct Targets {
    folder: TempDir,
}

impl Targets {
    /// Builds them with the machine's compiler.
    pub(crate) fn build(common: &Common) -> Result<Targets> {
        let folder = tempfile::tempdir_in(&common.scratch)
            .map_err(Error::io("make a folder in", &common.scratch))?;
        for name in ["resident", "objects", "churn", "blocks", "marks"] {
            let source = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("targets")
                .join(format!("{name}.c"));
            let mut compiler = Command::new("cc");
            compiler.args(["-O2", "-Wall", "-Wextra", "-pthread", "-I"]);
            compiler.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../cpp/include"));
            compiler.arg("-o");
            let built = compiler.arg(folder.path().join(name)).arg(&source).status();
            if !built
                .map_err(Error::io("run the C compiler on", &source))?
                .success()
            {
                return Err(Error::Failed(format!(
                    "the C compiler refused {}",
                    source.display()
                )));
            }
        }
        Ok(Targets { folder })
    }

    /// One of them with its arguments.
    pub(crate) fn program(&self, name: &str, arguments: &[String]) -> Program {
        Program {
            name: format!("{name} {}", arguments.join(" ")),
            path: self.folder.path().join(name),
            arguments: arguments.iter().map(Into::into).collect(),
            threads: 2,
        }
    }

    /// Where a trace can be written.
    pub(crate) fn trace_folder(&self) -> std::path::PathBuf {
        self.folder.path().join("bench.varve")
    }
}
