//! Runs in the guest (tests/guest/run.sh) as an ordinary user: every check, against every NVMe controller there.

mod attach;
mod deaths;
mod linux;
mod media;
mod peer;
mod vfio;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use warprow_conformance::{CHECKS, Subject, Tally};
use warprow_dma::SystemClock;
use warprow_vfio::{VfioFunction, VfioInterface};

use crate::deaths::Place;
use crate::peer::InPeer;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["open", address] => open(address),
        ["pin", address, bytes] => {
            bytes.parse().context("BYTES").and_then(|bytes| vfio::pin(address, bytes)).map(|()| ExitCode::SUCCESS)
        }
        ["controllers"] => controllers(),
        ["machine", first, second, ours, linuxs, failing] => machine([first, second], [ours, linuxs], failing),
        ["deaths", address, slow] => deaths(address, slow),
        ["victim", address, place] => {
            Place::named(place).and_then(|place| deaths::victim(address, place)).map(|()| ExitCode::SUCCESS)
        }
        _ => Err(anyhow::anyhow!(
            "guest-nvme open ADDRESS | pin ADDRESS BYTES | controllers | machine A B OURS LINUX'S FAILING | deaths ADDRESS SLOW | \
             victim ADDRESS host|peer"
        )),
    };
    result.unwrap_or_else(|error| {
        println!("{error:#}");
        ExitCode::FAILURE
    })
}

/// Opens a function and closes it: what another process can do.
fn open(address: &str) -> Result<ExitCode> {
    VfioFunction::open(address)?;
    Ok(ExitCode::SUCCESS)
}

/// RLIMIT_MEMLOCK as init has set it, bytes.
fn memlock() -> Result<usize> {
    Ok(std::env::var("MEMLOCK_KIB").context("MEMLOCK_KIB")?.parse::<usize>()? << 10)
}

/// Everything, on every controller that init has bound to vfio-pci.
fn controllers() -> Result<ExitCode> {
    let addresses = std::env::var("NVME_FUNCTIONS").context("NVME_FUNCTIONS")?;
    let memlock = memlock()?;
    let mut tally = Tally::default();
    tally.run("wrong addresses are refused", vfio::wrong_addresses);
    for address in addresses.split_whitespace() {
        println!("{address}");
        tally.run("opened once at a time", || vfio::exclusive(address));
        tally.run("both of VFIO's interfaces", || vfio::interfaces(address));
        let function = VfioFunction::open(address)?;
        tally.run("registers", || vfio::registers(&function));
        tally.run("mappings", || vfio::mappings(&function));
        tally.run("memory limit", || vfio::memory_limit(&function, memlock));
        tally.run("function reset", || vfio::reset(&function));
        let subject = Subject { function, clock: Arc::new(SystemClock::new()) };
        tally.run("what Linux wrote is read", || linux::written_by_linux(&subject));
        for check in CHECKS {
            tally.judge(check.name, || check.run(&subject));
        }
        tally.run("a namespace is detached and attached", || attach::detached_and_attached(&subject));
        tally.run("left for Linux to read", || linux::leave_for_linux(&subject));
    }
    tally.finish()
}

/// Functions that share a group, with each other and with Linux's, and a medium that fails.
fn machine(ours: [&str; 2], shared: [&str; 2], failing: &str) -> Result<ExitCode> {
    let mut tally = Tally::default();
    tally.run("two functions of one group", || vfio::one_group(ours[0], ours[1]));
    tally.run("a function of Linux's driver is refused", || vfio::bound_to_linux(shared[1]));
    tally.run("a function in a group with Linux's is refused", || vfio::shared_with_linux(shared[0], shared[1]));
    let memlock = memlock()?;
    tally.run("the memory limit of a user", || vfio::memory_limit_of_the_user(ours[0], failing, memlock));
    tally.run("a medium that fails in two places", || media::errors(failing));
    tally.finish()
}

/// Memory in a peer's BAR, and ends with commands in flight on a slow drive.
fn deaths(address: &str, slow: &str) -> Result<ExitCode> {
    let mut tally = Tally::default();
    let function = VfioFunction::open(address)?;
    let takes_peers = function.interface() == VfioInterface::Type1;
    if takes_peers {
        drop(function);
        tally.run("rings and data lie in a peer's BAR", || peer::holds_everything(address));
        let function = InPeer::new(VfioFunction::open(address)?)?;
        let subject = Subject { function, clock: Arc::new(SystemClock::new()) };
        for check in CHECKS {
            tally.judge(&format!("{}, in a peer's BAR", check.name), || check.run(&subject));
        }
    } else {
        tally.run("a peer's BAR is refused", || peer::refused(&function));
        drop(function);
    }
    // Where commands take their time, they are in flight for certain.
    let subject = Subject { function: VfioFunction::open(slow)?, clock: Arc::new(SystemClock::new()) };
    for check in CHECKS.iter().filter(|check| check.name.ends_with("under load")) {
        tally.judge(&format!("{}, on a slow drive", check.name), || check.run(&subject));
    }
    drop(subject);
    let places = [Place::Host, Place::Peer];
    for &place in if takes_peers { &places[..] } else { &places[..1] } {
        tally.run(&format!("a clean end under load ({place:?})"), || deaths::clean_end(slow, place));
        tally.run(&format!("SIGKILL under load ({place:?})"), || deaths::killed(slow, place));
    }
    tally.finish()
}
