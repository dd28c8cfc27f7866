//! Where the code is that `perf script` prints.
//!
//! The instruction in a sample's line is the address as it was. A frame of a call chain is that in older versions of perf; newer ones print
//! where it lies in its file, for code of programs whose mapping is known. Which of the two it is, the mapping says, where the
//! text has it.

use std::collections::HashMap;
use std::rc::Rc;

use varve_model::Address;
use varve_trace::tables::{Frame, MappingRow};

use crate::lines::text;
use crate::perf_symbol::Symbolized;

/// Addresses from here up belong to the kernel.
const KERNEL: u64 = 0xffff_8000_0000_0000;
/// No file is so long: a number from here up is an address.
const MAX_OFFSET: u64 = 1 << 40;

/// Mappings of files by process.
#[derive(Default)]
pub(crate) struct Maps {
    /// A child shares its parent's until one of the two changes.
    processes: HashMap<u32, Rc<Process>>,
}

#[derive(Clone, Default)]
struct Process {
    /// How often mappings changed.
    changes: u32,
    /// By path, the newest last.
    files: HashMap<String, Vec<Mapped>>,
}

#[derive(Clone, Copy)]
struct Mapped {
    start: u64,
    bytes: u64,
    offset: u64,
}

/// Code, with its address where that is certain.
pub(crate) struct Placed {
    pub(crate) address: Option<Address>,
    pub(crate) frame: Frame,
}

impl Maps {
    pub(crate) fn add(&mut self, row: &MappingRow) {
        let process = Rc::make_mut(self.processes.entry(row.pid.0).or_default());
        process.changes += 1;
        let path = row.path.strip_suffix(" (deleted)").unwrap_or(&row.path);
        let mapped = Mapped {
            start: row.address.0,
            bytes: row.bytes.0,
            offset: row.offset,
        };
        let of_file = process.files.entry(path.to_owned()).or_default();
        of_file.push(mapped);
    }

    /// A child has what its parent had.
    pub(crate) fn fork(&mut self, parent: u32, child: u32) {
        if parent != child
            && let Some(of_parent) = self.processes.get(&parent).cloned()
        {
            self.processes.insert(child, of_parent);
        }
    }

    /// A process has another program.
    pub(crate) fn exec(&mut self, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            let changes = process.changes + 1;
            *process = Rc::new(Process {
                changes,
                ..Process::default()
            });
        }
    }

    /// A process, and how often its mappings changed: while that is the same, the same text is the same code.
    pub(crate) fn state(&self, pid: u32) -> [u8; 8] {
        let changes = self
            .processes
            .get(&pid)
            .map_or(0, |process| process.changes);
        (u64::from(pid) << 32 | u64::from(changes)).to_le_bytes()
    }

    /// Where code is that was printed, in a call chain or in its sample's line.
    pub(crate) fn placed(&self, pid: u32, code: Symbolized<'_>, in_chain: bool) -> Placed {
        let names = code.names();
        let module = names.module.map(text);
        let all = module
            .as_deref()
            .and_then(|path| self.processes.get(&pid)?.files.get(path));
        let place = match &module {
            Some(_) if in_chain && code.address < KERNEL => {
                of_chain(code.address, all.map_or(&[][..], Vec::as_slice))
            }
            _ => Place {
                address: Some(code.address),
                offset: all.and_then(|all| all.iter().rev().find_map(|m| m.inside(code.address))),
            },
        };
        Placed {
            address: place.address.map(Address),
            frame: Frame {
                function: names.function.map(text),
                module,
                offset: names.offset.or(place.offset),
                address: Address(place.address.unwrap_or(0)),
                ..Frame::default()
            },
        }
    }
}

/// An address, and where in its file that is; each where it is known.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    address: Option<u64>,
    offset: Option<u64>,
}

impl Mapped {
    /// Where an address is in the file.
    fn inside(&self, address: u64) -> Option<u64> {
        let inside = address
            .checked_sub(self.start)
            .filter(|at| *at < self.bytes)?;
        self.offset.checked_add(inside)
    }

    /// Where a place in the file is mapped.
    fn address(&self, offset: u64) -> Option<u64> {
        let inside = offset
            .checked_sub(self.offset)
            .filter(|at| *at < self.bytes)?;
        self.start.checked_add(inside)
    }
}

/// What a number of a call chain is, an address or a place in the file. Where no mapping says, it is taken for the latter if a file
/// may be so long: its address is not known then. Where it may be both, neither is.
fn of_chain(number: u64, all: &[Mapped]) -> Place {
    let by_address = all.iter().rev().find_map(|mapped| mapped.inside(number));
    let by_offset = all.iter().rev().find_map(|mapped| mapped.address(number));
    match (by_address, by_offset) {
        (offset @ Some(_), None) => Place {
            address: Some(number),
            offset,
        },
        (offset @ Some(_), Some(address)) => Place {
            address: Some(number).filter(|_| address == number),
            offset: offset.filter(|_| address == number),
        },
        (None, address @ Some(_)) => Place {
            address,
            offset: Some(number),
        },
        _ if number >= MAX_OFFSET => Place {
            address: Some(number),
            offset: None,
        },
        _ => Place {
            address: None,
            offset: Some(number),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_model::{Bytes, Pid, Time};

    fn maps() -> Maps {
        let mut maps = Maps::default();
        let mapped = |path: &str, start: u64, offset| MappingRow {
            offset,
            bytes: Bytes(0x1000),
            ..crate::sink::plain_mapping(Pid(1), start, 0x1000, path.to_owned(), Time(1))
        };
        maps.add(&mapped("/opt/lib.so (deleted)", 0x7f00_0000_0000, 0x2000));
        maps.add(&mapped("/opt/app", 0x40_0000, 0));
        maps
    }

    fn place(symbol: &'static [u8], address: u64, in_chain: bool) -> (Option<u64>, Option<u64>) {
        let placed = maps().placed(1, Symbolized { address, symbol }, in_chain);
        (placed.address.map(|a| a.0), placed.frame.offset)
    }

    #[test]
    fn a_frame_is_an_address_or_a_place_in_its_file() {
        let lib = b"f+0x4 (/opt/lib.so)";
        let both = (Some(0x7f00_0000_0abc), Some(0x2abc));
        assert_eq!(place(lib, 0x2abc, true), both);
        assert_eq!(place(lib, 0x7f00_0000_0abc, true), both);
        // Beyond what is mapped.
        assert_eq!(place(lib, 0x5abc, true), (None, Some(0x5abc)));
        // A file of which no mapping is known.
        let other = b"f+0x4 (/opt/other.so)";
        assert_eq!(place(other, 0x2abc, true), (None, Some(0x2abc)));
        assert_eq!(
            place(other, 0x7f00_0000_0abc, true),
            (Some(0x7f00_0000_0abc), None)
        );
        // What is in no file is an address.
        assert_eq!(
            place(b"[unknown] ([unknown])", 0x2abc, true),
            (Some(0x2abc), None)
        );
        assert_eq!(
            place(b"f ([kernel.kallsyms])", KERNEL + 7, true),
            (Some(KERNEL + 7), None)
        );
    }

    #[test]
    fn an_instruction_is_an_address_whatever_its_size() {
        assert_eq!(
            place(b"f+0x4 (/opt/app)", 0x40_0abc, false),
            (Some(0x40_0abc), Some(0xabc))
        );
        assert_eq!(
            place(b"f+0x4 (/opt/lib.so)", 0x2abc, false),
            (Some(0x2abc), None)
        );
    }

    #[test]
    fn a_child_has_its_parents_mappings() {
        let mut maps = maps();
        let code = Symbolized {
            address: 0x2abc,
            symbol: b"f (/opt/lib.so)",
        };
        assert_eq!(maps.placed(2, code, true).address, None);
        maps.fork(1, 2);
        let address = maps.placed(2, code, true).address;
        assert_eq!(address, Some(Address(0x7f00_0000_0abc)));
        assert!(maps.state(1) != maps.state(2));
    }
}
