//! The keys whose rows a pass needs.

use std::path::Path;
use std::sync::Arc;

use warprow_traces::{FileError, Trace, TraceSpec};

/// The keys of a pass, in any order. One that comes twice counts once. A clone shares them, costs nothing, and is known to be equal at once.
///
/// ```
/// use warprow_passes::Keyset;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("day0.u64");
/// std::fs::write(&path, [7u64, 1 << 40].map(u64::to_le_bytes).concat())?;
/// let keyset = Keyset::read(&path.display().to_string().parse()?)?;
/// assert_eq!(keyset.keys(), [7, 1 << 40]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keyset {
    keys: Arc<Vec<u64>>,
    signed: bool,
}

impl Keyset {
    /// Ids, or keys of a table of `u64` keys.
    pub fn new(keys: Vec<u64>) -> Self {
        Self { keys: Arc::new(keys), signed: false }
    }

    /// Ids, or keys of a table of `i64` keys.
    pub fn signed(keys: Vec<i64>) -> Self {
        Self { keys: Arc::new(keys.into_iter().map(|key| key as u64).collect()), signed: true }
    }

    /// All keys of a file: a keyset file of HugeCTR, bare integers, or whatever else `spec` names. Nothing of a file that is
    /// damaged, or cut off within a key.
    pub fn read(spec: &TraceSpec) -> Result<Self, FileError> {
        let mut trace = Trace::open(spec)?;
        let mut keys = Vec::new();
        let mut block = warprow_traces::TraceBlock::default();
        while trace.next_block(&mut block)? {
            keys.extend_from_slice(block.keys());
        }
        let signed = trace.slots().iter().any(|slot| slot.signed);
        Ok(Self { keys: Arc::new(keys), signed })
    }

    /// As [`read`](Self::read), of a file whose name ends in the type of its keys: `.u32`, `.i64`, …
    pub fn read_path(path: &Path) -> Result<Self, FileError> {
        let text = path.display().to_string();
        let spec: TraceSpec = text.parse().map_err(|error: warprow_traces::TraceSpecError| {
            FileError::new(
                warprow_traces::FileErrorKind::Unclear,
                path,
                error.to_string(),
                "end its name in .u32 or .i64",
            )
        })?;
        Self::read(&spec)
    }

    /// How many keys, with those that come twice.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The keys; `i64` by their bits.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Whether keys with the upper bit are below zero, rather than very large.
    pub fn is_signed(&self) -> bool {
        self.signed
    }

    /// A key as a number.
    pub(crate) fn show(&self, key: u64) -> String {
        if self.signed { (key as i64).to_string() } else { key.to_string() }
    }
}
