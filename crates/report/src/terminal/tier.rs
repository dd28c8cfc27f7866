//! What `varve tier simulate` prints.

use varve_analyse::{Known, format};
use varve_model::visible;
use varve_tier::{About, Basis, CurvePoint, PolicyName, PolicyResult, Simulation};

use super::WIDTHS;
use super::chart::bar;
use super::page::{Page, Tone};
use super::table::{ABSENT, Align, Table};

/// Objects that are shown of a policy.
const OBJECTS: usize = 8;
/// Points of the curve that are shown, besides the size that was asked for.
const POINTS: usize = 8;
/// Columns of a bar.
const BAR: usize = 12;

/// The text; with `whole`, every row.
pub fn render(of: &Simulation, whole: bool, width: usize, color: bool) -> String {
    let width = width.clamp(*WIDTHS.start(), *WIDTHS.end());
    let mut page = Page::new(width, color);
    page.whole = whole;
    page.wrapped(&headline(of), Tone::Strong);
    page.wrapped(&about(&of.trace), Tone::Plain);
    if let Some(planned) = &of.planned_on {
        let text = format!("Objects were planned on another run: {}", about(planned));
        page.wrapped(&text, Tone::Plain);
    }
    policies(&mut page, of);
    losses(&mut page, of);
    curve(&mut page, of);
    page.heading("What these figures are");
    for note in definitions().into_iter().chain(of.notes.clone()) {
        page.item(&note);
    }
    page.text
}

fn definitions() -> [String; 2] {
    [
        "A touch is a page in an interval in which it was accessed, however often. It is slow if it finds its page in a slower tier, or if a policy had fetched the page from there. A new page is not slow where the fastest tier takes it.".to_owned(),
        "Within an interval the order of touches is not known: policies see them in the order of addresses. The bound holds for every order.".to_owned(),
    ]
}

/// The policy with the least modelled time.
fn best(of: &Simulation) -> Option<&PolicyResult> {
    let policies = of.policies.iter().filter(|p| !p.is_bound);
    policies.min_by_key(|p| (p.modelled_ns, p.slow_touches))
}

fn first_touch(of: &Simulation) -> Option<&PolicyResult> {
    let mut policies = of.policies.iter();
    policies.find(|p| p.name == PolicyName::FirstTouch)
}

/// What stands first: the best policy, and how far the bound is.
fn headline(of: &Simulation) -> String {
    let Some(best) = best(of) else {
        return "No policy was simulated.".to_owned();
    };
    let tiers: Vec<String> = of.tiers.all().iter().map(ToString::to_string).collect();
    let bound = of.policies.iter().find(|p| p.is_bound);
    let bound = bound.map_or_else(String::new, |b| {
        format!(
            "; no policy can have less than {}",
            format::share(b.slow_share)
        )
    });
    let first = first_touch(of)
        .filter(|f| f.name != best.name)
        .map_or_else(String::new, |f| {
            format!(
                " First touch has {} and {:.2}.",
                format::share(f.slow_share),
                f.modelled_slowdown
            )
        });
    format!(
        "On {}, {} is best by modelled time: {} of touches are slow{bound}, and the run takes {:.2} times as long as with all memory fast.{first}",
        visible(&tiers.join(" and ")),
        best.name,
        format::share(best.slow_share),
        best.modelled_slowdown
    )
}

fn about(of: &About) -> String {
    format!(
        "{}: {} touches of {} in {} ({}), at most {} at once.",
        visible(&of.command.join(" ")),
        format::count(of.touches),
        format::counted(of.pages.0, "page"),
        format::counted(of.intervals, "interval"),
        format::duration(of.duration_ns),
        format::pages_size(of.peak_pages)
    )
}

fn policies(page: &mut Page, of: &Simulation) {
    let rests = match of.rests_on {
        Basis::Touches => "touches",
        Basis::Samples => "samples",
    };
    page.heading(&format!("Policies (times are modelled, from {rests})"));
    let mut table = Table::new(&[
        ("policy", Align::Name),
        ("slow touches", Align::Right),
        ("share", Align::Right),
        ("", Align::Left),
        ("of samples", Align::Right),
        ("moved", Align::Right),
        ("time", Align::Right),
    ]);
    for one in &of.policies {
        let name = match (one.is_bound, one.setting.as_str()) {
            (true, _) => format!("{} (bound)", one.name),
            (false, "") => one.name.to_string(),
            (false, setting) => format!("{}: {setting}", one.name),
        };
        let sampled = match &one.slow_sampled_share {
            Known::Absent(_) => ABSENT.to_owned(),
            known => known.text(|share| format::share(*share)),
        };
        table.row([
            name,
            format::count(one.slow_touches),
            format::share(one.slow_share),
            bar(one.slow_share, BAR),
            sampled,
            format::count(one.migrations),
            format!(
                "{}{:.2}x",
                if one.is_bound { "≥" } else { "" },
                one.modelled_slowdown
            ),
        ]);
        if let Some(best) = one.best.as_ref().filter(|b| b.setting != one.setting) {
            let slowdown = best.modelled_ns.0 as f64 / of.trace.duration_ns.0.max(1) as f64;
            table.row([
                format!("  best of those tried: {}", best.setting),
                format::count(best.slow_touches),
                format::share(best.slow_share),
                bar(best.slow_share, BAR),
                String::new(),
                format::count(best.migrations),
                format!("{slowdown:.2}x"),
            ]);
        }
    }
    page.table(&table);
}

/// Which object loses what, under the policies that differ most.
fn losses(page: &mut Page, of: &Simulation) {
    let shown: Vec<&PolicyResult> = match page.whole {
        true => of.policies.iter().collect(),
        false => {
            let mut shown: Vec<&PolicyResult> =
                best(of).into_iter().chain(first_touch(of)).collect();
            shown.dedup_by_key(|p| p.name);
            shown
        }
    };
    for one in shown {
        page.heading(&format!("Objects under {}", one.name));
        let has_plan = one.objects.iter().any(|o| o.tier.is_some());
        let mut columns = vec![
            ("object", Align::Name),
            ("size", Align::Right),
            ("touches", Align::Right),
            ("slow", Align::Right),
            ("share", Align::Right),
        ];
        if has_plan {
            columns.push(("tier", Align::Left));
        }
        let mut table = Table::new(&columns);
        for object in one.objects.iter().take(page.rows(OBJECTS)) {
            let mut cells = vec![
                object.name.clone(),
                format::pages_size(object.peak_pages),
                format::count(object.touches),
                format::count(object.slow_touches),
                format::share(object.slow_share),
            ];
            if has_plan {
                cells.push(object.tier.clone().unwrap_or_else(|| ABSENT.to_owned()));
            }
            table.row(cells);
        }
        page.table(&table);
        page.more(one.objects.len(), OBJECTS, one.objects_omitted);
    }
}

fn curve(page: &mut Page, of: &Simulation) {
    let fast = of.tiers.fastest().capacity();
    let asked = fast.0.min(of.trace.peak_pages.0);
    page.heading("Slow touches against the size of the fastest tier");
    let mut table = Table::new(&[
        ("size", Align::Name),
        ("of the peak", Align::Right),
        ("objects", Align::Right),
        ("LRU", Align::Right),
        ("in any order", Align::Right),
        ("optimum", Align::Right),
    ]);
    let every = (of.curve.len() / POINTS).max(1);
    let points = of.curve.iter().enumerate();
    let points = points.filter(|(i, p)| page.whole || i % every == 0 || p.fast_pages.0 == asked);
    let share = |n: u64| format::percent(n, of.trace.touches);
    for (_, point) in points {
        let CurvePoint {
            fast_pages,
            share_of_peak,
            ..
        } = *point;
        let mark = if fast_pages.0 == asked {
            " (asked for)"
        } else {
            ""
        };
        table.row([
            format!("{}{mark}", format::pages_size(fast_pages)),
            format::share(share_of_peak),
            share(point.objects),
            share(point.lru),
            format!(
                "{} to {}",
                share(point.lru_at_least),
                share(point.lru_at_most)
            ),
            share(point.optimum),
        ]);
    }
    page.table(&table);
}
