//! Counted accesses: who read and wrote how often, and who shares which pages. Only traces of the backend `exact`
//! have them.
//!
//! A page's counts go to the object on it; where several objects lie on it, or followed each other on it within an
//! interval, they count in each.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;
use varve_attribute::{Owners, Span};
use varve_model::{Interval, ObjectKind, PageRange, Pages, Pid, Tid};
use varve_trace::tables::{CountRow, IntervalRow, ObjectRow};
use varve_trace::{EXACT, Trace, TraceError};

/// All counted accesses of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ExactUse {
    /// Accesses that read; one that reaches over the end of a page counts on both pages here.
    pub reads: u64,
    /// Accesses that wrote.
    pub writes: u64,
    /// Pages by how many threads accessed them, the recorder's own left out.
    pub sharing: Sharing,
    /// Each thread, most accesses first.
    pub threads: Vec<ThreadAccesses>,
    /// The objects that were accessed, those of equal name and kind together; most accesses first.
    pub objects: Vec<ObjectAccesses>,
    /// Reads and writes of each object by its position in the table of objects.
    #[serde(skip)]
    pub(crate) by_object: HashMap<u32, (u64, u64)>,
}

/// Pages by how many threads accessed them. Their sum is the number of accessed pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadAccesses {
    /// Its process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// Accesses that read.
    pub reads: u64,
    /// Accesses that wrote.
    pub writes: u64,
    /// Pages that it accessed.
    pub pages: Pages,
    /// Pages that it wrote.
    pub written_pages: Pages,
    /// Pages that it accessed before any other thread.
    pub first_pages: Pages,
}

/// What was done to the objects of one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectAccesses {
    /// Their name.
    pub name: String,
    /// What they are.
    pub kind: ObjectKind,
    /// How many were accessed.
    pub objects: u64,
    /// Accesses that read.
    pub reads: u64,
    /// Accesses that wrote.
    pub writes: u64,
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
    reads: u64,
    writes: u64,
    pages: u64,
    written: u64,
    first: u64,
}

/// What is gathered for the whole, or for one group of objects.
#[derive(Default)]
struct Gathered {
    pages: HashMap<(Pid, u64), PageUse>,
    /// By thread, with whether each page was written, so that a page counts once whatever the intervals.
    by_thread: HashMap<(Pid, Tid), Sums>,
    thread_pages: HashMap<(Pid, Tid, u64), bool>,
}

impl Gathered {
    fn add(&mut self, row: &CountRow, tid: Tid) {
        let sums = self.by_thread.entry((row.pid, tid)).or_default();
        sums.reads += row.reads;
        sums.writes += row.writes;
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

    fn sharing(&self) -> Sharing {
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

    fn threads(&self) -> Vec<ThreadAccesses> {
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
                reads: s.reads,
                writes: s.writes,
                pages: Pages(s.pages),
                written_pages: Pages(s.written),
                first_pages: Pages(s.first),
            })
            .collect();
        threads.sort_by_key(|t| (Reverse(t.reads + t.writes), t.pid, t.tid));
        threads
    }
}

/// Objects of one name and kind.
#[derive(Default)]
struct Group {
    gathered: Gathered,
    objects: BTreeSet<u32>,
}

/// Reads the counts, if the trace has any. `own` says which objects are the recorder's.
pub(crate) fn read(
    trace: &Trace,
    intervals: &[IntervalRow],
    objects: &[ObjectRow],
    spans: &[Span],
    own: impl Fn(usize) -> bool,
) -> Result<Option<ExactUse>, TraceError> {
    // Imported counts need not know the threads.
    if trace.manifest.backend != EXACT || trace.count::<CountRow>()? == 0 {
        return Ok(None);
    }
    let mut owners = Owners::new(spans);
    let mut groups: BTreeMap<(&str, ObjectKind), Group> = BTreeMap::new();
    let mut all = Gathered::default();
    let mut by_object: HashMap<u32, (u64, u64)> = HashMap::new();
    let mut now = None;
    let mut on_page: Vec<u32> = Vec::new();
    let mut last = None;
    for batch in trace.batches::<CountRow>()? {
        for row in &batch? {
            if now != Some(row.interval) {
                now = Some(row.interval);
                advance(&mut owners, intervals, row.interval);
                last = None;
            }
            if last != Some((row.pid, row.page)) {
                last = Some((row.pid, row.page));
                on_page.clear();
                let page = PageRange {
                    first: row.page,
                    count: Pages(1),
                };
                owners.owners(row.pid, page, |_, shares| {
                    on_page.extend(shares.iter().map(|s| s.object.0));
                });
            }
            if !on_page.is_empty() && on_page.iter().all(|o| own(*o as usize)) {
                continue;
            }
            let Some(tid) = row.tid else { continue };
            all.add(row, tid);
            for object in &on_page {
                let of = by_object.entry(*object).or_default();
                of.0 += row.reads;
                of.1 += row.writes;
            }
            let mut names: Vec<(&str, ObjectKind)> = Vec::new();
            for object in &on_page {
                let of = &objects[*object as usize];
                let key = (of.name.as_str(), of.kind);
                let group = groups.entry(key).or_default();
                group.objects.insert(*object);
                // Several objects of one name on a page are one.
                if !names.contains(&key) {
                    names.push(key);
                    group.gathered.add(row, tid);
                }
            }
        }
    }
    let threads = all.threads();
    let mut listed: Vec<ObjectAccesses> = groups
        .into_iter()
        .filter(|(_, group)| !group.objects.iter().all(|o| own(*o as usize)))
        .map(|((name, kind), group)| {
            let of = group.gathered.threads();
            let most = of.iter().max_by_key(|t| (t.first_pages, Reverse(t.tid)));
            let touches = |t: &ThreadAccesses| of.iter().any(|o| (o.pid, o.tid) == (t.pid, t.tid));
            ObjectAccesses {
                name: name.to_owned(),
                kind,
                objects: group.objects.len() as u64,
                reads: of.iter().map(|t| t.reads).sum(),
                writes: of.iter().map(|t| t.writes).sum(),
                sharing: group.gathered.sharing(),
                first_tid: most.filter(|t| t.first_pages.0 > 0).map(|t| t.tid),
                never_touched_by: threads
                    .iter()
                    .filter(|t| !touches(t))
                    .map(|t| t.tid)
                    .collect(),
                never_written_by: of.iter().filter(|t| t.writes == 0).map(|t| t.tid).collect(),
                threads: of,
            }
        })
        .collect();
    listed.sort_by_key(|o| Reverse(o.reads + o.writes));
    Ok(Some(ExactUse {
        reads: threads.iter().map(|t| t.reads).sum(),
        writes: threads.iter().map(|t| t.writes).sum(),
        sharing: all.sharing(),
        threads,
        objects: listed,
        by_object,
    }))
}

fn advance(owners: &mut Owners<'_>, intervals: &[IntervalRow], interval: Interval) {
    if let Some(row) = intervals.get(interval.0 as usize) {
        owners.advance(row.start_ns, row.end_ns);
    }
}
