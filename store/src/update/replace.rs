//! Many rows of a table at once: read by rank, and replaced by one commit. For whoever keeps them in memory meanwhile.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use warprow_layout::{CopiedRows, Extent, LbaRegion, Placement, RewrittenChunks, Table, VolumeError, row_crc};

use super::compact::of_copy;
use super::desk::{PAUSE, is_rewriting};
use super::key_changes::KeyChanges;
use crate::bulk::{Bulk, Job, Purpose};
use crate::drive_access::lock;
use crate::pace::Pace;
use crate::parallel_read::{ParallelRead, Tick};
use crate::table_version::TableVersion;
use crate::{Store, StoreError};

/// Takes a row: its position in the list of ranks, and its bytes. On any thread.
pub type TakeRow<'a> = dyn Fn(usize, &[u8]) + Sync + 'a;
/// Fills a row in, by its position in the list of ranks. Asked once or twice for each, and the same each time.
pub type FillRow<'a> = dyn Fn(usize, &mut [u8]) + 'a;
/// Says whether all rows that were filled in so far are what they should be. Told whether these are all of them.
pub type CheckRows<'a> = dyn Fn(bool) -> Result<(), StoreError> + 'a;

/// Of how many rows one has to be wanted for whole extents to be read, and no single LBAs.
const DENSE: u64 = 32;
/// Bytes that nobody wants and that are read all the same, rather than begin another command.
const GAP: u64 = 4 << 10;

/// How long rows that replace others wait for somebody else's compaction.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often updates that come meanwhile are brought into chunks first.
const COMPACTIONS: usize = 8;

/// Chunks that are about to be copied with other rows.
pub(super) struct Begun {
    /// Of the last update that is in the chunks they are copied from.
    sequence: u64,
    /// Of the table.
    index: usize,
    rewritten: RewrittenChunks,
}

/// What decides which row has which rank: a compaction with created or removed keys changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ranked {
    pub(super) rows: u64,
    /// Checksum of the index of the keys, if there are keys.
    pub(super) keys: Option<u32>,
}

impl Ranked {
    pub(super) fn of(table: &Table) -> Self {
        Self { rows: table.rows, keys: table.keys.map(|keys| keys.index_crc) }
    }
}

impl Store {
    /// Reads rows of a table of generation `generation`, by their ranks, ascending, each once: with all updates that were there
    /// when it began. In whole extents or in single LBAs, whichever costs less, in the order of no thing.
    pub fn read_rows(&self, generation: u64, table: &str, ranks: &[u64], take: &TakeRow<'_>) -> Result<(), StoreError> {
        let (located, overlay) =
            self.shared.updates.with_overlay(&self.shared.volume, self.locate_in(generation, table)?);
        let overlay = overlay?;
        self.read_stored(&located, ranks, None, &mut || ControlFlow::Continue(()), take)?;
        for (rank, row) in self.updated_by_rank(&located, &overlay)? {
            if let Ok(position) = ranks.binary_search(&rank) {
                take(position, &row);
            }
        }
        Ok(())
    }

    /// As [`read_rows`](Self::read_rows), of a table as it is in a generation, without updates. With a rate by one thread. `tick` is asked
    /// now and then whether to stop ([`StoreError::Interrupted`]).
    pub(crate) fn read_stored(
        &self,
        located: &TableVersion,
        ranks: &[u64],
        bytes_per_second: Option<u64>,
        tick: Tick<'_>,
        take: &TakeRow<'_>,
    ) -> Result<(), StoreError> {
        let table = located.table();
        let placement = &*located.generation.placement;
        check(table, ranks)?;
        self.shared.watch()?;
        let least = placement.stripe_bytes() as usize;
        let pace = bytes_per_second.map(Pace::BytesPerSecond);
        let threads = pace.map(|_| 1);
        let mut sweep = ParallelRead::new(&self.shared.members, least, threads, pace, &self.shared.driving)?;
        let row_bytes = table.row_bytes() as usize;
        let rows = |extent: &Extent, bytes: &[u8]| {
            for (lba, piece) in extent.pieces() {
                let Some(piece) = bytes.get(piece) else { continue };
                for (position, begin) in wanted(table, placement, lba, piece.len(), ranks) {
                    if let Some(row) = piece.get(begin..begin + row_bytes) {
                        take(position, row);
                    }
                }
            }
            Ok(())
        };
        let failed = |_: &Extent, error| Err(StoreError::Driver(error));
        let most = sweep.extent_bytes();
        match (ranks.len() as u64).saturating_mul(DENSE) >= table.rows {
            true => {
                let any = |extent: &Extent| {
                    extent
                        .pieces()
                        .any(|(lba, bytes)| wanted(table, placement, lba, bytes.len(), ranks).next().is_some())
                };
                let extents = placement.extents(table.rows_region, most).filter(any);
                sweep.run(extents, &rows, &failed, tick)?;
            }
            false => sweep.run(Runs { table, placement, ranks, most }, &rows, &failed, tick)?,
        }
        Ok(())
    }

    /// Gives rows of a table of generation `generation` other content, by their ranks, ascending, each once: in one commit. When it
    /// returns all of them are durable, and after a crash before that all are, or none. As [`compact`](Self::compact) it copies the
    /// chunks that hold these rows, whatever else is in them, to as many free ones (rows that do not match their checksums end it, as a compaction), and hosts go on with the rows as they were until
    /// they prepare and adopt anew. For few rows [`update`](Self::update) costs less.
    ///
    /// Updates that were made before are brought into chunks first; where keys of the table were created or removed, that is for the caller
    /// ([`StoreError::CreatedKeys`]). If somebody else copies chunks of the generation, such as a [`Compactor`](crate::Compactor), it waits for
    /// that to end, for up to ten minutes ([`VolumeError::Rewriting`]). How many chunks were copied.
    pub fn replace_rows(
        &self,
        generation: u64,
        table: &str,
        ranks: &[u64],
        fill: &FillRow<'_>,
    ) -> Result<usize, StoreError> {
        self.replace_rows_within(generation, table, ranks, fill, PATIENCE)
    }

    /// As [`replace_rows`](Self::replace_rows), where rows may turn out not to be had: `check` is asked now and then while rows are filled in,
    /// and once more behind the last, before the commit, which is when it may note that the commit is about to come. Its first error ends it, with all rows as they were.
    pub fn replace_rows_checked(
        &self,
        generation: u64,
        table: &str,
        ranks: &[u64],
        fill: &FillRow<'_>,
        check: &CheckRows<'_>,
    ) -> Result<usize, StoreError> {
        self.replace_checked_within(generation, table, ranks, (fill, check), PATIENCE)
    }

    /// As [`replace_rows`](Self::replace_rows), waiting for somebody else's compaction for up to `patience`.
    pub(super) fn replace_rows_within(
        &self,
        generation: u64,
        table: &str,
        ranks: &[u64],
        fill: &FillRow<'_>,
        patience: Duration,
    ) -> Result<usize, StoreError> {
        self.replace_checked_within(generation, table, ranks, (fill, &|_| Ok(())), patience)
    }

    fn replace_checked_within(
        &self,
        generation: u64,
        table: &str,
        ranks: &[u64],
        (fill, check_rows): (&FillRow<'_>, &CheckRows<'_>),
        patience: Duration,
    ) -> Result<usize, StoreError> {
        let ranked = {
            let located = self.locate_in(generation, table)?;
            check(located.table(), ranks)?;
            Ranked::of(located.table())
        };
        if ranks.is_empty() {
            return Ok(0);
        }
        self.shared.watch()?;
        let Begun { sequence, index, rewritten } =
            self.begin_replacing(generation, (table, ranked), ranks, Instant::now() + patience)?;
        let updating = self.shared.updates.updating(&self.shared.volume, generation)?;
        let copied = self.copy_with(&rewritten, index, ranks, (fill, check_rows)).and_then(|()| check_rows(true));
        if let Err(error) = copied.and_then(|()| self.shared.watch()) {
            updating.unseal(sequence);
            return Err(error);
        }
        let chunks = rewritten.chunks();
        let mut writer = lock(&updating.0);
        let mut log = writer.take_log(&self.shared.volume, generation)?;
        let replaced = log.compact(sequence, rewritten);
        writer.log = Some(log);
        replaced?;
        writer.compacted(sequence, HashMap::new());
        Ok(chunks)
    }

    /// The sequence number of the last update of a generation that [`update`](Self::update) made: whether there were others since.
    pub fn update_sequence(&self, generation: u64) -> Result<u64, StoreError> {
        let updating = self.shared.updates.updating(&self.shared.volume, generation)?;
        let sequence = lock(&updating.0).current.sequence();
        Ok(sequence)
    }

    /// As [`compact`](Self::compact), but waits for up to `patience` for somebody else who copies chunks of that generation.
    ///
    /// # Errors
    /// As of [`compact`](Self::compact), and [`VolumeError::Rewriting`] when the other has taken longer than `patience`.
    pub fn compact_within(&self, generation: u64, patience: Duration) -> Result<usize, StoreError> {
        // `None`: for ever.
        let until = Instant::now().checked_add(patience);
        loop {
            match self.compact(generation) {
                Err(error) if is_rewriting(&error) && until.is_none_or(|until| Instant::now() < until) => {
                    std::thread::sleep(PAUSE);
                }
                done => return done,
            }
        }
    }

    /// Brings all updates of a generation into chunks, ends the log there, and takes chunks for those of `ranks`, of a table with that order.
    /// If somebody else copies chunks of the generation it begins again when that has ended, until `until`. Nothing is held meanwhile.
    pub(super) fn begin_replacing(
        &self,
        generation: u64,
        table: (&str, Ranked),
        ranks: &[u64],
        until: Instant,
    ) -> Result<Begun, StoreError> {
        let mut compactions = 0;
        loop {
            let begun = match self.try_begin(generation, table, ranks) {
                Ok(None) if compactions == COMPACTIONS => Err(VolumeError::Rewriting { generation }.into()),
                Ok(None) => self.compact(generation).map(|_| {
                    compactions += 1;
                    None
                }),
                begun => begun,
            };
            match begun {
                Ok(Some(begun)) => return Ok(begun),
                Ok(None) => {}
                Err(error) if compactions < COMPACTIONS && is_rewriting(&error) && Instant::now() < until => {
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// `None`: there are updates to be brought into chunks before.
    fn try_begin(
        &self,
        generation: u64,
        (table, ranked): (&str, Ranked),
        ranks: &[u64],
    ) -> Result<Option<Begun>, StoreError> {
        // Before anything is sealed: the next update would need another chunk for nothing, each time that this is tried.
        if self.shared.volume.is_rewriting(generation) {
            return Err(VolumeError::Rewriting { generation }.into());
        }
        // Other tables may have got keys by a compaction, and this one another place.
        let located = self.locate_in(generation, table)?;
        let created = || Err(StoreError::CreatedKeys { generation });
        // Ranks may be others.
        if Ranked::of(located.table()) != ranked {
            return created();
        }
        let sequence = {
            let updating = self.shared.updates.updating(&self.shared.volume, generation)?;
            let mut writer = lock(&updating.0);
            let mut log = writer.take_log(&self.shared.volume, generation)?;
            let snapshot = writer.current.snapshot();
            let sequence = if snapshot.is_none() { log.seal() } else { 0 };
            writer.log = Some(log);
            match snapshot {
                None => sequence,
                Some(snapshot) if KeyChanges::of(&snapshot, located.index as u32).any() => return created(),
                Some(_) => return Ok(None),
            }
        };
        let placement = &*located.generation.placement;
        let lbas = ranks.iter().filter_map(|&rank| {
            let table = located.table();
            let crc = table.locate_crc(rank, placement.lba_size()).map(|(lba, _)| lba);
            Some(std::iter::once(table.locate(rank)?.0).chain(crc))
        });
        let begun = self.shared.volume.begin_rewrite(generation, lbas.flatten()).and_then(|rewritten| {
            let found = rewritten.generation();
            // Others' compaction came between: what is in chunks now is newer than where the log was ended.
            match found.tables != located.generation.tables || found.base_sequence > sequence {
                true => Err(VolumeError::Rewriting { generation }),
                false => Ok(Some(Begun { sequence, index: located.index, rewritten })),
            }
        });
        if begun.is_err() {
            self.shared.updates.updating(&self.shared.volume, generation)?.unseal(sequence);
        }
        Ok(begun?)
    }

    /// Copies every extent of the chunks that are to be replaced, with rows and checksums changed on the way.
    fn copy_with(
        &self,
        rewritten: &RewrittenChunks,
        index: usize,
        ranks: &[u64],
        (fill, check_rows): (&FillRow<'_>, &CheckRows<'_>),
    ) -> Result<(), StoreError> {
        let generation = rewritten.generation();
        let placement = &*generation.placement;
        let table = generation.tables.get(index).ok_or(VolumeError::NoSuchGeneration { id: generation.id })?;
        let stripe = placement.stripe_bytes() as usize;
        let bulk = |purpose| Bulk::new(purpose, &self.shared.members, stripe, &self.shared.driving);
        let mut from = bulk(Purpose::Read)?;
        let mut to = bulk(Purpose::Load)?;
        let all = LbaRegion { first_lba: 0, lbas: placement.lbas() };
        let most = from.extent_bytes().min(to.extent_bytes());
        let extents = placement.extents(all, most).filter(|extent| rewritten.target(extent).is_some());
        let mut row = vec![0; table.row_bytes() as usize];
        let mut rows = CopiedRows::new(&self.shared.volume, generation);
        let is_replaced = |table: usize, rank: u64| table == index && ranks.binary_search(&rank).is_ok();
        let mut take = |extent: &Extent, bytes: &[u8]| {
            let Some(target) = rewritten.target(extent) else { return Ok(()) };
            check_rows(false)?;
            for (lba, piece) in extent.pieces() {
                rows.check(lba, bytes.get(piece).unwrap_or_default(), &is_replaced).map_err(of_copy)?;
            }
            let mut change = |_: &Extent, out: &mut [u8]| {
                out.copy_from_slice(bytes);
                for (lba, piece) in extent.pieces() {
                    let Some(piece) = out.get_mut(piece) else { continue };
                    change_rows(table, placement, lba, piece, ranks, fill);
                    change_crcs(table, placement, lba, piece, ranks, fill, &mut row);
                }
                Ok(())
            };
            to.submit(target, &mut Job::Write(&mut change))
        };
        from.run(extents, Job::Read(&mut take))?;
        to.finish(&mut Job::Write(&mut |_, _| Ok(())))
    }
}

/// Refuses ranks that are not ascending, or that the table does not have.
fn check(table: &Table, ranks: &[u64]) -> Result<(), StoreError> {
    let refused = match ranks.windows(2).find(|pair| pair.first() >= pair.last()) {
        Some(pair) => pair.to_vec(),
        None => ranks.last().copied().filter(|&last| last >= table.rows).into_iter().collect(),
    };
    match refused.is_empty() {
        true => Ok(()),
        false => Err(StoreError::NoSuchRow { table: table.name.clone(), rows: table.rows, ids: refused }),
    }
}

/// Which rows of `ranks` lie in the `bytes` bytes from LBA `lba` of the generation on: the position of each in `ranks`, and where in these
/// bytes each row begins.
fn wanted<'a>(
    table: &'a Table,
    placement: &Placement,
    lba: u64,
    bytes: usize,
    ranks: &'a [u64],
) -> impl Iterator<Item = (usize, usize)> + use<'a> {
    let lba_size = u64::from(placement.lba_size());
    let region = table.rows_region;
    let end = (lba + bytes as u64 / lba_size).min(region.first_lba + region.lbas);
    // The first row that may begin at an LBA or behind it.
    let first_at = |lba: u64| {
        let packing = &table.packing;
        let group = lba / u64::from(packing.group_lbas());
        let within = lba % u64::from(packing.group_lbas());
        let step = u64::from(packing.step_lbas());
        let rows = packing.group_rows().divisor();
        group * rows + within.div_ceil(step.max(1)).min(rows)
    };
    let range = match lba < region.first_lba || lba >= end {
        true => 0..0,
        false => first_at(lba - region.first_lba)..first_at(end - region.first_lba),
    };
    positions(ranks, range).filter_map(move |position| {
        let (at, byte) = table.locate(*ranks.get(position)?)?;
        Some((position, (at.checked_sub(lba)? * lba_size) as usize + byte as usize))
    })
}

/// The positions of the ranks in `range`.
fn positions(ranks: &[u64], range: Range<u64>) -> Range<usize> {
    ranks.partition_point(|&rank| rank < range.start)..ranks.partition_point(|&rank| rank < range.end)
}

pub(super) fn change_rows(
    table: &Table,
    placement: &Placement,
    lba: u64,
    piece: &mut [u8],
    ranks: &[u64],
    fill: &FillRow<'_>,
) {
    let row_bytes = table.row_bytes() as usize;
    for (position, begin) in wanted(table, placement, lba, piece.len(), ranks) {
        if let Some(row) = piece.get_mut(begin..begin + row_bytes) {
            fill(position, row);
        }
    }
}

pub(super) fn change_crcs(
    table: &Table,
    placement: &Placement,
    lba: u64,
    piece: &mut [u8],
    ranks: &[u64],
    fill: &FillRow<'_>,
    row: &mut [u8],
) {
    let Some(region) =
        table.crc_region.filter(|region| (region.first_lba..region.first_lba + region.lbas).contains(&lba))
    else {
        return;
    };
    let first = (lba - region.first_lba) * u64::from(placement.lba_size() / 4);
    for position in positions(ranks, first..first.saturating_add(piece.len() as u64 / 4)) {
        let Some(&rank) = ranks.get(position) else { continue };
        fill(position, row);
        let begin = (rank - first) as usize * 4;
        if let Some(place) = piece.get_mut(begin..begin + 4) {
            place.copy_from_slice(&row_crc(rank, row).to_le_bytes());
        }
    }
}

/// The LBAs of few rows as extents: neighbours, and what lies close together in a stripe unit, as one.
struct Runs<'a> {
    table: &'a Table,
    placement: &'a Placement,
    ranks: &'a [u64],
    most: usize,
}

impl Iterator for Runs<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        let row_lbas = u64::from(self.table.packing.row_lbas());
        let shift = self.placement.stripe_lba_shift();
        let lba_size = u64::from(self.placement.lba_size());
        let gap = GAP / lba_size;
        let most = (self.most as u64 / lba_size).max(row_lbas);
        let (&rank, mut rest) = self.ranks.split_first()?;
        let first = self.table.locate(rank)?.0;
        let mut end = first + row_lbas;
        while let Some((&rank, later)) = rest.split_first() {
            let next = self.table.locate(rank)?.0;
            let past = next + row_lbas;
            if next > end + gap || next >> shift != first >> shift || past - first > most {
                break;
            }
            (end, rest) = (past, later);
        }
        self.ranks = rest;
        self.placement.run(first, end - first)
    }
}
