//! What the manifest of an imported trace says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use varve_model::{Backend, Capability, ImportFormat, Loss};
use varve_trace::{Clock, Completeness, Manifest, State};

use crate::sink::{CUT_LINE, Written};

/// The manifest of an import that has begun.
pub(crate) fn begun<'a>(
    format: ImportFormat,
    files: impl Iterator<Item = &'a Path>,
    repeated: &[PathBuf],
) -> Manifest {
    let names: Vec<String> = files.map(|f| f.display().to_string()).collect();
    let imported = format!("Imported from {}.", names.join(", "));
    let again = |path: &PathBuf| {
        format!(
            "{} is named several times and was read once.",
            path.display()
        )
    };
    Manifest {
        completeness: Completeness {
            complete: false,
            statement: "The import has not ended.".to_owned(),
        },
        notes: [imported]
            .into_iter()
            .chain(repeated.iter().map(again))
            .collect(),
        ..Manifest::begun(Backend::Import(format))
    }
}

/// Fills in what is known at the end.
pub(crate) fn finish(manifest: &mut Manifest, format: ImportFormat, written: &Written) {
    manifest.state = State::Finished;
    manifest.clock = Clock {
        start_ns: written.start,
        end_ns: written.end,
        start_unix_ns: 0,
        unit: written.traits.unit,
    };
    manifest.losses = written.losses.clone();
    if let Some(machine) = &written.traits.machine {
        manifest.machine = machine.clone();
    }
    manifest.capabilities = capabilities(format, written);
    let mut names: Vec<&String> = written.commands.iter().filter(|c| !c.is_empty()).collect();
    names.dedup();
    if let [name] = names[..] {
        manifest.target.command = vec![name.clone()];
    }
    let cut = written.losses.get(CUT_LINE);
    let what = match format {
        ImportFormat::Lackey if cut.is_some() => {
            "Imported: the accesses that Valgrind saw and that the text has. Accesses by the kernel are not there, nor is time."
        }
        ImportFormat::Tabarnac if cut.is_some() => {
            "Imported: the accesses that TABARNAC counted and that the text has, by page and thread. Accesses by the kernel are not there, nor is time."
        }
        ImportFormat::Lackey => {
            "Imported: every access that Valgrind saw is there. Accesses by the kernel are not, nor is time."
        }
        ImportFormat::Moca => {
            "Imported: the first accesses to pages that Moca trapped. What it lost, it did not write down."
        }
        ImportFormat::Tabarnac => {
            "Imported: every access that TABARNAC counted is there, by page and thread. Accesses by the kernel are not, nor is time."
        }
        _ if written.touches > 0 => {
            "Imported: DAMON looks at one page of each region. Other pages were touched, and some of these were not."
        }
        _ if written.samples > 0 && written.addressed == 0 && written.owned == 0 => {
            "Imported: samples without addresses. Which memory was accessed is not known."
        }
        _ => "Imported: samples. Most accesses are not among them.",
    };
    manifest.completeness.statement = what.to_owned();
    if let Some(&files) = cut {
        manifest.completeness.statement += match files {
            1 => " The text ends within a line: it was cut, and what followed is missing.",
            _ => " Several texts end within a line: they were cut, and what followed is missing.",
        };
    }
    let others = written.losses.iter().filter(|(kind, _)| *kind != CUT_LINE);
    let others: Vec<String> = others.map(|(kind, count)| lost(kind, *count)).collect();
    if !others.is_empty() {
        manifest.completeness.statement += &format!(" Missing: {}.", others.join("; "));
    }
}

/// A loss in words.
fn lost(kind: &str, count: u64) -> String {
    match kind.parse::<Loss>() {
        Ok(loss) => format!("{} ({kind}: {count})", loss.what()),
        Err(_) => format!("{kind}: {count}"),
    }
}

fn capabilities(format: ImportFormat, written: &Written) -> BTreeSet<Capability> {
    let lacks = &written.traits.lacks;
    [
        (Capability::Touches, written.intervals > 0),
        (Capability::Machine, written.traits.machine.is_some()),
        (Capability::Places, !lacks.contains(&Capability::Places)),
        (Capability::Lives, !lacks.contains(&Capability::Lives)),
        (
            Capability::Writes,
            matches!(
                format,
                ImportFormat::Lackey | ImportFormat::Moca | ImportFormat::Tabarnac
            ),
        ),
        (Capability::Samples, written.samples > 0),
        (Capability::Counts, written.counts > 0),
        (Capability::Traps, format == ImportFormat::Moca),
    ]
    .into_iter()
    .filter_map(|(capability, has)| has.then_some(capability))
    .collect()
}
