//! What the preload library tells, through its rings.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use varve_agent_ring::{Event, MapOperation, RING_EXTENSION, Record, RingReader};
use varve_model::{Address, Bytes, ObjectKind, Page, Pid, SiteId, Tid, Time};
use varve_sys::MapEntry;

use crate::RecordError;
use crate::lives::{Birth, Lives};
use crate::stacks::Stacks;

/// The name of the preload library's own memory in traces.
pub(crate) const OWN_MEMORY: &str = "varve agent";

/// A ring and what is known of its process.
struct Ring {
    reader: RingReader,
    pid: Pid,
    sites: HashMap<u32, SiteId>,
    lost: u64,
    damaged: bool,
    /// What came of the text of its first mappings.
    maps_text: Vec<u8>,
}

/// What a program mapped when it began, as it told itself.
pub(crate) struct FirstMaps {
    pub(crate) pid: Pid,
    pub(crate) time: Time,
    pub(crate) entries: Vec<MapEntry>,
}

/// A program's first mappings fill less than this; a target that tells more is not believed.
const MOST_MAPS_TEXT: usize = 1 << 20;

/// All rings of a recording.
pub(crate) struct Agents {
    folder: PathBuf,
    /// Tells that the folder is in use.
    _lock: Option<fs::File>,
    rings: Vec<Ring>,
    /// Files that are no rings.
    refused: HashSet<PathBuf>,
    /// Records that were dropped or could not be read.
    pub(crate) lost: u64,
    /// How full the fullest ring was at the last drain.
    pub(crate) fill_percent: u8,
    /// Whether any process ever made a ring.
    pub(crate) any: bool,
    /// First mappings that nobody has taken yet.
    pub(crate) first_maps: Vec<FirstMaps>,
}

impl Agents {
    /// Makes the folder in which the targets, whatever their user, make their rings.
    /// `tell` hears of each place before something is made there.
    pub(crate) fn create(
        mut tell: impl FnMut(&Path) -> Result<(), RecordError>,
    ) -> Result<Agents, RecordError> {
        let mut last = None;
        for base in crate::stale::BASES {
            let folder = Path::new(base).join(format!(
                "varve-{}-{:x}",
                std::process::id(),
                varve_sys::monotonic_now().0
            ));
            tell(&folder)?;
            let made = fs::create_dir(&folder)
                .and_then(|()| fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)));
            match made {
                Ok(()) => {
                    return Ok(Agents {
                        _lock: varve_sys::lock(&folder).ok(),
                        folder,
                        rings: Vec::new(),
                        refused: HashSet::new(),
                        lost: 0,
                        fill_percent: 0,
                        any: false,
                        first_maps: Vec::new(),
                    });
                }
                Err(e) => last = Some(e),
            }
        }
        let source = last.unwrap_or_else(|| std::io::ErrorKind::NotFound.into());
        Err(RecordError::System {
            action: "make a folder for the preload library's rings in /dev/shm or /tmp",
            source,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Takes up new rings and reads all of them.
    pub(crate) fn drain(&mut self, lives: &mut Lives, stacks: &mut Stacks) {
        self.fill_percent = 0;
        self.discover(lives, stacks);
        for i in 0..self.rings.len() {
            self.drain_one(i, lives, stacks, false);
        }
    }

    fn discover(&mut self, lives: &mut Lives, stacks: &mut Stacks) {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return;
        };
        let mut fresh: Vec<PathBuf> = entries
            .flatten()
            .map(|e| e.path())
            .filter(|p| p.extension().is_some_and(|e| e == RING_EXTENSION))
            .filter(|p| {
                !self.refused.contains(p) && self.rings.iter().all(|r| r.reader.path() != p)
            })
            .collect();
        fresh.sort();
        for path in fresh {
            match RingReader::open(&path) {
                Ok(reader) => {
                    self.any = true;
                    let pid = Pid(reader.identity().pid);
                    // The program before an exec has said its last word.
                    while let Some(old) = self.rings.iter().position(|r| r.pid == pid) {
                        self.close(old, lives, stacks);
                    }
                    self.rings.push(Ring {
                        reader,
                        pid,
                        sites: HashMap::new(),
                        lost: 0,
                        damaged: false,
                        maps_text: Vec::new(),
                    });
                }
                // A ring is complete when it appears under its name, so this one never will be.
                Err(_) => {
                    self.refused.insert(path);
                    self.lost += 1;
                }
            }
        }
    }

    /// Reads what a process that ended has left, and removes its ring.
    pub(crate) fn process_ended(&mut self, pid: Pid, lives: &mut Lives, stacks: &mut Stacks) {
        self.discover(lives, stacks);
        while let Some(i) = self.rings.iter().position(|r| r.pid == pid) {
            self.close(i, lives, stacks);
        }
    }

    fn close(&mut self, i: usize, lives: &mut Lives, stacks: &mut Stacks) {
        self.drain_one(i, lives, stacks, true);
        let ring = self.rings.swap_remove(i);
        let _ = fs::remove_file(ring.reader.path());
    }

    fn drain_one(&mut self, i: usize, lives: &mut Lives, stacks: &mut Stacks, rest: bool) {
        let ring = &mut self.rings[i];
        if ring.damaged {
            return;
        }
        let pid = ring.pid;
        let sites = &mut ring.sites;
        let text = &mut ring.maps_text;
        let first_maps = &mut self.first_maps;
        let each = |record: &Record<'_>| {
            if let Event::MapsText { text: piece, last } = record.event {
                if text.len() < MOST_MAPS_TEXT {
                    text.extend(piece.iter().flat_map(|w| w.to_ne_bytes()));
                }
                if last {
                    // Pieces end in zero bytes where a read ended within a word.
                    let mut text = std::mem::take(text);
                    text.retain(|b| *b != 0);
                    first_maps.push(FirstMaps {
                        pid,
                        time: Time(record.time_ns),
                        entries: varve_sys::parse_maps(&text),
                    });
                }
                return;
            }
            take(pid, record, sites, lives, stacks);
        };
        let drained = if rest {
            ring.reader.drain_rest(each)
        } else {
            ring.reader.drain(each)
        };
        match drained {
            Ok(drained) => self.fill_percent = self.fill_percent.max(drained.fill_percent),
            Err(_) => {
                ring.damaged = true;
                self.lost += 1;
            }
        }
        let dropped = ring.reader.dropped();
        self.lost += dropped.saturating_sub(ring.lost);
        ring.lost = dropped;
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        // A process that was let go may be making a ring in it at this moment.
        for _ in 0..20 {
            match fs::remove_dir_all(&self.folder) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {}
                _ => return,
            }
        }
    }
}

fn take(
    pid: Pid,
    record: &Record<'_>,
    sites: &mut HashMap<u32, SiteId>,
    lives: &mut Lives,
    stacks: &mut Stacks,
) {
    let time = Time(record.time_ns);
    let tid = Tid(record.tid);
    // Its stack may come after the first record that names it.
    let site =
        (record.site != 0).then(|| *sites.entry(record.site).or_insert_with(|| stacks.reserve()));
    let birth = |kind, made_by, address, bytes| Birth {
        kind,
        made_by,
        address: Address(address),
        bytes: Bytes(bytes),
        born: time,
        tid: Some(tid),
        site,
    };
    match record.event {
        Event::Init { .. } | Event::MapsText { .. } => {}
        Event::Stack { frames } => {
            let frames = frames.iter().map(|a| Address(*a)).collect();
            if let Some(site) = site {
                stacks.fill(site, pid, time, frames);
            }
        }
        Event::Alloc {
            address,
            bytes,
            kind,
        } => {
            lives.allocate(
                pid,
                birth(ObjectKind::Heap, alloc_name(kind), address, bytes),
            );
        }
        Event::Free { address } => lives.free(pid, Address(address), time),
        Event::PageOwner { page } => lives.pool(pid, Page(page), time, tid, site),
        Event::ThreadStack { low, bytes, .. } => {
            lives.map(pid, birth(ObjectKind::Stack, "stack", low, bytes));
        }
        Event::AgentMapping { address, bytes, .. } => {
            let own = Birth {
                site: None,
                ..birth(ObjectKind::Mapping, OWN_MEMORY, address, bytes)
            };
            lives.map(pid, own);
        }
        Event::Map {
            operation,
            address,
            bytes,
            old_address,
            old_bytes,
            flags,
            fd,
            ..
        } => match operation {
            MapOperation::Mmap => {
                let file = fd >= 0 && flags & libc::MAP_ANONYMOUS as u32 == 0;
                let kind = if file {
                    ObjectKind::File
                } else {
                    ObjectKind::Mapping
                };
                lives.map(pid, birth(kind, "mmap", address, bytes));
            }
            MapOperation::Munmap => lives.unmap(pid, Address(address), Bytes(bytes), time),
            MapOperation::Mremap => {
                let before = lives.area_at(pid, Address(old_address)).cloned();
                lives.unmap(pid, Address(old_address), Bytes(old_bytes), time);
                let mut moved = birth(ObjectKind::Mapping, "mremap", address, bytes);
                if let Some(before) = before {
                    moved.kind = before.kind;
                }
                lives.map(pid, moved);
            }
            MapOperation::Brk | MapOperation::Sbrk => {
                grow_or_shrink(pid, old_address, address, time, lives, |a, b| {
                    birth(ObjectKind::Heap, "brk", a, b)
                });
            }
        },
    }
}

/// A break that moved: an area more, or the end of what lies above it.
pub(crate) fn grow_or_shrink(
    pid: Pid,
    before: u64,
    after: u64,
    time: Time,
    lives: &mut Lives,
    birth: impl FnOnce(u64, u64) -> Birth,
) {
    if after > before {
        lives.map(pid, birth(before, after - before));
    } else if after < before {
        lives.unmap(pid, Address(after), Bytes(before - after), time);
    }
}

fn alloc_name(kind: varve_agent_ring::AllocKind) -> &'static str {
    use varve_agent_ring::AllocKind as K;
    match kind {
        K::Malloc => "malloc",
        K::Calloc => "calloc",
        K::Realloc => "realloc",
        K::ReallocArray => "reallocarray",
        K::Memalign => "memalign",
        K::AlignedAlloc => "aligned_alloc",
        K::PosixMemalign => "posix_memalign",
        K::Valloc => "valloc",
        K::Pvalloc => "pvalloc",
    }
}
