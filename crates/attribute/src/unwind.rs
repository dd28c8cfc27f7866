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

/// One process's modules at a time.
struct Process {
    unwinder: UnwinderX86_64<Arc<[u8]>>,
    /// The mappings that are in it, by start, end and birth.
    known: HashSet<(u64, u64, Time)>,
}

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
        self.prepare(spaces, snapshot.pid, snapshot.ip, snapshot.at);
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
            // A return address outside of all code is a misread, not a frame.
            if !self.prepare(
                spaces,
                snapshot.pid,
                Address(address.address_for_lookup()),
                snapshot.at,
            ) {
                break;
            }
            next = address;
        }
        frames
    }

    /// Forgets a process that has ended or runs another program.
    pub fn forget(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    /// Makes the module at the address known to the process's unwinder. False where no code is mapped.
    fn prepare(
        &mut self,
        spaces: &AddressSpaces<'_>,
        pid: Pid,
        address: Address,
        at: Time,
    ) -> bool {
        let Some(mapping) = spaces.at(pid, address, Some(at)) else {
            return false;
        };
        if mapping.perms.as_bytes().get(2) != Some(&b'x') {
            return false;
        }
        let process = self.processes.entry(pid).or_insert_with(|| Process {
            unwinder: UnwinderX86_64::new(),
            known: HashSet::new(),
        });
        let key = (mapping.address.0, mapping.end(), mapping.from);
        if process.known.contains(&key) {
            return true;
        }
        // What was mapped here before is gone.
        let overlapping: Vec<_> = process
            .known
            .iter()
            .copied()
            .filter(|&(start, end, _)| start < mapping.end() && end > mapping.address.0)
            .collect();
        for old in overlapping {
            process.unwinder.remove_module(old.0);
            process.known.remove(&old);
        }
        process.known.insert(key);
        let locator = &self.locator;
        let tables = self
            .tables
            .entry((mapping.path.clone(), mapping.build_id.clone()))
            .or_insert_with(|| read_tables(locator, mapping).map(Arc::new));
        if let Some(module) = tables.as_ref().and_then(|tables| module(tables, mapping)) {
            process.unwinder.add_module(module);
        }
        true
    }
}

fn module(tables: &Tables, mapping: &Mapping) -> Option<Module<Arc<[u8]>>> {
    let bias = layout::bias(&tables.segments, mapping)?;
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
    Some(Module::new(
        mapping.path.clone(),
        mapping.address.0..mapping.end(),
        bias,
        info,
    ))
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
    Some(Tables {
        segments: layout::segments(&file),
        eh_frame: section(".eh_frame"),
        eh_frame_hdr: section(".eh_frame_hdr"),
        debug_frame: section(".debug_frame").map(|section| section.data),
        text: range(".text"),
        got: range(".got"),
    })
}
