//! `/proc/PID/clear_refs`: clearing accessed bits and flushing the TLB.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};

use varve_model::Pid;

use crate::rights::with_any_file;

/// The open `clear_refs` file of a process.
///
/// The kernel resolves the address space at each write, so the file stays good across exec. It is that of the thread whose
/// file it is, and none once that has ended: a write does nothing then, and says nothing. Semantics: `Documentation/filesystems/proc.rst`, and `clear_refs_write` in
/// `fs/proc/task_mmu.c`.
#[derive(Debug)]
pub struct ClearRefs {
    file: File,
}

impl ClearRefs {
    /// Opens it.
    pub fn open(pid: Pid) -> io::Result<ClearRefs> {
        // Its owner is the process's user.
        let file = with_any_file(|| {
            OpenOptions::new()
                .write(true)
                .open(crate::shared_folder(pid).join("clear_refs"))
        })?;
        Ok(ClearRefs { file })
    }

    /// Clears the accessed bit of every page that the kernel can age, and the `PG_young` and
    /// `PG_referenced` flags with it. The TLB keeps its entries.
    pub fn clear_accessed(&mut self) -> io::Result<()> {
        self.file.write_all(b"1")
    }

    /// Flushes the TLB of the address space, and on kernels with soft-dirty bits clears those and protects
    /// write tracking.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(b"4")
    }
}
