use super::*;

const MAP: u32 = libc::MAP_ANONYMOUS.cast_unsigned();

fn call(call: MappingCall, result: i64, by_operation: bool) -> Mapping<'static> {
    Mapping {
        entered: Time(1),
        time: Time(2),
        pid: Pid(1),
        tid: Tid(1),
        call,
        result,
        by_operation,
        stack: None,
    }
}

fn map(bytes: u64, flags: u32) -> MappingCall {
    MappingCall::Map {
        hint: Address(0),
        bytes: Bytes(bytes),
        protection: 3,
        flags,
        fd: -1,
        offset: 0,
    }
}

fn after(calls: &[Mapping<'_>]) -> Vec<(u64, u64)> {
    let mut process = Process::default();
    calls.iter().for_each(|call| process.change(call));
    let ranges = process.ranges.iter();
    ranges.map(|(at, bytes)| (at.0, bytes.0)).collect()
}

#[test]
fn what_the_program_maps_is_not_the_allocators() {
    let own = call(map(0x4000, MAP), 0x10_0000, false);
    let allocators = call(map(0x4000, MAP), 0x20_0000, true);
    let file = call(map(0x4000, 0), 0x30_0000, true);
    let failed = call(map(0x4000, MAP), -12, true);
    assert_eq!(
        after(&[own, allocators, file, failed]),
        [(0x20_0000, 0x4000)]
    );
    // What it has given back is the program's when that maps it.
    let unmap = MappingCall::Unmap {
        address: Address(0x20_1000),
        bytes: Bytes(0x1000),
    };
    let own = call(map(0x2000, MAP), 0x20_2000, false);
    assert_eq!(
        after(&[allocators, call(unmap, 0, true), own]),
        [(0x20_0000, 0x1000)]
    );
}

#[test]
fn addresses_are_no_memory() {
    let reserved = MAP | libc::MAP_NORESERVE.cast_unsigned();
    let arena = call(map(128 << 20, reserved), 0x10_0000, true);
    let table = call(map(256 << 30, reserved), 0x1_0000_0000, true);
    assert_eq!(after(&[arena, table]), [(0x10_0000, 128 << 20)]);
    let block = call(map(256 << 30, MAP), 0x1_0000_0000, true);
    assert_eq!(after(&[block]), [(0x1_0000_0000, 256 << 30)]);
}

#[test]
fn a_block_that_moves_is_where_it_went() {
    let first = call(map(0x4000, MAP), 0x10_0000, true);
    let remap = |from, to: i64, by_operation| {
        let remap = MappingCall::Remap {
            old_address: Address(from),
            old_bytes: Bytes(0x4000),
            new_bytes: Bytes(0x8000),
            flags: 1,
        };
        call(remap, to, by_operation)
    };
    assert_eq!(
        after(&[first, remap(0x10_0000, 0x40_0000, true)]),
        [(0x40_0000, 0x8000)]
    );
    let own = call(map(0x4000, MAP), 0x10_0000, false);
    assert_eq!(after(&[own, remap(0x10_0000, 0x40_0000, false)]), []);
}

#[test]
fn the_end_of_the_heap_moves() {
    let brk = |before, result: i64, by_operation| {
        let brk = MappingCall::Brk {
            wanted: Address(0),
            before: Address(before),
        };
        call(brk, result, by_operation)
    };
    let grown = brk(0x50_0000, 0x54_0000, true);
    assert_eq!(after(&[grown]), [(0x50_0000, 0x4_0000)]);
    assert_eq!(
        after(&[grown, brk(0x54_0000, 0x51_0000, true)]),
        [(0x50_0000, 0x1_0000)]
    );
    assert_eq!(after(&[brk(0x50_0000, 0x54_0000, false)]), []);
}

/// Where the allocator has memory.
const HEAP: u64 = 0x10_0000;

/// A process whose allocator has mapped so many pages.
fn process(pages: u64) -> Process {
    let mut process = Process::default();
    process.change(&call(map(pages * PAGE_BYTES, MAP), HEAP as i64, true));
    process
}

impl Process {
    fn sees(&mut self, page: u64, by: TouchedBy, seen: TouchSeen) {
        self.touch(&FirstTouch {
            pid: Pid(1),
            tid: Tid(1),
            address: Address(HEAP + page * PAGE_BYTES + 8),
            by,
            seen,
        });
    }

    /// The program touches pages.
    fn touches(&mut self, pages: Range<u64>) {
        pages.for_each(|page| self.sees(page, TouchedBy::Program, TouchSeen::Begun));
    }

    /// Calls `madvise` for all of some pages.
    fn advises(&mut self, pages: u64, at_once: bool, by_operation: bool) {
        self.advised(&Emptied {
            pid: Pid(1),
            address: Address(HEAP),
            bytes: Bytes(pages * PAGE_BYTES),
            at_once,
            by_operation,
        });
    }

    fn unmaps(&mut self, pages: u64, by_operation: bool) {
        let unmap = MappingCall::Unmap {
            address: Address(HEAP),
            bytes: Bytes(pages * PAGE_BYTES),
        };
        self.change(&call(unmap, 0, by_operation));
    }

    /// First touches by the program, and those of memory that came again.
    fn touched(&self) -> (u64, u64) {
        (self.counts.touches.by_program, self.counts.again.by_program)
    }
}

#[test]
fn first_touches_are_those_of_the_allocators_pages() {
    let mut mapped = Mapped::default();
    let mut of = process(2);
    of.touches(0..2);
    of.sees(1, TouchedBy::Program, TouchSeen::Sampled);
    of.sees(1, TouchedBy::Program, TouchSeen::Sampled);
    // Of another page than the thread has touched last.
    of.sees(0, TouchedBy::Program, TouchSeen::Sampled);
    // Beside its memory.
    of.touches(2..3);
    of.sees(2, TouchedBy::Program, TouchSeen::Sampled);
    mapped.processes.insert(Pid(1), of);
    let mut read = || {
        let mut rows = Vec::new();
        mapped.read(Time(5), None, &mut rows);
        let row = |row: OperationChargeRow| (row.name.into_owned(), row.count, row.total_ns.0);
        rows.into_iter().map(row).collect::<Vec<_>>()
    };
    let period = 1_000_000_000 / u64::from(CLOCK_RATE);
    let expected = [
        ("first_touch".to_owned(), 2, 0),
        (CLOCK_FIRST_TOUCH.to_owned(), 2, 2 * period),
    ];
    assert_eq!(read(), expected);
    assert_eq!(read(), []);
}

#[test]
fn a_page_that_was_touched_before_is_not_touched_for_the_first_time() {
    let mut of = process(600);
    of.sees(3, TouchedBy::Operation, TouchSeen::Begun);
    of.touches(0..600);
    // As where it may not be accessed for a while.
    of.touches(0..600);
    of.sees(599, TouchedBy::Program, TouchSeen::Sampled);
    assert_eq!(of.touched(), (599, 0));
    assert_eq!(of.counts.touches.in_operation, 1);
    assert_eq!(of.counts.sampled, 0);
}

#[test]
fn what_operations_give_back_comes_again() {
    for by_madvise in [true, false] {
        let mut of = process(100);
        for _ in 0..3 {
            of.touches(0..80);
            match by_madvise {
                true => of.advises(100, true, true),
                false => of.unmaps(100, true),
            }
            of.change(&call(map(100 * PAGE_BYTES, MAP), HEAP as i64, true));
        }
        of.touches(0..1);
        of.sees(0, TouchedBy::Program, TouchSeen::Sampled);
        assert_eq!(of.touched(), (241, 161));
        assert_eq!((of.counts.sampled, of.counts.sampled_again), (1, 1));
        let given = (of.counts.advised, of.counts.unmapped);
        assert_eq!(given, if by_madvise { (240, 0) } else { (0, 240) });
    }
}

#[test]
fn it_is_known_who_touches_what_came_again() {
    let mut of = process(9);
    of.touches(0..9);
    of.advises(9, true, true);
    for page in 0..5 {
        of.sees(page, TouchedBy::Kernel, TouchSeen::Begun);
    }
    of.sees(5, TouchedBy::Operation, TouchSeen::Begun);
    of.touches(6..9);
    let named: HashMap<&str, u64> = of.counts.named().into_iter().collect();
    let figures = [
        ("first_touch", 17),
        ("first_touch_by_kernel", 5),
        ("first_touch_in_operation", 1),
        ("came_again", 8),
        ("came_again_by_kernel", 5),
        ("came_again_in_operation", 1),
    ];
    for (name, count) in figures {
        assert_eq!(named[name], count, "{name}");
    }
}

/// Nor does what the kernel may take, which a page fault shows.
#[test]
fn what_the_program_gives_back_does_not_come_again() {
    for (at_once, by_operation) in [(true, false), (false, false), (false, true)] {
        let mut of = process(50);
        for _ in 0..3 {
            of.touches(0..50);
            of.advises(50, at_once, by_operation);
        }
        assert_eq!(of.touched(), (150, 0), "{at_once} {by_operation}");
    }
    let mut of = process(50);
    of.touches(0..50);
    of.unmaps(50, false);
    of.change(&call(map(50 * PAGE_BYTES, MAP), HEAP as i64, true));
    of.touches(0..50);
    assert_eq!(of.touched(), (100, 0));
}

#[test]
fn what_was_never_touched_is_not_given_back() {
    let mut of = process(1000);
    for _ in 0..20 {
        of.touches(0..1);
        of.unmaps(1000, true);
        of.change(&call(map(1000 * PAGE_BYTES, MAP), HEAP as i64, true));
    }
    // Memory elsewhere that is filled once.
    of.touches(1..901);
    assert_eq!(of.touched(), (920, 20));
}

#[test]
fn touched_pages_move_with_a_block() {
    let remap = |from, to: u64, old: u64, new: u64| {
        let remap = MappingCall::Remap {
            old_address: Address(from),
            old_bytes: Bytes(old * PAGE_BYTES),
            new_bytes: Bytes(new * PAGE_BYTES),
            flags: 1,
        };
        call(remap, to as i64, true)
    };
    let mut of = process(20);
    of.touches(0..20);
    // To behind itself, back, and to half.
    let other = HEAP + 100 * PAGE_BYTES;
    of.change(&remap(HEAP, other, 20, 40));
    of.touches(100..120);
    of.change(&remap(other, HEAP, 40, 40));
    of.touches(0..20);
    assert_eq!((of.touched(), of.given), ((20, 0), 0));
    of.change(&remap(HEAP, HEAP, 40, 10));
    assert_eq!((of.given, of.counts.unmapped), (10, 10));
    of.change(&remap(HEAP, HEAP, 10, 40));
    of.touches(0..20);
    assert_eq!(of.touched(), (30, 10));
}

#[test]
fn the_end_of_the_heap_gives_back_what_is_above() {
    let mut of = Process::default();
    let brk = |before, result: u64| {
        let brk = MappingCall::Brk {
            wanted: Address(0),
            before: Address(before),
        };
        call(brk, result as i64, true)
    };
    let end = HEAP + 50 * PAGE_BYTES;
    of.change(&brk(HEAP, end));
    of.touches(0..50);
    of.change(&brk(end, HEAP + 9 * PAGE_BYTES + 1));
    assert_eq!((of.given, of.counts.unmapped), (40, 40));
}

#[test]
fn a_child_begins_with_its_parents_pages() {
    let mut parent = process(10);
    parent.touches(0..10);
    parent.advises(5, true, true);
    let mut child = parent.forked();
    child.touches(0..10);
    assert_eq!(child.touched(), (5, 0));
    parent.touches(0..10);
    assert_eq!(parent.touched(), (15, 5));
}
