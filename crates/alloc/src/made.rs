//! A made-up judgement for tests: of one process, and without figures.

use std::collections::BTreeMap;

use varve_model::{Bytes, Pid};

use crate::{
    About, Blocks, Choice, Faults, GivenBack, Judgement, Memory, ProcessFigures, SCHEMA,
    SharedLines, Times, Verdict,
};

pub(crate) fn judgement() -> Judgement {
    Judgement {
        schema: SCHEMA,
        trace: About {
            time_every: 64,
            ..About::default()
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
            peak_requested_bytes: Some(Bytes(0)),
        }],
    }
}
