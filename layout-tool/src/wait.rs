//! Waiting until a drive that somebody else has is free: `--wait`.

use std::time::{Duration, Instant};

use crate::busy::Busy;
use crate::commands::{CommandOutput, Context};
use crate::failure::Failure;

/// Seconds that are waited where none are given.
pub const SECONDS: &str = "60";
/// How often it is looked whether a drive is free.
const GLANCE: Duration = Duration::from_millis(50);

/// Runs a command; as long as it is refused for a drive in use, which changes nothing, waits until that is free and runs it again,
/// for at most `limit` altogether.
pub fn run(
    limit: Option<Duration>,
    context: &Context,
    command: impl Fn() -> Result<CommandOutput, Failure>,
) -> Result<CommandOutput, Failure> {
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
