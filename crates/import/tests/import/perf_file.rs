//! Writes small files of `perf record`, after `include/uapi/linux/perf_event.h` and
//! `tools/perf/Documentation/perf.data-file-format.txt`.
#![allow(dead_code)]

pub(crate) const IP: u64 = 1;
pub(crate) const TID: u64 = 1 << 1;
pub(crate) const TIME: u64 = 1 << 2;
pub(crate) const ADDR: u64 = 1 << 3;
pub(crate) const CALLCHAIN: u64 = 1 << 5;
pub(crate) const ID: u64 = 1 << 6;
pub(crate) const CPU: u64 = 1 << 7;
pub(crate) const PERIOD: u64 = 1 << 8;
pub(crate) const WEIGHT: u64 = 1 << 14;
pub(crate) const DATA_SOURCE: u64 = 1 << 15;
pub(crate) const IDENTIFIER: u64 = 1 << 16;

/// What most cases have.
pub(crate) const USUAL: u64 = IP | TID | TIME | ADDR | CPU;

/// How long a description of an event is (`PERF_ATTR_SIZE_VER5`).
const ATTR: usize = 112;
const HEADER: usize = 104;
/// `PERF_RECORD_MISC_USER`.
const USER: u16 = 2;
/// `PERF_RECORD_MISC_MMAP_DATA`, `PERF_RECORD_MISC_COMM_EXEC` and `PERF_RECORD_MISC_FORK_EXEC`.
const FLAG: u16 = 1 << 13;
const WITH_BUILD_ID: u16 = 1 << 14;

/// An event: the bits of its samples, its number, and what it counts.
#[derive(Clone, Copy)]
pub(crate) struct Event {
    pub(crate) bits: u64,
    pub(crate) id: u64,
    pub(crate) kind: u32,
    pub(crate) config: u64,
}

/// A software event, number 1.
pub(crate) const fn event(bits: u64) -> Event {
    Event {
        bits,
        id: 1,
        kind: 1,
        config: 2,
    }
}

impl Event {
    fn attr(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.kind.to_le_bytes());
        bytes.extend((ATTR as u32).to_le_bytes());
        // Every event is a sample; no values are read; `sample_id_all`.
        for word in [self.config, 1, self.bits, 0, 1 << 18] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.resize(ATTR, 0);
        bytes
    }

    /// What stands at the end of records that are no samples.
    fn trailer(self, (pid, tid): (u32, u32), time: u64) -> Vec<u8> {
        let mut words = Vec::new();
        for (bit, word) in [
            (TID, u64::from(pid) | u64::from(tid) << 32),
            (TIME, time),
            (ID, self.id),
            (CPU, 0),
            (IDENTIFIER, self.id),
        ] {
            if self.bits & bit != 0 {
                words.push(word);
            }
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    pub(crate) fn comm(self, task: (u32, u32), name: &str, time: u64, is_exec: bool) -> Vec<u8> {
        let flag = if is_exec { FLAG } else { 0 };
        let body = [halves(task), text(name), self.trailer(task, time)].concat();
        record(3, flag, &body)
    }

    pub(crate) fn fork(self, by: (u32, u32), task: (u32, u32), time: u64) -> Vec<u8> {
        record(7, 0, &self.task(by, task, time))
    }

    /// Of a process that ran before the recording.
    pub(crate) fn ran_before(self, by: (u32, u32), task: (u32, u32)) -> Vec<u8> {
        record(7, FLAG, &self.task(by, task, 0))
    }

    pub(crate) fn exit(self, by: (u32, u32), task: (u32, u32), time: u64) -> Vec<u8> {
        record(4, 0, &self.task(by, task, time))
    }

    fn task(self, by: (u32, u32), task: (u32, u32), time: u64) -> Vec<u8> {
        let numbers = [halves((task.0, by.0)), halves((task.1, by.1))].concat();
        let at = time.to_le_bytes().to_vec();
        [numbers, at, self.trailer(task, time)].concat()
    }

    /// Code, as the second version of the record tells of it.
    pub(crate) fn mmap(
        self,
        pid: u32,
        (start, bytes): (u64, u64),
        path: &str,
        time: u64,
    ) -> Vec<u8> {
        self.mapping(pid, (start, bytes), path, time, 5, None)
    }

    /// Data.
    pub(crate) fn data(self, pid: u32, place: (u64, u64), path: &str, time: u64) -> Vec<u8> {
        self.mapping(pid, place, path, time, 3, None)
    }

    pub(crate) fn mapping(
        self,
        pid: u32,
        (start, bytes): (u64, u64),
        path: &str,
        time: u64,
        protection: u32,
        build_id: Option<[u8; 20]>,
    ) -> Vec<u8> {
        let mut body = halves((pid, pid));
        for word in [start, bytes, 0] {
            body.extend(word.to_le_bytes());
        }
        match build_id {
            Some(id) => {
                body.extend([20, 0, 0, 0]);
                body.extend(id);
            }
            None => {
                body.extend(halves((8, 1)));
                body.extend([77u64.to_le_bytes(), [0; 8]].concat());
            }
        }
        body.extend(halves((protection, 2)));
        body.extend(text(path));
        body.extend(self.trailer((pid, pid), time));
        let flag = if build_id.is_some() { WITH_BUILD_ID } else { 0 };
        record(10, USER | flag, &body)
    }

    /// The first version of the record, which has no protection.
    pub(crate) fn old_mmap(
        self,
        pid: u32,
        (start, bytes): (u64, u64),
        path: &str,
        time: u64,
    ) -> Vec<u8> {
        let mut body = halves((pid, pid));
        for word in [start, bytes, 0] {
            body.extend(word.to_le_bytes());
        }
        body.extend(text(path));
        body.extend(self.trailer((pid, pid), time));
        record(1, USER, &body)
    }

    pub(crate) fn sample(self, task: (u32, u32), time: u64, ip: u64, address: u64) -> Vec<u8> {
        self.sample_of(task, time, ip, address, &[])
    }

    pub(crate) fn sample_of(
        self,
        (pid, tid): (u32, u32),
        time: u64,
        ip: u64,
        address: u64,
        chain: &[u64],
    ) -> Vec<u8> {
        let mut words = Vec::new();
        for (bit, word) in [
            (IDENTIFIER, self.id),
            (IP, ip),
            (TID, u64::from(pid) | u64::from(tid) << 32),
            (TIME, time),
            (ADDR, address),
            (ID, self.id),
            (CPU, 0),
            (PERIOD, 1),
        ] {
            if self.bits & bit != 0 {
                words.push(word);
            }
        }
        if self.bits & CALLCHAIN != 0 {
            words.push(chain.len() as u64);
            words.extend(chain);
        }
        for bit in [WEIGHT, DATA_SOURCE] {
            if self.bits & bit != 0 {
                words.push(0);
            }
        }
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        record(9, USER, &body)
    }
}

fn halves((low, high): (u32, u32)) -> Vec<u8> {
    [low.to_le_bytes(), high.to_le_bytes()].concat()
}

/// A text with its end, filled up to whole words.
fn text(words: &str) -> Vec<u8> {
    let mut bytes = words.as_bytes().to_vec();
    bytes.resize((bytes.len() + 1).next_multiple_of(8), 0);
    bytes
}

pub(crate) fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let size = u16::try_from(8 + body.len()).unwrap();
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(misc.to_le_bytes());
    bytes.extend(size.to_le_bytes());
    bytes.extend(body);
    bytes
}

/// A file with these events and records, and no features.
pub(crate) fn file(events: &[Event], records: &[Vec<u8>]) -> Vec<u8> {
    let records = records.concat();
    let size = records.len() as u64;
    with_size(events, &records, size)
}

/// The same whose header says that its records have so many bytes.
pub(crate) fn with_size(events: &[Event], records: &[u8], size: u64) -> Vec<u8> {
    let (mut ids, mut attrs) = (Vec::new(), Vec::new());
    for event in events {
        attrs.extend(event.attr());
        attrs.extend(((HEADER + ids.len()) as u64).to_le_bytes());
        attrs.extend(8u64.to_le_bytes());
        ids.extend(event.id.to_le_bytes());
    }
    let begin = (HEADER + ids.len()) as u64;
    let mut file = b"PERFILE2".to_vec();
    for word in [
        HEADER as u64,
        ATTR as u64 + 16,
        begin,
        attrs.len() as u64,
        begin + attrs.len() as u64,
        size,
        0,
        0,
        0,
        0,
        0,
        0,
    ] {
        file.extend(word.to_le_bytes());
    }
    assert_eq!(file.len(), HEADER);
    [file, ids, attrs, records.to_vec()].concat()
}
