//! The code around a sample: read from the process while it runs, decoded once for each function.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use varve_access::x86::{Code, Registers, boundary_before};
use varve_access::{Located, Steps, Undecoded};
use varve_model::{Address, Pid};
use varve_symbols::{FunctionBounds, Locator, Mapping};

use super::space::Space;

/// Functions above this size are looked at in pieces.
const MAX_FUNCTION: u64 = 256 << 10;
/// How far such a piece reaches to both sides.
const PIECE: u64 = 2048;
/// Decoded functions of a process that are kept.
const MAX_FUNCTIONS: usize = 4096;

/// A function's code, or that it cannot be read.
struct Known {
    end: u64,
    code: Option<Code>,
}

/// Reads and decodes code.
pub(super) struct CodeReader {
    bounds: FunctionBounds,
    known: HashMap<Pid, BTreeMap<u64, Known>>,
}

impl CodeReader {
    pub(super) fn new() -> Self {
        CodeReader {
            bounds: FunctionBounds::new(Locator::default()),
            known: HashMap::new(),
        }
    }

    /// Forgets the code of a process, which has changed.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.known.remove(&pid);
    }

    /// The access that a thread at `ip` waits for.
    pub(super) fn locate(
        &mut self,
        space: &Space,
        ip: Address,
        registers: &Registers,
        steps: Steps,
    ) -> Result<Located, Undecoded> {
        let mapping = space.code_at(ip).ok_or(Undecoded::Invalid)?;
        let found = match self.function(space.pid, mapping, ip) {
            Some(code) => code.locate(ip, registers, steps),
            None => piece(mapping, ip)
                .ok_or(Undecoded::Invalid)?
                .locate(ip, registers, steps),
        };
        match found {
            // It is known what the thread waits for, though not where that lies.
            Err(Undecoded::Vector | Undecoded::Gather) => found,
            // What cannot be decoded from its beginning may be data in between: forward it is still certain.
            Err(_) => {
                let range = ip.0..ip.0.saturating_add(PIECE);
                let bytes = read(mapping, &range).ok_or(Undecoded::Invalid)?;
                Code::decode(&bytes, ip).locate(ip, registers, Steps::NotBehind)
            }
            Ok(_) => found,
        }
    }

    /// The decoded function around an address, where the file's tables say where it begins.
    fn function(&mut self, pid: Pid, mapping: &Mapping, ip: Address) -> Option<&Code> {
        let known = self.known.entry(pid).or_default();
        let start = known
            .range(..=ip.0)
            .next_back()
            .filter(|(_, known)| ip.0 < known.end)
            .map(|(start, _)| *start);
        let start = match start {
            Some(start) => start,
            None => {
                let around = self.bounds.around(mapping, ip)?;
                let range = around.start.0..around.end.0;
                let inside = range.start >= mapping.address.0
                    && range.end <= mapping.address.0.saturating_add(mapping.bytes.0);
                if !inside || range.end - range.start > MAX_FUNCTION {
                    return None;
                }
                if known.len() >= MAX_FUNCTIONS {
                    known.clear();
                }
                let code = read(mapping, &range).map(|b| Code::decode(&b, around.start));
                let end = range.end;
                known.insert(range.start, Known { end, code });
                range.start
            }
        };
        known.get(&start)?.code.as_ref()
    }
}

/// The code around an address in memory of which nothing says where functions begin: generated code, for one. It may
/// have changed since the last look, so it is read each time.
fn piece(mapping: &Mapping, ip: Address) -> Option<Code> {
    let start = ip.0.saturating_sub(PIECE).max(mapping.address.0);
    let end = (ip.0 + PIECE).min(mapping.address.0.saturating_add(mapping.bytes.0));
    let bytes = read(mapping, &(start..end))?;
    let before = usize::try_from(ip.0 - start).ok()?;
    let first = boundary_before(bytes.get(..before)?).unwrap_or(before);
    Some(Code::decode(
        bytes.get(first..)?,
        Address(start + first as u64),
    ))
}

/// Bytes of the process, or of the file that is mapped there where the process has ended.
fn read(mapping: &Mapping, range: &Range<u64>) -> Option<Vec<u8>> {
    let end = mapping.address.0.saturating_add(mapping.bytes.0);
    let length = range.end.min(end).checked_sub(range.start)?;
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    let live = File::open(varve_sys::shared_folder(mapping.pid).join("mem"))
        .and_then(|memory| memory.read_exact_at(&mut bytes, range.start));
    if live.is_err() {
        let offset = mapping.offset.0 + (range.start - mapping.address.0);
        // A file without write permission in the mapping, that has not been replaced under its name.
        let file = mapping.path.starts_with('/') && mapping.perms.as_bytes().get(1) == Some(&b'-');
        let path = Path::new(&mapping.path);
        let file = file
            .then(|| varve_sys::open_regular_exactly(path).ok())
            .flatten()?;
        file.read_exact_at(&mut bytes, offset).ok()?;
    }
    Some(bytes)
}
