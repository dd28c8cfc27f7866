//! What simple instructions compute.

use disarm64_defn::InsnClass;

use super::flags::{self, CARRY, are_kept, holds, sum};
use super::instruction::Instruction;
use super::memory::{Extension, Memory, Move};
use super::registers::{Number, Registers};

/// What an instruction leaves behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The register that it writes and the whole of what that holds then.
    pub(crate) register: Option<(Number, u64)>,
    /// The flags, where it sets them.
    pub(crate) flags: Option<u64>,
}

/// Reads registers while an instruction is evaluated.
pub(crate) struct Inputs<'a> {
    /// The value of a register; not asked for the zero register.
    pub(crate) read: &'a mut dyn FnMut(Number) -> Option<u64>,
    /// The flags before it.
    pub(crate) flags: Option<u64>,
}

impl Inputs<'_> {
    fn plain(&mut self, number: Option<Number>) -> Option<u64> {
        match number {
            None => Some(0),
            Some(number) => (self.read)(number),
        }
    }
}

/// A value of 64 bits, or the lower 32 of it.
fn cut(value: u64, is_wide: bool) -> u64 {
    if is_wide {
        value
    } else {
        u64::from(value as u32)
    }
}

/// Shifts as the field `shift` says: left, right, with the sign, around.
fn shifted(value: u64, how: u32, by: u32, is_wide: bool) -> u64 {
    let value = cut(value, is_wide);
    let result = match (how, is_wide) {
        (0, _) => value << by,
        (1, _) => value >> by,
        (2, true) => (value as i64 >> by) as u64,
        (2, false) => (value as i32 >> by) as u64,
        (_, true) => value.rotate_right(by),
        (_, false) => u64::from((value as u32).rotate_right(by)),
    };
    cut(result, is_wide)
}

/// The second operand of an instruction with a shifted register.
fn shifted_m(i: &Instruction, inputs: &mut Inputs<'_>) -> Option<u64> {
    let by = i.bits(15, 10);
    let is_wide = i.is_wide();
    if !is_wide && by > 31 {
        return None;
    }
    let value = inputs.plain(i.m())?;
    Some(shifted(value, i.bits(23, 22), by, is_wide))
}

/// The second operand of a sum or a difference, whichever its form.
pub(crate) fn summand(i: &Instruction, inputs: &mut Inputs<'_>) -> Option<u64> {
    match i.class() {
        InsnClass::ADDSUB_IMM if !i.mnemonic().ends_with('g') => {
            Some(u64::from(i.bits(21, 10)) << if i.bit(22) { 12 } else { 0 })
        }
        InsnClass::ADDSUB_SHIFT => shifted_m(i, inputs),
        InsnClass::ADDSUB_EXT => {
            let extension = Extension {
                option: i.bits(15, 13),
                shift: i.bits(12, 10),
            };
            Some(extension.of(inputs.plain(i.m())?))
        }
        _ => None,
    }
}

/// The register that a sum or a difference writes, and the one it starts from.
pub(crate) fn sides(i: &Instruction) -> (Option<Number>, Option<Number>) {
    if i.class() == InsnClass::ADDSUB_SHIFT {
        return (i.d(), i.n());
    }
    let sets_flags = i.bit(29);
    let d = if sets_flags { i.d() } else { Some(i.d_or_sp()) };
    (d, Some(i.n_or_sp()))
}

/// Evaluates an instruction; none where it is not one of those that are understood, or where an input is not known.
pub(crate) fn evaluate(i: &Instruction, inputs: &mut Inputs<'_>) -> Option<Outcome> {
    use InsnClass as C;
    let is_wide = i.is_wide();
    let wrote = |number: Option<Number>, value: u64| {
        Some(Outcome {
            register: number.map(|n| (n, cut(value, is_wide))),
            flags: None,
        })
    };
    match i.class() {
        C::ADDSUB_IMM | C::ADDSUB_SHIFT | C::ADDSUB_EXT => {
            let (d, n) = sides(i);
            let b = summand(i, inputs)?;
            let a = inputs.plain(n)?;
            let (value, flags) = if i.bit(30) {
                sum(a, !b, true, is_wide)
            } else {
                sum(a, b, false, is_wide)
            };
            let mut outcome = wrote(d, value)?;
            outcome.flags = i.bit(29).then_some(flags);
            Some(outcome)
        }
        C::LOG_IMM | C::LOG_SHIFT => {
            let b = if i.class() == C::LOG_IMM {
                mask(i.bit(22), i.bits(15, 10), i.bits(21, 16), is_wide)?.0
            } else {
                let b = shifted_m(i, inputs)?;
                if i.bit(21) { !b } else { b }
            };
            let a = inputs.plain(i.n())?;
            let opc = i.bits(30, 29);
            let value = match opc {
                0 | 3 => a & b,
                1 => a | b,
                _ => a ^ b,
            };
            let to_sp = i.class() == C::LOG_IMM && opc != 3;
            let d = if to_sp { Some(i.d_or_sp()) } else { i.d() };
            let mut outcome = wrote(d, value)?;
            outcome.flags = (opc == 3).then(|| flags::of_logic(cut(value, is_wide), is_wide));
            Some(outcome)
        }
        C::MOVEWIDE => {
            let at = 16 * i.bits(22, 21);
            let value = u64::from(i.bits(20, 5)) << at;
            match i.bits(30, 29) {
                0 => wrote(i.d(), !value),
                2 => wrote(i.d(), value),
                _ => {
                    let old = inputs.plain(i.d())?;
                    wrote(i.d(), old & !(0xffff << at) | value)
                }
            }
        }
        C::PCRELADDR => {
            let by = i.signed(23, 5) << 2 | i64::from(i.bits(30, 29));
            let value = if i.bit(31) {
                (i.address & !0xfff).wrapping_add_signed(by << 12)
            } else {
                i.address.wrapping_add_signed(by)
            };
            Some(Outcome {
                register: i.d().map(|d| (d, value)),
                flags: None,
            })
        }
        C::BITFIELD => {
            let (r, s) = (i.bits(21, 16), i.bits(15, 10));
            let (wanted, top) = mask(i.bit(22), s, r, is_wide)?;
            let source = inputs.plain(i.n())?;
            let turned = shifted(source, 3, r, is_wide);
            let value = match i.bits(30, 29) {
                0 => {
                    let sign = if source >> s & 1 == 1 { u64::MAX } else { 0 };
                    sign & !top | turned & wanted & top
                }
                1 => {
                    let old = inputs.plain(i.d())?;
                    let bottom = old & !wanted | turned & wanted;
                    old & !top | bottom & top
                }
                _ => turned & wanted & top,
            };
            wrote(i.d(), value)
        }
        C::EXTRACT => {
            let (high, low) = (inputs.plain(i.n())?, inputs.plain(i.m())?);
            let by = i.bits(15, 10);
            let both = if is_wide {
                u128::from(high) << 64 | u128::from(low)
            } else {
                u128::from(high as u32) << 32 | u128::from(low as u32)
            };
            wrote(i.d(), (both >> by) as u64)
        }
        C::DP_3SRC => {
            let value = product(i, inputs)?;
            wrote(i.d(), value)
        }
        C::DP_2SRC => {
            let (a, b) = (inputs.plain(i.n())?, inputs.plain(i.m())?);
            let value = of_two(i.bits(15, 10), cut(a, is_wide), cut(b, is_wide), is_wide)?;
            (!i.bit(29)).then(|| wrote(i.d(), value))?
        }
        C::DP_1SRC if i.bits(20, 16) == 0 => {
            let value = of_one(i.bits(15, 10), inputs.plain(i.n())?, is_wide)?;
            wrote(i.d(), value)
        }
        C::CONDSEL => {
            let value = if holds(i.bits(15, 12), inputs.flags?) {
                inputs.plain(i.n())?
            } else {
                let other = inputs.plain(i.m())?;
                match (i.bit(30), i.bit(10)) {
                    (false, false) => other,
                    (false, true) => other.wrapping_add(1),
                    (true, false) => !other,
                    (true, true) => other.wrapping_neg(),
                }
            };
            wrote(i.d(), value)
        }
        C::CONDCMP_IMM | C::CONDCMP_REG => {
            let flags = if holds(i.bits(15, 12), inputs.flags?) {
                let a = inputs.plain(i.n())?;
                let b = match i.class() {
                    C::CONDCMP_IMM => u64::from(i.bits(20, 16)),
                    _ => inputs.plain(i.m())?,
                };
                if i.bit(30) {
                    sum(a, !b, true, is_wide).1
                } else {
                    sum(a, b, false, is_wide).1
                }
            } else {
                u64::from(i.bits(3, 0)) << 28
            };
            Some(Outcome {
                register: None,
                flags: Some(flags),
            })
        }
        C::ADDSUB_CARRY => {
            let carry = inputs.flags? & CARRY != 0;
            let (a, b) = (inputs.plain(i.n())?, inputs.plain(i.m())?);
            let b = if i.bit(30) { !b } else { b };
            let (value, flags) = sum(a, b, carry, is_wide);
            let mut outcome = wrote(i.d(), value)?;
            outcome.flags = i.bit(29).then_some(flags);
            Some(outcome)
        }
        _ => None,
    }
}

fn product(i: &Instruction, inputs: &mut Inputs<'_>) -> Option<u64> {
    let (n, m) = (inputs.plain(i.n())?, inputs.plain(i.m())?);
    let (signed_n, signed_m) = (i128::from(n as i64), i128::from(m as i64));
    let factor = match i.bits(23, 21) {
        0 => n.wrapping_mul(m),
        1 => i64::from(n as i32).wrapping_mul(i64::from(m as i32)) as u64,
        2 => return Some((signed_n.wrapping_mul(signed_m) >> 64) as u64),
        5 => u64::from(n as u32).wrapping_mul(u64::from(m as u32)),
        6 => return Some((u128::from(n).wrapping_mul(u128::from(m)) >> 64) as u64),
        _ => return None,
    };
    let a = inputs.plain(i.a())?;
    Some(if i.bit(15) {
        a.wrapping_sub(factor)
    } else {
        a.wrapping_add(factor)
    })
}

fn of_two(opcode: u32, a: u64, b: u64, is_wide: bool) -> Option<u64> {
    let by = (b % if is_wide { 64 } else { 32 }) as u32;
    Some(match opcode {
        // A division by zero gives zero.
        2 => a.checked_div(b).unwrap_or(0),
        3 if b == 0 => 0,
        3 if is_wide => (a as i64).wrapping_div(b as i64) as u64,
        3 => (a as i32).wrapping_div(b as i32) as u64,
        8..=11 => shifted(a, opcode - 8, by, is_wide),
        _ => return None,
    })
}

fn of_one(opcode: u32, value: u64, is_wide: bool) -> Option<u64> {
    let halves = |v: u64| v.rotate_left(32);
    Some(match (opcode, is_wide) {
        (0, true) => value.reverse_bits(),
        (0, false) => u64::from((value as u32).reverse_bits()),
        (1, _) => value >> 8 & 0x00ff_00ff_00ff_00ff | (value & 0x00ff_00ff_00ff_00ff) << 8,
        (2, false) => u64::from((value as u32).swap_bytes()),
        (2, true) => halves(value.swap_bytes()),
        (3, true) => value.swap_bytes(),
        (4, true) => u64::from(value.leading_zeros()),
        (4, false) => u64::from((value as u32).leading_zeros()),
        _ => return None,
    })
}

/// The two masks of an immediate or a bit field (`DecodeBitMasks`).
fn mask(n: bool, s: u32, r: u32, is_wide: bool) -> Option<(u64, u64)> {
    if !is_wide && n {
        return None;
    }
    let length = 31u32.checked_sub((u32::from(n) << 6 | !s & 0x3f).leading_zeros())?;
    let size = 1u32 << length;
    let (s, r) = (s & (size - 1), r & (size - 1));
    let ones = |count: u32| u64::MAX >> (64 - count);
    let element = ones(s + 1);
    let field = ones((s.wrapping_sub(r) & (size - 1)) + 1);
    let whole = ones(size);
    let turned = if r == 0 {
        element
    } else {
        (element >> r | element << (size - r)) & whole
    };
    let repeated =
        |pattern: u64| (0..64 / size).fold(0, |all, copy| all | pattern << (copy * size));
    Some((
        cut(repeated(turned), is_wide),
        cut(repeated(field), is_wide),
    ))
}

/// Runs an instruction on registers: what cannot be computed is unknown afterwards.
pub(crate) fn step(i: &Instruction, registers: &mut Registers) {
    let before = registers.clone();
    let mut inputs = Inputs {
        read: &mut |number| before.get(number),
        flags: before.flags,
    };
    let outcome = evaluate(i, &mut inputs);
    let Some(writes) = i.writes() else {
        *registers = Registers {
            general: [None; 31],
            sp: None,
            flags: None,
        };
        return;
    };
    for number in writes.each() {
        let value = outcome
            .and_then(|o| o.register)
            .filter(|(n, _)| *n == number);
        registers.set(number, value.map(|(_, value)| value));
    }
    if let Memory::Known(operand) = Memory::of(i)
        && !operand.loads.contains(&Some(i.n_or_sp()))
    {
        let base = i.n_or_sp();
        let by = match operand.moves {
            Some(Move::By(by)) => Some(by as u64),
            Some(Move::Register(number)) => before.get(number),
            None => Some(0),
        };
        let moved = before.get(base).zip(by).map(|(a, b)| a.wrapping_add(b));
        registers.set(base, moved);
    }
    if !are_kept(i) {
        registers.flags = outcome.and_then(|o| o.flags);
    }
}
