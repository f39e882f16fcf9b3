//! What a format would destroy.

use std::fmt;

use warprow_spec::NSID_ALL;

/// What a format would destroy: a namespace, or, with NSID FFFFFFFFh, those that cannot be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatLoss {
    /// Namespace identifier; FFFFFFFFh for all that other controllers of the drive may have.
    pub nsid: u32,
    /// The namespace's size in bytes; `None` where Identify does not tell.
    pub bytes: Option<u64>,
}

impl fmt::Display for FormatLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.nsid, self.bytes) {
            (NSID_ALL, _) => f.write_str("any namespace of the drive's other controllers"),
            (nsid, Some(bytes @ 1_000_000_000..)) => write!(f, "namespace {nsid} ({:.1} GB)", bytes as f64 / 1e9),
            (nsid, Some(bytes)) => write!(f, "namespace {nsid} ({:.1} MB)", bytes as f64 / 1e6),
            (nsid, None) => write!(f, "namespace {nsid} (size unknown)"),
        }
    }
}
