//! New versions of tables, in the order of the rows before.

use std::fs;

use serde_json::json;

use crate::fixture::CliFixture;

#[test]
fn a_new_version_has_its_rows_in_the_order_of_the_one_before() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let rows = 600u64;
    let first = fixture.npy("t.npy", rows, 4, |r, c| (r * 4 + c) as f32);
    fs::create_dir(fixture.path("new")).unwrap();
    let second = fixture.npy("new/t.npy", rows, 4, |r, c| (r * 4 + c) as f32 + 0.5);
    // Every row has a count of its own.
    let hot = fixture.npy("hot.npy", rows, 1, |r, _| (r * 7 % 600) as f32);
    fixture.ok(&["load", "-d", &drive, &first, "--model", "m", "--hotness", &hot]);
    let ranks = || {
        let device = warprow_store::Device::open(&drive.parse().unwrap(), warprow_store::CreateDrive::Never).unwrap();
        let options = warprow_store::OpenOptions::default().with_read_only();
        warprow_store::Store::open(&[device], &options).unwrap().ranks("t").unwrap()
    };
    let ordered = ranks().unwrap();
    assert_eq!(ordered.inverse().get(0), Some((0..rows).max_by_key(|r| r * 7 % 600).unwrap()));
    let beside = fixture.run(&["load", "-d", &drive, &second, "--model", "m", "--beside"]);
    assert!(beside.exit == 0 && beside.stdout.contains("as in generation 0"), "{beside:?}");
    fixture.ok(&["switch", "1", "-d", &drive]);
    assert_eq!(ranks(), Some(ordered.clone()));
    assert_eq!(fixture.ok(&["verify", "-d", &drive, "--against", &second])["differing"], 0);
    let replaced = fixture.ok(&["load", "-d", &drive, &first, "--replace"]);
    let table = &replaced["tables"][0];
    assert_eq!((&table["order"], &table["order_of_generation"]), (&json!("inherited"), &json!(1)), "{replaced}");
    assert_eq!(ranks(), Some(ordered.clone()));
    assert_eq!(fixture.ok(&["verify", "-d", &drive, "--against", &first])["differing"], 0);
    // Other hotness counts; so does being told to forget, and other rows are other rows.
    let told = fixture.ok(&["load", "-d", &drive, &first, "--replace", "--hotness", &hot]);
    assert_eq!(told["tables"][0]["order"], "hotness");
    let longer = fixture.npy("new/t.npy", rows + 1, 4, |r, c| (r * 4 + c) as f32);
    let other = fixture.ok(&["load", "-d", &drive, &longer, "--replace"]);
    assert_eq!((&other["tables"][0]["order"], ranks()), (&json!("identity"), None));
    fixture.ok(&["load", "-d", &drive, &first, "--replace", "--hotness", &hot]);
    let forgotten = fixture.ok(&["load", "-d", &drive, &first, "--replace", "--forget-order"]);
    assert_eq!((&forgotten["tables"][0]["order"], ranks()), (&json!("identity"), None));
}

#[test]
fn keys_are_in_the_order_of_the_version_before_wherever_they_stand_in_the_file() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let rows = 50u64;
    let key = |row: u64| ((row as i64) << 33) - 5;
    let keys = |name: &str, keys: &mut dyn Iterator<Item = i64>| {
        let mut bytes = warprow_formats::npy::head_of_list("<i8", rows);
        bytes.extend(keys.flat_map(i64::to_le_bytes));
        fs::write(fixture.path(name), bytes).unwrap();
    };
    keys("k.npy", &mut (0..rows).map(key));
    // The second version has them backwards, and one that is new for the last.
    keys("l.npy", &mut (0..rows).rev().map(|row| if row == rows - 1 { -99 } else { key(row) }));
    let file = fixture.npy("t.npy", rows, 2, |r, c| (r * 2 + c) as f32);
    let trace: Vec<u8> =
        (0..rows).flat_map(|row| vec![key(row); (row * 11 % 50) as usize + 1]).flat_map(i64::to_le_bytes).collect();
    fs::write(fixture.path("t.i64"), trace).unwrap();
    fixture.ok(&["load", "-d", &drive, &file, "--keys", "k.npy", "--hotness", "trace:t.i64"]);
    let by_rank = |out: &str| {
        fixture.ok(&["export", "-d", &drive, "--table", "t", "--out", "o.npy", "--keys-out", out, "--force"]);
        npyz::NpyFile::new(&fs::read(fixture.path(out)).unwrap()[..]).unwrap().into_vec::<i64>().unwrap()
    };
    let before = by_rank("1.npy");
    let loaded = fixture.ok(&["load", "-d", &drive, &file, "--keys", "l.npy", "--replace"]);
    assert_eq!(loaded["tables"][0]["order"], "inherited", "{loaded}");
    let gone = key(rows - 1);
    let want: Vec<i64> = before.iter().copied().filter(|&number| number != gone).chain([-99]).collect();
    assert_eq!(by_rank("2.npy"), want);
    assert_eq!(fixture.ok(&["verify", "-d", &drive, "--against", &file, "--keys", "l.npy"])["differing"], 0);
}
