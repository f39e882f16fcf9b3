//! Ends of commands in flight: resets, deletions of queues, aborts, with bytes around every buffer that nobody may write.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use warprow_dma::MappedMemory;
use warprow_driver::prp::Data;
use warprow_driver::{CommandEnd, DriverError, QueueOptions, QueuePair, ResetKind};
use warprow_spec::StatusCode;

use crate::fixture::{Fixture, fitting, pattern};
use crate::subject::{Subject, Verdict};

/// Reads in flight, the bytes of each, and those between two buffers.
const READS: usize = 96;
const BYTES: usize = 8 << 10;
const GUARD: usize = 4 << 10;
const CANARY: u8 = 0xc9;
const SEED: u64 = 100;

/// Two queue pairs with as many reads in flight, each into a buffer between canaries.
struct Load {
    fixture: Fixture,
    other: QueuePair,
    field: Arc<MappedMemory>,
    content: Vec<u8>,
}

impl Load {
    /// `None` where there are fewer than two queue pairs.
    fn new(subject: &Subject) -> Result<Option<Self>> {
        let options = QueueOptions { entries: 64, completion_entries: 64, ..QueueOptions::default() };
        let mut fixture = Fixture::with(subject, &options)?;
        if fixture.controller.granted_queue_pairs() < 2 {
            return Ok(None);
        }
        let mut other = fixture.controller.queue_pair(&fitting(&fixture.controller, &options))?;
        ensure!(fixture.pair.depth() + other.depth() >= READS, "the queues hold fewer than {READS} commands");
        let blocks = READS * BYTES / fixture.block();
        fixture.write_pattern(SEED, 0, blocks)?;
        let content = pattern(SEED, 0, fixture.block(), blocks);
        let field = fixture.buffer(GUARD + READS * (BYTES + GUARD))?;
        other.keep(field.clone());
        Ok(Some(Self { fixture, other, field, content }))
    }

    fn at(read: usize) -> usize {
        GUARD + read * (BYTES + GUARD)
    }

    /// Starts all reads; queue and CID of each.
    fn start(&mut self) -> Result<Vec<(u16, u16)>> {
        self.field.memory().fill(0, self.field.memory().len(), CANARY);
        let blocks = BYTES / self.fixture.block();
        let mut names = Vec::new();
        for i in 0..READS {
            let pair = if i % 2 == 0 { &mut self.fixture.pair } else { &mut self.other };
            let data = Data::Contiguous { iova: self.field.iova() + Self::at(i) as u64, len: BYTES as u64 };
            let cid = pair.read(&self.fixture.ns, (i * blocks) as u64, blocks as u32, data, i as u64)?;
            names.push((pair.id(), cid));
        }
        self.fixture.pair.ring()?;
        self.other.ring()?;
        Ok(names)
    }

    /// Every read has ended once; those that succeeded have brought their data, others nothing else than that; no canary was
    /// written.
    fn judge(&self, ended: &BTreeMap<u64, Vec<CommandEnd>>) -> Result<()> {
        ensure!(ended.len() == READS && ended.values().all(|all| all.len() == 1), "{ended:?}");
        let mut field = vec![0; self.field.memory().len()];
        self.field.memory().read(0, &mut field);
        for i in 0..=READS {
            let guard = &field[Self::at(i) - GUARD..Self::at(i)];
            ensure!(guard.iter().all(|&byte| byte == CANARY), "bytes before buffer {i} were written");
        }
        for (&tag, ends) in ended {
            let i = tag as usize;
            let got = &field[Self::at(i)..][..BYTES];
            let want = &self.content[i * BYTES..][..BYTES];
            match ends[..] {
                [CommandEnd::Answered(status)] if status.is_success() => {
                    ensure!(got == want, "read {i} brought other data")
                }
                _ => {
                    let known = got.iter().zip(want).all(|(&got, &want)| got == CANARY || got == want);
                    ensure!(known, "read {i}, which failed, brought other data");
                }
            }
        }
        Ok(())
    }

    /// The memory has another use now, and nothing of before comes into it.
    fn reuse(&mut self) -> Result<()> {
        let memory = self.field.memory();
        memory.fill(0, memory.len(), !CANARY);
        let blocks = READS * BYTES / self.fixture.block();
        self.fixture.check_pattern(SEED, 0, blocks)?;
        std::mem::swap(&mut self.fixture.pair, &mut self.other);
        self.fixture.check_pattern(SEED, 0, blocks)?;
        let mut field = vec![0; self.field.memory().len()];
        self.field.memory().read(0, &mut field);
        ensure!(field.iter().all(|&byte| byte == !CANARY), "a command of before was carried out late");
        Ok(())
    }
}

fn skipped() -> Verdict {
    Verdict::Skipped("there are fewer than two queue pairs".into())
}

/// Resets, and deletions of both queues, with reads in flight.
pub(crate) fn resets(subject: &Subject) -> Result<Verdict> {
    let Some(mut load) = Load::new(subject)? else { return Ok(skipped()) };
    for kind in [None, Some(ResetKind::Controller), Some(ResetKind::Function), Some(ResetKind::Controller), None] {
        let what = || kind.map_or("queues deleted".to_owned(), |kind| format!("{kind:?}"));
        load.start()?;
        if let Some(kind) = kind {
            load.fixture.pair.leave();
            load.other.leave();
            match load.fixture.controller.reset(kind) {
                Err(DriverError::Function(_)) if kind == ResetKind::Function => {
                    load.fixture.controller.reset(ResetKind::Controller)?;
                }
                other => other.with_context(what)?,
            }
        }
        let mut ended: BTreeMap<u64, Vec<CommandEnd>> = BTreeMap::new();
        for pair in [&mut load.fixture.pair, &mut load.other] {
            pair.recreate(|completion| ended.entry(completion.tag).or_default().push(completion.ended))
                .with_context(what)?;
        }
        load.judge(&ended).with_context(what)?;
        load.reuse().with_context(what)?;
    }
    Ok(Verdict::Passed)
}

/// Aborts of every command in flight: each ends once, by its own answer.
pub(crate) fn aborts(subject: &Subject) -> Result<Verdict> {
    let Some(mut load) = Load::new(subject)? else { return Ok(skipped()) };
    for (queue, cid) in load.start()? {
        load.fixture.controller.abort(queue, cid)?;
    }
    let mut ended: BTreeMap<u64, Vec<CommandEnd>> = BTreeMap::new();
    for pair in [&mut load.fixture.pair, &mut load.other] {
        while pair.outstanding() != 0 {
            pair.wait(|completion| ended.entry(completion.tag).or_default().push(completion.ended))?;
        }
        pair.poll(|completion| ended.entry(completion.tag).or_default().push(completion.ended))?;
        ensure!(pair.anomalies().total() == 0, "{:?}", pair.anomalies());
    }
    load.judge(&ended)?;
    for ends in ended.values() {
        let known = matches!(ends[..], [CommandEnd::Answered(status)]
            if status.is_success() || status.code() == StatusCode::AbortRequested);
        ensure!(known, "an aborted command ended as {ends:?}");
    }
    load.reuse()?;
    Ok(Verdict::Passed)
}
