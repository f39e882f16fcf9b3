//! Comparing tables with the files that they came from.

use std::ops::ControlFlow;

use warprow_formats::{FileTable, TableFile};
use warprow_layout::{Ranks, RowSource};
use warprow_store::{KeyKind, Store, TableInfo};

use super::finding::{Finding, interrupted};
use crate::commands::Context;
use crate::failure::{Class, Failure};
use crate::file::ById;
use crate::screen::Unit;

/// Compares every row of a table with that of a file.
pub(super) fn compare(
    store: &Store,
    table: TableInfo,
    file: &TableFile,
    theirs: &FileTable,
    context: &Context,
) -> Result<Finding, Failure> {
    let failed = |error| Failure::from(error);
    let ids = match table.keys {
        None => store.ranks(&table.name).map_err(failed)?.as_ref().map(Ranks::inverse),
        Some(_) => None,
    };
    if table.keys.is_some() && store.has_key_changes(&table.name).map_err(failed)? {
        let what = format!("keys of table {:?} were created or removed since it was written", table.name);
        return Err(Failure::new(Class::Refused, table.name, what).remedy("`warprow compact` first"));
    }
    let path = file.path.display().to_string();
    refuse_other_shape(&table, &path, theirs)?;
    let row_bytes = theirs.row_bytes();
    let bar = context.screen.bar(format!("comparing {}", table.name), table.rows, Unit::Things);
    let source = match table.keys {
        None => ById::new(file, theirs)?,
        Some(keys) => ById::placed(file, theirs, by_rank(store, &table, keys.kind, file, theirs, context)?)?,
    };
    let mut finding = Finding { against: Some(path.clone()), against_file: true, ..Finding::new(table) };
    let mut want = vec![0; row_bytes];
    let mut unread = None;
    let name = finding.table.name.clone();
    let scanned = store.scan(&name, 0..u64::MAX, &mut |rank, row| {
        let id = ids.as_ref().map_or(Some(rank), |ids| ids.get(rank)).unwrap_or(u64::MAX);
        if let Err(error) = source.read(id, row_bytes, &mut want) {
            unread = Some(error);
            return ControlFlow::Break(());
        }
        if row != want {
            finding.differing += 1;
            finding.first.push(id);
            if finding.first.len() > 1000 {
                keep_first(&mut finding.first);
            }
        }
        finding.rows += 1;
        finding.bytes += row.len() as u64;
        if finding.rows.is_multiple_of(1 << 12) {
            bar.set_position(finding.rows);
            return context.interrupt.flow();
        }
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    if let Some(error) = unread {
        return Err(Failure::io(path, "cannot be read", &error));
    }
    scanned.map_err(|error| interrupted(error, context))?;
    context.interrupt.check()?;
    keep_first(&mut finding.first);
    Ok(finding)
}

/// A file whose tensor has another shape or type than the table.
fn refuse_other_shape(table: &TableInfo, path: &str, theirs: &FileTable) -> Result<(), Failure> {
    if (theirs.rows, theirs.dim, theirs.dtype) == (table.rows, table.dim, table.dtype) {
        return Ok(());
    }
    let what = format!(
        "table {:?} has {} × {} {}, {} in {path} has {} × {} {}",
        table.name, table.rows, table.dim, table.dtype, theirs.name, theirs.rows, theirs.dim, theirs.dtype
    );
    let remedy = match (theirs.dim, theirs.dtype) == (table.dim, table.dtype) {
        true => {
            "no row was compared: give the file that the table was loaded from; keys that updates created since are rows too"
        }
        false => {
            "no row was compared: give the file that the table was loaded from, or, if it was converted, one that `warprow export` wrote"
        }
    };
    Err(Failure::new(Class::Mismatch, &table.name, what).remedy(remedy))
}

/// Where in the file the row of each rank of a table with keys stands.
fn by_rank(
    store: &Store,
    table: &TableInfo,
    kind: KeyKind,
    file: &TableFile,
    theirs: &FileTable,
    context: &Context,
) -> Result<Ranks, Failure> {
    let name = &table.name;
    let differs = |what: String| Failure::new(Class::Mismatch, name, what);
    let (Some(keys), Some(width)) = (file.keys(theirs)?, theirs.keys) else {
        let what = format!("the rows of table {name:?} are found by keys, and {} has none", file.path.display());
        return Err(Failure::input(name, what).remedy("name the list of keys, or a .npy file of them, with --keys"));
    };
    let index = store.key_index(name)?.ok_or_else(|| Failure::new(Class::Bug, name, "a table of keys has no index"))?;
    let stored = store.keys(name)?;
    let ranks = store.ranks(name)?;
    let no_memory = |_| {
        let what = format!("there is no memory for the places of {} rows", table.rows);
        Failure::new(Class::Resources, name, what).remedy("free some, or verify without --against")
    };
    let mut places: Vec<u64> = Vec::new();
    places.try_reserve_exact(table.rows as usize).map_err(no_memory)?;
    places.resize(table.rows as usize, u64::MAX);
    for (row, key) in (0..).zip(keys) {
        let key = key?;
        // The same bits are another number where only one side has a sign.
        let same = width.is_signed() == (kind == KeyKind::I64) || key <= i64::MAX as u64;
        let rank = index.position(key).filter(|_| same);
        let rank = rank.and_then(|slot| ranks.as_ref().map_or(Some(slot), |ranks| ranks.get(slot)));
        let rank = rank.and_then(|rank| usize::try_from(rank).ok());
        let known = |rank: &usize| stored.as_ref().is_none_or(|stored| stored.get(*rank) == Some(&key));
        let Some(place) = rank.filter(known).and_then(|rank| places.get_mut(rank)) else {
            let what = format!(
                "row {row} of {} has the key {}, which table {name:?} does not have",
                theirs.name,
                width.show(key)
            );
            return Err(differs(what));
        };
        if *place != u64::MAX {
            let what = format!("the key {} comes twice in {}, or passes for another", width.show(key), theirs.name);
            return Err(differs(what));
        }
        *place = row;
        if row.is_multiple_of(1 << 16) {
            context.interrupt.check()?;
        }
    }
    Ranks::from_u64(places).map_err(|_| differs(format!("{} does not have all keys of table {name:?}", theirs.name)))
}

fn keep_first(ids: &mut Vec<u64>) {
    ids.sort_unstable();
    ids.truncate(100);
}
