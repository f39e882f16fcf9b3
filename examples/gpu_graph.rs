//! Captures a look-up in a CUDA graph and replays it with other ids. The emulated drive's commands are written by the GPU itself.
//! Where there is no GPU, the example says so and ends.
//!
//!     cargo run -p warprow-examples --bin gpu_graph

use std::ops::ControlFlow;

use anyhow::{Context, Result, ensure};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, DevicePtr};
use warprow_gpu::{BatchLen, Gpu, GpuBatch, GpuExecutor, GpuOptions, GpuOutput};
use warprow_lookup::{Feature, PlanOptions};
use warprow_store::{
    CreateDrive, DType, Device, FormatConsent, FormatProposal, FormatSettings, LoadOptions, Store, TableLoad, TableSpec,
};

const ROWS: u64 = 20_000;
const DIM: usize = 64;
const BATCH: usize = 1_000;
const REPLAYS: u64 = 5;

fn row(id: i64) -> [f32; DIM] {
    std::array::from_fn(|column| id as f32 + column as f32 / 64.0)
}

fn load(store: &Store) -> Result<()> {
    let rows: Vec<u8> = (0..ROWS as i64).flat_map(row).flat_map(f32::to_le_bytes).collect();
    let spec = TableSpec::new("user", ROWS, DIM as u32, DType::F32);
    let load = TableLoad::new(&spec, &rows);
    store.load("model", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    Ok(())
}

/// The ids of a replay: all over the table.
fn ids(replay: u64) -> Vec<i64> {
    (0..BATCH as u64).map(|n| ((n * 7_919 + replay * 13) % ROWS) as i64).collect()
}

fn main() -> Result<()> {
    if Gpu::count() == 0 {
        println!("skipped: there is no GPU, or no CUDA driver");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let address = format!("emulated:{},size=64M", folder.path().join("a.drive").display()).parse()?;
    let drive = Device::open(&address, CreateDrive::IfMissing)?;
    let store = FormatProposal::new(&[drive], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    load(&store)?;

    // A tenth of the rows in GPU memory, a tenth in pinned memory, the others on the drive.
    let gpu = Gpu::open(0)?;
    println!("on {}", gpu.name());
    let tier = ROWS / 10 * DIM as u64 * 4;
    let options = GpuOptions::default().with_hbm_bytes(tier).with_dram_bytes(tier);
    let executor = GpuExecutor::attach(&store, gpu, options)?;
    let plan = executor.plan(&[Feature::new("user", "user")], PlanOptions::default().with_max(BATCH, BATCH))?;
    let slot = plan.slot()?;

    // The caller's stream and arrays, in the same context: the GPU's primary one. A graph keeps the arrays' addresses.
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let mut on_gpu = stream.clone_htod(&ids(0))?;
    let rows = stream.alloc_zeros::<f32>(BATCH * DIM)?;
    let batch = GpuBatch::new(on_gpu.device_ptr(&stream).0, BatchLen::Host(BATCH), BATCH as u32);
    let output = GpuOutput::new(rows.device_ptr(&stream).0, plan.width());
    stream.synchronize()?;

    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    #[allow(unsafe_code, reason = "a look-up on a GPU takes addresses")]
    // SAFETY: `on_gpu` and `rows` are as large as `batch` and `output` say, outlive the graph, and are written to by nobody
    // else while it runs.
    let ticket = unsafe { slot.lookup(stream.cu_stream().cast(), &batch, &output) }?;
    let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?;
    let graph = graph.context("the capture has something in it")?;

    let mut from_drive = 0;
    for replay in 0..REPLAYS {
        let ids = ids(replay);
        stream.memcpy_htod(&ids, &mut on_gpu)?;
        graph.launch()?;
        let found = stream.clone_dtoh(&rows)?;
        stream.synchronize()?;
        let report = ticket.poll().context("the graph has run")??;
        ensure!(report.runs == replay + 1, "{} runs after replay {replay}", report.runs);
        for (&id, found) in ids.iter().zip(found.chunks(DIM)) {
            ensure!(found == row(id), "replay {replay}: row {id} is wrong: {found:?}");
        }
        from_drive += report.ids_ssd;
    }
    println!("captured once, replayed {REPLAYS} times with other ids");
    println!("the GPU read the rows of {from_drive} ids from the drive");
    println!("every row is right");
    Ok(())
}
