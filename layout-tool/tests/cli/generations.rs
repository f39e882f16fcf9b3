//! Generations side by side, and drives that come and go.

use crate::rig::Rig;
use serde_json::json;

fn first(rig: &Rig, drives: &[&str]) -> serde_json::Value {
    let mut args = vec!["lookup", "--table", "t", "--ids", "0,999"];
    drives.iter().for_each(|drive| args.extend(["-d", drive]));
    rig.ok(&args)["rows"].clone()
}

#[test]
fn a_version_is_loaded_beside_switched_to_and_back_and_dropped() {
    let rig = Rig::new();
    let drive = rig.drive("a.drive", "64M");
    for folder in ["one", "two"] {
        std::fs::create_dir(rig.path(folder)).unwrap();
    }
    let one = rig.npy("one/t.npy", 1000, 2, |r, c| (r + c) as f32);
    let two = rig.npy("two/t.npy", 1000, 2, |r, c| (r + c) as f32 + 0.5);
    rig.ok(&["load", "-d", &drive, &one, "--model", "m"]);
    rig.ok(&["load", "-d", &drive, &two, "--model", "m", "--beside"]);
    let rows = |plus: f64| json!([[plus, 1.0 + plus], [999.0 + plus, 1000.0 + plus]]);
    assert_eq!(first(&rig, &[&drive]), rows(0.0));
    let listed = rig.ok(&["generations", "-d", &drive]);
    let standby: Vec<_> = listed["generations"].as_array().unwrap().iter().map(|it| it["standby"].clone()).collect();
    assert_eq!(standby, [json!(false), json!(true)]);
    rig.ok(&["switch", "1", "-d", &drive]);
    assert_eq!(first(&rig, &[&drive]), rows(0.5));
    rig.fails(&["drop", "1", "-d", &drive], 4);
    rig.ok(&["switch", "0", "-d", &drive]);
    assert_eq!(first(&rig, &[&drive]), rows(0.0));
    rig.ok(&["drop", "1", "-d", &drive]);
    rig.fails(&["switch", "1", "-d", &drive], 3);
    assert_eq!(rig.ok(&["compact", "-d", &drive])["chunks"], 0);
}

#[test]
fn a_drive_is_added_and_another_removed() {
    let rig = Rig::new();
    let a = rig.drive("a.drive", "64M");
    let file = rig.npy("t.npy", 200_000, 16, |r, c| (r % 1000 + c) as f32);
    rig.ok(&["load", "-d", &a, &file, "--row-crc"]);
    let b = format!("emulated:{}", rig.path("b.drive").display());
    rig.ok(&["add-drive", &format!("{b},size=96M"), "-d", &a]);
    assert_eq!(rig.ok(&["verify", "-d", &a, "-d", &b, "--against", &file])["differing"], 0);
    rig.fails(&["lookup", "--table", "t", "--ids", "0", "-d", &a], 6);
    rig.ok(&["remove-drive", &a, "-d", &a, "-d", &b]);
    assert_eq!(rig.ok(&["verify", "-d", &b, "--against", &file])["differing"], 0);
    rig.fails(&["remove-drive", &b, "-d", &b], 2);
}

/// A kill may have left the file of a new drive without the one beside it, which says what its LBAs are.
#[test]
fn a_drive_that_only_its_address_describes_is_added_for_good() {
    let rig = Rig::new();
    let [a, b] = ["a.drive", "b.drive"].map(|name| format!("emulated:{}", rig.path(name).display()));
    rig.ok(&["format", "-d", &format!("{a},size=24M,lba=4096"), "--yes"]);
    std::fs::File::create(rig.path("b.drive")).unwrap().set_len(24 << 20).unwrap();
    let named = format!("{b},size=24M,lba=4096");
    rig.ok(&["add-drive", &named, "-d", &a]);
    assert_eq!(rig.ok(&["inspect", "-d", &a, "-d", &b])["store"]["members"].as_array().unwrap().len(), 2);
    rig.ok(&["add-drive", &named, "-d", &a]);
}
