//! The registers as they were before instructions that have run: undone, or computed anew.

use disarm64_defn::InsnClass;

use super::evaluate::{Inputs, evaluate, sides, summand};
use super::instruction::Instruction;
use super::memory::{Memory, Move};
use super::registers::{Number, Registers, SP};

/// Questions that may follow from one.
const FUEL: u32 = 200;

/// A straight run of instructions, and the registers after the last.
pub(crate) struct History<'a> {
    block: &'a [Instruction],
    after: &'a Registers,
    fuel: u32,
}

impl<'a> History<'a> {
    pub(crate) fn new(block: &'a [Instruction], after: &'a Registers) -> Self {
        History {
            block,
            after,
            fuel: FUEL,
        }
    }

    /// The registers before the last instruction. Nothing is said of the flags.
    pub(crate) fn before_last(&mut self) -> Registers {
        let mut registers = self.after.clone();
        registers.flags = None;
        let Some(last) = self.block.len().checked_sub(1) else {
            return registers;
        };
        for number in 0..=SP {
            registers.set(number, self.before(last, number));
        }
        registers
    }

    fn writes(&self, at: usize, number: Number) -> bool {
        // Of what nothing is known of may be any.
        self.block[at].writes().is_none_or(|w| w.has(number))
    }

    /// A register before an instruction ran.
    fn before(&mut self, at: usize, number: Number) -> Option<u64> {
        self.fuel = self.fuel.checked_sub(1)?;
        if at == self.block.len() {
            return self.after.get(number);
        }
        if !self.writes(at, number) {
            return self
                .before(at + 1, number)
                .or_else(|| self.made_before(at, number));
        }
        self.undone(at, number)
            .or_else(|| self.made_before(at, number))
    }

    /// What the last instruction before this one that wrote the register wrote to it.
    fn made_before(&mut self, at: usize, number: Number) -> Option<u64> {
        self.fuel = self.fuel.checked_sub(1)?;
        let maker = (0..at).rev().find(|i| self.writes(*i, number))?;
        let instruction = self.block[maker];
        let mut inputs = Inputs {
            read: &mut |wanted| self.before(maker, wanted),
            flags: None,
        };
        let (written, value) = evaluate(&instruction, &mut inputs)?.register?;
        (written == number).then_some(value)
    }

    /// Undoes an instruction that has an inverse.
    fn undone(&mut self, at: usize, number: Number) -> Option<u64> {
        let i = self.block[at];
        if let Memory::Known(operand) = Memory::of(&i) {
            // What it loads is not what it was addressed by.
            if operand.loads.contains(&Some(number)) || i.n_or_sp() != number {
                return None;
            }
            let by = match operand.moves? {
                Move::By(by) => by as u64,
                Move::Register(other) if other == number => return None,
                Move::Register(other) => self.before(at, other)?,
            };
            return Some(self.before(at + 1, number)?.wrapping_sub(by));
        }
        if !i.is_wide() {
            return None;
        }
        match i.class() {
            InsnClass::ADDSUB_IMM | InsnClass::ADDSUB_SHIFT | InsnClass::ADDSUB_EXT => {
                let (d, n) = sides(&i);
                let second = (i.class() != InsnClass::ADDSUB_IMM)
                    .then(|| i.m())
                    .flatten();
                if d != Some(number) {
                    return None;
                }
                if n == Some(number) && second != Some(number) {
                    let mut inputs = Inputs {
                        read: &mut |wanted| self.before(at, wanted),
                        flags: None,
                    };
                    let by = summand(&i, &mut inputs)?;
                    let after = self.before(at + 1, number)?;
                    return Some(if i.bit(30) {
                        after.wrapping_add(by)
                    } else {
                        after.wrapping_sub(by)
                    });
                }
                // The second operand, if it is taken as it is.
                let is_bare = i.class() == InsnClass::ADDSUB_SHIFT && i.bits(15, 10) == 0;
                if n != Some(number) && second == Some(number) && is_bare {
                    let first = match n {
                        None => 0,
                        Some(n) => self.before(at, n)?,
                    };
                    let after = self.before(at + 1, number)?;
                    return Some(if i.bit(30) {
                        first.wrapping_sub(after)
                    } else {
                        after.wrapping_sub(first)
                    });
                }
                None
            }
            InsnClass::LOG_SHIFT if i.d() == Some(number) && i.bits(15, 10) == 0 => {
                let (n, m) = (i.n(), i.m());
                let flip = if i.bit(21) { u64::MAX } else { 0 };
                match i.bits(30, 29) {
                    // Exclusive or with something else.
                    2 if (n == Some(number)) != (m == Some(number)) => {
                        let other = if n == Some(number) { m } else { n };
                        let other = match other {
                            None => 0,
                            Some(other) => self.before(at, other)?,
                        };
                        Some(self.before(at + 1, number)? ^ other ^ flip)
                    }
                    // A move of a register to itself, or of what it is not.
                    1 if n.is_none() && m == Some(number) => {
                        Some(self.before(at + 1, number)? ^ flip)
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }
}
