//! The shadow of the heap: what lives where, one byte for each [`GRANULE`] bytes.
//!
//! The preload library writes it as blocks begin and end, and the recorder reads it to see how full the heap's pages are.
//!
//! The byte of a block's first granule says that it lives, and by how much it is larger than what was asked for ([`of_excess`]). A block that has
//! more than one granule to itself has further bytes in the next ones ([`Fields`]): the number of its granules, what was
//! asked for where that is too far from it for a byte, and [`TAIL`] in the last one, so that each cache line with a part of
//! a small block has a byte that says so. Two blocks of 8 bytes share a byte, half each ([`halves`]).

/// Bytes of the heap to each byte.
pub const GRANULE: u64 = 16;
/// Bytes of the heap to each piece of the shadow.
pub const SPAN: u64 = 1 << 30;
/// Bytes of a cache line.
pub const LINE: u64 = 64;
/// Granules of a span.
pub const SPAN_GRANULES: usize = (SPAN / GRANULE) as usize;
/// Cache lines of a span.
pub const SPAN_LINES: usize = (SPAN / LINE) as usize;
/// Bytes of a piece: granules, then for each cache line the number of the thread that allocated in it last.
pub const PIECE_BYTES: u64 = (SPAN_GRANULES + SPAN_LINES) as u64;

/// No block has begun there.
pub const NEVER: u8 = 0;
/// The first granule of a block without further bytes.
const FIRST_ALONE: u8 = 1;
/// The first granule of a block with further bytes.
const FIRST: u8 = FIRST_ALONE + MAX_EXCESS_ALONE as u8 + 1;
/// The same; what was asked for is in the further bytes.
pub const LARGE: u8 = FIRST + MAX_EXCESS as u8 + 1;
/// A last granule.
pub const TAIL: u8 = LARGE + 1;
/// Something was there that was freed.
pub const FREED: u8 = TAIL + 1;
/// A block began there that was freed by another thread than had allocated it.
pub const FREED_ELSEWHERE: u8 = FREED + 1;
/// Halves from here on.
const HALVES: u8 = FREED_ELSEWHERE + 1;

/// A block without further bytes is smaller than two granules.
const MAX_EXCESS_ALONE: usize = 2 * GRANULE as usize - 1;
/// As much as a block is larger than what was asked for, unless it is [`LARGE`].
pub const MAX_EXCESS: usize = 95;

/// Two blocks of 8 bytes.
pub mod halves {
    use super::{FREED, FREED_ELSEWHERE, HALVES, NEVER};

    /// Values of a half.
    const DIGITS: u8 = 11;
    /// No block has begun there.
    pub const NONE: u8 = 0;
    /// One was freed.
    pub const GONE: u8 = DIGITS - 1;

    /// What a half says of a block of which so much was asked for, up to 8 bytes.
    #[inline]
    #[must_use]
    pub const fn of(requested: usize) -> u8 {
        if requested > 8 {
            9
        } else {
            requested as u8 + 1
        }
    }

    /// What was asked for.
    #[inline]
    #[must_use]
    pub const fn requested(half: u8) -> Option<usize> {
        match half {
            1..=9 => Some(half as usize - 1),
            _ => None,
        }
    }

    /// Both halves of a byte, that of the lower address first.
    #[inline]
    #[must_use]
    pub const fn split(byte: u8) -> [u8; 2] {
        match byte {
            NEVER => [NONE, NONE],
            FREED | FREED_ELSEWHERE => [GONE, GONE],
            // Of a block that nobody saw freed.
            _ if byte < HALVES => [GONE, GONE],
            _ => [(byte - HALVES) % DIGITS, (byte - HALVES) / DIGITS],
        }
    }

    /// How many blocks of 8 bytes live in a granule.
    #[inline]
    #[must_use]
    pub const fn live(byte: u8) -> u32 {
        if byte < HALVES {
            return 0;
        }
        let [low, high] = split(byte);
        requested(low).is_some() as u32 + requested(high).is_some() as u32
    }

    /// The byte of two halves.
    #[inline]
    #[must_use]
    pub const fn join(halves: [u8; 2]) -> u8 {
        HALVES + halves[1] * DIGITS + halves[0]
    }
}

/// Whether a part of a block that lives is there.
#[inline]
#[must_use]
pub const fn is_live(byte: u8) -> bool {
    match byte {
        NEVER | FREED | FREED_ELSEWHERE => false,
        _ if byte < HALVES => true,
        _ => halves::live(byte) > 0,
    }
}

/// Whether a block of more than 8 bytes that lives begins there, and whether it has no further bytes.
#[inline]
#[must_use]
pub const fn begins(byte: u8) -> Option<bool> {
    match byte {
        FIRST_ALONE..FIRST => Some(true),
        FIRST..=LARGE => Some(false),
        _ => None,
    }
}

/// The byte of a first granule; none where what was asked for needs further bytes.
#[inline]
#[must_use]
pub const fn of_excess(excess: usize, is_alone: bool) -> Option<u8> {
    match is_alone {
        true if excess <= MAX_EXCESS_ALONE => Some(FIRST_ALONE + excess as u8),
        false if excess <= MAX_EXCESS => Some(FIRST + excess as u8),
        _ => None,
    }
}

/// The reverse of it; none of what is no such byte.
#[inline]
#[must_use]
pub const fn excess_of(byte: u8) -> Option<usize> {
    match byte {
        FIRST_ALONE..FIRST => Some((byte - FIRST_ALONE) as usize),
        FIRST..LARGE => Some((byte - FIRST) as usize),
        _ => None,
    }
}

/// Where the further bytes of a block are, counted from its first granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// Granules that it has, the last one perhaps in part.
    pub granules: usize,
    /// Granules that are its own.
    own: usize,
    is_large: bool,
}

impl Fields {
    /// Of a block at this address of so many usable bytes.
    #[inline]
    #[must_use]
    pub const fn of(address: u64, usable: usize, is_large: bool) -> Fields {
        Fields {
            granules: usable.div_ceil(GRANULE as usize),
            own: ((address % GRANULE) as usize + usable) / GRANULE as usize,
            is_large,
        }
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub const fn is_alone(self) -> bool {
        self.own < 2
    }

    /// Bytes of the number of granules: one, or four more where that is 0.
    #[inline]
    #[must_use]
    pub const fn count_bytes(self) -> usize {
        if self.granules > u8::MAX as usize {
            5
        } else {
            1
        }
    }

    /// Bytes of what was asked for.
    #[inline]
    #[must_use]
    pub const fn requested_bytes(self) -> usize {
        match (self.is_large, self.count_bytes()) {
            (false, _) => 0,
            (true, 1) => 2,
            (true, _) => 6,
        }
    }

    /// The last granule, where nothing else is in it.
    #[inline]
    #[must_use]
    pub const fn tail(self) -> Option<usize> {
        let fields = self.count_bytes() + self.requested_bytes();
        if self.own > fields + 1 {
            Some(self.own - 1)
        } else {
            None
        }
    }
}

/// The granules of the block that begins at a granule, which is read with the [`MAX_FIELDS`] behind it; none where none begins there. A block too
/// small to say how many it has counts as `alone`.
#[must_use]
pub fn granules_at(bytes: &[u8], alone: u64) -> Option<u64> {
    let first = *bytes.first()?;
    if !is_live(first) || first == TAIL {
        return None;
    }
    if first < FIRST {
        return Some(alone);
    }
    if first >= HALVES {
        return Some(1);
    }
    Some(match *bytes.get(1)? {
        0 => {
            let count = bytes.get(2..6)?.try_into().ok()?;
            u64::from(u32::from_ne_bytes(count)).max(1)
        }
        count => u64::from(count),
    })
}

/// Further bytes at most.
pub const MAX_FIELDS: usize = 11;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_a_byte_can_say_is_told_apart() {
        let mut seen = std::collections::HashSet::new();
        let states = [NEVER, LARGE, TAIL, FREED, FREED_ELSEWHERE];
        assert!(states.iter().all(|byte| seen.insert(*byte)));
        for is_alone in [true, false] {
            for excess in 0..200 {
                if let Some(byte) = of_excess(excess, is_alone) {
                    assert!(seen.insert(byte), "{excess}");
                    assert_eq!(excess_of(byte), Some(excess));
                    assert_eq!(begins(byte), Some(is_alone));
                    assert!(is_live(byte));
                }
            }
        }
        for low in 0..=halves::GONE {
            for high in 0..=halves::GONE {
                let byte = halves::join([low, high]);
                assert!(seen.insert(byte), "{low} {high}");
                assert_eq!(halves::split(byte), [low, high]);
                assert_eq!(excess_of(byte), None);
                assert_eq!(begins(byte), None);
                let lives = (1..=9).contains(&low) || (1..=9).contains(&high);
                assert_eq!(is_live(byte), lives);
            }
        }
        assert_eq!(begins(LARGE), Some(false));
        assert!(
            [NEVER, TAIL, FREED, FREED_ELSEWHERE]
                .iter()
                .all(|byte| begins(*byte).is_none())
        );
        assert!(!is_live(NEVER) && !is_live(FREED) && !is_live(FREED_ELSEWHERE));
    }

    #[test]
    fn further_bytes_have_room() {
        for offset in [0, 8] {
            for usable in 9..10_000 {
                for is_large in [false, true] {
                    let fields = Fields::of(4096 + offset, usable, is_large);
                    if is_large && usable <= MAX_EXCESS || !is_large && fields.is_alone() {
                        continue;
                    }
                    let used = 1 + fields.count_bytes() + fields.requested_bytes();
                    assert!(used <= fields.own, "{usable} {is_large}");
                    assert!(used <= 1 + MAX_FIELDS);
                    assert!(
                        fields
                            .tail()
                            .is_none_or(|tail| tail >= used && tail < fields.own)
                    );
                }
            }
        }
    }
}
