//! What a cache has, saved and brought back.

use std::time::Duration;

use warprow_gpu::{CacheAdmission, CacheFileError, GpuError, GpuExecutor};
use warprow_lookup::PrepareOptions;
use warprow_store::{DType, LoadOptions};

use crate::common::{self, Table};
use crate::fixture::{Fixture, Flat, ROWS, Stream, gpu, patient, scaled};
use crate::row_cache::cached;

fn trouble(error: GpuError) -> CacheFileError {
    match error {
        GpuError::CacheFile { source, .. } => source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_was_cached_is_there_again() {
    let Some(gpu) = gpu() else { return };
    let (fixture, folder) = (Fixture::new(2), tempfile::tempdir().unwrap());
    let path = folder.path().join("rows");
    let mut random = fastrand::Rng::with_seed(3);
    for admission in [CacheAdmission::Always, CacheAdmission::Sketch] {
        let ids = Fixture::ids(700, &mut random);
        let executor = fixture.attach(&gpu, cached(8 * ROWS).with_cache_admission(admission));
        let pinned: Vec<u64> = ids[..9].iter().map(|&id| id as u64).collect();
        executor.pin("t", &pinned).unwrap();
        let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
        let (slot, stream, flat) = (plan.slot().unwrap(), Stream::new(&gpu), Flat::new(&gpu, ids));
        (0..8).for_each(|_| _ = flat.assert_found(&fixture, &slot, &stream, &admission));
        let used = executor.cache_statistics().unwrap().unwrap().used;
        let saved = executor.save_cache(&path).unwrap();
        assert!(used >= 690 && saved.rows <= used && saved.rows >= 690, "{saved:?} of {used}");
        assert_eq!((saved.tables, saved.unnamed.len()), (1, 0));
        drop((plan, slot, executor));
        let executor = fixture.attach(&gpu, cached(8 * ROWS).with_cache_admission(admission));
        let restored = executor.warm_from(&path).unwrap();
        let [table] = &restored.tables[..] else { panic!("{restored:?}") };
        assert!(table.table == "t" && !table.is_older && restored.unknown.is_empty(), "{restored:?}");
        assert_eq!((table.warmed.ids, table.warmed.cached), (saved.rows, saved.rows), "{restored:?}");
        let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
        let report = flat.assert_found(&fixture, &plan.slot().unwrap(), &stream, &admission);
        assert_eq!(report.ids_cached, saved.rows, "{report:?}");
        // A cache of fewer lines takes the first: the pinned ones are among them.
        let small = fixture.attach(&gpu, cached(1000).with_cache_admission(admission));
        small.warm_from(&path).unwrap();
        let warmed = small.pin("t", &pinned).unwrap();
        assert_eq!(warmed.pinned, 9);
    }
}

#[test]
fn files_that_are_not_right_are_named_and_change_nothing() {
    let Some(gpu) = gpu() else { return };
    let (fixture, folder) = (Fixture::new(1), tempfile::tempdir().unwrap());
    let executor = fixture.attach(&gpu, cached(1200));
    let path = folder.path().join("rows");
    let absent = trouble(executor.warm_from(&path).unwrap_err());
    assert!(matches!(&absent, CacheFileError::Io(error) if error.kind() == std::io::ErrorKind::NotFound), "{absent:?}");
    executor.warm("t", &[1, 2, 3]).unwrap();
    assert_eq!(executor.save_cache(&path).unwrap().rows, 3);
    let before = executor.cache_statistics().unwrap();
    let sound = std::fs::read(&path).unwrap();
    for at in [0, 13, 17, 60, sound.len() - 1] {
        let mut damaged = sound.clone();
        damaged[at] ^= 4;
        std::fs::write(&path, &damaged).unwrap();
        let refused = executor.warm_from(&path).unwrap_err();
        assert!(refused.to_string().contains("rows"), "{refused}");
        trouble(refused);
    }
    std::fs::write(&path, vec![0; 4 << 20]).unwrap();
    assert!(matches!(trouble(executor.warm_from(&path).unwrap_err()), CacheFileError::TooLong { .. }));
    std::fs::write(&path, &sound).unwrap();
    let other = Fixture::new(1).attach(&gpu, cached(1200));
    assert!(matches!(trouble(other.warm_from(&path).unwrap_err()), CacheFileError::OfAnotherStore));
    assert_eq!(executor.cache_statistics().unwrap(), before);
    let folder_is_no_file = trouble(executor.save_cache(folder.path().join("none").join("rows")).unwrap_err());
    assert!(matches!(folder_is_no_file, CacheFileError::Io(_)));
    // What is replaced is so as a whole.
    executor.warm("t", &[4]).unwrap();
    assert_eq!(executor.save_cache(&path).unwrap().rows, 4);
    assert_eq!(executor.warm_from(&path).unwrap().tables[0].warmed.cached, 4);
    let none = fixture.attach(&gpu, patient());
    assert!(matches!(none.save_cache(&path).unwrap_err(), GpuError::NoCache));
    assert!(matches!(none.warm_from(&path).unwrap_err(), GpuError::NoCache));
}

#[test]
fn lists_of_another_generation_are_taken_and_told() {
    let Some(gpu) = gpu() else { return };
    let (fixture, folder) = (Fixture::new(1), tempfile::tempdir().unwrap());
    let path = folder.path().join("rows");
    let executor = fixture.attach(&gpu, cached(1200).with_adopting());
    executor.warm("t", &(0..100).collect::<Vec<u64>>()).unwrap();
    executor.save_cache(&path).unwrap();
    // Rows of other content.
    let mut random = fastrand::Rng::with_seed(1);
    let mut table = fixture.table.clone();
    table.rows.iter_mut().for_each(|byte| *byte ^= 0x55);
    let standby = LoadOptions::default().with_standby();
    let second = common::try_load(&fixture.store, std::slice::from_ref(&table), &standby).unwrap();
    let upcoming = executor.prepare(&PrepareOptions::default().with_generation(second)).unwrap();
    fixture.store.switch(second, false).unwrap();
    executor.adopt(&upcoming, scaled(Duration::from_secs(5))).unwrap();
    let restored = executor.warm_from(&path).unwrap();
    assert!(restored.tables[0].is_older && restored.tables[0].warmed.cached == 100, "{restored:?}");
    // A list of a table that is not there any more is passed over.
    let (_drives, store) = common::store(1, 24 << 20, 512);
    let tables = ["gone", "kept"].map(|name| Table::random(name, 1000, 32, DType::F32, &mut random));
    common::load(&store, &tables, &LoadOptions::default());
    let both = GpuExecutor::attach(&store, gpu.clone(), cached(600)).unwrap();
    both.warm("gone", &[1, 2]).unwrap();
    both.warm("kept", &[3]).unwrap();
    assert_eq!(both.save_cache(&path).unwrap().tables, 2);
    drop(both);
    let options = cached(600).with_hbm_bytes(1 << 18).with_hbm_rows("gone", 1000);
    let kept = GpuExecutor::attach(&store, gpu.clone(), options.with_hbm_rows("kept", 0)).unwrap();
    let restored = kept.warm_from(&path).unwrap();
    assert_eq!(restored.unknown, ["gone"]);
    assert_eq!((restored.tables.len(), restored.tables[0].warmed.cached), (1, 1), "{restored:?}");
}

#[test]
fn rows_are_saved_by_keys_and_in_other_orders() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..8 {
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (_drives, store) = common::store(1, 24 << 20, 512);
        let mut table = Table::random("k", 3000, 32, DType::F32, &mut random);
        if seed > 1 {
            table = table.with_random_keys(false, &mut random);
        }
        let is_named = table.keys.as_ref().is_none_or(|keys| keys.stored);
        common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
        let attach = || GpuExecutor::attach(&store, gpu.clone(), cached(24_000)).unwrap();
        let ids: Vec<u64> = (0..3000).step_by(41).map(|position| table.id(position) as u64).collect();
        let executor = attach();
        assert_eq!(executor.warm("k", &ids).unwrap().cached, ids.len() as u64);
        let path = folder.path().join(format!("{seed}"));
        let saved = executor.save_cache(&path).unwrap();
        drop(executor);
        let executor = attach();
        let restored = executor.warm_from(&path).unwrap();
        if !is_named {
            assert_eq!((saved.unnamed, saved.rows, restored.tables.len()), (vec!["k".to_owned()], 0, 0));
            continue;
        }
        assert_eq!(restored.tables[0].warmed.cached, ids.len() as u64, "{restored:?}");
        // They are the rows that were there: each has its line by now.
        let admissions = executor.cache_statistics().unwrap().unwrap().admissions;
        assert_eq!(executor.warm("k", &ids).unwrap().cached, ids.len() as u64);
        assert_eq!(executor.cache_statistics().unwrap().unwrap().admissions, admissions);
    }
}
