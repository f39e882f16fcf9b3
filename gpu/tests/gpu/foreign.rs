//! A controller that others wrote, whose doorbells the GPU stores to: SPDK's target, QEMU's over a socket, or any drive whose content may
//! be lost. `WARPROW_FOREIGN_DRIVE` has its address (`tests/peers/spdk.sh`); without it, the test says so and passes.
//!
//! That it is the GPU that rings is shown twice. The rows are right while this process has no thread that rings for a GPU; and where a
//! host thread does ring, the look for that thread finds it.

use warprow_gpu::{DoorbellAccess, QueuePlacement};
use warprow_store::{CreateDrive, Device};

use crate::fixture::{Fixture, Flat, MAX_IDS, Stream, gpu, patient};

const LOOK_UPS: u64 = 100;

/// How many threads of this process store to doorbells for a GPU.
fn ringing_threads() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let names = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).unwrap_or_default());
    names.filter(|name| name.trim_end() == "doorbells").count()
}

#[test]
fn a_foreign_controller_takes_the_gpu_s_doorbells() {
    let Ok(address) = std::env::var("WARPROW_FOREIGN_DRIVE") else {
        return eprintln!("skipped: WARPROW_FOREIGN_DRIVE names no drive");
    };
    let Some(gpu) = gpu() else { return };
    let device = Device::open(&address.parse().unwrap(), CreateDrive::Never).unwrap();
    let fixture = Fixture::on(Vec::new(), &[device]);
    for (doorbells, placement) in
        [(DoorbellAccess::Memory, QueuePlacement::C), (DoorbellAccess::HostThread, QueuePlacement::BPrime)]
    {
        let executor = fixture.attach(&gpu, patient().with_doorbells(doorbells).with_queue_sets(2));
        let placements = executor.queue_placements();
        assert_eq!(placements.drives[0].placement, placement, "{placements}");
        let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
        let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
        let ringing = ringing_threads();
        assert_eq!(ringing > 0, placement == QueuePlacement::BPrime, "{ringing} threads ring for the GPU");
        let (mut random, mut commands, mut stored) = (fastrand::Rng::with_seed(21), 0, 0);
        for round in 0..LOOK_UPS {
            let flat = Flat::new(&gpu, Fixture::ids(MAX_IDS, &mut random));
            let report = flat.assert_found(&fixture, &slot, &stream, &round);
            assert_eq!(report.anomalies, 0, "look-up {round}");
            (commands, stored) = (commands + report.commands, stored + report.doorbells);
        }
        assert!(commands > 0 && stored > 0);
        eprintln!(
            "{address}, placement {placement}: {LOOK_UPS} look-ups of {MAX_IDS} rows, all right; {commands} commands, {stored} doorbells stored by the GPU, {ringing} host threads ring for it"
        );
    }
}
