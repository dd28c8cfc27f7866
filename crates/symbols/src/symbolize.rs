//! From addresses of code to functions, files and lines, inlined calls included.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use object::Object;
use varve_model::{Address, Pid, SiteId, Time};

use crate::demangle::demangle;
use crate::dwarf::{self, Slice};
use crate::image::{self, Locator, ModuleFiles};
use crate::input::{BuildId, Mapping, base_name};
use crate::layout::{self, Functions};
use crate::locals::Locals;
use crate::plumbing;
use crate::status::ModuleReport;

/// Calls inlined into each other at one address.
const MAX_INLINED: usize = 256;
/// After that functions of a module have no lines any more: no honest one takes so long.
const LINES_WITHIN: Duration = Duration::from_secs(60);

/// Addresses from here up belong to the kernel.
const KERNEL: u64 = 0xffff_8000_0000_0000;

/// A call stack as recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    /// Its number in the trace.
    pub site: SiteId,
    /// The process.
    pub pid: Pid,
    /// When it was taken, to know what was mapped then; `None`: at any time.
    pub at: Option<Time>,
    /// Addresses, innermost first; all but the first are return addresses.
    pub frames: Vec<Address>,
}

/// One function of a call stack. Inlined calls have frames of their own, at the same address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// The function, demangled.
    pub function: Option<String>,
    /// The source file.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// The byte in the line, from 1.
    pub column: Option<u32>,
    /// The line at which the function begins, in the same file.
    pub function_line: Option<u32>,
    /// The base name of the module.
    pub module: Option<String>,
    /// The address as recorded.
    pub address: Address,
    /// The address in the module's file, as its symbols count, where it is known.
    pub offset: Option<u64>,
    /// The one local variable declared on that line that may hold an allocation, where debug information knows it.
    pub declares: Option<String>,
}

/// Symbolized stacks.
#[derive(Debug, Clone, Default)]
pub struct Symbolized {
    /// As many as were given, in the same order.
    pub stacks: Vec<Vec<Frame>>,
    /// The modules that the stacks run through.
    pub modules: Vec<ModuleReport>,
}

/// What each process had mapped, for lookups by address and time.
#[derive(Debug)]
pub struct AddressSpaces<'a> {
    /// By process: mappings sorted by start, each with the highest end up to it.
    processes: HashMap<Pid, Vec<(&'a Mapping, u64)>>,
}

impl<'a> AddressSpaces<'a> {
    /// Sorts the mappings.
    pub fn new(mappings: &'a [Mapping]) -> Self {
        let mut processes: HashMap<Pid, Vec<(&Mapping, u64)>> = HashMap::new();
        for mapping in mappings {
            processes
                .entry(mapping.pid)
                .or_default()
                .push((mapping, mapping.end()));
        }
        for all in processes.values_mut() {
            all.sort_by_key(|(mapping, _)| (mapping.address, mapping.from));
            let mut highest = 0;
            for (_, end) in all.iter_mut() {
                highest = highest.max(*end);
                *end = highest;
            }
        }
        Self { processes }
    }

    /// The mapping at the address: the one that stood at that time, else the latest one that could be executed, else the latest.
    pub fn at(&self, pid: Pid, address: Address, time: Option<Time>) -> Option<&'a Mapping> {
        let all = self.processes.get(&pid)?;
        let after = all.partition_point(|(mapping, _)| mapping.address <= address);
        let mut best: Option<&Mapping> = None;
        for (mapping, highest) in all[..after].iter().rev() {
            if *highest <= address.0 {
                break;
            }
            if mapping.end() <= address.0 {
                continue;
            }
            if time.is_some_and(|time| mapping.stands_at(time)) {
                return Some(mapping);
            }
            // What cannot be executed is no code, whatever lay there last.
            let rank = |m: &Mapping| (m.perms.contains('x'), m.from);
            if best.is_none_or(|best| rank(mapping) > rank(best)) {
                best = Some(mapping);
            }
        }
        best
    }

    /// The mappings of a process, by address.
    pub fn of(&self, pid: Pid) -> impl Iterator<Item = &'a Mapping> + '_ {
        self.processes
            .get(&pid)
            .into_iter()
            .flatten()
            .map(|(mapping, _)| *mapping)
    }
}

/// Where a frame was looked up: which module and which address in its file.
type Place = (usize, u64);

/// Symbolizes the stacks.
///
/// Each module is opened once, its addresses are resolved in ascending order, and it is closed before the next one:
/// at most one module's debug information is in memory.
pub fn symbolize(locator: &Locator, spaces: &AddressSpaces<'_>, stacks: &[Stack]) -> Symbolized {
    let mut modules: Vec<&Mapping> = Vec::new();
    let mut numbers: HashMap<(&str, Option<&BuildId>), usize> = HashMap::new();
    let mut segments: HashMap<usize, Vec<layout::Segment>> = HashMap::new();
    let mut places: Vec<Vec<Option<(Place, &str)>>> = Vec::with_capacity(stacks.len());
    let mut kernel = false;
    for stack in stacks {
        let place = |(index, address): (usize, &Address)| {
            // A return address belongs to the line after the call, and after a call that never returns to the
            // next function.
            let probe = Address(if index == 0 {
                address.0
            } else {
                address.0.checked_sub(1)?
            });
            if probe.0 >= KERNEL {
                kernel = true;
                return None;
            }
            let mapping = spaces.at(stack.pid, probe, stack.at)?;
            if !mapping.is_file() && mapping.path != "[vdso]" {
                return None;
            }
            let number = *numbers
                .entry((&mapping.path, mapping.build_id.as_ref()))
                .or_insert_with(|| {
                    modules.push(mapping);
                    modules.len() - 1
                });
            let known = segments.entry(number).or_insert_with(|| {
                let files = locator.main(mapping);
                files
                    .as_ref()
                    .and_then(image::parse)
                    .map(|file| layout::segments(&file))
                    .unwrap_or_default()
            });
            let bias = layout::bias(known, mapping)
                .unwrap_or(mapping.address.0.wrapping_sub(mapping.offset.0));
            Some(((number, probe.0.wrapping_sub(bias)), mapping.module()))
        };
        places.push(stack.frames.iter().enumerate().map(place).collect());
    }
    let mut addresses: Vec<Vec<u64>> = vec![Vec::new(); modules.len()];
    for ((number, address), _) in places.iter().flatten().flatten() {
        if let Some(list) = addresses.get_mut(*number) {
            list.push(*address);
        }
    }
    let mut resolved: HashMap<Place, Vec<Frame>> = HashMap::new();
    let mut reports = Vec::new();
    for ((number, mapping), mut list) in modules.iter().enumerate().zip(addresses) {
        list.sort_unstable();
        list.dedup();
        let files = locator.module(mapping);
        let frames = resolve(&files, &list);
        resolved.extend(
            list.into_iter()
                .map(|address| (number, address))
                .zip(frames),
        );
        reports.push(ModuleReport {
            path: mapping.path.clone(),
            status: files.status,
        });
    }
    let kernel = if kernel {
        KernelSymbols::read()
    } else {
        KernelSymbols::default()
    };
    let stacks = stacks
        .iter()
        .zip(&places)
        .map(|(stack, places)| {
            let mut frames = Vec::with_capacity(stack.frames.len());
            for (address, place) in stack.frames.iter().zip(places) {
                let known = place.and_then(|(at, module)| Some((resolved.get(&at)?, at.1, module)));
                match known {
                    Some((known, offset, module)) => {
                        frames.extend(known.iter().cloned().map(|frame| Frame {
                            module: Some(module.to_owned()),
                            address: *address,
                            offset: Some(offset),
                            ..frame
                        }))
                    }
                    None if address.0 >= KERNEL => frames.push(kernel.frame(*address)),
                    None => frames.push(Frame {
                        address: *address,
                        ..Frame::default()
                    }),
                }
            }
            frames
        })
        .collect();
    Symbolized {
        stacks,
        modules: reports,
    }
}

/// Resolves ascending addresses of one module.
fn resolve(files: &ModuleFiles, addresses: &[u64]) -> Vec<Vec<Frame>> {
    let Some(main) = files.main.as_ref().and_then(image::parse) else {
        return addresses.iter().map(|_| vec![Frame::default()]).collect();
    };
    let debug = files.debug.as_ref().and_then(image::parse);
    let mut tables = Vec::new();
    for file in debug.iter().chain([&main]) {
        let functions = Functions::of(file);
        if !functions.is_empty() {
            tables.push(functions);
        }
    }
    let symbol = |address: u64| {
        tables
            .iter()
            .find_map(|table| table.at(address))
            .map(demangle)
    };
    let sections = dwarf::sections(debug.as_ref().unwrap_or(&main));
    let supplement = files
        .supplement
        .as_ref()
        .and_then(image::parse)
        .map(|file| dwarf::sections(&file));
    let dwarf = dwarf::dwarf(&sections, supplement.as_ref(), main.is_little_endian());
    let context = if files.status.has_lines() && dwarf::is_shallow(&dwarf) {
        addr2line::Context::from_dwarf(dwarf).ok()
    } else {
        None
    };
    let mut locals = Locals::default();
    let began = Instant::now();
    addresses
        .iter()
        .map(|&address| {
            let mut frames = context
                .as_ref()
                .filter(|_| began.elapsed() < LINES_WITHIN)
                .map(|context| lines(context, &mut locals, address))
                .unwrap_or_default();
            if frames.is_empty() {
                frames.push(Frame::default());
            }
            // The outermost frame is the function that the symbol table knows; inlined ones it does not.
            if let Some(last) = frames.last_mut().filter(|last| last.function.is_none()) {
                last.function = symbol(address);
            }
            frames
        })
        .collect()
}

/// The inlined calls at the address, innermost first, and the function that they ended up in.
fn lines(context: &addr2line::Context<Slice<'_>>, locals: &mut Locals, address: u64) -> Vec<Frame> {
    let mut frames = Vec::new();
    let Ok(mut iterator) = context.find_frames(address).skip_all_loads() else {
        return frames;
    };
    let unit = context.find_dwarf_and_unit(address).skip_all_loads();
    while frames.len() < MAX_INLINED
        && let Ok(Some(found)) = iterator.next()
    {
        let name = found
            .function
            .as_ref()
            .and_then(|function| function.raw_name().ok());
        let (file, line, column) = match &found.location {
            Some(location) => (
                location.file.map(str::to_owned),
                location.line.filter(|line| *line > 0),
                location.column.filter(|column| *column > 0),
            ),
            None => (None, None, None),
        };
        let begins = unit.as_ref().zip(found.dw_die_offset);
        let begins = begins.and_then(|(unit, at)| first_line(unit, at, file.as_deref()?));
        frames.push(Frame {
            function: name.map(|name| demangle(&name)),
            file,
            // What a macro or an included file holds has no place in the function.
            function_line: begins.filter(|begins| line.is_some_and(|line| *begins <= line)),
            line,
            column,
            ..Frame::default()
        });
    }
    // Only the frame that will name an object needs its variables looked for.
    if let Some(frame) = frames
        .iter_mut()
        .find(|frame| !plumbing::is_plumbing(frame))
        && let (Some(file), Some(line)) = (&frame.file, frame.line)
        && let Some(unit) = unit
    {
        frame.declares = locals.declared_at(unit, file, line);
    }
    frames
}

/// The line at which a function is declared, where that is in the file of its code.
fn first_line(unit: &dwarf::Unit<'_, '_>, at: dwarf::Offset, file: &str) -> Option<u32> {
    let chain = dwarf::chain(unit, dwarf::entry(unit, at)?);
    let declared =
        dwarf::declared(unit, &chain).or_else(|| dwarf::lambda_declared(unit, &chain))?;
    let is_there = declared
        .file
        .is_some_and(|of| base_name(&of) == base_name(file));
    (is_there && declared.line > 0).then_some(declared.line)
}

/// Names of kernel functions, from `/proc/kallsyms`.
#[derive(Default)]
struct KernelSymbols {
    all: Vec<(u64, String)>,
}

impl KernelSymbols {
    fn read() -> Self {
        let text = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let mut all: Vec<(u64, String)> = text
            .lines()
            .filter_map(|line| {
                let mut fields = line.split_whitespace();
                let address = u64::from_str_radix(fields.next()?, 16).ok()?;
                let kind = fields.next()?;
                (address >= KERNEL && kind.eq_ignore_ascii_case("t")).then_some(())?;
                Some((address, fields.next()?.to_owned()))
            })
            .collect();
        all.sort();
        Self { all }
    }

    fn frame(&self, address: Address) -> Frame {
        let after = self.all.partition_point(|(start, _)| *start <= address.0);
        let function = self.all[..after].last().map(|(_, name)| name.clone());
        Frame {
            function,
            module: Some("[kernel]".to_owned()),
            address,
            ..Frame::default()
        }
    }
}
