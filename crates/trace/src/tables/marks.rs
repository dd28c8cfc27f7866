//! What a program says of its own work.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Field, Schema, SchemaRef};
use varve_model::{Pid, Tid, Time};

use super::{Row, Table};
use crate::cell::Cell;
use crate::selection::{self, Selection};

table! {
    /// A phase that a program ran through, or an event that it named, in the order of time.
    MarkRow in "marks" growing ["start_ns"] ; chosen by selection::of_mark {
        /// The process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// `phase` or `event`.
        kind: Cow<'static, str>,
        /// What the program calls it: its first 128 bytes at most. Bytes that are no UTF-8 are replaced.
        name: String,
        /// When it began, or happened.
        start_ns: Time,
        /// When the program ended it; null for events, and for phases that it did not end.
        end_ns: Option<Time>,
        /// Up to when it counts: as `end_ns`, or when its thread ended or its process ran another program; null where it was open when the recording ended.
        until_ns: Option<Time>,
    }
}

table! {
    /// The beginning of a phase, or an event (raw; `marks` holds the merged form).
    BegunMarkRow in "begun_marks" growing ["mark", "time_ns"] {
        /// Its number.
        mark: u64,
        /// When.
        time_ns: Time,
        /// The process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// `phase` or `event`.
        kind: Cow<'static, str>,
        /// What the program calls it.
        name: String,
    }
}

table! {
    /// The end of a phase (raw).
    EndedMarkRow in "ended_marks" growing ["mark", "time_ns"] {
        /// The number of the phase.
        mark: u64,
        /// When.
        time_ns: Time,
        /// Whether the program said so; else its thread or what its process ran had ended.
        said: bool,
    }
}
