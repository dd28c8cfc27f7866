//! Which memory a thread waits for: the address that an instruction accesses, from its bytes and the
//! registers of the thread, exactly or not at all.
//!
//! A timer stops a thread *behind* the instruction that it waited for. So [`x86::Code::locate`] and
//! [`aarch64::Code::locate`] look one
//! instruction back first; registers that the instruction overwrote are recomputed from those that
//! are still intact, or read from a copy of the thread's stack. Where the address is gone, it is said to be: the next access is another one. Where no access
//! came before, it is the instruction itself that is about to access, or the next one that will.

pub mod aarch64;
mod memory;
pub mod x86;

pub use memory::{Copies, Memory, Unknown};
use varve_model::{Address, Bytes};

/// One access of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Its first byte.
    pub address: Address,
    /// How many bytes.
    pub bytes: Bytes,
    /// What is done to them.
    pub kind: Kind,
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It reads.
    Read,
    /// It writes, or reads and writes.
    Write,
}

/// Which instruction an access belongs to, seen from where the thread was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The one before: the thread had waited for it.
    Behind,
    /// The one at which it stood.
    At,
    /// One that comes after it.
    Ahead,
}

/// Where a thread accesses memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// By which instruction.
    pub place: Place,
    /// Its accesses: more than one for copies and gathers.
    pub accesses: Vec<Access>,
}

/// Why an access could not be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecoded {
    /// The bytes are no instruction.
    Invalid,
    /// An address depends on a register whose value is not known.
    Register,
    /// The thread waited for the instruction before, which has replaced the register that its address came from.
    Overwritten,
    /// The access depends on a mask, or on the processor's state, which no sample carries.
    Vector,
    /// Its addresses stand in a vector register, which no sample carries.
    Gather,
    /// The way to the next access depends on what is not known, or is too long.
    Path,
}

/// Which steps to take; all but for negative controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// Back, at, ahead.
    All,
    /// Without the look back.
    NotBehind,
    /// Back even where a branch may have led here instead.
    Blind,
    /// Memory is read even where instructions may have written to it since the load that it stands for.
    Forgetful,
}
