//! Sends each command once through the driver.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use warprow_dma::{Clock, MappedMemory};
use warprow_driver::prp::Data;
use warprow_driver::{DriverError, FormatRequest, QueuePair};
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::admin::FeatureSelect;
use warprow_spec::async_event::{AsyncEventKind, HealthEvent};
use warprow_spec::features::FeatureId;
use warprow_spec::log::LogPageId;
use warprow_spec::{NvmOpcode, StatusCode};

use crate::fixture::{BLOCK, BLOCKS, Fixture, pattern, patterns};
use crate::table::Command;

/// How a command went.
pub(crate) enum Went {
    Well,
    /// The command succeeded, with or to other data than it should.
    Wrong,
    Failed(DriverError),
}

impl From<Result<(), DriverError>> for Went {
    fn from(result: Result<(), DriverError>) -> Self {
        result.map_or_else(Self::Failed, |()| Self::Well)
    }
}

/// Blocks that commands change: `FIRST` and the `COUNT` from there.
const FIRST: usize = 8;
const COUNT: usize = 16;

/// Sends `command`. What it does to the blocks is noted in the rig's model: with `seed`, and as doubtful if it failed.
pub(crate) fn send(fixture: &mut Fixture, command: Command, seed: u64) -> Result<Went> {
    Ok(match command {
        Command::IdentifyController
        | Command::NumberOfQueues
        | Command::AsyncEventConfig
        | Command::AsyncEventRequest => {
            fixture.close();
            match fixture.open() {
                Ok(()) => Went::Well,
                Err(error) => {
                    fixture.close();
                    Went::Failed(error)
                }
            }
        }
        Command::IdentifyNamespace => {
            let found = fixture.controller()?.namespace(1);
            if let Ok(namespace) = &found {
                ensure!(namespace.lba_bytes() == BLOCK as u32 && namespace.lba_count() == 2048);
            }
            found.map(drop).into()
        }
        Command::ActiveNamespaces => {
            let found = fixture.controller()?.active_namespaces();
            if let Ok(list) = &found {
                ensure!(list[..] == [1], "{list:?}");
            }
            found.map(drop).into()
        }
        Command::NamespaceDescriptors => {
            let found = fixture.controller()?.namespace_ids(1);
            if let Ok(ids) = &found {
                ensure!(ids.uuid.is_some());
            }
            found.map(drop).into()
        }
        Command::GetFeatures => {
            let found = fixture.controller()?.feature(FeatureId::TEMPERATURE_THRESHOLD, 0, FeatureSelect::DEFAULT);
            if let Ok(kelvins) = found {
                ensure!(kelvins == 343, "{kelvins}");
            }
            found.map(drop).into()
        }
        Command::SetFeatures => {
            fixture.controller()?.set_feature(FeatureId::TEMPERATURE_THRESHOLD, 0, 350).map(drop).into()
        }
        Command::GetLogPage => fixture.controller()?.smart_log().map(drop).into(),
        Command::Abort => abort(fixture)?,
        Command::FormatNvm => {
            let request = FormatRequest { timeout: crate::fixture::PATIENCE, ..FormatRequest::new(1, BLOCK as u32) };
            let result = fixture.controller()?.format(&request, |_| {});
            (0..BLOCKS).for_each(|block| fixture.expect_block(block, vec![0; BLOCK], result.is_err()));
            if result.is_ok() {
                fixture.describe_again()?;
            }
            result.map(drop).into()
        }
        Command::CreateCq | Command::CreateSq => {
            fixture.controller()?.queue_pair(&Fixture::queue_options()).map(drop).into()
        }
        Command::DeleteSq | Command::DeleteCq => fixture.io()?.recover().into(),
        Command::Read => {
            let mut bytes = vec![0xee; COUNT * BLOCK];
            match fixture.io()?.read(FIRST as u64, &mut bytes) {
                Ok(()) => {
                    let blocks = bytes.chunks_exact(BLOCK).zip(&fixture.model[FIRST..]);
                    let right = blocks.into_iter().all(|(found, model)| model.iter().any(|bytes| bytes == found));
                    if right { Went::Well } else { Went::Wrong }
                }
                Err(error) => Went::Failed(error),
            }
        }
        Command::Write | Command::WriteDurably => {
            let bytes = patterns(seed, FIRST, COUNT);
            let io = fixture.io()?;
            let result = match command {
                Command::Write => io.write(FIRST as u64, &bytes),
                _ => io.write_durably(FIRST as u64, &bytes),
            };
            fixture.expect(seed, FIRST, COUNT, result.is_err());
            result.into()
        }
        Command::Flush => fixture.io()?.flush().into(),
        Command::WriteZeroes => {
            let result = fixture.io()?.write_zeroes(FIRST as u64, COUNT as u32);
            zeros(fixture, result)
        }
        Command::Deallocate => {
            let result = fixture.io()?.deallocate(&[(FIRST as u64, 4), (FIRST as u64 + 4, COUNT as u32 - 4)]);
            zeros(fixture, result)
        }
        Command::Compare => compare(fixture)?,
    })
}

fn zeros(fixture: &mut Fixture, result: Result<(), DriverError>) -> Went {
    (FIRST..FIRST + COUNT).for_each(|block| fixture.expect_block(block, vec![0; BLOCK], result.is_err()));
    result.into()
}

/// A queue pair beside the rig's own, with a block of memory.
fn second_queue(fixture: &Fixture) -> Result<(QueuePair, std::sync::Arc<MappedMemory>)> {
    let controller = fixture.controller()?;
    let mut pair = controller.queue_pair(&Fixture::queue_options())?;
    let memory = controller.allocate(BLOCK)?;
    pair.keep(memory.clone());
    Ok((pair, memory))
}

/// Aborts a read that the drive holds. The read itself ends as aborted.
fn abort(fixture: &mut Fixture) -> Result<Went> {
    let (mut pair, memory) = second_queue(fixture)?;
    let held = Rule::new(Fault::Delay(Duration::from_millis(900))).io(NvmOpcode::READ);
    fixture.drive.faults().inject(held);
    let namespace = fixture.io()?.namespace().clone();
    let cid = pair.read(&namespace, 0, 1, Data::Contiguous { iova: memory.iova(), len: BLOCK as u64 }, 0)?;
    pair.ring()?;
    fixture.clock.sleep(Duration::from_micros(10));
    let result = fixture.controller()?.abort(pair.id(), cid);
    if let Ok(aborted) = result {
        ensure!(aborted, "the read is held, and was not aborted");
        let mut status = None;
        pair.wait(|completion| status = Some(completion.ended))?;
        let code = match status.context("no completion")? {
            warprow_driver::CommandEnd::Answered(status) => status.code(),
            other => anyhow::bail!("the read ended as {other:?}"),
        };
        ensure!(code == StatusCode::AbortRequested, "the read ended with {code}");
    }
    Ok(result.map(drop).into())
}

/// Compares a block with what it holds. Its queue is dropped at the end, which releases what timed out.
fn compare(fixture: &mut Fixture) -> Result<Went> {
    let (mut pair, memory) = second_queue(fixture)?;
    let namespace = fixture.io()?.namespace().clone();
    memory.memory().write(0, &fixture.model[0][0]);
    pair.compare(&namespace, 0, 1, Data::Contiguous { iova: memory.iova(), len: BLOCK as u64 }, 0)?;
    let mut ended = None;
    Ok(match pair.wait(|completion| ended = Some(completion)) {
        Ok(_) => match pair.error(&ended.context("no completion")?) {
            None => Went::Well,
            Some(error) => Went::Failed(error),
        },
        Err(error) => Went::Failed(error),
    })
}

/// Everything that the drive can do, with all data new; then reads it back.
pub(crate) fn works(fixture: &mut Fixture, seed: u64) -> Result<()> {
    fixture.io()?.write(0, &patterns(seed, 0, BLOCKS))?;
    fixture.io()?.flush()?;
    (0..BLOCKS).for_each(|block| fixture.expect_block(block, pattern(seed, block), false));
    Ok(())
}

/// Whether eight events in a row are reported.
pub(crate) fn events_arrive(fixture: &Fixture) -> Result<()> {
    for round in 0..8 {
        fixture.drive.raise_event(AsyncEventKind::Health(HealthEvent::TEMPERATURE), LogPageId::SMART);
        fixture.clock.sleep(Duration::from_millis(1));
        let events = fixture.controller()?.take_events()?;
        ensure!(events.len() == 1, "round {round}: {events:?}");
    }
    Ok(())
}
