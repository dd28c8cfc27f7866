//! The programs that are loaded, and what the kernel knows of them

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};

use super::{Kernel, system};
use crate::programs::PROGRAMS;
use crate::{BpfError, raw};

/// Reads the target's memory, which may not be there: that fault of its own the kernel does not report to it
const FAULTS_ITSELF: &str = "operation_fault_kernel";

/// A program in the kernel
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadedProgram {
    /// Its name in the object
    pub name: &'static str,
    /// Whether it hangs on something, or the recorder runs it or attaches it on demand
    pub runs: bool,
    /// How many instructions the verifier looked at, each as often as it did; 0 where the kernel does not say (before Linux 5.16)
    pub verified: u32,
}

fn info_of(program: BorrowedFd<'_>) -> Result<libbpf_sys::bpf_prog_info, BpfError> {
    raw::info(program).map_err(system("reading the counters of a program"))
}

impl Kernel {
    /// What was loaded, in the order of [`Kernel::capabilities`]
    ///
    /// # Errors
    /// [`BpfError::System`] where the kernel does not say what it has.
    pub fn programs(&self) -> Result<Vec<LoadedProgram>, BpfError> {
        let mut all = Vec::new();
        for known in &PROGRAMS {
            let mut loaded = self.object.progs().filter(|p| p.autoload());
            if let Some(program) = loaded.find(|p| p.name() == known.name) {
                all.push(LoadedProgram {
                    name: known.name,
                    runs: self.attached.contains(known.name) || known.is_on_demand(),
                    verified: info_of(program.as_fd())?.verified_insns,
                });
            }
        }
        Ok(all)
    }

    /// Times that the kernel skipped one of the programs since the load. What nests in [`FAULTS_ITSELF`] is no event of the target's
    pub fn skipped(&self) -> Result<u64, BpfError> {
        let mut skipped = 0;
        let counts =
            |name: &OsStr| name != FAULTS_ITSELF && PROGRAMS.iter().any(|known| name == known.name);
        for program in self.object.progs() {
            if counts(program.name()) && program.autoload() {
                skipped += info_of(program.as_fd())?.recursion_misses;
            }
        }
        Ok(skipped)
    }
}
