use anyhow::{Context, Result, bail, ensure};
use warprow_driver::prp::{Data, IovaRange};
use warprow_driver::{DriverError, PushError, QueueOptions};
use warprow_spec::{Sqe, StatusCode};

use crate::fixture::{Fixture, open, pattern, same};
use crate::pattern::{Numbers, fill};
use crate::subject::{Subject, Verdict};

/// Bytes of a namespace's start that the model covers.
const MODEL: usize = 1 << 20;
const PAGE: usize = 4096;

/// Random writes and reads against a model, then all of it.
pub(crate) fn random_transfers(subject: &Subject) -> Result<Verdict> {
    let mut fixture = Fixture::open(subject)?;
    let block = fixture.block();
    let blocks = MODEL.min(fixture.ns.bytes() as usize) / block;
    let most = (fixture.pair.max_transfer() as usize / block).min(128);
    let mut model = pattern(4, 0, block, blocks);
    fixture.write_pattern(4, 0, blocks)?;
    let buffer = fixture.buffer(most * block)?;
    let mut numbers = Numbers(5);
    for seed in 0..200 {
        let count = 1 + numbers.below(most.min(blocks) as u64) as usize;
        let lba = numbers.below((blocks - count + 1) as u64);
        let at = lba as usize * block;
        let len = count * block;
        if numbers.below(2) == 0 {
            fill(1000 + seed, lba, block, &mut model[at..at + len]);
            buffer.memory().write(0, &model[at..at + len]);
            fixture.write(lba, count, &buffer, 0)?;
        } else {
            let mut got = vec![0; len];
            buffer.memory().fill(0, len, 0xa5);
            fixture.read(lba, count, &buffer, 0)?;
            buffer.memory().read(0, &mut got);
            same(&got, &model[at..at + len], lba, block).with_context(|| format!("step {seed}"))?;
        }
    }
    same(&fixture.content(0, blocks)?, &model, 0, block)?;
    ensure!(fixture.pair.anomalies().total() == 0, "{:?}", fixture.pair.anomalies());
    // The last blocks are where they should be as well.
    let last = fixture.ns.lba_count() - 4;
    fixture.write_pattern(6, last, 4)?;
    fixture.check_pattern(6, last, 4)?;
    same(&fixture.content(0, blocks)?, &model, 0, block)?;
    Ok(Verdict::Passed)
}

pub(crate) fn namespaces_are_separate(subject: &Subject) -> Result<Verdict> {
    let controller = open(subject)?;
    let list = controller.active_namespaces()?;
    if list.len() < 2 {
        return Ok(Verdict::Skipped("there is one namespace".into()));
    }
    drop(controller);
    let mut fixture = Fixture::open(subject)?;
    for &nsid in &list {
        fixture.ns = fixture.controller.namespace(nsid)?;
        fixture.write_pattern(nsid.into(), 0, 16)?;
    }
    for &nsid in &list {
        fixture.ns = fixture.controller.namespace(nsid)?;
        fixture.check_pattern(nsid.into(), 0, 16).with_context(|| format!("namespace {nsid}"))?;
    }
    Ok(Verdict::Passed)
}

/// Every offset class × lengths up to past two list pages, with what lies around the buffer left alone.
pub(crate) fn any_buffer(subject: &Subject) -> Result<Verdict> {
    let mut fixture =
        Fixture::with(subject, &QueueOptions { entries: 8, completion_entries: 8, ..QueueOptions::default() })?;
    let block = fixture.block();
    let most = (fixture.pair.max_transfer() as usize).min(64 << 10);
    let guard = 64;
    let buffer = fixture.buffer(most + 4 * PAGE)?;
    let lengths = [block, 2 * block, 3 * block, PAGE, PAGE + block, 2 * PAGE, 3 * PAGE, 5 * PAGE + block, most];
    for offset in [0, 4, 8, 508, 512, 2048, 4088, 4092] {
        for len in lengths.into_iter().map(|len| len.next_multiple_of(block)).filter(|&len| len <= most) {
            let what = || format!("{len} bytes at offset {offset}");
            let at = PAGE + offset;
            let blocks = len / block;
            let seed = (offset * 1000 + len) as u64;
            let want = pattern(seed, 7, block, blocks);
            buffer.memory().write(at, &want);
            fixture.write(7, blocks, &buffer, at).with_context(what)?;
            buffer.memory().fill(at - guard, len + 2 * guard, 0xa5);
            fixture.read(7, blocks, &buffer, at).with_context(what)?;
            let mut got = vec![0; len + 2 * guard];
            buffer.memory().read(at - guard, &mut got);
            same(&got[guard..guard + len], &want, 7, block).with_context(what)?;
            let around = got[..guard].iter().chain(&got[guard + len..]);
            ensure!(around.into_iter().all(|&byte| byte == 0xa5), "{}: bytes around the buffer were written", what());
        }
    }
    Ok(Verdict::Passed)
}

/// Pages in another order than they lie in.
pub(crate) fn scattered(subject: &Subject) -> Result<Verdict> {
    let mut fixture = Fixture::open(subject)?;
    let block = fixture.block();
    let pages = (fixture.pair.max_transfer() as usize / PAGE).min(12);
    if pages < 3 || block > PAGE {
        return Ok(Verdict::Skipped(format!("a command moves {pages} pages, of blocks of {block} bytes")));
    }
    let buffer = fixture.buffer(2 * pages * PAGE)?;
    // Every second page, backwards; the first starts inside its page, the last ends inside its own.
    let place = |i: usize| (2 * (pages - 1 - i)) * PAGE;
    let head = PAGE - block.min(PAGE / 2);
    let stretches: Vec<_> = (0..pages)
        .map(|i| match i {
            0 => (place(0) + PAGE - head, head),
            i if i + 1 == pages => (place(i), PAGE - head),
            i => (place(i), PAGE),
        })
        .filter(|&(_, len)| len != 0)
        .collect();
    let bytes: usize = stretches.iter().map(|s| s.1).sum();
    let want = pattern(8, 3, block, bytes / block);
    let blocks = bytes / block;
    let list: Vec<_> =
        stretches.iter().map(|&(at, len)| IovaRange { iova: buffer.iova() + at as u64, len: len as u64 }).collect();
    let mut done = 0;
    for &(at, len) in &stretches {
        buffer.memory().write(at, &want[done..done + len]);
        done += len;
    }
    fixture.done(|pair, ns| pair.write(ns, 3, blocks as u32, Data::Scattered(&list), false, 0))?;
    same(&fixture.content(3, blocks)?, &want, 3, block)?;
    buffer.memory().fill(0, buffer.memory().len(), 0xa5);
    fixture.done(|pair, ns| pair.read(ns, 3, blocks as u32, Data::Scattered(&list), 0))?;
    let mut got = Vec::new();
    for &(at, len) in &stretches {
        let mut part = vec![0; len];
        buffer.memory().read(at, &mut part);
        got.extend(part);
    }
    same(&got, &want, 3, block)?;
    Ok(Verdict::Passed)
}

pub(crate) fn largest_transfer(subject: &Subject) -> Result<Verdict> {
    // Past 2 MiB PRP lists are chained, where the controller takes that much. (QEMU's model ends at 4 MiB, whatever MDTS.)
    let options = QueueOptions { entries: 4, completion_entries: 4, max_transfer: 3 << 20, ..QueueOptions::default() };
    let mut fixture = Fixture::with(subject, &options)?;
    let block = fixture.block();
    let most = (fixture.pair.max_transfer().min(fixture.ns.bytes()) as usize / block).min(1 << 16);
    let buffer = fixture.buffer((most + 1) * block + PAGE)?;
    for offset in [0, 4, PAGE - 4] {
        let want = pattern(9 + offset as u64, 0, block, most);
        buffer.memory().write(offset, &want);
        fixture.write(0, most, &buffer, offset)?;
        buffer.memory().fill(0, buffer.memory().len(), 0xa5);
        fixture.read(0, most, &buffer, offset)?;
        let mut got = vec![0; want.len()];
        buffer.memory().read(offset, &mut got);
        same(&got, &want, 0, block).with_context(|| format!("{most} blocks at offset {offset}"))?;
    }
    let Some(mdts) = fixture.controller.max_transfer_bytes() else { return Ok(Verdict::Passed) };
    // More would need a chain of lists, by hand.
    if mdts >= 2 << 20 {
        return Ok(Verdict::Passed);
    }
    let over = mdts as u32 / block as u32 + 1;
    match fixture.read(0, over as usize, &buffer, 0).err().and_then(|e| e.downcast::<PushError>().ok()) {
        Some(PushError::TooLong { max, .. }) if max == mdts => {}
        other => bail!("{over} blocks, with MDTS {mdts}: {other:?}"),
    }
    // The controller must refuse it by itself, whatever stands in the list.
    let list = fixture.buffer(PAGE)?;
    for entry in 0..mdts as usize / PAGE {
        list.memory().store_u64(entry * 8, buffer.iova() + ((entry + 1) * PAGE) as u64);
    }
    let sqe = Sqe::read(fixture.ns.nsid(), 0, over as u16 - 1, false).with_prps(buffer.iova(), list.iova());
    fixture.refused("one block past MDTS", sqe, &[StatusCode::InvalidField])?;
    fixture.controller.check_health().map_err(|e: DriverError| e.into()).map(|()| Verdict::Passed)
}
