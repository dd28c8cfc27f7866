//! x86-64.

mod code;
mod evaluate;
mod history;
mod operands;
mod probing;
mod registers;
mod sync;

pub use code::Code;
pub use probing::{Exits, exits, probe_place, targets};
pub use registers::{Registers, Vectors};
pub use sync::boundary_before;
