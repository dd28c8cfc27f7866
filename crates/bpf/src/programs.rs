//! What programs are, and loading those that this kernel can take

mod list;

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;

use libbpf_rs::{Link, MapCore, Object, ObjectBuilder, PrintLevel};

pub(crate) use self::list::PROGRAMS;
use crate::kernel::map_error;
use crate::types::KernelTypes;
use crate::{BpfError, Capability, Hooks, LoadOptions, VanishHooks, raw};

#[repr(align(8))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/varve.bpf.o")));

/// A program, what it hangs on, and what it is for
pub(crate) struct Program {
    pub(crate) name: &'static str,
    place: Place,
    purpose: &'static str,
    need: Need,
}

impl Program {
    /// Whether the recorder runs it, or attaches it, by itself
    pub(crate) fn is_on_demand(&self) -> bool {
        matches!(self.place, Place::Demand | Place::Later(_))
    }
}

/// What makes a program run
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The loader, or a perf event
    Demand,
    /// A tracepoint of this name
    Tracepoint(&'static str),
    /// The same, but only once it is wanted
    Later(&'static str),
    /// A function of the kernel of this name, which its type information must know
    Function(&'static str),
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
        place: Place::Tracepoint(tracepoint),
        purpose,
        need,
    }
}

const fn harvester(name: &'static str, function: &'static str, purpose: &'static str) -> Program {
    Program {
        name,
        place: Place::Function(function),
        purpose,
        need: Need::Optional,
    }
}

/// The programs that keep what `clear_refs` takes away, all of which it takes
pub(crate) const HARVESTERS: [&str; 3] = ["page_aged", "huge_page_aged", "table_cleared"];

/// The programs of [`VanishHooks::Locks`] and of [`VanishHooks::Calls`]
const BY_LOCKS: [&str; 5] = [
    "lock_asked",
    "lock_released",
    "area_found",
    "tree_written",
    MOVE_ASKED,
];
/// The program of [`crate::Kernel::watch_moves`]
pub(crate) const MOVE_ASKED: &str = "move_asked";
const BY_CALLS: [&str; 3] = ["call_enter", "call_exit", "file_collapsed"];

/// The program in which those go on that see pages go
pub(crate) const LOOK_AT_PAGES: &str = "look_at_pages";
/// Where they find it
const CONTINUATIONS: &str = "continuations";

/// The programs of pages that are read or go ([`crate::TrackFlags::VANISH`])
const OF_PAGES: [&str; 9] = [
    "walk_process",
    LOOK_AT_PAGES,
    "signal_deliver",
    "task_reaping",
    "file_collapsed",
    "request_submitted",
    "entry_submitted",
    "group_thawed",
    MOVE_ASKED,
];
/// The programs of page faults, of waits for pages, and of samples by the clock
const OF_FAULTS: [&str; 3] = ["fault_user", "fault_kernel", "access_refused"];
const OF_WAITS: [&str; 1] = ["thread_switch"];
const OF_SAMPLES: [&str; 1] = [SAMPLE_CLOCK];
/// The program of [`crate::Kernel::sample`]
pub(crate) const SAMPLE_CLOCK: &str = "sample_clock";
/// The program of [`crate::TrackedProcesses::dies_of_holds`]
pub(crate) const LOOK_AT_FILTERS: &str = "look_at_filters";

/// Tracepoints that kernels have under one name or another
const ALTERNATIVES: [[&str; 2]; 1] = [["io_uring_submit_req", "io_uring_submit_sqe"]];

/// The programs that charge allocator operations with what the kernel does within them
const OF_OPERATIONS: [&str; 7] = [
    "operation_call_exit",
    "operation_call_enter",
    "operation_fault_user",
    "operation_fault_kernel",
    "operation_process_free",
    "operation_process_exec",
    OPERATION_CLOCK,
];
/// The program of [`crate::Kernel::operations`]
pub(crate) const OPERATION_CLOCK: &str = "operation_clock";
/// All of them together, as a [`Capability`]
pub const OPERATION_PROGRAMS: &str = "allocator operations";
/// The programs that say how long these wait for the lock of their process's mappings
const OF_LOCK_WAITS: [&str; 2] = ["operation_lock_taken", "operation_lock_asked"];
/// Both together, as a [`Capability`]
pub const LOCK_WAIT_PROGRAMS: &str = "waits for mmap_lock";
/// Rows of the sums of operations, where they are kept
const OPERATION_ROWS: u32 = 1 << 16;

/// The programs that count allocator operations at the allocator's functions
const OF_PROBES: [&str; 4] = [ENTERED, RETURNED, CHANGE_PROBES, "operation_process_fork"];
/// Those of [`crate::Kernel::probes`]
pub(crate) const ENTERED: &str = "allocator_entered";
/// See above
pub(crate) const RETURNED: &str = "allocator_returned";
/// See above
pub(crate) const CHANGE_PROBES: &str = "change_probes";
/// All of them together, as a [`Capability`]
pub const PROBE_PROGRAMS: &str = "allocator probes";
/// Rows of what threads call, of times, and blocks that live, where they are kept
const PROBED_ROWS: u32 = 1 << 17;
const PROBED_TIMES: u32 = 1 << 16;
const PROBED_BLOCKS: u32 = 1 << 21;
/// Threads that may allocate at the same time
const PROBED_THREADS: u32 = 1 << 15;

/// The loaded object, what is attached, and what is not
pub(crate) struct Loaded {
    pub(crate) object: Object,
    pub(crate) links: Vec<Link>,
    /// Of [`HARVESTERS`]
    pub(crate) harvesters: Vec<Link>,
    pub(crate) attached: HashSet<&'static str>,
    pub(crate) capabilities: Vec<Capability>,
    /// Whether a process still has its memory when its exit is reported
    pub(crate) exit_has_memory: bool,
    pub(crate) vanish: VanishHooks,
}

/// Why a program is not loaded
enum Omitted {
    /// Something is missing without it
    Lacking(String),
    /// Another program does what it is for
    Needless(&'static str),
}

type Omissions = Vec<(&'static str, Omitted)>;

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
pub(crate) fn load(
    options: &LoadOptions,
    types: &KernelTypes,
    attaches_many: bool,
) -> Result<Loaded, BpfError> {
    let before = libbpf_rs::set_print(Some((PrintLevel::Warn, listen)));
    let result = load_possible(options, types, attaches_many);
    libbpf_rs::set_print(before);
    result
}

fn load_possible(
    options: &LoadOptions,
    types: &KernelTypes,
    attaches_many: bool,
) -> Result<Loaded, BpfError> {
    let vanish = match options.vanish {
        VanishHooks::Locks if types.has_tracepoint("mmap_lock_start_locking") => VanishHooks::Locks,
        _ => VanishHooks::Calls,
    };
    let unused = unused(options, vanish);
    let exit_has_memory = options.hooks == Hooks::Best && types.exit_comes_before_memory_goes();
    let mut refused = left_out(options, types, exit_has_memory);
    if options.harvest && raw::forbids_programs_on_functions() {
        // Asked for beforehand: an attempt with all programs takes some 60 ms, in which the target does not begin.
        leave_out_harvesters(&mut refused, HARVESTERS[0]);
    }
    loop {
        take_said();
        match open(options, attaches_many, &refused, &unused) {
            Ok(object) => {
                connect(&object).map_err(map_error(CONTINUATIONS))?;
                let attached = attach(object, &refused, &unused);
                return Ok(Loaded {
                    exit_has_memory,
                    vanish,
                    ..attached
                });
            }
            Err(error) => {
                let said = take_said();
                // The verifier refuses with EACCES, too, but it leaves a log
                let verified = said.contains("BEGIN PROG LOAD LOG");
                // Without CAP_PERFMON a program is refused for what it reads
                if let Some(lacking) = lacking() {
                    return Err(BpfError::NoPrivilege(lacking));
                }
                let blamed = blamed(&said, &refused);
                // A kernel may forbid programs on its functions alone
                let forbids = blamed.is_none_or(|p| !matches!(p.place, Place::Function(_)));
                if forbids && !verified && error.kind() == libbpf_rs::ErrorKind::PermissionDenied {
                    return Err(BpfError::Forbidden);
                }
                let Some(program) = blamed else {
                    return Err(BpfError::Load(format!("{error}: {}", tail(&said))));
                };
                if program.need == Need::Required {
                    return Err(BpfError::Verifier {
                        program: program.name.into(),
                        log: tail(&said),
                    });
                }
                match program.place {
                    Place::Function(_) => leave_out_harvesters(&mut refused, program.name),
                    _ => refused.push((program.name, Omitted::Lacking(tail(&said)))),
                }
            }
        }
    }
}

/// The programs that a recording with these options does not run. They are not loaded: the verifier takes its time with each, in
/// which the target does not begin
fn unused(options: &LoadOptions, vanish: VanishHooks) -> Vec<&'static str> {
    let groups: [(bool, &[&'static str]); 10] = [
        (vanish == VanishHooks::Locks, &BY_LOCKS),
        (vanish == VanishHooks::Calls, &BY_CALLS),
        (options.pages, &OF_PAGES),
        (options.faults, &OF_FAULTS),
        (options.waits, &OF_WAITS),
        (options.samples, &OF_SAMPLES),
        (options.harvest, &HARVESTERS),
        // Others' system calls are not to be slower for what nobody asked for.
        (options.operations, &OF_OPERATIONS),
        (options.operations, &OF_LOCK_WAITS),
        (options.probes, &OF_PROBES),
    ];
    let left = groups.into_iter().filter(|(is_used, _)| !is_used);
    left.flat_map(|(_, names)| names.iter().copied()).collect()
}

/// The programs that could not run on this kernel, need not, or are not to
fn left_out(options: &LoadOptions, types: &KernelTypes, exit_has_memory: bool) -> Omissions {
    let mut all = Omissions::new();
    let not_portable = (options.hooks == Hooks::Portable).then_some("prepare_exec");
    let switched_off = not_portable.iter().chain(&options.left_out);
    all.extend(switched_off.map(|name| (*name, Omitted::Lacking("switched off".into()))));
    if exit_has_memory && !options.left_out.contains(&"signal_deliver") {
        let why =
            "not needed: on this kernel a process has its memory still when its exit is reported";
        all.push(("signal_deliver", Omitted::Needless(why)));
    }
    // Of types that nobody understands nothing is concluded.
    if types.is_empty() {
        return all;
    }
    for program in &PROGRAMS {
        let (Place::Tracepoint(name) | Place::Later(name)) = program.place else {
            continue;
        };
        if !all.iter().any(|(left, _)| *left == program.name) && !types.has_tracepoint(name) {
            let why = BpfError::MissingTracepoint(name.to_owned()).to_string();
            all.push((program.name, Omitted::Lacking(why)));
        }
    }
    all
}

/// Leaves out the programs on functions of the kernel, which refuses the first of them: each is of use with the others only,
/// and each attempt takes its time
fn leave_out_harvesters(refused: &mut Omissions, first: &'static str) {
    for name in HARVESTERS {
        let why = if name == first {
            "this kernel does not let programs be attached to its functions"
        } else {
            "not tried without the others"
        };
        refused.push((name, Omitted::Lacking(why.to_owned())));
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

/// Maps of allocator operations alone.
const OPERATION_MAPS: [&str; 8] = [
    "operation_calls",
    "operation_sums",
    "operation_takes",
    "operation_touch",
    "operation_waits",
    "probed_rows",
    "probed_times",
    "probed_blocks",
];

fn open(
    options: &LoadOptions,
    attaches_many: bool,
    refused: &Omissions,
    unused: &[&'static str],
) -> Result<Object, libbpf_rs::Error> {
    let mut open = ObjectBuilder::default().open_memory(&OBJECT.0)?;
    for mut map in open.maps_mut() {
        match map.name().to_str() {
            // Each map takes a descriptor, and only programs that are not loaded then have these.
            Some(name) if OPERATION_MAPS.contains(&name) && !options.operations => {
                map.set_autocreate(false)?;
            }
            Some("ring") => map.set_max_entries(ring_bytes(options))?,
            Some("tracked" | "exempt") => map.set_max_entries(options.max_processes.max(1))?,
            Some("sample_ring") => map.set_max_entries(sample_ring_bytes(options))?,
            Some("operation_sums") if options.operations => map.set_max_entries(OPERATION_ROWS)?,
            Some("probed") if options.probes => {
                map.set_max_entries(options.max_processes.max(1))?;
            }
            Some("probed_threads") if options.probes => map.set_max_entries(PROBED_THREADS)?,
            Some("probed_rows") if options.probes => map.set_max_entries(PROBED_ROWS)?,
            Some("probed_times") if options.probes => map.set_max_entries(PROBED_TIMES)?,
            Some("probed_blocks") if options.probes => map.set_max_entries(PROBED_BLOCKS)?,
            Some("regions" | "residents") => map.set_max_entries(options.walk_regions.max(1))?,
            _ => {}
        }
    }
    for mut program in open.progs_mut() {
        if attaches_many
            && [ENTERED, RETURNED]
                .iter()
                .any(|name| program.name() == *name)
        {
            program.set_attach_type(libbpf_rs::ProgramAttachType::TraceUprobeMulti);
        }
        let mut omitted = refused.iter().map(|(name, _)| name).chain(unused);
        if omitted.any(|name| program.name() == *name) {
            program.set_autoload(false);
        }
    }
    open.load()
}

/// Puts the program, where it is loaded, where others find it that go on in it
fn connect(object: &Object) -> io::Result<()> {
    let map = object.maps().find(|map| map.name() == CONTINUATIONS);
    let mut programs = object.progs().filter(|program| program.autoload());
    let program = programs.find(|program| program.name() == LOOK_AT_PAGES);
    let Some((map, program)) = map.zip(program) else {
        return Ok(());
    };
    let number = program.as_fd().as_raw_fd().cast_unsigned();
    raw::map_update(map.as_fd(), 0, &number)
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
fn blamed(said: &str, refused: &Omissions) -> Option<&'static Program> {
    PROGRAMS.iter().find(|program| {
        let name = program.name;
        !refused.iter().any(|(refused, _)| *refused == name)
            && [
                "failed to load",
                "BPF program load failed",
                // No such function in this kernel, or in its type information
                "failed to find kernel BTF type ID",
                "failed to prepare load attributes",
            ]
            .iter()
            .any(|what| said.contains(&format!("prog '{name}': {what}")))
    })
}

/// The end of a long message, where a verifier gives its reason
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// Of what is said of the kernel and the options it knows nothing
fn attach(object: Object, refused: &Omissions, unused: &[&str]) -> Loaded {
    let (mut links, mut harvesters) = (Vec::new(), Vec::new());
    let mut attached = HashSet::new();
    let mut capabilities = Vec::new();
    let mut of_operations: Option<Result<(), String>> = None;
    let mut of_waits: Option<Result<(), String>> = None;
    let mut of_probes: Option<Result<(), String>> = None;
    for program in PROGRAMS.iter().filter(|p| !unused.contains(&p.name)) {
        let (available, detail) = match refused.iter().find(|(name, _)| *name == program.name) {
            Some((_, Omitted::Lacking(why))) => (false, why.clone()),
            Some((_, Omitted::Needless(why))) => (true, (*why).to_owned()),
            None => {
                let links = match program.place {
                    Place::Function(_) => &mut harvesters,
                    _ => &mut links,
                };
                match hang(&object, program, links) {
                    Ok(()) => {
                        attached.insert(program.name);
                        (true, "loaded".to_owned())
                    }
                    Err(why) => (false, why),
                }
            }
        };
        let group = match program.name {
            name if OF_OPERATIONS.contains(&name) => Some(&mut of_operations),
            name if OF_LOCK_WAITS.contains(&name) => Some(&mut of_waits),
            name if OF_PROBES.contains(&name) => Some(&mut of_probes),
            _ => None,
        };
        if let Some(group) = group {
            let all = group.get_or_insert(Ok(()));
            if !available && all.is_ok() {
                *all = Err(format!("{}: {detail}", program.name));
            }
            continue;
        }
        capabilities.push(Capability {
            name: match program.place {
                Place::Demand => program.name,
                Place::Tracepoint(name) | Place::Later(name) | Place::Function(name) => name,
            },
            purpose: program.purpose,
            available,
            required: program.need == Need::Required,
            promised: program.need == Need::Promised,
            detail,
            is_part: matches!(program.place, Place::Function(_)),
        });
    }
    excuse_alternatives(&mut capabilities);
    let groups = [
        (
            OPERATION_PROGRAMS,
            "system calls, page faults and CPU time of allocator operations (varve alloc record)",
            of_operations,
        ),
        (
            LOCK_WAIT_PROGRAMS,
            "how long allocator operations wait for mmap_lock (varve alloc record)",
            of_waits,
        ),
        (
            PROBE_PROGRAMS,
            "allocator operations of processes that run already, and of allocators within executables (varve alloc record -p)",
            of_probes,
        ),
    ];
    for (name, purpose, all) in groups {
        capabilities.extend(all.map(|all| Capability {
            name,
            purpose,
            available: all.is_ok(),
            required: false,
            promised: false,
            detail: match all {
                Ok(()) => "loaded".to_owned(),
                Err(why) => why,
            },
            is_part: false,
        }));
    }
    Loaded {
        object,
        links,
        harvesters,
        attached,
        capabilities,
        exit_has_memory: false,
        vanish: VanishHooks::Calls,
    }
}

/// A tracepoint that this kernel has under another name is not missing
fn excuse_alternatives(capabilities: &mut [Capability]) {
    for names in ALTERNATIVES {
        let known = capabilities.iter();
        let mut works = known.filter(|c| names.contains(&c.name) && c.available);
        let Some(name) = works.next().map(|c| c.name) else {
            continue;
        };
        let others = capabilities.iter_mut();
        for other in others.filter(|c| names.contains(&c.name) && !c.available) {
            other.available = true;
            other.detail = format!("not needed: this kernel has it as {name}");
        }
    }
}

fn hang(object: &Object, program: &Program, links: &mut Vec<Link>) -> Result<(), String> {
    if program.is_on_demand() {
        return Ok(());
    }
    let Some(loaded) = object.progs_mut().find(|p| p.name() == program.name) else {
        return Err("the program is not in the object".into());
    };
    let attached = match program.place {
        Place::Tracepoint(name) => loaded
            .attach_raw_tracepoint(name)
            .map_err(|error| BpfError::MissingTracepoint(format!("{name} ({error})")).to_string()),
        _ => loaded.attach().map_err(|error| {
            format!("this kernel cannot attach programs to its functions ({error})")
        }),
    };
    links.push(attached?);
    Ok(())
}
