//! What others may have touched stands apart.

use crate::common::{Made, object, touch, touched};
use varve_analyse::{Analysis, Known, Overview};
use varve_model::{Pages, TouchSource};
use varve_trace::tables::TouchRow;

fn possibly(i: u32, page: u64, pages: u32) -> TouchRow {
    TouchRow {
        source: TouchSource::PossiblyOthers,
        ..touch(i, page, pages)
    }
}

fn made() -> Made {
    let mut made = Made::new(30);
    made.objects = vec![object(1, 1000, 100), object(2, 5000, 50)];
    made.touches = (0..30).map(|i| touch(i, 1000 + u64::from(i), 10)).collect();
    made
}

#[test]
fn what_others_may_have_touched_is_in_no_other_figure() {
    let mut made = made();
    let plain = made.analyse();
    assert_eq!(plain.footprint.possibly_others_page_touches.or_zero(), 0);
    for i in 0..30 {
        // Five of these the program touched itself in the same interval; the second object is nobody else's.
        made.touches.push(possibly(i, 1005 + u64::from(i), 10));
        made.touches.push(possibly(i, 5000, 20));
        // Of no object.
        made.touches.push(possibly(i, 9000, 1));
    }
    // Of pages that the program left long before the end.
    made.touches.push(possibly(29, 1000, 5));
    made.touches.sort_by_key(|t| (t.interval, t.page));
    let found = made.analyse();
    assert_eq!(
        found.footprint.possibly_others_page_touches.or_zero(),
        30 * (5 + 20 + 1) + 5
    );
    // 1000 to 1004, 1010 to 1043, 5000 to 5019, 9000.
    assert_eq!(
        found.footprint.possibly_others_pages.or_zero(),
        Pages(5 + 34 + 20 + 1)
    );
    let of = |id: u64| {
        let object = found.objects.iter().find(|o| o.object.0 == id);
        touched(&object.unwrap().usage)
    };
    assert_eq!(of(1).possibly_others_page_touches, 30 * 5 + 5);
    assert_eq!(of(2).possibly_others_page_touches, 30 * 20);
    assert_eq!((of(2).touched_pages, of(2).page_touches), (Pages(0), 0));
    // Pages that others may have used in the tail are not known to be cold.
    assert_eq!(
        found.tail.or_zero().cold_pages.0 + 5,
        plain.tail.or_zero().cold_pages.0
    );
    let rest = |mut analysis: Analysis| {
        analysis.trace.touch_rows = varve_analyse::Known::default();
        analysis.tail = varve_analyse::Known::default();
        analysis.footprint.possibly_others_pages = varve_analyse::Known::default();
        analysis.footprint.possibly_others_page_touches = varve_analyse::Known::default();
        let objects = analysis.objects.iter_mut().map(|o| &mut o.usage);
        let groups = analysis.groups.iter_mut().map(|g| &mut g.usage);
        for touched in objects.chain(groups).filter_map(|u| u.touched.0.as_mut()) {
            touched.possibly_others_page_touches = 0;
            touched.cold_pages = Pages(0);
        }
        analysis
    };
    assert_eq!(rest(found), rest(plain));
}

/// Of pages that several mappings share a flag hides who accessed them: what the program was seen to touch of their object is a lower
/// bound. An object without such pages is known exactly.
#[test]
fn figures_of_an_object_that_others_may_have_touched_are_lower_bounds() {
    let mut made = made();
    made.objects.push(object(3, 7000, 10));
    made.touches.extend((0..30).map(|i| touch(i, 7000, 10)));
    made.touches.push(possibly(5, 1090, 3));
    made.touches.sort_by_key(|t| (t.interval, t.page));
    let found = made.analyse();
    let overview = Overview::of(&found);
    let of = |name: &str| {
        let hot = overview.hot.iter().find(|h| h.name == name);
        hot.expect("it is hot").touched.clone()
    };
    // 1000 to 1038.
    assert_eq!(of("o1"), Known::AtLeast(Pages(39).bytes()));
    assert_eq!(of("o3"), Known::Exact(Pages(10).bytes()));
    let is_bound = |id: u64| {
        let object = found.objects.iter().find(|o| o.object.0 == id);
        touched(&object.unwrap().usage).is_bound()
    };
    assert_eq!([1, 2, 3].map(is_bound), [true, false, false]);
}
