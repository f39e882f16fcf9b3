//! Tables that were damaged on their drive.

use std::fs;
use std::os::unix::fs::FileExt;

use serde_json::json;
use warprow_store::{CreateDrive, Device, DriveAddress, OpenOptions, Store};

use crate::fixture::CliFixture;

#[test]
fn a_damaged_table_does_not_hide_the_others() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let hotness = fixture.npy("hot.npy", 1000, 1, |row, _| (row % 7) as f32);
    for name in ["first", "second", "third"] {
        let file = fixture.npy(&format!("{name}.npy"), 1000, 4, |row, column| (row * 4 + column) as f32);
        fixture.ok(&["load", "-d", &drive, &file, "--hotness", &hotness, "--row-crc"]);
    }
    let address: DriveAddress = format!("emulated:{}", fixture.path("a.drive").display()).parse().unwrap();
    let device = Device::open(&address, CreateDrive::Never).unwrap();
    let store = Store::open(&[device], &OpenOptions::default().with_read_only()).unwrap();
    let (generation, index) = store.generation("first").unwrap();
    let region = generation.tables[index].ranks.unwrap().region;
    let at = generation.placement.extents(region, 1 << 20).next().unwrap().lba * 512;
    drop((generation, store));
    fs::File::options().write(true).open(fixture.path("a.drive")).unwrap().write_all_at(&[0xff; 3], at).unwrap();

    let (verified, exit) = fixture.json(&["verify", "-d", &drive]);
    assert_eq!((exit, &verified["error"]["subject"]), (6, &json!("first")), "{verified}");
    let tables = verified["tables"].as_array().unwrap();
    let of = |name: &str| tables.iter().find(|table| table["name"] == name).unwrap();
    assert!(of("first")["damage"].as_str().unwrap().contains("ranks are damaged"), "{verified}");
    for table in tables {
        assert_eq!((&table["rows"], &table["differing"]), (&json!(1000), &json!(0)), "rows are whole, by rank");
        assert_eq!(table["damage"].is_null(), table["name"] != "first");
    }
    let run = fixture.run(&["verify", "-d", &drive]);
    assert!(run.stdout.contains("DAMAGED") && run.stdout.contains("equal to checksums"), "{run:?}");

    // Against a file, rows cannot be told without their permutation.
    let third = fixture.path("third.npy").display().to_string();
    let (verified, exit) = fixture.json(&["verify", "-d", &drive, "--table", "first", "--against", &third]);
    assert_eq!((exit, &verified["tables"][0]["checked"]), (6, &json!(false)), "{verified}");

    fixture.fails(&["lookup", "-d", &drive, "--table", "first", "--ids", "1"], 6);
    let row = fixture.ok(&["lookup", "-d", &drive, "--table", "second", "--ids", "7"]);
    assert_eq!(row["rows"][0], json!([28.0, 29.0, 30.0, 31.0]));
}
