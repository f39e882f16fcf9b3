//! How look-ups run on a GPU.

use std::collections::BTreeMap;
use std::time::Duration;

use warprow_lookup::Merging;

/// How look-ups run on a GPU.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GpuOptions {
    /// Bytes of rows to keep in GPU memory: the hottest of all. Rows are padded to 16 B there and in DRAM, or to lines of 128 B if
    /// that costs at most a third more, and count as that.
    pub hbm_bytes: u64,
    /// Bytes of rows to keep in pinned DRAM: the next hottest.
    pub dram_bytes: u64,
    /// How many rows of tables, by name, to keep in GPU memory, cut in proportion where `hbm_bytes` hold fewer. Tables that are not named
    /// share what is left, in proportion to what their hints ask for.
    pub hbm_rows: BTreeMap<String, u64>,
    /// Queue pairs that a slot drives on every drive, each by a thread block of its own. Where one takes no more commands, until the
    /// next look-up that can start it anew, the others serve its rows.
    pub queue_sets: u32,
    /// Commands in flight on each of them, at most; rounded down to batches of 256, and at least one.
    pub depth: u32,
    /// Which rows on drives share a read command: usually those of one LBA, and no others. Others take landing memory for the longest command in each
    /// place, up to 16 MiB a queue.
    pub merging: Merging,
    /// Thread blocks that gather rows from DRAM; 0: as many as serve the bus best.
    pub gatherers: u32,
    /// Of plans without rows on drives, look-ups of up to so many ids read rows in DRAM where they lie; larger ones are
    /// deduplicated and put in the order of addresses first. `None`: what is never slower than a plain gather, on an H200. Where
    /// ids are uniform, a tenth of that is faster. Less than 8,192 are as many.
    pub direct_ids: Option<u64>,
    /// The longest wait for a read; `None`: as the store was opened.
    pub timeout: Option<Duration>,
    /// Ids of tables of sparse keys are compared with the keys stored beside the rows, which lie in GPU memory then, 8 B each. Without,
    /// one id in 2⁸, 2¹⁶ or 2³² that a table lacks gets the row of another, by the table's fingerprints.
    pub check_keys: bool,
    /// Rows are compared with the checksums stored beside them, of tables that have them: those for GPU memory and DRAM as they are
    /// read when the executor is attached, those on drives as they arrive, for which 4 B of GPU memory a row are taken. Without, only
    /// the drive says whether a row is what was written.
    pub check_rows: bool,
    /// Plans go over to other tables when [`GpuExecutor::adopt`](crate::GpuExecutor::adopt) says so, captured look-ups too. That costs look-ups of rows that all lie in
    /// memory about a microsecond, and GPU memory a description for each slot and ticket.
    pub following: bool,
    /// Bytes of GPU memory for rows that are updated while the executor is attached, or were before and are not yet compacted:
    /// [`Store::update`](warprow_store::Store::update) puts them there, with rows of keys that it creates, and captured look-ups see them too. Half of them are for rows, each with 80 to 100 bytes beside; the other
    /// half is for the copy without rows that were updated again, when the first is full. 0: the store takes no updates while the
    /// executor lives. It costs look-ups of rows that all lie in memory about two microseconds, and every look-up a load for each id once a
    /// row was updated, and another for each sparse id that was not compared and found once a key was created; and its plans take the kernels that know every type of elements.
    pub overlay_bytes: u64,
    /// A host thread rings all doorbells for the GPU, also those that the GPU could reach itself.
    pub host_doorbells: bool,
}

impl Default for GpuOptions {
    /// All rows on drives, one queue set a slot, 768 commands in flight, rows of one LBA in one command, the store's time-out.
    fn default() -> Self {
        Self {
            hbm_bytes: 0,
            dram_bytes: 0,
            hbm_rows: BTreeMap::new(),
            queue_sets: 1,
            depth: 768,
            merging: Merging::Separate,
            gatherers: 0,
            direct_ids: None,
            timeout: None,
            check_keys: false,
            check_rows: false,
            following: false,
            overlay_bytes: 0,
            host_doorbells: false,
        }
    }
}

impl GpuOptions {
    /// With so many bytes of rows in GPU memory.
    #[must_use]
    pub fn with_hbm_bytes(self, hbm_bytes: u64) -> Self {
        Self { hbm_bytes, ..self }
    }

    /// With so many bytes of rows in DRAM.
    #[must_use]
    pub fn with_dram_bytes(self, dram_bytes: u64) -> Self {
        Self { dram_bytes, ..self }
    }

    /// With so many rows of a table in GPU memory, if `hbm_bytes` hold them.
    #[must_use]
    pub fn with_hbm_rows(mut self, table: impl Into<String>, rows: u64) -> Self {
        self.hbm_rows.insert(table.into(), rows);
        self
    }

    /// With so many queue sets a slot.
    #[must_use]
    pub fn with_queue_sets(self, queue_sets: u32) -> Self {
        Self { queue_sets, ..self }
    }

    /// With rows sharing commands like that.
    #[must_use]
    pub fn with_merging(self, merging: Merging) -> Self {
        Self { merging, ..self }
    }

    /// With so many thread blocks that gather rows from DRAM.
    #[must_use]
    pub fn with_gatherers(self, gatherers: u32) -> Self {
        Self { gatherers, ..self }
    }

    /// With rows in DRAM read where they lie up to so many ids.
    #[must_use]
    pub fn with_direct_ids(self, ids: u64) -> Self {
        Self { direct_ids: Some(ids), ..self }
    }

    /// With that limit for a read.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// With sparse keys compared with the stored ones.
    #[must_use]
    pub fn with_checked_keys(self) -> Self {
        Self { check_keys: true, ..self }
    }

    /// With every row checked.
    #[must_use]
    pub fn with_checked_rows(self) -> Self {
        Self { check_rows: true, ..self }
    }

    /// With plans that other tables can be given to.
    #[must_use]
    pub fn with_following(self) -> Self {
        Self { following: true, ..self }
    }

    /// With so many bytes of GPU memory for rows that are updated.
    #[must_use]
    pub fn with_overlay_bytes(self, overlay_bytes: u64) -> Self {
        Self { overlay_bytes, ..self }
    }

    /// Whether what look-ups read may change between them.
    pub(crate) fn replaces(&self) -> bool {
        self.following || self.overlay_bytes > 0
    }

    /// With all doorbells rung by a host thread (queue placement B′), or not.
    #[must_use]
    pub fn with_host_doorbells(self, host_doorbells: bool) -> Self {
        Self { host_doorbells, ..self }
    }
}
