//! The dynamic loader's list of modules, and what they define, without the loader's own functions: those could be another library's, and
//! are not where each C library has them.
//!
//! The list is read as debuggers read it (`_r_debug`, `<link.h>`). No lock keeps it as it is, so it is read while the program
//! begins. What is looked up later is looked up under the loader's lock ([`later`]).

use std::arch::{asm, global_asm};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use crate::own;
use crate::symbols::{DT_SONAME, Symbols, bytes_at};

// Without the symbol, as in other loaders than that of the GNU C library, the list is empty.
global_asm!(
    ".pushsection .text.varve_preload_loader,\"ax\",@progbits",
    ".weak _r_debug",
    ".hidden varve_preload_debug",
    ".globl varve_preload_debug",
    ".type varve_preload_debug, @function",
    "varve_preload_debug:",
    "mov rax, qword ptr [rip + _r_debug@GOTPCREL]",
    "ret",
    ".size varve_preload_debug, . - varve_preload_debug",
    ".popsection",
);

unsafe extern "C" {
    safe fn varve_preload_debug() -> *const Debug;
}

/// `struct r_debug`, up to what is needed.
#[repr(C)]
struct Debug {
    version: c_int,
    first: *const LinkMap,
}

/// `struct link_map`: a module.
#[repr(C)]
pub(crate) struct LinkMap {
    /// How far it lies from the addresses in its file.
    pub(crate) bias: u64,
    name: *const c_char,
    section: *const [u64; 2],
    next: *const LinkMap,
}

/// How many entries a dynamic section has at most; linkers make some forty.
const MAX_ENTRIES: usize = 4096;

impl LinkMap {
    /// Its file, as the loader has it; empty for the program.
    ///
    /// # Safety
    /// The module is loaded for as long as the result is used.
    pub(crate) unsafe fn name(&self) -> &'static [u8] {
        // SAFETY: the loader's name is a C string or null.
        unsafe { bytes_at(self.name as u64) }
    }

    /// Its symbol table, and the name that it has for others that need it; empty where it has none.
    ///
    /// # Safety
    /// The module is loaded for as long as the result is used.
    pub(crate) unsafe fn symbols(&self) -> (Symbols, &'static [u8]) {
        if self.section.is_null() {
            return (Symbols::default(), b"");
        }
        let mut soname = None;
        let note = |tag, value| {
            if tag == DT_SONAME {
                soname = Some(value);
            }
        };
        // SAFETY: a loaded module's section, which ends in an entry of zeroes.
        let symbols = unsafe { Symbols::read(self.bias, self.section, MAX_ENTRIES, note) };
        // SAFETY: an offset of a C string in the string table.
        let soname = soname.map_or(&b""[..], |offset| unsafe { symbols.string(offset) });
        (symbols, soname)
    }

    /// Where its dynamic section lies.
    pub(crate) fn section_at(&self) -> u64 {
        self.section as u64
    }

    /// Whether it is this library.
    pub(crate) fn is_own(&self) -> bool {
        let own: *const [u64; 2];
        // SAFETY: takes the address of what the linker defines for each library.
        unsafe { asm!("lea {0}, [rip + _DYNAMIC]", out(reg) own, options(nomem, nostack)) };
        self.section == own
    }
}

/// The modules, in the loader's order.
///
/// # Safety
/// Nothing is loaded or unloaded meanwhile.
pub(crate) unsafe fn modules() -> impl Iterator<Item = &'static LinkMap> {
    let debug = varve_preload_debug();
    // SAFETY: the loader's variable, where it has it.
    let mut next = unsafe { debug.as_ref() }.map_or(std::ptr::null(), |debug| debug.first);
    std::iter::from_fn(move || {
        // SAFETY: the loader's list, which stays as it is as the caller promises.
        let module = unsafe { next.as_ref() }?;
        next = module.next;
        Some(module)
    })
}

/// Where a definition is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// In what the loader has behind this library: what `dlsym(RTLD_NEXT)` gives.
    Next,
    /// In all but this library, the program first: what the C library itself takes for its variables.
    First,
    /// In the C library's own modules: no other library can take it.
    CLibrary,
}

/// Whether a module is one of the GNU C library's.
fn is_c_library(soname: &[u8]) -> bool {
    const NAMES: [&[u8]; 4] = [
        b"libc.so.6",
        b"libpthread.so.0",
        b"libdl.so.2",
        b"ld-linux-x86-64.so.2",
    ];
    NAMES.contains(&soname)
}

/// The kernel's own module, whose functions have other names and arguments.
fn is_vdso(soname: &[u8]) -> bool {
    soname.starts_with(b"linux-vdso.so")
}

/// The program headers of a module that the loader describes.
pub(crate) fn headers(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the loader's own description, which lives as long as the module's.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
}

/// A search through the modules in the loader's order.
struct Search<'a> {
    whose: Whose,
    name: &'a CStr,
    is_behind: bool,
    found: *mut c_void,
}

impl Search<'_> {
    /// Looks in the next module; whether the search is over.
    ///
    /// # Safety
    /// A loaded module.
    unsafe fn look(&mut self, module: &LinkMap) -> bool {
        if module.is_own() {
            self.is_behind = true;
            return false;
        }
        if self.whose == Whose::Next && !self.is_behind {
            return false;
        }
        // SAFETY: as the caller promises.
        let (symbols, soname) = unsafe { module.symbols() };
        if is_vdso(soname) || (self.whose == Whose::CLibrary && !is_c_library(soname)) {
            return false;
        }
        // SAFETY: as the caller promises.
        let found = unsafe { symbols.define(self.name) };
        self.found = found.unwrap_or(null_mut());
        found.is_some()
    }
}

/// Looks a function or variable up, while the program begins; null where there is none.
pub(crate) fn look_up(whose: Whose, name: &CStr) -> *mut c_void {
    let mut search = Search {
        whose,
        name,
        is_behind: false,
        found: null_mut(),
    };
    // SAFETY: the program begins: nothing is unloaded, and what is loaded is there.
    unsafe { modules() }.any(|module| unsafe { search.look(module) });
    search.found
}

/// The same at any time. Takes a lock of the loader.
#[cold]
pub(crate) fn later(whose: Whose, name: &CStr) -> *mut c_void {
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid record, and back the pointer given to it below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
        let headers = headers(info);
        let Some(dynamic) = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC) else {
            return 0;
        };
        let module = LinkMap {
            bias: info.dlpi_addr,
            name: info.dlpi_name,
            section: info.dlpi_addr.wrapping_add(dynamic.p_vaddr) as *const _,
            next: std::ptr::null(),
        };
        // SAFETY: the loader keeps its list as it is for as long as the callback runs.
        c_int::from(unsafe { search.look(&module) })
    }
    let mut search = Search {
        whose,
        name,
        is_behind: false,
        found: null_mut(),
    };
    // SAFETY: the callback gets the pointer to the local, which outlives the call.
    unsafe { own::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

/// The file of the module that holds an address, as the loader has it; none of the program's own. Takes a lock of the loader.
pub(crate) fn file_of(address: u64) -> Option<&'static CStr> {
    struct Holder {
        address: u64,
        name: *const c_char,
    }
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: usize,
        holder: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid record, and back the pointer given to it below.
        let (info, holder) = unsafe { (&*info, &mut *holder.cast::<Holder>()) };
        let headers = headers(info);
        let at = holder.address.wrapping_sub(info.dlpi_addr);
        let mut loads = headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        if !loads.any(|h| (h.p_vaddr..h.p_vaddr.saturating_add(h.p_memsz)).contains(&at)) {
            return 0;
        }
        holder.name = info.dlpi_name;
        1
    }
    let mut holder = Holder {
        address,
        name: std::ptr::null(),
    };
    // SAFETY: the callback gets the pointer to the local, which outlives the call.
    unsafe { own::dl_iterate_phdr(Some(look), (&raw mut holder).cast()) };
    if holder.name.is_null() {
        return None;
    }
    // SAFETY: the loader's string, which lives as long as the module: the caller's address is in use.
    let name = unsafe { CStr::from_ptr(holder.name) };
    (!name.is_empty()).then_some(name)
}
