//! What look-ups cost the host besides drives, measured where they will run.

use std::ops::ControlFlow;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use warprow_layout::{FormatOptions, TableSpec};
use warprow_soft_controller::{Namespace, Placement, Ram, SoftController, Timing};
use warprow_store::{
    Batch, DType, Device, Feature, HostOptions, LoadOptions, OpenOptions, Output, PlanOptions, Report, Rows, Slot,
    Stage, Store, TableLoad,
};
use warprow_workload::Random;

use crate::PlanError;

/// Seconds that a processor takes, of the host executor with one worker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HostCosts {
    /// For a look-up of nothing.
    pub lookup: f64,
    /// For an id in DRAM: before the first command leaves, and then.
    pub dram_before: f64,
    /// The second part: its row to the output.
    pub dram: f64,
    /// For a row on drives: before the first command leaves, and then.
    pub ssd_before: f64,
    /// The second part: its command, its completion, its row to the output.
    pub ssd: f64,
}

impl Default for HostCosts {
    /// As measured for rows of 512 B on one core of a virtual AMD EPYC.
    fn default() -> Self {
        Self { lookup: 1.5e-6, dram_before: 6e-9, dram: 45e-9, ssd_before: 75e-9, ssd: 250e-9 }
    }
}

/// Turns of which the median counts.
const TURNS: usize = 15;
const BATCH: usize = 4096;

impl HostCosts {
    /// Seconds of a look-up whose reads take drives `drives` seconds: rows in DRAM are served meanwhile.
    pub fn seconds(&self, ids_dram: f64, ids_ssd: f64, rows_ssd: f64, drives: f64) -> f64 {
        let repeats = (ids_ssd - rows_ssd).max(0.0);
        let before = (ids_dram + repeats) * self.dram_before + rows_ssd * self.ssd_before;
        let meanwhile = (ids_dram + repeats) * self.dram + rows_ssd * self.ssd;
        self.lookup + before + meanwhile.max(drives)
    }

    /// Measures them with rows of `row_bytes`, a multiple of 4 up to 64 KiB, on an emulated drive in memory, within a second or so.
    pub fn measure(row_bytes: u32) -> Result<Self, PlanError> {
        let fail = |error: &dyn std::fmt::Display| PlanError::Timing(error.to_string());
        let dim = (row_bytes / 4).clamp(1, 1 << 14);
        // More rows than caches hold.
        let rows = ((64 << 20) / (u64::from(dim) * 4)).clamp(BATCH as u64 * 2, 1 << 19);
        let bytes = rows * u64::from(dim) * 4;
        // A drive that takes no time, by the same path as one that takes some.
        let timing = Timing {
            small_reads: 1e12,
            reads: 1e12,
            writes: 1e12,
            read_bytes: 1e15,
            write_bytes: 1e15,
            dies: 1,
            page_read: Duration::ZERO,
            page_write: Duration::ZERO,
            read_overhead: Duration::ZERO,
            write_latency: Duration::ZERO,
            flush: Duration::ZERO,
            slow_read: None,
            placement: Placement::Address { regions: 1 },
        };
        let namespace = Namespace::new(Ram::new(bytes * 5 / 4 + (64 << 20)).map_err(|error| fail(&error))?);
        let drive = SoftController::builder().name("timed").serial("timed").namespace(namespace).timing(timing).build();
        let device = Device::new(drive.map_err(|error| fail(&error))?, 1);
        let store = Store::create(&[device], &FormatOptions::default(), &OpenOptions::default());
        let store = store.map_err(|error| fail(&error))?;
        let spec = TableSpec::new("t", rows, dim, DType::F32);
        let content = warprow_workload::Oracle::new(1, 0, rows, dim, DType::F32);
        let load = TableLoad::new(&spec, &content).with_random_access();
        let loaded = store.load("t", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()));
        loaded.map_err(|error| fail(&error))?;

        let mut random = Random::new(1);
        let mut rows_out = vec![0f32; BATCH * dim as usize];
        let mut timed = |dram: u64, len: usize| -> Result<[Duration; 6], PlanError> {
            let host = store.attach_host(HostOptions::default().with_dram_bytes(dram)).map_err(|error| fail(&error))?;
            let options = PlanOptions::default().with_max(BATCH as u32, BATCH);
            let plan = host.plan(&[Feature::new("f", "t")], options).map_err(|error| fail(&error))?;
            let mut slot = plan.slot().map_err(|error| fail(&error))?;
            let mut turn = |slot: &mut Slot| -> Result<Report, PlanError> {
                let ids: Vec<i64> = (0..len).map(|_| random.below(rows) as i64).collect();
                let mut out = Output::new(Rows::F32(&mut rows_out), dim as usize);
                slot.lookup(&Batch::new(&ids, len as u32), &mut out).map_err(|error| fail(&error))
            };
            let _ = (turn(&mut slot)?, turn(&mut slot)?);
            let mut reports = (0..TURNS).map(|_| turn(&mut slot)).collect::<Result<Vec<_>, _>>()?;
            reports.sort_by_key(|report| report.stages.iter().sum::<Duration>());
            Ok(reports.get(TURNS / 2).map_or([Duration::ZERO; 6], |report| report.stages))
        };
        let (dram, ssd, one) = (timed(u64::MAX, BATCH)?, timed(0, BATCH)?, timed(u64::MAX, 1)?);
        let seconds = |stages: &[Duration; 6], from: Stage, to: Stage, each: usize| {
            let of = stages.get(from as usize..=to as usize).unwrap_or_default();
            of.iter().sum::<Duration>().as_secs_f64() / each as f64
        };
        Ok(Self {
            lookup: seconds(&one, Stage::Dedupe, Stage::Expand, 1),
            dram_before: seconds(&dram, Stage::Dedupe, Stage::Merge, BATCH),
            dram: seconds(&dram, Stage::Read, Stage::Expand, BATCH),
            ssd_before: seconds(&ssd, Stage::Dedupe, Stage::Merge, BATCH),
            ssd: seconds(&ssd, Stage::Read, Stage::Expand, BATCH),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_served_while_drives_work() {
        let costs = HostCosts { lookup: 1.0, dram_before: 2.0, dram: 3.0, ssd_before: 5.0, ssd: 7.0 };
        assert_eq!(costs.seconds(10.0, 0.0, 0.0, 0.0), 1.0 + 20.0 + 30.0);
        // Four ids of three rows on drives: the repeat costs what an id in DRAM does.
        assert_eq!(costs.seconds(10.0, 4.0, 3.0, 0.0), 1.0 + 22.0 + 15.0 + 33.0 + 21.0);
        assert_eq!(costs.seconds(10.0, 4.0, 3.0, 100.0), 1.0 + 22.0 + 15.0 + 100.0);
    }

    #[test]
    fn costs_are_measured() {
        let costs = HostCosts::measure(128).unwrap();
        let all = [costs.lookup, costs.dram_before, costs.dram, costs.ssd_before, costs.ssd];
        assert!(all.iter().all(|&it| it > 0.0 && it < 1.0), "{costs:?}");
        assert!(costs.ssd_before + costs.ssd > costs.dram_before + costs.dram, "{costs:?}");
    }
}
