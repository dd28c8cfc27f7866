//! What the rings and buffers of the processor's events say: bytes to samples, without an event at hand.

use std::collections::HashMap;

use varve_model::{Address, Bytes, Cpu, MemoryLevel, Pid, SampleSource, Tid, Time};
use varve_perf::ring::{Record, Records, SWITCH_OUT, kind};
use varve_perf::{Attr, Body, Bytes as Cursor, DataSource, ibs, spe};

use super::is_user;

/// `PERF_CONTEXT_USER` and `PERF_CONTEXT_MAX`: marks in call chains.
const USER_CONTEXT: u64 = -512i64 as u64;
const CONTEXTS: u64 = -4095i64 as u64;
/// `PERF_AUX_FLAG_TRUNCATED` and `PERF_AUX_FLAG_COLLISION`: samples were lost.
const AUX_LOST: u64 = 1 | 8;

/// A sample of any process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) time: Time,
    pub(super) pid: Pid,
    pub(super) tid: Tid,
    pub(super) cpu: Option<Cpu>,
    /// Whether the program's own code was at work.
    pub(super) user: bool,
    pub(super) address: Option<Address>,
    pub(super) bytes: Option<Bytes>,
    pub(super) write: Option<bool>,
    pub(super) latency_cycles: Option<u32>,
    pub(super) level: Option<MemoryLevel>,
    /// The program's call chain, the instruction first.
    pub(super) frames: Vec<Address>,
}

/// What is known of an AUX buffer.
#[derive(Debug)]
pub(super) struct Aux {
    cpu: Cpu,
    /// What makes nanoseconds of ticks: multiplier and shift.
    clock: Option<(u32, u16)>,
    /// Which thread has run since when, oldest first.
    running: Vec<(Time, Pid, Tid)>,
    processes: HashMap<Tid, Pid>,
}

impl Aux {
    pub(super) fn new(cpu: Cpu, clock: Option<(u32, u16)>) -> Aux {
        Aux {
            cpu,
            clock,
            running: Vec::new(),
            processes: HashMap::new(),
        }
    }

    /// A thread begins or ceases to run.
    fn switch(&mut self, record: &Record<'_>, attr: &Attr) {
        let trailer = attr.trailer(record.body, cfg!(target_endian = "big"));
        let (Some(time), Some(pid), Some(tid)) = (trailer.time, trailer.pid, trailer.tid) else {
            return;
        };
        if record.misc & SWITCH_OUT == 0 {
            self.running.push((Time(time), Pid(pid), Tid(tid)));
            self.processes.insert(Tid(tid), Pid(pid));
        }
    }

    /// Who ran at that time: as the processor says, or else the kernel.
    fn who(&self, time: Time, context: Option<u32>) -> Option<(Pid, Tid)> {
        let context = context.filter(|c| *c != 0).map(Tid);
        if let Some(tid) = context
            && let Some(pid) = self.processes.get(&tid)
        {
            return Some((*pid, tid));
        }
        let after = self.running.partition_point(|(since, ..)| *since <= time);
        let (_, pid, tid) = self.running[..after].last()?;
        Some((*pid, *tid))
    }

    /// Forgets who ran before the last that did so at a time.
    fn forget(&mut self, until: Time) {
        let after = self.running.partition_point(|(since, ..)| *since <= until);
        self.running.drain(..after.saturating_sub(1));
    }
}

/// Copies a part of an AUX buffer: from an offset, so many bytes.
pub(super) type ReadAux<'a> = dyn FnMut(u64, Bytes, &mut Vec<u8>) + 'a;

/// Reads records.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) source: SampleSource,
    /// Samples that are known to be lost.
    pub(super) dropped: u64,
}

impl Reader {
    pub(super) fn new(source: SampleSource) -> Reader {
        Reader { source, dropped: 0 }
    }

    /// Takes the samples of what was read from a ring.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        attr: &Attr,
        mut aux: Option<&mut Aux>,
        read_aux: &mut ReadAux<'_>,
        into: &mut Vec<Taken>,
    ) {
        let mut buffers: Vec<(Time, u64, Bytes)> = Vec::new();
        for record in Records::new(bytes) {
            let Ok(record) = record else {
                self.dropped += 1;
                break;
            };
            let mut cursor = Cursor::new(record.body, cfg!(target_endian = "big"));
            match record.kind {
                kind::SAMPLE if aux.is_none() => match self.sample(&record, attr) {
                    Some(taken) => into.extend(taken),
                    None => self.dropped += 1,
                },
                kind::LOST => {
                    let (_id, count) = (cursor.u64(), cursor.u64());
                    self.dropped += count.unwrap_or(1);
                }
                kind::LOST_SAMPLES => self.dropped += cursor.u64().unwrap_or(1),
                kind::SWITCH | kind::SWITCH_CPU_WIDE => {
                    if let Some(aux) = aux.as_deref_mut() {
                        aux.switch(&record, attr);
                    }
                }
                kind::AUX => {
                    let (offset, size) = (cursor.u64(), cursor.u64());
                    let flags = cursor.u64().unwrap_or(0);
                    self.dropped += u64::from(flags & AUX_LOST != 0);
                    let trailer = attr.trailer(record.body, cfg!(target_endian = "big"));
                    if let (Some(offset), Some(size), Some(time)) = (offset, size, trailer.time) {
                        buffers.push((Time(time), offset, Bytes(size)));
                    }
                }
                _ => {}
            }
        }
        let Some(aux) = aux else { return };
        for (time, offset, size) in buffers {
            let mut packets = Vec::new();
            read_aux(offset, size, &mut packets);
            self.packets(&packets, offset, time, aux, into);
            aux.forget(time);
        }
    }

    /// A sample of a ring; nothing where it is of no thread, none where it is cut short.
    fn sample(&self, record: &Record<'_>, attr: &Attr) -> Option<Option<Taken>> {
        let body = attr.sample(record.body, cfg!(target_endian = "big"))?;
        let (Some(pid), Some(tid), Some(time)) = (body.pid, body.tid, body.time) else {
            return Some(None);
        };
        let source = body
            .data_source
            .map(DataSource::from_bits)
            .unwrap_or_default();
        let user = record.is_user();
        // What old kernels leave empty.
        let raw = match self.source {
            SampleSource::Ibs => body.raw.and_then(ibs::Operation::from_raw),
            _ => None,
        };
        let raw = raw.as_ref();
        let address = body.address.filter(|a| *a != 0).map(Address);
        let latency = body
            .weight
            .filter(|w| *w != 0)
            .and_then(|w| u32::try_from(w).ok());
        Some(Some(Taken {
            time: Time(time),
            pid: Pid(pid),
            tid: Tid(tid),
            cpu: body.cpu.map(Cpu),
            user,
            address: address.or(raw.and_then(|r| r.address)),
            bytes: raw.and_then(|r| r.bytes),
            write: source.write.or(raw.map(|r| r.write)),
            latency_cycles: latency.or(raw.and_then(|r| r.latency_cycles)),
            level: source.level.or(raw.and_then(|r| r.level)),
            frames: frames(&body, user),
        }))
    }

    /// The samples of a part of an AUX buffer that was filled up to a time.
    fn packets(
        &mut self,
        packets: &[u8],
        offset: u64,
        until: Time,
        aux: &Aux,
        into: &mut Vec<Taken>,
    ) {
        let mut operations = Vec::new();
        // No alignment that a packet may ask for is above two to the sixteenth.
        let misaligned = (offset & 0xffff) as usize;
        let left = spe::decode(packets, misaligned, &mut |operation| {
            operations.push(operation)
        });
        self.dropped += left.cut as u64;
        // The last one is the one that came just before the kernel reported the buffer: what it is behind by is known in ticks.
        let last = operations.iter().filter_map(|o| o.ticks).max();
        for operation in operations {
            let (Some(write), Some(0)) = (operation.write, operation.exception_level) else {
                continue;
            };
            let before = match (aux.clock, last, operation.ticks) {
                (Some((multiplier, shift)), Some(last), Some(ticks)) => {
                    let ticks = u128::from(last.saturating_sub(ticks));
                    u64::try_from((ticks * u128::from(multiplier)) >> shift).unwrap_or(0)
                }
                _ => 0,
            };
            let time = Time(until.0.saturating_sub(before));
            let Some((pid, tid)) = aux.who(time, operation.context) else {
                self.dropped += 1;
                continue;
            };
            into.push(Taken {
                time,
                pid,
                tid,
                cpu: Some(aux.cpu),
                user: true,
                address: operation.address,
                bytes: None,
                write: Some(write),
                latency_cycles: operation.latency_cycles,
                level: operation.level(),
                frames: operation.ip.into_iter().collect(),
            });
        }
    }
}

/// The program's part of a call chain. It begins where the interrupt came, which is some instructions behind the one that was
/// sampled, so that one takes its place.
fn frames(body: &Body<'_>, user: bool) -> Vec<Address> {
    let mut frames = Vec::new();
    let mut of_user = user;
    for entry in body.chain.clone() {
        if entry >= CONTEXTS {
            of_user = entry == USER_CONTEXT;
        } else if of_user {
            frames.push(Address(entry));
        }
    }
    frames.retain(is_user);
    if user && let Some(ip) = body.ip {
        match frames.first_mut() {
            Some(first) => *first = Address(ip),
            None => frames.push(Address(ip)),
        }
    }
    frames
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
