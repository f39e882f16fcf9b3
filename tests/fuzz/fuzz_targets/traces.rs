//! Recorded look-ups in files: whatever stands there, samples or an error, and no more keys than bytes give.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use warprow_fuzz::edit;
use warprow_traces::{TraceBlock, KeyScores, Trace, TraceSpec};

/// A folder of this process alone, in memory where there is such a place.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = PathBuf::from("/dev/shm");
    let above = if shared.is_dir() { shared } else { std::env::temp_dir() };
    let folder = above.join(format!("warprow-fuzz-traces-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
});

/// A Norm data file of three samples of two slots.
fn norm(framed: bool) -> Vec<u8> {
    let mut file = Vec::new();
    let mut unit = |words: &[i32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if framed {
            file.extend((bytes.len() as i32).to_le_bytes());
        }
        file.extend(&bytes);
        if framed {
            file.push(bytes.iter().fold(0, |sum: u8, &byte| sum.wrapping_add(byte)));
        }
    };
    unit(&[framed.into(), 0, 3, 0, 1, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    for sample in 0..3 {
        unit(&[7, 8, 2, sample, 5, 1, sample * 3]);
    }
    file
}

/// Makes the sums behind units right, wherever their lengths lead.
fn seal(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(length) = bytes.get(at..at + 4) {
        let length = i32::from_le_bytes(length.try_into().unwrap());
        let Some(end) = usize::try_from(length).ok().and_then(|length| (at + 4).checked_add(length)) else { return };
        let Some(sum) = bytes.get(at + 4..end).map(|unit| unit.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte)))
        else {
            return;
        };
        let Some(place) = bytes.get_mut(end) else { return };
        *place = sum;
        at = end + 1;
    }
}

const CSV: &[u8] = b"user,id\n1,5\n1,6\n2,-7\n\"3\",18446744073709551615\n";
const NPY: &[u8] = b"\x93NUMPY\x01\x00\x46\x00{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }            \n012345678901234567890123";

fuzz_target!(|data: &[u8]| {
    let Some((&how, data)) = data.split_first() else { return };
    let (name, right, settings) = match how >> 2 & 7 {
        0 => ("t", norm(true), "norm"),
        1 => ("t", norm(false), "norm"),
        2 => ("t.csv", CSV.to_vec(), "csv"),
        3 => ("t.npy", NPY.to_vec(), "npy"),
        4 => ("t.txt", b"2\n./t\nt.u32\n".to_vec(), "list"),
        5 => ("t", vec![9; 60], "raw"),
        6 => ("t.i64", vec![3; 80], "ids"),
        _ => ("meta", vec![0; 64], "scores"),
    };
    let mut bytes = match how & 1 {
        0 => data.to_vec(),
        _ => {
            let mut right = right;
            edit(&mut right, data);
            right
        }
    };
    if how & 2 != 0 && settings == "norm" {
        seal(&mut bytes);
    }
    let path = FOLDER.join(name);
    std::fs::write(&path, &bytes).unwrap();
    if settings == "scores" {
        std::fs::write(FOLDER.join("key"), [0; 64]).unwrap();
        if let Ok(scores) = KeyScores::open(&FOLDER) {
            assert!(scores.flatten().count() <= 8);
        }
        return;
    }
    let path = path.display();
    let spec = match settings {
        "norm" if how >> 5 & 1 == 0 => format!("norm:{path}:i64"),
        "norm" => format!("norm:{path}:sizes=5/9"),
        "csv" if how >> 5 & 1 == 0 => format!("csv:{path}:id,query=user"),
        "raw" => format!("raw:{path}:labels=1,dense=2,hotness=1/2,keys=i64"),
        "ids" if how >> 5 & 1 == 0 => format!("ids:{path}:ids=3"),
        _ => path.to_string(),
    };
    let spec: TraceSpec = spec.parse().unwrap();
    let Ok(mut trace) = Trace::open(&spec) else { return };
    let mut block = TraceBlock::default();
    let mut keys = 0;
    while let Ok(true) = trace.next_block(&mut block) {
        keys += block.samples().flat_map(|sample| sample.slots()).map(<[u64]>::len).sum::<usize>();
        assert_eq!(block.slots(), trace.slots().len());
    }
    assert!(settings == "list" || keys <= bytes.len());
});
