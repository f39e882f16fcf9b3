//! Where the rows of a staged file come from.

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use warprow_store::Store;

/// The version of what a staged file says of itself.
const FORMAT: u32 = 1;

/// The state of a store from which rows were staged. It stands in the staged file, as JSON, in a tensor of bytes called as the table and
/// `.pass`: a tensor comes along wherever a trainer writes all that it read, which metadata do not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StagedOrigin {
    /// The version of this text.
    pub format: u32,
    /// The store's identity.
    pub store: Uuid,
    /// The table.
    pub table: String,
    /// The generation that had it.
    pub generation: u64,
    /// The store's last commit.
    pub epoch: u64,
    /// The generation's last update.
    pub sequence: u64,
}

impl StagedOrigin {
    pub(crate) fn now(store: &Store, table: &str, generation: u64, sequence: u64) -> Self {
        let inspection = store.inspect().0;
        let store = inspection.store;
        let epoch = inspection.epoch;
        Self { format: FORMAT, store, table: table.to_owned(), generation, epoch, sequence }
    }

    /// The origin as it stands in a file. The text's length does not depend on anything that is found out later.
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What a file says; an error in words about the file.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        match serde_json::from_slice::<Self>(bytes) {
            Ok(origin) if origin.format == FORMAT => Ok(origin),
            Ok(origin) => Err(format!("has a note of version {}, and {FORMAT} is known here", origin.format)),
            Err(error) => Err(format!("has a damaged note of where its rows come from: {error}")),
        }
    }

    /// Whether nothing was written to the store between the two.
    pub(crate) fn is_moment(&self, other: &Self) -> bool {
        self == other
    }
}
