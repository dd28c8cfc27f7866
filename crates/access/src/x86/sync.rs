//! Where instructions begin in code of which no function's beginning is known.

use std::collections::HashSet;

use iced_x86::{Decoder, DecoderOptions};

/// The longest instruction.
const MAX_LENGTH: usize = 15;
/// So many ways to begin must lead to the same place.
const WAYS: usize = 16;

/// The offset at which the chain of instructions begins that leads to the end of `bytes`, on which decoding from
/// nearly every early offset settles; none where they disagree.
///
/// x86 code synchronizes itself: two decodings that begin at different bytes soon run through the same
/// instructions. The ways that never reach the end, or hit invalid bytes, do not count.
pub fn boundary_before(bytes: &[u8]) -> Option<usize> {
    if bytes.len() < 4 * MAX_LENGTH {
        return None;
    }
    let mut common: Option<Vec<usize>> = None;
    let mut ways = 0;
    for start in 0..2 * MAX_LENGTH {
        let Some(chain) = chain(bytes, start) else {
            continue;
        };
        ways += 1;
        common = Some(match common {
            None => chain,
            Some(known) => {
                let seen: HashSet<usize> = chain.into_iter().collect();
                known.into_iter().filter(|at| seen.contains(at)).collect()
            }
        });
    }
    let common = common?;
    (ways >= WAYS).then(|| common.first().copied()).flatten()
}

/// Where the instructions begin that decode from `start` up to the very end.
fn chain(bytes: &[u8], start: usize) -> Option<Vec<usize>> {
    let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
    decoder.set_position(start).ok()?;
    let mut begins = Vec::new();
    while decoder.can_decode() {
        begins.push(decoder.position());
        if decoder.decode().is_invalid() {
            return None;
        }
    }
    Some(begins)
}
