//! Where everything stands on the picture, and drawing it.

use std::sync::OnceLock;

use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use varve_analyse::{Analysis, format};
use varve_model::{Duration, Pages, Time};

use super::raster::Cells;
use crate::map::{Holds, Map};
use crate::text::{command_line, grouped};

const FONT: &str = "varve";
const INK: RGBColor = RGBColor(34, 38, 46);
const FAINT: RGBColor = RGBColor(110, 116, 126);
const GRID: RGBColor = RGBColor(222, 225, 230);
const EMPTY: RGBColor = RGBColor(246, 247, 249);
/// The stripes of what others may have touched.
const POSSIBLY: RGBColor = RGBColor(150, 168, 188);
const CURVE: RGBColor = RGBColor(31, 98, 168);
const LABELS: i32 = 400;
const MARGIN: i32 = 28;
const TOP: i32 = 96;
const GAP: i32 = 10;
const CURVE_HEIGHT: i32 = 190;
const LEGEND: i32 = 84;
/// The colours start at this share; below it a cell shows as this.
const MIN_SHARE: f64 = 0.001;

/// A lane: which of the map, its group, and which pixels.
pub(super) struct LaneAt {
    lane: usize,
    group: usize,
    rows: usize,
    y: i32,
}

/// Where everything stands.
pub(super) struct Layout {
    lanes: Vec<LaneAt>,
    columns: usize,
    x: i32,
    curve_y: i32,
}

impl Layout {
    /// The lanes are those of the groups of objects with the most page touches, in the order of addresses; the height grows
    /// with the logarithm of the size, so that small ones can be seen.
    pub(super) fn new((width, height): (u32, u32), map: &Map, most: usize) -> Layout {
        let (width, height) = (width as i32, height as i32);
        let lanes = map.grids.lanes.iter().enumerate();
        let groups = lanes.filter_map(|(i, lane)| match lane.holds {
            Holds::Group(group) => Some((i, group as usize)),
            _ => None,
        });
        let mut groups: Vec<(usize, usize)> = groups.take(most).collect();
        groups.sort_by_key(|&(i, _)| {
            let first = map.grids.lanes[i].segments.first();
            first.map(|s| (s.pid, s.page))
        });
        let curve_y = height - LEGEND - 34 - CURVE_HEIGHT;
        let room = curve_y - 46 - TOP - GAP * (groups.len() as i32 - 1).max(0);
        let weight = |(i, _): &(usize, usize)| (map.grids.lanes[*i].pages as f64 + 2.0).log2();
        let all: f64 = groups.iter().map(weight).sum();
        let mut y = TOP;
        let lanes = groups
            .iter()
            .map(|of| {
                let rows = ((f64::from(room) * weight(of) / all) as i32).max(4);
                let lane = LaneAt {
                    lane: of.0,
                    group: of.1,
                    rows: rows as usize,
                    y,
                };
                y += rows + GAP;
                lane
            })
            .collect();
        Layout {
            lanes,
            columns: (width - LABELS - MARGIN) as usize,
            x: LABELS,
            curve_y,
        }
    }

    fn column(&self, analysis: &Analysis, time: Time) -> usize {
        let length = analysis.trace.duration_ns.0.max(1) as f64;
        let share = (time - analysis.trace.start_ns).0 as f64 / length;
        ((share * self.columns as f64) as usize).min(self.columns - 1)
    }

    /// The columns of an interval.
    pub(super) fn span(&self, analysis: &Analysis, start: Time, end: Time) -> (usize, usize) {
        let from = self.column(analysis, start);
        let to = self.column(analysis, Time(end.0.saturating_sub(1)));
        (from, to.max(from))
    }
}

/// The colours of the map: light to dark, distinguishable by lightness alone as well.
fn colour(share: f64) -> RGBColor {
    const STOPS: [(f64, f64, f64); 6] = [
        (253.0, 231.0, 170.0),
        (252.0, 190.0, 110.0),
        (241.0, 124.0, 83.0),
        (200.0, 62.0, 92.0),
        (125.0, 30.0, 109.0),
        (45.0, 14.0, 84.0),
    ];
    let at =
        (share.max(MIN_SHARE) / MIN_SHARE).ln() / (1.0 / MIN_SHARE).ln() * (STOPS.len() - 1) as f64;
    let low = (at as usize).min(STOPS.len() - 2);
    let mix = |a: f64, b: f64| (a + (b - a) * (at - low as f64).clamp(0.0, 1.0)) as u8;
    let (a, b) = (STOPS[low], STOPS[low + 1]);
    RGBColor(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

/// Where the stripes of a hatched area are.
const fn is_striped(row: usize, column: usize) -> bool {
    (row + column).is_multiple_of(4)
}

type Area<'a> = DrawingArea<BitMapBackend<'a>, plotters::coord::Shift>;

fn fail(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn font() -> Result<(), String> {
    static DONE: OnceLock<bool> = OnceLock::new();
    let done = DONE.get_or_init(|| {
        register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT).is_ok()
    });
    done.then_some(())
        .ok_or_else(|| "the built-in font is not one".to_owned())
}

/// Draws everything; RGB, row by row.
pub(super) fn picture(
    size: (u32, u32),
    analysis: &Analysis,
    layout: &Layout,
    map: &Map,
) -> Result<Vec<u8>, String> {
    font()?;
    let cells = Cells::new(map, layout.columns);
    let mut pixels = vec![255; size.0 as usize * size.1 as usize * 3];
    {
        let area = BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area();
        area.fill(&WHITE).map_err(fail)?;
        head(&area, analysis, layout)?;
        grid(&area, analysis, layout)?;
        for number in 0..layout.lanes.len() {
            lane(&area, analysis, layout, &cells, number)?;
        }
        if layout.lanes.is_empty() {
            let at = (layout.x + 20, TOP + 60);
            text(
                &area,
                "No object of this trace was touched.",
                at,
                24,
                FAINT,
                HPos::Left,
            )?;
        }
        curve(&area, analysis, layout)?;
        let hatched = |l: &LaneAt| !map.grids.lanes[l.lane].possibly.is_empty();
        legend(&area, size, layout, layout.lanes.iter().any(hatched))?;
        area.present().map_err(fail)?;
    }
    Ok(pixels)
}

fn text(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: i32,
    ink: RGBColor,
    side: HPos,
) -> Result<(), String> {
    let style = TextStyle::from((FONT, size).into_font())
        .color(&ink)
        .pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style))
        .map_err(fail)
}

fn width(text: &str, size: i32) -> i32 {
    let style = (FONT, size).into_font();
    style.box_size(text).map_or(0, |(w, _)| w as i32)
}

/// Text over two lines at most; what does not fit is cut in the middle, where names say least.
fn fitted(text: &str, size: i32, room: i32) -> Vec<String> {
    if width(text, size) <= room {
        return vec![text.to_owned()];
    }
    let words: Vec<&str> = text.split(' ').collect();
    for cut in (1..words.len()).rev() {
        let (a, b) = (words[..cut].join(" "), words[cut..].join(" "));
        if width(&a, size) <= room && width(&b, size) <= room {
            return vec![a, b];
        }
    }
    let letters: Vec<char> = text.chars().collect();
    for keep in (4..letters.len()).rev() {
        let (front, back) = (keep / 2, keep - keep / 2);
        let head: String = letters[..front].iter().collect();
        let tail: String = letters[letters.len() - back..].iter().collect();
        let short = format!("{head}…{tail}");
        if width(&short, size) <= room {
            return vec![short];
        }
    }
    vec![text.to_owned()]
}

/// As much of the beginning of a text as a line has room for.
fn beginning(text: &str, size: i32, room: i32) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let short = |end: usize| format!("{}…", text[..end].trim_end());
    let fits = ends.partition_point(|&end| width(&short(end), size) <= room);
    short(ends[fits.saturating_sub(1)])
}

fn head(area: &Area<'_>, a: &Analysis, layout: &Layout) -> Result<(), String> {
    let command = match a.trace.command.is_empty() {
        true => "(unknown command)".to_owned(),
        false => command_line(&a.trace.command),
    };
    let room = layout.columns as i32 + layout.x - MARGIN;
    let title = beginning(&command, 32, room);
    text(area, &title, (MARGIN, 34), 32, INK, HPos::Left)?;
    // Cells are pages: what else may be missing leaves them as they are.
    let complete = match (a.trace.complete, a.trace.has_all_pages()) {
        (true, _) => "complete",
        (false, true) => "pages complete",
        (false, false) => "INCOMPLETE",
    };
    let line = format!(
        "Pages touched over time: the hottest {} of {} · {} touched · {}{}",
        layout.lanes.len(),
        format::counted(a.groups.len() as u64, "allocation site"),
        a.footprint
            .touched_pages
            .text(|pages| format::pages_size(*pages)),
        complete,
        a.trace
            .machine
            .value()
            .map_or(String::new(), |m| format!(" · Linux {}", m.kernel))
    );
    text(area, &line, (MARGIN, 70), 21, FAINT, HPos::Left)
}

/// Round steps of time, five to ten of them.
fn ticks(length: Duration) -> Vec<(f64, String)> {
    let seconds = length.seconds();
    if seconds <= 0.0 {
        return vec![(0.0, "0 s".to_owned())];
    }
    let magnitude = 10_f64.powf((seconds / 8.0).log10().floor());
    let mut step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|f| f * magnitude)
        .find(|s| seconds / s <= 10.0)
        .unwrap_or(magnitude * 10.0);
    if seconds > 120.0 {
        // Minutes divide by other numbers.
        step = [
            15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 21600.0,
        ]
        .into_iter()
        .find(|s| seconds / s <= 10.0)
        .unwrap_or(step.max(43_200.0));
    }
    (0..=(seconds / step + 1e-9) as u32)
        .map(|i| {
            let at = f64::from(i) * step;
            let label = match seconds {
                s if s > 120.0 => format!("{} min", (at / 60.0 * 100.0).round() / 100.0),
                s if s < 0.1 => format!("{} ms", (at * 1e5).round() / 100.0),
                _ => format!("{} s", (at * 1000.0).round() / 1000.0),
            };
            (at / seconds, label)
        })
        .collect()
}

fn grid(area: &Area<'_>, a: &Analysis, layout: &Layout) -> Result<(), String> {
    let bottom = layout.curve_y + CURVE_HEIGHT;
    for (share, label) in ticks(a.trace.duration_ns) {
        let x = layout.x + (share * layout.columns as f64) as i32;
        area.draw(&PathElement::new(vec![(x, TOP - 6), (x, bottom + 6)], GRID))
            .map_err(fail)?;
        let side = if share > 0.97 {
            HPos::Right
        } else {
            HPos::Center
        };
        text(area, &label, (x, bottom + 22), 19, INK, side)?;
    }
    Ok(())
}

fn lane(
    area: &Area<'_>,
    a: &Analysis,
    layout: &Layout,
    cells: &Cells<'_>,
    number: usize,
) -> Result<(), String> {
    let lane = &layout.lanes[number];
    let group = &a.groups[lane.group];
    let (born, died) = cells.map.grids.lanes[lane.lane].lived;
    let on_clock = |t: Time| Time(cells.map.start.0.saturating_add(t.0));
    let died = died.unwrap_or(Time(u64::MAX)).max(Time(born.0 + 1));
    let (from, to) = layout.span(a, on_clock(born), on_clock(died));
    let (left, bottom) = (layout.x + from as i32, lane.y + lane.rows as i32);
    area.draw(&Rectangle::new(
        [(left, lane.y), (layout.x + to as i32, bottom - 1)],
        EMPTY.filled(),
    ))
    .map_err(fail)?;
    for row in 0..lane.rows {
        let pixels = cells.row(lane.lane, (row, lane.rows));
        for column in 0..layout.columns {
            let (share, possibly) = cells.pixel(&pixels, column);
            if share > 0.0 {
                let at = (layout.x + column as i32, lane.y + row as i32);
                area.draw_pixel(at, &colour(share)).map_err(fail)?;
            } else if possibly && is_striped(row, column) {
                let at = (layout.x + column as i32, lane.y + row as i32);
                area.draw_pixel(at, &POSSIBLY).map_err(fail)?;
            }
        }
    }
    let room = layout.x - MARGIN - 16;
    let mut lines = fitted(&grouped(&group.name, group.objects), 20, room);
    let facts = [group.bytes.map(format::bytes), Some(group.kind.to_string())];
    let facts = facts.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let small = lane.rows < 44;
    if !small {
        lines.truncate(if lane.rows < 66 { 1 } else { 2 });
        lines.push(facts);
    } else if lines.len() > 1 {
        lines = vec![group.name.chars().take(40).collect()];
    }
    let middle = lane.y + lane.rows as i32 / 2 - (lines.len() as i32 - 1) * 11;
    for (i, line) in lines.iter().enumerate() {
        let (size, ink) = if i > 0 && i + 1 == lines.len() {
            (17, FAINT)
        } else {
            (20, INK)
        };
        text(
            area,
            line,
            (layout.x - 14, middle + i as i32 * 22),
            size,
            ink,
            HPos::Right,
        )?;
    }
    Ok(())
}

fn curve(area: &Area<'_>, a: &Analysis, layout: &Layout) -> Result<(), String> {
    let mut peaks = vec![0_u64; layout.columns];
    for w in a.working_set.items() {
        let (from, to) = layout.span(a, w.start_ns, w.end_ns);
        peaks[from..=to]
            .iter_mut()
            .for_each(|p| *p = w.pages.0.max(*p));
    }
    let top = peaks.iter().copied().max().unwrap_or(0).max(1);
    let bottom = layout.curve_y + CURVE_HEIGHT;
    let height =
        |pages: u64| bottom - (pages as f64 / top as f64 * f64::from(CURVE_HEIGHT - 8)) as i32;
    for part in 0..=2 {
        let pages = top * part / 2;
        let y = height(pages);
        let line = vec![(layout.x, y), (layout.x + layout.columns as i32, y)];
        area.draw(&PathElement::new(line, GRID)).map_err(fail)?;
        let label = if part == 0 {
            "0".to_owned()
        } else {
            format::pages_size(Pages(pages))
        };
        text(area, &label, (layout.x - 14, y), 19, INK, HPos::Right)?;
    }
    for (column, &peak) in peaks.iter().enumerate() {
        let x = layout.x + column as i32;
        if peak > 0 {
            let line = vec![(x, height(peak)), (x, bottom)];
            area.draw(&PathElement::new(line, CURVE.mix(0.25)))
                .map_err(fail)?;
        }
    }
    let outline: Vec<(i32, i32)> = peaks
        .iter()
        .enumerate()
        .map(|(c, &p)| (layout.x + c as i32, height(p)))
        .collect();
    area.draw(&PathElement::new(outline, CURVE.stroke_width(2)))
        .map_err(fail)?;
    let title = "Working set per interval";
    text(
        area,
        title,
        (MARGIN, layout.curve_y + CURVE_HEIGHT / 2),
        20,
        INK,
        HPos::Left,
    )
}

fn legend(
    area: &Area<'_>,
    (_, height): (u32, u32),
    layout: &Layout,
    possibly: bool,
) -> Result<(), String> {
    let y = height as i32 - 38;
    let length = 520.min(layout.columns as i32 / 2);
    let title = "Share of pages touched per interval";
    text(area, title, (layout.x - 14, y), 20, INK, HPos::Right)?;
    for i in 0..length {
        let share = MIN_SHARE.powf(1.0 - f64::from(i) / f64::from(length - 1));
        let line = vec![(layout.x + i, y - 10), (layout.x + i, y + 10)];
        area.draw(&PathElement::new(line, colour(share)))
            .map_err(fail)?;
    }
    for (at, label) in [
        (0.0, "0.1 % or less"),
        (1.0 / 3.0, "1 %"),
        (2.0 / 3.0, "10 %"),
        (1.0, "100 %"),
    ] {
        let x = layout.x + (at * f64::from(length)) as i32;
        let side = if at == 0.0 { HPos::Left } else { HPos::Center };
        text(area, label, (x, y + 24), 18, INK, side)?;
    }
    let x = layout.x + length + 60;
    area.draw(&Rectangle::new(
        [(x, y - 10), (x + 30, y + 10)],
        EMPTY.filled(),
    ))
    .map_err(fail)?;
    area.draw(&Rectangle::new([(x, y - 10), (x + 30, y + 10)], GRID))
        .map_err(fail)?;
    let title = "alive, not touched";
    text(area, title, (x + 42, y), 19, INK, HPos::Left)?;
    if !possibly {
        return Ok(());
    }
    let x = x + 42 + width(title, 19) + 40;
    for row in 0..20 {
        for column in 0..30 {
            let ink = match is_striped(row, column) {
                true => POSSIBLY,
                false => EMPTY,
            };
            let at = (x + column as i32, y - 10 + row as i32);
            area.draw_pixel(at, &ink).map_err(fail)?;
        }
    }
    area.draw(&Rectangle::new([(x, y - 10), (x + 30, y + 10)], GRID))
        .map_err(fail)?;
    let title = "possibly touched by others";
    text(area, title, (x + 42, y), 19, INK, HPos::Left)
}
