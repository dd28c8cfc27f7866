//! Ring-buffer records to events

use varve_model::{Address, Bytes, Cpu, Pages, Pid, Tid, Time};

use crate::abi::{self, Plain, Record};
use crate::{
    Access, BpfError, Comm, Doer, Emptied, Event, Exec, Exit, Fault, FirstTouch, Fork, ForkKind,
    Mapping, MappingCall, Mark, MarkKind, MmId, Mode, Peak, Preload, Refused, TouchSeen, TouchedBy,
    UserStack, Vanish, VanishCause,
};

/// Error-code bits of a page fault (arch/x86/include/asm/trap_pf.h)
const PF_WRITE: u32 = 2;
const PF_INSTRUCTION: u32 = 16;
const FAULT_KERNEL: u32 = 128;

pub(crate) fn event(bytes: &[u8]) -> Result<Event<'_>, BpfError> {
    let head = Record::read(bytes);
    head.and_then(|head| body(head, bytes.get(size_of::<Record>()..)?))
        .ok_or(BpfError::Record {
            kind: head.map_or(0, |head| head.kind),
            bytes: bytes.len(),
        })
}

fn body(head: Record, rest: &[u8]) -> Option<Event<'_>> {
    let (time, pid, tid) = (Time(head.time), Pid(head.pid), Tid(head.tid));
    Some(match head.kind {
        abi::REC_FAULT => {
            let raw = abi::RecFault::read(rest)?;
            Event::Fault(Fault {
                time,
                pid,
                tid,
                cpu: Cpu((head.aux & !abi::FAULT_NEXT) >> 8),
                ip: Address(raw.ip),
                address: Address(raw.address),
                access: match head.aux {
                    aux if aux & PF_INSTRUCTION != 0 => Access::Execute,
                    aux if aux & PF_WRITE != 0 => Access::Write,
                    _ => Access::Read,
                },
                mode: if head.aux & FAULT_KERNEL != 0 {
                    Mode::Kernel
                } else {
                    Mode::User
                },
                is_next: head.aux & abi::FAULT_NEXT != 0,
            })
        }
        abi::REC_VANISH => {
            let raw = abi::RecVanish::read(rest)?;
            let bytes = usize::try_from(raw.count)
                .ok()?
                .checked_mul(size_of::<abi::VanishEntry>())?;
            let start = size_of::<abi::RecVanish>();
            Event::Vanish(Vanish {
                time,
                pid,
                tid,
                mm: MmId(raw.mm),
                doer: match head.aux & abi::CAUSE_BY_OTHERS {
                    0 => Doer::Itself,
                    _ => Doer::Another,
                },
                cause: cause(head.aux & !abi::CAUSE_BY_OTHERS),
                range: (raw.end != 0).then_some((Address(raw.start), Address(raw.end))),
                regions: rest.get(start..start.checked_add(bytes)?)?,
            })
        }
        abi::REC_FORK => {
            let raw = abi::RecFork::read(rest)?;
            Event::Fork(Fork {
                time,
                parent: pid,
                parent_tid: tid,
                pid: Pid(raw.pid),
                tid: Tid(raw.tid),
                kind: match (raw.thread, raw.same_mm) {
                    (1, _) => ForkKind::Thread,
                    (_, 1) => ForkKind::SharedMemory,
                    _ => ForkKind::Process,
                },
                mm: MmId(raw.mm),
                stack_pointer: (raw.sp != 0).then_some(Address(raw.sp)),
                tls: (raw.tls != 0).then_some(Address(raw.tls)),
                tracked: raw.tracked != 0,
                own_tid: Some(Tid(raw.own_tid)).filter(|t| t.0 != 0),
            })
        }
        abi::REC_EXEC => {
            let raw = abi::RecExec::read(rest)?;
            let text = rest.get(size_of::<abi::RecExec>()..)?;
            let part =
                |from: u32, bytes: u32| text.get(from as usize..from.checked_add(bytes)? as usize);
            Event::Exec(Exec {
                time,
                pid,
                old_tid: Tid(raw.old_tid),
                mm: MmId(raw.mm),
                path: part(0, head.aux)?,
                names: part(abi::FILE_AT, raw.file)?,
                is_static: raw.flags & abi::EXEC_STATIC != 0,
                is_secure: raw.flags & abi::EXEC_SECURE != 0,
                has_other_root: raw.flags & abi::EXEC_OTHER_ROOT != 0,
                arguments: part(
                    abi::ARGUMENTS_AT,
                    raw.arguments.min(abi::ARGUMENT_BYTES - 1),
                )?,
                has_more: raw.arguments >= abi::ARGUMENT_BYTES,
                preload: if raw.flags & abi::EXEC_PRELOADS != 0 {
                    Preload::Is(part(abi::VARIABLE_AT, raw.variable.saturating_sub(1))?)
                } else if raw.flags & abi::EXEC_NO_VARIABLES != 0 {
                    Preload::NoVariables
                } else if raw.flags & abi::EXEC_NO_PRELOAD != 0 {
                    Preload::Absent
                } else {
                    Preload::Unknown
                },
                peak: peak(raw.peak, raw.max_pages),
            })
        }
        abi::REC_EXIT => {
            let raw = abi::RecExit::read(rest)?;
            Event::Exit(Exit {
                time,
                pid,
                tid,
                wait_status: raw.status,
                last: head.aux != 0,
                peak: peak(raw.peak, raw.max_pages),
            })
        }
        abi::REC_REFUSED => Event::Refused(Refused {
            time,
            pid,
            tid,
            address: Address(abi::RecRefused::read(rest)?.address),
        }),
        abi::REC_FIRST_TOUCH => Event::FirstTouch(FirstTouch {
            pid,
            tid,
            address: Address(abi::RecFirstTouch::read(rest)?.address),
            by: touched_by(head.aux),
            seen: match head.aux & abi::FIRST_TOUCH_SAMPLED {
                0 => TouchSeen::Begun,
                _ => TouchSeen::Sampled,
            },
        }),
        abi::REC_EMPTIED => {
            let raw = abi::RecEmptied::read(rest)?;
            Event::Emptied(Emptied {
                pid,
                address: Address(raw.address),
                bytes: Bytes(raw.bytes),
                at_once: head.aux & abi::EMPTIED_LATER == 0,
                by_operation: head.aux & abi::EMPTIED_BY_OPERATION != 0,
            })
        }
        abi::REC_REGISTRATION => Event::Registration,
        abi::REC_COMM => Event::Comm(Comm {
            time,
            pid,
            tid,
            name: rest.get(..16)?.split(|byte| *byte == 0).next()?,
        }),
        abi::REC_MARK => {
            let raw = abi::RecMark::read(rest)?;
            let name = rest.get(size_of::<abi::RecMark>()..)?;
            Event::Mark(Mark {
                time,
                pid,
                tid,
                kind: match head.aux {
                    abi::MARK_BEGIN => MarkKind::Begin,
                    abi::MARK_END => MarkKind::End,
                    abi::MARK_EVENT => MarkKind::Event,
                    _ => return None,
                },
                name: name.get(..raw.there as usize)?,
                bytes: raw.bytes,
            })
        }
        abi::REC_MAPPING => Event::Mapping(mapping(head, rest)?),
        _ => return None,
    })
}

fn touched_by(aux: u32) -> TouchedBy {
    if aux & abi::FIRST_TOUCH_IN_OPERATION != 0 {
        TouchedBy::Operation
    } else if aux & abi::FIRST_TOUCH_BY_KERNEL != 0 {
        TouchedBy::Kernel
    } else {
        TouchedBy::Program
    }
}

fn peak(program: u64, process: u64) -> Peak {
    let pages = |count: u64| (count != 0).then_some(Pages(count));
    Peak {
        program: pages(program),
        process: pages(process),
    }
}

fn mapping(head: Record, rest: &[u8]) -> Option<Mapping<'_>> {
    let raw = abi::RecMapping::read(rest)?;
    let args = raw.args;
    let call = match head.aux {
        abi::OP_MMAP => MappingCall::Map {
            hint: Address(args[0]),
            bytes: Bytes(args[1]),
            protection: args[2] as u32,
            flags: args[3] as u32,
            fd: args[4] as i32,
            offset: args[5],
        },
        abi::OP_MUNMAP => MappingCall::Unmap {
            address: Address(args[0]),
            bytes: Bytes(args[1]),
        },
        abi::OP_MREMAP => MappingCall::Remap {
            old_address: Address(args[0]),
            old_bytes: Bytes(args[1]),
            new_bytes: Bytes(args[2]),
            flags: args[3] as u32,
        },
        abi::OP_BRK => MappingCall::Brk {
            wanted: Address(args[0]),
            before: Address(raw.before),
        },
        abi::OP_SHMAT => MappingCall::ShmAttach { id: args[0] as i32 },
        abi::OP_SHMDT => MappingCall::ShmDetach {
            address: Address(args[0]),
        },
        _ => return None,
    };
    let stack = if raw.flags & abi::MAPPING_HAS_STACK != 0 {
        let start = size_of::<abi::RecMapping>();
        let bytes = (raw.stack_bytes & !7) as usize;
        Some(UserStack {
            ip: Address(raw.ip),
            sp: Address(raw.sp),
            bp: Address(raw.bp),
            saved: raw.saved,
            bytes: rest.get(start..start + bytes)?,
        })
    } else {
        None
    };
    Some(Mapping {
        entered: Time(raw.entered),
        time: Time(head.time),
        pid: Pid(head.pid),
        tid: Tid(head.tid),
        call,
        result: raw.result,
        by_operation: raw.flags & abi::MAPPING_OF_OPERATION != 0,
        stack,
    })
}

fn cause(number: u32) -> VanishCause {
    match number {
        abi::CAUSE_UNMAP => VanishCause::Unmap,
        abi::CAUSE_REMAP => VanishCause::Remap,
        abi::CAUSE_BRK => VanishCause::Brk,
        abi::CAUSE_ADVISE | abi::CAUSE_ADVISE_AWAY => VanishCause::Advise,
        abi::CAUSE_OVERMAP => VanishCause::Overmap,
        abi::CAUSE_SHMDT => VanishCause::ShmDetach,
        abi::CAUSE_EXEC => VanishCause::Exec,
        abi::CAUSE_EXIT => VanishCause::Exit,
        abi::CAUSE_TRUNCATE => VanishCause::Truncate,
        abi::CAUSE_KERNEL_TOUCH => VanishCause::KernelTouch,
        abi::CAUSE_POPULATE => VanishCause::Populate,
        other => VanishCause::Unknown(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, aux: u32, words: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(aux.to_ne_bytes());
        bytes.extend(9u64.to_ne_bytes());
        bytes.extend(42u32.to_ne_bytes());
        bytes.extend(43u32.to_ne_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn a_first_touch_says_whose_it_is_and_how_it_was_seen() {
        let seen = |aux| match event(&record(abi::REC_FIRST_TOUCH, aux, &[0x5000])) {
            Ok(Event::FirstTouch(touch)) => Some(touch),
            _ => None,
        };
        let touch = |by, seen| {
            Some(FirstTouch {
                pid: Pid(42),
                tid: Tid(43),
                address: Address(0x5000),
                by,
                seen,
            })
        };
        assert_eq!(seen(0), touch(TouchedBy::Program, TouchSeen::Begun));
        let sampled = touch(TouchedBy::Program, TouchSeen::Sampled);
        assert_eq!(seen(abi::FIRST_TOUCH_SAMPLED), sampled);
        let by_kernel = touch(TouchedBy::Kernel, TouchSeen::Begun);
        assert_eq!(seen(abi::FIRST_TOUCH_BY_KERNEL), by_kernel);
        let inside = touch(TouchedBy::Operation, TouchSeen::Begun);
        assert_eq!(seen(abi::FIRST_TOUCH_IN_OPERATION), inside);
    }

    #[test]
    fn emptied_memory_says_when_and_by_whom() {
        let emptied = |aux| match event(&record(abi::REC_EMPTIED, aux, &[0x5000, 0x3000])) {
            Ok(Event::Emptied(emptied)) => Some(emptied),
            _ => None,
        };
        let expected = |at_once, by_operation| {
            Some(Emptied {
                pid: Pid(42),
                address: Address(0x5000),
                bytes: Bytes(0x3000),
                at_once,
                by_operation,
            })
        };
        assert_eq!(emptied(0), expected(true, false));
        assert_eq!(emptied(abi::EMPTIED_BY_OPERATION), expected(true, true));
        assert_eq!(emptied(abi::EMPTIED_LATER), expected(false, false));
    }
}
