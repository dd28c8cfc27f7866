//! The fuzz target of what perf events leave behind, on a stable compiler and for a bounded time.

#[path = "../../../../fuzz/src/perf.rs"]
mod target;

use proptest::collection::vec;
use proptest::prelude::*;

/// Bytes of which most begin packets.
fn packet() -> impl Strategy<Value = u8> {
    let heads = vec![
        0x00u8, 0x01, 0x71, 0x42, 0x52, 0x43, 0x64, 0x49, 0xb0, 0xb2, 0x98, 0x20, 0x21,
    ];
    prop_oneof![proptest::sample::select(heads), any::<u8>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn records(form in any::<u32>(), bodies in vec((0u32..20, any::<u16>(), vec(prop_oneof![0u64..9, any::<u64>()], 0..20)), 0..8)) {
        let mut bytes = u64::from(form & 0x1ff_ffff).to_le_bytes().to_vec();
        for (kind, misc, words) in bodies {
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(misc.to_ne_bytes());
            bytes.extend((8 + 8 * words.len() as u16).to_ne_bytes());
            bytes.extend(words.iter().flat_map(|w| w.to_ne_bytes()));
        }
        target::run(&bytes);
    }

    #[test]
    fn packets(bytes in vec(packet(), 8..300)) {
        target::run(&bytes);
    }
}
