//! A controller under test, and how a check of it ended.

use std::sync::Arc;

use warprow_dma::{Clock, Function};

/// A controller under test.
#[derive(Clone)]
pub struct Subject {
    /// The function that carries it.
    pub function: Arc<dyn Function>,
    /// The clock to drive it by.
    pub clock: Arc<dyn Clock>,
}

/// How a check ended without an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The controller does what it must.
    Passed,
    /// The controller does not offer what the check is about.
    Skipped(String),
}
