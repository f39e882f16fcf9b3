//! Lists of whole numbers beside tables, which may be their keys.

use crate::key_type::KeyType;
use crate::place::KeyPlace;
use crate::zip::ZipMember;

/// A list of whole numbers beside tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyArray {
    /// The name of the list.
    pub name: String,
    /// How many numbers the list has.
    pub rows: u64,
    /// The type of the numbers.
    pub keys: KeyType,
    pub(crate) place: KeyPlace,
    /// The stored member of an archive that it is, which has a checksum of it.
    pub(crate) stored: Option<ZipMember>,
}
