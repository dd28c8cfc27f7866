//! Tables that fit a width: the column of names gives way, and a name that does not fit goes on in the next line.

use varve_model::visible;

use super::page::{clip_name, wrap};

/// What stands where a figure is not known.
pub(super) const ABSENT: &str = "-";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    /// Takes what room the others leave.
    Name,
    Left,
    Right,
}

pub(super) struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
    /// Names that do not fit are cut.
    cuts: bool,
}

impl Table {
    pub(super) fn new(columns: &[(&str, Align)]) -> Table {
        Table {
            columns: columns
                .iter()
                .map(|(name, align)| ((*name).to_owned(), *align))
                .collect(),
            rows: Vec::new(),
            cuts: false,
        }
    }

    /// The table with a line for each row, where names that do not fit are cut.
    pub(super) fn one_line_each(self) -> Table {
        Table { cuts: true, ..self }
    }

    pub(super) fn row(&mut self, cells: impl Into<Vec<String>>) {
        // Names are whatever a program wants.
        let cells: Vec<String> = cells
            .into()
            .into_iter()
            .map(|cell| visible(&cell).into_owned())
            .collect();
        self.rows.push(cells);
    }

    /// The head and the rows.
    pub(super) fn lines(&self, width: usize) -> Vec<String> {
        let length = |text: &str| text.chars().count();
        let head: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let mut widths: Vec<usize> = (0..self.columns.len())
            .map(|i| {
                let cells = self.rows.iter().chain([&head]);
                cells.map(|row| length(&row[i])).max().unwrap_or(0)
            })
            .collect();
        let name = self
            .columns
            .iter()
            .position(|(_, align)| *align == Align::Name);
        if let Some(name) = name {
            let others: usize =
                widths.iter().sum::<usize>() - widths[name] + 2 * (widths.len() - 1);
            widths[name] = widths[name].min(width.saturating_sub(others).max(16));
        }
        let mut lines = Vec::new();
        for row in [&head].into_iter().chain(&self.rows) {
            let parts = match name {
                Some(name) if self.cuts => vec![clip_name(&row[name], widths[name])],
                Some(name) => wrap(&row[name], widths[name]),
                None => vec![String::new()],
            };
            for (i, part) in parts.iter().enumerate() {
                let cells: Vec<String> = self
                    .columns
                    .iter()
                    .zip(row)
                    .zip(&widths)
                    .map(|(((_, align), cell), &width)| match align {
                        Align::Name if i > 0 => format!("{:<width$}", format!("  {part}")),
                        Align::Name => format!("{part:<width$}"),
                        _ if i > 0 => String::new(),
                        Align::Left => format!("{cell:<width$}"),
                        Align::Right => format!("{cell:>width$}"),
                    })
                    .collect();
                lines.push(cells.join("  ").trim_end().to_owned());
            }
        }
        lines
    }
}
