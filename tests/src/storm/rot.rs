//! Bit rot: one bit of a drive's file flips, everything is read, something is written, everything is read again. Then the drives are as
//! they were before.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use serde_json::Value;

use super::fixture::Fate;
use super::options::Part;
use super::work::{Drive, Storm};

/// Bytes of a metadata block, and of a unit of a log.
const UNIT: u64 = 4096;

/// A bit that is flipped.
#[derive(Clone, Debug)]
pub(crate) struct Rot {
    /// The drive, by its place.
    drive: usize,
    name: String,
    byte: u64,
    bit: u8,
    /// What lies there: as `inspect` calls it.
    pub(crate) what: String,
    /// Whether something is there that has to be found whatever is read: a superblock, or a catalogue in use.
    must_be_found: bool,
    /// `verify` has found something.
    pub(crate) found: bool,
}

impl fmt::Display for Rot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = if self.found { "found" } else { "not found" };
        let name = &self.name;
        let what = &self.what;
        write!(f, "bit {} of byte {} ({what}) of {name} flipped, which `verify` has {found}", self.bit, self.byte)
    }
}

/// What lies on a part of a drive, its first byte and its bytes.
struct Run {
    what: String,
    from: u64,
    bytes: u64,
}

/// What `inspect` says of a store.
struct Layout {
    epoch: u64,
    catalogue_units: u64,
    /// Of each drive, by its name, for members have an order of their own.
    runs: Vec<(String, Vec<Run>)>,
}

impl Layout {
    fn new(inspected: &Value) -> Option<Self> {
        let store = &inspected["store"];
        let lba = store["lba_size"].as_u64()?;
        let runs = inspected["map"].as_array()?.iter().map(|drive| {
            let runs = drive["runs"].as_array()?.iter().map(|run| {
                let bytes = |name: &str| run[name].as_u64().map(|lbas| lbas * lba);
                Some(Run { what: run["what"].as_str()?.to_owned(), from: bytes("lba")?, bytes: bytes("lbas")? })
            });
            Some((drive["drive"].as_str()?.to_owned(), runs.collect::<Option<Vec<_>>>()?))
        });
        Some(Self {
            epoch: store["epoch"].as_u64()?,
            catalogue_units: store["catalogue_bytes"].as_u64()?.div_ceil(4000),
            runs: runs.collect::<Option<_>>()?,
        })
    }
}

/// Copies a file, without the zeros.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut source = File::open(from)?;
    let target = File::create(to)?;
    target.set_len(source.metadata()?.len())?;
    let mut block = vec![0; 1 << 16];
    let mut at = 0;
    loop {
        let read = source.read(&mut block)?;
        if read == 0 {
            return Ok(());
        }
        if block[..read].iter().any(|&byte| byte != 0) {
            target.write_all_at(&block[..read], at)?;
        }
        at += read as u64;
    }
}

fn unit_of(file: &File, at: u64) -> Result<Vec<u8>> {
    let mut unit = vec![0; UNIT as usize];
    file.read_exact_at(&mut unit, at)?;
    Ok(unit)
}

/// Flips a bit of a file.
fn flip(path: &Path, byte: u64, bit: u8) -> Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut old = [0];
    file.read_exact_at(&mut old, byte)?;
    Ok(file.write_all_at(&[old[0] ^ (1 << bit)], byte)?)
}

impl Storm<'_> {
    pub(super) fn rot_round(&mut self, rng: &mut Rng) -> Result<()> {
        let closed = self.close_logs(rng)?;
        let before = self.run(&["verify"], Fate::Runs)?;
        if !before.is_done() {
            // That this is no false alarm is seen elsewhere.
            return self.verify();
        }
        let is_finished = before.json["unfinished_commit"].as_array().is_some_and(Vec::is_empty);
        let Some(mut rot) = self.choose(closed, rng)? else { return Ok(()) };
        rot.must_be_found &= is_finished;
        self.save("saved")?;
        let state = self.state.clone();
        flip(&self.file_of(&self.drives[rot.drive]), rot.byte, rot.bit)?;
        *self.rots.entry(rot.what.clone()).or_default() += 1;
        self.fixture.note(format!("  {rot}"));
        self.rot = Some(rot);
        let survived = self.live_with_it(rng);
        survived.with_context(|| self.rot.as_ref().map_or_else(String::new, |rot| format!("with {rot}")))?;
        self.rot = None;
        self.state = state;
        self.restore("saved")
    }

    /// Where a killed command has left a log open, rot in its last batch looks like its end. One that ends well closes it. Whether
    /// none is open then.
    fn close_logs(&mut self, rng: &mut Rng) -> Result<bool> {
        let is_open =
            |storm: &Self, id: u64| storm.state.generations.get(&id).is_some_and(|generation| generation.left_open);
        for (name, id) in self.state.found() {
            if is_open(self, id) {
                self.update_of(&name, 1, false, rng)?;
            }
        }
        // Those that stand by.
        for id in self.state.generations.keys().copied().collect::<Vec<_>>() {
            if is_open(self, id) {
                self.compact_of(Some(id), rng)?;
            }
        }
        Ok(self.state.generations.keys().all(|&id| !is_open(self, id)))
    }

    fn live_with_it(&mut self, rng: &mut Rng) -> Result<()> {
        self.look_for_it()?;
        let rot = self.rot.clone().context("no bit is flipped")?;
        ensure!(rot.found || !rot.must_be_found, "`verify` does not find it");
        self.read_all(rng)?;
        match rng.u32(..6) {
            0 => {
                let ended = self.run(&["scrub"], Fate::Runs)?;
                ensure!(ended.is_done() != rot.found, "`scrub` ended with {:?}: {}", ended.exit, ended.message());
            }
            1 => {
                let ended = self.run(&["repair", "--yes"], Fate::Runs)?;
                ensure!(matches!(ended.exit, Some(0 | 6)), "`repair` ended with {:?}: {}", ended.exit, ended.message());
                self.look_for_it()?;
                let still = self.rot.as_ref().is_some_and(|rot| rot.found);
                if rot.what == "superblocks" || (rot.what == "catalogue" && self.drives.len() > 1) {
                    ensure!(ended.is_done() && !still, "it was not mended: {:?}: {}", ended.exit, ended.message());
                }
            }
            2 => {
                let (_, did) = self.write("compact", &["compact"], &[8], rng)?;
                self.fixture.note(format!("  compacted: {did:?}"));
            }
            3 | 4 => {
                let count = 1 + rng.usize(..100);
                self.update(count, rng)?;
            }
            _ => return Ok(()),
        }
        self.look_for_it()?;
        self.read_all(rng)
    }

    /// Whether `verify` finds something now.
    fn look_for_it(&mut self) -> Result<()> {
        let ended = self.run(&["verify"], Fate::Runs)?;
        ensure!(matches!(ended.exit, Some(0 | 5..=7)), "`verify` ended with {:?}: {}", ended.exit, ended.message());
        if let Some(rot) = &mut self.rot {
            rot.found = !ended.is_done();
        }
        Ok(())
    }

    /// Each table is what it should be, or an error says why not; where nothing was found, it is.
    fn read_all(&mut self, rng: &mut Rng) -> Result<()> {
        for table in self.state.found().into_keys().collect::<Vec<_>>() {
            self.export(&table)?;
            self.look_up(&table, rng)?;
        }
        Ok(())
    }

    /// A bit at a place where something lies, mostly.
    fn choose(&mut self, logs_are_closed: bool, rng: &mut Rng) -> Result<Option<Rot>> {
        let inspected = self.run(&["inspect"], Fate::Runs)?;
        ensure!(inspected.is_done(), "`inspect` ended with {:?}: {}", inspected.exit, inspected.message());
        let layout = Layout::new(&inspected.json).context("what `inspect` prints is not understood")?;
        let wanted = ["superblocks", "catalogue", "tables", "tables", "tables", "log", "log", "log", "free", "unused"];
        let what = wanted[rng.usize(..wanted.len())];
        if what == "log" && !(logs_are_closed && self.does(Part::RotInLogs)) {
            return Ok(None);
        }
        self.place(&layout, what, rng)
    }

    fn place(&self, layout: &Layout, what: &str, rng: &mut Rng) -> Result<Option<Rot>> {
        let mut runs: Vec<(usize, u64, u64)> = Vec::new();
        for (name, all) in &layout.runs {
            let is_it = |drive: &Drive| self.address(drive) == *name;
            let drive =
                self.drives.iter().position(is_it).with_context(|| format!("{name} is no drive of the store"))?;
            runs.extend(all.iter().filter(|run| run.what == what).map(|run| (drive, run.from, run.bytes)));
        }
        let Some(&(drive, from, bytes)) = rng.choice(&runs) else { return Ok(None) };
        let file = File::open(self.file_of(&self.drives[drive]))?;
        let mut must_be_found = false;
        let unit = match what {
            "superblocks" => {
                let unit = from + rng.u64(..2) * UNIT;
                // A slot that was never written may be anything.
                must_be_found = unit_of(&file, unit)?.iter().any(|&byte| byte != 0);
                unit
            }
            "catalogue" => {
                let in_use = from + layout.epoch % 2 * (bytes / 2);
                must_be_found = rng.bool();
                match must_be_found {
                    true => in_use + rng.u64(..layout.catalogue_units.max(1)) * UNIT,
                    false => from + rng.u64(..bytes / UNIT) * UNIT,
                }
            }
            _ => {
                let units = (bytes / UNIT).max(1);
                let mut unit = from + rng.u64(..units) * UNIT;
                let mut block = unit_of(&file, unit)?;
                // Where nothing was written, the first that was.
                if rng.u32(..8) != 0 {
                    let start = unit;
                    while block.iter().all(|&byte| byte == 0) {
                        unit = if unit + UNIT < from + units * UNIT { unit + UNIT } else { from };
                        if unit == start {
                            break;
                        }
                        block = unit_of(&file, unit)?;
                    }
                }
                unit
            }
        };
        let block = unit_of(&file, unit)?;
        let mut byte = rng.usize(..UNIT as usize);
        if rng.u32(..4) != 0 {
            byte = (byte..block.len()).chain(0..byte).find(|&at| block[at] != 0).unwrap_or(byte);
        }
        let name = self.drives[drive].name.clone();
        let byte = unit + byte as u64;
        let bit = rng.u8(..8);
        Ok(Some(Rot { drive, name, byte, bit, what: what.to_owned(), must_be_found, found: false }))
    }

    /// Flips a bit of a table and tells the model nothing.
    pub(super) fn flip_unnoticed(&mut self, rng: &mut Rng) -> Result<bool> {
        let inspected = self.run(&["inspect"], Fate::Runs)?;
        let Some(layout) = Layout::new(&inspected.json) else { return Ok(false) };
        let Some(rot) = self.place(&layout, "tables", rng)? else { return Ok(false) };
        flip(&self.file_of(&self.drives[rot.drive]), rot.byte, rot.bit)?;
        Ok(true)
    }

    fn each_file(&self) -> Vec<String> {
        let files = self.drives.iter().flat_map(|drive| [drive.name.clone(), format!("{}.nvme.toml", drive.name)]);
        // A drive whose making was killed may lack the file beside it.
        files.filter(|name| self.fixture.path(name).exists()).collect()
    }

    pub(super) fn save(&self, folder: &str) -> Result<()> {
        let to = self.fixture.path(folder);
        fs::create_dir_all(&to)?;
        self.each_file().iter().try_for_each(|name| copy(&self.fixture.path(name), &to.join(name)))
    }

    pub(super) fn restore(&self, folder: &str) -> Result<()> {
        let from = self.fixture.path(folder);
        self.each_file().iter().try_for_each(|name| Ok(fs::rename(from.join(name), self.fixture.path(name))?))
    }
}
