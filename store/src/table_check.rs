//! Checking a table against its checksums, part by part.

use std::cell::Cell;
use std::ops::{ControlFlow, Range};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use warprow_driver::DriverError;
use warprow_keys::KeyIndex;
use warprow_layout::{Drive, DriveError, Extent, LbaRegion, Ranks, RowReader, Table, VolumeError, row_crc};

use crate::StoreError;
use crate::drive_access::lock;
use crate::parallel_read::{ParallelRead, Tick};
use crate::store::Shared;
use crate::table_version::TableVersion;
use crate::verified::{DamageKind, DamagedUnit, LISTED, VerifyReport};

/// A table that is being checked. Holds, and so pins, its generation: nothing that is read can be given away meanwhile.
pub(crate) struct TableCheck<'a> {
    store: &'a Shared,
    located: &'a TableVersion,
    /// Reads that may yet be cut in halves to find the LBAs that cannot be read.
    salvaging: Cell<u32>,
}

/// Reads of one table that are cut in halves, at most: some seconds.
const SALVAGING: u32 = 20_000;

/// What a part of a table's rows came to.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub rows: u64,
    pub bytes: u64,
    pub damaged: Vec<u64>,
    pub bad: Vec<DamagedUnit>,
    pub transient: u64,
}

impl Part {
    pub(crate) fn add_to(self, verified: &mut VerifyReport) {
        verified.rows += self.rows;
        verified.bytes += self.bytes;
        verified.damaged += self.damaged.len() as u64;
        verified.transient += self.transient;
        verified.first_damaged.extend(self.damaged.into_iter().take(100 - verified.first_damaged.len().min(100)));
        verified.bad.extend(self.bad.into_iter().take(LISTED - verified.bad.len().min(LISTED)));
    }
}

/// An array of a table, as far as it could be read.
struct Array {
    bytes: Vec<u8>,
    unreadable: Vec<DamagedUnit>,
    /// Bytes of it that could not be read.
    gaps: Vec<Range<u64>>,
}

type Keys = Option<(KeyIndex, Vec<u64>)>;

impl<'a> TableCheck<'a> {
    pub(crate) fn new(store: &'a Shared, located: &'a TableVersion) -> Self {
        Self { store, located, salvaging: Cell::new(SALVAGING) }
    }

    fn table(&self) -> &Table {
        self.located.table()
    }

    /// Rows that are checked at once: with their checksums in memory, and of `bytes` at most.
    pub(crate) fn window(&self, bytes: u64) -> u64 {
        const CHECKSUMS: u64 = 64 << 20;
        (bytes / u64::from(self.table().row_bytes()).max(1)).clamp(1, CHECKSUMS / 4)
    }

    /// Checks the permutation and the keys, and hands over what is whole of them.
    pub(crate) fn arrays(
        &self,
        sweep: &mut ParallelRead,
        tick: Tick<'_>,
    ) -> Result<(VerifyReport, Option<Ranks>, Keys), StoreError> {
        let table = self.table();
        let mut verified = VerifyReport { checked: table.crc_region.is_some(), ..VerifyReport::default() };
        let mut damage = |what: DamageKind, array: &Array, error: Option<VolumeError>| {
            let mut bad: Vec<DamagedUnit> =
                array.unreadable.iter().map(|unit| DamagedUnit { what, ..unit.clone() }).collect();
            let said = error.map(|error| error.to_string());
            // Where it is known, that says it.
            if let (Some(said), true) = (&said, bad.is_empty()) {
                bad.push(DamagedUnit::new(what, said.clone()).of(self.located));
            }
            verified.bad.append(&mut bad);
            said
        };
        let mut damaged_ranks = None;
        let mut damaged_keys = None;
        let mut ranks = None;
        let mut keys = None;
        if let Some(stored) = table.ranks {
            let array = self.array(sweep, stored.region, 0..table.rank_bytes(), tick)?;
            match table.decode_ranks(&array.bytes) {
                Ok(decoded) => ranks = decoded,
                Err(error) => damaged_ranks = damage(DamageKind::Ranks, &array, Some(error)),
            }
        }
        if let Some(stored) = table.keys {
            let mut array = self.array(sweep, stored.index, 0..stored.spec.index_bytes, tick)?;
            let index = match table.decode_key_index(std::mem::take(&mut array.bytes)) {
                Ok(index) => index,
                Err(error) => {
                    damaged_keys = damage(DamageKind::Keys, &array, Some(error));
                    None
                }
            };
            if let Some(region) = stored.keys {
                let array = self.array(sweep, region, 0..table.rows.saturating_mul(8), tick)?;
                match table.decode_keys(&array.bytes) {
                    Ok(decoded) => keys = index.zip(decoded),
                    Err(error) => damaged_keys = damage(DamageKind::Keys, &array, Some(error)).or(damaged_keys),
                }
            }
        }
        (verified.damaged_ranks, verified.damaged_keys) = (damaged_ranks, damaged_keys);
        Ok((verified, ranks, keys))
    }

    /// Reads bytes of an array that begins with `region`.
    fn array(
        &self,
        sweep: &mut ParallelRead,
        region: LbaRegion,
        bytes: Range<u64>,
        tick: Tick<'_>,
    ) -> Result<Array, StoreError> {
        let placement = &self.located.generation.placement;
        let lba_size = u64::from(placement.lba_size());
        let first = bytes.start / lba_size;
        let end = bytes.end.div_ceil(lba_size).min(region.lbas);
        let wanted = LbaRegion { first_lba: region.first_lba + first, lbas: end.saturating_sub(first) };
        let array = Mutex::new(vec![0; (bytes.end - bytes.start) as usize]);
        let unread = Mutex::new(Vec::new());
        // Where a piece of an extent lies among the bytes that are wanted: from where in it, to where in them, how many.
        let place = |lba: u64, length: usize| {
            let begin = lba.checked_sub(region.first_lba)? * lba_size;
            let from = begin.max(bytes.start);
            let to = (begin + length as u64).min(bytes.end);
            let count = to.checked_sub(from).filter(|&count| count > 0)?;
            Some(((from - begin) as usize, (from - bytes.start) as usize, count as usize))
        };
        let take = |extent: &Extent, read: &[u8]| {
            let mut array = lock(&array);
            for (lba, piece) in extent.pieces() {
                let Some((from, to, count)) = place(lba, piece.len()) else { continue };
                let source = read.get(piece.start + from..piece.start + from + count);
                if let (Some(out), Some(source)) = (array.get_mut(to..to + count), source) {
                    out.copy_from_slice(source);
                }
            }
            Ok(())
        };
        let failed = |extent: &Extent, _: DriverError| {
            lock(&unread).push(*extent);
            Ok(())
        };
        sweep.run(placement.extents(wanted, sweep.extent_bytes()), &take, &failed, tick)?;
        let mut read =
            Array { bytes: array.into_inner().unwrap_or_default(), unreadable: Vec::new(), gaps: Vec::new() };
        for extent in unread.into_inner().unwrap_or_default() {
            let Salvaged { bytes: salvaged, bad } = self.salvage(&extent)?;
            for (lba, piece) in extent.pieces() {
                let Some((from, to, count)) = place(lba, piece.len()) else { continue };
                let begin = piece.start + from;
                if let (Some(out), Some(source)) =
                    (read.bytes.get_mut(to..to + count), salvaged.get(begin..begin + count))
                {
                    out.copy_from_slice(source);
                }
                for unread in bad.iter().map(|unread| &unread.bytes) {
                    let start = unread.start.max(begin);
                    let end = unread.end.min(begin + count);
                    if start < end {
                        let at = bytes.start + (to + start - begin) as u64;
                        read.gaps.push(at..at + (end - start) as u64);
                    }
                }
            }
            read.unreadable.extend(bad.into_iter().map(|unread| unread.unit(self, DamageKind::Checksums)));
        }
        Ok(read)
    }

    /// Reads what can be read of an extent that could not be read whole.
    fn salvage(&self, extent: &Extent) -> Result<Salvaged, StoreError> {
        let member = self.store.members.get(usize::from(extent.drive)).and_then(Option::as_ref);
        let member = member.ok_or(VolumeError::NoSuchMember { index: extent.drive })?;
        let lba_size = member.lba_size() as usize;
        let mut salvaged = Salvaged { bytes: vec![0; extent.bytes], bad: Vec::new() };
        let most = (member.max_transfer() / lba_size).max(1) * lba_size;
        let mut left: Vec<Range<usize>> =
            (0..extent.bytes).step_by(most).map(|begin| begin..extent.bytes.min(begin + most)).rev().collect();
        while let Some(range) = left.pop() {
            let lba = extent.lba + (range.start / lba_size) as u64;
            let Some(out) = salvaged.bytes.get_mut(range.clone()) else { continue };
            match member.read(lba, out) {
                Ok(()) => {}
                Err(error) if !is_answer(&error) => return Err(error.into()),
                Err(error) if range.len() <= lba_size => {
                    let detail = chain(&error);
                    let drive = error.drive;
                    match salvaged.bad.last_mut().filter(|last| last.bytes.end == range.start) {
                        Some(last) => last.bytes.end = range.end,
                        None => salvaged.bad.push(Unread { drive, lba, bytes: range, lba_size, detail }),
                    }
                }
                // Where so much cannot be read, it is not told apart any more.
                Err(error) if self.salvaging.get() == 0 => {
                    let detail = format!("in part or whole: {}", chain(&error));
                    salvaged.bad.push(Unread { drive: error.drive, lba, bytes: range, lba_size, detail });
                }
                Err(_) => {
                    self.salvaging.set(self.salvaging.get() - 1);
                    let middle = range.start + (range.len() / lba_size).div_ceil(2) * lba_size;
                    left.extend([middle..range.end, range.start..middle]);
                }
            }
        }
        Ok(salvaged)
    }

    /// Reads the rows of `ranks`, and compares them with their checksums if there are any. `tick` is told how many were read.
    pub(crate) fn rows(
        &self,
        sweep: &mut ParallelRead,
        ranks: Range<u64>,
        tick: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Part, StoreError> {
        let table = self.table();
        let row_bytes = u64::from(table.row_bytes());
        let mut part = Part::default();
        let mut crcs = None;
        if let Some(region) = table.crc_region {
            crcs = Some(self.array(sweep, region, ranks.start * 4..ranks.end * 4, &mut || tick(0))?);
        }
        let expected = |rank: u64| {
            let crcs = crcs.as_ref()?;
            let at = (rank - ranks.start) as usize * 4;
            let crc = crcs.bytes.get(at..at + 4)?.first_chunk()?;
            let unknown = || crcs.gaps.iter().any(|gap| gap.start < rank * 4 + 4 && rank * 4 < gap.end);
            Some(u32::from_le_bytes(*crc)).filter(|_| crcs.gaps.is_empty() || !unknown())
        };
        let Some(reader) = RowReader::new(self.located.generation.clone(), self.located.index, ranks.clone()) else {
            return Ok(part);
        };
        let rows = AtomicU64::new(0);
        let suspects = Mutex::new(Vec::new());
        let unread = Mutex::new(Vec::new());
        let take = |extent: &Extent, bytes: &[u8]| {
            let mut count = 0;
            let mut wrong = Vec::new();
            reader.rows(extent, bytes, |rank, row| {
                count += 1;
                if expected(rank).is_some_and(|crc| crc != row_crc(rank, row)) {
                    wrong.push(rank);
                }
            })?;
            rows.fetch_add(count, Ordering::Relaxed);
            if !wrong.is_empty() {
                lock(&suspects).append(&mut wrong);
            }
            Ok(())
        };
        let failed = |extent: &Extent, _: DriverError| {
            lock(&unread).push(*extent);
            Ok(())
        };
        let extents = reader.extents(sweep.extent_bytes());
        sweep.run(extents, &take, &failed, &mut || tick(rows.load(Ordering::Relaxed)))?;
        part.rows = rows.into_inner();

        let mut unread = unread.into_inner().unwrap_or_default();
        unread.sort_by_key(|extent| (extent.drive, extent.lba));
        let mut suspects = suspects.into_inner().unwrap_or_default();
        for extent in unread {
            let Salvaged { bytes, bad } = self.salvage(&extent)?;
            let mut units: Vec<DamagedUnit> = bad.iter().map(|unread| unread.unit(self, DamageKind::Rows)).collect();
            let lba_size = self.located.generation.placement.lba_size();
            reader.rows(&extent, &bytes, |rank, row| {
                part.rows += 1;
                let address = self.located.generation.row(self.located.index, rank);
                let inside = |unread: &Unread| {
                    let end = unread.lba + (unread.bytes.len() / lba_size as usize) as u64;
                    address.is_some_and(|at| at.lba < end && unread.lba < at.lba + u64::from(at.lbas))
                };
                match bad.iter().position(inside) {
                    Some(unit) => {
                        part.damaged.push(rank);
                        if let Some(unit) = units.get_mut(unit) {
                            unit.ranks.push(rank);
                        }
                    }
                    None if expected(rank).is_some_and(|crc| crc != row_crc(rank, row)) => suspects.push(rank),
                    None => {}
                }
            })?;
            part.bad.append(&mut units);
        }
        part.bytes = part.rows * row_bytes;
        suspects.sort_unstable();
        let mut overridden = None;
        for rank in suspects {
            if !self.is_wrong_again(rank) {
                part.transient += 1;
                continue;
            }
            // A compaction that was cut off may have brought the row into its chunk, and not yet its checksum: the log has both.
            let overridden = overridden.get_or_insert_with(|| {
                self.store.updates.overridden(&self.store.volume, self.located).unwrap_or_default()
            });
            if !overridden.contains(&rank) {
                self.note(rank, &mut part);
            }
        }
        part.damaged.sort_unstable();
        if let Some(crcs) = crcs {
            part.bad.extend(crcs.unreadable);
        }
        Ok(part)
    }

    /// Reads a row and its checksum once more.
    fn is_wrong_again(&self, rank: u64) -> bool {
        let generation = &self.located.generation;
        let table = self.table();
        let mut row = vec![0; table.row_bytes() as usize];
        let read = self.store.volume.read_row(generation, self.located.index, rank, &mut row);
        let expected = || {
            let (index, byte) = table.locate_crc(rank, generation.placement.lba_size())?;
            let (drive, lba) = generation.placement.locate(index)?;
            let member = self.store.members.get(usize::from(drive))?.as_ref()?;
            let mut bytes = vec![0; member.lba_size() as usize];
            member.read(lba, &mut bytes).ok()?;
            bytes.get(byte as usize..)?.first_chunk().copied().map(u32::from_le_bytes)
        };
        // What cannot be read again stays as it was found.
        read.is_err() || expected().is_none_or(|crc| crc != row_crc(rank, &row))
    }

    /// Notes a row whose checksum does not match, with those of the same LBA.
    fn note(&self, rank: u64, part: &mut Part) {
        part.damaged.push(rank);
        let Some(at) = self.located.generation.row(self.located.index, rank) else { return };
        let drive = self.store.members.get(usize::from(at.drive)).and_then(Option::as_ref);
        let drive = drive.map(|member| Drive::name(&**member).to_owned());
        let same = |unit: &&mut DamagedUnit| !unit.unreadable && unit.lba == Some(at.lba) && unit.drive == drive;
        match part.bad.last_mut().filter(same) {
            Some(last) => last.ranks.push(rank),
            None => {
                let bad = DamagedUnit::new(DamageKind::Rows, "the row, or its checksum, is not what was written");
                let lba = Some(at.lba);
                let lbas = u64::from(at.lbas);
                let ranks = vec![rank];
                part.bad.push(DamagedUnit { drive, lba, lbas, ranks, ..bad }.of(self.located));
            }
        }
    }
}

/// What could be read of an extent: the rest is zeros.
struct Salvaged {
    bytes: Vec<u8>,
    bad: Vec<Unread>,
}

/// LBAs that a drive cannot read.
struct Unread {
    drive: String,
    lba: u64,
    /// Which bytes of the extent.
    bytes: Range<usize>,
    lba_size: usize,
    detail: String,
}

impl Unread {
    fn unit(&self, checking: &TableCheck<'_>, what: DamageKind) -> DamagedUnit {
        let lbas = (self.bytes.len() / self.lba_size.max(1)) as u64;
        let bad = DamagedUnit::new(what, self.detail.clone()).of(checking.located);
        DamagedUnit { drive: Some(self.drive.clone()), lba: Some(self.lba), lbas, unreadable: true, ..bad }
    }
}

/// An error and what caused it.
pub(crate) fn chain(error: &DriveError) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// Whether the drive answered: it works, and cannot do this.
pub(crate) fn is_answer(error: &DriveError) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(DriverError::Command { .. }) = error.downcast_ref() {
            return true;
        }
        next = error.source();
    }
    false
}
