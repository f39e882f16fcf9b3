//! No mapping ends while the device may still reach it, whoever lets go of it and when.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use warprow_dma::MappedMemory;
use warprow_driver::prp::Data;
use warprow_driver::{CommandEnd, DriverError, PushError, QueuePair, ResetKind};
use warprow_soft_controller::{Fault, QueueMatch, Rule};
use warprow_spec::{AdminOpcode, Status, StatusCode};

use crate::fixture::{BLOCK, Fixture, LATE};

const READS: usize = 15;

/// Reads that are late, into memory that nobody but the queue pair has.
fn late_reads(fixture: &mut Fixture) -> Result<(QueuePair, std::ops::Range<u64>, warprow_dma::WeakMemory)> {
    let namespace = fixture.io()?.namespace().clone();
    let controller = fixture.controller()?;
    let mut pair = controller.queue_pair(&Fixture::queue_options())?;
    let memory = controller.allocate(READS * BLOCK)?;
    let buffer = |i: usize| Data::Contiguous { iova: memory.iova() + (i * BLOCK) as u64, len: BLOCK as u64 };
    let refused = pair.read(&namespace, 0, 1, buffer(0), 0);
    ensure!(matches!(refused, Err(PushError::NotKept { .. })), "{refused:?}");
    pair.keep(memory.clone());
    fixture.drive.faults().inject(Rule::new(Fault::Delay(LATE)).on(QueueMatch::Id(pair.id())).always());
    for i in 0..READS {
        pair.read(&namespace, i as u64, 1, buffer(i), i as u64)?;
    }
    pair.ring()?;
    let place = memory.iova()..memory.iova() + memory.memory().len() as u64;
    Ok((pair, place, memory.memory().downgrade()))
}

/// None of what is allocated now lies where late data may land; it is returned, full of a pattern.
fn elsewhere(fixture: &Fixture, place: &std::ops::Range<u64>) -> Result<Vec<Arc<MappedMemory>>> {
    let others = (0..64).map(|_| fixture.controller()?.allocate(READS * BLOCK).context("memory"));
    let others = others.collect::<Result<Vec<_>>>()?;
    for other in &others {
        let begin = other.iova();
        let len = other.memory().len();
        ensure!(begin + len as u64 <= place.start || place.end <= begin, "an address in quarantine is given out");
        other.memory().fill(0, len, 0x77);
    }
    Ok(others)
}

fn untouched(others: &[Arc<MappedMemory>]) -> Result<()> {
    for other in others {
        let mut bytes = vec![0; other.memory().len()];
        other.memory().read(0, &mut bytes);
        ensure!(bytes.iter().all(|&byte| byte == 0x77), "late data landed in other memory");
    }
    Ok(())
}

#[test]
fn dropped_in_flight() -> Result<()> {
    let mut fixture = Fixture::opened()?;
    let (pair, _, memory) = late_reads(&mut fixture)?;
    ensure!(!memory.is_gone() && pair.outstanding() as usize == READS);
    // Deleted: now, and not before, the device reaches it no more.
    drop(pair);
    ensure!(memory.is_gone());
    let others = elsewhere(&fixture, &(0..0))?;
    fixture.outlast();
    untouched(&others)?;
    ensure!(fixture.drive.dma_faults() == 0);
    fixture.verify()
}

#[test]
fn dropped_with_a_queue_that_is_not_deleted() -> Result<()> {
    let mut fixture = Fixture::opened()?;
    let (mut pair, place, memory) = late_reads(&mut fixture)?;
    let mut timed_out = 0;
    while pair.outstanding() != 0 {
        pair.wait(|completion| timed_out += usize::from(completion.ended == CommandEnd::TimedOut))?;
    }
    ensure!(timed_out == READS && pair.quarantined() as usize == READS);
    let refused = Fault::Status(Status::from_code(StatusCode::InternalError));
    fixture.drive.faults().inject(Rule::new(refused).admin(AdminOpcode::DELETE_IO_SQ));
    drop(pair);
    ensure!(!memory.is_gone(), "it was unmapped while the device may write to it");
    let others = elsewhere(&fixture, &place)?;
    fixture.outlast();
    untouched(&others)?;
    ensure!(fixture.drive.dma_faults() == 0, "late data met no mapping");
    ensure!(!memory.is_gone());
    // RDY = 0 ends it.
    fixture.io()?.leave();
    fixture.controller()?.reset(ResetKind::Controller)?;
    fixture.io()?.recover()?;
    ensure!(memory.is_gone());
    fixture.verify()
}

#[test]
fn dropped_after_the_drive_was_given_up() -> Result<()> {
    let mut fixture = Fixture::opened()?;
    let (mut pair, _, memory) = late_reads(&mut fixture)?;
    pair.wait(|_| {})?;
    ensure!(!memory.is_gone());
    fixture.drive.faults().inject(Rule::new(Fault::Swallow).on(QueueMatch::Admin).always());
    let controller = fixture.controller()?.clone();
    let io = fixture.io()?;
    pair.leave();
    let given_up = controller.recover(None, || pair.recreate(|_| {}), || io.leave());
    ensure!(matches!(given_up, Err(DriverError::GivenUp { .. })), "{given_up:?}");
    drop(pair);
    // It says nothing, but RDY = 0 was reached on the way up. (A drive that does not even do that: in `ladder`.)
    ensure!(memory.is_gone());
    ensure!(matches!(controller.allocate(BLOCK), Err(DriverError::GivenUp { .. })));
    fixture.drive.faults().clear();
    controller.retry()?;
    fixture.io()?.recover()?;
    let others = elsewhere(&fixture, &(0..0))?;
    fixture.outlast();
    untouched(&others)?;
    fixture.verify()
}
