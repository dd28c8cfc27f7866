//! Where traces lie until they are in the store, and how much all of them may take.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use varve_analyse::format;
use varve_model::Bytes;
use varve_trace::{Access, State, Trace};

use super::super::super::Failure;
use super::super::super::push::{self, Push, Pushed};
use super::find::Found;
use super::wrong;

const EXTENSION: &str = "varve";
const LOG: &str = "log";
/// Which traces of the store were put there from this spool, the oldest first: only these are removed. A line has the bytes
/// and the path below the store.
const LEDGER: &str = "pushed";
/// A trace of the store that is being removed has this before its name, which readers of a store do not look at.
const REMOVED: &str = ".removed-";
/// What the names of the folders between a store and a trace begin with.
const LEVELS: [&str; 4] = ["service=", "build=", "host=", "date="];

/// The folder, and the store.
#[derive(Debug)]
pub(super) struct Spool {
    folder: PathBuf,
    to: PathBuf,
    service: Option<String>,
    max_disk: Bytes,
}

/// A trace that was put into the store.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    bytes: u64,
    /// Below the store.
    path: PathBuf,
}

/// Why a trace stays here.
struct Kept {
    failure: Failure,
    /// Whether that is the trace's own fault, so that it never can be put into the store.
    is_unfit: bool,
}

impl Kept {
    fn unfit(why: impl Into<Failure>) -> Kept {
        Kept {
            failure: why.into(),
            is_unfit: true,
        }
    }
}

impl From<Failure> for Kept {
    fn from(failure: Failure) -> Kept {
        Kept {
            failure,
            is_unfit: false,
        }
    }
}

impl Spool {
    pub(super) fn new(
        to: &Path,
        folder: Option<&Path>,
        service: Option<String>,
        max_disk: Bytes,
    ) -> Result<Spool, Failure> {
        let folder = match folder {
            Some(folder) => folder.to_owned(),
            None if is_remote(to) => {
                return Err(wrong(
                    format!(
                        "{} is no folder: traces need one until they are there",
                        to.display()
                    ),
                    "give it by `--spool`, such as `--spool /var/lib/varve`",
                ));
            }
            None => to.join(".spool"),
        };
        make(&folder)?;
        Ok(Spool {
            folder,
            to: to.to_owned(),
            service,
            max_disk,
        })
    }

    /// Has it for this process alone, as long as the result lives.
    pub(super) fn lock(&self) -> Result<File, Failure> {
        varve_sys::lock(&self.folder).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => Failure::new(
                format!(
                    "another `varve record --every` uses {}",
                    self.folder.display()
                ),
                Some("give this one a folder of its own by `--spool`"),
            ),
            _ => cannot("lock", &self.folder, &e),
        })
    }

    /// A name for a new trace, and for what its recorder says. Later names sort behind earlier ones.
    pub(super) fn trace(&self, of: &Found) -> (PathBuf, PathBuf) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let milliseconds = now.unwrap_or_default().as_millis();
        let name = format!("{milliseconds:015}-{}", of.pid);
        let trace = self.folder.join(&name).with_extension(EXTENSION);
        (trace, self.folder.join(&name).with_extension(LOG))
    }

    /// Puts all traces that are here into the store, also those of an earlier process, and removes the oldest where they take
    /// more than they may. What cannot be done now is tried the next time.
    pub(super) fn settle(&self) {
        let mut entries = self.entries();
        let mut unfit = Vec::new();
        for trace in self.traces() {
            if let Err(kept) = self.settle_one(&trace, &mut entries) {
                varve_ui::error(kept.failure.what);
                if kept.is_unfit {
                    unfit.push(trace);
                }
            }
        }
        let limited = self.limit(&mut entries, &unfit);
        if let Err(failure) = limited.and_then(|()| self.write(&entries)) {
            varve_ui::error(failure.what);
        }
        self.remove_logs();
    }

    /// Removes what recorders of an earlier process have said whose traces are not here any more: nobody reads it.
    fn remove_logs(&self) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let logs = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == LOG));
        for log in logs.filter(|log| !log.with_extension(EXTENSION).exists()) {
            let _ = fs::remove_file(log);
        }
    }

    fn settle_one(&self, trace: &Path, entries: &mut Vec<Entry>) -> Result<(), Kept> {
        let opened = Trace::open(trace).map_err(Kept::unfit)?;
        if opened.manifest.state == State::Recording && !by_itself(&["recover"], trace)? {
            return Err(Kept::unfit(Failure::new(
                format!(
                    "{} is being recorded, or cannot be put in order",
                    trace.display()
                ),
                None::<String>,
            )));
        }
        let bytes = bytes_of(trace);
        let prepared = push::prepare(trace, &self.push()).map_err(Kept::unfit)?;
        if is_remote(&self.to) {
            self.push_by_itself(trace)?;
            varve_ui::note(format!("pushed to {}", self.to.display()));
        } else {
            let (Pushed::Now(to) | Pushed::Before(to)) = prepared.put(&self.to)?;
            varve_ui::note(format!(
                "pushed to {} ({})",
                to.display(),
                format::bytes(Bytes(bytes))
            ));
            // Of what the ledger has not, nobody would know once this copy is gone.
            if let Ok(path) = to.strip_prefix(&self.to) {
                entries.retain(|entry| entry.path != path);
                entries.push(Entry {
                    bytes,
                    path: path.to_owned(),
                });
                self.write(entries)?;
            }
        }
        Ok(fs::remove_dir_all(trace).map_err(|e| cannot("remove", trace, &e))?)
    }

    fn push(&self) -> Push {
        Push {
            traces: Vec::new(),
            to: self.to.clone(),
            service: self.service.clone(),
            build: None,
            host: None,
        }
    }

    fn push_by_itself(&self, trace: &Path) -> Result<(), Failure> {
        let to = format!("--to={}", self.to.display());
        let service = self.service.as_ref().map(|s| format!("--service={s}"));
        let mut words = vec!["push", &to];
        words.extend(service.as_deref());
        match by_itself(&words, trace)? {
            true => Ok(()),
            false => Err(Failure::new(
                format!("{} waits for the next time", trace.display()),
                None::<String>,
            )),
        }
    }

    /// Removes traces that cannot be put into the store, then the oldest of the store, and then of this folder, until they take
    /// no more than they may.
    fn limit(&self, entries: &mut Vec<Entry>, unfit: &[PathBuf]) -> Result<(), Failure> {
        let waiting = self.traces().into_iter().map(|path| {
            let bytes = bytes_of(&path);
            (path, bytes)
        });
        let (unfit, waiting): (Vec<_>, Vec<_>) =
            waiting.partition(|(path, _)| unfit.contains(path));
        let of_store: u64 = entries.iter().map(|e| e.bytes).sum();
        let here = unfit.iter().chain(&waiting).map(|(_, bytes)| bytes);
        let mut all = of_store + here.sum::<u64>();
        let dropped = self.remove_oldest(unfit, &mut all)?;
        if dropped > 0 {
            varve_ui::note(format!(
                "removed {} that cannot be put into the store: all together took more than {} (--max-disk)",
                match dropped {
                    1 => "a trace".to_owned(),
                    n => format!("{n} traces"),
                },
                format::bytes(self.max_disk)
            ));
        }
        let mut removed = 0;
        let sizes = entries.iter().map(|e| e.bytes);
        let largest = sizes.chain(waiting.iter().map(|(_, bytes)| *bytes)).max();
        if let Some(largest) = largest.filter(|largest| *largest > self.max_disk.0) {
            varve_ui::warning(format!(
                "one trace takes {}, which is more than all may take together ({}, --max-disk): it is removed",
                format::bytes(Bytes(largest)),
                format::bytes(self.max_disk)
            ));
        }
        while all > self.max_disk.0 && !entries.is_empty() {
            let entry = entries.remove(0);
            remove(&self.to, &entry.path)?;
            all -= entry.bytes;
            removed += 1;
        }
        removed += self.remove_oldest(waiting, &mut all)?;
        if removed > 0 {
            varve_ui::note(format!(
                "removed the oldest {} of this machine: together they took more than {} (--max-disk)",
                match removed {
                    1 => "trace".to_owned(),
                    n => format!("{n} traces"),
                },
                format::bytes(self.max_disk)
            ));
        }
        Ok(())
    }

    /// Removes the first of these traces of this folder, as long as all take more than they may.
    fn remove_oldest(&self, traces: Vec<(PathBuf, u64)>, all: &mut u64) -> Result<u64, Failure> {
        let mut removed = 0;
        for (path, bytes) in traces {
            if *all <= self.max_disk.0 {
                break;
            }
            // Who records to it has it locked.
            if !varve_sys::is_locked(&path) {
                fs::remove_dir_all(&path).map_err(|e| cannot("remove", &path, &e))?;
                *all -= bytes;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Traces here, the oldest first.
    fn traces(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut traces: Vec<PathBuf> = entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == EXTENSION))
            .collect();
        traces.sort_unstable();
        traces
    }

    /// Those of the ledger that are still there.
    fn entries(&self) -> Vec<Entry> {
        let text = fs::read_to_string(self.folder.join(LEDGER)).unwrap_or_default();
        let entries = text.lines().filter_map(entry);
        entries
            .filter(|entry| self.to.join(&entry.path).exists())
            .collect()
    }

    fn write(&self, entries: &[Entry]) -> Result<(), Failure> {
        if is_remote(&self.to) {
            return Ok(());
        }
        let text: String = entries
            .iter()
            .map(|entry| format!("{} {}\n", entry.bytes, entry.path.display()))
            .collect();
        let (ledger, new) = (self.folder.join(LEDGER), self.folder.join("pushed.new"));
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &ledger));
        written.map_err(|e| cannot("write", &ledger, &e))
    }
}

/// A line of the ledger, where it can be one.
fn entry(line: &str) -> Option<Entry> {
    let (bytes, path) = line.split_once(' ')?;
    let parts: Vec<&str> = path.split('/').collect();
    let (name, folders) = parts.split_last()?;
    let is_place = folders.len() == LEVELS.len()
        && folders
            .iter()
            .zip(LEVELS)
            .all(|(part, level)| part.starts_with(level))
        && name.ends_with(".varve");
    is_place.then_some(())?;
    Some(Entry {
        bytes: bytes.parse().ok()?,
        path: path.into(),
    })
}

/// Removes a trace from the store: who reads the store sees all of it, or nothing.
fn remove(store: &Path, path: &Path) -> Result<(), Failure> {
    let trace = store.join(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let removed = store.join(format!("{REMOVED}{name}"));
    fs::rename(&trace, &removed)
        .and_then(|()| fs::remove_dir_all(&removed))
        .map_err(|e| cannot("remove", &trace, &e))?;
    // The folders above it stay unless they are empty.
    for folder in path.ancestors().skip(1).take(LEVELS.len()) {
        if fs::remove_dir(store.join(folder)).is_err() {
            break;
        }
    }
    Ok(())
}

/// Runs this program once more, over a trace; whether it could do that. It says itself what is wrong.
fn by_itself(words: &[&str], trace: &Path) -> Result<bool, Failure> {
    let run = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(words).arg(trace);
        command.stdin(Stdio::null()).stdout(Stdio::null()).status()
    };
    let status =
        run().map_err(|e| Failure::new(format!("cannot run varve: {e}"), None::<String>))?;
    Ok(status.success())
}

fn is_remote(to: &Path) -> bool {
    to.to_string_lossy().contains("://")
}

/// Makes the folder, or takes it as it is where nobody else can write to it.
fn make(folder: &Path) -> Result<(), Failure> {
    push::make(folder, Access::Private.of_folders()).map_err(|e| cannot("make", folder, &e))?;
    let found = fs::symlink_metadata(folder).map_err(|e| cannot("open", folder, &e))?;
    let is_own = found.is_dir()
        && found.uid() == rustix::process::geteuid().as_raw()
        && found.mode() & 0o022 == 0;
    match is_own {
        true => Ok(()),
        false => Err(Failure::new(
            format!(
                "{} is not used: somebody else owns it or may write to it",
                folder.display()
            ),
            Some("give a folder of your own by `--spool`"),
        )),
    }
}

fn bytes_of(trace: &Path) -> u64 {
    let entries = fs::read_dir(trace).into_iter().flatten().flatten();
    entries.filter_map(|e| Some(e.metadata().ok()?.len())).sum()
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(
        format!("cannot {what} {}: {error}", path.display()),
        None::<String>,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: &str = "service=a/build=b/host=c/date=2026-01-01";

    #[test]
    fn a_ledger_names_traces_of_the_store_and_nothing_else() {
        let line = format!("12 {PLACE}/0123.varve");
        assert_eq!(
            entry(&line),
            Some(Entry {
                bytes: 12,
                path: format!("{PLACE}/0123.varve").into()
            })
        );
        for wrong in [
            "12 ../x.varve",
            "12 service=a/build=b/host=c/../x.varve",
            "12 /service=a/build=b/host=c/date=d/x.varve",
            "x service=a/build=b/host=c/date=d/x.varve",
            "12 service=a/build=b/host=c/date=d/x",
            "",
        ] {
            assert_eq!(entry(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_oldest_go_first_and_what_others_put_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        let spool = Spool::new(&store, None, None, Bytes(2500)).unwrap();
        let mut entries = Vec::new();
        for name in ["1.varve", "2.varve", "3.varve", "others.varve"] {
            let path = Path::new(PLACE).join(name);
            fs::create_dir_all(store.join(&path)).unwrap();
            fs::write(store.join(&path).join("t"), vec![0; 1000]).unwrap();
            entries.push(Entry { bytes: 1000, path });
        }
        entries.pop();
        spool.limit(&mut entries, &[]).unwrap();
        spool.write(&entries).unwrap();
        assert_eq!(spool.entries(), entries);
        let left: Vec<bool> = ["1.varve", "2.varve", "3.varve", "others.varve"]
            .map(|name| store.join(PLACE).join(name).exists())
            .to_vec();
        assert_eq!(left, [false, true, true, true]);
        // What the store has no more is not counted either.
        fs::remove_dir_all(store.join(&entries[0].path)).unwrap();
        assert_eq!(spool.entries(), entries[1..]);
    }

    #[test]
    fn what_cannot_be_put_into_the_store_goes_before_what_can() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        let spool = Spool::new(&store, None, None, Bytes(2500)).unwrap();
        let path = Path::new(PLACE).join("1.varve");
        let made = [
            store.join(&path),
            spool.folder.join("2.varve"),
            spool.folder.join("3.varve"),
        ];
        for trace in &made {
            fs::create_dir_all(trace).unwrap();
            fs::write(trace.join("t"), vec![0; 1000]).unwrap();
        }
        let mut entries = vec![Entry { bytes: 1000, path }];
        spool.limit(&mut entries, &made[2..]).unwrap();
        assert_eq!(made.map(|trace| trace.exists()), [true, true, false]);
        assert_eq!(entries.len(), 1);
    }

    #[test]
    fn what_recorders_said_goes_with_their_traces() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        let spool = Spool::new(&store, None, None, Bytes(2500)).unwrap();
        let at = |name: &str| store.join(".spool").join(name);
        for name in ["1.log", "2.log"] {
            fs::write(at(name), "said").unwrap();
        }
        fs::create_dir(at("2.varve")).unwrap();
        spool.remove_logs();
        assert!(!at("1.log").exists() && at("2.log").exists());
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&open, mode).unwrap();
        assert!(Spool::new(folder.path(), Some(&open), None, Bytes(1)).is_err());
    }
}
