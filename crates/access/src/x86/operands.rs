//! What an instruction accesses, its registers given.

use iced_x86::{
    Instruction, InstructionInfoFactory, MemorySize, OpAccess, OpKind, Register, UsedMemory,
};
use varve_model::{Address, Bytes};

use super::registers::{DIRECTION, Registers, extended, truncated};
use crate::{Access, Kind, Undecoded};

/// Whether an instruction accesses memory at all.
pub(crate) fn touches_memory(
    instruction: &Instruction,
    factory: &mut InstructionInfoFactory,
) -> bool {
    factory
        .info(instruction)
        .used_memory()
        .iter()
        .any(|used| used.access() != OpAccess::NoMemAccess && used.access() != OpAccess::None)
}

/// Whether a register or memory is written to, or may be.
pub(crate) fn is_write(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

/// The accesses of an instruction that is about to run with these registers; none where it accesses nothing.
pub(crate) fn accesses(
    instruction: &Instruction,
    registers: &Registers,
    factory: &mut InstructionInfoFactory,
) -> Result<Vec<Access>, Undecoded> {
    let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let repeats = repeats && instruction.is_string_instruction();
    if repeats {
        // An interrupt comes between two elements and leaves the registers at the next.
        let count = if instruction.memory_displ_size() == 4 || uses_ecx(instruction) {
            Register::ECX
        } else {
            Register::RCX
        };
        match registers.read(count) {
            None => return Err(Undecoded::Register),
            Some(0) => return Ok(Vec::new()),
            Some(_) => {}
        }
    }
    let masked = instruction.has_op_mask() || is_masked(instruction);
    let gathers = instruction.is_vsib();
    let used: Vec<UsedMemory> = factory.info(instruction).used_memory().to_vec();
    let mut found = Vec::new();
    for memory in &used {
        let kind = match memory.access() {
            OpAccess::None | OpAccess::NoMemAccess => continue,
            OpAccess::Read | OpAccess::CondRead => Kind::Read,
            _ => Kind::Write,
        };
        if gathers {
            lanes(instruction, memory, kind, registers, &mut found)?;
            continue;
        }
        // Which elements a mask lets through is not known.
        let conditional = matches!(memory.access(), OpAccess::CondRead | OpAccess::CondWrite);
        if masked || conditional && !repeats && !is_always(instruction) {
            return Err(Undecoded::Vector);
        }
        let element = if repeats {
            string_element(instruction)
        } else {
            memory.memory_size().size()
        };
        let address = memory
            .virtual_address(0, |register, _, _| registers.read(register))
            .and_then(|address| Some(address.wrapping_add(bit_distance(instruction, registers)?)))
            .ok_or(Undecoded::Register)?;
        found.push(Access {
            address: Address(address),
            bytes: Bytes(element as u64),
            kind,
        });
    }
    Ok(found)
}

/// Whether a vector says which elements are accessed, of instructions that have no mask register.
fn is_masked(instruction: &Instruction) -> bool {
    use iced_x86::Mnemonic::{
        Maskmovdqu, Maskmovq, Vmaskmovdqu, Vmaskmovpd, Vmaskmovps, Vpmaskmovd, Vpmaskmovq,
    };
    matches!(
        instruction.mnemonic(),
        Maskmovdqu | Maskmovq | Vmaskmovdqu | Vmaskmovpd | Vmaskmovps | Vpmaskmovd | Vpmaskmovq
    )
}

/// How far from its operand an instruction accesses memory: those that test a bit whose number a register holds
/// go to the word with that bit, forward or back.
fn bit_distance(instruction: &Instruction, registers: &Registers) -> Option<u64> {
    if !tests_bit_of_register(instruction) {
        return Some(0);
    }
    let register = instruction.op1_register();
    let bytes = register.size();
    // With 32-bit addresses the sum would wrap earlier.
    if instruction.memory_base().size() == 4 || instruction.memory_index().size() == 4 {
        return None;
    }
    let bit = extended(registers.read(register)?, bytes) as i64;
    let words = bit >> (8 * bytes).ilog2();
    Some(words.wrapping_mul(bytes as i64) as u64)
}

/// Whether an instruction tests a bit whose number a register holds.
pub(crate) fn tests_bit_of_register(instruction: &Instruction) -> bool {
    use iced_x86::Mnemonic::{Bt, Btc, Btr, Bts};
    matches!(instruction.mnemonic(), Bt | Btc | Btr | Bts)
        && instruction.op1_kind() == OpKind::Register
}

/// Whether a string instruction counts in ECX: it has an address-size prefix.
fn uses_ecx(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|i| {
        use iced_x86::OpKind::{MemoryESEDI, MemorySegEDI, MemorySegESI};
        matches!(
            instruction.op_kind(i),
            MemoryESEDI | MemorySegEDI | MemorySegESI
        )
    })
}

/// Conditions that concern the outcome, not the access: a conditional move always reads its memory.
fn is_always(instruction: &Instruction) -> bool {
    use iced_x86::FlowControl;
    instruction.condition_code() != iced_x86::ConditionCode::None
        && instruction.flow_control() == FlowControl::Next
}

/// Bytes of one element of a string instruction.
pub(crate) fn string_element(instruction: &Instruction) -> usize {
    let named = instruction.memory_size();
    if named != MemorySize::Unknown {
        return named.size();
    }
    0
}

/// How far one element moves the pointers of a string instruction; none where the flags are not known.
pub(crate) fn string_step(instruction: &Instruction, flags: Option<u64>) -> Option<u64> {
    let element = string_element(instruction) as u64;
    Some(if flags? & DIRECTION == 0 {
        element
    } else {
        element.wrapping_neg()
    })
}

/// The lanes of a gather or a scatter.
fn lanes(
    instruction: &Instruction,
    memory: &UsedMemory,
    kind: Kind,
    registers: &Registers,
    found: &mut Vec<Access>,
) -> Result<(), Undecoded> {
    let vectors = registers.vectors.as_ref().ok_or(Undecoded::Gather)?;
    // The mask of AVX2 is a vector: its sign bits say which lanes are still to come. That of AVX-512 is not carried.
    if instruction.has_op_mask() {
        return Err(Undecoded::Gather);
    }
    let mask = instruction.op2_register();
    let (index, element) = (memory.index(), memory.memory_size().element_size());
    let element = if element == 0 {
        memory.memory_size().size()
    } else {
        element
    };
    let index_bytes = memory.vsib_size() as usize;
    let destination = instruction.op0_register().size();
    let lanes = (index.size() / index_bytes.max(1)).min(destination / element.max(1));
    for lane in 0..lanes {
        let on = vector_bytes(vectors, mask, (lane + 1) * element - 1, 1)? & 0x80 != 0;
        if !on {
            continue;
        }
        let mut lost = false;
        let address = memory.virtual_address(lane, |register, lane, bytes| {
            if register == index {
                let value = vector_bytes(vectors, register, lane * bytes, bytes);
                lost |= value.is_err();
                // iced extends the sign of what it is given by the size of an index.
                return value.ok();
            }
            registers.read(register)
        });
        match address {
            Some(address) => found.push(Access {
                address: Address(address),
                bytes: Bytes(element as u64),
                kind,
            }),
            None if lost => return Err(Undecoded::Gather),
            None => return Err(Undecoded::Register),
        }
    }
    Ok(())
}

/// Bytes of a vector register as a number.
fn vector_bytes(
    vectors: &Vectors,
    register: Register,
    offset: usize,
    bytes: usize,
) -> Result<u64, Undecoded> {
    let whole = vectors
        .bytes
        .get(register.number())
        .ok_or(Undecoded::Gather)?;
    let part = whole
        .get(offset..offset + bytes.min(8))
        .ok_or(Undecoded::Gather)?;
    let mut value = [0; 8];
    value[..part.len()].copy_from_slice(part);
    Ok(truncated(u64::from_le_bytes(value), bytes))
}

use super::registers::Vectors;
