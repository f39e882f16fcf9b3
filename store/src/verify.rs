//! Reading tables back and comparing them with their checksums.

use std::ops::ControlFlow;

use warprow_keys::KeyIndex;
use warprow_layout::{Generation, Ranks, RepairTarget, VolumeError};

use crate::parallel_read::ParallelRead;
use crate::table_check::{TableCheck, chain, is_answer};
use crate::table_version::TableVersion;
use crate::verified::{DamageKind, DamagedUnit, MetadataReport, VerifyReport};
use crate::{Store, StoreError};

impl Store {
    /// Reads all rows of a table, its permutation and its keys, at the drives' bandwidth, and checks them against their checksums
    /// as far as there are any. Damage is no error, but in the result; so is what a drive cannot read.
    /// `progress` is told the number of rows read, and may stop it ([`StoreError::Interrupted`]).
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// let verified = store.verify("user", &mut |_rows| ControlFlow::Continue(()))?;
    /// assert!(verified.is_sound() && verified.rows == 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn verify(
        &self,
        table: &str,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<VerifyReport, StoreError> {
        self.verifier().located(&self.locate(table)?, progress)
    }

    /// As [`verify`](Self::verify), of a table of generation `generation`, which may be on standby.
    pub fn verify_in(
        &self,
        generation: u64,
        table: &str,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<VerifyReport, StoreError> {
        self.verifier().verify_in(generation, table, progress)
    }

    /// Verifies several tables, one after another, with the same queues.
    pub fn verifier(&self) -> Verifier<'_> {
        Verifier { store: self, sweep: None }
    }

    /// Checks every copy of the superblocks and of the catalogue, on the drives that are there, the logs of updated rows, and the
    /// lists of rows in DRAM: what of them is damaged, and what a commit that was cut off did not come to. Beside commits and updates.
    pub fn verify_metadata(&self) -> Result<MetadataReport, StoreError> {
        self.shared.watch()?;
        let volume = &self.shared.volume;
        let mut verified = MetadataReport::default();
        match volume.damaged_metadata() {
            Ok(mends) => {
                for it in mends {
                    let what = match it.what {
                        RepairTarget::Catalogue => DamageKind::Catalogue,
                        _ => DamageKind::Superblock,
                    };
                    let detail = format!("of epoch {}: {}", it.epoch, it.found);
                    let unit = DamagedUnit::new(what, detail);
                    let unit = DamagedUnit { drive: Some(it.drive), lba: Some(it.lba), lbas: it.lbas, ..unit };
                    if it.unfinished { &mut verified.unfinished } else { &mut verified.bad }.push(unit);
                }
            }
            Err(error @ VolumeError::Metadata { .. }) => {
                verified.bad.push(DamagedUnit::new(DamageKind::Superblock, error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
        for generation in volume.generations() {
            verified.bad.extend(self.damaged_log(&generation)?);
        }
        verified.bad.extend(self.damaged_lists());
        Ok(verified)
    }

    /// What is wrong with the log of a generation, which may grow meanwhile.
    fn damaged_log(&self, generation: &Generation) -> Result<Option<DamagedUnit>, StoreError> {
        let mut before = None;
        let mut looks = 0;
        loop {
            looks += 1;
            match self.shared.volume.read_log(generation, |_, _| {}) {
                Ok(_) => return Ok(None),
                Err(VolumeError::LogDamaged { drive, unit, what, .. }) => {
                    // A unit that was being written when it was read is whole when later ones are.
                    if before.replace((drive.clone(), unit)) == Some((drive.clone(), unit)) || looks > 64 {
                        let detail = format!("unit {unit} of its last chunk there: {what}");
                        let bad = DamagedUnit::new(DamageKind::Log, detail);
                        return Ok(Some(DamagedUnit { drive: Some(drive), generation: Some(generation.id), ..bad }));
                    }
                }
                Err(VolumeError::Drive(error)) if is_answer(&error) => {
                    let bad = DamagedUnit::new(DamageKind::Log, chain(&error));
                    let drive = Some(error.drive);
                    return Ok(Some(DamagedUnit { drive, generation: Some(generation.id), unreadable: true, ..bad }));
                }
                Err(VolumeError::MemberMissing { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Verifies tables of a store, one after another. To make queues on every drive takes longer than to read a small table, so they
/// are kept from one to the next.
pub struct Verifier<'a> {
    store: &'a Store,
    /// For extents of so many bytes at least.
    sweep: Option<(usize, ParallelRead)>,
}

impl std::fmt::Debug for Verifier<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier").field("store", self.store).finish_non_exhaustive()
    }
}

impl Verifier<'_> {
    /// See [`Store::verify_in`].
    pub fn verify_in(
        &mut self,
        generation: u64,
        table: &str,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<VerifyReport, StoreError> {
        let located = self.store.locate_in(generation, table)?;
        self.located(&located, progress)
    }

    fn located(
        &mut self,
        located: &TableVersion,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<VerifyReport, StoreError> {
        let shared = &self.store.shared;
        shared.watch()?;
        let stripe = located.generation.placement.stripe_bytes() as usize;
        // After a failure it is good for nothing more, so it comes back only from a success.
        let (least, mut sweep) = match self.sweep.take().filter(|(least, _)| *least == stripe) {
            Some(kept) => kept,
            None => (stripe, ParallelRead::new(&shared.members, stripe, None, None, &shared.driving)?),
        };
        let verified = verify(&TableCheck::new(shared, located), located, &mut sweep, progress)?;
        self.sweep = Some((least, sweep));
        Ok(verified)
    }
}

fn verify(
    checking: &TableCheck<'_>,
    located: &TableVersion,
    sweep: &mut ParallelRead,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<VerifyReport, StoreError> {
    let (mut verified, ranks, keys) = checking.arrays(sweep, &mut || progress(0))?;
    if let (Some((index, keys)), None) = (keys, &verified.damaged_ranks) {
        match keys_lead_home(located, ranks.as_ref(), &index, &keys) {
            Ok(count) => verified.checked_keys = count,
            Err(what) => verified.damaged_keys = Some(what),
        }
    }
    let rows = located.table().rows;
    let mut done = 0;
    while done < rows {
        let window = done..rows.min(done.saturating_add(checking.window(u64::MAX)));
        done = window.end;
        let before = verified.rows;
        let part = checking.rows(sweep, window, &mut |rows| progress(before + rows))?;
        part.add_to(&mut verified);
    }
    verified.first_damaged.sort_unstable();
    verified.bad.sort_by(|a, b| (&a.drive, a.lba).cmp(&(&b.drive, b.lba)));
    Ok(verified)
}

/// Whether every stored key leads to the rank that it has: how many there are, or what is wrong.
fn keys_lead_home(
    located: &TableVersion,
    ranks: Option<&Ranks>,
    index: &KeyIndex,
    keys: &[u64],
) -> Result<u64, String> {
    let mut slots = [0; 1024];
    for (first, keys) in (0u64..).step_by(slots.len()).zip(keys.chunks(slots.len())) {
        index.positions(keys, &mut slots);
        for ((rank, &key), &slot) in (first..).zip(keys).zip(&slots) {
            let found = ranks.map_or(Some(slot), |ranks| ranks.get(slot));
            if found != Some(rank) {
                let name = &located.table().name;
                let key = index.kind().number(key);
                return Err(format!("table {name:?}: key {key} of rank {rank} does not lead there"));
            }
        }
    }
    Ok(keys.len() as u64)
}
