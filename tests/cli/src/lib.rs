//! Whole-command snapshots of `varve`: see `tests/`.
