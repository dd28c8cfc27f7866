//! How far an object can reach: no further than what is mapped around its first byte.
//!
//! What a program says of its objects comes through memory that it can write itself. Sizes that cannot be are cut where
//! nothing is mapped any more, so that they neither hide what lies behind nor cost the work of terabytes.

use std::collections::HashMap;

use varve_model::{Bytes, ObjectKind, Pid, Time};
use varve_objects::Layer;
use varve_trace::tables::{MappingRow, ObjectRow};

/// What is smaller is not looked at: it lies in few pages.
const LARGE: u64 = 2 << 20;
/// Mappings that are looked at for one object.
const MAX_STEPS: usize = 512;

/// A mapping: first byte, end, when it was seen first and gone.
type Mapped = (u64, u64, Time, Time);

struct Process {
    /// In the order of their addresses.
    mapped: Vec<Mapped>,
    /// All moments at which a mapping was seen for the first time.
    refreshes: Vec<Time>,
}

/// Cuts what cannot be.
pub(super) fn cut(rows: &mut [ObjectRow], mappings: &[MappingRow]) {
    if rows.iter().all(|r| r.bytes.0 <= LARGE) {
        return;
    }
    let mut processes: HashMap<Pid, Process> = HashMap::new();
    for row in mappings {
        let end = row.address.0.saturating_add(row.bytes.0);
        let to = row.to_ns.unwrap_or(Time(u64::MAX));
        let process = processes.entry(row.pid).or_insert_with(|| Process {
            mapped: Vec::new(),
            refreshes: Vec::new(),
        });
        process.mapped.push((row.address.0, end, row.from_ns, to));
        process.refreshes.push(row.from_ns);
    }
    for process in processes.values_mut() {
        process.mapped.sort_unstable();
        process.refreshes.sort_unstable();
        process.refreshes.dedup();
    }
    let is_reported = |layer: u32| (Layer::SITE.number()..=Layer::HEAP.number()).contains(&layer);
    for row in rows
        .iter_mut()
        .filter(|r| r.bytes.0 > LARGE && is_reported(r.layer))
    {
        if let Some(process) = processes.get(&row.pid) {
            row.bytes = row.bytes.min(process.reach(row));
        }
    }
}

impl Process {
    /// How much there is from the first byte of an object on: what is mapped without a gap at any time of its life, or up to
    /// the next mapping where the first byte lies in none that was seen.
    fn reach(&self, row: &ObjectRow) -> Bytes {
        let start = row.address.0;
        let died = row.died_ns.unwrap_or(Time(u64::MAX));
        // What was mapped within an interval is seen at its end: the first look after the end counts too.
        let next = self.refreshes.partition_point(|at| *at < died);
        let until = self.refreshes.get(next).copied().unwrap_or(Time(u64::MAX));
        let there = |m: &Mapped| m.2 <= until && m.3 > row.born_ns;
        let behind = self.mapped.partition_point(|m| m.0 <= start);
        let mut before = self.mapped[..behind].iter().rev().take(MAX_STEPS);
        let Some(first) = before.find(|m| there(m) && start < m.1) else {
            // Only what was there all the time keeps an object from reaching further.
            let stood = |m: &&Mapped| m.2 <= row.born_ns && m.3 >= died;
            let wall = self.mapped[behind..].iter().take(MAX_STEPS).find(stood);
            // A stack is mapped from its end on, and grows down to its first byte.
            let end = start.saturating_add(row.bytes.0);
            if row.kind == ObjectKind::Stack && wall.is_some_and(|m| m.1 >= end) {
                return row.bytes;
            }
            return Bytes(wall.map_or(u64::MAX, |m| m.0 - start));
        };
        let mut end = first.1;
        // Another one that holds the first byte may reach further.
        for m in before.filter(|m| there(m)) {
            end = end.max(m.1);
        }
        for (steps, m) in self.mapped[behind..].iter().enumerate() {
            if m.0 > end || end - start >= row.bytes.0 {
                break;
            }
            if steps == MAX_STEPS {
                return row.bytes;
            }
            if there(m) {
                end = end.max(m.1);
            }
        }
        Bytes(end - start)
    }
}

#[cfg(test)]
mod tests {
    use varve_model::{Address, ObjectId};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn mapping(first: u64, mib: u64, from: u64, to: Option<u64>) -> MappingRow {
        MappingRow {
            pid: Pid(1),
            address: Address(first * MIB),
            bytes: Bytes(mib * MIB),
            perms: "rw-p".into(),
            offset: 0,
            path: String::new(),
            device: "00:00".into(),
            inode: 0,
            build_id: None,
            from_ns: Time(from),
            to_ns: to.map(Time),
        }
    }

    fn cut_to(first: u64, bytes: u64, life: (u64, Option<u64>), mappings: &[MappingRow]) -> u64 {
        let mut rows = [row(first, bytes, life)];
        cut(&mut rows, mappings);
        rows[0].bytes.0
    }

    fn row(first: u64, bytes: u64, life: (u64, Option<u64>)) -> ObjectRow {
        ObjectRow {
            object: ObjectId(0),
            pid: Pid(1),
            kind: ObjectKind::Heap,
            name: String::new(),
            site: None,
            address: Address(first * MIB),
            bytes: Bytes(bytes),
            born_ns: Time(life.0),
            died_ns: life.1.map(Time),
            tid: None,
            pool: false,
            layer: Layer::HEAP.number(),
            continues: None,
        }
    }

    #[test]
    fn a_stack_is_mapped_from_its_end_on() {
        let stack = |mappings: &[MappingRow]| {
            let mut rows = [row(20, 8 * MIB, (5, None))];
            rows[0].kind = ObjectKind::Stack;
            cut(&mut rows, mappings);
            rows[0].bytes.0
        };
        assert_eq!(stack(&[mapping(27, 1, 0, None)]), 8 * MIB);
        // What lies within it all the time is another's.
        assert_eq!(
            stack(&[mapping(24, 1, 0, None), mapping(27, 1, 0, None)]),
            4 * MIB
        );
    }

    #[test]
    fn an_object_ends_where_nothing_is_mapped() {
        let rows = [
            mapping(10, 4, 0, None),
            mapping(14, 2, 0, None),
            mapping(40, 4, 0, None),
        ];
        assert_eq!(cut_to(11, u64::MAX, (5, None), &rows), 5 * MIB);
        assert_eq!(cut_to(11, 3 * MIB, (5, None), &rows), 3 * MIB);
        // Where nothing was seen it may have been mapped between two refreshes, but not over what stood.
        assert_eq!(cut_to(20, u64::MAX, (5, Some(6)), &rows), 20 * MIB);
        assert_eq!(cut_to(20, 8 * MIB, (5, Some(6)), &rows), 8 * MIB);
    }

    #[test]
    fn what_the_next_look_found_counts() {
        // The heap grew after the look at 10, and the look at 20 saw it.
        let rows = [mapping(10, 4, 10, Some(20)), mapping(10, 16, 20, None)];
        assert_eq!(cut_to(12, 12 * MIB, (11, Some(12)), &rows), 12 * MIB);
        assert_eq!(cut_to(12, u64::MAX, (11, Some(12)), &rows), 14 * MIB);
        // What came much later does not.
        let rows = [
            mapping(10, 4, 10, Some(20)),
            mapping(70, 4, 20, None),
            mapping(10, 16, 30, None),
        ];
        assert_eq!(cut_to(12, 12 * MIB, (11, Some(12)), &rows), 2 * MIB);
    }
}
