//! The figures that are compared.

use serde::Serialize;
use ts_rs::TS;

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(rename = "DiffUnit")]
pub enum Unit {
    /// Bytes of memory.
    Bytes,
    /// Nanoseconds.
    Ns,
    /// A number.
    Count,
    /// A share, 0 to 1.
    Share,
}

macro_rules! measures {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $unit:ident, $shown:literal;)*) => {
        /// A figure of a program, or of its objects or code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, TS)]
        #[ts(rename = "DiffMeasure")]
        pub enum Measure { $($(#[$doc])* #[serde(rename = $name)] $variant,)* }

        impl Measure {
            /// All.
            pub const ALL: &[Measure] = &[$(Measure::$variant,)*];

            /// The word of the JSON.
            pub const fn as_str(self) -> &'static str {
                match self { $(Measure::$variant => $name,)* }
            }

            /// What it counts.
            pub const fn unit(self) -> Unit {
                match self { $(Measure::$variant => Unit::$unit,)* }
            }

            /// As a person calls it.
            pub const fn title(self) -> &'static str {
                match self { $(Measure::$variant => $shown,)* }
            }
        }
    };
}

measures! {
    /// Distinct memory touched; of objects and sites, memory used again for another life counts once.
    Touched = "touched_bytes", Bytes, "touched";
    /// The most memory touched in one interval.
    PeakWorkingSet = "peak_working_set_bytes", Bytes, "working set, peak";
    /// The memory touched in half of the intervals, at most.
    MedianWorkingSet = "median_working_set_bytes", Bytes, "working set, median";
    /// Sum over intervals of the pages touched.
    PageTouches = "page_touches", Count, "page touches";
    /// The most memory that was resident: at any time, as the kernel counts it, where all runs that are compared have one process
    /// and that figure; else at the end of an interval.
    PeakResident = "peak_resident_bytes", Bytes, "resident, peak";
    /// Page faults.
    Faults = "faults", Count, "page faults";
    /// Touched memory that no known object lies on.
    Unowned = "unowned_bytes", Bytes, "touched, no object";
    /// The time of sampled accesses: time at the instruction, not a number of accesses.
    AccessTime = "access_ns", Ns, "time at accesses";
    /// The length of the recording.
    Duration = "duration_ns", Ns, "duration";
    /// The share of the recording in which the target was held.
    Held = "held_share", Share, "held";
    /// Objects that were born, or were there when the recording began.
    Objects = "objects", Count, "objects";
    /// Objects that died in the recording.
    Died = "died", Count, "died";
    /// The median life of those that died.
    MedianLife = "median_life_ns", Ns, "median life";
    /// The sizes of objects, summed over all lives.
    Bytes = "bytes", Bytes, "allocated";
    /// The most bytes of objects that lived at once.
    PeakBytes = "peak_bytes", Bytes, "live, peak";
}

impl Measure {
    /// Figures of the whole program, in the order in which they are shown.
    pub const OF_PROGRAM: [Measure; 12] = [
        Measure::Touched,
        Measure::PeakWorkingSet,
        Measure::MedianWorkingSet,
        Measure::PageTouches,
        Measure::PeakResident,
        Measure::Unowned,
        Measure::AccessTime,
        Measure::Faults,
        Measure::Objects,
        Measure::Died,
        Measure::Duration,
        Measure::Held,
    ];
    /// Figures of the objects of a site.
    pub const OF_OBJECTS: [Measure; 8] = [
        Measure::Touched,
        Measure::PageTouches,
        Measure::AccessTime,
        Measure::Objects,
        Measure::Died,
        Measure::MedianLife,
        Measure::Bytes,
        Measure::PeakBytes,
    ];
    /// Figures of code.
    pub const OF_CODE: [Measure; 1] = [Measure::AccessTime];

    /// Whether what a trace lacks makes it less than it was.
    pub(crate) const fn is_of_touches(self) -> bool {
        matches!(
            self,
            Measure::Touched
                | Measure::PeakWorkingSet
                | Measure::MedianWorkingSet
                | Measure::PageTouches
                | Measure::Unowned
        )
    }
}
