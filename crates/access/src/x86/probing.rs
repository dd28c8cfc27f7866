//! Where a breakpoint at the beginning of a function costs least.
//!
//! The kernel does some instructions itself in the place of the processor when a probe lies on them (`branch_setup_xol_ops` and `push_setup_xol_ops` of
//! arch/x86/kernel/uprobes.c); all others the processor steps over by itself, which takes one more trap, and on some virtual machines tens of
//! microseconds.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind,
    Register,
};

use super::operands::is_write;

/// Instructions of a function's beginning that are looked at.
const BEGINNING: usize = 8;

/// Registers in which a function finds its arguments, its stack and its return address.
const KEPT: [Register; 5] = [
    Register::RDI,
    Register::RSI,
    Register::RDX,
    Register::RCX,
    Register::RSP,
];

/// The place in a function where a probe sees all its calls and the arguments still, as bytes from its beginning, and whether the processor has to
/// step over the instruction there. That is the beginning, or an instruction a little behind it that the kernel does itself.
pub fn probe_place(code: &[u8]) -> (usize, bool) {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let all: Vec<Instruction> = decoder.iter().take_while(|i| !i.is_invalid()).collect();
    let mut information = InstructionInfoFactory::new();
    for instruction in all.iter().take(BEGINNING) {
        let at = instruction.ip();
        if is_emulated(instruction) {
            // What jumps there from further on has not come from the beginning.
            let is_target = at > 0 && all.iter().any(|i| goes_to(i) == Some(at));
            return match is_target {
                true => (0, true),
                false => (at as usize, false),
            };
        }
        if instruction.flow_control() != FlowControl::Next {
            break;
        }
        let info = information.info(instruction);
        let changes = info
            .used_registers()
            .iter()
            .any(|used| is_write(used.access()) && KEPT.contains(&used.register().full_register()));
        let stores = info
            .used_memory()
            .iter()
            .any(|used| is_write(used.access()));
        if changes || stores {
            break;
        }
    }
    (0, true)
}

/// Where an instruction jumps to or calls, if that is written in it.
fn goes_to(instruction: &Instruction) -> Option<u64> {
    let is_near = (0..instruction.op_count())
        .any(|operand| instruction.op_kind(operand) == OpKind::NearBranch64);
    is_near.then(|| instruction.near_branch_target())
}

/// Whether the kernel does an instruction itself.
fn is_emulated(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Push => {
            instruction.op_kind(0) == OpKind::Register && instruction.op0_register().is_gpr64()
        }
        Mnemonic::Call | Mnemonic::Jmp => goes_to(instruction).is_some(),
        _ => {
            instruction.flow_control() == FlowControl::ConditionalBranch
                && instruction.is_jcc_short_or_near()
        }
    }
}

/// Where the jumps and calls of code go that lies at an address, as far as they say it.
pub fn targets(code: &[u8], address: u64) -> Vec<u64> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let all = decoder.iter().take_while(|i| !i.is_invalid());
    all.filter_map(|i| goes_to(&i)).collect()
}

/// How a stretch of code is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// Instructions that return, as bytes from its beginning.
    pub returns: Vec<usize>,
    /// Where it jumps to outside of itself.
    pub jumps: Vec<u64>,
}

/// How code that lies at an address is left, but for calls that never return; none where that is not written in it: it is not only code, or jumps to where
/// a register or memory says.
pub fn exits(code: &[u8], address: u64) -> Option<Exits> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let end = address.checked_add(code.len() as u64)?;
    let mut found = Exits::default();
    for instruction in decoder.iter() {
        if instruction.is_invalid() {
            return None;
        }
        match instruction.flow_control() {
            FlowControl::Return => found
                .returns
                .push(usize::try_from(instruction.ip() - address).ok()?),
            FlowControl::IndirectBranch => return None,
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                let target = goes_to(&instruction)?;
                if !(address..end).contains(&target) {
                    found.jumps.push(target);
                }
            }
            _ => {}
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_lies_where_the_kernel_need_not_step() {
        // push r12
        assert_eq!(probe_place(&[0x41, 0x54, 0xc3]), (0, false));
        // test rdi,rdi; je +0x10; ret, as glibc's free begins
        assert_eq!(
            probe_place(&[0x48, 0x85, 0xff, 0x74, 0x10, 0xc3]),
            (3, false)
        );
        // endbr64; jmp
        assert_eq!(
            probe_place(&[0xf3, 0x0f, 0x1e, 0xfa, 0xe9, 0, 1, 0, 0]),
            (4, false)
        );
        // endbr64; push rbx
        assert_eq!(
            probe_place(&[0xf3, 0x0f, 0x1e, 0xfa, 0x53, 0xc3]),
            (4, false)
        );
    }

    #[test]
    fn a_probe_stays_at_the_beginning_where_arguments_would_be_lost() {
        // mov rdi,rax; push rbx
        assert_eq!(probe_place(&[0x48, 0x89, 0xc7, 0x53, 0xc3]), (0, true));
        // xor edx,edx; push rbx: the lower half is the register's too
        assert_eq!(probe_place(&[0x31, 0xd2, 0x53, 0xc3]), (0, true));
        // sub rsp,8; push rbx
        assert_eq!(probe_place(&[0x48, 0x83, 0xec, 0x08, 0x53]), (0, true));
        // mov [rax],rcx; push rbx
        assert_eq!(probe_place(&[0x48, 0x89, 0x08, 0x53]), (0, true));
        // ret
        assert_eq!(probe_place(&[0xc3]), (0, true));
        // test rdi,rdi; push rbx; jmp back to the push: a loop does not come from the beginning
        assert_eq!(
            probe_place(&[0x48, 0x85, 0xff, 0x53, 0xeb, 0xfd]),
            (0, true)
        );
        assert_eq!(probe_place(&[]), (0, true));
    }

    #[test]
    fn code_is_left_by_what_returns_and_by_jumps_to_elsewhere() {
        // test rdi,rdi; je +1; ret; jmp +0x100
        let code = [0x48, 0x85, 0xff, 0x74, 1, 0xc3, 0xe9, 0, 1, 0, 0];
        let expected = Exits {
            returns: vec![5],
            jumps: vec![0x1000 + 11 + 0x100],
        };
        assert_eq!(exits(&code, 0x1000), Some(expected));
        // jmp rax; a half instruction
        assert_eq!(exits(&[0xff, 0xe0], 0x1000), None);
        assert_eq!(exits(&[0xc3, 0x48], 0x1000), None);
    }

    #[test]
    fn calls_say_where_they_go() {
        // call +0 at 0x1000
        assert_eq!(targets(&[0xe8, 0, 0, 0, 0, 0xc3], 0x1000), [0x1005]);
    }
}
