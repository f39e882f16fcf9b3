use anyhow::{Context, Result, bail, ensure};
use warprow_driver::prp::Data;
use warprow_driver::{CommandEnd, PushError};
use warprow_spec::{NSID_ALL, NvmOpcode, Sqe, StatusCode};

use crate::fixture::{Fixture, pattern, same};
use crate::subject::{Subject, Verdict};

pub(crate) fn durable_writes(subject: &Subject) -> Result<Verdict> {
    let fixture = Fixture::open(subject)?;
    let block = fixture.block();
    let mut io = fixture.into_block_io()?;
    let want = pattern(70, 0, block, 32);
    io.write(0, &want[..16 * block])?;
    io.flush()?;
    io.write_durably(16, &want[16 * block..])?;
    io.flush()?;
    drop(io);
    let mut fixture = Fixture::open(subject)?;
    same(&fixture.content(0, 32)?, &want, 0, block)?;
    Ok(Verdict::Passed)
}

pub(crate) fn write_zeroes(subject: &Subject) -> Result<Verdict> {
    let mut fixture = Fixture::open(subject)?;
    if !fixture.controller.info().oncs.write_zeroes() {
        return Ok(Verdict::Skipped("there is no Write Zeroes".into()));
    }
    let block = fixture.block();
    fixture.write_pattern(71, 0, 32)?;
    // The Deallocate bit is for controllers that say so (DLFEAT, NVM Command Set, figure 114).
    let deallocate = fixture.ns.deallocates_zeroed();
    for (lba, blocks, deallocate) in [(5, 1, false), (8, 9, false), (20, 4, deallocate)] {
        fixture.done(|pair, ns| pair.write_zeroes(ns, lba, blocks, deallocate, 0))?;
    }
    let mut want = pattern(71, 0, block, 32);
    for lba in [5..6, 8..17, 20..24] {
        want[lba.start * block..lba.end * block].fill(0);
    }
    same(&fixture.content(0, 32)?, &want, 0, block)?;
    Ok(Verdict::Passed)
}

pub(crate) fn compare(subject: &Subject) -> Result<Verdict> {
    let mut fixture = Fixture::open(subject)?;
    if !fixture.controller.info().oncs.compare() {
        return Ok(Verdict::Skipped("there is no Compare".into()));
    }
    let block = fixture.block();
    let blocks = 6;
    let len = blocks * block;
    let buffer = fixture.buffer(len)?;
    let data = Data::Contiguous { iova: buffer.iova(), len: len as u64 };
    fixture.write_pattern(72, 4, blocks)?;
    buffer.memory().write(0, &pattern(72, 4, block, blocks));
    fixture.done(|pair, ns| pair.compare(ns, 4, blocks as u32, data, 0))?;
    for wrong in [0, block, len - 1] {
        let byte = buffer.memory().load_u8(wrong);
        buffer.memory().store_u8(wrong, byte ^ 1);
        match fixture.one(|pair, ns| pair.compare(ns, 4, blocks as u32, data, 0))?.ended {
            CommandEnd::Answered(status) if status.code() == StatusCode::CompareFailure => {}
            other => bail!("byte {wrong} differs: {other:?}"),
        }
        buffer.memory().store_u8(wrong, byte);
    }
    fixture.check_pattern(72, 4, blocks)?;
    Ok(Verdict::Passed)
}

pub(crate) fn deallocate(subject: &Subject) -> Result<Verdict> {
    let mut fixture = Fixture::open(subject)?;
    if !fixture.controller.info().oncs.dataset_management() {
        return Ok(Verdict::Skipped("there is no Dataset Management".into()));
    }
    let block = fixture.block();
    let blocks = 512;
    fixture.write_pattern(73, 0, blocks)?;
    let ranges = [(8, 8), (64, 1), (100, 200), (500, 12)];
    fixture.done(|pair, ns| pair.deallocate(ns, &ranges, 0))?;
    let got = fixture.content(0, blocks)?;
    let want = pattern(73, 0, block, blocks);
    let zeros = vec![0; block];
    let mut kept = 0;
    for (lba, (got, want)) in got.chunks(block).zip(want.chunks(block)).enumerate() {
        let freed =
            ranges.iter().any(|&(first, count)| (first as usize..first as usize + count as usize).contains(&lba));
        if !freed {
            same(got, want, lba as u64, block).context("a block that was not deallocated")?;
        } else if got == want {
            kept += 1;
        } else {
            // DLFEAT: zeros, or ones, or what was there (a deallocation is a hint).
            let ones = got.iter().all(|&byte| byte == 0xff);
            ensure!(
                got == zeros || ones && !fixture.ns.deallocated_reads_zero(),
                "LBA {lba} reads {:02x?}...",
                &got[..8]
            );
        }
    }
    // Deallocated blocks are as good as others.
    fixture.write_pattern(74, 90, 220)?;
    fixture.check_pattern(74, 90, 220)?;
    fixture.check_pattern(73, 400, 100).with_context(|| format!("{kept} blocks kept their data"))?;
    match fixture.pair.deallocate(&fixture.ns, &[(fixture.ns.lba_count() - 1, 2)], 0) {
        Err(PushError::OutOfRange { .. }) => Ok(Verdict::Passed),
        other => bail!("a range past the end: {other:?}"),
    }
}

pub(crate) fn out_of_range(subject: &Subject) -> Result<Verdict> {
    let mut fixture = Fixture::open(subject)?;
    let block = fixture.block();
    let count = fixture.ns.lba_count();
    let nsid = fixture.ns.nsid();
    let buffer = fixture.buffer(2 * block)?;
    fixture.write_pattern(75, count - 4, 4)?;
    fixture.write_pattern(76, 0, 4)?;
    fixture.check_pattern(75, count - 1, 1).context("the last block")?;
    let data = Data::Contiguous { iova: buffer.iova(), len: 2 * block as u64 };
    for lba in [count - 1, count, u64::MAX - 1, u64::MAX] {
        match fixture.pair.read(&fixture.ns, lba, 2, data, 0) {
            Err(PushError::OutOfRange { .. }) => {}
            other => bail!("LBA {lba}: {other:?}"),
        }
        // Past the driver's own check.
        buffer.memory().fill(0, 2 * block, 0xa5);
        let prp2 = if 2 * block > 4096 { buffer.iova() + 4096 } else { 0 };
        let codes = [StatusCode::LbaOutOfRange];
        for sqe in [Sqe::read(nsid, lba, 1, false), Sqe::write(nsid, lba, 1, false)] {
            fixture.refused(&format!("LBA {lba}"), sqe.with_prps(buffer.iova(), prp2), &codes)?;
        }
        let mut got = vec![0; 2 * block];
        buffer.memory().read(0, &mut got);
        ensure!(got.iter().all(|&byte| byte == 0xa5), "a read that failed brought data");
    }
    fixture.check_pattern(75, count - 4, 4).context("writes that failed changed data")?;
    fixture.check_pattern(76, 0, 4).context("writes that failed changed data")?;
    Ok(Verdict::Passed)
}

pub(crate) fn unknown(subject: &Subject) -> Result<Verdict> {
    let mut fixture = Fixture::open(subject)?;
    let block = fixture.block();
    let nsid = fixture.ns.nsid();
    let nn = fixture.controller.info().nn;
    let buffer = fixture.buffer(block)?;
    fixture.write_pattern(77, 0, 4)?;
    for opcode in [0x7c, 0x70] {
        let what = format!("opcode {opcode:02X}h");
        fixture.refused(&what, Sqe::new(opcode, nsid), &[StatusCode::InvalidCommandOpcode])?;
    }
    for bad in [0, nn + 1, 0xffff_fffe, NSID_ALL] {
        let read = Sqe::read(bad, 0, 0, false).with_prps(buffer.iova(), 0);
        let write = Sqe::write(bad, 0, 0, false).with_prps(buffer.iova(), 0);
        for sqe in [read, write] {
            let what = format!("{} of namespace {bad:#x}", NvmOpcode(sqe.opcode()));
            fixture.refused(&what, sqe, &[StatusCode::InvalidNamespaceOrFormat, StatusCode::InvalidField])?;
        }
    }
    fixture.check_pattern(77, 0, 4)?;
    Ok(Verdict::Passed)
}
