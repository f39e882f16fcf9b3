//! Attaching to stores of which something is damaged.

use warprow_gpu::GpuExecutor;
use warprow_gpu::{BatchLen, GpuBatch, GpuError, GpuOutput};
use warprow_gpu_queues::DeviceMemory;
use warprow_layout::{FormatOptions, Ranks};
use warprow_lookup::{Feature, PlanOptions};
use warprow_store::{
    CreateDrive, DType, Device, DriveAddress, FingerprintWidth, LoadOptions, OpenOptions, RowOrder, Store, TableSpec,
};

use crate::common::random::Case;
use crate::common::{self, Table};
use crate::fixture::{OnGpu, Stream, gpu, look_up, patient, wait};

#[test]
fn a_damaged_permutation_harms_its_own_table_alone() {
    let Some(gpu) = gpu() else { return };
    let mut random = fastrand::Rng::with_seed(11);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.drive");
    let address: DriveAddress = format!("emulated:{},size=24M", path.display()).parse().unwrap();
    let device = Device::open(&address, CreateDrive::IfMissing).unwrap();
    let store = Store::create(&[device], &FormatOptions::default(), &OpenOptions::default()).unwrap();
    let mut permuted = |name| {
        let mut table = Table::random(name, 600, 24, DType::F16, &mut random);
        let counts: Vec<u64> = (0..600).map(|id| id * 7 % 11).collect();
        (table.spec.permuted, table.ranks) = (true, Some(Ranks::by_hotness(&counts)));
        table
    };
    let bad = permuted("bad");
    let good = permuted("good");
    common::load(&store, &[bad, good.clone()], &LoadOptions::default());
    let (generation, index) = store.generation("bad").unwrap();
    let region = generation.tables[index].ranks.unwrap().region;
    let extent = generation.placement.extents(region, 1 << 20).next().unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 3], extent.lba * 512).unwrap();

    let row_bytes = good.row_bytes() as u64;
    for (hbm, dram) in [(0, 0), (50 * row_bytes, 100 * row_bytes)] {
        let options = patient().with_hbm_bytes(hbm).with_dram_bytes(dram);
        let executor = GpuExecutor::attach(&store, gpu.clone(), options).unwrap();
        let plan = |table| executor.plan(&[Feature::new("f", table)], PlanOptions::default().with_max(8, 200));
        for _ in 0..2 {
            let error = plan("bad").expect_err("which row is whose is lost");
            assert!(matches!(&error, GpuError::TableDamaged { table, .. } if table == "bad"), "{error:?}");
            assert!(error.to_string().contains("\"bad\"") && error.to_string().contains("load it again"), "{error}");
        }
        assert_eq!(
            (executor.tiers("bad"), executor.tiers("good")),
            (Some((0, 0)), Some((hbm / row_bytes, dram / row_bytes)))
        );
        let plan = plan("good").unwrap();
        let slot = plan.slot().unwrap();
        let stream = Stream::new(&gpu);
        let tables = [good.clone()];
        let features = [Feature::new("f", "good")];
        let options = PlanOptions::default().with_max(8, 200);
        for _ in 0..5 {
            let mut case = Case::random(&tables, &features, &options, plan.width(), true, &mut random);
            let on = OnGpu::new(&gpu, &mut case);
            wait(&look_up(&slot, &stream, &on, &case, false, options.max_batch).unwrap()).unwrap();
            on.download(&mut case);
            case.check(&"good");
        }
    }
}

#[test]
fn keys_are_compared_only_where_they_are_stored() {
    let Some(gpu) = gpu() else { return };
    let mut random = fastrand::Rng::with_seed(12);
    let (_drives, store) = common::store(1, 24 << 20, 512);
    // Fingerprints of 8 bits let one foreign key in 256 pass, if nobody compares.
    let mut table = Table::random("t", 2000, 16, DType::F32, &mut random).with_random_keys(true, &mut random);
    let keys = table.keys.as_mut().unwrap();
    (keys.fingerprint, keys.stored) = (FingerprintWidth::Bits8, true);
    let mut bare = table.clone();
    bare.spec = TableSpec::new("bare", 2000, 16, DType::F32);
    (bare.ranks, bare.keys.as_mut().unwrap().stored) = (None, false);
    bare.keys.as_mut().unwrap().order = RowOrder::Positions;
    common::load(&store, &[table.clone(), bare], &LoadOptions::default());
    let foreign: Vec<i64> = (0..20_000).map(|i| i64::MAX / 3 + i).collect();
    assert!(foreign.iter().all(|&id| !table.keys.as_ref().unwrap().numbers.contains(&id.into())));
    let upload = DeviceMemory::new(&gpu, foreign.len() as u64 * 8).unwrap();
    upload.write(0, &foreign.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let rows = DeviceMemory::new(&gpu, foreign.len() as u64 * 64).unwrap();
    let stream = Stream::new(&gpu);
    for checked in [false, true] {
        let mut options = patient().with_hbm_bytes(20_000);
        options.check_keys = checked;
        let executor = GpuExecutor::attach(&store, gpu.clone(), options).unwrap();
        let options = PlanOptions::default().with_max(foreign.len(), foreign.len());
        let refused = executor.plan(&[Feature::new("f", "bare")], options.clone());
        match checked {
            false => drop(refused.unwrap()),
            true => {
                let error = refused.expect_err("there is nothing to compare with").to_string();
                assert!(error.contains("\"bare\"") && error.contains("keys"), "{error}");
            }
        }
        let plan = executor.plan(&[Feature::new("f", "t")], options).unwrap();
        let slot = plan.slot().unwrap();
        let batch = GpuBatch::new(upload.address(), BatchLen::Host(foreign.len()), foreign.len() as u32);
        // SAFETY: all of it lives until the ticket has been waited for.
        let ticket = unsafe { slot.lookup(stream.0, &batch, &GpuOutput::new(rows.address(), 16)) }.unwrap();
        let passed = foreign.len() as u64 - wait(&ticket).unwrap().missing;
        let expected = if checked { 0..=0 } else { 40..=120 };
        assert!(expected.contains(&passed), "{passed} of 20,000 foreign keys passed, where 78 are to be expected");
    }
}
