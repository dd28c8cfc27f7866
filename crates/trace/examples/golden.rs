//! Writes `tests/golden/v1`: one small trace, ended and killed, and the rows that it must be read to.
//!
//! `cargo run --release -p varve-trace --example golden -- tests/golden/v1`. The rows are fixed, so that
//! `tests/trace/golden.rs` can check that the files are what this writes. From the first release on, once the format has another version,
//! the files of this one stay as they are and this writes those of the next.

#[path = "../tests/trace/common/mod.rs"]
mod common;
#[path = "../tests/trace/common/golden_rows.rs"]
mod golden_rows;

use std::path::Path;

fn main() {
    match std::env::args_os().nth(1) {
        Some(folder) => golden_rows::write(Path::new(&folder)),
        None => eprintln!("usage: golden FOLDER"),
    }
}
