//! AArch64.
//!
//! `disarm64` says what an instruction is: its tables are made from those of GNU binutils and so know every extension,
//! SVE and SME too, which is what makes it certain that an instruction that is not accounted for here does not go
//! unseen. It is plain Rust without unsafe code. (`yaxpeax-arm` has no SVE; `bad64` and `capstone` are C.)
//! What an instruction does comes from the Arm Architecture Reference Manual (DDI 0487), section C4.1 for the fields.

mod code;
mod evaluate;
mod flags;
mod history;
mod instruction;
mod memory;
mod registers;

pub use code::Code;
pub use registers::Registers;
