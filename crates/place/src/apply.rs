//! A command that runs as a plan says.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use varve_analyse::format;
use varve_model::Bytes;
use varve_preload_abi::placing::{Action, PLACING_VARIABLE, Placements, header, place, place_at};
use varve_preload_abi::{DIRECTORY_VARIABLE, IDENTITY_VARIABLE};
use varve_record::{Order, RunFolder, Watchdog, listed_library};
use varve_sys::{
    Child, Launch, LimitPlace, LimitedGroup, PidFd, Signals, ThpPolicy, ZramSwap, free_swap, nodes,
    prefer_node,
};
use varve_tier::Plan;

use crate::backend::{Backend, Planned, resolve};
use crate::error::PlaceError;
use crate::matcher::Matcher;
use crate::pager::{LOOK_EVERY, Pager};
use crate::report::{APPLY_SCHEMA, AppliedPlace, ApplyReport};
use crate::server::Server;

/// How a plan is applied.
#[derive(Clone, Debug)]
pub struct ApplyOptions {
    /// The plan.
    pub plan: Plan,
    /// What its tiers are here.
    pub backend: Backend,
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// The size of the smallest object that is placed.
    pub min_object: Bytes,
    /// Whether what is cold is paged out from outside.
    pub page_out: bool,
    /// A swap device of compressed memory that is made for as long as the command runs.
    pub zram: Option<Bytes>,
    /// Whether the plan is applied; else the command runs under the same limit alone.
    pub is_planned: bool,
    /// Whether what the command writes to its standard output goes nowhere.
    pub is_silent: bool,
    /// The preload library.
    pub library: Option<PathBuf>,
}

/// What a plan came to.
#[derive(Debug)]
pub struct Applied {
    /// The exit code of the command.
    pub exit_code: i32,
    /// Whether somebody wanted the end.
    pub is_interrupted: bool,
    /// What the plan came to on this machine.
    pub planned: Planned,
    /// What became of it.
    pub report: ApplyReport,
}

impl ApplyOptions {
    /// What the plan comes to on this machine.
    ///
    /// # Errors
    /// Where it cannot work here.
    pub(crate) fn resolve(&self) -> Result<Planned, PlaceError> {
        self.resolve_with(Bytes(
            free_swap().0.saturating_add(self.zram.map_or(0, |z| z.0)),
        ))
    }

    /// The same with so much swap.
    pub(crate) fn resolve_with(&self, swap: Bytes) -> Result<Planned, PlaceError> {
        let memlock = match rustix::process::geteuid().is_root() {
            true => None,
            false => {
                let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
                limit.current.map(Bytes)
            }
        };
        resolve(&self.plan, &self.backend, &nodes(), swap, memlock)
    }
}

/// What would be done, a line each; nothing is.
///
/// # Errors
/// Where it cannot work here.
pub fn dry_run(options: &ApplyOptions) -> Result<Vec<String>, PlaceError> {
    let planned = options.resolve()?;
    let mut lines = Vec::new();
    if let Some(bytes) = options.zram {
        lines.push(format!(
            "make a zram device of {} and swap to it before all others",
            format::bytes(bytes)
        ));
    }
    if let Backend::Swap { memory, .. } = options.backend {
        let place = LimitPlace::find()?;
        lines.push(format!(
            "make a cgroup in {} with a limit of {} for the command",
            place.parent.display(),
            format::bytes(memory)
        ));
        lines.push(format!(
            "lock {} of it at most",
            format::bytes(planned.lock_limit)
        ));
    }
    if let Some(node) = planned.default_node {
        lines.push(format!("have the command take its memory from node {node}"));
    }
    for planned in &planned.places {
        let part = planned.place.part.map_or_else(String::new, |p| {
            let at = |byte| format::bytes(Bytes(byte));
            format!(", its part from {} to {}", at(p.from), at(p.to))
        });
        lines.push(format!(
            "{}: {} `{}`{part} ({})",
            said(planned.action),
            planned.place.kind,
            planned.place.name,
            format::bytes(Bytes(planned.place.peak_bytes))
        ));
    }
    lines.push("take all of that back when the command has ended".to_owned());
    lines.extend(planned.notes);
    Ok(lines)
}

/// An action in a word or two.
fn said(action: Action) -> String {
    match action {
        Action::List => "list".to_owned(),
        Action::Keep => "keep".to_owned(),
        Action::Yield => "yield".to_owned(),
        Action::Bind(node) => format!("node {node}"),
    }
}

/// Variables of a command.
type Environment = Vec<(&'static str, OsString)>;

/// What was made for a command; taken back on drop, in this order.
struct Made {
    server: Server,
    group: Option<LimitedGroup>,
    _zram: Option<ZramSwap>,
    _folder: RunFolder,
    _watchdog: Watchdog,
}

/// Runs a command as a plan says. `tell` hears each note before the command begins, `looked` of the objects that are there, as often as
/// the loop turns.
///
/// # Errors
/// Where the plan cannot be applied here, or the command does not start.
pub fn apply(
    options: &ApplyOptions,
    signals: &mut Signals,
    tell: &mut dyn FnMut(&str),
    looked: &mut dyn FnMut(&Placements, &Planned),
) -> Result<Applied, PlaceError> {
    let mut planned = options.resolve()?;
    if !options.is_planned {
        planned.default_node = None;
    }
    planned.notes.iter().for_each(|note| tell(note));
    let library = options.library.as_deref().ok_or(PlaceError::NoLibrary)?;
    let library = listed_library(library).map_err(PlaceError::Unreachable)?;
    let placements = Arc::new(Placements::create().map_err(PlaceError::system("share memory"))?);
    write_places(&placements, &planned);
    let mut matcher = Matcher::new(&options.plan);
    matcher.read_ahead(&options.plan.program.executable);
    let (made, environment) = make(options, &library, &placements, matcher)?;
    let launch = Launch {
        command: &options.command,
        environment: &environment,
        thp: ThpPolicy::System,
    };
    if planned.default_node.is_some() {
        prefer_node(planned.default_node).map_err(PlaceError::system("set a policy of memory"))?;
    }
    let child = match options.is_silent {
        true => varve_sys::without_output(|| Child::prepare(&launch, signals))
            .map_err(PlaceError::system("open /dev/null"))?,
        false => Child::prepare(&launch, signals),
    };
    if planned.default_node.is_some() {
        prefer_node(None).map_err(PlaceError::system("take a policy of memory back"))?;
    }
    let mut child = child?;
    if let Some(group) = &made.group {
        group.add(child.pid())?;
    }
    let began = Instant::now();
    child.start()?;
    let (exit_code, is_interrupted, pager) = run(
        options,
        &planned,
        &made,
        &placements,
        &mut child,
        signals,
        looked,
    )?;
    let duration_ns = began.elapsed().as_nanos() as u64;
    let mut report = ApplyReport {
        schema: APPLY_SCHEMA,
        exit_code,
        duration_ns,
        pages_paged_out: pager.as_ref().map_or(0, |p| p.paged_out),
        notes: planned.notes.clone(),
        ..ApplyReport::default()
    };
    if let Backend::Swap { memory, .. } = options.backend {
        report.memory_bytes = Some(memory.0);
    }
    if let Some(error) = pager.and_then(|p| p.refused) {
        report.notes.push(format!(
            "Nothing was paged out from outside: {error}; that takes CAP_SYS_NICE and Linux 5.10."
        ));
    }
    fill(
        &mut report,
        &planned,
        &made,
        &placements,
        options.is_planned,
    );
    Ok(Applied {
        exit_code,
        is_interrupted,
        planned,
        report,
    })
}

/// Makes what the command runs in, and says what it needs in its environment. The watchdogs hear of each thing before it is there.
fn make(
    options: &ApplyOptions,
    library: &std::path::Path,
    placements: &Arc<Placements>,
    matcher: Matcher,
) -> Result<(Made, Environment), PlaceError> {
    let mut watchdog = Watchdog::start_for(options.zram.is_some())?;
    let folder = RunFolder::create(|path| watchdog.order(&Order::RunFolder(path.to_owned())))?;
    let server = Server::start(folder.secret(), placements.clone(), matcher)?;
    let identity = varve_preload_abi::server::identity(folder.secret()).map_err(
        PlaceError::system("look at the folder of the preload library's socket"),
    )?;
    let zram = match options.zram {
        Some(bytes) => Some(watchdog.make_swap::<PlaceError>(bytes)?),
        None => None,
    };
    let group = match options.backend {
        Backend::Swap { memory, limit } => {
            let place = LimitPlace::find()?;
            let path = place.name();
            watchdog.order(&Order::Limited(path.clone(), place.home.clone()))?;
            Some(LimitedGroup::create(place, path, limit, memory)?)
        }
        Backend::Numa { .. } => None,
    };
    let mut preload = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|list| !list.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let environment = match options.is_planned {
        false => Vec::new(),
        true => vec![
            ("LD_PRELOAD", preload),
            (DIRECTORY_VARIABLE, folder.secret().as_os_str().to_owned()),
            (IDENTITY_VARIABLE, identity.to_string().into()),
            (PLACING_VARIABLE, options.min_object.0.to_string().into()),
        ],
    };
    let made = Made {
        server,
        group,
        _zram: zram,
        _folder: folder,
        _watchdog: watchdog,
    };
    Ok((made, environment))
}

/// Writes what is to be done, before anybody reads it.
fn write_places(placements: &Placements, planned: &Planned) {
    placements.set(header::LOCK_LIMIT, planned.lock_limit.0);
    for (number, of) in planned.places.iter().enumerate() {
        let (from, to) = of.place.part.map_or((0, u64::MAX), |p| (p.from, p.to));
        placements.set(place_at(number, place::ACTION), of.action.word());
        placements.set(place_at(number, place::FROM), from);
        placements.set(place_at(number, place::TO), to);
    }
}

/// Waits for the command's end.
fn run(
    options: &ApplyOptions,
    planned: &Planned,
    made: &Made,
    placements: &Placements,
    child: &mut Child,
    signals: &mut Signals,
    looked: &mut dyn FnMut(&Placements, &Planned),
) -> Result<(i32, bool, Option<Pager>), PlaceError> {
    let mut pager = match options.backend {
        Backend::Swap { memory, .. } if options.page_out && options.is_planned => {
            Some(Pager::new(memory))
        }
        _ => None,
    };
    let waiting = PlaceError::system("wait for the command");
    let process = PidFd::open(child.pid()).map_err(waiting)?;
    let mut interrupted = false;
    let mut known: Vec<u32> = Vec::new();
    let mut cleaned = Instant::now();
    loop {
        let ended = child
            .try_wait()
            .map_err(PlaceError::system("wait for the command"))?;
        if let Some(code) = ended {
            return Ok((code, interrupted, pager));
        }
        let taken = signals
            .take()
            .map_err(PlaceError::system("read a signal"))?;
        if let Some(received) = taken {
            // The terminal sends it to both; the second one ends it.
            match interrupted {
                true => child.signal(9),
                false if !received.from_terminal => child.signal(received.number),
                false => {}
            }
            interrupted = true;
        }
        if let (Some(pager), Some(group)) = (&mut pager, &made.group) {
            pager.turn(group, placements, &planned.places);
        }
        looked(placements, planned);
        if cleaned.elapsed() > Duration::from_millis(200) {
            cleaned = Instant::now();
            forget_ended(placements, made, &mut known);
        }
        // Ends early where the command does.
        let _ = varve_sys::is_readable([rustix::fd::AsFd::as_fd(&process)], Some(LOOK_EVERY));
    }
}

/// What processes had that have ended is nobody's.
fn forget_ended(placements: &Placements, made: &Made, known: &mut Vec<u32>) {
    let mut there: Vec<u32> = placements.objects().map(|o| o.pid).collect();
    there.sort_unstable();
    there.dedup();
    let of_processes = made.server.with_heard(|h| h.processes.clone());
    for pid in &there {
        let is_over = !std::path::Path::new(&format!("/proc/{pid}")).exists();
        if is_over && (known.contains(pid) || of_processes.contains(pid)) {
            placements.forget(*pid);
        }
    }
    *known = there;
}

/// What became of each place.
fn fill(
    report: &mut ApplyReport,
    planned: &Planned,
    made: &Made,
    placements: &Placements,
    is_planned: bool,
) {
    if let Some(group) = &made.group {
        report.times_at_limit = group.times_at_limit();
        report.killed_for_memory = group.killed();
    }
    report.objects_looked_at = placements.get(header::LOOKED_AT);
    report.objects_lost = placements.get(header::STACKLESS)
        + placements.get(header::UNANSWERED)
        + placements.get(header::NO_ROOM);
    let mut unmatched = 0u64;
    made.server.with_heard(|heard| {
        report.processes = heard.processes.len() as u64;
        report.stacks_without_place = heard.unmatched;
        report.other_build = heard.other_build;
        for (number, of) in planned.places.iter().enumerate() {
            let word = |which| placements.get(place_at(number, which));
            let matched = heard.matched.get(&number).map(|m| m.as_str());
            unmatched += u64::from(matched.is_none());
            report.places.push(AppliedPlace {
                name: of.place.name.clone(),
                kind: of.place.kind.clone(),
                tier: of.place.tier.clone(),
                action: said(of.action),
                matched,
                objects: word(place::OBJECTS),
                failed: word(place::FAILED),
                peak_bytes: word(place::PEAK),
            });
        }
    });
    if report.processes == 0 && is_planned {
        report.notes.push(
            "No process asked what to place: the command is statically linked, has more rights than its caller, or confines itself.".to_owned(),
        );
    }
    if report.other_build {
        report.notes.push(
            "The program is of another build than the plan's: places were known by function and line.".to_owned(),
        );
    }
    if unmatched > 0 {
        report.notes.push(format!(
            "Nothing came of {} of {}.",
            format::counted(unmatched, "place"),
            format::count(planned.places.len() as u64)
        ));
    }
    let over = placements.get(header::OVER_LIMIT);
    if over > 0 {
        report.notes.push(format!(
            "{} did not fit into what may be locked as a whole: the kernel decides about the rest.",
            format::counted(over, "object")
        ));
    }
    let refused = placements.get(header::REFUSED);
    if refused > 0 {
        let why = placements.get(header::REFUSED_WHY) as i32;
        report.notes.push(format!(
            "The kernel refused {}: {}.",
            format::counted(refused, "placement"),
            std::io::Error::from_raw_os_error(why)
        ));
    }
    if report.killed_for_memory > 0 {
        report.notes.push(format!(
            "The kernel killed {} for want of memory: the limit is too small.",
            format::counted(report.killed_for_memory, "process")
        ));
    }
}
