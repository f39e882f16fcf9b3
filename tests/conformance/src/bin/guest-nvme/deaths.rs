//! Ends with commands in flight, on a slow drive: of a controller's owner, and of a whole process by SIGKILL. Whoever has the
//! memory next, be it a peer's BAR or what lies at the same I/O virtual address, must find nothing of the dead in it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use warprow_conformance::fill;
use warprow_dma::{DmaMemory, Function, MappedMemory, MemoryKind, SystemClock};
use warprow_driver::prp::Data;
use warprow_driver::{BlockIo, Controller, ControllerOptions, QueueOptions, QueuePair};
use warprow_spec::registers::{Csts, offset};
use warprow_vfio::{OpenError, VfioFunction};

use crate::peer::{InPeer, bar};

/// Reads in flight, and the bytes of each. The drive takes a second for all of them (suite.sh).
const READS: usize = 64;
const BYTES: usize = 32 << 10;
const CANARY: u8 = 0x5a;
/// Longer than what was in flight could take.
const WATCH: Duration = Duration::from_millis(1500);

/// Where the drive's data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Memory of this host.
    Host,
    /// A peer's BAR, rings and lists too.
    Peer,
}

impl Place {
    pub(crate) fn named(name: &str) -> Result<Self> {
        match name {
            "host" => Ok(Self::Host),
            "peer" => Ok(Self::Peer),
            _ => bail!("{name} is neither host nor peer"),
        }
    }

    fn name(self) -> &'static str {
        if self == Self::Host { "host" } else { "peer" }
    }

    fn function(self, address: &str) -> Result<Arc<dyn Function>> {
        let function = VfioFunction::open(address)?;
        Ok(if self == Self::Host { function } else { InPeer::new(function)? })
    }
}

/// Everything of a drive with reads in flight.
struct Busy {
    // In the order in which they go.
    pair: QueuePair,
    buffer: Arc<MappedMemory>,
    _controller: Arc<Controller>,
}

/// Starts the reads; two of them have ended when it returns.
fn busy(function: Arc<dyn Function>) -> Result<Busy> {
    let controller = Controller::open(function, Arc::new(SystemClock::new()), ControllerOptions::default())?;
    let ns = controller.namespace(1)?;
    let blocks = BYTES / ns.lba_bytes() as usize;
    let mut pair = controller.queue_pair(&QueueOptions::default())?;
    let buffer = controller.allocate(READS * BYTES)?;
    pair.keep(buffer.clone());
    for i in 0..READS {
        let data = Data::Contiguous { iova: buffer.iova() + (i * BYTES) as u64, len: BYTES as u64 };
        pair.read(&ns, (i * blocks) as u64, blocks as u32, data, i as u64)?;
    }
    pair.ring()?;
    let mut ended = 0;
    while ended < 2 {
        ended += pair.wait(|_| {})?;
    }
    Ok(Busy { pair, buffer, _controller: controller })
}

/// No byte of what the drive will be asked for is 0 or the canary for a whole page.
fn prepare(address: &str) -> Result<Vec<u8>> {
    let controller =
        Controller::open(VfioFunction::open(address)?, Arc::new(SystemClock::new()), ControllerOptions::default())?;
    let ns = controller.namespace(1)?;
    let mut content = vec![0; READS * BYTES];
    fill(0xdead, 0, ns.lba_bytes() as usize, &mut content);
    let mut io = BlockIo::new(&controller, ns, &QueueOptions::default())?;
    io.write(0, &content)?;
    io.flush()?;
    Ok(content)
}

fn untouched(memory: &DmaMemory, what: &str) -> Result<()> {
    let mut bytes = vec![0; 1 << 20];
    for at in (0..memory.len()).step_by(bytes.len()) {
        let len = bytes.len().min(memory.len() - at);
        memory.read(at, &mut bytes[..len]);
        if let Some(first) = bytes[..len].iter().position(|&byte| byte != CANARY) {
            bail!("{what}: byte {:#x} of the new owner's memory was written", at + first);
        }
    }
    Ok(())
}

/// An owner lets go of a drive that has work to do: when the values are gone, nothing lands in the memory any more.
pub(crate) fn clean_end(address: &str, place: Place) -> Result<()> {
    prepare(address)?;
    let function = place.function(address)?;
    let Busy { pair, buffer, _controller: controller } = busy(function)?;
    let left = pair.outstanding();
    ensure!(left as usize > READS / 2, "only {left} reads were in flight");
    let memory = buffer.memory().clone();
    ensure!(memory.load_u64(0) != 0, "nothing has landed so far");
    drop((buffer, pair, controller));
    let memory = if place == Place::Peer { bar()? } else { memory };
    memory.fill(0, memory.len(), CANARY);
    std::thread::sleep(WATCH);
    untouched(&memory, "after a clean end")
}

/// The process that is killed: `guest-nvme victim ADDRESS PLACE`.
pub(crate) fn victim(address: &str, place: Place) -> Result<()> {
    let busy = busy(place.function(address)?)?;
    println!("{} {}", busy.pair.outstanding(), busy.buffer.iova());
    std::io::stdout().flush()?;
    std::thread::sleep(Duration::from_secs(60));
    bail!("nobody killed the process")
}

/// Kills a process with reads in flight; the next owner of its drive and memory finds both clean.
pub(crate) fn killed(address: &str, place: Place) -> Result<()> {
    let content = prepare(address)?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["victim", address, place.name()])
        .stdout(Stdio::piped())
        .spawn()?;
    let (left, iova) = kill_when_it_speaks(&mut child, address)?;
    ensure!(left > READS / 2, "only {left} reads were in flight");
    let peer = (place == Place::Peer).then(bar).transpose()?;
    let landed = |memory: &DmaMemory| {
        let mut bytes = vec![0; memory.len()];
        memory.read(0, &mut bytes);
        content.chunks(BYTES).filter(|want| bytes.windows(4096).step_by(4096).any(|page| page == &want[..4096])).count()
    };
    let in_bar = peer.as_ref().map(landed);
    if let Some(peer) = &peer {
        peer.fill(0, peer.len(), CANARY);
    }

    // The next owner. What it maps first lies where the dead process had its rings and buffers.
    let start = Instant::now();
    let function = loop {
        match VfioFunction::open(address) {
            Ok(function) => break function,
            Err(error) if start.elapsed() > Duration::from_secs(5) => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut canaries = Vec::new();
    let covered = |at: u64, canaries: &[MappedMemory]| {
        canaries.iter().any(|canary| (canary.iova()..canary.iova() + canary.memory().len() as u64).contains(&at))
    };
    let end = iova + (READS * BYTES) as u64 - 1;
    while !(covered(iova, &canaries) && covered(end, &canaries)) {
        ensure!(canaries.len() < 24, "addresses from {iova:#x} on are not given out again");
        let memory = DmaMemory::allocate(2 << 20, MemoryKind::Anonymous)?;
        memory.fill(0, memory.len(), CANARY);
        canaries.push(MappedMemory::new(function.clone(), memory)?);
    }
    let csts = Csts::from_bits(function.read_u32(offset::CSTS)?);
    ensure!(!csts.rdy(), "the controller still runs: {csts:?}");
    // Were there anything left to do, now it could.
    function.set_bus_master(true)?;
    std::thread::sleep(WATCH);
    for canary in &canaries {
        untouched(canary.memory(), "memory at the dead process's addresses")?;
    }
    if let Some(peer) = &peer {
        untouched(peer, "the peer's BAR")?;
    }
    drop(canaries);
    if let Some(count) = in_bar {
        ensure!(count > 0, "nothing had landed in the BAR");
        println!("       {left} of {READS} reads in flight, {count} found in the BAR after the death");
    }

    let controller = Controller::open(function, Arc::new(SystemClock::new()), ControllerOptions::default())?;
    let mut got = vec![0; 8 * BYTES];
    BlockIo::new(&controller, controller.namespace(1)?, &QueueOptions::default())?.read(0, &mut got)?;
    ensure!(got == content[..got.len()], "the drive's content changed");
    Ok(())
}

/// What the victim says: reads in flight, and the address of its buffers. It is dead when this returns, whatever happened.
fn kill_when_it_speaks(child: &mut Child, address: &str) -> Result<(usize, u64)> {
    let mut line = String::new();
    let read = child.stdout.take().context("no pipe").and_then(|out| Ok(BufReader::new(out).read_line(&mut line)?));
    let second = VfioFunction::open(address);
    child.kill()?;
    let status = child.wait()?;
    read?;
    ensure!(
        matches!(second, Err(OpenError::Busy { .. })),
        "a second process, while the first has the drive: {second:?}"
    );
    let (left, iova) = line.trim().split_once(' ').with_context(|| format!("the victim said {line:?}: {status}"))?;
    Ok((left.parse()?, iova.parse()?))
}
