//! Commands from thread blocks to software controllers, through pinned memory (rung C).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use warprow_gpu_queues::{DeviceMemory, Gpu};
use warprow_layout::{DType, FormatOptions};
use warprow_soft_controller::{Namespace, Ram, SoftController};
use warprow_store::{
    Device, Feature, GpuBatch, GpuOptions, GpuOutput, Len, LoadOptions, OpenOptions, PlanOptions, Pooling, Store,
    TableLoad, TableSpec,
};
use warprow_workload::{Content, Oracle, Random, median};

use super::Stream;

/// Bytes of a row, and of an LBA.
const BLOCK: u32 = 512;

/// One number of drives, each with a thread of its own that answers.
#[derive(Clone, Debug, Serialize)]
pub struct GpuRingResult {
    /// Controller threads.
    pub threads: u32,
    /// Median commands a second while commands were under way.
    pub commands_per_second: f64,
    /// The same for each thread.
    pub commands_per_second_and_thread: f64,
    /// Commands of a look-up.
    pub commands: u64,
    /// Rows compared.
    pub checked: u64,
}

/// Reads `rows` different random rows of 512 B, `runs` times, from `threads` drives in memory that permute completions and delay
/// one in 10,000.
pub fn run(gpu: &Arc<Gpu>, threads: u32, size: u64, count: u64, runs: u32, seed: u64) -> anyhow::Result<GpuRingResult> {
    let rows = size / u64::from(BLOCK);
    ensure!(count <= rows, "{count} rows of {rows}");
    let content = Oracle::new(seed, 0, rows, BLOCK / 4, DType::F32);
    let each = (size / u64::from(threads) + (size >> 4) + (128 << 20)).next_multiple_of(1 << 20);
    let drive = |index: u32| -> anyhow::Result<Device> {
        let name = format!("emulated:ram{index}");
        let namespace = Namespace::new(Ram::new(each)?).lba(BLOCK);
        let builder = SoftController::builder().name(&name).serial(&name).namespace(namespace).permute();
        Ok(Device::new(builder.delay_one_in(10_000, Duration::from_micros(100)).build()?, 1))
    };
    let drives = (0..threads).map(drive).collect::<anyhow::Result<Vec<_>>>()?;
    let store = Store::create(&drives, &FormatOptions::default(), &OpenOptions::default())?;
    let spec = TableSpec::new("table", rows, BLOCK / 4, DType::F32);
    let load = TableLoad::new(&spec, &content).with_random_access();
    store.load("bench", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    let executor = store.attach_gpu(gpu.clone(), GpuOptions::default())?;
    let plan = executor.plan(
        &[Feature::new("f", "table").pooling(Pooling::None)],
        PlanOptions::default().with_max(1, count as usize),
    )?;
    let (slot, stream) = (plan.slot()?, Stream::new(gpu)?);
    let row_bytes = BLOCK as usize;
    let (ids_on, out_on) = (DeviceMemory::new(gpu, count * 8)?, DeviceMemory::new(gpu, count * u64::from(BLOCK))?);
    let mut random = Random::new(seed);
    let (mut rates, mut checked, mut commands) = (Vec::new(), 0, 0);
    for run in 0..=runs {
        let ids: Vec<i64> = (0..count).map(|_| random.below(rows) as i64).collect();
        ids_on.write(0, &ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())?;
        out_on.zero()?;
        let batch = GpuBatch::new(ids_on.address(), Len::Host(count as usize), 1);
        let output = GpuOutput::new(out_on.address(), (BLOCK / 4) as usize);
        // SAFETY: the memory outlives the launch, which `time` waits for.
        let (_, ticket) = stream.time(|| Ok(unsafe { slot.lookup(stream.raw(), &batch, &output) }?))?;
        let report = ticket.poll().context("the look-up has not ended")??;
        ensure!(report.anomalies == 0, "{} completions that nobody waited for", report.anomalies);
        let mut got = vec![0; ids.len() * row_bytes];
        out_on.read(0, &mut got)?;
        let mut wanted = vec![0; row_bytes];
        for (id, row) in ids.iter().zip(got.chunks(row_bytes)) {
            content.fill(*id as u64, &mut wanted);
            ensure!(row == wanted, "the row of id {id} is wrong");
            checked += 1;
        }
        commands = report.commands;
        if run > 0 {
            rates.push(report.commands as f64 / report.fetch.as_secs_f64());
        }
    }
    let rate = median(rates);
    Ok(GpuRingResult {
        threads,
        commands_per_second: rate,
        commands_per_second_and_thread: rate / f64::from(threads),
        commands,
        checked,
    })
}
