//! Where functions begin and end, for those who decode code: from unwind tables, else from symbols.

use std::collections::HashMap;
use std::ops::Range;

use gimli::{BaseAddresses, EhFrame, EhFrameHdr, LittleEndian, ParsedEhFrameHdr, UnwindSection};
use object::{Object, ObjectSection};
use varve_model::Address;

use crate::image::{self, Image, Keep, Locator};
use crate::input::{BuildId, Mapping};
use crate::layout::{self, Functions, Segment};

/// The unwind table and the symbols of one file.
pub(crate) struct File {
    segments: Vec<Segment>,
    image: Image,
    header: Option<Section>,
    frames: Option<Section>,
    /// Start and end, sorted; read when the unwind table does not know an address.
    symbols: Option<Vec<Range<u64>>>,
}

/// A section's place in the file's address space and in its bytes.
struct Section {
    address: u64,
    bytes: Range<usize>,
}

/// Finds the function around an address of code; each file is opened once.
pub struct FunctionBounds {
    locator: Locator,
    files: HashMap<(String, Option<BuildId>), Option<Box<File>>>,
}

impl FunctionBounds {
    /// Files are looked for as the locator says.
    pub fn new(locator: Locator) -> Self {
        FunctionBounds {
            locator,
            files: HashMap::new(),
        }
    }

    /// The addresses in the process that the function at `address` covers, of which the first begins an instruction; none
    /// where no table says.
    pub fn around(&mut self, mapping: &Mapping, address: Address) -> Option<Range<Address>> {
        if !mapping.is_file() && mapping.path != "[vdso]" {
            return None;
        }
        let locator = &self.locator;
        let file = self
            .files
            .entry((mapping.path.clone(), mapping.build_id.clone()))
            .or_insert_with(|| open(locator, mapping).map(Box::new))
            .as_mut()?;
        let bias = layout::bias(&file.segments, mapping)?;
        let inner = address.0.wrapping_sub(bias);
        let found = file.unwound(inner).or_else(|| file.named(inner))?;
        let place = |inner: u64| Address(inner.wrapping_add(bias));
        Some(place(found.start)..place(found.end))
    }
}

impl std::fmt::Debug for FunctionBounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FunctionBounds")
            .field("files", &self.files.len())
            .finish_non_exhaustive()
    }
}

fn open(locator: &Locator, mapping: &Mapping) -> Option<File> {
    let file = File::of(locator.main(mapping)?)?;
    match locator.keep {
        Keep::Any => Some(file),
        Keep::OwnMounts => file.closed(),
    }
}

/// Reads where the tables of a file are.
fn tables_of(image: Image) -> Option<File> {
    let (segments, header, frames) = {
        let file = image::parse(&image)?;
        let section = |name: &str| {
            let section = file.section_by_name(name)?;
            let (start, bytes) = section.file_range()?;
            let start = usize::try_from(start).ok()?;
            let end = start.checked_add(usize::try_from(bytes).ok()?)?;
            (end <= image.len()).then_some(Section {
                address: section.address(),
                bytes: start..end,
            })
        };
        (
            layout::segments(&file),
            section(".eh_frame_hdr"),
            section(".eh_frame"),
        )
    };
    Some(File {
        segments,
        image,
        header,
        frames,
        symbols: None,
    })
}

impl File {
    pub(crate) fn of(image: Image) -> Option<File> {
        tables_of(image)
    }

    /// The same without the file, where that is open and must not stay so: the unwind table alone, which knows nearly all functions.
    fn closed(self) -> Option<File> {
        match &self.image {
            Image::Owned(_) => return Some(self),
            Image::Lazy(file) if file.is_on_own_mount() => return Some(self),
            Image::Lazy(_) => {}
        }
        let mut bytes = Vec::new();
        let mut copy = |section: &Section| {
            let start = bytes.len();
            bytes.extend_from_slice(self.image.get(section.bytes.clone())?);
            Some(Section {
                address: section.address,
                bytes: start..bytes.len(),
            })
        };
        let (header, frames) = (copy(self.header.as_ref()?)?, copy(self.frames.as_ref()?)?);
        Some(File {
            segments: self.segments,
            image: Image::Owned(bytes),
            header: Some(header),
            frames: Some(frames),
            symbols: Some(Vec::new()),
        })
    }

    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    /// What the binary search table of the unwind information says.
    pub(crate) fn unwound(&self, address: u64) -> Option<Range<u64>> {
        let (header, frames) = (self.header.as_ref()?, self.frames.as_ref()?);
        let bases = BaseAddresses::default()
            .set_eh_frame_hdr(header.address)
            .set_eh_frame(frames.address);
        let parsed: ParsedEhFrameHdr<_> =
            EhFrameHdr::new(self.image.get(header.bytes.clone())?, LittleEndian)
                .parse(&bases, 8)
                .ok()?;
        let section = EhFrame::new(self.image.get(frames.bytes.clone())?, LittleEndian);
        let entry = parsed
            .table()?
            .fde_for_address(&section, &bases, address, EhFrame::cie_from_offset)
            .ok()?;
        let end = entry.initial_address().checked_add(entry.len())?;
        Some(entry.initial_address()..end)
    }

    fn named(&mut self, address: u64) -> Option<Range<u64>> {
        let image = &self.image;
        let symbols = self.symbols.get_or_insert_with(|| {
            image::parse(image).map_or_else(Vec::new, |file| Functions::of(&file).ranges())
        });
        let after = symbols.partition_point(|range| range.start <= address);
        symbols[..after]
            .last()
            .filter(|range| range.contains(&address))
            .cloned()
    }
}
