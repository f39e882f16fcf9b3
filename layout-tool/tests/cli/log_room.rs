//! Many small updates in small stores: none wedges one, none is undone by a flipped bit that nobody notices.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use serde_json::json;
use warprow_layout::{Drive, DriveError, Log, LogUpdate, StoreAccess, Volume, VolumeError};

use crate::fixture::CliFixture;

const DIM: u64 = 4;

/// Row `id` of table `t` as its first `count` updates of row after row leave it: `rows` in a round.
fn value(id: u64, count: u64, rows: u64) -> f32 {
    match count.checked_sub(id + 1) {
        Some(past) => 1000.0 + (past / rows * rows + id) as f32,
        None => id as f32,
    }
}

fn look(fixture: &CliFixture, drive: &str, id: u64) -> f64 {
    let row = fixture.ok(&["lookup", "-d", drive, "--table", "t", "--ids", &id.to_string()])["rows"].clone();
    row[0][0].as_f64().unwrap()
}

#[test]
fn small_updates_of_many_processes_do_not_wedge_a_small_store() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "8M");
    let rows = 10;
    let file = fixture.npy("t.npy", rows, DIM, |r, _| r as f32);
    fixture.ok(&["load", "-d", &drive, &file, "--row-crc"]);
    let count = 40;
    for update in 0..count {
        let one = fixture.npy("one.npy", 1, DIM, |_, _| 1000.0 + update as f32);
        let id = (update % rows).to_string();
        fixture.ok(&["update", "t", "-d", &drive, "--ids", &id, "--rows", &one, "--compact", "never"]);
    }
    for id in 0..rows {
        assert_eq!(look(&fixture, &drive, id), f64::from(value(id, count, rows)), "row {id}");
    }
    fixture.ok(&["compact", "-d", &drive]);
    for id in 0..rows {
        assert_eq!(look(&fixture, &drive, id), f64::from(value(id, count, rows)), "row {id}");
    }
    fixture.ok(&["load", "-d", &drive, &file, "--replace"]);
}

/// More updates of a row each than units on the drive, under each way to compact.
#[test]
fn single_updates_by_the_thousand_go_on_in_a_small_store() {
    let rows = 50;
    let count = 2500;
    for compact in ["full", "auto", "never"] {
        let fixture = CliFixture::new();
        let drive = fixture.drive("a.drive", "8M");
        let file = fixture.npy("t.npy", rows, DIM, |r, _| r as f32);
        fixture.ok(&["load", "-d", &drive, &file, "--row-crc"]);
        let changed = fixture.npy("changed.npy", count, DIM, |r, _| 1000.0 + r as f32);
        let ids: Vec<i64> = (0..count as i64).map(|update| update % rows as i64).collect();
        let ids = crate::updates::ids(&fixture, "ids.npy", &ids);
        let args =
            ["update", "t", "-d", &drive, "--ids-file", &ids, "--rows", &changed, "--batch", "1", "--compact", compact];
        let mut done = count;
        if compact == "never" {
            let refused = fixture.fails(&args, 8);
            assert!(refused["kept"].as_u64().unwrap() > 0, "{refused}");
            done = refused["next"].as_u64().unwrap();
            assert!(done > 500, "{refused}");
            assert!(refused["remedy"].as_str().unwrap().contains("warprow compact"), "{refused}");
            // What is refused leaves room for what is offered.
            fixture.ok(&["compact", "-d", &drive]);
        } else {
            let updated = fixture.ok(&args);
            assert!(updated["compactions"].as_u64().unwrap() >= 1, "{updated}");
            assert_eq!(updated["compaction_failed"], json!(null));
        }
        for id in 0..rows {
            assert_eq!(look(&fixture, &drive, id), f64::from(value(id, done, rows)), "{compact}: row {id}");
        }
        fixture.ok(&["verify", "-d", &drive]);
    }
}

/// One flipped bit in each unit of the log that a command of one batch left: found by every check and by look-ups.
#[test]
fn one_flipped_bit_in_a_log_is_found_by_every_check() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "16M");
    let rows = 2000u64;
    let changed = 500u64;
    let file = fixture.npy("t.npy", rows, DIM, |r, _| r as f32);
    fixture.ok(&["load", "-d", &drive, &file, "--row-crc"]);
    let delta = fixture.npy("delta.npy", changed, DIM, |r, _| 1000.0 + r as f32);
    let ids = crate::updates::ids(&fixture, "ids.npy", &(0..changed as i64).collect::<Vec<_>>());
    fixture.ok(&["update", "t", "-d", &drive, "--ids-file", &ids, "--rows", &delta]);
    let map = fixture.ok(&["inspect", "-d", &drive])["map"].clone();
    let runs = map[0]["runs"].as_array().unwrap().clone();
    let log = runs.iter().find(|run| run["what"] == "log").unwrap();
    let begin = log["lba"].as_u64().unwrap() * 512;
    let image = std::fs::OpenOptions::new().read(true).write(true).open(fixture.path("a.drive")).unwrap();
    let units = (changed * (24 + 16)).div_ceil(3992);
    for unit in 0..units {
        let at = begin + unit * 4096 + 100 + unit * 7;
        let mut byte = [0];
        image.read_exact_at(&mut byte, at).unwrap();
        image.write_all_at(&[byte[0] ^ 1 << (unit % 8)], at).unwrap();
        let verified = fixture.fails(&["verify", "-d", &drive], 6);
        assert!(verified.to_string().contains("log"), "{verified}");
        fixture.fails(&["scrub", "-d", &drive], 6);
        fixture.fails(&["lookup", "-d", &drive, "--table", "t", "--ids", "1"], 6);
        image.write_all_at(&byte, at).unwrap();
        assert_eq!(look(&fixture, &drive, 1), 1001.0);
    }
    // The unit behind them, which ends the log: nothing is lost with it.
    let at = begin + units * 4096 + 50;
    let mut byte = [0];
    image.read_exact_at(&mut byte, at).unwrap();
    image.write_all_at(&[byte[0] ^ 4], at).unwrap();
    fixture.ok(&["verify", "-d", &drive]);
    assert_eq!(look(&fixture, &drive, 499), 1499.0);
    // Of a damaged log nothing can be brought into chunks; its generation can be dropped, or replaced.
    image.write_all_at(&[0xAA; 4], begin + 200).unwrap();
    image.write_all_at(&byte, at).unwrap();
    fixture.fails(&["compact", "-d", &drive], 6);
    let (generations, _) = fixture.json(&["generations", "-d", &drive]);
    let id = generations["generations"][0]["id"].as_u64().unwrap().to_string();
    fixture.fails(&["drop", &id, "-d", &drive], 4);
    let dropped = fixture.ok(&["drop", &id, "-d", &drive, "--allow-vanishing"]);
    assert_eq!(dropped["vanished"], json!(["t"]));
    fixture.ok(&["load", "-d", &drive, &file]);
    assert_eq!(look(&fixture, &drive, 1), 1.0);
}

/// An image, as the layout reaches it.
struct Image {
    name: String,
    file: fs::File,
}

impl Image {
    fn open(fixture: &CliFixture, name: &str) -> Arc<dyn Drive> {
        let file = fs::OpenOptions::new().read(true).write(true).open(fixture.path(name)).unwrap();
        Arc::new(Self { name: name.to_owned(), file })
    }
}

impl Drive for Image {
    fn name(&self) -> &str {
        &self.name
    }

    fn lba_size(&self) -> u32 {
        512
    }

    fn lba_count(&self) -> u64 {
        self.file.metadata().unwrap().len() / 512
    }

    fn max_transfer(&self) -> usize {
        128 << 10
    }

    fn read(&self, lba: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        self.file.read_exact_at(buf, lba * 512).map_err(|error| DriveError::new(&self.name, "read", error))
    }

    fn write(&self, lba: u64, data: &[u8]) -> Result<(), DriveError> {
        self.file.write_all_at(data, lba * 512).map_err(|error| DriveError::new(&self.name, "write", error))
    }

    fn flush(&self) -> Result<(), DriveError> {
        self.file.sync_data().map_err(|error| DriveError::new(&self.name, "flush", error))
    }
}

/// Rows of table "t" in [`wedged`].
const FEW: u64 = 10;

/// A store of one drive whose log has its last free chunk, and how many updates it took: `first` in the first chunk of the log, and
/// those that `fill` appends, which it counts.
///
/// Versions of today leave a chunk to compaction; one of two drives that leaves while its log grows is a way past that.
fn wedged(fixture: &CliFixture, size: &str, first: u64, fill: impl Fn(&Volume, u64, &mut u64)) -> (String, u64) {
    let drive = |name: &str| format!("emulated:{}", fixture.path(name).display());
    let stays = drive("a.drive");
    let leaves = drive("b.drive");
    fixture.ok(&[
        "format",
        "-d",
        &format!("{stays},size={size}"),
        "-d",
        &format!("{leaves},size=24M"),
        "--chunk",
        "1M",
    ]);
    let file = fixture.npy("t.npy", FEW, DIM, |r, _| r as f32);
    fixture.ok(&["load", "-d", &stays, "-d", &leaves, &file, "--row-crc"]);
    let drives = vec![Image::open(fixture, "a.drive"), Image::open(fixture, "b.drive")];
    let volume = warprow_layout::open(drives, StoreAccess::ReadWrite).unwrap().volume;
    let id = volume.generations()[0].id;
    let mut count = 0;
    // The first chunk of the log is on the larger drive, which goes.
    append(&mut volume.log(id, |_, _| ()).unwrap(), first, &mut count).unwrap();
    let member = volume.generations()[0].log[0].chunk.drive();
    assert_eq!(volume.drive(member).unwrap().name(), "b.drive");
    let mut filled = false;
    let volume = volume
        .remove_member(member, &mut |_, _| {
            if !std::mem::replace(&mut filled, true) {
                fill(&volume, id, &mut count);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(filled && volume.free_chunks() == [0, 0], "{:?}", volume.free_chunks());
    (stays, count)
}

/// So many updates in one batch, of row after row.
fn append(log: &mut Log, updates: u64, count: &mut u64) -> Result<(), VolumeError> {
    let row = |update: u64| [1000.0 + update as f32; DIM as usize].map(f32::to_le_bytes).concat();
    let rows: Vec<(u64, Vec<u8>)> = (*count..*count + updates).map(|update| (update % FEW, row(update))).collect();
    let batch: Vec<LogUpdate<'_>> = rows.iter().map(|(key, row)| LogUpdate { table: 0, key: *key, row }).collect();
    log.append(&batch)?;
    *count += updates;
    Ok(())
}

fn rows_are_right(fixture: &CliFixture, drive: &str, count: u64) {
    for id in 0..FEW {
        assert_eq!(look(fixture, drive, id), f64::from(value(id, count, FEW)), "row {id}");
    }
}

#[test]
fn where_the_log_has_the_last_chunk_and_can_be_packed_that_is_what_a_compaction_is_said_to_do() {
    let fixture = CliFixture::new();
    // One batch in each chunk, as a process each left them.
    let (drive, count) =
        wedged(
            &fixture,
            "9M",
            1,
            |volume, id, count| {
                while append(&mut volume.log(id, |_, _| ()).unwrap(), 50, count).is_ok() {}
            },
        );
    let compaction = |pending: &serde_json::Value| {
        let compaction = &pending["compaction"];
        assert_eq!((&compaction["free_chunks"], &compaction["needs_chunks"]), (&json!(0), &json!(1)), "{pending}");
        assert_eq!((&compaction["has_room"], &compaction["remedy"]), (&json!(true), &json!(null)), "{pending}");
        compaction["packs_chunks"].as_u64().unwrap()
    };
    let packs = compaction(&fixture.ok(&["inspect", "-d", &drive])["pending"][0]);
    assert!(packs > 2, "{packs}");
    assert_eq!(compaction(&fixture.ok(&["generations", "-d", &drive])["generations"][0]["pending"]), packs);
    for command in ["inspect", "generations"] {
        let text = fixture.run(&[command, "-d", &drive]).stdout;
        assert!(text.contains("packs the log first") && !text.contains("NO ROOM"), "{text}");
    }
    // It does as was said.
    let log = fixture.ok(&["inspect", "-d", &drive])["pending"][0]["log"]["chunks"].as_u64().unwrap();
    fixture.ok(&["compact", "-d", &drive]);
    let inspected = fixture.ok(&["inspect", "-d", &drive]);
    let free =
        inspected["store"]["members"].as_array().unwrap().iter().map(|value| value["free_chunks"].as_u64().unwrap());
    assert_eq!((free.sum::<u64>(), &inspected["pending"]), (log, &json!([])), "{inspected}");
    rows_are_right(&fixture, &drive, count);
    fixture.ok(&["verify", "-d", &drive]);
}

#[test]
fn where_the_log_is_full_and_no_chunk_is_free_the_way_out_is_named_and_is_one() {
    let fixture = CliFixture::new();
    // A record has 24 bytes before its row, a unit 3992 bytes of records, a chunk 255 units of them.
    let full = 255 * 3992 / 40;
    let (drive, mut count) = wedged(&fixture, "8M", full, |volume, id, count| {
        let mut log = volume.log(id, |_, _| ()).unwrap();
        while append(&mut log, full, count).is_ok() {}
    });
    let names_it = |remedy: &str| {
        for command in ["warprow add-drive", "warprow compact", "warprow remove-drive"] {
            assert!(remedy.contains(command), "{remedy:?} does not name {command}");
        }
    };
    let pending = fixture.ok(&["inspect", "-d", &drive])["pending"][0].clone();
    let compaction = &pending["compaction"];
    assert_eq!((&compaction["has_room"], &compaction["packs_chunks"]), (&json!(false), &json!(0)), "{pending}");
    names_it(compaction["remedy"].as_str().unwrap());
    for command in ["inspect", "generations"] {
        let text = fixture.run(&[command, "-d", &drive]).stdout;
        assert!(text.contains("NO ROOM"), "{text}");
        names_it(&text);
    }
    let failure = fixture.fails(&["compact", "-d", &drive], 8);
    assert!(failure["message"].as_str().unwrap().contains("1 chunk of 1.00 MiB"), "{failure}");
    names_it(failure["remedy"].as_str().unwrap());
    let one = fixture.npy("one.npy", 1, DIM, |_, _| 1000.0 + count as f32);
    let id = (count % FEW).to_string();
    let update = |compact| ["update", "t", "-d", &drive, "--ids", &id, "--rows", &one, "--compact", compact];
    for compact in ["full", "auto", "never"] {
        let failure = fixture.fails(&update(compact), 8);
        names_it(failure["remedy"].as_str().unwrap());
        assert!(!failure["message"].as_str().unwrap().contains("of them kept"), "none is free: {failure}");
    }
    rows_are_right(&fixture, &drive, count);

    let more = format!("emulated:{}", fixture.path("more.drive").display());
    fixture.ok(&["add-drive", &format!("{more},size=16M"), "-d", &drive]);
    fixture.ok(&["compact", "-d", &drive, "-d", &more]);
    fixture.ok(&["remove-drive", &more, "-d", &drive, "-d", &more]);
    rows_are_right(&fixture, &drive, count);
    fixture.ok(&update("full"));
    count += 1;
    rows_are_right(&fixture, &drive, count);
    fixture.ok(&["verify", "-d", &drive]);
}
