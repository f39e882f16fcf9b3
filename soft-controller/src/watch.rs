//! When I/O commands came and ended, for those who measure what is around a drive.

use std::time::Duration;

/// What a controller saw of I/O commands since it was told to [watch](crate::SoftController::watch). Times are by its clock, which began
/// with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// When it first found a doorbell that told of commands.
    pub first_doorbell: Option<Duration>,
    /// The end of the round in which it posted the latest completion.
    pub last_completion: Option<Duration>,
    /// Commands brought to their end.
    pub completions: u64,
}

impl Watched {
    pub(crate) fn merge(self, other: Self) -> Self {
        let both = |a: Option<Duration>, b: Option<Duration>, of: fn(Duration, Duration) -> Duration| match (a, b) {
            (Some(a), Some(b)) => Some(of(a, b)),
            (a, b) => a.or(b),
        };
        Self {
            first_doorbell: both(self.first_doorbell, other.first_doorbell, Ord::min),
            last_completion: both(self.last_completion, other.last_completion, Ord::max),
            completions: self.completions + other.completions,
        }
    }
}
