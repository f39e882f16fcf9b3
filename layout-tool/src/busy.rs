//! Drives that somebody else has in use.

use std::time::{Duration, Instant};

use warprow_soft_controller::DriveInUse;

/// How often a command is tried again that found a drive in use of which nobody can see whether it still is.
const AGAIN: Duration = Duration::from_millis(500);

/// Who has a drive that a command needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Busy {
    /// Whoever has locked a file.
    File(DriveInUse),
    /// The client of a server, or whoever has a function's group open; named by the drive.
    Elsewhere(String),
}

impl Busy {
    /// What is waited for, in words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::File(found) => {
                let has = if found.holders.len() > 1 { "have" } else { "has" };
                format!("{}, which {} {has} in use", found.path.display(), found.who())
            }
            Self::Elsewhere(drive) => format!("{drive}, which somebody else has in use"),
        }
    }

    /// Whether it may be free by now.
    pub(crate) fn may_be_free(&self, since: Instant) -> bool {
        match self {
            Self::File(found) => !found.is_still(),
            Self::Elsewhere(_) => since.elapsed() >= AGAIN,
        }
    }
}
