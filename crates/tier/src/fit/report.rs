//! What a fit found: predicted, and measured under limits.

use serde::Serialize;
use varve_model::{Bytes, Duration};

use super::{FitPoint, PagePrices, Unlimited};

/// What the `schema` of a fit says.
pub const FIT_SCHEMA: &str = "varve-fit/1";

/// How runs under a limit were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FitWay {
    /// No limit.
    Unlimited,
    /// The limit, and the kernel's own reclaim.
    Kernel,
    /// The limit, and the plan applied.
    Planned,
}

/// Runs of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FitRuns {
    /// How.
    pub way: FitWay,
    /// The limit; null where there was none.
    pub memory: Option<Bytes>,
    /// Run times, in the order of the rounds.
    pub wall_ns: Vec<Duration>,
    /// Their median; null where no run came to its end.
    pub median_ns: Option<Duration>,
    /// Over the median without a limit, less 1.
    pub slowdown: Option<f64>,
    /// What was predicted: the slowdown and pages read.
    pub predicted_slowdown: Option<f64>,
    /// Pages that the model said would be read again.
    pub predicted_reads: Option<u64>,
    /// Pages without a file that the kernel read again, the median of the runs; null where it was not counted.
    pub reads: Option<u64>,
    /// The largest share of a run in which everything waited for memory (PSI); null where the kernel does not measure it.
    pub stalled_share: Option<f64>,
    /// Runs that the kernel ended for want of memory, or had to be let over the limit to go on.
    pub out_of_memory: u64,
    /// Runs that were ended because they took too long.
    pub too_slow: u64,
}

impl FitRuns {
    /// Whether all runs came to their end under the limit.
    pub fn works(&self) -> bool {
        self.out_of_memory == 0 && self.too_slow == 0 && self.median_ns.is_some()
    }
}

/// What a fit found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// [`FIT_SCHEMA`].
    pub schema: &'static str,
    /// The command.
    pub command: Vec<String>,
    /// Whether the recording was complete.
    pub complete: bool,
    /// Intervals of the recording.
    pub interval_ns: Duration,
    /// The run without a limit.
    pub unlimited: Unlimited,
    /// What is swapped to.
    pub swap: String,
    /// What moving a page costs there, measured with pages of the program.
    pub prices: PagePrices,
    /// Pages of the program that the prices were measured with; 0 for made-up ones.
    pub sampled_pages: u64,
    /// The slowdown that was asked for; null where a size was.
    pub asked_slowdown: Option<f64>,
    /// Run time against memory, predicted.
    pub curve: Vec<FitPoint>,
    /// The limit that was tried; null where none would do.
    pub limit: Option<Bytes>,
    /// What the kernel alone needs for the slowdown, by the model; null where that is not known.
    pub kernel_needs: Option<Bytes>,
    /// What was measured.
    pub runs: Vec<FitRuns>,
    /// Whether the limit holds what was asked for; null where it was not tried.
    pub holds: Option<bool>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

impl Fit {
    /// Runs of a kind at the limit that was tried.
    pub fn at_limit(&self, way: FitWay) -> Option<&FitRuns> {
        let wanted = |r: &&FitRuns| r.way == way && r.memory == self.limit;
        self.runs.iter().find(wanted)
    }

    /// The better of the runs that came to their end at the limit.
    pub fn best(&self) -> Option<&FitRuns> {
        let ways = [FitWay::Planned, FitWay::Kernel].map(|way| self.at_limit(way));
        let works = ways.into_iter().flatten().filter(|r| r.works());
        works.min_by_key(|r| r.median_ns)
    }
}

/// The limit as other programs take it: the name of a file and what it holds.
pub fn limit_files(limit: Bytes, peak: Bytes) -> [(&'static str, String); 3] {
    let mib = |bytes: Bytes| bytes.0.div_ceil(1 << 20);
    // A hard limit at the soft one would have the program killed where it could wait.
    let hard = Bytes(
        (limit.0 + limit.0 / 4)
            .max(limit.0 + (64 << 20))
            .min(peak.0.max(limit.0 + (64 << 20))),
    );
    [
        (
            "systemd.conf",
            format!(
                "# A drop-in of the service: systemctl edit NAME\n[Service]\nMemoryHigh={}M\nMemoryMax={}M\n",
                mib(limit),
                mib(hard)
            ),
        ),
        (
            "kubernetes.yaml",
            format!(
                "# Of the container. Swap has to be on for its node (NodeSwap, LimitedSwap).\nresources:\n  requests:\n    memory: {}Mi\n  limits:\n    memory: {}Mi\n",
                mib(limit),
                mib(hard)
            ),
        ),
        (
            "cgroup.sh",
            format!(
                "# In the folder of the program's cgroup (v2).\necho {} > memory.high\necho {} > memory.max\n",
                limit.0, hard.0
            ),
        ),
    ]
}
