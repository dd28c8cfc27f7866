//! The registers as they were before instructions that have run: undone, or computed again.

use iced_x86::{
    Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, RflagsBits,
};
use varve_model::Address;

use super::evaluate::{evaluate, is_popped, written};
use super::operands::{is_write, string_step, tests_bit_of_register};
use super::registers::{Registers, extended, number, truncated};
use crate::{Memory, Steps};

/// Questions that may follow from one.
const FUEL: u32 = 400;
/// General registers.
const REGISTERS: usize = 16;

/// What is known of a register before an instruction.
#[derive(Clone, Copy)]
enum Answer {
    NotAsked,
    /// The question is being answered: asked within its own answer it leads to nothing.
    Open,
    Is(Option<u64>),
}

/// A straight run of instructions, and the registers and memory after the last.
pub(crate) struct History<'a> {
    block: &'a [Instruction],
    after: &'a Registers,
    memory: &'a dyn Memory,
    steps: Steps,
    factory: InstructionInfoFactory,
    written: Vec<Option<Vec<Register>>>,
    /// Of each instruction and register.
    answers: Vec<[Answer; REGISTERS]>,
    fuel: u32,
}

impl<'a> History<'a> {
    pub(crate) fn new(
        block: &'a [Instruction],
        after: &'a Registers,
        memory: &'a dyn Memory,
        steps: Steps,
    ) -> Self {
        History {
            block,
            after,
            memory,
            steps,
            factory: InstructionInfoFactory::new(),
            written: vec![None; block.len()],
            answers: vec![[Answer::NotAsked; REGISTERS]; block.len()],
            fuel: FUEL,
        }
    }

    /// The registers before the last instruction, as far as it reads them: others are left unknown.
    pub(crate) fn before_last(&mut self) -> Registers {
        let mut registers = self.after.clone();
        let Some(last) = self.block.len().checked_sub(1) else {
            return registers;
        };
        let info = self.factory.info(&self.block[last]);
        let mut is_read = [false; REGISTERS];
        for used in info.used_registers() {
            if let Some(number) = number(used.register()) {
                is_read[number] |= used.access() != OpAccess::Write;
            }
        }
        for (number, is_read) in is_read.into_iter().enumerate() {
            self.fuel = FUEL;
            let value = is_read.then(|| self.before(last, number));
            registers.general[number] = value.flatten();
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
        if at == self.block.len() {
            return self.after.general[register];
        }
        match self.answers[at][register] {
            Answer::Is(value) => return value,
            Answer::Open => return None,
            Answer::NotAsked => {}
        }
        self.fuel = self.fuel.checked_sub(1)?;
        self.answers[at][register] = Answer::Open;
        let value = self.concluded(at, register);
        self.answers[at][register] = match value {
            // With more fuel there may be an answer.
            None if self.fuel == 0 => Answer::NotAsked,
            value => Answer::Is(value),
        };
        value
    }

    fn concluded(&mut self, at: usize, register: usize) -> Option<u64> {
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
        let maker = (0..at).rev().find(|i| self.writes(*i, register))?;
        let instruction = self.block[maker];
        if is_load(&instruction) {
            return self.loaded(maker, register);
        }
        let outcome = evaluate(&instruction, &mut |wanted| self.read(maker, wanted))?;
        let (written, value) = outcome.register?;
        // A part of a register says nothing of the rest.
        (number(written) == Some(register) && written.size() >= 4).then_some(value)
    }

    /// A register before an instruction ran, its own width; segment registers give their bases.
    fn read(&mut self, at: usize, register: Register) -> Option<u64> {
        if register.is_segment_register() {
            return self.after.read(register);
        }
        let whole = self.before(at, number(register)?)?;
        part(whole, register)
    }

    /// The whole of a register after it was loaded: its memory still holds it where nothing has written there since.
    fn loaded(&mut self, maker: usize, register: usize) -> Option<u64> {
        let load = self.block[maker];
        let destination = load.op0_register();
        // A part of a register says nothing of the rest.
        if number(destination) != Some(register) || destination.size() < 4 {
            return None;
        }
        let bytes = load.memory_size().size();
        let address = load.virtual_address(1, 0, |wanted, _, _| self.read(maker, wanted))?;
        let is_kept = self.steps == Steps::Forgetful
            || (maker + 1..self.block.len()).all(|at| self.keeps(at, address, bytes));
        if !is_kept {
            return None;
        }
        let value = self.memory.read(Address(address), bytes)?;
        Some(match load.mnemonic() {
            Mnemonic::Movsx | Mnemonic::Movsxd => {
                truncated(extended(value, bytes), destination.size())
            }
            _ => value,
        })
    }

    /// Whether an instruction surely wrote to none of the bytes from an address on.
    fn keeps(&mut self, at: usize, address: u64, bytes: usize) -> bool {
        let instruction = self.block[at];
        let stores: Vec<_> = self
            .factory
            .info(&instruction)
            .used_memory()
            .iter()
            .filter(|used| is_write(used.access()))
            .copied()
            .collect();
        stores.iter().all(|store| {
            let size = store.memory_size().size();
            // How far these reach the operand does not say.
            let is_open = size == 0
                || instruction.is_string_instruction()
                || instruction.is_vsib()
                || tests_bit_of_register(&instruction);
            if is_open {
                return false;
            }
            let begin = store.virtual_address(0, |wanted, _, _| self.read(at, wanted));
            begin.is_some_and(|begin| {
                let (up, down) = (begin.wrapping_sub(address), address.wrapping_sub(begin));
                up >= bytes as u64 && down >= size as u64
            })
        })
    }

    /// Undoes an instruction that has an inverse.
    fn undone(&mut self, instruction: &Instruction, at: usize, register: usize) -> Option<u64> {
        let full = wide(register);
        let after = |history: &mut Self| history.before(at + 1, register);
        // What was popped into it came from memory.
        if is_popped(instruction) && register == 4 {
            return None;
        }
        if instruction.is_stack_instruction() && register == 4 {
            let moved = i64::from(instruction.stack_pointer_increment());
            return (moved != 0 && instruction.mnemonic() != Mnemonic::Leave)
                .then(|| after(self))?
                .map(|sp| sp.wrapping_add_signed(-moved));
        }
        if instruction.is_string_instruction() {
            let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
            let pointer = matches!(register, 6 | 7);
            // The flag says which way it went then, where nothing has set it since.
            let is_set = self.block[at..]
                .iter()
                .any(|later| later.rflags_modified() & RflagsBits::DF != 0);
            if is_set {
                return None;
            }
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

/// Whether an instruction fills a general register from memory, and does no more.
fn is_load(instruction: &Instruction) -> bool {
    use Mnemonic::{Mov, Movsx, Movsxd, Movzx};
    matches!(instruction.mnemonic(), Mov | Movsx | Movsxd | Movzx)
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Memory
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
