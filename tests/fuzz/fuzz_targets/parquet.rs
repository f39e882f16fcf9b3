//! Parquet files: whatever pages and metadata say, tables and traces or an error, in bounded memory.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use warprow_formats::{IntegerFile, TableFile};
use warprow_fuzz::edit;

static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = PathBuf::from("/dev/shm");
    let above = if shared.is_dir() { shared } else { std::env::temp_dir() };
    // The library below panics at some hostile files, which is caught; the fuzzer would take it for the end.
    std::panic::set_hook(Box::new(|_| {}));
    above.join(format!("warprow-fuzz-{}.parquet", std::process::id()))
});
const RIGHT: [&[u8]; 3] = [
    include_bytes!("../../../formats/tests/golden/pyarrow.parquet"),
    include_bytes!("../../../formats/tests/golden/fixed.parquet"),
    include_bytes!("../../../traces/tests/golden/1.parquet"),
];

fuzz_target!(|data: &[u8]| {
    let Some((&how, data)) = data.split_first() else { return };
    let mut bytes = match RIGHT.get(usize::from(how & 3)) {
        Some(right) => right.to_vec(),
        None => data.to_vec(),
    };
    if how & 3 != 3 {
        edit(&mut bytes, data);
    }
    std::fs::write(&*PATH, &bytes).unwrap();
    if let Ok(file) = TableFile::open(&PATH) {
        for table in &file.tables {
            let rows = table.rows.min(64);
            if table.row_bytes() > 1 << 16 {
                continue;
            }
            let mut out = vec![0; rows as usize * table.row_bytes()];
            let _ = file.rows(table).fill(0, &mut out);
            if let Ok(Some(keys)) = file.keys(table) {
                let _ = keys.take(1000).count();
            }
        }
    }
    if let Ok(file) = IntegerFile::open(&PATH) {
        for column in file.columns() {
            let Ok(mut reader) = file.read(column) else { continue };
            let mut keys = Vec::new();
            let mut lengths = Vec::new();
            while let Ok(1..) = reader.next(100, &mut keys, &mut lengths) {
                assert_eq!(lengths.iter().map(|&length| u64::from(length)).sum::<u64>(), keys.len() as u64);
                if lengths.len() > 1000 {
                    break;
                }
            }
        }
    }
});
