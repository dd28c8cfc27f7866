use super::*;

fn region(base: u64, leaf: Leaf, accessed: u64) -> Region {
    Region {
        accessed: [accessed, 0, 0, 0, 0, 0, 0, 0],
        ..Region::untouched(Address(base), leaf)
    }
}

#[test]
fn neighbours_are_cleared_together_and_the_untouched_are_not() {
    let (small, huge) = (Leaf::Small, Leaf::Huge2M);
    let mut sticky = region(0x80_0000, small, 0);
    sticky.sticky[0] = 1;
    let found = [
        region(0x20_0000, small, 1),
        region(0x40_0000, huge, 1),
        region(0x40_0000, small, 2),
        sticky,
        region(0xa0_0000, small, 1),
    ];
    let range = |start, end| (Address(start), Address(end));
    assert_eq!(
        runs(&found),
        [range(0x20_0000, 0x60_0000), range(0xa0_0000, 0xc0_0000)]
    );
    assert_eq!(accessed(&found), 1 + 512 + 1 + 1);
}

#[test]
fn what_was_left_set_may_be_stale_and_the_rest_is_not() {
    let mut left = Leftovers::default();
    let (mm, other) = (MmId(1), MmId(2));
    left.add(Pid(7), mm, &region(0, Leaf::Small, 0b01));
    let mut read = [region(0, Leaf::Small, 0b11), region(0, Leaf::Huge2M, 1)];
    left.mark(other, &mut read);
    assert_eq!((read[0].accessed[0], read[0].sticky[0]), (0b11, 0));
    left.mark(mm, &mut read);
    assert_eq!((read[0].accessed[0], read[0].sticky[0]), (0b10, 0b01));
    assert_eq!((read[1].accessed[0], read[1].sticky[0]), (1, 0));
    let mut gone = [region(0, Leaf::Small, 0b11)];
    left.mark_vanishing(|pid| pid == Pid(7), &mut gone);
    assert_eq!((gone[0].accessed[0], gone[0].others[0]), (0b10, 0b01));
    let mut later = Leftovers::default();
    later.add(Pid(7), mm, &region(0, Leaf::Small, 0b100));
    later.keep(left);
    let mut read = [region(0, Leaf::Small, 0b111)];
    later.mark(mm, &mut read);
    assert_eq!((read[0].accessed[0], read[0].sticky[0]), (0b010, 0b101));
    let mut left = later;
    left.forget(mm);
    let mut again = [region(0, Leaf::Small, 0b11)];
    left.mark(mm, &mut again);
    assert_eq!(again[0].sticky[0], 0);
}

#[test]
fn only_what_takes_longer_than_a_hold_is_divided() {
    let mut slices = Slices::default();
    let limit = Duration(7_000_000);
    assert!(!slices.divides(Pid(1), 70_000, limit));
    assert!(slices.divides(Pid(1), 70_001, limit));
    Slices::measured(&mut slices.whole_ns, 1 << 20, Duration(200 << 20));
    assert!(
        slices.divides(Pid(1), 40_000, limit),
        "a rise counts at once"
    );
    slices.shared.insert(Pid(1));
    assert!(!slices.divides(Pid(1), 1 << 30, limit));
    slices.forget(Pid(1));
    slices.parts = false;
    assert!(!slices.divides(Pid(1), 1 << 30, limit));
    assert_eq!(slices.fit(limit), 43_750);
    slices.read_ns = 1.0;
    assert_eq!(slices.fit(limit), 87_500);
}

#[test]
fn no_more_is_cleared_than_there_is_time_for() {
    let slices = Slices::default();
    let all = |words: u64| {
        let mut found = region(words << 21, Leaf::Small, u64::MAX);
        found.accessed = [u64::MAX; 8];
        found
    };
    let mut found = vec![all(1), all(2), all(5)];
    assert_eq!(slices.cut(&mut found, Duration(400_000)), None);
    assert_eq!(
        slices.cut(&mut found, Duration(250_000)),
        Some(Address(5 << 21))
    );
    assert_eq!(slices.cut(&mut found, Duration(0)), Some(Address(2 << 21)));
    assert_eq!(found.len(), 1, "a little is done however late it is");
    assert_eq!(slices.cut(&mut found, Duration(0)), None);
}
