//! Removal of keys that were not touched for long.

use std::collections::HashSet;

use crate::overlay::CREATED;
use crate::{LastTouches, Store, StoreError};

/// Keys that are removed at once, unless the options say another number.
const BATCH: usize = 4096;

/// Which keys [`Store::expire`] removes, and in which steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpireOptions {
    /// Keys that were last touched before this epoch.
    pub before: u16,
    /// Keys that are removed, and made durable, at once: at least 1. 4,096 unless set.
    pub batch: usize,
}

impl ExpireOptions {
    /// Expires keys that were last touched before epoch `before`.
    pub fn before(before: u16) -> Self {
        Self { before, batch: BATCH }
    }

    /// Removes so many keys at once; 0 is taken for 1.
    #[must_use]
    pub fn with_batch(self, batch: usize) -> Self {
        Self { batch: batch.max(1), ..self }
    }
}

/// The keys of a table that [`Store::expire`] would remove.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpiredKeys {
    /// The keys, an `i64` by its bits, in the order of their rows.
    pub keys: Vec<u64>,
    /// Keys that the table has, with those that updates created.
    pub present: u64,
    /// Keys among them that stay because the record does not have them, or because updates created them and no compaction has brought
    /// them into the table yet.
    pub unknown: u64,
    /// Keys that stay because their rows were updated, and no compaction has brought that into the table yet.
    pub updated: u64,
}

/// What [`Store::expire`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpireReport {
    /// Keys that the table had, with those that updates created.
    pub present: u64,
    /// Keys that were removed.
    pub removed: u64,
    /// As of [`ExpiredKeys::unknown`].
    pub unknown: u64,
    /// As of [`ExpiredKeys::updated`].
    pub updated: u64,
}

impl Store {
    /// Removes the keys of a table that were last touched before an epoch, in batches, each as [`remove`](Self::remove) does. When it
    /// returns, that is durable. After a crash or an error some batches are removed; the call may be made again.
    ///
    /// A key stays that `touches` does not have, or whose row was created or updated since the table was loaded or compacted. What was
    /// touched after `touches` was recorded counts for nothing: record it just before.
    ///
    /// # Errors
    /// As of [`expired_keys`](Self::expired_keys) and [`remove`](Self::remove).
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    /// # let (keys, rows) = (&[1u64 << 40, 7, 99][..], &[1u8, 2, 3][..]);
    /// # let index = KeyIndex::build(keys, &Default::default(), &mut |_| ControlFlow::Continue(()))?;
    /// # let keyed = TableKeys::new(index.into(), &keys, RowOrder::Given, true)?;
    /// # let spec = TableSpec::new("sparse", 3, 1, DType::U8).keyed(&keyed);
    /// # let load = TableLoad::new(&spec, &rows).with_keys(&keyed);
    /// # store.load("k", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// // The table has the keys 2^40, 7 and 99. Executors record touches by themselves.
    /// let mut touches = LastTouches::default();
    /// touches.touch("sparse", [(7, 3), (99, 5)]);
    /// let report = store.expire("sparse", &touches, &ExpireOptions::before(4))?;
    /// assert_eq!((report.present, report.removed, report.unknown), (3, 1, 1));
    /// assert_eq!(store.removed("sparse")?, [7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expire(
        &self,
        table: &str,
        touches: &LastTouches,
        options: &ExpireOptions,
    ) -> Result<ExpireReport, StoreError> {
        let ExpiredKeys { keys, present, unknown, updated } = self.expired_keys(table, touches, options.before)?;
        let mut report = ExpireReport { present, removed: 0, unknown, updated };
        for batch in keys.chunks(options.batch.max(1)) {
            report.removed += self.remove(table, batch)?;
        }
        Ok(report)
    }

    /// The keys of a table that were last touched before epoch `before`, as far as `touches` has them: what
    /// [`expire`](Self::expire) would remove now. It reads the table's keys, 8 bytes a row.
    ///
    /// # Errors
    /// [`StoreError::NotRemovable`] of a table without keys, [`StoreError::NotUpdatable`] of one whose keys are not stored,
    /// [`StoreError::NoTouches`] if `touches` does not have the table, [`StoreError::NoKeyLeft`] if all of its keys are expired, and
    /// errors of reading.
    pub fn expired_keys(&self, table: &str, touches: &LastTouches, before: u16) -> Result<ExpiredKeys, StoreError> {
        let (located, overlay) = self.shared.updates.with_overlay(&self.shared.volume, self.locate(table)?);
        let table = || located.table().name.clone();
        if located.table().keys.is_none() {
            return Err(StoreError::NotRemovable { table: table() });
        }
        if !touches.tables().any(|known| known == located.table().name) {
            let known = touches.tables().map(str::to_owned).collect();
            return Err(StoreError::NoTouches { table: table(), known });
        }
        self.shared.watch()?;
        let stored = self.shared.volume.read_keys(&located.generation, located.index)?;
        let stored = stored.ok_or_else(|| StoreError::NotUpdatable { table: table() })?;
        let mut created = 0;
        let (mut removed, mut updated) = (HashSet::new(), HashSet::new());
        if let Some(snapshot) = overlay?.snapshot() {
            let order = self.shared.volume.read_ranks(&located.generation, located.index)?;
            let rank_of = |position: u64| order.as_ref().map_or(Some(position), |order| order.get(position));
            let index = located.index as u32;
            created = snapshot.rows(index | CREATED).count() as u64;
            removed = snapshot.removed(index).filter_map(rank_of).collect();
            updated = snapshot.rows(index).filter_map(|(position, _)| rank_of(position)).collect();
        }
        let mut expired = ExpiredKeys { present: created, unknown: created, ..ExpiredKeys::default() };
        for (rank, &key) in (0u64..).zip(&stored).filter(|(rank, _)| !removed.contains(rank)) {
            expired.present += 1;
            match touches.last(&located.table().name, key) {
                None => expired.unknown += 1,
                Some(last) if last >= before => {}
                Some(_) if updated.contains(&rank) => expired.updated += 1,
                Some(_) => expired.keys.push(key),
            }
        }
        match expired.keys.len() as u64 == expired.present {
            true => Err(StoreError::NoKeyLeft { table: table() }),
            false => Ok(expired),
        }
    }
}
