//! Which loaded object an address lies in, and where its unwind tables are.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ops::Range;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use framehop::{ExplicitModuleSectionInfo, Module};
use varve_cfi::Indexed;

use crate::loader::{self, LinkMap, Whose};
use crate::{own, real, unloading};

/// The unwind tables are read where the dynamic loader put them.
pub(crate) type Bytes = &'static [u8];

/// Counts `dlclose`, before and after: what was known about modules before may no longer hold.
static CLOSINGS: AtomicU32 = AtomicU32::new(0);
/// How many threads are in `dlclose`.
static CLOSING: AtomicU32 = AtomicU32::new(0);

pub(crate) fn epoch() -> u32 {
    CLOSINGS.load(Ordering::Acquire)
}

/// Whether a thread is closing a library.
pub(crate) fn is_closing() -> bool {
    CLOSING.load(Ordering::Acquire) != 0
}

/// Counts libraries that were unloaded, up to a number: another may lie there next.
static UNLOADED: AtomicU32 = AtomicU32::new(0);
const MAX_UNLOADED: u32 = 10_000;

pub(crate) fn unloaded() -> u32 {
    UNLOADED.load(Ordering::Relaxed)
}

/// The C library's answer about an address (glibc 2.35 and later); lock-free.
#[repr(C)]
pub(crate) struct FoundObject {
    pub(crate) flags: u64,
    pub(crate) map_start: *const u8,
    pub(crate) map_end: *const u8,
    pub(crate) link_map: *const LinkMap,
    pub(crate) eh_frame_hdr: *const u8,
    pub(crate) reserved: [u64; 7],
}

type FindObject = unsafe extern "C" fn(*const c_void, *mut FoundObject) -> c_int;
static FIND_OBJECT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks the C library's lookup function up, once, at the start.
pub(crate) fn resolve() {
    let found = loader::look_up(Whose::CLibrary, c"_dl_find_object");
    FIND_OBJECT.store(found, Ordering::Release);
}

/// A loaded object as far as unwinding needs it.
pub(crate) struct Loaded {
    pub(crate) range: Range<u64>,
    bias: u64,
    eh_frame_hdr: u64,
}

/// The object that holds the address, if any.
pub(crate) fn find(address: u64) -> Option<Loaded> {
    let function = FIND_OBJECT.load(Ordering::Acquire);
    if function.is_null() {
        return find_by_iteration(address);
    }
    // SAFETY: the symbol has this type wherever it exists.
    let function: FindObject = unsafe { transmute(function) };
    let mut found = FoundObject {
        flags: 0,
        map_start: null(),
        map_end: null(),
        link_map: null(),
        eh_frame_hdr: null(),
        reserved: [0; 7],
    };
    // SAFETY: fills a local that has the documented layout, with room to spare.
    if unsafe { function(address as *const c_void, &raw mut found) } != 0
        || found.link_map.is_null()
    {
        return None;
    }
    Some(Loaded {
        range: found.map_start as u64..found.map_end as u64,
        // SAFETY: the object is loaded: its code is on this thread's stack.
        bias: unsafe { (*found.link_map).bias },
        eh_frame_hdr: found.eh_frame_hdr as u64,
    })
}

/// Where the library and the C library have their variables without content in a file: starts and ends.
static HAS_STATICS: AtomicBool = AtomicBool::new(false);
static STATICS: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];

/// Finds the variables of the objects that hold these addresses. Takes a lock of the loader: at the start, before there are
/// threads. Once.
pub(crate) fn note_statics(codes: [u64; 2]) {
    if HAS_STATICS.swap(true, Ordering::AcqRel) {
        return;
    }
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: usize,
        codes: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid record, and back the pointer given to it below.
        let (info, codes) = unsafe { (&*info, &*codes.cast::<[u64; 2]>()) };
        let headers = loader::headers(info);
        let loads = headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        for (code, noted) in codes.iter().zip(&STATICS) {
            let at = code.wrapping_sub(info.dlpi_addr);
            let mut holding = loads.clone();
            if !holding.any(|h| (h.p_vaddr..h.p_vaddr.saturating_add(h.p_memsz)).contains(&at)) {
                continue;
            }
            // Segments lie in the order of their addresses; those before are filled up within their last page.
            if let Some(last) = loads.clone().rfind(|h| h.p_memsz > h.p_filesz) {
                let start = info.dlpi_addr + last.p_vaddr;
                noted[0].store((start + last.p_filesz) & !0xfff, Ordering::Relaxed);
                noted[1].store((start + last.p_memsz + 0xfff) & !0xfff, Ordering::Release);
            }
        }
        0
    }
    // SAFETY: the callback gets the pointer to the local, which outlives the call.
    unsafe { own::dl_iterate_phdr(Some(look), (&raw const codes).cast_mut().cast()) };
}

/// What [`note_statics`] has found, in its order.
pub(crate) fn statics() -> [Range<u64>; 2] {
    STATICS.each_ref().map(|noted| {
        let end = noted[1].load(Ordering::Acquire);
        noted[0].load(Ordering::Relaxed)..end
    })
}

struct Search {
    address: u64,
    found: Option<Loaded>,
}

/// For C libraries without the lock-free way. Takes a lock of the loader, hence only for addresses
/// not seen before.
fn find_by_iteration(address: u64) -> Option<Loaded> {
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid record, and back the pointer given to it below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        let headers = loader::headers(info);
        let loads = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD);
        let start = loads
            .clone()
            .map(|header| header.p_vaddr & !0xfff)
            .min()
            .unwrap_or(0);
        let end = loads
            .map(|header| header.p_vaddr + header.p_memsz)
            .max()
            .unwrap_or(0);
        let range = info.dlpi_addr + start..info.dlpi_addr + end;
        if !range.contains(&search.address) {
            return 0;
        }
        let hdr = headers
            .iter()
            .find(|header| header.p_type == libc::PT_GNU_EH_FRAME);
        search.found = Some(Loaded {
            range,
            bias: info.dlpi_addr,
            eh_frame_hdr: hdr.map_or(0, |header| info.dlpi_addr + header.p_vaddr),
        });
        1
    }
    let mut search = Search {
        address,
        found: None,
    };
    // SAFETY: the callback gets the pointer to the local, which outlives the call.
    unsafe { own::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

impl Loaded {
    /// Whether unwinding at an address of the object ends: its tables are the program's, and may be hostile.
    pub(crate) fn is_bounded_at(&self, address: u64) -> bool {
        let Some((index, frames)) = self.unwind_tables() else {
            return true;
        };
        let address_of = |bytes: Bytes| (bytes.as_ptr() as u64).wrapping_sub(self.bias);
        let tables = Indexed {
            index,
            index_address: address_of(index),
            frames,
            frames_address: address_of(frames),
            text_address: 0,
            got_address: 0,
        };
        tables.is_bounded_at(address.wrapping_sub(self.bias))
    }

    /// The unwinder's view of the object; without tables it falls back to frame pointers.
    pub(crate) fn module(&self) -> Module<Bytes> {
        let base_svma = self.range.start - self.bias;
        let mut sections = ExplicitModuleSectionInfo {
            base_svma,
            ..Default::default()
        };
        if let Some((hdr, frame)) = self.unwind_tables() {
            let svma = |bytes: Bytes| {
                let start = bytes.as_ptr() as u64 - self.bias;
                start..start + bytes.len() as u64
            };
            sections.eh_frame_hdr_svma = Some(svma(hdr));
            sections.eh_frame_hdr = Some(hdr);
            sections.eh_frame_svma = Some(svma(frame));
            sections.eh_frame = Some(frame);
        }
        Module::new(
            String::new(),
            self.range.clone(),
            self.range.start,
            sections,
        )
    }

    /// `.eh_frame_hdr` and `.eh_frame`, each up to the end of its segment.
    fn unwind_tables(&self) -> Option<(Bytes, Bytes)> {
        let hdr = self.segment_from(self.eh_frame_hdr)?;
        // Version 1, then how the pointer to .eh_frame is encoded: relative to itself, 4 bytes
        // signed, from every linker in use.
        if hdr.first() != Some(&1) || hdr.get(1) != Some(&0x1b) {
            return None;
        }
        let offset = i32::from_le_bytes(hdr.get(4..8)?.try_into().ok()?);
        let frame = (self.eh_frame_hdr + 4).checked_add_signed(i64::from(offset))?;
        Some((hdr, self.segment_from(frame)?))
    }

    /// Its program headers.
    fn headers(&self) -> Option<&'static [libc::Elf64_Phdr]> {
        // SAFETY: the first page of a loaded object is mapped, and holds its ELF header in all that
        // linkers make; the check of the magic comes before the rest is believed.
        let header = unsafe { &*(self.range.start as *const libc::Elf64_Ehdr) };
        if header.e_ident[..4] != *b"\x7fELF"
            || header.e_phoff + u64::from(header.e_phnum) * 56 > 4096
        {
            return None;
        }
        // SAFETY: the table lies within the first page, as checked.
        Some(unsafe {
            let table = (self.range.start + header.e_phoff) as *const libc::Elf64_Phdr;
            std::slice::from_raw_parts(table, usize::from(header.e_phnum))
        })
    }

    /// Where its code lies in memory and in the file, whole pages of both: the first segment that can be executed.
    fn code(&self) -> Option<(Range<u64>, u64)> {
        let headers = self.headers()?;
        let mut loads = headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        let code = loads.find(|h| h.p_flags & libc::PF_X != 0)?;
        let start = self.bias.wrapping_add(code.p_vaddr);
        let end = start.wrapping_add(code.p_memsz).wrapping_add(4095);
        Some(((start & !4095)..(end & !4095), code.p_offset & !4095))
    }

    /// The bytes from an address to the end of the loaded segment that it lies in.
    fn segment_from(&self, address: u64) -> Option<Bytes> {
        if !self.range.contains(&address) {
            return None;
        }
        let headers = self.headers()?;
        let end = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD)
            .map(|header| {
                (
                    self.bias + header.p_vaddr,
                    self.bias + header.p_vaddr + header.p_filesz,
                )
            })
            .find(|(start, end)| (*start..*end).contains(&address))?
            .1;
        // SAFETY: the loader mapped the segment readable (it holds tables), and it stays until the
        // object is closed, after which `epoch` makes every user of the bytes forget them.
        Some(unsafe { std::slice::from_raw_parts(address as *const u8, (end - address) as usize) })
    }
}

/// Tells of the library that a handle stands for, where the loader says which it is; where its code begins.
///
/// # Safety
/// A handle that may be given to `dlclose`.
unsafe fn tell_unloading(handle: *mut c_void) -> Option<u64> {
    let mut head: *const LinkMap = null();
    let to = (&raw mut head).cast();
    // SAFETY: the caller's handle; the loader writes one pointer.
    let is_known = unsafe { own::dlinfo(handle, libc::RTLD_DI_LINKMAP, to) } == 0;
    // SAFETY: what the loader gave is there until the library is closed.
    let head = unsafe { head.as_ref() }.filter(|_| is_known)?;
    let (code, offset) = find(head.section_at())?.code()?;
    let start = code.start;
    // SAFETY: the loader's name of a library is a C string that lives as long as the library.
    let path = unsafe { head.name() };
    if !path.is_empty() {
        unloading::tell(&unloading::Unloading { code, offset, path });
    }
    Some(start)
}

/// Closes a library, then makes the unwinders look again.
///
/// # Safety
/// As for the C library's `dlclose`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dlclose(handle: *mut c_void) -> c_int {
    // SAFETY: as the caller promises.
    let code = unsafe { tell_unloading(handle) };
    CLOSING.fetch_add(1, Ordering::AcqRel);
    CLOSINGS.fetch_add(1, Ordering::AcqRel);
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real::get().dlclose(handle) };
    CLOSINGS.fetch_add(1, Ordering::AcqRel);
    CLOSING.fetch_sub(1, Ordering::AcqRel);
    // Others may have it open still.
    if code.is_some_and(|code| find(code).is_none()) && unloaded() < MAX_UNLOADED {
        UNLOADED.fetch_add(1, Ordering::Relaxed);
    }
    result
}
