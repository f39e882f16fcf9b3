//! Formats a drive, loads two tables (one from memory, one from a safetensors file), looks up every row of both, and
//! compares each with what it must be.
//!
//!     cargo run -p warprow-examples --bin quickstart

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Result, ensure};
use warprow_formats::{TableFile, TableWriter};
use warprow_lookup::{Batch, Feature, HostExecutor, HostOptions, Output, OutputRows, PlanOptions};
use warprow_store::{
    CreateDrive, DType, Device, DriveAddress, FormatConsent, FormatProposal, FormatSettings, LoadOptions, TableLoad,
    TableSpec,
};

const ROWS: u64 = 10_000;
const DIM: usize = 16;
/// Ids of each feature in one batch.
const BATCH: u64 = 500;

/// Row `id` of the table "user".
fn user(id: u64) -> [f32; DIM] {
    std::array::from_fn(|column| id as f32 + column as f32 / 16.0)
}

/// Row `id` of the table "item".
fn item(id: u64) -> [f32; DIM] {
    user(id).map(|x| -x)
}

/// All rows, one after another, little-endian.
fn bytes_of(row: fn(u64) -> [f32; DIM]) -> Vec<u8> {
    (0..ROWS).flat_map(row).flat_map(f32::to_le_bytes).collect()
}

/// Writes the table "item" as another program would have left it.
fn write_safetensors(path: &Path) -> Result<()> {
    let writer = TableWriter::create(path, false, "item", ROWS, DIM as u32, DType::F32)?;
    writer.write(0, &bytes_of(item))?;
    writer.finish()?;
    Ok(())
}

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;

    // An emulated drive is a file. A real drive would be "0000:41:00.0".
    let image = folder.path().join("a.drive");
    let address: DriveAddress = format!("emulated:{},size=64M", image.display()).parse()?;
    let drive = Device::open(&address, CreateDrive::IfMissing)?;
    let plan = FormatProposal::new(&[drive], FormatSettings::default())?;
    println!("formatting {}: {} MiB, LBAs of {} B", address, plan.drives()[0].bytes >> 20, plan.drives()[0].lba_bytes);
    let store = plan.run(&FormatConsent::None, &mut |_, _| {})?;

    // Both tables are one model: after `load` both are there, or neither is.
    let user_rows = bytes_of(user);
    let user_spec = TableSpec::new("user", ROWS, DIM as u32, DType::F32);
    let path = folder.path().join("model.safetensors");
    write_safetensors(&path)?;
    let file = TableFile::open(&path)?;
    let tensor = &file.tables[0];
    let item_rows = file.rows(tensor);
    let item_spec = TableSpec::new(&tensor.name, tensor.rows, tensor.dim, tensor.dtype);
    let tables = [TableLoad::new(&user_spec, &user_rows), TableLoad::new(&item_spec, &item_rows)];
    let loaded = store.load("model", &tables, &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    println!("loaded user from memory and item from model.safetensors: {} bytes written", loaded.bytes);

    // An eighth of the rows stay in memory; the others are read from the drive.
    let in_memory = (user_rows.len() * 2 / 8) as u64;
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(in_memory))?;
    let features = [Feature::new("user", "user"), Feature::new("item", "item")];
    let plan = host.plan(&features, PlanOptions::default().with_max(BATCH as usize, 2 * BATCH as usize))?;
    let mut slot = plan.slot()?;
    let mut rows = vec![0f32; 2 * BATCH as usize * plan.width()];
    for first in (0..ROWS).step_by(BATCH as usize) {
        // A batch has the ids of the first feature, then those of the second.
        let ids: Vec<u64> = (first..first + BATCH).chain((first..first + BATCH).rev()).collect();
        slot.lookup(&Batch::new(&ids, BATCH as usize), &mut Output::new(OutputRows::F32(&mut rows), plan.width()))?;
        for (position, (&id, row)) in ids.iter().zip(rows.chunks(plan.width())).enumerate() {
            let wanted = if position < BATCH as usize { user(id) } else { item(id) };
            ensure!(row == wanted, "position {position}, id {id}: {row:?} came back instead of {wanted:?}");
        }
    }
    let totals = host.metrics();
    println!("looked up {} ids: {} from memory, {} from the drive", totals.ids, totals.ids_dram, totals.ids_ssd);
    println!("every row is right");
    Ok(())
}
