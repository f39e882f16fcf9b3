//! In which order `load` puts the rows of tables: what tells it, and counting that.

use std::sync::Arc;

use warprow_keys::{FingerprintWidth, KeyIndex};
use warprow_layout::Ranks;
use warprow_store::{Store, TableInfo};
use warprow_workload::units;

use crate::commands::Context;
use crate::failure::Failure;
use crate::hotness::{self, Hot, Hotness, HotnessFile, Rows, Source};
use crate::inherited::{self, Inherited};
use crate::keyed::{FileKeys, RowNames};
use crate::report::printable;
use crate::screen::Unit;
use crate::select::Chosen;

/// How rows are found, once keys are read.
pub(super) struct Indexed<'a> {
    pub(super) index: Option<(Arc<KeyIndex>, &'a FileKeys<'a>)>,
    pub(super) order: Option<Ranks>,
}

impl Indexed<'_> {
    pub(super) fn rows(&self, chosen: &Chosen<'_>) -> Rows<'_> {
        self.index.as_ref().map_or(Rows::Ids(chosen.table.rows), |(index, keys)| Rows::Keys(index, *keys))
    }
}

/// Builds the index of its keys, if it is looked up by keys.
pub(super) fn index<'a>(
    fingerprint: FingerprintWidth,
    chosen: &Chosen<'a>,
    whose: &'a RowNames<'a>,
    context: &Context,
) -> Result<Indexed<'a>, Failure> {
    match whose {
        RowNames::Keys(keys) => {
            let spinner = context.screen.spinner(format!("indexing the keys of {}", chosen.name));
            let index = keys.index(fingerprint, &mut || context.interrupt.check());
            spinner.finish_and_clear();
            Ok(Indexed { index: Some((index?, keys)), order: None })
        }
        RowNames::Ids(order) => Ok(Indexed { index: None, order: order.clone() }),
    }
}

/// A file that is not there, and seems to be named for a table that is not loaded.
pub(super) fn refuse_strangers(hotness: &[HotnessFile], names: &[&str]) -> Result<(), Failure> {
    let stranger = hotness.iter().find_map(|file| Some((file, file.stranger()?)));
    stranger.map_or(Ok(()), |(file, name)| {
        let what = format!("there is no such file, and no table {name:?} is loaded");
        let subject = file.path().display().to_string();
        Err(Failure::input(subject, what).remedy(format!("the tables are {}", names.join(", "))))
    })
}

/// Traces add up; counts of rows leave nothing to be added.
pub(super) fn refuse_two(hotness: &[Hot]) -> Result<(), Failure> {
    let alone = |hot: &Hot| matches!(hot.file.source, Source::Counts(_));
    for (index, hot) in hotness.iter().enumerate() {
        let others = || hotness.iter().take(index).filter(|other| alone(other) || alone(hot));
        if let Some(table) = hot.tables.iter().find(|&table| others().any(|other| other.is_of(table))) {
            let subject = hot.file.path().display().to_string();
            let what = format!("table {table:?} is given two hotnesses");
            return Err(Failure::usage(subject, what).remedy("leave one of them out"));
        }
    }
    Ok(())
}

/// The table whose order a new version takes over, unless hotness tells another.
pub(super) fn followed(chosen: &Chosen<'_>, hotness: &[Hot], store: &Store) -> Option<TableInfo> {
    let told = hotness.iter().any(|hot| hot.is_of(&chosen.name));
    if told { None } else { inherited::ordered(store, &chosen.name, chosen.table.rows) }
}

/// The order of `old`. Where it is damaged, a load mends that: it goes on without.
pub(super) fn inherit(store: &Store, old: &TableInfo, rows: Rows<'_>, notes: &mut Vec<String>) -> Option<Inherited> {
    let why = match inherited::order(store, old, rows) {
        Ok(Some(inherited)) => return Some(inherited),
        Ok(None) => "the rows of one are not found in the other".to_owned(),
        Err(failure) => failure.message,
    };
    let name = printable(&old.name);
    notes.push(format!("{name}: not in the order of generation {}: {}", old.generation, printable(&why)));
    None
}

/// Bytes of the counts of tables that are counted together, at most, but for those of a single one.
const COUNTS: u64 = 4 << 30;

/// Parts of things of so many bytes each, in their order, that have up to `most` bytes or are alone.
fn portions(sizes: impl Iterator<Item = (usize, u64)>, most: u64) -> Vec<Vec<usize>> {
    let mut parts = Vec::<Vec<usize>>::new();
    let mut bytes = 0u64;
    for (at, size) in sizes {
        bytes = bytes.saturating_add(size);
        match parts.last_mut() {
            Some(part) if bytes <= most => part.push(at),
            _ => {
                parts.push(vec![at]);
                bytes = size;
            }
        }
    }
    parts
}

/// What hotness says of each table. Tables that one trace speaks of are counted together, so that it is read once, or as often as
/// their counts fill [`COUNTS`].
pub(super) fn count(
    hotness: &[Hot],
    chosen: &[Chosen<'_>],
    indexed: &[Indexed<'_>],
    context: &Context,
) -> Result<Vec<Option<Hotness>>, Failure> {
    let mut counted: Vec<Option<Hotness>> = chosen.iter().map(|_| None).collect();
    let tables = || chosen.iter().enumerate();
    let together = |chosen: &Chosen<'_>| hotness.iter().any(|hot| hot.tables.len() > 1 && hot.is_of(&chosen.name));
    let sizes = tables().filter(|(_, it)| together(it)).map(|(at, it)| (at, it.table.rows.saturating_mul(8)));
    let parts = portions(sizes, COUNTS);
    let alone = tables().filter(|(_, it)| !together(it) && hotness.iter().any(|hot| hot.is_of(&it.name)));
    let groups = parts.into_iter().chain(alone.map(|(at, _)| vec![at]));
    for group in groups.filter(|group| !group.is_empty()) {
        let of = group.iter().filter_map(|&at| Some((chosen.get(at)?, indexed.get(at)?)));
        let of: Vec<(&str, Rows<'_>)> = of.map(|(it, indexed)| (&*it.name, indexed.rows(it))).collect();
        let files: Vec<&Hot> = hotness.iter().filter(|hot| of.iter().any(|(name, _)| hot.is_of(name))).collect();
        let what = match &of[..] {
            [(name, _)] => format!("ranking {name}"),
            _ => format!("ranking {}", units::plural(of.len() as u64, "table")),
        };
        let bar = context.screen.bar(what, 0, Unit::Bytes);
        let ranked = hotness::rank(&files, &of, &mut |read, bytes| {
            bar.set_length(bytes);
            bar.set_position(read);
            context.interrupt.check()
        });
        bar.finish_and_clear();
        for (at, hotness) in group.into_iter().zip(ranked?) {
            if let Some(place) = counted.get_mut(at) {
                *place = Some(hotness);
            }
        }
    }
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_together_fits_the_memory_for_it() {
        let parts = |sizes: &[u64]| portions(sizes.iter().copied().enumerate().map(|(at, size)| (at + 7, size)), 10);
        assert_eq!(parts(&[3, 7, 1, 20, 5, 5, 0, 1]), [vec![7, 8], vec![9], vec![10], vec![11, 12, 13], vec![14]]);
        assert_eq!(parts(&[u64::MAX, u64::MAX]), [[7], [8]]);
        assert!(parts(&[]).is_empty());
    }
}
