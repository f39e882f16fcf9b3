//! The work: operations on a store, what befalls them, and what must hold afterwards.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use warprow_dma::Clock;
use warprow_layout::{FormatOptions, OpenError, VolumeError};
use warprow_store::{Device, LoadOptions, OpenOptions, Store, StoreError, TableLoad};

use crate::simulation::model::{State, Table, tables};
use crate::simulation::session::{Found, Session};
use crate::simulation::trace::Trace;
use crate::simulation::world::{Harm, PATIENCE, World};
use crate::simulation::{Options, Outcome};

/// What errors say of queues whose deletion an incident foiled: they are taken until a reset; if they hold writes, no others are
/// accepted; and a load that meets with that reset has to be begun again.
const NO_QUEUE: &str = "queue pairs of this controller are in use";
const LATE_WRITES: &str = "timed out and may still be carried out";
const RESET: &str = "was reset or lost power while it was being written";
const LOAD_RESET: &str = "load was interrupted by a reset";

/// Operations of a seed.
const OPERATIONS: u32 = 32;

struct Work {
    // Dropped in this order.
    sessions: Vec<Session>,
    store: Option<Store>,
    world: World,
    rng: Rng,
    options: Options,
    trace: Trace,
    /// What the store holds: one of these. More than one only while nobody knows.
    states: Vec<State>,
    version: u64,
    /// One operation in so many meets an incident; 0 for none.
    incidents: u32,
    incidents_met: u64,
    /// By sessions that are gone.
    rows_read: u64,
}

pub(crate) fn run(seed: u64, options: Options) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    let mut trace = Trace::new(options.aloud);
    let world = match World::new(&mut rng) {
        Ok(world) => world,
        Err(error) => {
            return Outcome { violation: Some(format!("no world: {error:#}")), ..Outcome::default() };
        }
    };
    trace.note(Duration::ZERO, format_args!("seed {seed}: {} drives, LBAs of {} B", world.drives.len(), world.lba));
    let incidents = [0, 3, 6, 12][rng.usize(..4)];
    let mut work = Work {
        sessions: Vec::new(),
        store: None,
        world,
        rng,
        options,
        trace,
        states: vec![State::new()],
        version: 0,
        incidents,
        incidents_met: 0,
        rows_read: 0,
    };
    let violation = work.all().err().map(|error| format!("{error:#}"));
    if let Some(violation) = &violation {
        work.note(format_args!("VIOLATION: {violation}"));
    }
    work.drop_sessions();
    Outcome {
        hash: work.trace.hash(),
        events: work.trace.events(),
        incidents: work.incidents_met,
        rows_read: work.rows_read,
        violation,
    }
}

/// How an operation ended.
enum Ended {
    /// The step ended as it should.
    Well,
    /// With an error that a drive can be to blame for.
    Badly(String),
}

impl From<StoreError> for Ended {
    fn from(error: StoreError) -> Self {
        Self::Badly(chain(&error))
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

impl Work {
    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.note(self.world.now(), what);
    }

    fn store(&self) -> Result<&Store> {
        self.store.as_ref().context("no store is open")
    }

    fn open_options(&self) -> OpenOptions {
        OpenOptions::default().with_clock(self.world.clock.clone()).with_timeout(PATIENCE).with_admin_timeout(PATIENCE)
    }

    /// The state, when it is known.
    fn state(&self) -> Result<&State> {
        match &self.states[..] {
            [state] => Ok(state),
            states => bail!("{} states are possible", states.len()),
        }
    }

    fn all(&mut self) -> Result<()> {
        self.operation("create", Self::create)?;
        if self.store.is_none() {
            match self.create()? {
                Ended::Well => {}
                Ended::Badly(why) => bail!("after a format that was disturbed, no store can be made: {why}"),
            }
        }
        for _ in 0..OPERATIONS {
            match self.rng.u32(..20) {
                0..7 => self.operation("look up", Self::look_up)?,
                7..12 => self.operation("load", Self::load)?,
                12 | 13 => self.operation("attach", Self::attach)?,
                14 => self.operation("verify", Self::verify)?,
                15 => self.operation("scan", Self::scan)?,
                16 | 17 => self.operation("reopen", Self::reopen)?,
                18 => self.operation("open degraded", Self::degraded)?,
                _ => {
                    let pause = Duration::from_micros(self.rng.u64(..100_000));
                    self.world.clock.sleep(pause);
                    self.note(format_args!("paused {pause:?}"));
                }
            }
        }
        // At the very end the power goes: what was acknowledged stays.
        self.close();
        self.world.blackout(&mut self.rng)?;
        self.note(format_args!("power cut at the end"));
        self.reopen_well()?;
        self.check_contents()
    }

    /// Carries an operation out, perhaps with an incident, and sees to it that everything is well again.
    fn operation(&mut self, name: &str, act: fn(&mut Self) -> Result<Ended>) -> Result<()> {
        let mut harm = Harm::Nothing;
        if self.incidents != 0 && self.rng.u32(..self.incidents) == 0 {
            let checked = !self.sessions.is_empty() && self.sessions.iter().all(|session| session.checked);
            let what;
            (harm, what) = match name == "look up" && checked && self.rng.u32(..4) == 0 {
                true => self.world.corrupt_read(&mut self.rng),
                false => self.world.incident(name == "look up", &mut self.rng),
            };
            self.note(format_args!("planned: {what}"));
        }
        if let Some(lie) = self.options.lie {
            self.world.lie(lie, &mut self.rng);
        }
        let ended = act(self).with_context(|| name.to_owned())?;
        let disturbed = self.world.disturbed();
        self.world.settle()?;
        match &ended {
            Ended::Well => self.note(format_args!("{name}: well{}", if disturbed { ", all the same" } else { "" })),
            Ended::Badly(why) if disturbed => self.note(format_args!("{name}: {why}")),
            Ended::Badly(why)
                if self.incidents_met != 0
                    && [NO_QUEUE, LATE_WRITES, RESET, LOAD_RESET].iter().any(|words| why.contains(words)) =>
            {
                self.note(format_args!("{name}: {why}"));
                self.close();
                self.reopen_well()?;
                return self.check_contents();
            }
            Ended::Badly(why) => bail!("{name} failed with all drives well: {why}"),
        }
        if disturbed {
            self.incidents_met += 1;
        }
        // What a format leaves that was disturbed is for the next one to overwrite.
        let unmade = name == "create" && matches!(ended, Ended::Badly(_));
        if disturbed && !unmade {
            self.recover(harm).with_context(|| format!("after {name}, disturbed"))?;
        }
        Ok(())
    }

    /// After an incident: the next look-ups are right, by content, or the store has to be opened again and they are.
    fn recover(&mut self, harm: Harm) -> Result<()> {
        let unread = self.states.iter().all(State::is_empty);
        let mut reopen = self.store.is_none() || self.states.len() > 1 || harm >= Harm::Controller && unread;
        // Drives that were given up have power again.
        self.retry_drives()?;
        let mut sessions = std::mem::take(&mut self.sessions);
        for session in &mut sessions {
            // The first may still find the drive in the state in which it was left; the next brings it back.
            let mut last = None;
            for _ in 0..3 {
                last = match session.look_up(&mut self.rng)? {
                    Found::All | Found::Refused => None,
                    Found::Failed(why) => Some(why),
                };
                if last.is_none() {
                    break;
                }
                // It may have been the last straw for one that failed time and again.
                self.retry_drives()?;
            }
            if let Some(why) = last {
                ensure!(harm >= Harm::Controller, "look-ups do not recover: {why}");
                self.trace.note(self.world.now(), format_args!("look-ups do not recover: {why}"));
                reopen = true;
            }
        }
        self.sessions = sessions;
        // Look-ups that read from it bring a failed controller back; without any, the store has to be opened again.
        if !reopen {
            match self.check_contents() {
                Err(error) if harm >= Harm::Controller && error.is::<DriveTrouble>() => {
                    self.note(format_args!("a drive is out of order: {error:#}"));
                    reopen = true;
                }
                checked => checked?,
            }
        }
        if reopen || self.rng.bool() {
            self.close();
            self.reopen_well()?;
            self.check_contents()?;
            // What was shown stays, also if it lay in caches when the store was opened.
            if self.rng.u32(..4) == 0 {
                self.close();
                self.world.blackout(&mut self.rng)?;
                self.note(format_args!("power cut after it was opened"));
                self.reopen_well()?;
                self.check_contents()?;
            }
        }
        Ok(())
    }

    fn retry_drives(&mut self) -> Result<()> {
        let Some(store) = &self.store else { return Ok(()) };
        for retried in store.retry_drives() {
            ensure!(retried.failure.is_none(), "{} does not come back: {:?}", retried.drive, retried.failure);
            self.trace.note(self.world.now(), format_args!("{} is retried", retried.drive));
        }
        Ok(())
    }

    fn drop_sessions(&mut self) {
        self.rows_read += self.sessions.drain(..).map(|session| session.rows_read).sum::<u64>();
    }

    fn close(&mut self) {
        self.drop_sessions();
        self.store = None;
    }

    fn create(&mut self) -> Result<Ended> {
        let format = FormatOptions {
            chunk_size: Some(1 << 20),
            store: Some(uuid::Uuid::from_u128(self.rng.u128(..))),
            overwrite: true,
            ..FormatOptions::default()
        };
        match Store::create(&self.world.devices(), &format, &self.open_options()) {
            Ok(store) => {
                self.store = Some(store);
                Ok(Ended::Well)
            }
            Err(error) => Ok(error.into()),
        }
    }

    fn look_up(&mut self) -> Result<Ended> {
        if self.sessions.is_empty() {
            return self.attach();
        }
        let session = self.rng.usize(..self.sessions.len());
        for _ in 0..self.rng.u32(1..4) {
            if let Found::Failed(why) = self.sessions[session].look_up(&mut self.rng)? {
                return Ok(Ended::Badly(why));
            }
        }
        Ok(Ended::Well)
    }

    fn attach(&mut self) -> Result<Ended> {
        let state = self.state()?.clone();
        // Each takes queues; the oldest gives way.
        if self.sessions.len() == 2 || self.rng.u32(..4) == 0 && !self.sessions.is_empty() {
            self.rows_read += self.sessions.remove(0).rows_read;
        }
        let store = self.store()?.clone();
        match Session::new(&store, &state, &mut self.rng) {
            Ok(None) => {}
            Ok(Some(session)) => self.sessions.push(session),
            Err(error) => match error.downcast::<StoreError>() {
                Ok(error @ StoreError::Queues { .. }) => return Ok(Ended::Badly(format!("{NO_QUEUE}: {error}"))),
                Ok(error) => return Ok(error.into()),
                Err(error) => return Err(error),
            },
        }
        let Some(session) = self.sessions.last_mut() else { return Ok(Ended::Well) };
        match session.look_up(&mut self.rng)? {
            Found::Failed(why) => Ok(Ended::Badly(why)),
            _ => Ok(Ended::Well),
        }
    }

    /// Loads some tables; in between, look-ups go on.
    fn load(&mut self) -> Result<Ended> {
        let old = self.state()?.clone();
        self.version += 1;
        // Rows fit a command and the largest stripe unit of which there would be one.
        let max_row = self.world.max_transfer.min(6000) as u32;
        let new = tables(self.version, max_row, &mut self.rng);
        let ranks: Vec<_> = new.iter().map(Table::ranks).collect();
        let loads: Vec<TableLoad<'_>> = new
            .iter()
            .zip(&ranks)
            .map(|(table, ranks)| {
                let load = TableLoad::new(&table.spec, &table.rows);
                let load = if self.rng.bool() { load.with_random_access() } else { load };
                match ranks {
                    Some(ranks) => load.with_ranks(ranks),
                    None => load,
                }
            })
            .collect();
        let mut options = LoadOptions::default().with_memory(self.rng.u64(1..40_000));
        if self.rng.u32(..8) != 0 {
            options = options.with_replace();
        }
        let stop_after = (self.rng.u32(..16) == 0).then(|| self.rng.u64(..40_000));
        let store = self.store()?.clone();
        let mut session = if self.sessions.is_empty() || self.rng.bool() { None } else { self.sessions.pop() };
        let mut violation = None;
        let result = {
            let session = &mut session;
            let rng = &mut self.rng;
            let violation = &mut violation;
            store.load("model", &loads, &options, &mut |progress| {
                if let Some(session) = session
                    && rng.u32(..4) == 0
                    && let Err(error) = session.look_up(rng)
                {
                    *violation = Some(error);
                }
                match stop_after.is_some_and(|stop| progress.written > stop) || violation.is_some() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            })
        };
        self.sessions.extend(session);
        if let Some(violation) = violation {
            return Err(violation.context("while a load went on"));
        }
        let exists = new.iter().any(|table| old.contains_key(&table.spec.name));
        let mut changed = old.clone();
        changed.extend(new.iter().map(|table| (table.spec.name.clone(), table.clone())));
        let names: Vec<&str> = new.iter().map(|table| &*table.spec.name).collect();
        self.trace.note(self.world.now(), format_args!("version {}: {names:?}", self.version));
        match result {
            Ok(_) => {
                ensure!(!exists || options.replace, "a table was replaced without leave");
                self.states = vec![changed];
                // Whoever reads the old rows goes on.
                for session in &mut self.sessions {
                    if let Found::Failed(why) = session.look_up(&mut self.rng)? {
                        return Ok(Ended::Badly(why));
                    }
                }
                Ok(Ended::Well)
            }
            Err(StoreError::TableExists { .. }) if exists && !options.replace => Ok(Ended::Well),
            Err(StoreError::Interrupted) if stop_after.is_some() => Ok(Ended::Well),
            // Small drives, and sessions pin what they read.
            Err(StoreError::Volume(VolumeError::NoSpace { .. })) => {
                self.drop_sessions();
                Ok(Ended::Well)
            }
            Err(error @ StoreError::Volume(VolumeError::Indeterminate { .. })) => {
                self.states = vec![old, changed];
                Ok(error.into())
            }
            Err(error) => Ok(error.into()),
        }
    }

    fn verify(&mut self) -> Result<Ended> {
        let state = self.state()?.clone();
        for (name, table) in &state {
            match self.store()?.verify(name, &mut |_| ControlFlow::Continue(())) {
                Ok(found) => {
                    // What a drive does not give is named, and the rest is checked all the same.
                    if let Some(unread) = found.bad.iter().find(|unit| unit.unreadable) {
                        ensure!(found.bad.iter().all(|unit| unit.unreadable), "{name} is damaged: {found:?}");
                        return Ok(Ended::Badly(unread.detail.clone()));
                    }
                    ensure!(found.rows == table.spec.rows && found.checked == table.spec.row_crc, "{name}: {found:?}");
                    ensure!(found.is_sound(), "{name} is damaged: {found:?}");
                }
                Err(error) => return Ok(error.into()),
            }
        }
        Ok(Ended::Well)
    }

    fn scan(&mut self) -> Result<Ended> {
        match self.check_contents() {
            Ok(()) => Ok(Ended::Well),
            Err(error) => error.downcast::<DriveTrouble>().map(|DriveTrouble(why)| Ended::Badly(why)),
        }
    }

    fn reopen(&mut self) -> Result<Ended> {
        self.close();
        let mut devices = self.world.devices();
        self.rng.shuffle(&mut devices);
        let read_only = self.rng.u32(..4) == 0;
        let options = self.open_options();
        let options = if read_only { options.with_read_only() } else { options };
        let store = match Store::open(&devices, &options) {
            Ok(store) => store,
            Err(error) => return Ok(error.into()),
        };
        if !read_only {
            self.store = Some(store);
            return Ok(Ended::Well);
        }
        let state = self.state()?.clone();
        let ended = match contents(&store, &state) {
            Ok(()) => Ended::Well,
            Err(error) => match error.downcast::<DriveTrouble>() {
                Ok(DriveTrouble(why)) => Ended::Badly(why),
                Err(error) => return Err(error.context("opened for reading only")),
            },
        };
        let table = Table::random("eve", crate::versions::Rows { version: 0, table: 0 }, 64, &mut self.rng);
        let ranks = table.ranks();
        let load = TableLoad::new(&table.spec, &table.rows);
        let load = ranks.as_ref().map_or(load, |ranks| load.with_ranks(ranks));
        let refused = store.load("model", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()));
        ensure!(
            matches!(refused, Err(StoreError::Volume(VolumeError::ReadOnly { .. }))),
            "opened for reading only, and a load was not refused: {refused:?}"
        );
        drop(store);
        if let Ended::Well = ended {
            match Store::open(&devices, &self.open_options()) {
                Ok(store) => self.store = Some(store),
                Err(error) => return Ok(error.into()),
            }
        }
        Ok(ended)
    }

    /// Opens what is left without one of the drives; then all of it again.
    fn degraded(&mut self) -> Result<Ended> {
        let state = self.state()?.clone();
        self.close();
        let mut devices = self.world.devices();
        self.rng.shuffle(&mut devices);
        if devices.len() > 1 {
            let gone = devices.pop().map(|device| device.name()).unwrap_or_default();
            match Store::open(&devices, &self.open_options()) {
                Err(StoreError::Open(OpenError::MissingMember { missing, .. })) => {
                    ensure!(missing.len() == 1 && missing[0].serial == gone, "{missing:?} instead of {gone}");
                }
                Err(error) => return Ok(error.into()),
                Ok(_) => bail!("{gone} is missing, and nobody said so"),
            }
            match self.open_degraded(&devices, &state)? {
                Ended::Well => {}
                badly => return Ok(badly),
            }
        }
        match Store::open(&self.world.devices(), &self.open_options()) {
            Ok(store) => self.store = Some(store),
            Err(error) => return Ok(error.into()),
        }
        Ok(Ended::Well)
    }

    fn open_degraded(&mut self, devices: &[Device], state: &State) -> Result<Ended> {
        let store = match Store::open(devices, &self.open_options().with_degraded()) {
            Ok(store) => store,
            Err(error) => return Ok(error.into()),
        };
        ensure!(matches!(store.state(), warprow_layout::StoreState::Degraded { .. }));
        ensure!(store.tables().len() == state.len(), "{} tables", store.tables().len());
        // Permutations and hot rows may lie on the missing drive; then there is no session.
        if let Ok(Some(mut session)) = Session::new(&store, state, &mut self.rng) {
            for _ in 0..3 {
                session.look_up(&mut self.rng)?;
            }
        }
        Ok(Ended::Well)
    }

    /// Opens the store, which must succeed, and learns which of the possible states it is in.
    fn reopen_well(&mut self) -> Result<()> {
        let mut devices = self.world.devices();
        self.rng.shuffle(&mut devices);
        let store = match Store::open(&devices, &self.open_options()) {
            Ok(store) => store,
            Err(error) => bail!("the store cannot be opened again: {}", chain(&error)),
        };
        let mut last = None;
        let states = std::mem::take(&mut self.states);
        let count = states.len();
        for (index, state) in states.into_iter().enumerate() {
            match contents(&store, &state) {
                Ok(()) => {
                    if count > 1 {
                        self.note(format_args!(
                            "the commit {}",
                            if index == 0 { "did not happen" } else { "happened" }
                        ));
                    }
                    self.states = vec![state];
                    self.store = Some(store);
                    return Ok(());
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no state is possible")?.context("opened again, the store holds what it should not"))
    }

    /// Compares all tables with the model.
    fn check_contents(&mut self) -> Result<()> {
        contents(self.store()?, self.state()?)
    }
}

/// A drive failed, which may be its right.
#[derive(Debug)]
struct DriveTrouble(String);

impl std::fmt::Display for DriveTrouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DriveTrouble {}

/// Compares what `store` holds with `state`: names, shapes, permutations, every row.
fn contents(store: &Store, state: &State) -> Result<()> {
    let found = store.tables();
    let names: Vec<&str> = found.iter().map(|table| &*table.name).collect();
    ensure!(
        found.len() == state.len() && names.iter().all(|name| state.contains_key(*name)),
        "tables {names:?} instead of {:?}",
        state.keys()
    );
    let trouble = |error: StoreError| anyhow::Error::new(DriveTrouble(chain(&error)));
    for table in state.values() {
        let name = &table.spec.name;
        let spec = &table.spec;
        let info = found.iter().find(|info| info.name == *name).context("no such table")?;
        let shape = (info.rows, info.dim, info.dtype, info.permuted, info.row_crc);
        ensure!(
            shape == (spec.rows, spec.dim, spec.dtype, spec.permuted, spec.row_crc),
            "table {name} of version {} has another shape: {info:?}",
            table.rows.version
        );
        let ranks = match store.ranks(name) {
            Ok(ranks) => ranks,
            Err(error @ StoreError::Volume(VolumeError::RanksDamaged { .. } | VolumeError::RanksInvalid { .. })) => {
                bail!("{error}")
            }
            Err(error) => return Err(trouble(error)),
        };
        ensure!(ranks == table.ranks(), "table {name} of version {}: other ranks", table.rows.version);
        let ids = ranks.map(|ranks| ranks.inverse());
        let mut rows = 0;
        let mut wrong = None;
        let scanned = store.scan(name, 0..u64::MAX, &mut |rank, row| {
            rows += 1;
            let id = ids.as_ref().map_or(Some(rank), |ids| ids.get(rank));
            if id.is_none_or(|id| table.row(id) != row) {
                wrong = Some((rank, id));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        if let Some((rank, id)) = wrong {
            bail!("table {name} of version {}: rank {rank} (id {id:?}) differs", table.rows.version);
        }
        scanned.map_err(trouble)?;
        ensure!(rows == spec.rows, "table {name}: {rows} of {} rows", spec.rows);
    }
    Ok(())
}
