//! `varve guardian`: not for people; `record` starts it. See [`varve_record::guard`].

use std::io;
use std::process::ExitCode;

use super::Failure;

pub(crate) fn run() -> Result<ExitCode, Failure> {
    varve_record::guard(io::BufReader::new(io::stdin()));
    Ok(ExitCode::SUCCESS)
}
