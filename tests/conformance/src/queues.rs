use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use warprow_driver::prp::Data;
use warprow_driver::{DriverError, PushError, QueueOptions, QueuePair};

use crate::fixture::{Fixture, open, pattern, same};
use crate::subject::{Subject, Verdict};

/// Queues of 2, 3 and 5 entries, so often that every index and phase has come around many times.
pub(crate) fn smallest(subject: &Subject) -> Result<Verdict> {
    for (entries, completion_entries) in [(2, 2), (2, 5), (3, 3), (5, 2), (5, 16)] {
        let options = QueueOptions { entries, completion_entries, ..QueueOptions::default() };
        let mut fixture = Fixture::with(subject, &options)?;
        ensure!(fixture.pair.depth() == entries.min(completion_entries) as usize - 1);
        let what = || format!("{entries} and {completion_entries} entries");
        for seed in 0..40 {
            fixture.write_pattern(seed, seed % 7, 2).with_context(what)?;
            fixture.check_pattern(seed, seed % 7, 2).with_context(what)?;
        }
        ensure!(fixture.pair.anomalies().total() == 0, "{:?}", fixture.pair.anomalies());
    }
    Ok(Verdict::Passed)
}

/// Pushes reads of one block each until a queue as large as the controller takes (or 2048 entries) is full; each brings its own
/// block, once, and every index comes around.
pub(crate) fn full(subject: &Subject) -> Result<Verdict> {
    let entries = open(subject)?.cap().max_queue_entries().min(2048);
    let options = QueueOptions { entries, completion_entries: entries, ..QueueOptions::default() };
    let mut fixture = Fixture::with(subject, &options)?;
    let block = fixture.block();
    let depth = fixture.pair.depth();
    fixture.write_pattern(40, 0, depth)?;
    let buffer = fixture.buffer(depth * block)?;
    for round in 0..3 {
        buffer.memory().fill(0, depth * block, 0xa5);
        let before = fixture.pair.doorbells();
        for i in 0..depth {
            let data = Data::Contiguous { iova: buffer.iova() + (i * block) as u64, len: block as u64 };
            fixture.pair.read(&fixture.ns, i as u64, 1, data, i as u64)?;
        }
        let one_more = Data::Contiguous { iova: buffer.iova(), len: block as u64 };
        match fixture.pair.read(&fixture.ns, 0, 1, one_more, 0) {
            Err(PushError::Full) => {}
            other => bail!("a push into a full queue: {other:?}"),
        }
        let mut tags = BTreeSet::new();
        while fixture.pair.outstanding() != 0 {
            fixture.pair.wait(|completion| {
                if completion.is_success() {
                    tags.insert(completion.tag);
                }
            })?;
        }
        ensure!(tags.len() == depth && tags.last() == Some(&(depth as u64 - 1)), "{} of {depth} tags", tags.len());
        // One store of the tail, and of the head at most one for each half of the queue.
        let doorbells = fixture.pair.doorbells() - before;
        ensure!(doorbells <= 4, "{doorbells} doorbell stores for one batch");
        let mut got = vec![0; depth * block];
        buffer.memory().read(0, &mut got);
        same(&got, &pattern(40, 0, block, depth), 0, block).with_context(|| format!("round {round}"))?;
    }
    ensure!(fixture.pair.anomalies().total() == 0, "{:?}", fixture.pair.anomalies());
    Ok(Verdict::Passed)
}

/// Writes in turns through several queues, reads each stripe through another one than wrote it.
pub(crate) fn side_by_side(subject: &Subject) -> Result<Verdict> {
    const STRIPE: usize = 8;
    let mut fixture = Fixture::open(subject)?;
    let block = fixture.block();
    let queues = usize::from(fixture.controller.granted_queue_pairs()).min(9) - 1;
    if queues < 2 {
        return Ok(Verdict::Skipped("there are fewer than three queue pairs".into()));
    }
    let options = QueueOptions { entries: 16, completion_entries: 16, ..QueueOptions::default() };
    let mut pairs = (0..queues).map(|_| fixture.controller.queue_pair(&options)).collect::<Result<Vec<_>, _>>()?;
    let len = STRIPE * block;
    let buffer = fixture.controller.allocate(queues * len)?;
    pairs.iter_mut().for_each(|pair| pair.keep(buffer.clone()));
    let data = |i: usize| Data::Contiguous { iova: buffer.iova() + (i * len) as u64, len: len as u64 };
    let finish = |pairs: &mut [QueuePair]| -> Result<()> {
        for pair in pairs {
            pair.ring()?;
        }
        Ok(())
    };
    let drain = |pairs: &mut [QueuePair]| -> Result<()> {
        for pair in pairs {
            let mut failed = None;
            while pair.outstanding() != 0 {
                pair.wait(|completion| failed = failed.or(Some(completion).filter(|c| !c.is_success())))?;
            }
            if let Some(error) = failed.and_then(|completion| pair.error(&completion)) {
                return Err(error.into());
            }
        }
        Ok(())
    };
    for round in 0..8u64 {
        let lba = |i: usize| (i * STRIPE) as u64;
        for (i, pair) in pairs.iter_mut().enumerate() {
            buffer.memory().write(i * len, &pattern(50 + round, lba(i), block, STRIPE));
            pair.write(&fixture.ns, lba(i), STRIPE as u32, data(i), false, 0)?;
        }
        finish(&mut pairs)?;
        drain(&mut pairs)?;
        buffer.memory().fill(0, queues * len, 0xa5);
        for (i, pair) in pairs.iter_mut().enumerate() {
            let i = (i + 1 + round as usize) % queues;
            pair.read(&fixture.ns, lba(i), STRIPE as u32, data(i), 0)?;
        }
        finish(&mut pairs)?;
        drain(&mut pairs)?;
        let mut got = vec![0; queues * len];
        buffer.memory().read(0, &mut got);
        same(&got, &pattern(50 + round, 0, block, queues * STRIPE), 0, block)
            .with_context(|| format!("round {round}"))?;
    }
    fixture.check_pattern(57, 0, queues * STRIPE)?;
    Ok(Verdict::Passed)
}

/// As many queue pairs as were granted work at the same time; one more is an error; what is given back can be had again.
pub(crate) fn all_granted(subject: &Subject) -> Result<Verdict> {
    let options = QueueOptions { entries: 4, completion_entries: 4, max_transfer: 4096, ..QueueOptions::default() };
    let mut fixture = Fixture::with(subject, &options)?;
    let granted = fixture.controller.granted_queue_pairs();
    let mut pairs: Vec<_> = (1..granted).map(|_| fixture.controller.queue_pair(&options)).collect::<Result<_, _>>()?;
    match fixture.controller.queue_pair(&options) {
        Err(DriverError::NoQueueLeft { granted: named, .. }) => ensure!(named == granted),
        other => bail!("one queue pair more than {granted}: {other:?}"),
    }
    let ids: BTreeSet<u16> = pairs.iter().map(|pair| pair.id()).chain([fixture.pair.id()]).collect();
    ensure!(ids.len() == usize::from(granted) && ids.last() == Some(&granted), "{ids:?}");
    for seed in 60..60 + pairs.len() as u64 {
        // Each queue in turn is the rig's own.
        let pair = pairs.remove(0);
        pairs.push(std::mem::replace(&mut fixture.pair, pair));
        fixture.write_pattern(seed, 0, 1)?;
        fixture.check_pattern(seed, 0, 1).with_context(|| format!("queue {}", fixture.pair.id()))?;
    }
    if let Some(given_back) = pairs.pop() {
        let id = given_back.id();
        drop(given_back);
        ensure!(fixture.controller.queue_pair(&options)?.id() == id, "the queue given back was not reused");
    }
    Ok(Verdict::Passed)
}
