use std::time::Duration;

use anyhow::{Result, ensure};
use warprow_dma::FunctionError;
use warprow_driver::ResetKind;

use crate::fixture::open;
use crate::subject::{Subject, Verdict};

/// Answers to admin commands are announced by MSI-X vector 0, also after a reset of the controller and of the function.
pub(crate) fn of_the_admin_queue(subject: &Subject) -> Result<Verdict> {
    let interrupt = match subject.function.interrupt() {
        Ok(interrupt) => interrupt,
        Err(error @ FunctionError::Unsupported { .. }) => return Ok(Verdict::Skipped(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let controller = open(subject)?;
    for reset in [None, Some(ResetKind::Controller), Some(ResetKind::Function)] {
        if let Some(kind) = reset {
            controller.reset(kind)?;
        }
        // What came before it is taken first.
        while interrupt.wait(Duration::from_millis(5)) {}
        controller.smart_log()?;
        ensure!(interrupt.wait(Duration::from_secs(2)), "no interrupt within 2 s (after a reset: {reset:?})");
        ensure!(!interrupt.wait(Duration::from_millis(20)), "interrupts without cause");
    }
    Ok(Verdict::Passed)
}
