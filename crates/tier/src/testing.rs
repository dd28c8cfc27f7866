//! Small streams for tests, made at random.

use proptest::prelude::*;
use varve_model::{Bytes, Duration, ObjectKind, Pages, Pid, Time};

use crate::stream::{Builder, Group, SlotRun, Stream};

/// A group of a name.
pub(crate) fn group(name: &str) -> Group {
    Group {
        name: name.to_owned(),
        kind: Some(ObjectKind::Heap),
        site: None,
        objects: 1,
        peak_bytes: Bytes(0),
        first: None,
        touches: 0,
        peak_pages: Pages(0),
    }
}

/// What happens in an interval: pages given back before it, then pages touched in it.
pub(crate) type Happening = (Vec<u32>, Vec<u32>);

/// Pages of a made-up trace.
pub(crate) const PAGES: u32 = 24;
/// Pages of each object.
pub(crate) const OBJECT: u32 = 4;
/// The length of an interval.
pub(crate) const STEP: u64 = 50_000_000;

/// Intervals in which random pages are touched, and few given back.
pub(crate) fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let touched = prop::collection::btree_set(0..PAGES, 0..PAGES as usize);
    let freed = prop::collection::btree_set(0..PAGES, 0..3);
    let one = (freed, touched)
        .prop_map(|(freed, touched)| (freed.into_iter().collect(), touched.into_iter().collect()));
    prop::collection::vec(one, 1..14)
}

/// The stream of them; every four pages are an object.
pub(crate) fn stream(of: &[Happening]) -> Stream {
    let objects = PAGES / OBJECT;
    let names = (0..objects).map(|i| group(&format!("o{i}")));
    let mut builder = Builder::new([group("none")].into_iter().chain(names).collect());
    builder.grow(Pid(1), 0);
    for i in 0..objects {
        builder.own(i * OBJECT, (i + 1) * OBJECT, i + 1);
    }
    for (i, (freed, touched)) in of.iter().enumerate() {
        for &slot in freed {
            builder.free(slot, slot + 1);
        }
        for &first in touched {
            builder.touch(SlotRun {
                first,
                end: first + 1,
                written: None,
            });
        }
        builder.end_interval(Time(i as u64 * STEP), Duration(STEP), 1);
    }
    builder.finish(vec![], 1)
}
