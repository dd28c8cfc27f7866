//! What clock samples say, as `access_time` of `varve report --json`: the figures of [`SampleUse`] under the names that
//! the first version of the document gave them.

use std::cmp::Reverse;

use serde::Serialize;
use varve_model::{Duration, ObjectId, Pid, Tid};
use varve_trace::SamplesNote;

use crate::sections::samples::{SampleUse, Steps, WEIGHT};

/// A view of samples that have a weight in time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AccessTime<'a> {
    weight: &'static str,
    #[serde(flatten)]
    note: SamplesNote,
    time_ns: Duration,
    access_ns: Duration,
    unowned_ns: Duration,
    objects: Vec<Object<'a>>,
    lines: Vec<Line<'a>>,
    threads: Vec<Thread<'a>>,
    flame: Vec<Chain<'a>>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Object<'a> {
    object: ObjectId,
    name: &'a str,
    time_ns: Duration,
    read_ns: Duration,
    write_ns: Duration,
    threads: Vec<Part>,
    steps: Option<Steps>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Part {
    pid: Pid,
    tid: Tid,
    time_ns: Duration,
    write_ns: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Line<'a> {
    function: Option<&'a str>,
    file: Option<&'a str>,
    line: Option<u32>,
    module: Option<&'a str>,
    time_ns: Duration,
    access_ns: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Thread<'a> {
    pid: Pid,
    tid: Tid,
    name: &'a str,
    time_ns: Duration,
    access_ns: Duration,
    call_ns: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Chain<'a> {
    stack: &'a str,
    time_ns: Duration,
}

impl<'a> AccessTime<'a> {
    /// None where Varve took no samples.
    pub fn of(samples: &'a SampleUse) -> Option<AccessTime<'a>> {
        let note = samples.note?;
        let zero = Option::unwrap_or_default;
        let mut threads: Vec<Thread<'_>> = samples
            .threads
            .iter()
            .map(|t| Thread {
                pid: t.pid,
                tid: t.tid,
                name: &t.name,
                time_ns: zero(t.sampled.time_ns),
                access_ns: zero(t.sampled.access_ns),
                call_ns: zero(t.sampled.call_ns),
            })
            .collect();
        threads.sort_by_key(|t| (Reverse(t.time_ns), t.tid));
        let object = |o: &'a crate::ObjectSamples| {
            let (time, write) = (zero(o.sampled.time_ns), zero(o.sampled.write_ns));
            Object {
                object: o.object,
                name: &o.name,
                time_ns: time,
                read_ns: Duration(time.0.saturating_sub(write.0)),
                write_ns: write,
                threads: o
                    .threads
                    .iter()
                    .map(|t| Part {
                        pid: t.pid,
                        tid: t.tid,
                        time_ns: zero(t.sampled.time_ns),
                        write_ns: zero(t.sampled.write_ns),
                    })
                    .collect(),
                steps: o.steps,
            }
        };
        Some(AccessTime {
            weight: WEIGHT,
            note,
            time_ns: zero(samples.all.time_ns),
            access_ns: zero(samples.all.access_ns),
            unowned_ns: zero(samples.unowned_ns),
            objects: samples.objects.iter().map(object).collect(),
            lines: samples
                .lines
                .iter()
                .map(|l| Line {
                    function: l.function.as_deref(),
                    file: l.file.as_deref(),
                    line: l.line,
                    module: l.module.as_deref(),
                    time_ns: zero(l.time_ns),
                    access_ns: zero(l.access_ns),
                })
                .collect(),
            threads,
            flame: samples
                .flame
                .iter()
                .map(|c| Chain {
                    stack: &c.stack,
                    time_ns: zero(c.time_ns),
                })
                .collect(),
        })
    }
}
