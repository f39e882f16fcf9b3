//! Rows that are updated: by ids and from delta files, in batches, and what comes out of the store then.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::fixture::CliFixture;
use crate::keys::safetensors;
use npyz::WriterBuilder;
use serde_json::json;
use warprow_store::{CreateDrive, Device, DriveAddress, LastTouches, OpenOptions, Store};

/// A `.npy` file of ids.
pub(crate) fn ids(fixture: &CliFixture, name: &str, ids: &[i64]) -> String {
    let path = fixture.path(name);
    let file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    let mut writer =
        npyz::WriteOptions::new().default_dtype().shape(&[ids.len() as u64]).writer(file).begin_nd().unwrap();
    writer.extend(ids.iter().copied()).unwrap();
    writer.finish().unwrap();
    path.display().to_string()
}

fn look(fixture: &CliFixture, drive: &str, ids: &str) -> serde_json::Value {
    fixture.ok(&["lookup", "-d", drive, "--table", "t", "--ids", ids])["rows"].clone()
}

#[test]
fn rows_are_updated_and_exported_and_verified() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let rows = 5000u64;
    let file = fixture.npy("t.npy", rows, 4, |r, c| (r * 4 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file, "--row-crc"]);
    let two = fixture.npy("two.npy", 2, 4, |r, c| -((r * 4 + c) as f32) - 1.0);
    let done = fixture.ok(&["update", "t", "-d", &drive, "--ids", "7,4999", "--rows", &two]);
    assert_eq!((&done["rows"], &done["batches"], &done["sequence"]), (&json!(2), &json!(1), &json!(2)));
    assert_eq!(
        look(&fixture, &drive, "7,8,4999"),
        json!([[-1.0, -2.0, -3.0, -4.0], [32.0, 33.0, 34.0, 35.0], [-5.0, -6.0, -7.0, -8.0]])
    );

    // Every third row, in batches; the last of what comes twice counts.
    let changed: Vec<i64> = (0..rows as i64).step_by(3).chain([0, 3]).collect();
    let whose = ids(&fixture, "changed.npy", &changed);
    let count = changed.len() as u64;
    let values = fixture.npy("changed_rows.npy", count, 4, |r, c| (r * 4 + c) as f32 + 0.5);
    let done = fixture.ok(&["update", "t", "-d", &drive, "--ids-file", &whose, "--rows", &values, "--batch", "100"]);
    assert_eq!((&done["rows"], &done["batches"]), (&json!(count), &json!(count.div_ceil(100))));
    assert!(done["rows_per_second"].as_f64().unwrap() > 0.0);
    let wanted = fixture.npy("wanted.npy", rows, 4, |r, c| {
        let place = changed.iter().rposition(|&id| id as u64 == r);
        match (place, r) {
            (Some(place), _) => (place as u64 * 4 + c) as f32 + 0.5,
            (None, 7) => -(c as f32) - 1.0,
            (None, 4999) => -((4 + c) as f32) - 1.0,
            _ => (r * 4 + c) as f32,
        }
    });
    for compacted in [false, true] {
        let out = fixture.path("out.npy").display().to_string();
        let exported = fixture.ok(&["export", "-d", &drive, "--table", "t", "--out", &out, "--force"]);
        assert_eq!(exported["checked"], true);
        // Behind their headers, which differ.
        let rows_of = |path: &str| {
            std::fs::read(path).unwrap().split_off(std::fs::metadata(path).unwrap().len() as usize - 80_000)
        };
        assert!(rows_of(&out) == rows_of(&wanted), "compacted: {compacted}");
        fixture.ok(&["compact", "-d", &drive]);
        assert_eq!(fixture.ok(&["verify", "-d", &drive, "--against", &wanted])["differing"], 0);
    }
}

#[test]
fn rows_of_another_type_are_converted_and_a_stopped_update_goes_on() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 1000, 2, |r, c| (r + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file, "--to", "f16"]);
    let whose = ids(&fixture, "ids.npy", &(0..500).collect::<Vec<_>>());
    let values = fixture.npy("values.npy", 500, 2, |r, _| (r * 2) as f32);
    let done = fixture.ok(&["update", "t", "-d", &drive, "--ids-file", &whose, "--rows", &values, "--from", "499"]);
    assert_eq!((&done["rows"], &done["converted_from"]), (&json!(1), &json!("f32")));
    let said =
        fixture.run(&["update", "t", "-d", &drive, "--ids-file", &whose, "--rows", &values, "--from", "499"]).stdout;
    assert!(said.contains(" in 1 batch, ") && said.contains("f32 to f16 changed no number"), "{said}");
    assert_eq!(look(&fixture, &drive, "498,499"), json!([[498.0, 499.0], [998.0, 998.0]]));
    fixture.ok(&["update", "t", "-d", &drive, "--ids-file", &whose, "--rows", &values, "--batch", "7"]);
    assert_eq!(
        look(&fixture, &drive, "0,250,499,500"),
        json!([[0.0, 0.0], [500.0, 500.0], [998.0, 998.0], [500.0, 501.0]])
    );
}

/// A delta file that has keys says itself whose its rows are.
#[test]
fn a_delta_file_has_its_keys_with_it() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 1000, 2, |r, c| (r + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file]);
    std::fs::create_dir(fixture.path("delta")).unwrap();
    let keys: Vec<u8> = [999u64, 3, 500].iter().flat_map(|key| key.to_le_bytes()).collect();
    let rows: Vec<u8> = [-1f32, -2.0, -3.0, -4.0, -5.0, -6.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    std::fs::write(fixture.path("delta/key"), &keys).unwrap();
    std::fs::write(fixture.path("delta/emb_vector"), &rows).unwrap();
    assert_eq!(fixture.ok(&["update", "t", "-d", &drive, "--rows", "delta"])["rows"], 3);
    let wanted = json!([[-3.0, -4.0], [4.0, 5.0], [-5.0, -6.0], [-1.0, -2.0]]);
    assert_eq!(look(&fixture, &drive, "3,4,500,999"), wanted);
    // A key that was not there before is refused, and the others with it.
    let new: Vec<u8> = [4u64, 1000, 5].iter().flat_map(|key| key.to_le_bytes()).collect();
    std::fs::write(fixture.path("delta/key"), &new).unwrap();
    let refused = fixture.fails(&["update", "t", "-d", &drive, "--rows", "delta", "--batch", "1"], 3);
    assert!(refused["message"].as_str().unwrap().contains("none of id 1000"), "{refused}");
    assert_eq!(look(&fixture, &drive, "3,4,500,999"), wanted);
}

/// A table of sparse keys, and what changes in it, each as two arrays of one file.
#[test]
fn keys_and_rows_of_one_file_update_a_table_of_sparse_keys() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let keys: Vec<i64> = (0..500).map(|i| (i - 250) * 0x1234_5678_9abc).collect();
    let rows: Vec<f32> = (0..500).flat_map(|i| [i as f32, -(i as f32)]).collect();
    std::fs::write(fixture.path("t.safetensors"), safetensors(&rows, 2, &keys)).unwrap();
    fixture.ok(&["load", "-d", &drive, "t.safetensors", "--tensor", "t=rows", "--keys", "ids"]);
    let changed = [keys[7], keys[499], keys[0]];
    std::fs::write(fixture.path("d.safetensors"), safetensors(&[0.5, 1.5, 2.5, 3.5, 4.5, 5.5], 2, &changed)).unwrap();
    fn with<'a>(drive: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
        [&["update", "t", "-d", drive, "--rows", "d.safetensors", "--tensor", "rows"], rest].concat()
    }
    // Without keys it is nobody's.
    let refused = fixture.fails(&with(&drive, &[]), 2);
    assert!(refused["remedy"].as_str().unwrap().contains("--keys"), "{refused}");
    assert_eq!(fixture.ok(&with(&drive, &["--keys", "ids", "--batch", "2"]))["rows"], 3);
    let asked = format!("{},{},{},{}", keys[7], keys[8], keys[499], keys[0]);
    let wanted = json!([[0.5, 1.5], [8.0, -8.0], [2.5, 3.5], [4.5, 5.5]]);
    assert_eq!(look(&fixture, &drive, &asked), wanted);
    fixture.ok(&["compact", "-d", &drive]);
    assert_eq!(look(&fixture, &drive, &asked), wanted);
    // Of a key that the table does not have, nothing is written, also of the others.
    std::fs::write(fixture.path("d.safetensors"), safetensors(&[9.0; 4], 2, &[keys[8], 77])).unwrap();
    let refused = fixture.fails(&with(&drive, &["--keys", "rows=ids", "--batch", "1"]), 3);
    assert!(refused["message"].as_str().unwrap().contains("77"), "{refused}");
    assert!(refused["remedy"].as_str().unwrap().contains("--create"), "{refused}");
    assert_eq!(look(&fixture, &drive, &asked), wanted);
}

/// Keys that are not there are created where that is asked for: looked up, exported, and compacted like all others.
#[test]
fn keys_are_created_where_that_is_asked_for() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let keys: Vec<i64> = (0..500).map(|i| (i - 250) * 0x1234_5678_9abc).collect();
    let row = |i: i64| [i as f32, -(i as f32)];
    let rows: Vec<f32> = (0..500).flat_map(row).collect();
    std::fs::write(fixture.path("t.safetensors"), safetensors(&rows, 2, &keys)).unwrap();
    fixture.ok(&["load", "-d", &drive, "t.safetensors", "--tensor", "t=rows", "--keys", "ids", "--row-crc"]);
    // Of each third key a row that is there.
    let changed: Vec<i64> = (0..300).map(|i| if i % 3 == 0 { keys[i as usize] } else { -7 * i }).collect();
    let others: Vec<f32> = (0..300).flat_map(|i| row(1000 + i)).collect();
    std::fs::write(fixture.path("d.safetensors"), safetensors(&others, 2, &changed)).unwrap();
    let update = ["update", "t", "-d", &drive, "--rows", "d.safetensors", "--tensor", "rows", "--keys", "ids"];
    fixture.fails(&update, 3);
    let done = fixture.ok(&[&update[..], &["--create", "--batch", "90"]].concat());
    assert_eq!((&done["rows"], &done["created"], &done["batches"]), (&json!(300), &json!(200), &json!(4)));
    let again = fixture.ok(&[&update[..], &["--create"]].concat());
    assert_eq!((&again["rows"], &again["created"]), (&json!(300), &json!(0)));
    let mut wanted: std::collections::BTreeMap<i64, [f32; 2]> = keys.iter().copied().zip((0..).map(row)).collect();
    wanted.extend(changed.iter().copied().zip((1000..).map(row)));
    let asked = format!("{},-14,{},-2093", keys[3], keys[1]);
    for compacted in [false, true] {
        let found = json!([row(1003), row(1002), row(1), row(1299)]);
        assert_eq!(look(&fixture, &drive, &asked), found, "compacted: {compacted}");
        let exported =
            fixture.ok(&["export", "-d", &drive, "--table", "t", "--out", "o.npy", "--keys-out", "k.npy", "--force"]);
        assert_eq!(exported["rows"], 700);
        let open = |name: &str| npyz::NpyFile::new(std::fs::File::open(fixture.path(name)).unwrap()).unwrap();
        let rows = open("o.npy").into_vec::<f32>().unwrap();
        let keys = open("k.npy").into_vec::<i64>().unwrap();
        assert_eq!((rows.len(), keys.len()), (1400, 700));
        let found: std::collections::BTreeMap<_, _> =
            keys.into_iter().zip(rows.chunks(2).map(|row| [row[0], row[1]])).collect();
        assert_eq!(found, wanted);
        if !compacted {
            fixture.fails(&["verify", "-d", &drive, "--table", "t", "--against", "o.npy", "--keys", "k.npy"], 4);
            fixture.ok(&["compact", "-d", &drive]);
        }
        fixture.ok(&["verify", "-d", &drive]);
    }
    assert_eq!(
        fixture.ok(&["verify", "-d", &drive, "--table", "t", "--against", "o.npy", "--keys", "k.npy"])["differing"],
        0
    );
}

/// Keys that a file lists are removed: from look-ups and exports at once, from the table by a compaction. What cannot be is refused.
#[test]
fn keys_are_removed() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    keyed(&fixture, &drive, &[]);
    let gone: Vec<i64> = (0..1000).filter(|i| i % 10 == 3).map(|i| 7 + 1000 * i).collect();
    let list = ids(&fixture, "gone.npy", &[&gone[..], &[1, 2, gone[0]]].concat());
    let remove = ["update", "t", "-d", &drive, "--delete", &list];
    let done = fixture.ok(&[&remove[..], &["--batch", "30"]].concat());
    assert_eq!((&done["keys"], &done["removed"], &done["batches"]), (&json!(103), &json!(100), &json!(4)));
    let again = fixture.ok(&remove);
    assert_eq!((&again["keys"], &again["removed"]), (&json!(103), &json!(0)));
    let pending = fixture.ok(&["inspect", "-d", &drive])["pending"][0].clone();
    assert_eq!(pending["tables"], json!([{ "table": "t", "rows": 0, "created": 0, "removed": 100 }]));
    let wanted: Vec<(i64, f32)> = (0..1000).filter(|i| i % 10 != 3).map(|i| (7 + 1000 * i, (4 * i) as f32)).collect();
    for compacted in [false, true] {
        let asked = format!("{},7,{},9007", gone[0], gone[99]);
        let (rows, zeros) = (look(&fixture, &drive, &asked), [0.0; 4]);
        assert_eq!(rows, json!([zeros, [0.0, 1.0, 2.0, 3.0], zeros, [36.0, 37.0, 38.0, 39.0]]), "{compacted}");
        let exported =
            fixture.ok(&["export", "-d", &drive, "--table", "t", "--out", "o.npy", "--keys-out", "k.npy", "--force"]);
        assert_eq!(exported["rows"], 900);
        let open = |name: &str| npyz::NpyFile::new(std::fs::File::open(fixture.path(name)).unwrap()).unwrap();
        let rows = open("o.npy").into_vec::<f32>().unwrap();
        let keys = open("k.npy").into_vec::<i64>().unwrap();
        for (row, (key, first)) in rows.chunks(4).zip(&wanted) {
            assert_eq!(row, [0.0, 1.0, 2.0, 3.0].map(|more| first + more), "key {key}");
        }
        assert_eq!(keys, wanted.iter().map(|(key, _)| *key).collect::<Vec<_>>());
        let against = ["verify", "-d", &drive, "--table", "t", "--against", "o.npy", "--keys", "k.npy"];
        if !compacted {
            fixture.fails(&against, 4);
            fixture.ok(&["compact", "-d", &drive]);
        } else {
            assert_eq!(fixture.ok(&against)["differing"], 0);
        }
        fixture.ok(&["verify", "-d", &drive]);
    }
    // Tables of ids have no keys, the last key stays, and rows are not given with removals.
    let all = ids(&fixture, "all.npy", &wanted.iter().map(|(key, _)| *key).collect::<Vec<_>>());
    let error = fixture.fails(&["update", "t", "-d", &drive, "--delete", &all], 3);
    assert!(error["message"].as_str().unwrap().contains("would be left"), "{error}");
    fixture.fails(&[&remove[..], &["--rows", "o.npy"]].concat(), 2);
    fixture.fails(&["update", "t", "-d", &drive], 2);
    let dense = fixture.drive("b.drive", "64M");
    let file = fixture.npy("dense.npy", 10, 4, |r, c| (r * 4 + c) as f32);
    fixture.ok(&["load", "-d", &dense, &file]);
    let error = fixture.fails(&["update", "dense", "-d", &dense, "--delete", &list], 3);
    assert!(error["message"].as_str().unwrap().contains("has no keys"), "{error}");
}

/// Keys expire by the latest of the epochs that the files have; a dry run says how many, and what stays is counted.
#[test]
fn keys_expire_by_last_touch() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    keyed(&fixture, &drive, &[]);
    let key = |i: u64| 7 + 1000 * i;
    let save = |name: &str, touched: &dyn Fn(u64) -> Option<u16>| {
        let mut touches = LastTouches::default();
        touches.touch("t", (0..1000).filter_map(|i| Some((key(i), touched(i)?))));
        touches.write(&fixture.path(name)).unwrap();
    };
    // Key i was touched in epoch i / 100 + 1; one file has the later half of each hundred and not the last 50 keys, the other all but
    // those, with the later half as of epoch 1.
    let epoch = |i: u64| (i / 100 + 1) as u16;
    save("a.touches", &|i| (i % 100 >= 50 && i < 950).then(|| epoch(i)));
    save("b.touches", &|i| (i < 950).then(|| if i % 100 < 50 { epoch(i) } else { 1 }));
    fixture.ok(&["update", "t", "-d", &drive, "--ids", "7,1007", "--rows", &fixture.npy("two.npy", 2, 4, |_, _| -1.0)]);
    let expire = ["expire", "t", "-d", &drive, "--touches", "a.touches", "--touches", "b.touches", "--before", "4"];
    let counts = |done: &serde_json::Value| -> Vec<u64> {
        ["keys", "expired", "removed", "unknown", "updated", "latest"]
            .iter()
            .map(|name| done[name].as_u64().unwrap())
            .collect()
    };
    let planned = fixture.ok(&[&expire[..], &["--dry-run"]].concat());
    assert_eq!((counts(&planned), &planned["dry_run"]), (vec![1000, 298, 0, 50, 2, 10], &json!(true)));
    let shown = || look(&fixture, &drive, "7,2007,299007,300007,999007");
    assert_eq!(shown()[1], json!([8.0, 9.0, 10.0, 11.0]));
    let done = fixture.ok(&[&expire[..], &["--batch", "100"]].concat());
    assert_eq!((counts(&done), &done["batches"]), (vec![1000, 298, 298, 50, 2, 10], &json!(3)));
    let (zeros, updated) = ([0.0; 4], [-1.0; 4]);
    let left = json!([updated, zeros, zeros, [1200.0, 1201.0, 1202.0, 1203.0], [3996.0, 3997.0, 3998.0, 3999.0]]);
    assert_eq!(shown(), left);
    assert_eq!(counts(&fixture.ok(&expire)), [702, 0, 0, 50, 2, 10]);
    fixture.ok(&["compact", "-d", &drive]);
    assert_eq!(shown(), left);
    // By then the updated rows are the table's, and expire as all others.
    assert_eq!(counts(&fixture.ok(&expire)), [702, 2, 2, 50, 0, 10]);
    // What makes no sense.
    let error = fixture.fails(&["expire", "t", "-d", &drive, "--touches", "nobody", "--before", "4"], 3);
    assert!(error["message"].as_str().unwrap().contains("no such file"), "{error}");
    std::fs::write(fixture.path("text"), "not touches").unwrap();
    let error = fixture.fails(&["expire", "t", "-d", &drive, "--touches", "text", "--before", "4"], 3);
    assert!(error["message"].as_str().unwrap().contains("no record of last touches"), "{error}");
    let mut others = LastTouches::default();
    others.touch("u", [(7, 1)]);
    others.write(&fixture.path("others")).unwrap();
    let error = fixture.fails(&["expire", "t", "-d", &drive, "--touches", "others", "--before", "4"], 3);
    assert!(error["message"].as_str().unwrap().contains("nothing of table"), "{error}");
    fixture.fails(&["expire", "t", "-d", &drive, "--touches", "a.touches", "--before", "65536"], 2);
}

/// A table of 1000 keys 7, 1007, … with rows of 4, and the file of an update that creates two more.
fn keyed(fixture: &CliFixture, drive: &str, more: &[&str]) {
    let keys: Vec<i64> = (0..1000).map(|i| 7 + 1000 * i).collect();
    let rows: Vec<f32> = (0..4000).map(|value| value as f32).collect();
    std::fs::write(fixture.path("t.safetensors"), safetensors(&rows, 4, &keys)).unwrap();
    fixture
        .ok(&[&["load", "-d", drive, "t.safetensors", "--tensor", "t=rows", "--keys", "ids", "--row-crc"], more]
            .concat());
    std::fs::write(fixture.path("d.safetensors"), safetensors(&[-1.0; 8], 4, &[8, 9])).unwrap();
}

const CREATE: [&str; 8] = ["update", "t", "--rows", "d.safetensors", "--tensor", "rows", "--keys", "ids"];

#[test]
fn a_damaged_row_that_a_compaction_meets_is_named() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    keyed(&fixture, &drive, &[]);
    fixture.ok(&[&CREATE[..], &["-d", &drive, "--create"]].concat());
    let address: DriveAddress = drive.parse().unwrap();
    let store = Store::open(&[Device::open(&address, CreateDrive::Never).unwrap()], &OpenOptions::default()).unwrap();
    let (generation, index) = store.generation("t").unwrap();
    let at = generation.row(index, 123).unwrap();
    let at = at.lba * 512 + u64::from(at.byte);
    drop((generation, store));
    std::fs::File::options().write(true).open(fixture.path("a.drive")).unwrap().write_all_at(&[0xff; 3], at).unwrap();
    let error = fixture.fails(&["compact", "-d", &drive], 6);
    let message = error["message"].as_str().unwrap();
    for part in ["\"t\"", "rank 123", "a.drive", "checksum"] {
        assert!(message.contains(part), "{part}: {error}");
    }
    assert_eq!(error["subject"], "t");
    let remedy = error["remedy"].as_str().unwrap();
    assert!(remedy.contains("warprow verify") && !remedy.contains("file"), "{error}");
}

#[test]
fn keys_that_could_not_be_compacted_are_not_created() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "8M");
    keyed(&fixture, &drive, &[]);
    // One chunk is free then: the log would take it, and leave none for the table with its new keys.
    let file = fixture.npy("more.npy", 7000, 128, |row, _| row as f32);
    fixture.ok(&["load", "-d", &drive, &file]);
    let error = fixture.fails(&[&CREATE[..], &["-d", &drive, "--create"]].concat(), 8);
    let message = error["message"].as_str().unwrap();
    let remedy = error["remedy"].as_str().unwrap();
    assert!(message.contains("1 of them kept for the compaction"), "{error}");
    assert!(remedy.contains("add a drive") && !remedy.contains("load less"), "{error}");
    assert_eq!((&error["updated"], &error["kept"]), (&json!(0), &json!(1)));
    fixture.fails(&["lookup", "-d", &drive, "--table", "t", "--ids", "9", "--missing", "error"], 3);
    // With room for both they are created, and compacted.
    let file = fixture.npy("more.npy", 4000, 128, |row, _| row as f32);
    fixture.ok(&["drop", "1", "-d", &drive, "--allow-vanishing"]);
    fixture.ok(&["load", "-d", &drive, &file]);
    fixture.ok(&[&CREATE[..], &["-d", &drive, "--create"]].concat());
    fixture.ok(&["compact", "-d", &drive]);
    assert_eq!(look(&fixture, &drive, "9"), json!([[-1.0, -1.0, -1.0, -1.0]]));
}

#[test]
fn keys_that_cannot_be_updated_are_refused_in_their_own_words() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    keyed(&fixture, &drive, &["--forget-keys"]);
    let error = fixture.fails(&[&CREATE[..], &["-d", &drive, "--create"]].concat(), 3);
    assert!(error["message"].as_str().unwrap().contains("cannot be updated"), "{error}");
    let remedy = error["remedy"].as_str().unwrap();
    assert!(remedy.contains("--forget-keys") && !remedy.contains("--check-keys"), "{error}");

    // What the other kind of number has, and this one has not.
    keyed(&fixture, &drive, &["--replace"]);
    let one = fixture.npy("one.npy", 1, 4, |_, _| 0.0);
    let error =
        fixture.fails(&["update", "t", "-d", &drive, "--rows", &one, "--ids", "9223372036854775813", "--create"], 3);
    assert!(error["message"].as_str().unwrap().contains("its keys are i64"), "{error}");
    // Names before an equals sign are the file's.
    let refused = fixture.fails(&["load", "-d", &drive, &one, "--tensor", "u=one", "--keys", "u=keys.npy"], 3);
    let remedy = refused["remedy"].as_str().unwrap();
    assert!(remedy.contains("\"u\" is none: it has one"), "{refused}");
}

/// As `incremental` writes it of passes that changed nothing.
#[test]
fn a_file_without_rows_updates_nothing() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    keyed(&fixture, &drive, &[]);
    std::fs::write(fixture.path("d.safetensors"), safetensors(&[], 4, &[])).unwrap();
    let done = fixture.ok(&[&CREATE[..], &["-d", &drive]].concat());
    assert_eq!((&done["rows"], &done["batches"], &done["table"]), (&json!(0), &json!(0), &json!("t")));
    assert_eq!(fixture.ok(&["update", "t", "-d", &drive, "--rows", "d.safetensors", "--keys", "ids"])["rows"], 0);
    let none = fixture.npy("none.npy", 0, 4, |_, _| 0.0);
    assert_eq!(fixture.ok(&["update", "t", "-d", &drive, "--rows", &none, "--keys", "absent.npy"])["rows"], 0);
    fixture.fails(&["update", "x", "-d", &drive, "--rows", &none], 3);
    // Ids that have no rows, and rows behind its end, are what they are with any other file.
    let refused = fixture.fails(&["update", "t", "-d", &drive, "--rows", &none, "--ids", "1,2"], 3);
    assert!(refused["message"].as_str().unwrap().contains("2 ids for 0 rows"), "{refused}");
    fixture.fails(&["update", "t", "-d", &drive, "--rows", &none, "--from", "5"], 2);
    // A tensor that cannot be read may be the one that is meant.
    let header = r#"{"a":{"dtype":"BOOL","shape":[2,4],"data_offsets":[0,8]},"z":{"dtype":"F32","shape":[0,4],"data_offsets":[8,8]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat();
    std::fs::write(fixture.path("skipped.safetensors"), bytes).unwrap();
    let skipped = fixture.path("skipped.safetensors");
    let update = ["update", "t", "-d", &drive, "--rows", skipped.to_str().unwrap(), "--ids", "1,2"];
    let refused = fixture.fails(&update, 3);
    assert!(refused["message"].as_str().unwrap().contains("BOOL"), "{refused}");
    assert_eq!(fixture.ok(&[&update[..6], &["--tensor", "z"]].concat())["rows"], 0);
    // A table of no rows is none.
    let refused = fixture.fails(&["load", "-d", &drive, &none], 3);
    assert!(refused["message"].as_str().unwrap().contains("no rows"), "{refused}");
}

#[test]
fn a_file_of_other_rows_is_no_damage() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 1000, 2, |r, c| (r + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file]);
    let fewer = fixture.npy("fewer.npy", 999, 2, |r, c| (r + c) as f32);
    let (verified, exit) = fixture.json(&["verify", "-d", &drive, "--table", "t", "--against", &fewer]);
    assert_eq!(exit, 5, "{verified}");
    assert!(verified["error"]["remedy"].as_str().unwrap().contains("no row was compared"), "{verified}");
    let run = fixture.run(&["verify", "-d", &drive, "--table", "t", "--against", &fewer]);
    assert!(run.stdout.contains("DIFFERS") && !run.stdout.contains("DAMAGED"), "{run:?}");
}

/// More rows than memory holds: brought into the table meanwhile, or refused from there on.
#[test]
fn rows_are_compacted_when_it_is_asked_for() {
    let fixture = CliFixture::new();
    let rows = 640_000u64;
    let file = fixture.npy("t.npy", rows, 4, |r, c| (r * 4 + c) as f32);
    let whose = ids(&fixture, "ids.npy", &(0..rows as i64).collect::<Vec<_>>());
    let values = fixture.npy("values.npy", rows, 4, |r, c| (r * 4 + c) as f32 + 0.5);
    for when in ["auto", "never"] {
        let drive = fixture.drive(&format!("{when}.drive"), "128M");
        fixture.ok(&["load", "-d", &drive, &file]);
        let with = ["--ids-file", &whose, "--rows", &values, "--batch", "20000", "--compact", when];
        let args = [&["update", "t", "-d", &drive][..], &with].concat();
        if when == "never" {
            let refused = fixture.fails(&args, 8);
            assert!(refused["remedy"].as_str().unwrap().starts_with("`warprow compact`; "), "{refused}");
            let next = refused["next"].as_u64().unwrap();
            assert!(next > rows / 2 && next < rows, "{refused}");
            let found = look(&fixture, &drive, &format!("{},{next}", next - 1));
            let first = |row: u64| (row * 4) as f32;
            assert_eq!((&found[0][0], &found[1][0]), (&json!(first(next - 1) + 0.5), &json!(first(next))));
            continue;
        }
        let done = fixture.ok(&args);
        assert!(done["compactions"].as_u64().unwrap() > 0 && done["compaction_failed"].is_null(), "{done}");
        assert_eq!(done["rows"], rows);
        fixture.ok(&["compact", "-d", &drive]);
        assert_eq!(fixture.ok(&["verify", "-d", &drive, "--against", &values])["differing"], 0);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_changed() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 1000, 2, |r, c| (r + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file]);
    let two = fixture.npy("two.npy", 2, 2, |_, _| -1.0);
    let wide = fixture.npy("wide.npy", 2, 3, |_, _| -1.0);
    let fails = |ids: &str, rows: &str, exit, part: &str| {
        let error = fixture.fails(&["update", "t", "-d", &drive, "--ids", ids, "--rows", rows, "--batch", "1"], exit);
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
    };
    fails("7,1000", &two, 3, "none of id 1000");
    fails("7,-1", &two, 3, "no row -1");
    fails("7", &two, 3, "1 id for 2 rows");
    fails("7,8", &wide, 3, "3 elements");
    fails("7,8", "absent.npy", 3, "");
    fixture.fails(&["update", "t", "-d", &drive, "--rows", &two], 2);
    fixture.fails(&["update", "x", "-d", &drive, "--ids", "7,8", "--rows", &two], 3);
    assert_eq!(look(&fixture, &drive, "7,8"), json!([[7.0, 8.0], [8.0, 9.0]]));
    assert_eq!(fixture.ok(&["compact", "-d", &drive])["chunks"], 0, "there is no log");
}

/// A load that was killed left a journal; another tensor of the same file and shape does not go on where that was.
#[test]
fn a_journal_of_one_tensor_is_none_of_another() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "512M");
    let rows = 400_000usize;
    let dim = 64usize;
    let of = |value: f32| value.to_le_bytes().repeat(rows * dim);
    let one = of(1.0);
    let two = of(2.0);
    let view = |data| safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![rows, dim], data).unwrap();
    let path = fixture.path("both.safetensors");
    std::fs::write(&path, safetensors::serialize([("one", view(&one)), ("two", view(&two))], None).unwrap()).unwrap();
    let file = path.display().to_string();
    let journal = fixture.path("journal");
    let load = |tensor: &str| {
        let tensor = format!("t={tensor}");
        let args = ["load", "-d", &drive, &file, "--tensor", &tensor, "--model", "m", "--resume", "journal", "--json"];
        fixture.command(&args)
    };
    let mut killed = load("one").stdout(std::process::Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    while std::fs::metadata(&journal).map_or(0, |journal| journal.len()) < 2000 {
        assert!(began.elapsed() < Duration::from_secs(30), "nothing is noted");
        std::thread::sleep(Duration::from_millis(1));
        if killed.try_wait().unwrap().is_some() {
            break;
        }
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(journal.exists(), "it ended before it was killed");
    let output = load("two").output().unwrap();
    let done: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &done["bytes_resumed"]), (Some(0), &json!(0)), "{done}");
    for id in [0, 1000, 200_000, 399_999] {
        assert_eq!(look(&fixture, &drive, &id.to_string())[0], json!(vec![2.0; dim]), "row {id}");
    }
}

/// What is updated and not compacted is shown: how much, in which log on which drives, and what a compaction needs.
#[test]
fn pending_updates_are_shown_with_what_compaction_needs() {
    let fixture = CliFixture::new();
    let drives = ["a", "b"].map(|name| fixture.drive(&format!("{name}.drive"), "24M"));
    let both = drives.join(",");
    let format = ["format", "--yes", "--chunk", "1M", "--row-bytes", "512", "-d", &both];
    fixture.ok(&format);
    let rows = 20_000u64;
    let file = fixture.npy("t.npy", rows, 128, |r, c| (r * 128 + c) as f32);
    fixture.ok(&["load", "-d", &both, &file]);
    let seen = |command: &str| fixture.ok(&[command, "-d", &both]);
    assert_eq!(
        (&seen("inspect")["pending"], &seen("generations")["generations"][0]["pending"]),
        (&json!([]), &json!(null))
    );
    // The first is updated twice; all lie in one chunk or two.
    let two = fixture.npy("two.npy", 2, 128, |_, _| -1.0);
    fixture.ok(&["update", "t", "-d", &both, "--ids", "0,1", "--rows", &two, "--compact", "never"]);
    fixture.ok(&["update", "t", "-d", &both, "--ids", "0,19999", "--rows", &two, "--compact", "never"]);
    let inspected = seen("inspect");
    let [pending] = &inspected["pending"].as_array().unwrap()[..] else { panic!("{inspected}") };
    assert_eq!(pending["updates"], 4);
    assert_eq!(pending["tables"], json!([{ "table": "t", "rows": 3, "created": 0, "removed": 0 }]));
    let log = &pending["log"];
    let sum =
        |what: &str| log["drives"].as_array().unwrap().iter().map(|value| value[what].as_u64().unwrap()).sum::<u64>();
    for what in ["chunks", "units", "bytes"] {
        assert_eq!(log[what], sum(what), "{pending}");
    }
    assert_eq!(log["bytes"], log["units"].as_u64().unwrap() * 4096);
    assert!(log["drives"].as_array().unwrap().iter().all(|value| value["drive"].as_str().unwrap().contains(".drive")));
    assert_eq!(&seen("generations")["generations"][0]["pending"], pending);
    let compaction = &pending["compaction"];
    assert_eq!((&compaction["rewrites"], &compaction["has_room"]), (&json!(false), &json!(true)), "{pending}");
    let text = fixture.run(&["inspect", "-d", &both]).stdout;
    for words in
        ["4 updates not in its chunks yet: 3 rows of t", "compaction would copy 2 chunks (1 must be free, ", " are)"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let listed = fixture.run(&["generations", "-d", &both]).stdout;
    assert!(listed.contains("copies 2 chunks") && listed.contains("updates"), "{listed}");
    // It did what was said.
    let done = fixture.ok(&["compact", "-d", &both]);
    assert_eq!(done["chunks"], compaction["chunks"]);
    assert_eq!(seen("inspect")["pending"], json!([]));

    // Updates all over it, with most chunks taken by another model: it goes in steps.
    let empty = seen("inspect");
    let free = empty["store"]["members"].as_array().unwrap().iter().map(|value| value["free_chunks"].as_u64().unwrap());
    let other = fixture.npy("other.npy", (free.sum::<u64>() - 5) * 2000, 128, |_, _| 0.0);
    fixture.ok(&["load", "-d", &both, &other, "--model", "other"]);
    let spread = ids(&fixture, "spread.npy", &(0..rows as i64).step_by(100).collect::<Vec<_>>());
    let values = fixture.npy("values.npy", rows / 100, 128, |_, _| 7.0);
    fixture.ok(&["update", "t", "-d", &both, "--ids-file", &spread, "--rows", &values, "--compact", "never"]);
    let inspected = seen("inspect");
    let compaction = &inspected["pending"][0]["compaction"];
    assert_eq!((&compaction["has_room"], &compaction["needs_chunks"]), (&json!(true), &json!(1)), "{inspected}");
    let [chunks, free] = ["chunks", "free_chunks"].map(|text| compaction[text].as_u64().unwrap());
    assert!(chunks > free, "{compaction}");
    assert_eq!(fixture.ok(&["compact", "-d", &both])["chunks"], chunks);
    assert_eq!(look(&fixture, &both, "100"), json!([vec![7.0; 128]]));
}
