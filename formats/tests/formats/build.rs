//! Files as others write them, byte by byte.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use warprow_formats::npy;

pub(crate) fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, bytes).unwrap();
    path
}

/// Bytes that differ everywhere.
pub(crate) fn data(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

pub(crate) fn npy_bytes(descr: &str, rows: u64, dim: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = npy::head(descr, rows, dim);
    bytes.extend(data);
    bytes
}

/// A zip archive of `members`, each deflated if so marked.
pub(crate) fn zip(members: &[(&str, &[u8], bool)]) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut directory = Vec::new();
    for (name, bytes, deflated) in members {
        let packed = if *deflated {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        } else {
            bytes.to_vec()
        };
        let at = archive.len() as u32;
        let mut fields = Vec::new();
        fields.extend([20u16, 0, if *deflated { 8 } else { 0 }, 0, 33].iter().flat_map(|number| number.to_le_bytes()));
        fields.extend(crc32fast::hash(bytes).to_le_bytes());
        fields.extend((packed.len() as u32).to_le_bytes());
        fields.extend((bytes.len() as u32).to_le_bytes());
        fields.extend((name.len() as u16).to_le_bytes());
        fields.extend(0u16.to_le_bytes());
        archive.extend(b"PK\x03\x04");
        archive.extend(&fields);
        archive.extend(name.as_bytes());
        archive.extend(packed);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&fields);
        directory.extend([0; 10]);
        directory.extend(at.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let at = archive.len() as u32;
    let len = directory.len() as u32;
    archive.extend(directory);
    archive.extend(b"PK\x05\x06\x00\x00\x00\x00");
    archive.extend((members.len() as u16).to_le_bytes());
    archive.extend((members.len() as u16).to_le_bytes());
    archive.extend(len.to_le_bytes());
    archive.extend(at.to_le_bytes());
    archive.extend([0; 2]);
    archive
}

pub(crate) fn i64s(values: impl IntoIterator<Item = i64>) -> Vec<u8> {
    values.into_iter().flat_map(i64::to_le_bytes).collect()
}

/// The head of a file of keys (1) or vectors (2) of an embedding collection.
pub(crate) fn part(kind: i32, id: i32, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 128];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4..8].copy_from_slice(&id.to_le_bytes());
    bytes.extend(data);
    bytes
}

/// `meta_data` of an embedding collection, with the fifth number or without.
pub(crate) fn meta(fifth: bool, keys: i32, values: i32, tables: &[(i32, u64, i32)]) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        [tables.len() as i32, keys, values, 0].iter().flat_map(|number| number.to_le_bytes()).collect();
    if fifth {
        bytes.extend(0i32.to_le_bytes());
    }
    tables.iter().for_each(|(id, ..)| bytes.extend(id.to_le_bytes()));
    tables.iter().for_each(|(_, rows, _)| bytes.extend(rows.to_le_bytes()));
    tables.iter().for_each(|(.., dim)| bytes.extend(dim.to_le_bytes()));
    bytes
}

pub(crate) fn safetensors(tensors: &[(&str, &str, &[u64], &[u8])]) -> Vec<u8> {
    let mut listed = Vec::new();
    let mut all = Vec::<u8>::new();
    for (name, dtype, shape, data) in tensors {
        let begin = all.len();
        let end = all.len() + data.len();
        listed.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#));
        all.extend(*data);
    }
    let header = format!("{{{}}}", listed.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(all);
    bytes
}
