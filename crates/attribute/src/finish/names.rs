//! What objects are called.

use std::collections::HashMap;
use std::path::PathBuf;

use varve_model::{Address, ObjectKind, Pid, SiteId, Tid, Time};
use varve_objects::{LOADERS, RECORDERS};
use varve_symbols::{Asked, Frame, Mapping, Namer, is_loaders, of_file, stack_name};
use varve_trace::tables::{BirthRow, ProcessRow, ThreadRow};
use varve_trace::{Trace, TraceError};

use super::maker;

/// Gives names to objects, each site once.
pub(super) struct Names<'a> {
    stacks: &'a HashMap<SiteId, Vec<Frame>>,
    namer: Namer,
    sites: HashMap<(SiteId, ObjectKind, bool), String>,
    threads: HashMap<(Pid, Tid), String>,
    parents: HashMap<Pid, Pid>,
    files: Files,
}

/// Which files were mapped where: address, end, when they were gone, path.
#[derive(Default)]
pub(super) struct Files(HashMap<Pid, Vec<(Address, Address, Time, String)>>);

/// Mappings that are looked at for one birth.
const MAX_FILES: usize = 64;

impl Files {
    pub(super) fn new(mappings: &[Mapping]) -> Files {
        let mut files = Files::default();
        for m in mappings.iter().filter(|m| m.path.starts_with('/')) {
            let to = m.to.unwrap_or(Time(u64::MAX));
            let of = files.0.entry(m.pid).or_default();
            of.push((m.address, m.address + m.bytes, to, m.path.clone()));
        }
        for of in files.0.values_mut() {
            of.sort_unstable();
        }
        files
    }

    /// A mapping of a file by the name of the file that was seen there first after its birth.
    fn name_of(&self, birth: &BirthRow) -> String {
        let of = self.0.get(&birth.pid).map_or(&[][..], Vec::as_slice);
        let behind = of.partition_point(|f| f.0 <= birth.address);
        let near = of[..behind].iter().rev().take(MAX_FILES);
        let there = near.filter(|f| birth.address < f.1 && birth.born_ns < f.2);
        match there.min_by_key(|f| f.2) {
            Some((.., path)) => {
                let name = path.trim_end_matches(" (deleted)");
                format!("mapping of {}", name.rsplit('/').next().unwrap_or(name))
            }
            None => "mapping of a file".to_owned(),
        }
    }
}

/// How the stack of a thread was made whose process is a forked child: as a copy of the parent's.
pub(super) const COPIED_STACK: &str = "copied stack";
/// Longer lines of parents are no lines.
const MAX_PARENTS: usize = 1 << 10;

impl<'a> Names<'a> {
    pub(super) fn new(
        trace: &Trace,
        stacks: &'a HashMap<SiteId, Vec<Frame>>,
        files: Files,
    ) -> Result<Self, TraceError> {
        let threads = trace.rows::<ThreadRow>()?.into_iter();
        Ok(Self {
            stacks,
            namer: Namer::new(vec![PathBuf::new()]),
            sites: HashMap::new(),
            threads: threads.map(|t| ((t.pid, t.tid), t.name)).collect(),
            parents: trace
                .rows::<ProcessRow>()?
                .into_iter()
                .map(|p| (p.pid, p.parent))
                .collect(),
            files,
        })
    }

    /// The name of the copy that a forked child has of the stack of a thread of its parent, or of one further up.
    fn copied_stack(&self, birth: &BirthRow) -> String {
        let tid = maker(birth);
        let mut at = birth.pid;
        for _ in 0..MAX_PARENTS {
            let Some(parent) = self.parents.get(&at) else {
                break;
            };
            at = *parent;
            if let Some(name) = self.threads.get(&(at, tid)) {
                let stack = stack_name(at, tid, Some(name));
                return format!("copy of the {stack} of process {at}");
            }
        }
        "copy of a stack of the parent's".to_owned()
    }

    pub(super) fn name(&mut self, birth: &BirthRow) -> String {
        let made_by = birth.made_by.as_ref();
        match (birth.kind, birth.site) {
            (ObjectKind::Recorder, _) => RECORDERS.to_owned(),
            (ObjectKind::Stack, _) if made_by == "stack" => {
                let tid = maker(birth);
                let thread = self.threads.get(&(birth.pid, tid));
                stack_name(birth.pid, tid, thread.map(String::as_str))
            }
            (ObjectKind::Stack, _) if made_by == COPIED_STACK => self.copied_stack(birth),
            (kind, Some(site)) => {
                let (stacks, namer) = (self.stacks, &mut self.namer);
                let name = self
                    .sites
                    .entry((site, kind, birth.pool))
                    .or_insert_with(|| {
                        let asked = if birth.pool {
                            Asked::Pool
                        } else {
                            Asked::One(kind)
                        };
                        namer.site(asked, stacks.get(&site).map_or(&[], Vec::as_slice))
                    });
                let stack = stacks.get(&site).map_or(&[][..], Vec::as_slice);
                if kind == ObjectKind::File {
                    let file = self.files.name_of(birth);
                    return match is_loaders(stack) {
                        true => file,
                        false => of_file(file, name),
                    };
                }
                if kind == ObjectKind::Mapping && is_loaders(stack) {
                    return LOADERS.to_owned();
                }
                // The preload library stands in for the function itself, which no frame shows.
                match name.strip_prefix("heap (") {
                    Some(place) if !birth.pool && !made_by.is_empty() => {
                        format!("{made_by} ({place}")
                    }
                    _ => name.clone(),
                }
            }
            (ObjectKind::Heap, None) if birth.pool => "heap, small objects".to_owned(),
            (ObjectKind::Heap, None) => "heap, unknown caller".to_owned(),
            (ObjectKind::File, None) => self.files.name_of(birth),
            (ObjectKind::Stack, None) => "stack".to_owned(),
            (_, None) => "anonymous memory".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use varve_model::{Bytes, ObjectId};

    use super::*;

    #[test]
    fn a_mapping_of_a_file_has_its_name() {
        let mapping = |path: &str, to| Mapping {
            pid: Pid(1),
            address: Address(0x1000),
            bytes: Bytes(0x3000),
            perms: "r--p".into(),
            offset: Bytes(0),
            path: path.into(),
            called: None,
            file: None,
            build_id: None,
            from: Time(5),
            to,
        };
        let later = mapping("/b (deleted)", None);
        let files = Files::new(&[later, mapping("/usr/lib/a.so", Some(Time(9)))]);
        let born = |address, time| {
            files.name_of(&BirthRow {
                object: ObjectId(0),
                pid: Pid(1),
                kind: ObjectKind::File,
                made_by: "mmap".into(),
                address: Address(address),
                bytes: Bytes(0x1000),
                born_ns: Time(time),
                tid: None,
                site: None,
                pool: false,
                reserved: false,
                continues: None,
            })
        };
        assert_eq!(born(0x2000, 4), "mapping of a.so");
        assert_eq!(born(0x2000, 10), "mapping of b");
        assert_eq!(born(0x8000, 4), "mapping of a file");
    }
}
