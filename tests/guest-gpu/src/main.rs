//! The CUDA kernels, as fibers of this program, drive the queues of an NVMe controller that others wrote. In the guest (tests/guest/run.sh),
//! as an ordinary user, it is the guest's drive behind VFIO, to whose doorbell registers they store themselves. On the host it is a
//! controller that another process serves over vfio-user (tests/peers/spdk.sh); then they store to memory that both have mapped.

mod completions;
mod deaths;
mod kept;
mod lookups;
mod memory_space;
mod peer;
mod pinned;
mod planted;
mod pulled;
mod resets;
mod scene;
mod slot;
mod unplugged;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use warprow_conformance::Tally;
use warprow_dma::Function;
use warprow_driver::ResetKind;
use warprow_simt::shim::Shim;
use warprow_vfio::{VfioFunction, VfioInterface};
use warprow_vfio_user::VfioUserFunction;

use crate::kept::{End, Lender};
use crate::pulled::Moment;
use crate::scene::Placement;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["doorbells", address] => doorbells(address),
        ["socket", path] => socket(path),
        ["rings", address, slow] => rings(address, slow),
        ["deaths", address, kills] => {
            kills.parse().context("how many processes to kill").and_then(|kills| deaths(address, kills))
        }
        ["kept", address, kills] => {
            kills.parse().context("how many processes to end").and_then(|kills| kept(address, Lender::Socket, kills))
        }
        ["gdrdrv", address, slow, kills] => {
            kills.parse().context("how many processes to end").and_then(|kills| gdrdrv(address, slow, kills))
        }
        ["pulled", ref addresses @ ..] => pulled(addresses),
        ["victim", address, how] => {
            kernels().and_then(|mut shim| deaths::victim(&mut shim, address, how)).map(|()| ExitCode::SUCCESS)
        }
        ["borrower", address, end, lender] => {
            kernels().and_then(|mut shim| kept::borrower(&mut shim, address, end, lender)).map(|()| ExitCode::SUCCESS)
        }
        ["keeper"] => kept::keeper().map(|()| ExitCode::SUCCESS),
        _ => Err(anyhow::anyhow!(
            "guest-gpu doorbells ADDRESS | socket PATH | rings ADDRESS SLOW | deaths ADDRESS KILLS | kept ADDRESS KILLS | gdrdrv ADDRESS SLOW KILLS | pulled ADDRESS... WITNESS... | victim ADDRESS registers|peer-first|drive-first | borrower ADDRESS END LENDER | keeper"
        )),
    };
    result.unwrap_or_else(|error| {
        println!("{error:#}");
        ExitCode::FAILURE
    })
}

fn kernels() -> Result<Shim> {
    Shim::linked().context("the kernels are not part of this program: there was no C++ compiler when it was built")
}

/// Who stores to the doorbells, with the controller's own trace for a witness (tests/guest/suite.sh).
fn doorbells(address: &str) -> Result<ExitCode> {
    let (mut shim, mut tally) = (kernels()?, Tally::default());
    let open = || -> Result<Arc<dyn Function>> { Ok(VfioFunction::open(address)?) };
    let mut by = |name, placement| tally.run(name, || lookups::by(placement, &mut shim, &open));
    by("look-ups, doorbells stored by a host thread (B′)", Placement::HostThread);
    by("look-ups, doorbells stored by the kernels (B)", Placement::Registers);
    if takes_peers(address)? {
        by("look-ups, completions and rows in a peer's BAR (A⁻)", Placement::Peer);
    }
    tally.finish()
}

/// A controller that another process serves over vfio-user. **What it holds is overwritten.**
fn socket(path: &str) -> Result<ExitCode> {
    let (mut shim, mut tally) = (kernels()?, Tally::default());
    let open = || -> Result<Arc<dyn Function>> { Ok(VfioUserFunction::open(path)?) };
    let mut by = |name, placement| tally.run(name, || lookups::by(placement, &mut shim, &open));
    by("look-ups, doorbells stored by a host thread (B′)", Placement::HostThread);
    by("look-ups, doorbells in shared memory stored by the kernels (C)", Placement::Memory);
    tally.finish()
}

/// Drives that are pulled out of their slots. Of each, another controller shares the medium.
fn pulled(addresses: &[&str]) -> Result<ExitCode> {
    let (mut shim, mut tally) = (kernels()?, Tally::default());
    let (drives, witnesses) = addresses.split_at(addresses.len() / 2);
    let kinds = [
        (Placement::Registers, Moment::Waiting),
        (Placement::Registers, Moment::Ringing),
        (Placement::Peer, Moment::Waiting),
        (Placement::Peer, Moment::Ringing),
    ];
    anyhow::ensure!(drives.len() == kinds.len(), "{} drives, each with a witness, are needed", kinds.len());
    let peers = takes_peers(witnesses[0])?;
    for (((placement, moment), drive), witness) in kinds.into_iter().zip(drives).zip(witnesses) {
        if peers || placement != Placement::Peer {
            let name = format!("a drive that is pulled while a kernel is {moment:?} ({placement:?})").to_lowercase();
            tally.run(&name, || pulled::while_kernels_look_up(placement, moment, &mut shim, drive, witness));
        }
    }
    tally.finish()
}

/// Whether the drive's interface of VFIO maps memory of other devices.
fn takes_peers(address: &str) -> Result<bool> {
    Ok(VfioFunction::open(address)?.interface() == VfioInterface::Type1)
}

/// Queues whose doorbells the kernels store to: resets, bugs in what kernels are told, a drive that is too slow, and one that is removed.
fn rings(address: &str, slow: &str) -> Result<ExitCode> {
    let (mut shim, mut tally) = (kernels()?, Tally::default());
    let peers = takes_peers(address)?;
    let placements = [Placement::Registers, Placement::Peer];
    for &placement in if peers { &placements[..] } else { &placements[..1] } {
        for kind in [ResetKind::Controller, ResetKind::Function] {
            let name = format!("resets ({kind:?}) while kernels look up ({placement:?})");
            tally.run(&name, || resets::under_look_ups(placement, kind, &mut shim, address));
        }
        let name = format!("planted bugs are noticed ({placement:?})");
        tally.run(&name, || planted::are_noticed(placement, &mut shim, address));
        let name = format!("a drive that is too slow ({placement:?})");
        tally.run(&name, || resets::too_slow(placement, &mut shim, slow));
    }
    tally.run("memory space that somebody turns off", || memory_space::turned_off(&mut shim, address));
    // The drive is gone then.
    let last = if peers { Placement::Peer } else { Placement::Registers };
    let name = format!("a drive that is removed while kernels look up ({last:?})");
    tally.run(&name, || unplugged::while_kernels_look_up(last, &mut shim, address));
    tally.finish()
}

/// Processes that are killed while their kernels drive a queue, so many for each placement.
fn deaths(address: &str, kills: u64) -> Result<ExitCode> {
    let (mut shim, mut tally) = (kernels()?, Tally::default());
    let peers = takes_peers(address)?;
    tally.run("stray tails after the next owner's enable", || deaths::stray_tails(&mut shim, address));
    for &how in if peers { &["registers", "peer-first", "drive-first"][..] } else { &["registers"][..] } {
        tally.run(&format!("SIGKILL while kernels look up ({how})"), || deaths::killed(how, kills, &mut shim, address));
    }
    tally.finish()
}

/// Processes that end while a slow drive writes to a peer's memory for them, so many in each way.
fn kept(address: &str, lender: Lender, kills: u64) -> Result<ExitCode> {
    let (mut shim, mut tally) = (kernels()?, Tally::default());
    each_end(address, lender, kills, &mut shim, &mut tally);
    tally.finish()
}

fn each_end(address: &str, lender: Lender, kills: u64, shim: &mut Shim, tally: &mut Tally) {
    let ways = [
        (End::Unkept, "SIGKILL of a process without a keeper: its drive writes into the next owner's memory"),
        (End::Kept, "SIGKILL of a process with a keeper"),
        (End::KeeperFirst, "SIGKILL of the keeper, and then of its owner"),
        (End::Clean, "a process that lets go of its keeper in order"),
    ];
    for (end, name) in ways {
        tally.run(name, || kept::ended(end, lender, kills, shim, address));
    }
}

/// Completions and rows in memory that the real gdrdrv pins.
fn gdrdrv(address: &str, slow: &str, kills: u64) -> Result<ExitCode> {
    let (mut shim, mut tally) = (kernels()?, Tally::default());
    let open = || -> Result<Arc<dyn Function>> { Ok(VfioFunction::open(address)?) };
    tally.run("what gdrdrv refuses", pinned::refusals);
    tally.run("look-ups, completions and rows in memory that gdrdrv pins (A⁻)", || {
        lookups::by(Placement::Pinned, &mut shim, &open)
    });
    for kind in [ResetKind::Controller, ResetKind::Function] {
        let name = format!("resets ({kind:?}) while kernels look up (Pinned)");
        tally.run(&name, || resets::under_look_ups(Placement::Pinned, kind, &mut shim, address));
    }
    each_end(slow, Lender::Gdrdrv, kills, &mut shim, &mut tally);
    tally.finish()
}
