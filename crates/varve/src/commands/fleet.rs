//! `varve fleet`: questions to a store of many traces, which the Python package answers.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use clap::Args;

use super::Failure;

/// Which Python has the package.
const VARIABLE: &str = "VARVE_PYTHON";
const MODULE: &str = "varve.fleet";

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Fleet {
    /// `report STORE`, `query STORE VIEW` or `compact STORE`, and their options; `--help` has them all
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    pub(crate) arguments: Vec<OsString>,
}

pub(crate) fn run(arguments: &Fleet) -> Result<ExitCode, Failure> {
    let python = std::env::var_os(VARIABLE).unwrap_or_else(|| "python3".into());
    let looks = format!(
        "import importlib.util, sys; sys.exit(importlib.util.find_spec('{MODULE}') is None)"
    );
    let has_it = Command::new(&python)
        .args(["-c", &looks])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !has_it.is_ok_and(|status| status.success()) {
        return Err(Failure {
            what: format!(
                "{} does not have the Python package varve, which reads stores",
                python.display()
            ),
            hint: Some(format!(
                "install the folder python/ of Varve's sources (`pip install ./python`), or name a Python that has it in {VARIABLE}"
            )),
            code: 2,
        });
    }
    let error = Command::new(&python)
        .args(["-m", MODULE])
        .args(&arguments.arguments)
        .exec();
    Err(Failure {
        what: format!("cannot run {}: {error}", python.display()),
        hint: None,
        code: 2,
    })
}
