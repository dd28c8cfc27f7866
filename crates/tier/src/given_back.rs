//! When memory was given back to the kernel: where a mapping ends and no other lies there.
//!
//! What a program unmaps and maps again within one interval counts as the same memory. Heap that is freed and that its allocator
//! keeps is not given back.

use std::collections::{BTreeMap, HashMap};

use varve_model::{PAGE_BYTES, Pid, Time};
use varve_objects::{Layer, Span};

/// Mappings beyond this are not followed.
const MAX_MAPPINGS: usize = 200_000;
/// Nor is more work done for them than this.
const MAX_STEPS: u64 = 50_000_000;
/// Pages of a table of tables: 1 GiB.
const REGION: u64 = 1 << 18;

/// A mapping begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    time: Time,
    ends: bool,
    pid: Pid,
    first: u64,
    end: u64,
}

/// How many mappings lie on which pages: the end of a range and their number, by its first page.
#[derive(Default)]
struct Cover(BTreeMap<u64, (u64, u32)>);

impl Cover {
    /// Makes a boundary at a page.
    fn cut(&mut self, at: u64) {
        let Some((&first, &(end, count))) = self.0.range(..at).next_back() else {
            return;
        };
        if end > at {
            self.0.insert(first, (at, count));
            self.0.insert(at, (end, count));
        }
    }

    /// Adds a mapping, or takes one away; says how many ranges that was.
    fn add(&mut self, first: u64, end: u64, ends: bool) -> u64 {
        self.cut(first);
        self.cut(end);
        let mut at = first;
        let mut steps = 1;
        while at < end {
            steps += 1;
            let next = self.0.range(at..end).next().map(|(f, of)| (*f, *of));
            match next {
                Some((from, (until, count))) if from == at => {
                    match (count, ends) {
                        (_, false) => {
                            self.0.insert(from, (until, count + 1));
                        }
                        (0 | 1, true) => {
                            self.0.remove(&from);
                        }
                        (_, true) => {
                            self.0.insert(from, (until, count - 1));
                        }
                    }
                    at = until;
                }
                next => {
                    let until = next.map_or(end, |(from, _)| from);
                    if !ends {
                        self.0.insert(at, (until, 1));
                    }
                    at = until;
                }
            }
        }
        steps
    }

    /// Calls `each` with the parts of a range on which nothing lies.
    fn gaps(&self, first: u64, end: u64, mut each: impl FnMut(u64, u64)) -> u64 {
        let mut at = first;
        let mut steps = 1;
        if let Some((_, &(until, _))) = self.0.range(..=first).next_back() {
            at = at.max(until);
        }
        for (&from, &(until, _)) in self.0.range(at.min(end)..end) {
            steps += 1;
            if at < from {
                each(at, from);
            }
            at = until;
        }
        if at < end {
            each(at, end);
        }
        steps
    }
}

/// Says in the order of time what was given back.
pub(crate) struct GivenBack {
    events: std::iter::Peekable<std::vec::IntoIter<Event>>,
    covers: HashMap<Pid, Cover>,
    steps: u64,
    /// Whether all mappings were followed so far.
    pub(crate) is_known: bool,
}

impl GivenBack {
    /// Of the objects of a trace.
    pub(crate) fn new(spans: &[Span]) -> GivenBack {
        let is_mapping = |s: &&Span| s.layer <= Layer::SITE && s.bytes.0 > 0;
        let is_known = spans.iter().filter(is_mapping).count() <= MAX_MAPPINGS;
        let mut events = Vec::new();
        for span in spans.iter().filter(is_mapping).filter(|_| is_known) {
            let event = Event {
                time: span.born,
                ends: false,
                pid: span.pid,
                first: span.address.0 / PAGE_BYTES,
                end: span
                    .address
                    .0
                    .saturating_add(span.bytes.0)
                    .div_ceil(PAGE_BYTES),
            };
            events.push(event);
            if span.died != Span::FOREVER {
                events.push(Event {
                    time: span.died.max(span.born),
                    ends: true,
                    ..event
                });
            }
        }
        events.sort_unstable();
        GivenBack {
            events: events.into_iter().peekable(),
            covers: HashMap::new(),
            steps: 0,
            is_known,
        }
    }

    /// Calls `each` with the pages of a process that were given back until then and since the last call.
    pub(crate) fn until(&mut self, until: Time, mut each: impl FnMut(Pid, u64, u64)) {
        let mut ended = Vec::new();
        while let Some(event) = self.events.next_if(|e| e.time <= until) {
            if self.steps > MAX_STEPS {
                self.is_known = false;
                return;
            }
            let cover = self.covers.entry(event.pid).or_default();
            self.steps += cover.add(event.first, event.end, event.ends);
            if event.ends {
                ended.push((event.pid, event.first, event.end));
            }
        }
        for (pid, first, end) in ended {
            if self.steps > MAX_STEPS {
                self.is_known = false;
                return;
            }
            let Some(cover) = self.covers.get(&pid) else {
                continue;
            };
            let mut regions = 0;
            self.steps += cover.gaps(first, end, |first, end| {
                regions += (end - first) / REGION;
                each(pid, first, end);
            });
            self.steps += regions;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use varve_model::{Address, Bytes};

    use super::*;

    proptest! {
        /// Against a count for each page.
        #[test]
        fn what_nothing_covers_is_given_back(
            lives in prop::collection::vec((0..40_u64, 1..12_u64, 0..20_u64, 0..12_u64), 0..20),
        ) {
            let spans: Vec<Span> = lives.iter().map(|&(first, pages, born, life)| Span {
                pid: Pid(1),
                layer: Layer::SITE,
                address: Address(first << 12),
                bytes: Bytes(pages << 12),
                born: Time(born),
                died: Time(born + life),
            }).collect();
            let mut back = GivenBack::new(&spans);
            for now in 0..40 {
                let mut found = [false; 60];
                back.until(Time(now), |_, first, end| {
                    found[first as usize..end as usize].fill(true);
                });
                for page in 0..60_u64 {
                    let on = |s: &&Span| (s.address.0 >> 12..(s.address.0 + s.bytes.0) >> 12).contains(&page);
                    let ended = spans.iter().filter(on).any(|s| s.died.0 == now);
                    let covered = spans.iter().filter(on).any(|s| s.born.0 <= now && s.died.0 > now);
                    prop_assert_eq!(found[page as usize], ended && !covered, "page {} at {}", page, now);
                }
            }
        }
    }
}
