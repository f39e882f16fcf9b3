//! Many small updates in small stores: none wedges one, none is undone by a flipped bit that nobody notices.

use std::os::unix::fs::FileExt;

use serde_json::json;

use crate::rig::Rig;

const DIM: u64 = 4;

/// Row `id` of table `t` as its first `count` updates of row after row leave it: `rows` in a round.
fn value(id: u64, count: u64, rows: u64) -> f32 {
    match count.checked_sub(id + 1) {
        Some(past) => 1000.0 + (past / rows * rows + id) as f32,
        None => id as f32,
    }
}

fn look(rig: &Rig, drive: &str, id: u64) -> f64 {
    let row = rig.ok(&["lookup", "-d", drive, "--table", "t", "--ids", &id.to_string()])["rows"].clone();
    row[0][0].as_f64().unwrap()
}

#[test]
fn small_updates_of_many_processes_do_not_wedge_a_small_store() {
    let rig = Rig::new();
    let drive = rig.drive("a.drive", "8M");
    let rows = 10;
    let file = rig.npy("t.npy", rows, DIM, |r, _| r as f32);
    rig.ok(&["load", "-d", &drive, &file, "--row-crc"]);
    let count = 40;
    for update in 0..count {
        let one = rig.npy("one.npy", 1, DIM, |_, _| 1000.0 + update as f32);
        let id = (update % rows).to_string();
        rig.ok(&["update", "t", "-d", &drive, "--ids", &id, "--rows", &one, "--compact", "never"]);
    }
    for id in 0..rows {
        assert_eq!(look(&rig, &drive, id), f64::from(value(id, count, rows)), "row {id}");
    }
    rig.ok(&["compact", "-d", &drive]);
    for id in 0..rows {
        assert_eq!(look(&rig, &drive, id), f64::from(value(id, count, rows)), "row {id}");
    }
    rig.ok(&["load", "-d", &drive, &file, "--replace"]);
}

/// More updates of a row each than units on the drive, under each way to compact.
#[test]
fn single_updates_by_the_thousand_go_on_in_a_small_store() {
    let rows = 50;
    let count = 2500;
    for compact in ["full", "auto", "never"] {
        let rig = Rig::new();
        let drive = rig.drive("a.drive", "8M");
        let file = rig.npy("t.npy", rows, DIM, |r, _| r as f32);
        rig.ok(&["load", "-d", &drive, &file, "--row-crc"]);
        let changed = rig.npy("changed.npy", count, DIM, |r, _| 1000.0 + r as f32);
        let ids: Vec<i64> = (0..count as i64).map(|update| update % rows as i64).collect();
        let ids = crate::updates::ids(&rig, "ids.npy", &ids);
        let args =
            ["update", "t", "-d", &drive, "--ids-file", &ids, "--rows", &changed, "--batch", "1", "--compact", compact];
        let mut done = count;
        if compact == "never" {
            let refused = rig.fails(&args, 8);
            assert!(refused["kept"].as_u64().unwrap() > 0, "{refused}");
            done = refused["next"].as_u64().unwrap();
            assert!(done > 500, "{refused}");
            assert!(refused["remedy"].as_str().unwrap().contains("warprow compact"), "{refused}");
            // What is refused leaves room for what is offered.
            rig.ok(&["compact", "-d", &drive]);
        } else {
            let updated = rig.ok(&args);
            assert!(updated["compactions"].as_u64().unwrap() >= 1, "{updated}");
            assert_eq!(updated["compaction_failed"], json!(null));
        }
        for id in 0..rows {
            assert_eq!(look(&rig, &drive, id), f64::from(value(id, done, rows)), "{compact}: row {id}");
        }
        rig.ok(&["verify", "-d", &drive]);
    }
}

/// One flipped bit in each unit of the log that a command of one batch left: found by every check and by look-ups.
#[test]
fn one_flipped_bit_in_a_log_is_found_by_every_check() {
    let rig = Rig::new();
    let drive = rig.drive("a.drive", "16M");
    let (rows, changed) = (2000u64, 500u64);
    let file = rig.npy("t.npy", rows, DIM, |r, _| r as f32);
    rig.ok(&["load", "-d", &drive, &file, "--row-crc"]);
    let delta = rig.npy("delta.npy", changed, DIM, |r, _| 1000.0 + r as f32);
    let ids = crate::updates::ids(&rig, "ids.npy", &(0..changed as i64).collect::<Vec<_>>());
    rig.ok(&["update", "t", "-d", &drive, "--ids-file", &ids, "--rows", &delta]);
    let map = rig.ok(&["inspect", "-d", &drive])["map"].clone();
    let runs = map[0]["runs"].as_array().unwrap().clone();
    let log = runs.iter().find(|run| run["what"] == "log").unwrap();
    let begin = log["lba"].as_u64().unwrap() * 512;
    let image = std::fs::OpenOptions::new().read(true).write(true).open(rig.path("a.drive")).unwrap();
    let units = (changed * (24 + 16)).div_ceil(3992);
    for unit in 0..units {
        let at = begin + unit * 4096 + 100 + unit * 7;
        let mut byte = [0];
        image.read_exact_at(&mut byte, at).unwrap();
        image.write_all_at(&[byte[0] ^ 1 << (unit % 8)], at).unwrap();
        let verified = rig.fails(&["verify", "-d", &drive], 6);
        assert!(verified.to_string().contains("log"), "{verified}");
        rig.fails(&["scrub", "-d", &drive], 6);
        rig.fails(&["lookup", "-d", &drive, "--table", "t", "--ids", "1"], 6);
        image.write_all_at(&byte, at).unwrap();
        assert_eq!(look(&rig, &drive, 1), 1001.0);
    }
    // The unit behind them, which ends the log: nothing is lost with it.
    let at = begin + units * 4096 + 50;
    let mut byte = [0];
    image.read_exact_at(&mut byte, at).unwrap();
    image.write_all_at(&[byte[0] ^ 4], at).unwrap();
    rig.ok(&["verify", "-d", &drive]);
    assert_eq!(look(&rig, &drive, 499), 1499.0);
    // Of a damaged log nothing can be brought into chunks; its generation can be dropped, or replaced.
    image.write_all_at(&[0xAA; 4], begin + 200).unwrap();
    image.write_all_at(&byte, at).unwrap();
    rig.fails(&["compact", "-d", &drive], 6);
    let (generations, _) = rig.json(&["generations", "-d", &drive]);
    let id = generations["generations"][0]["id"].as_u64().unwrap().to_string();
    rig.fails(&["drop", &id, "-d", &drive], 4);
    let dropped = rig.ok(&["drop", &id, "-d", &drive, "--allow-vanishing"]);
    assert_eq!(dropped["vanished"], json!(["t"]));
    rig.ok(&["load", "-d", &drive, &file]);
    assert_eq!(look(&rig, &drive, 1), 1.0);
}
