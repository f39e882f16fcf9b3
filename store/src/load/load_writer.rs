//! What all writes of a load go through.

use std::ops::ControlFlow;

use warprow_layout::{Extent, Placement};

use super::journal::{ExtentId, Journal};
use super::report::LoadProgress;
use crate::bulk::{Bulk, Job, Purpose};
use crate::{Store, StoreError};

/// Writes extents of a load: each is filled, noted in the journal if there is one, and counted.
pub(super) struct LoadWriter<'w, 'p> {
    bulk: Bulk,
    journal: Option<&'w mut Journal>,
    meter: &'w mut LoadMeter<'p>,
}

impl<'w, 'p> LoadWriter<'w, 'p> {
    /// Writes to the drives of `store` what `placement` puts there.
    pub(super) fn new(
        store: &Store,
        placement: &Placement,
        journal: Option<&'w mut Journal>,
        meter: &'w mut LoadMeter<'p>,
    ) -> Result<Self, StoreError> {
        let unit = placement.stripe_bytes() as usize;
        let bulk = Bulk::new(Purpose::Load, &store.shared.members, unit, &store.shared.driving)?;
        Ok(Self { bulk, journal, meter })
    }

    /// Bytes that extents should have, at most.
    pub(super) fn extent_bytes(&self) -> usize {
        self.bulk.extent_bytes()
    }

    /// What was noted when an extent was written before; nothing without a journal.
    pub(super) fn noted_crc(&self, id: ExtentId) -> Option<u32> {
        self.journal.as_ref()?.crc(id)
    }

    /// What the load has done so far.
    pub(super) fn meter(&mut self) -> &mut LoadMeter<'p> {
        self.meter
    }

    /// Begins to write `extent`, which `fill` fills. The journal notes it by `id`; what has none is not resumed.
    pub(super) fn write(
        &mut self,
        id: Option<ExtentId>,
        extent: Extent,
        mut fill: impl FnMut(&Extent, &mut [u8]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let Self { bulk, journal, meter } = self;
        let mut fill = |extent: &Extent, content: &mut [u8]| {
            fill(extent, content)?;
            if let (Some(journal), Some(id)) = (journal.as_mut(), id) {
                journal.wrote(id, crc32c::crc32c(content))?;
            }
            meter.wrote(content.len())
        };
        bulk.submit(extent, &mut Job::Write(&mut fill))
    }

    /// Waits for all writes that were begun.
    pub(super) fn finish(&mut self) -> Result<(), StoreError> {
        self.bulk.finish(&mut Job::Write(&mut |_, _| Ok(())))
    }

    /// Reads `extents` back; they come in any order.
    pub(super) fn read(
        &mut self,
        extents: impl Iterator<Item = Extent>,
        mut take: impl FnMut(&Extent, &[u8], &mut LoadMeter<'p>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let Self { bulk, meter, .. } = self;
        bulk.run(extents, Job::Read(&mut |extent, content| take(extent, content, meter)))
    }
}

/// Counts what a load does, and tells whoever watches it.
pub(super) struct LoadMeter<'p> {
    tell: &'p mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    pub(super) at: LoadProgress,
    /// Bytes among those written that an earlier attempt had written.
    pub(super) resumed: u64,
}

impl<'p> LoadMeter<'p> {
    /// Tells `tell`, which may stop the load.
    pub(super) fn new(tell: &'p mut dyn FnMut(LoadProgress) -> ControlFlow<()>) -> Self {
        let at = LoadProgress { table: 0, gathered: 0, written: 0, total: 0, compared: 0 };
        Self { tell, at, resumed: 0 }
    }

    /// So many bytes were given to the drives.
    pub(super) fn wrote(&mut self, bytes: usize) -> Result<(), StoreError> {
        self.at.written += bytes as u64;
        self.told()
    }

    /// So many bytes that an earlier attempt had written were found intact.
    pub(super) fn found_intact(&mut self, bytes: usize) -> Result<(), StoreError> {
        self.resumed += bytes as u64;
        self.wrote(bytes)
    }

    /// So many bytes of rows were put in order.
    pub(super) fn gathered(&mut self, bytes: u64) -> Result<(), StoreError> {
        self.at.gathered += bytes;
        self.told()
    }

    /// So many bytes of sources were read for their checksums alone.
    pub(super) fn compared(&mut self, bytes: u64) -> Result<(), StoreError> {
        self.at.compared += bytes;
        self.told()
    }

    fn told(&mut self) -> Result<(), StoreError> {
        match (self.tell)(self.at) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(StoreError::Interrupted),
        }
    }
}
