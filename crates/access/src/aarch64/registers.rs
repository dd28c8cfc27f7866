//! The registers of a thread, of which some may be unknown.

/// The general registers of a thread in AArch64 state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registers {
    /// X0 to X30.
    pub general: [Option<u64>; 31],
    /// The stack pointer.
    pub sp: Option<u64>,
    /// N, Z, C and V in bits 31 to 28, as in PSTATE; other bits do not matter.
    pub flags: Option<u64>,
}

/// A general register: 0 to 30, or [`SP`].
pub(crate) type Number = usize;
/// The stack pointer's number.
pub(crate) const SP: Number = 31;

impl Registers {
    pub(crate) fn get(&self, number: Number) -> Option<u64> {
        match number {
            SP => self.sp,
            _ => self.general[number],
        }
    }

    pub(crate) fn set(&mut self, number: Number, value: Option<u64>) {
        match number {
            SP => self.sp = value,
            _ => self.general[number] = value,
        }
    }
}
