//! The fuzz target of the ring reader, on a stable compiler and for a bounded time.

#[path = "../../../../fuzz/src/ring.rs"]
mod target;

use proptest::collection::vec;
use proptest::prelude::*;

/// Words that look like the first word of a record more often than chance would have it.
fn word() -> impl Strategy<Value = u64> {
    let head = (
        prop_oneof![Just(0x5au64), Just(0xa5), any::<u64>()],
        0..10u64,
        0..10u64,
        prop_oneof![
            (0..20u64).prop_map(|w| w * 8),
            any::<u32>().prop_map(u64::from)
        ],
    );
    prop_oneof![
        head.prop_map(|(state, kind, detail, bytes)| state << 56
            | detail << 40
            | kind << 32
            | bytes & 0xffff_ffff),
        (0..2u64),
        any::<u64>(),
    ]
}

/// A head near the beginning or the end of numbers, or anywhere.
fn position() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0..4096u64).prop_map(|w| w * 8),
        (1..4096u64).prop_map(|w| (w * 8).wrapping_neg()),
        any::<u64>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn rings_from_bytes(
        how in any::<u8>(),
        used in 0..2100u64,
        head in prop_oneof![3 => Just(None), 1 => position().prop_map(Some)],
        records in vec(word(), 0..600),
    ) {
        let mut bytes = vec![0u8; 4096 + (16 << 10)];
        let head = head.unwrap_or(used * 8);
        bytes[128..136].copy_from_slice(&head.to_ne_bytes());
        for (i, word) in records.iter().enumerate() {
            let at = 4096 + i * 8;
            bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes.insert(0, how);
        target::run(&bytes);
    }

    #[test]
    fn rings_from_noise(bytes in vec(any::<u8>(), 0..200)) {
        target::run(&bytes);
    }
}
