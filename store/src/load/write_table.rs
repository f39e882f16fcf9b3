//! Writing one table of a load.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use warprow_layout::{Extent, Placement, RowSource, Table, TableWrites, Transaction, VolumeError};

use super::buckets::{Bucket, Buckets};
use super::checksummed_rows::ChecksummedRows;
use super::journal::ExtentId;
use super::load_writer::LoadWriter;
use super::made_rows::for_each_made;
use super::regions::arrays;
use super::table_load::TableLoad;
use crate::StoreError;

/// Writes table number `index` of the transaction: its rows, put in order by `buckets` where they have to be, and all that belongs to
/// them.
pub(super) fn write_table(
    writer: &mut LoadWriter<'_, '_>,
    transaction: &mut Transaction,
    (index, load): (usize, &TableLoad<'_>),
    buckets: Option<Buckets<'_>>,
) -> Result<(), StoreError> {
    let placement = &*transaction.generation().placement.clone();
    let missing = VolumeError::NoSuchGeneration { id: transaction.generation().id };
    let table = &transaction.generation().tables.get(index).cloned().ok_or(missing)?;
    let source = &ChecksummedRows::new(load.source, load.placement(), table);
    let loader = match load.keyed {
        Some(keyed) => transaction.keyed_loader(index, source, keyed)?,
        None => transaction.loader(index, source, load.ranks)?,
    };
    let rows = Rows { number: index as u32, table, placement, source };
    match buckets {
        None => rows.write(writer, &loader)?,
        Some(buckets) => rows.write_in_order(writer, &buckets)?,
    }
    for region in arrays(table) {
        let extents = placement.extents(region, writer.extent_bytes());
        write_extents(writer, &loader, extents.map(|extent| (None, extent)))?;
    }
    if let Some(region) = table.crc_region {
        for extent in placement.extents(region, writer.extent_bytes()) {
            writer.write(None, extent, |extent, content| {
                source.fill_crcs(extent, region, placement.lba_size(), content);
                Ok(())
            })?;
        }
        writer.finish()?;
    }
    refuse_changed(writer, load, table)
}

/// Refuses a source whose rows may have changed since the first was read.
fn refuse_changed(writer: &mut LoadWriter<'_, '_>, load: &TableLoad<'_>, table: &Table) -> Result<(), StoreError> {
    let mut stopped = None;
    let unchanged = load.source.unchanged(&mut |bytes| match writer.meter().compared(bytes) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            stopped = Some(error);
            ControlFlow::Break(())
        }
    });
    if let Some(stopped) = stopped {
        return Err(stopped);
    }
    Ok(unchanged.map_err(|source| VolumeError::Source { table: table.name.clone(), source })?)
}

/// Writes extents that `loader` fills. Where rows take time to be made, several threads make them.
fn write_extents(
    writer: &mut LoadWriter<'_, '_>,
    loader: &TableWrites<'_, ChecksummedRows<'_>>,
    mut extents: impl Iterator<Item = (Option<ExtentId>, Extent)> + Clone + Send,
) -> Result<(), StoreError> {
    match loader.source().is_computed() {
        true => for_each_made(loader, extents, |id, extent, made| {
            writer.write(id, extent, |_, content| {
                content.copy_from_slice(made);
                Ok(())
            })
        })?,
        false => extents.try_for_each(|(id, extent)| {
            writer.write(id, extent, |extent, content| Ok(loader.fill(extent, content)?))
        })?,
    }
    writer.finish()
}

/// The rows of a table that is being loaded.
struct Rows<'a> {
    /// Which of the load's tables it is.
    number: u32,
    table: &'a Table,
    placement: &'a Placement,
    source: &'a ChecksummedRows<'a>,
}

impl Rows<'_> {
    /// Numbers extents of the table as the journal does, from `first` on.
    fn numbered<E: Iterator<Item = Extent> + Clone>(
        &self,
        first: u32,
        extents: E,
    ) -> impl Iterator<Item = (ExtentId, Extent)> + Clone + use<E> {
        let table = self.number;
        (first..).map(move |extent| ExtentId { table, extent }).zip(extents)
    }

    /// Writes the rows as the loader gives them, but for those that an earlier attempt has written.
    fn write(
        &self,
        writer: &mut LoadWriter<'_, '_>,
        loader: &TableWrites<'_, ChecksummedRows<'_>>,
    ) -> Result<(), StoreError> {
        let extent_bytes = writer.extent_bytes();
        let extents = || self.numbered(0, self.placement.extents(self.table.rows_region, extent_bytes));
        let intact = self.find_intact(writer, extents())?;
        let missing = extents().filter(|(id, _)| !intact.contains(id));
        write_extents(writer, loader, missing.map(|(id, extent)| (Some(id), extent)))
    }

    /// Puts rows in order where they are not, and writes them bucket by bucket, but for buckets that an earlier attempt has written
    /// whole. Of a single bucket, and of rows that come in order, each extent counts for itself instead.
    fn write_in_order(&self, writer: &mut LoadWriter<'_, '_>, buckets: &Buckets<'_>) -> Result<(), StoreError> {
        let extents = self.extents_of(buckets, writer.extent_bytes());
        // Rows on their way lie where buckets among several will: what is there of one that is not whole is written over.
        let each_counts = buckets.count() == 1 || buckets.in_turn();
        let is_known = |of_bucket: &&Vec<(ExtentId, Extent)>| {
            each_counts || of_bucket.iter().all(|(id, _)| writer.noted_crc(*id).is_some())
        };
        let known: Vec<_> = extents.iter().filter(is_known).flatten().copied().collect();
        let intact = self.find_intact(writer, known.into_iter())?;
        let is_whole = |of_bucket: &Vec<(ExtentId, Extent)>| of_bucket.iter().all(|(id, _)| intact.contains(id));
        let whole: Vec<bool> = extents.iter().map(is_whole).collect();
        let wanted: Vec<u64> = (0..).zip(&whole).filter(|(_, whole)| !**whole).map(|(number, _)| number).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let write = |bucket: &Bucket, writer: &mut LoadWriter<'_, '_>| {
            let of_bucket = extents.get(bucket.number as usize).into_iter().flatten();
            let mut missing = of_bucket.filter(|(id, _)| !(each_counts && intact.contains(id)));
            missing.try_for_each(|&(id, extent)| {
                writer.write(Some(id), extent, |extent, content| {
                    buckets.fill(bucket, extent, content);
                    Ok(())
                })
            })
        };
        if buckets.in_turn() {
            buckets.each_in_turn(self.source, &wanted, |bucket| write(bucket, writer))?;
            return writer.finish();
        }
        buckets.partition(self.source.source, writer, &whole)?;
        for number in wanted {
            let bucket = buckets.gather(number, self.source, writer)?;
            write(&bucket, writer)?;
            writer.finish()?;
        }
        Ok(())
    }

    /// The extents of each bucket, numbered on from one to the next.
    fn extents_of(&self, buckets: &Buckets<'_>, extent_bytes: usize) -> Vec<Vec<(ExtentId, Extent)>> {
        let mut first = 0;
        let of_bucket = |bucket| {
            let extents: Vec<_> =
                self.numbered(first, self.placement.extents(buckets.region(bucket), extent_bytes)).collect();
            first = first.saturating_add(extents.len() as u32);
            extents
        };
        (0..buckets.count()).map(of_bucket).collect()
    }

    /// The `extents` that were noted when they were written, and are on the drives. Checksums of their rows are noted.
    fn find_intact(
        &self,
        writer: &mut LoadWriter<'_, '_>,
        extents: impl Iterator<Item = (ExtentId, Extent)>,
    ) -> Result<HashSet<ExtentId>, StoreError> {
        let noted = extents.filter_map(|(id, extent)| Some((id, extent, writer.noted_crc(id)?)));
        let noted: Vec<(ExtentId, Extent, u32)> = noted.collect();
        let by_place: HashMap<(u16, u64), (ExtentId, u32)> =
            noted.iter().map(|(id, extent, crc)| ((extent.drive, extent.lba), (*id, *crc))).collect();
        let mut intact = HashSet::new();
        writer.read(noted.iter().map(|(_, extent, _)| *extent), |extent, content, meter| {
            match by_place.get(&(extent.drive, extent.lba)) {
                Some(&(id, crc)) if crc32c::crc32c(content) == crc => {
                    self.source.note_extent(self.table, extent, self.placement.lba_size(), content);
                    intact.insert(id);
                    meter.found_intact(content.len())
                }
                _ => Ok(()),
            }
        })?;
        Ok(intact)
    }
}
