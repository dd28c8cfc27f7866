//! Objects, and groups of objects of one site.

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Address, Bytes, Duration, ObjectId, ObjectKind, Pages, Pid, Tid, Time};

use super::footprint::Reuse;
use crate::known::{Together, together};

/// One life of one object.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectUse {
    /// Its number in the trace.
    pub object: ObjectId,
    /// Its name, as a person would say it.
    pub name: String,
    /// What it is.
    pub kind: ObjectKind,
    /// Where it was allocated, in a line.
    pub site: Option<String>,
    /// Its process; of memory that several map, the first that had it.
    pub pid: Pid,
    /// Its first byte in that process; null where unknown.
    pub address: Option<Address>,
    /// Its size; null where unknown.
    pub bytes: Option<Bytes>,
    /// Whether it is a page of pooled small objects.
    pub pool: bool,
    /// When it came to be; null where unknown.
    pub born_ns: Option<Time>,
    /// When it ceased; null where it lived to the end, or nobody knows.
    pub died_ns: Option<Time>,
    /// The thread that made it, where one did.
    pub born_tid: Option<Tid>,
    /// What was found out about its pages.
    #[serde(flatten)]
    pub usage: Usage,
    /// Whether it is a reservation: address space of which parts become memory later.
    pub reserved: bool,
    /// Its part of all page touches of the trace, 0 to 1; a page that several objects lie on is divided among these, so that the shares of all
    /// objects are 1 at most together. Null in a trace without touches.
    pub touch_share: Option<f64>,
    /// Where its memory is such that several processes may map it: those that touched it, most pages first. A page that
    /// several touched counts in each here, and once in `touched_pages`. Empty for memory of one process.
    pub processes: Vec<ObjectProcess>,
    /// Accesses that read its pages, where they were counted; a page that it shares counts in all its objects.
    pub reads: Option<u64>,
    /// The same of accesses that wrote.
    pub writes: Option<u64>,
    /// The thread of the first page fault in it; null where there was none.
    pub first_touch_tid: Option<Tid>,
    /// The threads that touched pages of it first, by page faults, most pages first; null in a trace without.
    pub threads: Option<Vec<ThreadShare>>,
}

/// What a process did to an object of memory that several may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectProcess {
    /// The process.
    pub pid: Pid,
    /// Distinct pages touched; null in a trace without touches.
    pub touched_pages: Option<Pages>,
    /// Sum over intervals of pages touched; null in a trace without touches.
    pub page_touches: Option<u64>,
    /// Touched pages that it wrote; null where unknown, a lower bound where `writes` is `partly`.
    pub written_pages: Option<Pages>,
    /// The thread of its first page fault there; null where there was none.
    pub first_touch_tid: Option<Tid>,
}

together! {
    /// What touches say of the pages of an object, or of several.
    pub Touched as TouchedFields {
        /// Distinct pages touched.
        touched_pages: Pages,
        /// The part of them that it covers, at most: an object may lie on its first and its last page in part.
        touched_bytes: Bytes,
        /// Sum over intervals of pages touched.
        page_touches: u64,
        /// Intervals in which any page of it was touched.
        intervals_touched: u64,
        /// In how many intervals its pages were touched. Of several objects: each page in each life.
        reuse: Reuse,
        /// Page touches of pages that other objects lie on too: they may not be this object's.
        shared_page_touches: u64,
        /// Page touches that huge pages made.
        huge_page_touches: u64,
        /// Page touches whose bit could not be cleared or that are pinned: they repeat whether used or not.
        standing_page_touches: u64,
        /// Page touches that other processes may have made, and nothing shows that this program did; in no other figure. Where there are
        /// any, the figures of touched pages and page touches are lower bounds.
        possibly_others_page_touches: u64,
        /// Touched pages, in use at the end of the recording, that the tail of the recording did not touch.
        cold_pages: Pages,
    }
    maybe {
        /// The end of the first interval that touched it; null where none did.
        first_touch_ns: Time,
        /// The end of the last interval that touched it; null where none did.
        last_touch_ns: Time,
        /// Touched pages that were written; null where unknown, a lower bound where `writes` is `partly`.
        written_pages: Pages,
    }
}

together! {
    /// What page faults say of the pages of an object, or of several.
    pub Faulted as FaultedFields {
        /// Pages with a page fault: what `threads` accounts for. Of several objects: the sum over lives.
        first_touches: Pages,
        /// Page faults in it while it was there: a page may have several, as when it is given back to the kernel meanwhile.
        faults: u64,
    }
    maybe {}
}

/// What was found out about the pages of an object, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, TS)]
pub struct Usage {
    /// What touches say; nothing in a trace without.
    #[serde(flatten)]
    pub touched: Together<Touched>,
    /// What page faults say; nothing in a trace without.
    #[serde(flatten)]
    pub faulted: Together<Faulted>,
}

impl Touched {
    /// Whether there may be more touched pages and page touches than these: of some pages only a flag is known that other processes
    /// set too. The flag hides whether this program accessed them as well.
    pub const fn is_bound(&self) -> bool {
        self.possibly_others_page_touches > 0
    }

    /// In how many intervals a touched page was touched, on average.
    pub fn heat(&self) -> f64 {
        match self.touched_pages.0 {
            0 => 0.0,
            pages => self.page_touches as f64 / pages as f64,
        }
    }
}

/// Pages first touched by a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
pub struct ThreadShare {
    /// Its process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// How many pages.
    pub pages: Pages,
}

/// What a process has of the objects of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
pub struct GroupProcess {
    /// The process.
    pub pid: Pid,
    /// How many of the objects it has, or touched where several may map them.
    pub objects: u64,
    /// The sum over these of the pages that it touched: memory used again for another life counts each time. Null in a
    /// trace without touches.
    pub touched_pages_over_lives: Option<Pages>,
    /// Sum over them and over intervals of the pages that it touched; null in a trace without touches.
    pub page_touches: Option<u64>,
}

/// Objects with the same name, kind and site, as reports name it: whoever called the function that allocates.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct Group {
    /// Their name.
    pub name: String,
    /// What they are.
    pub kind: ObjectKind,
    /// Where they were allocated.
    pub site: Option<String>,
    /// How many.
    pub objects: u64,
    /// The processes that have them, or touched them where several map one; most page touches first.
    pub processes: Vec<GroupProcess>,
    /// The threads that touched pages of them first, by page faults, summed over the objects, most pages first; null in a
    /// trace without.
    pub threads: Option<Vec<ThreadShare>>,
    /// Their sizes, summed over all lives; null where unknown.
    pub bytes: Option<Bytes>,
    /// The most bytes of them that lived at once; null where sizes or lives are not known.
    pub peak_bytes: Option<Bytes>,
    /// How many died in the recording; null where unknown.
    pub died: Option<u64>,
    /// The median life of those that died.
    pub median_life_ns: Option<Duration>,
    /// Objects of it that were never touched; null in a trace without touches.
    pub untouched_objects: Option<u64>,
    /// The sum over the objects of the pages touched: memory that is used again and again for another life counts each
    /// time. Null in a trace without touches.
    pub touched_pages_over_lives: Option<Pages>,
    /// The part of all page touches of the trace that is theirs, 0 to 1; a page that several objects lie on is divided among these, so that
    /// the shares of all groups are 1 at most together. Null in a trace without touches.
    pub touch_share: Option<f64>,
    /// Their pages, each once however many of the objects lay on it.
    #[serde(flatten)]
    pub usage: Usage,
}

/// Objects that the list leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Omitted {
    /// How many.
    pub objects: u64,
    /// Their sizes, summed; null where unknown.
    pub bytes: Option<Bytes>,
    /// The sum over them of the pages touched; memory used again for another life counts each time. Null in a trace without
    /// touches.
    pub touched_pages_over_lives: Option<Pages>,
    /// Sum over them and over intervals of pages touched; null in a trace without touches.
    pub page_touches: Option<u64>,
}

/// The last quarter of the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tail {
    /// Its beginning.
    pub start_ns: Time,
    /// Its length.
    pub duration_ns: Duration,
    /// Touched pages of objects alive at the end that it did not touch.
    pub cold_pages: Pages,
}
