//! Student's distribution.

/// The 97.5 % quantile of Student's distribution.
pub(crate) fn student(freedom: usize) -> f64 {
    const TABLE: [f64; 15] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131,
    ];
    match freedom {
        0 => f64::INFINITY,
        n if n <= TABLE.len() => TABLE[n - 1],
        n if n < 30 => 2.09,
        _ => 1.98,
    }
}
