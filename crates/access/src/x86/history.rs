//! The registers as they were before instructions that have run: undone, or computed anew.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

use super::evaluate::{evaluate, written};
use super::operands::string_step;
use super::registers::{Registers, number, truncated};

/// Questions that may follow from one.
const FUEL: u32 = 200;

/// A straight run of instructions, and the registers after the last.
pub(crate) struct History<'a> {
    pub(crate) block: &'a [Instruction],
    pub(crate) after: &'a Registers,
    factory: InstructionInfoFactory,
    written: Vec<Option<Vec<Register>>>,
    fuel: u32,
}

impl<'a> History<'a> {
    pub(crate) fn new(block: &'a [Instruction], after: &'a Registers) -> Self {
        History {
            block,
            after,
            factory: InstructionInfoFactory::new(),
            written: vec![None; block.len()],
            fuel: FUEL,
        }
    }

    /// The registers before the last instruction.
    pub(crate) fn before_last(&mut self) -> Registers {
        let mut registers = self.after.clone();
        let Some(last) = self.block.len().checked_sub(1) else {
            return registers;
        };
        for number in 0..16 {
            registers.general[number] = self.before(last, number);
        }
        if self.block[last].rflags_modified() != 0 {
            registers.flags = None;
        }
        registers
    }

    fn writes(&mut self, at: usize, register: usize) -> bool {
        let factory = &mut self.factory;
        let instruction = &self.block[at];
        self.written[at]
            .get_or_insert_with(|| written(instruction, factory))
            .iter()
            .any(|w| number(*w) == Some(register))
    }

    /// The whole of a register before an instruction ran.
    fn before(&mut self, at: usize, register: usize) -> Option<u64> {
        self.fuel = self.fuel.checked_sub(1)?;
        if at == self.block.len() {
            return self.after.general[register];
        }
        if !self.writes(at, register) {
            return self
                .before(at + 1, register)
                .or_else(|| self.made_before(at, register));
        }
        let instruction = self.block[at];
        self.undone(&instruction, at, register)
            .or_else(|| self.made_before(at, register))
    }

    /// What the last instruction before this one that wrote the register wrote to it.
    fn made_before(&mut self, at: usize, register: usize) -> Option<u64> {
        self.fuel = self.fuel.checked_sub(1)?;
        let maker = (0..at).rev().find(|i| self.writes(*i, register))?;
        let instruction = self.block[maker];
        let outcome = evaluate(&instruction, &mut |wanted| {
            let whole = self.before(maker, number(wanted)?)?;
            part(whole, wanted)
        })?;
        let (written, value) = outcome.register?;
        // A part of a register says nothing of the rest.
        (number(written) == Some(register) && written.size() >= 4).then_some(value)
    }

    /// Undoes an instruction that has an inverse.
    fn undone(&mut self, instruction: &Instruction, at: usize, register: usize) -> Option<u64> {
        let full = wide(register);
        let after = |history: &mut Self| history.before(at + 1, register);
        if instruction.is_stack_instruction() && register == 4 {
            let moved = i64::from(instruction.stack_pointer_increment());
            return (moved != 0 && instruction.mnemonic() != Mnemonic::Leave)
                .then(|| after(self))?
                .map(|sp| sp.wrapping_add_signed(-moved));
        }
        if instruction.is_string_instruction() {
            let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
            let pointer = matches!(register, 6 | 7);
            let step = string_step(instruction, self.after.flags)?;
            return (pointer && !repeats)
                .then(|| after(self))?
                .map(|v| v.wrapping_sub(step));
        }
        if instruction.op_count() == 0
            || instruction.op0_kind() != OpKind::Register
            || instruction.op0_register() != full
        {
            return None;
        }
        let immediate = |n| match instruction.op_kind(n) {
            OpKind::Register => None,
            _ => instruction.try_immediate(n).ok(),
        };
        match instruction.mnemonic() {
            Mnemonic::Inc => Some(after(self)?.wrapping_sub(1)),
            Mnemonic::Dec => Some(after(self)?.wrapping_add(1)),
            Mnemonic::Not => Some(!after(self)?),
            Mnemonic::Neg => Some(after(self)?.wrapping_neg()),
            Mnemonic::Bswap => Some(after(self)?.swap_bytes()),
            mnemonic @ (Mnemonic::Add | Mnemonic::Sub | Mnemonic::Xor) => {
                let other = match instruction.op1_kind() {
                    OpKind::Register => {
                        let other = number(instruction.op1_register())?;
                        (other != register).then(|| self.before(at, other))??
                    }
                    _ => immediate(1)?,
                };
                let value = after(self)?;
                Some(match mnemonic {
                    Mnemonic::Add => value.wrapping_sub(other),
                    Mnemonic::Sub => value.wrapping_add(other),
                    _ => value ^ other,
                })
            }
            Mnemonic::Lea
                if instruction.memory_base() == full
                    && instruction.memory_index() == Register::None =>
            {
                Some(after(self)?.wrapping_sub(instruction.memory_displacement64()))
            }
            _ => None,
        }
    }
}

fn wide(register: usize) -> Register {
    const ALL: [Register; 16] = [
        Register::RAX,
        Register::RCX,
        Register::RDX,
        Register::RBX,
        Register::RSP,
        Register::RBP,
        Register::RSI,
        Register::RDI,
        Register::R8,
        Register::R9,
        Register::R10,
        Register::R11,
        Register::R12,
        Register::R13,
        Register::R14,
        Register::R15,
    ];
    ALL[register & 15]
}

/// A register's part of the whole.
fn part(whole: u64, register: Register) -> Option<u64> {
    let mut registers = [None; 16];
    registers[number(register)?] = Some(whole);
    let one = Registers {
        general: registers,
        flags: None,
        fs_base: None,
        gs_base: None,
        vectors: None,
    };
    one.read(register).map(|v| truncated(v, register.size()))
}
