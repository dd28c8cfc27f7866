//! One instruction: what it is, where it goes on, which registers it writes.

use disarm64::{InsnOpcode, decoder_full};
use disarm64_defn::{InsnClass, InsnOperandClass, InsnOperandKind, defn::Insn};

use super::memory::{Memory, Move};
use super::registers::{Number, SP};

/// A decoded instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    pub(crate) address: u64,
    word: u32,
    definition: &'static Insn,
}

/// Where an instruction goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// At the one after it.
    Next,
    /// Elsewhere in any case.
    Jump(u64),
    /// Elsewhere if the condition holds.
    Branch(u64, Condition),
    /// Calls, returns, traps: nobody can say.
    Away,
}

/// What a branch depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// A condition on the flags, by its code.
    Flags(u32),
    /// Whether the register, of which these bits count, is zero, or is not.
    Zero {
        register: Option<Number>,
        mask: u64,
        zero: bool,
    },
    /// Something else.
    Unknown,
}

/// General registers that an instruction writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writes(u32);

impl Writes {
    pub(crate) fn with(self, number: Number) -> Writes {
        Writes(self.0 | 1 << number)
    }

    /// With a register in whose place there may be the zero register.
    pub(crate) fn with_plain(self, number: Option<Number>) -> Writes {
        number.map_or(self, |n| self.with(n))
    }

    pub(crate) fn has(self, number: Number) -> bool {
        self.0 >> number & 1 == 1
    }

    pub(crate) fn each(self) -> impl Iterator<Item = Number> {
        (0..=SP).filter(move |n| self.has(*n))
    }
}

/// The meaning of a field of an instruction in which 31 is the zero register: then none.
fn plain(field: u32) -> Option<Number> {
    (field != 31).then_some(field as Number)
}

impl Instruction {
    /// None where the word is no instruction.
    pub(crate) fn decode(word: u32, address: u64) -> Option<Instruction> {
        let definition = decoder_full::decode(word)?.definition();
        Some(Instruction {
            address,
            word,
            definition,
        })
    }

    pub(crate) fn next(&self) -> u64 {
        self.address.wrapping_add(4)
    }

    pub(crate) fn class(&self) -> InsnClass {
        self.definition.class
    }

    pub(crate) fn mnemonic(&self) -> &'static str {
        self.definition.mnemonic
    }

    /// Bits of the instruction, the highest and the lowest given.
    pub(crate) fn bits(&self, high: u32, low: u32) -> u32 {
        (self.word >> low) & (u32::MAX >> (31 - (high - low)))
    }

    pub(crate) fn bit(&self, position: u32) -> bool {
        self.word >> position & 1 == 1
    }

    /// The same as a signed number.
    pub(crate) fn signed(&self, high: u32, low: u32) -> i64 {
        let unused = 31 - (high - low);
        i64::from((self.bits(high, low) << unused) as i32 >> unused)
    }

    /// Whether it works on 64 bits; not all instructions have this bit.
    pub(crate) fn is_wide(&self) -> bool {
        self.bit(31)
    }

    pub(crate) fn d(&self) -> Option<Number> {
        plain(self.bits(4, 0))
    }

    pub(crate) fn d_or_sp(&self) -> Number {
        self.bits(4, 0) as Number
    }

    pub(crate) fn n(&self) -> Option<Number> {
        plain(self.bits(9, 5))
    }

    pub(crate) fn n_or_sp(&self) -> Number {
        self.bits(9, 5) as Number
    }

    pub(crate) fn m(&self) -> Option<Number> {
        plain(self.bits(20, 16))
    }

    /// The register in bits 14 to 10: Ra and Rt2.
    pub(crate) fn a(&self) -> Option<Number> {
        plain(self.bits(14, 10))
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = InsnOperandKind> {
        self.definition.operands.iter().map(|o| o.kind)
    }

    pub(crate) fn has_address(&self) -> bool {
        let mut operands = self.definition.operands.iter();
        operands.any(|o| o.class == InsnOperandClass::ADDRESS)
    }

    fn relative(&self, high: u32, low: u32) -> u64 {
        self.address.wrapping_add_signed(4 * self.signed(high, low))
    }

    /// Where it goes on.
    pub(crate) fn flow(&self) -> Flow {
        match self.class() {
            InsnClass::BRANCH_IMM if self.bit(31) => Flow::Away,
            InsnClass::BRANCH_IMM => Flow::Jump(self.relative(25, 0)),
            InsnClass::CONDBRANCH => {
                Flow::Branch(self.relative(23, 5), Condition::Flags(self.bits(3, 0)))
            }
            InsnClass::TESTBRANCH => {
                let bit = u32::from(self.bit(31)) << 5 | self.bits(23, 19);
                let condition = Condition::Zero {
                    register: self.d(),
                    mask: 1 << bit,
                    zero: !self.bit(24),
                };
                Flow::Branch(self.relative(18, 5), condition)
            }
            InsnClass::COMPBRANCH if self.bits(30, 25) == 0b01_1010 => {
                let condition = Condition::Zero {
                    register: self.d(),
                    mask: if self.is_wide() {
                        u64::MAX
                    } else {
                        u64::from(u32::MAX)
                    },
                    zero: !self.bit(24),
                };
                Flow::Branch(self.relative(23, 5), condition)
            }
            // Compare and branch, of 2024.
            InsnClass::COMPBRANCH => Flow::Branch(self.relative(13, 5), Condition::Unknown),
            InsnClass::BRANCH_REG | InsnClass::EXCEPTION => Flow::Away,
            _ if self.writes().is_none() => Flow::Away,
            _ => Flow::Next,
        }
    }

    /// Where a call goes.
    pub(crate) fn call(&self) -> Option<u64> {
        (self.class() == InsnClass::BRANCH_IMM && self.bit(31)).then(|| self.relative(25, 0))
    }

    /// The general registers that it writes; none where that is not known.
    pub(crate) fn writes(&self) -> Option<Writes> {
        use InsnClass as C;
        let none = Writes::default();
        match self.class() {
            C::CONDBRANCH | C::TESTBRANCH | C::COMPBRANCH => return Some(none),
            C::CONDCMP_IMM | C::CONDCMP_REG => return Some(none),
            C::BRANCH_IMM if !self.bit(31) => return Some(none),
            // Calls, and what ends in the kernel or a debugger.
            C::BRANCH_IMM | C::BRANCH_REG | C::EXCEPTION => return None,
            C::IC_SYSTEM => return self.system_writes(),
            C::AARCH64_MISC if !self.is_vector_or_pointer_sum() => return None,
            C::GCS | C::THE | C::RCPC3 => return None,
            _ => {}
        }
        match Memory::of(self) {
            Memory::Opaque => return None,
            Memory::Known(operand) => {
                let moved = match operand.moves {
                    Some(Move::By(_) | Move::Register(_)) => none.with(self.n_or_sp()),
                    None => none,
                };
                return Some(
                    moved
                        .with_plain(operand.loads[0])
                        .with_plain(operand.loads[1]),
                );
            }
            // Vectors and masks: their instructions do not move their base.
            Memory::Unknown(_) => return Some(none),
            Memory::None => {}
        }
        Some(self.result().map_or(none, |number| none.with(number)))
    }

    /// The first operand, where that is a general register: what an instruction that is neither a branch nor an access writes.
    fn result(&self) -> Option<Number> {
        let first = self.definition.operands.first()?;
        if first.class != InsnOperandClass::INT_REG {
            return None;
        }
        match first.kind {
            InsnOperandKind::Rd_SP => Some(self.d_or_sp()),
            InsnOperandKind::Rn => self.n(),
            _ => self.d(),
        }
    }

    fn is_vector_or_pointer_sum(&self) -> bool {
        let first = self.definition.operands.first();
        first.is_some_and(|o| o.class == InsnOperandClass::SIMD_REG)
            || matches!(self.mnemonic(), "addpt" | "subpt" | "maddpt" | "msubpt")
    }

    fn system_writes(&self) -> Option<Writes> {
        let none = Writes::default();
        Some(match self.mnemonic() {
            "mrs" | "sysl" => none.with_plain(self.d()),
            // By the number: those that authenticate pointers write registers that they do not name.
            "hint" => match self.bits(11, 5) {
                7 | 24..=31 => none.with(30),
                8 | 10 | 12 | 14 => none.with(17),
                40 => none.with(16),
                _ => none,
            },
            "mrrs" | "sysp" => return None,
            _ => none,
        })
    }
}
