//! Rows in DRAM, read by the GPU: the whole look-up against rivals that only gather.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use warprow_gpu_queues::{DeviceMemory, Gpu, Registered};
use warprow_layout::{DType, FormatOptions};
use warprow_soft_controller::{Namespace, Ram, SoftController};
use warprow_store::{
    Device, Feature, GpuBatch, GpuOptions, GpuOutput, Len, LoadOptions, OpenOptions, PlanOptions, Pooling, Store,
    TableLoad, TableSpec,
};
use warprow_workload::{Content, Oracle, PowerLaw, Random, median};

use super::{Rivals, Stream};

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct DramSetup {
    /// Bytes of the table.
    pub size: u64,
    /// Bytes of a row, a multiple of 16.
    pub row_bytes: u32,
    /// Exponent of the power law of ids; 0: uniform.
    pub alpha: f64,
    /// Repetitions, each with fresh ids.
    pub runs: u32,
    /// Of contents and ids.
    pub seed: u64,
    /// Thread blocks that gather; 0: as the executor thinks best.
    pub gatherers: u32,
}

/// One number of ids.
#[derive(Clone, Debug, Serialize)]
pub struct DramResult {
    /// Bytes of the table.
    pub size: u64,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Exponent of the power law.
    pub alpha: f64,
    /// Ids of a look-up.
    pub ids: u64,
    /// Different rows among them, median.
    pub unique: u64,
    /// Median microseconds: the whole look-up, from ids to output in the order of the request.
    pub lookup_us: f64,
    /// Bytes of output a second, of the look-up.
    pub lookup_bytes_per_second: f64,
    /// Its parts, median microseconds: ids to unique keys, rows into GPU memory, output.
    pub prepare_us: f64,
    /// See above.
    pub fetch_us: f64,
    /// See above.
    pub expand_us: f64,
    /// Median microseconds of the look-up as a captured graph, replayed with other ids.
    pub graph_us: f64,
    /// Median microseconds that a call of the look-up keeps its caller busy.
    pub call_us: f64,
    /// Median microseconds: a plain gather through unified addressing, in the order of the request.
    pub uva_us: f64,
    /// Median microseconds: gathering by all CPU cores into pinned memory, and one copy.
    pub cpu_us: f64,
    /// Plain gather's time by the replayed look-up's.
    pub ratio_uva: f64,
    /// CPU gather's time by the replayed look-up's.
    pub ratio_cpu: f64,
    /// Rows compared.
    pub checked: u64,
}

/// Looks up `counts` ids each in a table of `setup`, all of which is in DRAM.
pub fn run(gpu: &Arc<Gpu>, setup: &DramSetup, counts: &[u64]) -> anyhow::Result<Vec<DramResult>> {
    ensure!(setup.row_bytes.is_multiple_of(16) && setup.row_bytes > 0, "rows of {} bytes", setup.row_bytes);
    let (rows, dim) = (setup.size / u64::from(setup.row_bytes), setup.row_bytes / 4);
    ensure!(rows > 0, "a table of {} bytes has no row", setup.size);
    let content = Oracle::new(setup.seed, 0, rows, dim, DType::F32);
    let most = counts.iter().copied().max().context("no counts")?;
    let drive = setup.size + (setup.size >> 5) + (256 << 20);
    let namespace = Namespace::new(Ram::new(drive.next_multiple_of(1 << 20))?).lba(512);
    let drive = SoftController::builder().name("emulated:ram").namespace(namespace).build()?;
    let store = Store::create(&[Device::new(drive, 1)], &FormatOptions::default(), &OpenOptions::default())?;
    let spec = TableSpec::new("table", rows, dim, DType::F32);
    let load = TableLoad::new(&spec, &content).with_random_access();
    store.load("bench", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    let executor = store
        .attach_gpu(gpu.clone(), GpuOptions::default().with_dram_bytes(u64::MAX / 2).with_gatherers(setup.gatherers))?;
    let plan = executor.plan(
        &[Feature::new("f", "table").pooling(Pooling::None)],
        PlanOptions::default().with_max(1, most as usize),
    )?;
    let slot = plan.slot()?;
    let (table, host) = executor.dram_rows("table").context("no rows in DRAM")?;
    let (stream, rivals) = (Stream::new(gpu)?, Rivals::new(gpu)?);
    let out_bytes = most * u64::from(setup.row_bytes);
    let (ids_on, out_on) = (DeviceMemory::new(gpu, most * 8)?, DeviceMemory::new(gpu, out_bytes)?);
    let staging = Registered::allocate(gpu, out_bytes)?;
    let law = PowerLaw::new(rows, setup.alpha).context("no such power law")?;
    let mut random = Random::new(setup.seed);
    let row_bytes = setup.row_bytes as usize;
    let mut results = Vec::new();
    for &count in counts {
        let mut times: [Vec<f64>; 9] = Default::default();
        let mut checked = 0;
        let batch = GpuBatch::new(ids_on.address(), Len::Host(count as usize), 1);
        let output = GpuOutput::new(out_on.address(), dim as usize);
        // SAFETY: the memory outlives the graph and its launches, which `time` waits for.
        let (graph, captured) = stream.capture(|| Ok(unsafe { slot.lookup(stream.raw(), &batch, &output) }?))?;
        // The first of each is for warming up.
        for run in 0..=setup.runs {
            let mut fresh = || -> anyhow::Result<Vec<i64>> {
                let ids: Vec<i64> = (0..count).map(|_| law.sample(&mut random) as i64).collect();
                ids_on.write(0, &ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())?;
                Ok(ids)
            };
            let mut check = |ids: &[i64], memory: &DeviceMemory| -> anyhow::Result<()> {
                let mut got = vec![0; ids.len() * row_bytes];
                memory.read(0, &mut got)?;
                let mut wanted = vec![0; row_bytes];
                // All of small look-ups, and a part of large ones that changes from run to run.
                let step = (ids.len() / 50_000).max(1);
                for (id, row) in ids.iter().zip(got.chunks(row_bytes)).skip(run as usize % step).step_by(step) {
                    content.fill(*id as u64, &mut wanted);
                    ensure!(row == wanted, "the row of id {id} is wrong");
                    checked += 1;
                }
                Ok(())
            };

            let ids = fresh()?;
            out_on.zero()?;
            let (took, (ticket, call)) = stream.time(|| {
                let began = Instant::now();
                // SAFETY: the memory outlives the launch, which `time` waits for.
                let ticket = unsafe { slot.lookup(stream.raw(), &batch, &output) }?;
                Ok((ticket, began.elapsed()))
            })?;
            let report = ticket.poll().context("the look-up has not ended")??;
            check(&ids, &out_on)?;

            let again = fresh()?;
            out_on.zero()?;
            let (replayed, ()) = stream.time(|| stream.launch(&graph))?;
            captured.poll().context("the graph has not ended")??;
            check(&again, &out_on)?;

            let other = fresh()?;
            out_on.zero()?;
            let quads = u64::from(setup.row_bytes / 16);
            // SAFETY: the table has all rows, the output room for all ids.
            let (uva, ()) = stream
                .time(|| unsafe { rivals.gather(&stream, table, ids_on.address(), out_on.address(), count, quads) })?;
            check(&other, &out_on)?;

            let third = fresh()?;
            out_on.zero()?;
            let began = Instant::now();
            gather_by_cpu(host, &third, &staging, row_bytes);
            // SAFETY: both have room for all rows.
            stream.time(|| unsafe {
                stream.copy(out_on.address(), staging.memory().as_ptr(), third.len() * row_bytes)
            })?;
            let cpu = began.elapsed();
            check(&third, &out_on)?;
            if run > 0 {
                let us = |time: Duration| time.as_secs_f64() * 1e6;
                let all = [us(took), us(uva), us(cpu), us(report.prepare), us(report.fetch), us(report.expand)];
                let all = all.into_iter().chain([report.rows_dram as f64, us(replayed), us(call)]);
                times.iter_mut().zip(all).for_each(|(times, time)| times.push(time));
            }
        }
        let [lookup, uva, cpu, prepare, fetch, expand, unique, graph, call] = times.map(median);
        results.push(DramResult {
            size: setup.size,
            row_bytes: setup.row_bytes,
            alpha: setup.alpha,
            ids: count,
            unique: unique as u64,
            lookup_us: lookup,
            lookup_bytes_per_second: (count * u64::from(setup.row_bytes)) as f64 / lookup * 1e6,
            prepare_us: prepare,
            fetch_us: fetch,
            expand_us: expand,
            graph_us: graph,
            call_us: call,
            uva_us: uva,
            cpu_us: cpu,
            ratio_uva: uva / graph,
            ratio_cpu: cpu / graph,
            checked,
        });
    }
    Ok(results)
}

/// Copies rows into pinned memory, on all cores.
fn gather_by_cpu(table: *const u8, ids: &[i64], staging: &Registered, row_bytes: usize) {
    struct Address(*const u8, *mut u8);
    // SAFETY: threads read rows that nobody writes, and write to parts of the staging memory that do not overlap.
    unsafe impl Sync for Address {}
    let address = Address(table, staging.memory().as_ptr());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = ids.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        for (part, ids) in ids.chunks(share).enumerate() {
            let address = &address;
            scope.spawn(move || {
                for (i, &id) in ids.iter().enumerate() {
                    let Address(from, to) = *address;
                    // SAFETY: the table has a row of that id, the staging memory room for all; each thread has its part.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            from.add(id as usize * row_bytes),
                            to.add((part * share + i) * row_bytes),
                            row_bytes,
                        );
                    }
                }
            });
        }
    });
}
