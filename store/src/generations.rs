//! Generations of a store: which there are, which are found by name, and going over from one to another.

use std::sync::Arc;

use warprow_layout::VolumeError;

use crate::dram_list::{DRAM_LISTS, is_lists, refuse_name};
use crate::{Store, StoreError};

/// A generation, as a store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GenerationInfo {
    /// The generation's id, which is never given twice in a store.
    pub id: u64,
    /// The name of the model.
    pub model: String,
    /// The names of the generation's tables.
    pub tables: Vec<String>,
    /// The tables that look-ups find by name: none of a generation on standby.
    pub found: Vec<String>,
    /// The epoch in which the generation was last switched to; 0: it is on standby.
    pub shown: u64,
    /// Bytes of its chunks.
    pub bytes: u64,
    /// How many hosts, scans and other readers in this process hold the generation; there may be more.
    pub readers: usize,
}

impl Store {
    /// All generations of models, oldest first: but for the one that has the lists of rows in DRAM ([`Store::rerank`]).
    pub fn generations(&self) -> Vec<GenerationInfo> {
        let generations = self.shared.volume.generations();
        let located = crate::table_version::latest_tables(generations.clone());
        // Of each: the catalogue's, this list's, and one for each table that is found.
        let own = |id: u64| 2 + located.iter().filter(|version| version.generation.id == id).count();
        generations
            .iter()
            .filter(|generation| !is_lists(generation))
            .map(|generation| GenerationInfo {
                id: generation.id,
                model: generation.name.clone(),
                tables: generation.tables.iter().map(|table| table.name.clone()).collect(),
                found: {
                    let found = located.iter().filter(|located| located.generation.id == generation.id);
                    found.map(|located| located.table().name.clone()).collect()
                },
                shown: generation.shown,
                bytes: generation.placement.lbas().saturating_mul(u64::from(generation.placement.lba_size())),
                // Who began before a switch holds it as it was then.
                readers: Arc::strong_count(generation).saturating_sub(own(generation.id))
                    + self.shared.volume.earlier_holders(generation.id),
            })
            .collect()
    }

    /// Makes names of tables mean the tables of generation `id`, and no longer those of other generations of its model,
    /// which are on standby until they are dropped, or switched back to. Atomic and durable. Tables that would be found
    /// no more are an error that names them, unless `allow_vanishing`.
    ///
    /// Hosts go on with what they read; see `HostExecutor::prepare`.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// // The next version of the model, loaded beside the one that is looked up.
    /// let newer = vec![9u8; rows.len()];
    /// let source = &newer[..];
    /// let load = TableLoad::new(&spec, &source);
    /// store.load("m", &[load], &LoadOptions::default().with_standby(), &mut |_| ControlFlow::Continue(()))?;
    /// let [before, beside] = &store.generations()[..] else { panic!() };
    /// assert!(before.found == ["user"] && beside.found.is_empty());
    /// store.switch(beside.id, false)?;
    /// store.drop_generation(before.id)?;
    /// assert_eq!(store.table("user").ok_or("gone")?.generation, beside.id);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn switch(&self, id: u64, allow_vanishing: bool) -> Result<(), StoreError> {
        self.shared.watch()?;
        if self.has_lists(id) {
            refuse_name(DRAM_LISTS)?;
        }
        self.shared.volume.switch(id, allow_vanishing)?;
        Ok(())
    }

    /// Whether generation `id` has the lists of rows in DRAM.
    fn has_lists(&self, id: u64) -> bool {
        self.shared.volume.generation(id).is_some_and(|generation| is_lists(&generation))
    }

    fn refuse_lists(&self, id: u64) -> Result<(), StoreError> {
        if self.has_lists(id) { Err(StoreError::DropsLists { id }) } else { Ok(()) }
    }

    /// Drops a generation of which no table is found by name. Its chunks are given away when nobody in this process reads it
    /// any more.
    ///
    /// # Errors
    /// [`StoreError::Shown`]; [`StoreError::DropsLists`] for the generation that has the lists of [`Store::rerank`].
    pub fn drop_generation(&self, id: u64) -> Result<(), StoreError> {
        self.shared.watch()?;
        self.refuse_lists(id)?;
        self.shared.volume.drop_hidden(id).map_err(|error| match error {
            VolumeError::Shown { id, tables } => StoreError::Shown { id, tables },
            error => error.into(),
        })?;
        self.forget_updates(id);
        Ok(())
    }

    /// Drops a generation, also one whose tables are found by name. Their names mean those of the generation that was shown before
    /// it, if one has them; else they vanish.
    ///
    /// # Errors
    /// [`StoreError::DropsLists`] for the generation that has the lists of [`Store::rerank`].
    pub fn drop_shown_generation(&self, id: u64) -> Result<(), StoreError> {
        self.shared.watch()?;
        self.refuse_lists(id)?;
        self.shared.volume.drop_generation(id)?;
        self.forget_updates(id);
        Ok(())
    }
}
