//! The trace of a recorder that was killed.

use std::fs;
use std::path::Path;

use varve_model::{
    Address, Backend, Bytes, Capability, Duration, Interval, ObjectId, ObjectKind, Pid, SiteId,
    Tid, Time, TouchSource,
};
use varve_trace::tables::{BirthRow, DeathRow, IntervalRow, MappingRow, StackRow, TouchRow};
use varve_trace::{Manifest, TraceWriter};

/// The process of the trace.
const PID: Pid = Pid(100);
/// Where its object lies.
const OBJECT: Address = Address(0x5555_5556_0000);
/// Where its code lies.
const CODE: Address = Address(0x5555_5555_5000);

/// Writes a trace as a killed recorder leaves it.
pub(crate) fn killed_trace(to: &Path) {
    let begun = Manifest {
        capabilities: Capability::RECORDED.into(),
        ..Manifest::begun(Backend::Scan)
    };
    let mut writer = TraceWriter::create(to, &begun).expect("a trace");
    let interval = |number: u32| IntervalRow {
        interval: Interval(number),
        start_ns: Time(1_000 + u64::from(number) * 50_000_000),
        end_ns: Time(900 + u64::from(number + 1) * 50_000_000),
        held_ns: Duration(100),
        longest_hold_ns: Duration(100),
        longest_stop_ns: Duration(0),
        holds: 1,
        overlap_ns: Duration(0),
        resident_pages: 2000,
        mappings: 0,
        processes: 1,
        threads: 2,
        recorder_cpu_ns: Duration(300_000),
    };
    let touch = |number| TouchRow {
        interval: Interval(number),
        pid: PID,
        page: OBJECT.page(),
        pages: 3,
        page_bytes: 4096,
        written: Some(true),
        source: TouchSource::Scan,
    };
    let mapping = |to_ns| MappingRow {
        pid: PID,
        address: CODE,
        bytes: Bytes(8192),
        perms: "r-xp".into(),
        offset: 4096,
        path: "/usr/bin/solver".into(),
        device: "fe:00".into(),
        inode: 17,
        build_id: Some("00ff".into()),
        from_ns: Time(1_000),
        to_ns,
    };
    let birth = BirthRow {
        object: ObjectId(1),
        pid: PID,
        kind: ObjectKind::Heap,
        made_by: "malloc".into(),
        address: OBJECT,
        bytes: Bytes(10_000),
        born_ns: Time(1_700),
        tid: Some(Tid(PID.0)),
        site: Some(SiteId(1)),
        pool: false,
        reserved: false,
        continues: None,
    };
    let stack = StackRow {
        site: SiteId(1),
        pid: PID,
        time_ns: Time(1_700),
        frames: vec![CODE],
        first_is_return: true,
    };
    let death = DeathRow {
        object: ObjectId(1),
        died_ns: Time(8_000),
    };
    writer.append(&[touch(0), touch(1)]).expect("touches");
    writer.append(&[touch(2)]).expect("touches");
    writer.append(&[0, 1, 2].map(interval)).expect("intervals");
    writer.append(&[mapping(None)]).expect("mappings");
    writer
        .append(&[mapping(Some(Time(9_000)))])
        .expect("mappings");
    writer.append(&[birth]).expect("births");
    writer.append(&[death]).expect("deaths");
    writer.append(&[stack]).expect("stacks");
    // What was being written when the recorder was killed.
    fs::write(to.join("parts/faults-000000.new"), "PAR1 half").expect("a part");
}
