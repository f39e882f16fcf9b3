//! Look-ups through either kind of doorbells, on a drive in good health.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, ensure};
use warprow_dma::Function;
use warprow_gpu_queues::abi::DOORBELL_MMIO;
use warprow_simt::shim::Shim;

use crate::scene::{IDS, PATIENCE, Placement, Scene};

/// A ring test, then random tables, queues of one to four batches. Prints how many doorbells the kernels stored for each queue, for whoever has the
/// controller's own count.
pub(crate) fn by(placement: Placement, shim: &mut Shim, open: &dyn Fn() -> Result<Arc<dyn Function>>) -> Result<()> {
    let kind = placement.doorbell_kind();
    let mut stored = BTreeMap::new();
    for seed in 0..3 {
        let mut scene = Scene::new(seed, vec![open()?])?;
        // The controller's trace counts the doorbells of an identifier, so each placement has identifiers of its own.
        let others = (0..placement as u16).map(|_| scene.queues(Placement::HostThread, 1, PATIENCE));
        let others = others.collect::<Result<Vec<_>>>()?;
        // The next queue gets the identifier of the queue that is dropped here.
        let tested = scene.test_ring(shim, placement, PATIENCE, None)??;
        ensure!(
            tested.lbas == 768 && tested.contents > 1 && tested.in_registers == (kind == DOORBELL_MMIO),
            "{tested:?}"
        );
        let mut queues = scene.queues(placement, 1 + seed as u32, PATIENCE)?;
        let queue = queues.set.descriptors()[0];
        ensure!(queue.doorbell_kind == kind, "{queue:?}");
        let granted = scene.drives[0].0.granted_queue_pairs();
        ensure!(queue.queue_id == u32::from(granted - others.len() as u16), "{queue:?} of {granted}");
        let mut commands = 0;
        for _ in 0..3 {
            let ids = scene.rng.u64(1..=IDS);
            commands += scene.whole(shim, &mut queues, ids)?.told.counters.commands;
        }
        ensure!(commands > 0, "no row came from the drive");
        *stored.entry(queue.queue_id).or_insert(0) += queues.doorbells()? + tested.doorbells;
        queues.assert_peer()?;
        drop((queues, others));
        scene.assert_unchanged()?;
    }
    for (queue, doorbells) in stored {
        println!("DOORBELLS queue={queue} stored={doorbells} kind={kind}");
    }
    Ok(())
}
