use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use warprow_driver::prp::Data;
use warprow_driver::{CommandEnd, ControllerOptions, DriverError, QueueOptions, ResetKind};
use warprow_spec::registers::{Csts, offset};

use crate::fixture::{Fixture, first_namespace, fitting, open_with};
use crate::subject::{Subject, Verdict};

pub(crate) fn keeps_data(subject: &Subject) -> Result<Verdict> {
    let mut fixture = Fixture::open(subject)?;
    let block = fixture.block();
    let buffer = fixture.buffer(16 * block)?;
    for kind in [ResetKind::Controller, ResetKind::Function, ResetKind::Subsystem, ResetKind::Controller] {
        if kind == ResetKind::Subsystem && !fixture.controller.cap().nssrs() {
            ensure!(matches!(fixture.controller.reset(kind), Err(DriverError::Unsupported { .. })), "{kind:?}");
            continue;
        }
        fixture.write_pattern(90 + kind as u64, 0, 16)?;
        fixture.done(|pair, ns| pair.flush(ns, 0))?;
        // Commands that the device has been told of, and commands that it has not.
        for tag in 0..16u64 {
            let data = Data::Contiguous { iova: buffer.iova() + tag * block as u64, len: block as u64 };
            fixture.pair.read(&fixture.ns, tag, 1, data, tag)?;
            if tag == 7 {
                fixture.pair.ring()?;
            }
        }
        fixture.pair.leave();
        fixture.controller.reset(kind).with_context(|| format!("{kind:?}"))?;
        let mut ended = BTreeMap::new();
        fixture.pair.recreate(|completion| {
            *ended.entry((completion.tag, completion.ended == CommandEnd::Lost)).or_insert(0) += 1
        })?;
        ensure!(ended.len() == 16 && ended.values().all(|&n| n == 1), "{kind:?}: {ended:?}");
        ensure!((8..16).all(|tag| ended.contains_key(&(tag, true))), "{kind:?}: {ended:?}");
        fixture.check_pattern(90 + kind as u64, 0, 16).with_context(|| format!("{kind:?}"))?;
        fixture.write_pattern(95, 20, 4)?;
        fixture.check_pattern(95, 20, 4)?;
    }
    Ok(Verdict::Passed)
}

pub(crate) fn waits_for_owners(subject: &Subject) -> Result<Verdict> {
    let options = ControllerOptions { leave_timeout: Duration::from_millis(20), ..ControllerOptions::default() };
    let controller = open_with(subject, options)?;
    let ns = first_namespace(&controller)?;
    let pair = controller.queue_pair(&fitting(&controller, &QueueOptions::default()))?;
    let id = pair.id();
    let mut fixture = Fixture { pair, ns, controller };
    fixture.write_pattern(96, 0, 4)?;
    match fixture.controller.reset(ResetKind::Controller) {
        Err(DriverError::QueuesInUse { queues, .. }) => ensure!(queues == [id], "{queues:?}"),
        other => bail!("a reset under a live queue: {other:?}"),
    }
    fixture.check_pattern(96, 0, 4).context("after a reset that did not come about")?;
    fixture.pair.leave();
    fixture.controller.reset(ResetKind::Controller)?;
    ensure!(matches!(fixture.pair.ring(), Err(DriverError::Stale { queue, .. }) if queue == id));
    fixture.pair.recreate(|_| {})?;
    fixture.check_pattern(96, 0, 4)?;
    Ok(Verdict::Passed)
}

pub(crate) fn shutdown(subject: &Subject) -> Result<Verdict> {
    let mut fixture = Fixture::open(subject)?;
    fixture.write_pattern(97, 0, 16)?;
    ensure!(
        matches!(fixture.controller.shutdown(), Err(DriverError::QueuesInUse { .. })),
        "a shutdown under a live queue"
    );
    fixture.check_pattern(97, 0, 16)?;
    let Fixture { pair, ns, controller } = fixture;
    drop(pair);
    controller.shutdown()?;
    ensure!(matches!(controller.smart_log(), Err(DriverError::Down { .. })), "an admin command after a shutdown");
    ensure!(matches!(controller.shutdown(), Err(DriverError::Down { .. })), "a second shutdown");
    ensure!(!Csts::from_bits(subject.function.read_u32(offset::CSTS)?).rdy(), "CSTS.RDY after a shutdown");
    controller.reset(ResetKind::Controller)?;
    let pair = controller.queue_pair(&fitting(&controller, &QueueOptions::default()))?;
    let mut fixture = Fixture { pair, ns, controller };
    fixture.check_pattern(97, 0, 16).context("after a shutdown")?;
    Ok(Verdict::Passed)
}
