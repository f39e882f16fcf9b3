//! Rivals look up what the store has loaded, from the same files.

use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use warprow_layout::{DType, FormatOptions, Ranks};
use warprow_soft_controller::DriveUri;
use warprow_store::{Device, LoadOptions, OpenOptions, Store, TableLoad, TableSpec};
use warprow_workload::rival::{
    EqualMeansRival, MappedPlainFile, NumpyProcess, PageCaching, PerIdRival, PlainFile, Rival, RivalError, RivalTable,
    ThreadedRival,
};
use warprow_workload::{ContentOracle, IdShuffle, PowerLaw, RowsAnswer, SeededRandom, TableContent, verify};

const MAX_IDS: usize = 2000;

struct Fixture {
    content: WithDefault,
    paths: Vec<PathBuf>,
    store: Store,
    ranks: Option<Arc<Ranks>>,
    _directory: tempfile::TempDir,
}

/// An oracle's table, with a default row that is not zeros.
struct WithDefault(ContentOracle);

impl TableContent for WithDefault {
    fn rows(&self) -> u64 {
        self.0.rows()
    }
    fn dim(&self) -> u32 {
        self.0.dim()
    }
    fn dtype(&self) -> DType {
        self.0.dtype()
    }
    fn fill(&self, id: u64, row: &mut [u8]) {
        self.0.fill(id, row);
    }
    fn fill_default(&self, row: &mut [u8]) {
        self.0.fill(u64::MAX, row);
    }
}

fn fixture(drives: usize, lba: u32, rows: u64, dim: u32, permuted: bool) -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let content = WithDefault(ContentOracle::new(3, 1, rows, dim, DType::U8));
    let paths: Vec<PathBuf> = (0..drives).map(|i| directory.path().join(format!("drive{i}"))).collect();
    let open = |path: &PathBuf| {
        let mut uri = DriveUri::new(path);
        (uri.size, uri.lba) = (Some(16 << 20), Some(lba));
        Device::new(uri.open().unwrap(), 1)
    };
    let devices: Vec<Device> = paths.iter().map(open).collect();
    let store = Store::create(&devices, &FormatOptions::default(), &OpenOptions::default()).unwrap();
    let mut spec = TableSpec::new("t", rows, dim, DType::U8);
    let mut default = vec![0; content.row_bytes()];
    content.fill_default(&mut default);
    (spec.permuted, spec.default_row) = (permuted, Some(default));
    let ranks = permuted.then(|| IdShuffle::new(rows, 8).ranks());
    let mut load = TableLoad::new(&spec, &content.0).with_random_access();
    if let Some(ranks) = &ranks {
        load = load.with_ranks(ranks);
    }
    store.load("m", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    Fixture { content, paths, store, ranks: ranks.map(Arc::new), _directory: directory }
}

impl Fixture {
    fn target(&self, caching: PageCaching) -> Result<RivalTable, RivalError> {
        let (generation, table) = self.store.generation("t").unwrap();
        RivalTable::new(&generation, table, self.ranks.clone(), &self.paths, caching)
    }

    fn rivals(&self, caching: PageCaching, hot_rows: u64, depth: u32) -> Result<Vec<Box<dyn Rival>>, RivalError> {
        let plain = self.target(caching)?;
        let equal = plain.clone().with_dram(hot_rows)?;
        Ok(vec![
            Box::new(PerIdRival::pread(plain.clone())?),
            Box::new(PerIdRival::mapped(plain.clone())?),
            Box::new(PerIdRival::uring(plain, depth)?),
            Box::new(EqualMeansRival::pread(equal.clone(), MAX_IDS)?),
            Box::new(EqualMeansRival::uring(equal, MAX_IDS, depth)?),
        ])
    }

    fn check(&self, rival: &mut dyn Rival, ids: &[i64]) {
        let stride = self.content.row_bytes();
        let mut rows = vec![0xee; ids.len() * stride];
        let mut mask = vec![0xee; ids.len()];
        let name = rival.name();
        rival.lookup(ids, &mut rows, &mut mask).unwrap_or_else(|error| panic!("{name}: {error}"));
        let verified = verify(&self.content, ids, RowsAnswer { rows: &rows, stride, mask: Some(&mask) });
        assert_eq!(verified.unwrap_or_else(|error| panic!("{name}: {error}")).rows, ids.len() as u64);
    }
}

/// Hot and cold ids, neighbours, repeats, and ids that the table does not have.
fn batches(rows: u64, seed: u64) -> Vec<Vec<i64>> {
    let law = PowerLaw::new(rows, 1.05).unwrap();
    let mut random = SeededRandom::new(seed);
    let mut skewed = |count| (0..count).map(|_| law.sample(&mut random) as i64).collect::<Vec<_>>();
    let mut batches = vec![vec![], vec![7], skewed(MAX_IDS), skewed(300)];
    batches.push((0..MAX_IDS as i64).map(|i| (i * 37) % rows as i64).collect());
    batches.push((100..400).collect());
    batches.push(vec![-1, 5, rows as i64, i64::MIN, 5, rows as i64 - 1, i64::MAX, 5]);
    batches
}

#[test]
fn every_rival_finds_every_row() {
    for (drives, lba, rows, dim, permuted) in
        [(1, 512, 5000, 512, true), (2, 512, 4000, 100, false), (3, 512, 2000, 1300, true), (2, 4096, 3000, 128, true)]
    {
        let fixture = fixture(drives, lba, rows, dim, permuted);
        for caching in [PageCaching::Cached, PageCaching::Direct] {
            for (hot_rows, depth) in [(0, 4), (rows / 20, 128), (rows, 1)] {
                let rivals = match fixture.rivals(caching, hot_rows, depth) {
                    Err(error @ RivalError::Unavailable { .. }) => {
                        eprintln!("skipped: {error}");
                        continue;
                    }
                    rivals => rivals.unwrap(),
                };
                for mut rival in rivals {
                    batches(rows, 11).iter().for_each(|ids| fixture.check(&mut *rival, ids));
                }
            }
        }
    }
}

#[test]
fn plain_files_and_many_threads_find_every_row() {
    let directory = tempfile::tempdir().unwrap();
    for (dtype, dim) in [(DType::F32, 5), (DType::F32, 1024), (DType::BF16, 9), (DType::I8, 13)] {
        let content = ContentOracle::new(3, 0, 3001, dim, dtype);
        let rows = content.rows();
        let row_bytes = content.row_bytes();
        let mut written = 0;
        let plain = PlainFile::new(directory.path(), rows, row_bytes, &content, &mut |bytes| {
            written += bytes;
            ControlFlow::Continue(())
        });
        let plain = plain.unwrap();
        assert_eq!((written, plain.bytes()), (rows * row_bytes as u64, rows * row_bytes as u64));
        plain.warm().unwrap();
        let mut rivals: Vec<Box<dyn Rival>> = vec![
            Box::new(MappedPlainFile::new(&plain).unwrap()),
            Box::new(ThreadedRival::new(3, || MappedPlainFile::new(&plain)).unwrap()),
        ];
        assert_eq!(rivals[1].name(), "mmap of a plain file, 3 threads");
        for cold in [false, true] {
            match NumpyProcess::start(|| false).and_then(|numpy| numpy.map(&plain, dtype, cold)) {
                Ok(numpy) => rivals.push(Box::new(numpy)),
                Err(error @ RivalError::Unavailable { .. }) => eprintln!("skipped: {error}"),
                Err(error) => panic!("{error}"),
            }
        }
        for rival in &mut rivals {
            for ids in batches(rows, 11) {
                let mut bytes = vec![0xee; ids.len() * row_bytes];
                let mut mask = vec![0xee; ids.len()];
                let name = rival.name();
                rival.lookup(&ids, &mut bytes, &mut mask).unwrap_or_else(|error| panic!("{name}: {error}"));
                let answer = RowsAnswer { rows: &bytes, stride: row_bytes, mask: Some(&mask) };
                let verified = verify(&content, &ids, answer).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(verified.rows, ids.len() as u64);
                assert_eq!(rival.took().is_some(), name == "numpy.memmap");
            }
            assert!(matches!(rival.lookup(&[1], &mut [0; 3], &mut [0]), Err(RivalError::Size { .. })));
        }
        // It is the table in the order of ids, whoever reads it.
        let mut row = vec![0; row_bytes];
        std::fs::File::open(plain.path()).unwrap().read_exact_at(&mut row, 17 * row_bytes as u64).unwrap();
        let mut wanted = vec![0; row_bytes];
        content.fill(17, &mut wanted);
        assert!(row == wanted && plain.bytes_of(17) == Some(17 * row_bytes as u64..18 * row_bytes as u64));
        assert_eq!((plain.bytes_of(-1), plain.bytes_of(3001)), (None, None));
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    let content = ContentOracle::new(3, 0, 100_000, 128, DType::F32);
    let mut parts = 0;
    let stopped = PlainFile::new(directory.path(), 100_000, 512, &content, &mut |_| {
        parts += 1;
        if parts == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((stopped.unwrap_err().kind(), parts), (std::io::ErrorKind::Interrupted, 2));
    for (rows, row_bytes) in [(0, 512), (10, 0), (u64::MAX, 512)] {
        let made = PlainFile::new(directory.path(), rows, row_bytes, &content, &mut |_| ControlFlow::Continue(()));
        assert_eq!(made.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    }
}

#[test]
fn a_target_says_where_rows_lie() {
    let fixture = fixture(2, 512, 4000, 100, true);
    let target = fixture.target(PageCaching::Cached).unwrap();
    for id in [0, 1, 1999, 3999] {
        let (drive, bytes) = target.bytes_of(id).unwrap();
        let mut row = vec![0; 100];
        let mut wanted = vec![0; 100];
        std::fs::File::open(&fixture.paths[drive]).unwrap().read_exact_at(&mut row, bytes.start).unwrap();
        fixture.content.fill(id as u64, &mut wanted);
        assert!(row == wanted && bytes.end - bytes.start == 100, "{id}");
    }
    assert_eq!((target.bytes_of(-1), target.bytes_of(4000)), (None, None));
}

#[test]
fn wrong_buffers_and_missing_files_are_errors() {
    let fixture = fixture(2, 512, 3000, 64, false);
    let target = fixture.target(PageCaching::Cached).unwrap();
    let mut rival = EqualMeansRival::pread(target.clone(), 10).unwrap();
    for (ids, rows, mask) in [(2, 127, 2), (2, 128, 1), (11, 704, 11)] {
        let answer = rival.lookup(&vec![0; ids], &mut vec![0; rows], &mut vec![0; mask]);
        assert!(matches!(answer, Err(RivalError::Size { .. })), "{ids} {rows} {mask}: {answer:?}");
    }
    let (generation, table) = fixture.store.generation("t").unwrap();
    let one = RivalTable::new(&generation, table, None, &fixture.paths[..1], PageCaching::Cached).unwrap();
    let answer = PerIdRival::pread(one.clone()).unwrap().lookup(
        &(0..3000).collect::<Vec<_>>(),
        &mut [0; 192_000],
        &mut [0; 3000],
    );
    assert!(matches!(answer, Err(RivalError::Misplaced { files: 1, .. })), "{answer:?}");
    let answer = EqualMeansRival::pread(one, 3000).unwrap().lookup(
        &(0..3000).collect::<Vec<_>>(),
        &mut [0; 192_000],
        &mut [0; 3000],
    );
    assert!(matches!(answer, Err(RivalError::Misplaced { files: 1, .. })), "{answer:?}");
    assert!(matches!(
        RivalTable::new(&generation, table, None, &["/no/such/file"], PageCaching::Cached),
        Err(RivalError::Read { drive: 0, .. })
    ));
}

#[test]
fn a_file_that_was_cut_off_is_an_error() {
    let fixture = fixture(1, 512, 3000, 512, false);
    let target = fixture.target(PageCaching::Cached).unwrap();
    let mut rivals: Vec<Box<dyn Rival>> = vec![
        Box::new(PerIdRival::pread(target.clone()).unwrap()),
        Box::new(EqualMeansRival::pread(target.clone(), MAX_IDS).unwrap()),
    ];
    match PerIdRival::uring(target.clone(), 8) {
        Ok(rival) => {
            rivals.push(Box::new(rival));
            rivals.push(Box::new(EqualMeansRival::uring(target, MAX_IDS, 8).unwrap()));
        }
        Err(error) => eprintln!("skipped: {error}"),
    }
    // The drive maps its file, which must not shrink under it.
    let Fixture { content, paths, store, _directory, .. } = fixture;
    drop(store);
    let whole = std::fs::metadata(&paths[0]).unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(&paths[0]).unwrap();
    file.set_len(1 << 20).unwrap();
    let ids: Vec<i64> = (0..1000).map(|i| i * 3).collect();
    for mut rival in rivals {
        let mut rows = vec![0; 512_000];
        let mut mask = vec![0; 1000];
        let name = rival.name();
        file.set_len(1 << 20).unwrap();
        let answer = rival.lookup(&ids, &mut rows, &mut mask);
        assert!(matches!(answer, Err(RivalError::Read { .. })), "{name}: {answer:?}");
        // It can go on afterwards: what was cut off reads as zeros.
        file.set_len(whole).unwrap();
        rival.lookup(&ids, &mut rows, &mut mask).unwrap_or_else(|error| panic!("{name}: {error}"));
        let answer = RowsAnswer { rows: &rows, stride: 512, mask: Some(&mask) };
        assert!(verify(&content, &ids, answer).is_err(), "{name}: zeros passed for rows");
    }
}
