//! Tables whose rows are looked up by keys, as the commands show them.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use warprow_keys::{IndexOptions, KeyIndex};
use warprow_layout::{DType, Ranks, RowOrder, TableKeys, TableSpec};
use warprow_store::{Device, LoadOptions, Store, TableLoad};

use proptest::prelude::*;

use crate::fixture::CliFixture;

const KEYS: [i64; 6] = [-7, i64::MIN, 0, 1 << 40, i64::MAX, 12];

/// Row i, of key i, is [i, −i]. Positions 3 and 5 are the hottest.
fn load(fixture: &CliFixture, table: &str, stored: bool) {
    let device = Device::open(
        &format!("emulated:{}", fixture.path("a.drive").display()).parse().unwrap(),
        warprow_store::CreateDrive::Never,
    )
    .unwrap();
    let store = Store::open(&[device], &Default::default()).unwrap();
    let go = &mut |_| ControlFlow::Continue(());
    let options = IndexOptions::default().with_fingerprint(warprow_keys::FingerprintWidth::Bits32);
    let index = Arc::new(KeyIndex::build(&KEYS[..], &options, go).unwrap());
    let source = &KEYS[..];
    let order = RowOrder::Ranks(Ranks::by_hotness(&[1, 1, 1, 9, 1, 5]));
    let keyed = TableKeys::new(index, &source, order, stored).unwrap();
    let spec = TableSpec { row_crc: true, ..TableSpec::new(table, 0, 2, DType::F32) }.keyed(&keyed);
    let rows: Vec<u8> = (0..6u8).flat_map(|i| [f32::from(i), -f32::from(i)]).flat_map(f32::to_le_bytes).collect();
    let source = &rows[..];
    let load = TableLoad::new(&spec, &source).with_keys(&keyed);
    store.load(table, &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
}

#[test]
fn a_table_with_keys_is_looked_up_checked_and_exported() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    load(&fixture, "t", true);
    load(&fixture, "bare", false);

    let seen = fixture.ok(&["inspect", "-d", &drive]);
    let keys = &seen["store"]["generations"][0]["tables"][0]["keys"];
    assert_eq!((&keys["signed"], &keys["fingerprint_bits"], &keys["stored"]), (&json!(true), &json!(32), &json!(true)));
    let text = fixture.run(&["inspect", "-d", &drive]).stdout;
    assert!(text.contains("i64 keys, stored, 32-bit fingerprints"), "{text}");

    let ids = "-7,9223372036854775807,5,1099511627776,-9223372036854775808,-8";
    for check in [&[][..], &["--check-keys"]] {
        let mut args = vec!["lookup", "-d", &drive, "--table", "t", "--ids", ids];
        args.extend(check);
        let found = fixture.ok(&args);
        assert_eq!(found["found"], json!([true, true, false, true, true, false]));
        let row = |i: f64| json!([i, -i]);
        assert_eq!(
            found["rows"],
            json!([row(0.0), row(4.0), json!([0.0, 0.0]), row(3.0), row(1.0), json!([0.0, 0.0])])
        );
        assert_eq!((&found["missing"], &found["keys_checked"]), (&json!(2), &json!(!check.is_empty())));
    }
    // The same bits as i64::MIN, but another number.
    let found = fixture.ok(&["lookup", "-d", &drive, "--table", "t", "--ids", "9223372036854775808,12"]);
    assert_eq!(found["found"], json!([false, true]));
    let refused = fixture.fails(&["lookup", "-d", &drive, "--table", "bare", "--ids", "0", "--check-keys"], 3);
    assert!(refused["message"].as_str().unwrap().contains("does not store its keys"));

    let verified = fixture.ok(&["verify", "-d", &drive]);
    assert_eq!(
        (&verified["tables"][0]["keys_checked"], &verified["tables"][1]["keys_checked"]),
        (&json!(6), &json!(0))
    );
    let file = fixture.npy("rows.npy", 6, 2, |r, c| (r * c) as f32);
    fixture.fails(&["verify", "-d", &drive, "--table", "t", "--against", &file], 3);
    let file = fixture.npy("rows.npy", 6, 2, |r, c| if c == 0 { r as f32 } else { -(r as f32) });
    let against = |keys: &[i64]| {
        fs::write(fixture.path("of.npy"), list("<i8", keys.iter().flat_map(|key| key.to_le_bytes()).collect()))
            .unwrap();
        fixture.json(&["verify", "-d", &drive, "--table", "t", "--against", &file, "--keys", "of.npy"])
    };
    let (same, exit) = against(&KEYS);
    assert_eq!((exit, &same["differing"], &same["tables"][0]["rows"]), (0, &json!(0), &json!(6)));
    let mut other = KEYS;
    other.swap(1, 4);
    let (differs, exit) = against(&other);
    assert_eq!((exit, &differs["differing"]), (5, &json!(2)));
    other[2] = 5;
    let (stranger, exit) = against(&other);
    assert!(exit == 5 && stranger.to_string().contains("row 2 of rows has the key 5"), "{stranger}");
    other[2] = -7;
    let (twice, exit) = against(&other);
    assert!(exit == 5 && twice.to_string().contains("the key -7 comes twice"), "{twice}");

    fn export_of<'a>(drive: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        [&["export", "-d", drive, "--table"], more].concat()
    }
    fixture.fails(&export_of(&drive, &["t", "--out", "t.npy"]), 2);
    std::os::unix::fs::symlink("t.npy", fixture.path("link.npy")).unwrap();
    for same in ["t.npy", "./t.npy", "link.npy"] {
        let refused = fixture.fails(&export_of(&drive, &["t", "--out", "t.npy", "--keys-out", same, "--force"]), 2);
        assert!(refused["message"].as_str().unwrap().contains("where the rows are written"), "{refused}");
    }
    fixture.fails(&export_of(&drive, &["t", "--out", "t.npy", "--keys-out", "k.csv"]), 2);
    fixture.fails(&export_of(&drive, &["bare", "--out", "t.npy", "--keys-out", "k.npy"]), 3);
    assert!(!fixture.path("t.npy").exists() && !fixture.path("k.npy").exists());
    fixture.ok(&export_of(&drive, &["bare", "--out", "bare.npy"]));
    let out = fixture.ok(&export_of(&drive, &["t", "--out", "t.npy", "--keys-out", "k.npy"]));
    assert_eq!((&out["rows"], &out["keys_out"]), (&json!(6), &json!("k.npy")));
    // By rank: positions 3 and 5, then the others as they came.
    let keys = npyz::NpyFile::new(&fs::read(fixture.path("k.npy")).unwrap()[..]).unwrap().into_vec::<i64>().unwrap();
    let rows = npyz::NpyFile::new(&fs::read(fixture.path("t.npy")).unwrap()[..]).unwrap().into_vec::<f32>().unwrap();
    let order = [3, 5, 0, 1, 2, 4];
    assert_eq!(keys, order.map(|at| KEYS[at]));
    assert_eq!(rows, order.iter().flat_map(|&at| [at as f32, -(at as f32)]).collect::<Vec<_>>());
    assert_eq!(fs::read(fixture.path("t.npy")).unwrap(), fs::read(fixture.path("bare.npy")).unwrap());
}

/// A `.npy` file of a list.
fn list(descr: &str, data: Vec<u8>) -> Vec<u8> {
    let width = descr[2..].parse::<usize>().unwrap();
    let mut file = warprow_formats::npy::head_of_list(descr, (data.len() / width) as u64);
    file.extend(data);
    file
}

fn bytes<const N: usize, T: Copy>(of: impl Fn(T) -> [u8; N], values: &[T]) -> Vec<u8> {
    values.iter().flat_map(|&value| of(value)).collect()
}

/// A safetensors file of a table "rows" and a list of keys "ids".
pub(crate) fn safetensors(rows: &[f32], dim: usize, keys: &[i64]) -> Vec<u8> {
    use safetensors::tensor::TensorView;
    use safetensors::{Dtype, serialize};
    let rows = bytes(f32::to_le_bytes, rows);
    let ids = bytes(i64::to_le_bytes, keys);
    let views = [
        ("rows", TensorView::new(Dtype::F32, vec![keys.len(), dim], &rows).unwrap()),
        ("ids", TensorView::new(Dtype::I64, vec![keys.len()], &ids).unwrap()),
    ];
    serialize(views, None).unwrap()
}

/// Writes the same keys and rows, row i all of value i, in every format that has keys; the arguments that load each.
fn in_every_format(fixture: &CliFixture, keys: &[i64], dim: usize) -> Vec<Vec<String>> {
    let rows: Vec<f32> = (0..keys.len()).flat_map(|row| vec![row as f32; dim]).collect();
    let key_bytes = bytes(i64::to_le_bytes, keys);
    let row_bytes = bytes(f32::to_le_bytes, &rows);
    let write = |name: &str, content: &[u8]| {
        fs::create_dir_all(fixture.path(name).parent().unwrap()).unwrap();
        fs::write(fixture.path(name), content).unwrap();
    };
    write("t/key", &key_bytes);
    write("t/emb_vector", &row_bytes);
    let first = keys.len() / 3 * 8;
    let rest = keys.len() / 3 * 4 * dim;
    write("d/t_emb_keys.rank_0.world_size_2", &key_bytes[..first]);
    write("d/t_emb_values.rank_0.world_size_2", &row_bytes[..rest]);
    write("d/t_emb_keys.rank_1.world_size_2", &key_bytes[first..]);
    write("d/t_emb_values.rank_1.world_size_2", &row_bytes[rest..]);
    let words = |words: &[i32]| bytes(i32::to_le_bytes, words);
    let head = |kind: i32| [words(&[kind, 0]), vec![0; 120]].concat();
    let meta = [words(&[1, 1, 0, 0, dim as i32, 0]), (keys.len() as u64).to_le_bytes().to_vec(), words(&[dim as i32])];
    write("c/meta_data", &meta.concat());
    write("c/key0", &[head(1), key_bytes.clone()].concat());
    write("c/weight0", &[head(2), row_bytes.clone()].concat());
    write("t.safetensors", &safetensors(&rows, dim, keys));
    let mut npy = warprow_formats::npy::head("<f4", keys.len() as u64, dim as u64);
    npy.extend(&row_bytes);
    write("t.npy", &npy);
    write("k.npy", &list("<i8", key_bytes.clone()));
    let args = |args: &[&str]| args.iter().map(|arg| arg.to_string()).collect::<Vec<_>>();
    vec![
        args(&["t"]),
        args(&["d"]),
        args(&["c", "--tensor", "t=table0"]),
        args(&["t.safetensors", "--tensor", "t=rows", "--keys", "ids"]),
        args(&["t.safetensors", "--tensor", "t=rows", "--keys", "rows=k.npy"]),
        args(&["t.npy", "--keys", "k.npy", "--forget-keys", "--fingerprint", "32"]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn every_format_with_keys_is_found_by_its_keys(
        keys in prop::collection::hash_set(any::<i64>(), 1..60),
        dim in 1usize..40,
        hot in any::<prop::sample::Index>(),
    ) {
        let keys: Vec<i64> = keys.into_iter().collect();
        let fixture = CliFixture::new();
        let drive = fixture.drive("a.drive", "32M");
        let hottest = hot.index(keys.len());
        let trace: Vec<i64> = [keys[hottest]; 3].into_iter().chain(keys.iter().copied()).collect();
        fs::write(fixture.path("trace.i64"), bytes(i64::to_le_bytes, &trace)).unwrap();
        for (number, args) in in_every_format(&fixture, &keys, dim).into_iter().enumerate() {
            let mut load = vec!["load", "-d", &drive, "--replace", "--row-crc", "--key-index", "always"];
            load.extend(args.iter().map(String::as_str));
            load.extend(if number % 2 == 1 { &["--hotness", "trace:trace.i64"][..] } else { &["--forget-order"] });
            let loaded = fixture.ok(&load);
            prop_assert_eq!(&loaded["tables"][0]["key_index"]["signed"], &json!(true));
            let stored = !args.contains(&"--forget-keys".to_owned());
            let text: Vec<String> = keys.iter().map(i64::to_string).collect();
            let ids = format!("--ids={}", text.join(","));
            let mut lookup = vec!["lookup", "-d", &drive, "--table", "t", &ids];
            if stored {
                lookup.push("--check-keys");
            }
            let found = fixture.ok(&lookup);
            for row in 0..keys.len() {
                prop_assert_eq!(&found["rows"][row], &json!(vec![row as f64; dim]), "{:?} row {}", &args, row);
            }
            prop_assert_eq!(&found["missing"], &json!(0));
            let verified = fixture.ok(&["verify", "-d", &drive, "--table", "t"]);
            prop_assert_eq!(&verified["tables"][0]["keys_checked"], &json!(if stored { keys.len() } else { 0 }));
            let same = fixture.ok(&["verify", "-d", &drive, "--table", "t", "--against", "t"]);
            prop_assert_eq!(&same["differing"], &json!(0));
            if stored {
                let out = ["export", "-d", &drive, "--table", "t", "--out", "o.npy", "--keys-out", "o.keys.npy", "--force"];
                prop_assert_eq!(&fixture.ok(&out)["order"], &json!("rank"));
                let read = |name: &str| fs::read(fixture.path(name)).unwrap();
                let theirs = npyz::NpyFile::new(&read("o.keys.npy")[..]).unwrap().into_vec::<i64>().unwrap();
                let rows = npyz::NpyFile::new(&read("o.npy")[..]).unwrap().into_vec::<f32>().unwrap();
                let first = if number % 2 == 1 { hottest } else { 0 };
                prop_assert_eq!(theirs[0], keys[first]);
                prop_assert_eq!(theirs.iter().collect::<HashSet<_>>().len(), keys.len());
                for (key, row) in theirs.iter().zip(rows.chunks(dim)) {
                    let at = keys.iter().position(|number| number == key).unwrap();
                    prop_assert_eq!(row, &vec![at as f32; dim]);
                }
            }
        }
    }
}

#[test]
fn keys_are_refused_by_name() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    in_every_format(&fixture, &[1 << 40, -5, 1 << 50, 1 << 40], 2);
    for (args, says) in [
        (&["t"][..], "has the key 1099511627776 twice, in rows 0 and 3"),
        (&["d"], "has the key 1099511627776 twice, in rows 0 and 3"),
        (&["t", "--key-index", "never"], "row 0 has the key 1099511627776"),
        (&["t.npy", "--keys", "gone"], "no list of whole numbers \"gone\""),
        (&["t.npy", "--keys", "t.npy"], "no whole .npy file of a list"),
        (&["t.npy", "--key-index", "always"], "has no keys"),
    ] {
        let refused = fixture.fails(&[&["load", "-d", &drive], args].concat(), 3);
        assert!(refused["message"].as_str().unwrap().contains(says), "{says}: {refused}");
    }
    fs::write(fixture.path("k.npy"), list("<i8", vec![0; 24])).unwrap();
    let refused = fixture.fails(&["load", "-d", &drive, "t.npy", "--keys", "k.npy"], 3);
    assert!(refused["message"].as_str().unwrap().contains("has 3 keys, table \"t\" has 4 rows"), "{refused}");
    assert!(fixture.ok(&["inspect", "-d", &drive])["store"]["generations"].as_array().unwrap().is_empty());

    // Of unsigned keys, as a default row, and in a trace of look-ups that others wrote with a sign.
    let keys = [u64::MAX, 7, 1 << 63, 12];
    fs::write(fixture.path("k.npy"), list("<u8", bytes(u64::to_le_bytes, &keys))).unwrap();
    fs::write(fixture.path("t.i64"), bytes(i64::to_le_bytes, &[-1, 12, 12, 7])).unwrap();
    let default = format!("id:{}", u64::MAX);
    let load = ["load", "-d", &drive, "t.npy", "--keys", "k.npy", "--default", &default, "--hotness", "trace:t.i64"];
    let loaded = fixture.ok(&load);
    let table = &loaded["tables"][0];
    assert_eq!((&table["key_index"]["signed"], &table["trace_ids_missing"]), (&json!(false), &json!(1)));
    let lookup = |ids: &str| fixture.ok(&["lookup", "-d", &drive, "--table", "t", "--ids", ids]);
    let found = lookup("18446744073709551615,9223372036854775808,8");
    assert_eq!(found["rows"], json!([[0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]));
    assert_eq!(found["found"], json!([true, true, false]));
    // The same bits as the first, but another number.
    assert_eq!(lookup("-1,12")["found"], json!([false, true]));
    fixture.ok(&["export", "-d", &drive, "--table", "t", "--out", "o.npy", "--keys-out", "o.keys.npy"]);
    let order =
        npyz::NpyFile::new(&fs::read(fixture.path("o.keys.npy")).unwrap()[..]).unwrap().into_vec::<u64>().unwrap();
    assert_eq!(order, [12, 7, u64::MAX, 1 << 63]);
    let default =
        fixture.fails(&["load", "-d", &drive, "t.npy", "--keys", "k.npy", "--default", "id:5", "--replace"], 3);
    assert!(default["message"].as_str().unwrap().contains("has no key 5"), "{default}");
}

/// `tests/data/sparse.parquet`, of pyarrow: row i has the key ± (1,000,003 i² + i·2⁴⁰), below zero where i is odd.
#[test]
fn a_parquet_column_of_sparse_ids_is_looked_up_by_them() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/sparse.parquet");
    let sign = |i: i64| if i % 2 == 1 { -1 } else { 1 };
    let key = |i: i64| sign(i) * (i * i * 1_000_003 + (i << 40));
    let trace: Vec<i64> = [150, 150, 150, 77, 77, 3, -1].map(|i| if i < 0 { 5 } else { key(i) }).to_vec();
    fs::write(fixture.path("t.i64"), bytes(i64::to_le_bytes, &trace)).unwrap();
    for hotness in [&[][..], &["--hotness", "trace:t.i64"]] {
        let load = [&["load", "-d", &drive, file, "--replace", "--row-crc", "--to", "f16"][..], hotness].concat();
        let loaded = fixture.ok(&load);
        assert_eq!(loaded["tables"][0]["key_index"]["fingerprint_bits"], 16);
        let ids = format!("--ids={},{},{},6", key(0), key(77), key(199));
        let found = fixture.ok(&["lookup", "-d", &drive, "--table", "sparse", &ids, "--check-keys"]);
        assert_eq!(
            found["rows"],
            json!([[0.0, 0.0, 0.0], [77.0, 38.5, -77.0], [199.0, 99.5, -199.0], [0.0, 0.0, 0.0]])
        );
        assert_eq!(found["found"], json!([true, true, true, false]));
        assert_eq!(fixture.ok(&["verify", "-d", &drive])["tables"][0]["keys_checked"], 200);
        let export = ["export", "-d", &drive, "--table", "sparse", "--out", "o.npy", "--keys-out", "k.npy", "--force"];
        fixture.ok(&export);
        let keys =
            npyz::NpyFile::new(&fs::read(fixture.path("k.npy")).unwrap()[..]).unwrap().into_vec::<i64>().unwrap();
        let first = if hotness.is_empty() { [0, 1, 2] } else { [150, 77, 3] };
        assert_eq!(keys[..3], first.map(key));
        let against = ["verify", "-d", &drive, "--table", "sparse", "--against", "o.npy", "--keys", "k.npy"];
        assert_eq!(fixture.ok(&against)["differing"], 0);
    }
    fixture.ok(&["load", "-d", &drive, file, "--replace"]);
    assert_eq!(fixture.ok(&["verify", "-d", &drive, "--table", "sparse", "--against", file])["differing"], 0);
}

/// MovieLens: movie numbers are sparse, and their ratings a trace.
#[test]
fn movies_are_ranked_by_their_ratings() {
    let ratings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/movielens-small/ratings.csv");
    let Ok(text) = fs::read_to_string(&ratings) else {
        println!("skipped: {} is not there", ratings.display());
        return;
    };
    let mut counts: BTreeMap<i64, u64> = BTreeMap::new();
    let movies = text.lines().skip(1).map(|line| line.split(',').nth(1).unwrap().parse::<i64>().unwrap());
    movies.for_each(|movie| *counts.entry(movie).or_default() += 1);
    let keys: Vec<i64> = counts.keys().copied().collect();
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    fs::write(fixture.path("k.npy"), list("<i8", bytes(i64::to_le_bytes, &keys))).unwrap();
    let file =
        fixture.npy("movies.npy", keys.len() as u64, 4, |row, column| (keys[row as usize] * 4 + column as i64) as f32);
    let hotness = format!("trace:{}:Id,query=userId", ratings.display());
    let loaded = fixture.ok(&["load", "-d", &drive, &file, "--keys", "k.npy", "--hotness", &hotness, "--row-crc"]);
    let table = &loaded["tables"][0];
    assert_eq!((&table["trace_ids"], &table["trace_ids_missing"]), (&json!(100_836), &json!(0)));
    fixture.ok(&["export", "-d", &drive, "--table", "movies", "--out", "o.npy", "--keys-out", "o.keys.npy"]);
    let order =
        npyz::NpyFile::new(&fs::read(fixture.path("o.keys.npy")).unwrap()[..]).unwrap().into_vec::<i64>().unwrap();
    let ranked: Vec<u64> = order.iter().map(|movie| counts[movie]).collect();
    assert!(ranked.is_sorted_by(|hotter, colder| hotter >= colder) && ranked.len() == keys.len());
    let rows = npyz::NpyFile::new(&fs::read(fixture.path("o.npy")).unwrap()[..]).unwrap().into_vec::<f32>().unwrap();
    for (movie, row) in order.iter().zip(rows.chunks(4)) {
        assert_eq!(row, [0, 1, 2, 3].map(|column| (movie * 4 + column) as f32));
    }
    let found = fixture.ok(&["lookup", "-d", &drive, "--table", "movies", "--ids", &format!("{},0", order[0])]);
    assert_eq!(found["found"], json!([true, false]));
}

/// Rows that fit, and an index, keys and an order beside them that do not: that is said before ids are counted.
#[test]
fn an_index_that_does_not_fit_is_said_before_anything_is_counted() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "8M");
    let keys: Vec<i64> = (0..400_000).map(|key| key * 977 + 5).collect();
    fs::write(fixture.path("t.safetensors"), safetensors(&vec![1.0; keys.len()], 1, &keys)).unwrap();
    fs::write(fixture.path("hot.npy"), "no counts").unwrap();
    let load = ["load", "-d", &drive, "t.safetensors", "--tensor", "t=rows", "--hotness", "hot.npy"];
    let error = fixture.fails(&[&load[..], &["--keys", "ids"]].concat(), 8);
    assert!(error["message"].as_str().unwrap().contains("are needed"), "{error}");
    // The rows alone do.
    fixture.fails(&load, 3);
}
