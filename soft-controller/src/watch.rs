//! When I/O commands came and ended, for benchmarks that measure what a look-up costs besides its drives.

use std::time::Duration;

/// What a controller saw of I/O commands since it was told to [watch](crate::SoftController::watch). Times are by its clock, which began
/// with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandTimes {
    /// When it first found a doorbell that told of commands. Of commands that an [offload](crate::Offload) has answered: when the
    /// offload found it, if it takes that time; without, the beginning of the turn, which may lie before the doorbell.
    pub first_doorbell: Option<Duration>,
    /// The end of the round in which it posted the latest completion. Of commands that an offload has answered: when the offload had
    /// posted it, if it takes that time; without, the end of the turn.
    pub last_completion: Option<Duration>,
    /// Commands brought to their end.
    pub completions: u64,
}

impl CommandTimes {
    /// Adds commands of which the first doorbell was found, and the last completion posted, at these times.
    pub(crate) fn note(&mut self, first: Duration, last: Duration, completions: u64) {
        let these = Self { first_doorbell: Some(first), last_completion: Some(last), completions };
        *self = self.merge(these);
    }

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
