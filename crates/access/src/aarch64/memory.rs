//! What an instruction accesses, and how it addresses it.

use disarm64_defn::{InsnClass, InsnOperandKind};
use varve_model::{Address, Bytes};

use super::instruction::Instruction;
use super::registers::{Number, Registers};
use crate::{Access, Kind, Undecoded};

/// The access of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// None. A prefetch waits for nothing, and a cache is not memory.
    None,
    /// One, fully described.
    Known(Operand),
    /// One that depends on what no sample carries.
    Unknown(Undecoded),
    /// Perhaps one, of an instruction that nothing is known of.
    Opaque,
}

/// How memory is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operand {
    base: Base,
    offset: Offset,
    bytes: u64,
    kind: Kind,
    /// What the base register is moved by.
    pub(crate) moves: Option<Move>,
    /// General registers that it writes beside the base.
    pub(crate) loads: [Option<Number>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    Register(Number),
    Absolute(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offset {
    Immediate(i64),
    Register(Option<Number>, Extension),
}

/// What a base register is moved by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    By(i64),
    Register(Number),
}

/// How a register is made an offset or an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extension {
    /// The field `option`: size in the lower bits, sign in the upper one.
    pub(crate) option: u32,
    pub(crate) shift: u32,
}

impl Extension {
    pub(crate) fn of(self, value: u64) -> u64 {
        let extended = match self.option {
            0 => u64::from(value as u8),
            1 => u64::from(value as u16),
            2 => u64::from(value as u32),
            4 => value as i8 as u64,
            5 => value as i16 as u64,
            6 => value as i32 as u64,
            _ => value,
        };
        extended << self.shift
    }
}

impl Operand {
    fn plain(i: &Instruction, bytes: u64, kind: Kind) -> Operand {
        Operand {
            base: Base::Register(i.n_or_sp()),
            offset: Offset::Immediate(0),
            bytes,
            kind,
            moves: None,
            loads: [None; 2],
        }
    }

    fn at(self, offset: i64) -> Operand {
        Operand {
            offset: Offset::Immediate(offset),
            ..self
        }
    }

    fn loading(self, loads: [Option<Number>; 2]) -> Operand {
        Operand { loads, ..self }
    }

    /// The access, with the registers before it.
    pub(crate) fn access(&self, registers: &Registers) -> Option<Access> {
        let base = match self.base {
            Base::Register(number) => registers.get(number)?,
            Base::Absolute(address) => address,
        };
        let offset = match self.offset {
            Offset::Immediate(offset) => offset as u64,
            Offset::Register(None, _) => 0,
            Offset::Register(Some(number), extension) => extension.of(registers.get(number)?),
        };
        Some(Access {
            address: Address(untagged(base.wrapping_add(offset))),
            bytes: Bytes(self.bytes),
            kind: self.kind,
        })
    }
}

/// The address without the tag that Linux lets programs have in its upper byte (`tagged-address-abi.rst`).
fn untagged(address: u64) -> u64 {
    if address >> 55 & 1 == 0 {
        address & (u64::MAX >> 8)
    } else {
        address
    }
}

fn read_or_write(is_load: bool) -> Kind {
    if is_load { Kind::Read } else { Kind::Write }
}

impl Memory {
    /// What an instruction accesses.
    pub(crate) fn of(i: &Instruction) -> Memory {
        use InsnClass as C;
        let known = match i.class() {
            C::LDST_POS | C::LDST_UNSCALED | C::LDST_UNPRIV | C::LDST_IMM9 | C::LDST_REGOFF => {
                return single(i);
            }
            C::LOADLIT => return literal(i),
            C::LDSTPAIR_OFF | C::LDSTPAIR_INDEXED | C::LDSTNAPAIR_OFFS => pair(i),
            C::LDSTEXCL => exclusive(i),
            C::LSE_ATOMIC => atomic(i),
            C::LSE128_ATOMIC => Some(Operand::plain(i, 16, Kind::Write).loading([i.d(), i.m()])),
            C::ASISDLSE | C::ASISDLSEP => structures(i),
            C::ASISDLSO | C::ASISDLSOP => one_structure(i),
            // Their addresses are those of code.
            C::BRANCH_IMM | C::CONDBRANCH | C::TESTBRANCH | C::COMPBRANCH | C::PCRELADDR => {
                return Memory::None;
            }
            C::IC_SYSTEM if zeroes_block(i) => return Memory::Unknown(Undecoded::Vector),
            _ => return of_vectors(i),
        };
        known.map_or(Memory::Opaque, Memory::Known)
    }
}

/// `DC ZVA` and its kin, whose block is as long as the processor says.
fn zeroes_block(i: &Instruction) -> bool {
    i.mnemonic() == "sys" && i.bits(18, 8) == 0b011_0111_0100 && matches!(i.bits(7, 5), 1 | 3 | 4)
}

/// What accesses memory through vectors and predicates, and whatever else has an address.
fn of_vectors(i: &Instruction) -> Memory {
    let mnemonic = i.mnemonic();
    if !i.has_address() || mnemonic == "adr" || mnemonic.starts_with("prf") {
        return Memory::None;
    }
    let class: &'static str = i.class().into();
    if !class.starts_with("SVE") && !class.starts_with("SME") {
        return Memory::Opaque;
    }
    // The address is a vector, or has one in it.
    use InsnOperandKind as K;
    let gathers = i.kinds().any(|kind| {
        let name: &'static str = kind.into();
        matches!(kind, K::SVE_ADDR_ZX)
            || name.starts_with("SVE_ADDR_RZ")
            || name.starts_with("SVE_ADDR_Z")
    });
    Memory::Unknown(if gathers {
        Undecoded::Gather
    } else {
        Undecoded::Vector
    })
}

/// One register, integer or vector.
fn single(i: &Instruction) -> Memory {
    let is_plain = i.bits(29, 27) == 0b111;
    // LDAPUR and STLUR; tags of memory have the same bits.
    let is_ordered = i.bits(29, 24) == 0b01_1001;
    if has_tags(i) || !is_plain && !is_ordered {
        return Memory::Opaque;
    }
    if i.mnemonic().starts_with("prf") {
        return Memory::None;
    }
    let (size, opc, is_vector) = (i.bits(31, 30), i.bits(23, 22), i.bit(26));
    let scale = if is_vector {
        (opc >> 1) << 2 | size
    } else {
        size
    };
    if scale > 4 {
        return Memory::Opaque;
    }
    let is_load = if is_vector { opc & 1 == 1 } else { opc != 0 };
    let mut operand = Operand::plain(i, 1 << scale, read_or_write(is_load));
    if is_load && !is_vector {
        operand.loads[0] = i.d();
    }
    operand = match i.class() {
        InsnClass::LDST_POS => operand.at(i64::from(i.bits(21, 10)) << scale),
        InsnClass::LDST_REGOFF => Operand {
            offset: Offset::Register(
                i.m(),
                Extension {
                    option: i.bits(15, 13),
                    shift: if i.bit(12) { scale } else { 0 },
                },
            ),
            ..operand
        },
        InsnClass::LDST_IMM9 => {
            let by = i.signed(20, 12);
            Operand {
                moves: Some(Move::By(by)),
                ..operand.at(if i.bit(11) { by } else { 0 })
            }
        }
        _ => operand.at(i.signed(20, 12)),
    };
    Memory::Known(operand)
}

fn has_tags(i: &Instruction) -> bool {
    i.kinds().any(|kind| kind == InsnOperandKind::ADDR_SIMM13)
}

fn literal(i: &Instruction) -> Memory {
    let (opc, is_vector) = (i.bits(31, 30), i.bit(26));
    let bytes = match (is_vector, opc) {
        (false, 3) => return Memory::None,
        (true, 3) => return Memory::Opaque,
        (true, _) => 4 << opc,
        (false, 1) => 8,
        (false, _) => 4,
    };
    let mut operand = Operand::plain(i, bytes, Kind::Read);
    operand.base = Base::Absolute(i.address.wrapping_add_signed(4 * i.signed(23, 5)));
    if !is_vector {
        operand.loads[0] = i.d();
    }
    Memory::Known(operand)
}

fn pair(i: &Instruction) -> Option<Operand> {
    let (opc, is_vector, is_load) = (i.bits(31, 30), i.bit(26), i.bit(22));
    if i.bits(29, 27) != 0b101 || opc == 3 {
        return None;
    }
    let each = match (is_vector, opc) {
        (true, _) => 4 << opc,
        (false, 0) => 4,
        (false, 2) => 8,
        // Loads of 32 bits with their sign; stores would be of memory tags.
        (false, _) if is_load => 4,
        (false, _) => return None,
    };
    let by = i.signed(21, 15) * each as i64;
    let mut operand = Operand::plain(i, 2 * each, read_or_write(is_load));
    if is_load && !is_vector {
        operand.loads = [i.d(), i.a()];
    }
    Some(match i.bits(24, 23) {
        0b01 => Operand {
            moves: Some(Move::By(by)),
            ..operand
        },
        0b11 => Operand {
            moves: Some(Move::By(by)),
            ..operand.at(by)
        },
        _ => operand.at(by),
    })
}

fn exclusive(i: &Instruction) -> Option<Operand> {
    let size = i.bits(31, 30);
    match i.bits(29, 24) {
        0b00_1000 => {}
        // LDAPR
        0b11_1000 => {
            return Some(Operand::plain(i, 1 << size, Kind::Read).loading([i.d(), None]));
        }
        _ => return None,
    }
    let (is_ordered, is_load, is_pair) = (i.bit(23), i.bit(22), i.bit(21));
    let bytes = if is_pair { 2 << size } else { 1 << size };
    let operand = Operand::plain(i, bytes, read_or_write(is_load));
    Some(operand.loading(match (is_load, is_ordered) {
        (true, _) if is_pair => [i.d(), i.a()],
        (true, _) => [i.d(), None],
        // Whether an exclusive store was made stands in a register.
        (false, false) => [i.m(), None],
        (false, true) => [None; 2],
    }))
}

fn atomic(i: &Instruction) -> Option<Operand> {
    let size = i.bits(31, 30);
    let of = |bytes: u64| Operand::plain(i, bytes, Kind::Write);
    match i.bits(29, 24) {
        // CASP and CAS: what memory held comes back in the registers it is compared with.
        0b00_1000 if !i.bit(23) => {
            let first = i.bits(20, 16) as Number;
            let second = (first + 1 < 31).then_some(first + 1);
            Some(of(8 << (size & 1)).loading([i.m(), second]))
        }
        0b00_1000 => Some(of(1 << size).loading([i.m(), None])),
        0b11_1000 if !i.mnemonic().contains("64b") => Some(of(1 << size).loading([i.d(), None])),
        _ => None,
    }
}

/// The base of a vector's structures moves by their length or by a register.
fn moved(i: &Instruction, operand: Operand) -> Operand {
    let moves = match i.m() {
        None => Move::By(operand.bytes as i64),
        Some(number) => Move::Register(number),
    };
    let is_moving = matches!(i.class(), InsnClass::ASISDLSEP | InsnClass::ASISDLSOP);
    Operand {
        moves: is_moving.then_some(moves),
        ..operand
    }
}

fn structures(i: &Instruction) -> Option<Operand> {
    let registers = match i.bits(15, 12) {
        0b0000 | 0b0010 => 4,
        0b0100 | 0b0110 => 3,
        0b0111 => 1,
        0b1000 | 0b1010 => 2,
        _ => return None,
    };
    let each = if i.bit(30) { 16 } else { 8 };
    let operand = Operand::plain(i, registers * each, read_or_write(i.bit(22)));
    Some(moved(i, operand))
}

fn one_structure(i: &Instruction) -> Option<Operand> {
    let elements = u64::from(i.bits(13, 13) << 1 | i.bits(21, 21)) + 1;
    let element = match i.bits(15, 14) {
        0 => 1,
        1 => 2,
        2 if i.bit(10) => 8,
        2 => 4,
        // To every lane.
        _ => 1 << i.bits(11, 10),
    };
    let operand = Operand::plain(i, elements * element, read_or_write(i.bit(22)));
    Some(moved(i, operand))
}
