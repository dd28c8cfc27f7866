//! What an imported record does not tell.

use varve_trace::Absent;

/// What it means that a trace lacks something.
pub(crate) const fn lacking(absent: Absent) -> &'static str {
    match absent {
        Absent::Touches => "Which pages were touched, and when: the record has samples only.",
        Absent::Resident => "How many pages were resident: the record does not tell.",
        Absent::Faults => "Which thread touched a page first: the record has no page faults.",
        Absent::Overhead => "What recording cost: the record does not tell.",
        Absent::Machine => "The machine: the record does not tell.",
        Absent::Places => {
            "Where objects lie and how large they are: the record has their names only."
        }
        Absent::Lives => "When objects came to be and ceased: the record does not tell.",
    }
}
