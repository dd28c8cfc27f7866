//! Which allocator a process uses, in which file its functions are, and where in that.
//!
//! The dynamic linker takes a name from the first file that defines it: the executable, what is preloaded, then libraries in the order in which
//! they are named (breadth first). An executable that defines the functions for itself alone uses its own.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use varve_access::x86::{exits, probe_place, targets};
use varve_bpf::{ProbePlace, ProbedCall, ProbedPoint};
use varve_model::Pid;
use varve_symbols::{CodeReader, DefinedFunction, DefinedFunctions, defined_functions, is_loader};
use varve_sys::MapEntry;

use super::names::{FUNCTIONS, FURTHER, KNOWN_BY, Named, OF_GLIBC, OPERATORS, PREFIXES, is_wanted};

/// Functions in one file.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// What leads to the file.
    pub(super) link: PathBuf,
    /// Which file it is.
    pub(super) identity: String,
    /// What it is called.
    pub(super) path: String,
    pub(super) points: Vec<ProbedPoint>,
}

impl Part {
    /// Whether this is the file that is mapped. File systems of several layers have other numbers for it than its mappings.
    pub(super) fn is_of(&self, map: &MapEntry) -> bool {
        map.inode != 0 && (identity_of(map) == self.identity || map.path == self.path)
    }

    /// Whether two are the same file.
    pub(super) fn is(&self, other: &Part) -> bool {
        self.identity == other.identity || self.path == other.path
    }
}

/// An allocator.
#[derive(Clone, Debug)]
pub(super) struct Allocator {
    /// The file that has it, and what it is where the file's name does not say it.
    pub(super) name: String,
    /// What stands before the names of its functions.
    pub(super) prefix: Option<&'static str>,
    /// Whether its blocks have their sizes before them, so that it is known how much of them can be used.
    pub(super) headers: bool,
    /// Its file, and that of the operators that call it.
    pub(super) parts: Vec<Part>,
    /// Operators whose end cannot be seen without being in the way of exceptions.
    pub(super) left_out: Vec<&'static str>,
}

/// Why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAllocator {
    /// No file has one that can be found.
    None,
    /// The executable may have one, and has no names.
    Stripped,
    /// The process or its files cannot be read.
    Unreadable(String),
}

/// A file of a process.
struct Module {
    path: String,
    link: PathBuf,
    identity: String,
    defined: Rc<DefinedFunctions>,
}

impl Module {
    /// Functions in this file.
    fn part(&self, points: Vec<ProbedPoint>) -> Part {
        Part {
            link: self.link.clone(),
            identity: self.identity.clone(),
            path: self.path.clone(),
            points,
        }
    }
}

/// Files that were read.
#[derive(Default)]
pub(super) struct Files {
    known: HashMap<String, Option<Rc<DefinedFunctions>>>,
}

impl Files {
    fn read(&mut self, identity: &str, link: &Path) -> Option<Rc<DefinedFunctions>> {
        let known = self.known.entry(identity.to_owned());
        let read = || defined_functions(link, &is_wanted).ok().map(Rc::new);
        known.or_insert_with(read).clone()
    }

    /// The allocator of a process as it is.
    pub(super) fn of_process(&mut self, pid: Pid) -> Result<Allocator, NoAllocator> {
        let unreadable = |error: io::Error| NoAllocator::Unreadable(error.to_string());
        let maps = varve_sys::maps(pid).map_err(unreadable)?;
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).map_err(unreadable)?;
        let mut modules: Vec<Module> = Vec::new();
        let mut seen = HashSet::new();
        for map in maps
            .iter()
            .filter(|map| map.perms.contains('x') && map.inode != 0)
        {
            let identity = identity_of(map);
            if !seen.insert(identity.clone()) || is_loader(Path::new(&map.path)) {
                continue;
            }
            let link = link_to(pid, map);
            if let Some(defined) = self.read(&identity, &link) {
                modules.push(Module {
                    path: map.path.clone(),
                    link,
                    identity,
                    defined,
                });
            }
        }
        let is_program = |m: &Module| m.path.as_bytes() == program.as_os_str().as_bytes();
        if let Some(at) = modules.iter().position(is_program) {
            modules.swap(0, at);
        }
        let order = link_order(&modules, &preloaded(pid));
        choose(&modules, &order)
    }

    /// The allocator that a program has in itself; none where it will find it in a library.
    pub(super) fn of_program(&mut self, path: &Path) -> Result<Option<Allocator>, NoAllocator> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let identity = match std::fs::metadata(&path) {
            Ok(file) => identity_of_file(&file),
            Err(_) => return Ok(None),
        };
        let path = path.as_path();
        let Some(defined) = self.read(&identity, path) else {
            return Ok(None);
        };
        let is_static = defined.needed.is_empty() && defined.imported.is_empty();
        let modules = [Module {
            path: path.display().to_string(),
            link: path.to_owned(),
            identity,
            defined,
        }];
        match choose(&modules, &[0]) {
            Ok(found) => Ok(Some(found)),
            Err(why) if is_static => Err(why),
            Err(_) => Ok(None),
        }
    }
}

fn identity_of_file(file: &std::fs::Metadata) -> String {
    let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
    format!("{major:02x}:{minor:02x}:{}", file.ino())
}

fn identity_of(map: &MapEntry) -> String {
    format!("{}:{}", map.device, map.inode)
}

/// What leads to a mapped file: its name where that leads to it, which outlives the process.
fn link_to(pid: Pid, map: &MapEntry) -> PathBuf {
    let plain = Path::new(&map.path);
    if std::fs::metadata(plain).is_ok_and(|file| identity_of_file(&file) == identity_of(map)) {
        return plain.to_owned();
    }
    let (start, end) = (map.address.0, map.address.0 + map.bytes.0);
    let very = PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
    match std::fs::metadata(&very) {
        Ok(_) => very,
        Err(_) => PathBuf::from(format!("/proc/{pid}/root{}", map.path)),
    }
}

/// Names of the libraries that a process was started with.
fn preloaded(pid: Pid) -> Vec<String> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let variables = environment.split(|byte| *byte == 0);
    let list = variables
        .filter_map(|variable| variable.strip_prefix(b"LD_PRELOAD="))
        .next()
        .unwrap_or_default();
    let names = list.split(|byte| matches!(byte, b':' | b' '));
    names
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The order in which the dynamic linker looks into files; those that were loaded later come last.
fn link_order(modules: &[Module], preloaded: &[String]) -> Vec<usize> {
    let find = |name: &str| {
        modules.iter().position(|module| {
            let base = file_name(&module.path);
            module.defined.soname.as_deref() == Some(file_name(name)) || base == file_name(name)
        })
    };
    let mut order: Vec<usize> = Vec::new();
    let mut waiting: VecDeque<usize> = VecDeque::new();
    if !modules.is_empty() {
        waiting.push_back(0);
    }
    waiting.extend(preloaded.iter().filter_map(|name| find(name)));
    while let Some(next) = waiting.pop_front() {
        if order.contains(&next) {
            continue;
        }
        order.push(next);
        waiting.extend(modules[next].defined.needed.iter().filter_map(|n| find(n)));
    }
    let rest = (0..modules.len()).filter(|at| !order.contains(at));
    let rest: Vec<usize> = rest.collect();
    order.extend(rest);
    order
}

type Names = HashMap<String, DefinedFunction>;

fn choose(modules: &[Module], order: &[usize]) -> Result<Allocator, NoAllocator> {
    let Some(program) = order.first().map(|at| &modules[*at]) else {
        return Err(NoAllocator::None);
    };
    let own = &program.defined.own;
    if has_allocator(own, "") && !program.defined.imported.contains("malloc") {
        return Ok(in_program(program, None));
    }
    for (prefix, _) in &PREFIXES {
        if has_allocator(own, prefix) {
            return Ok(in_program(program, Some(prefix)));
        }
    }
    let exports = order
        .iter()
        .map(|at| &modules[*at])
        .find(|module| has_allocator(&module.defined.exported, ""));
    let Some(module) = exports else {
        return Err(match program.defined.is_stripped {
            true => NoAllocator::Stripped,
            false => NoAllocator::None,
        });
    };
    let names = &module.defined.exported;
    let mut found = Allocator {
        name: described(&module.path, names),
        prefix: None,
        headers: is_glibc(names),
        parts: Vec::new(),
        left_out: Vec::new(),
    };
    let mut points = functions(names, "", &FUNCTIONS, found.headers);
    let operators = order
        .iter()
        .map(|at| &modules[*at])
        .find(|module| module.defined.exported.contains_key("_Znwm"));
    match operators {
        Some(of) if of.identity == module.identity => {
            found.left_out = operators_of(names, &mut points, &of.link);
        }
        Some(of) => found.parts.push(of.part(announcing(&of.defined.exported))),
        None => {}
    }
    found.parts.insert(0, module.part(points));
    Ok(found)
}

fn has_allocator(names: &Names, prefix: &str) -> bool {
    let has = |name: &str| names.contains_key(&format!("{prefix}{name}"));
    (has("malloc") || has("mallocx")) && (has("free") || has("dallocx") || has("sdallocx"))
}

fn is_glibc(names: &Names) -> bool {
    OF_GLIBC.iter().any(|name| names.contains_key(*name))
}

/// The file, and what its allocator is where its name does not say so.
fn described(path: &str, names: &Names) -> String {
    let file = file_name(path);
    if file.starts_with("lib") || file.starts_with("ld-") {
        return path.to_owned();
    }
    let known = KNOWN_BY.iter().find(|(name, _)| names.contains_key(*name));
    match known {
        _ if is_glibc(names) => format!("{path} (glibc)"),
        Some((_, name)) => format!("{path} ({name})"),
        None => path.to_owned(),
    }
}

/// An allocator in the executable.
fn in_program(program: &Module, prefix: Option<&'static str>) -> Allocator {
    let names = &program.defined.own;
    let headers = prefix.is_none() && is_glibc(names);
    let mut left_out = Vec::new();
    let points = match prefix {
        Some(prefix) => {
            let mut points = functions(names, prefix, &FUNCTIONS, false);
            add(&mut points, functions(names, prefix, &FURTHER, false));
            points
        }
        None => {
            let mut points = functions(names, "", &FUNCTIONS, headers);
            left_out = operators_of(names, &mut points, &program.link);
            points
        }
    };
    let known = PREFIXES.iter().find(|(known, _)| Some(*known) == prefix);
    Allocator {
        name: match known {
            Some((_, name)) => format!("{} ({name})", program.path),
            None => described(&program.path, names),
        },
        prefix,
        headers,
        parts: vec![program.part(points)],
        left_out,
    }
}

/// Adds probes of functions that have none yet: of several names of one function the first counts.
fn add(points: &mut Vec<ProbedPoint>, more: Vec<ProbedPoint>) {
    let known: HashSet<u64> = points.iter().map(|p| p.offset).collect();
    points.extend(more.into_iter().filter(|p| !known.contains(&p.offset)));
}

/// Probes at the beginning and the end of functions.
fn functions(names: &Names, prefix: &str, of: &[Named], headers: bool) -> Vec<ProbedPoint> {
    let mut points = Vec::new();
    for named in of {
        if let Some(function) = names.get(&format!("{prefix}{}", named.name)) {
            let mut call = named.call;
            call.headers = headers;
            let point = begin(function, call);
            let end = ProbedPoint {
                place: ProbePlace::End,
                ..point
            };
            add(&mut points, vec![point, end]);
        }
    }
    points
}

/// Puts a probe where a function begins, or a little behind that where it costs less.
fn begin(function: &DefinedFunction, call: ProbedCall) -> ProbedPoint {
    let (behind, steps) = probe_place(&function.code);
    ProbedPoint {
        offset: function.offset + behind as u64,
        call,
        place: ProbePlace::Begin,
        returns: false,
        steps,
    }
}

/// Probes at the beginning of operators that call an allocator's functions elsewhere.
fn announcing(names: &Names) -> Vec<ProbedPoint> {
    let mut points = Vec::new();
    for named in &OPERATORS {
        if let Some(function) = names.get(named.name) {
            add(&mut points, vec![announcement(named, function)]);
        }
    }
    points
}

fn announcement(named: &Named, function: &DefinedFunction) -> ProbedPoint {
    let mut call = named.call;
    call.announces = true;
    begin(function, call)
}

/// Operators in the allocator's own file: those that call its other functions announce them; others are probed as those are, save where an exception may
/// leave them: these at each instruction that returns, which leaves their return addresses as they are. Names of those that cannot be probed.
fn operators_of(names: &Names, points: &mut Vec<ProbedPoint>, link: &Path) -> Vec<&'static str> {
    let all = FUNCTIONS.iter().chain(&OPERATORS);
    let places: HashSet<u64> = all
        .filter_map(|named| names.get(named.name))
        .map(|function| function.address)
        .collect();
    let mut code: Option<Option<CodeReader>> = None;
    let mut left_out = Vec::new();
    for named in &OPERATORS {
        let Some(function) = names.get(named.name) else {
            continue;
        };
        let calls = targets(&function.code, function.address);
        let calls = calls.iter().any(|to| places.contains(to));
        // Some allocators do the usual themselves and the rest by another function. glibc has no operators: these are the C++ library's, and always call it.
        let returns = exits(&function.code, function.address).is_none_or(|e| !e.returns.is_empty());
        if calls && (is_glibc(names) || !returns) {
            add(points, vec![announcement(named, function)]);
            continue;
        }
        if !named.throws {
            let one = functions(names, "", std::slice::from_ref(named), false);
            add(points, one);
            continue;
        }
        let code = code.get_or_insert_with(|| CodeReader::open(link));
        let returns = code
            .as_ref()
            .and_then(|code| returns_of(code, function.address, &places));
        match returns {
            Some(returns) => add_with_returns(points, named, function, &returns),
            None => left_out.push(named.name),
        }
    }
    left_out
}

fn add_with_returns(
    points: &mut Vec<ProbedPoint>,
    named: &Named,
    function: &DefinedFunction,
    returns: &[u64],
) {
    let begin = ProbedPoint {
        returns: true,
        ..begin(function, named.call)
    };
    add(points, vec![begin]);
    for offset in returns {
        let point = ProbedPoint {
            offset: *offset,
            place: ProbePlace::Return,
            steps: true,
            ..begin
        };
        add(points, vec![point]);
    }
}

/// Stretches of code that a function may have beside its own.
const MAX_STRETCHES: usize = 32;

/// Offsets in the file of all instructions by which a function returns, also those of code that it jumps to; but not of functions that are probed
/// themselves. None where that cannot be said for sure.
fn returns_of(code: &CodeReader, function: u64, probed: &HashSet<u64>) -> Option<Vec<u64>> {
    let mut waiting = vec![function];
    let mut seen: HashSet<u64> = HashSet::new();
    let mut returns = Vec::new();
    while let Some(address) = waiting.pop() {
        let address = match code.behind_stub(address) {
            Some(behind) if probed.contains(&behind) => continue,
            Some(behind) => behind,
            None => address,
        };
        let stretch = code.around(address)?;
        if !seen.insert(stretch.address) {
            continue;
        }
        if seen.len() > MAX_STRETCHES || (address == function && stretch.address != function) {
            return None;
        }
        let exits = exits(&stretch.code, stretch.address)?;
        returns.extend(exits.returns.iter().map(|at| stretch.offset + *at as u64));
        waiting.extend(exits.jumps.iter().filter(|to| !probed.contains(to)));
    }
    Some(returns)
}
