//! When the mappings of young programs are looked at.

use varve_model::{Duration, Time};

/// A new program's mappings are looked at this long after its beginning, again and again: it is
/// loading its libraries, and it may live shorter than an interval.
const YOUNG_REFRESHES: [Duration; 4] = [
    Duration(1_000_000),
    Duration(4_000_000),
    Duration(12_000_000),
    Duration(30_000_000),
];
/// Where many programs begin, one look at all of them is enough in this time.
const REFRESHES_APART: Duration = Duration(8_000_000);

/// Plans looks at the mappings of a program that has just begun, where none are planned for others about then.
pub(super) fn plan_refreshes(planned: &mut Vec<Time>, now: Time) {
    let others = planned.clone();
    planned.extend(YOUNG_REFRESHES.map(|d| now + d).into_iter().filter(|at| {
        let is_near = |other: &Time| other.0.abs_diff(at.0) < REFRESHES_APART.0;
        !others.iter().any(is_near)
    }));
}
