//! Removal of keys.

use super::apply::Change;
use super::key_changes::KeyChanges;
use crate::table_version::TableVersion;
use crate::{Store, StoreError, UpdateOptions};

impl Store {
    /// Removes keys of a table, an `i64` by its bits, with their rows. When it returns, that is durable, and look-ups that
    /// begin later treat these keys as ones that the table never had; a look-up sees all of the removal or nothing of it.
    /// How many of the keys were there: a key that is not is passed over.
    ///
    /// [`compact`](Self::compact) gives back the room of the rows, and takes the keys out of the index. Until then a
    /// removed key takes memory of the overlay, without a row. An update that creates keys
    /// ([`UpdateOptions::with_created_keys`]) gives a removed key a row again.
    ///
    /// Refused, with nothing written: tables without keys ([`StoreError::NotRemovable`]), tables whose keys are not stored
    /// ([`StoreError::NotUpdatable`]), a removal that would leave no key ([`StoreError::NoKeyLeft`]), one after which the
    /// generation could not be compacted for want of free chunks ([`StoreError::NoRoomToCreate`]), and whatever
    /// [`update`](Self::update) is refused for.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    /// # let (keys, rows) = (&[1u64 << 40, 7, 99][..], &[1u8, 2, 3][..]);
    /// # let index = KeyIndex::build(keys, &Default::default(), &mut |_| ControlFlow::Continue(()))?;
    /// # let keyed = TableKeys::new(index.into(), &keys, RowOrder::Given, true)?;
    /// # let spec = TableSpec::new("sparse", 3, 1, DType::U8).keyed(&keyed);
    /// # let load = TableLoad::new(&spec, &rows).with_keys(&keyed);
    /// # store.load("k", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// // The table has the keys 2^40, 7 and 99.
    /// assert_eq!(store.remove("sparse", &[7, 8])?, 1);
    /// assert_eq!(store.removed("sparse")?, [7]);
    /// let generation = store.table("sparse").ok_or("gone")?.generation;
    /// store.compact(generation)?;
    /// assert_eq!(store.keys("sparse")?.ok_or("none")?, [1 << 40, 99]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(&self, table: &str, keys: &[u64]) -> Result<u64, StoreError> {
        self.remove_with(table, keys, &UpdateOptions::default())
    }

    /// As [`remove`](Self::remove), of another generation. What the options say of created keys counts for nothing here.
    pub fn remove_with(&self, table: &str, keys: &[u64], options: &UpdateOptions) -> Result<u64, StoreError> {
        let generation = self.locate_for(table, options)?.generation.id;
        // A compaction may give it another place, and another index.
        let remove = || self.change_located(&self.locate_for(table, options)?, keys, Change::Removal);
        Ok(self.with_room(generation, remove)?.count)
    }

    /// Keys of a table that were removed since it was loaded, or compacted: its [`keys`](Self::keys) still have them. Each
    /// key once, an `i64` by its bits, in the order of these. Keys that were created since and then removed are not
    /// among them.
    pub fn removed(&self, table: &str) -> Result<Vec<u64>, StoreError> {
        let (located, ranks) = self.removed_from(table)?;
        if ranks.is_empty() {
            return Ok(Vec::new());
        }
        let missing = || StoreError::NotUpdatable { table: table.to_owned() };
        let stored = self.shared.volume.read_keys(&located.generation, located.index)?.ok_or_else(missing)?;
        let key = |&rank: &u64| stored.get(usize::try_from(rank).ok()?).copied();
        let mut keys: Vec<u64> = ranks.iter().filter_map(key).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    /// The ranks of [`removed`](Self::removed) keys, ascending: [`scan`](Self::scan) still gives the rows that they had.
    pub fn removed_ranks(&self, table: &str) -> Result<Vec<u64>, StoreError> {
        Ok(self.removed_from(table)?.1)
    }

    /// Whether keys of a table were created or removed since it was loaded, or compacted.
    pub fn has_key_changes(&self, table: &str) -> Result<bool, StoreError> {
        let (located, overlay) = self.shared.updates.with_overlay(&self.shared.volume, self.locate(table)?);
        Ok(overlay?.snapshot().is_some_and(|snapshot| KeyChanges::of(&snapshot, located.index as u32).any()))
    }

    fn removed_from(&self, table: &str) -> Result<(TableVersion, Vec<u64>), StoreError> {
        let (located, overlay) = self.shared.updates.with_overlay(&self.shared.volume, self.locate(table)?);
        let mut ranks = Vec::new();
        if let Some(snapshot) = overlay?.snapshot() {
            let mut slots = snapshot.removed(located.index as u32).peekable();
            if slots.peek().is_some() {
                let order = self.shared.volume.read_ranks(&located.generation, located.index)?;
                ranks.extend(slots.filter_map(|slot| order.as_ref().map_or(Some(slot), |order| order.get(slot))));
                ranks.sort_unstable();
            }
        }
        Ok((located, ranks))
    }
}
