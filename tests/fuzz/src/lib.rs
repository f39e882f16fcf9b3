//! Drives in memory, and edits of right data: most of what a fuzzer invents fails at the first check.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Mutex;

use warprow_keys::{KeyIndex, IndexOptions};
use warprow_layout::{
    DType, Drive, DriveError, FormatOptions, GenerationSpec, TableKeys, RowOrder, TableSpec, UNIT, Volume, format, open,
};

pub const LBA: u32 = 512;

/// A drive of which only what was written takes memory.
pub struct Sparse {
    name: String,
    lbas: u64,
    written: Mutex<HashMap<u64, Vec<u8>>>,
}

impl Sparse {
    pub fn new(name: &str, bytes: u64) -> Self {
        Self { name: name.to_owned(), lbas: bytes / u64::from(LBA), written: Mutex::default() }
    }

    pub fn unit(&self, unit: u64) -> [u8; UNIT] {
        let mut bytes = [0; UNIT];
        self.read(unit * 8, &mut bytes).unwrap();
        bytes
    }
}

impl Drive for Sparse {
    fn name(&self) -> &str {
        &self.name
    }

    fn lba_size(&self) -> u32 {
        LBA
    }

    fn lba_count(&self) -> u64 {
        self.lbas
    }

    fn max_transfer(&self) -> usize {
        128 << 10
    }

    fn read(&self, lba: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        let written = self.written.lock().unwrap();
        for (lba, buf) in (lba..).zip(buf.chunks_mut(LBA as usize)) {
            if lba >= self.lbas {
                return Err(DriveError::new(&self.name, format!("read at {lba}"), "out of range"));
            }
            match written.get(&lba) {
                Some(bytes) => buf.copy_from_slice(bytes),
                None => buf.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, lba: u64, data: &[u8]) -> Result<(), DriveError> {
        let mut written = self.written.lock().unwrap();
        written.extend((lba..).zip(data.chunks(LBA as usize).map(<[u8]>::to_vec)));
        Ok(())
    }

    fn flush(&self) -> Result<(), DriveError> {
        Ok(())
    }
}

/// A store of two drives with a generation of four tables, of which nothing but metadata was written.
pub fn store() -> (Volume, Vec<std::sync::Arc<Sparse>>) {
    let drives: Vec<_> =
        [8 << 20, 12 << 20].iter().enumerate().map(|(i, &bytes)| Sparse::new(&format!("d{i}"), bytes).into()).collect();
    let store = Some(uuid::Uuid::from_u128(7));
    format(&drives, &FormatOptions { chunk_size: Some(1 << 20), store, ..FormatOptions::default() }).unwrap();
    let volume = open(drives.clone(), warprow_layout::StoreAccess::ReadWrite).unwrap().volume;
    let mut small = TableSpec::new("small", 1000, 25, DType::F32);
    small.row_crc = true;
    small.default_row = Some(vec![1; 100]);
    let wide = TableSpec::new("wide", 30, 600, DType::BF16);
    let keys: Vec<i64> = (-50..50).map(|key| key * key * key).collect();
    let source = &keys[..];
    let index = KeyIndex::build(source, &IndexOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    let keyed = TableKeys::new(index.into(), &source, RowOrder::Given, true).unwrap();
    let tables = vec![
        small,
        wide,
        TableSpec::new("bytes", 199, 64, DType::I8),
        TableSpec::new("keys", 0, 4, DType::F32).keyed(&keyed),
    ];
    let mut transaction = volume.begin(&GenerationSpec::new("model", tables)).unwrap();
    transaction.keyed_loader(3, &[0; 1600][..], &keyed).unwrap();
    transaction.commit().unwrap();
    (volume, drives)
}

/// Overwrites bytes of `data` as `edits` say: two bytes for where, one for what.
pub fn edit(data: &mut [u8], edits: &[u8]) {
    for edit in edits.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % data.len().max(1);
        if let Some(byte) = data.get_mut(at) {
            *byte = edit[2];
        }
    }
}

/// Makes a metadata block's magic and checksum right.
pub fn seal(unit: &mut [u8; UNIT]) {
    unit[..8].copy_from_slice(&warprow_layout::MAGIC);
    let crc = crc32c::crc32c(&unit[12..]);
    unit[8..12].copy_from_slice(&crc.to_le_bytes());
}
