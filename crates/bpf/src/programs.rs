//! The list of programs, and loading those that this kernel can take

use std::collections::HashSet;
use std::sync::Mutex;

use libbpf_rs::btf::{BtfType, types};
use libbpf_rs::{Link, Object, ObjectBuilder, PrintLevel};

use crate::{BpfError, Capability, Hooks, LoadOptions, VanishHooks};

#[repr(align(8))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/varve.bpf.o")));

const BTF: &str = "/sys/kernel/btf/vmlinux";

/// A program, the tracepoint that it hangs on (none for those run on demand), and what it is for
pub(crate) struct Program {
    pub(crate) name: &'static str,
    tracepoint: Option<&'static str>,
    purpose: &'static str,
    need: Need,
}

/// What becomes of a recording on a kernel that does not take the program
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// There is none
    Required,
    /// It is not complete
    Promised,
    /// It knows less, and nothing that was touched is missing for that
    Optional,
}

const fn program(
    name: &'static str,
    tracepoint: &'static str,
    purpose: &'static str,
    need: Need,
) -> Program {
    Program {
        name,
        tracepoint: Some(tracepoint),
        purpose,
        need,
    }
}

/// The programs of [`VanishHooks::Locks`] and of [`VanishHooks::Calls`]
const BY_LOCKS: [&str; 4] = ["lock_asked", "lock_released", "area_found", "tree_written"];
const BY_CALLS: [&str; 2] = ["call_enter", "call_exit"];

pub(crate) const PROGRAMS: [Program; 25] = [
    Program {
        name: "walk_process",
        tracepoint: None,
        purpose: "reads the accessed bits of a process",
        need: Need::Required,
    },
    Program {
        name: "calibrate",
        tracepoint: None,
        purpose: "finds where the kernel keeps its memory",
        need: Need::Required,
    },
    Program {
        name: "change_flags",
        tracepoint: None,
        purpose: "changes what is done with the events of one process",
        need: Need::Required,
    },
    // Before the other, which notes what this one is to see the end of: else a call in between looks as if it never ended.
    program(
        "call_exit",
        "sys_exit",
        "mapping events: objects of processes without the preload library",
        Need::Optional,
    ),
    program(
        "call_enter",
        "sys_enter",
        "reads the bits of pages before system calls remove them",
        Need::Promised,
    ),
    program(
        "lock_released",
        "mmap_lock_released",
        "mapping events: objects of processes without the preload library",
        Need::Optional,
    ),
    program(
        "area_found",
        "vm_unmapped_area",
        "where the kernel puts mappings, for mapping events",
        Need::Optional,
    ),
    program(
        "tree_written",
        "ma_write",
        "which mappings calls make, for mapping events",
        Need::Optional,
    ),
    program(
        "lock_asked",
        "mmap_lock_start_locking",
        "reads the bits of pages before what changes mappings, ends a process or reaches into it takes them",
        Need::Promised,
    ),
    program(
        "prepare_exec",
        "sched_prepare_exec",
        "reads the bits of the old memory at exec (kernel 6.10 and later; else as the memory is given up)",
        Need::Optional,
    ),
    program(
        "signal_deliver",
        "signal_deliver",
        "reads the bits of a process that is killed",
        Need::Promised,
    ),
    program(
        "process_fork",
        "sched_process_fork",
        "follows new processes and threads from their first instruction",
        Need::Promised,
    ),
    program(
        "process_exec",
        "sched_process_exec",
        "follows exec",
        Need::Promised,
    ),
    program(
        "process_exit",
        "sched_process_exit",
        "follows exits",
        Need::Promised,
    ),
    program(
        "process_free",
        "sched_process_free",
        "forgets process numbers before they are used again",
        Need::Optional,
    ),
    program(
        "task_rename",
        "task_rename",
        "names of threads",
        Need::Optional,
    ),
    program(
        "task_reaping",
        "start_task_reaping",
        "reads the bits of a process that the kernel reaps for want of memory",
        Need::Optional,
    ),
    program(
        "file_collapsed",
        "mm_khugepaged_scan_file",
        "counts what khugepaged takes of mapped files",
        Need::Optional,
    ),
    program(
        "request_submitted",
        "io_uring_submit_req",
        "counts what io_uring is asked to take away (kernel 6.3 and later)",
        Need::Optional,
    ),
    program(
        "entry_submitted",
        "io_uring_submit_sqe",
        "counts what io_uring is asked to take away (up to kernel 6.2)",
        Need::Optional,
    ),
    program(
        "group_thawed",
        "cgroup_unfreeze",
        "notices when somebody else lets a held cgroup go",
        Need::Optional,
    ),
    program(
        "fault_user",
        "page_fault_user",
        "page faults of the program: first touches with thread, CPU and instruction",
        Need::Optional,
    ),
    program(
        "fault_kernel",
        "page_fault_kernel",
        "page faults of the kernel on behalf of the program",
        Need::Optional,
    ),
    program(
        "thread_switch",
        "sched_switch",
        "measures how long threads wait for trapped accesses",
        Need::Optional,
    ),
    Program {
        name: "sample_clock",
        tracepoint: None,
        purpose: "samples what each thread is doing when a CPU's clock interrupts it",
        need: Need::Optional,
    },
];

/// The loaded object, what is attached, and what is not
pub(crate) struct Loaded {
    pub(crate) object: Object,
    pub(crate) links: Vec<Link>,
    pub(crate) attached: HashSet<&'static str>,
    pub(crate) capabilities: Vec<Capability>,
    pub(crate) vanish: VanishHooks,
}

/// What libbpf said last; it has one voice per process
static SAID: Mutex<String> = Mutex::new(String::new());

fn listen(_level: PrintLevel, message: String) {
    if let Ok(mut said) = SAID.lock() {
        said.push_str(&message);
    }
}

fn take_said() -> String {
    SAID.lock()
        .map(|mut said| std::mem::take(&mut *said))
        .unwrap_or_default()
}

/// Loads what can be loaded; a program that the kernel refuses is left out unless it is required
pub(crate) fn load(options: &LoadOptions) -> Result<Loaded, BpfError> {
    if !std::path::Path::new(BTF).exists() {
        return Err(BpfError::NoBtf);
    }
    let before = libbpf_rs::set_print(Some((PrintLevel::Warn, listen)));
    let result = load_possible(options);
    libbpf_rs::set_print(before);
    result
}

fn load_possible(options: &LoadOptions) -> Result<Loaded, BpfError> {
    let mut refused: Vec<(&'static str, String)> = Vec::new();
    let vanish = match options.vanish {
        VanishHooks::Locks if has_tracepoint("mmap_lock_start_locking") => VanishHooks::Locks,
        _ => VanishHooks::Calls,
    };
    let unused: &[&'static str] = match vanish {
        VanishHooks::Locks => &BY_CALLS,
        VanishHooks::Calls => &BY_LOCKS,
    };
    refused.extend(unused.iter().map(|name| (*name, "switched off".into())));
    if !options.faults {
        for name in ["fault_user", "fault_kernel"] {
            refused.push((name, "switched off".into()));
        }
    }
    if !options.waits {
        refused.push(("thread_switch", "switched off".into()));
    }
    if options.hooks == Hooks::Portable {
        refused.push(("prepare_exec", "switched off".into()));
    }
    let left_out = options.left_out.iter();
    refused.extend(left_out.map(|name| (*name, "switched off".into())));
    loop {
        take_said();
        match open(options, &refused) {
            Ok(object) => return Ok(attach(object, refused, vanish, unused)),
            Err(error) => {
                let said = take_said();
                // The verifier refuses with EACCES, too, but it leaves a log
                let verified = said.contains("BEGIN PROG LOAD LOG");
                // Without CAP_PERFMON a program is refused for what it reads
                if let Some(lacking) = lacking() {
                    return Err(BpfError::NoPrivilege(lacking));
                }
                if !verified && error.kind() == libbpf_rs::ErrorKind::PermissionDenied {
                    return Err(BpfError::Forbidden);
                }
                let Some(program) = blamed(&said, &refused) else {
                    return Err(BpfError::Load(format!("{error}: {}", tail(&said))));
                };
                if program.need == Need::Required {
                    return Err(BpfError::Verifier {
                        program: program.name.into(),
                        log: tail(&said),
                    });
                }
                refused.push((program.name, tail(&said)));
            }
        }
    }
}

/// What this process lacks of the capabilities that loading takes
fn lacking() -> Option<String> {
    let own = varve_sys::Rights::own();
    let needed = [varve_sys::Capability::Bpf, varve_sys::Capability::Perfmon];
    let lacking = needed.iter().filter(|c| !own.covers(**c));
    let names: Vec<&str> = lacking.map(|c| c.as_str()).collect();
    (!names.is_empty()).then(|| names.join(" and "))
}

fn open(
    options: &LoadOptions,
    refused: &[(&'static str, String)],
) -> Result<Object, libbpf_rs::Error> {
    let mut open = ObjectBuilder::default().open_memory(&OBJECT.0)?;
    for mut map in open.maps_mut() {
        match map.name().to_str() {
            Some("ring") => map.set_max_entries(ring_bytes(options))?,
            Some("tracked" | "exempt") => map.set_max_entries(options.max_processes.max(1))?,
            Some("sample_ring") => map.set_max_entries(sample_ring_bytes(options))?,
            Some("regions" | "residents") => map.set_max_entries(options.walk_regions.max(1))?,
            _ => {}
        }
    }
    for mut program in open.progs_mut() {
        if refused.iter().any(|(name, _)| program.name() == *name) {
            program.set_autoload(false);
        }
    }
    open.load()
}

/// The ring's real size: a power of two, a page at least
pub(crate) fn ring_bytes(options: &LoadOptions) -> u32 {
    options.ring_bytes.clamp(4096, 1 << 30).next_power_of_two()
}

/// The same of the ring of samples
pub(crate) fn sample_ring_bytes(options: &LoadOptions) -> u32 {
    options
        .sample_ring_bytes
        .clamp(4096, 1 << 30)
        .next_power_of_two()
}

/// The program that libbpf names as the one that failed
fn blamed(said: &str, refused: &[(&'static str, String)]) -> Option<&'static Program> {
    PROGRAMS.iter().find(|program| {
        let name = program.name;
        !refused.iter().any(|(refused, _)| *refused == name)
            && (said.contains(&format!("prog '{name}': failed to load"))
                || said.contains(&format!("prog '{name}': BPF program load failed")))
    })
}

/// The end of a long message, where a verifier gives its reason
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

fn attach(
    object: Object,
    refused: Vec<(&'static str, String)>,
    vanish: VanishHooks,
    unused: &[&str],
) -> Loaded {
    let mut links = Vec::new();
    let mut attached = HashSet::new();
    let mut capabilities = Vec::new();
    for program in PROGRAMS.iter().filter(|p| !unused.contains(&p.name)) {
        let problem = match refused.iter().find(|(name, _)| *name == program.name) {
            Some((_, log)) => Some(log.clone()),
            None => hang(&object, program, &mut links).err(),
        };
        if problem.is_none() {
            attached.insert(program.name);
        }
        capabilities.push(Capability {
            name: program.tracepoint.unwrap_or(program.name),
            purpose: program.purpose,
            available: problem.is_none(),
            required: program.need == Need::Required,
            promised: program.need == Need::Promised,
            detail: problem.unwrap_or_else(|| "loaded".into()),
        });
    }
    Loaded {
        object,
        links,
        attached,
        capabilities,
        vanish,
    }
}

fn hang(object: &Object, program: &Program, links: &mut Vec<Link>) -> Result<(), String> {
    let Some(tracepoint) = program.tracepoint else {
        return Ok(());
    };
    let Some(loaded) = object.progs_mut().find(|p| p.name() == program.name) else {
        return Err("the program is not in the object".into());
    };
    match loaded.attach_raw_tracepoint(tracepoint) {
        Ok(link) => {
            links.push(link);
            Ok(())
        }
        Err(error) => {
            Err(BpfError::MissingTracepoint(format!("{tracepoint} ({error})")).to_string())
        }
    }
}

/// Whether this kernel has a tracepoint
fn has_tracepoint(name: &str) -> bool {
    let known = libbpf_rs::btf::Btf::from_vmlinux();
    known.is_ok_and(|btf| {
        btf.type_by_name::<BtfType<'_>>(&format!("btf_trace_{name}"))
            .is_some()
    })
}

/// Whether `sched_process_exit` runs before a process lets its memory go: it was moved there, and
/// given one more argument, in Linux 6.16
pub(crate) fn exit_comes_before_memory_goes() -> bool {
    let Ok(btf) = libbpf_rs::btf::Btf::from_vmlinux() else {
        return false;
    };
    let Some(hook) = btf.type_by_name::<BtfType<'_>>("btf_trace_sched_process_exit") else {
        return false;
    };
    let mut kind = hook.next_type();
    for _ in 0..4 {
        let Some(current) = kind else { return false };
        if let Ok(function) = types::FuncProto::try_from(current) {
            return function.len() >= 3;
        }
        kind = current.next_type();
    }
    false
}
