//! What a finding says.

use serde::Serialize;
use varve_model::ObjectId;

/// Something that stands out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Which rule found it.
    pub id: FindingId,
    /// One line.
    pub title: String,
    /// The numbers and the names behind it.
    pub evidence: String,
    /// What to do, in a few words.
    pub action: String,
    /// What a person can do about it.
    pub advice: String,
    /// The objects it is about, the most affected first.
    pub objects: Vec<ObjectId>,
}

macro_rules! finding_ids {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $action:literal;)*) => {
        /// The rules; each is documented with its thresholds where it is decided, in `findings`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub enum FindingId { $($(#[$doc])* #[serde(rename = $name)] $variant,)* }

        impl FindingId {
            /// All.
            pub const ALL: &[FindingId] = &[$(FindingId::$variant,)*];

            /// The word that reports use.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What to do, in a few words, where nothing of the trace says more.
            pub const fn action(self) -> &'static str {
                match self { $(Self::$variant => $action,)* }
            }
        }
    };
}

finding_ids! {
    /// Accesses may be missing.
    Incomplete = "incomplete", "record again";
    /// Too few intervals to speak of time.
    ShortRecording = "short-recording", "record longer";
    /// Cache lines in which threads use different bytes.
    FalseSharing = "false-sharing", "give each thread cache lines of its own";
    /// Cache lines in which threads use the same bytes.
    TrueSharing = "true-sharing", "write the shared line less often";
    /// Pages in which threads use different lines.
    PageFalseSharing = "page-false-sharing", "give each thread pages of its own";
    /// Memory that one thread touched first and others use in parts of their own.
    ParallelFirstTouch = "parallel-first-touch", "initialise it with the threads that use it";
    /// Memory that several threads read and write all over.
    Interleave = "interleave", "interleave it over the memory nodes";
    /// Memory that several threads read all over and none writes.
    Replicate = "replicate", "give each memory node a copy";
    /// Memory with a hot part and a cold part.
    SplitHotCold = "split-hot-cold", "split the hot part from the cold";
    /// Memory that was allocated and never touched, or only when it was new.
    NeverTouched = "never-touched", "allocate less, or later";
    /// Memory that one thread touched first while others ran.
    SingleFirstTouch = "single-first-touch", "initialise it with the threads that use it";
    /// Memory that all threads faulted in.
    ScannedByAll = "scanned-by-all", "interleave it if all threads read all of it";
    /// Memory that the tail of the recording did not touch.
    ColdTail = "cold-tail", "release it, compress it or use slower memory";
    /// Memory whose pages were touched in one interval each.
    TouchedOnce = "touched-once", "use each piece while it is cached";
    /// Many short lives of one site.
    Churn = "churn", "keep one buffer and use it again";
    /// Pages that count as touched whether they were or not.
    Sticky = "sticky", "read the working set as an upper bound";
    /// Huge pages whose use is not known.
    HugePages = "huge-pages", "record with --thp=never to see 4 KiB pages";
}

impl std::fmt::Display for FindingId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}
