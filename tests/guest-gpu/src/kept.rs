//! A peer's memory that a keeper keeps for a drive. The peer's own driver is played by this process: it lends the peer's BAR out by a socket,
//! and gives the BAR to its next owner as soon as nobody has the socket's other end open any more.

use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use warprow_simt::shim::Shim;
use warprow_vfio::{Keeper, VfioFunction, keep};

use crate::deaths::open;
use crate::peer::PeerMemory;
use crate::pinned::{NextOwner, PinnedMemory};
use crate::scene::{IDS, PATIENCE, Placement, Scene, Written};

const SEED: u64 = 20;
/// How long the drive goes on with what it has taken up, if nobody stops it.
const TAIL: Duration = Duration::from_secs(4);

/// What happens to the process that looks up, while its drive writes to the peer's BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It is killed, and nobody keeps its memory: what must not happen.
    Unkept,
    /// It is killed, and has a keeper.
    Kept,
    /// The keeper is killed first, and then the owner.
    KeeperFirst,
    /// It lets go of everything in order.
    Clean,
}

impl End {
    const ALL: [Self; 4] = [Self::Unkept, Self::Kept, Self::KeeperFirst, Self::Clean];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unkept => "unkept",
            Self::Kept => "kept",
            Self::KeeperFirst => "keeper-first",
            Self::Clean => "clean",
        }
    }
}

/// Who plays the driver of the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lender {
    /// This test, by a socket: the memory is free when nobody has its other end open.
    Socket,
    /// The real gdrdrv over a kernel module of ours: the memory is free when it is no longer pinned.
    Gdrdrv,
}

impl Lender {
    fn name(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::Gdrdrv => "gdrdrv",
        }
    }

    fn placement(self) -> Placement {
        match self {
            Self::Socket => Placement::Peer,
            Self::Gdrdrv => Placement::Pinned,
        }
    }
}

/// The keeper's process: `guest-gpu keeper`.
pub(crate) fn keeper() -> Result<()> {
    Ok(keep(std::io::stdin().as_fd().try_clone_to_owned()?)?)
}

/// The process that is killed: `guest-gpu borrower ADDRESS END LENDER`. Its standard input is the socket by which it has the peer's BAR,
/// if it is not gdrdrv that lends it.
pub(crate) fn borrower(shim: &mut Shim, address: &str, end: &str, lender: &str) -> Result<()> {
    let lender =
        [Lender::Socket, Lender::Gdrdrv].into_iter().find(|it| it.name() == lender).context("another lender")?;
    let end = End::ALL.into_iter().find(|it| it.name() == end).context("another end")?;
    let (function, lease) = (VfioFunction::open(address)?, std::io::stdin());
    // The lender has the drive open too: no end of this process closes it.
    give(lease.as_fd(), function.duplicate()?.as_fd())?;
    let mut program = Command::new(std::env::current_exe()?);
    program.arg("keeper");
    let keeper = (end != End::Unkept).then(|| Keeper::start(program)).transpose()?.map(Arc::new);
    // Memory that gdrdrv lends is kept when a queue is made in it.
    let by_hand = keeper.as_ref().filter(|_| lender == Lender::Socket);
    let hold = by_hand.map(|keeper| keeper.hold(&function, &[lease.as_fd()])).transpose()?;
    let mut scene = Scene::found(SEED, vec![function])?;
    let written = match lender {
        Lender::Socket => Written::Bar(PeerMemory::new()?),
        Lender::Gdrdrv => Written::Pinned(PinnedMemory::new(keeper.clone())?),
    };
    let mut queues = scene.queues_in(lender.placement(), 4, PATIENCE, written)?;
    scene.whole(shim, &mut queues, IDS)?;
    if end == End::Clean {
        drop((queues, hold, keeper));
        scene.assert_unchanged()?;
        say("let go")?;
        std::thread::sleep(Duration::from_secs(30));
        bail!("nobody killed the process");
    }
    let process = keeper.as_ref().map_or(0, |keeper| keeper.process());
    let function = scene.drives[0].0.function().clone();
    if let Some(keeper) = keeper.clone() {
        std::thread::spawn(move || {
            while !keeper.is_lost() {
                std::thread::sleep(Duration::from_millis(1));
            }
            say(if function.set_bus_master(true).is_err() { "stopped" } else { "writes on" })
        });
    }
    let descriptors = queues.set.descriptors().to_vec();
    let (began, mut said) = (Instant::now(), false);
    while began.elapsed() < Duration::from_secs(30) {
        let mut beside = |idle: bool| {
            // All lanes pause, and so commands are outstanding.
            if idle && !said {
                said = say(&format!("inside {process}")).is_ok();
            }
            began.elapsed().as_nanos() as u64
        };
        scene.look_up_by(shim, &queues, &descriptors, IDS, Some(&mut beside))?;
    }
    bail!("nobody killed the process")
}

fn say(what: &str) -> Result<()> {
    println!("{what}");
    Ok(std::io::stdout().flush()?)
}

/// Ends so many processes while a slow drive writes to the peer's BAR for them. Where the memory is kept, its next owner finds every byte as it
/// left it; where it is not, the drive writes into the next owner's memory. The drive's content is unchanged in any case.
pub(crate) fn ended(end: End, lender: Lender, kills: u64, shim: &mut Shim, address: &str) -> Result<()> {
    let mut scene = Scene::new(SEED, vec![VfioFunction::open(address)?])?;
    let mut broken = 0;
    for round in 0..kills {
        scene.drives.clear();
        let intact = one(end, lender, round, address).with_context(|| format!("round {round}"))?;
        broken += u64::from(!intact);
        scene.drives = Scene::found(SEED, vec![open(address)?])?.drives;
        scene.assert_unchanged()?;
        let mut queues = scene.queues(lender.placement(), 2, PATIENCE)?;
        scene.whole(shim, &mut queues, IDS)?;
    }
    if end == End::Unkept {
        ensure!(broken > 0, "a drive that nobody stops has written nothing in {kills} rounds: this test shows nothing");
        println!("       without a keeper, the drive wrote into the next owner's memory in {broken} of {kills} rounds");
    } else {
        ensure!(broken == 0, "the drive wrote into the next owner's memory in {broken} of {kills} rounds");
    }
    Ok(())
}

/// One round. Whether the peer's next owner found its memory as it had left it.
fn one(end: End, lender: Lender, round: u64, address: &str) -> Result<bool> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut borrower = Command::new(std::env::current_exe()?);
    borrower.args(["borrower", address, end.name(), lender.name()]).stdin(OwnedFd::from(theirs)).stdout(Stdio::piped());
    let mut child = borrower.spawn()?;
    // It holds the other end of the socket.
    drop(borrower);
    let drive = take(ours.as_fd()).context("the drive's file");
    let ended = drive.and_then(|drive| Ok((drive, end_it(end, round, &mut child)?)));
    // Also where something went wrong.
    let _ = child.kill();
    let (drive, ()) = match ended {
        Ok(ended) => ended,
        Err(error) => {
            child.wait()?;
            return Err(error);
        }
    };
    ours.set_read_timeout(Some(PATIENCE))?;
    // The memory's next owner fills it with canaries.
    let intact = match lender {
        Lender::Socket => {
            let rest =
                std::io::Read::read(&mut &ours, &mut [0; 1]).context("waiting for the peer's memory to be free")?;
            ensure!(rest == 0, "the borrower said more than was asked");
            let next = PeerMemory::new()?;
            child.wait()?;
            std::thread::sleep(TAIL);
            next.assert_canaries().is_ok()
        }
        Lender::Gdrdrv => {
            let next = NextOwner::new().context("waiting for the memory to be unpinned")?;
            child.wait()?;
            std::thread::sleep(TAIL);
            next.is_untouched()
        }
    };
    drop(drive);
    Ok(intact)
}

fn end_it(end: End, round: u64, child: &mut Child) -> Result<()> {
    let mut out = BufReader::new(child.stdout.take().context("no pipe")?);
    let line = read(&mut out)?;
    if end == End::Clean {
        ensure!(line == "let go", "the borrower said {line:?}");
        return Ok(());
    }
    let keeper = line.strip_prefix("inside ").with_context(|| format!("the borrower said {line:?}"))?;
    std::thread::sleep(Duration::from_millis(round * 7 % 30));
    if end == End::KeeperFirst {
        let killed = Command::new("/bin/kill").args(["-KILL", keeper]).status()?;
        ensure!(killed.success(), "the keeper {keeper} could not be killed");
        let line = read(&mut out)?;
        ensure!(line == "stopped", "the borrower said {line:?} after its keeper's death");
    }
    child.kill()?;
    Ok(())
}

fn read(out: &mut BufReader<ChildStdout>) -> Result<String> {
    let mut line = String::new();
    out.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

/// Sends a descriptor.
fn give(socket: BorrowedFd<'_>, what: BorrowedFd<'_>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [what];
    ensure!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "no room for a descriptor");
    sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a descriptor.
fn take(socket: BorrowedFd<'_>) -> Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let rights = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    rights.context("no descriptor came")
}
