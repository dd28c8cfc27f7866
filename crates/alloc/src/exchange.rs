//! Whether an allocator that was preloaded served a recorded run.

use varve_analyse::why_not_preloaded;
use varve_trace::tables::ProcessRow;
use varve_trace::{Trace, TraceError};

use crate::{Judged, allocator_name};

/// What a recorded run shows of the allocator that was preloaded into it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// Why the program was not served by it; none where it was.
    pub without_effect: Option<String>,
    /// Programs into which it could not be preloaded, each with the reason in parentheses.
    pub unreached: Vec<String>,
}

/// Looks whether `library`, a path, served the program of a trace. What is preloaded is the recorder's library and the allocator together: what the one
/// does not reach the other does not.
///
/// # Errors
/// Tables that cannot be read.
pub fn exchange(trace: &Trace, judged: &Judged, library: &str) -> Result<Exchange, TraceError> {
    let rows: Vec<ProcessRow> = trace.rows()?;
    Ok(of(
        &rows,
        trace.manifest.target.pid,
        operations_of(judged),
        library,
    ))
}

/// The file of the allocator of the process with the most memory, and the number of all operations.
fn operations_of(judged: &Judged) -> (&str, u64) {
    let operations = judged.counted().map(|of| of.operations.values());
    let count = operations.into_iter().flatten().map(|o| o.count).sum();
    (&judged.trace().allocator_file, count)
}

fn of(rows: &[ProcessRow], root: u32, (file, count): (&str, u64), library: &str) -> Exchange {
    let named = rows.iter().filter_map(not_reached);
    let mut unreached: Vec<String> = named
        .map(|(program, reason)| format!("{program} ({reason})"))
        .collect();
    unreached.sort();
    unreached.dedup();
    // A command may go on to another program: the last one is what was to be compared.
    let roots = rows.iter().filter(|row| row.pid.0 == root);
    let last = roots.max_by_key(|row| row.born_ns);
    let name = allocator_name(library);
    let is_another = !file.is_empty() && file != library && allocator_name(file) != name;
    let without_effect = match last.and_then(not_reached) {
        Some((program, reason)) => {
            Some(format!("the exchange had no effect on {program}: {reason}"))
        }
        None if count == 0 => {
            Some("the exchange had no effect: it served no operation of the program".to_owned())
        }
        None => is_another.then(|| {
            format!(
                "the exchange had no effect: {} served the program",
                allocator_name(file)
            )
        }),
    };
    Exchange {
        without_effect,
        unreached,
    }
}

/// A program to which the libraries did not come, and why; none where they did, or were not heard of in time.
fn not_reached(row: &ProcessRow) -> Option<(&str, &'static str)> {
    let word = row
        .objects_why
        .as_deref()
        .filter(|why| *why != "unanswered")?;
    let reason = why_not_preloaded(word)?;
    let name = row.exe.rsplit('/').next().unwrap_or_default();
    Some((name, reason))
}

#[cfg(test)]
mod tests {
    use varve_model::{Pid, Time};

    use super::*;

    const LIBRARY: &str = "/usr/lib/libjemalloc.so.2";

    fn row(pid: u32, born: u64, exe: &str, why: Option<&str>) -> ProcessRow {
        ProcessRow {
            pid: Pid(pid),
            parent: Pid(1),
            exe: exe.to_owned(),
            file: None,
            command: exe.to_owned(),
            born_ns: Time(born),
            died_ns: None,
            exit_code: None,
            objects: None,
            objects_why: why.map(str::to_owned),
            peak_resident_bytes: None,
            peak_resident_why: None,
        }
    }

    #[test]
    fn one_that_serves_the_program_has_an_effect() {
        let rows = [row(7, 1, "/bin/sort", None)];
        let found = of(&rows, 7, (LIBRARY, 10), LIBRARY);
        assert_eq!(found, Exchange::default());
        // The proxy of tbb is another file than its allocator.
        let found = of(
            &rows,
            7,
            ("/lib/libtbbmalloc.so.2", 10),
            "/lib/libtbbmalloc_proxy.so.2",
        );
        assert_eq!(found, Exchange::default());
    }

    #[test]
    fn one_that_serves_nothing_or_is_not_there_has_none() {
        let rows = [row(7, 1, "/bin/sort", None)];
        let why = |rows: &[ProcessRow], figures| of(rows, 7, figures, LIBRARY).without_effect;
        assert!(why(&rows, (LIBRARY, 0)).unwrap().contains("no operation"));
        let other = why(&rows, ("/lib/libc.so.6", 10)).unwrap();
        assert!(other.ends_with("glibc served the program"), "{other}");
        // The command went on to a static program.
        let rows = [
            row(7, 2, "/opt/own", Some("static")),
            row(7, 1, "/bin/sh", None),
        ];
        let gone = why(&rows, (LIBRARY, 10)).unwrap();
        assert!(gone.ends_with("own: it loads no libraries"), "{gone}");
    }

    #[test]
    fn children_that_are_not_reached_are_named_once() {
        let rows = [
            row(7, 1, "/bin/sh", None),
            row(8, 2, "/opt/own", Some("static")),
            row(9, 3, "/opt/own", Some("static")),
            row(10, 4, "/bin/late", Some("unanswered")),
        ];
        let found = of(&rows, 7, (LIBRARY, 10), LIBRARY);
        assert_eq!(found.without_effect, None);
        assert_eq!(found.unreached, ["own (it loads no libraries)"]);
    }
}
