//! Other tools' records become traces.
//!
//! [`import`] finds out what each file holds ([`ImportFormat`]), reads it as a stream and writes the tables of one trace. What a tool
//! does not say stays absent: null in the rows, and not among the manifest's capabilities. `docs/import.md` says what becomes of what.

mod counts;
mod damon;
mod detect;
mod error;
mod iiswc22;
mod input;
mod kernel;
mod lackey;
mod lines;
mod manifest;
mod mitos;
mod numbers;
mod objects;
mod pages;
mod perf_code;
mod perf_data;
mod perf_line;
mod perf_script;
mod perf_symbol;
mod sink;
mod stacks;
mod tracepoint;

pub use error::{ImportError, Place};

use std::cell::RefCell;
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use varve_model::ImportFormat;
use varve_trace::{Output, TraceFolder, TraceWriter};

use detect::Content;
use error::Trouble;
use input::Input;
use sink::Sink;

/// What was imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The trace folder.
    pub folder: PathBuf,
    /// The format of the files.
    pub format: ImportFormat,
    /// Samples.
    pub samples: u64,
    /// Samples that lie in a known object.
    pub owned: u64,
    /// Runs of touched pages.
    pub touches: u64,
    /// Counts of accesses by page and thread.
    pub counts: u64,
    /// Objects.
    pub objects: u64,
    /// Files that were named several times, and read once.
    pub repeated: Vec<PathBuf>,
}

/// Makes one trace of the files, which come from one tool. The format is found in their content unless `format` forces it.
/// `progress` hears the share of the bytes that are read, 0 to 1.
///
/// # Errors
/// Files of no known format, of several, or damaged ones, with the place of the damage. No trace is left then.
pub fn import(
    files: &[PathBuf],
    output: &Output,
    format: Option<ImportFormat>,
    progress: &mut dyn FnMut(f64),
) -> Result<Summary, ImportError> {
    let (files, repeated) = once(files)?;
    let files = inspect(&files, format)?;
    let Some(first) = files.first() else {
        let why = "no file is named".to_owned();
        return Err(ImportError::Unknown {
            path: PathBuf::new(),
            why,
        });
    };
    let format = first.content.format();
    let names = files.iter().map(|f| f.path.as_path());
    let mut manifest = manifest::begun(format, names, &repeated);
    let writer = TraceWriter::begin(output.create()?, &manifest)?;
    let done = read_all(&files, writer.folder(), progress);
    match done {
        Ok(written) => {
            manifest::finish(&mut manifest, format, &written);
            let folder = writer.into_folder();
            manifest.checksums = folder.checksums()?;
            folder.write_manifest(&manifest)?;
            folder.release_reserve();
            // It has had its use.
            folder.remove_empty_parts();
            Ok(Summary {
                folder: folder.path().to_owned(),
                format,
                samples: written.samples,
                owned: written.owned,
                touches: written.touches,
                counts: written.counts,
                objects: written.objects,
                repeated,
            })
        }
        Err(error) => {
            // The first error is the one to report.
            let _ = writer.discard();
            Err(error)
        }
    }
}

/// The files, each once, and those that were named again, by whatever path: what is in them would count twice.
fn once(files: &[PathBuf]) -> Result<(Vec<PathBuf>, Vec<PathBuf>), ImportError> {
    let (mut all, mut repeated) = (Vec::new(), Vec::new());
    let mut known = HashSet::new();
    for path in files {
        let file = std::fs::metadata(path).map_err(|source| ImportError::Io {
            path: path.clone(),
            source,
        })?;
        let to = match known.insert((file.dev(), file.ino())) {
            true => &mut all,
            false => &mut repeated,
        };
        to.push(path.clone());
    }
    Ok((all, repeated))
}

/// A file and what is in it.
struct Found {
    path: PathBuf,
    content: Content,
    bytes: u64,
    /// Files that hold more of the same recording, and how long they are.
    parts: Vec<(PathBuf, u64)>,
}

impl Found {
    fn all_bytes(&self) -> u64 {
        self.bytes + self.parts.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }
}

fn inspect(files: &[PathBuf], format: Option<ImportFormat>) -> Result<Vec<Found>, ImportError> {
    let mut found: Vec<Found> = Vec::new();
    for path in files {
        let unread = |source| ImportError::Io {
            path: path.clone(),
            source,
        };
        let mut of_one = input::files_of(path).map_err(unread)?.into_iter();
        let path = &of_one.next().unwrap_or_else(|| path.clone());
        let (head, bytes) = Input::head(path, detect::HEAD).map_err(unread)?;
        let mut parts = Vec::new();
        for part in of_one {
            let (_, bytes) = Input::head(&part, 0).map_err(unread)?;
            parts.push((part, bytes));
        }
        let content = detect::detect(&head, format).map_err(|why| ImportError::Unknown {
            path: path.clone(),
            why,
        })?;
        if let Some(first) = found.first()
            && first.content.format() != content.format()
        {
            return Err(ImportError::Mixed {
                first: first.path.clone(),
                first_format: first.content.format().as_str(),
                second: path.clone(),
                second_format: content.format().as_str(),
            });
        }
        let path = path.clone();
        found.push(Found {
            path,
            content,
            bytes,
            parts,
        });
    }
    // What names objects comes before what is looked up among them.
    found.sort_by_key(|f| match f.content {
        Content::Iiswc22Events
        | Content::MocaStructs
        | Content::TabarnacStructs
        | Content::TabarnacStacks => 0,
        _ => 1,
    });
    Ok(found)
}

fn read_all(
    files: &[Found],
    output: &TraceFolder,
    progress: &mut dyn FnMut(f64),
) -> Result<sink::Written, ImportError> {
    let total: u64 = files.iter().map(Found::all_bytes).sum();
    let progress = RefCell::new(progress);
    let tell = |bytes: u64| (progress.borrow_mut())((bytes as f64 / total.max(1) as f64).min(1.0));
    let mut sink = Sink::create(output)?;
    let mut before = 0;
    let mut events = Vec::new();
    for file in files {
        let share = &mut |bytes: u64| tell(before + bytes);
        let of = |trouble: Trouble| trouble.of(file.path.clone());
        let input = Input::open(&file.path, share).map_err(|e| of(e.into()))?;
        if file.content != Content::Iiswc22Events && !events.is_empty() {
            iiswc22::apply(std::mem::take(&mut events), &mut sink);
        }
        let mut from = before + file.bytes;
        let mut shares = Vec::new();
        for (_, bytes) in &file.parts {
            shares.push(move |read: u64| tell(from + read));
            from += bytes;
        }
        let mut parts = Vec::new();
        for ((path, _), share) in file.parts.iter().zip(&mut shares) {
            let part = Input::open(path, share).map_err(|e| Trouble::from(e).of(path.clone()))?;
            parts.push((path.clone(), part));
        }
        match file.content {
            Content::Iiswc22Events => iiswc22::read_events(input, &mut events, &mut sink),
            content => read(content, input, parts, &mut sink),
        }
        .map_err(of)?;
        before += file.all_bytes();
    }
    iiswc22::apply(events, &mut sink);
    Ok(sink.finish()?)
}

/// Reads a file; `parts` are those that hold more of the same recording, each with its path.
fn read<'a>(
    content: Content,
    input: Input<'a>,
    parts: Vec<(PathBuf, Input<'a>)>,
    sink: &mut Sink<'_>,
) -> Result<(), Trouble> {
    match content {
        Content::PerfData => perf_data::read(input, parts, sink),
        Content::PerfScript => perf_script::read(input, sink),
        Content::Mitos => mitos::read(input, sink),
        Content::Iiswc22Accesses | Content::Iiswc22Events => iiswc22::read_accesses(input, sink),
        Content::DamonZlib => damon::read_json(damon::unpacked(input), sink),
        Content::DamonJson => damon::read_json(input, sink),
        Content::DamonText => damon::read_text(input, sink),
        Content::Lackey => lackey::read(input, sink),
        Content::Moca => counts::read_moca(input, sink),
        Content::Tabarnac => counts::read_tabarnac(input, sink),
        Content::MocaStructs | Content::TabarnacStructs => counts::read_structs(input, sink),
        Content::TabarnacStacks => counts::read_stacks(input, sink),
    }
}
