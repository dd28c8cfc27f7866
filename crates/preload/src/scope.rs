//! What a loaded module would find under a name if this library were not there.
//!
//! `dlsym` cannot tell: it looks from this library, or in a module's own dependencies, and where it finds nothing it leaves a
//! message behind that the program's own `dlerror` then gives. So the symbol tables are read here, in the loader's order
//! (dlopen(3), `RTLD_LOCAL`): first what was loaded with the program, then the module that the caller's was loaded with and
//! what that one needs, breadth first.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::symbols::{DT_NEEDED, DT_SONAME, Symbols, bytes_at};
use crate::{loader, own};

/// How many modules were loaded with the program: the first ones of the loader's list, which stay. 0: not known yet.
static AT_START: AtomicUsize = AtomicUsize::new(0);

/// Counts what is loaded with the program. Takes a lock of the loader: at the start, before there are threads.
pub(crate) fn note_start() {
    unsafe extern "C" fn count(_: *mut libc::dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
        // SAFETY: the pointer that is given below.
        unsafe { *to.cast::<usize>() += 1 };
        0
    }
    let mut modules = 0usize;
    // SAFETY: the callback gets the pointer to the local, which outlives the call.
    unsafe { own::dl_iterate_phdr(Some(count), (&raw mut modules).cast()) };
    AT_START.store(modules, Ordering::Release);
}

/// A definition that a caller finds.
#[derive(Clone, Copy)]
pub(crate) struct Definition {
    /// Null where there is none.
    pub(crate) function: *mut c_void,
    /// Whether it was loaded with the program: then every caller finds it, always.
    pub(crate) for_all: bool,
}

/// What a caller finds under some names.
pub(crate) struct Findings {
    /// Where the caller's module lies; its page where it is in none, as code that is generated.
    pub(crate) module: Range<u64>,
    /// One for each name.
    pub(crate) definitions: Vec<Definition>,
}

struct Search<'a> {
    site: u64,
    names: &'a [&'a CStr],
    modules: Vec<Module>,
    findings: Option<Findings>,
}

/// Looks the names up as the code at an address finds them. Takes a lock of the loader.
pub(crate) fn look_up(site: u64, names: &[&CStr]) -> Findings {
    unsafe extern "C" fn collect(
        info: *mut libc::dl_phdr_info,
        _: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid record, and back the pointer given to it below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
        // SAFETY: the loader's own description, of a module that is loaded.
        search.modules.push(unsafe { Module::read(info) });
        0
    }
    // The loader keeps its list as it is for as long as a callback runs: all is done within the first one.
    unsafe extern "C" fn within(
        _: *mut libc::dl_phdr_info,
        _: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: as above; the outer call uses it again when this one is over.
        unsafe {
            own::dl_iterate_phdr(Some(collect), search);
            let search = &mut *search.cast::<Search<'_>>();
            search.findings = Some(choose(&search.modules, search.site, search.names));
        }
        1
    }
    let mut search = Search {
        site,
        names,
        modules: Vec::new(),
        findings: None,
    };
    // SAFETY: the callbacks get the pointer to the local, which outlives the call.
    unsafe { own::dl_iterate_phdr(Some(within), (&raw mut search).cast()) };
    search.findings.unwrap_or_else(|| Findings {
        module: 0..0,
        definitions: names.iter().map(|_| Definition::NONE).collect(),
    })
}

impl Definition {
    const NONE: Definition = Definition {
        function: null_mut(),
        for_all: false,
    };
}

fn choose(modules: &[Module], site: u64, names: &[&CStr]) -> Findings {
    let own = look_up as *const () as u64;
    let own = modules.iter().position(|m| m.range.contains(&own));
    let caller = modules.iter().position(|m| m.range.contains(&site));
    let page = site & !0xfff..site | 0xfff;
    let known = AT_START.load(Ordering::Acquire);
    // Before that is known, nothing is for all.
    let at_start = if known == 0 { modules.len() } else { known };
    let mut order: Vec<usize> = (0..at_start.min(modules.len())).collect();
    if let Some(caller) = caller.filter(|caller| *caller >= at_start) {
        order.extend(scope_of(modules, caller, at_start));
    }
    // Others may have been made known to all when they were loaded.
    order.extend(at_start..modules.len());
    order.retain(|module| Some(*module) != own);
    let definition = |name: &&CStr| {
        // SAFETY: the module is loaded, and the loader keeps it for as long as this runs.
        let defined = |module: &usize| unsafe { modules[*module].symbols.define(name) };
        let mut found = order.iter().filter_map(|at| Some((*at, defined(at)?)));
        found
            .next()
            .map_or(Definition::NONE, |(at, function)| Definition {
                function,
                for_all: at < known,
            })
    };
    Findings {
        module: caller.map_or(page, |caller| modules[caller].range.clone()),
        definitions: names.iter().map(definition).collect(),
    }
}

/// The module that a later one was loaded with, and what that one needs, breadth first.
fn scope_of(modules: &[Module], caller: usize, at_start: usize) -> Vec<usize> {
    let mut by_name: BTreeMap<&[u8], usize> = BTreeMap::new();
    for (index, module) in modules.iter().enumerate() {
        for name in [
            module.name,
            base_name(module.name),
            module.soname.unwrap_or(b""),
        ] {
            by_name.entry(name).or_insert(index);
        }
    }
    let needed = |module: &Module| -> Vec<usize> {
        let names = module.needed.iter();
        names
            .filter_map(|name| by_name.get(*name).copied())
            .collect()
    };
    let needs: Vec<Vec<usize>> = modules.iter().map(needed).collect();
    let reached_from = |first: usize, edges: &[Vec<usize>]| {
        let mut order = vec![first];
        let mut seen = vec![false; modules.len()];
        seen[first] = true;
        let mut left = VecDeque::from([first]);
        while let Some(at) = left.pop_front() {
            for next in &edges[at] {
                if !std::mem::replace(&mut seen[*next], true) {
                    order.push(*next);
                    left.push_back(*next);
                }
            }
        }
        order
    };
    let mut needed_by = vec![Vec::new(); modules.len()];
    for (index, of) in needs.iter().enumerate() {
        of.iter().for_each(|needed| needed_by[*needed].push(index));
    }
    // What needs the caller's module and stands before it in the list was there first, and the module came with it.
    let first = reached_from(caller, &needed_by)
        .into_iter()
        .filter(|of| (at_start..=caller).contains(of))
        .min()
        .unwrap_or(caller);
    reached_from(first, &needs)
}

fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// A module, as far as names are looked up in it. What it refers to is there for as long as the loader keeps its list.
struct Module {
    range: Range<u64>,
    /// The file, as the loader has it.
    name: &'static [u8],
    soname: Option<&'static [u8]>,
    needed: Vec<&'static [u8]>,
    symbols: Symbols,
}

impl Module {
    /// # Safety
    /// The description of a module that is loaded and stays so for as long as the result is used.
    unsafe fn read(info: &libc::dl_phdr_info) -> Module {
        let bias = info.dlpi_addr;
        let headers = loader::headers(info);
        let loads = headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        let start = loads.clone().map(|h| h.p_vaddr).min().unwrap_or(0);
        let end = loads.map(|h| h.p_vaddr.saturating_add(h.p_memsz)).max();
        let (mut needed, mut soname) = (Vec::new(), None);
        let symbols = match headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC) {
            None => Symbols::default(),
            Some(dynamic) => {
                let section = bias.wrapping_add(dynamic.p_vaddr) as *const [u64; 2];
                let name = |tag, value| match tag {
                    DT_NEEDED => needed.push(value),
                    DT_SONAME => soname = Some(value),
                    _ => {}
                };
                // SAFETY: a segment that is loaded.
                unsafe { Symbols::read(bias, section, dynamic.p_memsz as usize / 16, name) }
            }
        };
        // SAFETY: offsets of C strings in the string table.
        let string = |offset| unsafe { symbols.string(offset) };
        Module {
            range: bias.wrapping_add(start)..bias.wrapping_add(end.unwrap_or(0)),
            // SAFETY: the loader's name is a C string or null.
            name: unsafe { bytes_at(info.dlpi_name as u64) },
            soname: soname.map(string),
            needed: needed.into_iter().map(string).collect(),
            symbols,
        }
    }
}
