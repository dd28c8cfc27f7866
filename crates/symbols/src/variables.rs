//! Static variables in DWARF: names in their functions, lines, sizes.

use std::collections::HashMap;

use gimli::{Dwarf, UnitRef};

use crate::demangle::try_demangle;
use crate::dwarf::{self, Declared, Offset, Slice, Unit};

/// A static variable, as DWARF knows it.
#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) declared: Option<Declared>,
}

/// Static variables by address and size, and COMMON blocks, to which GCC gives no address, by symbol.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) variables: HashMap<(u64, Option<u64>), Variable>,
    pub(crate) blocks: HashMap<String, Variable>,
}

/// What encloses an entry.
struct Scope {
    depth: isize,
    offset: Offset,
    tag: gimli::DwTag,
}

/// Finds the static variables at the addresses that `wanted` accepts (by address and size in bytes, where known).
pub(crate) fn variables(
    dwarf: &Dwarf<Slice<'_>>,
    wanted: impl Fn(u64, Option<u64>) -> bool,
) -> Known {
    let mut found = Known::default();
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        if let Ok(unit) = dwarf.unit(header) {
            let unit = UnitRef::new(dwarf, &unit);
            // A broken unit costs its own variables only.
            let _ = unit_variables(&unit, &wanted, &mut found);
        }
    }
    found
}

fn unit_variables(
    unit: &Unit<'_, '_>,
    wanted: &impl Fn(u64, Option<u64>) -> bool,
    found: &mut Known,
) -> gimli::Result<()> {
    let mut scopes: Vec<Scope> = Vec::new();
    let mut entries = unit.entries_raw(None)?;
    while !entries.is_empty() {
        let depth = entries.next_depth();
        let offset = entries.next_offset();
        let Some(abbreviation) = entries.read_abbreviation()? else {
            continue;
        };
        let tag = abbreviation.tag();
        while scopes.last().is_some_and(|scope| scope.depth >= depth) {
            scopes.pop();
        }
        let mut location = None;
        match tag {
            gimli::DW_TAG_variable | gimli::DW_TAG_common_block => {
                for spec in abbreviation.attributes() {
                    let attribute = entries.read_attribute(*spec)?;
                    if attribute.name() == gimli::DW_AT_location {
                        location = dwarf::static_address(unit, attribute.value());
                    }
                }
            }
            _ => entries.skip_attributes(abbreviation.attributes())?,
        }
        if abbreviation.has_children() {
            scopes.push(Scope { depth, offset, tag });
        }
        if location.is_none() && tag == gimli::DW_TAG_common_block {
            block(unit, offset, found);
        }
        let Some(address) = location else { continue };
        let Some(entry) = dwarf::entry(unit, offset) else {
            continue;
        };
        let chain = dwarf::chain(unit, entry);
        let bytes = dwarf::type_bytes(unit, &chain);
        if !wanted(address, bytes) || found.variables.contains_key(&(address, bytes)) {
            continue;
        }
        let Some(name) = dwarf::name(unit, &chain) else {
            continue;
        };
        let name = match dwarf::linkage_name(unit, &chain).and_then(|name| try_demangle(&name)) {
            Some(name) => name,
            None if tag == gimli::DW_TAG_common_block => format!("common /{name}/"),
            None => qualified(unit, &scopes, &name),
        };
        found.variables.insert(
            (address, bytes),
            Variable {
                name,
                declared: dwarf::declared(unit, &chain),
            },
        );
    }
    Ok(())
}

fn block(unit: &Unit<'_, '_>, offset: Offset, found: &mut Known) {
    let Some(entry) = dwarf::entry(unit, offset) else {
        return;
    };
    let chain = dwarf::chain(unit, entry);
    if let Some((symbol, name)) = dwarf::linkage_name(unit, &chain).zip(dwarf::name(unit, &chain)) {
        let declared = dwarf::declared(unit, &chain);
        let name = format!("common /{name}/");
        found
            .blocks
            .entry(symbol)
            .or_insert(Variable { name, declared });
    }
}

/// `namespace::function::name`, `block/name` in a COMMON block.
fn qualified(unit: &Unit<'_, '_>, scopes: &[Scope], name: &str) -> String {
    let mut full = String::new();
    for scope in scopes {
        let Some(entry) = dwarf::entry(unit, scope.offset) else {
            continue;
        };
        let chain = dwarf::chain(unit, entry);
        match scope.tag {
            gimli::DW_TAG_common_block => {
                let block = dwarf::name(unit, &chain).unwrap_or_default();
                return format!("{block}/{name}");
            }
            gimli::DW_TAG_subprogram => {
                // The full name of a method or of a function in a namespace stands in its linkage name only.
                if let Some(linkage) =
                    dwarf::linkage_name(unit, &chain).and_then(|name| try_demangle(&name))
                {
                    full = linkage;
                } else if let Some(part) = dwarf::name(unit, &chain) {
                    join(&mut full, &part);
                }
            }
            gimli::DW_TAG_namespace
            | gimli::DW_TAG_module
            | gimli::DW_TAG_structure_type
            | gimli::DW_TAG_class_type => {
                let part = dwarf::name(unit, &chain);
                join(
                    &mut full,
                    part.as_deref().unwrap_or("(anonymous namespace)"),
                );
            }
            _ => {}
        }
    }
    join(&mut full, name);
    full
}

fn join(full: &mut String, part: &str) {
    if !full.is_empty() {
        full.push_str("::");
    }
    full.push_str(part);
}
