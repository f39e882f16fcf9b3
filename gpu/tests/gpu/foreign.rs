//! A controller that others wrote, whose doorbells the GPU stores to: SPDK's target, QEMU's over a socket, or any drive whose content may
//! be lost. `WARPROW_FOREIGN_DRIVE` has its address (`tests/peers/spdk.sh`); without it, the test says so and passes.

use warprow_gpu::{DoorbellAccess, QueuePlacement};
use warprow_store::{CreateDrive, Device};

use crate::fixture::{Fixture, Flat, Stream, gpu, patient};

const LOOK_UPS: u64 = 100;

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
        let (mut random, mut commands, mut stored) = (fastrand::Rng::with_seed(21), 0, 0);
        for round in 0..LOOK_UPS {
            let flat = Flat::new(&gpu, Fixture::ids(1000, &mut random));
            let report = flat.assert_found(&fixture, &slot, &stream, &round);
            assert_eq!(report.anomalies, 0, "look-up {round}");
            (commands, stored) = (commands + report.commands, stored + report.doorbells);
        }
        assert!(commands > 0 && stored > 0);
        eprintln!(
            "{address}, placement {placement}: {LOOK_UPS} look-ups of 1000 rows, all right; {commands} commands, {stored} doorbells by the GPU"
        );
    }
}
