//! A made-up judgement for tests: of one process, and without figures.

use std::collections::BTreeMap;

use varve_model::{Bytes, Duration, Pid};

use crate::{
    About, Blocks, Choice, Faults, GivenBack, Judgement, Memory, ProcessFigures, SCHEMA,
    SharedLines, Times, Verdict,
};

pub(crate) fn judgement() -> Judgement {
    Judgement {
        schema: SCHEMA,
        trace: About {
            command: Vec::new(),
            duration_ns: Duration(0),
            cut: None,
            limited_processes: 0,
            locked_processes: 0,
            limited: None,
            uncounted_processes: 0,
            uncounted: None,
            allocator: String::new(),
            allocator_file: String::new(),
            time_every: 64,
            notes: Vec::new(),
            lost: 0,
            probe_ns: None,
            attached: false,
            plain_call_ns: Duration(0),
            call_ns: Duration(0),
        },
        verdict: Verdict::default(),
        diagnoses: Vec::new(),
        undecided: Vec::new(),
        operations: BTreeMap::new(),
        time: Times::default(),
        times: BTreeMap::new(),
        syscalls: Vec::new(),
        mmap_lock: None,
        faults: Faults::default(),
        given_back: GivenBack::default(),
        memory: Memory::default(),
        pages: None,
        lines: SharedLines::default(),
        choice: Choice::default(),
        sites: Vec::new(),
        blocks: Blocks::default(),
        classes: Vec::new(),
        threads: Vec::new(),
        processes: vec![ProcessFigures {
            pid: Pid(1),
            exe: String::new(),
            allocator: String::new(),
            count: 0,
            peak_requested_bytes: Bytes(0),
        }],
    }
}
