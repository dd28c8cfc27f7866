//! x86-64.

mod code;
mod evaluate;
mod history;
mod operands;
mod registers;
mod sync;

pub use code::Code;
pub use registers::{Registers, Vectors};
pub use sync::boundary_before;
