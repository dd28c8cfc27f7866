//! Where pages lie while a fault handler has moved them: another address, always the same distance away.

/// Addresses from here on are not the program's (x86-64, four levels of page tables).
pub const TOP: u64 = 1 << 47;
/// The program's memory lies above this address or far below: each goes the other way.
pub const MIDDLE: u64 = 1 << 46;
const DOWN: u64 = 1 << 45;
const UP: u64 = 1 << 44;

/// Where a page lies while it is moved.
pub fn shadow_of(address: u64) -> u64 {
    if address >= MIDDLE {
        address - DOWN
    } else {
        address + UP
    }
}

/// The address to which a page in the shadow belongs.
pub fn home_of(shadow: u64) -> u64 {
    // What went up lies between 16 and 32 TiB, where nothing that went down can lie.
    if (UP..DOWN).contains(&shadow) {
        shadow - UP
    } else {
        shadow + DOWN
    }
}
