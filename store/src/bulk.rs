//! Large transfers of whole extents, as many in flight on every drive as keep it busy: loading, and reading back.

use std::sync::Arc;

use warprow_dma::Mapped;
use warprow_driver::QueuePair;
use warprow_driver::prp::Data;
use warprow_layout::{Extent, VolumeError};

use crate::StoreError;
use crate::member::{Driving, Member};

/// Bytes of an extent, at best: large enough to run at a drive's bandwidth.
const EXTENT: usize = 512 << 10;
/// Extents in flight on a drive.
const DEPTH: usize = 8;

/// Fills a buffer with the content of an extent.
type Fill<'a> = dyn FnMut(&Extent, &mut [u8]) -> Result<(), StoreError> + 'a;
/// Takes the content of an extent.
type Take<'a> = dyn FnMut(&Extent, &[u8]) -> Result<(), StoreError> + 'a;

/// What is done with extents.
pub(crate) enum Job<'a> {
    /// Write what the function fills in.
    Write(&'a mut Fill<'a>),
    /// Read for the function; extents come in any order.
    Read(&'a mut Take<'a>),
}

/// Queue pairs and buffers on every drive, for one transfer. After a failure it is good only for being dropped: that deletes
/// its queues, and if a drive does not comply, its buffers stay allocated.
pub(crate) struct Bulk {
    /// By member index.
    lanes: Vec<Option<Lane>>,
    extent_bytes: usize,
    /// An extent's content where ordinary code can reach it.
    plain: Vec<u8>,
}

struct Lane {
    pair: QueuePair,
    member: Arc<Member>,
    buffer: Arc<Mapped>,
    /// Bytes of one command at most: whole LBAs.
    command_bytes: usize,
    slots: Vec<Slot>,
}

/// Part of a lane's buffer.
#[derive(Clone, Default)]
struct Slot {
    /// What is being transferred.
    extent: Option<Extent>,
    /// Commands of it that have not ended.
    pending: usize,
}

impl Bulk {
    /// Takes a queue pair on every member. No extent will be longer than `least` or [`extent_bytes`](Self::extent_bytes).
    pub(crate) fn new(members: &[Option<Arc<Member>>], least: usize, driving: &Driving) -> Result<Self, StoreError> {
        let limits = members.iter().flatten().map(|member| member.transfer_limit() as usize);
        let extent_bytes = limits.fold(EXTENT, usize::min).max(least);
        let lane = |member: &Arc<Member>| {
            let lba = member.namespace().lba_bytes() as usize;
            let command_bytes = (member.transfer_limit() as usize / lba * lba).max(lba);
            let commands = extent_bytes.div_ceil(command_bytes) * DEPTH;
            let mut pair = member.queue_pair(commands as u32, driving.timeout)?;
            let buffer = member.controller().allocate(extent_bytes * DEPTH)?;
            pair.keep(buffer.clone());
            Ok(Lane { pair, member: member.clone(), buffer, command_bytes, slots: vec![Slot::default(); DEPTH] })
        };
        let lanes = members.iter().map(|member| member.as_ref().map(lane).transpose());
        Ok(Self { lanes: lanes.collect::<Result<_, StoreError>>()?, extent_bytes, plain: vec![0; extent_bytes] })
    }

    /// Bytes that extents should have, at most.
    pub(crate) fn extent_bytes(&self) -> usize {
        self.extent_bytes
    }

    /// Transfers `extents`; returns when all have ended, or at the first failure.
    pub(crate) fn run(&mut self, extents: impl Iterator<Item = Extent>, mut job: Job<'_>) -> Result<(), StoreError> {
        for extent in extents {
            self.submit(extent, &mut job)?;
        }
        self.finish(&mut job)
    }

    /// Begins one transfer. Others of the same kind may end meanwhile.
    pub(crate) fn submit(&mut self, extent: Extent, job: &mut Job<'_>) -> Result<(), StoreError> {
        let lane = self.lanes.get_mut(usize::from(extent.drive)).and_then(Option::as_mut);
        let lane = lane.ok_or(VolumeError::NoSuchMember { index: extent.drive })?;
        let slot = loop {
            match lane.slots.iter().position(|slot| slot.extent.is_none()) {
                Some(slot) => break slot,
                None => lane.wait(job, &mut self.plain)?,
            }
        };
        let plain = self.plain.get_mut(..extent.bytes).ok_or(VolumeError::Length {
            what: "an extent",
            expected: self.extent_bytes as u64,
            given: extent.bytes as u64,
        })?;
        if let Job::Write(fill) = job {
            fill(&extent, plain)?;
            lane.buffer.memory().write(slot * self.extent_bytes, plain);
        }
        lane.push(extent, slot, slot * self.extent_bytes, matches!(job, Job::Write(_)))
    }

    /// Waits for everything that was begun.
    pub(crate) fn finish(&mut self, job: &mut Job<'_>) -> Result<(), StoreError> {
        for lane in self.lanes.iter_mut().flatten() {
            while lane.slots.iter().any(|slot| slot.extent.is_some()) {
                lane.wait(job, &mut self.plain)?;
            }
        }
        Ok(())
    }
}

impl Lane {
    fn push(&mut self, extent: Extent, slot: usize, place: usize, write: bool) -> Result<(), StoreError> {
        let ns = self.member.namespace();
        let lba_bytes = ns.lba_bytes() as usize;
        let mut pending = 0;
        for begin in (0..extent.bytes).step_by(self.command_bytes) {
            let bytes = self.command_bytes.min(extent.bytes - begin);
            let data = Data::Contiguous { iova: self.buffer.iova() + (place + begin) as u64, len: bytes as u64 };
            let (lba, blocks) = (extent.lba + (begin / lba_bytes) as u64, (bytes / lba_bytes) as u32);
            let pushed = match write {
                true => self.pair.write(ns, lba, blocks, data, false, slot as u64),
                false => self.pair.read(ns, lba, blocks, data, slot as u64),
            };
            pushed.map_err(|refusal| self.pair.refused(refusal))?;
            pending += 1;
        }
        self.pair.ring()?;
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Slot { extent: Some(extent), pending };
        }
        Ok(())
    }

    /// Waits until a command ends, and finishes the extents that are complete.
    fn wait(&mut self, job: &mut Job<'_>, plain: &mut [u8]) -> Result<(), StoreError> {
        let place = plain.len();
        let (slots, mut failed) = (&mut self.slots, None);
        self.pair.wait(|completion| {
            if let Some(slot) = slots.get_mut(completion.tag as usize) {
                slot.pending = slot.pending.saturating_sub(1);
            }
            if !completion.is_success() {
                failed.get_or_insert(completion);
            }
        })?;
        if let Some(error) = failed.and_then(|completion| self.pair.error(&completion)) {
            return Err(error.into());
        }
        for (index, slot) in self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.pending == 0) {
            let Some(extent) = slot.extent.take() else { continue };
            if let (Job::Read(take), Some(plain)) = (&mut *job, plain.get_mut(..extent.bytes)) {
                self.buffer.memory().read(index * place, plain);
                take(&extent, plain)?;
            }
        }
        Ok(())
    }
}
