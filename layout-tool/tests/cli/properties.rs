//! What goes in comes out: any shapes, types, keys and orders, on 1 to 16 drives of different sizes.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use warprow_keys::{FingerprintWidth, IndexOptions, KeyIndex};
use warprow_layout::{DType, Ranks, RowOrder, TableKeys, TableSpec};
use warprow_store::{CreateDrive, Device, LoadOptions, Store, TableLoad};

use crate::fixture::CliFixture;

/// Drives of different sizes with a store on them, in another order than it was made with.
fn store(fixture: &CliFixture, random: &mut fastrand::Rng) -> String {
    let count = if random.bool() { random.usize(1..=3) } else { random.usize(1..=16) };
    let lba = [512, 4096][random.usize(..2)];
    let mut names: Vec<String> =
        (0..count).map(|n| format!("emulated:{}", fixture.path(&format!("{n}.drive")).display())).collect();
    let sized: Vec<String> = names.iter().map(|name| format!("{name},size={}M", random.u32(24..48))).collect();
    fixture.ok(&["format", "-d", &sized.join(","), "--lba", &lba.to_string()]);
    random.shuffle(&mut names);
    names.join(",")
}

fn bytes(count: usize, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = vec![0; count];
    random.fill(&mut bytes);
    bytes
}

/// A shape: narrow or wide, short or long, of 1.5 MB at most.
fn shape(size: usize, random: &mut fastrand::Rng) -> (usize, usize) {
    let mut up_to = |bits| {
        let most = 1 << random.u32(0..bits);
        1 + random.usize(..most)
    };
    let dim = up_to(11);
    let rows = up_to(14);
    (rows.min((1_500_000 / (dim * size)).max(1)), dim)
}

fn tensors(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let fixture = CliFixture::new();
    let drives = store(&fixture, &mut random);
    use Dtype::*;
    let types = [(F32, 4), (F16, 2), (BF16, 2), (F8_E4M3, 1), (F8_E5M2, 1), (I8, 1), (U8, 1)];
    let tables: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> = (0..random.usize(1..5))
        .map(|n| {
            let (dtype, size) = types[random.usize(..types.len())];
            let (rows, dim) = shape(size, &mut random);
            (format!("t{n}"), (dtype, vec![rows, dim], bytes(rows * dim * size, &mut random)))
        })
        .collect();
    let views = tables
        .iter()
        .map(|(name, (dtype, shape, data))| (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
    fs::write(fixture.path("in.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let mut load = vec!["load".to_owned(), "-d".into(), drives.clone(), "in.safetensors".into(), "--all".into()];
    if random.bool() {
        load.push("--row-crc".into());
    }
    for (name, (_, shape, _)) in &tables {
        if random.bool() {
            let counts: Vec<u64> = (0..shape[0]).map(|_| random.u64(..100)).collect();
            let file =
                fixture.npy(&format!("{name}.hot.npy"), shape[0] as u64, 1, |row, _| counts[row as usize] as f32);
            load.extend(["--hotness".into(), format!("{name}={file}")]);
        }
    }
    fixture.ok(&load.iter().map(String::as_str).collect::<Vec<_>>());
    if random.bool() {
        // Over the rows that are there, on chunks of their own.
        load.push("--replace".into());
        fixture.ok(&load.iter().map(String::as_str).collect::<Vec<_>>());
    }
    for (name, (dtype, shape, data)) in &tables {
        let out = format!("{name}.safetensors");
        fixture.ok(&["export", "-d", &drives, "--table", name, "--out", &out]);
        let written = fs::read(fixture.path(&out)).unwrap();
        let read = SafeTensors::deserialize(&written).unwrap();
        let tensor = read.tensor(name).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (*dtype, &shape[..]), "{name}");
        assert!(tensor.data() == data, "{name} {dtype:?} {shape:?}");
    }
    let verified = fixture.ok(&["verify", "-d", &drives, "--against", "in.safetensors"]);
    assert_eq!(verified["differing"], 0);
    let rows: usize = tables.values().map(|(_, shape, _)| shape[0]).sum();
    let scrubbed = fixture.ok(&["scrub", "-d", &drives]);
    assert_eq!(scrubbed["rows"], rows);
}

fn keys(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let fixture = CliFixture::new();
    let drives = store(&fixture, &mut random);
    let (rows, dim) = shape(4, &mut random);
    let mut table: BTreeMap<i64, Vec<u8>> = BTreeMap::new();
    while table.len() < rows {
        let key = random.i64(..) >> random.u32(..63);
        table.insert(key, bytes(dim * 4, &mut random));
    }
    let mut order: Vec<i64> = table.keys().copied().collect();
    random.shuffle(&mut order);
    let devices: Vec<Device> =
        drives.split(',').map(|drive| Device::open(&drive.parse().unwrap(), CreateDrive::Never).unwrap()).collect();
    let opened = Store::open(&devices, &Default::default()).unwrap();
    let go = &mut |_| ControlFlow::Continue(());
    let fingerprint = [FingerprintWidth::Bits8, FingerprintWidth::Bits16, FingerprintWidth::Bits32][random.usize(..3)];
    let options = IndexOptions::default().with_fingerprint(fingerprint).with_threads(1);
    let index = Arc::new(KeyIndex::build(&order[..], &options, go).unwrap());
    let counts: Vec<u64> = order.iter().map(|_| random.u64(..9)).collect();
    let ranked = RowOrder::Ranks(Ranks::by_hotness(&counts));
    let source = &order[..];
    let by = [RowOrder::Given, RowOrder::Positions, ranked][random.usize(..3)].clone();
    let keyed = TableKeys::new(index, &source, by, true).unwrap();
    let name = "t";
    let all_rows = order.iter().flat_map(|key| table[key].clone()).collect::<Vec<u8>>();
    let spec = TableSpec { row_crc: true, ..TableSpec::new(name, 0, dim as u32, DType::F32) }.keyed(&keyed);
    let source = &all_rows[..];
    let load = TableLoad::new(&spec, &source).with_keys(&keyed);
    opened.load("m", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    drop((opened, devices));
    fixture.ok(&["export", "-d", &drives, "--table", name, "--out", "rows.npy", "--keys-out", "keys.npy"]);
    let file = fs::read(fixture.path("keys.npy")).unwrap();
    let found = npyz::NpyFile::new(&file[..]).unwrap().into_vec::<i64>().unwrap();
    let file = fs::read(fixture.path("rows.npy")).unwrap();
    let rows_at = file.len() - rows * dim * 4;
    let pairs = found.iter().copied().zip(file[rows_at..].chunks(dim * 4).map(<[u8]>::to_vec));
    assert!(pairs.collect::<BTreeMap<_, _>>() == table && found.len() == rows);
    let verified = fixture.ok(&["verify", "-d", &drives]);
    assert_eq!((&verified["tables"][0]["keys_checked"], &verified["differing"]), (&rows.into(), &0.into()));
    // Keys that are there have their rows; others have none.
    let asked: Vec<i64> =
        (0..20).map(|n| if n % 2 == 0 { order[random.usize(..rows)] } else { random.i64(..) }).collect();
    let text = asked.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    fixture.ok(&["lookup", "-d", &drives, "--table", name, "--check-keys", "--out", "l.npy", "--ids", &text]);
    let file = fs::read(fixture.path("l.npy")).unwrap();
    for (key, row) in asked.iter().zip(file[file.len() - asked.len() * dim * 4..].chunks(dim * 4)) {
        assert!(row == table.get(key).map_or(&vec![0; dim * 4][..], |row| &row[..]), "key {key}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 8, max_shrink_iters: 0, rng_seed: RngSeed::Fixed(0x5eed), failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_tensors_come_out_as_they_went_in(seed: u64) {
        tensors(seed);
    }

    #[test]
    fn any_keys_come_out_with_their_rows(seed: u64) {
        keys(seed);
    }
}
