//! Attached tables: what is looked up is what the source has, for rows of every size.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use warprow_layout::{DType, TableSpec, float8};
use warprow_lookup::HostExecutor;
use warprow_lookup::{Batch, Feature, HostOptions, Output, OutputRows, PlanOptions, Pooling};
use warprow_store::{
    AttachError, AttachOptions, AttachedTable, CreateDrive, Device, DriveAddress, OpenOptions, RowSource, Store,
    StoreError, TableLoad,
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

/// Rows in two files, which tell where: the first `split` in one, the others in the other, from byte `at` on.
struct InFiles {
    bytes: Bytes,
    files: [File; 2],
    split: u64,
    at: u64,
}

impl InFiles {
    fn new(bytes: Vec<u8>, row_bytes: usize, split: u64, at: u64) -> Self {
        let files = [(); 2].map(|()| tempfile::tempfile_in("/var/tmp").or_else(|_| tempfile::tempfile()).unwrap());
        let (first, second) = bytes.split_at(split as usize * row_bytes);
        files[0].write_all_at(first, at).unwrap();
        files[1].write_all_at(second, at).unwrap();
        for file in &files {
            file.sync_all().unwrap();
        }
        Self { bytes: Bytes(bytes), files, split, at }
    }
}

impl RowSource for InFiles {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        let mut done = 0;
        let mut result = Ok(());
        self.stretches(first, (rows.len() / row_bytes) as u64, row_bytes, &mut |file, at, len| {
            let piece = &mut rows[done..done + len as usize];
            done += len as usize;
            if let Err(error) = file.read_exact_at(piece, at) {
                result = Err(error);
            }
        });
        result
    }

    fn check(&self, table: &warprow_layout::Table) -> Result<(), warprow_layout::VolumeError> {
        self.bytes.check(table)
    }

    fn stretches(&self, first: u64, count: u64, row_bytes: usize, each: &mut dyn FnMut(&File, u64, u64)) {
        let row_bytes = row_bytes as u64;
        let end = first + count;
        if first < self.split {
            each(&self.files[0], self.at + first * row_bytes, (end.min(self.split) - first) * row_bytes);
        }
        if end > self.split {
            let first = first.max(self.split);
            each(&self.files[1], self.at + (first - self.split) * row_bytes, (end - first) * row_bytes);
        }
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
        let host =
            HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(random.u64(0..200_000))).unwrap();
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
            let mut output = Output::new(OutputRows::U8(&mut rows), plan.width());
            plan.slot().unwrap().lookup(&Batch::new(&ids[..], 100), &mut output).unwrap();
            let wanted: Vec<u8> =
                ids.iter().flat_map(|&id| &source.0[id as usize * row_bytes..][..row_bytes]).copied().collect();
            assert_eq!(rows, wanted, "seed {seed} {}", spec.name);
            let plan = host
                .plan(&[Feature::new("f", &spec.name).pooling(Pooling::Sum)], PlanOptions::default().with_max(100, 100))
                .unwrap();
            let mut sums = vec![0f32; 100 * row_bytes];
            let mut output = Output::new(OutputRows::F32(&mut sums), plan.width());
            plan.slot().unwrap().lookup(&Batch::new(&ids[..], 100), &mut output).unwrap();
            let values = wanted.iter().map(|&code| float8::E4M3_VALUES[usize::from(code)]);
            assert!(sums.iter().zip(values).all(|(sum, value)| *sum == value || sum.is_nan() && value.is_nan()));
        }
    }
}

/// By its address, as the command has it.
#[test]
fn a_file_is_attached_by_its_address() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m,b.npy");
    let rows: Vec<u8> = (0..600u16 * 3).flat_map(|value| f32::from(value).to_le_bytes()).collect();
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (600, 3), }";
    let header = format!("{header:<117}\n");
    std::fs::write(&path, [&b"\x93NUMPY\x01\x00"[..], &118u16.to_le_bytes(), header.as_bytes(), &rows].concat())
        .unwrap();
    let text = format!("attached:{},tensor=t=m*", path.display());
    let address: DriveAddress = text.parse().unwrap();
    assert_eq!(address.to_string(), text);
    let DriveAddress::Attached(file) = &address else { panic!("{address:?}") };
    assert_eq!((&file.path, &file.tensors[..]), (&path, &["t=m*".into()][..]));
    let device = Device::open(&address, CreateDrive::Never).unwrap();
    assert!(device.skipped().is_empty());
    let store = Store::open(&[device], &OpenOptions::default().with_read_only()).unwrap();
    assert_eq!(store.free_bytes(), 0, "nothing can be put beside it");
    let mut seen = 0;
    let mut look = |id: u64, row: &[u8]| {
        assert_eq!(row, &rows[id as usize * 12..][..12]);
        seen += 1;
        ControlFlow::Continue(())
    };
    store.scan("t", 0..u64::MAX, &mut look).unwrap();
    assert_eq!(seen, 600);
    let refused = |tensor: &str| {
        let address: DriveAddress = format!("attached:{},tensor={tensor}", path.display()).parse().unwrap();
        match Device::open(&address, CreateDrive::Never) {
            Err(StoreError::Attached(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(refused("x*"), AttachError::NoMatch { tensors, .. } if tensors == ["m,b"]));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(refused("t=m*"), AttachError::File(_)));
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

/// Through the page cache and past it, with many reads under way and with one.
#[test]
fn rows_in_files_are_the_same_however_they_are_read() {
    let mut random = fastrand::Rng::with_seed(11);
    for dim in [160u32, 1, 17, 511, 512, 513, 4096, 10_000, 40_000] {
        let rows = random.u64(1..700);
        let row_bytes = dim as usize;
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(rows as usize * row_bytes).collect();
        let split = random.u64(0..=rows);
        let at = random.u64(0..10_000);
        let source = Arc::new(InFiles::new(bytes.clone(), row_bytes, split, at));
        let spec = TableSpec::new("t", rows, dim, DType::U8);
        for (direct, depth) in [(false, 256), (false, 1), (true, 256), (true, 1), (true, 3)] {
            let how = format!("rows of {dim} B, direct {direct}, depth {depth}");
            let tables = vec![AttachedTable { spec: spec.clone(), source: source.clone() }];
            let options = AttachOptions::default().with_direct(direct).with_depth(depth);
            let device = match Device::attached_with("attached", tables, &options) {
                Err(error) if direct && format!("{error}").contains("past the page cache") => {
                    eprintln!("skipped: {error}");
                    continue;
                }
                device => device.unwrap(),
            };
            let store = Store::open(&[device], &OpenOptions::default().with_read_only()).unwrap();
            let mut seen = 0;
            let mut look = |id: u64, row: &[u8]| {
                assert!(row == &bytes[id as usize * row_bytes..][..row_bytes], "{how}: row {id}");
                seen += 1;
                ControlFlow::Continue(())
            };
            store.scan("t", 0..u64::MAX, &mut look).unwrap();
            assert_eq!(seen, rows, "{how}");
            let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
            let ids: Vec<i64> = (0..300).map(|_| random.i64(0..rows as i64)).collect();
            let options = PlanOptions::default().with_max(300, 300).with_out(DType::U8);
            let plan = host.plan(&[Feature::new("f", "t")], options).unwrap();
            let mut out = vec![0u8; ids.len() * row_bytes];
            let mut output = Output::new(OutputRows::U8(&mut out), plan.width());
            plan.slot().unwrap().lookup(&Batch::new(&ids[..], 300), &mut output).unwrap();
            let wanted = ids.iter().flat_map(|&id| &bytes[id as usize * row_bytes..][..row_bytes]);
            assert!(out.iter().eq(wanted), "{how}");
        }
    }
}

#[test]
fn files_that_became_shorter_fail_and_their_rows_are_not_taken_for_zeros() {
    let bytes: Vec<u8> = (0..400_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8 | 1).collect();
    for direct in [false, true] {
        let source = Arc::new(InFiles::new(bytes.clone(), 160, 2500, 40));
        let spec = TableSpec::new("t", 2500, 160, DType::U8);
        let tables = vec![AttachedTable { spec, source: source.clone() }];
        let device = match Device::attached_with("a", tables, &AttachOptions::default().with_direct(direct)) {
            Err(error) if direct => {
                eprintln!("skipped: {error}");
                continue;
            }
            device => device.unwrap(),
        };
        let store = Store::open(&[device], &OpenOptions::default().with_read_only()).unwrap();
        let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
        let plan = PlanOptions::default().with_max(4, 4).with_out(DType::U8);
        let mut slot = host.plan(&[Feature::new("f", "t")], plan).unwrap().slot().unwrap();
        source.files[0].set_len(200_000).unwrap();
        let mut out = [0u8; 640];
        let error = slot.lookup(&Batch::new(&[3i64, 2400, 4, 5], 4), &mut Output::new(OutputRows::U8(&mut out), 160));
        let Err(warprow_lookup::LookupError::RowsFailed { positions, .. }) = error else {
            panic!("direct {direct}: {error:?}");
        };
        // Whoever cut the file off may have changed what is left of it.
        assert_eq!(positions, [0, 1, 2, 3], "direct {direct}");
        assert_eq!(out, [0; 640]);
    }
}

#[test]
fn what_cannot_be_read_past_the_page_cache_says_so() {
    let mut random = fastrand::Rng::with_seed(1);
    let (attached, _) = table("t", 1000, 160, DType::U8, &mut random);
    let direct = AttachOptions::default().with_direct(true);
    let error = Device::attached_with("a", vec![attached.clone()], &direct).unwrap_err().to_string();
    assert!(error.contains("do not stand in a file") && error.contains("direct=1"), "{error}");
    for depth in [0, 1025] {
        let options = AttachOptions::default().with_depth(depth);
        let error = Device::attached_with("a", vec![attached.clone()], &options).unwrap_err().to_string();
        assert!(error.contains("1 to 1024"), "{error}");
    }
}
