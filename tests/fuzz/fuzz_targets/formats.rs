//! What describes tables in files: whatever it says, a table or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use warprow_formats::{NpyHeader, members, parse_index, parse_collection_meta};
use warprow_fuzz::edit;

/// Two tables of 9 and 2 rows, with 64-bit keys and f32 vectors.
const META: [i32; 13] = [2, 1, 0, 0, 0, 7, 8, 9, 0, 2, 0, 4, 16];
const INDEX: &[u8] = br#"{"metadata":{},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#;
const NPY: &[u8] = b"\x93NUMPY\x01\x00\x46\x00{'descr': '<f4', 'fortran_order': False, 'shape': (100, 16), }          \n";

fn directory() -> Vec<u8> {
    let mut bytes = b"PK\x01\x02\x14\x00\x14\x00\x00\x00\x08\x00\x00\x00\x21\x00".to_vec();
    bytes.extend([1; 4]);
    bytes.extend([0xff; 8]);
    bytes.extend(5u16.to_le_bytes());
    bytes.extend(20u16.to_le_bytes());
    bytes.extend([0; 14]);
    bytes.extend(b"a.npy\x01\x00\x10\x00");
    bytes.extend(100u64.to_le_bytes());
    bytes.extend(50u64.to_le_bytes());
    bytes
}

fuzz_target!(|data: &[u8]| {
    let Some((&how, data)) = data.split_first() else { return };
    let spoilt = |mut right: Vec<u8>| match how & 1 {
        0 => {
            edit(&mut right, data);
            right
        }
        _ => data.to_vec(),
    };
    match how >> 1 & 3 {
        0 => {
            let bytes = spoilt(META.iter().flat_map(|number| number.to_le_bytes()).collect());
            if let Ok(meta) = parse_collection_meta(&bytes) {
                assert!(meta.tables.len() * 16 + 16 <= bytes.len());
                assert!(meta.tables.iter().all(|(id, ..)| *id >= 0));
            }
        }
        1 => {
            if let Ok(index) = parse_index(&spoilt(INDEX.to_vec())) {
                assert!(index.values().all(|file| !file.contains('/') && file != ".." && !file.is_empty()));
            }
        }
        2 => {
            let bytes = spoilt(directory());
            if let Ok(listed) = members(&bytes, u64::from(how >> 4)) {
                assert_eq!(listed.len() as u64, u64::from(how >> 4));
            }
        }
        _ => {
            let bytes = spoilt(NPY.to_vec());
            if let Ok(header) = NpyHeader::read(&mut &bytes[..]) {
                assert!(header.data_at <= bytes.len() as u64);
            }
        }
    }
});
