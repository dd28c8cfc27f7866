//! Local variables by the line of their declaration.

use std::collections::HashMap;

use crate::dwarf::{self, Unit};

/// Units with more entries than this are not searched: a name is a convenience, not worth seconds.
const ENTRY_LIMIT: usize = 4_000_000;

/// The variables of the units looked at so far.
#[derive(Default)]
pub(crate) struct Locals {
    /// By unit, then by file and line: the name, empty where several are declared there.
    units: HashMap<usize, HashMap<(u64, u64), String>>,
}

impl Locals {
    /// The one local variable declared on a line that may hold an allocation.
    pub(crate) fn declared_at(
        &mut self,
        unit: Unit<'_, '_>,
        file: &str,
        line: u32,
    ) -> Option<String> {
        let offset = unit.header.debug_info_offset()?.0;
        let known = self.units.entry(offset).or_insert_with(|| {
            let mut all = HashMap::new();
            let _ = read(&unit, &mut all);
            all
        });
        known
            .iter()
            .filter(|((_, at), name)| *at == u64::from(line) && !name.is_empty())
            .find(|((index, _), _)| dwarf::file_path(&unit, *index).as_deref() == Some(file))
            .map(|(_, name)| name.clone())
    }
}

fn read(unit: &Unit<'_, '_>, all: &mut HashMap<(u64, u64), String>) -> gimli::Result<()> {
    let mut entries = unit.entries_raw(None)?;
    for _ in 0..ENTRY_LIMIT {
        if entries.is_empty() {
            break;
        }
        let Some(abbreviation) = entries.read_abbreviation()? else {
            continue;
        };
        if abbreviation.tag() != gimli::DW_TAG_variable {
            entries.skip_attributes(abbreviation.attributes())?;
            continue;
        }
        let (mut name, mut file, mut line, mut of) = (None, None, None, None);
        for spec in abbreviation.attributes() {
            let attribute = entries.read_attribute(*spec)?;
            match attribute.name() {
                gimli::DW_AT_name => name = dwarf::text(unit, attribute.value()),
                gimli::DW_AT_type => of = Some(attribute.value()),
                gimli::DW_AT_decl_line => line = attribute.udata_value(),
                gimli::DW_AT_decl_file => {
                    file = match attribute.value() {
                        gimli::AttributeValue::FileIndex(index) => Some(index),
                        value => value.udata_value(),
                    };
                }
                _ => {}
            }
        }
        if of.is_some_and(|of| dwarf::is_scalar(unit, of)) {
            continue;
        }
        if let (Some(name), Some(file), Some(line)) = (name, file, line) {
            all.entry((file, line))
                .and_modify(|known| {
                    if *known != name {
                        known.clear()
                    }
                })
                .or_insert(name);
        }
    }
    Ok(())
}
