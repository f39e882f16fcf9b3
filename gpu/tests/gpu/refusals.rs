//! Bad input: a clear error before anything is launched, or from the ticket where only the GPU can see it.

use std::ptr;

use cudarc::driver::sys::{self, CUresult};
use warprow_gpu::GpuExecutor;
use warprow_gpu::{BatchLen, CopyingSlot, GpuBatch, GpuError, GpuOptions, GpuOutput, GpuSlot, IdType};
use warprow_gpu_queues::DeviceMemory;
use warprow_lookup::{Feature, PlanOptions, Pooling};
use warprow_store::DType;

use crate::fixture::{DIM, Fixture, Flat, ROW, Stream, gpu, patient, wait};

#[test]
fn bad_input_is_refused_before_anything_is_launched() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let plan = fixture.plan(&gpu, patient(), 1);
    let slot = plan.slot().unwrap();
    let stream = Stream::new(&gpu);
    let ids = DeviceMemory::new(&gpu, 800).unwrap();
    let rows = DeviceMemory::new(&gpu, 100 * ROW as u64).unwrap();
    let good = GpuBatch::new(ids.address(), BatchLen::Host(100), 100);
    let out = GpuOutput::new(rows.address(), DIM as usize);
    let stack = 7u64;
    let of_this_process = ptr::from_ref(&stack) as u64;
    let refused = |batch: GpuBatch, out: GpuOutput, word: &str| {
        // SAFETY: it must be refused.
        match unsafe { slot.lookup(stream.0, &batch, &out) } {
            Err(error @ GpuError::Invalid { .. }) => assert!(error.to_string().contains(word), "{error}"),
            other => panic!("{word}: {other:?}"),
        }
    };
    refused(GpuBatch { batch: 5000, ..good }, out, "bags");
    refused(GpuBatch { len: BatchLen::Host(2000), ..good }, out, "2000 ids, 1000 were planned");
    refused(GpuBatch { len: BatchLen::Host(99), ..good }, out, "one length");
    refused(good.with_weights(rows.address()), out, "weight");
    refused(good, GpuOutput { row_stride: DIM as usize - 1, ..out }, "stride");
    // Misaligned.
    refused(good, GpuOutput { rows: out.rows + 2, ..out }, "the output: ");
    refused(good, GpuOutput { rows: out.rows + 2, ..out }, "is not a multiple of 4");
    refused(GpuBatch { ids: good.ids + 4, ..good }, out, "is not a multiple of 8");
    refused(good.with_offsets(ids.address() + 4, IdType::I64), out, "the offsets: ");
    // Too short.
    refused(good, GpuOutput { rows: out.rows + ROW as u64, ..out }, "needed");
    refused(good, GpuOutput { row_stride: DIM as usize + 1, ..out }, "needed");
    refused(
        good,
        out.with_mask(rows.address() + 99 * ROW as u64 + ROW as u64 - 99),
        "the mask: 99 bytes are there, 100",
    );
    refused(good.with_offsets(ids.address(), IdType::I64), out, "needed");
    refused(GpuBatch { len: BatchLen::Device(ids.address() + 792), ..good }, out, "the counts: 8 bytes are there, 16");
    // No memory of CUDA's.
    refused(GpuBatch { ids: 0x1000, ..good }, out, "no memory of CUDA's");
    refused(GpuBatch { ids: of_this_process, ..good }, out, "the ids: ");
    refused(good, GpuOutput { rows: of_this_process & !3, ..out }, "no memory of CUDA's");
    refused(good, out.with_mask(of_this_process), "no memory of CUDA's");
    refused(GpuBatch { len: BatchLen::Device(of_this_process), ..good }, out, "no memory of CUDA's");
    // What was refused has taken nothing: the slot works, all its tickets are free.
    let flat = Flat::new(&gpu, Fixture::ids(500, &mut fastrand::Rng::with_seed(1)));
    flat.assert_found(&fixture, &slot, &stream, &"afterwards");
}

#[test]
fn a_stream_of_another_context_is_refused() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let slot = fixture.plan(&gpu, patient(), 1).slot().unwrap();
    let flat = Flat::new(&gpu, vec![1, 2, 3]);
    let mut context = ptr::null_mut();
    let mut popped = ptr::null_mut();
    let mut stream = ptr::null_mut();
    // SAFETY: GPU 0 is there; handles are stored, and destroyed below. Creating a context makes it current, until it is
    // popped.
    unsafe {
        assert_eq!(sys::cuCtxCreate_v4(&mut context, ptr::null_mut(), 0, 0), CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamCreate(&mut stream, 1), CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuCtxPopCurrent_v2(&mut popped), CUresult::CUDA_SUCCESS);
    }
    let error = flat.launch(&slot, &Stream(stream)).expect_err("it is another context's");
    assert!(matches!(error, GpuError::Invalid { what: "the stream", .. }), "{error:?}");
    assert!(error.to_string().contains("another context"), "{error}");
    flat.assert_untouched(&"refused");
    // SAFETY: nothing was launched on it.
    assert_eq!(unsafe { sys::cuCtxDestroy_v2(context) }, CUresult::CUDA_SUCCESS);
    flat.assert_found(&fixture, &slot, &Stream::new(&gpu), &"on a stream of its own");
}

fn flawed(slot: &GpuSlot, stream: &Stream, batch: &GpuBatch, out: &GpuOutput, word: &str) {
    // SAFETY: its caller holds the memory.
    let ticket = unsafe { slot.lookup(stream.0, batch, out) }.unwrap();
    match wait(&ticket) {
        Err(error @ GpuError::Flawed(..)) => assert!(error.to_string().contains(word), "{error}"),
        other => panic!("{word}: {other:?}"),
    }
}

#[test]
fn what_only_the_gpu_sees_is_an_error_of_the_ticket() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let plan = fixture.plan(&gpu, patient(), 1);
    let slot = plan.slot().unwrap();
    let stream = Stream::new(&gpu);
    let flat = Flat::new(&gpu, vec![0; 1000]);
    let ids = DeviceMemory::new(&gpu, 8000).unwrap();
    let rows = DeviceMemory::new(&gpu, 1000 * ROW as u64).unwrap();
    let counts = DeviceMemory::new(&gpu, 16).unwrap();
    let out = GpuOutput::new(rows.address(), DIM as usize);
    let batch = GpuBatch::new(ids.address(), BatchLen::Device(counts.address()), 1000);
    let write = |counts_are: [u64; 2]| {
        counts.write(0, &counts_are.iter().flat_map(|count| count.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    };
    for (counts_are, word) in [([1001, 1000], "more ids"), ([u64::MAX, 1], "more ids"), ([10, 1001], "more bags")] {
        write(counts_are);
        flawed(&slot, &stream, &batch, &out, word);
    }
    write([4, 2]);
    let offsets = DeviceMemory::new(&gpu, 24).unwrap();
    offsets.write(0, &[0i64, 3, 2].iter().flat_map(|offset| offset.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    flawed(&slot, &stream, &batch.with_offsets(offsets.address(), IdType::I64), &out, "offsets");
    // Ids that the table lacks are zeros, and the mask says so.
    let mut ids: Vec<i64> = (0..100).collect();
    ids.extend([-1, 5000, i64::MAX, i64::MIN]);
    let strange = Flat::new(&gpu, ids);
    let report = wait(&strange.launch(&slot, &stream).unwrap()).unwrap();
    assert_eq!((report.ids, report.missing, report.failed), (104, 4, 0));
    assert_eq!(strange.check(&fixture, &"ids out of range"), [-1, 5000, i64::MAX, i64::MIN]);
    flat.assert_found(&fixture, &slot, &stream, &"afterwards");
}

#[test]
fn plans_that_the_gpu_cannot_serve_are_refused() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let error = GpuExecutor::attach(&fixture.store, gpu.clone(), GpuOptions::default().with_queue_sets(129))
        .expect_err("too many");
    assert!(error.to_string().contains("at most 128"), "{error}");
    let executor = fixture.attach(&gpu, patient());
    let plan = |options: PlanOptions| executor.plan(&Fixture::features(), options).map(drop);
    // 307 GB for the rows alone.
    let large = executor.plan(&Fixture::features(), PlanOptions::default().with_max(1, 600_000_000));
    let copied = large.and_then(|plan| plan.slot()).and_then(|slot| slot.copied());
    let text = copied.expect_err("no GPU has that").to_string();
    assert!(text.contains("bytes of GPU memory cannot be had") && text.contains("are free"), "{text}");
    let error = plan(PlanOptions::default().with_out(DType::I8)).expect_err("f32 cannot become i8");
    assert!(error.to_string().contains("f32"), "{error}");
    let missing = [Feature::new("f", "u").pooling(Pooling::None)];
    let error = executor.plan(&missing, PlanOptions::default()).expect_err("there is no such table");
    assert!(error.to_string().contains('u'), "{error}");
    // What was refused is given back.
    let mut slot: CopyingSlot =
        executor.plan(&Fixture::features(), Fixture::options(1)).unwrap().slot().unwrap().copied().unwrap();
    let mut rows = vec![0.0; DIM as usize];
    let mut out = warprow_lookup::Output::new(warprow_lookup::OutputRows::F32(&mut rows), DIM as usize);
    slot.lookup(&warprow_lookup::Batch::new(&[77i64], 1), &mut out).unwrap();
    assert_eq!(rows.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(), fixture.table.row(77));
}
