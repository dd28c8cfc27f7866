//! What the kernel moved between tiers of memory while the program ran: promoted, demoted, migrated, swapped, compressed and refaulted pages,
//! and what NUMA balancing did. Totals since the beginning of the recording, of the machine and of each node where there are several, as
//! counters; a counter has a row only where it has changed.
//!
//! Sources: `/proc/vmstat` and `/sys/devices/system/node/nodeN/{vmstat,meminfo}`.

use std::collections::HashMap;

use varve_model::{Duration, Time};
use varve_sys::{TierCounter, tier_counters};
use varve_trace::tables::CounterRow;

use super::{Closed, Kind, Probe, Setup, Started, load_nothing};
use crate::RecordError;
use crate::state::State;

pub(crate) const KIND: Kind = Kind {
    load: load_nothing,
    start,
};

/// How often they are read at most: that takes some 50 µs.
const READ_EVERY: Duration = Duration(100_000_000);

fn start(setup: &mut Setup<'_>) -> Result<Started, RecordError> {
    if !setup.options.scans() {
        return Ok(None);
    }
    Ok(Some(Box::new(Tiering {
        began: tier_counters().into_iter().collect(),
        last: HashMap::new(),
        read: Time(0),
    })))
}

/// The probe.
struct Tiering {
    began: HashMap<TierCounter, i64>,
    /// What was written last.
    last: HashMap<TierCounter, i64>,
    read: Time,
}

impl Probe for Tiering {
    fn closed(&mut self, closed: &Closed<'_>, state: &mut State) {
        if closed.end.0.saturating_sub(self.read.0) < READ_EVERY.0 {
            return;
        }
        self.read = closed.end;
        for (counter, now) in tier_counters() {
            // What is free is no total.
            let value = match counter.name.as_str() {
                "free_bytes" => now,
                _ => now - self.began.get(&counter).copied().unwrap_or(now),
            };
            if self.last.get(&counter).copied().unwrap_or(0) == value {
                continue;
            }
            state.tables.counters.push(CounterRow {
                time_ns: closed.end,
                node: counter.node.map(u32::cast_signed),
                name: counter.name.clone(),
                value,
            });
            self.last.insert(counter, value);
        }
    }
}
