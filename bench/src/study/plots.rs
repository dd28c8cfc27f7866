//! The study's figures as plots (SVG).

use std::fmt::Display;
use std::path::Path;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged};
use plotters::prelude::*;

use super::tables::{Figure, Sweep, SweepRow};
use crate::capture::Method;
use crate::error::{Error, Result};

const FONT: &str = "sans-serif";
/// Distinguishable by lightness as well as by hue.
const COLOURS: [RGBColor; 4] = [
    RGBColor(31, 78, 121),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
];

fn colour(method: Method) -> RGBColor {
    let at = Method::ALL.iter().position(|m| *m == method);
    COLOURS[at.unwrap_or(0)]
}

/// Makes the font known by which text is measured; who looks at a plot has one of that name.
pub(super) fn prepare() -> Result<()> {
    let font = epaint_default_fonts::UBUNTU_LIGHT;
    plotters::style::register_font(FONT, FontStyle::Normal, font)
        .map_err(|_| Error::Failed("the built-in font is not one".into()))
}

fn failed(error: impl Display) -> Error {
    Error::Failed(format!("cannot draw: {error}"))
}

/// Positions without numbers: programs stand there.
struct Slots(std::ops::Range<f64>);

impl Ranged for Slots {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.0.start) / (self.0.end - self.0.start);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        let count = (self.0.end - self.0.start) as usize;
        (0..count).map(|slot| slot as f64 + 0.5).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.0.clone()
    }
}

impl plotters::coord::ranged1d::ValueFormatter<f64> for Slots {
    fn format(value: &f64) -> String {
        format!("{value}")
    }
}

/// Bars of every program side by side, one for each method, on a logarithmic scale; with the spread of the rounds.
pub(super) fn bars(figure: &Figure, methods: &[Method], folder: &Path) -> Result<()> {
    let mut programs: Vec<&str> = figure.rows.iter().map(|r| r.0.as_str()).collect();
    programs.dedup();
    if programs.is_empty() {
        return Ok(());
    }
    let values = figure.rows.iter().filter(|r| r.2.least > 0.0);
    let low = values.clone().map(|r| r.2.least).fold(1.0, f64::min);
    let high = values.map(|r| r.2.greatest).fold(1.0, f64::max);
    let floor = 10f64.powf(low.log10().floor());
    let floor = if floor == low { floor / 2.0 } else { floor };
    let ceiling = high * 1.5;
    let path = folder.join(format!("{}.svg", figure.name));
    let width = 260 + 90 * programs.len() as u32;
    let area = SVGBackend::new(&path, (width.max(640), 420)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(figure.title, (FONT, 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(
            Slots(0.0..programs.len() as f64),
            (floor..ceiling).log_scale(),
        )
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(programs.len())
        .x_label_formatter(&|at| programs.get(*at as usize).copied().unwrap_or("").to_owned())
        .y_label_formatter(&|value| plain(*value))
        .label_style((FONT, 14))
        .draw()
        .map_err(failed)?;
    let wide = 0.8 / methods.len() as f64;
    for (i, method) in methods.iter().enumerate() {
        let style = colour(*method).filled();
        let of = |slot: usize| figure.of(programs[slot], *method).map(|s| (slot, s));
        let all: Vec<_> = (0..programs.len()).filter_map(of).collect();
        let from = |slot: usize| slot as f64 + 0.1 + wide * i as f64;
        chart
            .draw_series(all.iter().map(|(slot, spread)| {
                let (left, top) = (from(*slot), spread.median.max(floor));
                Rectangle::new([(left, floor), (left + wide * 0.92, top)], style)
            }))
            .map_err(failed)?
            .label(method.name())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], style));
        chart
            .draw_series(all.iter().map(|(slot, spread)| {
                let middle = from(*slot) + wide * 0.46;
                let ends = [spread.least, spread.greatest].map(|v| (middle, v.max(floor)));
                PathElement::new(ends, BLACK)
            }))
            .map_err(failed)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 14))
        .draw()
        .map_err(failed)?;
    area.present().map_err(failed)
}

fn plain(value: f64) -> String {
    if value >= 1.0 {
        format!("{value:.0}")
    } else {
        format!("{value}")
    }
}

/// Slowdown by interval: a line for each program, a panel for each method.
pub(super) fn sweep(sweep: &Sweep, folder: &Path) -> Result<()> {
    let mut methods: Vec<Method> = Vec::new();
    for row in &sweep.rows {
        if !methods.contains(&row.method) {
            methods.push(row.method);
        }
    }
    if methods.is_empty() {
        return Ok(());
    }
    let path = folder.join("interval_sweep.svg");
    let area = SVGBackend::new(&path, (560 * methods.len() as u32, 440)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    for (panel, method) in area.split_evenly((1, methods.len())).iter().zip(methods) {
        let rows: Vec<&SweepRow> = sweep.rows.iter().filter(|r| r.method == method).collect();
        draw_sweep(panel, method, &rows)?;
    }
    area.present().map_err(failed)
}

type Panel<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_sweep(panel: &Panel<'_>, method: Method, rows: &[&SweepRow]) -> Result<()> {
    let lengths = || rows.iter().map(|r| f64::from(r.interval_ms));
    let (short, long) = (
        lengths().fold(f64::MAX, f64::min),
        lengths().fold(0.0, f64::max),
    );
    let high = rows.iter().map(|r| r.slowdown).fold(1.0, f64::max);
    let low = rows.iter().map(|r| r.slowdown).fold(1.0, f64::min);
    let mut chart = ChartBuilder::on(panel)
        .caption(
            format!("Slowdown by interval, {}", method.name()),
            (FONT, 18),
        )
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(
            (short / 1.2..long * 1.2).log_scale(),
            (low / 1.1..high * 1.1).log_scale(),
        )
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc("interval, ms")
        .x_label_formatter(&|value| plain(*value))
        .y_label_formatter(&|value| format!("{value:.2}"))
        .label_style((FONT, 14))
        .draw()
        .map_err(failed)?;
    let mut programs: Vec<&str> = rows.iter().map(|r| r.program.as_str()).collect();
    programs.dedup();
    for (i, program) in programs.iter().enumerate() {
        let style = Palette99::pick(i).stroke_width(2);
        let points = rows.iter().filter(|r| r.program == *program);
        let points = points.map(|r| (f64::from(r.interval_ms), r.slowdown));
        chart
            .draw_series(LineSeries::new(points, style).point_size(3))
            .map_err(failed)?
            .label(*program)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .label_font((FONT, 13))
        .draw()
        .map_err(failed)
}
