//! Where pages lie while a fault handler has moved them: in the other half of the address space, at the same place there.

/// Addresses from here on are not the program's (x86-64, four levels of page tables).
pub const TOP: u64 = 1 << 47;
/// Where the upper half begins.
pub const MIDDLE: u64 = TOP / 2;

/// Where a page lies while it is moved. No other page lies there: programs map memory anywhere, as engines of JavaScript do, which choose the address of
/// their heap by chance.
pub const fn shadow_of(address: u64) -> u64 {
    address ^ MIDDLE
}

/// The address to which a page in the shadow belongs.
pub const fn home_of(shadow: u64) -> u64 {
    shadow ^ MIDDLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_has_a_place_of_its_own_and_comes_back_from_there() {
        for tebibyte in 0..TOP >> 40 {
            for address in [tebibyte << 40, (tebibyte << 40) + 0x5_6789_a000] {
                let shadow = shadow_of(address);
                assert!(shadow < TOP && (shadow < MIDDLE) != (address < MIDDLE));
                assert_eq!(home_of(shadow), address);
            }
        }
    }
}
