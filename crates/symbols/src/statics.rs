//! Static data of executables and libraries: symbols of a page or more, and what is left around them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use object::{Object, ObjectSection};
use varve_model::{Address, Bytes, ObjectKind, Pid, Time};

use crate::demangle::{demangle, try_demangle};
use crate::dwarf;
use crate::image::{self, Locator, ModuleFiles};
use crate::input::{BuildId, Mapping};
use crate::layout::{self, Access, DataSymbol, Segment};
use crate::status::{ModuleReport, ModuleStatus};
use crate::variables::{self, Known, Variable};

/// Files with more debug information than this get their variables' names from the symbol table alone: looking
/// through it takes seconds per gigabyte, and a program that large is mostly not its own author's.
const INFO_LIMIT: u64 = 1 << 30;

/// How far inside a mapped file a piece of memory lies, from outside to inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A mapping.
    Mapping,
    /// A segment, as far as no variable covers it.
    Segment,
    /// A variable.
    Variable {
        /// How many larger variables it lies in.
        depth: u8,
    },
}

/// A piece of memory whose name comes from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticObject {
    /// The process.
    pub pid: Pid,
    /// [`ObjectKind::Static`] for data, [`ObjectKind::File`] for code, constants and other mapped files.
    pub kind: ObjectKind,
    /// `grid`, `setup::buffer`, `libc.so.6 .text`.
    pub name: String,
    /// The module that it belongs to, its base name.
    pub module: String,
    /// Where it is declared, where debug information says so.
    pub file: Option<String>,
    /// The line of the declaration.
    pub line: Option<u32>,
    /// Where it starts; symbols keep their exact addresses.
    pub address: Address,
    /// Its size.
    pub bytes: Bytes,
    /// Since when its module was mapped.
    pub born: Time,
    /// Until when.
    pub died: Option<Time>,
    /// What of a file it is.
    pub place: Place,
}

/// What a recording's mappings hold.
#[derive(Debug, Clone, Default)]
pub struct Statics {
    /// Symbols and remainders, by process and address.
    pub objects: Vec<StaticObject>,
    /// Each module once, by path.
    pub modules: Vec<ModuleReport>,
}

/// A module in a process: process, path, what it is called, build id, and what is added to the file's addresses.
type Instance<'a> = (Pid, &'a str, &'a str, Option<&'a BuildId>, u64);

/// What one file holds, in its own addresses.
struct ModuleStatics {
    status: ModuleStatus,
    segments: Vec<Segment>,
    variables: Vec<Placed>,
}

struct Placed {
    address: u64,
    bytes: u64,
    name: String,
    file: Option<String>,
    line: Option<u32>,
    /// How many larger variables it lies in.
    depth: u8,
}

/// Names static data; each file is read once, however many processes map it.
pub struct StaticsReader {
    locator: Locator,
    min_object: Bytes,
    modules: HashMap<(String, Option<BuildId>), Arc<ModuleStatics>>,
}

impl StaticsReader {
    /// Objects smaller than `min_object` go into the remainder of their segment.
    pub fn new(locator: Locator, min_object: Bytes) -> Self {
        Self {
            locator,
            min_object,
            modules: HashMap::new(),
        }
    }

    /// Names what the mappings of all processes hold.
    pub fn read(&mut self, mappings: &[Mapping]) -> Statics {
        let mut statics = Statics::default();
        // A module is mapped in pieces, and its pieces are split again by mprotect: together they are one instance.
        let mut instances: BTreeMap<Instance<'_>, (Time, Option<Time>)> = BTreeMap::new();
        for mapping in mappings
            .iter()
            .filter(|mapping| mapping.is_file() || mapping.path == "[vdso]")
        {
            let module = self.module(mapping);
            let Some(bias) = layout::bias(&module.segments, mapping) else {
                continue;
            };
            let key = (
                mapping.pid,
                mapping.path.as_str(),
                mapping.module(),
                mapping.build_id.as_ref(),
                bias,
            );
            let life = instances.entry(key).or_insert((mapping.from, mapping.to));
            life.0 = life.0.min(mapping.from);
            life.1 = life.1.zip(mapping.to).map(|(a, b)| a.max(b));
        }
        for ((pid, path, name, id, bias), (born, died)) in instances {
            let Some(module) = self.modules.get(&(path.to_owned(), id.cloned())) else {
                continue;
            };
            let object = |kind, text: String, address: u64, bytes: u64, place| StaticObject {
                pid,
                kind,
                name: text,
                module: name.to_owned(),
                file: None,
                line: None,
                address: Address(address.wrapping_add(bias)),
                bytes: Bytes(bytes),
                born,
                died,
                place,
            };
            for (kind, text, start, end) in module.segments.iter().flat_map(|s| remainders(name, s))
            {
                statics.objects.push(object(
                    kind,
                    text,
                    start,
                    end.saturating_sub(start),
                    Place::Segment,
                ));
            }
            for variable in &module.variables {
                let place = Place::Variable {
                    depth: variable.depth,
                };
                let mut placed = object(
                    ObjectKind::Static,
                    variable.name.clone(),
                    variable.address,
                    variable.bytes,
                    place,
                );
                placed.file.clone_from(&variable.file);
                placed.line = variable.line;
                statics.objects.push(placed);
            }
        }
        statics
            .objects
            .sort_by_key(|object| (object.pid, object.address, object.place));
        statics.modules = self.reports();
        statics
    }

    fn reports(&self) -> Vec<ModuleReport> {
        let mut reports: Vec<ModuleReport> = self
            .modules
            .iter()
            .map(|((path, _), module)| ModuleReport {
                path: path.clone(),
                status: module.status.clone(),
            })
            .collect();
        reports.sort_by(|a, b| a.path.cmp(&b.path));
        reports
    }

    fn module(&mut self, mapping: &Mapping) -> Arc<ModuleStatics> {
        let key = (mapping.path.clone(), mapping.build_id.clone());
        if let Some(module) = self.modules.get(&key) {
            return Arc::clone(module);
        }
        let module = Arc::new(read_module(&self.locator.module(mapping), self.min_object));
        self.modules.insert(key, Arc::clone(&module));
        module
    }
}

/// What of a segment no variable covers: kind, name, start and end.
fn remainders(module: &str, segment: &Segment) -> Vec<(ObjectKind, String, u64, u64)> {
    let (start, end) = segment.pages();
    match segment.access {
        Access::Code => vec![(ObjectKind::File, format!("{module} .text"), start, end)],
        Access::Data => {
            let text = format!("{module} .data/.bss (small variables)");
            vec![(ObjectKind::Static, text, start, end)]
        }
        Access::Constants => {
            let sections = segment.sections.iter();
            let named = sections.map(|of| {
                let text = format!("{module} {}", of.name);
                (ObjectKind::File, text, of.address, of.end)
            });
            named.collect()
        }
    }
}

fn read_module(files: &ModuleFiles, min_object: Bytes) -> ModuleStatics {
    let mut module = ModuleStatics {
        status: files.status.clone(),
        segments: Vec::new(),
        variables: Vec::new(),
    };
    let Some(main) = files.main.as_ref().and_then(image::parse) else {
        return module;
    };
    module.segments = layout::segments(&main);
    if matches!(files.status, ModuleStatus::Kernel) {
        return module;
    }
    let debug = files.debug.as_ref().and_then(image::parse);
    // A debug file made by `strip --only-keep-debug` or `objcopy` has the whole symbol table.
    let symbols = match &debug {
        Some(debug) if main.symbol_table().is_none() && debug.symbol_table().is_some() => {
            let all = layout::data_symbols(debug, min_object.0);
            if all.is_empty() {
                layout::data_symbols(&main, min_object.0)
            } else {
                all
            }
        }
        _ => layout::data_symbols(&main, min_object.0),
    };
    let inside = |symbol: &DataSymbol<'_>| {
        let end = symbol.address.checked_add(symbol.bytes);
        module.segments.iter().any(|segment| {
            let (start, stop) = segment.pages();
            symbol.address >= start && end.is_some_and(|end| end <= stop)
        })
    };
    let symbols: Vec<DataSymbol<'_>> = symbols.into_iter().filter(inside).collect();
    let known = declarations(
        files,
        debug.as_ref().unwrap_or(&main),
        &symbols,
        min_object,
        &module.segments,
    );
    module.variables = merge(&symbols, known);
    module
}

/// What DWARF says of the symbols' addresses, and of large variables that have no symbol.
fn declarations(
    files: &ModuleFiles,
    file: &image::Elf<'_>,
    symbols: &[DataSymbol<'_>],
    min_object: Bytes,
    segments: &[Segment],
) -> Known {
    // Where the symbol table is whole, it names every variable, and a file without large ones need not be searched.
    let whole = file.symbol_table().is_some();
    let large = file
        .section_by_name(".debug_info")
        .is_some_and(|section| section.size() > INFO_LIMIT);
    if !files.status.has_lines() || large || (whole && symbols.is_empty()) {
        return Known::default();
    }
    let sections = dwarf::sections(file);
    let supplement = files
        .supplement
        .as_ref()
        .and_then(image::parse)
        .map(|file| dwarf::sections(&file));
    let dwarf = dwarf::dwarf(&sections, supplement.as_ref(), file.is_little_endian());
    let wanted = |address: u64, bytes: Option<u64>| {
        if symbols
            .binary_search_by_key(&address, |symbol| symbol.address)
            .is_ok()
        {
            return true;
        }
        let Some(bytes) = bytes.filter(|bytes| *bytes >= min_object.0) else {
            return false;
        };
        segments.iter().any(|segment| {
            let (start, stop) = segment.pages();
            address >= start && address.checked_add(bytes).is_some_and(|end| end <= stop)
        })
    };
    variables::variables(&dwarf, wanted)
}

fn merge(symbols: &[DataSymbol<'_>], mut known: Known) -> Vec<Placed> {
    let mut placed = Vec::with_capacity(symbols.len());
    for symbol in symbols {
        // A COMMON block starts where its first member does; without a size DWARF means the whole.
        let variable = known.blocks.remove(symbol.name).or_else(|| {
            let sizes = [Some(symbol.bytes), None];
            sizes
                .into_iter()
                .find_map(|bytes| known.variables.remove(&(symbol.address, bytes)))
        });
        let name = match (try_demangle(symbol.name), &variable) {
            (Some(name), _) => name,
            (None, Some(variable)) => variable.name.clone(),
            (None, None) => demangle(symbol.name),
        };
        placed.push(place(symbol.address, symbol.bytes, name, variable.as_ref()));
    }
    let mut rest: Vec<_> = known.variables.into_iter().collect();
    rest.sort_by_key(|((address, bytes), _)| (*address, *bytes));
    for ((address, bytes), variable) in rest {
        let at = symbols.partition_point(|symbol| symbol.address < address);
        let symbol = symbols.get(at).filter(|symbol| symbol.address == address);
        match (symbol, bytes) {
            // Flexible arrays and incomplete types: the symbol knows the size, DWARF the name.
            (Some(symbol), bytes)
                if !variable.name.contains('/')
                    && bytes.is_none_or(|bytes| bytes < symbol.bytes) =>
            {
                if let Some(known) = placed.get_mut(at).filter(|known| known.line.is_none()) {
                    let name = try_demangle(symbol.name).unwrap_or_else(|| variable.name.clone());
                    *known = place(symbol.address, symbol.bytes, name, Some(&variable));
                }
            }
            (Some(symbol), Some(bytes)) if bytes >= symbol.bytes => {}
            (_, Some(bytes)) => placed.push(place(
                address,
                bytes,
                variable.name.clone(),
                Some(&variable),
            )),
            (_, None) => {}
        }
    }
    placed.sort_by(|a, b| (a.address, b.bytes, &a.name).cmp(&(b.address, a.bytes, &b.name)));
    nest(&mut placed);
    placed
}

fn place(address: u64, bytes: u64, name: String, variable: Option<&Variable>) -> Placed {
    let declared = variable.and_then(|variable| variable.declared.as_ref());
    Placed {
        address,
        bytes,
        name,
        file: declared.and_then(|declared| declared.file.clone()),
        line: declared.map(|declared| declared.line),
        depth: 0,
    }
}

/// Tells how deep each variable lies in others, for COMMON members and hand-made overlays.
fn nest(placed: &mut [Placed]) {
    let mut open: Vec<u64> = Vec::new();
    for variable in placed {
        open.retain(|end| *end > variable.address);
        variable.depth = u8::try_from(open.len()).unwrap_or(u8::MAX);
        open.push(variable.address.saturating_add(variable.bytes));
    }
}

/// What the kernel itself says of each mapping: the outermost owner of every page.
///
/// A mapping that the program asked for is also born as an object with its call site, which wins over this.
/// Reserved address space that cannot be accessed is nobody's. A mapping that only grew between two looks, as the
/// arenas of allocators do, is one object.
pub fn mapping_objects(mappings: &[Mapping]) -> Vec<StaticObject> {
    let mut usable: Vec<&Mapping> = mappings
        .iter()
        .filter(|mapping| !mapping.perms.starts_with("---"))
        .collect();
    usable.sort_by_key(|mapping| (mapping.pid, mapping.address, mapping.from));
    let mut objects: Vec<StaticObject> = Vec::with_capacity(usable.len());
    for mapping in usable {
        let object = mapping_object(mapping);
        match objects.last_mut() {
            Some(last) if grew_into(last, &object) => {
                last.bytes = object.bytes;
                last.died = object.died;
            }
            _ => objects.push(object),
        }
    }
    objects
}

fn grew_into(before: &StaticObject, after: &StaticObject) -> bool {
    (before.pid, before.address, &before.name) == (after.pid, after.address, &after.name)
        && before.kind != ObjectKind::File
        && before.died == Some(after.born)
        && before.bytes <= after.bytes
}

fn mapping_object(mapping: &Mapping) -> StaticObject {
    let (kind, name) = match mapping.path.as_str() {
        "" => (ObjectKind::Mapping, "anonymous memory".to_owned()),
        "[heap]" => (ObjectKind::Heap, "[heap], small objects".to_owned()),
        "[stack]" => (ObjectKind::Stack, "main stack".to_owned()),
        path if path.starts_with("/dev/zero") || path.starts_with("/SYSV") => {
            (ObjectKind::Mapping, "shared memory".to_owned())
        }
        path if path.starts_with('[') => (ObjectKind::Mapping, path.to_owned()),
        _ => (ObjectKind::File, mapping.module().to_owned()),
    };
    StaticObject {
        pid: mapping.pid,
        kind,
        module: name.clone(),
        name,
        file: None,
        line: None,
        address: mapping.address,
        bytes: mapping.bytes,
        born: mapping.from,
        died: mapping.to,
        place: Place::Mapping,
    }
}
