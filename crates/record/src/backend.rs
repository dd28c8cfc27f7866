//! What a backend does for the recorder.

use std::collections::{HashMap, HashSet};

use varve_bpf::{MmId, Region};
use varve_model::{Duration, Pid, Time};

use crate::RecordError;

/// What a backend brings back at the end of an interval.
#[derive(Debug, Default)]
pub struct Harvest {
    /// Touched regions of each process.
    pub regions: Vec<(Pid, Vec<Region>)>,
    /// Which address space each process has, as seen.
    pub spaces: HashMap<Pid, MmId>,
    /// 4 KiB pages resident in all processes together.
    pub resident_pages: u64,
    /// Processes whose pages were all protected against unseen writes, where that was asked for.
    pub protected: HashSet<Pid>,
    /// Page tables or page flags that could not be read.
    pub failures: u64,
}

/// The moment between two intervals.
#[derive(Clone, Copy, Debug)]
pub struct Boundary {
    /// Everything that the target did before is in the interval that ends.
    pub end: Time,
    /// Everything that it does after is in the next.
    pub next_start: Time,
    /// How long the target was held.
    pub held: Duration,
}

/// A way to find out which pages were touched.
pub trait Backend {
    /// Its name in manifests.
    fn name(&self) -> &'static str;

    /// Closes an interval: brings what was touched since the last boundary and begins the next
    /// interval. `None` means that the target did not stand still in time and runs on: the interval
    /// goes on too, nothing is lost.
    fn close_interval(&mut self, harvest: &mut Harvest) -> Result<Option<Boundary>, RecordError>;
}
