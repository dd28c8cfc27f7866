//! Counted accesses: who read and wrote how often, and who shares which pages.
//!
//! One pass over the table makes two figures. [`CountUse`] is of every trace with counts, by object: a page that several
//! objects share counts in the one that has most of it. [`ExactUse`] is of traces with exact counts, which name the thread of
//! every access: by name of objects, with who shares which pages; there a page counts in each of the objects on it, and in
//! each of those that followed each other on it within an interval.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Address, Capability, ObjectId, ObjectKind, PageRange, Pages, Pid, Tid, Time};
use varve_objects::Owners;
use varve_trace::tables::{CountRow, ObjectRow};
use varve_trace::{Trace, TraceError};

use crate::assemble::Tables;
use crate::memory::{Memory, Objects};
use crate::sweep::Moment;

/// What the counts say. A page that several objects share counts in the one that has most of it.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct CountUse {
    /// Accesses.
    #[serde(flatten)]
    pub all: Accesses,
    /// Accesses to pages of no known object.
    pub unowned: Accesses,
    /// By object, most accesses first.
    pub objects: Vec<ObjectCounts>,
    /// By thread, most accesses first.
    pub threads: Vec<ThreadCounts>,
}

/// Numbers of accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, TS)]
pub struct Accesses {
    /// That read.
    pub reads: u64,
    /// That wrote.
    pub writes: u64,
}

impl Accesses {
    /// Both.
    pub const fn sum(self) -> u64 {
        self.reads.saturating_add(self.writes)
    }

    fn add(&mut self, row: &CountRow) {
        self.reads = self.reads.saturating_add(row.reads);
        self.writes = self.writes.saturating_add(row.writes);
    }
}

/// Accesses to an object.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct ObjectCounts {
    /// Its number.
    pub object: ObjectId,
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: ObjectKind,
    /// Accesses.
    #[serde(flatten)]
    pub accesses: Accesses,
    /// By thread, most accesses first.
    pub threads: Vec<ThreadCounts>,
}

/// A thread's accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
pub struct ThreadCounts {
    /// The thread; null where the source does not say.
    pub tid: Option<Tid>,
    /// Accesses.
    #[serde(flatten)]
    pub accesses: Accesses,
    /// Pages, once for each interval.
    pub page_touches: u64,
}

#[derive(Default)]
struct Tally {
    all: Accesses,
    threads: BTreeMap<Option<Tid>, (Accesses, u64)>,
}

impl Tally {
    fn add(&mut self, row: &CountRow) {
        self.all.add(row);
        let (accesses, pages) = self.threads.entry(row.tid).or_default();
        accesses.add(row);
        *pages += 1;
    }

    fn threads(&self) -> Vec<ThreadCounts> {
        let mut list: Vec<ThreadCounts> = self
            .threads
            .iter()
            .map(|(&tid, &(accesses, page_touches))| ThreadCounts {
                tid,
                accesses,
                page_touches,
            })
            .collect();
        list.sort_by_key(|t| (Reverse(t.accesses.sum()), t.tid));
        list
    }
}

/// All counted accesses of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TS)]
pub struct ExactUse {
    /// All of them; one that reaches over the end of a page counts on both pages here.
    #[serde(flatten)]
    pub all: Accesses,
    /// Pages by how many threads accessed them, the recorder's own left out.
    pub sharing: Sharing,
    /// Each thread, most accesses first.
    pub threads: Vec<ThreadAccesses>,
    /// The objects that were accessed, those of equal name and kind together; most accesses first.
    pub objects: Vec<ObjectAccesses>,
    /// Reads and writes of each object by its position in the table of objects.
    #[serde(skip)]
    pub(crate) by_object: HashMap<u32, Accesses>,
}

/// Pages by how many threads accessed them. Their sum is the number of accessed pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, TS)]
pub struct Sharing {
    /// Accessed by one thread only.
    pub private: Pages,
    /// Read by several threads and written by none.
    pub read_only: Pages,
    /// Accessed by several threads and written by one of them.
    pub one_writer: Pages,
    /// Written by several threads.
    pub many_writers: Pages,
}

/// What one thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
pub struct ThreadAccesses {
    /// Its process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// Accesses.
    #[serde(flatten)]
    pub accesses: Accesses,
    /// Pages that it accessed.
    pub pages: Pages,
    /// Pages that it wrote.
    pub written_pages: Pages,
    /// Pages that it accessed before any other thread.
    pub first_pages: Pages,
}

/// What was done to the objects of one name.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct ObjectAccesses {
    /// Their name.
    pub name: String,
    /// What they are.
    pub kind: ObjectKind,
    /// How many were accessed.
    pub objects: u64,
    /// Accesses.
    #[serde(flatten)]
    pub accesses: Accesses,
    /// Pages by how many threads accessed them.
    pub sharing: Sharing,
    /// The thread that accessed most of its pages first.
    pub first_tid: Option<Tid>,
    /// The threads that accessed it, most accesses first: the distribution of its pages over threads.
    pub threads: Vec<ThreadAccesses>,
    /// Threads of the recording that never accessed it.
    pub never_touched_by: Vec<Tid>,
    /// Threads that accessed it and never wrote it.
    pub never_written_by: Vec<Tid>,
}

/// Which threads had to do with a page.
#[derive(Clone, Copy)]
struct PageUse {
    first: Option<Tid>,
    threads: Several,
    writers: Several,
}

/// No thread, one, or more.
#[derive(Clone, Copy, PartialEq)]
enum Several {
    None,
    One(Tid),
    Many,
}

impl Several {
    fn add(&mut self, tid: Tid) {
        *self = match *self {
            Several::None => Several::One(tid),
            Several::One(known) if known == tid => Several::One(tid),
            _ => Several::Many,
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Sums {
    accesses: Accesses,
    pages: u64,
    written: u64,
    first: u64,
}

/// What is gathered for the whole, or for one group of objects.
#[derive(Default)]
pub(crate) struct Gathered {
    pages: HashMap<(Pid, u64), PageUse>,
    /// By thread, with whether each page was written, so that a page counts once whatever the intervals.
    by_thread: HashMap<(Pid, Tid), Sums>,
    thread_pages: HashMap<(Pid, Tid, u64), bool>,
}

impl Gathered {
    pub(crate) fn add(&mut self, row: &CountRow, tid: Tid) {
        let sums = self.by_thread.entry((row.pid, tid)).or_default();
        sums.accesses.add(row);
        let wrote = row.writes > 0;
        let written = self
            .thread_pages
            .entry((row.pid, tid, row.page.0))
            .or_insert_with(|| {
                sums.pages += 1;
                false
            });
        if wrote && !*written {
            *written = true;
            sums.written += 1;
        }
        let page = self.pages.entry((row.pid, row.page.0)).or_insert(PageUse {
            first: None,
            threads: Several::None,
            writers: Several::None,
        });
        if row.first == Some(true) {
            page.first = Some(tid);
        }
        page.threads.add(tid);
        if wrote {
            page.writers.add(tid);
        }
    }

    pub(crate) fn sharing(&self) -> Sharing {
        let mut sharing = Sharing::default();
        for page in self.pages.values() {
            let of = match (page.threads, page.writers) {
                (Several::Many, Several::None) => &mut sharing.read_only,
                (Several::Many, Several::One(_)) => &mut sharing.one_writer,
                (_, Several::Many) => &mut sharing.many_writers,
                _ => &mut sharing.private,
            };
            of.0 += 1;
        }
        sharing
    }

    pub(crate) fn threads(&self) -> Vec<ThreadAccesses> {
        let mut sums = self.by_thread.clone();
        for ((pid, _), page) in &self.pages {
            let first = page.first.and_then(|tid| sums.get_mut(&(*pid, tid)));
            if let Some(of) = first {
                of.first += 1;
            }
        }
        let mut threads: Vec<_> = sums
            .into_iter()
            .map(|((pid, tid), s)| ThreadAccesses {
                pid,
                tid,
                accesses: s.accesses,
                pages: Pages(s.pages),
                written_pages: Pages(s.written),
                first_pages: Pages(s.first),
            })
            .collect();
        threads.sort_by_key(|t| (Reverse(t.accesses.sum()), t.pid, t.tid));
        threads
    }
}

/// Objects of one name and kind.
#[derive(Default)]
struct Group {
    gathered: Gathered,
    objects: BTreeSet<u32>,
}

/// Whose a page is.
struct Where<'a> {
    owners: Owners<'a>,
    of_span: &'a [u32],
    memory: &'a mut Memory,
    intervals: HashMap<u32, (Time, Time)>,
    now: Option<u32>,
    page: Option<(Pid, u64)>,
    /// Where the page is in memory.
    place: (Pid, Address),
    /// The objects on the page, by position, that which has most of it first.
    on_page: Vec<u32>,
}

impl<'a> Where<'a> {
    fn new(tables: &Tables, all: &'a Objects, memory: &'a mut Memory) -> Where<'a> {
        let intervals = tables.intervals.iter();
        Where {
            owners: Owners::new(&all.spans),
            of_span: &all.of_span,
            memory,
            place: (Pid(0), Address(0)),
            intervals: intervals
                .map(|i| (i.interval.0, (i.start_ns, i.end_ns)))
                .collect(),
            now: None,
            page: None,
            on_page: Vec::new(),
        }
    }

    fn go_to(&mut self, row: &CountRow) {
        if self.now != Some(row.interval.0) {
            self.now = Some(row.interval.0);
            self.page = None;
            if let Some((start, end)) = self.intervals.get(&row.interval.0) {
                self.owners.advance(*start, *end);
            }
        }
        if self.page == Some((row.pid, row.page.0)) {
            return;
        }
        self.page = Some((row.pid, row.page.0));
        self.on_page.clear();
        let (from, to) = self
            .intervals
            .get(&row.interval.0)
            .copied()
            .unwrap_or_default();
        let now = Moment {
            position: 0,
            from,
            to,
        };
        self.place = self.memory.place(row.pid, row.page.address(), now);
        let page = PageRange {
            first: self.place.1.page(),
            count: Pages(1),
        };
        let (on_page, of_span) = (&mut self.on_page, self.of_span);
        self.owners.owners(self.place.0, page, |_, shares| {
            for share in shares {
                let object = of_span[share.object.0 as usize];
                if !on_page.contains(&object) {
                    on_page.push(object);
                }
            }
        });
    }

    /// The time of the row's interval.
    fn time(&self, row: &CountRow) -> Option<(Time, Time)> {
        self.intervals.get(&row.interval.0).copied()
    }
}

/// A row of the program's, and what is known of it.
pub(crate) struct Counted<'a> {
    pub(crate) row: &'a CountRow,
    pub(crate) tid: Tid,
    /// The beginning and the end of its interval.
    pub(crate) time: Option<(Time, Time)>,
    /// The objects on its page, by position; that which has most of it first.
    pub(crate) objects: &'a [u32],
}

/// Reads the table: what it says by object, and what it says of threads where counts are exact. None where it has
/// no rows. `own` says which objects are the recorder's; `hear` is given every row of the program's that names its thread.
pub(crate) fn read(
    trace: &Trace,
    tables: &Tables,
    (all_objects, memory): (&Objects, &mut Memory),
    own: impl Fn(usize) -> bool,
    mut hear: impl FnMut(&Counted<'_>),
) -> Result<(Option<CountUse>, Option<ExactUse>), TraceError> {
    // Imported counts need not know the threads.
    let is_exact = trace.manifest.has(Capability::ExactCounts);
    let objects = &tables.objects;
    let homes = tables.homes(all_objects);
    let mut place = Where::new(tables, all_objects, memory);
    let mut all = Tally::default();
    let mut unowned = Accesses::default();
    let mut by_object: HashMap<u32, Tally> = HashMap::new();
    let mut exact = Exact::default();
    for rows in trace.batches::<CountRow>()? {
        for row in &rows? {
            place.go_to(row);
            let is_chosen = |o: &u32| {
                let object = objects.get(*o as usize).map(|o| o.object);
                trace.selection().is_none_or(|s| s.object(object))
            };
            if trace.selection().is_some_and(|s| s.objects.is_some())
                && !place.on_page.iter().any(is_chosen)
            {
                continue;
            }
            all.add(row);
            match place.on_page.first() {
                Some(&object) => by_object.entry(object).or_default().add(row),
                None => unowned.add(row),
            }
            let on_page = &place.on_page;
            let Some(tid) = row.tid else { continue };
            if !on_page.is_empty() && on_page.iter().all(|o| own(*o as usize)) {
                continue;
            }
            if is_exact {
                exact.add(row, tid, on_page, objects);
            }
            let mut home = row.clone();
            if let Some(&object) = on_page.first() {
                home.page = homes.home(object, row.page.address(), place.place).page();
            }
            hear(&Counted {
                row: &home,
                tid,
                time: place.time(row),
                objects: on_page,
            });
        }
    }
    if all.threads.is_empty() {
        return Ok((None, None));
    }
    let mut list: Vec<ObjectCounts> = by_object
        .iter()
        .map(|(&position, tally)| {
            let row = &objects[position as usize];
            ObjectCounts {
                object: row.object,
                name: row.name.clone(),
                kind: row.kind,
                accesses: tally.all,
                threads: tally.threads(),
            }
        })
        .collect();
    list.sort_by_key(|o| (Reverse(o.accesses.sum()), o.object));
    let counts = CountUse {
        all: all.all,
        unowned,
        objects: list,
        threads: all.threads(),
    };
    Ok((Some(counts), is_exact.then(|| exact.done(own))))
}

/// What [`ExactUse`] is made of.
#[derive(Default)]
struct Exact<'a> {
    all: Gathered,
    groups: BTreeMap<(&'a str, ObjectKind), Group>,
    by_object: HashMap<u32, Accesses>,
}

impl<'a> Exact<'a> {
    fn add(&mut self, row: &CountRow, tid: Tid, on_page: &[u32], objects: &'a [ObjectRow]) {
        self.all.add(row, tid);
        let mut names: Vec<(&str, ObjectKind)> = Vec::new();
        for object in on_page {
            self.by_object.entry(*object).or_default().add(row);
            let of = &objects[*object as usize];
            let key = (of.name.as_str(), of.kind);
            let group = self.groups.entry(key).or_default();
            group.objects.insert(*object);
            // Several objects of one name on a page are one.
            if !names.contains(&key) {
                names.push(key);
                group.gathered.add(row, tid);
            }
        }
    }

    fn done(self, own: impl Fn(usize) -> bool) -> ExactUse {
        let threads = self.all.threads();
        let sum = |of: &[ThreadAccesses]| {
            of.iter().fold(Accesses::default(), |sum, t| Accesses {
                reads: sum.reads.saturating_add(t.accesses.reads),
                writes: sum.writes.saturating_add(t.accesses.writes),
            })
        };
        let program = |group: &Group| !group.objects.iter().all(|o| own(*o as usize));
        let mut listed: Vec<ObjectAccesses> = self
            .groups
            .into_iter()
            .filter(|(_, group)| program(group))
            .map(|((name, kind), group)| {
                let of = group.gathered.threads();
                let most = of.iter().max_by_key(|t| (t.first_pages, Reverse(t.tid)));
                let touches =
                    |t: &ThreadAccesses| of.iter().any(|o| (o.pid, o.tid) == (t.pid, t.tid));
                let never = threads.iter().filter(|t| !touches(t));
                let silent = of.iter().filter(|t| t.accesses.writes == 0);
                ObjectAccesses {
                    name: name.to_owned(),
                    kind,
                    objects: group.objects.len() as u64,
                    accesses: sum(&of),
                    sharing: group.gathered.sharing(),
                    first_tid: most.filter(|t| t.first_pages.0 > 0).map(|t| t.tid),
                    never_touched_by: never.map(|t| t.tid).collect(),
                    never_written_by: silent.map(|t| t.tid).collect(),
                    threads: of,
                }
            })
            .collect();
        listed.sort_by_key(|o| Reverse(o.accesses.sum()));
        ExactUse {
            all: sum(&threads),
            sharing: self.all.sharing(),
            threads,
            objects: listed,
            by_object: self.by_object,
        }
    }
}
