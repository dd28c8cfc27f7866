//! What lives where, as maps, unmaps, forks and execs are heard of.

use std::collections::{BTreeMap, HashMap};

use varve_model::{Address, Bytes, ObjectId, ObjectKind, Pid, SiteId, Tid, Time};
use varve_objects::{Layer, Span};
use varve_trace::tables::ObjectRow;

/// An object that is about to be.
#[derive(Clone, Debug)]
pub(crate) struct Birth {
    pub(crate) pid: Pid,
    pub(crate) kind: ObjectKind,
    pub(crate) name: String,
    pub(crate) address: Address,
    pub(crate) bytes: Bytes,
    pub(crate) born: Time,
    pub(crate) site: Option<SiteId>,
    pub(crate) tid: Option<Tid>,
}

/// All objects so far. A number is a position in both lists.
#[derive(Default)]
pub(crate) struct Objects {
    spans: Vec<Span>,
    rows: Vec<ObjectRow>,
    /// Mappings that live, by process and first byte: end and number.
    mapped: HashMap<Pid, BTreeMap<u64, (u64, usize)>>,
    /// Objects that have no place, by process and name.
    named: HashMap<(Pid, String), usize>,
}

impl Objects {
    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    pub(crate) fn rows(&self) -> &[ObjectRow] {
        &self.rows
    }

    /// An object that lies in others and takes no other's place.
    pub(crate) fn add(&mut self, birth: Birth, layer: Layer) -> usize {
        let number = self.rows.len();
        self.spans.push(Span {
            pid: birth.pid,
            layer,
            address: birth.address,
            bytes: birth.bytes,
            born: birth.born,
            died: Span::FOREVER,
        });
        self.rows.push(ObjectRow {
            object: ObjectId(number as u64),
            pid: birth.pid,
            kind: birth.kind,
            name: birth.name,
            site: birth.site,
            address: birth.address,
            bytes: birth.bytes,
            born_ns: birth.born,
            died_ns: None,
            tid: birth.tid,
            pool: false,
            layer: layer.number(),
            continues: None,
        });
        number
    }

    /// An object of which only the name is known.
    pub(crate) fn named(&mut self, pid: Pid, name: &str, kind: ObjectKind, born: Time) -> ObjectId {
        if let Some(&number) = self.named.get(&(pid, name.to_owned())) {
            return ObjectId(number as u64);
        }
        let birth = Birth {
            pid,
            kind,
            name: name.to_owned(),
            address: Address(0),
            bytes: Bytes(0),
            born,
            site: None,
            tid: None,
        };
        let number = self.add(birth, Layer::of(kind, false));
        self.named.insert((pid, name.to_owned()), number);
        ObjectId(number as u64)
    }

    /// A mapping; what was mapped there before ends.
    pub(crate) fn map(&mut self, birth: Birth) -> Option<usize> {
        let layer = Layer::of(birth.kind, false);
        self.unmap(birth.pid, birth.address, birth.bytes, birth.born);
        if birth.bytes.0 == 0 {
            return None;
        }
        let (pid, start) = (birth.pid, birth.address.0);
        let end = start.saturating_add(birth.bytes.0);
        let number = self.add(birth, layer);
        let mapped = self.mapped.entry(pid).or_default();
        mapped.insert(start, (end, number));
        Some(number)
    }

    /// Whatever is mapped there ends; what a mapping has on either side lives on as a mapping of its own.
    pub(crate) fn unmap(&mut self, pid: Pid, address: Address, bytes: Bytes, at: Time) {
        let (start, end) = (address.0, address.0.saturating_add(bytes.0));
        let Some(mapped) = self.mapped.get_mut(&pid) else {
            return;
        };
        let mut over: Vec<(u64, u64, usize)> = Vec::new();
        for (&first, &(last, number)) in mapped.range(..end).rev() {
            if last <= start {
                break;
            }
            over.push((first, last, number));
        }
        for (first, _, _) in &over {
            mapped.remove(first);
        }
        for (first, last, number) in over {
            self.end(number, at);
            for (from, to) in [(first, start.min(last)), (end.max(first), last)] {
                if from >= to {
                    continue;
                }
                let row = &self.rows[number];
                let rest = Birth {
                    pid,
                    kind: row.kind,
                    name: row.name.clone(),
                    address: Address(from),
                    bytes: Bytes(to - from),
                    born: at,
                    site: row.site,
                    tid: row.tid,
                };
                let layer = self.spans[number].layer;
                let piece = self.add(rest, layer);
                let mapped = self.mapped.entry(pid).or_default();
                mapped.insert(from, (to, piece));
            }
        }
    }

    /// A new process has what its parent had.
    pub(crate) fn fork(&mut self, parent: Pid, child: Pid, at: Time) {
        let of_parent: Vec<usize> = match self.mapped.get(&parent) {
            Some(mapped) if parent != child => mapped.values().map(|(_, number)| *number).collect(),
            _ => return,
        };
        for number in of_parent {
            let row = &self.rows[number];
            let copy = Birth {
                pid: child,
                kind: row.kind,
                name: row.name.clone(),
                address: row.address,
                bytes: row.bytes,
                born: at,
                site: row.site,
                tid: row.tid,
            };
            self.map(copy);
        }
    }

    /// Everything of a process ends: it has another program, or none.
    pub(crate) fn clear(&mut self, pid: Pid, at: Time) {
        for (_, number) in self.mapped.remove(&pid).unwrap_or_default().into_values() {
            self.end(number, at);
        }
    }

    fn end(&mut self, number: usize, at: Time) {
        // Not before it began, however the records are ordered.
        let at = at.max(self.spans[number].born);
        self.spans[number].died = at;
        self.rows[number].died_ns = Some(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn birth(name: &str, start: u64, end: u64, at: u64) -> Birth {
        Birth {
            pid: Pid(1),
            kind: ObjectKind::Mapping,
            name: name.to_owned(),
            address: Address(start),
            bytes: Bytes(end - start),
            born: Time(at),
            site: None,
            tid: None,
        }
    }

    fn alive(objects: &Objects, pid: u32) -> Vec<(String, u64, u64)> {
        let rows = objects
            .rows()
            .iter()
            .filter(|r| r.pid == Pid(pid) && r.died_ns.is_none());
        let mut rows: Vec<_> = rows
            .map(|r| (r.name.clone(), r.address.0, r.address.0 + r.bytes.0))
            .collect();
        rows.sort_by_key(|r| r.1);
        rows
    }

    fn list(of: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
        of.iter().map(|(n, a, b)| (n.to_string(), *a, *b)).collect()
    }

    #[test]
    fn a_mapping_takes_the_place_of_what_it_covers() {
        let mut objects = Objects::default();
        objects.map(birth("a", 0x1000, 0x9000, 1));
        objects.map(birth("b", 0x3000, 0x4000, 2));
        assert_eq!(
            alive(&objects, 1),
            list(&[
                ("a", 0x1000, 0x3000),
                ("b", 0x3000, 0x4000),
                ("a", 0x4000, 0x9000)
            ])
        );
        objects.unmap(Pid(1), Address(0x2000), Bytes(0x6000), Time(3));
        assert_eq!(
            alive(&objects, 1),
            list(&[("a", 0x1000, 0x2000), ("a", 0x8000, 0x9000)])
        );
        objects.map(birth("c", 0, u64::MAX, 4));
        assert_eq!(alive(&objects, 1), list(&[("c", 0, u64::MAX)]));
    }

    #[test]
    fn a_child_has_its_own_copies() {
        let mut objects = Objects::default();
        objects.map(birth("a", 0x1000, 0x2000, 1));
        objects.fork(Pid(1), Pid(2), Time(5));
        objects.clear(Pid(1), Time(6));
        assert_eq!(alive(&objects, 1), list(&[]));
        assert_eq!(alive(&objects, 2), list(&[("a", 0x1000, 0x2000)]));
        objects.fork(Pid(2), Pid(2), Time(7));
        assert_eq!(alive(&objects, 2).len(), 1);
    }
}
