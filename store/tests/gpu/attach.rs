//! Attaching to stores of which something is damaged.

use warprow_layout::{FormatOptions, Ranks};
use warprow_store::{
    Create, DType, Device, DriveAddress, Feature, GpuError, LoadOptions, OpenOptions, PlanOptions, Store,
};

use crate::common::random::Case;
use crate::common::{self, Table};
use crate::rig::{OnGpu, Stream, gpu, look_up, patient, wait};

#[test]
fn a_damaged_permutation_harms_its_own_table_alone() {
    let Some(gpu) = gpu() else { return };
    let mut random = fastrand::Rng::with_seed(11);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.drive");
    let address: DriveAddress = format!("emulated:{},size=24M", path.display()).parse().unwrap();
    let device = Device::open(&address, Create::IfMissing).unwrap();
    let store = Store::create(&[device], &FormatOptions::default(), &OpenOptions::default()).unwrap();
    let mut permuted = |name| {
        let mut table = Table::random(name, 600, 24, DType::F16, &mut random);
        let counts: Vec<u64> = (0..600).map(|id| id * 7 % 11).collect();
        (table.spec.permuted, table.ranks) = (true, Some(Ranks::by_hotness(&counts)));
        table
    };
    let (bad, good) = (permuted("bad"), permuted("good"));
    common::load(&store, &[bad, good.clone()], &LoadOptions::default());
    let (generation, index) = store.generation("bad").unwrap();
    let region = generation.tables[index].ranks.unwrap().region;
    let extent = generation.placement.extents(region, 1 << 20).next().unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 3], extent.lba * 512).unwrap();

    let row_bytes = good.row_bytes() as u64;
    for (hbm, dram) in [(0, 0), (50 * row_bytes, 100 * row_bytes)] {
        let options = patient().with_hbm_bytes(hbm).with_dram_bytes(dram);
        let executor = store.attach_gpu(gpu.clone(), options).unwrap();
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
        let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
        let (tables, features) = ([good.clone()], [Feature::new("f", "good")]);
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
