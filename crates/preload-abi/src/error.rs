//! What can go wrong with a ring, seen from the recorder.

/// A ring that no longer makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The watched program wrote over its ring. What was read before stays valid, the rest is lost.
    #[error("the ring was overwritten by the watched program at byte {position}: {reason}")]
    Damaged {
        /// Bytes since the ring was made.
        position: u64,
        /// What does not fit.
        reason: &'static str,
    },
}
