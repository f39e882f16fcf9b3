//! A drive whose medium fails in two places (tests/guest/media-errors.conf).

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use warprow_conformance::fill;
use warprow_dma::SystemClock;
use warprow_driver::{BlockIo, Controller, ControllerOptions, DriverError, QueueOptions};
use warprow_spec::StatusCode;
use warprow_vfio::VfioFunction;

const UNREADABLE: u64 = 2048;
const UNWRITABLE: u64 = 4096;

/// The errors come with the medium's status and their LBA; everything else works, before and after.
pub(crate) fn errors(address: &str) -> Result<()> {
    let function = VfioFunction::open(address)?;
    let controller = Controller::open(function, Arc::new(SystemClock::new()), ControllerOptions::default())?;
    let ns = controller.namespace(1)?;
    ensure!(ns.lba_bytes() == 512, "sectors are counted in 512 bytes");
    let mut io = BlockIo::new(&controller, ns, &QueueOptions::default())?;
    let mut want = vec![0; 64 * 512];
    for first in [UNREADABLE - 32, UNWRITABLE - 64, UNWRITABLE + 1] {
        fill(1, first, 512, &mut want);
        io.write(first, &want)?;
    }

    let mut got = vec![0; 64 * 512];
    for (lba, blocks) in [(UNREADABLE, 1), (UNREADABLE - 32, 64), (UNREADABLE - 1, 2)] {
        status(io.read(lba, &mut got[..blocks * 512]), StatusCode::UnrecoveredReadError, lba)?;
        // The neighbours can be read.
        let before = UNREADABLE - 32;
        let after = UNREADABLE + 1;
        for (first, blocks) in [(before, 32), (after, 31)] {
            let len = blocks * 512;
            fill(1, first, 512, &mut want[..len]);
            io.read(first, &mut got[..len])?;
            ensure!(got[..len] == want[..len], "blocks from {first} on");
        }
    }
    for (lba, blocks) in [(UNWRITABLE, 1), (UNWRITABLE - 8, 16)] {
        status(io.write(lba, &want[..blocks * 512]), StatusCode::WriteFault, lba)?;
    }
    fill(1, UNWRITABLE + 1, 512, &mut want);
    io.read(UNWRITABLE + 8, &mut got[..32 * 512])?;
    ensure!(got[..32 * 512] == want[7 * 512..39 * 512], "blocks behind those of the failed write");
    Ok(())
}

fn status(result: Result<(), DriverError>, code: StatusCode, lba: u64) -> Result<()> {
    match result {
        Err(error @ DriverError::Command { status, command, .. })
            if status.code() == code && command.issued.lba == lba =>
        {
            println!("       {error}");
            Ok(())
        }
        other => bail!("{code:?} at LBA {lba} is due: {other:?}"),
    }
}
