//! A part of the page.

use crate::report::chart::Chart;

/// A part of the page.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// The section's title.
    pub title: String,
    /// What was measured, against whom.
    pub about: String,
    /// What was not the real thing.
    pub emulated: Vec<String>,
    /// The main figures, for the overview.
    pub headlines: Vec<String>,
    /// In order.
    pub charts: Vec<Chart>,
    /// What a reader should know besides.
    pub notes: Vec<String>,
    /// Why figures are not to be trusted, or are not there.
    pub warnings: Vec<String>,
    /// Rows or blocks that were compared.
    pub checked: u64,
}
