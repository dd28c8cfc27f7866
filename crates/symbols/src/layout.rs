//! How the segments and symbols of an ELF file lie, and where a mapping puts them.

use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SegmentFlags, SymbolKind};

use crate::image::{Elf, Image};
use crate::input::Mapping;

const PAGE: u64 = varve_model::PAGE_BYTES;

/// What a segment is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Code,
    Constants,
    Data,
}

/// One PT_LOAD segment.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    /// Its address in the file's own address space.
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    offset: u64,
    file_bytes: u64,
    pub(crate) access: Access,
    /// What constants consist of, in the order of addresses and without gaps; empty for code and data.
    pub(crate) sections: Vec<Sections>,
}

/// A section of a page or more, or several smaller ones that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sections {
    pub(crate) address: u64,
    pub(crate) end: u64,
    /// `.rodata`, `.dynsym/.dynstr`, or `headers` where no section lies.
    pub(crate) name: String,
}

/// Segments of more sections than this are not divided.
const MAX_SECTIONS: usize = 256;
/// Of several small sections that many are named.
const NAMED_SECTIONS: usize = 3;

impl Segment {
    /// The whole pages that the loader maps for it.
    pub(crate) fn pages(&self) -> (u64, u64) {
        let end = self.address.saturating_add(self.bytes);
        (
            self.address & !(PAGE - 1),
            end.checked_next_multiple_of(PAGE).unwrap_or(end),
        )
    }
}

/// The segments of a file.
pub(crate) fn segments(file: &Elf<'_>) -> Vec<Segment> {
    file.segments()
        .map(|segment| {
            let (offset, file_bytes) = segment.file_range();
            let access = match segment.flags() {
                SegmentFlags::Elf { p_flags, .. } if p_flags.0 & 1 != 0 => Access::Code,
                SegmentFlags::Elf { p_flags, .. } if p_flags.0 & 2 != 0 => Access::Data,
                _ => Access::Constants,
            };
            let (address, bytes) = (segment.address(), segment.size());
            let mut segment = Segment {
                address,
                bytes,
                offset,
                file_bytes,
                access,
                sections: Vec::new(),
            };
            if access == Access::Constants {
                segment.sections = sections_of(file, &segment);
            }
            segment
        })
        .collect()
}

/// Divides a segment by its sections. What lies between two belongs to the first of them.
fn sections_of(file: &Elf<'_>, segment: &Segment) -> Vec<Sections> {
    let (start, stop) = segment.pages();
    let mut inside: Vec<(u64, u64, &str)> = file
        .sections()
        .filter(|section| section.size() > 0 && section.address() != 0)
        .filter(|section| section.address() >= segment.address && section.address() < stop)
        .filter_map(|section| Some((section.address(), section.size(), section.name().ok()?)))
        .take(MAX_SECTIONS + 1)
        .collect();
    if inside.len() > MAX_SECTIONS {
        inside.clear();
    }
    inside.sort_unstable();
    inside.dedup_by_key(|section| section.0);
    let is_large = |section: &(u64, u64, &str)| section.1 >= PAGE;
    let runs: Vec<&[(u64, u64, &str)]> = inside
        .chunk_by(|a, b| !is_large(a) && !is_large(b))
        .collect();
    let mut all: Vec<Sections> = Vec::with_capacity(runs.len().max(1));
    for run in runs {
        let names: Vec<&str> = run.iter().map(|section| section.2).collect();
        let name = match names.get(..NAMED_SECTIONS) {
            Some(first) if names.len() > NAMED_SECTIONS => format!("{}/...", first.join("/")),
            _ => names.join("/"),
        };
        let address = run.first().map_or(start, |section| section.0);
        if let Some(last) = all.last_mut() {
            last.end = address;
        }
        all.push(Sections {
            // The headers of the file lie before its first section.
            address: if all.is_empty() { start } else { address },
            end: stop,
            name,
        });
    }
    if all.is_empty() {
        all.push(Sections {
            address: start,
            end: stop,
            name: if segment.offset == 0 {
                "headers"
            } else {
                "constants"
            }
            .to_owned(),
        });
    }
    all
}

/// What to add to an address of the file to get the address in the process, from one of the file's mappings.
pub(crate) fn bias(segments: &[Segment], mapping: &Mapping) -> Option<u64> {
    let offset = mapping.offset.0;
    let access = match mapping.perms.as_bytes() {
        [_, _, b'x', ..] => Some(Access::Code),
        [_, b'w', ..] => Some(Access::Data),
        _ => None,
    };
    let holds = |segment: &&Segment| {
        let start = segment.offset & !(PAGE - 1);
        offset >= start && offset < segment.offset.saturating_add(segment.file_bytes.max(1))
    };
    // Two segments may share a page of the file: the one that starts there with the right access is meant.
    // A read-only mapping may be the protected head of the data (RELRO), so nothing is concluded from that.
    let score = |segment: &&Segment| {
        u8::from(access == Some(segment.access)) * 2
            + u8::from(segment.offset & !(PAGE - 1) == offset)
    };
    let by = |segment: &Segment| {
        let start = segment
            .address
            .wrapping_sub(segment.offset)
            .wrapping_add(offset);
        mapping.address.0.wrapping_sub(start)
    };
    let best = segments
        .iter()
        .filter(holds)
        .map(|segment| score(&segment))
        .max()?;
    let mut equal = segments
        .iter()
        .filter(holds)
        .filter(|segment| score(segment) == best)
        .map(by);
    let bias = equal.next()?;
    // Where that is a toss-up this mapping says nothing; the module's other mappings will.
    equal.all(|other| other == bias).then_some(bias)
}

/// A data symbol of the symbol table.
#[derive(Debug, Clone)]
pub(crate) struct DataSymbol<'a> {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) name: &'a str,
    rank: u8,
}

/// All symbols: of the symbol table, else of the dynamic one.
fn symbols<'f, 'a>(
    file: &'f Elf<'a>,
) -> Box<dyn Iterator<Item = object::Symbol<'a, 'f, &'a Image>> + 'f> {
    if file.symbol_table().is_some() {
        Box::new(file.symbols())
    } else {
        Box::new(file.dynamic_symbols())
    }
}

/// The data symbols of at least `least` bytes, one per address and size, sorted by address.
pub(crate) fn data_symbols<'a>(file: &Elf<'a>, least: u64) -> Vec<DataSymbol<'a>> {
    let mut all: Vec<DataSymbol<'a>> = symbols(file)
        .filter(|symbol| symbol.is_definition() || symbol.is_common())
        // Assemblers leave the type out; a sized one in a data section is data all the same.
        .filter(|symbol| matches!(symbol.kind(), SymbolKind::Data | SymbolKind::Unknown))
        .filter(|symbol| symbol.size() >= least.max(1) && symbol.address() != 0)
        .filter_map(|symbol| {
            let name = symbol.name().ok().filter(|name| !name.is_empty())?;
            // Of several names for one thing, the one that others link against; the plainest of those.
            let rank = u8::from(symbol.is_local()) * 4
                + u8::from(symbol.is_weak()) * 2
                + u8::from(name.starts_with('_'));
            Some(DataSymbol {
                address: symbol.address(),
                bytes: symbol.size(),
                name,
                rank,
            })
        })
        .collect();
    all.sort_by(|a, b| {
        (a.address, b.bytes, a.rank, a.name).cmp(&(b.address, a.bytes, b.rank, b.name))
    });
    all.dedup_by_key(|symbol| (symbol.address, symbol.bytes));
    all
}

/// Functions by address, from the symbol table.
#[derive(Default)]
pub(crate) struct Functions<'a> {
    /// Start, end, name; sorted by start.
    all: Vec<(u64, u64, &'a str)>,
}

impl<'a> Functions<'a> {
    pub(crate) fn of(file: &Elf<'a>) -> Self {
        let mut all: Vec<(u64, u64, u8, &'a str)> = symbols(file)
            .filter(|symbol| symbol.is_definition())
            .filter(|symbol| {
                matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Unknown)
                    && symbol.address() != 0
            })
            .filter(|symbol| symbol.size() > 0 || symbol.kind() == SymbolKind::Text)
            .filter_map(|symbol| {
                let name = symbol.name().ok().filter(|name| !name.is_empty())?;
                let rank = u8::from(symbol.size() == 0) * 8
                    + u8::from(symbol.is_local()) * 4
                    + u8::from(symbol.is_weak()) * 2
                    + u8::from(
                        name.starts_with('_') && !name.starts_with("_Z") && !name.starts_with("_R"),
                    );
                Some((
                    symbol.address(),
                    symbol.address().saturating_add(symbol.size()),
                    rank,
                    name,
                ))
            })
            .collect();
        all.sort_unstable();
        all.sort_by_key(|&(start, _, rank, name)| (start, rank, name));
        all.dedup_by_key(|&mut (start, ..)| start);
        let mut all: Vec<_> = all
            .into_iter()
            .map(|(start, end, _, name)| (start, end, name))
            .collect();
        // A symbol without a size (hand-written assembly) reaches to the next one.
        for index in 0..all.len() {
            let next = all.get(index + 1).map_or(u64::MAX, |next| next.0);
            if let Some(entry) = all.get_mut(index).filter(|entry| entry.0 == entry.1) {
                entry.1 = next.min(entry.0.saturating_add(PAGE));
            }
        }
        Self { all }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Where each begins and ends, sorted.
    pub(crate) fn ranges(&self) -> Vec<std::ops::Range<u64>> {
        self.all.iter().map(|&(start, end, _)| start..end).collect()
    }

    /// The function that holds the address.
    pub(crate) fn at(&self, address: u64) -> Option<&'a str> {
        let after = self.all.partition_point(|&(start, ..)| start <= address);
        // A nested symbol (a local label with a size) may end before the address; its outer one may still hold it.
        self.all[..after]
            .iter()
            .rev()
            .take(4)
            .find(|&&(_, end, _)| address < end)
            .map(|&(.., name)| name)
    }
}
