//! The stacks of first threads.

use std::collections::HashMap;

use varve_model::{Address, ObjectKind, Pid, Time};
use varve_symbols::{Mapping, StaticObject};
use varve_trace::tables::ObjectRow;

/// The first threads' stacks as the kernel shows them: the part that is mapped. The preload library reports the whole, a
/// little after the program began.
#[derive(Default)]
pub(super) struct MainStacks {
    mapped: HashMap<Pid, Vec<MappedStack>>,
}

struct MappedStack {
    address: Address,
    end: Address,
    from: Time,
    to: Time,
    /// The library reported it.
    is_reported: bool,
}

impl MainStacks {
    pub(super) fn new(mappings: &[Mapping]) -> MainStacks {
        let mut stacks = MainStacks::default();
        for m in mappings.iter().filter(|m| m.path == "[stack]") {
            let of = stacks.mapped.entry(m.pid).or_default();
            of.push(MappedStack {
                address: m.address,
                end: m.address + m.bytes,
                from: m.from,
                to: m.to.unwrap_or(Time(u64::MAX)),
                is_reported: false,
            });
        }
        stacks
    }

    /// Has a reported stack begin with the mapping that is a part of it.
    pub(super) fn join(&mut self, row: &mut ObjectRow) {
        let Some(mapped) = self.mapped.get_mut(&row.pid) else {
            return;
        };
        if row.kind != ObjectKind::Stack {
            return;
        }
        let (end, died) = (
            row.address + row.bytes,
            row.died_ns.unwrap_or(Time(u64::MAX)),
        );
        for m in mapped {
            let is_within = row.address <= m.address && m.end <= end;
            if is_within && row.born_ns <= m.to && died >= m.to {
                row.born_ns = row.born_ns.min(m.from);
                m.is_reported = true;
            }
        }
    }

    /// Whether an object is a part of a stack that was reported.
    pub(super) fn is_known(&self, object: &StaticObject) -> bool {
        let mut mapped = self.mapped.get(&object.pid).into_iter().flatten();
        let is = |m: &MappedStack| {
            let is_within = m.address <= object.address && object.address < m.end;
            m.is_reported && is_within && m.from <= object.born
        };
        object.kind == ObjectKind::Stack && mapped.any(is)
    }
}
