//! Lines of text with a width and tones.

use anstyle::{AnsiColor, Style};
use varve_analyse::format;
use varve_model::visible;

use super::table::Table;

/// What a piece of text is to the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Strong,
    Faint,
    Good,
    Bad,
    Notice,
    Heading,
}

impl Tone {
    fn style(self) -> Style {
        match self {
            Tone::Plain => Style::new(),
            Tone::Strong => Style::new().bold(),
            Tone::Faint => Style::new().dimmed(),
            Tone::Good => AnsiColor::Green.on_default().bold(),
            Tone::Bad => AnsiColor::Red.on_default().bold(),
            Tone::Notice => AnsiColor::Yellow.on_default().bold(),
            Tone::Heading => AnsiColor::Cyan.on_default().bold(),
        }
    }
}

/// Columns of the labels in the margin.
const MARGIN: usize = 12;

pub(super) struct Page {
    pub(super) text: String,
    pub(super) width: usize,
    /// Whether tables have all their rows.
    pub(super) whole: bool,
    color: bool,
}

impl Page {
    pub(super) fn new(width: usize, color: bool) -> Page {
        Page {
            text: String::new(),
            width,
            whole: false,
            color,
        }
    }

    /// How many rows of a table are shown that has this many where nobody asks for all of them.
    pub(super) fn rows(&self, first: usize) -> usize {
        match self.whole {
            true => usize::MAX,
            false => first,
        }
    }

    fn paint(&self, text: &str, tone: Tone) -> String {
        match self.color && tone != Tone::Plain {
            true => format!("{}{text}{:#}", tone.style(), tone.style()),
            false => text.to_owned(),
        }
    }

    pub(super) fn gap(&mut self) {
        self.text.push('\n');
    }

    pub(super) fn line(&mut self, text: &str) {
        self.text.push_str(text.trim_end());
        self.text.push('\n');
    }

    pub(super) fn heading(&mut self, text: &str) {
        self.gap();
        let painted = self.paint(&visible(text), Tone::Heading);
        self.line(&painted);
    }

    /// Text over as many lines as it takes.
    pub(super) fn wrapped(&mut self, text: &str, tone: Tone) {
        for line in wrap(text, self.width) {
            let painted = self.paint(&line, tone);
            self.line(&painted);
        }
    }

    /// A word in the margin and text beside it.
    pub(super) fn labelled(&mut self, label: &str, tone: Tone, text: &str) {
        let room = self.width - MARGIN;
        for (i, line) in wrap(text, room).iter().enumerate() {
            let margin = match i {
                0 => format!(
                    "{}{}",
                    self.paint(label, tone),
                    " ".repeat(MARGIN - label.len().min(MARGIN))
                ),
                _ => " ".repeat(MARGIN),
            };
            self.line(&format!("{margin}{line}"));
        }
    }

    /// A word in the margin and text beside it, in one line.
    pub(super) fn marked_line(&mut self, tone: Tone, label: &str, text: &str) {
        let margin = " ".repeat(MARGIN - label.len().min(MARGIN));
        let line = format!("{}{margin}{text}", self.paint(label, tone));
        self.line(&line);
    }

    /// The same in so many lines at most, cut where the last ends.
    pub(super) fn labelled_within(&mut self, label: &str, tone: Tone, text: &str, lines: usize) {
        let text = within(text, self.width - MARGIN, lines);
        self.labelled(label, tone, &text);
    }

    /// Text in so many lines at most, cut where the last ends.
    pub(super) fn wrapped_within(&mut self, text: &str, tone: Tone, lines: usize) {
        let text = within(text, self.width, lines);
        self.wrapped(&text, tone);
    }

    /// What to do, and why, in so many lines at most.
    pub(super) fn marked(&mut self, tone: Tone, action: &str, why: &str, lines: usize) {
        let action = visible(&format::capitalised(action)).into_owned();
        let text = within(&format!("{action}: {why}"), self.width - 2, lines);
        for (i, line) in wrap(&text, self.width - 2).iter().enumerate() {
            let mark = if i == 0 { "* " } else { "  " };
            let line = match line.strip_prefix(action.as_str()) {
                Some(rest) if i == 0 => format!("{}{rest}", self.paint(&action, tone)),
                _ => line.clone(),
            };
            self.line(&format!("{mark}{line}"));
        }
    }

    /// An empty page of the same kind.
    pub(super) fn another(&self) -> Page {
        Page::new(self.width, self.color)
    }

    /// A sentence of a list.
    pub(super) fn item(&mut self, text: &str) {
        for (i, line) in wrap(text, self.width - 2).iter().enumerate() {
            let mark = if i == 0 { "- " } else { "  " };
            self.line(&format!("{mark}{line}"));
        }
    }

    pub(super) fn finding(
        &mut self,
        id: &str,
        tone: Tone,
        title: &str,
        evidence: &str,
        advice: &str,
    ) {
        let head = format!("{title}  [{id}]");
        for (i, line) in wrap(&head, self.width - 2).iter().enumerate() {
            let painted = self.paint(line, tone);
            let mark = if i == 0 { "* " } else { "  " };
            self.line(&format!("{mark}{painted}"));
        }
        for line in wrap(evidence, self.width - 4) {
            self.line(&format!("    {line}"));
        }
        for line in wrap(&format!("-> {advice}"), self.width - 4) {
            let painted = self.paint(&line, Tone::Faint);
            self.line(&format!("    {painted}"));
        }
    }

    pub(super) fn table(&mut self, table: &Table) {
        for (i, line) in table.lines(self.width).into_iter().enumerate() {
            let tone = if i == 0 { Tone::Faint } else { Tone::Plain };
            let painted = self.paint(&line, tone);
            self.line(&painted);
        }
    }

    /// How many rows a table leaves out: those beyond the first ones, which `--all` shows, and those that the analysis
    /// omitted.
    pub(super) fn more(&mut self, rows: usize, first: usize, omitted: u64) {
        let hidden = rows.saturating_sub(self.rows(first)) as u64;
        let omitted_too = format!("{} more, with less, are not listed", format::count(omitted));
        match (hidden, omitted) {
            (0, 0) => (),
            (0, _) => self.line(&format!("  and {omitted_too}")),
            (hidden, 0) => self.line(&format!(
                "  and {} more (--all shows them)",
                format::count(hidden)
            )),
            (hidden, _) => self.line(&format!(
                "  and {} more (--all shows them); {omitted_too}",
                format::count(hidden)
            )),
        }
    }
}

/// As much of a name as a line holds, and a mark where something is missing. It is cut between its parts, at `::`, `<`, `/` or a space,
/// where that leaves at least half of the line.
pub(super) fn clip_name(text: &str, width: usize) -> String {
    let text = &*visible(text);
    if text.chars().nth(width).is_none() {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let begins = |at: usize| {
        let (before, rest) = (&text[..at], &text[at..]);
        before.ends_with('/') || before.ends_with("::") || rest.starts_with(['<', ' '])
    };
    let places = text.char_indices().enumerate().take(room + 1);
    let last = places.filter(|(_, (at, _))| begins(*at)).last();
    match last.filter(|(length, _)| *length >= width / 2) {
        Some((_, (at, _))) => format!("{}…", text[..at].trim_end()),
        None => clip(text, width),
    }
}

/// As much of a text as a line holds, and a mark where something is missing.
pub(super) fn clip(text: &str, width: usize) -> String {
    let text = &*visible(text);
    match text.char_indices().nth(width) {
        None => text.to_owned(),
        Some(_) => {
            let kept: String = text.chars().take(width.saturating_sub(1)).collect();
            format!("{}…", kept.trim_end())
        }
    }
}

/// As much of a text as so many lines hold, up to the end of a sentence or of a part of one where most of it fits, and a mark where something is
/// missing.
fn within(text: &str, width: usize, lines: usize) -> String {
    let all = wrap(text, width);
    if all.len() <= lines {
        return text.to_owned();
    }
    let (last, before) = (&all[lines - 1], &all[..lines - 1]);
    let room = width.min(last.chars().count() + 2) - 1;
    let last = clip(&format!("{last} {}", all[lines]), room.max(1));
    let parts: Vec<&str> = before.iter().chain([&last]).map(String::as_str).collect();
    let cut = parts.join(" ");
    let kept = cut.trim_end_matches('…');
    for end in ['.', ';', ','] {
        let ends = |at: &usize| kept[at + 1..].is_empty() || kept[at + 1..].starts_with(' ');
        let mut places = kept.rmatch_indices(end).map(|(at, _)| at);
        match places.find(ends) {
            Some(at) if at * 2 >= kept.len() => return format!("{} …", &kept[..=at]),
            _ => {}
        }
    }
    cut
}

/// How many characters of a word that is too long are on a line of this room: up to the last place within it that is one of a name's.
fn part(word: &[char], room: usize) -> usize {
    let ends = |at: usize| {
        let (last, next) = (word[at - 1], word[at]);
        matches!(last, '/' | '_' | '-' | '.' | ',') || last == ':' && next != ':' || next == '<'
    };
    let best = (room.div_ceil(2)..=room).rev();
    best.filter(|at| *at > 0)
        .find(|at| ends(*at))
        .unwrap_or(room)
}

/// Breaks text at spaces, and shows what would act on a terminal; a word that is longer than a line is broken between parts of a name, or where the
/// line ends.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let text = &*visible(text);
    let indent = text.len() - text.trim_start().len();
    let mut lines = Vec::new();
    let mut line = " ".repeat(indent);
    let mut length = indent;
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        if length > indent && length + 1 + word.len() > width {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            length = indent;
        }
        if length > indent {
            line.push(' ');
            length += 1;
        }
        while length + word.len() > width {
            line.extend(word.drain(..part(&word, width - length)));
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            length = indent;
        }
        length += word.len();
        line.extend(word);
    }
    if length > indent || lines.is_empty() {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_left_out_are_counted_and_who_asks_for_all_gets_all() {
        let said = |whole: bool, rows, omitted| {
            let mut page = Page::new(80, false);
            page.whole = whole;
            page.more(rows, 8, omitted);
            (page.rows(8).min(rows), page.text)
        };
        let says = |shown, text: &str| (shown, text.to_owned());
        assert_eq!(
            said(false, 778, 0),
            says(8, "  and 770 more (--all shows them)\n")
        );
        assert_eq!(said(true, 778, 0), says(778, ""));
        assert_eq!(said(false, 8, 0), says(8, ""));
        assert_eq!(
            said(true, 1000, 5),
            says(1000, "  and 5 more, with less, are not listed\n")
        );
    }

    #[test]
    fn what_is_cut_says_so() {
        assert_eq!(clip("one two", 7), "one two");
        assert_eq!(clip("one two", 6), "one t…");
        assert_eq!(clip("one two", 5), "one…");
    }

    #[test]
    fn names_are_cut_between_their_parts() {
        let name = "std::vector<Particle>::reserve";
        assert_eq!(clip_name(name, 30), name);
        assert_eq!(clip_name(name, 29), "std::vector<Particle>::…");
        assert_eq!(clip_name(name, 20), "std::vector…");
        assert_eq!(
            clip_name("main (src/solver/grid.cpp:12)", 20),
            "main (src/solver/…"
        );
        assert_eq!(clip_name("buffer (a.c:1, in setup)", 17), "buffer (a.c:1,…");
        // A part that is too long is cut, and says so.
        assert_eq!(clip_name("a::bcdefghijklmnop", 10), "a::bcdefg…");
        assert_eq!(clip_name("größe::größe", 11), "größe::…");
        assert_eq!(clip_name("abc", 0), "…");
    }

    #[test]
    fn what_does_not_fit_is_cut_at_the_end_of_a_sentence_or_a_part_of_one() {
        let text = "One is large. Two is larger, as it is three; the rest is not known.";
        assert_eq!(within(text, 80, 1), text);
        assert_eq!(within(text, 26, 1), "One is large. …");
        assert_eq!(
            within(text, 26, 2),
            "One is large. Two is larger, as it is three; …"
        );
        assert_eq!(within(text, 34, 1), "One is large. Two is larger, …");
        assert_eq!(within("one two three four", 9, 1), "one two…");
    }

    #[test]
    fn text_wraps_at_words_and_loses_nothing() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("abcdefghij kl", 4), ["abcd", "efgh", "ij", "kl"]);
        assert_eq!(wrap("", 4), [""]);
        assert_eq!(
            wrap("_ZN10varve_core6record5probeE", 16),
            ["_ZN10varve_", "core6record5prob", "eE"]
        );
        assert_eq!(wrap("abc::bcdef::ghi", 8), ["abc::", "bcdef::", "ghi"]);
        assert_eq!(wrap("a\x1b[2J b", 9), ["a\\x1b[2J", "b"]);
    }
}
