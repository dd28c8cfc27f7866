//! Encodings of Parquet pages that the Parquet crate does not make, and how touches are cut into rows for them.

pub(crate) mod chunk;
pub(crate) mod delta;
pub(crate) mod dictionary;
pub(crate) mod packing;
pub(crate) mod page_header;
