//! Files of tables as drives, without loading them: `attached:PATH[,tensor=GLOB]...`.

use std::io;
use std::path::Path;
use std::sync::Arc;

use warprow_formats::{FileTable, TableFile};
use warprow_layout::{RowSource, Table, TableSpec, VolumeError};
use warprow_store::{AttachedTable, Device};

use crate::failure::Failure;
use crate::select::Selection;

/// How such an address begins.
const SCHEME: &str = "attached:";
/// What separates a file from the names of tensors.
const TENSOR: &str = ",tensor=";

/// Whether an address is one.
pub fn is(address: &str) -> bool {
    address.starts_with(SCHEME)
}

/// A table in a file that it holds open.
struct Kept {
    file: Arc<TableFile>,
    table: FileTable,
}

impl RowSource for Kept {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> io::Result<()> {
        self.file.rows(&self.table).read(first, row_bytes, rows)
    }

    fn check(&self, table: &Table) -> Result<(), VolumeError> {
        self.file.rows(&self.table).check(table)
    }
}

/// The drive that the only of `addresses` names, if one of them is a file of tables.
pub fn device(addresses: &[String]) -> Result<Option<Device>, Failure> {
    let Some(address) = addresses.iter().find(|address| is(address)) else { return Ok(None) };
    if addresses.len() > 1 {
        return Err(Failure::usage(address, "a file of tables is a store of its own").remedy("give no other drive"));
    }
    let mut parts = address.strip_prefix(SCHEME).unwrap_or_default().split(TENSOR);
    let path = parts.next().unwrap_or_default();
    let tensors: Vec<String> = parts.map(str::to_owned).collect();
    if path.is_empty() {
        return Err(Failure::usage(address, "it names no file").remedy("give attached:PATH"));
    }
    let file = TableFile::open(Path::new(path))?;
    let selection = Selection { all: tensors.is_empty(), tensors, strip_prefix: None };
    let chosen = selection.choose(std::slice::from_ref(&file), "warprow inspect")?;
    let stay = |what: String| {
        Failure::input(path, what).remedy("load it instead: warprow load puts rows where look-ups find them")
    };
    let mut specs: Vec<(TableSpec, FileTable)> = Vec::with_capacity(chosen.len());
    for it in chosen {
        if it.table.is_sequential() {
            return Err(stay(format!("table {:?} is compressed: its rows cannot be read where they are", it.name)));
        }
        if it.table.is_in_pages() {
            return Err(stay(format!(
                "table {:?} stands in pages of a Parquet file: its rows are not one after another",
                it.name
            )));
        }
        if file.order(it.table)?.is_some() {
            return Err(stay(format!("table {:?} has its rows in another order than that of their ids", it.name)));
        }
        specs.push((TableSpec::new(it.name, it.table.rows, it.table.dim, it.table.dtype), it.table.clone()));
    }
    let file = Arc::new(file);
    let tables = specs
        .into_iter()
        .map(|(spec, table)| AttachedTable { spec, source: Arc::new(Kept { file: file.clone(), table }) });
    Ok(Some(Device::attached(address, tables.collect())?))
}
