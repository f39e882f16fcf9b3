//! Names that would steer a terminal, or pass for lines of ours, are shown as what they are.

use std::fs;

use crate::fixture::{CliFixture, Run};

/// Clears the screen, forges a remedy, goes on right to left.
const NAME: &str = "t\x1b[2J\0\r\n  help: run rm -rf ~\u{202e}\u{9b}31m";

fn is_clean(what: &str, run: &Run) {
    for text in [&run.stdout, &run.stderr] {
        let steers = |c: char| c.is_control() && c != '\n' || ('\u{2028}'..='\u{202e}').contains(&c);
        assert!(!text.chars().any(steers), "{what}: {text:?}");
        assert!(!text.lines().any(|line| line.trim_start().starts_with("help: run rm")), "{what}: {text}");
    }
}

/// A file of a table of that name, and of one with another.
fn model(fixture: &CliFixture, name: &str) -> String {
    let data = [1; 4 * 4 * 4];
    let view = || safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![4, 4], &data).unwrap();
    let bias = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![16], &data).unwrap();
    let bytes = safetensors::serialize([(name, view()), ("b", view()), (&*format!("{name}.bias"), bias)], None);
    fs::write(fixture.path("m.safetensors"), bytes.unwrap()).unwrap();
    fixture.path("m.safetensors").display().to_string()
}

#[test]
fn names_cannot_steer_the_terminal() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = model(&fixture, NAME);
    let pattern = "t?[2J*m";
    let all = ["load", "-d", &drive, &file, "--all", "--model", NAME, "--row-crc"];
    let at = file.as_str();
    let d = drive.as_str();
    // NUL cannot stand in an argument.
    let close: String = NAME.replace('\0', "");
    let commands: &[(&[&str], bool)] = &[
        (&["load", "-d", d, at], false),
        (&["load", "-d", d, at, "--all", "--strip-prefix", "x"], false),
        (&["load", "-d", d, at, "--tensor", "x*"], false),
        (&["load", "-d", d, at, "--tensor", "*bias"], false),
        (&all[..5], true),
        (&["load", "-d", d, at, "--all"], false),
        (&["load", "-d", d, at, "--all", "--replace", "--dry-run"], true),
        (&["inspect", "-d", d], true),
        (&["inspect", "-d", "attached:m.safetensors"], true),
        (&["generations", "-d", d], true),
        (&["verify", "-d", d], true),
        (&["verify", "-d", d, "--against", at], true),
        (&["verify", "-d", d, "--table", "b", "--against", at, "--tensor", "x"], false),
        (&["scrub", "-d", d], true),
        (&["lookup", "-d", d, "--table", "x", "--ids", "1"], false),
        (&["lookup", "-d", d, "--table", &close, "--ids", "1"], false),
        (&["export", "-d", d, "--table", "x", "--out", "o.npy"], false),
        (&["incremental", "-d", d, "--table", "x", "--journal", at, "--out", "o.safetensors"], false),
        (&["update", "x", "-d", d, "--rows", at, "--tensor", pattern, "--ids", "1"], false),
        (&["update", "b", "-d", d, "--rows", at, "--ids", "1"], false),
        (&["drop", "-d", d, "0"], false),
        (&["switch", "-d", d, "0"], true),
        (&["plan", "-d", d, "--trace", "x=m.safetensors", "--typical-host"], false),
        // Nor what a shell's * finds.
        (&["inspect", &close], false),
        (&[&close], false),
        (&["lookup", "-d", d, "--table", "b", "--ids-file", &close], false),
        (&["inspect", "-d", &close], false),
    ];
    for (args, works) in commands {
        let run = fixture.run(args);
        assert_eq!(run.exit == 0, *works, "{args:?}: {run:?}");
        is_clean(&format!("{args:?}"), &run);
        let json = fixture.run(&[args, &["--json"][..]].concat());
        is_clean(&format!("{args:?} --json"), &json);
        serde_json::from_str::<serde_json::Value>(&json.stdout).unwrap();
    }
    // Programs get the name as it is.
    let tables = fixture.ok(&["inspect", "-d", d])["tables"].clone();
    assert!(tables.as_array().unwrap().iter().any(|table| table["table"] == NAME || table["name"] == NAME), "{tables}");
}

#[test]
fn rows_of_a_table_with_such_a_name_that_are_damaged_are_told() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = model(&fixture, "t\x1b[2J\n\u{202e}");
    fixture.ok(&["load", "-d", &drive, &file, "--tensor", "t*", "--row-crc"]);
    let mut image = fs::read(fixture.path("a.drive")).unwrap();
    let rows: Vec<usize> = image.windows(16).enumerate().filter(|(_, it)| *it == [1; 16]).map(|(at, _)| at).collect();
    assert!(!rows.is_empty());
    rows.iter().for_each(|&at| image[at] = 2);
    fs::write(fixture.path("a.drive"), image).unwrap();
    let table = "t\x1b[2J\n\u{202e}";
    for args in [
        &["verify", "-d", &drive][..],
        &["scrub", "-d", &drive],
        &["lookup", "-d", &drive, "--table", table, "--ids", "0,1,2,3"],
        &["export", "-d", &drive, "--table", table, "--out", "o.npy"],
    ] {
        let run = fixture.run(args);
        assert!(run.exit != 0, "{args:?}: {run:?}");
        is_clean(&format!("{args:?}"), &run);
        assert!(run.stderr.contains("t\\u{1b}[2J\\n\\u{202e}"), "{args:?}: {run:?}");
    }
}
