//! Programs that this library must not be loaded into, which turns out only when it is: they begin again without it.
//!
//! A sanitizer stands in front of the allocator itself. One ends the program where another library was loaded before its own, others
//! show this library's functions in their stacks, or crash. The loader calls a function of this library while it relocates it, before any
//! library begins: that function looks at what else is loaded, and where a sanitizer is, the process executes its program a second time, as
//! it was executed the first time but for this library.

use std::arch::global_asm;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{NonNull, null};

use crate::loader::{self, LinkMap};
use crate::roots::is_file;
use crate::sys;

// The loader calls such a function for the address of the one to be used (`STT_GNU_IFUNC`).
global_asm!(
    ".pushsection .text.varve_preload_gate,\"ax\",@progbits",
    ".hidden varve_preload_gate",
    ".globl varve_preload_gate",
    ".type varve_preload_gate, @gnu_indirect_function",
    "varve_preload_gate:",
    "jmp {choose}",
    ".size varve_preload_gate, . - varve_preload_gate",
    ".popsection",
    choose = sym choose,
);

unsafe extern "C" {
    fn varve_preload_gate();
}

#[used]
static GATE: unsafe extern "C" fn() = varve_preload_gate;

/// Keeps the linker from leaving the gate out.
pub(crate) fn passed() {
    std::hint::black_box(&GATE);
}

/// How sanitizers begin: gcc's are libraries, clang's lie in the program.
const STARTS: [&CStr; 6] = [
    c"__asan_init",
    c"__hwasan_init",
    c"__lsan_init",
    c"__memprof_init",
    c"__msan_init",
    c"__tsan_init",
];

/// Runs before any other code of this library and of all others, on the program's only thread. It may only make system calls.
extern "C" fn choose() -> *const c_void {
    // SAFETY: the loader relocates what it has loaded, and loads nothing meanwhile.
    let own = unsafe { loader::modules() }.find(|module| module.is_own());
    // SAFETY: as above.
    let mut others = unsafe { loader::modules() };
    if let Some(own) = own
        && others.any(has_sanitizer)
    {
        // SAFETY: loaded.
        begin_again(unsafe { own.name() });
    }
    nothing as extern "C" fn() as *const c_void
}

extern "C" fn nothing() {}

fn has_sanitizer(module: &LinkMap) -> bool {
    // SAFETY: loaded; such a function is none that the loader chooses by calling another one.
    unsafe {
        let (symbols, _) = module.symbols();
        STARTS.iter().any(|start| symbols.define(start).is_some())
    }
}

/// More than a program's arguments and variables can take (execve(2), "Limits on size of arguments and environment").
const ROOM: usize = 16 << 20;

/// Executes the program again without this library in the list of those to be preloaded. Comes back where that is not possible.
fn begin_again(own: &[u8]) {
    let (Some(words), Some(variables)) = (
        Strings::read(c"/proc/self/cmdline"),
        Strings::read(c"/proc/self/environ"),
    ) else {
        return;
    };
    if !variables.drop_from_list(own) {
        return;
    }
    let Some(program) = Program::find() else {
        return;
    };
    let arguments = [
        program.path() as usize,
        words.list as usize,
        variables.list as usize,
        0,
        0,
        0,
    ];
    // SAFETY: C strings and lists of them that end in a null pointer.
    unsafe { sys::call(libc::SYS_execve, arguments) };
}

/// C strings, and a list of them that ends in a null pointer.
struct Strings {
    list: *mut *mut u8,
}

impl Strings {
    /// Reads strings that each end in a zero byte.
    fn read(file: &CStr) -> Option<Strings> {
        let text = sys::map_anonymous(ROOM)?.as_ptr();
        // A pointer for each byte, and one more, are enough.
        let list = sys::map_anonymous((ROOM + 1) * 8)?
            .as_ptr()
            .cast::<*mut u8>();
        let file = sys::ReadFile::open(file)?;
        let mut length = 0;
        // SAFETY: within the memory that was mapped, of which one byte more than is read stays zero.
        unsafe {
            while length < ROOM - 8 {
                let rest = std::slice::from_raw_parts_mut(text.add(length), ROOM - 8 - length);
                match file.read_bytes(rest) {
                    0 => break,
                    read => length += read,
                }
            }
            let (mut at, mut count) = (0, 0);
            while at < length {
                *list.add(count) = text.add(at);
                count += 1;
                at += CStr::from_ptr(text.add(at).cast::<c_char>()).count_bytes() + 1;
            }
        }
        Some(Strings { list })
    }

    /// Takes a library out of the variable of those to be preloaded; whether it was there.
    fn drop_from_list(&self, own: &[u8]) -> bool {
        const NAME: &[u8] = b"LD_PRELOAD=";
        let mut was_there = false;
        let mut at = self.list;
        // SAFETY: the list ends in a null pointer, and its strings can be written.
        unsafe {
            while let Some(variable) = NonNull::new(*at) {
                let text = CStr::from_ptr(variable.as_ptr().cast::<c_char>()).to_bytes();
                if let Some(list) = text.strip_prefix(NAME) {
                    let is_own = |item: &&[u8]| is_file(item, own);
                    let items = || list.split(|byte| matches!(byte, b':' | b' '));
                    was_there |= items().any(|item| is_own(&item));
                    // Not longer than what is there, which is read ahead of what is written.
                    let mut to = variable.as_ptr().add(NAME.len());
                    let first = to;
                    for item in items().filter(|item| !item.is_empty() && !is_own(item)) {
                        if to != first {
                            *to = b':';
                            to = to.add(1);
                        }
                        std::ptr::copy(item.as_ptr(), to, item.len());
                        to = to.add(item.len());
                    }
                    *to = 0;
                    if to == first {
                        let mut from = at;
                        while !(*from).is_null() {
                            *from = *from.add(1);
                            from = from.add(1);
                        }
                        continue;
                    }
                }
                at = at.add(1);
            }
        }
        was_there
    }
}

/// The file that the process executes.
enum Program {
    /// As it was named, which the process is called after.
    Named(*const c_char),
    Link,
}

impl Program {
    const LINK: &CStr = c"/proc/self/exe";

    fn find() -> Option<Program> {
        let mut vector = [0u64; 128];
        let file = sys::ReadFile::open(c"/proc/self/auxv")?;
        let entries = file.read(&mut vector) / 16;
        let mut entries = vector.as_chunks::<2>().0.iter().take(entries);
        let name = entries.find(|[kind, _]| *kind == libc::AT_EXECFN);
        let name = name.map_or(null(), |[_, value]| *value as *const c_char);
        // SAFETY: the kernel's copy of the name is a C string.
        let named = (!name.is_null()).then(|| identity(unsafe { CStr::from_ptr(name) }));
        let is_it = named
            .flatten()
            .is_some_and(|named| Some(named) == identity(Self::LINK));
        Some(if is_it {
            Program::Named(name)
        } else {
            Program::Link
        })
    }

    fn path(&self) -> *const c_char {
        match self {
            Program::Named(name) => *name,
            Program::Link => Self::LINK.as_ptr(),
        }
    }
}

/// Which file a path leads to: its file system and its number there.
fn identity(path: &CStr) -> Option<(u64, u64)> {
    // SAFETY: zeroes are a valid struct.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    let at = libc::AT_FDCWD as usize;
    let arguments = [at, path.as_ptr() as usize, &raw mut found as usize, 0, 0, 0];
    // SAFETY: a C string, and a struct that lives here.
    let result = unsafe { sys::call(libc::SYS_newfstatat, arguments) };
    (result == 0).then_some((found.st_dev, found.st_ino))
}
