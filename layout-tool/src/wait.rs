//! Waiting until a drive that somebody else has is free: `--wait`.

use std::time::{Duration, Instant};

use warprow_soft_controller::{InUse, in_use};

use crate::commands::{Context, Done};
use crate::failure::Failure;

/// Seconds that are waited where none are given.
pub const SECONDS: &str = "60";
/// How often it is looked whether a drive is free.
const GLANCE: Duration = Duration::from_millis(50);
/// How often a command is tried again that found a drive in use of which nobody can see whether it still is.
const AGAIN: Duration = Duration::from_millis(500);

/// Who has a drive that a command needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Busy {
    /// Whoever has locked a file.
    File(InUse),
    /// The client of a server, or whoever has a function's group open; named by the drive.
    Elsewhere(String),
}

impl Busy {
    /// What is waited for, in words.
    fn describe(&self) -> String {
        match self {
            Self::File(found) => {
                let who = found.holder.as_ref().map_or_else(|| "another process".to_owned(), ToString::to_string);
                format!("{}, which {who} has in use", found.path.display())
            }
            Self::Elsewhere(drive) => format!("{drive}, which somebody else has in use"),
        }
    }

    /// Whether it may be free by now.
    fn may_be_free(&self, since: Instant) -> bool {
        match self {
            Self::File(InUse { path, .. }) => !matches!(in_use(path), Ok(Some(_))),
            Self::Elsewhere(_) => since.elapsed() >= AGAIN,
        }
    }
}

/// Runs a command; as long as it is refused for a drive in use, which changes nothing, waits until that is free and runs it again,
/// for at most `limit` altogether.
pub fn run(
    limit: Option<Duration>,
    context: &Context,
    command: impl Fn() -> Result<Done, Failure>,
) -> Result<Done, Failure> {
    let began = Instant::now();
    let mut told: Option<Box<Busy>> = None;
    loop {
        let failure = match (command(), limit) {
            (Err(failure), Some(_)) if failure.busy.is_some() => failure,
            (other, _) => return other,
        };
        let (Some(busy), Some(limit)) = (failure.busy.clone(), limit) else { return Err(failure) };
        let left = || limit.saturating_sub(began.elapsed());
        if told.as_ref() != Some(&busy) && !left().is_zero() {
            let seconds = left().as_secs_f64().ceil();
            context.screen.say(&format!("waiting for {}; for {seconds} s at most", busy.describe()));
            told = Some(busy.clone());
        }
        let refused = Instant::now();
        loop {
            context.interrupt.check()?;
            if left().is_zero() {
                let message = format!("{}; it was waited for {} s", failure.message, limit.as_secs());
                return Err(Failure { message, ..failure }.remedy("end that process, or wait longer: --wait=SECONDS"));
            }
            if busy.may_be_free(refused) {
                break;
            }
            std::thread::sleep(GLANCE.min(left()));
        }
    }
}
