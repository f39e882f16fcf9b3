//! Rows that share read commands, on drives with a real one's timing, by a clock that only drives turn: what a look-up takes of them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use warprow_dma::Clock;
use warprow_layout::FormatOptions;
use warprow_lookup::HostExecutor;
use warprow_lookup::{Batch, Feature, HostOptions, LookupReport, Output, OutputRows, PlanOptions, ReadMerging, Slot};
use warprow_soft_controller::{Namespace, RamBacking, SoftController, TimingProfile};
use warprow_store::{DType, Device, LoadOptions, OpenOptions, ReadCurve, Store, TableLoad, TableSpec};
use warprow_tests::{VirtualClock, versions};

const ROWS: u64 = 100_000;
const BATCH: usize = 4096;
const CONTENT: versions::Rows = versions::Rows { version: 1, table: 0 };

struct Fixture {
    clock: Arc<VirtualClock>,
    store: Store,
    row_bytes: usize,
}

fn fixture(profile: TimingProfile, row_bytes: usize) -> Fixture {
    let clock = VirtualClock::new();
    let namespace = Namespace::new(RamBacking::new(96 << 20).unwrap());
    let drive = SoftController::builder().stepped().name("drive").serial("drive").seed(1).namespace(namespace);
    let drive = drive.profile(profile).build().unwrap();
    clock.step_too(drive.clone());
    let options = OpenOptions::default().with_clock(clock.clone());
    let store = Store::create(&[Device::new(drive, 1)], &FormatOptions::default(), &options).unwrap();
    let spec = TableSpec::new("t", ROWS, row_bytes as u32, DType::U8);
    let load = TableLoad::new(&spec, &CONTENT).with_random_access();
    store.load("m", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    Fixture { clock, store, row_bytes }
}

impl Fixture {
    fn slot(&self, merging: ReadMerging) -> (Slot, Option<ReadCurve>) {
        let host = HostExecutor::attach(&self.store, HostOptions::default().with_merging(merging)).unwrap();
        let plan = host
            .plan(&[Feature::new("f", "t")], PlanOptions::default().with_max(BATCH, BATCH).with_out(DType::U8))
            .unwrap();
        (plan.slot().unwrap(), host.read_curves().remove(0).1)
    }

    /// Looks up ids among the first `rows`, checks every row, and takes the time of the drive.
    fn look(&self, slot: &mut Slot, rows: u64, seed: u64) -> (LookupReport, Duration) {
        let mut random = fastrand::Rng::with_seed(seed);
        let ids: Vec<u64> = (0..BATCH).map(|_| random.u64(..rows)).collect();
        let mut out = vec![0xa5; BATCH * self.row_bytes];
        let began = self.clock.now();
        let report =
            slot.lookup(&Batch::new(&ids, BATCH), &mut Output::new(OutputRows::U8(&mut out), self.row_bytes)).unwrap();
        let took = self.clock.now() - began;
        let mut wanted = vec![0; self.row_bytes];
        for (&id, row) in ids.iter().zip(out.chunks(self.row_bytes)) {
            CONTENT.fill(id, &mut wanted);
            assert_eq!(row, wanted, "id {id}");
        }
        (report, took)
    }
}

#[test]
fn a_curve_is_measured_as_the_drive_is() {
    for (profile, known) in [
        (TimingProfile::P5800x, [(512, 5.0e6), (4096, 1.5e6), (32_768, 7.2e9 / 32_768.0)]),
        (TimingProfile::Gen5Tlc, [(512, 3.3e6), (4096, 3.3e6), (32_768, 14.0e9 / 32_768.0)]),
    ] {
        let fixture = fixture(profile, 512);
        let before = fixture.clock.now();
        let (_, curve) = fixture.slot(ReadMerging::Measured);
        let took = fixture.clock.now() - before;
        let curve = curve.unwrap();
        assert!(took < Duration::from_millis(60), "{took:?}");
        eprintln!("{profile:?}: {curve}, in {took:?}");
        for (bytes, rate) in known {
            let measured = curve.reads_per_second(bytes);
            assert!((0.8..1.05).contains(&(measured / rate)), "{profile:?}, {bytes} B: {measured} of {rate}");
        }
    }
}

#[test]
fn the_cheapest_way_takes_the_least_time() {
    for profile in [TimingProfile::P5800x, TimingProfile::Gen5Tlc] {
        for row_bytes in [128, 512] {
            let fixture = fixture(profile, row_bytes);
            let ways = [ReadMerging::Separate, ReadMerging::Neighbours, ReadMerging::Measured];
            let mut slots = ways.map(|merging| fixture.slot(merging).0);
            // From each LBA wanted to one in fifty.
            for rows in [ROWS / 50, ROWS / 10, ROWS] {
                let [separate, neighbours, measured] = [0, 1, 2].map(|way| {
                    let looked = (0..3).map(|seed| fixture.look(&mut slots[way], rows, seed));
                    looked.fold((0, 0, Duration::ZERO), |(commands, bytes, time), (report, took)| {
                        (commands + report.commands, bytes + report.bytes_read, time + took)
                    })
                });
                let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
                eprintln!(
                    "{profile:?}, {row_bytes} B of {rows} rows: {separate:?} {neighbours:?} {measured:?}: {:.2} and {:.2} times as fast",
                    ratio(separate.2, measured.2),
                    ratio(neighbours.2, measured.2)
                );
                assert!(measured.0 <= neighbours.0 && neighbours.0 <= separate.0);
                assert!(ratio(measured.2, neighbours.2) < 1.05, "never slower");
                assert!(ratio(measured.2, separate.2) < 1.05, "never slower");
            }
        }
    }
}
