//! Attached tables: what is looked up is what the source has, for rows of every size.

use std::ops::ControlFlow;
use std::sync::Arc;

use warprow_layout::{DType, TableSpec, float8};
use warprow_store::{
    AttachedTable, Batch, Device, Feature, HostOptions, OpenOptions, Output, PlanOptions, Pooling, RowSource, Rows,
    Store, TableLoad,
};

/// Bytes in memory, by rows.
struct Bytes(Vec<u8>);

impl RowSource for Bytes {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        self.0[..].read(first, row_bytes, rows)
    }

    fn check(&self, table: &warprow_layout::Table) -> Result<(), warprow_layout::VolumeError> {
        self.0[..].check(table)
    }
}

fn table(name: &str, rows: u64, dim: u32, dtype: DType, random: &mut fastrand::Rng) -> (AttachedTable, Arc<Bytes>) {
    let bytes = (0..rows * u64::from(dtype.row_bytes(dim).unwrap())).map(|_| random.u8(..)).collect();
    let source = Arc::new(Bytes(bytes));
    (AttachedTable { spec: TableSpec::new(name, rows, dim, dtype), source: source.clone() }, source)
}

#[test]
fn rows_of_every_size_are_those_of_the_source() {
    for seed in 0..6 {
        let mut random = fastrand::Rng::with_seed(seed);
        let dims = [160u32, 1, 17, 511, 512, 513, 1000, 4096, 10_000, 40_000];
        let made: Vec<_> = dims
            .iter()
            .map(|&dim| table(&format!("t{dim}"), random.u64(1..600), dim, DType::F8E4M3, &mut random))
            .collect();
        let device = Device::attached("attached", made.iter().map(|(table, _)| table.clone()).collect()).unwrap();
        let store = Store::open(&[device], &OpenOptions::default().with_read_only()).unwrap();
        let host = store.attach_host(HostOptions::default().with_dram_bytes(random.u64(0..200_000))).unwrap();
        for (attached, source) in &made {
            let spec = &attached.spec;
            let row_bytes = spec.dim as usize;
            let mut seen = 0;
            let mut look = |id: u64, row: &[u8]| {
                assert_eq!(row, &source.0[id as usize * row_bytes..][..row_bytes], "seed {seed} {} {id}", spec.name);
                seen += 1;
                ControlFlow::Continue(())
            };
            store.scan(&spec.name, 0..u64::MAX, &mut look).unwrap();
            assert_eq!(seen, spec.rows, "seed {seed}");
            let ids: Vec<i64> = (0..100).map(|_| random.i64(0..spec.rows as i64)).collect();
            // As their bits, and as numbers.
            let bits = PlanOptions::default().with_max(100, 100).with_out(DType::F8E4M3);
            let plan = host.plan(&[Feature::new("f", &spec.name)], bits).unwrap();
            let mut rows = vec![0u8; ids.len() * row_bytes];
            let mut output = Output::new(Rows::U8(&mut rows), plan.width());
            plan.slot().unwrap().lookup(&Batch::new(&ids[..], 100), &mut output).unwrap();
            let wanted: Vec<u8> =
                ids.iter().flat_map(|&id| &source.0[id as usize * row_bytes..][..row_bytes]).copied().collect();
            assert_eq!(rows, wanted, "seed {seed} {}", spec.name);
            let plan = host
                .plan(&[Feature::new("f", &spec.name).pooling(Pooling::Sum)], PlanOptions::default().with_max(100, 100))
                .unwrap();
            let mut sums = vec![0f32; 100 * row_bytes];
            let mut output = Output::new(Rows::F32(&mut sums), plan.width());
            plan.slot().unwrap().lookup(&Batch::new(&ids[..], 100), &mut output).unwrap();
            let values = wanted.iter().map(|&code| float8::E4M3_VALUES[usize::from(code)]);
            assert!(sums.iter().zip(values).all(|(sum, value)| *sum == value || sum.is_nan() && value.is_nan()));
        }
    }
}

#[test]
fn what_is_attached_is_not_written() {
    let mut random = fastrand::Rng::with_seed(1);
    let (attached, source) = table("t", 1000, 160, DType::F8E5M2, &mut random);
    let device = Device::attached("attached", vec![attached.clone()]).unwrap();
    let store = Store::open(&[device], &OpenOptions::default()).unwrap();
    let spec = TableSpec::new("u", 1000, 160, DType::F8E5M2);
    let load = [TableLoad::new(&spec, &*source)];
    store.load("more", &load, &Default::default(), &mut |_| ControlFlow::Continue(())).unwrap_err();
    let permuted = TableSpec { permuted: true, ..attached.spec.clone() };
    Device::attached("a", vec![AttachedTable { spec: permuted, ..attached.clone() }]).unwrap_err();
    let longer = TableSpec { rows: 1001, ..attached.spec.clone() };
    Device::attached("a", vec![AttachedTable { spec: longer, ..attached.clone() }]).unwrap_err();
    let vast = TableSpec { rows: u64::MAX, ..attached.spec.clone() };
    Device::attached("a", vec![AttachedTable { spec: vast, ..attached }]).unwrap_err();
}
