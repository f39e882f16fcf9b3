//! Which chunks of a drive a table gets.

use serde_json::{Value, json};

use crate::fixture::CliFixture;

/// The chunks of the only drive that hold tables, and those that are free: their numbers, from the first chunk of either kind on.
fn chunks(fixture: &CliFixture, drive: &str) -> (Vec<u64>, Vec<u64>) {
    let seen = fixture.ok(&["inspect", "-d", drive]);
    let store = &seen["store"];
    let number = |value: &Value| value.as_u64().unwrap();
    let lbas = number(&store["chunk_size"]) / number(&store["lba_size"]);
    let runs = seen["map"][0]["runs"].as_array().unwrap();
    let of = |run: &Value| ["tables", "free"].iter().position(|kind| run["what"] == *kind);
    let first = runs.iter().find(|run| of(run).is_some()).map(|run| number(&run["lba"])).unwrap();
    let mut found = [Vec::new(), Vec::new()];
    for run in runs {
        let Some(kind) = of(run) else { continue };
        let begin = number(&run["lba"]) - first;
        assert!(begin % lbas == 0 && number(&run["lbas"]) % lbas == 0, "{run} is not of whole chunks");
        found[kind].extend(begin / lbas..(begin + number(&run["lbas"])) / lbas);
    }
    let [tables, free] = found;
    (tables, free)
}

/// Loads a table, and then another beside it, which finds some chunks taken. Both are there row for row.
#[test]
fn a_table_lies_in_the_lowest_chunks_or_all_over_the_drive() {
    for span in ["packed", "whole"] {
        let fixture = CliFixture::new();
        let drive = fixture.drive("a.drive", "96M");
        let files = ["t", "u"].map(|name| fixture.npy(&format!("{name}.npy"), 60_000, 16, |r, c| (r * 16 + c) as f32));
        let (mut taken, _) = chunks(&fixture, &drive);
        assert!(taken.is_empty());
        for file in &files {
            let (_, free) = chunks(&fixture, &drive);
            // The default packs.
            let mut args = vec!["load", "-d", &drive, file];
            if span == "whole" {
                args.extend(["--span", span]);
            }
            fixture.ok(&args);
            let (now, _) = chunks(&fixture, &drive);
            let got: Vec<u64> = now.iter().copied().filter(|chunk| !taken.contains(chunk)).collect();
            assert!(got.len() > 2 && got.len() * 4 < free.len(), "{got:?} of {free:?}");
            let wanted: Vec<u64> = match span {
                "packed" => free[..got.len()].to_vec(),
                _ => (0..got.len()).map(|nth| free[nth * free.len() / got.len()]).collect(),
            };
            assert_eq!(got, wanted, "{span}: of {free:?}");
            taken = now;
        }
        for (name, file) in ["t", "u"].iter().zip(&files) {
            let verified = fixture.ok(&["verify", "-d", &drive, "--table", name, "--against", file]);
            assert_eq!(verified["differing"], json!(0), "{span}");
        }
    }
}

/// What `--span` takes is said where another word stands.
#[test]
fn another_span_is_refused() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "24M");
    let file = fixture.npy("t.npy", 10, 4, |_, _| 0.0);
    let error = fixture.fails(&["load", "-d", &drive, &file, "--span", "all"], 2);
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("packed") && message.contains("whole"), "{error}");
}
