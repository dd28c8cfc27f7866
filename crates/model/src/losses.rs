//! What a trace may lack, and which part of it that leaves incomplete.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::kinds::{UnknownKind, named};

named! {
    /// A part of a trace, as far as losses concern it. Where one part lacks something the others may be complete.
    LossPart ("part of a trace") {
        /// Accessed pages, and whatever follows from them.
        Pages = "pages",
        /// Objects and call stacks.
        Objects = "objects",
        /// Allocator operations.
        Operations = "operations",
    }
}

impl LossPart {
    /// The part that a kind of loss concerns, by the name of the kind. A kind that this version does not know may concern the pages.
    pub fn of(kind: &str) -> LossPart {
        kind.parse::<Loss>().map_or(LossPart::Pages, Loss::part)
    }

    /// What may be missing of it, as the subject of a sentence.
    pub const fn what(self) -> &'static str {
        match self {
            LossPart::Pages => "some accesses",
            LossPart::Objects => "objects or call stacks",
            LossPart::Operations => "allocator operations",
        }
    }

    /// Whether figures of the touches of objects depend on it: they are made of pages and of objects.
    pub const fn concerns_objects(self) -> bool {
        matches!(self, LossPart::Pages | LossPart::Objects)
    }
}

named! {
    /// What kept a recording from being complete.
    Loss ("loss") {
        /// Page faults, with thread and instruction, that did not fit the ring.
        Faults = "faults",
        /// Processes and threads whose events did not fit the ring.
        ProcessEvents = "process_events",
        /// Mappings whose events did not fit the ring.
        MappingEvents = "mapping_events",
        /// Touched pages that went before they could be reported.
        VanishedPages = "vanished_pages",
        /// Touched pages that were taken away in a way that leaves nothing to read.
        VanishWalks = "vanish_walks",
        /// Processes that were not followed.
        UntrackedChildren = "untracked_children",
        /// Page tables or page flags that could not be read.
        UnreadableTables = "unreadable_tables",
        /// Pages whose accessed bits the kernel's reclaim may have taken.
        ReclaimScannedPages = "reclaim_scanned_pages",
        /// Readings during which the target was let go.
        HoldsCutShort = "holds_cut_short",
        /// Processes that could not be held still.
        UnheldProcesses = "unheld_processes",
        /// Objects whose allocations did not fit the preload library's ring.
        PreloadRecords = "preload_records",
        /// Heap objects for whose notes in the preload library their process had no memory left.
        PreloadMemory = "preload_memory",
        /// Forked processes whose preload library could not reach the recorder: below `chroot`, confined, or without a free descriptor.
        UnheardProcesses = "unheard_processes",
        /// Processes whose accessed bits the recorder may not clear.
        UnclearedProcesses = "uncleared_processes",
        /// Call stacks beyond the room for them.
        Stacks = "stacks",
        /// Objects of forked children beyond the room for them.
        InheritedObjects = "inherited_objects",
        /// Events that the kernel did not report, to keep its programs from nesting.
        SkippedPrograms = "skipped_programs",
        /// What mechanisms that this machine lacks would have seen (`varve doctor` names them).
        MissingMechanisms = "missing_mechanisms",
        /// The last interval, for whose reading the target could not be held.
        LastInterval = "last_interval",
        /// What ran while a fault handler that somebody had ended was replaced.
        KilledHandlers = "killed_handlers",
        /// What an error kept from being recorded or written.
        EndedEarly = "ended_early",
        /// Allocator operations that were not counted, or what the kernel did within some.
        Operations = "operations",
        /// Processes whose allocator operations were not counted, or not to the end, as their address space is limited.
        LimitedProcesses = "limited_processes",
        /// Processes whose allocator operations were not counted to the end, as they locked their memory.
        LockedProcesses = "locked_processes",
        /// What was not written when the recorder was killed.
        RecorderKilled = "recorder_killed",
        /// What followed the line within which an imported text ends.
        CutLine = "cut_line",
        /// What followed the byte at which an imported file ends before its recording did.
        CutFile = "cut_file",
        /// Records that perf had no room for while it recorded.
        PerfLost = "perf_lost",
        /// Pieces of a recording, each with an unknown number of records, that perf had no room for.
        PerfLostChunks = "perf_lost_chunks",
        /// Snapshots of DAMON of which events are missing.
        LostSnapshots = "lost_snapshots",
        /// Accesses beyond the room for counts.
        UncountedAccesses = "uncounted_accesses",
        /// Programs that the emulator did not run.
        UncountedPrograms = "uncounted_programs",
        /// Processes that got no room for counts.
        UncountedProcesses = "uncounted_processes",
        /// Files of counts that cannot be read.
        DamagedCounts = "damaged_counts",
    }
}

impl Loss {
    /// What may be missing, as the object of a sentence.
    pub const fn what(self) -> &'static str {
        match self {
            Loss::Faults => "page faults, with thread and instruction, that did not fit the ring",
            Loss::ProcessEvents => "processes and threads whose events did not fit the ring",
            Loss::MappingEvents => "mappings whose events did not fit the ring",
            Loss::VanishedPages => "touched pages that went before they could be reported",
            Loss::VanishWalks => {
                "touched pages that were taken away in a way that leaves nothing to read"
            }
            Loss::UntrackedChildren => "processes that were not followed",
            Loss::UnreadableTables => "page tables or page flags that could not be read",
            Loss::ReclaimScannedPages => {
                "pages whose accessed bits the kernel's reclaim may have taken"
            }
            Loss::HoldsCutShort => "readings during which the target was let go",
            Loss::UnheldProcesses => "processes that could not be held still",
            Loss::PreloadRecords => {
                "objects whose allocations did not fit the preload library's ring"
            }
            Loss::PreloadMemory => {
                "heap objects for whose records their process had no memory left (`ulimit -v`, `ulimit -d`)"
            }
            Loss::UnheardProcesses => {
                "heap objects of forked processes that could not reach the recorder (chroot, seccomp, no free descriptor)"
            }
            Loss::UnclearedProcesses => {
                "which pages processes accessed whose accessed bits the recorder may not clear"
            }
            Loss::Stacks => "call stacks beyond the room for them",
            Loss::InheritedObjects => "objects of forked children beyond the room for them",
            Loss::SkippedPrograms => {
                "events that the kernel did not report, to keep its programs from nesting"
            }
            Loss::MissingMechanisms => {
                "what mechanisms that this machine lacks would have seen (`varve doctor` names them)"
            }
            Loss::LastInterval => {
                "the last interval, for whose reading the target could not be held"
            }
            Loss::KilledHandlers => {
                "what ran while a fault handler that somebody had ended was replaced"
            }
            Loss::Operations => {
                "allocator operations that were not counted, or what the kernel did within some"
            }
            Loss::LimitedProcesses => {
                "allocator operations of processes whose address space is limited"
            }
            Loss::LockedProcesses => {
                "allocator operations of processes from where they locked their memory on (mlockall)"
            }
            Loss::EndedEarly => "what an error kept from being recorded or written",
            Loss::RecorderKilled => "what was not written when the recorder was killed",
            Loss::CutLine => "what followed the line within which an imported text ends",
            Loss::CutFile => "what followed the byte at which an imported file ends",
            Loss::PerfLost => "records that perf had no room for",
            Loss::PerfLostChunks => "pieces of the recording that perf had no room for",
            Loss::LostSnapshots => "snapshots of DAMON of which events are missing",
            Loss::UncountedAccesses => "accesses beyond the room for counts",
            Loss::UncountedPrograms => "programs that the emulator did not run",
            Loss::UncountedProcesses => "processes that got no room for counts",
            Loss::DamagedCounts => "files of counts that cannot be read",
        }
    }

    /// The part of the trace that it concerns. A loss that may hide an access of a page concerns the pages, whatever else it hides.
    pub const fn part(self) -> LossPart {
        match self {
            Loss::Faults
            | Loss::ProcessEvents
            | Loss::MappingEvents
            | Loss::VanishedPages
            | Loss::VanishWalks
            | Loss::UntrackedChildren
            | Loss::UnreadableTables
            | Loss::ReclaimScannedPages
            | Loss::HoldsCutShort
            | Loss::UnheldProcesses
            | Loss::UnclearedProcesses
            | Loss::SkippedPrograms
            | Loss::MissingMechanisms
            | Loss::LastInterval
            | Loss::KilledHandlers
            | Loss::EndedEarly
            | Loss::RecorderKilled
            | Loss::CutLine
            | Loss::CutFile
            | Loss::PerfLost
            | Loss::PerfLostChunks
            | Loss::LostSnapshots
            | Loss::UncountedAccesses
            | Loss::UncountedPrograms
            | Loss::UncountedProcesses
            | Loss::DamagedCounts => LossPart::Pages,
            Loss::PreloadRecords
            | Loss::PreloadMemory
            | Loss::UnheardProcesses
            | Loss::Stacks
            | Loss::InheritedObjects => LossPart::Objects,
            Loss::Operations | Loss::LimitedProcesses | Loss::LockedProcesses => {
                LossPart::Operations
            }
        }
    }

    /// What to do about it, as an order.
    pub const fn remedy(self) -> &'static str {
        match self {
            Loss::Faults | Loss::ProcessEvents | Loss::MappingEvents | Loss::VanishedPages => {
                "leave the recorder a CPU: its ring of events was full"
            }
            Loss::VanishWalks => {
                "record with a shorter --interval: less is touched then between two readings"
            }
            Loss::UntrackedChildren => "record fewer processes at once, as with --no-follow",
            Loss::UnreadableTables | Loss::MissingMechanisms => {
                "run `varve doctor` to see what this machine lacks"
            }
            Loss::ReclaimScannedPages => "record where more memory is free",
            Loss::HoldsCutShort => "let nobody stop the recorder or thaw the target's cgroup",
            Loss::UnheldProcesses => {
                "end their debugger, leave them in their cgroup, record as root (others' processes cannot be held), or let their filters of system calls permit restart_syscall"
            }
            Loss::PreloadRecords | Loss::InheritedObjects => "record with a larger --min-object",
            Loss::PreloadMemory => {
                "raise the limit of the program's memory: recording objects takes some of it"
            }
            Loss::UnheardProcesses => "let them reach the recorder: nothing else is missing",
            Loss::UnclearedProcesses => {
                "record as root, or give the recorder CAP_DAC_OVERRIDE: these run with other rights"
            }
            Loss::Stacks => "record a part of the run (--delay, --duration)",
            Loss::SkippedPrograms | Loss::LastInterval => "record again",
            Loss::KilledHandlers => "let nobody end the fault handlers",
            Loss::Operations => "record a part of the program, as with --no-follow",
            Loss::LimitedProcesses => {
                "raise the limits of address space and data: ulimit -v unlimited, ulimit -d unlimited"
            }
            Loss::LockedProcesses => "record without mlockall, as by an option of the program",
            Loss::EndedEarly => "mend what the error names, and record again",
            Loss::RecorderKilled => "end the recorder with Ctrl-C, or let it end by itself",
            Loss::CutLine => "import the whole text",
            Loss::CutFile => "end `perf record` with Ctrl-C, and import the whole file",
            Loss::PerfLost | Loss::PerfLostChunks | Loss::LostSnapshots => {
                "record with larger buffers (`perf record -m`), or fewer samples"
            }
            Loss::UncountedAccesses => "count a shorter run, or with a larger --interval-accesses",
            Loss::UncountedPrograms => "record these programs with --backend scan",
            Loss::UncountedProcesses => "count fewer processes at once, as with --no-follow",
            Loss::DamagedCounts => "let nobody write to the files of counts, and record again",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Losses that hide no access of a page: for all others the pages must not be called complete.
    const OF_OTHER_PARTS: [(Loss, LossPart); 8] = [
        (Loss::PreloadRecords, LossPart::Objects),
        (Loss::PreloadMemory, LossPart::Objects),
        (Loss::UnheardProcesses, LossPart::Objects),
        (Loss::Stacks, LossPart::Objects),
        (Loss::InheritedObjects, LossPart::Objects),
        (Loss::Operations, LossPart::Operations),
        (Loss::LimitedProcesses, LossPart::Operations),
        (Loss::LockedProcesses, LossPart::Operations),
    ];

    #[test]
    fn each_loss_concerns_one_part() {
        for &loss in Loss::ALL {
            let other = OF_OTHER_PARTS.iter().find(|(of, _)| *of == loss);
            let part = other.map_or(LossPart::Pages, |(_, part)| *part);
            assert_eq!(loss.part(), part, "{loss}");
            assert_eq!(LossPart::of(loss.as_str()), part, "{loss}");
        }
        // A later version may have more.
        assert_eq!(LossPart::of("ring_overflow"), LossPart::Pages);
    }

    #[test]
    fn words_round_trip() {
        for loss in Loss::ALL {
            assert_eq!(loss.as_str().parse::<Loss>().as_ref(), Ok(loss));
        }
        for part in LossPart::ALL {
            assert_eq!(part.as_str().parse::<LossPart>().as_ref(), Ok(part));
            assert!(!part.what().is_empty());
        }
    }
}
