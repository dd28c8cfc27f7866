//! `varve watchdog`: not for people; `record` starts it. See [`varve_record::watch`].

use std::io;
use std::process::ExitCode;

use super::Failure;

pub(crate) fn run() -> Result<ExitCode, Failure> {
    varve_record::watch(io::BufReader::new(io::stdin()));
    Ok(ExitCode::SUCCESS)
}
