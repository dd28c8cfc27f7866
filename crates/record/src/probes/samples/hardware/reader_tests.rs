//! Records as `include/uapi/linux/perf_event.h` lays them out, AUX buffers as the manual of SPE does.

use varve_perf::sample_bit as bit;

use super::*;

const SAMPLE: u64 = bit::IP
    | bit::TID
    | bit::TIME
    | bit::ADDR
    | bit::CPU
    | bit::PERIOD
    | bit::CALLCHAIN
    | bit::DATA_SRC
    | bit::WEIGHT_STRUCT;

const USER: u16 = 2;
const KERNEL: u16 = 1;

fn record(kind: u32, misc: u16, words: &[u64], more: &[u8]) -> Vec<u8> {
    let size = (8 + 8 * words.len() + more.len()) as u16;
    let mut bytes = [
        kind.to_ne_bytes().to_vec(),
        misc.to_ne_bytes().to_vec(),
        size.to_ne_bytes().to_vec(),
    ]
    .concat();
    bytes.extend(words.iter().flat_map(|w| w.to_ne_bytes()));
    bytes.extend(more);
    bytes
}

/// Two numbers of four bytes in a word.
fn pair(first: u32, second: u32) -> u64 {
    u64::from_ne_bytes(
        [first.to_ne_bytes(), second.to_ne_bytes()]
            .concat()
            .try_into()
            .unwrap(),
    )
}

fn take(source: SampleSource, sample: u64, bytes: &[u8]) -> (Vec<Taken>, u64) {
    let mut reader = Reader::new(source);
    let mut into = Vec::new();
    reader.take(bytes, &Attr::of(sample), None, &mut |_, _, _| (), &mut into);
    (into, reader.dropped)
}

/// A load of PEBS that the third level of the caches answered: `OP LOAD|LVL L3 hit`, `mem_lvl_num` L3.
const L3_LOAD: u64 = 2 | (2 | 0x40) << 5 | 3 << 33;

fn load(time: u64) -> Vec<u8> {
    record(
        kind::SAMPLE,
        USER,
        &[
            0x40_1000,
            pair(77, 78),
            time,
            0x7fff_0000_1234,
            pair(3, 0),
            5000,
            4,
            USER_CONTEXT,
            0x40_1008,
            0x40_2000,
            0x40_3000,
            // The latency in the lower half, two more numbers above.
            pair(321, 7),
            L3_LOAD,
        ],
        &[],
    )
}

#[test]
fn a_sample_of_pebs_becomes_a_row() {
    let (found, dropped) = take(SampleSource::Pebs, SAMPLE, &[load(10), load(20)].concat());
    assert_eq!((found.len(), dropped), (2, 0));
    assert_eq!(
        found[1],
        Taken {
            time: Time(20),
            pid: Pid(77),
            tid: Tid(78),
            cpu: Some(Cpu(3)),
            user: true,
            address: Some(Address(0x7fff_0000_1234)),
            bytes: None,
            write: Some(false),
            latency_cycles: Some(321),
            level: Some(MemoryLevel::L3),
            // The sampled instruction instead of the interrupted one, and then its callers.
            frames: vec![Address(0x40_1000), Address(0x40_2000), Address(0x40_3000)],
        }
    );
}

#[test]
fn what_is_lost_or_damaged_is_counted() {
    let lost = record(kind::LOST, 0, &[5, 17], &[]);
    let lost_samples = record(kind::LOST_SAMPLES, 0, &[3], &[]);
    let short = record(kind::SAMPLE, USER, &[0x40_1000], &[]);
    let bytes = [load(1), lost, lost_samples, short, load(2)].concat();
    let (found, dropped) = take(SampleSource::Pebs, SAMPLE, &bytes);
    assert_eq!((found.len(), dropped), (2, 17 + 3 + 1));
    // Of a record that is cut nothing is taken, and what comes before stays.
    for cut in 1..load(2).len() {
        let bytes = [load(1), load(2)[..cut].to_vec()].concat();
        let (found, dropped) = take(SampleSource::Pebs, SAMPLE, &bytes);
        assert_eq!(found.len(), 1, "{cut}");
        assert_eq!(dropped, u64::from(cut >= 8), "{cut}");
    }
}

#[test]
fn the_kernels_samples_keep_the_programs_frames() {
    let sample = record(
        kind::SAMPLE,
        KERNEL,
        &[
            0xffff_8000_0000_1000,
            pair(77, 78),
            1,
            0,
            pair(0, 0),
            1,
            5,
            -128i64 as u64,
            0xffff_8000_0000_1000,
            USER_CONTEXT,
            0x40_2000,
            0x40_3000,
            0,
            0,
        ],
        &[],
    );
    let (found, _) = take(SampleSource::Ibs, SAMPLE, &sample);
    assert!(!found[0].user && found[0].address.is_none());
    assert_eq!(found[0].frames, [Address(0x40_2000), Address(0x40_3000)]);
}

/// A sample of IBS whose data source and address the kernel did not fill in; the raw part has them.
fn ibs(data2: u64, data3: u64, capabilities: u32) -> Taken {
    let registers = [0, 0, 0, data2, data3, 0x7f00_0000_5678, 0];
    let mut raw = capabilities.to_ne_bytes().to_vec();
    raw.extend(registers.iter().flat_map(|r: &u64| r.to_le_bytes()));
    // A length, then what it says, up to a whole word.
    let mut part = (raw.len() as u32).to_ne_bytes().to_vec();
    part.extend(&raw);
    assert_eq!(part.len() % 8, 0);
    part.extend(pair(0, 0).to_ne_bytes());
    part.extend(0u64.to_ne_bytes());
    let words = [0x40_1000, pair(77, 78), 1, 0, pair(0, 0), 1, 0];
    let bytes = record(kind::SAMPLE, USER, &words, &part);
    let (found, dropped) = take(SampleSource::Ibs, SAMPLE | bit::RAW, &bytes);
    assert_eq!((found.len(), dropped), (1, 0));
    found[0].clone()
}

#[test]
fn ibs_tells_in_its_registers() {
    const VALID: u64 = 1 << 17;
    const MISS: u64 = 1 << 7 | 1 << 20;
    // A load of eight bytes that came from the other socket's memory after 600 cycles.
    let found = ibs(3 | 1 << 4, 1 | MISS | VALID | 4 << 22 | 600 << 32, 0);
    assert_eq!(found.address, Some(Address(0x7f00_0000_5678)));
    assert_eq!((found.write, found.bytes), (Some(false), Some(Bytes(8))));
    assert_eq!(found.latency_cycles, Some(600));
    assert_eq!(found.level, Some(MemoryLevel::RemoteDram));
    // A store of 32 bytes: no latency, no level.
    let found = ibs(0, 2 | VALID | 6 << 22, 0);
    assert_eq!((found.write, found.bytes), (Some(true), Some(Bytes(32))));
    assert_eq!((found.latency_cycles, found.level), (None, None));
    // Hits, and a miss that the second level answered.
    assert_eq!(ibs(0, 1 | VALID, 0).level, Some(MemoryLevel::L1));
    assert_eq!(ibs(0, 1 | VALID | 1 << 7, 0).level, Some(MemoryLevel::L2));
    // Newer processors have more sources: 8 is memory behind a link.
    assert_eq!(
        ibs(1 << 6, 1 | MISS | VALID, 1 << 11).level,
        Some(MemoryLevel::Cxl)
    );
    assert_eq!(ibs(2, 1 | MISS | VALID, 0).level, Some(MemoryLevel::L3));
    // Neither load nor store, and an address that is not valid.
    assert_eq!(ibs(0, VALID, 0).address, None);
    assert_eq!(ibs(0, 1, 0).address, None);
}

/// A record of SPE: context, instruction, address, operation, events, latency, time.
fn packets(context: Option<u32>, address: u64, write: bool, ticks: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(context) = context {
        bytes.push(0x64);
        bytes.extend(context.to_le_bytes());
    }
    bytes.push(0xb0);
    bytes.extend(0x40_1000u64.to_le_bytes());
    bytes.push(0xb2);
    bytes.extend(address.to_le_bytes());
    bytes.extend([0x49, u8::from(write)]);
    bytes.extend([0x52, 4, 0]);
    bytes.extend([0x98, 44, 1]);
    bytes.extend([0x43, 0]);
    bytes.push(0x71);
    bytes.extend(ticks.to_le_bytes());
    bytes
}

const SPE: u64 = bit::IP | bit::TID | bit::TIME | bit::CPU;

fn trailer(pid: u32, tid: u32, time: u64) -> [u64; 3] {
    [pair(pid, tid), time, pair(2, 0)]
}

fn switch(pid: u32, tid: u32, time: u64, out: bool) -> Vec<u8> {
    let misc = if out { SWITCH_OUT } else { 0 };
    let words = [&[pair(0, 0)][..], &trailer(pid, tid, time)].concat();
    record(kind::SWITCH_CPU_WIDE, misc, &words, &[])
}

fn aux(offset: u64, size: usize, flags: u64, time: u64) -> Vec<u8> {
    let words = [&[offset, size as u64, flags][..], &trailer(77, 78, time)].concat();
    record(kind::AUX, 0, &words, &[])
}

fn take_spe(bytes: &[u8], buffer: &[u8]) -> (Vec<Taken>, u64) {
    let mut reader = Reader::new(SampleSource::Spe);
    let mut into = Vec::new();
    // A tick is two nanoseconds.
    let mut state = Aux::new(Cpu(2), Some((4, 1)));
    let mut read = |offset: u64, length: Bytes, into: &mut Vec<u8>| {
        into.extend(&buffer[offset as usize..(offset + length.0) as usize]);
    };
    reader.take(
        bytes,
        &Attr::of(SPE),
        Some(&mut state),
        &mut read,
        &mut into,
    );
    (into, reader.dropped)
}

#[test]
fn spe_tells_in_packets_and_the_kernel_who_ran() {
    let buffer = [
        packets(None, 0x7f00_0000_1000, false, 1000),
        packets(None, 0x7f00_0000_2000, true, 1400),
        packets(Some(99), 0x5a00_7f00_0000_3000, false, 1500),
    ]
    .concat();
    let bytes = [
        switch(77, 78, 8000, false),
        switch(77, 78, 9750, true),
        switch(99, 99, 9760, false),
        aux(0, buffer.len(), 0, 10_000),
    ]
    .concat();
    let (found, dropped) = take_spe(&bytes, &buffer);
    assert_eq!((found.len(), dropped), (3, 0));
    let who: Vec<_> = found.iter().map(|t| (t.time.0, t.pid.0, t.tid.0)).collect();
    // The last was taken just before the buffer was handed over; the others 100 and 500 ticks earlier.
    assert_eq!(who, [(9000, 77, 78), (9800, 99, 99), (10_000, 99, 99)]);
    let addresses: Vec<_> = found
        .iter()
        .filter_map(|t| t.address)
        .map(|a| a.0)
        .collect();
    assert_eq!(
        addresses,
        [0x7f00_0000_1000, 0x7f00_0000_2000, 0x7f00_0000_3000]
    );
    assert_eq!((found[0].write, found[1].write), (Some(false), Some(true)));
    assert_eq!(found[0].latency_cycles, Some(300));
    assert_eq!(found[0].level, Some(MemoryLevel::L1));
    assert_eq!(found[0].frames, [Address(0x40_1000)]);
}

#[test]
fn samples_of_spe_that_nobody_can_be_told_for_are_counted() {
    let buffer = packets(None, 0x1000, false, 5);
    let (found, dropped) = take_spe(&aux(0, buffer.len(), 1, 100), &buffer);
    // One that nobody ran for, and the flag that some were lost.
    assert_eq!((found.len(), dropped), (0, 2));
    // A record that the buffer's end cuts.
    let bytes = [switch(7, 7, 1, false), aux(0, buffer.len() - 1, 0, 100)].concat();
    let (found, dropped) = take_spe(&bytes, &buffer);
    assert_eq!((found.len(), dropped), (0, 1));
}
