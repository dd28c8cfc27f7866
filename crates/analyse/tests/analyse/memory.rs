//! Memory of several processes, objects that grow, sites that are used again and again: no figure is above its whole.

use std::collections::BTreeSet;

use crate::common::{
    INTERVALS_OF_RANDOM, Made, STEP, fault, mapping, object, process, thread, touch, touched,
};
use proptest::prelude::*;
use varve_analyse::{Analysis, Known, ObjectUse};
use varve_model::{
    Address, Bytes, Duration, ObjectId, ObjectKind, Page, Pages, Pid, SiteId, Tid, Time,
};
use varve_trace::tables::{ObjectRow, TouchRow};

fn by(pid: u32, mut row: TouchRow) -> TouchRow {
    row.pid = Pid(pid);
    row
}

fn of(pid: u32, mut row: ObjectRow) -> ObjectRow {
    row.pid = Pid(pid);
    row.kind = ObjectKind::Mapping;
    row.layer = 2;
    row
}

fn named<'a>(found: &'a Analysis, name: &str) -> &'a ObjectUse {
    let mut all = found.objects.iter().filter(|o| o.name == name);
    let first = all.next().unwrap_or_else(|| panic!("no {name}"));
    assert!(all.next().is_none(), "{name} is there twice");
    first
}

/// Two processes map eight pages of one file at different addresses.
fn buffer() -> Made {
    let mut made = Made::new(4);
    made.processes = vec![process(1, 0), process(2, 1)];
    made.mappings = vec![
        mapping(1, 100, 8, "rw-s", 7, 0),
        mapping(2, 900, 8, "rw-s", 7, 0),
        mapping(1, 200, 4, "rw-p", 0, 0),
        mapping(2, 200, 4, "rw-p", 0, 0),
    ];
    let mut second = of(2, object(2, 900, 8));
    second.name = "buffer".into();
    let mut first = of(1, object(1, 100, 8));
    first.name = "buffer".into();
    made.objects = vec![first, second];
    made
}

#[test]
fn a_buffer_of_two_processes_is_one_object() {
    let mut made = buffer();
    // The same two pages, then each its own; and a private page at one address.
    made.touches = vec![
        touch(0, 100, 2),
        by(2, touch(0, 900, 2)),
        touch(1, 102, 1),
        by(2, touch(1, 903, 1)),
        touch(2, 200, 1),
        by(2, touch(2, 200, 1)),
    ];
    made.touches[3].written = Some(true);
    let found = made.analyse();
    assert_eq!(found.footprint.touched_pages.or_zero(), Pages(6));
    assert_eq!(
        found.footprint.touched_pages_per_process.or_zero(),
        Pages(8)
    );
    let sizes = |w: &varve_analyse::WorkingSet| (w.pages.0, w.pages_per_process.0);
    let sets: Vec<_> = found.working_set.items().iter().map(sizes).collect();
    assert_eq!(sets, [(2, 4), (2, 2), (2, 2), (0, 0)]);
    let buffer = named(&found, "buffer");
    assert_eq!(
        (touched(&buffer.usage).touched_pages, buffer.bytes),
        (Pages(4), Some(Bytes(8 * 4096)))
    );
    assert_eq!(touched(&buffer.usage).page_touches, 4);
    let users: Vec<_> = buffer
        .processes
        .iter()
        .map(|p| {
            (
                p.pid.0,
                p.touched_pages.unwrap().0,
                p.written_pages.map(|p| p.0),
            )
        })
        .collect();
    assert_eq!(users, [(1, 3, Some(0)), (2, 3, Some(1))]);
    let processes = found.processes.iter();
    let shared: Vec<_> = processes
        .map(|p| p.touched.get().unwrap().shared_pages.0)
        .collect();
    assert_eq!(shared, [2, 2]);
    assert_eq!(found.groups[0].processes.len(), 2);
}

#[test]
fn pages_that_processes_touch_in_turn_are_not_touched_once() {
    let mut made = Made::new(40);
    made.processes = (1..=4).map(|p| process(p, 1)).collect();
    for pid in 1..=4 {
        made.mappings.push(mapping(pid, 10_000, 2048, "rw-s", 7, 0));
        let mut row = of(pid, object(pid.into(), 10_000, 2048));
        row.name = "buffer".into();
        made.objects.push(row);
        made.touches.push(by(pid, touch(pid * 9, 10_000, 2048)));
    }
    let found = made.analyse();
    let ids: Vec<_> = found.findings.iter().map(|f| f.id.as_str()).collect();
    assert!(!ids.contains(&"touched-once"), "{ids:?}");
    assert_eq!(found.reuse.or_zero().more, Pages(2048));
    // Without knowing what the memory is, it would be said of each process's.
    made.mappings.clear();
    let ids: Vec<_> = made
        .analyse()
        .findings
        .iter()
        .map(|f| f.id.as_str())
        .collect();
    assert!(ids.contains(&"touched-once"), "{ids:?}");
}

#[test]
fn a_fork_has_copies_and_shares_what_is_shared() {
    let mut made = buffer();
    // A child that nobody looked at has its parent's mappings.
    made.processes.push(process(3, 1));
    made.touches = vec![touch(0, 100, 1), touch(0, 200, 1)];
    made.touches.push(by(3, touch(1, 100, 1)));
    made.touches.push(by(3, touch(1, 200, 1)));
    let found = made.analyse();
    assert_eq!(found.footprint.touched_pages.or_zero(), Pages(3));
    assert_eq!(named(&found, "buffer").processes.len(), 2);
    assert_eq!(forks_said(&found), 1, "{:?}", found.unknown);
    made.processes.truncate(1);
    assert_eq!(forks_said(&made.analyse()), 0);
}

fn forks_said(found: &Analysis) -> usize {
    let said = found.unknown.iter();
    said.filter(|s| s.contains("still its parent's memory"))
        .count()
}

#[test]
fn two_processes_with_one_pid_are_said_to_be_two() {
    let mut made = Made::new(2);
    let (mut first, mut second) = (process(1, 0), process(1, 0));
    (first.command, second.command) = ("first".into(), "second".into());
    (first.died_ns, first.exit_code) = (Some(Time(STEP)), Some(0));
    second.born_ns = Time(STEP + 5);
    made.processes = vec![first, second];
    assert_eq!(made.analyse().processes[0].command, "first; then second");
    // A program that another one follows by exec has no exit code.
    made.processes[0].exit_code = None;
    assert_eq!(made.analyse().processes[0].command, "second");
}

#[test]
fn no_more_of_an_object_is_touched_than_its_size() {
    let mut made = Made::new(1);
    let mut row = object(1, 10, 2);
    (row.address.0, row.bytes.0) = (row.address.0 + 4000, 5000);
    made.objects = vec![row];
    made.touches = vec![touch(0, 10, 3)];
    let found = made.analyse();
    assert_eq!(touched(&found.objects[0].usage).touched_pages, Pages(3));
    assert_eq!(touched(&found.objects[0].usage).touched_bytes.0, 5000);
    assert_eq!(touched(&found.groups[0].usage).touched_bytes.0, 5000);
    made.touches = vec![touch(0, 10, 1)];
    assert_eq!(
        touched(&made.analyse().objects[0].usage).touched_bytes.0,
        4096
    );
}

#[test]
fn intervals_that_became_longer_are_said_to_be() {
    let mut made = Made::new(12);
    assert!(!made.analyse().trace.is_lengthened());
    made.intervals[11].end_ns.0 += 3 * STEP;
    made.intervals[4].start_ns.0 += 1000;
    let found = made.analyse();
    assert!(found.trace.is_lengthened());
    assert_eq!(
        found.trace.longest_interval_ns,
        Known::Exact(Duration(4 * STEP - 1000))
    );
    assert_eq!(
        found.trace.shortest_interval_ns,
        Known::Exact(Duration(STEP - 2000))
    );
    let said =
        |s: &String| s.contains("1 interval, each over a tenth longer than the 50 ms asked for");
    assert!(found.unknown.iter().any(said), "{:?}", found.unknown);
    // Eleven gaps of 1000 ns; one is longer by as much, and its hold is not.
    assert_eq!(found.overhead.value().unwrap().stood_ns.0, 11_000);
    made.intervals[3].held_ns.0 += 1000;
    assert_eq!(made.analyse().overhead.value().unwrap().stood_ns.0, 12_000);
    // A pause is no hold, and no time in which one could have been.
    let before = *made.analyse().overhead.value().unwrap();
    made.intervals[8].start_ns.0 += 5000;
    let paused = *made.analyse().overhead.value().unwrap();
    assert_eq!(paused.stood_ns.0, 12_000);
    assert_eq!(paused.held_of_ns.0, before.held_of_ns.0 - 5000);
}

/// A hold comes behind its interval: of a short recording the last one may be longer than all intervals together.
#[test]
fn no_more_than_all_of_the_time_is_held() {
    let mut made = Made::new(2);
    made.intervals[0].held_ns = Duration(1000);
    made.intervals[1].held_ns = Duration(40 * STEP);
    let overhead = *made.analyse().overhead.value().unwrap();
    assert_eq!(overhead.held_ns, Duration(40 * STEP + 1000));
    // From the first interval to the last, and the last hold.
    assert_eq!(overhead.held_of_ns, Duration(2 * STEP - 1000 + 40 * STEP));
}

#[test]
fn stacks_say_whose_they_are() {
    let mut made = Made::new(1);
    made.processes = vec![process(1, 0), process(2, 1)];
    made.threads = vec![thread(1)];
    let mut stack = object(1, 10, 2);
    (stack.kind, stack.name) = (ObjectKind::Stack, "main stack".into());
    let mut heap = of(2, object(2, 10, 2));
    heap.name = "[heap], small objects".into();
    made.objects = vec![stack, heap];
    let found = made.analyse();
    named(&found, "main stack of 1 (t1)");
    named(&found, "[heap], small objects of 2 (program)");
    made.processes.truncate(1);
    named(&made.analyse(), "main stack");
}

#[test]
fn lives_of_one_site_count_their_pages_once() {
    let mut made = Made::new(3);
    // A hundred objects, one after the other, at one place within an interval.
    for i in 0..100_u64 {
        let mut row = object(i, 50, 4);
        row.name = "request".into();
        row.born_ns = Time(STEP + i * 23_000);
        row.died_ns = Some(Time(STEP + i * 23_000 + 20_000));
        made.objects.push(row);
    }
    made.touches = vec![touch(0, 10, 4), touch(1, 50, 4)];
    let found = made.analyse();
    let group = &found.groups[0];
    assert_eq!(
        (group.objects, touched(&group.usage).touched_pages),
        (100, Pages(4))
    );
    assert_eq!(touched(&group.usage).page_touches, 4);
    assert_eq!(group.touched_pages_over_lives, Some(Pages(400)));
    assert_eq!(found.footprint.touched_pages.or_zero(), Pages(8));
}

#[test]
fn who_touched_the_objects_of_a_site_is_said_of_the_site() {
    let mut made = Made::new(3);
    for i in 0..4_u64 {
        let mut row = of(1 + i as u32 % 2, object(i, 50 + 10 * i, 4));
        row.name = "request".into();
        made.objects.push(row);
    }
    let by = |pid, touch| TouchRow {
        pid: Pid(pid),
        ..touch
    };
    made.touches = vec![
        by(1, touch(1, 50, 4)),
        by(1, touch(1, 70, 1)),
        by(2, touch(1, 60, 2)),
    ];
    let found = made.analyse();
    let parts: Vec<_> = found.groups[0]
        .processes
        .iter()
        .map(|p| {
            (
                p.pid.0,
                p.objects,
                p.touched_pages_over_lives.unwrap().0,
                p.page_touches.unwrap(),
            )
        })
        .collect();
    assert_eq!(parts, [(1, 2, 5, 5), (2, 2, 2, 2)]);
}

#[test]
fn what_grows_and_moves_is_one_object() {
    let mut made = Made::new(6);
    let at = |i: u64| Time(i * STEP + 7);
    let mut first = of(1, object(1, 100, 4));
    first.died_ns = Some(at(2));
    let mut grown = of(1, object(2, 100, 8));
    (grown.born_ns, grown.died_ns, grown.continues) = (at(2), Some(at(4)), Some(ObjectId(1)));
    let mut moved = of(1, object(3, 500, 16));
    (moved.born_ns, moved.continues) = (at(4), Some(ObjectId(2)));
    for row in [&mut first, &mut grown, &mut moved] {
        row.name = "table".into();
    }
    made.objects = vec![first, grown, moved];
    made.touches = vec![touch(0, 100, 4), touch(2, 100, 8), touch(5, 500, 10)];
    let found = made.analyse();
    let table = named(&found, "table");
    assert_eq!(touched(&table.usage).touched_pages, Pages(10));
    assert_eq!(table.bytes, Some(Bytes(16 * 4096)));
    assert_eq!(found.footprint.touched_pages.or_zero(), Pages(10));
    assert_eq!(touched(&table.usage).reuse.more, Pages(4));
}

#[test]
fn a_reservation_shows_what_was_touched_of_it() {
    let mut made = Made::new(4);
    let mut reserved = of(1, object(1, 1000, 4096));
    (reserved.layer, reserved.name, reserved.site) = (1, "arena".into(), Some(SiteId(0)));
    let mut arena = of(1, object(2, 1000, 16));
    arena.name = "used".into();
    arena.born_ns = Time(STEP + 9);
    made.objects = vec![reserved, arena];
    // Reserved and used in one interval.
    made.touches = vec![touch(1, 1000, 16), touch(2, 1000, 16)];
    let found = made.analyse();
    assert_eq!(
        touched(&named(&found, "arena").usage).touched_pages,
        Pages(0)
    );
    assert!(named(&found, "arena").reserved);
    assert_eq!(
        touched(&named(&found, "used").usage).touched_pages,
        Pages(16)
    );
}

fn some_objects() -> impl Strategy<Value = Vec<ObjectRow>> {
    let one = (
        (90_u64..140, 1_u64..40, 1_u32..4, 0_u32..4),
        (0..INTERVALS_OF_RANDOM, 0..INTERVALS_OF_RANDOM),
        (any::<bool>(), any::<bool>(), any::<bool>()),
    );
    prop::collection::vec(one, 0..16).prop_map(|list| {
        let mut rows: Vec<ObjectRow> = Vec::new();
        for (id, ((page, pages, pid, name), (a, b), (inner, own, follows))) in (0..).zip(list) {
            let mut row = object(id, page, pages);
            row.pid = Pid(pid);
            row.name = format!("o{name}");
            if own && name == 0 {
                (row.kind, row.name) = (ObjectKind::Recorder, "recorder's memory".into());
            }
            row.born_ns = Time(u64::from(a.min(b)) * STEP + STEP / 2);
            row.died_ns = (a != b).then_some(Time(u64::from(a.max(b)) * STEP + STEP / 2));
            row.layer = if inner { 5 } else { 2 };
            if let Some(before) = rows.last()
                && follows
                && before.died_ns.is_some_and(|d| d <= row.born_ns)
                && before.pid == row.pid
            {
                row.continues = Some(before.object);
            }
            rows.push(row);
        }
        rows
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Made traces that could be real: the analysis must not contradict itself ([`Made::analyse`] asks), and counts each
    /// page of memory once.
    #[test]
    fn parts_and_whole_agree(
        objects in some_objects(),
        mappings in prop::collection::vec((1_u32..4, 90_u64..140, 1_u64..40, 0_u64..3, 0_u64..9, 0_u32..3), 0..6),
        touches in prop::collection::vec((0..INTERVALS_OF_RANDOM, 1_u32..4, 80_u64..170, 1_u32..40, 0_u32..6), 0..60),
        faults in prop::collection::vec((0..INTERVALS_OF_RANDOM, 1_u32..4, 80_u64..170), 0..30),
        chosen in 0_u32..4,
    ) {
        let mut made = Made::new(INTERVALS_OF_RANDOM);
        made.processes = vec![process(1, 0), process(2, 1), process(3, 1)];
        made.objects = objects;
        let mut taken: BTreeSet<(u32, u64)> = BTreeSet::new();
        for &(pid, page, pages, inode, at, perms) in &mappings {
            // A process has one mapping at a place.
            if (page..page + pages).any(|p| taken.contains(&(pid, p))) {
                continue;
            }
            taken.extend((page..page + pages).map(|p| (pid, p)));
            let perms = ["rw-s", "r-xp", "rw-p"][perms as usize];
            made.mappings.push(mapping(pid, page, pages, perms, inode, at));
        }
        let mut touches = touches;
        touches.sort_unstable();
        for &(i, pid, page, pages, mark) in &touches {
            let mut row = by(pid, touch(i, page, pages));
            match mark {
                0 => row.written = Some(true),
                1 => row.written = Some(false),
                2 => row.page_bytes = 2 << 20,
                3 => row.source = varve_model::TouchSource::Sticky,
                _ => (),
            }
            made.touches.push(row);
        }
        let mut faults = faults;
        faults.sort_unstable();
        for &(i, pid, page) in &faults {
            let mut row = fault(i, page, pid);
            (row.pid, row.tid, row.address) = (Pid(pid), Tid(pid), Address(page * 4096));
            made.faults.push(row);
        }
        let found = made.analyse();
        // Objects chosen by name have the figures that they have in the whole, and a part does not contradict itself either.
        let wanted = format!("o{chosen}");
        if let Some(part) = made.analyse_named(|name| name == wanted) {
            let of = |a: &Analysis| {
                let groups = a.groups.iter().filter(|g| g.name == wanted);
                // Whether writes are known is known of the touches that are seen.
                let written = |t| varve_analyse::Touched { written_pages: None, ..t };
                groups.map(|g| (g.objects, written(touched(&g.usage)))).collect::<Vec<_>>()
            };
            prop_assert_eq!(of(&part), of(&found));
            prop_assert_eq!(part.groups.len(), of(&part).len());
            prop_assert_eq!(part.unowned.or_zero().page_touches, 0);
        }
        if made.objects.iter().all(|o| o.continues.is_none() && o.kind != ObjectKind::Recorder) {
            let place = |pid: u32, page: u64| {
                let of = made.mappings.iter().find(|m| {
                    let first = m.address.0 / 4096;
                    m.pid.0 == pid && (first..first + m.bytes.0 / 4096).contains(&page)
                });
                let shared = of.filter(|m| m.inode != 0 && (m.perms == "rw-s" || m.perms == "r-xp"));
                match shared {
                    Some(m) => (u32::MAX - m.inode as u32, page - m.address.0 / 4096 + m.offset / 4096),
                    None => (pid, page),
                }
            };
            // What looks after the first find holds before it; children without mappings have their parent's.
            let known: BTreeSet<u32> = made.mappings.iter().map(|m| m.pid.0).collect();
            let mut memory = BTreeSet::new();
            for t in &made.touches {
                let pid = if known.contains(&t.pid.0) || t.pid.0 == 1 { t.pid.0 } else { 1 };
                for page in t.page.0..t.page.0 + u64::from(t.pages) {
                    let (space, at) = place(pid, page);
                    memory.insert((if space == pid { t.pid.0 } else { space }, Page(at)));
                }
            }
            prop_assert_eq!(found.footprint.touched_pages.or_zero(), Pages(memory.len() as u64));
        }
    }
}
