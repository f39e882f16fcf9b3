//! Queue placement B: the GPU stores to doorbell registers itself, on the stand-in for a BAR (`stand_in.rs`).

use std::sync::Arc;

use warprow_gpu::{DoorbellAccess, GpuError, GpuExecutor, GpuOptions, QueuePlacement};
use warprow_gpu_queues::{GpuQueueError, RegisterRefusal, RingTestError};
use warprow_store::Device;

use crate::common;
use crate::fixture::{Fixture, Flat, Stream, gpu, patient};
use crate::lookups::whole_lookups_on;
use crate::stand_in::StandIn;

/// Drives behind stand-ins for BARs; `None` where there are none.
fn stand_ins(count: usize, bytes: u64, lba: u32) -> Option<Vec<Arc<StandIn>>> {
    (0..count).map(|i| StandIn::new(common::drive(&format!("drive{i}"), bytes, lba))).collect()
}

fn devices(drives: &[Arc<StandIn>]) -> Vec<Device> {
    drives.iter().map(|drive| Device::new(drive.clone(), 1)).collect()
}

fn fixture(drives: &[Arc<StandIn>]) -> Fixture {
    Fixture::on(drives.iter().map(|drive| drive.soft.clone()).collect(), &devices(drives))
}

/// Why CUDA does not register I/O memory here, if it does not: the process may lack the privilege, the machine the
/// facts.
fn refusal(fixture: &Fixture, gpu: &Arc<warprow_gpu_queues::Gpu>) -> Option<RegisterRefusal> {
    let options = GpuOptions::default().with_doorbells(DoorbellAccess::Registers);
    match GpuExecutor::attach(&fixture.store, gpu.clone(), options) {
        Ok(_) => None,
        Err(GpuError::RingTest(RingTestError::Queues(GpuQueueError::DoorbellRegisters { why, .. }))) => Some(why),
        Err(other) => panic!("{other:?}"),
    }
}

/// Whether the process has CAP_SYS_ADMIN.
fn is_privileged() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> 21 & 1 == 1)
}

/// With the privilege the GPU rings itself, and the drive sees as many stores as the kernels made; without it, the
/// refusal names it, and the next placement is taken for that reason.
#[test]
fn the_privilege_decides_who_rings() {
    let Some(gpu) = gpu() else { return };
    let Some(drives) = stand_ins(1, 24 << 20, 512) else { return };
    let fixture = fixture(&drives);
    let refused = refusal(&fixture, &gpu);
    match (&refused, is_privileged()) {
        (Some(RegisterRefusal::NotPermitted), true) => panic!("CUDA refuses a privileged process"),
        (None | Some(RegisterRefusal::NotPermitted), _) => {}
        (Some(other), _) => return eprintln!("skipped: this machine refuses registers for another reason: {other}"),
    }
    let executor = fixture.attach(&gpu, patient().with_doorbells(DoorbellAccess::Best));
    let placements = executor.queue_placements();
    eprintln!("{placements}");
    let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
    let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
    let (before, mut random) = (drives[0].seen(), fastrand::Rng::with_seed(3));
    let mut stored = 0;
    for round in 0..20 {
        let flat = Flat::new(&gpu, Fixture::ids(1000, &mut random));
        stored += flat.assert_found(&fixture, &slot, &stream, &round).doorbells;
    }
    match refused {
        None => {
            assert_eq!(placements.drives[0].placement, QueuePlacement::B, "{placements}");
            let seen = drives[0].seen() - before;
            eprintln!("the kernels stored {stored} doorbells, the stand-in saw {seen}");
            // Of two stores that follow each other closely, the thread sees the second.
            assert!(stored > 0 && seen > 0 && seen <= stored && seen * 4 > stored, "{seen} of {stored}");
        }
        Some(why) => {
            assert_eq!(placements.drives[0].placement, QueuePlacement::BPrime, "{placements}");
            let text = placements.to_string();
            assert!(text.contains("CAP_SYS_ADMIN") && text.contains(&why.to_string()), "{text}");
            assert_eq!(drives[0].seen(), before, "nobody stored to the page");
        }
    }
}

#[test]
fn match_the_naive_look_up() {
    let Some(gpu) = gpu() else { return };
    let Some(first) = stand_ins(1, 24 << 20, 512) else { return };
    if let Some(why) = refusal(&fixture(&first), &gpu) {
        return eprintln!("skipped: {why}");
    }
    for seed in 3000..3012 {
        eprintln!("seed {seed}");
        let store = |count, bytes, lba| {
            let drives = stand_ins(count, bytes, lba).expect("there was one");
            let store = common::store_on(&devices(&drives));
            (drives, store)
        };
        whole_lookups_on(&gpu, seed, store, |options| options.with_doorbells(DoorbellAccess::Registers));
    }
}

/// Controllers are reset while look-ups are under way: registrations outlive their queues, and end with them.
#[test]
fn resets_meet_look_ups_that_ring_registers() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use warprow_spec::NvmOpcode;
    let Some(gpu) = gpu() else { return };
    let Some(drives) = stand_ins(2, 24 << 20, 512) else { return };
    let fixture = fixture(&drives);
    if let Some(why) = refusal(&fixture, &gpu) {
        return eprintln!("skipped: {why}");
    }
    for round in 0..3 {
        let options = GpuOptions::default().with_timeout(crate::fixture::short());
        let plan = fixture.plan(&gpu, options.with_doorbells(DoorbellAccess::Registers).with_queue_sets(2), 1);
        let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
        let faults = fixture.drives[0].faults();
        let rule = warprow_soft_controller::Rule::new(warprow_soft_controller::Fault::Swallow);
        faults.inject(rule.io(NvmOpcode::READ).nth(500 + 400 * round));
        let (mut random, lost) = (fastrand::Rng::with_seed(round), AtomicBool::new(false));
        for look_up in 0..12 {
            let flat = Flat::new(&gpu, Fixture::ids(800, &mut random));
            let ticket = flat.launch(&slot, &stream).unwrap();
            let result = crate::fixture::wait(&ticket);
            let missing = flat.check(&fixture, &(round, look_up));
            match result {
                Ok(_) => assert!(missing.is_empty()),
                Err(GpuError::RowsFailed { failed, .. }) => {
                    assert_eq!(failed, missing.len() as u64);
                    lost.store(true, Ordering::Relaxed);
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(lost.into_inner(), "no command was lost");
        faults.clear();
        let flat = Flat::new(&gpu, Fixture::ids(1000, &mut random));
        flat.assert_found(&fixture, &slot, &stream, &"at last");
        // Dropped with the slot, the registration makes room for the next round's.
    }
}
