//! The symbol table of a loaded module.

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;

const DT_NULL: u64 = 0;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;
/// See [`Symbols::read`].
pub(crate) const DT_NEEDED: u64 = 1;
/// See [`Symbols::read`].
pub(crate) const DT_SONAME: u64 = 14;

/// A symbol that is defined elsewhere.
const UNDEFINED: u16 = 0;
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
/// A version that only programs which were linked against it find.
const HIDDEN: u16 = 0x8000;

/// Where a module has its symbol table; 0 where it has none. What it refers to is there for as long as the module is loaded.
#[derive(Clone, Copy, Default)]
pub(crate) struct Symbols {
    bias: u64,
    symbols: u64,
    strings: u64,
    gnu_hash: u64,
    hash: u64,
    versions: u64,
}

impl Symbols {
    /// Reads a module's dynamic section, up to its end or a number of entries. The numbers of all entries that are no
    /// addresses are passed on, with their tags.
    ///
    /// # Safety
    /// The dynamic section of a loaded module.
    pub(crate) unsafe fn read(
        bias: u64,
        section: *const [u64; 2],
        entries: usize,
        mut other: impl FnMut(u64, u64),
    ) -> Symbols {
        let mut found = Symbols {
            bias,
            ..Symbols::default()
        };
        for index in 0..entries {
            // SAFETY: the section ends in an entry of zeroes, or where the caller says.
            let [tag, value] = unsafe { *section.wrapping_add(index) };
            // The loader has made addresses of the offsets, but in modules whose section cannot be written, as the vDSO's.
            let address = match value < bias {
                true => bias.wrapping_add(value),
                false => value,
            };
            match tag {
                DT_NULL => break,
                DT_STRTAB => found.strings = address,
                DT_SYMTAB => found.symbols = address,
                DT_HASH => found.hash = address,
                DT_GNU_HASH => found.gnu_hash = address,
                DT_VERSYM => found.versions = address,
                _ => other(tag, value),
            }
        }
        found
    }

    /// A string of its table; none where it has no table.
    ///
    /// # Safety
    /// The module is loaded, for as long as the result is used, and has a string there.
    pub(crate) unsafe fn string(&self, offset: u64) -> &'static [u8] {
        match self.strings {
            0 => b"",
            // SAFETY: as the caller promises.
            strings => unsafe { bytes_at(strings.wrapping_add(offset)) },
        }
    }

    /// The function or variable that it defines under a name, for whoever names no version: where it has several, its default.
    ///
    /// # Safety
    /// The module is loaded. Where it chooses among functions when they are looked up, it is relocated.
    pub(crate) unsafe fn define(&self, name: &CStr) -> Option<*mut c_void> {
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
        let found = self.bias.wrapping_add(symbol.st_value) as *mut c_void;
        if symbol.st_info & 0xf == STT_GNU_IFUNC {
            // SAFETY: such a symbol is a function that gives the function's address.
            let choose: unsafe extern "C" fn() -> *mut c_void = unsafe { transmute(found) };
            // SAFETY: the module is relocated, as the caller promises.
            return Some(unsafe { choose() });
        }
        Some(found)
    }

    fn symbol(&self, index: u32) -> *const libc::Elf64_Sym {
        (self.symbols as *const libc::Elf64_Sym).wrapping_add(index as usize)
    }

    /// Whether a symbol is a definition of that name.
    ///
    /// # Safety
    /// The index of a symbol of a loaded module.
    unsafe fn is(&self, index: u32, name: &CStr) -> bool {
        // SAFETY: as the caller promises; its name is a C string of the string table, and each symbol has a version where any has.
        unsafe {
            let symbol = &*self.symbol(index);
            symbol.st_shndx != UNDEFINED
                && matches!(symbol.st_info & 0xf, STT_FUNC | STT_OBJECT | STT_GNU_IFUNC)
                && self.string(u64::from(symbol.st_name)) == name.to_bytes()
                && (self.versions == 0
                    || *(self.versions as *const u16).add(index as usize) & HIDDEN == 0)
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
pub(crate) unsafe fn bytes_at(address: u64) -> &'static [u8] {
    match address {
        0 => b"",
        // SAFETY: as the caller promises.
        _ => unsafe { CStr::from_ptr(address as *const c_char) }.to_bytes(),
    }
}
