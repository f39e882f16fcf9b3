//! Resets, and commands that take too long, while a kernel drives the queues.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use warprow_driver::ResetKind;
use warprow_gpu_queues::RingTestError;
use warprow_gpu_queues::abi::{FAULT_CLOSED, FAULT_TIMED_OUT};
use warprow_simt::shim::{Shim, Turn};
use warprow_vfio::VfioFunction;

use crate::scene::{IDS, PATIENCE, Placement, Scene};

/// Resets that find a kernel waiting for its drive, then others at any moment of a look-up.
const WHILE_IT_WAITS: u64 = 4;
const AT_ANY_MOMENT: u64 = 2;

/// Another thread resets the controller while kernels look up: rows are right or told as lost, and after recovery all come.
pub(crate) fn under_look_ups(placement: Placement, kind: ResetKind, shim: &mut Shim, address: &str) -> Result<()> {
    let mut scene = Scene::new(10, vec![VfioFunction::open(address)?])?;
    let mut queues = scene.queues(placement, 2, PATIENCE)?;
    let controller = scene.drives[0].0.clone();
    let mut left = 0;
    for round in 0..WHILE_IT_WAITS + AT_ANY_MOMENT {
        // A look-up waits for its drive for a small part of its time, so a reset that comes just so may find no kernel that waits.
        let held = round < WHILE_IT_WAITS;
        let (waits, done) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| -> Result<()> {
            let gate = queues.gate.clone();
            let (controller, waits, done) = (&controller, &waits, &done);
            let reset = scope.spawn(move || {
                let is_time = || if held { waits.load(Ordering::Acquire) } else { gate.inside() != 0 };
                let began = Instant::now();
                while !is_time() && began.elapsed() < PATIENCE {
                    std::thread::sleep(Duration::from_micros(100));
                }
                std::thread::sleep(Duration::from_millis(round));
                let reset = controller.reset(kind);
                done.store(true, Ordering::Release);
                reset
            });
            while !done.load(Ordering::Acquire) {
                let looked = if held && !waits.load(Ordering::Acquire) {
                    scene.look_up_late(shim, &queues, IDS, || waits.store(true, Ordering::Release))?
                } else {
                    scene.look_up(shim, &mut queues, IDS)?
                };
                ensure!(looked.lost == 0 || looked.told.faults > 0 || looked.told.gate_was_closed != 0, "{looked:?}");
            }
            reset.join().expect("the thread that resets")?;
            Ok(())
        })?;
        let faults = queues.set.faults();
        let leaves = faults.iter().any(|fault| fault.kind == FAULT_CLOSED && fault.outstanding > 0);
        ensure!(leaves || !held, "reset {round} made no kernel leave that waited for its drive: {faults:?}");
        left += u32::from(leaves);
        ensure!(queues.set.is_poisoned(), "the queue is gone from the device, and the set does not know");
        let looked = scene.look_up(shim, &mut queues, IDS)?;
        ensure!(looked.lost == looked.cold, "rows came through a queue that the device does not have: {looked:?}");
        queues.set.recover()?;
        scene.whole(shim, &mut queues, IDS)?;
    }
    println!(
        "       {left} of {} resets made a kernel leave that waited for its drive",
        WHILE_IT_WAITS + AT_ANY_MOMENT
    );
    queues.assert_peer()?;
    scene.assert_unchanged()
}

/// A drive that is too slow for the queue's patience: bounded, told, and the queue serves again once it is recovered.
pub(crate) fn too_slow(placement: Placement, shim: &mut Shim, slow: &str) -> Result<()> {
    let mut scene = Scene::new(11, vec![VfioFunction::open(slow)?])?;
    let mut queues = scene.queues(placement, 4, Duration::from_millis(150))?;
    for _ in 0..2 {
        // What the drive has saved up of its rate goes first. On a machine that is so slow itself that the drive keeps up, the last
        // completions stay away.
        let mut lost = 0;
        for turn in 0..20 {
            lost = match turn {
                0..10 => scene.look_up(shim, &mut queues, IDS)?.lost,
                _ => scene.look_up_late(shim, &queues, IDS, || ())?.lost,
            };
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
        // A clock that stands still: all rows come, however long that takes.
        let descriptors = queues.set.descriptors().to_vec();
        scene.look_up_by(shim, &queues, &descriptors, 20, Some(&mut |_| 0))?.assert_whole()?;
    }
    queues.assert_peer()?;
    drop(queues);
    scene.assert_unchanged()?;
    // A ring test says so too, and the drive serves afterwards.
    let silent = (0..20).find_map(|turn| {
        let began = Instant::now();
        // Again, where the machine is so slow that the drive keeps up, the kernel's clock is fast.
        let mut fast = |_| began.elapsed().as_nanos() as u64 * 1000;
        let beside: Option<Turn<'_>> = if turn < 10 { None } else { Some(&mut fast) };
        match scene.test_ring(shim, placement, Duration::from_millis(40), beside) {
            Ok(Ok(_)) => None,
            other => Some(other),
        }
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
