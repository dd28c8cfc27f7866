//! The registers of a thread, of which some may be unknown.

use iced_x86::Register;

/// The vector registers, where a sample carries them: 64 bytes each, of which lower ones may be all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vectors {
    /// Bytes of each register, lowest first.
    pub bytes: Vec<[u8; 64]>,
}

/// The registers of a thread in 64-bit mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registers {
    /// ax cx dx bx sp bp si di r8 to r15.
    pub general: [Option<u64>; 16],
    /// The flags.
    pub flags: Option<u64>,
    /// Base of the segment FS.
    pub fs_base: Option<u64>,
    /// Base of the segment GS.
    pub gs_base: Option<u64>,
    /// The vector registers.
    pub vectors: Option<Vectors>,
}

/// The flags that conditions look at.
pub(crate) const CARRY: u64 = 1;
pub(crate) const PARITY: u64 = 1 << 2;
pub(crate) const ZERO: u64 = 1 << 6;
pub(crate) const SIGN: u64 = 1 << 7;
pub(crate) const DIRECTION: u64 = 1 << 10;
pub(crate) const OVERFLOW: u64 = 1 << 11;

/// The position of a general register of any width; none for other registers.
pub(crate) fn number(register: Register) -> Option<usize> {
    if !register.is_gpr() {
        return None;
    }
    let full = register.full_register();
    (full as usize).checked_sub(Register::RAX as usize)
}

fn is_high_byte(register: Register) -> bool {
    matches!(
        register,
        Register::AH | Register::BH | Register::CH | Register::DH
    )
}

/// The lowest bytes of a value.
pub(crate) fn truncated(value: u64, bytes: usize) -> u64 {
    match bytes {
        0..8 => value & ((1 << (8 * bytes)) - 1),
        _ => value,
    }
}

/// A value of so many bytes as a signed one of 64 bits.
pub(crate) fn extended(value: u64, bytes: usize) -> u64 {
    let unused = 64 - 8 * bytes.clamp(1, 8) as u32;
    ((value << unused) as i64 >> unused) as u64
}

impl Registers {
    /// A register's value, its own width; segment registers give their bases.
    pub(crate) fn read(&self, register: Register) -> Option<u64> {
        match register {
            Register::FS => return self.fs_base,
            Register::GS => return self.gs_base,
            // Their bases are zero in 64-bit mode.
            _ if register.is_segment_register() => return Some(0),
            _ => {}
        }
        let value = self.general[number(register)?]?;
        Some(if is_high_byte(register) {
            value >> 8 & 0xff
        } else {
            truncated(value, register.size())
        })
    }

    /// Writes a register as the processor does: 32 bits clear the upper half, fewer leave the rest.
    pub(crate) fn write(&mut self, register: Register, value: Option<u64>) {
        let Some(number) = number(register) else {
            return;
        };
        let old = self.general[number];
        self.general[number] = merged(register, old, value);
    }
}

/// What a register holds after this value was written to a part of it.
pub(crate) fn merged(register: Register, old: Option<u64>, value: Option<u64>) -> Option<u64> {
    let value = value?;
    Some(match register.size() {
        8 => value,
        4 => truncated(value, 4),
        2 => old? & !0xffff | truncated(value, 2),
        _ if is_high_byte(register) => old? & !0xff00 | truncated(value, 1) << 8,
        _ => old? & !0xff | truncated(value, 1),
    })
}
