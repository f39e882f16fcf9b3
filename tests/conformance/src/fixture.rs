//! What most checks need: a controller that is up, a namespace, a queue pair.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use warprow_dma::MappedMemory;
use warprow_driver::prp::Data;
use warprow_driver::{
    AdminAnswer, BlockIo, CommandEnd, Completion, Controller, ControllerOptions, DriverError, Namespace, PushError,
    QueueOptions, QueuePair,
};
use warprow_spec::{Sqe, Status, StatusCode};

use crate::pattern::fill;
use crate::subject::Subject;

pub(crate) struct Fixture {
    // In the order in which they go.
    pub(crate) pair: QueuePair,
    pub(crate) ns: Namespace,
    pub(crate) controller: Arc<Controller>,
}

impl Fixture {
    pub(crate) fn open(subject: &Subject) -> Result<Self> {
        Self::with(subject, &QueueOptions::default())
    }

    pub(crate) fn with(subject: &Subject, options: &QueueOptions) -> Result<Self> {
        let controller = open(subject)?;
        let ns = first_namespace(&controller)?;
        let pair = controller.queue_pair(&fitting(&controller, options))?;
        Ok(Self { pair, ns, controller })
    }

    /// Bytes of a block.
    pub(crate) fn block(&self) -> usize {
        self.ns.lba_bytes() as usize
    }

    /// Memory that outlives every command of the queue.
    pub(crate) fn buffer(&mut self, len: usize) -> Result<Arc<MappedMemory>> {
        let buffer = self.controller.allocate(len)?;
        self.pair.keep(buffer.clone());
        Ok(buffer)
    }

    /// Pushes one command and waits for its end; nothing else is outstanding.
    pub(crate) fn one(
        &mut self,
        push: impl FnOnce(&mut QueuePair, &Namespace) -> Result<u16, PushError>,
    ) -> Result<Completion> {
        push(&mut self.pair, &self.ns)?;
        let mut ended = Vec::new();
        while self.pair.outstanding() != 0 {
            self.pair.wait(|completion| ended.push(completion))?;
        }
        match ended[..] {
            [completion] => Ok(completion),
            _ => bail!("one command, {} completions", ended.len()),
        }
    }

    /// Sends a command as it is; the device's status.
    #[allow(unsafe_code, reason = "commands that the driver would not send")]
    pub(crate) fn raw(&mut self, sqe: Sqe) -> Result<Status> {
        // SAFETY: no memory of these checks is ever plain bytes, so that wherever it lands it is under no reference.
        match self.one(|pair, _| unsafe { pair.push(sqe, 0) })?.ended {
            CommandEnd::Answered(status) => Ok(status),
            other => bail!("{sqe:x?} ended as {other:?}"),
        }
    }

    /// Sends a command as it is, which must be refused with one of `codes`.
    pub(crate) fn refused(&mut self, what: &str, sqe: Sqe, codes: &[StatusCode]) -> Result<()> {
        let status = self.raw(sqe)?;
        ensure!(codes.contains(&status.code()), "{what}: {status}, where {codes:?} is due");
        Ok(())
    }

    /// Reads blocks into `buffer` from `offset` on.
    pub(crate) fn read(&mut self, lba: u64, blocks: usize, buffer: &MappedMemory, offset: usize) -> Result<()> {
        let data = Data::Contiguous { iova: buffer.iova() + offset as u64, len: (blocks * self.block()) as u64 };
        self.done(|pair, ns| pair.read(ns, lba, blocks as u32, data, 0)).with_context(|| format!("Read at LBA {lba}"))
    }

    /// Writes blocks from `buffer`, from `offset` on.
    pub(crate) fn write(&mut self, lba: u64, blocks: usize, buffer: &MappedMemory, offset: usize) -> Result<()> {
        let data = Data::Contiguous { iova: buffer.iova() + offset as u64, len: (blocks * self.block()) as u64 };
        self.done(|pair, ns| pair.write(ns, lba, blocks as u32, data, false, 0))
            .with_context(|| format!("Write at LBA {lba}"))
    }

    /// Writes the pattern of `seed` to blocks.
    pub(crate) fn write_pattern(&mut self, seed: u64, lba: u64, blocks: usize) -> Result<()> {
        let bytes = pattern(seed, lba, self.block(), blocks);
        self.chunks(lba, blocks, |fixture, lba, blocks, buffer, done| {
            buffer.memory().write(0, &bytes[done..done + blocks * fixture.block()]);
            fixture.write(lba, blocks, buffer, 0)
        })
    }

    /// Reads blocks.
    pub(crate) fn content(&mut self, lba: u64, blocks: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; blocks * self.block()];
        self.chunks(lba, blocks, |fixture, lba, blocks, buffer, done| {
            buffer.memory().fill(0, buffer.memory().len(), 0xa5);
            fixture.read(lba, blocks, buffer, 0)?;
            buffer.memory().read(0, &mut bytes[done..done + blocks * fixture.block()]);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Checks that blocks hold the pattern of `seed`.
    pub(crate) fn check_pattern(&mut self, seed: u64, lba: u64, blocks: usize) -> Result<()> {
        let block = self.block();
        same(&self.content(lba, blocks)?, &pattern(seed, lba, block, blocks), lba, block)
    }

    /// Calls `act` with first block, number of blocks, a buffer, and the bytes before it, for as much as fits a command.
    fn chunks(
        &mut self,
        lba: u64,
        blocks: usize,
        mut act: impl FnMut(&mut Self, u64, usize, &MappedMemory, usize) -> Result<()>,
    ) -> Result<()> {
        let block = self.block();
        let most = (self.pair.max_transfer() as usize).min(64 << 10) / block;
        ensure!(most != 0, "a block of {block} bytes does not fit a command");
        let buffer = self.controller.allocate(most * block)?;
        self.pair.keep(buffer.clone());
        for first in (0..blocks).step_by(most) {
            act(self, lba + first as u64, most.min(blocks - first), &buffer, first * block)?;
        }
        Ok(())
    }

    /// Pushes one command, which must succeed.
    pub(crate) fn done(
        &mut self,
        push: impl FnOnce(&mut QueuePair, &Namespace) -> Result<u16, PushError>,
    ) -> Result<()> {
        let completion = self.one(push)?;
        match self.pair.error(&completion) {
            None => Ok(()),
            Some(error) => Err(error.into()),
        }
    }

    /// The queue pair, for transfers of ordinary memory.
    pub(crate) fn into_block_io(self) -> Result<BlockIo> {
        Ok(BlockIo::on(self.pair, self.ns)?)
    }
}

pub(crate) fn open(subject: &Subject) -> Result<Arc<Controller>> {
    // Nothing here takes long, and a check that hangs should fail soon.
    let options = ControllerOptions { admin_timeout: Duration::from_secs(10), ..ControllerOptions::default() };
    open_with(subject, options)
}

pub(crate) fn open_with(subject: &Subject, options: ControllerOptions) -> Result<Arc<Controller>> {
    Ok(Controller::open(subject.function.clone(), subject.clock.clone(), options)?)
}

/// The options with queues no larger than the controller takes.
pub(crate) fn fitting(controller: &Controller, options: &QueueOptions) -> QueueOptions {
    let max = controller.cap().max_queue_entries();
    let QueueOptions { entries, completion_entries, .. } = *options;
    QueueOptions { entries: entries.min(max), completion_entries: completion_entries.min(max), ..options.clone() }
}

pub(crate) fn first_namespace(controller: &Controller) -> Result<Namespace> {
    let nsid = *controller.active_namespaces()?.first().context("no active namespace")?;
    Ok(controller.namespace(nsid)?)
}

pub(crate) fn pattern(seed: u64, lba: u64, block: usize, blocks: usize) -> Vec<u8> {
    let mut bytes = vec![0; blocks * block];
    fill(seed, lba, block, &mut bytes);
    bytes
}

/// Compares blocks from `lba` on; the error names the first that differs.
pub(crate) fn same(got: &[u8], want: &[u8], lba: u64, block: usize) -> Result<()> {
    ensure!(got.len() == want.len(), "{} bytes, where {} are due", got.len(), want.len());
    if let Some(at) = got.iter().zip(want).position(|(a, b)| a != b) {
        let end = (at + 8).min(got.len());
        bail!(
            "LBA {}, byte {}: {:02x?}, where {:02x?} is due",
            lba + (at / block) as u64,
            at % block,
            &got[at..end],
            &want[at..end]
        );
    }
    Ok(())
}

/// Sends an admin command as it is.
#[allow(unsafe_code, reason = "commands that the driver would not send")]
pub(crate) fn admin(controller: &Controller, sqe: Sqe) -> Result<AdminAnswer, DriverError> {
    // SAFETY: as in [`Fixture::raw`], and what checks send moves no more than a page.
    unsafe { controller.admin(sqe, &[], controller.options().admin_timeout) }
}

/// The answer to an admin command must be one of `codes`.
pub(crate) fn admin_refused(what: &str, controller: &Controller, sqe: Sqe, codes: &[StatusCode]) -> Result<()> {
    match admin(controller, sqe) {
        Err(DriverError::Command { status, .. }) if codes.contains(&status.code()) => Ok(()),
        Ok(_) => bail!("{what}: accepted, where {codes:?} is due"),
        Err(error) => bail!("{what}: {error}, where {codes:?} is due"),
    }
}
