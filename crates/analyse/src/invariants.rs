//! What must be true of every analysis, whatever the trace: no part is larger than its whole, and parts and whole agree.
//!
//! A figure that breaks one of these is wrong. It is said in the report, so that nobody takes the others on trust, and
//! fails every test that looks at a report.

use varve_model::{Capability, PageRange, Pages};

use crate::analysis::{Analysis, Group, ObjectUse, Touched};

/// Sentences that are listed.
const MAX: usize = 10;

/// What cannot be true together in an analysis, a sentence each; none where all is well.
pub(crate) fn broken(a: &Analysis) -> Vec<String> {
    if !a.trace.has(Capability::Touches) {
        return Vec::new();
    }
    let mut check = Check::default();
    whole(a, &mut check);
    intervals(a, &mut check);
    processes(a, &mut check);
    for o in &a.objects {
        object(a, o, &mut check);
    }
    for g in &a.groups {
        group(a, g, &mut check);
    }
    parts(a, &mut check);
    check.said
}

#[derive(Default)]
struct Check {
    said: Vec<String>,
}

impl Check {
    /// The first must not be more than the second.
    fn at_most(&mut self, part: (&str, u64), whole: (&str, u64), of: &str) {
        if part.1 > whole.1 && self.said.len() < MAX {
            self.said.push(format!(
                "{of}: {} is {}, and {} is only {}",
                part.0, part.1, whole.0, whole.1
            ));
        }
    }

    fn equal(&mut self, one: (&str, u64), other: (&str, u64), of: &str) {
        self.at_most(one, other, of);
        self.at_most(other, one, of);
    }
}

const ALL: &str = "the whole";

fn whole(a: &Analysis, check: &mut Check) {
    let f = &a.footprint;
    let touched = ("footprint.touched_pages", f.touched_pages.or_zero().0);
    let touches = ("footprint.page_touches", f.page_touches.or_zero());
    check.equal(("reuse", a.reuse.or_zero().pages().0), touched, ALL);
    check.at_most(touched, touches, ALL);
    let sum = f.touched_pages_per_process.or_zero().0;
    check.at_most(touched, ("footprint.touched_pages_per_process", sum), ALL);
    let sum = f.page_touches_per_process.or_zero();
    check.at_most(touches, ("footprint.page_touches_per_process", sum), ALL);
    check.at_most(
        ("huge_page_touches", f.huge_page_touches.or_zero()),
        touches,
        ALL,
    );
    let peak = (
        "peak_working_set_pages",
        f.peak_working_set_pages.or_zero().0,
    );
    check.at_most(peak, touched, ALL);
    check.at_most(
        (
            "mean_working_set_pages",
            f.mean_working_set_pages.or_zero().0,
        ),
        peak,
        ALL,
    );
    check.at_most(
        ("tail.cold_pages", a.tail.or_zero().cold_pages.0),
        touched,
        ALL,
    );
    for (name, rest) in [
        ("unowned", a.unowned.or_zero()),
        ("shared", a.shared.or_zero()),
    ] {
        check.at_most((name, rest.touched_pages.0), touched, ALL);
        check.at_most((name, rest.page_touches), touches, ALL);
    }
    let first: u64 = a.threads.items().iter().map(|t| t.first_touches.0).sum();
    check.at_most(
        ("first touches", first),
        ("faults", f.faults.or_zero()),
        ALL,
    );
}

fn intervals(a: &Analysis, check: &mut Check) {
    let mut sum = 0;
    for (i, w) in a.working_set.items().iter().enumerate() {
        let of = format!("interval {i}");
        let pages = ("pages", w.pages.0);
        sum += w.pages.0;
        check.at_most(
            pages,
            ("footprint", a.footprint.touched_pages.or_zero().0),
            &of,
        );
        check.at_most(pages, ("pages_per_process", w.pages_per_process.0), &of);
    }
    let touches = ("footprint.page_touches", a.footprint.page_touches.or_zero());
    check.at_most(("working_set", sum), touches, ALL);
    if a.trace.stray_rows.value() == Some(&0) {
        check.equal(("working_set", sum), touches, ALL);
    }
}

fn processes(a: &Analysis, check: &mut Check) {
    let f = &a.footprint;
    let (mut pages, mut touches) = (0, 0);
    for p in &a.processes {
        let of = format!("process {}", p.pid);
        let Some(p) = p.touched.get() else { continue };
        let touched = ("touched_pages", p.touched_pages.0);
        pages += p.touched_pages.0;
        touches += p.page_touches;
        check.at_most(touched, ("footprint", f.touched_pages.or_zero().0), &of);
        check.at_most(("shared_pages", p.shared_pages.0), touched, &of);
    }
    let all = (
        "touched_pages_per_process",
        f.touched_pages_per_process.or_zero().0,
    );
    check.equal(("the sum over processes", pages), all, ALL);
    let all = (
        "page_touches_per_process",
        f.page_touches_per_process.or_zero(),
    );
    check.equal(("the sum over processes", touches), all, ALL);
}

/// What is true of one object and of several.
fn usage(a: &Analysis, u: &Touched, of: &str, check: &mut Check) {
    let f = &a.footprint;
    let touched = ("touched_pages", u.touched_pages.0);
    let touches = ("page_touches", u.page_touches);
    check.at_most(touched, ("footprint", f.touched_pages.or_zero().0), of);
    check.at_most(touched, touches, of);
    check.at_most(
        touches,
        ("footprint.page_touches", f.page_touches.or_zero()),
        of,
    );
    check.at_most(("cold_pages", u.cold_pages.0), touched, of);
    let written = u.written_pages.unwrap_or(Pages(0)).0;
    check.at_most(("written_pages", written), touched, of);
    check.at_most(("shared_page_touches", u.shared_page_touches), touches, of);
    check.at_most(("huge_page_touches", u.huge_page_touches), touches, of);
    let standing = ("standing_page_touches", u.standing_page_touches);
    check.at_most(standing, touches, of);
    if a.trace.stray_rows.value() == Some(&0) {
        let intervals = ("intervals", a.trace.intervals.or_zero());
        check.at_most(("intervals_touched", u.intervals_touched), intervals, of);
        let most = u.touched_pages.0.saturating_mul(u.intervals_touched);
        check.at_most(touches, ("pages times intervals", most), of);
    }
}

fn object(a: &Analysis, o: &ObjectUse, check: &mut Check) {
    let of = format!("object {} ({})", o.object.0, o.name);
    let Some(u) = o.usage.touched.get() else {
        return;
    };
    usage(a, u, &of, check);
    let touched = ("touched_pages", u.touched_pages.0);
    check.equal(("reuse", u.reuse.pages().0), touched, &of);
    if let (Some(address), Some(bytes)) = (o.address, o.bytes) {
        let size = PageRange::of_bytes(address, bytes).count;
        check.at_most(touched, ("its size in pages", size.0), &of);
        let covered = ("touched_bytes", u.touched_bytes.0);
        check.at_most(covered, ("its size", bytes.0), &of);
    }
    for p in &o.processes {
        let Some(pages) = p.touched_pages else {
            continue;
        };
        let one = ("touched_pages of a process", pages.0);
        check.at_most(one, touched, &of);
        let written = p.written_pages.unwrap_or(Pages(0)).0;
        check.at_most(("written_pages of a process", written), one, &of);
    }
}

fn group(a: &Analysis, g: &Group, check: &mut Check) {
    let of = format!("group {}", g.name);
    if let Some(u) = g.usage.touched.get() {
        usage(a, u, &of, check);
        if let Some(lives) = g.touched_pages_over_lives {
            let lives = ("touched_pages_over_lives", lives.0);
            check.at_most(("touched_pages", u.touched_pages.0), lives, &of);
        }
    }
    let objects = ("objects", g.objects);
    for (name, some) in [("untouched_objects", g.untouched_objects), ("died", g.died)] {
        if let Some(some) = some {
            check.at_most((name, some), objects, &of);
        }
    }
    if let (Some(peak), Some(bytes)) = (g.peak_bytes, g.bytes) {
        check.at_most(("peak_bytes", peak.0), ("bytes", bytes.0), &of);
    }
}

/// Objects that lay on a page in one interval, at the same time or one after the other, each have its touches: such are
/// counted apart, once, and with those of one object and those of none they are all there are.
fn lives(a: &Analysis, check: &mut Check) {
    let usages = a.objects.iter().filter_map(|o| o.usage.touched.get());
    let alone: u64 = usages
        .map(|u| u.page_touches.saturating_sub(u.shared_page_touches))
        .sum();
    let parts = alone + a.shared.or_zero().page_touches + a.unowned.or_zero().page_touches;
    let whole = ("footprint.page_touches", a.footprint.page_touches.or_zero());
    let of = "pages of one object, of several, and nobody's";
    check.at_most((of, parts), whole, ALL);
    if a.omitted.objects == 0 && a.trace.stray_rows.value() == Some(&0) {
        check.equal((of, parts), whole, ALL);
    }
}

/// The groups and what is nobody's are all there is.
fn parts(a: &Analysis, check: &mut Check) {
    let f = &a.footprint;
    let (mut alone, mut all, mut pages) = (0, 0, 0);
    for u in a.groups.iter().filter_map(|g| g.usage.touched.get()) {
        alone += u.page_touches - u.shared_page_touches.min(u.page_touches);
        all += u.page_touches;
        pages += u.touched_pages.0;
    }
    let whole = ("footprint.page_touches", f.page_touches.or_zero());
    let nobody = a.unowned.or_zero().page_touches;
    check.at_most(
        ("pages of one group, and nobody's", alone + nobody),
        whole,
        ALL,
    );
    check.at_most(whole, ("all groups, and nobody's", all + nobody), ALL);
    let whole = ("footprint.touched_pages", f.touched_pages.or_zero().0);
    let sum = pages + a.unowned.or_zero().touched_pages.0;
    check.at_most(whole, ("all groups, and nobody's", sum), ALL);
    lives(a, check);
    let listed = a.objects.len() as u64 + a.omitted.objects;
    let counted = a.groups.iter().map(|g| g.objects).sum();
    check.equal(("objects", listed), ("objects of groups", counted), ALL);
}
