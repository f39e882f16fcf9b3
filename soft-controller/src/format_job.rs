use std::time::Duration;

use warprow_spec::Sqe;

/// A format under way.
#[derive(Debug)]
pub(crate) struct FormatJob {
    pub(crate) started: Duration,
    pub(crate) due: Duration,
    /// Index of the LBA format.
    pub(crate) format: u8,
    /// Indices of the namespaces.
    pub(crate) namespaces: Vec<usize>,
    /// The command to complete; `None` once a reset has forgotten it.
    pub(crate) sqe: Option<Sqe>,
}
