//! Reads the bytes of a journal of either version.

use uuid::Uuid;

use super::content::{Content, EXPORT, cut_off};
use super::seal::{self, MAGIC};
use super::unsealed;

/// What `bytes`, a whole file, say of `table` of `store`.
pub(super) fn read(bytes: &[u8], table: &str, store: Uuid) -> Result<Content, String> {
    let magic = bytes.get(..MAGIC.len()).unwrap_or(bytes);
    if !MAGIC.starts_with(magic) {
        return Err("it is no journal of passes".into());
    }
    let version = bytes.get(MAGIC.len()..).and_then(|rest| rest.first_chunk()).map(|&it| u32::from_le_bytes(it));
    let content = match version {
        None => Err(cut_off(bytes, seal::HEAD)),
        Some(seal::VERSION) => seal::read(bytes, table, store),
        Some(unsealed::VERSION) => unsealed::read(bytes, table),
        Some(other) => Err(format!("it is no journal of a version that is known here: its version is {other}")),
    }?;
    match content.last {
        u64::MAX => Err(format!("its number of the last pass is the last number that there is: {EXPORT}")),
        _ => Ok(content),
    }
}
