//! The files that a storm gives to the command and gets from it: safetensors and `.npy`, as few of them as it needs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use warprow_store::DType;

/// What safetensors calls a type.
fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I8 => "I8",
        DType::F8E4M3 => "F8_E4M3",
        DType::F8E5M2 => "F8_E5M2",
        _ => "U8",
    }
}

/// Writes tables, each with its keys under `NAME.keys`, if it has any.
pub(crate) struct Tensors {
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl Tensors {
    pub(crate) fn new() -> Self {
        Self { header: Map::new(), data: Vec::new() }
    }

    fn add(&mut self, name: &str, dtype: &str, shape: &[usize], data: impl IntoIterator<Item = u8>) {
        let from = self.data.len();
        self.data.extend(data);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [from, self.data.len()]});
        self.header.insert(name.to_owned(), entry);
    }

    pub(crate) fn rows(&mut self, name: &str, dtype: DType, dim: u32, rows: &[u8]) {
        let count = rows.len() / (dim * dtype.size()) as usize;
        self.add(name, type_name(dtype), &[count, dim as usize], rows.iter().copied());
    }

    pub(crate) fn keys(&mut self, name: &str, keys: &[i64]) {
        self.add(name, "I64", &[keys.len()], keys.iter().flat_map(|key| key.to_le_bytes()));
    }

    pub(crate) fn write(self, path: &Path) -> Result<()> {
        let header = Value::from(self.header).to_string();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(self.data);
        fs::write(path, bytes).with_context(|| path.display().to_string())
    }
}

/// The rows in a safetensors file of one tensor.
pub(crate) fn read_rows(path: &Path, dtype: DType) -> Result<Vec<u8>> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    let length = u64::from_le_bytes(*bytes.first_chunk::<8>().context("too short")?) as usize;
    let header: Map<String, Value> = serde_json::from_slice(bytes.get(8..8 + length).context("cut off")?)?;
    let tensor = header.iter().find(|(name, _)| *name != "__metadata__").context("no tensor")?.1;
    ensure!(tensor["dtype"] == type_name(dtype), "it is of {}, not of {}", tensor["dtype"], type_name(dtype));
    Ok(bytes[8 + length..].to_vec())
}

/// The numbers in a `.npy` file of `i64`.
pub(crate) fn read_keys(path: &Path) -> Result<Vec<i64>> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    let length = usize::from(u16::from_le_bytes(*bytes[8..].first_chunk::<2>().context("too short")?));
    let (keys, rest) = bytes.get(10 + length..).context("cut off")?.as_chunks::<8>();
    ensure!(rest.is_empty(), "not a list of 64-bit numbers");
    Ok(keys.iter().map(|&key| i64::from_le_bytes(key)).collect())
}

/// A raw file of ids.
pub(crate) fn write_ids(path: &Path, ids: &[i64]) -> Result<()> {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    fs::write(path, bytes).with_context(|| path.display().to_string())
}
