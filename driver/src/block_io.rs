use std::sync::Arc;

use warprow_dma::{MappedMemory, PAGE};

use crate::controller::Controller;
use crate::error::DriverError;
use crate::namespace::Namespace;
use crate::prp::Data;
use crate::queue::{CommandEnd, Completion, PushError, QueueOptions, QueuePair};

/// The most bytes of one command, and the most commands in flight.
const CHUNK: u64 = 128 << 10;
const CHUNKS: u64 = 8;

/// Synchronous reads and writes between a namespace and ordinary memory, on a queue pair that nothing else uses: for
/// set-up and metadata, not for rows. Long transfers are split and pipelined.
///
/// A transfer fails with the first error of its commands ([`DriverError::Command`], [`DriverError::TimedOut`],
/// [`DriverError::Lost`]), with [`DriverError::Push`] where its blocks are not the namespace's or a late write may still
/// land, with [`DriverError::NotWholeBlocks`], and as [`QueuePair::wait`] does. Of a write that failed any block may have
/// been written. After a time-out or a failed wait the buffer may still be written by the device; every call is then an
/// error ([`DriverError::Stuck`], [`DriverError::Stale`]) until [`recover`](Self::recover).
#[derive(Debug)]
pub struct BlockIo {
    pair: QueuePair,
    namespace: Namespace,
    buffer: Arc<MappedMemory>,
    /// Bytes of one chunk of the buffer.
    chunk: usize,
}

/// What a transfer does with its blocks.
enum Transfer<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8], bool),
}

impl BlockIo {
    /// Makes a queue pair and a buffer for `namespace`. Fails as [`Controller::queue_pair`] and [`Controller::allocate`] do,
    /// and with [`DriverError::Push`] where MDTS is less than a block.
    pub fn new(
        controller: &Arc<Controller>,
        namespace: Namespace,
        options: &QueueOptions,
    ) -> Result<Self, DriverError> {
        let pair = controller.queue_pair(options)?;
        Self::on(pair, namespace)
    }

    /// As [`new`](Self::new), on a queue pair that exists.
    pub fn on(mut pair: QueuePair, namespace: Namespace) -> Result<Self, DriverError> {
        let block = u64::from(namespace.lba_bytes());
        let chunk = CHUNK.min(pair.max_transfer()) / block * block;
        if chunk == 0 {
            let (bytes, max) = (block, pair.max_transfer());
            return Err(pair.refused(PushError::TooLong { bytes, max }));
        }
        // Chunks start at pages, so that they need the fewest PRPs.
        let stride = (chunk as usize).next_multiple_of(PAGE);
        let buffer = pair.controller().allocate(stride * CHUNKS as usize)?;
        pair.keep(buffer.clone());
        Ok(Self { pair, namespace, buffer, chunk: chunk as usize })
    }

    /// The namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The queue pair.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.pair
    }

    /// Reads `into.len()` bytes, whole blocks, from `lba` on.
    pub fn read(&mut self, lba: u64, into: &mut [u8]) -> Result<(), DriverError> {
        self.transfer(lba, Transfer::Read(into))
    }

    /// Writes whole blocks from `lba` on. Durable after the next [`flush`](Self::flush).
    pub fn write(&mut self, lba: u64, from: &[u8]) -> Result<(), DriverError> {
        self.transfer(lba, Transfer::Write(from, false))
    }

    /// Writes whole blocks from `lba` on, with Force Unit Access (FUA): durable when this returns.
    pub fn write_durably(&mut self, lba: u64, from: &[u8]) -> Result<(), DriverError> {
        self.transfer(lba, Transfer::Write(from, true))
    }

    /// Makes every completed write durable.
    pub fn flush(&mut self) -> Result<(), DriverError> {
        self.one(|pair, ns| pair.flush(ns, 0))
    }

    /// Sets blocks to zero.
    pub fn write_zeroes(&mut self, lba: u64, blocks: u32) -> Result<(), DriverError> {
        self.one(|pair, ns| pair.write_zeroes(ns, lba, blocks, false, 0))
    }

    /// Tells the drive that blocks are no longer needed; what they read as then is the drive's choice.
    pub fn deallocate(&mut self, ranges: &[(u64, u32)]) -> Result<(), DriverError> {
        for some in ranges.chunks(self.pair.max_ranges()) {
            self.one(|pair, ns| pair.deallocate(ns, some, 0))?;
        }
        Ok(())
    }

    /// Makes the queue usable again after a time-out, or after a reset of the controller. Reads of what was being
    /// written when it failed may give old or new data. Fails as [`QueuePair::recreate`] does.
    pub fn recover(&mut self) -> Result<(), DriverError> {
        self.pair.recreate(|_| {})
    }

    /// Lets go of the queue for a reset of the controller; [`recover`](Self::recover) follows it.
    pub fn leave(&mut self) {
        self.pair.leave();
    }

    fn one(
        &mut self,
        push: impl FnOnce(&mut QueuePair, &Namespace) -> Result<u16, PushError>,
    ) -> Result<(), DriverError> {
        self.refuse_quarantine()?;
        push(&mut self.pair, &self.namespace).map_err(|source| self.pair.refused(source))?;
        self.finish(|_| {})
    }

    /// Memory that the device may still write must not be used again.
    fn refuse_quarantine(&self) -> Result<(), DriverError> {
        if self.pair.quarantined() + self.pair.outstanding() == 0 { Ok(()) } else { Err(self.pair.stuck()) }
    }

    /// Waits until nothing is outstanding. The first failure is the result; successes go to `on` by their tags.
    fn finish(&mut self, mut on: impl FnMut(u64)) -> Result<(), DriverError> {
        let mut failed: Option<Completion> = None;
        self.pair.ring()?;
        while self.pair.outstanding() != 0 {
            let all = self.pair.outstanding();
            self.pair.wait_for(all, |completion| match completion.ended {
                CommandEnd::Answered(status) if status.is_success() => on(completion.tag),
                _ => failed = failed.or(Some(completion)),
            })?;
        }
        match failed.and_then(|completion| self.pair.error(&completion)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn transfer(&mut self, lba: u64, mut transfer: Transfer<'_>) -> Result<(), DriverError> {
        self.refuse_quarantine()?;
        let (block, chunk) = (self.namespace.lba_bytes() as usize, self.chunk);
        let stride = chunk.next_multiple_of(PAGE);
        let len = match &transfer {
            Transfer::Read(into) => into.len(),
            Transfer::Write(from, _) => from.len(),
        };
        if !len.is_multiple_of(block) {
            let lba_bytes = self.namespace.lba_bytes();
            return Err(DriverError::NotWholeBlocks {
                function: self.pair.controller().name().clone(),
                len,
                lba_bytes,
            });
        }
        let blocks = (len / block) as u64;
        let lba_count = self.namespace.lba_count();
        if lba.checked_add(blocks).is_none_or(|end| end > lba_count) {
            let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
            return Err(self.pair.refused(PushError::OutOfRange { lba, blocks, lba_count }));
        }
        let mut done = 0;
        while done < len {
            let in_flight = (self.pair.depth() as u64).min(CHUNKS) as usize;
            let batch = (len - done).min(chunk * in_flight);
            for (i, at) in (done..done + batch).step_by(chunk).enumerate() {
                let n = chunk.min(done + batch - at);
                let place = i * stride;
                if let Transfer::Write(from, _) = &transfer {
                    self.buffer.memory().write(place, from.get(at..at + n).unwrap_or_default());
                }
                let data = Data::Contiguous { iova: self.buffer.iova() + place as u64, len: n as u64 };
                let (lba, blocks) = (lba + (at / block) as u64, (n / block) as u32);
                let (pair, ns) = (&mut self.pair, &self.namespace);
                let pushed = match &transfer {
                    Transfer::Read(_) => pair.read(ns, lba, blocks, data, i as u64),
                    Transfer::Write(_, fua) => pair.write(ns, lba, blocks, data, *fua, i as u64),
                };
                if let Err(source) = pushed {
                    // What was pushed before it must end before the buffer is used again.
                    self.finish(|_| {})?;
                    return Err(self.pair.refused(source));
                }
            }
            let buffer = self.buffer.clone();
            self.finish(|i| {
                let at = done + i as usize * chunk;
                if let Transfer::Read(into) = &mut transfer {
                    let end = (at + chunk).min(done + batch);
                    if let Some(part) = into.get_mut(at..end) {
                        buffer.memory().read(i as usize * stride, part);
                    }
                }
            })?;
            done += batch;
        }
        Ok(())
    }
}
