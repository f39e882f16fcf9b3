//! Tables of checkpoints, attached where they are: rows with scales in other tensors, on a GPU as on the host.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use half::bf16;
use warprow_gpu::{GpuError, GpuExecutor, GpuPlan, ResidentScales};
use warprow_gpu_queues::{DeviceMemory, PinnedMemory};
use warprow_lookup::{
    Batch, BoundsCheck, Feature, HostExecutor, HostOptions, MissingPolicy, Output, OutputRows, PlanOptions, Pooling,
};
use warprow_store::{CreateDrive, DType, Device, OpenOptions, Store};
use zerocopy::IntoBytes;

use crate::fixture::{gpu, patient};

/// Rows of each table.
const ROWS: u64 = 5000;

/// A file of three tables with scales: of 256 elements with a power of two for each 32, of 160 with one scale for all, and of 160
/// with two.
fn write(path: &Path, random: &mut fastrand::Rng) {
    let mut bytes =
        |count: u64, mask: u8, set: u8| -> Vec<u8> { (0..ROWS * count).map(|_| random.u8(..) & mask | set).collect() };
    let tensors: [(&str, &str, String, Vec<u8>); 7] = [
        ("mx.weight", "F8_E4M3", format!("[{ROWS},256]"), bytes(256, 255, 0)),
        ("mx.scale", "F8_E8M0", format!("[{ROWS},8]"), bytes(8, 15, 120)),
        ("one.weight", "F8_E4M3", format!("[{ROWS},160]"), bytes(160, 255, 0)),
        ("one.weight_scale", "F32", "[]".to_owned(), 0.000_2f32.to_le_bytes().to_vec()),
        ("nv.weight", "U8", format!("[{ROWS},80]"), bytes(80, 255, 0)),
        ("nv.weight_scale", "F8_E4M3", format!("[{ROWS},10]"), bytes(10, 127, 0)),
        ("nv.weight_scale_2", "F32", "[1]".to_owned(), 0.0007f32.to_le_bytes().to_vec()),
    ];
    let mut at = 0;
    let entries = tensors.iter().map(|(name, dtype, shape, bytes)| {
        let begin = at;
        at += bytes.len();
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{at}]}}"#)
    });
    // Of an odd number of bytes, so that rows begin at odd ones.
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    let header = if header.len() % 2 == 0 { header + " " } else { header };
    let data = tensors.iter().flat_map(|(.., bytes)| bytes).copied();
    let whole: Vec<u8> = (header.len() as u64).to_le_bytes().into_iter().chain(header.bytes()).chain(data).collect();
    std::fs::write(path, whole).unwrap();
}

fn attach(path: &Path, how: &str) -> Store {
    let address = format!("attached:{}{how}", path.display()).parse().unwrap();
    let device = Device::open(&address, CreateDrive::Never).unwrap();
    Store::open(&[device], &OpenOptions::default().with_read_only()).unwrap()
}

#[test]
fn rows_with_scales_in_other_tensors_are_the_hosts() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let mut random = fastrand::Rng::with_seed(23);
    write(&path, &mut random);
    for how in ["", ",resident=1"] {
        let store = attach(&path, how);
        let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
        for (hbm, dram) in [(0, 0), (0, 300_000), (400_000, 300_000), (1 << 30, 0)] {
            let options = patient().with_hbm_bytes(hbm).with_dram_bytes(dram);
            let executor = GpuExecutor::attach(&store, gpu.clone(), options).unwrap();
            for (table, dtype) in [("mx", DType::Mxfp8), ("one", DType::F8E4M3S), ("nv", DType::Nvfp4)] {
                for (count, pooling, out) in [
                    (24, Pooling::None, DType::BF16),
                    (3000, Pooling::None, DType::F32),
                    (30_000, Pooling::None, dtype),
                    (900, Pooling::None, dtype),
                    (2000, Pooling::Sum, DType::F32),
                    (400, Pooling::Mean, DType::BF16),
                ] {
                    let what = format!("{how} {hbm} {dram} {table} {count} {pooling:?} {out}");
                    let mut ids: Vec<i64> = (0..count).map(|_| random.i64(0..ROWS as i64)).collect();
                    // What graphs are padded with.
                    ids.iter_mut().step_by(7).for_each(|id| *id = [-1, ROWS as i64, i64::MAX][random.usize(0..3)]);
                    let feature = Feature::new("f", format!("{table}.weight")).pooling(pooling);
                    let bags = if pooling == Pooling::None { ids.len() } else { ids.len() / 20 };
                    let options = PlanOptions::default()
                        .with_max(bags, ids.len())
                        .with_out(out)
                        .with_missing(MissingPolicy::Zero)
                        .with_bounds(BoundsCheck::Ignore);
                    let planned = executor.plan(std::slice::from_ref(&feature), options.clone()).unwrap();
                    let mut by_gpu = planned.slot().unwrap().copied().unwrap();
                    let on_host = host.plan(&[feature], options).unwrap();
                    let mut by_host = on_host.slot().unwrap();
                    let batch = Batch::new(&ids, bags);
                    let width = on_host.width();
                    let len = bags * width;
                    match out {
                        DType::F32 => {
                            let (mut one, mut other) = (vec![7f32; len], vec![9f32; len]);
                            by_gpu.lookup(&batch, &mut Output::new(OutputRows::F32(&mut one), width)).unwrap();
                            by_host.lookup(&batch, &mut Output::new(OutputRows::F32(&mut other), width)).unwrap();
                            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                            assert!(one.iter().zip(&other).all(same), "{what}");
                        }
                        DType::BF16 => {
                            let (mut one, mut other) = (vec![bf16::ONE; len], vec![bf16::ZERO; len]);
                            by_gpu.lookup(&batch, &mut Output::new(OutputRows::Bf16(&mut one), width)).unwrap();
                            by_host.lookup(&batch, &mut Output::new(OutputRows::Bf16(&mut other), width)).unwrap();
                            let same = |(a, b): (&bf16, &bf16)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                            assert!(one.iter().zip(&other).all(same), "{what}");
                        }
                        _ => {
                            assert_eq!(width as u32, dtype.row_bytes(if table == "mx" { 256 } else { 160 }).unwrap());
                            let (mut one, mut other) = (vec![7u8; len], vec![9u8; len]);
                            by_gpu.lookup(&batch, &mut Output::new(OutputRows::U8(&mut one), width)).unwrap();
                            by_host.lookup(&batch, &mut Output::new(OutputRows::U8(&mut other), width)).unwrap();
                            assert!(one.as_bytes() == other.as_bytes(), "{what}");
                            assert!(one.iter().any(|&byte| byte != 0));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_file_that_changes_fails_the_rows_that_are_read() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&path, &mut fastrand::Rng::with_seed(5));
    let store = attach(&path, "");
    let executor = GpuExecutor::attach(&store, gpu.clone(), patient()).unwrap();
    let options = PlanOptions::default().with_max(50, 50).with_out(DType::Mxfp8);
    let mut slot = executor.plan(&[Feature::new("f", "mx.weight")], options).unwrap().slot().unwrap().copied().unwrap();
    let ids: Vec<i64> = (0..50).map(|id| id * 90).collect();
    let mut rows = vec![1u8; 50 * 264];
    slot.lookup(&Batch::new(&ids, 50), &mut Output::new(OutputRows::U8(&mut rows), 264)).unwrap();
    assert!(rows.chunks(264).all(|row| row.iter().any(|&byte| byte != 0)));
    std::thread::sleep(Duration::from_millis(20));
    File::options().write(true).open(&path).unwrap().write_all_at(&[3; 256], 4000).unwrap();
    let error = slot.lookup(&Batch::new(&ids, 50), &mut Output::new(OutputRows::U8(&mut rows), 264)).unwrap_err();
    assert!(matches!(error, GpuError::RowsFailed { failed: 50, .. }), "{error}");
    let changed = store.changed_files();
    assert!(changed.len() == 1 && changed[0].what.contains("was written to"), "{changed:?}");
}

/// The scales of `mx` as `write` has them.
fn scales(path: &Path) -> Vec<u8> {
    let file = std::fs::read(path).unwrap();
    let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    file[header + ROWS as usize * 256..][..ROWS as usize * 8].to_vec()
}

/// The rows of some ids, by a plan on a GPU.
fn looked_up(plan: &GpuPlan, ids: &[i64], pooled: bool, out: DType) -> Vec<u8> {
    let bags = if pooled { ids.len() / 10 } else { ids.len() };
    let mut slot = plan.slot().unwrap().copied().unwrap();
    let (batch, width) = (Batch::new(ids, bags), plan.width());
    if out == DType::F32 {
        let mut rows = vec![7f32; bags * width];
        slot.lookup(&batch, &mut Output::new(OutputRows::F32(&mut rows), width)).unwrap();
        return rows.as_bytes().to_vec();
    }
    let mut rows = vec![7u8; bags * width];
    slot.lookup(&batch, &mut Output::new(OutputRows::U8(&mut rows), width)).unwrap();
    rows
}

#[test]
fn scales_in_memory_give_what_scales_beside_the_rows_give() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let mut random = fastrand::Rng::with_seed(47);
    write(&path, &mut random);
    let whole = GpuExecutor::attach(&attach(&path, ""), gpu.clone(), patient()).unwrap();
    let codes = GpuExecutor::attach(&attach(&path, ",tensor=mx=mx.weight,scales="), gpu.clone(), patient()).unwrap();
    let bytes = scales(&path);
    let on_gpu = DeviceMemory::holding(&gpu, &bytes).unwrap();
    let pinned = PinnedMemory::allocate(&gpu, bytes.len() as u64).unwrap();
    pinned.memory().write(0, &bytes);
    for address in [on_gpu.address(), pinned.address()] {
        let scales = ResidentScales { table: "mx".to_owned(), address, bytes: bytes.len() as u64 };
        // By one kernel, by three, and by more.
        for count in [40, 2000, 20_000] {
            let ids: Vec<i64> = (0..count).map(|_| random.i64(-3..ROWS as i64 + 3)).collect();
            for (pooling, out) in
                [(Pooling::None, DType::F32), (Pooling::None, DType::Mxfp8), (Pooling::Sum, DType::F32)]
            {
                let options = PlanOptions::default()
                    .with_max(ids.len(), ids.len())
                    .with_out(out)
                    .with_missing(MissingPolicy::Zero)
                    .with_bounds(BoundsCheck::Ignore);
                let pooled = pooling != Pooling::None;
                let wanted = whole.plan(&[Feature::new("f", "mx.weight").pooling(pooling)], options.clone()).unwrap();
                let features = [Feature::new("f", "mx").pooling(pooling)];
                // SAFETY: the scales outlive the plan.
                let plan =
                    unsafe { codes.plan_with_scales(&features, options, std::slice::from_ref(&scales)) }.unwrap();
                assert_eq!(plan.width(), wanted.width());
                let (wanted, found) = (looked_up(&wanted, &ids, pooled, out), looked_up(&plan, &ids, pooled, out));
                assert!(found == wanted, "{count} {pooling:?} {out}");
            }
        }
    }
}

#[test]
fn scales_in_memory_that_do_not_fit_are_refused() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&path, &mut fastrand::Rng::with_seed(48));
    let store = attach(&path, ",tensor=mx=mx.weight,scales=,tensor=one.weight");
    let executor = GpuExecutor::attach(&store, gpu.clone(), patient()).unwrap();
    let memory = DeviceMemory::new(&gpu, ROWS * 8).unwrap();
    let usual = PlanOptions::default().with_max(10, 10).with_missing(MissingPolicy::Zero);
    let refused = |executor: &GpuExecutor, table: &str, bytes, address, options: &PlanOptions| {
        let scales = ResidentScales { table: table.to_owned(), address, bytes };
        // SAFETY: no look-up runs with them.
        let made = unsafe { executor.plan_with_scales(&[Feature::new("f", table)], options.clone(), &[scales]) };
        made.unwrap_err().to_string()
    };
    let (all, at) = (ROWS * 8, memory.address());
    for (table, bytes, address, options, says) in [
        ("mx", all - 1, at, &usual, "40000"),
        ("mx", all, 0, &usual, "null"),
        ("mx", all, at + 1, &usual, "39999 bytes are there"),
        ("one.weight", all, at, &usual, "of type f8e4m3"),
        ("none", all, at, &usual, "none"),
        ("mx", all, at, &usual.clone().with_missing(MissingPolicy::Default), "default row"),
    ] {
        let why = refused(&executor, table, bytes, address, options);
        assert!(why.contains(says), "{table}: {why}");
    }
    let resident = GpuExecutor::attach(&store, gpu.clone(), patient().with_dram_bytes(1 << 20)).unwrap();
    let why = refused(&resident, "mx", all, at, &usual);
    assert!(why.contains("dram_bytes"), "{why}");
}
