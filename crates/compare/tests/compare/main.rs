//! Traces that differ in what is known, compared.
#![allow(clippy::unwrap_used)]

mod made;

mod budgets;
mod document;
mod figures;
mod matching;
mod random;
