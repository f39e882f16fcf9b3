//! Generations side by side, and drives that come and go.

use crate::fixture::CliFixture;
use serde_json::json;

fn first(fixture: &CliFixture, drives: &[&str]) -> serde_json::Value {
    let mut args = vec!["lookup", "--table", "t", "--ids", "0,999"];
    drives.iter().for_each(|drive| args.extend(["-d", drive]));
    fixture.ok(&args)["rows"].clone()
}

#[test]
fn a_version_is_loaded_beside_switched_to_and_back_and_dropped() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    for folder in ["one", "two"] {
        std::fs::create_dir(fixture.path(folder)).unwrap();
    }
    let one = fixture.npy("one/t.npy", 1000, 2, |r, c| (r + c) as f32);
    let two = fixture.npy("two/t.npy", 1000, 2, |r, c| (r + c) as f32 + 0.5);
    fixture.ok(&["load", "-d", &drive, &one, "--model", "m"]);
    fixture.ok(&["load", "-d", &drive, &two, "--model", "m", "--beside"]);
    let rows = |plus: f64| json!([[plus, 1.0 + plus], [999.0 + plus, 1000.0 + plus]]);
    assert_eq!(first(&fixture, &[&drive]), rows(0.0));
    let listed = fixture.ok(&["generations", "-d", &drive]);
    let standby: Vec<_> =
        listed["generations"].as_array().unwrap().iter().map(|value| value["standby"].clone()).collect();
    assert_eq!(standby, [json!(false), json!(true)]);
    fixture.ok(&["switch", "1", "-d", &drive]);
    assert_eq!(first(&fixture, &[&drive]), rows(0.5));
    fixture.fails(&["drop", "1", "-d", &drive], 4);
    fixture.ok(&["switch", "0", "-d", &drive]);
    assert_eq!(first(&fixture, &[&drive]), rows(0.0));
    fixture.ok(&["drop", "1", "-d", &drive]);
    fixture.fails(&["switch", "1", "-d", &drive], 3);
    assert_eq!(fixture.ok(&["compact", "-d", &drive])["chunks"], 0);
}

#[test]
fn a_drive_is_added_and_another_removed() {
    let fixture = CliFixture::new();
    let a = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 200_000, 16, |r, c| (r % 1000 + c) as f32);
    fixture.ok(&["load", "-d", &a, &file, "--row-crc"]);
    let b = format!("emulated:{}", fixture.path("b.drive").display());
    fixture.ok(&["add-drive", &format!("{b},size=96M"), "-d", &a]);
    assert_eq!(fixture.ok(&["verify", "-d", &a, "-d", &b, "--against", &file])["differing"], 0);
    fixture.fails(&["lookup", "--table", "t", "--ids", "0", "-d", &a], 6);
    fixture.ok(&["remove-drive", &a, "-d", &a, "-d", &b]);
    assert_eq!(fixture.ok(&["verify", "-d", &b, "--against", &file])["differing"], 0);
    fixture.fails(&["remove-drive", &b, "-d", &b], 2);
}

/// A kill may have left the file of a new drive without the one beside it, which says what its LBAs are.
#[test]
fn a_drive_that_only_its_address_describes_is_added_for_good() {
    let fixture = CliFixture::new();
    let [a, b] = ["a.drive", "b.drive"].map(|name| format!("emulated:{}", fixture.path(name).display()));
    fixture.ok(&["format", "-d", &format!("{a},size=24M,lba=4096"), "--yes"]);
    std::fs::File::create(fixture.path("b.drive")).unwrap().set_len(24 << 20).unwrap();
    let named = format!("{b},size=24M,lba=4096");
    fixture.ok(&["add-drive", &named, "-d", &a]);
    assert_eq!(fixture.ok(&["inspect", "-d", &a, "-d", &b])["store"]["members"].as_array().unwrap().len(), 2);
    fixture.ok(&["add-drive", &named, "-d", &a]);
}
