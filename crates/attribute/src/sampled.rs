//! Samples get their objects: the innermost one that lay at the address when the sample was taken.

use std::collections::{BTreeMap, BinaryHeap, HashMap};

use varve_model::{Address, ObjectId, Pid, Time};
use varve_trace::tables::{ObjectRow, Row, SampleRow};
use varve_trace::{Destination, TableWriter, Trace, TraceError};

/// An object that a sample may lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Life {
    born: Time,
    died: Time,
    pid: Pid,
    layer: u32,
    start: u64,
    end: u64,
    object: ObjectId,
}

/// Gathers the objects in which samples may lie, then names them. Memory follows the samples, not the objects.
pub(crate) struct Sampled<'a> {
    trace: &'a Trace,
    /// The sampled addresses of each process, sorted.
    addresses: HashMap<Pid, Vec<u64>>,
    lives: Vec<Life>,
    any: bool,
}

impl<'a> Sampled<'a> {
    /// Reads where samples lie.
    pub(crate) fn new(trace: &'a Trace) -> Result<Self, TraceError> {
        let mut addresses: HashMap<Pid, Vec<u64>> = HashMap::new();
        let mut any = false;
        for rows in trace.batches::<SampleRow>()? {
            for row in rows? {
                any = true;
                if let Some(address) = row.address {
                    addresses.entry(row.pid).or_default().push(address.0);
                }
            }
        }
        for known in addresses.values_mut() {
            known.sort_unstable();
            known.dedup();
        }
        Ok(Sampled {
            trace,
            addresses,
            lives: Vec::new(),
            any,
        })
    }

    /// Keeps those of the objects in which a sample lies.
    pub(crate) fn meet(&mut self, objects: &[ObjectRow]) {
        for row in objects {
            let Some(known) = self.addresses.get(&row.pid) else {
                continue;
            };
            let end = row.address.0.saturating_add(row.bytes.0);
            let first = known.partition_point(|address| *address < row.address.0);
            if known.get(first).is_some_and(|address| *address < end) {
                self.lives.push(Life {
                    born: row.born_ns,
                    died: row.died_ns.unwrap_or(Time(u64::MAX)),
                    pid: row.pid,
                    layer: row.layer,
                    start: row.address.0,
                    end,
                    object: row.object,
                });
            }
        }
    }

    /// Writes the table of samples with their objects.
    pub(crate) fn write(mut self, to: &Destination) -> Result<(), TraceError> {
        if self.any {
            self.lives.sort_unstable();
            let mut sweep = Sweep::new(&self.lives);
            let mut table = TableWriter::<SampleRow>::create(to)?;
            for rows in self.trace.batches::<SampleRow>()? {
                let mut rows = rows?;
                for row in &mut rows {
                    row.object = row
                        .address
                        .and_then(|address| sweep.owner(row.time_ns, row.pid, address));
                }
                table.append(&rows)?;
            }
            table.close()?;
        }
        to.remove_parts(SampleRow::TABLE.name)
    }
}

/// What lives, as time goes on.
struct Sweep<'a> {
    lives: &'a [Life],
    born: usize,
    now: Time,
    /// The next to die first.
    deaths: BinaryHeap<std::cmp::Reverse<(Time, usize)>>,
    /// By process, the innermost layer first: start to life.
    spaces: HashMap<Pid, BTreeMap<std::cmp::Reverse<u32>, BTreeMap<u64, usize>>>,
}

impl<'a> Sweep<'a> {
    fn new(lives: &'a [Life]) -> Self {
        Sweep {
            lives,
            born: 0,
            now: Time(0),
            deaths: BinaryHeap::new(),
            spaces: HashMap::new(),
        }
    }

    fn advance(&mut self, to: Time) {
        self.now = self.now.max(to);
        while let Some(life) = self.lives.get(self.born).filter(|l| l.born <= self.now) {
            let space = self.spaces.entry(life.pid).or_default();
            let layer = space.entry(std::cmp::Reverse(life.layer)).or_default();
            layer.insert(life.start, self.born);
            self.deaths.push(std::cmp::Reverse((life.died, self.born)));
            self.born += 1;
        }
        while let Some(std::cmp::Reverse((died, index))) = self.deaths.peek().copied() {
            if died > self.now {
                break;
            }
            self.deaths.pop();
            let life = &self.lives[index];
            if let Some(layer) = self
                .spaces
                .get_mut(&life.pid)
                .and_then(|s| s.get_mut(&std::cmp::Reverse(life.layer)))
                && layer.get(&life.start) == Some(&index)
            {
                layer.remove(&life.start);
            }
        }
    }

    /// The innermost object at the address.
    fn owner(&mut self, time: Time, pid: Pid, address: Address) -> Option<ObjectId> {
        self.advance(time);
        let layers = self.spaces.get(&pid)?;
        layers.values().find_map(|layer| {
            // Objects of one layer seldom overlap: neighbours in a structure, mappings that were seen late.
            layer
                .range(..=address.0)
                .rev()
                .take(4)
                .map(|(_, index)| &self.lives[*index])
                .find(|life| address.0 < life.end)
                .map(|life| life.object)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(object: u64, layer: u32, start: u64, end: u64, born: u64, died: u64) -> Life {
        Life {
            born: Time(born),
            died: Time(died),
            pid: Pid(1),
            layer,
            start,
            end,
            object: ObjectId(object),
        }
    }

    #[test]
    fn the_innermost_object_of_the_time_owns_an_address() {
        let mut lives = [
            life(0, 0, 0, 1000, 0, u64::MAX),
            life(1, 5, 100, 200, 10, 20),
            life(2, 5, 100, 150, 30, 40),
            life(3, 6, 0, 50, 0, u64::MAX),
        ];
        lives.sort_unstable();
        let mut sweep = Sweep::new(&lives);
        let mut at = |time, address| {
            sweep
                .owner(Time(time), Pid(1), Address(address))
                .map(|object| object.0)
        };
        assert_eq!(at(5, 120), Some(0));
        assert_eq!(at(12, 120), Some(1));
        assert_eq!(at(12, 49), Some(3));
        assert_eq!(at(20, 120), Some(0));
        assert_eq!(at(35, 120), Some(2));
        assert_eq!(at(35, 160), Some(0));
        assert_eq!(at(50, 120), Some(0));
        assert_eq!(at(50, 1000), None);
    }
}
