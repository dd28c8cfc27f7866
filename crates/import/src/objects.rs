//! What lives where, as maps, unmaps, forks and execs are heard of.
//!
//! A process has one address space from its beginning or its last exec on. One that a fork made refers to what its parent had
//! at that time: an object of its own exists only where an address is looked up in it, since a shell with many mappings
//! has thousands of children that touch none of them.

use std::collections::{BTreeMap, HashMap};

use varve_model::{Address, Bytes, ObjectId, ObjectKind, Pid, SiteId, Tid, Time};
use varve_objects::{Layer, Span, owners_at};
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
    /// The number of the mapping that it is, or is a part of.
    pub(crate) mapping: Option<u32>,
}

/// An address space.
#[derive(Clone, Copy, Debug)]
struct Space {
    born: Time,
    died: Time,
    /// The space that a fork copied, and when.
    from: Option<(u32, Time)>,
    /// Whether anything was mapped or unmapped in it since.
    is_changed: bool,
}

/// A part of an object of an older space, as a younger one has it.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u64,
    end: u64,
    born: Time,
    died: Time,
}

/// All objects so far. A number is a position in the lists.
#[derive(Default)]
pub(crate) struct Objects {
    /// For processes they name spaces.
    spans: Vec<Span>,
    rows: Vec<ObjectRow>,
    /// The mapping that each object is, or is a part of.
    mappings: Vec<Option<u32>>,
    spaces: Vec<Space>,
    /// The spaces of each process, in the order of time.
    of_process: HashMap<Pid, Vec<u32>>,
    /// Mappings that live, by space and first byte: end and number.
    mapped: HashMap<u32, BTreeMap<u64, (u64, usize)>>,
    /// What was mapped or unmapped in spaces that a fork made, in the order of time.
    changes: HashMap<u32, Vec<(Time, u64, u64)>>,
    /// Pieces of objects of older spaces that are objects, by space, first byte and birth.
    copies: HashMap<(u32, u64, Time), usize>,
    /// Objects that have no place, by process and name.
    named: HashMap<(Pid, String), usize>,
}

impl Objects {
    pub(crate) fn rows(&self) -> &[ObjectRow] {
        &self.rows
    }

    /// The objects that are mappings or parts of them, each with the number of that.
    pub(crate) fn of_mappings(&self) -> impl Iterator<Item = (&ObjectRow, u32)> {
        let rows = self.rows.iter().zip(&self.mappings);
        rows.filter_map(|(row, mapping)| Some((row, (*mapping)?)))
    }

    /// The number of the space that a process has now.
    fn space(&mut self, pid: Pid, at: Time) -> u32 {
        let last = self.of_process.get(&pid).and_then(|all| all.last());
        match last {
            Some(&space) if self.spaces[space as usize].died == Span::FOREVER => space,
            // What it had before anything was heard of it.
            None => self.begin(pid, Time(0), None),
            Some(_) => self.begin(pid, at, None),
        }
    }

    fn begin(&mut self, pid: Pid, born: Time, from: Option<(u32, Time)>) -> u32 {
        let space = self.spaces.len() as u32;
        self.spaces.push(Space {
            born,
            died: Span::FOREVER,
            from,
            is_changed: false,
        });
        self.of_process.entry(pid).or_default().push(space);
        space
    }

    /// The space that a process had at that time.
    fn space_at(&self, pid: Pid, at: Time) -> Option<u32> {
        let all = self.of_process.get(&pid)?;
        let after = all.partition_point(|space| self.spaces[*space as usize].born <= at);
        all.get(after.saturating_sub(1)).copied()
    }

    /// An object that lies in others and takes no other's place.
    pub(crate) fn add(&mut self, birth: Birth, layer: Layer) -> usize {
        let space = self.space(birth.pid, birth.born);
        self.add_to(space, birth, layer)
    }

    fn add_to(&mut self, space: u32, birth: Birth, layer: Layer) -> usize {
        let number = self.rows.len();
        self.spans.push(Span {
            pid: Pid(space),
            layer,
            address: birth.address,
            bytes: birth.bytes,
            born: birth.born,
            died: Span::FOREVER,
        });
        self.mappings.push(birth.mapping);
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
            mapping: None,
        };
        let number = self.add(birth, Layer::of(kind, false));
        self.named.insert((pid, name.to_owned()), number);
        ObjectId(number as u64)
    }

    /// A mapping; what was mapped there before ends.
    pub(crate) fn map(&mut self, birth: Birth) {
        let layer = Layer::of(birth.kind, false);
        self.unmap(birth.pid, birth.address, birth.bytes, birth.born);
        if birth.bytes.0 == 0 {
            return;
        }
        let space = self.space(birth.pid, birth.born);
        let start = birth.address.0;
        let end = start.saturating_add(birth.bytes.0);
        let number = self.add_to(space, birth, layer);
        let mapped = self.mapped.entry(space).or_default();
        mapped.insert(start, (end, number));
    }

    /// Whatever is mapped there ends; what a mapping has on either side lives on as a mapping of its own.
    pub(crate) fn unmap(&mut self, pid: Pid, address: Address, bytes: Bytes, at: Time) {
        let (start, end) = (address.0, address.0.saturating_add(bytes.0));
        let space = self.space(pid, at);
        let of = &mut self.spaces[space as usize];
        of.is_changed = true;
        if of.from.is_some() {
            let changes = self.changes.entry(space).or_default();
            changes.push((at, start, end));
        }
        let Some(mapped) = self.mapped.get_mut(&space) else {
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
                let rest = self.part(number, from, to, at);
                let layer = self.spans[number].layer;
                let piece = self.add_to(space, rest, layer);
                let mapped = self.mapped.entry(space).or_default();
                mapped.insert(from, (to, piece));
            }
        }
    }

    /// A part of an object as an object of its own.
    fn part(&self, number: usize, from: u64, to: u64, born: Time) -> Birth {
        let row = &self.rows[number];
        Birth {
            pid: row.pid,
            kind: row.kind,
            name: row.name.clone(),
            address: Address(from),
            bytes: Bytes(to - from),
            born,
            site: row.site,
            tid: row.tid,
            mapping: self.mappings[number],
        }
    }

    /// A new process has what its parent had, where `inherits`: a recorder that tells of a process which ran before tells of its
    /// mappings as well.
    pub(crate) fn fork(&mut self, parent: Pid, child: Pid, at: Time, inherits: bool) {
        if parent == child {
            return;
        }
        let from = match inherits {
            true => Some((self.space(parent, at), at)),
            false => None,
        };
        // What has not changed since its own fork is what was there then.
        let unchanged = |(space, at): (u32, Time)| {
            let of = &self.spaces[space as usize];
            of.from.filter(|_| !of.is_changed).unwrap_or((space, at))
        };
        let from = from.map(unchanged);
        self.clear(child, at);
        self.begin(child, at, from);
    }

    /// Everything of a process ends.
    pub(crate) fn clear(&mut self, pid: Pid, at: Time) {
        let Some(&space) = self.of_process.get(&pid).and_then(|all| all.last()) else {
            return;
        };
        let of = &mut self.spaces[space as usize];
        if of.died != Span::FOREVER {
            return;
        }
        of.died = at.max(of.born);
        for (_, number) in self.mapped.remove(&space).unwrap_or_default().into_values() {
            self.end(number, at);
        }
    }

    /// A process has another program, and nothing of what it had.
    pub(crate) fn exec(&mut self, pid: Pid, at: Time) {
        self.clear(pid, at);
        self.begin(pid, at, None);
    }

    fn end(&mut self, number: usize, at: Time) {
        // Not before it began, however the records are ordered.
        let at = at.max(self.spans[number].born);
        self.spans[number].died = at;
        self.rows[number].died_ns = Some(at);
    }

    /// The innermost object at each of the points.
    pub(crate) fn owners(&mut self, points: &[(Pid, Address, Time)]) -> Vec<Option<ObjectId>> {
        let found = self.find(points);
        let owners = points.iter().zip(found);
        owners
            .map(|(point, number)| {
                let number = self.own(*point, number?)?;
                Some(ObjectId(number as u64))
            })
            .collect()
    }

    /// The mapping that held at each of the points.
    pub(crate) fn mappings_at(&self, points: &[(Pid, Address, Time)]) -> Vec<Option<u32>> {
        let found = self.find(points).into_iter();
        found.map(|number| self.mappings[number?]).collect()
    }

    /// The object at each of the points, which may be one of a space that a fork copied.
    fn find(&self, points: &[(Pid, Address, Time)]) -> Vec<Option<usize>> {
        let mut found = vec![None; points.len()];
        let mut open: Vec<(usize, (Pid, Address, Time))> = Vec::new();
        for (at, &(pid, address, time)) in points.iter().enumerate() {
            if let Some(space) = self.space_at(pid, time) {
                open.push((at, (Pid(space), address, time)));
            }
        }
        while !open.is_empty() {
            let asked: Vec<_> = open.iter().map(|(_, point)| *point).collect();
            let owners = owners_at(&self.spans, &asked);
            let mut older = Vec::new();
            for ((at, (space, address, time)), owner) in open.into_iter().zip(owners) {
                let of = &self.spaces[space.0 as usize];
                match (owner, of.from) {
                    (Some(span), _) => found[at] = Some(span.0 as usize),
                    (None, Some((from, forked))) if time < of.died => {
                        older.push((at, (Pid(from), address, forked)));
                    }
                    (None, _) => (),
                }
            }
            open = older;
        }
        found
    }

    /// The object that the space of a point has of one that was found for it.
    fn own(&mut self, (pid, address, time): (Pid, Address, Time), number: usize) -> Option<usize> {
        let space = self.space_at(pid, time)?;
        let holder = self.spans[number].pid.0;
        if space == holder {
            return Some(number);
        }
        let mut path = vec![(space, time)];
        while let Some((from, at)) = self.spaces[path.last()?.0 as usize].from
            && from != holder
        {
            path.push((from, at));
        }
        let span = &self.spans[number];
        let mut piece = Piece {
            start: span.address.0,
            end: span.address.0.saturating_add(span.bytes.0),
            born: span.born,
            died: span.died,
        };
        for (space, time) in path.into_iter().rev() {
            piece = self.inherited(piece, space, address.0, time)?;
        }
        let key = (space, piece.start, piece.born);
        if let Some(&copy) = self.copies.get(&key) {
            return Some(copy);
        }
        let birth = Birth {
            pid,
            ..self.part(number, piece.start, piece.end, piece.born)
        };
        let layer = self.spans[number].layer;
        let copy = self.add_to(space, birth, layer);
        match piece.died {
            Span::FOREVER => {
                let mapped = self.mapped.entry(space).or_default();
                mapped.insert(piece.start, (piece.end, copy));
            }
            died => self.end(copy, died),
        }
        self.copies.insert(key, copy);
        Some(copy)
    }

    /// What a space has at that time of a piece that it inherited; none where the address was mapped anew or unmapped.
    fn inherited(&self, of: Piece, space: u32, address: u64, time: Time) -> Option<Piece> {
        let Space { born, died, .. } = self.spaces[space as usize];
        let mut piece = Piece { born, died, ..of };
        for &(at, start, end) in self.changes.get(&space).into_iter().flatten() {
            if end <= piece.start || piece.end <= start {
                continue;
            }
            if at > time {
                piece.died = piece.died.min(at);
                break;
            }
            match () {
                () if end <= address => piece.start = end,
                () if address < start => piece.end = start,
                () => return None,
            }
            piece.born = at;
        }
        Some(piece)
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
            mapping: None,
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

    fn owner(objects: &mut Objects, pid: u32, address: u64, at: u64) -> Option<(u64, String)> {
        let owner = objects.owners(&[(Pid(pid), Address(address), Time(at))])[0]?;
        let name = &objects.rows()[owner.0 as usize].name;
        Some((owner.0, name.clone()))
    }

    #[test]
    fn a_child_has_copies_of_what_something_falls_into() {
        let mut objects = Objects::default();
        objects.map(birth("a", 0x1000, 0x2000, 1));
        objects.map(birth("b", 0x2000, 0x3000, 1));
        objects.fork(Pid(1), Pid(2), Time(5), true);
        objects.clear(Pid(1), Time(6));
        assert_eq!(alive(&objects, 1), list(&[]));
        assert_eq!(alive(&objects, 2), list(&[]));
        let first = owner(&mut objects, 2, 0x1800, 7).unwrap();
        assert_eq!(first, (2, "a".to_owned()));
        assert_eq!(owner(&mut objects, 2, 0x1900, 9), Some(first));
        assert_eq!(alive(&objects, 2), list(&[("a", 0x1000, 0x2000)]));
        // It is neither the parent's any more, nor there before the fork.
        assert_eq!(owner(&mut objects, 1, 0x1800, 7), None);
        // A thread is no process.
        objects.fork(Pid(2), Pid(2), Time(7), true);
        assert_eq!(alive(&objects, 2).len(), 1);
        // A recorder that tells of a process which ran before tells of its mappings.
        objects.fork(Pid(2), Pid(3), Time(8), false);
        assert_eq!(owner(&mut objects, 3, 0x1800, 9), None);
    }

    #[test]
    fn a_childs_mappings_cut_what_it_inherited() {
        let mut objects = Objects::default();
        objects.map(birth("a", 0x1000, 0x9000, 1));
        objects.fork(Pid(1), Pid(2), Time(5), true);
        // What the parent maps later is its own.
        objects.map(birth("later", 0x8000, 0x9000, 6));
        let of_child = Birth {
            pid: Pid(2),
            ..birth("c", 0x3000, 0x4000, 7)
        };
        objects.map(of_child);
        objects.fork(Pid(2), Pid(3), Time(8), true);
        let place = |objects: &mut Objects, pid, address, at| {
            let number = owner(objects, pid, address, at).unwrap().0;
            let row = &objects.rows()[number as usize];
            let died = row.died_ns.map(|t| t.0);
            (row.address.0, row.bytes.0, row.born_ns.0, died)
        };
        assert_eq!(
            place(&mut objects, 2, 0x8800, 6),
            (0x1000, 0x8000, 5, Some(7))
        );
        assert_eq!(place(&mut objects, 2, 0x8800, 7), (0x4000, 0x5000, 7, None));
        assert_eq!(place(&mut objects, 3, 0x1000, 9), (0x1000, 0x2000, 8, None));
        assert_eq!(place(&mut objects, 3, 0x3000, 9), (0x3000, 0x1000, 8, None));
        assert_eq!(owner(&mut objects, 1, 0x8800, 6).unwrap().1, "later");
    }

    #[test]
    fn an_exec_and_a_number_that_comes_again_begin_with_nothing() {
        let mut objects = Objects::default();
        objects.map(birth("a", 0x1000, 0x2000, 1));
        objects.exec(Pid(1), Time(5));
        assert_eq!(owner(&mut objects, 1, 0x1000, 4).unwrap().1, "a");
        assert_eq!(owner(&mut objects, 1, 0x1000, 5), None);
        objects.map(birth("b", 0x1000, 0x2000, 6));
        objects.clear(Pid(1), Time(7));
        objects.fork(Pid(9), Pid(1), Time(8), true);
        assert_eq!(owner(&mut objects, 1, 0x1000, 6).unwrap().1, "b");
        assert_eq!(owner(&mut objects, 1, 0x1000, 9), None);
    }
}
