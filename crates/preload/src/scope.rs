//! What a loaded module would find under a name if this library were not there.
//!
//! `dlsym` cannot tell: it looks from this library, or in a module's own dependencies, and where it finds nothing it leaves a
//! message behind that the program's own `dlerror` then gives. So the symbol tables are read here, in the loader's order
//! (dlopen(3), `RTLD_LOCAL`): first what was loaded with the program, then the module that the caller's was loaded with and
//! what that one needs, breadth first.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    unsafe { libc::dl_iterate_phdr(Some(count), (&raw mut modules).cast()) };
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
            libc::dl_iterate_phdr(Some(collect), search);
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
    unsafe { libc::dl_iterate_phdr(Some(within), (&raw mut search).cast()) };
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
        let defined = |module: &usize| unsafe { modules[*module].define(name) };
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
    bias: u64,
    /// The file, as the loader has it.
    name: &'static [u8],
    soname: Option<&'static [u8]>,
    needed: Vec<&'static [u8]>,
    symbols: u64,
    strings: u64,
    gnu_hash: u64,
    hash: u64,
}

const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_SONAME: u64 = 14;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// A symbol that is defined elsewhere.
const UNDEFINED: u16 = 0;
const STT_FUNC: u8 = 2;

impl Module {
    /// # Safety
    /// The description of a module that is loaded and stays so for as long as the result is used.
    unsafe fn read(info: &libc::dl_phdr_info) -> Module {
        let bias = info.dlpi_addr;
        // SAFETY: the loader's own description of its program headers.
        let headers =
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let loads = headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        let start = loads.clone().map(|h| h.p_vaddr).min().unwrap_or(0);
        let end = loads.map(|h| h.p_vaddr.saturating_add(h.p_memsz)).max();
        let mut module = Module {
            range: bias.wrapping_add(start)..bias.wrapping_add(end.unwrap_or(0)),
            bias,
            // SAFETY: the loader's name is a C string or null.
            name: unsafe { bytes_at(info.dlpi_name as u64) },
            soname: None,
            needed: Vec::new(),
            symbols: 0,
            strings: 0,
            gnu_hash: 0,
            hash: 0,
        };
        let Some(dynamic) = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC) else {
            return module;
        };
        let mut entry = bias.wrapping_add(dynamic.p_vaddr) as *const [u64; 2];
        let last = entry.wrapping_add(dynamic.p_memsz as usize / 16);
        let (mut names, mut soname) = (Vec::new(), None);
        while entry < last {
            // SAFETY: within the segment, which is loaded.
            let [tag, value] = unsafe { *entry };
            entry = entry.wrapping_add(1);
            // The loader has made addresses of the offsets, but in modules whose section cannot be written, as the vDSO's.
            let address = match value < bias {
                true => bias.wrapping_add(value),
                false => value,
            };
            match tag {
                DT_NULL => break,
                DT_NEEDED => names.push(value),
                DT_SONAME => soname = Some(value),
                DT_STRTAB => module.strings = address,
                DT_SYMTAB => module.symbols = address,
                DT_HASH => module.hash = address,
                DT_GNU_HASH => module.gnu_hash = address,
                _ => {}
            }
        }
        if module.strings != 0 {
            let strings = module.strings;
            // SAFETY: offsets of C strings in the string table.
            let at = |offset| unsafe { bytes_at(strings.wrapping_add(offset)) };
            module.needed = names.into_iter().map(at).collect();
            module.soname = soname.map(at);
        }
        module
    }

    /// The function that it defines under a name.
    ///
    /// # Safety
    /// The module is loaded.
    unsafe fn define(&self, name: &CStr) -> Option<*mut c_void> {
        if self.symbols == 0 || self.strings == 0 {
            return None;
        }
        // SAFETY: the tables of a loaded module.
        let index = unsafe {
            match (self.gnu_hash, self.hash) {
                (0, 0) => None,
                (0, _) => self.find_by_hash(name),
                _ => self.find_by_gnu_hash(name),
            }
        }?;
        // SAFETY: as above.
        let symbol = unsafe { &*self.symbol(index) };
        Some(self.bias.wrapping_add(symbol.st_value) as *mut c_void)
    }

    fn symbol(&self, index: u32) -> *const libc::Elf64_Sym {
        (self.symbols as *const libc::Elf64_Sym).wrapping_add(index as usize)
    }

    /// Whether a symbol is a definition of that name.
    ///
    /// # Safety
    /// The index of a symbol of a loaded module.
    unsafe fn is(&self, index: u32, name: &CStr) -> bool {
        // SAFETY: as the caller promises; its name is a C string of the string table.
        unsafe {
            let symbol = &*self.symbol(index);
            symbol.st_shndx != UNDEFINED
                && symbol.st_info & 0xf == STT_FUNC
                && bytes_at(self.strings.wrapping_add(u64::from(symbol.st_name))) == name.to_bytes()
        }
    }

    /// See "GNU hash ELF sections" (`DT_GNU_HASH`): four words, a Bloom filter, buckets, and chains that end in a hash whose
    /// lowest bit is set.
    ///
    /// # Safety
    /// The module is loaded and has such a table.
    unsafe fn find_by_gnu_hash(&self, name: &CStr) -> Option<u32> {
        let bytes = name.to_bytes().iter();
        let hash = bytes.fold(5381u32, |hash, byte| {
            hash.wrapping_mul(33).wrapping_add(u32::from(*byte))
        });
        let table = self.gnu_hash as *const u32;
        // SAFETY: the table's own numbers say where its parts are.
        unsafe {
            let [buckets, first, filters, _] = *table.cast::<[u32; 4]>();
            if buckets == 0 {
                return None;
            }
            let bucket = table.add(4 + 2 * filters as usize);
            let chain = bucket.add(buckets as usize);
            let mut index = *bucket.add((hash % buckets) as usize);
            if index < first {
                return None;
            }
            loop {
                let other = *chain.add((index - first) as usize);
                if (other ^ hash) >> 1 == 0 && self.is(index, name) {
                    return Some(index);
                }
                if other & 1 != 0 {
                    return None;
                }
                index += 1;
            }
        }
    }

    /// The table of the System V ABI ("Hash Table"). It says how many symbols there are: all are looked at.
    ///
    /// # Safety
    /// The module is loaded and has such a table.
    unsafe fn find_by_hash(&self, name: &CStr) -> Option<u32> {
        // SAFETY: the second word of the table; symbols up to that number.
        unsafe {
            let symbols = *(self.hash as *const u32).add(1);
            (1..symbols).find(|index| self.is(*index, name))
        }
    }
}

/// The bytes of a C string; none of a null pointer.
///
/// # Safety
/// The address of a C string that stays for as long as the result is used, or 0.
unsafe fn bytes_at(address: u64) -> &'static [u8] {
    match address {
        0 => b"",
        // SAFETY: as the caller promises.
        _ => unsafe { CStr::from_ptr(address as *const c_char) }.to_bytes(),
    }
}
