//! Whether a trace can be read, whatever happened to its recorder.

use std::fs;
use std::path::Path;

use varve_trace::tables::{
    BirthRow, CounterRow, DeathRow, FaultRow, IntervalRow, LossRow, MappingRow, ObjectRow,
    ProcessRow, Row, SiteRow, StackRow, SymbolRow, ThreadRow, TouchRow,
};
use varve_trace::{State, Trace};

/// What a test wants to know of a trace.
#[derive(Clone, Debug)]
pub struct Contents {
    /// How far the recorder came.
    pub state: State,
    /// Its intervals.
    pub intervals: Vec<IntervalRow>,
    /// Rows of touches.
    pub touches: u64,
    /// Rows of objects.
    pub objects: u64,
    /// Losses by kind.
    pub losses: Vec<LossRow>,
    /// What the manifest has to say beside.
    pub notes: Vec<String>,
}

/// Opens a trace and decodes every row of every table.
///
/// # Errors
/// A sentence about what cannot be read.
pub fn check_trace(folder: &Path) -> Result<Contents, String> {
    let trace = Trace::open(folder).map_err(|e| e.to_string())?;
    let intervals: Vec<IntervalRow> = rows(&trace)?;
    let touches = batches::<TouchRow>(&trace)?;
    batches::<FaultRow>(&trace)?;
    batches::<BirthRow>(&trace)?;
    batches::<DeathRow>(&trace)?;
    batches::<StackRow>(&trace)?;
    let objects = batches::<ObjectRow>(&trace)?;
    batches::<SiteRow>(&trace)?;
    batches::<SymbolRow>(&trace)?;
    batches::<MappingRow>(&trace)?;
    batches::<ThreadRow>(&trace)?;
    batches::<ProcessRow>(&trace)?;
    batches::<CounterRow>(&trace)?;
    let losses = rows(&trace)?;
    for (i, pair) in intervals.windows(2).enumerate() {
        if pair[1].interval.0 != pair[0].interval.0 + 1 {
            return Err(format!("interval {} is not followed by the next", i));
        }
    }
    Ok(Contents {
        state: trace.manifest.state,
        intervals,
        touches,
        objects,
        losses,
        notes: trace.manifest.notes,
    })
}

/// The intervals of a trace that was not finished, flush by flush.
///
/// # Errors
/// A sentence about what cannot be read.
pub fn intervals_by_part(folder: &Path) -> Result<Vec<Vec<IntervalRow>>, String> {
    let entries = match fs::read_dir(folder.join("parts")) {
        // A recorder that was killed right behind its first manifest has made none yet.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| e.to_string())?,
    };
    let names = entries.flatten().map(|e| e.file_name());
    let mut names: Vec<_> = names
        .filter(|name| {
            let name = name.to_string_lossy();
            name.starts_with("intervals-") && name.ends_with(".parquet")
        })
        .collect();
    names.sort();
    let copy = |name: &Path| -> Result<Vec<IntervalRow>, String> {
        let alone = tempfile::tempdir().map_err(|e| e.to_string())?;
        fs::create_dir(alone.path().join("parts")).map_err(|e| e.to_string())?;
        for file in [Path::new("manifest.json"), name] {
            fs::copy(folder.join(file), alone.path().join(file)).map_err(|e| e.to_string())?;
        }
        rows(&Trace::open(alone.path()).map_err(|e| e.to_string())?)
    };
    let paths = names.iter().map(|name| Path::new("parts").join(name));
    paths.map(|path| copy(&path)).collect()
}

fn rows<R: Row>(trace: &Trace) -> Result<Vec<R>, String> {
    trace.rows::<R>().map_err(|e| e.to_string())
}

fn batches<R: Row>(trace: &Trace) -> Result<u64, String> {
    let mut count = 0;
    for batch in trace.batches::<R>().map_err(|e| e.to_string())? {
        count += batch.map_err(|e| e.to_string())?.len() as u64;
    }
    Ok(count)
}
