//! Large transfers of whole extents, as many in flight on every drive as keep it busy: loading, and reading back.

use std::sync::Arc;

use warprow_dma::MappedMemory;
use warprow_driver::prp::Data;
use warprow_driver::{CommandEnd, DriverError};
use warprow_layout::{Drive, Extent, VolumeError};

use crate::StoreError;
use crate::attach_error::AttachError;
use crate::drive_access::{DriveAccess, SharedPair, lock};
use crate::member::MemberDrive;

/// Bytes of an extent, at best: large enough to run at a drive's bandwidth.
const EXTENT: usize = 512 << 10;
/// Extents in flight on a drive.
const DEPTH: usize = 8;

/// Fills a buffer with the content of an extent.
type Fill<'a> = dyn FnMut(&Extent, &mut [u8]) -> Result<(), StoreError> + 'a;
/// Takes the content of an extent.
type Take<'a> = dyn FnMut(&Extent, &[u8]) -> Result<(), StoreError> + 'a;

/// Is told of an extent that the drive answered with an error.
type Failed<'a> = dyn FnMut(&Extent, DriverError) -> Result<(), StoreError> + 'a;

/// What is done with extents.
pub(crate) enum Job<'a> {
    /// Write what the function fills in.
    Write(&'a mut Fill<'a>),
    /// Read for the function; extents come in any order.
    Read(&'a mut Take<'a>),
    /// Read for the first function, and go on where a drive answers with an error: the second function is told of that.
    Check(&'a mut Take<'a>, &'a mut Failed<'a>),
}

/// What a transfer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Reading, which can be repeated: each drive may be reset once meanwhile.
    Read,
    /// Loading: what was written before a reset may be lost.
    Load,
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
    pair: SharedPair,
    member: Arc<MemberDrive>,
    purpose: Purpose,
    /// Whether it was reset.
    was_reset: bool,
    /// For each slot so many bytes.
    buffer: Arc<MappedMemory>,
    slot_bytes: usize,
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
    /// What the drive answered to the first that failed, where that is no end of it all.
    failed: Option<DriverError>,
}

impl Bulk {
    /// Takes a queue pair on every member. No extent will be longer than `least` or [`extent_bytes`](Self::extent_bytes).
    pub(crate) fn new(
        purpose: Purpose,
        members: &[Option<Arc<MemberDrive>>],
        least: usize,
        driving: &DriveAccess,
    ) -> Result<Self, StoreError> {
        let limits = members.iter().flatten().map(|member| member.transfer_limit() as usize);
        let extent_bytes = limits.fold(EXTENT, usize::min).max(least);
        let lane = |member: &Arc<MemberDrive>| {
            let lba = member.namespace().lba_bytes() as usize;
            let command_bytes = (member.transfer_limit() as usize / lba * lba).max(lba);
            let commands = extent_bytes.div_ceil(command_bytes) * DEPTH;
            let pair = member.shared_pair(commands as u32, driving.timeout)?;
            let buffer = member.controller().allocate(extent_bytes * DEPTH)?;
            lock(&pair).keep(buffer.clone());
            Ok(Lane {
                pair,
                member: member.clone(),
                purpose,
                was_reset: false,
                buffer,
                slot_bytes: extent_bytes,
                command_bytes,
                slots: vec![Slot::default(); DEPTH],
            })
        };
        let lanes = members.iter().map(|member| member.as_ref().map(lane).transpose());
        let lanes = lanes.collect::<Result<_, StoreError>>()?;
        Ok(Self { lanes, extent_bytes, plain: vec![0; extent_bytes] })
    }

    /// Bytes that extents should have, at most.
    pub(crate) fn extent_bytes(&self) -> usize {
        self.extent_bytes
    }

    /// Transfers `extents`; returns when all have ended, or at the first failure.
    pub(crate) fn run(&mut self, extents: impl Iterator<Item = Extent>, mut job: Job<'_>) -> Result<(), StoreError> {
        let mut extents = extents;
        let done = extents.try_for_each(|extent| self.submit(extent, &mut job)).and_then(|()| self.finish(&mut job));
        done.map_err(|error| self.explained(error))
    }

    /// A drive's failure, or that a file of attached tables has changed, where that is why.
    fn explained(&self, error: StoreError) -> StoreError {
        let mut changed = self.lanes.iter().flatten().filter_map(|lane| lane.member.changed_file());
        match (&error, changed.next()) {
            (StoreError::Driver(_) | StoreError::Drive(_), Some(changed)) => AttachError::from(changed.clone()).into(),
            _ => error,
        }
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
        lane.begin(extent, slot, matches!(job, Job::Write(_)))
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
    /// Begins the transfer of `extent` by slot number `slot`.
    fn begin(&mut self, extent: Extent, slot: usize, write: bool) -> Result<(), StoreError> {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.extent = Some(extent);
        }
        let pushed = self.push(slot, write);
        self.mend(pushed)
    }

    fn push(&mut self, index: usize, write: bool) -> Result<(), DriverError> {
        let Some(slot) = self.slots.get_mut(index) else { return Ok(()) };
        let Some(extent) = &slot.extent else { return Ok(()) };
        let mut pair = lock(&self.pair);
        let ns = self.member.namespace();
        let lba_bytes = ns.lba_bytes() as usize;
        let place = index * self.slot_bytes;
        (slot.pending, slot.failed) = (0, None);
        for begin in (0..extent.bytes).step_by(self.command_bytes) {
            let bytes = self.command_bytes.min(extent.bytes - begin);
            let data = Data::Contiguous { iova: self.buffer.iova() + (place + begin) as u64, len: bytes as u64 };
            let lba = extent.lba + (begin / lba_bytes) as u64;
            let blocks = (bytes / lba_bytes) as u32;
            let pushed = match write {
                true => pair.write(ns, lba, blocks, data, false, index as u64),
                false => pair.read(ns, lba, blocks, data, index as u64),
            };
            pushed.map_err(|refusal| pair.refused(refusal))?;
            slot.pending += 1;
        }
        pair.ring()
    }

    /// After a reset of the controller, brings the queue back and begins anew whatever was being read.
    fn mend(&mut self, result: Result<(), DriverError>) -> Result<(), StoreError> {
        let drive = || self.member.name().to_owned();
        match (result, self.purpose) {
            (Err(DriverError::Stale { .. }), Purpose::Load) => return Err(StoreError::LoadReset { drive: drive() }),
            (Err(DriverError::Stale { .. }), Purpose::Read) if self.was_reset => {
                return Err(StoreError::ReadReset { drive: drive() });
            }
            (Err(DriverError::Stale { .. }), Purpose::Read) => self.was_reset = true,
            (other, _) => return Ok(other?),
        }
        self.member.revive(None, || lock(&self.pair).recreate(|_| {}))?;
        self.member.watch::<StoreError>(self.member.controller().clock().now())?;
        let pushed = (0..self.slots.len()).try_for_each(|slot| self.push(slot, false));
        self.mend(pushed)
    }

    /// Waits until a command ends, and finishes the extents that are complete.
    fn wait(&mut self, job: &mut Job<'_>, plain: &mut [u8]) -> Result<(), StoreError> {
        let slots = &mut self.slots;
        let mut failed = None;
        let mut succeeded = false;
        let tolerant = matches!(job, Job::Check(..));
        let mut refused = Vec::new();
        let waited = lock(&self.pair).wait(|completion| {
            if let Some(slot) = slots.get_mut(completion.tag as usize) {
                slot.pending = slot.pending.saturating_sub(1);
            }
            if completion.is_success() {
                succeeded = true;
            } else if tolerant && matches!(completion.ended, CommandEnd::Answered(_)) {
                refused.push(completion);
            } else {
                failed.get_or_insert(completion);
            }
        });
        if succeeded {
            self.member.controller().note_success();
        }
        self.mend(waited.map(drop))?;
        if let Some(error) = failed.and_then(|completion| lock(&self.pair).error(&completion)) {
            return Err(error.into());
        }
        for completion in refused {
            let error = lock(&self.pair).error(&completion);
            if let Some(slot) = self.slots.get_mut(completion.tag as usize) {
                slot.failed = slot.failed.take().or(error);
            }
        }
        for (index, slot) in self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.pending == 0) {
            let Some(extent) = slot.extent.take() else { continue };
            match (&mut *job, slot.failed.take(), plain.get_mut(..extent.bytes)) {
                (Job::Check(_, told), Some(error), _) => told(&extent, error)?,
                (Job::Read(take) | Job::Check(take, _), None, Some(plain)) => {
                    self.buffer.memory().read(index * self.slot_bytes, plain);
                    take(&extent, plain)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::time::{Duration, Instant};

    use warprow_layout::{DType, Ranks, TableSpec};
    use warprow_soft_controller::{Namespace, RamBacking, SoftController};

    use super::*;
    use crate::{Device, LoadOptions, Store, TableLoad};

    const ROWS: u64 = 50_000;
    const ROW: usize = 512;

    fn store() -> Store {
        let drive = |name| {
            let namespace = Namespace::new(RamBacking::new(64 << 20).unwrap());
            let drive = SoftController::builder().name(name).serial(name).namespace(namespace).build().unwrap();
            Device::new(drive, 1)
        };
        Store::create(&["drive0", "drive1"].map(drive), &Default::default(), &Default::default()).unwrap()
    }

    /// Resets the controller of a drive, as somebody does whose queue cannot be brought back otherwise.
    fn reset(store: &Store, drive: usize) {
        let member = store.shared.members[drive].clone().unwrap();
        let resets = member.controller().resets();
        let began = Instant::now();
        let function = member.controller().name().clone();
        let mut first = true;
        let recreate = || match std::mem::take(&mut first) {
            true => Err(DriverError::Down { function: function.clone() }),
            false => Ok(()),
        };
        member.revive(None, recreate).unwrap();
        assert_eq!(member.controller().resets(), resets + 1);
        assert!(began.elapsed() < Duration::from_millis(1900), "it waited for an owner that was idle");
    }

    fn row(id: u64) -> Vec<u8> {
        (0..ROW as u64).map(|i| (id * 31 + i) as u8).collect()
    }

    /// Loads the table, and resets `drive` when the progress is `at`, if it says so.
    fn load(store: &Store, drive: usize, at: impl Fn(&crate::LoadProgress) -> bool) -> Result<(), StoreError> {
        let rows: Vec<u8> = (0..ROWS).flat_map(row).collect();
        let spec = TableSpec { permuted: true, row_crc: true, ..TableSpec::new("t", ROWS, ROW as u32, DType::U8) };
        let ranks = Ranks::by_hotness(&(0..ROWS).map(|id| id * 7919 % ROWS).collect::<Vec<_>>());
        let source = &rows[..];
        let mut done = false;
        let loads = [TableLoad::new(&spec, &source).with_ranks(&ranks)];
        let result = store.load("m", &loads, &LoadOptions::default().with_replace(), &mut |progress| {
            if !done && at(&progress) {
                done = true;
                reset(store, drive);
            }
            ControlFlow::Continue(())
        });
        result.map(drop)
    }

    /// Reads the table, resetting drives before the rows that are read as number so and so, and checks every row.
    fn scan(store: &Store, resets: &[(u64, usize)]) -> Result<(), StoreError> {
        let ids = store.ranks("t").unwrap().unwrap().inverse();
        let mut seen = vec![false; ROWS as usize];
        let mut read = 0;
        store.scan("t", 0..ROWS, &mut |rank, bytes| {
            resets.iter().filter(|(at, _)| *at == read).for_each(|&(_, drive)| reset(store, drive));
            read += 1;
            assert_eq!(bytes, row(ids.get(rank).unwrap()), "rank {rank}");
            assert!(!std::mem::replace(&mut seen[rank as usize], true), "rank {rank} came twice");
            ControlFlow::Continue(())
        })?;
        assert!(seen.iter().all(|&seen| seen));
        Ok(())
    }

    #[test]
    fn a_reset_during_a_load_is_told_as_such_and_leaves_the_store_as_it_was() {
        let store = store();
        for drive in [0, 1] {
            // While rows are put in order, between writes, and after a drive's last.
            let stages: [fn(&crate::LoadProgress) -> bool; 3] = [
                |progress| progress.gathered > 0,
                |progress| progress.written * 2 > progress.total,
                |progress| progress.written == progress.total,
            ];
            for at in stages {
                let error = load(&store, drive, at).unwrap_err();
                assert!(
                    matches!(&error, StoreError::LoadReset { drive: name } if *name == format!("drive{drive}")),
                    "{error:?}"
                );
                assert!(store.tables().is_empty());
            }
        }
        load(&store, 0, |_| false).unwrap();
        scan(&store, &[]).unwrap();
    }

    #[test]
    fn a_scan_goes_on_after_a_reset_of_each_drive() {
        let store = store();
        load(&store, 0, |_| false).unwrap();
        for at in [0, 1000, ROWS / 2, ROWS - 1] {
            scan(&store, &[(at, 0)]).unwrap();
            scan(&store, &[(at, 1)]).unwrap();
        }
        scan(&store, &[(10, 0), (10, 1)]).unwrap();
        let often: Vec<_> = (0..ROWS).step_by(1000).map(|at| (at, 1)).collect();
        let error = scan(&store, &often).unwrap_err();
        assert!(matches!(&error, StoreError::ReadReset { drive } if drive == "drive1"), "{error:?}");
        scan(&store, &[]).unwrap();
    }
}
