//! The ids or keys that rows belong to.

use warprow_formats::KeyType;
use warprow_keys::KeyKind;
use warprow_store::{StoreError, TableInfo};
use warprow_workload::RecordedKeys;
use warprow_workload::units;

use super::arguments::UpdateArgs;
use crate::commands::lookup;
use crate::failure::Failure;
use crate::select::Chosen;

/// The ids that the command line names.
pub(super) fn given(args: &UpdateArgs) -> Result<Option<RecordedKeys>, Failure> {
    match (&args.ids, &args.ids_file) {
        (Some(list), _) => lookup::parse_ids(list).map(Some),
        (None, Some(file)) => lookup::read_file(file).map(Some),
        (None, None) => Ok(None),
    }
}

/// What the rows belong to: ids, or keys by their bits.
pub(super) fn ids(args: &UpdateArgs, chosen: &Chosen<'_>, info: &TableInfo) -> Result<Vec<u64>, Failure> {
    let given = given(args)?;
    let (bits, signed): (Vec<u64>, bool) = match (given, chosen.table.keys) {
        (Some(RecordedKeys::Signed(ids)), _) => (ids.into_iter().map(|id| id as u64).collect(), true),
        (Some(RecordedKeys::Unsigned(ids)), _) => (ids, false),
        (None, Some(kind)) => {
            let keys = chosen.file.keys(chosen.table)?.into_iter().flatten();
            (keys.collect::<Result<_, _>>()?, KeyType::is_signed(kind))
        }
        (None, None) => {
            let what = format!("{} has no keys: whose are its rows?", args.rows().display());
            return Err(Failure::usage("--ids", what).remedy("say it with --keys, --ids or --ids-file"));
        }
    };
    of_kind(info, bits, signed)
}

/// The keys that `--delete` names, by their bits.
pub(super) fn removed(file: &str, info: &TableInfo) -> Result<Vec<u64>, Failure> {
    if info.keys.is_none() {
        return Err(StoreError::NotRemovable { table: info.name.clone() }.into());
    }
    match lookup::read_file(file)? {
        RecordedKeys::Signed(keys) => of_kind(info, keys.into_iter().map(|key| key as u64).collect(), true),
        RecordedKeys::Unsigned(keys) => of_kind(info, keys, false),
    }
}

/// The numbers, unless one is none that the table can have as an id or key.
fn of_kind(info: &TableInfo, bits: Vec<u64>, signed: bool) -> Result<Vec<u64>, Failure> {
    // A number that the other kind cannot hold has the upper bit; ids are never below zero.
    let table_signed = info.keys.is_some_and(|keys| keys.kind == KeyKind::I64);
    let foreign = (signed != table_signed).then(|| bits.iter().find(|&&id| id >> 63 == 1)).flatten();
    match foreign {
        None => Ok(bits),
        Some(&id) => {
            let id = if signed { (id as i64).to_string() } else { id.to_string() };
            let (what, remedy) = match (info.keys.is_some(), table_signed) {
                (false, _) => {
                    (format!("table {:?} has no row {id}", info.name), "look at the ids; nothing was changed")
                }
                (true, false) => (
                    format!("{id} is no key of table {:?}: its keys are u64, numbers from 0 on", info.name),
                    "look at the keys; nothing was changed",
                ),
                (true, true) => (
                    format!("{id} is no key of table {:?}: its keys are i64, numbers below 2⁶³", info.name),
                    "look at the keys; nothing was changed",
                ),
            };
            Err(Failure::input(&info.name, what).remedy(remedy))
        }
    }
}

pub(super) fn not_each(args: &UpdateArgs, ids: u64, rows: u64) -> Failure {
    let given = units::plural(ids, "id");
    let rows = units::plural(rows, "row");
    Failure::input(args.file(), format!("there are {given} for {rows}")).remedy("give one for each row")
}

/// Of `--from`.
pub(super) fn behind(rows: u64) -> Failure {
    Failure::usage("--from", format!("the file has {}", units::plural(rows, "row")))
        .remedy("give the row to go on with")
}
