//! Call stacks from registers and a copy of the stack, without frame pointers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};
use object::{Object, ObjectSection};
use varve_model::{Address, Pid, Time};

use crate::image::{self, Locator};
use crate::input::{BuildId, Mapping};
use crate::layout::{self, Segment};
use crate::symbolize::AddressSpaces;

/// Deeper stacks are cut: recursion repeats itself.
const DEPTH_LIMIT: usize = 256;

/// Registers and stack of a thread at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    /// The process.
    pub pid: Pid,
    /// When, to know what was mapped.
    pub at: Time,
    /// The instruction pointer.
    pub ip: Address,
    /// The stack pointer.
    pub sp: Address,
    /// The frame pointer, whatever it holds.
    pub bp: Address,
    /// Memory from the stack pointer on.
    pub stack: &'a [u8],
}

/// The unwind tables of one file.
struct Tables {
    segments: Vec<Segment>,
    eh_frame: Option<Section>,
    eh_frame_hdr: Option<Section>,
    debug_frame: Option<Arc<[u8]>>,
    text: Option<std::ops::Range<u64>>,
    got: Option<std::ops::Range<u64>>,
}

#[derive(Clone)]
struct Section {
    data: Arc<[u8]>,
    at: std::ops::Range<u64>,
}

/// A mapping, by start, end and birth.
type MappingKey = (u64, u64, Time);

/// One process's modules at a time.
struct Process {
    unwinder: UnwinderX86_64<Arc<[u8]>>,
    /// The mappings that are in it, and the tables and the bias of those that have any.
    known: HashMap<MappingKey, Option<(Arc<Tables>, u64)>>,
    /// Addresses at which unwinding ends for sure.
    bounded: HashSet<u64>,
}

/// Addresses that are remembered at most.
const MAX_BOUNDED: usize = 1 << 16;

/// Unwinds stacks; each file's tables are read once, and rules are remembered from stack to stack.
pub struct Unwinder {
    locator: Locator,
    tables: HashMap<(String, Option<BuildId>), Option<Arc<Tables>>>,
    processes: HashMap<Pid, Process>,
    cache: CacheX86_64,
}

impl Unwinder {
    /// Files are looked for as the locator says.
    pub fn new(locator: Locator) -> Self {
        Self {
            locator,
            tables: HashMap::new(),
            processes: HashMap::new(),
            cache: CacheX86_64::new(),
        }
    }

    /// The return addresses of the snapshot, innermost first, its instruction pointer before them.
    ///
    /// The list ends early where the copied stack or what is known of the modules ends.
    pub fn unwind(&mut self, spaces: &AddressSpaces<'_>, snapshot: &Snapshot<'_>) -> Vec<Address> {
        let mut frames = Vec::new();
        if self.prepare(spaces, snapshot.pid, snapshot.ip, snapshot.at) == Code::Endless {
            return vec![snapshot.ip];
        }
        let mut registers = UnwindRegsX86_64::new(snapshot.ip.0, snapshot.sp.0, snapshot.bp.0);
        let mut next = FrameAddress::from_instruction_pointer(snapshot.ip.0);
        let mut read = |address: u64| {
            let offset =
                usize::try_from(address.checked_sub(snapshot.sp.0).ok_or(())?).map_err(|_| ())?;
            let word = snapshot
                .stack
                .get(offset..offset.checked_add(8).ok_or(())?)
                .ok_or(())?;
            word.try_into().map(u64::from_le_bytes).map_err(|_| ())
        };
        while frames.len() < DEPTH_LIMIT {
            frames.push(Address(next.address()));
            let Some(process) = self.processes.get(&snapshot.pid) else {
                break;
            };
            let Ok(Some(address)) =
                process
                    .unwinder
                    .unwind_frame(next, &mut registers, &mut self.cache, &mut read)
            else {
                break;
            };
            let Some(address) = FrameAddress::from_return_address(address) else {
                break;
            };
            let lookup = Address(address.address_for_lookup());
            match self.prepare(spaces, snapshot.pid, lookup, snapshot.at) {
                Code::Known => {}
                // A return address outside of all code is a misread, not a frame.
                Code::None => break,
                Code::Endless => {
                    frames.push(Address(address.address()));
                    break;
                }
            }
            next = address;
        }
        frames
    }

    /// Forgets a process that has ended or runs another program.
    pub fn forget(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    /// Makes the module at the address known to the process's unwinder, and says what is there.
    fn prepare(
        &mut self,
        spaces: &AddressSpaces<'_>,
        pid: Pid,
        address: Address,
        at: Time,
    ) -> Code {
        let mapping = spaces
            .at(pid, address, Some(at))
            .filter(|mapping| mapping.perms.as_bytes().get(2) == Some(&b'x'));
        let Some(mapping) = mapping else {
            return self.without_code(pid, address);
        };
        let process = self.processes.entry(pid).or_insert_with(|| Process {
            unwinder: UnwinderX86_64::new(),
            known: HashMap::new(),
            bounded: HashSet::new(),
        });
        let key = (mapping.address.0, mapping.end(), mapping.from);
        if let Some(known) = process.known.get(&key) {
            return judge(&mut process.bounded, known.as_ref(), address.0);
        }
        // What was mapped here before is gone.
        let overlapping: Vec<_> = process
            .known
            .keys()
            .copied()
            .filter(|&(start, end, _)| start < mapping.end() && end > mapping.address.0)
            .collect();
        for old in overlapping {
            process.unwinder.remove_module(old.0);
            process.known.remove(&old);
        }
        process.bounded.clear();
        let locator = &self.locator;
        let tables = self
            .tables
            .entry((mapping.path.clone(), mapping.build_id.clone()))
            .or_insert_with(|| read_tables(locator, mapping).map(Arc::new));
        let known = tables.as_ref().and_then(|tables| {
            let bias = layout::bias(&tables.segments, mapping)?;
            Some((Arc::clone(tables), bias))
        });
        if let Some((tables, bias)) = &known {
            process.unwinder.add_module(module(tables, *bias, mapping));
        }
        let known = process.known.entry(key).insert_entry(known);
        judge(&mut process.bounded, known.get().as_ref(), address.0)
    }

    /// No code is known there now; the unwinder may still know what was there before.
    fn without_code(&mut self, pid: Pid, address: Address) -> Code {
        let Some(process) = self.processes.get_mut(&pid) else {
            return Code::None;
        };
        let here =
            |&(&(start, end, _), _): &(&(u64, u64, Time), _)| (start..end).contains(&address.0);
        match process.known.iter().find(here) {
            Some((_, known)) => match judge(&mut process.bounded, known.as_ref(), address.0) {
                Code::Endless => Code::Endless,
                _ => Code::None,
            },
            None => Code::None,
        }
    }
}

/// What unwinding meets at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    /// Code of a module that the unwinder knows, or code without tables.
    Known,
    /// No code.
    None,
    /// Code whose tables keep the unwinder from ending.
    Endless,
}

/// What unwinding at an address meets: the tables are the target's, and may be hostile.
fn judge(bounded: &mut HashSet<u64>, known: Option<&(Arc<Tables>, u64)>, address: u64) -> Code {
    match known {
        Some((tables, bias)) if !is_bounded(bounded, tables, *bias, address) => Code::Endless,
        _ => Code::Known,
    }
}

fn is_bounded(bounded: &mut HashSet<u64>, tables: &Tables, bias: u64, address: u64) -> bool {
    // Without an index the tables were looked through when they were read.
    let (Some(index), Some(frames)) = (&tables.eh_frame_hdr, &tables.eh_frame) else {
        return true;
    };
    if bounded.contains(&address) {
        return true;
    }
    let start = |range: &Option<std::ops::Range<u64>>| range.as_ref().map_or(0, |r| r.start);
    let indexed = varve_cfi::Indexed {
        index: &index.data,
        index_address: index.at.start,
        frames: &frames.data,
        frames_address: frames.at.start,
        text_address: start(&tables.text),
        got_address: start(&tables.got),
    };
    if !indexed.is_bounded_at(address.wrapping_sub(bias)) {
        return false;
    }
    if bounded.len() >= MAX_BOUNDED {
        bounded.clear();
    }
    bounded.insert(address);
    true
}

fn module(tables: &Tables, bias: u64, mapping: &Mapping) -> Module<Arc<[u8]>> {
    let data =
        |section: &Option<Section>| section.as_ref().map(|section| Arc::clone(&section.data));
    let at = |section: &Option<Section>| section.as_ref().map(|section| section.at.clone());
    let info = ExplicitModuleSectionInfo {
        base_svma: 0,
        text_svma: tables.text.clone(),
        got_svma: tables.got.clone(),
        eh_frame_svma: at(&tables.eh_frame),
        eh_frame: data(&tables.eh_frame),
        eh_frame_hdr_svma: at(&tables.eh_frame_hdr),
        eh_frame_hdr: data(&tables.eh_frame_hdr),
        debug_frame: tables.debug_frame.clone(),
        ..ExplicitModuleSectionInfo::default()
    };
    Module::new(
        mapping.path.clone(),
        mapping.address.0..mapping.end(),
        bias,
        info,
    )
}

fn read_tables(locator: &Locator, mapping: &Mapping) -> Option<Tables> {
    if !mapping.is_file() && mapping.path != "[vdso]" {
        return None;
    }
    let image = locator.main(mapping)?;
    let file = image::parse(&image)?;
    let range = |name: &str| {
        let section = file.section_by_name(name)?;
        Some(section.address()..section.address().checked_add(section.size())?)
    };
    let section = |name: &str| {
        let data = file.section_by_name(name)?.data().ok()?;
        (!data.is_empty()).then_some(())?;
        Some(Section {
            data: Arc::from(data),
            at: range(name)?,
        })
    };
    let (text, got) = (range(".text"), range(".got"));
    let mut tables = Tables {
        segments: layout::segments(&file),
        eh_frame: section(".eh_frame"),
        eh_frame_hdr: section(".eh_frame_hdr"),
        debug_frame: section(".debug_frame").map(|section| section.data),
        text,
        got,
    };
    drop_unbounded(&mut tables);
    Some(tables)
}

/// Drops tables without an index that could keep the unwinder from ending.
fn drop_unbounded(tables: &mut Tables) {
    let start = |range: &Option<std::ops::Range<u64>>| range.as_ref().map_or(0, |r| r.start);
    let mut bases = varve_cfi::Addresses::default()
        .set_text(start(&tables.text))
        .set_got(start(&tables.got));
    if let Some(frames) = &tables.eh_frame {
        bases = bases.set_eh_frame(frames.at.start);
        if tables.eh_frame_hdr.is_none() && !varve_cfi::is_eh_frame_bounded(&frames.data, &bases) {
            tables.eh_frame = None;
        }
    }
    if let Some(frames) = &tables.debug_frame
        && !varve_cfi::is_debug_frame_bounded(frames, &bases)
    {
        tables.debug_frame = None;
    }
}
