//! Samples by event: what other tools sample need not be accesses, and samples of several events have no sum.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Address, SiteId, visible};
use varve_trace::tables::SampleRow;

/// Places that are listed of each event.
const MAX_PLACES: usize = 200;

/// Samples of one event.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct EventSamples {
    /// The event, as the source calls it.
    pub event: String,
    /// How many.
    pub samples: u64,
    /// Those with an address: the others are no accesses.
    pub with_address: u64,
    /// How many of the event they stand for; null where the source does not say of each.
    pub periods: Option<u64>,
    /// By place in the code, most first.
    pub places: Vec<EventPlace>,
    /// Places that the list leaves out.
    pub omitted_places: u64,
}

/// Samples of an event at a place in the code.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct EventPlace {
    /// The place in words, or the address.
    pub place: String,
    /// The instruction, where one is known.
    pub ip: Option<Address>,
    /// How many.
    pub samples: u64,
    /// The part of the event, 0 to 1: of what its samples stand for, else of these.
    pub share: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    samples: u64,
    with_address: u64,
    /// Samples that say how many of the event they stand for, and for how many.
    with_period: u64,
    periods: u64,
}

impl Sum {
    fn add(&mut self, row: &SampleRow) {
        self.samples += 1;
        self.with_address += u64::from(row.address.is_some());
        self.with_period += u64::from(row.period.is_some());
        self.periods = self.periods.saturating_add(row.period.unwrap_or(0));
    }

    fn merge(&mut self, other: &Sum) {
        self.samples += other.samples;
        self.with_address += other.with_address;
        self.with_period += other.with_period;
        self.periods = self.periods.saturating_add(other.periods);
    }

    fn periods(&self) -> Option<u64> {
        (self.with_period == self.samples).then_some(self.periods)
    }
}

/// By the function that a sample stood in, and its instruction.
type Places = HashMap<(Option<SiteId>, Option<Address>), Sum>;

/// Counts while they grow.
#[derive(Debug, Default)]
pub(super) struct Events(BTreeMap<String, Places>);

impl Events {
    pub(super) fn add(&mut self, row: &SampleRow) {
        let Some(event) = &row.event else { return };
        let place = (row.site, row.ip);
        match self.0.get_mut(event) {
            Some(places) => places.entry(place).or_default().add(row),
            None => {
                let places = self.0.entry(event.clone()).or_default();
                places.entry(place).or_default().add(row);
            }
        }
    }

    /// The events, those with the most samples first.
    pub(super) fn done(&self, sites: &HashMap<SiteId, String>) -> Vec<EventSamples> {
        let mut list: Vec<EventSamples> = self
            .0
            .iter()
            .map(|(event, places)| of_event(event, places, sites))
            .collect();
        list.sort_by(|a, b| {
            let by_samples = b.samples.cmp(&a.samples);
            by_samples.then_with(|| a.event.cmp(&b.event))
        });
        list
    }
}

fn of_event(event: &str, places: &Places, sites: &HashMap<SiteId, String>) -> EventSamples {
    let mut all = Sum::default();
    // An instruction is one place, whoever called its function.
    let mut by_place: BTreeMap<(String, Option<Address>), Sum> = BTreeMap::new();
    for (&(site, ip), sum) in places {
        all.merge(sum);
        let label = site.and_then(|site| sites.get(&site)).cloned();
        let label = label.filter(|label| !label.is_empty());
        let Some(place) = label.or(ip.map(|ip| ip.to_string())) else {
            continue;
        };
        by_place.entry((place, ip)).or_default().merge(sum);
    }
    let periods = all.periods().filter(|periods| *periods > 0);
    let mut list: Vec<EventPlace> = by_place
        .into_iter()
        .map(|((place, ip), sum)| {
            let (part, whole) = match periods {
                Some(periods) => (sum.periods, periods),
                None => (sum.samples, all.samples.max(1)),
            };
            EventPlace {
                place,
                ip,
                samples: sum.samples,
                share: part as f64 / whole as f64,
            }
        })
        .collect();
    list.sort_by(|a, b| {
        let by_share = b.share.total_cmp(&a.share);
        by_share.then_with(|| Reverse(a.samples).cmp(&Reverse(b.samples)))
    });
    let omitted = list.len().saturating_sub(MAX_PLACES) as u64;
    list.truncate(MAX_PLACES);
    EventSamples {
        // A file may call it anything.
        event: visible(event).into_owned(),
        samples: all.samples,
        with_address: all.with_address,
        periods: all.periods(),
        places: list,
        omitted_places: omitted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_model::{Pid, SampleSource, Time};

    fn row(event: &str, ip: u64, period: Option<u64>) -> SampleRow {
        SampleRow {
            time_ns: Time(1),
            pid: Pid(1),
            tid: None,
            cpu: None,
            ip: Some(Address(ip)),
            address: None,
            bytes: None,
            write: None,
            object: None,
            source: SampleSource::PerfMem,
            latency_cycles: None,
            level: None,
            resolved: None,
            mode: None,
            weight_ns: None,
            event: Some(event.to_owned()),
            period,
            site: None,
        }
    }

    #[test]
    fn each_event_has_its_own_shares() {
        let mut events = Events::default();
        for row in [
            row("cycles", 1, Some(300)),
            row("cycles", 2, Some(100)),
            row("cycles", 2, Some(100)),
            row("branches", 2, Some(7)),
            row("branches", 3, None),
        ] {
            events.add(&row);
        }
        let done = events.done(&HashMap::new());
        let names: Vec<_> = done
            .iter()
            .map(|e| (e.event.as_str(), e.samples, e.periods))
            .collect();
        assert_eq!(names, [("cycles", 3, Some(500)), ("branches", 2, None)]);
        // By what the samples stand for, and by their number where one of them does not say.
        let shares = |of: &EventSamples| of.places.iter().map(|p| p.share).collect::<Vec<_>>();
        assert_eq!(shares(&done[0]), [0.6, 0.4]);
        assert_eq!(shares(&done[1]), [0.5, 0.5]);
        assert_eq!(done[0].with_address, 0);
    }
}
