//! The study's figures as tables: one row for each program and method.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::Studied;
use crate::capture::{Method, Round};
use crate::error::{Error, Result};
use crate::statistics::{greatest, median, quantile};

/// Several measurements of one figure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) greatest: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Option<Spread> {
        let is_sound = !values.is_empty() && values.iter().all(|v| v.is_finite());
        is_sound.then(|| Spread {
            median: median(values),
            least: quantile(values, 0.0),
            greatest: greatest(values),
        })
    }
}

/// One figure of every program by every method.
pub(super) struct Figure {
    /// The name of its files.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) rows: Vec<(String, Method, Spread)>,
}

impl Figure {
    pub(super) fn of(&self, program: &str, method: Method) -> Option<Spread> {
        let found = self.rows.iter().find(|r| r.0 == program && r.1 == method);
        found.map(|r| r.2)
    }

    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let mut text = String::from("program,method,median,least,greatest\n");
        for (program, method, spread) in &self.rows {
            let (name, method) = (quoted(program), method.name());
            let Spread {
                median,
                least,
                greatest,
            } = spread;
            let _ = writeln!(text, "{name},{method},{median:.4},{least:.4},{greatest:.4}");
        }
        put(folder, self.name, &text)
    }
}

/// What of each round one method makes, in relation to the plain run and to all methods.
type Of<'a> = &'a dyn Fn(&Round, usize) -> f64;

/// Percent of pages, percent of events, slowdown.
pub(super) fn figures(all: &[Studied], methods: &[Method]) -> Vec<Figure> {
    let position = |method| methods.iter().position(|m| *m == method);
    let (exact, fault) = (position(Method::Exact), position(Method::Fault));
    let pages = |round: &Round, i: usize| {
        let whole = exact.map_or(f64::NAN, |e| round.recorded[e].1.pages as f64);
        100.0 * round.recorded[i].1.pages as f64 / whole
    };
    let events = |round: &Round, i: usize| {
        let whole = fault.map_or(f64::NAN, |f| round.recorded[f].1.events as f64);
        100.0 * round.recorded[i].1.events as f64 / whole
    };
    let slowdown = |round: &Round, i: usize| round.recorded[i].0.life_s / round.plain.life_s;
    let figures: [(&str, &str, Of<'_>); 3] = [
        (
            "pages_percent",
            "Pages of the whole run, percent of those that exact counts",
            &pages,
        ),
        (
            "events_percent",
            "Events, percent of the accesses that fault traps",
            &events,
        ),
        ("slowdown", "Slowdown, plain = 1", &slowdown),
    ];
    let figure = |(name, title, of): (&'static str, &'static str, Of<'_>)| {
        let mut rows = Vec::new();
        for studied in all {
            for (i, method) in methods.iter().enumerate() {
                let values: Vec<f64> = studied.rounds.iter().map(|r| of(r, i)).collect();
                let spread = Spread::of(&values);
                rows.extend(spread.map(|s| (studied.name.clone(), *method, s)));
            }
        }
        Figure { name, title, rows }
    };
    figures.map(figure).into()
}

/// How a program does at one interval.
pub(super) struct SweepRow {
    pub(super) program: String,
    pub(super) method: Method,
    pub(super) interval_ms: u32,
    pub(super) slowdown: f64,
    pub(super) events: f64,
    /// Different pages of the whole run.
    pub(super) pages: f64,
    /// Pages of each interval, added up.
    pub(super) interval_pages: f64,
}

/// The sweep of intervals; medians.
pub(super) struct Sweep {
    pub(super) rows: Vec<SweepRow>,
}

impl Sweep {
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let mut text =
            String::from("program,method,interval_ms,slowdown,events,pages,interval_pages\n");
        for row in &self.rows {
            let _ = writeln!(
                text,
                "{},{},{},{:.4},{:.0},{:.0},{:.0}",
                quoted(&row.program),
                row.method.name(),
                row.interval_ms,
                row.slowdown,
                row.events,
                row.pages,
                row.interval_pages
            );
        }
        put(folder, "interval_sweep", &text)
    }
}

pub(super) fn sweep(all: &[Studied], methods: &[Method]) -> Sweep {
    let mut rows = Vec::new();
    for studied in all {
        for (interval, rounds) in &studied.sweep {
            for (i, method) in methods.iter().enumerate() {
                let of = |get: &dyn Fn(&Round) -> f64| {
                    median(&rounds.iter().map(get).collect::<Vec<_>>())
                };
                rows.push(SweepRow {
                    program: studied.name.clone(),
                    method: *method,
                    interval_ms: *interval,
                    slowdown: of(&|r| r.recorded[i].0.life_s / r.plain.life_s),
                    events: of(&|r| r.recorded[i].1.events as f64),
                    pages: of(&|r| r.recorded[i].1.pages as f64),
                    interval_pages: of(&|r| r.recorded[i].1.interval_pages as f64),
                });
            }
        }
    }
    Sweep { rows }
}

/// A field of a table, which may hold what separates fields (RFC 4180).
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

fn put(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(format!("{name}.csv"));
    fs::write(&path, text).map_err(Error::io("write", &path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        assert_eq!(quoted("cg.A"), "cg.A");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }

    #[test]
    fn what_was_not_measured_has_no_spread() {
        assert!(Spread::of(&[]).is_none());
        assert!(Spread::of(&[1.0, f64::NAN]).is_none());
        let spread = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!(
            (spread.least, spread.median, spread.greatest),
            (1.0, 2.0, 3.0)
        );
    }
}
