//! The random work, and what is checked after each step of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use serde_json::Value;
use warprow_store::DType;

use super::files::{Tensors, read_keys, read_rows, write_ids};
use super::fixture::{Ended, Fate, Fixture};
use super::model::{Listing, Shape, State, Table, Version};
use super::options::{Lie, Options, Part};
use super::outcome::Outcome;
use super::rot::Rot;

/// A drive of the store, which is a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Drive {
    pub(super) name: String,
    pub(super) bytes: u64,
}

pub(super) struct Storm<'a> {
    pub(super) options: &'a Options,
    pub(super) fixture: Fixture,
    pub(super) drives: Vec<Drive>,
    lba: u32,
    pub(super) state: State,
    versions: Version,
    next_drive: u32,
    /// Writes that runs of each command began of late, more or less.
    typical: BTreeMap<&'static str, u64>,
    /// The bit that is flipped, if one is.
    pub(super) rot: Option<Rot>,
    /// Writers that are killed more often than others.
    endangered: u32,
    lied: bool,
    pub(super) rows_read: u64,
    pub(super) rots: BTreeMap<String, u64>,
}

/// How a command that writes ended, as far as its outcome is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Did {
    All,
    Nothing,
    /// The process was killed, or a drive failed.
    Unknown,
}

const MODELS: [&str; 3] = ["ada", "bob", "cyd"];
const TYPES: [DType; 7] = [DType::F32, DType::F16, DType::BF16, DType::I8, DType::U8, DType::F8E4M3, DType::F8E5M2];

/// Runs the storm of one seed.
pub fn run(seed: u64, options: &Options) -> Outcome {
    let mut outcome = Outcome::default();
    let fixture = match Fixture::new(&options.warprow, &options.folder, options.limit, options.aloud) {
        Ok(fixture) => fixture,
        Err(error) => return Outcome { violation: Some(format!("no storm: {error:#}")), ..outcome },
    };
    let mut storm = Storm {
        options,
        fixture,
        drives: Vec::new(),
        lba: 512,
        state: State::default(),
        versions: 0,
        next_drive: 0,
        typical: BTreeMap::new(),
        rot: None,
        endangered: 0,
        lied: false,
        rows_read: 0,
        rots: BTreeMap::new(),
    };
    let run = catch_unwind(AssertUnwindSafe(|| storm.blow(seed, &mut outcome)));
    outcome.violation = match run {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("{error:#}")),
        Err(_) => Some("the storm itself panicked".to_owned()),
    };
    if let Some(violation) = &outcome.violation {
        storm.fixture.note(format!("VIOLATION: {violation}"));
    }
    outcome.rows_read = storm.rows_read;
    outcome.rots = std::mem::take(&mut storm.rots);
    outcome.counts = std::mem::take(&mut storm.fixture.counts);
    outcome.log = storm.fixture.log().to_vec();
    outcome
}

/// A number that is as often small as large.
pub(super) fn skewed(rng: &mut Rng, most: u64) -> u64 {
    let bits = rng.u32(0..=most.max(1).ilog2());
    rng.u64(1..=(2 << bits)).min(most.max(1))
}

pub(super) fn words(given: &[&str]) -> Vec<String> {
    given.iter().map(|&word| word.to_owned()).collect()
}

impl Storm<'_> {
    pub(super) fn does(&self, part: Part) -> bool {
        !self.options.without.contains(&part)
    }

    fn blow(&mut self, seed: u64, outcome: &mut Outcome) -> Result<()> {
        // Each step draws from numbers of its own, so that it is much the same when others are left out.
        let rng_of = |step: u64| Rng::with_seed(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ step);
        self.format(&mut rng_of(u64::MAX)).context("making the store")?;
        for &step in &self.options.steps {
            outcome.at = step;
            outcome.steps += 1;
            let mut rng = rng_of(step);
            self.step(step, &mut rng).with_context(|| format!("step {step}"))?;
        }
        outcome.at += 1;
        self.end().context("at the end")
    }

    fn step(&mut self, step: u64, rng: &mut Rng) -> Result<()> {
        let choice = if self.state.generations.is_empty() { 0 } else { rng.u32(..100) };
        let name = match choice {
            0..12 => "load",
            12..18 => "load --replace",
            18..24 => "load --beside",
            24..30 => "switch",
            30..36 => "drop",
            36..62 => "update",
            62..68 => "many small updates",
            68..75 => "compact",
            75..79 => "add-drive",
            79..82 => "remove-drive",
            82..84 => "scrub",
            84..86 => "repair",
            86..89 => "what is refused",
            _ => "rot",
        };
        self.fixture.note(format!("step {step}: {name}"));
        match name {
            "load" | "load --replace" | "load --beside" => self.load(name, rng)?,
            "switch" => self.switch(rng)?,
            "drop" => self.drop_one(rng)?,
            "update" => {
                let count = match rng.u32(..3) {
                    0 => 1,
                    _ => skewed(rng, 3000),
                };
                self.update(count as usize, rng)?;
            }
            "many small updates" => {
                for _ in 0..rng.u32(5..25) {
                    self.update(1, rng)?;
                }
            }
            "compact" => self.compact(rng)?,
            "add-drive" if self.does(Part::Drives) => self.add_drive(rng)?,
            "remove-drive" if self.does(Part::Drives) => self.remove_drive(rng)?,
            "scrub" => self.scrub()?,
            "repair" => self.repair()?,
            "what is refused" => self.refused(rng)?,
            "rot" if self.does(Part::Rot) => self.rot_round(rng)?,
            _ => {}
        }
        if self.options.lie.is_some() && !self.lied {
            self.lie(rng)?;
        }
        self.check(rng)
    }

    // What is checked.

    /// After each step: what lies there, some rows, and now and then everything.
    fn check(&mut self, rng: &mut Rng) -> Result<()> {
        let listed = self.listed()?;
        ensure!(listed == self.state.listing(), "generations are {listed:?}, and should be {:?}", self.state.listing());
        let tables: Vec<String> = self.state.found().into_keys().collect();
        if !tables.is_empty() {
            let table = rng.choice(&tables).cloned().unwrap_or_default();
            self.look_up(&table, rng)?;
            let table = rng.choice(&tables).cloned().unwrap_or_default();
            if rng.u32(..3) == 0 {
                self.export(&table)?;
            }
        }
        if rng.u32(..3) == 0 {
            self.verify()?;
        }
        Ok(())
    }

    /// At the end, compaction and drop succeed, everything is whole, and every row is read.
    fn end(&mut self) -> Result<()> {
        self.fixture.note("the end");
        for id in self.standing_by() {
            self.run_to_its_end(&["drop", &id.to_string()])?;
            self.state.generations.remove(&id);
        }
        self.compact_all()?;
        self.verify()?;
        for table in self.state.found().into_keys().collect::<Vec<_>>() {
            self.export(&table)?;
        }
        Ok(())
    }

    fn standing_by(&self) -> Vec<u64> {
        self.state.generations.iter().filter(|(_, it)| it.shown == 0).map(|(&id, _)| id).collect()
    }

    /// A command that nothing befalls, and that has to succeed.
    fn run_to_its_end(&mut self, args: &[&str]) -> Result<Ended> {
        let ended = self.run(args, Fate::Runs)?;
        let exit = ended.exit.unwrap_or(-1);
        ensure!(ended.is_done(), "`{}` ended with exit code {exit}: {}", args[0], ended.message());
        Ok(ended)
    }

    pub(super) fn run(&mut self, args: &[&str], fate: Fate) -> Result<Ended> {
        let args = self.with_drives(args);
        self.fixture.run(&args, fate)
    }

    fn with_drives(&self, args: &[&str]) -> Vec<String> {
        let mut all = words(args);
        for drive in &self.drives {
            all.extend(["-d".to_owned(), self.address(drive)]);
        }
        all
    }

    pub(super) fn address(&self, drive: &Drive) -> String {
        format!("emulated:{}", self.fixture.path(&drive.name).display())
    }

    /// The generations that the store lists.
    fn listed(&mut self) -> Result<Listing> {
        let listed = self.run_to_its_end(&["generations"])?;
        listing(&listed.json)
    }

    /// Looks up some rows, and keys that are not there.
    pub(super) fn look_up(&mut self, table: &str, rng: &mut Rng) -> Result<()> {
        let Some(it) = self.state.table(table) else { return Ok(()) };
        let shape = it.shape.clone();
        let mut keys = it.possible_keys();
        rng.shuffle(&mut keys);
        keys.truncate(60);
        if shape.keyed {
            keys.extend((0..4).map(|_| rng.i64(..)));
        } else {
            keys.push(-1);
        }
        if rng.bool() {
            keys.extend_from_within(..keys.len().min(5));
        }
        write_ids(&self.fixture.path("ids.i64"), &keys)?;
        let mut args = vec!["lookup", "--table", table, "--ids-file", "ids.i64", "--out", "rows.safetensors"];
        let _ = fs::remove_file(self.fixture.path("rows.safetensors"));
        if shape.keyed {
            args.push("--check-keys");
        }
        let ended = self.run(&args, Fate::Runs)?;
        if self.is_named_error(&ended) {
            return Ok(());
        }
        ensure!(ended.is_done(), "`lookup` of {table} ended with {:?}: {}", ended.exit, ended.message());
        let rows = read_rows(&self.fixture.path("rows.safetensors"), shape.dtype)?;
        ensure!(rows.len() == keys.len() * shape.row_bytes(), "{} bytes of {} rows", rows.len(), keys.len());
        for (&key, row) in keys.iter().zip(rows.chunks(shape.row_bytes())) {
            self.compare(table, key, Some(row).filter(|row| row.iter().any(|&byte| byte != 0)))?;
        }
        Ok(())
    }

    /// Reads all of a table.
    pub(super) fn export(&mut self, table: &str) -> Result<()> {
        let Some(it) = self.state.table(table) else { return Ok(()) };
        let shape = it.shape.clone();
        for old in ["out.safetensors", "out.npy"] {
            let _ = fs::remove_file(self.fixture.path(old));
        }
        let mut args = vec!["export", "--table", table, "--out", "out.safetensors"];
        if shape.keyed {
            args.extend(["--keys-out", "out.npy"]);
        }
        let ended = self.run(&args, Fate::Runs)?;
        if self.is_named_error(&ended) {
            ensure!(!self.fixture.path("out.safetensors").exists(), "an export that failed left a file");
            return Ok(());
        }
        ensure!(ended.is_done(), "`export` of {table} ended with {:?}: {}", ended.exit, ended.message());
        let rows = read_rows(&self.fixture.path("out.safetensors"), shape.dtype)?;
        let count = rows.len() / shape.row_bytes();
        let keys = match shape.keyed {
            true => read_keys(&self.fixture.path("out.npy"))?,
            false => (0..count as i64).collect(),
        };
        ensure!(keys.len() == count, "{count} rows and {} keys of {table}", keys.len());
        for (&key, row) in keys.iter().zip(rows.chunks(shape.row_bytes())) {
            self.compare(table, key, Some(row))?;
        }
        let there: BTreeSet<i64> = keys.iter().copied().collect();
        ensure!(there.len() == keys.len(), "a key of {table} was exported twice");
        let missing = self.state.table(table).map(|table| table.possible_keys()).unwrap_or_default();
        for key in missing.into_iter().filter(|key| !there.contains(key)) {
            self.compare(table, key, None)?;
        }
        Ok(())
    }

    fn compare(&mut self, table: &str, key: i64, row: Option<&[u8]>) -> Result<()> {
        self.rows_read += 1;
        let Some(it) = self.state.table(table) else { return Ok(()) };
        let Err(wrong) = it.read(key, row) else { return Ok(()) };
        // Without checksums, nothing tells a flipped bit of a row.
        let untold = !it.shape.checked && row.is_some_and(|row| it.is_one_bit_off(key, row));
        match &self.rot {
            Some(rot) if rot.what == "tables" && untold => Ok(()),
            _ => Err(wrong),
        }
    }

    /// Whether a command said, of a store in which a bit is flipped, that something is wrong with it.
    pub(super) fn is_named_error(&self, ended: &Ended) -> bool {
        self.rot.as_ref().is_some_and(|rot| rot.found) && matches!(ended.exit, Some(5..=7))
    }

    pub(super) fn verify(&mut self) -> Result<()> {
        let ended = self.run(&["verify"], Fate::Runs)?;
        if !self.does(Part::SoundAfterKills) && ended.exit == Some(6) {
            let bad = ended.json["bad"].as_array().map_or(&[][..], Vec::as_slice);
            if !bad.is_empty() && bad.iter().all(|value| value["what"] == "superblock") {
                // The known false alarm. It goes with the next commit.
                return Ok(());
            }
        }
        ensure!(ended.is_done(), "`verify` ended with {:?}, and no bit was flipped: {}", ended.exit, ended.message());
        ensure!(ended.json["bad"].as_array().is_some_and(Vec::is_empty), "`verify` found {}", ended.json["bad"]);
        Ok(())
    }

    fn scrub(&mut self) -> Result<()> {
        let ended = self.run(&["scrub"], Fate::Runs)?;
        let untrue = !self.does(Part::SoundAfterKills) && ended.exit == Some(6);
        ensure!(ended.is_done() || untrue, "`scrub` ended with {:?}: {}", ended.exit, ended.message());
        ensure!(ended.json["complete"] == true, "`scrub` is not complete: {}", ended.json);
        Ok(())
    }

    fn repair(&mut self) -> Result<()> {
        self.run_to_its_end(&["repair"])?;
        let mended = self.run_to_its_end(&["repair", "--yes"])?;
        self.fixture.note(format!("  mended {}", mended.json["mended"]));
        self.verify()?;
        let again = self.run_to_its_end(&["repair"])?;
        let due = again.json["mends"].as_array().is_some_and(|mends| !mends.is_empty());
        ensure!(!due, "after a repair there is more to repair: {}", again.json["mends"]);
        Ok(())
    }

    // What writes.

    /// Runs a command that writes; something may befall it. Other exit codes than 0 and `refusals` are violations, unless a bit is
    /// flipped.
    pub(super) fn write(
        &mut self,
        command: &'static str,
        args: &[&str],
        refusals: &[i32],
        rng: &mut Rng,
    ) -> Result<(Ended, Did)> {
        let typical = self.typical.get(command).copied().unwrap_or(24);
        let at = 1 + rng.u64(..typical + typical / 4 + 4);
        let chance = if self.endangered > 0 { rng.u32(..46) } else { rng.u32(..100) };
        self.endangered = self.endangered.saturating_sub(1);
        let fate = match chance {
            _ if self.rot.is_some() => Fate::Runs,
            0..30 if self.does(Part::Kills) && (self.options.timed || !self.fixture.traces) => {
                Fate::KilledAfter(Duration::from_micros(skewed(rng, 60_000)))
            }
            0..30 if self.does(Part::Kills) => Fate::KilledBefore(at),
            30..38 if self.does(Part::Contention) && self.fixture.traces => {
                let other: &[&str] = match rng.u32(..4) {
                    0 => &["compact"],
                    1 => &["verify"],
                    2 => &["generations"],
                    _ => &["repair", "--yes"],
                };
                Fate::Beside(1 + rng.u64(..4), self.with_drives(other))
            }
            // That would keep the file of a new drive from being made.
            38..46 if self.does(Part::FailedWrites) && command != "add-drive" => {
                let blocks = self.drives[rng.usize(..self.drives.len())].bytes / 512;
                // Superblocks lie at the end; what the command prints lies in files too.
                let from = if rng.u32(..3) == 0 { blocks - 64 } else { 256 };
                Fate::FailsBehind(rng.u64(from..=blocks))
            }
            _ => Fate::Runs,
        };
        let fails = matches!(fate, Fate::FailsBehind(_));
        let ended = self.run(args, fate)?;
        if let Some(writes) = ended.writes {
            let new = match ended.exit {
                None => (typical + typical / 4 + 2).min(20_000),
                Some(_) => typical.midpoint(writes),
            };
            self.typical.insert(command, new);
        }
        let did = match ended.exit {
            Some(0) => Did::All,
            None => Did::Unknown,
            // A write that the limit cut off is a lack of room as a refusal is, and what came before it may be there.
            Some(7 | 8) if fails => Did::Unknown,
            Some(exit) if refusals.contains(&exit) => Did::Nothing,
            Some(_) if self.is_named_error(&ended) => Did::Unknown,
            Some(exit) => bail!("`{command}` ended with exit code {exit}: {}", ended.message()),
        };
        if did != Did::All {
            self.fixture.note(format!("  {did:?}"));
        }
        Ok((ended, did))
    }

    /// What a commit did of which it is not known whether it came about: all or nothing, by what the store lists.
    pub(super) fn settle(&mut self, did: Did, change: impl Fn(&mut State, u64)) -> Result<()> {
        let listed = match did {
            Did::Nothing => return Ok(()),
            Did::All => self.run(&["generations"], Fate::Runs)?,
            Did::Unknown => {
                let listed = self.run(&["generations"], Fate::Runs)?;
                if self.is_named_error(&listed) {
                    return Ok(());
                }
                ensure!(
                    listed.is_done(),
                    "after a kill, `generations` ended with {:?}: {}",
                    listed.exit,
                    listed.message()
                );
                if listing(&listed.json)? == self.state.listing() {
                    return Ok(());
                }
                listed
            }
        };
        if self.is_named_error(&listed) {
            return Ok(());
        }
        let listed = listing(&listed.json)?;
        let new = listed.keys().copied().find(|id| !self.state.generations.contains_key(id));
        let mut state = self.state.clone();
        change(&mut state, new.unwrap_or(u64::MAX));
        let before = self.state.listing();
        let after = state.listing();
        ensure!(listed == after, "generations are {listed:?}; before they were {before:?}, then should be {after:?}");
        self.state = state;
        Ok(())
    }

    fn format(&mut self, rng: &mut Rng) -> Result<()> {
        self.lba = if rng.bool() { 512 } else { 4096 };
        for _ in 0..[1, 1, 2, 3][rng.usize(..4)] {
            let drive = self.new_drive(rng);
            self.drives.push(drive);
        }
        let mut args = words(&["format", "--yes"]);
        for drive in &self.drives {
            args.extend(["-d".to_owned(), format!("{},size={},lba={}", self.address(drive), drive.bytes, self.lba)]);
        }
        let ended = self.fixture.run(&args, Fate::Runs)?;
        ensure!(ended.is_done(), "`format` ended with {:?}: {}", ended.exit, ended.message());
        Ok(())
    }

    fn new_drive(&mut self, rng: &mut Rng) -> Drive {
        self.next_drive += 1;
        Drive { name: format!("{}.drive", self.next_drive), bytes: rng.u64(24..=48) << 20 }
    }

    fn version(&mut self) -> Version {
        self.versions += 1;
        self.versions
    }

    /// A table of random shape.
    fn table(&mut self, name: String, checked: bool, rng: &mut Rng) -> Table {
        let dtype = TYPES[rng.usize(..TYPES.len())];
        let bytes = [8, 16, 32, 52, 64, 100, 128, 160, 512, 1024, 4096][rng.usize(..11)];
        let keyed = rng.bool();
        let rows = skewed(rng, 3000).min((6 << 20) / u64::from(bytes));
        let shape = Shape { name, dtype, dim: bytes / dtype.size(), keyed, checked };
        let key = |at: u64, rng: &mut Rng| if keyed { rng.i64(..) } else { at as i64 };
        let version = self.version();
        Table::new(shape, (0..rows).map(|at| (key(at, rng), version)).collect())
    }

    fn load(&mut self, how: &str, rng: &mut Rng) -> Result<()> {
        let model = MODELS[rng.usize(..MODELS.len())];
        let known = self.state.generations.values().any(|generation| generation.model == model);
        let how = match (how, known) {
            (_, false) => "load",
            ("load", true) => "load --replace",
            (how, true) => how,
        };
        let checked = rng.u32(..3) != 0;
        // Of a model that there is, all tables or one.
        let names: Vec<String> = match rng.u32(..4) {
            0 if known && how == "load --replace" => vec![format!("{model}0")],
            _ => (0..2).map(|at| format!("{model}{at}")).collect(),
        };
        let tables: Vec<Table> = names.iter().map(|name| self.table(name.clone(), checked, rng)).collect();
        let mut file = Tensors::new();
        let mut args = words(&["load", "new.safetensors", "--model", model]);
        for table in &tables {
            let shape = &table.shape;
            let rows = table.first_rows();
            let (keys, rows): (Vec<i64>, Vec<Vec<u8>>) = rows.into_iter().unzip();
            file.rows(&shape.name, shape.dtype, shape.dim, &rows.concat());
            args.extend(["--tensor".into(), shape.name.clone()]);
            if shape.keyed {
                let name = format!("{}.keys", shape.name);
                file.keys(&name, &keys);
                args.extend(["--keys".into(), format!("{}={name}", shape.name)]);
            }
            if rng.u32(..3) == 0 {
                let counts: Vec<u8> = (0..keys.len()).flat_map(|_| rng.u32(..1000).to_le_bytes()).collect();
                let name = format!("{}.u32", shape.name);
                fs::write(self.fixture.path(&name), counts)?;
                args.extend(["--hotness".into(), format!("{}={name}", shape.name)]);
            }
        }
        file.write(&self.fixture.path("new.safetensors"))?;
        if checked {
            args.push("--row-crc".into());
        }
        args.extend(how.split_once(' ').map(|(_, option)| option.to_owned()));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (_, did) = self.write("load", &args, &[8], rng)?;
        self.settle(did, |state, id| state.load(id, model, tables.clone(), how == "load --beside"))
    }

    fn switch(&mut self, rng: &mut Rng) -> Result<()> {
        let Some(&id) = rng.choice(&self.standing_by()) else { return Ok(()) };
        let mut after = self.state.clone();
        after.switch(id);
        let before = self.state.found();
        let after = after.found();
        let vanish = before.keys().any(|table| !after.contains_key(table));
        let id_text = id.to_string();
        let mut args = vec!["switch", &id_text];
        let allow = vanish && rng.bool();
        if allow {
            args.push("--allow-vanishing");
        }
        let refusals: &[i32] = if vanish && !allow { &[4] } else { &[] };
        let (ended, did) = self.write("switch", &args, refusals, rng)?;
        ensure!(!(vanish && !allow && ended.is_done()), "`switch` made tables vanish");
        self.settle(did, |state, _| state.switch(id))
    }

    fn drop_one(&mut self, rng: &mut Rng) -> Result<()> {
        let Some(&id) = rng.choice(&self.standing_by()) else { return Ok(()) };
        let refusals: &[i32] = if self.does(Part::Room) { &[] } else { &[4, 8] };
        let (_, did) = self.write("drop", &["drop", &id.to_string()], refusals, rng)?;
        self.settle(did, |state, _| drop(state.generations.remove(&id)))
    }

    pub(super) fn update(&mut self, count: usize, rng: &mut Rng) -> Result<()> {
        let names: Vec<String> = self.state.found().into_keys().collect();
        let Some(name) = rng.choice(&names).cloned() else { return Ok(()) };
        let creates = rng.u32(..3) == 0;
        self.update_of(&name, count, creates, rng)
    }

    pub(super) fn update_of(&mut self, name: &str, count: usize, creates: bool, rng: &mut Rng) -> Result<()> {
        let Some(table) = self.state.table(name) else { return Ok(()) };
        let shape = table.shape.clone();
        let keys: Vec<i64> = table.keys().collect();
        let creates = creates && shape.keyed;
        let few = rng.bool();
        let mut records = Vec::new();
        for _ in 0..count.min((4 << 20) / shape.row_bytes()) {
            let key = match rng.u32(..4) {
                0 if creates => rng.i64(..),
                // Some rows time and again.
                _ if few => keys[rng.usize(..keys.len().min(7))],
                _ => keys[rng.usize(..keys.len())],
            };
            records.push((key, self.version()));
        }
        let mut file = Tensors::new();
        let rows: Vec<u8> = records.iter().flat_map(|&(key, version)| shape.row(key, version)).collect();
        file.rows(name, shape.dtype, shape.dim, &rows);
        let changed: Vec<i64> = records.iter().map(|&(key, _)| key).collect();
        let mut args = words(&["update", name, "--rows", "delta.safetensors", "--tensor", name]);
        match rng.u32(..3) {
            0 if changed.len() < 20 => {
                let list: Vec<String> = changed.iter().map(i64::to_string).collect();
                args.extend(["--ids".into(), list.join(",")]);
            }
            1 => {
                write_ids(&self.fixture.path("delta.i64"), &changed)?;
                args.extend(words(&["--ids-file", "delta.i64"]));
            }
            _ => {
                file.keys("whose", &changed);
                args.extend(words(&["--keys", "whose"]));
            }
        }
        file.write(&self.fixture.path("delta.safetensors"))?;
        if creates {
            args.push("--create".into());
        }
        // At most some hundred batches.
        let least = (records.len() as u64).div_ceil(200);
        let batch = skewed(rng, 4096).max(least);
        args.extend(["--batch".into(), batch.to_string()]);
        args.extend(words(&["--compact", ["full", "auto", "never"][rng.usize(..3)]]));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (ended, did) = self.write("update", &args, &[8], rng)?;
        let all = records.len();
        let (least, most) = match did {
            Did::All => (all, all),
            // What it acknowledged, and of the batch that it was at some or all.
            Did::Nothing | Did::Unknown if ended.exit.is_some() => {
                let next = ended.json["error"]["next"].as_u64().unwrap_or(0) as usize;
                (next, next + batch as usize)
            }
            _ => (0, all),
        };
        if did == Did::All {
            ensure!(ended.json["rows"] == all, "{} of {all} rows were updated", ended.json["rows"]);
        }
        let id = self.state.found().get(name).copied();
        if let Some(generation) = id.and_then(|id| self.state.generations.get_mut(&id)) {
            generation.left_open = did != Did::All;
        }
        if let Some(table) = self.state.table(name) {
            table.update(records, least, most);
        }
        Ok(())
    }

    fn compact(&mut self, rng: &mut Rng) -> Result<()> {
        let ids: Vec<u64> = self.state.generations.keys().copied().collect();
        let one = rng.bool().then(|| rng.choice(&ids).copied()).flatten();
        self.compact_of(one, rng)
    }

    /// One generation, or all.
    pub(super) fn compact_of(&mut self, one: Option<u64>, rng: &mut Rng) -> Result<()> {
        let text = one.map(|id| id.to_string());
        let args: Vec<&str> = std::iter::once("compact").chain(text.as_deref()).collect();
        let refusals = self.compaction_may_end_with(one);
        let (_, did) = self.write("compact", &args, refusals, rng)?;
        self.compacted(did, one);
        Ok(())
    }

    /// Keys that were created want room for their generation twice. Else there is room.
    fn compaction_may_end_with(&self, one: Option<u64>) -> &'static [i32] {
        let mut meant = self.state.generations.iter().filter(|(id, _)| one.is_none_or(|one| one == **id));
        let grows = meant.any(|(_, it)| it.tables.values().any(|table| table.created));
        if grows || !self.does(Part::Room) { &[8] } else { &[] }
    }

    fn compacted(&mut self, did: Did, one: Option<u64>) {
        for (_, generation) in self.state.generations.iter_mut().filter(|(id, _)| one.is_none_or(|one| one == **id)) {
            match did {
                Did::All => {
                    generation.tables.values_mut().for_each(|table| table.created = false);
                    generation.left_open = false;
                }
                Did::Nothing => {}
                Did::Unknown => generation.left_open = true,
            }
        }
    }

    fn compact_all(&mut self) -> Result<()> {
        let refusals = self.compaction_may_end_with(None);
        let ended = self.run(&["compact"], Fate::Runs)?;
        let exit = ended.exit.unwrap_or(-1);
        ensure!(ended.is_done() || refusals.contains(&exit), "`compact` ended with {exit}: {}", ended.message());
        Ok(())
    }

    fn add_drive(&mut self, rng: &mut Rng) -> Result<()> {
        if self.drives.len() >= 4 {
            return Ok(());
        }
        let new = self.new_drive(rng);
        let address = format!("{},size={},lba={}", self.address(&new), new.bytes, self.lba);
        let (_, did) = self.write("add-drive", &["add-drive", &address], &[8], rng)?;
        if did == Did::Unknown && rng.bool() {
            // The same command goes on.
            let ended = self.run(&["add-drive", &address], Fate::Runs)?;
            ensure!(ended.is_done(), "`add-drive` did not go on: {:?}: {}", ended.exit, ended.message());
            self.drives.push(new);
            return Ok(());
        }
        let with = [&self.drives[..], &[new]].concat();
        // The first commits that the new drive has a part in.
        self.endangered = 2;
        self.members(did, with)?;
        if rng.bool() { self.update(1, rng) } else { Ok(()) }
    }

    fn remove_drive(&mut self, rng: &mut Rng) -> Result<()> {
        if self.drives.len() < 2 {
            return Ok(());
        }
        let old = self.drives[rng.usize(..self.drives.len())].clone();
        let address = self.address(&old);
        let (_, did) = self.write("remove-drive", &["remove-drive", &address], &[8], rng)?;
        let without: Vec<Drive> = self.drives.iter().filter(|&drive| *drive != old).cloned().collect();
        self.members(did, without)
    }

    /// Which drives the store has, after one was to come or go.
    fn members(&mut self, did: Did, then: Vec<Drive>) -> Result<()> {
        let before = self.drives.clone();
        match did {
            Did::Nothing => return Ok(()),
            Did::All => self.drives = then,
            Did::Unknown => {
                let first = self.run(&["generations"], Fate::Runs)?;
                if !first.is_done() {
                    self.drives = then;
                    let second = self.run(&["generations"], Fate::Runs)?;
                    ensure!(
                        second.is_done(),
                        "after a kill, the store opens neither with the drives before, {:?}: {}, nor with those after, {:?}: {}",
                        first.exit,
                        first.message(),
                        second.exit,
                        second.message()
                    );
                }
            }
        }
        for gone in before.iter().filter(|drive| !self.drives.contains(drive)) {
            let path = self.fixture.path(&gone.name);
            let _ = fs::remove_file(path.with_extension("drive.nvme.toml"));
            fs::remove_file(path)?;
        }
        Ok(())
    }

    /// What makes no sense is refused, with the exit code that is documented, and changes nothing.
    fn refused(&mut self, rng: &mut Rng) -> Result<()> {
        let found = self.state.found();
        let tables: Vec<(&String, &u64)> = found.iter().collect();
        let Some(&(name, id)) = rng.choice(&tables) else { return Ok(()) };
        let name = name.clone();
        let id = id.to_string();
        let Some(table) = self.state.table(&name) else { return Ok(()) };
        let shape = table.shape.clone();
        let absent = table.possible_keys().last().map_or(0, |key| key.wrapping_add(1));
        let mut file = Tensors::new();
        file.rows(&name, shape.dtype, shape.dim, &vec![1; shape.row_bytes()]);
        file.write(&self.fixture.path("one.safetensors"))?;
        let absent = absent.to_string();
        let (args, exit): (Vec<&str>, i32) = match rng.u32(..6) {
            0 => (vec!["drop", &id], 4),
            1 => (vec!["load", "one.safetensors"], 4),
            2 => (vec!["update", &name, "--rows", "one.safetensors", "--ids", &absent], 3),
            3 => (vec!["lookup", "--table", "nobody", "--ids", "1"], 3),
            4 => (vec!["switch", "123456"], 3),
            _ => (vec!["update", &name, "--rows", "one.safetensors"], 2),
        };
        let ended = self.run(&args, Fate::Runs)?;
        ensure!(ended.exit == Some(exit), "`{}` ended with {:?}, not {exit}: {}", args[0], ended.exit, ended.message());
        Ok(())
    }

    /// Does once what the storm must notice.
    fn lie(&mut self, rng: &mut Rng) -> Result<()> {
        let Some((name, _)) = self.state.found().into_iter().next() else { return Ok(()) };
        let Some(table) = self.state.table(&name) else { return Ok(()) };
        match self.options.lie {
            Some(Lie::LostUpdate) => {
                let record = (table.keys().next().unwrap_or(0), 1 << 40);
                table.update(vec![record], 1, 1);
                self.lied = true;
            }
            Some(Lie::WrongRow) => self.lied = self.flip_unnoticed(rng)?,
            None => {}
        }
        Ok(())
    }

    pub(super) fn file_of(&self, drive: &Drive) -> PathBuf {
        self.fixture.path(&drive.name)
    }
}

/// What `warprow generations` lists.
fn listing(json: &Value) -> Result<Listing> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let texts = |value: &Value| -> Vec<String> {
        let mut all: Vec<String> = value.as_array().into_iter().flatten().map(text).collect();
        all.sort();
        all
    };
    let generations = json["generations"].as_array().context("no generations")?;
    let listed = generations.iter().map(|generation| {
        let id = generation["id"].as_u64().unwrap_or(u64::MAX);
        (
            id,
            (
                text(&generation["model"]),
                texts(&generation["tables"]),
                texts(&generation["found"]),
                generation["standby"] == true,
            ),
        )
    });
    Ok(listed.collect())
}
