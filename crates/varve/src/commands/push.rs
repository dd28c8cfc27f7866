//! `varve push`: traces are put into a store of many.

mod naming;
mod store;

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use varve_model::visible;
use varve_report::quoted_path;
use varve_trace::tables::ALL;
use varve_trace::{Access, Checksum, State, Trace};

use self::naming::{MAX_NAME, encoded};
use self::store::Place;
use super::Failure;
use super::fleet::{self, Fleet};

const MANIFEST: &str = "manifest.json";

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  varve push redis.varve --to /srv/traces                   service, build and host are found
  varve push *.varve --to /srv/traces --service checkout    under a name of your own
  varve push *.varve --to s3://traces/fleet                 into a bucket, by the Python package

A trace goes to STORE/service=S/build=B/host=H/date=DAY/ID.varve; its manifest is written last, so that who reads the \
store sees it whole or not at all. What was cut off is gone on with by the same command. What is there already is \
compared by length and checksum, and left alone where it is the same.

The exit code is 0 where all traces are in the store; 1 where one is not; 2 where the arguments are wrong, or Python \
lacks the package that knows S3.")]
pub(crate) struct Push {
    /// Trace folders
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) traces: Vec<PathBuf>,

    /// Folder of the store, which is made if need be, or s3://BUCKET/PREFIX
    #[arg(long, value_name = "STORE")]
    pub(crate) to: PathBuf,

    /// What the program is called in the store [default: its file's name]
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) service: Option<String>,

    /// Which build it is [default: the GNU build id of the program, else OpenTelemetry's htlhash of its file]
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) build: Option<String>,

    /// Where it was recorded [default: the name of this machine]
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) host: Option<String>,
}

/// A name that can be that of a folder.
pub(super) fn name(text: &str) -> Result<String, String> {
    match encoded(text).len() {
        0 => Err("it is empty".to_owned()),
        1..=MAX_NAME => Ok(text.to_owned()),
        _ => Err(format!("it is longer than {MAX_NAME} bytes")),
    }
}

pub(crate) fn run(arguments: &Push) -> Result<ExitCode, Failure> {
    let store = arguments.to.to_string_lossy();
    if store.starts_with("s3://") {
        return fleet::run(&Fleet {
            arguments: handed_over(arguments),
        });
    }
    if store.contains("://") {
        return Err(Failure::new(
            format!("{store} is neither a folder nor in S3"),
            Some("write s3://BUCKET/PREFIX for a place in S3"),
        ));
    }
    let mut all_there = true;
    for path in &arguments.traces {
        match push(path, arguments) {
            Ok(Pushed::Now(to)) => {
                varve_ui::note(format!("pushed {} to {}", path.display(), to.display()))
            }
            Ok(Pushed::Before(to)) => {
                varve_ui::note(format!(
                    "{} is there already: {}",
                    path.display(),
                    to.display()
                ));
            }
            Err(failure) => {
                all_there = false;
                varve_ui::error(failure.what);
                if let Some(hint) = failure.hint {
                    varve_ui::hint(hint);
                }
            }
        }
    }
    Ok(ExitCode::from(u8::from(!all_there)))
}

/// The same command for the Python package, which has a client of S3.
fn handed_over(arguments: &Push) -> Vec<OsString> {
    let option = |name: &str, value: &OsStr| {
        let mut word = OsString::from(format!("--{name}="));
        word.push(value);
        word
    };
    let names = [
        ("service", &arguments.service),
        ("build", &arguments.build),
        ("host", &arguments.host),
    ];
    let mut words = vec!["push".into(), option("to", arguments.to.as_os_str())];
    words.extend(
        names
            .into_iter()
            .filter_map(|(name, value)| Some(option(name, value.as_ref()?.as_ref()))),
    );
    words.push("--".into());
    words.extend(arguments.traces.iter().map(Into::into));
    words
}

/// What became of a trace that is in the store.
pub(super) enum Pushed {
    Now(PathBuf),
    Before(PathBuf),
}

pub(super) fn push(path: &Path, arguments: &Push) -> Result<Pushed, Failure> {
    prepare(path, arguments)?.put(&arguments.to)
}

/// A trace that can be pushed, and where it belongs.
pub(super) struct Prepared {
    trace: Trace,
    access: Access,
    manifest: Vec<u8>,
    /// Its tables' files, and what they are.
    tables: Vec<(&'static str, Checksum)>,
    /// The folders below the store.
    below: Vec<String>,
}

/// Reads all of a trace. The error is the trace's, whatever becomes of the store, in which nothing is made yet.
pub(super) fn prepare(path: &Path, arguments: &Push) -> Result<Prepared, Failure> {
    let trace = Trace::open(path)?;
    if trace.manifest.state == State::Recording {
        return Err(Failure::new(
            format!(
                "{} is not in order: it is being recorded, or its recorder was killed",
                path.display()
            ),
            Some(format!(
                "once its recorder is gone, `varve recover {}` puts it in order",
                quoted_path(path)
            )),
        ));
    }
    trace.check()?;
    let tables = tables(&trace)?;
    for &(table, _) in &tables {
        trace.table_file(table)?;
    }
    let manifest = trace.manifest_bytes()?;
    let mut below = naming::place(&trace, arguments)?;
    below.push(format!("{}.varve", naming::id(&manifest)));
    Ok(Prepared {
        // A trace is not opened to others by being pushed.
        access: trace.access()?,
        trace,
        manifest,
        tables,
        below,
    })
}

/// A manifest may claim any name, one in another folder too.
fn tables(trace: &Trace) -> Result<Vec<(&'static str, Checksum)>, Failure> {
    let known = |(table, sum): (&String, &Checksum)| {
        let known = ALL.iter().find(|known| known.name == *table);
        known.map(|known| (known.name, *sum)).ok_or_else(|| {
            let path = trace.folder().display();
            Failure::new(
                format!("{path} has a table of no known name: {}", visible(table)),
                None::<String>,
            )
        })
    };
    trace.manifest.checksums.iter().map(known).collect()
}

impl Prepared {
    /// Puts what is not there yet into the store.
    pub(super) fn put(&self, store: &Path) -> Result<Pushed, Failure> {
        let place = Place::open(store, &self.below, self.access.of_folders())?;
        let mut was_there = true;
        for &(table, sum) in &self.tables {
            was_there &= self.is_there_or_copied(&place, table, sum)?;
        }
        if !place.has_manifest(&self.manifest) {
            was_there = false;
            place.put(MANIFEST, self.access, |mut file| {
                io::Write::write_all(&mut file, &self.manifest)
            })?;
        }
        let to = place.path().to_owned();
        Ok(match was_there {
            true => Pushed::Before(to),
            false => Pushed::Now(to),
        })
    }

    /// Copies a table unless it is there: a name says nothing of what became of the file.
    fn is_there_or_copied(
        &self,
        place: &Place,
        table: &'static str,
        sum: Checksum,
    ) -> Result<bool, Failure> {
        let name = format!("{table}.parquet");
        if place.has(&name, sum) {
            return Ok(true);
        }
        let mut source = self.trace.table_file(table)?;
        place.put(&name, self.access, |mut file| {
            io::copy(&mut source, &mut file)?;
            match sum.differs(varve_sys::reopen(file)?)? {
                None => Ok(()),
                Some(wrong) => Err(io::Error::other(format!(
                    "{} was changed meanwhile: {wrong}",
                    self.trace.folder().join(&name).display()
                ))),
            }
        })?;
        Ok(false)
    }
}

/// Makes a folder with these permissions. Those above it are for everybody.
pub(super) fn make(folder: &Path, mode: u32) -> io::Result<()> {
    if let Some(above) = folder.parent() {
        fs::create_dir_all(above)?;
    }
    DirBuilder::new().recursive(true).mode(mode).create(folder)
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

    #[test]
    fn what_is_for_s3_is_handed_over_as_it_was_typed() {
        let arguments = Push {
            traces: vec!["-t.varve".into(), "u".into()],
            to: "s3://bucket/store".into(),
            service: Some("a b".into()),
            build: None,
            host: Some("-".into()),
        };
        let words = "push|--to=s3://bucket/store|--service=a b|--host=-|--|-t.varve|u";
        assert_eq!(handed_over(&arguments).join(OsStr::new("|")), words);
    }

    #[test]
    fn names_are_those_of_folders() {
        assert_eq!(encoded("a b/ü.x_-"), "a%20b%2F%C3%BC.x_-");
        assert!(name("").is_err() && name(&"/".repeat(70)).is_err());
    }
}
