//! Names of code that a program generates while it runs, as runtimes write them for `perf`.
//!
//! Two formats: `perf-PID.map` (linux tools/perf/Documentation/jit-interface.txt), lines of start, size and name, and
//! jitdump (tools/perf/Documentation/jitdump-specification.txt), binary records with the code itself. Both are the target's.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Result, Seek};

use varve_model::{Address, Bytes};

/// More functions of one file are not read.
const MAX_FUNCTIONS: usize = 1 << 18;
/// No more lines or records are looked at.
const MAX_RECORDS: usize = 1 << 21;
/// Longer names are cut.
const MAX_NAME: usize = 512;
/// Longer lines are passed over.
const MAX_LINE: u64 = 16 << 10;
/// Which memory a file may speak of: below it no program has code.
const LOWEST: u64 = 4096;

/// A function that was generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratedFunction {
    /// Where it starts in the process.
    pub address: Address,
    /// Its size.
    pub bytes: Bytes,
    /// As the runtime calls it.
    pub name: String,
}

/// Functions by start, none of which overlap: memory is used again, and the last that came to lie there has it.
#[derive(Debug, Default)]
struct Functions(BTreeMap<u64, (u64, String)>);

impl Functions {
    /// Whether there was room for it.
    fn insert(&mut self, start: u64, size: u64, name: &[u8]) -> bool {
        let Some(end) = start.checked_add(size).filter(|_| size > 0) else {
            return true;
        };
        if start < LOWEST || name.is_empty() {
            return true;
        }
        let before = self.0.range(..start).next_back();
        let mut covered: Vec<u64> = before
            .filter(|(_, (other, _))| *other > start)
            .map(|(other, _)| *other)
            .into_iter()
            .collect();
        covered.extend(self.0.range(start..end).map(|(other, _)| *other));
        for other in covered {
            self.0.remove(&other);
        }
        if self.0.len() >= MAX_FUNCTIONS {
            return false;
        }
        let name = &name[..name.len().min(MAX_NAME)];
        let name = String::from_utf8_lossy(name).trim().to_owned();
        self.0.insert(start, (end, name));
        true
    }

    fn done(self) -> Vec<GeneratedFunction> {
        let all = self.0.into_iter();
        all.map(|(start, (end, name))| GeneratedFunction {
            address: Address(start),
            bytes: Bytes(end - start),
            name,
        })
        .collect()
    }
}

/// Reads a `perf-PID.map`, as far as it is one.
///
/// # Errors
/// Those of reading.
pub fn read_perf_map(file: impl Read) -> Result<Vec<GeneratedFunction>> {
    let mut file = BufReader::new(file);
    let mut functions = Functions::default();
    let mut line = Vec::new();
    for _ in 0..MAX_RECORDS {
        line.clear();
        if (&mut file).take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if line.last() != Some(&b'\n') {
            if line.len() as u64 == MAX_LINE {
                file.skip_until(b'\n')?;
            }
            // A line that its writer has not finished says nothing for certain.
            continue;
        }
        let mut fields = line.trim_ascii().splitn(3, |byte| *byte == b' ');
        let (Some(start), Some(size), Some(name)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if let (Some(start), Some(size)) = (hexadecimal(start), hexadecimal(size))
            && !functions.insert(start, size, name)
        {
            break;
        }
    }
    Ok(functions.done())
}

fn hexadecimal(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// `JiTD` as a number.
const MAGIC: u32 = 0x4a69_5444;
/// Kinds of records.
const LOAD: u32 = 0;
const MOVE: u32 = 1;
/// Size of a record's header, and of what comes before the name in a record of loaded code.
const HEADER: u64 = 16;
const LOADED: u64 = 40;
const MOVED: u64 = 48;

/// Reads a jitdump file of this machine's byte order, as far as it is one.
///
/// # Errors
/// Those of reading, and what is no such file.
pub fn read_jitdump(file: impl Read + Seek) -> Result<Vec<GeneratedFunction>> {
    let mut file = BufReader::new(file);
    let mut header = [0; 40];
    file.read_exact(&mut header)?;
    if word(&header, 0) != u64::from(MAGIC) {
        return Err(std::io::Error::other("it is not a jitdump file"));
    }
    // The header says how long it is.
    file.seek_relative(word(&header, 8) as i64 - header.len() as i64)?;
    let mut functions = Functions::default();
    let mut names: HashMap<u64, Vec<u8>> = HashMap::new();
    for _ in 0..MAX_RECORDS {
        let mut header = [0; HEADER as usize];
        if file.read_exact(&mut header).is_err() {
            break;
        }
        let Some(bytes) = word(&header, 4).checked_sub(HEADER) else {
            break;
        };
        let kind = word(&header, 0) as u32;
        let mut read = 0;
        if kind == LOAD && bytes > LOADED {
            let mut fixed = [0; LOADED as usize];
            let mut name = Vec::new();
            let most = (bytes - LOADED).min(MAX_LINE);
            if file.read_exact(&mut fixed).is_err() {
                break;
            }
            read = LOADED + (&mut file).take(most).read_until(0, &mut name)? as u64;
            if name.pop_if(|last| *last == 0).is_some() {
                name.truncate(MAX_NAME);
                if !functions.insert(long(&fixed, 16), long(&fixed, 24), &name) {
                    break;
                }
                if names.len() < MAX_FUNCTIONS {
                    names.insert(long(&fixed, 32), name);
                }
            }
        } else if kind == MOVE && bytes >= MOVED {
            let mut fixed = [0; MOVED as usize];
            if file.read_exact(&mut fixed).is_err() {
                break;
            }
            read = MOVED;
            if let Some(name) = names.get(&long(&fixed, 40)) {
                functions.0.remove(&long(&fixed, 16));
                functions.insert(long(&fixed, 24), long(&fixed, 32), name);
            }
        }
        file.seek_relative((bytes - read) as i64)?;
    }
    Ok(functions.done())
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    u32::from_ne_bytes(bytes.unwrap_or_default()).into()
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    u64::from_ne_bytes(bytes.unwrap_or_default())
}

/// A name as the runtime gave it, in the terms of the language: the function, and the file that it is from.
///
/// CPython names `py::FUNCTION:FILE`, V8 `JS:*FUNCTION FILE:LINE:COLUMN` with a mark of the compiler that made it. The line is
/// where the function begins and not the one that ran, so that it is left out where the function has a name.
pub fn in_its_language(name: &str) -> (String, Option<String>) {
    if let Some((function, file)) = name
        .strip_prefix("py::")
        .and_then(|rest| rest.split_once(':'))
    {
        return (function.to_owned(), Some(file.to_owned()));
    }
    let kinds = ["JS:", "LazyCompile:", "Function:", "Script:", "Eval:"];
    let Some(rest) = kinds.iter().find_map(|kind| name.strip_prefix(kind)) else {
        return (name.to_owned(), None);
    };
    let rest = rest.trim_start_matches(['*', '~', '^', '+', '\'']);
    let Some((function, place)) = rest.split_once(' ') else {
        return (rest.to_owned(), None);
    };
    let mut parts = place.rsplitn(3, ':');
    let (column, line, file) = (parts.next(), parts.next(), parts.next());
    let is_number = |part: Option<&str>| part.is_some_and(|p| p.parse::<u32>().is_ok());
    let (file, line) = match (file, line) {
        (Some(file), Some(line)) if is_number(column) && is_number(Some(line)) => (file, line),
        _ => (place, ""),
    };
    let function = match (function, line) {
        ("", "") => "(anonymous)".to_owned(),
        ("", line) => format!("(anonymous, line {line})"),
        (function, _) => function.to_owned(),
    };
    (function, Some(file.to_owned()).filter(|f| !f.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(functions: &[GeneratedFunction]) -> Vec<(u64, u64, &str)> {
        let all = functions.iter();
        all.map(|f| (f.address.0, f.bytes.0, f.name.as_str()))
            .collect()
    }

    #[test]
    fn the_last_that_came_to_lie_somewhere_has_the_memory() {
        let text = "7f0010 20 long Hot.mix(int)\n0x8000 0x10 b\nnonsense\n7f0020 40 c\n\
                    9000 0 empty\nffffffffffffffff 10 end\n10 10 low\na000 10 cut";
        let found = read_perf_map(text.as_bytes()).unwrap();
        assert_eq!(
            listed(&found),
            [(0x8000, 0x10, "b"), (0x7f_0020, 0x40, "c")]
        );
        let endless = std::io::repeat(b'7').take(1 << 20);
        assert!(read_perf_map(endless).unwrap().is_empty());
    }

    fn load(index: u64, address: u64, name: &str, code: &[u8]) -> Vec<u8> {
        let bytes = 16 + 40 + name.len() + 1 + code.len();
        let mut record = Vec::new();
        for value in [LOAD, bytes as u32, 0, 0, 7, 7] {
            record.extend(value.to_ne_bytes());
        }
        for value in [address, address, code.len() as u64, index] {
            record.extend(value.to_ne_bytes());
        }
        record.extend(name.bytes().chain([0]));
        record.extend(code);
        record
    }

    fn dump(records: &[Vec<u8>]) -> Vec<u8> {
        let mut file = Vec::new();
        for value in [MAGIC, 1, 40, 62, 0, 7, 0, 0, 0, 0] {
            file.extend(value.to_ne_bytes());
        }
        file.extend(records.concat());
        file
    }

    #[test]
    fn a_jitdump_file_says_what_was_loaded_and_moved() {
        let mut moved = Vec::new();
        for value in [MOVE, 64, 0, 0, 7, 7] {
            moved.extend(value.to_ne_bytes());
        }
        for value in [0x3000u64, 0x2000, 0x3000, 5, 1] {
            moved.extend(value.to_ne_bytes());
        }
        let mut unknown = vec![9u8, 0, 0, 0, 20, 0, 0, 0];
        unknown.extend([0; 12]);
        let records = [
            load(0, 0x1000, "first", &[0x90; 9]),
            unknown,
            load(1, 0x2000, "second", &[0x90; 5]),
            moved,
        ];
        let whole = dump(&records);
        let read = |bytes: &[u8]| read_jitdump(std::io::Cursor::new(bytes.to_vec()));
        assert_eq!(
            listed(&read(&whole).unwrap()),
            [(0x1000, 9, "first"), (0x3000, 5, "second")]
        );
        // Cut anywhere, or with any byte changed, it ends.
        for at in 0..whole.len() {
            let _ = read(&whole[..at]);
            for value in [0, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = value;
                let _ = read(&damaged);
            }
        }
        assert!(read(b"\x7fELF").is_err());
    }

    #[test]
    fn names_are_those_of_the_language() {
        let of = |name| in_its_language(name);
        assert_eq!(
            of("py::mix:/a/hot.py"),
            ("mix".into(), Some("/a/hot.py".into()))
        );
        assert_eq!(
            of("JS:*mix /a/hot.js:3:14"),
            ("mix".into(), Some("/a/hot.js".into()))
        );
        assert_eq!(
            of("JS:~ /a/hot.js:9:1"),
            ("(anonymous, line 9)".into(), Some("/a/hot.js".into()))
        );
        assert_eq!(of("long Hot.mix(int)"), ("long Hot.mix(int)".into(), None));
    }
}
