//! What training passes changed: written by the command, and brought into another store.

use std::collections::BTreeMap;
use std::fs;

use safetensors::SafeTensors;
use warprow_passes::{Keyset, PassOptions, Passes};
use warprow_store::{CreateDrive, Device, Store};

use crate::fixture::CliFixture;

const ROWS: u64 = 600;
const DIM: usize = 6;
const VECTOR: usize = 4;

fn key(row: u64) -> i64 {
    (row.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64) ^ -7
}

/// Element `c` of a row that was trained in pass number `pass`, 0: never.
fn value(row: u64, c: usize, pass: u64) -> f32 {
    (row * 8 + c as u64) as f32 + pass as f32 / 8.0
}

/// The rows of a pass.
fn rows(pass: u64) -> Vec<u64> {
    (0..ROWS).filter(|row| row % (pass + 2) == 0).collect()
}

/// The pass in which each row was trained last, of passes from `first` on.
fn last(first: u64, passes: u64) -> BTreeMap<u64, u64> {
    (first..=passes).flat_map(|pass| rows(pass).into_iter().map(move |row| (row, pass))).collect()
}

/// Runs passes on the drive, and keeps the journal.
fn train(fixture: &CliFixture, drive: &str, passes: std::ops::RangeInclusive<u64>) {
    let device = Device::open(&drive.parse().unwrap(), CreateDrive::Never).unwrap();
    let store = Store::open(&[device], &Default::default()).unwrap();
    let options = PassOptions::staged(1 << 20).with_journal(fixture.path("journal"));
    let mut trained = Passes::open(&store, "items", options).unwrap();
    for number in passes {
        let keys = rows(number).into_iter().map(key).collect();
        let pass = trained.stage(&Keyset::signed(keys)).unwrap();
        let row_of: BTreeMap<i64, u64> = rows(number).into_iter().map(|row| (key(row), row)).collect();
        let content = pass.keys().iter().flat_map(|&number| (0..DIM).map(move |c| (number as i64, c)));
        let content: Vec<u8> = content.flat_map(|(it, c)| value(row_of[&it], c, number).to_le_bytes()).collect();
        trained.finish(pass, &content).unwrap();
    }
}

/// What a file of rows and keys has: by row, its elements.
fn read(fixture: &CliFixture, name: &str, dim: usize) -> BTreeMap<u64, Vec<f32>> {
    let bytes = fs::read(fixture.path(name)).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let keys = tensors.tensor("items.keys").unwrap();
    let rows = tensors.tensor("items").unwrap();
    assert_eq!(rows.shape(), [keys.shape()[0], dim]);
    let row_of: BTreeMap<i64, u64> = (0..ROWS).map(|row| (key(row), row)).collect();
    let keys = keys.data().as_chunks().0.iter().map(|&key| row_of[&i64::from_le_bytes(key)]);
    let elements = |row: &[u8]| row.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
    keys.zip(rows.data().chunks_exact(dim * 4).map(elements)).collect()
}

#[test]
fn what_passes_changed_is_written_and_brought_elsewhere() {
    let fixture = CliFixture::new();
    let mut keys = warprow_formats::npy::head_of_list("<i8", ROWS);
    keys.extend((0..ROWS).flat_map(|row| key(row).to_le_bytes()));
    fs::write(fixture.path("k.npy"), keys).unwrap();
    let whole = fixture.npy("items.npy", ROWS, DIM as u64, |r, c| value(r, c as usize, 0));
    let vectors = fixture.npy("vectors.npy", ROWS, VECTOR as u64, |r, c| value(r, c as usize, 0));
    let trained = fixture.drive("a.drive", "64M");
    let served = fixture.drive("b.drive", "64M");
    for (drive, file) in [(&trained, &whole), (&served, &vectors)] {
        fixture.ok(&["load", "-d", drive, file, "--tensor", "items=*", "--keys", "k.npy"]);
    }
    train(&fixture, &trained, 1..=3);
    let command = ["incremental", "-d", &trained, "--table", "items", "--journal", "journal", "--out"];
    let run = |more: &[&str]| fixture.ok(&[&command[..], more].concat());
    let expected = |touched: BTreeMap<u64, u64>, dim: usize| -> BTreeMap<u64, Vec<f32>> {
        touched.into_iter().map(|(row, pass)| (row, (0..dim).map(|c| value(row, c, pass)).collect())).collect()
    };

    // All since the beginning, without the state, for those who serve; then the mark.
    let done = run(&["d.safetensors", "--vector", "4", "--mark"]);
    assert_eq!((&done["rows"], &done["dim"], &done["last_pass"]), (&last(1, 3).len().into(), &4.into(), &3.into()));
    assert!(read(&fixture, "d.safetensors", VECTOR) == expected(last(1, 3), VECTOR));
    let updated = fixture.ok(&[
        "update",
        "items",
        "-d",
        &served,
        "--rows",
        "d.safetensors",
        "--tensor",
        "items",
        "--keys",
        "items=items.keys",
    ]);
    assert_eq!(updated["rows"], last(1, 3).len());
    let ids: Vec<String> = (0..ROWS).map(|row| key(row).to_string()).collect();
    let all =
        fixture.ok(&["lookup", "-d", &served, "--table", "items", &format!("--ids={}", ids.join(",")), "--check-keys"]);
    let touched = last(1, 3);
    for row in 0..ROWS {
        for c in 0..VECTOR {
            let wanted = value(row, c, touched.get(&row).copied().unwrap_or(0));
            assert_eq!(all["rows"][row as usize][c].as_f64(), Some(wanted.into()), "row {row}");
        }
    }

    // What later passes changed, of which some may be left out; whole rows.
    assert_eq!(run(&["none.safetensors"])["rows"], 0);
    train(&fixture, &trained, 4..=6);
    for since in [3, 4, 5] {
        let done = run(&["late.safetensors", "--since", &since.to_string(), "--force"]);
        assert_eq!(done["rows"], last(since + 1, 6).len());
        assert!(read(&fixture, "late.safetensors", DIM) == expected(last(since + 1, 6), DIM), "since pass {since}");
    }
    let pair = run(&["rows.npy", "--keys-out", "keys.npy"]);
    assert_eq!(pair["rows"], last(4, 6).len());
    let size = |name: &str| fs::metadata(fixture.path(name)).unwrap().len() as usize;
    assert!(size("rows.npy") > last(4, 6).len() * DIM * 4 && size("keys.npy") > last(4, 6).len() * 8);

    for (more, exit, named) in [
        (&["late.safetensors"][..], 4, "late.safetensors"),
        (&["x.npy"], 2, "x.npy"),
        (&["x.safetensors", "--since", "2"], 2, "forgot"),
        (&["x.safetensors", "--since", "7"], 2, "no pass 7"),
        (&["x.safetensors", "--vector", "7"], 2, "7 elements"),
        (&["x.npy", "--keys-out", "x.npy"], 2, "--keys-out"),
        (&["journal", "--force"], 2, "is the journal"),
        (&["x.npy", "--keys-out", "./journal", "--force"], 2, "is the journal"),
    ] {
        let error = fixture.fails(&[&command[..], more].concat(), exit);
        let said = format!("{} {}", error["subject"].as_str().unwrap(), error["message"].as_str().unwrap());
        assert!(said.contains(named), "{more:?}: {error}");
        assert!(!fixture.path("x.safetensors").exists() && !fixture.path("x.npy").exists());
    }
    for (table, journal, exit) in [("items", "absent", 3), ("items", "k.npy", 3), ("users", "journal", 3)] {
        fixture.fails(&["incremental", "-d", &trained, "--table", table, "--journal", journal, "--out", "x.npy"], exit);
    }
    assert!(!fixture.path("absent").exists());
    // One that lost anything is refused: by a cut of any length, or by a flipped bit in its last record.
    let whole = fs::read(fixture.path("journal")).unwrap();
    let args = ["incremental", "-d", &trained, "--table", "items", "--journal", "cut", "--out", "x.safetensors"];
    for cut in [0, 20, 600, 1536, whole.len() - 200, whole.len() - 1] {
        fs::write(fixture.path("cut"), &whole[..cut]).unwrap();
        assert!(fixture.fails(&args, 3)["message"].as_str().unwrap().contains("cut off"));
        assert_eq!(fs::read(fixture.path("cut")).unwrap(), whole[..cut]);
        assert!(!fixture.path("x.safetensors").exists());
    }
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(fixture.path("cut"), &flipped).unwrap();
    assert!(fixture.fails(&args, 3)["message"].as_str().unwrap().contains("damaged"));
    // Nor is one taken for that of another store, whose table has the same keys.
    let elsewhere =
        ["incremental", "-d", &served, "--table", "items", "--journal", "journal", "--out", "x.safetensors"];
    let error = fixture.fails(&elsewhere, 3);
    assert!(error["message"].as_str().unwrap().contains("in the store"), "{error}");
    assert_eq!(fs::read(fixture.path("journal")).unwrap(), whole);
    // Keys that lie beside the table until it is compacted.
    let new = fixture.npy("new.npy", 1, DIM as u64, |_, c| c as f32);
    fixture.ok(&["update", "items", "-d", &trained, "--rows", &new, "--ids", "999999999", "--create"]);
    let error = fixture.fails(&[&command[..], &["x.safetensors"]].concat(), 4);
    assert!(error["remedy"].as_str().unwrap().contains("warprow compact"), "{error}");
    fixture.ok(&["compact", "-d", &trained]);
    fixture.ok(&[&command[..], &["x.safetensors"]].concat());
    // Keys are not left out that the table has lost, as it was loaded anew.
    let one = fixture.npy("one.npy", 1, DIM as u64, |_, _| 0.0);
    let of_one = [warprow_formats::npy::head_of_list("<i8", 1), key(0).to_le_bytes().to_vec()].concat();
    fs::write(fixture.path("key.npy"), of_one).unwrap();
    fixture.ok(&["load", "-d", &trained, &one, "--tensor", "items=one", "--keys", "key.npy", "--replace"]);
    let error = fixture.fails(&[&command[..], &["y.safetensors"]].concat(), 3);
    assert!(error["message"].as_str().unwrap().contains("are not in the table"), "{error}");
}
