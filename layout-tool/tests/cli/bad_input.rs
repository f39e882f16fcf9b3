//! Bad input gets an error that names the thing and the remedy, and loses nothing.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::fixture::CliFixture;
use serde_json::json;

/// Fails in that class, and names the thing and a remedy.
fn refused(fixture: &CliFixture, args: &[&str], exit: i32, class: &str, names: &str) {
    let error = fixture.fails(args, exit);
    assert_eq!(error["class"], class, "{args:?}: {error}");
    let said = format!("{} {}", error["subject"].as_str().unwrap(), error["message"].as_str().unwrap());
    assert!(said.contains(names), "{args:?} does not name {names:?}: {error}");
    assert!(!error["remedy"].as_str().unwrap().is_empty(), "{args:?}: no remedy in {error}");
    let mut plain = fixture.run(args);
    assert_eq!(plain.exit, exit, "{args:?}: {plain:?}");
    plain.stderr.make_ascii_lowercase();
    assert!(plain.stderr.starts_with("error: ") && plain.stdout.is_empty(), "{args:?}: {plain:?}");
}

fn snapshot(fixture: &CliFixture) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(fixture.dir())
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn command_lines() {
    let fixture = CliFixture::new();
    for (args, subject) in [
        (&["load", "-d", "/dev/nvme0n1", "x.npy"][..], "/dev/nvme0n1"),
        (&["inspect", "-d", "emulated:a,sise=4G"], "sise"),
        (&["inspect", "-d", "emulated:"], "emulated:"),
        (&["lookup", "-d", "emulated:a", "--table", "t", "--ids", "1,x"], "x"),
        (&["lookup", "-d", "emulated:a", "--table", "t", "--ids", "1", "--offsets", "o.npy"], "--offsets"),
        (&["lookup", "-d", "emulated:a", "--table", "t", "--ids", "1", "--weights", "o.npy"], "--weights"),
        (&["demo", "--alpha", "nan"], "--alpha"),
    ] {
        let class_is_usage = fixture.json(args).0["error"]["class"] == "usage";
        if class_is_usage {
            refused(&fixture, args, 2, "usage", subject);
        } else {
            // Files are opened before drives are.
            assert_eq!(args[0], "load");
        }
    }
    for args in [
        &[][..],
        &["lod"],
        &["inspect"],
        &["load", "-d", "emulated:a"],
        &["format", "-d", "emulated:a", "--lba", "1024"],
        &["format", "-d", "emulated:a", "--chunk", "x"],
        &["lookup", "-d", "emulated:a", "--table", "t"],
        &["demo", "--rows", "0"],
        &["demo", "--trace", "t.csv"],
        &["demo", "--dram", "101"],
    ] {
        let error = fixture.fails(args, 2);
        assert_eq!(error["class"], "usage", "{args:?}");
        let command = args.first().filter(|name| **name != "lod").map_or(json!(null), |name| json!(name));
        assert_eq!(fixture.json(args).0["command"], command, "{args:?}");
        let plain = fixture.run(args);
        assert!(plain.exit == 2 && !plain.stderr.is_empty(), "{args:?}: {plain:?}");
    }
}

#[test]
fn drives_that_are_none() {
    let fixture = CliFixture::new();
    let before = snapshot(&fixture);
    // Only format makes files.
    for args in [
        &["inspect", "-d", "emulated:absent"][..],
        &["inspect", "-d", "emulated:absent,size=64M"],
        &["verify", "-d", "emulated:absent,size=64M"],
        &["lookup", "-d", "emulated:absent,size=64M", "--table", "t", "--ids", "1"],
    ] {
        refused(&fixture, args, 6, "store", "absent");
    }
    refused(&fixture, &["format", "-d", "emulated:absent"], 6, "store", "absent");
    refused(&fixture, &["inspect", "-d", "0000:ff:1f.7"], 7, "drive", "0000:ff:1f.7");
    fixture.ok(&["format", "-d", "emulated:absent,size=64M", "--dry-run"]);
    fixture.ok(&[
        "format",
        "-d",
        "emulated:absent,size=64M",
        "-d",
        "emulated:b,size=64M,lba=4096",
        "--lba",
        "512",
        "--dry-run",
    ]);
    assert_eq!(snapshot(&fixture), before);
    std::os::unix::fs::symlink("nowhere", fixture.path("dangling")).unwrap();
    for more in [&[][..], &["--dry-run"]] {
        refused(&fixture, &[&["format", "-d", "emulated:dangling,size=64M"], more].concat(), 3, "input", "dangling");
    }
    fs::remove_file(fixture.path("dangling")).expect("it is still there");
    // A dry run refuses what would be refused.
    for (drive, more, exit, names) in [
        ("emulated:new,size=4096", &[][..], 3, "new"),
        ("emulated:new,size=64M", &["--chunk", "64M"], 3, "new"),
        ("emulated:new,size=64M", &["--chunk", "3M"], 2, "--chunk"),
        ("emulated:nodir/new,size=64M", &[], 3, "nodir/new"),
        ("emulated:new,size=64M,emulated:newer,size=64M,lba=4096", &[], 3, "newer"),
        ("emulated:new,size=8388607T", &[], 3, "new"),
    ] {
        let args = [&["format", "-d", drive][..], more].concat();
        let class = if exit == 2 { "usage" } else { "input" };
        refused(&fixture, &args, exit, class, names);
        refused(&fixture, &[&args[..], &["--dry-run"]].concat(), exit, class, names);
        assert_eq!(snapshot(&fixture), before);
    }

    refused(&fixture, &["format", "-d", "emulated:small,size=64K"], 3, "input", "small");
    refused(&fixture, &["format", "-d", "emulated:odd,size=64M", "--chunk", "3M"], 2, "usage", "--chunk");
    fs::create_dir(fixture.path("dir")).unwrap();
    let error = fixture.fails(&["format", "-d", "emulated:dir"], fixture.json(&["format", "-d", "emulated:dir"]).1);
    assert!(error["exit"] == 2 || error["exit"] == 7, "{error}");
    fs::remove_dir(fixture.path("dir")).unwrap();
    assert_eq!(snapshot(&fixture), before, "a failed format takes its files away again");

    fs::write(fixture.path("ragged"), vec![7; 5000]).unwrap();
    refused(&fixture, &["format", "-d", "emulated:ragged"], 3, "input", "ragged");
    fs::write(fixture.path("precious"), vec![7; 8 << 20]).unwrap();
    refused(&fixture, &["format", "-d", "emulated:precious"], 4, "refused", "data that is not Warprow's");
    refused(&fixture, &["format", "-d", "emulated:precious", "--consent", "00000000"], 4, "refused", "precious");
    refused(&fixture, &["inspect", "-d", "emulated:ragged"], 3, "input", "ragged");
    assert_eq!(fixture.ok(&["inspect", "-d", "emulated:precious"])["store"], json!(null));
    refused(
        &fixture,
        &["load", "-d", "emulated:precious", &fixture.npy("t.npy", 2, 2, |_, _| 0.0)],
        6,
        "store",
        "precious",
    );
    assert_eq!(fs::read(fixture.path("precious")).unwrap(), vec![7; 8 << 20]);
    assert_eq!(fs::read(fixture.path("ragged")).unwrap(), vec![7; 5000]);

    let token = fixture.fails(&["format", "-d", "emulated:precious"], 4)["token"].as_str().unwrap().to_owned();
    fixture.ok(&["format", "-d", "emulated:precious", "--consent", &token]);
    // What the token agreed to is not what lies there now.
    refused(&fixture, &["format", "-d", "emulated:precious", "--consent", &token], 4, "refused", "store ");
    fixture.ok(&["format", "-d", "emulated:precious", "--yes"]);

    // Beside a drive that is yet to be made, whose serial number is new at each attempt.
    let both = ["format", "-d", "emulated:precious", "-d", "emulated:fresh,size=64M"];
    let token = fixture.ok(&[&both[..], &["--dry-run"]].concat())["token"].as_str().unwrap().to_owned();
    assert_eq!(fixture.fails(&both, 4)["token"], token);
    assert!(!fixture.path("fresh").exists());
    fixture.ok(&[&both[..], &["--consent", &token]].concat());
}

#[test]
fn table_files() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let load = |file: &str, exit, class: &str, names: &str, more: &[&str]| {
        refused(&fixture, &[&["load", "-d", &drive, file], more].concat(), exit, class, names);
    };
    let good = fixture.npy("good.npy", 4, 3, |r, c| (r * 3 + c) as f32);
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![4, 3], &[0; 48]).unwrap();
    let whole = safetensors::serialize([("t", view)], None).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for (name, bytes, names) in [
        ("empty.safetensors", vec![], "too short"),
        ("cut.safetensors", whole[..whole.len() - 1].to_vec(), "cut off"),
        ("header.safetensors", whole[..20].to_vec(), "cut off"),
        ("long.safetensors", [&whole[..], b"x"].concat(), "not described"),
        ("shape.safetensors", text(&whole).replace("[4,3]", "[5,3]").into_bytes(), "cannot have 48 bytes"),
        ("offset.safetensors", text(&whole).replace("[0,48]", "[4,52]").into_bytes(), "belong to no tensor"),
        ("type.safetensors", text(&whole).replace("F32", "F33").into_bytes(), "type F33"),
        ("json.safetensors", text(&whole).replace('{', "[").into_bytes(), "header is damaged"),
        ("model.pt", b"PK\x03\x04".to_vec(), "archive"),
    ] {
        fs::write(fixture.path(name), bytes).unwrap();
        load(name, 3, "input", names, &[]);
    }
    load("absent.npy", 3, "input", "absent.npy", &[]);
    load(&good, 3, "input", "no tensor matches", &["--tensor", "x*"]);
    load(&good, 2, "usage", "no id", &["--default", "id:x"]);
    load(&good, 3, "input", "there is no row 4", &["--default", "id:4"]);
    let wide = fixture.npy("wide.npy", 1, 4, |_, _| 0.0);
    load(&good, 3, "input", "a row of good is 3 elements", &["--default", &wide]);
    fs::write(fixture.path("counts.csv"), "n\n1\n2\n").unwrap();
    load(&good, 3, "input", "2 counts, the table 4 rows", &["--hotness", "counts.csv"]);
    load(&good, 3, "input", "no table \"nope\"", &["--hotness", "nope=counts.csv"]);
    load(&good, 3, "input", "300 bytes", &["--tensor", &format!("{}=good", "n".repeat(300))]);
    load(&good, 3, "input", "there is no column", &["--hotness", "trace:counts.csv:id"]);
    let second = fixture.npy("second.npy", 4, 3, |_, _| 0.0);
    load(&good, 2, "usage", "which is the hotness of", &["--hotness", "counts.csv", &second]);

    // One row of 2 MiB: more than the drive moves in one command.
    let vast = fixture.npy("vast.npy", 1, 1 << 19, |_, _| 0.0);
    load(&vast, 3, "input", "vast", &[]);
    load(&vast, 3, "input", "vast", &["--dry-run"]);
    let large = fixture.npy("large.npy", 70_000, 256, |_, _| 0.0);
    load(&large, 8, "resources", "chunks", &[]);
    load(&large, 8, "resources", "chunks", &["--dry-run"]);
    assert_eq!(fixture.ok(&["inspect", "-d", &drive])["store"]["generations"], json!([]), "nothing of it was loaded");
    fixture.ok(&["load", "-d", &drive, &good]);
}

#[test]
fn look_ups_and_exports() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 100, 3, |r, c| (r * 3 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file, "--row-crc"]);
    let lookup = |more: &[&str], exit, class: &str, names: &str| {
        refused(&fixture, &[&["lookup", "-d", &drive][..], more].concat(), exit, class, names);
    };
    lookup(&["--table", "x", "--ids", "1"], 3, "input", "x");
    lookup(&["--table", "t", "--ids", "5,100,-1", "--missing", "error"], 3, "input", "2 of 3 ids are missing");
    let positions =
        fixture.fails(&["lookup", "-d", &drive, "--table", "t", "--ids", "5,100,-1", "--missing", "error"], 3);
    assert_eq!(positions["positions"], json!([1, 2]));
    lookup(&["--table", "t", "--ids-file", "absent.csv"], 3, "input", "absent.csv");
    fs::write(fixture.path("ids.csv"), "id\n1\n2,5\n").unwrap();
    lookup(&["--table", "t", "--ids-file", "ids.csv"], 3, "input", "ids.csv");
    fs::write(fixture.path("o.i64"), 7i64.to_le_bytes()).unwrap();
    lookup(&["--table", "t", "--ids", "1", "--pooling", "sum", "--offsets", "o.i64"], 3, "input", "offsets[0] is 7");

    lookup(&["--table", "t", "--ids-file", "/dev/zero:u64"], 3, "input", "no regular file");
    lookup(&["--table", "t", "--ids-file", "o.i64:u32"], 2, "usage", "o.i64:u32");
    fs::write(fixture.path("many.u32"), vec![0; 4 * 400_000]).unwrap();
    let many = ["lookup", "-d", &drive, "--table", "t", "--ids-file", "many.u32"];
    assert!(fixture.fails(&many, 3)["remedy"].as_str().unwrap().contains("--out"));
    assert_eq!(fixture.run(&many).exit, 0, "people see the first of them");

    fs::write(fixture.path("taken.npy"), "precious").unwrap();
    lookup(&["--table", "t", "--ids", "1", "--out", "taken.npy"], 4, "refused", "taken.npy");
    refused(&fixture, &["export", "-d", &drive, "--table", "t", "--out", "taken.npy"], 4, "refused", "taken.npy");
    refused(&fixture, &["export", "-d", &drive, "--table", "t", "--out", "t.csv"], 2, "usage", "t.csv");
    refused(&fixture, &["export", "-d", &drive, "--table", "x", "--out", "x.npy"], 3, "input", "x");
    assert_eq!(fs::read_to_string(fixture.path("taken.npy")).unwrap(), "precious");
    fixture.ok(&["export", "-d", &drive, "--table", "t", "--out", "taken.npy", "--force"]);
    // Not even by force, and not by another name.
    fs::hard_link(fixture.path("a.drive"), fixture.path("drive.npy")).unwrap();
    let before = fs::read(fixture.path("a.drive")).unwrap();
    let onto = ["export", "-d", &drive, "--table", "t", "--out", "drive.npy", "--force"];
    refused(&fixture, &onto, 4, "refused", "drive.npy");
    assert!(fs::read(fixture.path("drive.npy")).unwrap() == before, "the drive was changed");

    // Of another width, and of another content.
    let wide = fixture.npy("wide.npy", 100, 4, |_, _| 0.0);
    refused_with_report(&fixture, &["verify", "-d", &drive, "--against", &wide], "100 × 4");
    let other = fixture.npy("other.npy", 100, 3, |r, c| if r == 42 { 0.5 } else { (r * 3 + c) as f32 });
    let (value, exit) = fixture.json(&["verify", "-d", &drive, "--against", &other]);
    assert_eq!((exit, &value["differing"], &value["tables"][0]["first_differing"]), (5, &json!(1), &json!([42])));

    // A row that rots on the drive.
    let path = fixture.path("a.drive");
    let bytes = fs::read(&path).unwrap();
    let row: Vec<u8> = (0..3).flat_map(|c| ((42 * 3 + c) as f32).to_le_bytes()).collect();
    let at = bytes.windows(12).position(|window| window == row).unwrap();
    File::options().write(true).open(&path).unwrap().write_all_at(&[0xff], at as u64 + 5).unwrap();
    let (value, exit) = fixture.json(&["verify", "-d", &drive]);
    assert_eq!((exit, &value["error"]["class"], &value["differing"]), (5, &json!("mismatch"), &json!(1)));
    let table = &value["tables"][0];
    assert_eq!((&table["first_differing"], &table["first_differing_are"]), (&json!([42]), &json!("ranks")));
    for args in [
        &["export", "-d", &drive, "--table", "t", "--out", "rotten.npy"][..],
        &["lookup", "-d", &drive, "--table", "t", "--ids", "1,42"],
    ] {
        refused(&fixture, args, 6, "store", "\"t\", rank 42: the row that drive emulated:");
    }
    assert!(!fixture.path("rotten.npy").exists());
    assert_eq!(fixture.ok(&["lookup", "-d", &drive, "--table", "t", "--ids", "1"])["checked"], true);
    let unchecked = fixture.ok(&["lookup", "-d", &drive, "--table", "t", "--ids", "42", "--no-check"]);
    assert_eq!((&unchecked["checked"], &unchecked["found"]), (&json!(false), &json!([true])));
}

/// A content mismatch: exit 5.
fn refused_with_report(fixture: &CliFixture, args: &[&str], names: &str) {
    let error = fixture.fails(args, 5);
    assert!(error["message"].as_str().unwrap().contains(names), "{error}");
}

/// The units of the drive's superblocks: two at the start, two at the end.
fn superblocks(file: &File) -> [u64; 4] {
    let units = file.metadata().unwrap().len() / 4096;
    [0, 1, units - 2, units - 1]
}

#[test]
fn stores_that_are_damaged_newer_or_incomplete() {
    let fixture = CliFixture::new();
    let file = fixture.npy("t.npy", 5000, 8, |r, c| (r * 8 + c) as f32);
    let of = |name: &str| format!("emulated:{name}");
    for (name, size) in [("one", "64M"), ("torn", "64M"), ("newer", "64M")] {
        let drive = fixture.drive(name, size);
        fixture.ok(&["load", "-d", &drive, &file]);
    }
    for pair in ["a", "b"] {
        let drives = [format!("{pair}0"), format!("{pair}1")]
            .map(|name| format!("emulated:{},size=64M", fixture.path(&name).display()));
        fixture.ok(&["format", "-d", &drives[0], "-d", &drives[1]]);
        let drives = [of(&format!("{pair}0")), of(&format!("{pair}1"))];
        fixture.ok(&["load", "-d", &drives[0], "-d", &drives[1], &file]);
    }

    let torn = File::options().read(true).write(true).open(fixture.path("torn")).unwrap();
    for unit in superblocks(&torn) {
        torn.write_all_at(&[0x55; 100], unit * 4096 + 500).unwrap();
    }
    let newer = File::options().read(true).write(true).open(fixture.path("newer")).unwrap();
    for unit in superblocks(&newer) {
        let mut block = vec![0; 4096];
        newer.read_exact_at(&mut block, unit * 4096).unwrap();
        if block.starts_with(b"\x89WARPROW") {
            block[12] = 9;
            let crc = crc32c::crc32c(&block[12..]);
            block[8..12].copy_from_slice(&crc.to_le_bytes());
            newer.write_all_at(&block, unit * 4096).unwrap();
        }
    }
    drop((torn, newer));
    fs::copy(fixture.path("one"), fixture.path("copy")).unwrap();

    let before = snapshot(&fixture);
    for command in
        [&["inspect"][..], &["verify"], &["load", &file, "--replace"], &["lookup", "--table", "t", "--ids", "1"]]
    {
        let with = |drives: &[&str]| -> Vec<String> {
            let drives = drives.iter().flat_map(|drive| ["-d".to_owned(), of(drive)]);
            command.iter().map(|&word| word.to_owned()).chain(drives).collect()
        };
        let fails = |drives: &[&str], names: &str| {
            let args = with(drives);
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let error = fixture.fails(&args, 6);
            assert_eq!(error["class"], "store", "{error}");
            assert!(error["message"].as_str().unwrap().contains(names), "{args:?} does not say {names:?}: {error}");
            assert!(!error["remedy"].as_str().unwrap().is_empty(), "{args:?}: {error}");
        };
        fails(&["torn"], "superblock");
        fails(&["newer"], "9.0");
        fails(&["a0"], "lacks");
        fails(&["a0", "b1"], "swapped");
        fails(&["a0", "a1", "b1"], "belongs to store");
        fails(&["one", "copy"], "copy");
    }
    // Even without a drive, what is known is printed.
    let (seen, exit) = fixture.json(&["inspect", "-d", "emulated:a1"]);
    assert_eq!((exit, &seen["state"]), (6, &json!("degraded")));
    assert_eq!(seen["missing"].as_array().unwrap().len(), 1);
    assert_eq!(seen["store"]["generations"][0]["tables"][0]["name"], "t");
    // And rows that lie on the others: a stripe of 1024 rows on either drive in turn.
    let left = ["lookup", "-d", "emulated:a0", "--table", "t", "--ids", "0,1024,2048,-1", "--degraded"];
    let (rows, exit) = fixture.json(&left);
    assert_eq!(
        (exit, &rows["error"]["class"], &rows["found"]),
        (6, &json!("store"), &json!([true, false, true, false]))
    );
    assert_eq!((&rows["rows"][0][1], &rows["rows"][1], &rows["rows"][3][7]), (&json!(1.0), &json!(null), &json!(0.0)));
    assert_eq!(rows["error"]["positions"], json!([1]));
    let shown = fixture.run(&left).stdout;
    assert!(shown.lines().any(|line| line.split_whitespace().eq(["1024", "LOST"])), "{shown}");
    assert_eq!(
        fixture.ok(&["lookup", "-d", "emulated:a0", "--table", "t", "--ids", "7", "--degraded"])["rows"][0][0],
        56.0
    );
    let after = snapshot(&fixture);
    assert!(before == after, "something was changed");

    // A store that is open is not opened twice.
    let held =
        warprow_soft_controller::SoftController::open(&format!("emulated:{}", fixture.path("one").display())).unwrap();
    refused(&fixture, &["load", "-d", "emulated:one", &file, "--replace"], 4, "refused", "one");
    drop(held);
    fixture.ok(&["load", "-d", "emulated:one", &file, "--replace"]);
}

/// Of `fixed.parquet`, which pyarrow wrote, the footer says that a chunk has less than no bytes: the library panics at that.
#[test]
fn what_the_parquet_library_panics_at_is_an_error_and_no_panic() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../formats/tests/golden/fixed.parquet");
    let mut bytes = fs::read(golden).unwrap();
    let sizes = bytes.windows(7).position(|window| *window == [0x16, 0xd2, 2, 0x16, 0xf6, 2, 0x26]).unwrap();
    bytes[sizes + 4] ^= 1;
    fs::write(fixture.path("t.parquet"), bytes).unwrap();
    refused(&fixture, &["load", "-d", &drive, "t.parquet"], 3, "input", "it contradicts itself");
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_leaves_nothing() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 3000, 64, |r, c| (r * 64 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file]);
    for out in ["out.npy", "out.safetensors"] {
        let before = snapshot(&fixture);
        let limited = "ulimit -f 128; exec \"$0\" export -d \"$1\" --table t --out \"$2\"";
        let mut command = std::process::Command::new("bash");
        command.current_dir(fixture.dir()).args(["-c", limited, env!("CARGO_BIN_EXE_warprow"), &drive, out]);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(8), "{said}");
        assert!(said.contains(out) && said.contains("File too large") && said.contains("ulimit -f"), "{said}");
        assert!(snapshot(&fixture) == before, "{out}");
    }
}

/// A member of an archive, stored, and what the directory says of it. Nothing reads what is in it, so it has no checksum.
fn member(archive: &mut Vec<u8>, name: &str, bytes: &[u8]) -> Vec<u8> {
    let size = (bytes.len() as u32).to_le_bytes();
    let fields =
        [&[20, 0, 0, 0, 0, 0, 0, 0, 33, 0, 0, 0, 0, 0][..], &size, &size, &[name.len() as u8, 0, 0, 0]].concat();
    let at = (archive.len() as u32).to_le_bytes();
    [b"PK\x03\x04", &fields[..], name.as_bytes(), bytes].into_iter().for_each(|part| archive.extend(part));
    [b"PK\x01\x02\x14\0", &fields[..], &[0; 10], &at, name.as_bytes()].concat()
}

/// Arrays in Fortran order are no tables; who names their keys is told why.
#[test]
fn keys_of_an_array_in_fortran_order() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let mut rows = warprow_formats::npy::head("<f4", 3, 2);
    let order = rows.windows(5).position(|window| window == b"False").unwrap();
    rows[order..order + 5].copy_from_slice(b"True ");
    rows.extend([0; 24]);
    let mut ids = warprow_formats::npy::head_of_list("<i8", 3);
    ids.extend([0; 24]);
    let mut archive = Vec::new();
    let directory = [member(&mut archive, "rows.npy", &rows), member(&mut archive, "ids.npy", &ids)].concat();
    let at = (archive.len() as u32).to_le_bytes();
    let len = (directory.len() as u32).to_le_bytes();
    let end = [b"PK\x05\x06\0\0\0\0\x02\0\x02\0", &len[..], &at, &[0; 2]].concat();
    archive.extend([directory, end].concat());
    fs::write(fixture.path("t.npz"), archive).unwrap();
    for (keys, exit, class) in [("ids", 3, "input"), ("rows=ids", 3, "input")] {
        let error = fixture.fails(&["load", "-d", &drive, "t.npz", "--keys", keys], exit);
        assert_eq!(error["class"], class, "{error}");
        assert!(error["message"].as_str().unwrap().contains("rows (its array is in Fortran order)"), "{error}");
    }
}
