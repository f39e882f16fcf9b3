//! The NVM command set, executed (NVM Command Set 1.0, 3; NVMe 1.4, 6).

use std::sync::Arc;
use std::time::Duration;

use warprow_dma::DmaMemory;
use warprow_spec::{NSID_ALL, NvmOpcode, StatusCode};

use crate::backing::{Backing, BackingEngine, BackingOperation, MediaError, Piece};
use crate::failure::Failure;
use crate::fault::Fault;
use crate::iommu::{Dma, Segment};
use crate::prp;
use crate::timing::{Access, Extent};
use crate::write_cache::WriteCache;

/// A namespace as I/O commands see it.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) backing: Arc<dyn Backing>,
    /// The volatile write cache, where `backing` is one.
    pub(crate) cache: Option<Arc<WriteCache>>,
    /// Base-two logarithm of the LBA size in bytes.
    pub(crate) lba_shift: u32,
    /// Size in LBAs.
    pub(crate) blocks: u64,
    /// A Format NVM is under way.
    pub(crate) formatting: bool,
    /// One has failed, and none has succeeded since.
    pub(crate) half_formatted: bool,
    /// The volatile write cache is off: a completed write is durable.
    pub(crate) write_through: bool,
    /// The backing wants each command's data in one piece.
    pub(crate) whole: bool,
    /// Commands that would change data are refused.
    pub(crate) write_protected: bool,
}

impl View {
    #[inline]
    fn write(&self, offset: u64, from: &DmaMemory, at: usize, len: usize, completes: bool) -> Result<(), MediaError> {
        match &self.cache {
            Some(cache) => cache.write_as(offset, from, at, len, completes),
            None => self.backing.write(offset, from, at, len),
        }
    }

    fn zero(&self, offset: u64, len: u64, deallocate: bool, completes: bool) -> Result<(), MediaError> {
        match &self.cache {
            Some(cache) => cache.zero_as(offset, len, deallocate, completes),
            None => self.backing.zero(offset, len, deallocate),
        }
    }

    fn flush(&self, fetched: u64) -> Result<(), MediaError> {
        match &self.cache {
            Some(cache) => cache.flush_completed(fetched),
            None => self.backing.flush(),
        }
    }
}

/// What the SMART log page counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) media_errors: u64,
}

impl Counters {
    /// Bytes read and written.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes_read + self.bytes_written
    }
}

/// Executes I/O commands for one worker.
#[derive(Debug)]
pub(crate) struct Io {
    pub(crate) dma: Dma,
    /// Memory page size, CC.MPS, in bytes.
    pub(crate) page: u64,
    /// Largest transfer, MDTS, in bytes.
    pub(crate) max_bytes: usize,
    /// By NSID - 1; `None` where no namespace is attached.
    pub(crate) namespaces: Vec<Option<View>>,
    pub(crate) counters: Counters,
    /// The power is failing: nothing is made durable any more.
    pub(crate) power_fails: bool,
    /// By NSID - 1, where a backing has one.
    engines: Vec<Option<Box<dyn BackingEngine>>>,
    segments: Vec<Segment>,
    pieces: Vec<Piece>,
    /// As large as the largest transfer.
    scratch: DmaMemory,
}

/// Flags of CDW12 (NVM Command Set 1.0, 3.2.4 and 3.2.6; NVMe 1.4, 6.9 and 6.15).
const FUA: u64 = 1 << 30;
const DEALLOCATE: u64 = 1 << 25;
/// FUSE and PSDT of CDW0: fused operations and SGLs are not supported.
const FUSE_PSDT: u64 = 0xc300;

/// One range of a Dataset Management command, and the most that a command has (NVM Command Set 1.0, 3.2.3).
const RANGE_BYTES: usize = 16;

impl Io {
    pub(crate) fn new(max_bytes: usize, scratch: DmaMemory) -> Self {
        Self {
            dma: Dma::default(),
            page: 4096,
            max_bytes,
            namespaces: Vec::new(),
            counters: Counters::default(),
            power_fails: false,
            engines: Vec::new(),
            segments: Vec::new(),
            pieces: Vec::new(),
            scratch,
        }
    }

    /// Tells the backing of a command that is about to be executed.
    #[inline]
    pub(crate) fn prefetch(&self, sqe: &[u64; 8]) {
        if sqe[0] as u8 == NvmOpcode::READ.0
            && let Ok((view, offset, len)) = locate(&self.namespaces, sqe)
        {
            view.backing.prefetch(offset, len);
        }
    }

    /// Whether that helps.
    pub(crate) fn prefetches(&self) -> bool {
        self.namespaces.iter().flatten().any(|view| view.backing.prefetches())
    }

    /// Tells the backing of a command that will be executed, for a disk to begin with it.
    pub(crate) fn will_need(&self, sqe: &[u64; 8]) {
        if sqe[0] as u8 == NvmOpcode::READ.0
            && let Ok((view, offset, len)) = locate(&self.namespaces, sqe)
        {
            view.backing.will_need(offset, len);
        }
    }

    /// Of how many commands at most; 0 if that helps none.
    pub(crate) fn depth(&self) -> u32 {
        self.namespaces.iter().flatten().map(|view| view.backing.depth()).max().unwrap_or(0)
    }

    /// Adds the engine of the next namespace.
    pub(crate) fn add_engine(&mut self, engine: Option<Box<dyn BackingEngine>>) {
        self.engines.push(engine);
    }

    pub(crate) fn has_engines(&self) -> bool {
        self.engines.iter().any(Option::is_some)
    }

    /// Operations of engines that are under way or not reported.
    pub(crate) fn in_flight(&self) -> usize {
        self.engines.iter().flatten().map(|engine| engine.in_flight()).sum()
    }

    /// Waits until no engine touches host memory.
    pub(crate) fn settle(&mut self) {
        self.engines.iter_mut().flatten().for_each(|engine| engine.settle());
    }

    /// Waits until an engine has ended something, or for about `limit`; false if none has anything to do.
    pub(crate) fn wait(&mut self, limit: Duration) -> bool {
        let busy = self.engines.iter_mut().flatten().find(|engine| engine.in_flight() > 0);
        busy.map(|engine| engine.wait(limit)).is_some()
    }

    /// Collects what engines have ended.
    pub(crate) fn poll(&mut self, done: &mut Vec<(u32, Result<(), MediaError>)>) {
        self.engines.iter_mut().flatten().for_each(|engine| engine.poll(done));
    }

    /// Hands a command to an engine.
    pub(crate) fn begin(&mut self, sqe: &[u64; 8], token: u32) -> Result<Begun, Failure> {
        let opcode = NvmOpcode(sqe[0] as u8);
        let index = nsid(sqe).wrapping_sub(1) as usize;
        if sqe[0] & FUSE_PSDT != 0 || !matches!(opcode, NvmOpcode::READ | NvmOpcode::WRITE | NvmOpcode::FLUSH) {
            return Ok(Begun::NotHere);
        }
        let Some(Some(engine)) = self.engines.get_mut(index) else { return Ok(Begun::NotHere) };
        self.pieces.clear();
        if opcode == NvmOpcode::FLUSH {
            ready(find(&self.namespaces, nsid(sqe))?)?;
            return Ok(Begun::of(engine.begin(token, BackingOperation::Flush, 0, &[])));
        }
        let (view, offset, len) = locate(&self.namespaces, sqe)?;
        if len > self.max_bytes {
            return Err(Failure::field(48));
        }
        let forced = sqe[6] & FUA != 0;
        if opcode == NvmOpcode::READ && forced {
            return Ok(Begun::NotHere);
        }
        if opcode == NvmOpcode::WRITE {
            writable(view)?;
        }
        prp::walk(&mut self.dma, self.page, (sqe[3], sqe[4]), len, &mut self.segments)?;
        if opcode == NvmOpcode::READ {
            self.dma.check_writable(&self.segments)?;
        }
        if self.dma.is_remote(&self.segments) {
            return Ok(Begun::NotHere);
        }
        let dma = &self.dma;
        self.pieces.extend(self.segments.iter().map(|&s| (dma.memory(s).clone(), s.offset, s.len)));
        let operation = match opcode {
            NvmOpcode::READ => BackingOperation::Read,
            _ => BackingOperation::Write { durable: forced || view.write_through },
        };
        let begun = engine.begin(token, operation, offset, &self.pieces);
        // Host memory is not kept longer than the operation needs it.
        self.pieces.clear();
        if begun {
            self.count(operation == BackingOperation::Read, len);
        }
        Ok(Begun::of(begun))
    }

    fn count(&mut self, read: bool, len: usize) {
        if read {
            self.counters.reads += 1;
            self.counters.bytes_read += len as u64;
        } else {
            self.counters.writes += 1;
            self.counters.bytes_written += len as u64;
        }
    }

    /// Counts reads that an offload has executed.
    pub(crate) fn count_reads(&mut self, reads: u64, bytes: u64) {
        self.counters.reads += reads;
        self.counters.bytes_read += bytes;
    }

    /// What a command is about, for its timing; `None` if it does not touch the media.
    pub(crate) fn extent(&self, sqe: &[u64; 8]) -> Option<Extent> {
        let access = access(sqe)?;
        let nsid = nsid(sqe);
        if access == Access::Flush {
            return Some(Extent { access, nsid, size: 0, offset: 0, len: 0 });
        }
        let (view, offset, len) = locate(&self.namespaces, sqe).ok()?;
        Some(Extent { access, nsid, size: view.backing.size(), offset, len: len as u64 })
    }

    /// Executes a command that was fetched at a [moment](crate::write_cache::now), with what a fault does to its data or to the
    /// promises about it. The result is DW0 of the completion.
    #[inline]
    pub(crate) fn execute(&mut self, sqe: &[u64; 8], fetched: u64, fault: Option<Fault>) -> Result<u32, Failure> {
        let corrupt = fault == Some(Fault::Corrupt);
        let completes = fault != Some(Fault::Drop);
        let result = if sqe[0] & FUSE_PSDT != 0 {
            self.refuse_flags(sqe)
        } else {
            match NvmOpcode(sqe[0] as u8) {
                NvmOpcode::READ => self.read(sqe, corrupt),
                NvmOpcode::WRITE => self.write(sqe, corrupt, completes),
                NvmOpcode::FLUSH => self.flush(sqe, fetched),
                NvmOpcode::WRITE_ZEROES => self.write_zeroes(sqe, completes),
                NvmOpcode::DATASET_MANAGEMENT => self.dataset_management(sqe, completes),
                NvmOpcode::COMPARE => self.compare(sqe),
                _ => Err(Failure::at(StatusCode::InvalidCommandOpcode, 0)),
            }
        };
        result.map(|()| 0).inspect_err(|failure| {
            if failure.status.sct() == 2 && failure.status.code() != StatusCode::CompareFailure {
                self.counters.media_errors += 1;
            }
        })
    }

    #[cold]
    fn refuse_flags(&self, sqe: &[u64; 8]) -> Result<(), Failure> {
        match NvmOpcode(sqe[0] as u8) {
            NvmOpcode::READ
            | NvmOpcode::WRITE
            | NvmOpcode::FLUSH
            | NvmOpcode::WRITE_ZEROES
            | NvmOpcode::DATASET_MANAGEMENT
            | NvmOpcode::COMPARE => Err(Failure::field(1)),
            _ => Err(Failure::at(StatusCode::InvalidCommandOpcode, 0)),
        }
    }

    #[inline]
    fn read(&mut self, sqe: &[u64; 8], corrupt: bool) -> Result<(), Failure> {
        let (view, offset, len) = locate(&self.namespaces, sqe)?;
        if len > self.max_bytes {
            return Err(Failure::field(48));
        }
        if sqe[6] & FUA != 0 && !self.power_fails {
            view.backing.persist(offset, len as u64)?;
        }
        let prps = (sqe[3], sqe[4]);
        if len as u64 <= self.page - (prps.0 & (self.page - 1)) && prps.0 & 3 == 0 {
            let segment = self.dma.find(prps.0, len)?;
            self.dma.check_writable(&[segment])?;
            view.backing.read(offset, self.dma.memory(segment), segment.offset, len)?;
            if corrupt {
                flip(self.dma.memory(segment), segment.offset, len);
            }
            self.dma.push(&[segment])?;
        } else {
            prp::walk(&mut self.dma, self.page, prps, len, &mut self.segments)?;
            self.dma.check_writable(&self.segments)?;
            let mut at = offset;
            for &segment in &self.segments {
                view.backing.read(at, self.dma.memory(segment), segment.offset, segment.len)?;
                at += segment.len as u64;
            }
            if corrupt && let Some(segment) = self.segments.last() {
                flip(self.dma.memory(*segment), segment.offset, segment.len);
            }
            self.dma.push(&self.segments)?;
        }
        self.count(true, len);
        Ok(())
    }

    #[inline]
    fn write(&mut self, sqe: &[u64; 8], corrupt: bool, completes: bool) -> Result<(), Failure> {
        let (view, offset, len) = locate(&self.namespaces, sqe)?;
        writable(view)?;
        if len > self.max_bytes {
            return Err(Failure::field(48));
        }
        prp::walk(&mut self.dma, self.page, (sqe[3], sqe[4]), len, &mut self.segments)?;
        self.dma.pull(&self.segments)?;
        if corrupt || view.whole && self.segments.len() > 1 {
            gather(&self.dma, &self.segments, &self.scratch);
            if corrupt {
                flip(&self.scratch, 0, len);
            }
            view.write(offset, &self.scratch, 0, len, completes)?;
        } else {
            let mut at = offset;
            for &segment in &self.segments {
                view.write(at, self.dma.memory(segment), segment.offset, segment.len, completes)?;
                at += segment.len as u64;
            }
        }
        if (sqe[6] & FUA != 0 || view.write_through) && !self.power_fails {
            view.backing.persist(offset, len as u64)?;
        }
        self.count(false, len);
        Ok(())
    }

    fn flush(&mut self, sqe: &[u64; 8], fetched: u64) -> Result<(), Failure> {
        let views = || self.namespaces.iter().flatten();
        match nsid(sqe) {
            _ if self.power_fails => Ok(()),
            NSID_ALL => {
                views().try_for_each(|view| ready(view).map(|_| ()))?;
                Ok(views().try_for_each(|view| view.flush(fetched))?)
            }
            nsid => Ok(ready(find(&self.namespaces, nsid)?)?.flush(fetched)?),
        }
    }

    fn write_zeroes(&mut self, sqe: &[u64; 8], completes: bool) -> Result<(), Failure> {
        let (view, offset, len) = locate(&self.namespaces, sqe)?;
        writable(view)?;
        let deallocate = sqe[6] & DEALLOCATE != 0 && view.backing.deallocated_reads_zero();
        view.zero(offset, len as u64, deallocate, completes)?;
        if (sqe[6] & FUA != 0 || view.write_through) && !self.power_fails {
            view.backing.persist(offset, len as u64)?;
        }
        self.counters.writes += 1;
        Ok(())
    }

    fn dataset_management(&mut self, sqe: &[u64; 8], completes: bool) -> Result<(), Failure> {
        let view = ready(find(&self.namespaces, nsid(sqe))?)?;
        let ranges = (sqe[5] as usize & 0xff) + 1;
        let len = ranges * RANGE_BYTES;
        prp::walk(&mut self.dma, self.page, (sqe[3], sqe[4]), len, &mut self.segments)?;
        self.dma.pull(&self.segments)?;
        gather(&self.dma, &self.segments, &self.scratch);
        let range = |i: usize| {
            let blocks = u64::from(u32::from_le(self.scratch.load_u32(i * RANGE_BYTES + 4)));
            (u64::from_le(self.scratch.load_u64(i * RANGE_BYTES + 8)), blocks)
        };
        for (slba, blocks) in (0..ranges).map(range) {
            if slba.checked_add(blocks).is_none_or(|end| end > view.blocks) {
                return Err(Failure::at(StatusCode::LbaOutOfRange, 24));
            }
        }
        // Attributes other than Deallocate are hints that are not taken.
        if sqe[5] >> 32 & 4 != 0 {
            writable(view)?;
            for (slba, blocks) in (0..ranges).map(range).filter(|&(_, blocks)| blocks > 0) {
                let offset = slba << view.lba_shift;
                let len = blocks << view.lba_shift;
                view.zero(offset, len, true, completes)?;
                if view.write_through && !self.power_fails {
                    view.backing.persist(offset, len)?;
                }
            }
        }
        Ok(())
    }

    fn compare(&mut self, sqe: &[u64; 8]) -> Result<(), Failure> {
        let (view, offset, len) = locate(&self.namespaces, sqe)?;
        if len > self.max_bytes {
            return Err(Failure::field(48));
        }
        prp::walk(&mut self.dma, self.page, (sqe[3], sqe[4]), len, &mut self.segments)?;
        self.dma.pull(&self.segments)?;
        if sqe[6] & FUA != 0 && !self.power_fails {
            view.backing.persist(offset, len as u64)?;
        }
        view.backing.read(offset, &self.scratch, 0, len)?;
        self.counters.reads += 1;
        let mut at = 0;
        for &segment in &self.segments {
            let host = self.dma.memory(segment);
            // Segments are whole dwords at dword-aligned offsets.
            if (0..segment.len).step_by(4).any(|i| host.load_u32(segment.offset + i) != self.scratch.load_u32(at + i)) {
                return Err(StatusCode::CompareFailure.into());
            }
            at += segment.len;
        }
        Ok(())
    }
}

/// Whether an engine has taken a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    Yes,
    /// The engine has too much to do: try again.
    Later,
    /// There is no engine for it: execute it.
    NotHere,
}

impl Begun {
    fn of(begun: bool) -> Self {
        if begun { Self::Yes } else { Self::Later }
    }
}

fn access(sqe: &[u64; 8]) -> Option<Access> {
    match NvmOpcode(sqe[0] as u8) {
        NvmOpcode::READ | NvmOpcode::COMPARE => Some(Access::Read),
        NvmOpcode::WRITE | NvmOpcode::WRITE_ZEROES => Some(Access::Write),
        NvmOpcode::FLUSH => Some(Access::Flush),
        _ => None,
    }
}

#[inline]
fn nsid(sqe: &[u64; 8]) -> u32 {
    (sqe[0] >> 32) as u32
}

#[inline]
fn find(namespaces: &[Option<View>], nsid: u32) -> Result<&View, Failure> {
    match namespaces.get(nsid.wrapping_sub(1) as usize) {
        Some(Some(view)) => Ok(view),
        _ => Err(Failure::at(StatusCode::InvalidNamespaceOrFormat, 4)),
    }
}

#[inline]
fn ready(view: &View) -> Result<&View, Failure> {
    match view {
        View { formatting: true, .. } => Err(StatusCode::FormatInProgress.into()),
        View { half_formatted: true, .. } => {
            // Trying again does not help.
            let failure = Failure::at(StatusCode::NamespaceNotReady, 4);
            Err(Failure { status: failure.status.with_dnr(true), ..failure })
        }
        _ => Ok(view),
    }
}

/// Refuses a command that would change the data of a namespace that is write protected (NVMe Base 2.0, 8.12).
#[inline]
fn writable(view: &View) -> Result<(), Failure> {
    if view.write_protected { Err(protected()) } else { Ok(()) }
}

/// The refusal of a command that would change the data of a namespace that is write protected: trying again does not help.
#[cold]
pub(crate) fn protected() -> Failure {
    let failure = Failure::at(StatusCode::NamespaceWriteProtected, 4);
    Failure { status: failure.status.with_dnr(true), ..failure }
}

/// The namespace of a command, and the byte offset and length of the LBAs it names.
#[inline]
fn locate<'a>(namespaces: &'a [Option<View>], sqe: &[u64; 8]) -> Result<(&'a View, u64, usize), Failure> {
    let view = ready(find(namespaces, nsid(sqe))?)?;
    let slba = sqe[5];
    let blocks = (sqe[6] & 0xffff) + 1;
    if slba.checked_add(blocks).is_none_or(|end| end > view.blocks) {
        return Err(Failure::at(StatusCode::LbaOutOfRange, 40));
    }
    Ok((view, slba << view.lba_shift, (blocks << view.lba_shift) as usize))
}

/// Copies a transfer to the start of `target`.
fn gather(dma: &Dma, segments: &[Segment], target: &DmaMemory) {
    let mut at = 0;
    for &segment in segments {
        dma.memory(segment).copy_to(segment.offset, target, at, segment.len);
        at += segment.len;
    }
}

/// Damages one bit in the middle of some bytes.
fn flip(memory: &DmaMemory, offset: usize, len: usize) {
    let at = offset + len / 2;
    memory.store_u8(at, memory.load_u8(at) ^ 0x10);
}
