//! The DWARF of one file, and the parts of it that name variables and files.

use std::borrow::Cow;

use gimli::{AttributeValue, UnitRef};
use object::{Object, ObjectSection};

/// Compressed sections that claim to unpack to more than this are not believed.
const SECTION_LIMIT: u64 = 4 << 30;
/// Nor those that claim more than so many times what they take; debug information packs ten to one at best.
const MAX_PACKED: u64 = 64;
/// Smaller ones may be anything.
const ALWAYS_UNPACKED: u64 = 64 << 20;
/// Dimensions of an array.
const MAX_DIMENSIONS: usize = 64;
/// How deep the entries of a unit may lie in each other: those who read functions do it by recursion.
const MAX_NESTING: isize = 1000;
/// Types and specifications refer to each other; hostile ones in circles.
const DEPTH_LIMIT: usize = 32;

pub(crate) type Slice<'a> = gimli::EndianSlice<'a, gimli::RunTimeEndian>;
pub(crate) type Sections<'a> = gimli::DwarfSections<Cow<'a, [u8]>>;
pub(crate) type Unit<'u, 'a> = UnitRef<'u, Slice<'a>>;
pub(crate) type Offset = gimli::UnitOffset<usize>;
pub(crate) type Entry<'a> = gimli::DebuggingInformationEntry<Slice<'a>>;

/// Reads the debug sections; missing and broken ones are empty.
pub(crate) fn sections<'a>(file: &crate::image::Elf<'a>) -> Sections<'a> {
    let load = |id: gimli::SectionId| -> Result<Cow<'a, [u8]>, std::convert::Infallible> {
        let section = file.section_by_name(id.name());
        let data = section.and_then(|section| {
            let compressed = section.compressed_data().ok()?;
            // A claim beyond that only costs memory.
            let most = (compressed.data.len() as u64).saturating_mul(MAX_PACKED);
            if compressed.uncompressed_size > SECTION_LIMIT.min(most.max(ALWAYS_UNPACKED)) {
                return None;
            }
            compressed.decompress().ok()
        });
        Ok(data.unwrap_or(Cow::Borrowed(&[])))
    };
    match gimli::DwarfSections::load(load) {
        Ok(sections) => sections,
        Err(never) => match never {},
    }
}

/// Views the sections, with those of the supplementary file of `dwz` where there is one.
pub(crate) fn dwarf<'a>(
    sections: &'a Sections<'_>,
    supplement: Option<&'a Sections<'_>>,
    little_endian: bool,
) -> gimli::Dwarf<Slice<'a>> {
    let endian = if little_endian {
        gimli::RunTimeEndian::Little
    } else {
        gimli::RunTimeEndian::Big
    };
    let borrow = |section: &'a Cow<'_, [u8]>| gimli::EndianSlice::new(section, endian);
    let mut dwarf = sections.borrow(borrow);
    if let Some(supplement) = supplement {
        dwarf.set_sup(supplement.borrow(borrow));
    }
    dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
    dwarf
}

/// A line of source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) file: Option<String>,
    pub(crate) line: u32,
}

/// Whether no entry lies too deep in others.
pub(crate) fn is_shallow(dwarf: &gimli::Dwarf<Slice<'_>>) -> bool {
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        // What cannot be read any further is read by nobody.
        if let Ok(unit) = dwarf.unit(header)
            && !is_shallow_unit(&UnitRef::new(dwarf, &unit)).unwrap_or(true)
        {
            return false;
        }
    }
    true
}

fn is_shallow_unit(unit: &Unit<'_, '_>) -> gimli::Result<bool> {
    let mut entries = unit.entries_raw(None)?;
    while !entries.is_empty() {
        if entries.next_depth() > MAX_NESTING {
            return Ok(false);
        }
        if let Some(abbreviation) = entries.read_abbreviation()? {
            entries.skip_attributes(abbreviation.attributes())?;
        }
    }
    Ok(true)
}

/// The entry at `offset` of the unit.
pub(crate) fn entry<'a>(unit: &Unit<'_, 'a>, offset: Offset) -> Option<Entry<'a>> {
    unit.entry(offset).ok()
}

/// An entry and those that it completes: the definition, then its declaration or abstract instance.
pub(crate) fn chain<'a>(unit: &Unit<'_, 'a>, first: Entry<'a>) -> Vec<Entry<'a>> {
    let mut all = vec![first];
    while all.len() < DEPTH_LIMIT {
        let Some(last) = all.last() else { break };
        let next = [gimli::DW_AT_specification, gimli::DW_AT_abstract_origin]
            .into_iter()
            .find_map(|attribute| reference(unit, last.attr_value(attribute)?));
        match next.and_then(|offset| entry(unit, offset)) {
            Some(entry) => all.push(entry),
            None => break,
        }
    }
    all
}

/// A reference within the unit. References into other units (LTO) are rare for what is looked up here.
fn reference(unit: &Unit<'_, '_>, value: AttributeValue<Slice<'_>>) -> Option<Offset> {
    match value {
        AttributeValue::UnitRef(offset) => Some(offset),
        AttributeValue::DebugInfoRef(offset) => offset.to_unit_offset(&unit.header),
        _ => None,
    }
}

pub(crate) fn text<'a>(unit: &Unit<'_, 'a>, value: AttributeValue<Slice<'a>>) -> Option<String> {
    let text = unit.attr_string(value).ok()?;
    let text = text.to_string_lossy();
    (!text.is_empty()).then(|| text.into_owned())
}

pub(crate) fn name<'a>(unit: &Unit<'_, 'a>, chain: &[Entry<'a>]) -> Option<String> {
    chain
        .iter()
        .find_map(|entry| text(unit, entry.attr_value(gimli::DW_AT_name)?))
}

pub(crate) fn linkage_name<'a>(unit: &Unit<'_, 'a>, chain: &[Entry<'a>]) -> Option<String> {
    chain.iter().find_map(|entry| {
        let name = entry.attr_value(gimli::DW_AT_linkage_name);
        text(
            unit,
            name.or_else(|| entry.attr_value(gimli::DW_AT_MIPS_linkage_name))?,
        )
    })
}

pub(crate) fn declared(unit: &Unit<'_, '_>, chain: &[Entry<'_>]) -> Option<Declared> {
    chain.iter().find_map(|entry| {
        let line = u32::try_from(entry.attr_value(gimli::DW_AT_decl_line)?.udata_value()?).ok()?;
        let file =
            chain
                .iter()
                .find_map(|entry| match entry.attr_value(gimli::DW_AT_decl_file)? {
                    AttributeValue::FileIndex(index) => Some(index),
                    value => value.udata_value(),
                });
        Some(Declared {
            file: file.and_then(|index| file_path(unit, index)),
            line,
        })
    })
}

/// Where the lambda begins whose body this function is: GCC says it of its type alone, to which the hidden argument points.
pub(crate) fn lambda_declared<'a>(unit: &Unit<'_, 'a>, chain: &[Entry<'a>]) -> Option<Declared> {
    if name(unit, chain)? != "operator()" {
        return None;
    }
    let argument = chain
        .iter()
        .find_map(|entry| reference(unit, entry.attr_value(gimli::DW_AT_object_pointer)?))?;
    let mut at = entry(unit, argument)?;
    for _ in 0..DEPTH_LIMIT {
        match at.tag() {
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type => {
                return declared(unit, &[at]);
            }
            // Const, pointer, const.
            _ => at = entry(unit, reference(unit, at.attr_value(gimli::DW_AT_type)?)?)?,
        }
    }
    None
}

/// The path of a file of the unit's line table.
pub(crate) fn file_path(unit: &Unit<'_, '_>, index: u64) -> Option<String> {
    let program = unit.line_program.as_ref()?;
    let header = program.header();
    let file = header.file(index)?;
    let mut path = text(unit, file.path_name())?;
    if !path.starts_with('/')
        && let Some(folder) = file.directory(header).and_then(|folder| text(unit, folder))
    {
        path = format!("{}/{path}", folder.trim_end_matches('/'));
    }
    if !path.starts_with('/')
        && let Some(folder) = unit
            .comp_dir
            .as_ref()
            .map(gimli::EndianSlice::to_string_lossy)
    {
        path = format!("{}/{path}", folder.trim_end_matches('/'));
    }
    Some(path)
}

/// The address of a variable: where it is static, and how many bytes into a COMMON block.
pub(crate) fn static_address(unit: &Unit<'_, '_>, value: AttributeValue<Slice<'_>>) -> Option<u64> {
    let AttributeValue::Exprloc(expression) = value else {
        return None;
    };
    let mut operations = expression.operations(unit.encoding());
    let mut address = match operations.next().ok()?? {
        gimli::Operation::Address { address } => address,
        gimli::Operation::AddressIndex { index } => unit.address(index).ok()?,
        _ => return None,
    };
    // Anything but a constant step computes something else: a thread-local, a pointer to follow.
    while let Some(operation) = operations.next().ok()? {
        match operation {
            gimli::Operation::PlusConstant { value } => address = address.checked_add(value)?,
            _ => return None,
        }
    }
    // The linker points what it discarded at zero.
    (address != 0).then_some(address)
}

/// Whether the type is a number, a truth value or a letter, which holds no allocation.
pub(crate) fn is_scalar(unit: &Unit<'_, '_>, of: AttributeValue<Slice<'_>>) -> bool {
    let mut next = reference(unit, of);
    for _ in 0..DEPTH_LIMIT {
        let Some(kind) = next.and_then(|offset| entry(unit, offset)) else {
            return false;
        };
        match kind.tag() {
            gimli::DW_TAG_base_type | gimli::DW_TAG_enumeration_type => return true,
            gimli::DW_TAG_typedef
            | gimli::DW_TAG_const_type
            | gimli::DW_TAG_volatile_type
            | gimli::DW_TAG_atomic_type => {
                let of = kind.attr_value(gimli::DW_AT_type);
                next = of.and_then(|of| reference(unit, of));
            }
            _ => return false,
        }
    }
    false
}

/// The size of the type of a variable, in bytes.
pub(crate) fn type_bytes(unit: &Unit<'_, '_>, chain: &[Entry<'_>]) -> Option<u64> {
    let offset = chain
        .iter()
        .find_map(|entry| reference(unit, entry.attr_value(gimli::DW_AT_type)?))?;
    bytes_of(unit, offset, 0)
}

fn bytes_of(unit: &Unit<'_, '_>, offset: Offset, depth: usize) -> Option<u64> {
    if depth > DEPTH_LIMIT {
        return None;
    }
    let kind = entry(unit, offset)?;
    if let Some(bytes) = kind.attr_value(gimli::DW_AT_byte_size) {
        return bytes.udata_value();
    }
    let inner = reference(unit, kind.attr_value(gimli::DW_AT_type)?)?;
    let element = bytes_of(unit, inner, depth + 1)?;
    if kind.tag() != gimli::DW_TAG_array_type {
        return Some(element);
    }
    let mut tree = unit.entries_tree(Some(offset)).ok()?;
    let mut ranges = tree.root().ok()?.children();
    let mut total = element;
    for _ in 0..MAX_DIMENSIONS {
        let Some(range) = ranges.next().ok()? else {
            break;
        };
        let range = range.entry();
        if range.tag() == gimli::DW_TAG_subrange_type {
            total = total.checked_mul(elements(unit, range)?)?;
        }
    }
    Some(total)
}

fn elements(unit: &Unit<'_, '_>, range: &Entry<'_>) -> Option<u64> {
    if let Some(count) = range.attr_value(gimli::DW_AT_count) {
        return count.udata_value();
    }
    let signed = |value: AttributeValue<Slice<'_>>| {
        value
            .sdata_value()
            .or_else(|| i64::try_from(value.udata_value()?).ok())
    };
    let upper = signed(range.attr_value(gimli::DW_AT_upper_bound)?)?;
    let lower = match range.attr_value(gimli::DW_AT_lower_bound) {
        Some(bound) => signed(bound)?,
        None => default_lower_bound(unit),
    };
    u64::try_from(upper.checked_sub(lower)?.checked_add(1)?).ok()
}

/// Fortran counts from 1, the others from 0.
fn default_lower_bound(unit: &Unit<'_, '_>) -> i64 {
    let root = unit.header.root_offset();
    let language =
        entry(unit, root).and_then(|root| match root.attr_value(gimli::DW_AT_language)? {
            AttributeValue::Language(language) => Some(language),
            _ => None,
        });
    let fortran = matches!(
        language,
        Some(
            gimli::DW_LANG_Fortran77
                | gimli::DW_LANG_Fortran90
                | gimli::DW_LANG_Fortran95
                | gimli::DW_LANG_Fortran03
                | gimli::DW_LANG_Fortran08
                | gimli::DW_LANG_Fortran18
        )
    );
    i64::from(fortran)
}
