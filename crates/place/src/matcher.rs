//! Which place of a plan a call stack, static data or a file is.
//!
//! In the build for which a plan was made a call is known by its offset in the file. In another build it is known by function, file and
//! line; where lines have moved, by functions, if one place alone has those. The start of the program and of threads in the C library does
//! not count: it is another on each machine.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;

use varve_model::{Address, Bytes, Pid, SiteId, Time};
use varve_symbols::{
    AddressSpaces, BuildId, Locator, Mapping, Stack, StaticsReader, read_build_id, static_name,
    symbolize,
};
use varve_sys::{FileIdentity, MapEntry};
use varve_tier::{Place, Plan};

/// How an object was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Match {
    /// By offsets, in the same build.
    Offset,
    /// By functions, files and lines, in another build.
    Lines,
    /// By functions, in another build in which lines have moved.
    Functions,
    /// By its name.
    Name,
}

impl Match {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Match::Offset => "offset",
            Match::Lines => "line",
            Match::Functions => "function",
            Match::Name => "name",
        }
    }
}

/// A call by where it is in a file.
type Offsets = Vec<(String, u64)>;
/// A call by what it is called: function, base name of the file, line.
type Lines = Vec<(String, String, u32)>;

/// Something that is there as a program begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) place: usize,
    pub(crate) address: Address,
    pub(crate) bytes: Bytes,
    /// The file that has it is of another build.
    pub(crate) other_build: bool,
}

/// Looks places up.
pub(crate) struct Matcher {
    offsets: HashMap<Offsets, usize>,
    lines: HashMap<Lines, usize>,
    /// None where several places have these functions.
    functions: HashMap<Vec<String>, Option<usize>>,
    /// Static data and files, by name.
    named: HashMap<String, Vec<(usize, String)>>,
    stack: Option<usize>,
    builds: HashSet<String>,
    statics: StaticsReader,
    build_ids: HashMap<FileIdentity, String>,
}

/// The smallest static variable that is placed.
const MIN_STATIC: Bytes = Bytes(4096);

impl Matcher {
    pub(crate) fn new(plan: &Plan) -> Matcher {
        let mut matcher = Matcher {
            offsets: HashMap::new(),
            lines: HashMap::new(),
            functions: HashMap::new(),
            named: HashMap::new(),
            stack: None,
            builds: HashSet::new(),
            statics: StaticsReader::new(Locator::default(), MIN_STATIC),
            build_ids: HashMap::new(),
        };
        for (number, place) in plan.places.iter().enumerate() {
            matcher.add(number, place);
        }
        matcher
    }

    fn add(&mut self, number: usize, place: &Place) {
        match place.kind.as_str() {
            "static" | "file" if place.frames.is_empty() => {
                let entry = self.named.entry(place.name.clone()).or_default();
                entry.push((number, place.build_id.clone()));
                return;
            }
            "stack" => {
                if place.name == "main stack" {
                    self.stack = Some(number);
                }
                return;
            }
            _ => {}
        }
        let modules: Vec<&str> = place.frames.iter().map(|f| f.module.as_str()).collect();
        let inner = without_start(&modules);
        let frames = &place.frames[..inner];
        if frames.is_empty() {
            return;
        }
        self.builds
            .extend(frames.iter().map(|f| f.build_id.clone()));
        let mut offsets: Offsets = Vec::new();
        for frame in frames {
            offsets.push((frame.build_id.clone(), frame.offset));
        }
        offsets.dedup();
        if offsets
            .iter()
            .all(|(build, at)| !build.is_empty() && *at > 0)
        {
            self.offsets.entry(offsets).or_insert(number);
        }
        let lines: Lines = frames
            .iter()
            .map(|f| named(&f.function, &f.module, &f.file, f.line))
            .collect();
        let functions = functions_of(&lines);
        self.lines.entry(lines).or_insert(number);
        self.functions
            .entry(functions)
            .and_modify(|known| *known = known.filter(|k| *k == number))
            .or_insert(Some(number));
    }

    /// The build id of a mapped file, hexadecimal; empty where it has none.
    fn build_id(&mut self, pid: Pid, entry: &MapEntry) -> String {
        let Some(identity) = entry.identity() else {
            return String::new();
        };
        if let Some(known) = self.build_ids.get(&identity) {
            return known.clone();
        }
        let inside = format!("/proc/{pid}/root{}", entry.path);
        let file = File::open(&inside).or_else(|_| File::open(&entry.path));
        let found = file.ok().and_then(read_build_id);
        let text = found.map_or_else(String::new, |id| id.to_string());
        self.build_ids.insert(identity, text.clone());
        text
    }

    /// The place of an object with this call stack.
    pub(crate) fn place_of(
        &mut self,
        pid: Pid,
        maps: &[MapEntry],
        frames: &[u64],
    ) -> Option<(usize, Match)> {
        let mut offsets: Offsets = Vec::new();
        let mut kept: Vec<Address> = Vec::new();
        let mut modules: Vec<&str> = Vec::new();
        for (index, frame) in frames.iter().enumerate() {
            // As traces have them: the call itself, and further out the addresses to which calls return.
            let frame = frame.saturating_sub(u64::from(index == 0));
            let entry = entry_of(maps, frame);
            let build = entry.map_or_else(String::new, |e| self.build_id(pid, e));
            let offset = entry.map_or(0, |e| frame - e.address.0 + e.offset);
            offsets.push((build, offset));
            kept.push(Address(frame));
            modules.push(entry.map_or("", |e| base_name(&e.path)));
        }
        let inner = without_start(&modules);
        offsets.truncate(inner);
        kept.truncate(inner);
        let is_known_build = offsets.iter().all(|(build, _)| self.builds.contains(build));
        let mut found = offsets.clone();
        found.dedup();
        if let Some(number) = self.offsets.get(&found) {
            return Some((*number, Match::Offset));
        }
        if is_known_build || kept.is_empty() {
            return None;
        }
        self.by_name(pid, maps, kept)
    }

    /// In another build.
    fn by_name(
        &mut self,
        pid: Pid,
        maps: &[MapEntry],
        frames: Vec<Address>,
    ) -> Option<(usize, Match)> {
        let mappings = self.mappings(pid, maps);
        let spaces = AddressSpaces::new(&mappings);
        let stack = Stack {
            site: SiteId(1),
            pid,
            at: None,
            frames,
        };
        let mut symbolized = symbolize(&Locator::default(), &spaces, &[stack]);
        let stack = symbolized.stacks.pop()?;
        let text = |of: &Option<String>| of.clone().unwrap_or_default();
        let lines: Lines = stack
            .iter()
            .map(|f| {
                named(
                    &text(&f.function),
                    &text(&f.module),
                    &text(&f.file),
                    f.line.unwrap_or(0),
                )
            })
            .collect();
        if let Some(number) = self.lines.get(&lines) {
            return Some((*number, Match::Lines));
        }
        let by_function = self.functions.get(&functions_of(&lines)).copied().flatten();
        by_function.map(|number| (number, Match::Functions))
    }

    fn mappings(&mut self, pid: Pid, maps: &[MapEntry]) -> Vec<Mapping> {
        maps.iter()
            .map(|entry| {
                let build_id = match entry.path.starts_with('/') {
                    true => BuildId::from_hex(&self.build_id(pid, entry)),
                    false => None,
                };
                mapping(pid, entry, build_id)
            })
            .collect()
    }

    /// The place of a mapped file.
    pub(crate) fn file(&self, path: &str) -> Option<usize> {
        let base = base_name(path);
        let mut places = self.named.iter().filter(|(name, _)| {
            name.as_str() == base || name.strip_prefix(base).is_some_and(|r| r.starts_with(" ("))
        });
        places.next().and_then(|(_, of)| of.first()).map(|p| p.0)
    }

    /// What a process has as it begins that a plan names: static data, its stack, mapped files.
    pub(crate) fn standing(&mut self, pid: Pid, maps: &[MapEntry]) -> Vec<Standing> {
        let mut found = Vec::new();
        let stack = maps.iter().find(|e| e.path == "[stack]");
        if let (Some(place), Some(entry)) = (self.stack, stack) {
            found.push(Standing {
                place,
                address: entry.address,
                bytes: entry.bytes,
                other_build: false,
            });
        }
        if self.named.is_empty() {
            return found;
        }
        let mut mappings = self.mappings(pid, maps);
        // A program that begins waits for this: nothing is read but files that a place may be in.
        let places = self.named.values().flatten();
        let builds: HashSet<String> = places.map(|(_, build)| build.clone()).collect();
        let first = mappings.iter().find(|m| m.path.starts_with('/'));
        let executable = first.map(|m| m.path.clone()).unwrap_or_default();
        let is_named = |m: &Mapping| {
            let build = m.build_id.as_ref().map(ToString::to_string);
            build.is_some_and(|b| builds.contains(&b))
                || m.path == executable
                || self.named.keys().any(|n| n.starts_with(base_name(&m.path)))
        };
        mappings.retain(|m| m.path.starts_with('/') && is_named(m));
        for object in self.statics.read(&mappings).objects {
            let name = static_name(&object);
            let Some(places) = self
                .named
                .get(&name)
                .or_else(|| self.named.get(&object.name))
            else {
                continue;
            };
            let of = mappings.iter().find(|m| {
                (m.address.0..m.address.0.saturating_add(m.bytes.0)).contains(&object.address.0)
            });
            let build = of.and_then(|m| m.build_id.as_ref().map(ToString::to_string));
            let build = build.unwrap_or_default();
            let same = places.iter().find(|(_, of)| *of == build);
            let Some((place, _)) = same.or_else(|| places.first()) else {
                continue;
            };
            found.push(Standing {
                place: *place,
                address: object.address,
                bytes: object.bytes,
                other_build: same.is_none() && !places[0].1.is_empty(),
            });
        }
        found
    }

    /// Reads the static data of an executable beforehand: a program that begins waits for it otherwise.
    pub(crate) fn read_ahead(&mut self, executable: &str) {
        if self.named.is_empty() {
            return;
        }
        let file = File::open(executable).ok();
        let bytes = file
            .as_ref()
            .and_then(|f| f.metadata().ok())
            .map_or(0, |m| m.len());
        let ahead = Mapping {
            pid: Pid(0),
            address: Address(1 << 40),
            bytes: Bytes(bytes),
            perms: "r--p".to_owned(),
            offset: Bytes(0),
            path: executable.to_owned(),
            called: None,
            file: None,
            build_id: file.and_then(read_build_id),
            from: Time(0),
            to: None,
        };
        self.statics.read(&[ahead]);
    }
}

fn mapping(pid: Pid, entry: &MapEntry, build_id: Option<BuildId>) -> Mapping {
    Mapping {
        pid,
        address: entry.address,
        bytes: entry.bytes,
        perms: entry.perms.clone(),
        offset: Bytes(entry.offset),
        path: entry.path.clone(),
        called: None,
        file: entry.identity(),
        build_id,
        from: Time(0),
        to: None,
    }
}

fn entry_of(maps: &[MapEntry], address: u64) -> Option<&MapEntry> {
    let after = maps.partition_point(|e| e.address.0 <= address);
    let entry = maps.get(after.checked_sub(1)?)?;
    let past = entry.address.0.saturating_add(entry.bytes.0);
    (address < past && entry.path.starts_with('/')).then_some(entry)
}

/// A call by names; without a function, the module stands for it.
fn named(function: &str, module: &str, file: &str, line: u32) -> (String, String, u32) {
    let function = match function.is_empty() {
        true => format!("{}+?", base_name(module)),
        false => function.to_owned(),
    };
    (function, base_name(file).to_owned(), line)
}

fn functions_of(lines: &Lines) -> Vec<String> {
    lines
        .iter()
        .map(|(function, _, _)| function.clone())
        .collect()
}

fn base_name(path: &str) -> &str {
    Path::new(path)
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or(path)
}

/// How many frames are left without those in which a program or thread begins: the C library's, and the program's own before them.
fn without_start(modules: &[&str]) -> usize {
    let count = modules.len();
    let is_own_start = count >= 2 && !is_start(modules[count - 1]) && is_start(modules[count - 2]);
    let end = count - usize::from(is_own_start);
    end - modules[..end]
        .iter()
        .rev()
        .take_while(|m| is_start(m))
        .count()
}

/// Whether a module is one in which programs and threads begin.
fn is_start(module: &str) -> bool {
    varve_model::c_library(module).is_some()
}

#[cfg(test)]
mod tests {
    use varve_tier::{PLAN_SCHEMA, SiteFrame};

    use super::*;

    fn plan(places: Vec<Place>) -> Plan {
        Plan {
            schema: PLAN_SCHEMA.into(),
            program: Default::default(),
            expected: Default::default(),
            tiers: vec!["fast=1GiB,80ns".into(), "slow=inf,250ns".into()],
            default: "slow".into(),
            places,
        }
    }

    fn frame(function: &str, line: u32, offset: u64) -> SiteFrame {
        SiteFrame {
            function: function.into(),
            file: "a.c".into(),
            line,
            module: "app".into(),
            build_id: "ab".into(),
            offset,
        }
    }

    fn heap(frames: Vec<SiteFrame>) -> Place {
        Place {
            tier: "fast".into(),
            kind: "heap".into(),
            frames,
            ..Place::default()
        }
    }

    #[test]
    fn two_places_of_the_same_functions_are_not_known_by_functions() {
        let matcher = Matcher::new(&plan(vec![
            heap(vec![frame("alloc", 3, 10), frame("main", 9, 20)]),
            heap(vec![frame("alloc", 3, 10), frame("main", 11, 30)]),
            heap(vec![frame("setup", 3, 40), frame("main", 12, 50)]),
        ]));
        let of = |functions: [&str; 2]| {
            let functions = functions.map(str::to_owned).to_vec();
            matcher.functions.get(&functions).copied()
        };
        assert_eq!(of(["alloc", "main"]), Some(None));
        assert_eq!(of(["setup", "main"]), Some(Some(2)));
        assert_eq!(of(["main", "setup"]), None);
        assert_eq!(matcher.lines.len(), 3);
    }

    #[test]
    fn inlined_calls_and_the_start_of_the_program_do_not_count() {
        let mut start = frame("__libc_start_main", 0, 99);
        start.module = "/lib/libc.so.6".into();
        let matcher = Matcher::new(&plan(vec![heap(vec![
            frame("inlined", 3, 10),
            frame("outer", 7, 10),
            frame("main", 9, 20),
            start,
            frame("_start", 0, 5),
        ])]));
        let key = vec![("ab".to_owned(), 10), ("ab".to_owned(), 20)];
        assert_eq!(matcher.offsets.get(&key), Some(&0));
        assert!(matcher.builds.contains("ab"));
    }

    #[test]
    fn a_file_is_known_by_the_end_of_its_path() {
        let mut place = heap(Vec::new());
        place.kind = "file".into();
        place.name = "data.bin (reader.c:12, in load)".into();
        let matcher = Matcher::new(&plan(vec![place]));
        assert_eq!(matcher.file("/srv/data.bin"), Some(0));
        assert_eq!(matcher.file("/srv/data.bin2"), None);
    }
}
