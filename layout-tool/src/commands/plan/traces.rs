//! The tables that a tier proposal is for, and the traces that tell what is looked up in them.

use warprow_formats::RawShape;
use warprow_plan::TableShape;
use warprow_plan::trace::{FileQueries, QuerySource};
use warprow_store::{OpenOptions, TableInfo};
use warprow_traces::{Trace as Recorded, TraceSpec};

use super::arguments::PlanArgs;
use crate::columns::LookupTrace;
use crate::drives::{self, DriveArgs};
use crate::failure::Failure;
use crate::named;

/// A trace, with the names of its tables.
pub(super) type Named = (Vec<String>, Box<dyn QuerySource>);

pub(super) fn source(log: &LookupTrace) -> Result<Named, Failure> {
    let slots = log.columns.iter().map(|column| column.slot).collect();
    let read = FileQueries::open(&log.spec)?.with_slots(slots);
    Ok((log.columns.iter().map(|column| column.table.clone()).collect(), Box::new(read)))
}

/// The tables that traces are given of, and the traces.
pub(super) fn tables_and_traces(args: &PlanArgs) -> Result<(Vec<TableShape>, Vec<LookupTrace>), Failure> {
    let known = known(args)?;
    let names: Vec<&str> = known.iter().map(|shape| &*shape.name).collect();
    if let Some(name) = args.keyed.iter().find(|name| !names.contains(&&***name)) {
        return Err(Failure::usage(name, "there is no such table").remedy("name one that --table gives"));
    }
    if let Some((_, name)) =
        names.iter().enumerate().find(|(at, name)| names.iter().take(*at).any(|other| other == *name))
    {
        return Err(Failure::usage(*name, "the table is given twice").remedy("leave one of them out"));
    }
    let mut logs = Vec::<LookupTrace>::new();
    let mut shapes = Vec::<TableShape>::new();
    for argument in &args.traces {
        let log = log(argument, &names)?;
        for column in &log.columns {
            let Some(shape) = known.iter().find(|shape| shape.name == column.table) else { continue };
            if shapes.contains(shape) {
                let what = format!("a second trace of table {:?}", shape.name);
                return Err(Failure::usage(argument, what).remedy("leave one out"));
            }
            shapes.push(shape.clone());
        }
        logs.push(log);
    }
    // Tables of a store may stay as they are; those that were stated are meant.
    match known.iter().find(|shape| args.drives.is_empty() && !shapes.contains(shape)) {
        Some(table) => {
            Err(Failure::usage(&table.name, "there is no trace of this table")
                .remedy("give one with --trace NAME=TRACE"))
        }
        None => Ok((shapes, logs)),
    }
}

/// The tables that are stated, or those of the store.
fn known(args: &PlanArgs) -> Result<Vec<TableShape>, Failure> {
    if args.drives.is_empty() {
        return args.tables.iter().map(|argument| stated(argument, &args.keyed)).collect();
    }
    let options = OpenOptions::default().with_read_only();
    let store = drives::open(&DriveArgs { drives: args.drives.clone() }, &options)?;
    let shape = |table: TableInfo| {
        let index_bytes = table.keys.map(|keys| keys.index_bytes);
        TableShape { name: table.name, rows: table.rows, dim: table.dim, dtype: table.dtype, index_bytes }
    };
    Ok(store.tables().into_iter().map(shape).collect())
}

/// A trace, and which of its columns looks up which of the tables `known`: one for each where as many are named, in their order; else
/// by what they are called.
fn log(argument: &str, known: &[&str]) -> Result<LookupTrace, Failure> {
    let listed = argument.split_once('=').filter(|(names, _)| names.split(',').all(|name| known.contains(&name)));
    let (name, rest) = match listed {
        Some((names, rest)) => (Some(names), rest),
        None => named::split(argument, known),
    };
    let spec: TraceSpec = rest
        .parse()
        .map_err(|error| Failure::usage(argument, format!("{error}")).remedy("look at `warprow plan --help`"))?;
    let Some(name) = name else { return LookupTrace::of(&spec, known, "--trace") };
    let tables: Vec<&str> = match listed {
        Some(_) => name.split(',').filter_map(|name| known.iter().copied().find(|other| *other == name)).collect(),
        None => named::matching(name, known),
    };
    if let Some((_, twice)) =
        tables.iter().enumerate().find(|(at, name)| tables.iter().take(*at).any(|other| other == *name))
    {
        let what = format!("table {twice:?} is named twice");
        return Err(Failure::usage(argument, what).remedy("a table has one trace: leave one out"));
    }
    let columns = Recorded::columns(&spec)?;
    match listed.is_some() && columns.len() == tables.len() {
        true => Ok(LookupTrace::in_order(&spec, &columns, &tables)),
        false => LookupTrace::of(&spec, &tables, "--trace"),
    }
}

fn stated(argument: &str, keyed: &[String]) -> Result<TableShape, Failure> {
    let (name, shape) = argument.rsplit_once('=').unwrap_or(("table", argument));
    let shape: RawShape =
        shape.parse().map_err(|error: String| Failure::usage(argument, error).remedy("such as item=1000x64:f32"))?;
    match (shape.rows, shape.at) {
        (Some(rows), 0) => {
            let index_bytes = keyed.iter().any(|other| other == name).then(|| TableShape::index_of(rows));
            Ok(TableShape { name: name.to_owned(), rows, dim: shape.dim, dtype: shape.dtype, index_bytes })
        }
        _ => Err(Failure::usage(argument, "a shape has rows, and no offset").remedy("such as item=1000x64:f32")),
    }
}
