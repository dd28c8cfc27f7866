//! The code around a sample: read from the process while it runs, decoded once for each function.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use varve_access::x86::{Code, Registers, boundary_before};
use varve_access::{Located, Memory, Steps, Undecoded};
use varve_model::{Address, Pid};
use varve_symbols::{FunctionBounds, Locator, Mapping, is_memory};

use super::space::Space;

/// Functions above this size are looked at in pieces.
const MAX_FUNCTION: u64 = 256 << 10;
/// How far such a piece reaches to both sides.
const PIECE: u64 = 2048;
/// Decoded functions of a process that are kept.
const MAX_FUNCTIONS: usize = 4096;
/// Decoded pieces of all processes that are kept: up to 50 KiB each.
const MAX_PIECES: usize = 512;

/// A function's code, or that it cannot be read.
struct Known {
    end: u64,
    code: Option<Code>,
}

/// Which piece of code stands for one of which nothing says where its function begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stretch {
    /// To both sides, from where decoding settles.
    Around,
    /// From the instruction on.
    Onward,
}

/// A piece of code as it was when it was read.
struct Piece {
    bytes: Vec<u8>,
    code: Code,
}

/// A thread as it was when it was stopped.
pub(super) struct Stopped<'a> {
    /// Its next instruction.
    pub(super) ip: Address,
    pub(super) registers: &'a Registers,
    pub(super) memory: &'a dyn Memory,
}

/// Reads and decodes code.
pub(super) struct CodeReader {
    bounds: FunctionBounds,
    known: HashMap<Pid, BTreeMap<u64, Known>>,
    pieces: HashMap<(Pid, Address, Stretch), Piece>,
}

impl CodeReader {
    pub(super) fn new() -> Self {
        CodeReader {
            bounds: FunctionBounds::new(Locator::while_recording()),
            known: HashMap::new(),
            pieces: HashMap::new(),
        }
    }

    /// Forgets the code of a process, which has changed.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.known.remove(&pid);
        self.pieces.retain(|(of, ..), _| *of != pid);
    }

    /// The access that a thread waits for.
    pub(super) fn locate(
        &mut self,
        space: &Space,
        thread: &Stopped<'_>,
        steps: Steps,
    ) -> Result<Located, Undecoded> {
        let Stopped {
            ip,
            registers,
            memory,
        } = *thread;
        let mapping = space.code_at(ip).ok_or(Undecoded::Invalid)?;
        let found = match self.function(space.pid, mapping, ip) {
            Some(code) => code.locate(ip, registers, memory, steps),
            None => self
                .piece(mapping, ip, Stretch::Around)
                .ok_or(Undecoded::Invalid)?
                .locate(ip, registers, memory, steps),
        };
        match found {
            // It is known what the thread waits for, though not where that lies.
            Err(Undecoded::Overwritten | Undecoded::Vector | Undecoded::Gather) => found,
            // What cannot be decoded from its beginning may be data in between: forward it is still certain.
            Err(_) => self
                .piece(mapping, ip, Stretch::Onward)
                .ok_or(Undecoded::Invalid)?
                .locate(ip, registers, memory, Steps::NotBehind),
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

    /// The code at an address of which nothing says where its function begins. Generated code may have changed since
    /// the last look, so that it is read each time, and decoded again where it has.
    fn piece(&mut self, mapping: &Mapping, ip: Address, stretch: Stretch) -> Option<&Code> {
        let key = (mapping.pid, ip, stretch);
        let before = match stretch {
            Stretch::Around => PIECE.min(ip.0.saturating_sub(mapping.address.0)),
            Stretch::Onward => 0,
        };
        let range = ip.0 - before..ip.0.saturating_add(PIECE);
        let is_fixed = is_read_only_file(mapping);
        if !(is_fixed && self.pieces.contains_key(&key)) {
            let bytes = read(mapping, &range)?;
            if self
                .pieces
                .get(&key)
                .is_none_or(|known| known.bytes != bytes)
            {
                if self.pieces.len() >= MAX_PIECES {
                    self.pieces.clear();
                }
                let before = usize::try_from(before).ok()?;
                let first = match stretch {
                    Stretch::Around => boundary_before(bytes.get(..before)?).unwrap_or(before),
                    Stretch::Onward => 0,
                };
                let code = Code::decode(bytes.get(first..)?, Address(range.start + first as u64));
                self.pieces.insert(key, Piece { bytes, code });
            }
        }
        self.pieces.get(&key).map(|piece| &piece.code)
    }
}

/// Whether what is mapped is a file that cannot be written through the mapping. Shared memory is none: a program that generates code there
/// maps it twice, and writes it through the other mapping.
pub(super) fn is_read_only_file(mapping: &Mapping) -> bool {
    mapping.path.starts_with('/')
        && !is_memory(&mapping.path)
        && mapping.perms.as_bytes().get(1) == Some(&b'-')
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
        // That has not been replaced under its name.
        let path = Path::new(&mapping.path);
        let file = is_read_only_file(mapping)
            .then(|| varve_sys::open_regular_exactly(path).ok())
            .flatten()?;
        file.read_exact_at(&mut bytes, offset).ok()?;
    }
    Some(bytes)
}
