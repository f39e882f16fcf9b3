//! Power cuts while a model is loaded and switched, through the real driver, on drives with a volatile write cache. After each
//! the store is all old or all new, by content.
//!
//! A run is repeated once for every command that it sends: at that command the drive is gone, and when the power comes back,
//! its cache has lost what the fate of this repetition says. Either that drive alone has lost power, or all of them.

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use warprow_driver::ControllerOptions;
use warprow_layout::{
    Catalogue, DType, Drive, FormatOptions, Generation, GenerationSpec, RowReader, StoreAccess, TableSpec, Volume,
    format, open,
};
use warprow_soft_controller::{Fault, Namespace, PowerCut, QueueMatch, RamBacking, Rule, SoftController};
use warprow_spec::{NvmOpcode, Status};
use warprow_store::{Device, LoadOptions, OpenOptions, Store, TableLoad};
use warprow_tests::versions::{Rows, ranks};
use warprow_tests::{DrivenDrive, VirtualClock};

const UNIT: usize = 4096;

/// Tables of every kind of packing.
fn model() -> GenerationSpec {
    let mut shared = TableSpec::new("shared", 90, 25, DType::F32); // 100 B: five to an LBA
    (shared.permuted, shared.row_crc) = (true, true);
    let wide = TableSpec::new("wide", 12, 600, DType::BF16); // 1200 B: three LBAs
    GenerationSpec { stripe_unit: Some(UNIT as u32), ..GenerationSpec::new("model", vec![shared, wide]) }
}

struct Fixture {
    drives: Vec<Arc<SoftController>>,
    clock: Arc<VirtualClock>,
    via: Via,
}

/// Who loads: the layout by itself, one write after another, or the store, with many writes in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Via {
    Layout,
    Store,
}

/// What becomes of the writes in a cache.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// What NVMe allows.
    Cut(PowerCut),
    /// LBAs of superblocks are torn within, which NVMe rules out (AWUPF) and nothing here relies on: each holds new bytes
    /// before some point, and old ones from there.
    Torn(u64),
}

/// The power goes off on drive `on` when it is about to carry out its I/O command number `command`, from 1.
#[derive(Clone, Copy, Debug)]
struct Moment {
    on: usize,
    command: u64,
    /// Whether drive `on` alone loses power; otherwise all drives lose it.
    alone: bool,
    fate: Fate,
}

impl Fixture {
    /// Drives with an empty store.
    fn formatted(count: usize, lba: u32, via: Via) -> Result<Self> {
        let clock = VirtualClock::new();
        let drive = |index| {
            let namespace = Namespace::new(RamBacking::new(4 << 20)?).lba(lba).write_cache(1 << 20);
            let builder = SoftController::builder().stepped().name(format!("drive {index}")).queue_pairs(4);
            Ok(builder.max_transfer(16 << 10).seed(index as u64).permute().namespace(namespace).build()?)
        };
        let drives = (0..count).map(drive).collect::<Result<Vec<Arc<SoftController>>>>()?;
        drives.iter().for_each(|drive| clock.step_too(drive.clone()));
        let fixture = Self { drives, clock, via };
        let options = FormatOptions { chunk_size: Some(1 << 20), store: Some(uuid(1)), ..FormatOptions::default() };
        format(&fixture.driven()?, &options)?;
        Ok(fixture)
    }

    fn driven(&self) -> Result<Vec<DrivenDrive>> {
        self.drives.iter().map(|drive| self.driven_one(drive)).collect()
    }

    fn driven_one(&self, drive: &Arc<SoftController>) -> Result<DrivenDrive> {
        let second = Duration::from_secs(1);
        let options = ControllerOptions { queue_pairs: 2, admin_timeout: second, ..ControllerOptions::default() };
        Ok(DrivenDrive::open(drive.clone(), self.clock.clone(), options)?)
    }

    /// The drives that lose power at this moment.
    fn hit(&self, moment: Moment) -> impl Iterator<Item = (usize, &Arc<SoftController>)> {
        self.drives.iter().enumerate().filter(move |&(index, _)| index == moment.on || !moment.alone)
    }

    fn cut(&self, moment: Moment, cut: PowerCut) -> Result<()> {
        self.drives.iter().for_each(|drive| drive.faults().clear());
        for (index, drive) in self.hit(moment) {
            drive.power_cut(match cut {
                PowerCut::Random(seed) => PowerCut::Random(seed * 64 + index as u64),
                other => other,
            })?;
        }
        Ok(())
    }

    /// The superblocks at the start and the tail of a drive.
    fn superblocks(drive: &DrivenDrive) -> Result<[Vec<u8>; 2]> {
        let tail = drive.lba_count() - 2 * UNIT as u64 / u64::from(drive.lba_size());
        let mut both = [vec![0; 2 * UNIT], vec![0; 2 * UNIT]];
        for (lba, bytes) in [0, tail].into_iter().zip(&mut both) {
            drive.read(lba, bytes)?;
        }
        Ok(both)
    }

    /// Tears the LBAs in which the superblocks differ from those of `old`, the same drives having lost everything.
    fn tear(&self, moment: Moment, old: &Self, seed: u64) -> Result<()> {
        let mut rng = fastrand::Rng::with_seed(seed);
        for ((_, ours), (_, theirs)) in self.hit(moment).zip(old.hit(moment)) {
            let ours = self.driven_one(ours)?;
            let theirs = old.driven_one(theirs)?;
            let size = ours.lba_size() as usize;
            let tail = ours.lba_count() - 2 * UNIT as u64 / size as u64;
            let places = [0, tail].into_iter().zip(Self::superblocks(&ours)?).zip(Self::superblocks(&theirs)?);
            for ((first, new), old) in places {
                for ((lba, new), old) in
                    (first..).zip(new.chunks(size)).zip(old.chunks(size)).filter(|((_, a), b)| a != b)
                {
                    let point = [0, size, rng.usize(..128), rng.usize(..size)][rng.usize(..4)];
                    ours.write(lba, &[&new[..point], &old[point..]].concat())?;
                }
            }
            ours.flush()?;
        }
        Ok(())
    }
}

fn uuid(seed: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(seed)
}

/// Begins, loads and commits version `version`, which supersedes what there is.
fn switch(volume: &Volume, version: u64) -> Result<Arc<Generation>> {
    // The same run twice leaves the same bytes.
    let spec = GenerationSpec { commit: Some(uuid(u128::from(version))), ..model() };
    let mut transaction = volume.begin(&spec)?;
    for (table, spec) in spec.tables.iter().enumerate() {
        let source = Rows { version, table };
        let ranks = ranks(spec, version);
        let loader = transaction.loader(table, &source, ranks.as_ref())?;
        for extent in loader.extents(16 << 10) {
            let mut buf = vec![0; extent.bytes];
            loader.fill(&extent, &mut buf)?;
            volume.drive(extent.drive).context("no such drive")?.write(extent.lba, &buf)?;
        }
    }
    volume.generations().iter().for_each(|old| transaction.supersede(old.id));
    Ok(transaction.commit()?)
}

/// Compares every row, rank and checksum of a generation with what version `version` has.
fn verify(volume: &Volume, generation: &Arc<Generation>, version: u64) -> Result<()> {
    let spec = model();
    ensure!(generation.tables.len() == spec.tables.len(), "{} tables", generation.tables.len());
    for (index, spec) in spec.tables.iter().enumerate() {
        let stored = volume.read_ranks(generation, index)?;
        ensure!(stored == ranks(spec, version), "version {version}, table {}: other ranks", spec.name);
        let by_rank = stored.as_ref().map(|ranks| ranks.inverse());
        let crcs = volume.read_row_crcs(generation, index)?;
        let reader = RowReader::new(generation.clone(), index, 0..u64::MAX).context("no such table")?;
        let mut want = vec![0; generation.tables[index].row_bytes() as usize];
        let mut rows = 0;
        let mut wrong = None;
        for extent in reader.extents(16 << 10) {
            let mut bytes = vec![0; extent.bytes];
            volume.drive(extent.drive).context("no such drive")?.read(extent.lba, &mut bytes)?;
            reader.rows(&extent, &bytes, |rank, row| {
                let id = by_rank.as_ref().map_or(rank, |ids| ids.get(rank).unwrap_or(u64::MAX));
                Rows { version, table: index }.fill(id, &mut want);
                let crc = crcs.as_ref().is_none_or(|crcs| crcs[rank as usize] == warprow_layout::row_crc(rank, row));
                if row != want || !crc {
                    wrong = wrong.or(Some(id));
                }
                rows += 1;
            })?;
        }
        ensure!(wrong.is_none() && rows == spec.rows, "version {version}, table {}: row {wrong:?} differs", spec.name);
    }
    Ok(())
}

/// The one version that there is.
fn version_of(volume: &Volume) -> Result<u64> {
    match volume.generations().as_slice() {
        [only] => verify(volume, only, only.id + 1).map(|()| only.id + 1),
        all => bail!("{} generations", all.len()),
    }
}

impl Fixture {
    fn load(&mut self, version: u64) -> Result<()> {
        let (acked, went) = self.load_all(version..=version);
        ensure!(went.is_err() || acked == version);
        went
    }

    /// Switches to version 2 and to 3, the latter onto the chunks that 1 had. The last version acknowledged.
    fn switches(&mut self, acked: u64) -> (u64, Result<()>) {
        let (last, went) = self.load_all(acked + 1..=3);
        (last.max(acked), went)
    }

    fn load_all(&mut self, versions: RangeInclusive<u64>) -> (u64, Result<()>) {
        let mut acked = 0;
        let load = || {
            match self.via {
                Via::Layout => {
                    let volume = open(self.driven()?, StoreAccess::ReadWrite)?.volume;
                    for version in versions {
                        switch(&volume, version)?;
                        acked = version;
                    }
                }
                Via::Store => {
                    let store = self.store()?;
                    for version in versions {
                        load(&store, version)?;
                        acked = version;
                    }
                }
            }
            Ok(())
        };
        let went = load();
        (acked, went)
    }

    fn store(&self) -> Result<Store> {
        let devices: Vec<Device> = self.drives.iter().map(|drive| Device::new(drive.clone(), 1)).collect();
        let second = Duration::from_secs(1);
        let options = OpenOptions::default().with_clock(self.clock.clone());
        Ok(Store::open(&devices, &options.with_timeout(second).with_admin_timeout(second))?)
    }
}

/// Loads a new version through the store, as [`switch`] does through the volume.
fn load(store: &Store, version: u64) -> Result<()> {
    let spec = model();
    let sources: Vec<Rows> = (0..spec.tables.len()).map(|table| Rows { version, table }).collect();
    let all_ranks: Vec<_> = spec.tables.iter().map(|table| ranks(table, version)).collect();
    let loads: Vec<TableLoad<'_>> = spec
        .tables
        .iter()
        .zip(&sources)
        .zip(&all_ranks)
        .map(|((spec, source), ranks)| {
            let load = TableLoad::new(spec, source);
            ranks.as_ref().map_or(load, |ranks| load.with_ranks(ranks))
        })
        .collect();
    let mut options = LoadOptions::default().with_replace();
    options.stripe_unit = spec.stripe_unit;
    store.load(&spec.name, &loads, &options, &mut |_| ControlFlow::Continue(()))?;
    Ok(())
}

/// Loads version 1; then, with the power cut or not, switches to 2 and 3. `lie` says which Flush of which drive a controller
/// acknowledges and does not carry out. Returns the rig after the cut, the last version acknowledged, and whether the power
/// was cut before the end.
fn run(
    (drives, lba, via): (usize, u32, Via),
    moment: Option<Moment>,
    lie: Option<(usize, u64)>,
) -> Result<(Fixture, u64, bool)> {
    let mut fixture = Fixture::formatted(drives, lba, via)?;
    fixture.load(1)?;
    // Of two rules that match, the first decides.
    if let Some((drive, flush)) = lie {
        let lie = Fault::Status(Status::SUCCESS);
        fixture.drives[drive].faults().inject(Rule::new(lie).io(NvmOpcode::FLUSH).nth(flush));
    }
    let cut = moment.map(|moment| {
        let rule = Rule::new(Fault::Disappear).on(QueueMatch::Io).nth(moment.command);
        (moment.on, fixture.drives[moment.on].faults().inject(rule))
    });
    let (acked, went) = fixture.switches(1);
    let happened = cut.is_some_and(|(drive, rule)| fixture.drives[drive].faults().fired(rule) == 1);
    match went {
        Err(error) if !happened => Err(error.context("it failed though there was power")),
        _ => Ok((fixture, acked, happened)),
    }
}

/// What must hold after any cut, when version `acked` had been acknowledged. (Version v comes with epoch v + 1.)
fn old_or_new(fixture: &Fixture, acked: u64) -> Result<()> {
    let seen = {
        let read_only = open(fixture.driven()?, StoreAccess::ReadOnly).context("read-only")?;
        data_before_catalogue(&read_only.volume, acked)?;
        version_of(&read_only.volume).context("read-only")?
    };
    ensure!((acked..=3.min(acked + 1)).contains(&seen), "version {seen} after {acked} was acknowledged");
    for index in 0..fixture.drives.len() {
        knows_alone(fixture, index, acked).with_context(|| format!("member {index} alone"))?;
    }
    {
        let opened = open(fixture.driven()?, StoreAccess::ReadWrite)?;
        ensure!(version_of(&opened.volume)? == seen, "another version for writing than for reading");
    }
    let again = open(fixture.driven()?, StoreAccess::ReadWrite)?;
    ensure!(again.repairs.is_empty(), "still to be repaired: {:?}", again.repairs);
    // It works on.
    switch(&again.volume, seen + 1)?;
    ensure!(version_of(&again.volume)? == seen + 1);
    Ok(())
}

/// A complete catalogue on a drive describes durable data, whether its epoch came about or not. Reads the blocks by the offsets
/// in docs/layout.md.
fn data_before_catalogue(volume: &Volume, acked: u64) -> Result<()> {
    let geometry = volume.geometry();
    let next = acked + 2;
    for drive in (0..).map_while(|index| volume.drive(index)) {
        let mut bytes = Vec::new();
        for index in 0..geometry.catalogue_units {
            let mut block = [0; UNIT];
            let unit = 16 + (next & 1) * u64::from(geometry.catalogue_units) + u64::from(index);
            drive.read(unit * UNIT as u64 / u64::from(drive.lba_size()), &mut block)?;
            let field = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| block[at + i]));
            let intact = crc32c::crc32c(&block[12..]).to_le_bytes() == block[8..12];
            if !intact || field(32) != next || field(40) != u64::from(index) {
                break;
            }
            bytes.extend_from_slice(&block[96..96 + field(20) as u32 as usize]);
        }
        let Ok(catalogue) = Catalogue::decode(&bytes, geometry) else { continue };
        for generation in &catalogue.generations {
            verify(volume, generation, generation.id + 1)
                .with_context(|| format!("the catalogue of epoch {next} is complete"))?;
        }
    }
    Ok(())
}

/// Each member alone knows the acknowledged epoch from its start, and from its tail when the start is wiped. Only the start
/// may be in doubt before its tail is.
fn knows_alone(fixture: &Fixture, index: usize, acked: u64) -> Result<()> {
    let starts = |wipe: bool| -> Result<Vec<u8>> {
        let drive = fixture.driven_one(&fixture.drives[index])?;
        let mut before = vec![0; 2 * UNIT];
        drive.read(0, &mut before)?;
        if wipe {
            drive.write(0, &[0; 2 * UNIT])?;
        }
        Ok(before)
    };
    let epoch = |from: &str| -> Result<u64> {
        let alone = open(vec![fixture.driven_one(&fixture.drives[index])?], StoreAccess::Degraded)
            .with_context(|| from.to_owned())?;
        Ok(alone.volume.epoch())
    };
    let from_start = epoch("from its start")?;
    ensure!(from_start > acked, "it forgot epoch {} (its start)", acked + 1);
    let before = starts(true)?;
    let from_tail = epoch("from its tail");
    {
        let drive = fixture.driven_one(&fixture.drives[index])?;
        drive.write(0, &before)?;
        drive.flush()?;
    }
    match from_tail {
        Ok(found) => ensure!(found > acked, "it forgot epoch {} (its tail)", acked + 1),
        // The tail of the next epoch was being written: two faults at once, refused, and rightly.
        Err(_) if from_start > acked + 1 => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

fn fates(random: u64, via: Via) -> impl Iterator<Item = Fate> {
    let cuts =
        [PowerCut::LoseAll, PowerCut::KeepAll].into_iter().chain((0..random).map(PowerCut::Random)).map(Fate::Cut);
    cuts.chain((0..random).filter(move |_| via == Via::Layout).map(Fate::Torn))
}

/// What a cut left that it must not leave.
#[derive(Debug)]
struct Violation(String);

/// Every command of drive `on` from number `first` as the moment, with every fate, and the moment after the last. The first
/// violation, or how many cuts were checked.
fn enumerate(
    fixture: (usize, u32, Via),
    (on, first, alone): (usize, u64, bool),
    random: u64,
    lie: Option<(usize, u64)>,
) -> Result<Result<usize, Violation>> {
    let mut checked = 0;
    for command in first.. {
        let mut happened = false;
        for fate in fates(random, fixture.2) {
            let moment = Moment { on, command, alone, fate };
            let run = || run(fixture, Some(moment), lie).with_context(|| format!("{moment:?}"));
            let (fixture, acked, cut) = run()?;
            happened |= cut;
            match moment.fate {
                Fate::Cut(cut) => fixture.cut(moment, cut)?,
                Fate::Torn(seed) => {
                    let (old, ..) = run()?;
                    old.cut(moment, PowerCut::LoseAll)?;
                    fixture.cut(moment, PowerCut::KeepAll)?;
                    fixture.tear(moment, &old, seed)?;
                }
            }
            if let Err(error) = old_or_new(&fixture, acked) {
                return Ok(Err(Violation(format!("{moment:?}, {acked} acknowledged: {error:#}"))));
            }
            checked += 1;
        }
        if !happened {
            break;
        }
    }
    Ok(Ok(checked))
}

/// On every drive; none may be violated.
fn none_violated(fixture: (usize, u32, Via), alone: bool, random: u64) -> Result<usize> {
    let mut checked = 0;
    for on in 0..fixture.0 {
        let found = enumerate(fixture, (on, 1, alone), random, None)?;
        checked += found.map_err(|Violation(what)| anyhow::anyhow!(what))?;
    }
    Ok(checked)
}

/// The number of `drive`'s I/O command that is its Flush number `flush`; `None` if there are fewer.
fn command_of_flush(drives: usize, drive: usize, flush: u64) -> Result<Option<u64>> {
    let mut fixture = Fixture::formatted(drives, 512, Via::Layout)?;
    fixture.load(1)?;
    let faults = fixture.drives[drive].faults();
    let last = faults.inject(Rule::new(Fault::Disappear).io(NvmOpcode::FLUSH).nth(flush));
    let counted = faults.inject(Rule::new(Fault::Delay(Duration::ZERO)).on(QueueMatch::Io).always());
    let went = fixture.switches(1);
    let faults = fixture.drives[drive].faults();
    ensure!(went.1.is_err() == (faults.fired(last) == 1), "{went:?}");
    Ok((faults.fired(last) == 1).then(|| faults.fired(counted) + 1))
}

#[test]
fn on_one_drive() -> Result<()> {
    for lba in [512, 4096] {
        let checked = none_violated((1, lba, Via::Layout), false, 8)?;
        ensure!(checked > 400, "{checked} cuts");
    }
    Ok(())
}

#[test]
fn on_three_drives_that_lose_power_together() -> Result<()> {
    let checked = none_violated((3, 512, Via::Layout), false, 2)?;
    ensure!(checked > 300, "{checked} cuts");
    Ok(())
}

#[test]
fn on_one_of_three_drives() -> Result<()> {
    let checked = none_violated((3, 512, Via::Layout), true, 2)?;
    ensure!(checked > 300, "{checked} cuts");
    Ok(())
}

/// The commits of two runs have different names, so that nothing can be torn by comparing them.
#[test]
fn under_the_store() -> Result<()> {
    for (drives, alone) in [(1, false), (3, false), (3, true)] {
        let checked = none_violated((drives, 512, Via::Store), alone, 6)?;
        ensure!(checked > 100, "{checked} cuts");
    }
    Ok(())
}

/// A Flush that is acknowledged and not carried out is as good as one that is not in the code: for each, some cut must show
/// it.
fn every_flush_is_needed(drives: usize) -> Result<()> {
    for drive in 0..drives {
        // The first makes durable what was found when the store was opened: here everything was.
        let mut flushes = 1;
        while let Some(command) = command_of_flush(drives, drive, flushes + 1)? {
            flushes += 1;
            let found = enumerate((drives, 512, Via::Layout), (drive, command + 1, false), 40, Some((drive, flushes)))?;
            ensure!(found.is_err(), "without flush {flushes} of drive {drive} nothing goes wrong");
        }
        ensure!(flushes == 9, "one flush, and two commits of four, not {flushes}");
    }
    Ok(())
}

#[test]
fn every_flush_is_needed_on_one_drive() -> Result<()> {
    every_flush_is_needed(1)
}

#[test]
fn every_flush_is_needed_on_three_drives() -> Result<()> {
    every_flush_is_needed(3)
}
