//! Tensors that attaching a file leaves out.

/// A tensor that is in a file of tables, and not in the store that the file is attached as.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedTensor {
    /// The tensor's name.
    pub name: String,
    /// Why it is left out.
    pub reason: String,
}
