//! Where instructions begin in code of which no function's beginning is known.

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
    let mut lengths = Lengths::new(bytes);
    let mut seen = vec![0u8; bytes.len()];
    let mut ways = 0;
    for start in 0..2 * MAX_LENGTH {
        if !lengths.reaches_the_end(start) {
            continue;
        }
        ways += 1;
        let mut at = start;
        while let Some(count) = seen.get_mut(at) {
            *count += 1;
            at += lengths.at(at)?;
        }
    }
    let common = seen.iter().position(|count| usize::from(*count) == ways)?;
    (ways >= WAYS).then_some(common)
}

/// How long the instruction is that begins at each offset, each decoded once.
struct Lengths<'a> {
    decoder: Decoder<'a>,
    known: Vec<u8>,
}

/// Not decoded yet.
const UNKNOWN: u8 = 0;
/// No instruction.
const INVALID: u8 = u8::MAX;

impl<'a> Lengths<'a> {
    fn new(bytes: &'a [u8]) -> Lengths<'a> {
        Lengths {
            decoder: Decoder::new(64, bytes, DecoderOptions::NONE),
            known: vec![UNKNOWN; bytes.len()],
        }
    }

    fn at(&mut self, offset: usize) -> Option<usize> {
        let known = self.known.get_mut(offset)?;
        if *known == UNKNOWN {
            self.decoder.set_position(offset).ok()?;
            let instruction = self.decoder.decode();
            *known = match instruction.is_invalid() {
                true => INVALID,
                false => instruction.len() as u8,
            };
        }
        (*known != INVALID).then_some(usize::from(*known))
    }

    fn reaches_the_end(&mut self, start: usize) -> bool {
        let mut at = start;
        while at < self.known.len() {
            match self.at(at) {
                Some(length) => at += length,
                None => return false,
            }
        }
        true
    }
}
