//! Tables whose rows are looked up by keys, as the commands show them.

use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde_json::json;
use warprow_keys::{KeyIndex, Options};
use warprow_layout::{DType, Keyed, Ranks, RowOrder, TableSpec};
use warprow_store::{Device, LoadOptions, Store, TableLoad};

use crate::rig::Rig;

const KEYS: [i64; 6] = [-7, i64::MIN, 0, 1 << 40, i64::MAX, 12];

/// Row i, of key i, is [i, −i]. Positions 3 and 5 are the hottest.
fn load(rig: &Rig, table: &str, stored: bool) {
    let device = Device::open(
        &format!("emulated:{}", rig.path("a.drive").display()).parse().unwrap(),
        warprow_store::Create::Never,
    )
    .unwrap();
    let store = Store::open(&[device], &Default::default()).unwrap();
    let go = &mut |_| ControlFlow::Continue(());
    let options = Options::default().with_fingerprint(warprow_keys::Fingerprint::Bits32);
    let index = Arc::new(KeyIndex::build(&KEYS[..], &options, go).unwrap());
    let source = &KEYS[..];
    let order = RowOrder::Ranks(Ranks::by_hotness(&[1, 1, 1, 9, 1, 5]));
    let keyed = Keyed::new(index, &source, order, stored).unwrap();
    let spec = TableSpec { row_crc: true, ..TableSpec::new(table, 0, 2, DType::F32) }.keyed(&keyed);
    let rows: Vec<u8> = (0..6u8).flat_map(|i| [f32::from(i), -f32::from(i)]).flat_map(f32::to_le_bytes).collect();
    let source = &rows[..];
    let load = TableLoad::new(&spec, &source).with_keys(&keyed);
    store.load(table, &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
}

#[test]
fn a_table_with_keys_is_looked_up_checked_and_exported() {
    let rig = Rig::new();
    let drive = rig.drive("a.drive", "64M");
    load(&rig, "t", true);
    load(&rig, "bare", false);

    let seen = rig.ok(&["inspect", "-d", &drive]);
    let keys = &seen["store"]["generations"][0]["tables"][0]["keys"];
    assert_eq!((&keys["signed"], &keys["fingerprint_bits"], &keys["stored"]), (&json!(true), &json!(32), &json!(true)));
    let text = rig.run(&["inspect", "-d", &drive]).stdout;
    assert!(text.contains("i64 keys, stored, 32-bit fingerprints"), "{text}");

    let ids = "-7,9223372036854775807,5,1099511627776,-9223372036854775808,-8";
    for check in [&[][..], &["--check-keys"]] {
        let mut args = vec!["lookup", "-d", &drive, "--table", "t", "--ids", ids];
        args.extend(check);
        let found = rig.ok(&args);
        assert_eq!(found["found"], json!([true, true, false, true, true, false]));
        let row = |i: f64| json!([i, -i]);
        assert_eq!(
            found["rows"],
            json!([row(0.0), row(4.0), json!([0.0, 0.0]), row(3.0), row(1.0), json!([0.0, 0.0])])
        );
        assert_eq!((&found["missing"], &found["keys_checked"]), (&json!(2), &json!(!check.is_empty())));
    }
    // The same bits as i64::MIN, but another number.
    let found = rig.ok(&["lookup", "-d", &drive, "--table", "t", "--ids", "9223372036854775808,12"]);
    assert_eq!(found["found"], json!([false, true]));
    let refused = rig.fails(&["lookup", "-d", &drive, "--table", "bare", "--ids", "0", "--check-keys"], 3);
    assert!(refused["message"].as_str().unwrap().contains("does not store its keys"));

    let verified = rig.ok(&["verify", "-d", &drive]);
    assert_eq!(
        (&verified["tables"][0]["keys_checked"], &verified["tables"][1]["keys_checked"]),
        (&json!(6), &json!(0))
    );
    let file = rig.npy("rows.npy", 6, 2, |r, c| (r * c) as f32);
    rig.fails(&["verify", "-d", &drive, "--table", "t", "--against", &file], 3);

    fn export_of<'a>(drive: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        [&["export", "-d", drive, "--table"], more].concat()
    }
    rig.fails(&export_of(&drive, &["t", "--out", "t.npy"]), 2);
    rig.fails(&export_of(&drive, &["t", "--out", "t.npy", "--keys-out", "k.csv"]), 2);
    rig.fails(&export_of(&drive, &["bare", "--out", "t.npy", "--keys-out", "k.npy"]), 3);
    assert!(!rig.path("t.npy").exists() && !rig.path("k.npy").exists());
    rig.ok(&export_of(&drive, &["bare", "--out", "bare.npy"]));
    let out = rig.ok(&export_of(&drive, &["t", "--out", "t.npy", "--keys-out", "k.npy"]));
    assert_eq!((&out["rows"], &out["keys_out"]), (&json!(6), &json!("k.npy")));
    // By rank: positions 3 and 5, then the others as they came.
    let keys = npyz::NpyFile::new(&fs::read(rig.path("k.npy")).unwrap()[..]).unwrap().into_vec::<i64>().unwrap();
    let rows = npyz::NpyFile::new(&fs::read(rig.path("t.npy")).unwrap()[..]).unwrap().into_vec::<f32>().unwrap();
    let order = [3, 5, 0, 1, 2, 4];
    assert_eq!(keys, order.map(|at| KEYS[at]));
    assert_eq!(rows, order.iter().flat_map(|&at| [at as f32, -(at as f32)]).collect::<Vec<_>>());
    assert_eq!(fs::read(rig.path("t.npy")).unwrap(), fs::read(rig.path("bare.npy")).unwrap());
}
