//! Names of objects as a person would give them: `matrix (solver.c:42, in setup)`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use varve_model::{Bytes, CLibrary, ObjectKind, Pid, Tid, c_library, is_recorders};

use crate::image::Image;
use crate::input::base_name;
use crate::plumbing::{arena, is_plumbing, is_runtime};
use crate::source::assigned_variable;
use crate::statics::StaticObject;
use crate::symbolize::Frame;

/// Source files larger than this are generated; a name from them says nothing.
const SOURCE_LIMIT: usize = 8 << 20;
/// How many source files are kept for the sites that follow.
const KEPT_FILES: usize = 256;

/// Gives names to allocation sites. Reads source files where they exist, each once.
#[derive(Debug)]
pub struct Namer {
    roots: Vec<PathBuf>,
    sources: HashMap<String, Option<String>>,
}

/// Which memory a site asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// One object.
    One(ObjectKind),
    /// Small objects that share pages.
    Pool,
}

impl Namer {
    /// Looks for source files below the roots, in order; the empty one is this machine.
    pub fn new(roots: Vec<PathBuf>) -> Self {
        Self {
            roots,
            sources: HashMap::new(),
        }
    }

    /// Names what the call stack asked for.
    pub fn site(&mut self, asked: Asked, frames: &[Frame]) -> String {
        let word = match asked {
            Asked::One(ObjectKind::Heap) | Asked::Pool => "heap",
            Asked::One(ObjectKind::Mapping | ObjectKind::File | ObjectKind::Recorder) => "mapping",
            Asked::One(ObjectKind::Stack) => "stack",
            Asked::One(ObjectKind::Static) => "data",
        };
        if asked == Asked::One(ObjectKind::Mapping)
            && let Some(name) = arena(frames)
        {
            return name.to_owned();
        }
        let Some(frame) = author(frames) else {
            return format!("{word}, unknown caller");
        };
        let place = place_among(frames, frame);
        if asked == Asked::Pool {
            return format!(
                "heap, small objects, first from {}",
                pool_place(frame).unwrap_or(place)
            );
        }
        let Some(line) = frame.line.filter(|_| frame.file.is_some()) else {
            return format!("{word} from {place}");
        };
        let name = self
            .variable(frame, line)
            .or_else(|| frame.declares.clone());
        match name {
            Some(name) => format!("{name} ({place})"),
            None => format!("{} ({place})", verb(frames, frame).unwrap_or(word)),
        }
    }

    /// The variable assigned at the frame's line.
    fn variable(&mut self, frame: &Frame, line: u32) -> Option<String> {
        let file = frame.file.as_deref()?;
        if self.sources.len() >= KEPT_FILES && !self.sources.contains_key(file) {
            self.sources.clear();
        }
        let roots = &self.roots;
        let text = self
            .sources
            .entry(file.to_owned())
            .or_insert_with(|| read_source(roots, file))
            .as_deref()?;
        let line = usize::try_from(line).ok()?;
        // Only the lines around matter.
        let skipped = line.saturating_sub(16);
        let window: Vec<&str> = text.lines().skip(skipped).take(32).collect();
        assigned_variable(&window, line - skipped, frame.column)
    }
}

fn read_source(roots: &[PathBuf], file: &str) -> Option<String> {
    roots.iter().find_map(|root| {
        let path = if root.as_os_str().is_empty() {
            PathBuf::from(file)
        } else {
            root.join(Path::new(file).strip_prefix("/").unwrap_or(Path::new(file)))
        };
        // A relative path would be looked for wherever this program happens to run.
        if !path.is_absolute() {
            return None;
        }
        let image = Image::open(&path)
            .ok()
            .filter(|image| image.len() <= SOURCE_LIMIT)?;
        Some(String::from_utf8_lossy(image.whole()?).into_owned())
    })
}

/// Unnamed functions of one module that are looked past for a named one.
const MAX_UNNAMED: usize = 8;

/// The innermost frame that is the author's own, else the outermost known one.
fn author(frames: &[Frame]) -> Option<&Frame> {
    let known =
        |frame: &&Frame| frame.function.is_some() || frame.file.is_some() || frame.module.is_some();
    let in_language = |frame: &Frame| frame.function.is_some() && is_in_language(frame);
    let written = frames.iter().position(in_language);
    let own = |index: usize, frame: &Frame| {
        !(is_plumbing(frame)
            || is_static_plumbing(frames, index)
            || written.is_some_and(|written| index < written && is_runtime(frame)))
    };
    let mut all = frames.iter().enumerate();
    all.find(|(index, frame)| known(frame) && own(*index, frame))
        .map(|(_, frame)| frame)
        // A library that allocates for itself, before main or in a thread of its own.
        .or_else(|| {
            frames
                .iter()
                .filter(known)
                .find(|frame| frame.function.is_some() && !is_entry(frame))
        })
        .or_else(|| frames.iter().find(known))
}

/// Whether a frame is of code that a runtime generated, with the name that its language has for it.
fn is_in_language(frame: &Frame) -> bool {
    let base = frame.file.as_deref().map(base_name);
    frame.line.is_none() && base.is_some() && frame.module.as_deref() == base
}

/// Whether a frame is an unnamed function of an allocator: one that a named one of the same module calls.
fn is_static_plumbing(frames: &[Frame], index: usize) -> bool {
    let frame = &frames[index];
    frame.function.is_none()
        && frame.file.is_none()
        && caller(frames, index).is_some_and(is_plumbing)
}

/// The next function with a name, where only unnamed ones of the same module lie in between.
fn caller(frames: &[Frame], index: usize) -> Option<&Frame> {
    let module = frames[index].module.as_deref()?;
    let beyond = frames[index + 1..].iter().take(MAX_UNNAMED);
    let mut same = beyond.take_while(|frame| frame.module.as_deref() == Some(module));
    same.find(|frame| frame.function.is_some())
}

/// The place of a frame. Where its function has no name, the one that led to it says more than a number.
fn place_among(frames: &[Frame], frame: &Frame) -> String {
    let index = frames.iter().position(|other| std::ptr::eq(other, frame));
    let caller = index
        .filter(|_| frame.function.is_none() && frame.file.is_none())
        .and_then(|index| caller(frames, index))
        .and_then(|caller| caller.function.as_deref());
    match (caller, frame.module.as_deref()) {
        (Some(caller), Some(module)) => format!(
            "a callee of {} ({})",
            short_function(caller),
            within(module, frame)
        ),
        _ => place(frame),
    }
}

fn is_entry(frame: &Frame) -> bool {
    // `__mmap64` and its kin are the same functions by the names that the C library has for itself.
    let function = frame.function.as_deref().map(|name| {
        let name = name.trim_start_matches('_');
        let name = name.strip_prefix("libc_").unwrap_or(name);
        name.strip_suffix("64").unwrap_or(name)
    });
    matches!(
        function,
        Some(
            "malloc"
                | "calloc"
                | "realloc"
                | "mmap"
                | "brk"
                | "sbrk"
                | "mremap"
                | "memalign"
                | "morecore"
                | "glibc_morecore"
                | "default_morecore"
                | "sysmalloc"
                | "int_malloc"
        )
    ) || frame.module.as_deref().is_some_and(is_recorders)
}

/// Whether the dynamic loader made a mapping for itself, or for a library that nobody of the program's asked for.
pub fn is_loaders(frames: &[Frame]) -> bool {
    let of_loader = |frame: &Frame| {
        let function = frame.function.as_deref().unwrap_or_default();
        let module = frame.module.as_deref().unwrap_or_default();
        c_library(module) == Some(CLibrary::Loader) || function.starts_with("_dl_")
    };
    author(frames).is_some_and(of_loader)
}

/// The name of a mapping of a file: that of the file, and who made it.
pub fn of_file(file: String, name: &str) -> String {
    match name
        .strip_prefix("mapping")
        .or_else(|| name.strip_prefix("mmap"))
    {
        Some(place) if !place.starts_with(',') => file + place,
        // Nobody is known who made it, or it has the name of a variable.
        Some(_) => file,
        None => name.to_owned(),
    }
}

/// `solver.c:42, in setup`, or `setup (app+0x11d2)` where lines are unknown: two places in a function are two.
fn place(frame: &Frame) -> String {
    let function = frame.function.as_deref().map(short_function);
    let line = frame
        .file
        .as_deref()
        .zip(frame.line)
        .map(|(file, line)| format!("{}:{line}", base_name(file)));
    let module = frame.module.as_deref();
    match (line, function, module) {
        (Some(line), Some(function), _) => format!("{line}, in {function}"),
        (Some(line), None, _) => line,
        (None, Some(function), Some(module)) => format!("{function} ({})", within(module, frame)),
        (None, Some(function), None) => function,
        (None, None, Some(module)) if frame.offset.is_some() => within(module, frame),
        (None, None, Some(module)) => format!("{module} at {}", frame.address),
        (None, None, None) => frame.address.to_string(),
    }
}

/// `app+0x11d2`: an address of a run says nothing to anybody afterwards.
fn within(module: &str, frame: &Frame) -> String {
    match frame.offset {
        Some(offset) => format!("{module}+{offset:#x}"),
        None => module.to_owned(),
    }
}

/// Where a call stack leads, in a few words: the place of the innermost frame that is the author's own.
pub fn short_place(frames: &[Frame]) -> String {
    author(frames).map_or_else(
        || "unknown caller".to_owned(),
        |frame| place_among(frames, frame),
    )
}

/// `node_new (list.c:42)`.
fn pool_place(frame: &Frame) -> Option<String> {
    let function = short_function(frame.function.as_deref()?);
    Some(format!(
        "{function} ({}:{})",
        base_name(frame.file.as_deref()?),
        frame.line?
    ))
}

/// What the author called: `malloc`, `new`, `mmap`.
fn verb(frames: &[Frame], author: &Frame) -> Option<&'static str> {
    let before = frames
        .iter()
        .take_while(|frame| !std::ptr::eq(*frame, author));
    before
        .filter_map(|frame| frame.function.as_deref())
        .filter_map(|function| {
            let words: [(&str, &'static str); 9] = [
                ("operator new", "new"),
                ("calloc", "calloc"),
                ("realloc", "realloc"),
                ("malloc", "malloc"),
                ("memalign", "memalign"),
                ("aligned_alloc", "aligned_alloc"),
                ("mremap", "mremap"),
                ("mmap", "mmap"),
                ("std::vector", "vector"),
            ];
            words
                .into_iter()
                .find(|(start, _)| function.trim_start_matches('_').starts_with(start))
                .map(|(_, word)| word)
        })
        .last()
}

/// A function's name without the arguments of its templates, which are longer than it.
fn short_function(function: &str) -> String {
    let mut short = String::with_capacity(function.len());
    let mut depth = 0usize;
    let mut previous = ' ';
    for letter in function.chars() {
        match letter {
            // `operator<`, `operator->` and Rust's `<T as Trait>::f` are no templates.
            '<' if short.ends_with("operator")
                || short.ends_with("operator<")
                || short.is_empty() =>
            {
                return function.to_owned();
            }
            '<' => depth += 1,
            '>' if previous != '-' && depth > 0 => depth -= 1,
            _ if depth == 0 => short.push(letter),
            _ => {}
        }
        previous = letter;
    }
    short
}

/// `stack of thread 1234 (worker)`; the first thread's is `main stack`.
pub fn stack_name(pid: Pid, tid: Tid, thread: Option<&str>) -> String {
    if pid.0 == tid.0 {
        return "main stack".to_owned();
    }
    match thread.filter(|name| !name.is_empty()) {
        Some(name) => format!("stack of thread {tid} ({name})"),
        None => format!("stack of thread {tid}"),
    }
}

/// `matrix (solver.c:42)` for static data whose declaration is known.
pub fn static_name(object: &StaticObject) -> String {
    match (&object.file, object.line) {
        (Some(file), Some(line)) => format!("{} ({}:{line})", object.name, base_name(file)),
        _ if object.kind == ObjectKind::Static
            && object.bytes > Bytes(0)
            && !object.name.starts_with(&object.module) =>
        {
            format!("{} ({})", object.name, object.module)
        }
        _ => object.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(module: &str, function: &str, line: Option<(&str, u32)>) -> Frame {
        Frame {
            module: Some(module.to_owned()),
            function: Some(function.to_owned()),
            file: line.map(|(file, _)| file.to_owned()),
            line: line.map(|(_, line)| line),
            ..Frame::default()
        }
    }

    #[test]
    fn what_a_library_maps_for_itself_is_named_by_who_wanted_it() {
        let mut namer = Namer::new(vec![PathBuf::new()]);
        let mapping = Asked::One(ObjectKind::Mapping);
        let loader = |function| frame("ld-linux-x86-64.so.2", function, None);
        for entry in ["__mmap64", "mmap64", "__mmap"] {
            assert_eq!(
                namer.site(mapping, &[loader(entry), loader("_dl_map_segments")]),
                "mapping from _dl_map_segments (ld-linux-x86-64.so.2)"
            );
        }
        let grows = [
            frame("libc.so.6", "__sbrk", None),
            frame("libc.so.6", "__default_morecore", None),
            frame("libc.so.6", "sysmalloc", None),
            frame("app", "setup", None),
        ];
        assert_eq!(namer.site(mapping, &grows), "mapping from setup (app)");
    }

    #[test]
    fn a_site_is_named_by_what_is_known() {
        let mut namer = Namer::new(vec![PathBuf::new()]);
        let heap = Asked::One(ObjectKind::Heap);
        let malloc = frame("libc.so.6", "malloc", None);
        let setup = frame("app", "setup", Some(("/no/such/solver.c", 42)));
        assert_eq!(
            namer.site(heap, &[malloc.clone(), setup.clone()]),
            "malloc (solver.c:42, in setup)"
        );
        let known = Frame {
            declares: Some("matrix".to_owned()),
            ..setup.clone()
        };
        assert_eq!(
            namer.site(heap, &[malloc.clone(), known]),
            "matrix (solver.c:42, in setup)"
        );
        assert_eq!(
            namer.site(heap, &[malloc.clone(), frame("app", "setup", None)]),
            "heap from setup (app)"
        );
        assert_eq!(
            namer.site(Asked::Pool, &[malloc.clone(), setup]),
            "heap, small objects, first from setup (solver.c:42)"
        );
        assert_eq!(namer.site(heap, &[]), "heap, unknown caller");
        assert_eq!(
            namer.site(
                Asked::One(ObjectKind::Mapping),
                &[frame("app", "f", Some(("x.c", 10)))]
            ),
            "mapping (x.c:10, in f)"
        );
    }

    #[test]
    fn places_without_lines_are_told_apart_by_their_offsets() {
        let mut namer = Namer::new(vec![PathBuf::new()]);
        let heap = Asked::One(ObjectKind::Heap);
        let at = |function: Option<&str>, offset| Frame {
            function: function.map(str::to_owned),
            module: Some("app".to_owned()),
            address: varve_model::Address(0x5555_0000_0000 + offset),
            offset: Some(offset),
            ..Frame::default()
        };
        for (function, offset, name) in [
            (Some("setup"), 0x11d2, "heap from setup (app+0x11d2)"),
            (Some("setup"), 0x11e4, "heap from setup (app+0x11e4)"),
            (None, 0x2000, "heap from app+0x2000"),
        ] {
            assert_eq!(namer.site(heap, &[at(function, offset)]), name);
        }
    }

    #[test]
    fn allocators_without_names_and_runtimes_are_looked_past() {
        let mut namer = Namer::new(vec![PathBuf::new()]);
        let heap = Asked::One(ObjectKind::Heap);
        let unnamed = |module: &str, offset| Frame {
            module: Some(module.to_owned()),
            offset: Some(offset),
            ..Frame::default()
        };
        let named = |function| frame("postgres", function, None);
        // AllocSetAlloc is static and has no name in a stripped program.
        let stack = [
            unnamed("postgres", 0x5c_785f),
            named("palloc0"),
            named("make_node"),
        ];
        assert_eq!(namer.site(heap, &stack), "heap from make_node (postgres)");
        let stack = [
            unnamed("libcrypto.so.3", 0x1582b7),
            unnamed("libcrypto.so.3", 0x15_0000),
            frame("libcrypto.so.3", "CONF_modules_load_file_ex", None),
        ];
        assert_eq!(
            namer.site(heap, &stack),
            "heap from a callee of CONF_modules_load_file_ex (libcrypto.so.3+0x1582b7)"
        );
        let of_other = [
            unnamed("libcrypto.so.3", 0x1582b7),
            frame("app", "main", None),
        ];
        assert_eq!(
            namer.site(heap, &of_other),
            "heap from libcrypto.so.3+0x1582b7"
        );
        let python = Frame {
            file: Some("/a/hot.py".to_owned()),
            ..frame("hot.py", "fill", None)
        };
        let inside = |function| frame("libpython3.12.so.1.0", function, Some(("listobject.c", 9)));
        let stack = [inside("_PyObject_Malloc"), inside("list_repeat"), python];
        assert_eq!(namer.site(heap, &stack), "heap from fill (hot.py)");
        assert_eq!(
            namer.site(heap, &stack[..2]),
            "heap (listobject.c:9, in list_repeat)"
        );
        let arena = [
            unnamed("libjemalloc.so.2", 0x10),
            unnamed("libgpg-error.so.0", 0x6c46),
        ];
        assert_eq!(
            namer.site(Asked::One(ObjectKind::Mapping), &arena),
            "jemalloc arena"
        );
    }

    #[test]
    fn mappings_of_files_have_the_names_of_the_files() {
        let file = || "mapping of data.bin".to_owned();
        for (name, with_file) in [
            (
                "mapping (x.c:10, in f)",
                "mapping of data.bin (x.c:10, in f)",
            ),
            ("mmap (x.c:10, in f)", "mapping of data.bin (x.c:10, in f)"),
            ("mapping from f (app)", "mapping of data.bin from f (app)"),
            ("mapping, unknown caller", "mapping of data.bin"),
            ("table (x.c:10, in f)", "table (x.c:10, in f)"),
        ] {
            assert_eq!(of_file(file(), name), with_file);
        }
        let loader = frame("ld-linux-x86-64.so.2", "_dl_map_segments", None);
        let dlopen = frame("libc.so.6", "_dl_open", None);
        assert!(is_loaders(std::slice::from_ref(&loader)));
        assert!(is_loaders(&[loader.clone(), dlopen.clone()]));
        // Somebody of the program's asked for the library.
        let asked = frame("app", "plugins", None);
        assert!(!is_loaders(&[loader, dlopen, asked]));
        assert!(!is_loaders(&[]));
    }

    #[test]
    fn templates_are_shortened() {
        assert_eq!(short_function("Solver<double, 3>::setup"), "Solver::setup");
        assert_eq!(short_function("<T as Trait>::f"), "<T as Trait>::f");
        assert_eq!(short_function("ns::operator<"), "ns::operator<");
    }
}
