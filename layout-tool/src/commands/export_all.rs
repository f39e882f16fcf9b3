//! `warprow export --all`: all tables, in one safetensors file.

use serde_json::{Value, json};
use warprow_formats::{NewTable, TablesWriter};
use warprow_store::{KeyKind, KeySpec, Store};
use warprow_workload::units;

use super::export::{ExportArgs, Exported};
use super::{CommandOutput, Context};
use crate::failure::Failure;
use crate::file::refuse_in_use;
use crate::report::table;

/// Keys that are written at once.
const KEYS: usize = 1 << 17;

pub(super) fn run(args: &ExportArgs, store: &Store, context: &Context) -> Result<CommandOutput, Failure> {
    let tables = store.tables().into_iter().map(|table| Exported::new(store, table));
    let tables = tables.collect::<Result<Vec<_>, _>>()?;
    let path = args.out.display().to_string();
    if tables.is_empty() {
        return Err(Failure::input("", "the store has no tables").remedy("load some: `warprow load`"));
    }
    refuse_in_use(&args.out)?;
    let keys = |exported: &Exported<'_>| exported.table.keys.filter(|keys| keys.stored);
    let is_signed = |keys: KeySpec| keys.kind == KeyKind::I64;
    let out = tables.iter().map(|table| NewTable {
        name: table.table.name.clone(),
        rows: table.rows(),
        dim: table.table.dim,
        dtype: table.dtype,
        keys: keys(table).map(is_signed),
    });
    let writer = TablesWriter::create(&args.out, args.force, &out.collect::<Vec<_>>())?;
    let mut written: Vec<Value> = Vec::with_capacity(tables.len());
    for (at, it) in tables.iter().enumerate() {
        let checked = it.write(&|first, rows| writer.write(at, first, rows), context)?;
        if keys(it).is_some() {
            for (first, keys) in (0..).step_by(KEYS).zip(it.keys()?.chunks(KEYS)) {
                writer.write_keys(at, first, keys)?;
            }
        }
        written.push(json!({
            "table": it.table.name, "rows": it.rows(), "dim": it.table.dim, "dtype": it.dtype.name(), "bytes": it.bytes(),
            "keys": keys(it).map(|_| format!("{}.keys", it.table.name)), "order": it.order(), "checked": checked,
        }));
    }
    writer.finish()?;
    let rows: u64 = tables.iter().map(Exported::rows).sum();
    let bytes: u64 = tables.iter().map(Exported::bytes).sum();
    let checked = |at: usize| written.get(at).is_some_and(|value| value["checked"] == true);
    let mut text = format!(
        "Wrote {}, {}, {}, to {path}:\n",
        units::plural(tables.len() as u64, "table"),
        units::plural(rows, "row"),
        units::bytes(bytes)
    );
    text += &table(
        ["table", ">rows", ">dim", "type", "order", "keys", "rows compared with"],
        tables.iter().enumerate().map(|(at, it)| {
            [
                it.table.name.clone(),
                units::count(it.rows()),
                it.table.dim.to_string(),
                it.dtype.to_string(),
                format!("by {}", it.order()),
                keys(it).map_or_else(String::new, |_| format!("{}.keys", it.table.name)),
                if checked(at) { "checksums" } else { "nothing" }.to_owned(),
            ]
        }),
    );
    CommandOutput::new(text, json!({ "out": path, "tables": written, "rows": rows, "bytes": bytes }))
}
