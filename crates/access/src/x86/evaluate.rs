//! What simple instructions compute, and conditions.

use iced_x86::{ConditionCode, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

use super::operands::{is_write, string_step};
use super::registers::{
    CARRY, OVERFLOW, PARITY, Registers, SIGN, ZERO, extended, merged, number, truncated,
};

const ARITHMETIC: u64 = CARRY | PARITY | ZERO | SIGN | OVERFLOW;

/// What an instruction leaves behind.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The register that it writes and the value, of the register's own width.
    pub(crate) register: Option<(Register, u64)>,
    /// Which flags it sets, and to what.
    pub(crate) flags: Option<(u64, u64)>,
}

/// The value of an operand that is no memory.
fn operand(
    instruction: &Instruction,
    number: u32,
    read: &mut dyn FnMut(Register) -> Option<u64>,
) -> Option<u64> {
    match instruction.op_kind(number) {
        OpKind::Register => read(instruction.op_register(number)),
        kind if is_immediate(kind) => Some(instruction.immediate(number)),
        _ => None,
    }
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}

/// Evaluates an instruction; none where it is not one of those that are understood, or where an input is not
/// known. It must not be asked of instructions that read memory, but for [`Mnemonic::Lea`].
pub(crate) fn evaluate(
    instruction: &Instruction,
    read: &mut dyn FnMut(Register) -> Option<u64>,
) -> Option<Outcome> {
    let destination = match instruction.op_count() {
        0 => Register::None,
        _ if instruction.op0_kind() == OpKind::Register => instruction.op0_register(),
        _ => Register::None,
    };
    let bytes = destination.size().max(1);
    let mut value = |n: u32| operand(instruction, n, read);
    let mnemonic = instruction.mnemonic();
    let moved = |value: u64| {
        Some(Outcome {
            register: Some((destination, truncated(value, bytes))),
            flags: None,
        })
    };
    let computed = |value: u64, set: u64, carry: bool, overflow: bool| {
        let flags = result_flags(value, bytes)
            | if carry { CARRY } else { 0 }
            | if overflow { OVERFLOW } else { 0 };
        Some(Outcome {
            register: Some((destination, truncated(value, bytes))),
            flags: (set != 0).then_some((set, flags & set)),
        })
    };
    match mnemonic {
        // Of a segment register its base is known, and what is moved is its selector.
        Mnemonic::Mov
            if destination.is_gpr() && !instruction.op1_register().is_segment_register() =>
        {
            moved(value(1)?)
        }
        Mnemonic::Movzx => moved(value(1)?),
        Mnemonic::Movsx | Mnemonic::Movsxd => {
            let source = instruction.op1_register().size();
            moved(extended(value(1)?, source))
        }
        Mnemonic::Lea => {
            let address = instruction.virtual_address(1, 0, |register, _, _| {
                if register.is_segment_register() {
                    Some(0)
                } else {
                    read(register)
                }
            })?;
            moved(address)
        }
        Mnemonic::Cdqe => Some(Outcome {
            register: Some((Register::RAX, extended(read(Register::EAX)?, 4))),
            flags: None,
        }),
        Mnemonic::Cwde => Some(Outcome {
            register: Some((
                Register::EAX,
                truncated(extended(read(Register::AX)?, 2), 4),
            )),
            flags: None,
        }),
        Mnemonic::Xor | Mnemonic::Sub
            if destination.is_gpr()
                && instruction.op1_kind() == OpKind::Register
                && instruction.op1_register() == destination =>
        {
            computed(0, ARITHMETIC, false, false)
        }
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::Cmp => {
            let adds = mnemonic == Mnemonic::Add;
            let bytes = operand_bytes(instruction)?;
            let (a, b) = (truncated(value(0)?, bytes), truncated(value(1)?, bytes));
            let result = truncated(
                if adds {
                    a.wrapping_add(b)
                } else {
                    a.wrapping_sub(b)
                },
                bytes,
            );
            let sign = |v: u64| extended(v, bytes) >> 63 != 0;
            let carry = if adds { result < a } else { a < b };
            let overflow = if adds {
                sign(a) == sign(b) && sign(result) != sign(a)
            } else {
                sign(a) != sign(b) && sign(result) != sign(a)
            };
            let mut outcome = computed(result, ARITHMETIC, carry, overflow)?;
            if mnemonic == Mnemonic::Cmp {
                outcome.register = None;
            }
            Some(outcome)
        }
        Mnemonic::And | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Test => {
            let (a, b) = (value(0)?, value(1)?);
            let result = match mnemonic {
                Mnemonic::Or => a | b,
                Mnemonic::Xor => a ^ b,
                _ => a & b,
            };
            let mut outcome = computed(result, ARITHMETIC, false, false)?;
            if mnemonic == Mnemonic::Test {
                outcome.register = None;
            }
            Some(outcome)
        }
        Mnemonic::Inc | Mnemonic::Dec => {
            let a = value(0)?;
            let most = extended(1 << (8 * bytes - 1), bytes);
            let (result, edge) = if mnemonic == Mnemonic::Inc {
                (a.wrapping_add(1), truncated(!most, bytes))
            } else {
                (a.wrapping_sub(1), truncated(most, bytes))
            };
            computed(result, ARITHMETIC & !CARRY, false, a == edge)
        }
        Mnemonic::Not => moved(!value(0)?),
        Mnemonic::Bswap if bytes == 8 => moved(value(0)?.swap_bytes()),
        Mnemonic::Bswap if bytes == 4 => moved(u64::from((value(0)? as u32).swap_bytes())),
        // Of these the flags are left open: conditions on them are rare.
        Mnemonic::Neg => open(computed(value(0)?.wrapping_neg(), 0, false, false)?),
        Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar => {
            let (a, count) = (value(0)?, value(1)? & if bytes == 8 { 63 } else { 31 });
            let result = match mnemonic {
                Mnemonic::Shr => a.checked_shr(count as u32).unwrap_or(0),
                Mnemonic::Sar => (extended(a, bytes) as i64 >> count) as u64,
                _ => a.checked_shl(count as u32).unwrap_or(0),
            };
            open(computed(result, 0, false, false)?)
        }
        Mnemonic::Imul if instruction.op_count() >= 2 => {
            let factors = if instruction.op_count() == 3 {
                (1, 2)
            } else {
                (0, 1)
            };
            let result = value(factors.0)?.wrapping_mul(value(factors.1)?);
            open(computed(result, 0, false, false)?)
        }
        Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Pause => Some(Outcome::default()),
        _ => None,
    }
}

/// An outcome whose flags are not known.
fn open(mut outcome: Outcome) -> Option<Outcome> {
    outcome.flags = None;
    Some(outcome)
}

fn operand_bytes(instruction: &Instruction) -> Option<usize> {
    (instruction.op0_kind() == OpKind::Register).then(|| instruction.op0_register().size())
}

fn result_flags(value: u64, bytes: usize) -> u64 {
    let mut flags = 0;
    if truncated(value, bytes) == 0 {
        flags |= ZERO;
    }
    if extended(value, bytes) >> 63 != 0 {
        flags |= SIGN;
    }
    if (value as u8).count_ones().is_multiple_of(2) {
        flags |= PARITY;
    }
    flags
}

/// Whether a condition holds with these flags.
pub(crate) fn holds(condition: ConditionCode, flags: u64) -> Option<bool> {
    let is = |flag: u64| flags & flag != 0;
    Some(match condition {
        ConditionCode::None => return None,
        ConditionCode::o => is(OVERFLOW),
        ConditionCode::no => !is(OVERFLOW),
        ConditionCode::b => is(CARRY),
        ConditionCode::ae => !is(CARRY),
        ConditionCode::e => is(ZERO),
        ConditionCode::ne => !is(ZERO),
        ConditionCode::be => is(CARRY) || is(ZERO),
        ConditionCode::a => !is(CARRY) && !is(ZERO),
        ConditionCode::s => is(SIGN),
        ConditionCode::ns => !is(SIGN),
        ConditionCode::p => is(PARITY),
        ConditionCode::np => !is(PARITY),
        ConditionCode::l => is(SIGN) != is(OVERFLOW),
        ConditionCode::ge => is(SIGN) == is(OVERFLOW),
        ConditionCode::le => is(ZERO) || is(SIGN) != is(OVERFLOW),
        ConditionCode::g => !is(ZERO) && is(SIGN) == is(OVERFLOW),
    })
}

/// The general registers that an instruction writes.
pub(crate) fn written(
    instruction: &Instruction,
    factory: &mut InstructionInfoFactory,
) -> Vec<Register> {
    factory
        .info(instruction)
        .used_registers()
        .iter()
        .filter(|used| is_write(used.access()))
        .map(|used| used.register())
        .filter(|register| number(*register).is_some())
        .collect()
}

/// Whether an instruction pops the stack pointer itself: what it is then comes from memory.
pub(crate) fn is_popped(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Pop
        && instruction.op0_kind() == OpKind::Register
        && number(instruction.op0_register()) == number(Register::RSP)
}

/// Runs an instruction on registers: what cannot be computed is unknown afterwards.
pub(crate) fn step(
    instruction: &Instruction,
    registers: &mut Registers,
    factory: &mut InstructionInfoFactory,
) {
    let before = registers.clone();
    let outcome = evaluate(instruction, &mut |register| before.read(register));
    for register in written(instruction, factory) {
        let old = registers.general[number(register).unwrap_or(0)];
        let value = outcome
            .as_ref()
            .and_then(|o| o.register)
            .filter(|(written, _)| number(*written) == number(register))
            .map(|(written, value)| merged(written, old, Some(value)));
        if let Some(number) = number(register) {
            registers.general[number] = value.flatten();
        }
    }
    let modified = instruction.rflags_modified();
    if modified != 0 {
        registers.flags = match (outcome.and_then(|o| o.flags), registers.flags) {
            (Some((set, to)), Some(old)) => Some(old & !set | to),
            _ => None,
        };
    }
    if instruction.is_stack_instruction()
        && let Some(sp) = before.read(Register::RSP)
    {
        let moved = match is_popped(instruction) {
            true => 0,
            false => instruction.stack_pointer_increment(),
        };
        // `leave` and `enter` say 0 and set the pointer from another register.
        if moved != 0 {
            registers.general[4] = Some(sp.wrapping_add_signed(i64::from(moved)));
        }
    }
    if instruction.is_string_instruction() && !instruction.has_rep_prefix() {
        let step = string_step(instruction, before.flags);
        for register in [Register::RSI, Register::RDI] {
            if written(instruction, factory).contains(&register) {
                let moved = before
                    .read(register)
                    .zip(step)
                    .map(|(v, s)| v.wrapping_add(s));
                registers.write(register, moved);
            }
        }
    }
}
