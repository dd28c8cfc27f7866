//! What exact counts of accesses say, by object and thread.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use varve_attribute::{Owners, Span};
use varve_model::{ObjectId, ObjectKind, Page, PageRange, Pages, Pid, Tid, Time};
use varve_trace::tables::{CountRow, IntervalRow, ObjectRow};
use varve_trace::{Trace, TraceError};

/// What the counts say. A page that several objects share counts in the one that has most of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadCounts {
    /// The thread; null where the source does not tell.
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

/// Reads the table; none where it has no rows.
pub(crate) fn read(
    trace: &Trace,
    intervals: &[IntervalRow],
    objects: &[ObjectRow],
    spans: &[Span],
) -> Result<Option<CountUse>, TraceError> {
    let mut owners = Owners::new(spans);
    let mut all = Tally::default();
    let mut unowned = Accesses::default();
    let mut by_object: HashMap<u32, Tally> = HashMap::new();
    let places: HashMap<u32, (Time, Time)> = intervals
        .iter()
        .map(|i| (i.interval.0, (i.start_ns, i.end_ns)))
        .collect();
    for rows in trace.batches::<CountRow>()? {
        for row in rows? {
            if let Some((start, end)) = places.get(&row.interval.0) {
                owners.advance(*start, *end);
            }
            all.add(&row);
            match owner(&mut owners, row.pid, row.page) {
                Some(object) => by_object.entry(object).or_default().add(&row),
                None => unowned.add(&row),
            }
        }
    }
    if all.threads.is_empty() {
        return Ok(None);
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
    Ok(Some(CountUse {
        all: all.all,
        unowned,
        objects: list,
        threads: all.threads(),
    }))
}

fn owner(owners: &mut Owners<'_>, pid: Pid, page: Page) -> Option<u32> {
    let pages = PageRange {
        first: page,
        count: Pages(1),
    };
    let mut found = None;
    owners.owners(pid, pages, |_, shares| {
        found = shares.first().map(|share| share.object.0);
    });
    found
}
