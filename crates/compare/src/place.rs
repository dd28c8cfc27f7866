//! What an object is, apart from the numbers that differ from build to build and from run to run.

use std::collections::HashMap;

use varve_model::ObjectKind;
use varve_trace::tables::{Frame, SiteRow};
use varve_trace::{Trace, TraceError};

/// Where something stands in a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    /// The function, without what a compiler hangs on to its name.
    pub(crate) function: Option<String>,
    /// The base name of the source file, else of the executable or library.
    pub(crate) file: Option<String>,
    /// The line in the source file, else the byte in the executable.
    pub(crate) line: Option<u64>,
    /// How many lines that is behind the one at which the function begins.
    pub(crate) offset: Option<u64>,
    /// The byte in the line.
    pub(crate) column: Option<u32>,
}

impl Place {
    /// What is compared between two builds: the distance in the function where that is known, else the line; and the column.
    pub(crate) fn position(&self) -> (Option<u64>, Option<u32>) {
        (self.offset.or(self.line), self.column)
    }
}

/// What an object is and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Identity {
    pub(crate) kind: ObjectKind,
    /// The name without the place: `plate`, `malloc`, `stack of thread (worker)`.
    pub(crate) stem: String,
    pub(crate) place: Place,
}

/// Stems that say how memory was asked for, and not what it is.
const UNNAMED: [&str; 18] = [
    "malloc",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "new",
    "mmap",
    "mremap",
    "vector",
    "heap",
    "heap from",
    "mapping",
    "mapping from",
    "data",
    "stack",
    "strdup",
    "posix_memalign",
    "heap, small objects, first from",
];

impl Identity {
    /// Of a name as reports give it, and of the label of its site.
    pub(crate) fn of(
        kind: ObjectKind,
        name: &str,
        site: Option<&str>,
        places: &Places,
    ) -> Identity {
        let known = site.and_then(|label| places.0.get(label));
        let (stem, within) = split(name, site);
        let place = match (known, within) {
            (Some(place), _) => place.clone(),
            (None, Some(text)) => parsed(text),
            (None, None) => Place::default(),
        };
        Identity {
            kind,
            stem: without_numbers(stem),
            place,
        }
    }

    /// Whether the stem is a name that somebody gave it.
    pub(crate) fn is_named(&self) -> bool {
        !self.stem.is_empty() && !UNNAMED.contains(&self.stem.as_str())
    }
}

/// A name and the place within it.
fn split<'a>(name: &'a str, site: Option<&str>) -> (&'a str, Option<&'a str>) {
    let by_site = site.filter(|s| !s.is_empty()).and_then(|site| {
        let at = name.rfind(site)?;
        let stem = name[..at].trim_end_matches(['(', ' ']);
        (!stem.is_empty()).then_some((stem, Some(&name[at..at + site.len()])))
    });
    let by_parentheses = || {
        let inner = name.strip_suffix(')')?;
        let at = inner.find(" (")?;
        (at > 0).then_some((&name[..at], Some(&inner[at + 2..])))
    };
    // Pools are named by the function, with the place behind it.
    let by_pool = || {
        let first = "heap, small objects, first from";
        let place = name.strip_prefix(first)?;
        Some((first, Some(place.trim_start())))
    };
    // The stack of a thread has the thread's name there, which is no place.
    let is_of_process = [
        "stack of thread ",
        "main stack of ",
        "copy of the ",
        "[heap] of ",
        "[heap] in ",
    ];
    if is_of_process.iter().any(|begin| name.starts_with(begin)) {
        return (name, None);
    }
    by_pool()
        .or(by_site)
        .or_else(by_parentheses)
        .unwrap_or((name, None))
}

/// The place that a label says: `solver.c:42, in setup`, `setup (app+0x12)`, `setup (solver.c:42)`, `solver.c:42`, `app`.
fn parsed(label: &str) -> Place {
    if let Some((at, function)) = label.split_once(", in ") {
        return Place {
            function: Some(plain_function(function)),
            ..parsed_file(at)
        };
    }
    match label.strip_suffix(')').and_then(|l| l.rsplit_once(" (")) {
        Some((function, at)) => Place {
            function: Some(plain_function(function)),
            ..parsed_file(at)
        },
        None => parsed_file(label),
    }
}

fn parsed_file(text: &str) -> Place {
    let of = |file: &str, line| Place {
        file: Some(plain_file(file)),
        line,
        ..Place::default()
    };
    if let Some((file, line)) = text.rsplit_once(':')
        && let Ok(line) = line.parse()
    {
        return of(file, Some(line));
    }
    if let Some((module, at)) = text.rsplit_once("+0x")
        && let Ok(at) = u64::from_str_radix(at, 16)
    {
        return of(module, Some(at));
    }
    // An address of a run says nothing of another.
    match text.rsplit_once(" at 0x") {
        Some((module, _)) => of(module, None),
        None if text.starts_with("0x") => Place::default(),
        None => of(text, None),
    }
}

/// Numbers of threads and processes are another in each run.
fn without_numbers(stem: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    let mut before = "";
    for word in stem.split(' ') {
        let is_number = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
        // `stack of thread 12`, `main stack of 4711 (sh)`, `copy of the main stack of 12 in 4711 (sh)`
        if !(is_number && matches!(before, "thread" | "process" | "of" | "in")) {
            words.push(word);
        }
        before = word;
    }
    let stem = words.join(" ");
    // The versions of a library have one name.
    match stem.find(".so.") {
        Some(at) if stem[at + 4..].starts_with(|c: char| c.is_ascii_digit()) => {
            let rest = stem[at + 4..]
                .find([' ', ')'])
                .map_or("", |i| &stem[at + 4 + i..]);
            format!("{}.so{rest}", &stem[..at])
        }
        _ => stem,
    }
}

fn plain_file(path: &str) -> String {
    without_numbers(path.rsplit('/').next().unwrap_or(path))
}

/// `step.isra.0`, `step.part.0`, `step [clone .cold]` are parts of `step`.
pub(crate) fn plain_function(name: &str) -> String {
    let name = name.split(" [clone").next().unwrap_or(name);
    let mut end = name.len();
    for part in [
        ".isra",
        ".part",
        ".constprop",
        ".cold",
        ".lto_priv",
        ".llvm",
    ] {
        end = end.min(name.find(part).unwrap_or(end));
    }
    name[..end].to_owned()
}

/// What the table of sites knows of places, by label.
pub(crate) struct Places(HashMap<String, Place>);

impl Places {
    /// Reads the places of these labels.
    pub(crate) fn read(trace: &Trace, labels: &[&str]) -> Result<Places, TraceError> {
        let wanted: std::collections::HashSet<&str> = labels.iter().copied().collect();
        let mut known = HashMap::new();
        for rows in trace.batches::<SiteRow>()? {
            for row in rows? {
                if wanted.contains(row.label.as_str()) && !known.contains_key(&row.label) {
                    let place = of_site(&row);
                    known.insert(row.label, place);
                }
            }
        }
        Ok(Places(known))
    }
}

/// The place that a label names: that of the frame with this line, innermost first.
fn of_site(row: &SiteRow) -> Place {
    let named = row.frames.iter().find(|f| is_named(f, &row.label));
    match named {
        Some(frame) => Place {
            line: frame.line.map(u64::from),
            ..of_frame(frame)
        },
        None => parsed(&row.label),
    }
}

fn is_named(frame: &Frame, label: &str) -> bool {
    let (Some(file), Some(line)) = (&frame.file, frame.line) else {
        return false;
    };
    let start = format!("{}:{line}", file.rsplit('/').next().unwrap_or(file));
    let rest = label.strip_prefix(&start);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(", in "))
}

/// The place of a frame whose line is known.
pub(crate) fn of_frame(frame: &Frame) -> Place {
    let line = frame.line.map(u64::from);
    let begins = frame.function_line.map(u64::from);
    Place {
        function: frame.function.as_deref().map(plain_function),
        file: frame
            .file
            .as_deref()
            .or(frame.module.as_deref())
            .map(plain_file),
        line,
        offset: line.zip(begins).and_then(|(line, at)| line.checked_sub(at)),
        column: frame.column,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, site: Option<&str>) -> Identity {
        Identity::of(ObjectKind::Heap, name, site, &Places(HashMap::new()))
    }

    #[test]
    fn a_name_is_a_stem_and_a_place() {
        let site = Some("solver.cpp:34, in Solver::setup");
        let found = of("plate (solver.cpp:34, in Solver::setup)", site);
        assert_eq!(found.stem, "plate");
        assert_eq!(found.place.function.as_deref(), Some("Solver::setup"));
        assert_eq!(found.place.file.as_deref(), Some("solver.cpp"));
        assert_eq!(found.place.line, Some(34));
        let found = of("heap from setup (app+0x1f)", Some("setup (app+0x1f)"));
        assert_eq!(
            (found.stem.as_str(), found.place.line),
            ("heap from", Some(0x1f))
        );
        assert_eq!(found.place.function.as_deref(), Some("setup"));
        assert!(!found.is_named());
        let found = of(
            "heap, small objects, first from node_new (list.c:42)",
            Some("list.c:42, in node_new"),
        );
        assert_eq!(found.place.function.as_deref(), Some("node_new"));
        assert_eq!(
            (found.place.file.as_deref(), found.place.line),
            (Some("list.c"), Some(42))
        );
        let found = of("matrix (solver.c:42)", None);
        assert_eq!(
            (found.stem.as_str(), found.place.line),
            ("matrix", Some(42))
        );
        assert!(found.is_named());
    }

    #[test]
    fn what_differs_from_run_to_run_is_no_part_of_it() {
        for (a, b) in [
            (
                "stack of thread 12 (worker)",
                "stack of thread 971 (worker)",
            ),
            (
                "copy of the stack of thread 3 (x) of process 4",
                "copy of the stack of thread 7 (x) of process 9",
            ),
            ("main stack of 24907 (sh)", "main stack of 25001 (sh)"),
            ("[heap] of 12 (sh)", "[heap] of 9 (sh)"),
            (
                "copy of the main stack of 3 (sh) in 4 (true)",
                "copy of the main stack of 7 (sh) in 9 (true)",
            ),
            ("mapping of libfoo.so.1.2.3", "mapping of libfoo.so.1.4"),
            ("heap from 0x7f00", "heap from 0x7e00"),
        ] {
            assert_eq!(
                of(a, None).stem.replace("0x7f00", "0x7e00"),
                of(b, None).stem
            );
        }
        assert_ne!(
            of("main stack of 1 (sh)", None),
            of("main stack of 1 (true)", None)
        );
        assert_ne!(
            of("stack of thread 1 (a)", None),
            of("stack of thread 1 (b)", None)
        );
        assert_eq!(
            of("heap from 0x7f00", Some("0x7f00")),
            of("heap from 0x7e00", Some("0x7e00"))
        );
        assert_eq!(plain_function("f(int) [clone .isra.0]"), "f(int)");
        assert_eq!(plain_function("step.part.0"), "step");
    }

    #[test]
    fn a_frame_gives_the_distance_in_its_function() {
        let frame = |line, begins| Frame {
            function: Some("setup".into()),
            file: Some("/src/a.c".into()),
            line: Some(line),
            column: Some(9),
            function_line: Some(begins),
            ..Frame::default()
        };
        let row = SiteRow {
            site: varve_model::SiteId(1),
            label: "a.c:42, in setup".into(),
            frames: vec![frame(7, 1), frame(42, 40)],
        };
        let place = of_site(&row);
        assert_eq!(
            (place.offset, place.column, place.line),
            (Some(2), Some(9), Some(42))
        );
    }
}
