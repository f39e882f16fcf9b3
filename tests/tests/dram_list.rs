//! Power cuts while rows are listed for DRAM, through the real driver, on drives with a volatile write cache: after each there is
//! the list before or the list that was being made, and every row.
//!
//! A run is repeated once for every command that it sends to each drive: at that command the drive is gone, and when the power comes
//! back, the caches have lost what the fate of this repetition says.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use warprow_layout::FormatOptions;
use warprow_lookup::{Batch, Feature, HostExecutor, HostOptions, Output, OutputRows, PlanOptions};
use warprow_soft_controller::{Fault, Namespace, PowerCut, QueueMatch, RamBacking, Rule, SoftController};
use warprow_store::{DType, Device, LoadOptions, OpenOptions, RerankOptions, Store, TableLoad, TableSpec};
use warprow_tests::VirtualClock;

const ROWS: u64 = 300;

struct Fixture {
    drives: Vec<Arc<SoftController>>,
    clock: Arc<VirtualClock>,
}

impl Fixture {
    /// Two drives with a table of rows of 64 B, row n of bytes n mod 251, and the list `first`.
    fn new(first: &[u64]) -> Result<Self> {
        let clock = VirtualClock::new();
        let drive = |index: u64| {
            let namespace = Namespace::new(RamBacking::new(8 << 20)?).write_cache(1 << 20);
            let builder = SoftController::builder().stepped().name(format!("drive {index}")).queue_pairs(4);
            Ok(builder.max_transfer(16 << 10).seed(index).permute().namespace(namespace).build()?)
        };
        let drives = (0..2).map(drive).collect::<Result<Vec<Arc<SoftController>>>>()?;
        drives.iter().for_each(|drive| clock.step_too(drive.clone()));
        let fixture = Self { drives, clock };
        let format = FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() };
        let store = Store::create(&fixture.devices(), &format, &fixture.options())?;
        let rows: Vec<u8> = (0..ROWS).flat_map(|row| [(row % 251) as u8; 64]).collect();
        let (spec, source) = (TableSpec::new("t", ROWS, 64, DType::U8), &rows[..]);
        store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| {
            ControlFlow::Continue(())
        })?;
        store.rerank(&RerankOptions::new("t").with_ranks(first))?;
        Ok(fixture)
    }

    fn devices(&self) -> Vec<Device> {
        self.drives.iter().map(|drive| Device::new(drive.clone(), 1)).collect()
    }

    fn options(&self) -> OpenOptions {
        let second = Duration::from_secs(1);
        OpenOptions::default().with_clock(self.clock.clone()).with_timeout(second).with_admin_timeout(second)
    }

    fn open(&self) -> Result<Store> {
        Ok(Store::open(&self.devices(), &self.options())?)
    }
}

/// Compares every row that look-ups with a DRAM tier give.
fn every_row(store: &Store) -> Result<()> {
    let host = HostExecutor::attach(store, HostOptions::default().with_dram_bytes(20 * 64))?;
    let plan = host.plan(&[Feature::new("f", "t")], PlanOptions::default().with_out(DType::U8).with_max(512, 512))?;
    let ids: Vec<u64> = (0..ROWS).collect();
    let mut rows = vec![0u8; ROWS as usize * 64];
    let report = plan.slot()?.lookup(&Batch::new(&ids, ids.len()), &mut Output::new(OutputRows::U8(&mut rows), 64))?;
    ensure!(report.rows_dram == 20, "{report:?}");
    let wrong = rows.chunks(64).zip(0..ROWS).find(|(row, id)| row.iter().any(|&byte| byte != (id % 251) as u8));
    ensure!(wrong.is_none(), "row {:?}", wrong.map(|(_, id)| id));
    Ok(())
}

#[test]
fn after_a_power_cut_there_is_the_old_list_or_the_new_one() -> Result<()> {
    let (old, new): (Vec<u64>, Vec<u64>) = ((100..120).collect(), (0..90).map(|n| 299 - n * 3).collect());
    let (mut cuts, mut olds) = (0, 0);
    let random = (1..5).map(PowerCut::Random);
    let fates: Vec<PowerCut> = [PowerCut::LoseAll, PowerCut::KeepAll].into_iter().chain(random).collect();
    for on in 0..2 {
        for command in 1.. {
            let mut happened = false;
            for &fate in &fates {
                let fixture = Fixture::new(&old)?;
                let acked = {
                    let store = fixture.open()?;
                    let rule = Rule::new(Fault::Disappear).on(QueueMatch::Io).nth(command);
                    let rule = fixture.drives[on].faults().inject(rule);
                    let acked = store.rerank(&RerankOptions::new("t").with_ranks(&new)).is_ok();
                    happened |= fixture.drives[on].faults().fired(rule) == 1;
                    acked
                };
                for (index, drive) in fixture.drives.iter().enumerate() {
                    drive.faults().clear();
                    drive.power_cut(match fate {
                        PowerCut::Random(seed) => PowerCut::Random(seed * 1000 + command * 2 + index as u64),
                        fate => fate,
                    })?;
                }
                let store = fixture.open()?;
                let found = store.dram_list("t")?.unwrap_or_default();
                let context = format!("drive {on}, command {command}, {fate:?}, acknowledged: {acked}");
                ensure!(found == new || found == old && !acked, "{context}: {found:?}");
                ensure!(store.verify_metadata()?.bad.is_empty(), "{context}");
                every_row(&store).map_err(|error| error.context(context))?;
                // It works on.
                store.rerank(&RerankOptions::new("t").with_ranks(&old))?;
                ensure!(store.dram_list("t")?.as_ref() == Some(&old));
                cuts += 1;
                olds += u32::from(found == old);
            }
            if !happened {
                break;
            }
        }
    }
    ensure!(cuts > 80 && olds > 20 && olds < cuts - 20, "{cuts} cuts, {olds} old lists");
    Ok(())
}
