//! The fuzz target of the decoders, on a stable compiler and for a bounded time.

#[path = "../../../../fuzz/src/access.rs"]
mod target;

use proptest::collection::vec;
use proptest::prelude::*;

/// Words of AArch64, of which most are loads, stores and branches.
fn word() -> impl Strategy<Value = u32> {
    let of = |bits: u32, mask: u32| any::<u32>().prop_map(move |w| w & !mask | bits);
    prop_oneof![
        3 => of(0x0800_0000, 0x0a00_0000),
        1 => of(0x1400_0000, 0x1c00_0000),
        1 => of(0x1000_0000, 0x1c00_0000),
        1 => of(0x0a00_0000, 0x0e00_0000),
        1 => any::<u32>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn words_and_registers(registers in vec(any::<u64>(), 16), words in vec(word(), 1..60)) {
        let mut bytes: Vec<u8> = registers.iter().flat_map(|r| r.to_le_bytes()).collect();
        bytes.extend(words.iter().flat_map(|w| w.to_le_bytes()));
        target::run(&bytes);
    }

    #[test]
    fn bytes_and_registers(bytes in vec(any::<u8>(), 128..400)) {
        target::run(&bytes);
    }
}
