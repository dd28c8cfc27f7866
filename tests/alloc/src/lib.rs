//! Tests of `varve alloc`: see `tests/`.
