//! What tells a store, and a version of a table, from others of the same name: for files that outlive a process.

use crate::table_version::TableVersion;
use crate::view::StoreView;

/// What tells a version of a table from others of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableIdentity {
    /// The generation; 0: an attached table.
    pub generation: u64,
    /// Of an attached table, a checksum of its files' places, sizes and times; else 0.
    pub identity: u32,
}

impl StoreView {
    /// The identity that the store was formatted with; zeros: its tables are attached.
    pub fn identity(&self) -> [u8; 16] {
        let is_attached = self.drives().iter().flatten().any(|member| member.is_attached());
        if is_attached { [0; 16] } else { self.shared.volume.store().into_bytes() }
    }

    /// The identity of a version of a table; `None`: it is attached from what is no file.
    pub fn identity_of(&self, table: &TableVersion) -> Option<TableIdentity> {
        match self.drives().iter().flatten().find(|member| member.is_attached()) {
            None => Some(TableIdentity { generation: table.generation.id, identity: 0 }),
            Some(member) => {
                let place = member.list_place(&table.table().name)?;
                Some(TableIdentity { generation: 0, identity: place.identity })
            }
        }
    }
}
