//! What the preload library reports, through its rings.

use std::collections::HashMap;

use varve_model::{Address, Bytes, ObjectKind, Page, Pid, SiteId, Tid, Time};
use varve_preload_abi::{Event, MapOperation, Record, RingReader};
use varve_sys::monotonic_now;
use varve_trace::tables::SampledBlockRow;

use super::kernel_view::is_reservation;
use crate::state::objects::{Birth, LiveObjects, STACK};
use crate::state::processes::{FirstMaps, Processes};
use crate::state::stacks::Stacks;
use crate::state::{Arrivals, State};
use crate::target::channel::Arrival;

/// The name of the preload library's own memory in traces.
pub(crate) const OWN_MEMORY: &str = "varve preload";

/// A ring and what is known of its process.
struct Ring {
    reader: RingReader,
    /// Whose memory it reports.
    pid: Pid,
    /// When what that process runs began.
    image: Time,
    /// Whether it has reported anything.
    spoke: bool,
    sites: HashMap<u32, SiteId>,
    lost: u64,
    unheard: u64,
    roomless: u64,
    /// What its process's threads spent on records, nanoseconds.
    spent: u64,
    damaged: bool,
    /// What came of the text of its first mappings.
    maps_text: Vec<u8>,
    /// Its sampled blocks that live, and their sizes.
    sampled: HashMap<u64, Bytes>,
}

/// A program's first mappings fill less than this; a target that reports more is not believed.
const MAX_MAPS_TEXT: usize = 1 << 20;

/// Sampled blocks that are kept of one process: a target that reports more is not believed.
const MAX_SAMPLED: usize = 1 << 22;

/// A ring of a process that is not known yet.
struct Early {
    pid: Pid,
    image: Time,
    reader: RingReader,
    /// It was there at the last look already.
    waited: bool,
}

impl Early {
    /// Whether the events have reported the process and what it runs.
    fn is_known(&self, processes: &Processes) -> bool {
        processes.knows(self.pid, self.image)
    }
}

/// All rings of a recording.
#[derive(Default)]
pub(crate) struct Rings {
    rings: Vec<Ring>,
    early: Vec<Early>,
    /// Records that were dropped or could not be read.
    pub(crate) lost: u64,
    /// Processes that were forked and could have no ring.
    pub(crate) unheard: u64,
    /// Heap objects for whose notes their process had no memory.
    pub(crate) roomless: u64,
    /// How full the fullest ring was at the last drain.
    pub(crate) fill_percent: u8,
    /// What threads have spent on records since somebody took this, nanoseconds.
    pub(crate) spent: u64,
    /// The smallest object that is to be recorded by itself from here on, bytes; 0 for what the programs were started with.
    pub(crate) min_object: u64,
    /// Whether any process ever had a ring.
    pub(crate) any: bool,
    /// Sampled blocks that wait to be written.
    pub(crate) blocks: Vec<SampledBlockRow>,
    /// First mappings that nobody has taken yet.
    pub(crate) first_maps: Vec<FirstMaps>,
    /// Processes that have begun to report, which nobody has noted yet, and the beginning of what they run.
    pub(crate) spoke: Vec<(Pid, Time)>,
}

impl Rings {
    /// Takes the rings that have come. To be called before the kernel's events are taken too: they report all processes
    /// to whom these rings belong.
    pub(crate) fn collect(&mut self, arrivals: &mut Arrivals) {
        self.early.iter_mut().for_each(|e| e.waited = true);
        self.take_arrivals(arrivals);
    }

    fn take_arrivals(&mut self, arrivals: &mut Arrivals) {
        self.early.extend(arrivals.take(|arrival| match arrival {
            Arrival::Ring { pid, image, reader } => Ok(Early {
                pid,
                image,
                reader: *reader,
                waited: false,
            }),
            other => Err(other),
        }));
    }

    /// Reads all rings, up to the moment up to which the kernel's events were taken: of threads that began later nothing
    /// is known yet.
    pub(crate) fn drain(&mut self, heard: Time, state: &mut State) {
        self.take_up(state, Early::is_known);
        self.drain_all(heard, state);
    }

    /// The same, once all events were taken that there were when the rings were collected.
    pub(crate) fn drain_collected(&mut self, heard: Time, state: &mut State) {
        self.take_up(state, |early, processes| {
            early.waited || early.is_known(processes)
        });
        self.drain_all(heard, state);
    }

    fn drain_all(&mut self, heard: Time, state: &mut State) {
        self.fill_percent = 0;
        for i in 0..self.rings.len() {
            self.drain_one(i, state, Some(heard));
        }
    }

    /// Takes up those rings of which that is true. A process of which the events are still to come may have its parent's
    /// memory for all that is known of it.
    fn take_up(&mut self, state: &mut State, is_due: impl Fn(&Early, &Processes) -> bool) {
        // A process may have come and gone since the last look: its ring is here by now.
        self.take_arrivals(&mut state.arrivals);
        let processes = &state.processes;
        for early in std::mem::take(&mut self.early) {
            if !is_due(&early, processes) {
                self.early.push(early);
                continue;
            }
            self.any = true;
            early.reader.set_min_object(self.min_object);
            self.rings.push(Ring {
                reader: early.reader,
                // Between vfork and exec the memory is the parent's.
                pid: processes.owner_of_memory(early.pid),
                image: early.image,
                spoke: false,
                sites: HashMap::new(),
                lost: 0,
                unheard: 0,
                roomless: 0,
                spent: 0,
                damaged: false,
                maps_text: Vec::new(),
                sampled: HashMap::new(),
            });
        }
    }

    /// Has all processes record only objects of so many bytes and more.
    pub(crate) fn set_min_object(&mut self, bytes: u64) {
        self.min_object = bytes;
        for ring in &self.rings {
            ring.reader.set_min_object(bytes);
        }
    }

    /// What a process ran until this time is over: reads what it has left, and lets its rings go.
    pub(crate) fn image_ended(&mut self, pid: Pid, time: Time, state: &mut State) {
        self.take_up(state, Early::is_known);
        let of = |r: &Ring| r.pid == pid && r.image < time;
        while let Some(i) = self.rings.iter().position(of) {
            self.drain_one(i, state, None);
            self.rings.swap_remove(i);
        }
    }

    fn drain_one(&mut self, i: usize, state: &mut State, heard: Option<Time>) {
        let State {
            processes,
            objects,
            stacks,
            ..
        } = state;
        let ring = &mut self.rings[i];
        if ring.damaged {
            return;
        }
        let pid = ring.pid;
        let sites = &mut ring.sites;
        let text = &mut ring.maps_text;
        let first_maps = &mut self.first_maps;
        let mut blocks = Blocks {
            live: &mut ring.sampled,
            rows: &mut self.blocks,
        };
        let now = monotonic_now();
        let mut latest = now;
        let each = |record: &Record<'_>| {
            if let Event::Unloads {
                start,
                end,
                offset,
                path,
            } = record.event
            {
                let path = path.iter().flat_map(|w| w.to_ne_bytes());
                let path: Vec<u8> = path.take_while(|b| *b != 0).collect();
                // A target may date it as it likes.
                let time = Time(record.time_ns).min(latest);
                processes.unloads(pid, time, (start..end, offset), &path);
                return;
            }
            if let Event::MapsText { text: piece, last } = record.event {
                if text.len() < MAX_MAPS_TEXT {
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
            // A target may write what it likes into its ring: nothing begins or ends later than now.
            let mut time = Time(record.time_ns);
            if time > latest {
                latest = monotonic_now();
                time = time.min(latest);
            }
            let tid = processes.thread_known_as(pid, Tid(record.tid));
            take(pid, tid, time, record, sites, objects, stacks, &mut blocks);
        };
        let drained = match heard {
            None => ring.reader.drain_rest(each),
            // What a target dates into the future is of this moment.
            Some(heard) => ring.reader.drain_before(heard.0 + 1..now.0 + 1, each),
        };
        match drained {
            Ok(drained) => {
                self.fill_percent = self.fill_percent.max(drained.fill_percent);
                if drained.records > 0 && !ring.spoke {
                    ring.spoke = true;
                    self.spoke.push((pid, ring.image));
                }
            }
            Err(_) => {
                ring.damaged = true;
                self.lost += 1;
            }
        }
        let spent = ring.reader.spent();
        self.spent += spent.saturating_sub(ring.spent);
        ring.spent = spent;
        let losses = ring.reader.losses();
        self.lost += losses.dropped.saturating_sub(ring.lost);
        self.unheard += losses.unheard.saturating_sub(ring.unheard);
        self.roomless += losses.roomless.saturating_sub(ring.roomless);
        (ring.lost, ring.unheard, ring.roomless) =
            (losses.dropped, losses.unheard, losses.roomless);
    }
}

/// The sampled blocks of one process.
struct Blocks<'a> {
    live: &'a mut HashMap<u64, Bytes>,
    rows: &'a mut Vec<SampledBlockRow>,
}

impl Blocks<'_> {
    #[expect(clippy::too_many_arguments, reason = "the columns of a row")]
    fn row(
        &mut self,
        pid: Pid,
        tid: Tid,
        time: Time,
        address: u64,
        bytes: Bytes,
        freed: bool,
        site: Option<SiteId>,
    ) {
        self.rows.push(SampledBlockRow {
            time_ns: time,
            pid,
            tid,
            freed,
            address: Address(address),
            bytes,
            site,
        });
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "parts of the state that are borrowed one by one"
)]
fn take(
    pid: Pid,
    tid: Tid,
    time: Time,
    record: &Record<'_>,
    sites: &mut HashMap<u32, SiteId>,
    objects: &mut LiveObjects,
    stacks: &mut Stacks,
    blocks: &mut Blocks<'_>,
) {
    // Its stack may come after the first record that names it.
    let site = match sites.get(&record.site) {
        _ if record.site == 0 => None,
        Some(site) => Some(*site),
        None => stacks
            .reserve()
            .inspect(|site| _ = sites.insert(record.site, *site)),
    };
    let birth = |kind, made_by, address, bytes| Birth {
        kind,
        made_by,
        address: Address(address),
        bytes: Bytes(bytes),
        born: time,
        tid: Some(tid),
        site,
        reserved: false,
        continues: None,
    };
    match record.event {
        Event::Init { .. } | Event::MapsText { .. } | Event::Unloads { .. } => {}
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
            objects.allocate(
                pid,
                birth(ObjectKind::Heap, alloc_name(kind), address, bytes),
            );
        }
        Event::Sampled { address, bytes } => {
            let bytes = Bytes(bytes);
            if blocks.live.len() < MAX_SAMPLED {
                blocks.live.insert(address, bytes);
            }
            blocks.row(pid, tid, time, address, bytes, false, site);
        }
        Event::Free { address } => {
            if let Some(bytes) = blocks.live.remove(&address) {
                blocks.row(pid, tid, time, address, bytes, true, None);
            }
            objects.free(pid, Address(address), time);
        }
        Event::PageOwner { page } => objects.pool(pid, Page(page), time, tid, site),
        Event::ThreadStack { low, bytes, .. } => {
            objects.map(pid, birth(ObjectKind::Stack, STACK, low, bytes));
        }
        Event::PreloadMapping { address, bytes, .. } => {
            let own = Birth {
                site: None,
                ..birth(ObjectKind::Recorder, OWN_MEMORY, address, bytes)
            };
            objects.map(pid, own);
        }
        Event::Map {
            operation,
            address,
            bytes,
            old_address,
            old_bytes,
            protection,
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
                let mut made = birth(kind, "mmap", address, bytes);
                made.reserved = !file && is_reservation(protection, flags as i32);
                objects.map(pid, made);
            }
            MapOperation::Munmap => objects.unmap(pid, Address(address), Bytes(bytes), time),
            MapOperation::Mremap => {
                let before = objects.area_at(pid, Address(old_address)).cloned();
                objects.unmap(pid, Address(old_address), Bytes(old_bytes), time);
                let mut moved = birth(ObjectKind::Mapping, "mremap", address, bytes);
                if let Some(before) = before {
                    moved.kind = before.birth.kind;
                    moved.site = before.birth.site.or(moved.site);
                    moved.continues = Some(before.object);
                }
                objects.map(pid, moved);
            }
            MapOperation::Brk | MapOperation::Sbrk => {
                grow_or_shrink(pid, old_address, address, time, objects, |a, b| {
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
    objects: &mut LiveObjects,
    birth: impl FnOnce(u64, u64) -> Birth,
) {
    if after > before {
        let mut more = birth(before, after - before);
        let heap = objects.area_before(pid, before);
        let heap = heap.filter(|l| l.birth.made_by == more.made_by);
        more.continues = heap.map(|l| l.object);
        objects.map(pid, more);
    } else if after < before {
        objects.unmap(pid, Address(after), Bytes(before - after), time);
    }
}

fn alloc_name(kind: varve_preload_abi::AllocKind) -> &'static str {
    use varve_preload_abi::AllocKind as K;
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
