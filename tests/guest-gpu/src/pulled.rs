//! A drive that is pulled out of its slot, without a word to the kernel, while kernels drive its queues.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use warprow_driver::ResetKind;
use warprow_gpu_queues::abi::FAULT_TIMED_OUT;
use warprow_simt::shim::Shim;
use warprow_vfio::VfioFunction;

use crate::scene::{IDS, PATIENCE, Placement, Scene};
use crate::slot::Slot;

/// When the drive goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moment {
    /// The kernel waits for the drive.
    Waiting,
    /// The kernel has not stored a doorbell yet.
    Ringing,
}

/// How long a queue waits for a command.
const WAIT: Duration = Duration::from_secs(1);
/// More than the driver takes to find that nobody answers.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs what may take long on a drive that is gone, and ends all the same.
fn bounded<T>(what: &str, run: impl FnOnce() -> T) -> Result<T> {
    let began = Instant::now();
    let result = run();
    ensure!(began.elapsed() < LIMIT, "{what} took {:?}", began.elapsed());
    Ok(result)
}

/// Rows that did not come are told as lost, everything that is asked of the drive afterwards ends with an error that names the drive,
/// and the medium, which the controller at `witness` shares, has not changed.
pub(crate) fn while_kernels_look_up(
    placement: Placement,
    moment: Moment,
    shim: &mut Shim,
    address: &str,
    witness: &str,
) -> Result<()> {
    let slot = Slot::of(address)?;
    let mut scene = Scene::new(60, vec![VfioFunction::open(address)?])?;
    let mut other = Scene::found(60, vec![VfioFunction::open(witness)?])?;
    other.assert_unchanged().context("the witness has another medium")?;
    let mut queues = scene.queues(placement, 2, WAIT)?;
    scene.whole(shim, &mut queues, IDS)?;

    let pulled = Cell::new(false);
    let failed = Cell::new(None);
    let pull = || {
        if !pulled.replace(true) {
            failed.set(slot.pull().err());
        }
    };
    let looked = match moment {
        Moment::Waiting => scene.look_up_late(shim, &queues, IDS, pull)?,
        Moment::Ringing => {
            let (began, descriptors) = (Instant::now(), queues.set.descriptors().to_vec());
            let mut beside = |_| {
                pull();
                std::thread::yield_now();
                began.elapsed().as_nanos() as u64
            };
            scene.look_up_by(shim, &queues, &descriptors, IDS, Some(&mut beside))?
        }
    };
    failed.take().map_or(Ok(()), Err)?;
    ensure!(pulled.get() && looked.lost > 0, "the drive was pulled, and no row was lost: {looked:?}");
    ensure!(
        matches!(moment, Moment::Waiting) || looked.lost == looked.cold,
        "rows came from a drive that is gone: {looked:?}"
    );
    let faults = queues.set.faults();
    let told = |fault: &warprow_gpu_queues::abi::Fault| {
        fault.kind == FAULT_TIMED_OUT && u128::from(fault.waited_ns) >= WAIT.as_nanos()
    };
    ensure!(faults.iter().any(told), "{faults:?}");
    queues.assert_peer()?;

    let again = bounded("a look-up after that", || scene.look_up(shim, &mut queues, IDS))??;
    ensure!(again.lost == again.cold, "rows came from a drive that is gone: {again:?}");
    let controller = scene.drives[0].0.clone();
    let name = |what: &str, error: &dyn std::fmt::Display| -> Result<()> {
        let text = error.to_string();
        ensure!(text.contains(address), "{what} does not name the drive: {text}");
        println!("       {what}: {text}");
        Ok(())
    };
    match bounded("recovering", || queues.set.recover())? {
        Err(error) => name("recovering", &error)?,
        Ok(()) => bail!("queues of a drive that is gone are recovered"),
    }
    match bounded("a reset", || controller.reset(ResetKind::Function))? {
        Err(error) => name("a reset", &error)?,
        Ok(()) => bail!("a drive that is gone is reset"),
    }
    drop(controller);
    bounded("giving queues and drive back", || {
        drop(queues);
        scene.drives.clear();
    })?;
    match bounded("opening", || VfioFunction::open(address).map_err(anyhow::Error::from))? {
        Err(error) => name("opening", &format!("{error:#}"))?,
        Ok(_) => bail!("a drive that is gone is opened"),
    }
    other.assert_unchanged()?;
    let mut queues = other.queues(placement, 2, PATIENCE)?;
    other.whole(shim, &mut queues, IDS)?;
    queues.assert_peer()
}
