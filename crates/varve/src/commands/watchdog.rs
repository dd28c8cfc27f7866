//! `varve watchdog`: not for people; `record` starts it. See [`varve_record::watch`].

use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;

use super::Failure;

pub(crate) fn run(is_second: bool, swaps: bool) -> Result<ExitCode, Failure> {
    let orders = io::stdin().as_fd().try_clone_to_owned();
    let orders =
        orders.map_err(|e| Failure::new(format!("cannot read orders: {e}"), None::<String>))?;
    varve_record::watch(orders, is_second, swaps);
    Ok(ExitCode::SUCCESS)
}
