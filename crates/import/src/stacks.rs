//! Call stacks that come as addresses.

use std::collections::HashMap;
use std::rc::Rc;

use varve_model::{Address, Bytes, SiteId, Time};
use varve_symbols::{AddressSpaces, BuildId, Locator, Mapping, Stack, is_memory, symbolize};
use varve_trace::tables::{Frame, MappingRow};

/// Addresses from here up belong to the kernel.
const KERNEL: u64 = 0xffff_8000_0000_0000;

/// An address of code, and the number of the mapping that held when it was seen. A mapping that took the place of another holds
/// other code at the same address.
pub(crate) type Code = (Address, Option<u32>);

/// Where code is looked up for a frame of a call stack, the innermost being the first: a return address belongs to the call before it.
pub(crate) fn probe(position: usize, address: Address) -> Address {
    match position {
        0 => address,
        _ => Address(address.0.saturating_sub(1)),
    }
}

/// Distinct call stacks.
#[derive(Default)]
pub(crate) struct Stacks {
    sites: HashMap<Rc<[Code]>, SiteId>,
    stacks: Vec<(SiteId, Rc<[Code]>)>,
}

impl Stacks {
    /// The site of a stack, and whether it is new: then it is `next`.
    pub(crate) fn site(&mut self, frames: Vec<Code>, next: SiteId) -> (SiteId, bool) {
        if let Some(site) = self.sites.get(&frames[..]) {
            return (*site, false);
        }
        let frames: Rc<[Code]> = frames.into();
        self.stacks.push((next, Rc::clone(&frames)));
        self.sites.insert(frames, next);
        (next, true)
    }

    /// The stacks with names. A file of this machine is read only where its build id is the one that was recorded: else it
    /// might be another; then the module and the offset in it are all that is known.
    /// So it is with the kernel, which is this machine's where `runs_here`.
    pub(crate) fn names(
        self,
        mappings: &[MappingRow],
        runs_here: bool,
    ) -> Vec<(SiteId, Vec<Frame>)> {
        if self.stacks.is_empty() {
            return Vec::new();
        }
        let mut places = Places::default();
        for (_, frames) in &self.stacks {
            for (position, (address, mapping)) in frames.iter().enumerate() {
                if address.0 < KERNEL || runs_here {
                    places.add(probe(position, *address), *mapping, mappings);
                }
            }
        }
        let numbered = mappings.iter().zip(0..);
        let known: Vec<Mapping> = numbered.filter_map(|(m, n)| identified(m, n)).collect();
        let spaces = AddressSpaces::new(&known);
        let found = symbolize(&Locator::default(), &spaces, &places.asked).stacks;
        let all = self.stacks.iter().map(|(site, frames)| {
            let mut list = Vec::with_capacity(frames.len());
            for (position, (address, mapping)) in frames.iter().enumerate() {
                let code = (probe(position, *address), *mapping);
                let of_place = places.numbers.get(&code).and_then(|n| found.get(*n));
                let row = mapping.and_then(|number| mappings.get(number as usize));
                let bare = [varve_symbols::Frame::default()];
                for f in of_place.map_or(&bare[..], Vec::as_slice) {
                    list.push(named(f, *address, code.0, row));
                }
            }
            (*site, list)
        });
        all.collect()
    }
}

/// Distinct places in code, each asked for as a call stack of one frame.
#[derive(Default)]
struct Places {
    numbers: HashMap<Code, usize>,
    asked: Vec<Stack>,
}

impl Places {
    fn add(&mut self, address: Address, mapping: Option<u32>, mappings: &[MappingRow]) {
        let row = mapping.and_then(|number| mappings.get(number as usize));
        if row.is_none() && address.0 < KERNEL {
            return;
        }
        let next = self.asked.len();
        self.numbers.entry((address, mapping)).or_insert_with(|| {
            self.asked.push(Stack {
                site: SiteId(0),
                pid: row.map(|row| row.pid).unwrap_or_default(),
                at: mapping.map(|number| moment(number).0),
                frames: vec![address],
            });
            next
        });
    }
}

/// The time in which a mapping stands alone for the symbolizer, which looks mappings up by time: that of its number.
fn moment(number: u32) -> (Time, Time) {
    (Time(number.into()), Time(u64::from(number) + 1))
}

fn identified(row: &MappingRow, number: u32) -> Option<Mapping> {
    let (from, to) = moment(number);
    Some(Mapping {
        pid: row.pid,
        address: row.address,
        bytes: row.bytes,
        perms: row.perms.clone(),
        offset: Bytes(row.offset),
        path: row.path.clone(),
        called: None,
        file: None,
        build_id: Some(BuildId::from_hex(row.build_id.as_deref()?)?),
        from,
        to: Some(to),
    })
}

/// A frame with what is known of it: what the symbolizer found, and what the mapping says.
fn named(
    found: &varve_symbols::Frame,
    address: Address,
    probe: Address,
    mapping: Option<&MappingRow>,
) -> Frame {
    let module = || match mapping {
        Some(row) => module(&row.path),
        None => (address.0 >= KERNEL).then(|| "[kernel]".to_owned()),
    };
    let offset = || mapping.and_then(|row| offset(row, probe));
    Frame {
        module: found.module.clone().or_else(module),
        function: found.function.clone(),
        file: found.file.clone(),
        line: found.line,
        column: found.column,
        function_line: found.function_line,
        offset: found
            .offset
            .or_else(offset)
            .filter(|_| found.line.is_none()),
        address,
    }
}

/// What a mapping's code is called: the last part of its path, without the kernel's mark of a file that was deleted.
fn module(path: &str) -> Option<String> {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let name = path.rsplit('/').next().unwrap_or(path);
    Some(name.to_owned()).filter(|n| !n.is_empty())
}

/// Where in its file an address lies; none where no file has the code.
fn offset(row: &MappingRow, address: Address) -> Option<u64> {
    let is_file = row.path.starts_with('/') && !row.path.starts_with("//");
    let inside = address.0.checked_sub(row.address.0)?;
    let known = (is_file && !is_memory(&row.path)) || row.path == "[vdso]";
    known.then(|| row.offset.wrapping_add(inside))
}
