//! What of a trace its readers see.

use std::collections::HashSet;
use std::ops::Range;

use varve_model::{Interval, ObjectId, Pid, Tid, Time};

use crate::tables::{
    CountRow, FaultRow, IntervalRow, MarkRow, ObjectRow, ProcessRow, SampleRow, ThreadRow, TouchRow,
};

/// A part of a trace: whoever reads the trace sees the rows of it. A part that is not chosen is all.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The processes.
    pub pids: Option<HashSet<Pid>>,
    /// The threads. Touches name none, so that none of them is seen.
    pub tids: Option<HashSet<Tid>>,
    /// The time, on the trace's clock.
    pub time: Option<Range<Time>>,
    /// The intervals of that time.
    pub intervals: Option<Range<Interval>>,
    /// Of these, those that count: in order, without overlap. None: all.
    pub parts: Option<Vec<(Range<Time>, Range<Interval>)>>,
    /// The objects. Of touches, faults and counts a reader must find out the owner itself.
    pub objects: Option<HashSet<ObjectId>>,
    /// The same as a person said it; empty where all is seen.
    pub description: String,
}

impl Selection {
    fn pid(&self, pid: Pid) -> bool {
        self.pids.as_ref().is_none_or(|pids| pids.contains(&pid))
    }

    fn tid(&self, tid: Option<Tid>) -> bool {
        let chosen = |tids: &HashSet<Tid>| tid.is_some_and(|t| tids.contains(&t));
        self.tids.as_ref().is_none_or(chosen)
    }

    fn at(&self, time: Time) -> bool {
        self.time.as_ref().is_none_or(|t| t.contains(&time))
            && self.parts.as_ref().is_none_or(|parts| {
                let next = parts.partition_point(|(times, _)| times.end <= time);
                parts
                    .get(next)
                    .is_some_and(|(times, _)| times.contains(&time))
            })
    }

    /// Whether something that began and ended then is of the time.
    fn meets(&self, began: Time, ended: Option<Time>) -> bool {
        self.time
            .as_ref()
            .is_none_or(|t| began < t.end && ended.is_none_or(|e| e >= t.start))
    }

    fn interval(&self, interval: Interval) -> bool {
        self.intervals
            .as_ref()
            .is_none_or(|i| i.contains(&interval))
            && self.parts.as_ref().is_none_or(|parts| {
                let next = parts.partition_point(|(_, of)| of.end <= interval);
                parts
                    .get(next)
                    .is_some_and(|(_, of)| of.contains(&interval))
            })
    }

    /// Whether an object is chosen.
    pub fn object(&self, object: Option<ObjectId>) -> bool {
        let chosen = |objects: &HashSet<ObjectId>| object.is_some_and(|o| objects.contains(&o));
        self.objects.as_ref().is_none_or(chosen)
    }

    /// Whether touches of a process in an interval are seen.
    pub(crate) fn touch_of(&self, interval: Interval, pid: Pid) -> bool {
        self.tids.is_none() && self.interval(interval) && self.pid(pid)
    }
}

pub(crate) fn of_interval(row: &IntervalRow, s: &Selection) -> bool {
    s.interval(row.interval)
}

pub(crate) fn of_touch(row: &TouchRow, s: &Selection) -> bool {
    s.touch_of(row.interval, row.pid)
}

pub(crate) fn of_fault(row: &FaultRow, s: &Selection) -> bool {
    s.at(row.time_ns) && s.pid(row.pid) && s.tid(Some(row.tid))
}

pub(crate) fn of_sample(row: &SampleRow, s: &Selection) -> bool {
    s.at(row.time_ns) && s.pid(row.pid) && s.tid(row.tid) && s.object(row.object)
}

pub(crate) fn of_count(row: &CountRow, s: &Selection) -> bool {
    s.interval(row.interval) && s.pid(row.pid) && s.tid(row.tid)
}

pub(crate) fn of_object(row: &ObjectRow, s: &Selection) -> bool {
    s.pid(row.pid) && s.meets(row.born_ns, row.died_ns)
}

pub(crate) fn of_process(row: &ProcessRow, s: &Selection) -> bool {
    s.pid(row.pid) && s.meets(row.born_ns, row.died_ns)
}

pub(crate) fn of_thread(row: &ThreadRow, s: &Selection) -> bool {
    s.pid(row.pid) && s.tid(Some(row.tid)) && s.meets(row.born_ns, row.died_ns)
}

pub(crate) fn of_mark(row: &MarkRow, s: &Selection) -> bool {
    // Of an event the moment counts, of a phase all of it.
    let until = match row.kind.as_ref() {
        "event" => Some(row.start_ns),
        _ => row.until_ns,
    };
    s.pid(row.pid) && s.tid(Some(row.tid)) && s.meets(row.start_ns, until)
}
