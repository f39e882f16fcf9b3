//! A process that is killed while its kernels drive a queue; and stores to doorbells that come when the drive has its next owner.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use memmap2::MmapOptions;
use warprow_simt::shim::Shim;
use warprow_vfio::VfioFunction;

use crate::completions::Completion;
use crate::peer::PeerMemory;
use crate::scene::{IDS, PATIENCE, Placement, Scene};

const SEED: u64 = 20;
/// Queue pairs that QEMU's controller grants: the first queue that kernels drive has this identifier.
const QUEUES: u16 = 64;

/// The process that is killed: `guest-gpu victim ADDRESS PLACEMENT`. `peer-first` opens the peer's BAR before the drive, and
/// `drive-first` after it.
pub(crate) fn victim(shim: &mut Shim, address: &str, how: &str) -> Result<()> {
    let placement = if how == "registers" { Placement::Registers } else { Placement::Peer };
    let _first = (how == "peer-first").then(PeerMemory::new).transpose()?;
    let mut scene = Scene::found(SEED, vec![VfioFunction::open(address)?])?;
    let mut queues = scene.queues(placement, 4, PATIENCE)?;
    scene.whole(shim, &mut queues, IDS)?;
    println!("inside");
    std::io::stdout().flush()?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(30) {
        scene.whole(shim, &mut queues, IDS)?;
    }
    bail!("nobody killed the process")
}

/// Kills so many processes whose kernels look up. The next owner finds every LBA as it was, nothing comes to the peer's BAR any more, and the
/// next owner's own look-ups are right.
pub(crate) fn killed(how: &str, kills: u64, shim: &mut Shim, address: &str) -> Result<()> {
    let mut scene = Scene::new(SEED, vec![VfioFunction::open(address)?])?;
    let placement = if how == "registers" { Placement::Registers } else { Placement::Peer };
    for round in 0..kills {
        scene.drives.clear();
        let program = std::env::current_exe()?;
        let mut child = Command::new(program).args(["victim", address, how]).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let said = child.stdout.take().context("no pipe").and_then(|out| Ok(BufReader::new(out).read_line(&mut line)?));
        std::thread::sleep(Duration::from_millis(round * 7 % 60));
        child.kill()?;
        let status = child.wait()?;
        said?;
        ensure!(line.trim() == "inside", "the victim said {line:?}: {status}");
        // The BAR's next owner fills it with canaries.
        let peer = (placement == Placement::Peer).then(PeerMemory::new).transpose()?;
        scene.drives = Scene::found(SEED, vec![open(address)?])?.drives;
        scene.assert_unchanged()?;
        peer.as_deref().map(PeerMemory::assert_canaries).transpose()?;
        let mut queues = scene.queues(placement, 2, PATIENCE)?;
        scene.whole(shim, &mut queues, IDS)?;
        queues.assert_peer()?;
    }
    Ok(())
}

/// Opens a function that its last owner may just be letting go of.
pub(crate) fn open(address: &str) -> Result<std::sync::Arc<VfioFunction>> {
    let start = Instant::now();
    loop {
        match VfioFunction::open(address) {
            Ok(function) => return Ok(function),
            Err(error) if start.elapsed() > Duration::from_secs(5) => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Doorbells that a dead owner's GPU still stores to: a mapping of BAR0 that the owner's death does not end.
struct StrayDoorbells(memmap2::MmapRaw);

impl StrayDoorbells {
    /// Maps BAR0 through sysfs, which init has lent to the tester.
    fn new() -> Result<Self> {
        let path = std::env::var("NVME_BAR").context("NVME_BAR")?;
        let file = std::fs::File::options().read(true).write(true).open(&path).with_context(|| path.clone())?;
        Ok(Self(MmapOptions::new().map_raw(&file).with_context(|| path)?))
    }

    #[expect(unsafe_code, reason = "a store to a device's register, past the driver: what this check is about")]
    fn store(&self, offset: usize, value: u32) {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.0.len());
        // SAFETY: an aligned word inside the mapping of a device's registers, which nothing else in this process refers to.
        unsafe { self.0.as_mut_ptr().add(offset).cast::<u32>().write_volatile(value) };
    }
}

/// The GPU of a process that is killed goes on storing tails, until the drive's next owner has its own queue: nothing is written, no
/// row is wrong, what fails is told, and recovery helps. The next owner's queue has the identifier that the dead process's had.
pub(crate) fn stray_tails(shim: &mut Shim, address: &str) -> Result<()> {
    let mut scene = Scene::new(SEED, vec![VfioFunction::open(address)?])?;
    let stray = StrayDoorbells::new()?;
    let mut told = [0u32; 2];
    for tail in [1u32, 7, 200, 300, 500, 2] {
        scene.drives.clear();
        let program = std::env::current_exe()?;
        let mut child = Command::new(program).args(["victim", address, "registers"]).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let said = child.stdout.take().context("no pipe").and_then(|out| Ok(BufReader::new(out).read_line(&mut line)?));
        child.kill()?;
        child.wait()?;
        said?;
        let (stop, queue) = (AtomicBool::new(false), 0x1000 + 8 * usize::from(QUEUES));
        let queues = std::thread::scope(|scope| -> Result<_> {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // DSTRD is 0 on QEMU's controllers.
                    stray.store(queue, tail);
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let made = (|| {
                scene.drives = Scene::found(SEED, vec![open(address)?])?.drives;
                let queues = scene.queues(Placement::Registers, 1, Duration::from_secs(2))?;
                let found = queues.set.descriptors()[0];
                ensure!(found.queue_id == u32::from(QUEUES) && tail < found.sq_size, "{found:?}");
                // The drive has taken a tail up when it has answered what it found in the submission queue.
                let (began, answer) = (Instant::now(), Completion::next(&queues.set)?);
                while !answer.is_here() {
                    ensure!(began.elapsed() < PATIENCE, "the drive takes no stray tail up within {PATIENCE:?}");
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(queues)
            })();
            stop.store(true, Ordering::Relaxed);
            made
        });
        let mut queues = queues?;
        let looked = scene.look_up(shim, &mut queues, 120)?;
        told[usize::from(looked.lost > 0)] += 1;
        ensure!(looked.lost > 0 || looked.told.counters.anomalies > 0, "tail {tail} went unnoticed: {looked:?}");
        // Where all rows came the queue is not poisoned: it begins anew all the same.
        drop(queues);
        let mut queues = scene.queues(Placement::Registers, 1, PATIENCE)?;
        scene.whole(shim, &mut queues, IDS)?;
        drop(queues);
        scene.assert_unchanged()?;
    }
    println!("       with stray tails: {} look-ups were whole, {} lost rows", told[0], told[1]);
    Ok(())
}
