//! Following a program into the next: the emulator itself would let an `execve` run natively.

use std::ffi::{CStr, CString, OsStr, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use varve_qemu_counter_abi::Program;

use crate::api::{self, Instruction, PluginId};
use crate::file;

/// Where the program's address 0 lies in the emulator; `UNKNOWN` at first.
static BASE: AtomicU64 = AtomicU64::new(UNKNOWN);
const UNKNOWN: u64 = u64::MAX;

/// How the emulator was started.
struct Emulator {
    program: CString,
    plugin: CString,
    /// The program that it runs, whatever the current folder becomes.
    emulated: Option<PathBuf>,
}

static EMULATOR: OnceLock<Option<Emulator>> = OnceLock::new();

/// Notes where the emulator and this library lie.
pub(crate) fn prepare(folder: &[u8], identity: &[u8]) {
    EMULATOR.get_or_init(|| {
        let program = std::fs::read_link("/proc/self/exe").ok()?;
        let mut plugin = own_path()?;
        plugin.extend_from_slice(b",folder=");
        plugin.extend_from_slice(folder);
        plugin.extend_from_slice(b",identity=");
        plugin.extend_from_slice(identity);
        Some(Emulator {
            program: CString::new(program.as_os_str().as_bytes()).ok()?,
            plugin: CString::new(plugin).ok()?,
            emulated: emulated_by("self").and_then(|path| path.canonicalize().ok()),
        })
    });
}

/// The program that a process runs whose program is an emulator that was started as this one.
fn emulated_by(process: &str) -> Option<PathBuf> {
    let line = std::fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let mut words = line
        .split(|byte| *byte == 0)
        .skip_while(|word| *word != b"-0");
    let program = words.nth(2)?;
    Some(PathBuf::from(OsStr::from_bytes(program)))
}

/// What a path names to the program: of a process that is emulated, the kernel takes the emulator for its program.
fn named(path: &CStr, emulator: &Emulator) -> PathBuf {
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let process = || {
        let name = path
            .to_str()?
            .strip_prefix("/proc/")?
            .strip_suffix("/exe")?;
        Some(name.strip_prefix("thread-").unwrap_or(name))
    };
    let is_emulator = || {
        let program = Path::new(OsStr::from_bytes(emulator.program.as_bytes()));
        std::fs::read_link(path).is_ok_and(|exe| exe == program)
    };
    let program = process().filter(|_| is_emulator()).and_then(|process| {
        let own = std::process::id().to_string();
        if process == "self" || process == own {
            return emulator.emulated.clone();
        }
        emulated_by(process)
    });
    program.unwrap_or_else(|| path.to_owned())
}

fn own_path() -> Option<Vec<u8>> {
    // SAFETY: all fields may be zero.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is writable; the address is one of this library's.
    let found = unsafe { libc::dladdr(prepare as *const c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's string, valid while the library is loaded.
    Some(
        unsafe { CStr::from_ptr(info.dli_fname) }
            .to_bytes()
            .to_vec(),
    )
}

/// Finds out where the program's addresses lie.
pub(crate) fn learn_base(instruction: *const Instruction) {
    if BASE.load(Ordering::Relaxed) == UNKNOWN {
        // SAFETY: the emulator is translating the instruction.
        let (host, guest) = unsafe {
            (
                api::qemu_plugin_insn_haddr(instruction) as u64,
                api::qemu_plugin_insn_vaddr(instruction),
            )
        };
        BASE.store(host.wrapping_sub(guest), Ordering::Relaxed);
    }
}

/// The program makes a system call.
#[allow(clippy::too_many_arguments)]
pub(crate) extern "C" fn system_call(
    _: PluginId,
    _: u32,
    number: i64,
    a1: u64,
    a2: u64,
    a3: u64,
    a4: u64,
    a5: u64,
    _: u64,
    _: u64,
    _: u64,
) {
    if number == libc::SYS_execve {
        if let Some(path) = string(a1) {
            exec(&path, a2, a3);
        }
    } else if number == libc::SYS_execveat {
        // The emulator may know no such call.
        match string(a2).and_then(|path| path_at(a1 as i32, &path, a5 as i32)) {
            Some(path) => exec(&path, a3, a4),
            None => file::count_unfollowed(),
        }
    } else if number == libc::SYS_brk && a1 == 0 && a2 & !MARK_KIND == MARK {
        mark(a2, a3, a4);
    }
}

/// A mark of the program's (`varve/mark.h`), but for its kind.
const MARK: u64 = 0x5652_5600;
const MARK_KIND: u64 = 3;

/// Makes the program's call once more, to the kernel: the emulator answers it by itself, so that nobody else would see it.
fn mark(what: u64, name: u64, bytes: u64) {
    let base = BASE.load(Ordering::Relaxed);
    if base != UNKNOWN {
        let name = name.wrapping_add(base);
        // SAFETY: the kernel says where the break is, and does not look at the other arguments.
        unsafe { libc::syscall(libc::SYS_brk, 0, what, name, bytes) };
    }
}

/// The path of what a descriptor and a path name together (execveat(2)), where it has one.
fn path_at(folder: i32, path: &CStr, flags: i32) -> Option<CString> {
    let name = Path::new(OsStr::from_bytes(path.to_bytes()));
    let is_empty = name.as_os_str().is_empty();
    if name.is_absolute() || folder == libc::AT_FDCWD && !is_empty {
        return Some(path.to_owned());
    }
    let link = format!("/proc/self/fd/{folder}");
    let base = std::fs::read_link(&link).ok()?;
    if !is_empty {
        return CString::new(base.join(name).into_os_string().into_vec()).ok();
    }
    let file = |path: &Path| std::fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let is_it = flags & libc::AT_EMPTY_PATH != 0 && file(&base)? == file(Path::new(&link))?;
    is_it
        .then(|| CString::new(base.into_os_string().into_vec()).ok())
        .flatten()
}

/// Runs the next program under the emulator too. Where that cannot be, this returns, and the emulator goes on with
/// the call as it is: a program that is not there or may not be run fails as ever, another one runs uncounted.
fn exec(path: &CStr, arguments: u64, environment: u64) {
    match plan(path, arguments, environment) {
        Plan::Fails => {}
        Plan::Unfollowed => file::count_unfollowed(),
        Plan::Run(words, variables) => {
            let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
                let list = strings.iter().map(|s| s.as_ptr());
                list.chain([std::ptr::null()]).collect()
            };
            let (argv, envp) = (pointers(&words), pointers(&variables));
            // SAFETY: both lists end in null and hold strings that live longer than the call.
            unsafe { libc::execve(argv[0], argv.as_ptr(), envp.as_ptr()) };
            file::count_unfollowed();
        }
    }
}

enum Plan {
    /// The kernel will say no.
    Fails,
    /// It will run, and cannot be counted.
    Unfollowed,
    /// The words and variables with which it runs under the emulator.
    Run(Vec<CString>, Vec<CString>),
}

fn plan(path: &CStr, arguments: u64, environment: u64) -> Plan {
    let (Some(arguments), Some(variables)) = (strings(arguments), strings(environment)) else {
        return Plan::Fails;
    };
    // SAFETY: a string.
    if unsafe { libc::access(path.as_ptr(), libc::X_OK) } != 0 {
        return Plan::Fails;
    }
    let Some(Some(emulator)) = EMULATOR.get() else {
        return Plan::Unfollowed;
    };
    let text = |s: &CString| OsStr::from_bytes(s.as_bytes()).to_owned();
    let arguments: Vec<_> = arguments.iter().map(text).collect();
    let path = named(path, emulator);
    let (kind, program, arguments) = Program::resolve(&path, &arguments);
    match kind {
        Program::Native => {}
        Program::Missing => return Plan::Fails,
        _ => return Plan::Unfollowed,
    }
    let (Some(set), rest) = preloaded(variables) else {
        return Plan::Unfollowed;
    };
    let mut words = vec![emulator.program.clone()];
    words.extend([c"-cpu", c"max", c"-plugin"].map(CStr::to_owned));
    words.push(emulator.plugin.clone());
    words.extend(set);
    words.push(c"-0".to_owned());
    let name = arguments.first().cloned().unwrap_or_default();
    let rest_of_words = arguments.into_iter().skip(1);
    for word in [name, program.into_os_string()]
        .into_iter()
        .chain(rest_of_words)
    {
        // They came from strings, so that none holds a zero byte.
        words.push(CString::new(word.as_bytes()).unwrap_or_default());
    }
    Plan::Run(words, rest)
}

/// What is meant for the program's loader must not reach the emulator's: such variables become options. `None` where
/// one cannot be reported that way.
fn preloaded(variables: Vec<CString>) -> (Option<Vec<CString>>, Vec<CString>) {
    let (loader, rest): (Vec<CString>, Vec<CString>) = variables
        .into_iter()
        .partition(|v| v.to_bytes().starts_with(b"LD_"));
    // The option splits its value there.
    if loader.iter().any(|v| v.to_bytes().contains(&b',')) {
        return (None, rest);
    }
    let options = loader.into_iter().flat_map(|v| [c"-E".to_owned(), v]);
    (Some(options.collect()), rest)
}

/// The list of strings at an address of the program; an empty one at null, as the kernel has it.
fn strings(mut at: u64) -> Option<Vec<CString>> {
    const MAX: usize = 1 << 20;
    let mut list = Vec::new();
    while at != 0 && list.len() < MAX {
        let mut word = [0; 8];
        if read(at, &mut word) != word.len() {
            return None;
        }
        let pointer = u64::from_ne_bytes(word);
        if pointer == 0 {
            break;
        }
        list.push(string(pointer)?);
        at += 8;
    }
    Some(list)
}

fn string(mut at: u64) -> Option<CString> {
    /// The kernel's own limit for one string.
    const MAX: usize = 128 << 10;
    let mut bytes = Vec::new();
    while bytes.len() < MAX {
        // Never across the end of a page: what follows may not be there.
        let mut piece = vec![0; (4096 - at % 4096) as usize];
        let length = read(at, &mut piece);
        piece.truncate(length);
        if length == 0 {
            return None;
        }
        if let Some(end) = piece.iter().position(|b| *b == 0) {
            bytes.extend_from_slice(&piece[..end]);
            return CString::new(bytes).ok();
        }
        bytes.extend_from_slice(&piece);
        at += length as u64;
    }
    None
}

/// Reads the program's memory; where there is none, less than was asked for.
fn read(at: u64, into: &mut [u8]) -> usize {
    let base = BASE.load(Ordering::Relaxed);
    if base == UNKNOWN {
        return 0;
    }
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: at.wrapping_add(base) as *mut c_void,
        iov_len: into.len(),
    };
    // SAFETY: the local buffer is writable; the kernel checks the other address.
    let got = unsafe {
        libc::process_vm_readv(std::process::id() as libc::pid_t, &local, 1, &remote, 1, 0)
    };
    got.max(0) as usize
}
