//! Valgrind's lackey: an independent, complete trace of a program's own accesses. It interprets the
//! program, so it sees every load, store and instruction, but nothing that the kernel does for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use varve_model::{Address, Page};

use crate::{PageSet, Problem};

/// How often the mappings of the interpreted program are looked at.
const LOOK: Duration = Duration::from_millis(2);
const LIMIT: Duration = Duration::from_secs(300);

/// The page that a workload stores to at the start and at the end of each phase, with `ORACLE_MARKS`.
const MARK: Page = Page(0x20_0000);

/// A mapped piece of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mapped {
    /// Where it starts.
    pub start: Address,
    /// Where it ends.
    pub end: Address,
    /// Its offset in the file.
    pub offset: u64,
    /// The file.
    pub path: String,
}

/// What lackey saw.
#[derive(Clone, Debug, Default)]
pub struct FullTrace {
    /// Pages with data that the program accessed.
    pub data: PageSet,
    /// The same, cut at each mark: before the first phase, in it, between the first two, and so on.
    pub parts: Vec<PageSet>,
    /// Pages with instructions that it executed.
    pub instructions: PageSet,
    /// The files that it mapped.
    pub mapped: BTreeSet<Mapped>,
}

impl FullTrace {
    /// Data and instructions.
    pub fn all(&self) -> PageSet {
        self.data.union(&self.instructions)
    }
}

/// Whether valgrind is there.
pub fn has_valgrind() -> bool {
    let mut version = Command::new("valgrind");
    version
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

/// Runs a command under lackey to its end. The command's environment is what `command` sets.
pub fn run_lackey(
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, String)],
) -> Result<FullTrace, Problem> {
    let mut command = Command::new("valgrind");
    command
        .args([
            "--tool=lackey",
            "--trace-mem=yes",
            "--basic-counts=no",
            "--log-fd=2",
        ])
        .arg(program)
        .args(arguments)
        .envs(environment.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = command
        .spawn()
        .map_err(Problem::file("run", Path::new("valgrind")))?;
    let pid = child.id();
    let Some(output) = child.stderr.take() else {
        return Err(Problem::Other("valgrind's output is not there".into()));
    };
    let done = AtomicBool::new(false);
    let (mut trace, mapped) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(pid, &done));
        let trace = read(BufReader::with_capacity(1 << 20, output));
        done.store(true, Ordering::Release);
        (trace, watcher.join().unwrap_or_default())
    });
    let status = child
        .wait()
        .map_err(Problem::file("wait for", Path::new("valgrind")))?;
    if !status.success() {
        return Err(Problem::Other(format!(
            "valgrind of {} ended with {status}",
            program.display()
        )));
    }
    trace.mapped = mapped;
    Ok(trace)
}

/// Collects the file mappings until the run is done; ends it where it takes too long. A library counts where its code is
/// mapped: Valgrind maps it elsewhere, too, while it reads its symbols.
fn watch(pid: u32, done: &AtomicBool) -> BTreeSet<Mapped> {
    let mut files: BTreeMap<String, BTreeSet<Mapped>> = BTreeMap::new();
    let mut with_code = BTreeSet::new();
    let started = Instant::now();
    while !done.load(Ordering::Acquire) {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let mut now: BTreeMap<String, (BTreeSet<Mapped>, bool)> = BTreeMap::new();
        for (mapped, is_code) in maps.lines().filter_map(parse_mapped) {
            let (pieces, has_code) = now.entry(mapped.path.clone()).or_default();
            *has_code |= is_code;
            pieces.insert(mapped);
        }
        for (path, (pieces, has_code)) in now {
            if has_code {
                with_code.insert(path.clone());
                files.insert(path, pieces);
            } else if !with_code.contains(&path) {
                files.entry(path).or_default().extend(pieces);
            }
        }
        if started.elapsed() > LIMIT
            && let Some(group) = Pid::from_raw(pid.cast_signed())
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        std::thread::sleep(LOOK);
    }
    files.into_values().flatten().collect()
}

/// A mapping of a file, and whether it may be executed.
fn parse_mapped(line: &str) -> Option<(Mapped, bool)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_code = words.next()?.contains('x');
    let offset = words.next()?;
    let path = words.nth(2)?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    path.starts_with('/').then_some(())?;
    let mapped = Mapped {
        start: Address(hex(start)?),
        end: Address(hex(end)?),
        offset: hex(offset)?,
        path: path.to_owned(),
    };
    Some((mapped, is_code))
}

/// ` L 1fff000728,8`, ` S …`, ` M …`: data; `I  0401ab70,3`: instructions; anything else is the
/// program's or valgrind's own.
fn read(mut output: impl BufRead) -> FullTrace {
    let (mut data, mut instructions) = (BTreeSet::new(), BTreeSet::new());
    let (mut part, mut parts) = (BTreeSet::new(), Vec::new());
    let mut line = Vec::new();
    while matches!(output.read_until(b'\n', &mut line), Ok(n) if n > 0) {
        if let Some((kind, first, last)) = parse_access(&line) {
            if first == MARK {
                parts.push(std::mem::take(&mut part).into_iter().collect());
            } else if kind == b'I' {
                instructions.extend([first, last]);
            } else {
                part.extend([first, last]);
                data.extend([first, last]);
            }
        }
        line.clear();
    }
    parts.push(part.into_iter().collect());
    FullTrace {
        parts,
        data: data.into_iter().collect(),
        instructions: instructions.into_iter().collect(),
        mapped: BTreeSet::new(),
    }
}

fn parse_access(line: &[u8]) -> Option<(u8, Page, Page)> {
    let kind = match line.get(..3)? {
        b"I  " => b'I',
        [b' ', kind @ (b'L' | b'S' | b'M'), b' '] => *kind,
        _ => return None,
    };
    let (address, size) = std::str::from_utf8(&line[3..])
        .ok()?
        .trim_end()
        .split_once(',')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let size: u64 = size.parse().ok()?;
    let last = address + size.saturating_sub(1);
    Some((kind, Address(address).page(), Address(last).page()))
}

/// Pages by file, counted from where the file's first byte is mapped. A file's span reaches
/// `reach(path)` bytes, which is more than its mappings for one with uninitialised data.
pub fn by_file(
    pages: &PageSet,
    mapped: &BTreeSet<Mapped>,
    reach: impl Fn(&str) -> u64,
) -> BTreeMap<String, BTreeSet<u64>> {
    let mut bases: BTreeMap<&str, u64> = BTreeMap::new();
    for piece in mapped.iter().filter(|m| m.offset == 0) {
        let base = bases.entry(&piece.path).or_insert(piece.start.0);
        *base = (*base).min(piece.start.0);
    }
    let mut files: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for (path, base) in bases {
        let first = Address(base).page().0;
        let last = Address(base + reach(path).max(1) - 1).page().0;
        let own = pages
            .iter()
            .filter(|p| (first..=last).contains(&p.0))
            .map(|p| p.0 - first);
        files.entry(path.to_owned()).or_default().extend(own);
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lackey_lines_are_read() {
        let text =
            b"==1== Lackey\nI  0401ffff,3\n L 1fff000728,8\n S 200000000,1\n S 1ffeffff,1\n M 2000,4\n Lost\n";
        let trace = read(&text[..]);
        let pages = |set: &PageSet| set.iter().map(|p| p.0).collect::<Vec<_>>();
        assert_eq!(pages(&trace.instructions), [0x401f, 0x4020]);
        let parts: Vec<_> = trace.parts.iter().map(pages).collect();
        assert_eq!(parts, [vec![0x1fff000], vec![2, 0x1ffef]]);
        assert_eq!(pages(&trace.data), [2, 0x1ffef, 0x1fff000]);
    }

    #[test]
    fn pages_belong_to_files() {
        let line = "00400000-00402000 r-xp 00000000 fe:00 12   /bin/x";
        let mapped: BTreeSet<Mapped> = [line]
            .iter()
            .filter_map(|l| parse_mapped(l))
            .map(|m| m.0)
            .collect();
        let pages = PageSet::from_runs([(Page(0x3ff), 2), (Page(0x405), 1), (Page(0x409), 1)]);
        let files = by_file(&pages, &mapped, |_| 0x6000);
        assert_eq!(files["/bin/x"], BTreeSet::from([0, 5]));
        assert_eq!(
            parse_mapped("00400000-00402000 rw-p 00000000 00:00 0 [heap]"),
            None
        );
    }
}
