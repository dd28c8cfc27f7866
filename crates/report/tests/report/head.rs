//! What the head and the first screen say of a recording that is not the usual one.

use tempfile::TempDir;
use varve_analyse::{Analysis, Known, Overhead, Remainder};
use varve_model::{Duration, Pages};

use crate::made::{Kind, write};
use crate::terminal::{changed, first_screen};

const SECOND: u64 = 1_000_000_000;

/// The whole report on one line.
fn said(change: impl Fn(&mut Analysis)) -> String {
    words(&changed(Kind::Complete, change))
}

fn words(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_delay_a_part_and_a_pause_are_named() {
    let delayed = said(|a| a.trace.delay_ns = Duration(SECOND));
    assert!(delayed.contains("20 s recorded from 1 s after its start, 400 intervals"));
    let part = said(|a| {
        (a.trace.offset_ns, a.trace.whole_ns) = (Some(Duration(5 * SECOND)), Duration(60 * SECOND));
    });
    assert!(part.contains("20 s from 5 s on, of 60 s recorded from its start, 400 intervals"));
    let paused = said(|a| {
        a.trace.paused_ns = Duration(10 * SECOND);
        a.overhead = a.overhead.map(|o| Overhead {
            held_of_ns: Duration(10 * SECOND),
            ..*o
        });
    });
    assert!(paused.contains("20 s recorded from its start (paused for 10 s of it), 400"));
    // Of the time in which it was recorded.
    assert!(
        paused.contains("target held 120 ms (1.2 % of the time"),
        "{paused}"
    );
}

#[test]
fn intervals_are_as_long_as_they_were() {
    let one = said(|a| {
        let length = Duration(22_900_000);
        (a.trace.intervals, a.trace.duration_ns) = (Known::Exact(1), length);
        a.trace.shortest_interval_ns = Known::Exact(length);
        a.trace.median_interval_ns = Known::Exact(length);
        a.trace.longest_interval_ns = Known::Exact(length);
    });
    assert!(
        one.contains("22.9 ms recorded from its start, 1 interval of 22.9 ms, backend"),
        "{one}"
    );
}

#[test]
fn a_program_that_a_signal_killed_is_said_to_be() {
    let killed = said(|a| a.trace.exit_code = Some(139));
    assert!(killed.contains("exit code 139 (as of a program killed by signal 11, SIGSEGV)"));
    assert!(!said(|a| a.trace.exit_code = Some(255)).contains("killed by"));
}

#[test]
fn the_first_screen_warns_of_what_rests_on_little() {
    let folder = TempDir::new().unwrap();
    let (_, mut a) = write(&folder.path().join("t.varve"), Kind::Complete);
    a.unowned = a.unowned.map(|rest| Remainder {
        touched_pages: Pages(a.reuse.or_zero().pages().0 / 2),
        ..*rest
    });
    let screen = first_screen(&a, 100);
    assert!(screen.contains("Hot, by pages touched"), "{screen}");
    assert!(
        words(&screen).contains("50 % of it belongs to no known object"),
        "{screen}"
    );
    let touched = a
        .groups
        .iter_mut()
        .filter_map(|g| g.usage.touched.0.as_mut());
    touched.for_each(|touched| touched.page_touches *= 3);
    let screen = first_screen(&a, 100);
    assert!(
        words(&screen).contains("A page counts in each of its objects: all shares together are"),
        "{screen}"
    );
}
