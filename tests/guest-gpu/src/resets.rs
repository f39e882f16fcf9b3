//! Resets, and commands that take too long, while a kernel drives the queues.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use warprow_driver::ResetKind;
use warprow_gpu_queues::RingTestError;
use warprow_gpu_queues::abi::{FAULT_CLOSED, FAULT_TIMED_OUT};
use warprow_simt::shim::Shim;
use warprow_vfio::VfioFunction;

use crate::scene::{IDS, PATIENCE, Placement, Scene};

/// Another thread resets the controller while kernels look up: rows are right or told as lost, and after recovery all come.
pub(crate) fn under_look_ups(placement: Placement, kind: ResetKind, shim: &mut Shim, address: &str) -> Result<()> {
    let mut scene = Scene::new(10, vec![VfioFunction::open(address)?])?;
    let mut queues = scene.queues(placement, 2, PATIENCE)?;
    let controller = scene.drives[0].0.clone();
    let mut inside = 0;
    for round in 0..6u64 {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| -> Result<()> {
            let gate = queues.gate.clone();
            let (controller, done) = (&controller, &done);
            let reset = scope.spawn(move || {
                // While a kernel is inside: how long a look-up takes hangs on the machine.
                let began = Instant::now();
                while gate.inside() == 0 && began.elapsed() < PATIENCE {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(round));
                let reset = controller.reset(kind);
                done.store(true, Ordering::Release);
                reset
            });
            while !done.load(Ordering::Acquire) {
                let looked = scene.look_up(shim, &mut queues, IDS)?;
                ensure!(looked.lost == 0 || looked.told.faults > 0 || looked.told.gate_was_closed != 0, "{looked:?}");
            }
            reset.join().expect("the thread that resets")?;
            Ok(())
        })?;
        inside += u32::from(queues.set.faults().iter().any(|fault| fault.kind == FAULT_CLOSED));
        ensure!(queues.set.is_poisoned(), "the queue is gone from the device, and the set does not know");
        let looked = scene.look_up(shim, &mut queues, IDS)?;
        ensure!(looked.lost == looked.cold, "rows came through a queue that the device does not have: {looked:?}");
        queues.set.recover()?;
        scene.whole(shim, &mut queues, IDS)?;
    }
    println!("       {inside} of 6 resets found a kernel inside");
    ensure!(inside > 0, "no reset came while a kernel was inside");
    queues.assert_peer()?;
    scene.assert_unchanged()
}

/// A drive that is too slow for the queue's patience: bounded, told, and the queue serves again once it is recovered.
pub(crate) fn too_slow(placement: Placement, shim: &mut Shim, slow: &str) -> Result<()> {
    let mut scene = Scene::new(11, vec![VfioFunction::open(slow)?])?;
    let mut queues = scene.queues(placement, 4, Duration::from_millis(150))?;
    for _ in 0..2 {
        // What the drive has saved up of its rate goes first.
        let mut lost = 0;
        for _ in 0..20 {
            lost = scene.look_up(shim, &mut queues, IDS)?.lost;
            if lost > 0 {
                break;
            }
        }
        ensure!(lost > 0, "nothing took too long");
        let faults = queues.set.faults();
        ensure!(
            faults.iter().any(|fault| fault.kind == FAULT_TIMED_OUT && fault.waited_ns >= 150_000_000),
            "{faults:?}"
        );
        queues.set.recover()?;
        std::thread::sleep(Duration::from_secs(1));
        scene.whole(shim, &mut queues, 20)?;
    }
    queues.assert_peer()?;
    drop(queues);
    scene.assert_unchanged()?;
    // A ring test says so too, and the drive serves afterwards.
    let silent = (0..20).find_map(|_| match scene.test_ring(shim, placement, Duration::from_millis(40)) {
        Ok(Ok(_)) => None,
        other => Some(other),
    });
    match silent {
        Some(Ok(Err(RingTestError::Silent { outstanding: 1.., .. }))) => {}
        other => bail!("a ring test of a slow drive: {other:?}"),
    }
    std::thread::sleep(Duration::from_secs(1));
    let mut queues = scene.queues(placement, 1, PATIENCE)?;
    scene.whole(shim, &mut queues, 20)?;
    scene.assert_unchanged()
}
