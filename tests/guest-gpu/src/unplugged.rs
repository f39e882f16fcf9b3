//! A drive that is taken out of the machine while kernels drive its queues.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use warprow_simt::shim::Shim;
use warprow_vfio::VfioFunction;

use crate::scene::{IDS, PATIENCE, Placement, Scene};

/// Init removes the function whose address this file has, as root, and makes the other file when it begins.
const REMOVE: &str = "/tmp/remove";
const REMOVING: &str = "/tmp/removing";

fn await_for(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let began = Instant::now();
    while !is_so() {
        ensure!(began.elapsed() < PATIENCE, "{what} within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The kernel removes a function only when its user has let go of it. Until then look-ups are whole, because registers that kernels store
/// to keep the function open; afterwards nobody opens it, and the error names it.
pub(crate) fn while_kernels_look_up(placement: Placement, shim: &mut Shim, address: &str) -> Result<()> {
    let mut scene = Scene::new(50, vec![VfioFunction::open(address)?])?;
    let mut queues = scene.queues(placement, 2, PATIENCE)?;
    scene.whole(shim, &mut queues, IDS)?;
    std::fs::write("/tmp/remove.new", address)?;
    std::fs::rename("/tmp/remove.new", REMOVE).context(REMOVE)?;
    await_for("init does not begin to remove the function", || Path::new(REMOVING).exists())?;
    for _ in 0..5 {
        scene.whole(shim, &mut queues, IDS)?;
    }
    queues.assert_peer()?;
    scene.assert_unchanged()?;
    let function = format!("/sys/bus/pci/devices/{address}");
    ensure!(Path::new(&function).exists(), "the function went while it was in use");
    scene.drives.clear();
    // The queues alone keep the function now.
    std::thread::sleep(Duration::from_millis(200));
    ensure!(Path::new(&function).exists(), "the function went while kernels could store to its registers");
    drop(queues);
    await_for("the function is not removed", || !Path::new(&function).exists())?;
    match VfioFunction::open(address) {
        Err(error) if error.to_string().contains(address) => {
            println!("       afterwards: {error}");
            Ok(())
        }
        Err(error) => bail!("the error does not name the function: {error}"),
        Ok(_) => bail!("a function that was removed is opened"),
    }
}
