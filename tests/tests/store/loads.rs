//! Loads on drives that fail: nothing that is late does harm.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use warprow_dma::Clock;
use warprow_layout::VolumeError;
use warprow_soft_controller::{Fault, PowerCut, Rule};
use warprow_spec::{AdminOpcode, NvmOpcode, StatusCode};
use warprow_store::StoreError;

use crate::fixture::Fixture;

/// Every command of a load, admin and I/O, on one of the drives, with every fault. Loaded or not loaded, by content; the same
/// again when the store is opened again; the next load succeeds; nothing that comes late does harm.
fn every_command_of_a_load(drives: usize) -> Result<()> {
    let faults = [
        Fault::Status(StatusCode::InternalError.into()),
        Fault::Drop,
        Fault::Swallow,
        Fault::Delay(Duration::from_secs(2)),
        Fault::Duplicate,
        Fault::WrongCid(0xfff3),
        Fault::Fatal,
        Fault::Disappear,
    ];
    for fault in faults {
        let mut failures = 0;
        for nth in 1.. {
            let mut fixture = Fixture::new(drives)?;
            fixture.load(1)?;
            let plan = fixture.drives[drives - 1].faults().clone();
            let rule = plan.inject(Rule::new(fault).nth(nth));
            let loaded = fixture.load(2);
            let what = || format!("{fault:?} at command {nth}: {loaded:?}");
            if plan.fired(rule) == 0 {
                ensure!(loaded.is_ok(), "{}", what());
                ensure!(nth > 12 && failures < nth, "{fault:?}: {nth} commands, {failures} failures");
                break;
            }
            failures += u64::from(loaded.is_err());
            if fault == Fault::Disappear {
                fixture.drives[drives - 1].power_cut(PowerCut::KeepAll)?;
            }
            fixture.reopen().with_context(what)?;
            let version = match &loaded {
                Ok(()) => 2,
                Err(StoreError::Volume(VolumeError::Indeterminate { .. })) => 1 + u64::from(fixture.check(1).is_err()),
                Err(_) => 1,
            };
            fixture.check(version).with_context(what)?;
            fixture.load(3).with_context(what)?;
            fixture.check(3).with_context(what)?;
            fixture.clock.sleep(Duration::from_secs(4));
            fixture.check(3).with_context(what)?;
        }
        if fault != Fault::Duplicate {
            ensure!(failures > 5, "{fault:?}: {failures} loads failed");
        }
    }
    Ok(())
}

#[test]
fn every_command_of_a_load_on_one_drive() -> Result<()> {
    every_command_of_a_load(1)
}

#[test]
fn every_command_of_a_load_on_three_drives() -> Result<()> {
    every_command_of_a_load(3)
}

/// A write that timed out, of a load that failed, is carried out after its chunks were given to the next load. Its queue could
/// not be deleted in between.
#[test]
fn a_late_write_does_not_reach_reused_chunks() -> Result<()> {
    for nth in 1..6 {
        let fixture = Fixture::new(1)?;
        fixture.load(1)?;
        let faults = fixture.drives[0].faults();
        let late = faults.inject(Rule::new(Fault::Delay(Duration::from_secs(3))).io(NvmOpcode::WRITE).nth(nth));
        let kept = faults.inject(Rule::new(Fault::Swallow).admin(AdminOpcode::DELETE_IO_SQ).times(2));
        ensure!(fixture.load(2).is_err());
        ensure!(faults.fired(late) == 1 && faults.fired(kept) > 0);
        faults.clear();
        fixture.check(1).with_context(|| format!("write {nth}"))?;
        match fixture.load(3) {
            Ok(()) => {
                fixture.check(3)?;
                fixture.clock.sleep(Duration::from_secs(6));
                fixture.check(3).with_context(|| format!("write {nth} came late"))?;
            }
            Err(error) => {
                fixture.clock.sleep(Duration::from_secs(6));
                fixture.check(1).with_context(|| format!("after {error}"))?;
            }
        }
    }
    Ok(())
}
