//! From records of births and deaths to the lives of objects.

use std::collections::{BTreeMap, HashMap};

use varve_model::{Address, Bytes, ObjectId, ObjectKind, Pid, SiteId, Tid, Time};

use crate::owners::{Layer, Span};

/// An object came into being.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Birth {
    /// Its number. A second birth of the same number is the object moved or resized in place by `realloc`.
    pub object: ObjectId,
    /// The process.
    pub pid: Pid,
    /// What it is.
    pub kind: ObjectKind,
    /// Its first byte.
    pub address: Address,
    /// Its size.
    pub bytes: Bytes,
    /// When.
    pub born: Time,
    /// The thread that asked for it.
    pub tid: Tid,
    /// The call stack that asked for it.
    pub site: Option<SiteId>,
    /// It stands for small objects that share its pages.
    pub pool: bool,
}

/// An object ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Death {
    /// Its number.
    pub object: ObjectId,
    /// When.
    pub died: Time,
}

/// Something happened to a whole range or a whole process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// `munmap`, the shrinking of the heap, a fixed mapping over others: what lay there ends, partly or as a whole.
    Released {
        /// The process.
        pid: Pid,
        /// Where it starts.
        address: Address,
        /// How much.
        bytes: Bytes,
        /// When.
        at: Time,
    },
    /// The process ended or executed another program.
    Ended {
        /// The process.
        pid: Pid,
        /// When.
        at: Time,
    },
    /// A child began with a copy of all objects. Leave out children that execute another program at once.
    Forked {
        /// Whose objects are copied.
        parent: Pid,
        /// Who has them from now on as well.
        child: Pid,
        /// When.
        at: Time,
    },
}

impl Change {
    fn at(&self) -> Time {
        match self {
            Self::Released { at, .. } | Self::Ended { at, .. } | Self::Forked { at, .. } => *at,
        }
    }
}

/// One life of one piece of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Its number, unique in the result.
    pub object: ObjectId,
    /// The process.
    pub pid: Pid,
    /// What it is.
    pub kind: ObjectKind,
    /// Its first byte.
    pub address: Address,
    /// Its size.
    pub bytes: Bytes,
    /// Its first moment.
    pub born: Time,
    /// The moment after its last; `None`: it outlived the recording.
    pub died: Option<Time>,
    /// The thread that asked for it.
    pub tid: Tid,
    /// The call stack that asked for it.
    pub site: Option<SiteId>,
    /// It stands for small objects that share its pages.
    pub pool: bool,
    /// The object that it continues: resized, split by `munmap`, or copied by `fork`.
    pub part_of: Option<ObjectId>,
}

impl Life {
    /// For [`crate::Owners`].
    pub fn span(&self) -> Span {
        Span {
            pid: self.pid,
            layer: Layer::of(self.kind, self.pool),
            address: self.address,
            bytes: self.bytes,
            born: self.born,
            died: self.died.unwrap_or(Span::FOREVER),
        }
    }

    fn end(&self) -> u64 {
        self.address.0.saturating_add(self.bytes.0)
    }
}

/// All lives, and what did not fit together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lives {
    /// In the order of their births.
    pub lives: Vec<Life>,
    /// Objects that ended because another was born over them: their own deaths were not recorded.
    pub implied_deaths: u64,
    /// Deaths of objects whose births were not recorded.
    pub unknown_deaths: u64,
}

/// Live objects of a process, by layer and address; those of a layer never overlap.
type Alive = BTreeMap<(Layer, u64), usize>;

struct Merge {
    out: Lives,
    alive: HashMap<Pid, Alive>,
    next: u64,
}

/// Merges births, deaths and changes into lives.
pub fn merge(mut births: Vec<Birth>, mut deaths: Vec<Death>, changes: &[Change]) -> Lives {
    births.sort_by_key(|birth| birth.born);
    deaths.sort_unstable_by_key(|death| (death.object, death.died));
    let mut changes: Vec<&Change> = changes.iter().collect();
    changes.sort_by_key(|change| change.at());
    let mut used = vec![false; deaths.len()];
    let mut current: HashMap<ObjectId, usize> = HashMap::with_capacity(births.len());
    let next = births
        .iter()
        .map(|birth| birth.object.0)
        .max()
        .map_or(0, |last| last.saturating_add(1));
    let mut merge = Merge {
        out: Lives::default(),
        alive: HashMap::new(),
        next,
    };
    merge.out.lives.reserve(births.len());
    let mut changes = changes.into_iter().peekable();
    for birth in births {
        while let Some(change) = changes.next_if(|change| change.at() <= birth.born) {
            merge.change(change);
        }
        let position =
            deaths.partition_point(|death| (death.object, death.died) < (birth.object, birth.born));
        let died = deaths
            .get(position)
            .filter(|death| death.object == birth.object)
            .map(|death| death.died);
        if let Some(used) = used.get_mut(position).filter(|_| died.is_some()) {
            *used = true;
        }
        let mut life = Life {
            object: birth.object,
            pid: birth.pid,
            kind: birth.kind,
            address: birth.address,
            bytes: birth.bytes,
            born: birth.born,
            died,
            tid: birth.tid,
            site: birth.site,
            pool: birth.pool,
            part_of: None,
        };
        if let Some(&old) = current.get(&birth.object) {
            merge.end(old, birth.born);
            life.part_of = Some(birth.object);
            life.object = merge.fresh();
        }
        current.insert(birth.object, merge.out.lives.len());
        merge.enter(life);
    }
    for change in changes {
        merge.change(change);
    }
    merge.out.unknown_deaths =
        u64::try_from(used.iter().filter(|used| !**used).count()).unwrap_or(u64::MAX);
    merge.out.lives.sort_by_key(|life| life.born);
    merge.out
}

impl Merge {
    fn fresh(&mut self) -> ObjectId {
        let id = ObjectId(self.next);
        self.next = self.next.saturating_add(1);
        id
    }

    /// Adds a life, and ends what lies where it begins.
    fn enter(&mut self, life: Life) {
        let layer = Layer::of(life.kind, life.pool);
        let ended = self.clear(life.pid, layer, life.address.0, life.end(), life.born);
        self.out.implied_deaths += ended;
        let index = self.out.lives.len();
        if life.bytes.0 > 0 {
            self.alive
                .entry(life.pid)
                .or_default()
                .insert((layer, life.address.0), index);
        }
        self.out.lives.push(life);
    }

    /// Ends a life at a moment, unless it ended before.
    fn end(&mut self, index: usize, at: Time) {
        if let Some(life) = self.out.lives.get_mut(index)
            && life.died.is_none_or(|died| died > at)
        {
            life.died = Some(at.max(life.born));
        }
    }

    /// Ends what lies in a range of a layer; of mappings the rest lives on. Returns how many still lived.
    fn clear(&mut self, pid: Pid, layer: Layer, start: u64, end: u64, at: Time) -> u64 {
        let Some(alive) = self.alive.get_mut(&pid) else {
            return 0;
        };
        let lives = &self.out.lives;
        let mut first = start;
        if let Some((&(_, before), &index)) = alive.range((layer, 0)..(layer, start)).next_back()
            && lives.get(index).is_some_and(|life| life.end() > start)
        {
            first = before;
        }
        let hit: Vec<(u64, usize)> = alive
            .range((layer, first)..(layer, end.max(first)))
            .map(|(key, &index)| (key.1, index))
            .collect();
        for (address, _) in &hit {
            alive.remove(&(layer, *address));
        }
        let mut ended = 0;
        for (_, index) in hit {
            let Some(old) = self.out.lives.get(index).copied() else {
                continue;
            };
            if old.died.is_some_and(|died| died <= at) {
                continue;
            }
            self.end(index, at);
            ended += 1;
            if matches!(old.kind, ObjectKind::Heap) && !old.pool {
                continue;
            }
            let before = (old.address.0, start.min(old.end()));
            let after = (end.max(old.address.0), old.end());
            for (from, to) in [before, after] {
                if from >= to {
                    continue;
                }
                let object = self.fresh();
                let part = Life {
                    object,
                    address: Address(from),
                    bytes: Bytes(to - from),
                    born: at,
                    part_of: Some(old.part_of.unwrap_or(old.object)),
                    ..old
                };
                let number = self.out.lives.len();
                self.alive
                    .entry(pid)
                    .or_default()
                    .insert((layer, from), number);
                self.out.lives.push(part);
            }
        }
        ended
    }

    fn change(&mut self, change: &Change) {
        match *change {
            Change::Released {
                pid,
                address,
                bytes,
                at,
            } => {
                let end = address.0.saturating_add(bytes.0);
                for layer in [Layer::SITE, Layer::STACK, Layer::POOL, Layer::HEAP] {
                    self.clear(pid, layer, address.0, end, at);
                }
            }
            Change::Ended { pid, at } => {
                for index in self.alive.remove(&pid).unwrap_or_default().into_values() {
                    self.end(index, at);
                }
            }
            Change::Forked { parent, child, at } => {
                let copied: Vec<usize> = self
                    .alive
                    .get(&parent)
                    .map(|alive| alive.values().copied().collect())
                    .unwrap_or_default();
                for index in copied {
                    let Some(old) = self.out.lives.get(index).copied() else {
                        continue;
                    };
                    if old.died.is_some_and(|died| died <= at) {
                        continue;
                    }
                    let object = self.fresh();
                    // The parent's later death is not the child's.
                    self.enter(Life {
                        object,
                        pid: child,
                        born: at,
                        died: None,
                        part_of: Some(old.part_of.unwrap_or(old.object)),
                        ..old
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn birth(object: u64, kind: ObjectKind, address: u64, bytes: u64, born: u64) -> Birth {
        Birth {
            object: ObjectId(object),
            pid: Pid(1),
            kind,
            address: Address(address),
            bytes: Bytes(bytes),
            born: Time(born),
            tid: Tid(1),
            site: None,
            pool: false,
        }
    }

    fn summary(lives: &Lives) -> Vec<(u64, u64, u64, Option<u64>)> {
        lives
            .lives
            .iter()
            .map(|life| {
                (
                    life.address.0,
                    life.bytes.0,
                    life.born.0,
                    life.died.map(|died| died.0),
                )
            })
            .collect()
    }

    #[test]
    fn a_birth_over_a_live_object_ends_it() {
        let births = vec![
            birth(1, ObjectKind::Heap, 100, 50, 1),
            birth(2, ObjectKind::Heap, 120, 50, 5),
        ];
        let lives = merge(births, vec![], &[]);
        assert_eq!(summary(&lives), [(100, 50, 1, Some(5)), (120, 50, 5, None)]);
        assert_eq!(lives.implied_deaths, 1);
    }

    #[test]
    fn reuse_of_an_address_is_two_lives() {
        let births = vec![
            birth(1, ObjectKind::Heap, 100, 50, 1),
            birth(2, ObjectKind::Heap, 100, 20, 5),
        ];
        let deaths = vec![
            Death {
                object: ObjectId(1),
                died: Time(4),
            },
            Death {
                object: ObjectId(9),
                died: Time(4),
            },
        ];
        let lives = merge(births, deaths, &[]);
        assert_eq!(summary(&lives), [(100, 50, 1, Some(4)), (100, 20, 5, None)]);
        assert_eq!((lives.implied_deaths, lives.unknown_deaths), (0, 1));
    }

    #[test]
    fn unmapping_the_middle_leaves_two_parts() {
        let births = vec![
            birth(1, ObjectKind::Mapping, 0x1000, 0x3000, 1),
            birth(2, ObjectKind::Heap, 0x1000, 0x100, 2),
        ];
        let change = Change::Released {
            pid: Pid(1),
            address: Address(0x2000),
            bytes: Bytes(0x1000),
            at: Time(7),
        };
        let lives = merge(
            births,
            vec![Death {
                object: ObjectId(1),
                died: Time(9),
            }],
            &[change],
        );
        let expected = [
            (0x1000, 0x3000, 1, Some(7)),
            (0x1000, 0x100, 2, None),
            (0x1000, 0x1000, 7, Some(9)),
            (0x3000, 0x1000, 7, Some(9)),
        ];
        assert_eq!(summary(&lives), expected);
        assert_eq!(lives.lives[2].part_of, Some(ObjectId(1)));
    }

    #[test]
    fn resizing_in_place_continues_the_object() {
        let births = vec![
            birth(1, ObjectKind::Heap, 100, 50, 1),
            birth(1, ObjectKind::Heap, 100, 90, 5),
        ];
        let lives = merge(
            births,
            vec![Death {
                object: ObjectId(1),
                died: Time(8),
            }],
            &[],
        );
        assert_eq!(
            summary(&lives),
            [(100, 50, 1, Some(5)), (100, 90, 5, Some(8))]
        );
        assert_eq!(lives.lives[1].part_of, Some(ObjectId(1)));
        assert_eq!(lives.implied_deaths, 0);
    }

    #[test]
    fn a_child_has_its_own_copy_until_it_ends() {
        let births = vec![birth(1, ObjectKind::Heap, 100, 50, 1)];
        let changes = [
            Change::Forked {
                parent: Pid(1),
                child: Pid(2),
                at: Time(3),
            },
            Change::Ended {
                pid: Pid(2),
                at: Time(6),
            },
        ];
        let lives = merge(
            births,
            vec![Death {
                object: ObjectId(1),
                died: Time(4),
            }],
            &changes,
        );
        assert_eq!(
            summary(&lives),
            [(100, 50, 1, Some(4)), (100, 50, 3, Some(6))]
        );
        assert_eq!(lives.lives[1].pid, Pid(2));
    }

    #[test]
    fn a_life_without_length_is_kept() {
        let lives = merge(
            vec![birth(1, ObjectKind::Heap, 100, 50, 3)],
            vec![Death {
                object: ObjectId(1),
                died: Time(3),
            }],
            &[],
        );
        assert_eq!(summary(&lives), [(100, 50, 3, Some(3))]);
    }
}
