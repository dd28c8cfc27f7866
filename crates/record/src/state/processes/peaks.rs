//! The most memory of each program that was resident at once, as the kernel counts it.

use varve_bpf::{ForkKind, Peak};
use varve_model::Pages;

use super::Process;

/// Why a program that runs has no peak yet.
pub(super) const RUNNING: &str = "running";

/// What the kernel's peaks of a process are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peaks {
    /// Of a time before the recording too: the process ran as it was first seen.
    Began,
    /// Of its parent's memory, which it uses.
    Borrowed,
    /// Of its own memory. All that ran in it before what runs now had so much at most; none where that is not known.
    Own(Option<Pages>),
}

impl Peaks {
    /// Of a new process.
    pub(super) const fn forked(kind: ForkKind) -> Peaks {
        match kind {
            ForkKind::SharedMemory => Peaks::Borrowed,
            // The kernel begins a new account for it.
            ForkKind::Process | ForkKind::Thread => Peaks::Own(Some(Pages(0))),
        }
    }

    /// Of a process that runs another program from now on, and had that peak.
    pub(super) const fn after(peak: Peak) -> Peaks {
        Peaks::Own(peak.process)
    }

    /// How much of the program was resident, from what the kernel reports as it ends, or the word of the table `processes` that
    /// says why that is not known.
    fn of_program(self, peak: Peak) -> Result<Pages, &'static str> {
        let before = match self {
            Peaks::Began => return Err("began"),
            Peaks::Borrowed => return Err("borrowed"),
            Peaks::Own(before) => before,
        };
        // What is more than before is this program's, and is what getrusage reports. It comes a moment late where two threads
        // end at once, and is what it was before then.
        let more = peak
            .process
            .filter(|all| before.is_some_and(|before| *all > before));
        match (more.or(peak.program), peak.process) {
            (Some(pages), _) => Ok(pages),
            (None, Some(_)) => Err("earlier"),
            (None, None) => Err("kernel"),
        }
    }
}

impl Process {
    /// Writes into its row how much of the program that ends now was resident. With an emulator, that of the emulator is not
    /// told from the program's.
    pub(super) fn set_peak(&mut self, peak: Peak, emulated: bool) {
        let found = match emulated {
            true => Err("emulated"),
            false => self.peaks.of_program(peak),
        };
        self.row.peak_resident_bytes = found.ok().map(|pages| pages.bytes());
        self.row.peak_resident_why = found.err().map(Into::into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn peak(program: Option<Pages>, process: Option<Pages>) -> Peak {
        Peak { program, process }
    }

    const BOTH: Peak = peak(Some(Pages(9)), Some(Pages(9)));
    const OF_ALL: Peak = peak(None, Some(Pages(9)));

    #[test]
    fn what_is_more_than_before_is_the_programs() {
        let found = |before, peak| Peaks::Own(before).of_program(peak);
        assert_eq!(found(Some(Pages(0)), OF_ALL), Ok(Pages(9)));
        assert_eq!(found(Some(Pages(8)), OF_ALL), Ok(Pages(9)));
        assert_eq!(found(Some(Pages(9)), OF_ALL), Err("earlier"));
        assert_eq!(found(None, OF_ALL), Err("earlier"));
        assert_eq!(found(Some(Pages(8)), peak(None, None)), Err("kernel"));
    }

    #[test]
    fn a_program_that_is_smaller_than_the_one_before_has_its_own_peak_where_that_was_read() {
        let smaller = peak(Some(Pages(2)), Some(Pages(9)));
        let found = |before| Peaks::Own(before).of_program(smaller);
        assert_eq!(found(Some(Pages(9))), Ok(Pages(2)));
        assert_eq!(found(None), Ok(Pages(2)));
        let after = Peaks::after(smaller);
        assert_eq!(after, Peaks::Own(Some(Pages(9))));
        assert_eq!(after.of_program(OF_ALL), Err("earlier"));
    }

    #[test]
    fn memory_of_before_the_recording_and_of_the_parent_is_not_the_programs() {
        assert_eq!(Peaks::Began.of_program(BOTH), Err("began"));
        let child = Peaks::forked(ForkKind::SharedMemory);
        assert_eq!(child.of_program(BOTH), Err("borrowed"));
        let child = Peaks::forked(ForkKind::Process);
        assert_eq!(child.of_program(BOTH), Ok(Pages(9)));
    }
}
