//! Files of the formats' own public writers, and their readers on ours. Small ones are in `tests/golden`; where Python has the
//! packages, others are written anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use warprow_formats::{TableFile, TableWriter};
use warprow_layout::DType;

use crate::build::data;
use crate::read::{keys_of, rows_of};

#[derive(Deserialize)]
struct Expected {
    rows: u64,
    dim: u32,
    #[serde(rename = "type")]
    kind: String,
    keys: Option<Vec<i64>>,
    data: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn holds(folder: &Path) {
    let expected = std::fs::read(folder.join("expected.json")).unwrap();
    let expected: BTreeMap<String, BTreeMap<String, Expected>> = serde_json::from_slice(&expected).unwrap();
    assert!(expected.len() >= 9);
    for (name, tables) in expected {
        let file = TableFile::open(&folder.join(&name)).unwrap();
        assert_eq!(file.tables.len(), tables.len(), "{name}");
        for (table, want) in tables {
            let found = file.tables.iter().find(|other| other.name == table).unwrap();
            assert_eq!(
                (found.rows, found.dim, found.dtype.name()),
                (want.rows, want.dim, &*want.kind),
                "{name} {table}"
            );
            assert_eq!(hex(&rows_of(&file, &table)), want.data, "{name} {table}");
            assert_eq!(keys_of(&file, &table), want.keys, "{name} {table}");
        }
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(name)
}

/// A Python that has NumPy, safetensors and pyarrow: `$WARPROW_PYTHON`, or `python3`. Without, one line says so.
fn python(what: &str) -> Option<String> {
    let python = std::env::var("WARPROW_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&python).args(["-c", "import numpy, safetensors, pyarrow"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    println!("skipped: {what}: {python} lacks numpy, safetensors or pyarrow (set WARPROW_PYTHON)");
    None
}

#[test]
fn files_that_public_writers_wrote() {
    holds(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"));
}

#[test]
fn files_that_public_writers_write_now() {
    let Some(python) = python("files of public writers") else { return };
    let dir = tempfile::tempdir().unwrap();
    let done = Command::new(python).arg(script("write.py")).arg(dir.path()).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    holds(dir.path());
}

#[test]
fn public_readers_read_what_we_write() {
    let Some(python) = python("reading our files with public readers") else { return };
    let dir = tempfile::tempdir().unwrap();
    for (ending, dtype) in
        [("npy", DType::F32), ("npy", DType::I8), ("safetensors", DType::F16), ("safetensors", DType::U8)]
    {
        let path = dir.path().join(format!("{dtype}.{ending}"));
        let rows = 13;
        let dim = 5;
        let content = data(rows * dtype.row_bytes(dim).unwrap() as usize, 3);
        let writer = TableWriter::create(&path, false, "emb.weight", rows as u64, dim, dtype).unwrap();
        writer.write(0, &content).unwrap();
        writer.finish().unwrap();
        let args =
            [path.display().to_string(), "emb.weight".into(), rows.to_string(), dim.to_string(), dtype.name().into()];
        let done = Command::new(&python).arg(script("check.py")).args(args).arg(hex(&content)).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), "same", "{done:?}");
    }
}
