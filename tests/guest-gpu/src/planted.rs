//! Bugs that are planted into what kernels are told of a queue: each must be noticed, or the other checks are worth nothing.

use std::time::Duration;

use anyhow::{Result, ensure};
use warprow_gpu_queues::abi::QueueDescriptor;
use warprow_simt::shim::Shim;
use warprow_vfio::VfioFunction;

use crate::scene::{IDS, PATIENCE, Placement, Scene};

/// A bug, by its name, and how it changes a descriptor.
type Bug = (&'static str, fn(&mut QueueDescriptor));

/// DSTRD is 0 on QEMU's controllers, and these queues have the highest identifiers: what a wrong address hits is no other's, and
/// in the BAR's first page, which the kernel maps as well, no register.
const BUGS: [Bug; 6] = [
    ("the tail goes to the head's doorbell, and the head to the tail's", |it| {
        std::mem::swap(&mut it.sq_tail, &mut it.cq_head);
    }),
    ("doorbells of another stride", |it| {
        it.sq_tail += 8 * u64::from(it.queue_id);
        it.cq_head += 8 * u64::from(it.queue_id) + 4;
    }),
    ("the doorbells of the queue behind", |it| {
        it.sq_tail += 8;
        it.cq_head += 8;
    }),
    ("doorbells that are counted from the BAR's first page", |it| {
        it.sq_tail -= 4096;
        it.cq_head -= 4096;
    }),
    ("rows land a page behind the landing area", |it| it.landing_iova += 4096),
    ("completions are looked for a page behind", |it| it.cq += 4096),
];

/// Plants each bug, in placement `placement`: rows are lost or the comparison fails; and without the bug all is well again.
pub(crate) fn are_noticed(placement: Placement, shim: &mut Shim, address: &str) -> Result<()> {
    drop(Scene::new(40, vec![VfioFunction::open(address)?])?);
    for (name, bug) in BUGS {
        let mut scene = Scene::found(40, vec![VfioFunction::open(address)?])?;
        let queues = scene.queues(placement, 1, Duration::from_secs(1))?;
        let mut descriptors = queues.set.descriptors().to_vec();
        descriptors.iter_mut().for_each(bug);
        let noticed = match scene.look_up_by(shim, &queues, &descriptors, IDS, None) {
            Ok(looked) if looked.lost > 0 => format!("{} of {} rows lost", looked.lost, looked.cold),
            Ok(looked) => {
                let canaries = queues.assert_peer();
                ensure!(canaries.is_err(), "unnoticed: {name}: {looked:?}");
                "canaries".to_owned()
            }
            Err(wrong) => {
                // The last kernel may not have run.
                queues.gate.exit();
                format!("{wrong:#}").chars().take(90).collect()
            }
        };
        println!("       {name}: {noticed}");
        drop((queues, scene));
        let mut scene = Scene::found(40, vec![VfioFunction::open(address)?])?;
        let mut queues = scene.queues(placement, 1, PATIENCE)?;
        scene.whole(shim, &mut queues, IDS)?;
        queues.assert_peer()?;
        scene.assert_unchanged()?;
    }
    Ok(())
}
