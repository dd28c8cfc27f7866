//! The flags N, Z, C and V.

use disarm64_defn::InsnClass;

use super::instruction::Instruction;

pub(crate) const NEGATIVE: u64 = 1 << 31;
pub(crate) const ZERO: u64 = 1 << 30;
pub(crate) const CARRY: u64 = 1 << 29;
pub(crate) const OVERFLOW: u64 = 1 << 28;

/// Whether a condition holds, by its code (`ConditionHolds` in the manual).
pub(crate) fn holds(code: u32, flags: u64) -> bool {
    let is = |flag: u64| flags & flag != 0;
    let holds = match code >> 1 {
        0 => is(ZERO),
        1 => is(CARRY),
        2 => is(NEGATIVE),
        3 => is(OVERFLOW),
        4 => is(CARRY) && !is(ZERO),
        5 => is(NEGATIVE) == is(OVERFLOW),
        6 => is(NEGATIVE) == is(OVERFLOW) && !is(ZERO),
        // Always, whatever the lowest bit says.
        _ => return true,
    };
    holds != (code & 1 == 1)
}

/// The sum of two numbers and a carry, of 64 bits or of 32, and the flags that it sets (`AddWithCarry`).
pub(crate) fn sum(a: u64, b: u64, carry: bool, is_wide: bool) -> (u64, u64) {
    let unused = if is_wide { 0 } else { 32 };
    // At the upper end of the word, with the bits below filled so that a carry passes through them.
    let low = (1u64 << unused) - 1;
    let (a, b) = (a << unused, b << unused);
    let (half, first) = a.overflowing_add(b);
    let (whole, second) = half.overflowing_add(u64::from(carry) << unused);
    let result = (whole & !low) >> unused;
    let sign = |v: u64| v >> 63 == 1;
    let mut flags = 0;
    if sign(whole) {
        flags |= NEGATIVE;
    }
    if result == 0 {
        flags |= ZERO;
    }
    if first || second {
        flags |= CARRY;
    }
    if sign(a) == sign(b) && sign(whole) != sign(a) {
        flags |= OVERFLOW;
    }
    (result, flags)
}

/// N and Z of a result, the other two clear.
pub(crate) fn of_logic(result: u64, is_wide: bool) -> u64 {
    let sign = if is_wide { 63 } else { 31 };
    let mut flags = 0;
    if result >> sign & 1 == 1 {
        flags |= NEGATIVE;
    }
    if result == 0 {
        flags |= ZERO;
    }
    flags
}

/// Whether an instruction surely leaves the flags as they are.
pub(crate) fn are_kept(i: &Instruction) -> bool {
    use InsnClass as C;
    match i.class() {
        C::ADDSUB_CARRY | C::ADDSUB_EXT | C::ADDSUB_IMM | C::ADDSUB_SHIFT => !i.bit(29),
        C::LOG_IMM | C::LOG_SHIFT => i.bits(30, 29) != 3,
        C::DP_2SRC => !i.bit(29),
        C::IC_SYSTEM => matches!(
            i.mnemonic(),
            "hint" | "mrs" | "dmb" | "dsb" | "isb" | "clrex"
        ),
        C::BRANCH_IMM | C::CONDBRANCH | C::TESTBRANCH | C::COMPBRANCH => true,
        C::BITFIELD | C::EXTRACT | C::MOVEWIDE | C::PCRELADDR | C::CONDSEL | C::CSSC => true,
        C::DP_1SRC | C::DP_3SRC => true,
        C::LDST_POS | C::LDST_UNSCALED | C::LDST_UNPRIV | C::LDST_IMM9 | C::LDST_REGOFF => true,
        C::LOADLIT | C::LDSTPAIR_OFF | C::LDSTPAIR_INDEXED | C::LDSTNAPAIR_OFFS => true,
        C::LDSTEXCL | C::LSE_ATOMIC | C::LSE128_ATOMIC => true,
        C::ASISDLSE | C::ASISDLSEP | C::ASISDLSO | C::ASISDLSOP => true,
        C::FLOATDP1 | C::FLOATDP2 | C::FLOATDP3 | C::FLOATIMM | C::FLOATSEL => true,
        C::FLOAT2FIX | C::FLOAT2INT => i.mnemonic() != "fjcvtzs",
        other => {
            let name: &'static str = other.into();
            name.starts_with("ASIMD") || name.starts_with("ASISD") || name.starts_with("CRYPTO")
        }
    }
}
