//! Rows ranked by recorded look-ups of every kind, and the LBA size that rows want.

use std::fs;

use serde_json::json;

use crate::fixture::CliFixture;

/// A Norm data file of samples of two slots of u32 keys, with checked sums.
fn norm(samples: &[[&[u32]; 2]]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut unit = |bytes: &[u8]| {
        file.extend((bytes.len() as i32).to_le_bytes());
        file.extend(bytes);
        file.push(bytes.iter().fold(0, |sum: u8, &byte| sum.wrapping_add(byte)));
    };
    let header = [1, samples.len() as i64, 1, 2, 2, 0, 0, 0];
    unit(&header.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>());
    for slots in samples {
        let mut bytes = vec![0; 12];
        for keys in slots {
            bytes.extend((keys.len() as i32).to_le_bytes());
            bytes.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
        }
        unit(&bytes);
    }
    file
}

/// The ids of the hottest rows of table "t", the hottest first: exported with their order undone by inspecting ranks.
fn hottest(fixture: &CliFixture, drive: &str, many: usize) -> Vec<u64> {
    let store = warprow_store::Store::open(
        &[warprow_store::Device::open(&drive.parse().unwrap(), warprow_store::CreateDrive::Never).unwrap()],
        &warprow_store::OpenOptions::default().with_read_only(),
    )
    .unwrap();
    let ranks = store.ranks("t").unwrap().expect("ranked").inverse();
    assert!(fixture.path("t.npy").exists());
    (0..many as u64).map(|rank| ranks.get(rank).unwrap()).collect()
}

#[test]
fn traces_of_every_kind_rank_rows() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    fixture.npy("t.npy", 20, 4, |r, c| (r * 10 + c) as f32);
    // 7 three times, 3 twice, 19 once in slot 1; slot 0 speaks of another table.
    let samples: [[&[u32]; 2]; 3] = [[&[1, 1, 1, 1], &[7, 3]], [&[], &[7]], [&[2], &[3, 7, 19, 99]]];
    fs::write(fixture.path("0.data"), norm(&samples[..2])).unwrap();
    fs::write(fixture.path("1.data"), norm(&samples[2..])).unwrap();
    fs::write(fixture.path("list.txt"), "2\n./elsewhere/0.data\n./elsewhere/1.data\n").unwrap();
    let raw: Vec<u8> = [[7u32, 3], [7, 3], [7, 19]]
        .iter()
        .flat_map(|keys| [1, 0, keys[0], keys[1]])
        .flat_map(u32::to_le_bytes)
        .collect();
    fs::write(fixture.path("t.bin"), raw).unwrap();
    fs::write(fixture.path("a.csv"), "user,t\n1,7\n1,3\n2,7\n").unwrap();
    fs::write(fixture.path("b.csv"), "t\n3\n7\n19\n").unwrap();
    fs::create_dir(fixture.path("dump")).unwrap();
    let words = |words: &[i64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    fs::write(fixture.path("dump/key"), words(&[3, 19, 7, 1 << 40])).unwrap();
    fs::write(fixture.path("dump/meta"), words(&[8, 5, 11, 3])).unwrap();
    for (hotness, missing) in [
        (&["norm:list.txt:slot=1"][..], Some((1, 7))),
        (&["raw:t.bin:labels=1,dense=1,slots=2,sizes=20/20,slot=0", "trace:b.csv", "trace:b.csv"], Some((0, 9))),
        (&["trace:a.csv:t", "trace:b.csv"], Some((0, 6))),
        (&["trace:a.csv:user,t", "csv:b.csv"], Some((0, 6))),
        (&["scores:dump"], Some((1, 4))),
    ] {
        let mut args = vec!["load", "-d", &drive, "t.npy", "--replace", "--row-crc"];
        hotness.iter().for_each(|hotness| args.extend(["--hotness", hotness]));
        let loaded = fixture.ok(&args);
        let table = &loaded["tables"][0];
        let (gone, all) = missing.unwrap();
        assert_eq!((&table["trace_ids_missing"], &table["trace_ids"]), (&json!(gone), &json!(all)), "{hotness:?}");
        assert_eq!(table["order"], "hotness");
        let first = hottest(&fixture, &drive, 4);
        assert!(first[0] == 7 && first[1..3].contains(&3), "{hotness:?}: {first:?}");
        assert!(first[1..3].contains(&19) || first[1] == 3, "{hotness:?}: {first:?}");
        let found = fixture.ok(&["lookup", "-d", &drive, "--table", "t", "--ids", "7,0,19"]);
        assert_eq!(
            found["rows"],
            json!([[70.0, 71.0, 72.0, 73.0], [0.0, 1.0, 2.0, 3.0], [190.0, 191.0, 192.0, 193.0]])
        );
    }
    for (hotness, exit, says) in [
        ("norm:list.txt", 2, "2 slots, and none is called \"t\""),
        ("norm:list.txt:slot=2", 3, "no slot \"2\""),
        ("trace:t.bin", 2, "what kind of trace"),
        ("raw:t.bin:labels=1,dense=1,slots=3", 3, "whole number of samples"),
        ("trace:a.csv:ids=0", 2, "at least one id"),
        ("scores:gone", 3, "holds no file"),
        ("norm:0.data:slot=0,i64", 3, ""),
    ] {
        let refused = fixture.fails(&["load", "-d", &drive, "t.npy", "--replace", "--hotness", hotness], exit);
        assert!(refused["message"].as_str().unwrap().contains(says), "{says}: {refused}");
    }
    let both = ["load", "-d", &drive, "t.npy", "--replace", "--hotness", "b.csv", "--hotness", "trace:b.csv"];
    assert!(fixture.fails(&both, 2)["message"].as_str().unwrap().contains("two hotnesses"));
}

#[test]
fn the_lba_size_is_computed_and_explained() {
    let fixture = CliFixture::new();
    fixture.npy("narrow.npy", 50, 4, |r, c| (r * 10 + c) as f32);
    fixture.npy("page.npy", 20, 1024, |r, c| (r * 10 + c) as f32);
    for (number, (args, lba)) in [
        (&["--row-bytes", "128"][..], 512),
        (&["--row-bytes", "4096"], 4096),
        (&["--row-bytes", "64", "--rows", "30000", "--lookup-ids", "10000"], 4096),
        (&["--sized-for", "page.npy"], 4096),
    ]
    .into_iter()
    .enumerate()
    {
        let drive = format!("emulated:{number}.drive,size=64M");
        let all = [&["format", "-d", &drive, "--yes", "--lba", "auto"][..], args].concat();
        let dry = fixture.ok(&[&all[..], &["--dry-run"]].concat());
        let made = fixture.ok(&all);
        assert_eq!(dry["lba_choice"]["lba_bytes"], lba, "{args:?}");
        assert_eq!(
            (&made["lba_choice"]["lba_bytes"], &made["store"]["lba_size"]),
            (&json!(lba), &json!(lba)),
            "{args:?}"
        );
        let why = made["lba_choice"]["why"].as_str().unwrap();
        assert!(why.starts_with(&format!("LBAs of {lba} B: ")) && why.contains("bytes for each used"), "{why}");
    }
    for args in [
        &["--lba", "auto"][..],
        &["--lba", "512", "--row-bytes", "9"],
        &["--sized-for", "page.npy"],
        &["--lba", "1024"],
    ] {
        fixture.fails(&[&["format", "-d", "emulated:no.drive,size=64M"], args].concat(), 2);
    }
    assert!(!fixture.path("no.drive").exists());
    let drive = "emulated:0.drive";
    let loaded = fixture.ok(&["load", "-d", drive, "page.npy", "--lba", "auto"]);
    assert_eq!((&loaded["lba_choice"]["lba_bytes"], &loaded["lba_bytes"]), (&json!(4096), &json!(512)));
    let text = fixture.run(&["load", "-d", drive, "page.npy", "--replace", "--lba", "auto"]).stdout;
    assert!(text.contains("warprow format --lba 4096"), "{text}");
}

/// A log without look-ups: nothing, a header line, or a header that counts none. Each command that asks one says the same.
#[test]
fn a_log_without_look_ups_is_told_in_the_same_words_by_all() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 20, 4, |r, c| (r * 10 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file]);
    let array = |count: u64| warprow_formats::npy::head_of_list("<i8", count);
    // One column of int64, no row group: the footer in Thrift's compact protocol.
    let footer = b"\x15\x02\x19\x2c\x48\x06schema\x15\x02\x00\x15\x04\x25\x00\x18\x01t\x00\x16\x00\x19\x0c\x00";
    let parquet = [b"PAR1", &footer[..], &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat();
    for (trace, bytes) in [
        ("blank.csv", Vec::new()),
        ("lines.csv", b"\n\n".to_vec()),
        ("header.csv", b"t\n".to_vec()),
        ("columns.csv", b"user,t,time\n".to_vec()),
        ("others.csv", b"user,time\n".to_vec()),
        ("blank.u64", Vec::new()),
        ("blank.npy", Vec::new()),
        ("none.npy", array(0)),
        ("norm.data:slot=1", norm(&[])),
        ("blank.parquet", Vec::new()),
        ("none.parquet", parquet),
    ] {
        let name = trace.split(':').next().unwrap();
        fs::write(fixture.path(name), bytes).unwrap();
        let hotness = format!("trace:{trace}");
        let stated = format!("t={trace}");
        for args in [
            &["lookup", "-d", &drive, "--trace", trace][..],
            &["lookup", "-d", &drive, "--trace", &stated],
            &["load", "-d", &drive, &file, "--replace", "--hotness", &hotness],
            &["load", "-d", &drive, &file, "--replace", "--dry-run", "--hotness", &hotness],
            &["plan", "--table", "t=20x4:f32", "--trace", trace, "--dram", "100", "--typical-host"],
            &["plan", "--table", "t=20x4:f32", "--trace", &stated, "--dram", "100", "--typical-host"],
            &["plan", "-d", &drive, "--trace", trace, "--dram", "100", "--typical-host"],
        ] {
            let error = fixture.fails(args, 3);
            assert_eq!((&error["class"], &error["subject"]), (&json!("input"), &json!(name)), "{args:?}: {error}");
            assert_eq!(error["message"], "it holds no look-ups", "{args:?}: {error}");
            let said = fixture.run(args).stderr;
            assert!(said.starts_with(&format!("error: {name}: it holds no look-ups\n  help: ")), "{args:?}: {said}");
        }
    }
    // As counts, one for each row, they are none either.
    for name in ["blank.csv", "header.csv", "blank.u64", "blank.npy", "none.npy"] {
        let error = fixture.fails(&["load", "-d", &drive, &file, "--replace", "--hotness", name], 3);
        assert_eq!((&error["class"], &error["subject"]), (&json!("input"), &json!(name)), "{error}");
        assert!(error["message"].as_str().unwrap().starts_with("it holds no look-ups"), "{error}");
    }
    // What is wrong with a log that has a line is said as before.
    fs::write(fixture.path("bare.csv"), "5\n").unwrap();
    let error = fixture.fails(&["lookup", "-d", &drive, "--trace", "bare.csv"], 2);
    assert!(error["message"].as_str().unwrap().contains("no header line"), "{error}");
}

#[test]
fn a_trace_of_another_table_is_no_replay() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let table = fixture.npy("user.npy", 50, 4, |r, c| (r * 4 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &table]);
    fs::write(fixture.path("foreign.csv"), "user\n50\n900\n51\n").unwrap();
    fs::write(fixture.path("some.csv"), "user\n50\n3\n51\n").unwrap();
    let error = fixture.fails(&["lookup", "-d", &drive, "--trace", "foreign.csv"], 3);
    assert!(error["message"].as_str().unwrap().contains("none of the ids of user is in table \"user\""), "{error}");
    assert_eq!(fixture.ok(&["lookup", "-d", &drive, "--trace", "some.csv"])["missing"], 2);
}
