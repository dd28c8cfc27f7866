//! Which rows of the table of objects are one object: those that are one memory in several processes, and those that came
//! of another when it grew, shrank or moved.

use std::collections::hash_map::Entry as Known;
use std::collections::{BTreeMap, HashMap, HashSet};

use varve_model::{Address, Bytes, ObjectId, ObjectKind, PAGE_BYTES, Pid, Time};
use varve_objects::{Layer, Span};
use varve_trace::Trace;
use varve_trace::tables::ObjectRow;

use super::Memory;
use super::maps::Entry;

/// The objects of a trace, each once.
#[derive(Default)]
pub struct Objects {
    /// As a person would describe them: the process that had it first, its address there, its largest size, its whole
    /// life.
    pub rows: Vec<ObjectRow>,
    /// Where and when their parts lie in memory; the process of a span may be a space.
    pub spans: Vec<Span>,
    /// The object of each span, by position.
    pub of_span: Vec<u32>,
    /// Where each object lies in memory, all of its parts in that space together.
    pub places: Vec<Span>,
    /// Each row of the table by its number: the object that it is.
    aliases: HashMap<ObjectId, u32>,
}

/// What of a row lies in which space: its address there.
struct Part {
    space: Option<Pid>,
    address: u64,
    bytes: u64,
}

impl Objects {
    pub(super) fn new(rows: Vec<ObjectRow>, memory: &mut Memory) -> Objects {
        let mut union = Union::new(rows.len());
        lineages(&rows, &mut union, memory);
        let index = SpaceIndex::new(memory);
        let parts: Vec<Option<Vec<Part>>> = rows.iter().map(|row| index.parts(row)).collect();
        join_shared(&rows, &parts, &mut union);
        Objects::gather(rows, parts, union)
    }

    /// The object of a row of the table, by position.
    pub fn position(&self, object: ObjectId) -> Option<u32> {
        self.aliases.get(&object).copied()
    }

    /// Which objects are chosen, where not all are: those of which any row of the table is.
    pub(crate) fn chosen(&self, trace: &Trace) -> Option<Vec<bool>> {
        let wanted = trace.selection()?.objects.as_ref()?;
        let mut chosen = vec![false; self.places.len()];
        let positions = wanted.iter().filter_map(|o| self.position(*o));
        for position in positions {
            chosen[position as usize] = true;
        }
        Some(chosen)
    }

    /// Each row of the table, in the order of their numbers, and the position of the object that it is.
    pub(crate) fn positions(&self) -> Vec<(ObjectId, u32)> {
        let mut all: Vec<(ObjectId, u32)> = self.aliases.iter().map(|(o, p)| (*o, *p)).collect();
        all.sort_unstable();
        all
    }

    /// Whether an object lies in memory that several processes may map, or that moved.
    pub(crate) fn is_shared(&self, object: u32) -> bool {
        let place = self.places.get(object as usize);
        place.is_some_and(|p| super::is_space(p.pid))
    }

    fn gather(rows: Vec<ObjectRow>, parts: Vec<Option<Vec<Part>>>, mut union: Union) -> Objects {
        let mut all = Objects::default();
        let mut positions: HashMap<u32, u32> = HashMap::new();
        let mut members: Vec<u32> = Vec::new();
        let mut known: HashMap<(u32, u8, Pid, u64, u64), usize> = HashMap::new();
        let mut spaces: HashSet<Pid> = HashSet::new();
        for (i, (row, parts)) in rows.into_iter().zip(parts).enumerate() {
            let root = union.find(i as u32);
            let next = all.rows.len() as u32;
            let position = *positions.entry(root).or_insert(next);
            let of_row = Span::of(&row);
            all.aliases.insert(row.object, position);
            if position == next {
                all.rows.push(row);
                all.places.push(Span {
                    bytes: Bytes(0),
                    ..of_row
                });
                members.push(0);
            } else {
                extend(&mut all.rows[position as usize], row);
            }
            members[position as usize] += 1;
            let own = [Part {
                space: None,
                address: of_row.address.0,
                bytes: of_row.bytes.0,
            }];
            let shared = parts.is_some();
            for part in parts.as_deref().unwrap_or(&own) {
                spaces.extend(part.space);
                let mut span = of_row;
                span.pid = part.space.unwrap_or(span.pid);
                span.address = Address(part.address);
                span.bytes = Bytes(part.bytes);
                stretch(&mut all.places[position as usize], &span, part.space);
                // The same in many processes is in one place once.
                if let Some(space) = part.space.filter(|_| shared) {
                    let layer = span_layer(&span);
                    match known.entry((position, layer, space, part.address, part.bytes)) {
                        Known::Occupied(at) => {
                            let of: &mut Span = &mut all.spans[*at.get()];
                            of.born = of.born.min(span.born);
                            of.died = of.died.max(span.died);
                            continue;
                        }
                        Known::Vacant(at) => at.insert(all.spans.len()),
                    };
                }
                all.spans.push(span);
                all.of_span.push(position);
            }
        }
        // What is in several processes, or grew, is as large as all the places it ever had together; of copies, which each
        // process has for itself, the largest counts.
        let mut places: HashMap<(u32, Pid), (u64, u64)> = HashMap::new();
        for (span, &position) in all.spans.iter().zip(&all.of_span) {
            if members[position as usize] > 1 {
                let (first, end) = (span.address.0, span.address.0.saturating_add(span.bytes.0));
                let place = places.entry((position, span.pid)).or_insert((first, end));
                *place = (place.0.min(first), place.1.max(end));
            }
        }
        let mut sizes: HashMap<u32, (u64, u64)> = HashMap::new();
        for ((position, space), (first, end)) in places {
            let (shared, copies) = sizes.entry(position).or_default();
            if spaces.contains(&space) {
                *shared = shared.saturating_add(end - first);
            } else {
                *copies = (*copies).max(end - first);
            }
        }
        for (position, (shared, copies)) in sizes {
            let row = &mut all.rows[position as usize];
            row.bytes = row.bytes.max(Bytes(shared.saturating_add(copies)));
        }
        all
    }
}

fn span_layer(span: &Span) -> u8 {
    span.layer.number() as u8
}

/// One more row of the same object.
fn extend(known: &mut ObjectRow, row: ObjectRow) {
    let died = known.died_ns.zip(row.died_ns).map(|(a, b)| a.max(b));
    if (row.born_ns, row.object) < (known.born_ns, known.object) {
        *known = row;
    }
    known.died_ns = died;
}

/// One more part of a place; parts in other spaces do not count where some are in a space of their own.
fn stretch(place: &mut Span, part: &Span, space: Option<Pid>) {
    let known = super::is_space(place.pid);
    if place.bytes.0 == 0 || (space.is_some() && !known) {
        (place.pid, place.address, place.bytes) = (part.pid, part.address, part.bytes);
    } else if place.pid == part.pid {
        let first = place.address.0.min(part.address.0);
        let end = |s: &Span| s.address.0.saturating_add(s.bytes.0);
        let end = end(place).max(end(part));
        (place.address, place.bytes) = (Address(first), Bytes(end - first));
    }
    place.born = place.born.min(part.born);
    place.died = place.died.max(part.died);
}

/// Joins what came of one another. What moved gets a space, so that a page is the same wherever it went.
fn lineages(rows: &[ObjectRow], union: &mut Union, memory: &mut Memory) {
    if rows.iter().all(|r| r.continues.is_none()) {
        return;
    }
    let index: HashMap<ObjectId, usize> =
        rows.iter().zip(0..).map(|(r, i)| (r.object, i)).collect();
    // Where a row begins in the space of its family, and whether any of them moved.
    let mut begins: Vec<u64> = rows.iter().map(|r| r.address.0).collect();
    let mut moved: Vec<u32> = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let before = row.continues.and_then(|id| index.get(&id)).copied();
        let Some((before, of)) = before.filter(|b| *b < i).map(|b| (b, &rows[b])) else {
            continue;
        };
        if of.pid != row.pid {
            continue;
        }
        union.join(before as u32, i as u32);
        let end = of.address.0.saturating_add(of.bytes.0);
        let grew = row.kind == ObjectKind::Heap && row.address.0 == end;
        let within = (of.address.0..end).contains(&row.address.0);
        begins[i] = match grew || within {
            true => begins[before].wrapping_add(row.address.0 - of.address.0),
            false => {
                moved.push(i as u32);
                begins[before]
            }
        };
    }
    let moved: std::collections::HashSet<u32> = moved.iter().map(|&i| union.find(i)).collect();
    let mut spaces: HashMap<u32, Pid> = HashMap::new();
    for (i, row) in rows.iter().enumerate() {
        let root = union.find(i as u32);
        if !moved.contains(&root) {
            continue;
        }
        let space = match spaces.get(&root) {
            Some(space) => *space,
            None => memory.new_space(),
        };
        spaces.insert(root, space);
        memory
            .maps
            .entry(row.pid.0)
            .or_default()
            .entries
            .push(Entry {
                first: row.address.0 / PAGE_BYTES,
                end: row
                    .address
                    .0
                    .saturating_add(row.bytes.0)
                    .div_ceil(PAGE_BYTES),
                from: row.born_ns,
                to: row.died_ns.unwrap_or(Time(u64::MAX)),
                memory: Some((space, begins[i] / PAGE_BYTES)),
                exact: true,
            });
    }
}

/// Where other memory than a process's own is mapped, at any time.
struct SpaceIndex<'a> {
    memory: &'a Memory,
    by_process: HashMap<u32, Placed>,
}

struct Placed {
    /// All, in the order of addresses.
    entries: Vec<Entry>,
    /// Addresses that stood for other memory at any time, joined, as pages.
    covered: Vec<(u64, u64)>,
}

impl<'a> SpaceIndex<'a> {
    fn new(memory: &'a Memory) -> SpaceIndex<'a> {
        let mut by_process = HashMap::new();
        for (&pid, maps) in &memory.maps {
            let mut entries = maps.entries.clone();
            entries.sort_by_key(|e| (e.first, e.from));
            let mut covered: Vec<(u64, u64)> = Vec::new();
            for e in entries.iter().filter(|e| e.memory.is_some()) {
                match covered.last_mut() {
                    Some(last) if e.first <= last.1 => last.1 = last.1.max(e.end),
                    _ => covered.push((e.first, e.end)),
                }
            }
            by_process.insert(pid, Placed { entries, covered });
        }
        SpaceIndex { memory, by_process }
    }

    /// What of a row lies in other memory than its process's own, and what is left; None where all is its own.
    fn parts(&self, row: &ObjectRow) -> Option<Vec<Part>> {
        let placed = self.by_process.get(&self.memory.mapped_as(row.pid))?;
        let (start, stop) = (row.address.0, row.address.0.checked_add(row.bytes.0)?);
        let (first, end) = (start / PAGE_BYTES, stop.div_ceil(PAGE_BYTES));
        let at = placed.covered.partition_point(|c| c.1 <= first);
        placed.covered.get(at).filter(|c| c.0 < end)?;
        let born = row.born_ns;
        let died = row.died_ns.unwrap_or(Time(u64::MAX));
        let died = died.max(Time(born.0.saturating_add(1)));
        // An address may have stood for several things: for this object it is that which was there longest with it.
        let together = |e: &Entry| died.0.min(e.to.0).saturating_sub(born.0.max(e.from.0));
        let until = placed.entries.partition_point(|e| e.first < end);
        let over = |e: &&Entry| first < e.end && together(e) > 0;
        let mut near: Vec<&Entry> = placed.entries[..until].iter().filter(over).collect();
        near.sort_by_key(|e| (!e.exact, std::cmp::Reverse(together(e)), e.first));
        let mut free = vec![(start, stop)];
        let mut parts = Vec::new();
        for e in near {
            let (low, high) = (e.first * PAGE_BYTES, e.end.saturating_mul(PAGE_BYTES));
            let mut rest = Vec::new();
            for (from, to) in free {
                let (a, b) = (from.max(low), to.min(high));
                if a >= b {
                    rest.push((from, to));
                    continue;
                }
                let (space, address) = match e.memory {
                    Some((space, memory)) => {
                        let address = memory.wrapping_mul(PAGE_BYTES).wrapping_add(a - low);
                        (Some(space), address)
                    }
                    None => (None, a),
                };
                parts.push(Part {
                    space,
                    address,
                    bytes: b - a,
                });
                rest.extend([(from, a), (b, to)].into_iter().filter(|(x, y)| x < y));
            }
            free = rest;
        }
        let own = free.iter().map(|&(from, to)| Part {
            space: None,
            address: from,
            bytes: to - from,
        });
        parts.extend(own);
        parts.sort_by_key(|p| (p.space, p.address));
        // Mappings of one file, side by side in memory and in the file, are one part.
        parts.dedup_by(|next, last| {
            let joined =
                next.space == last.space && last.address.wrapping_add(last.bytes) == next.address;
            if joined {
                last.bytes += next.bytes;
            }
            joined
        });
        parts.iter().any(|p| p.space.is_some()).then_some(parts)
    }
}

/// A range of a memory and the row that has it: first byte, end, position of the row.
type RowRange = (u64, u64, u32);

/// Joins rows of several processes, or lives, that are one memory. What processes asked for, or map as a whole, is one
/// wherever it overlaps; what lies within is one where it is all the same.
fn join_shared(rows: &[ObjectRow], parts: &[Option<Vec<Part>>], union: &mut Union) {
    let mut same: HashMap<(Pid, u64, u64, u32, &str), u32> = HashMap::new();
    let mut outer: BTreeMap<(Pid, u32), Vec<RowRange>> = BTreeMap::new();
    for ((row, parts), i) in rows.iter().zip(parts).zip(0..) {
        let parts = parts.as_deref().unwrap_or_default();
        // What is a process's own in part is not the same memory as another's.
        let [part, ..] = parts else { continue };
        let (Some(space), true) = (part.space, parts.iter().all(|p| p.space.is_some())) else {
            continue;
        };
        let is_outer = [Layer::MAPPING, Layer::SITE]
            .iter()
            .any(|l| l.number() == row.layer);
        // Files that are mapped as they are have their names; what has a name in each process may have several.
        if is_outer {
            let end = part.address.saturating_add(part.bytes);
            outer
                .entry((space, row.layer))
                .or_default()
                .push((part.address, end, i));
        }
        let key = (
            space,
            part.address,
            part.bytes,
            row.layer,
            row.name.as_str(),
        );
        let first = *same.entry(key).or_insert(i);
        union.join(first, i);
    }
    for list in outer.values_mut() {
        list.sort_unstable();
        let mut open: Option<(u64, u32)> = None;
        for &(start, end, i) in &*list {
            match &mut open {
                Some((until, first)) if start < *until => {
                    *until = (*until).max(end);
                    union.join(*first, i);
                }
                _ => open = Some((end, i)),
            }
        }
    }
}

/// Sets of rows; the root of a set is its first row.
struct Union {
    parents: Vec<u32>,
}

impl Union {
    fn new(rows: usize) -> Union {
        Union {
            parents: (0..rows as u32).collect(),
        }
    }

    fn find(&mut self, i: u32) -> u32 {
        let mut at = i;
        while self.parents[at as usize] != at {
            let up = self.parents[at as usize];
            self.parents[at as usize] = self.parents[up as usize];
            at = up;
        }
        at
    }

    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.find(a), self.find(b));
        if a != b {
            let (first, second) = (a.min(b), a.max(b));
            self.parents[second as usize] = first;
        }
    }
}
