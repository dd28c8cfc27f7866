//! What the head and the first screen say of a recording that is not the usual one.

use tempfile::TempDir;
use varve_analyse::{Analysis, Finding, FindingId, Known, Overhead, Overview, Remainder};
use varve_model::{Bytes, Duration, Pages};

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
}

/// Groups of one name whose objects lie on the same pages are one row, and a row has the whole at most.
#[test]
fn no_share_of_the_first_screen_exceeds_the_whole() {
    let folder = TempDir::new().unwrap();
    let (_, mut a) = write(&folder.path().join("t.varve"), Kind::Complete);
    let all = *a.footprint.page_touches.value().unwrap();
    let count = a.groups.len() as f64;
    for g in &mut a.groups {
        g.name = "pool".into();
        g.kind = varve_model::ObjectKind::Heap;
        g.touch_share = Some(1.0 / count);
        g.usage.touched.0.as_mut().unwrap().page_touches = all;
    }
    let hot = Overview::of(&a).hot;
    assert_eq!(hot.len(), 1);
    assert!((hot[0].share - 1.0).abs() < 1e-9, "{}", hot[0].share);
}

/// Few intervals limit what is said: that is a note at the end, and a headline only where there is nothing else.
#[test]
fn few_intervals_are_a_note() {
    let folder = TempDir::new().unwrap();
    let (_, mut a) = write(&folder.path().join("t.varve"), Kind::Complete);
    a.findings = vec![Finding {
        id: FindingId::ShortRecording,
        title: "The intervals are few".into(),
        evidence: "3 intervals in 1 s.".into(),
        action: "record with --interval 50ms".into(),
        advice: "Record with --interval 50ms.".into(),
        objects: vec![],
    }];
    let screen = first_screen(&a, 100);
    let note = "note The intervals are few: record with --interval 50ms";
    assert!(words(&screen).contains(note), "{screen}");
    let last = screen.trim_end().lines().rev().take(3);
    assert!(last.collect::<String>().contains("note"), "{screen}");
    let overview = Overview::of(&a);
    assert_eq!((overview.findings.len(), overview.notes.len()), (0, 1));
    // Nothing else can be said.
    (a.groups, a.objects, a.samples, a.counts) = (vec![], vec![], None, None);
    let overview = Overview::of(&a);
    assert_eq!((overview.findings.len(), overview.notes.len()), (1, 0));
}

#[test]
fn memory_of_the_recorder_is_one_row_without_a_share() {
    let text = changed(Kind::Complete, |a| {
        a.own_memory = Known::Exact(Remainder {
            touched_pages: Pages(16),
            page_touches: 99,
        });
    });
    let rows = text.lines().filter(|l| l.starts_with("recorder's memory"));
    let rows: Vec<String> = rows.map(words).collect();
    assert_eq!(rows.len(), 1, "{text}");
    assert!(
        rows[0].starts_with("recorder's memory recorder - 64 KiB"),
        "{rows:?}"
    );
    assert!(rows[0].ends_with("- -"), "{rows:?}");
}

/// Others may have touched more of its pages, and the program with them.
#[test]
fn what_was_touched_at_least_of_an_object_is_marked() {
    let mark = |a: &mut Analysis| {
        for g in a.groups.iter_mut().filter(|g| g.name.starts_with("matrix")) {
            let touched = g.usage.touched.0.as_mut().unwrap();
            touched.possibly_others_page_touches = 3;
        }
    };
    let text = said(mark);
    assert!(text.contains("heap 7.81 MiB ≥7.03 MiB"), "{text}");
    assert!(text.contains("heap 12.1 MiB 11.8 MiB"), "{text}");
    assert!(text.contains("≥: at least, as of some pages only a flag is known"));
    assert!(!said(|_| ()).contains('≥'));
    let folder = TempDir::new().unwrap();
    let (_, mut a) = write(&folder.path().join("t.varve"), Kind::Complete);
    mark(&mut a);
    let screen = words(&first_screen(&a, 100));
    assert!(screen.contains("heap at least 7.03 MiB"), "{screen}");
}

/// Where there is room a name goes on in the next line, and so does the line of the machine.
#[test]
fn the_first_screen_has_whole_names_and_sentences_where_there_is_room() {
    let folder = TempDir::new().unwrap();
    let (_, mut a) = write(&folder.path().join("t.varve"), Kind::Complete);
    a.findings.truncate(1);
    let screen = first_screen(&a, 80);
    assert!(!screen.contains('…'), "{screen}");
    let said = words(&screen);
    assert!(said.contains("2 memory nodes · Some CPU"), "{said}");
    let (_, hot) = said.split_once("Hot, by").expect("what is hot");
    let (hot, _) = hot.split_once("What to do").expect("what to do");
    let end = "(simulation/particles.cpp:1207, in ParticleSystem::reserve_all)";
    assert!(hot.contains(end), "{hot}");
}

/// A figure of one process of several says so by itself.
#[test]
fn the_peak_of_one_process_names_what_it_is_of() {
    let folder = TempDir::new().unwrap();
    let (_, mut a) = write(&folder.path().join("t.varve"), Kind::Complete);
    a.processes.push(a.processes[0].clone());
    a.footprint.peak_resident_pages = Known::default();
    a.footprint.peak_process_bytes = Known::Exact(Bytes(5 << 20));
    let said = words(&first_screen(&a, 100));
    let peak = "7.2 MiB at most; 5 MiB resident at most in one process, as the kernel counts it";
    assert!(said.contains(peak), "{said}");
}
