//! Figures that follow from those of an analysis.

use varve_model::{Capability, Duration};

use crate::analysis::{Analysis, TraceFacts};

impl Analysis {
    /// The page touches of all groups and of no object together, where they are more than all page touches: a page that
    /// several objects lie on counts in each.
    pub fn shares_of_touches(&self) -> Option<u64> {
        let groups = self.groups.iter().map(|g| g.usage.page_touches);
        let sum = groups.fold(self.unowned.page_touches, u64::saturating_add);
        // A rounded sum of 100 % needs no explanation.
        let all = self.footprint.page_touches;
        (sum.saturating_mul(200) >= all.saturating_mul(201)).then_some(sum)
    }
}

impl TraceFacts {
    /// Whether the trace has this.
    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }

    /// How long accesses were recorded: without the pauses.
    pub fn recorded_ns(&self) -> Duration {
        self.duration_ns - self.paused_ns
    }

    /// Whether intervals are longer than asked for, by more than a tenth.
    pub fn is_lengthened(&self) -> bool {
        let asked = self.interval_ns.map(|asked| asked.0);
        asked.is_some_and(|asked| self.longest_interval_ns.0 > asked.saturating_add(asked / 10))
    }
}
