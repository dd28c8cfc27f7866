//! Sums of what was sampled, with their errors (Horvitz and Thompson's estimator).

use serde::Serialize;
use ts_rs::TS;
use varve_model::Bytes;

/// A number of bytes that was found by sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, TS)]
pub struct Estimate {
    /// Bytes.
    pub bytes: Bytes,
    /// With 95 % confidence they are no further off than this.
    pub error_bytes: Bytes,
    /// Blocks.
    pub blocks: u64,
    /// With 95 % confidence these are no further off than this.
    pub error_blocks: u64,
}

/// 95 % of a normal distribution lie within so many deviations.
pub(crate) const CONFIDENCE: f64 = 1.96;

/// What sampled blocks stand for together.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    pub(super) bytes: f64,
    variance: f64,
    blocks: f64,
    variance_blocks: f64,
}

impl Sum {
    /// Of blocks: their bytes, and how many each stands for.
    pub(super) fn of(blocks: impl Iterator<Item = (u64, f64)>) -> Sum {
        let mut sum = Sum::default();
        blocks.for_each(|(bytes, weight)| sum.add(bytes as f64, weight));
        sum
    }

    /// Adds bytes of a sampled block that stands for so many.
    pub(super) fn add(&mut self, bytes: f64, weight: f64) {
        let by_chance = 1.0 - 1.0 / weight;
        let stands_for = bytes * weight;
        self.bytes += stands_for;
        self.variance += by_chance * stands_for * stands_for;
        self.blocks += weight;
        self.variance_blocks += by_chance * weight * weight;
    }

    /// Adds what another sum has.
    pub(super) fn add_sum(&mut self, other: Sum) {
        self.bytes += other.bytes;
        self.variance += other.variance;
        self.blocks += other.blocks;
        self.variance_blocks += other.variance_blocks;
    }

    /// The part of a known number of bytes that is this sum's, of which it and all others are sums of parts (a ratio estimator: Cochran, Sampling
    /// Techniques, 6.2).
    pub(super) fn part_of(self, whole: Bytes, all: Sum) -> Estimate {
        let scale = whole.0 as f64 / all.bytes.max(1.0);
        let share = self.bytes / all.bytes.max(1.0);
        let others = (all.variance - self.variance).max(0.0);
        let variance = (1.0 - share).powi(2) * self.variance + share.powi(2) * others;
        Estimate {
            bytes: Bytes((share * whole.0 as f64) as u64),
            error_bytes: Bytes((CONFIDENCE * scale * variance.sqrt()) as u64),
            ..self.estimate()
        }
    }

    pub(super) fn estimate(self) -> Estimate {
        Estimate {
            bytes: Bytes(self.bytes as u64),
            error_bytes: Bytes((CONFIDENCE * self.variance.sqrt()) as u64),
            blocks: self.blocks as u64,
            error_blocks: (CONFIDENCE * self.variance_blocks.sqrt()) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_knows_its_error() {
        // Four samples of blocks of 10 bytes, each found with a chance of one in 100.
        let sum = Sum::of([(10, 100.0); 4].into_iter()).estimate();
        assert_eq!((sum.bytes, sum.blocks), (Bytes(4000), 400));
        let deviation = (4.0 * 0.99 * 100.0f64.powi(2)).sqrt();
        assert_eq!(sum.error_blocks, (1.96 * deviation) as u64);
        assert_eq!(sum.error_bytes, Bytes((1.96 * deviation * 10.0) as u64));
        // What is sampled for certain has none.
        let certain = Sum::of([(10, 1.0); 4].into_iter()).estimate();
        assert_eq!((certain.blocks, certain.error_blocks), (4, 0));
        assert_eq!(certain.error_bytes, Bytes(0));
    }
}
