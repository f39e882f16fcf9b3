//! How fast drives are read.

/// How fast to read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// So many bytes a second of all drives together, at most.
    BytesPerSecond(u64),
    /// So much of the time: above 0, 1 is as fast as can be. Each thread rests for the remainder.
    Share(f64),
}
