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

    /// A word in the margin and sentences beside it, those that this number of lines holds.
    pub(super) fn labelled_within(&mut self, label: &str, tone: Tone, text: &str, lines: usize) {
        self.labelled_list(label, tone, text, "", lines);
    }

    /// The same of a list whose parts end in `;`, and what stands behind it also where parts are left out.
    pub(super) fn labelled_list(
        &mut self,
        label: &str,
        tone: Tone,
        list: &str,
        behind: &str,
        lines: usize,
    ) {
        let text = within(list, behind, self.width - MARGIN, lines);
        self.labelled(label, tone, &text);
    }

    /// A word in the margin and the beginning of a text beside it.
    pub(super) fn labelled_beginning(&mut self, label: &str, tone: Tone, text: &str, lines: usize) {
        let text = beginning(text, self.width - MARGIN, lines);
        self.labelled(label, tone, &text);
    }

    /// Sentences, those that this number of lines holds.
    pub(super) fn wrapped_within(&mut self, text: &str, tone: Tone, lines: usize) {
        let text = within(text, "", self.width, lines);
        self.wrapped(&text, tone);
    }

    /// The beginning of a text.
    pub(super) fn wrapped_beginning(&mut self, text: &str, tone: Tone, lines: usize) {
        let text = beginning(text, self.width, lines);
        self.wrapped(&text, tone);
    }

    /// What to do, and why, in the sentences that this number of lines holds.
    pub(super) fn marked(&mut self, tone: Tone, action: &str, why: &str, lines: usize) {
        let action = visible(&format::capitalised(action)).into_owned();
        let text = within(&format!("{action}: {why}"), "", self.width - 2, lines);
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

/// As much of a name as a line holds: its beginning and its end, and a mark for what is missing between them. The end tells names apart:
/// it has the function, or the file and the line. Both are cut between parts of the name, where such a place is near.
pub(super) fn clip_name(name: &str, width: usize) -> String {
    let name: Vec<char> = visible(name).chars().collect();
    if name.len() <= width {
        return name.into_iter().collect();
    }
    let room = width.saturating_sub(1);
    let end = end_of_name(&name, room);
    let begin = beginning_of_name(&name, room - (name.len() - end));
    let text = |part: &[char]| part.iter().collect::<String>();
    format!("{}…{}", text(&name[..begin]).trim_end(), text(&name[end..]))
}

/// Characters that the end of a name leaves to its beginning at least.
const MIN_BEGINNING: usize = 3;

/// Where the end of a name begins that the room holds beside the beginning. It takes a third to two thirds of the room, in whole parts of
/// the name; else more of the room, if the last part of the name needs that; else two thirds of it.
fn end_of_name(name: &[char], room: usize) -> usize {
    let begins_part = |at: &usize| {
        let rest = &name[*at..];
        matches!(rest[0], '/' | ' ') || rest.starts_with(&[':', ':'])
    };
    let of = |length: usize| name.len() - length;
    let (longest, shortest) = (of(room * 2 / 3), of((room / 3).max(1)));
    let whole = (longest..=shortest).find(begins_part);
    let larger = || {
        let first = of(room.saturating_sub(MIN_BEGINNING));
        (first..longest).rev().find(begins_part)
    };
    whole.or_else(larger).unwrap_or(longest)
}

/// Where the beginning of a name ends that the room holds: at the end of a part, where that fills more than half of the room.
fn beginning_of_name(name: &[char], room: usize) -> usize {
    let ends_part = |at: &usize| {
        let (before, rest) = name.split_at(*at);
        let is_within = matches!(rest.first(), Some('<' | ' '));
        is_within || before.ends_with(&['/']) || before.ends_with(&[':', ':'])
    };
    let last = (room / 2 + 1..=room).rev().find(ends_part);
    last.unwrap_or(room)
}

/// As much of a text as a line holds, and a mark where something is missing.
fn clip(text: &str, width: usize) -> String {
    let text = &*visible(text);
    match text.char_indices().nth(width) {
        None => text.to_owned(),
        Some(_) => {
            let kept: String = text.chars().take(width.saturating_sub(1)).collect();
            format!("{}…", kept.trim_end())
        }
    }
}

/// The beginning of a text that this number of lines holds, and a mark where something is missing: of a command line, whose first words say
/// most.
fn beginning(text: &str, width: usize, lines: usize) -> String {
    let all = wrap(text, width);
    if all.len() <= lines {
        return text.to_owned();
    }
    let last = clip(&format!("{}…", all[lines - 1]), width);
    let before = &all[..lines - 1];
    let parts: Vec<&str> = before.iter().chain([&last]).map(String::as_str).collect();
    parts.join(" ")
}

/// Lines that a sentence may take beyond those that are asked for.
const MORE_LINES: usize = 2;

/// As many whole sentences of a text as this number of lines holds, a mark where some are left out, and what stands behind all. A first
/// sentence that needs more lines takes up to [`MORE_LINES`] more; where those are too few as well its middle is left out. So no part of a
/// sentence stands without what it refers to.
fn within(text: &str, behind: &str, width: usize, lines: usize) -> String {
    let holds = |lines: usize, text: &str| wrap(text, width).len() <= lines;
    let whole = format!("{text}{behind}");
    let cuts = ends_of_sentences(text).map(|end| format!("{} …{behind}", &text[..end]));
    let cuts: Vec<String> = cuts.collect();
    let most = lines + MORE_LINES;
    for lines in lines..=most {
        if holds(lines, &whole) {
            return whole;
        }
        if let Some(cut) = cuts.iter().rev().find(|cut| holds(lines, cut)) {
            return cut.clone();
        }
    }
    let mut room = most * width;
    let mut cut = clip_name(&whole, room);
    while !holds(most, &cut) && room > 0 {
        room = room.saturating_sub((width / 4).max(1));
        cut = clip_name(&whole, room);
    }
    cut
}

/// Where sentences, and parts of lists, end within a text; none within parentheses.
fn ends_of_sentences(text: &str) -> impl Iterator<Item = usize> {
    let mut open = 0_usize;
    text.char_indices().filter_map(move |(at, letter)| {
        match letter {
            '(' => open += 1,
            ')' => open = open.saturating_sub(1),
            _ => (),
        }
        let end = at + letter.len_utf8();
        let ends = matches!(letter, '.' | ';' | '·') && text[end..].starts_with(' ');
        (ends && open == 0).then_some(end)
    })
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
/// line ends. Lines are indented as the text is, by half of the width at most.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let text = &*visible(text);
    let width = width.max(1);
    let blanks = text.chars().take_while(|letter| letter.is_whitespace());
    let indent = blanks.count().min(width / 2);
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

    /// Names of files and functions may begin with blanks, and be in any number of them.
    #[test]
    fn blanks_before_a_text_take_half_of_a_line_at_most() {
        assert_eq!(wrap("  one two", 6), ["  one", "  two"]);
        for blank in [" ", "\u{3000}"] {
            for width in 0..100 {
                let text = format!("{}a/name (in b)", blank.repeat(60));
                let lines = wrap(&text, width);
                let words: String = lines.concat().split_whitespace().collect();
                assert_eq!(words, "a/name(inb)", "{width}");
                let longest = lines.iter().map(|line| line.chars().count()).max();
                assert!(longest <= Some(width.max(1)), "{width}: {lines:?}");
            }
        }
    }

    #[test]
    fn what_is_cut_says_so() {
        assert_eq!(clip("one two", 7), "one two");
        assert_eq!(clip("one two", 6), "one t…");
        assert_eq!(clip("one two", 5), "one…");
    }

    #[test]
    fn names_lack_their_middle_and_keep_the_end_that_tells_them_apart() {
        let name = "std::vector<Particle>::reserve";
        assert_eq!(clip_name(name, 30), name);
        assert_eq!(clip_name(name, 29), "std::vector…::reserve");
        assert_eq!(clip_name(name, 20), "std::vecto…::reserve");
        let long = "std::vector<very::long<type::of<many, parts>>>::push_back";
        assert_eq!(
            clip_name(long, 40),
            "std::vector<very::… parts>>>::push_back"
        );
        assert_eq!(
            clip_name("main (src/solver/grid.cpp:12)", 20),
            "main…/grid.cpp:12)"
        );
        assert_eq!(
            clip_name("buffer (a.c:1, in setup)", 17),
            "buffer… in setup)"
        );
        assert_eq!(
            clip_name(
                "/usr/lib/x86_64-linux-gnu/very/deep/folder/libsomething.so.6",
                40
            ),
            "/usr/lib/…/folder/libsomething.so.6"
        );
        // How many objects have the name stands behind it.
        let many = "heap, small objects, first from Solver::churn (solver.cpp:89) ×1,768";
        assert_eq!(
            clip_name(many, 46),
            "heap, small…::churn (solver.cpp:89) ×1,768"
        );
        // A part that is too long is cut, and says so.
        assert_eq!(clip_name("a::bcdefghijklmnop", 10), "a::…klmnop");
        assert_eq!(clip_name("größe::größe", 11), "grö…::größe");
        assert_eq!(clip_name("abcd", 3), "a…d");
        assert_eq!(clip_name("abc", 0), "…");
    }

    #[test]
    fn sentences_are_whole_or_left_out() {
        let text = "One is large. Two is larger, as it is three; the rest is not known.";
        let said = |width, lines| within(text, "", width, lines);
        assert_eq!(said(80, 1), text);
        assert_eq!(said(26, 1), "One is large. …");
        assert_eq!(
            said(26, 2),
            "One is large. Two is larger, as it is three; …"
        );
        // What follows a comma is a part of its sentence.
        assert_eq!(said(34, 1), "One is large. …");
        // A first sentence that does not fit goes on in the next line, and so does one with an end within parentheses.
        let one = |text: &str, width| within(text, "", width, 1);
        assert_eq!(one("one two three four", 9), "one two three four");
        let nested = "It is so (a; b) and more; the end.";
        assert_eq!(one(nested, 20), nested);
        // One that is much too long lacks its middle.
        assert_eq!(
            one("one two three four five six seven eight", 9),
            "one two… six seven eight"
        );
    }

    #[test]
    fn what_stands_behind_a_list_stays_where_parts_are_left_out() {
        let list = "a is not known; b is not known; c is not known";
        let said = |lines| within(list, " (--all)", 30, lines);
        assert_eq!(said(1), "a is not known; … (--all)");
        assert_eq!(said(2), format!("{list} (--all)"));
    }

    #[test]
    fn command_lines_are_cut_where_the_last_line_ends() {
        assert_eq!(beginning("one two three four", 9, 1), "one two…");
        assert_eq!(beginning("one two three four", 9, 2), "one two three…");
        assert_eq!(beginning("abcdefgh ij", 4, 1), "abc…");
        assert_eq!(beginning("one two", 9, 1), "one two");
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
