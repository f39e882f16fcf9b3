use std::sync::Arc;
use std::time::Duration;

use warprow_dma::{AllocateError, DmaMemory};
use warprow_spec::identify::Fna;
use warprow_spec::registers::Vs;

use crate::config::{Config, Disorder};
use crate::control::{Control, allocate_doorbells};
use crate::controller::SoftController;
use crate::core::Core;
use crate::fault::FaultRules;
use crate::namespace::Namespace;
use crate::nvm::Io;
use crate::offload::{LINGER, Offload};
use crate::shard::Shard;
use crate::timing::{Timing, TimingProfile};

/// A controller could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ControllerBuildError {
    /// A property is outside what a controller can have.
    #[error("{what} is {value}; it must be {accepted}")]
    Property {
        /// The property.
        what: &'static str,
        /// The value given.
        value: String,
        /// The values accepted.
        accepted: String,
    },
    /// Memory for doorbells or buffers could not be had.
    #[error(transparent)]
    Memory(#[from] AllocateError),
    /// A backing cannot be worked with.
    #[error("cannot set up the backing of a namespace: {0}")]
    Backing(std::io::Error),
    /// A worker thread could not be started.
    #[error("cannot start a worker thread: {0}")]
    Thread(std::io::Error),
}

impl ControllerBuildError {
    fn property(what: &'static str, value: impl ToString, accepted: impl ToString) -> Self {
        Self::Property { what, value: value.to_string(), accepted: accepted.to_string() }
    }
}

/// Builds a [`SoftController`]; begun by [`SoftController::builder`].
///
/// ```
/// use warprow_soft_controller::{Fault, Namespace, RamBacking, Rule, SoftController};
///
/// let drive = SoftController::builder()
///     .name("faulty")
///     .serial("S1")
///     .namespace(Namespace::new(RamBacking::new(16 << 20)?))
///     .build()?;
/// // The next command that it takes is never answered.
/// let rule = drive.faults().inject(Rule::new(Fault::Drop));
/// assert_eq!(drive.faults().fired(rule), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ControllerBuilder {
    config: Config,
    namespaces: Vec<Namespace>,
    max_transfer: usize,
    write_cache: Option<u64>,
    offload: Option<Box<dyn Offload>>,
    offload_linger: Duration,
}

impl Default for ControllerBuilder {
    fn default() -> Self {
        Self {
            config: Config {
                name: "emulated".to_owned(),
                serial: "WARPROW0001".to_owned(),
                model: "Warprow Software Controller".to_owned(),
                firmware: env!("CARGO_PKG_VERSION").to_owned(),
                version: Vs::V2_0,
                queue_pairs: 128,
                queue_entries: 4096,
                dstrd: 0,
                shared_doorbells: false,
                mdts: 8,
                mpsmax: 4,
                fna: Fna::new(),
                autonomous_power_states: false,
                host_memory: (0, 0),
                ready_delay: Duration::ZERO,
                shutdown_delay: Duration::ZERO,
                format_time: Duration::ZERO,
                workers: 1,
                seed: 0,
                disorder: None,
                timing: None,
                sharers: 1,
                faults: FaultRules::default(),
            },
            namespaces: Vec::new(),
            max_transfer: 1 << 20,
            write_cache: None,
            offload: None,
            offload_linger: LINGER,
        }
    }
}

impl ControllerBuilder {
    /// What the controller is called in errors; default `emulated`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.config.name = name.into();
        self
    }

    /// Serial number, up to 20 ASCII characters.
    pub fn serial(mut self, serial: impl Into<String>) -> Self {
        self.config.serial = serial.into();
        self
    }

    /// Model number, up to 40 ASCII characters.
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.config.model = model.into();
        self
    }

    /// Adds a namespace; identifiers count from 1.
    pub fn namespace(mut self, namespace: Namespace) -> Self {
        self.namespaces.push(namespace);
        self
    }

    /// The specification that the controller says it follows: 1.4, or 2.0 (the default).
    pub fn version(mut self, version: Vs) -> Self {
        self.config.version = version;
        self
    }

    /// I/O queue pairs, 1 to 1024; default 128.
    pub fn queue_pairs(mut self, pairs: u16) -> Self {
        self.config.queue_pairs = pairs;
        self
    }

    /// Most entries of an I/O queue, 2 to 65,536; default 4096.
    pub fn queue_entries(mut self, entries: u32) -> Self {
        self.config.queue_entries = entries;
        self
    }

    /// CAP.DSTRD, 0 to 10: doorbells stand 2^(2 + this) bytes apart; default 0.
    pub fn doorbell_stride(mut self, dstrd: u8) -> Self {
        self.config.dstrd = dstrd;
        self
    }

    /// Puts the doorbells into a file that other processes can map; see [`SoftController::doorbell_memory`].
    pub fn shared_doorbells(mut self) -> Self {
        self.config.shared_doorbells = true;
        self
    }

    /// Largest transfer of a command in bytes, a power of two from 8 KiB to 64 MiB; default 1 MiB.
    pub fn max_transfer(mut self, bytes: usize) -> Self {
        self.max_transfer = bytes;
        self
    }

    /// CAP.MPSMAX, 0 to 8: the largest memory page is 2^(12 + this) bytes; default 4. The smallest is 4 KiB.
    pub fn max_page(mut self, mpsmax: u8) -> Self {
        self.config.mpsmax = mpsmax;
        self
    }

    /// Format NVM Attributes: whether a format or an erase reaches all namespaces; default: neither.
    pub fn format_attributes(mut self, fna: Fna) -> Self {
        self.config.fna = fna;
        self
    }

    /// The drive says that it changes its power state by itself, until a host turns that off. (It has one state.)
    pub fn autonomous_power_states(mut self) -> Self {
        self.config.autonomous_power_states = true;
        self
    }

    /// The drive asks for `preferred` pages of 4 KiB of the host's memory, and takes no fewer than `least` (HMPRE,
    /// HMMIN). It leaves a mark in each page, and fails the command that takes the pages back if a mark is gone.
    /// Without this call, the drive asks for no memory.
    pub fn host_memory(mut self, preferred: u32, least: u32) -> Self {
        self.config.host_memory = (preferred, least.min(preferred));
        self
    }

    /// How long CSTS.RDY takes to follow CC.EN; default none.
    pub fn ready_delay(mut self, delay: Duration) -> Self {
        self.config.ready_delay = delay;
        self
    }

    /// How long a shutdown takes; default none.
    pub fn shutdown_delay(mut self, delay: Duration) -> Self {
        self.config.shutdown_delay = delay;
        self
    }

    /// How long Format NVM takes; default none.
    pub fn format_time(mut self, time: Duration) -> Self {
        self.config.format_time = time;
        self
    }

    /// Worker threads, 1 to 64, among which I/O queues are spread; default 1.
    pub fn workers(mut self, workers: usize) -> Self {
        self.config.workers = workers.max(1);
        self
    }

    /// No worker threads: the controller does something only when [`SoftController::step`] is called, and its time is
    /// the time that `step` is given.
    pub fn stepped(mut self) -> Self {
        self.config.workers = 0;
        self
    }

    /// The seed of everything random, and of identifiers (such as UUIDs) that were not given.
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.seed = seed;
        self
    }

    /// Puts a volatile write cache of `capacity` bytes before every namespace that has none of its own; see
    /// [`Namespace::write_cache`].
    pub fn write_cache(mut self, capacity: u64) -> Self {
        self.write_cache = Some(capacity);
        self
    }

    /// How long commands take; default: as long as this machine needs.
    pub fn timing(mut self, timing: Timing) -> Self {
        self.config.timing = Some(timing);
        self
    }

    /// How long commands take: as long as on the drive of this profile.
    pub fn profile(mut self, profile: TimingProfile) -> Self {
        self.config.timing = profile.timing();
        self
    }

    /// How many hosts share the drive, each by a controller of its own: this one gets one part in so many of the rates of its timing
    /// or profile. Default: 1.
    pub fn sharers(mut self, sharers: u32) -> Self {
        self.config.sharers = sharers;
        self
    }

    fn disorder(&mut self) -> &mut Disorder {
        self.config.disorder.get_or_insert_default()
    }

    /// Completes commands that are fetched together in random order.
    pub fn permute(mut self) -> Self {
        self.disorder();
        self
    }

    /// Completes every command up to `within` later, at random.
    pub fn jitter(mut self, within: Duration) -> Self {
        self.disorder().within = within;
        self
    }

    /// Delays about one command in `one_in` by `by`.
    pub fn delay_one_in(mut self, one_in: u32, by: Duration) -> Self {
        self.disorder().delay_one_in = Some((one_in, by));
        self
    }

    /// Takes a random number of the waiting commands in each round.
    pub fn partial_fetch(mut self) -> Self {
        self.disorder().partial_fetch = true;
        self
    }

    /// Has somebody else execute plain reads of the first namespace's I/O queues; see [`Offload`]. The controller has one worker
    /// then, and the offload keeps the time of reads; disorder, timing, a write cache and faults are the worker's, which executes
    /// all commands as long as there are any.
    pub fn offload(mut self, offload: Box<dyn Offload>) -> Self {
        self.offload = Some(offload);
        self
    }

    /// How long an offload looks for commands behind the latest that it has answered: 20 µs, unless it is said. Where it is longer, another
    /// turn follows one that ended before its time, so that a submitter that rings now and then finds somebody looking.
    pub fn offload_linger(mut self, linger: Duration) -> Self {
        self.offload_linger = linger;
        self
    }

    /// The rules of the faults to come. The caller may keep a clone, which shares the rules with the controller.
    pub fn faults(mut self, plan: FaultRules) -> Self {
        self.config.faults = plan;
        self
    }

    fn check(&self) -> Result<(), ControllerBuildError> {
        let config = &self.config;
        let in_range = |what, value: usize, low: usize, high: usize| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(ControllerBuildError::property(what, value, format_args!("{low} to {high}")))
            }
        };
        in_range("number of queue pairs", config.queue_pairs.into(), 1, 1024)?;
        in_range("number of queue entries", config.queue_entries as usize, 2, 65_536)?;
        in_range("doorbell stride (DSTRD)", config.dstrd.into(), 0, 10)?;
        in_range("largest memory page (MPSMAX)", config.mpsmax.into(), 0, 8)?;
        in_range("largest transfer", self.max_transfer, 8 << 10, 64 << 20)?;
        in_range("number of workers", config.workers, 0, 64)?;
        if self.offload.is_some() {
            in_range("number of workers beside an offload", config.workers, 0, 1)?;
        }
        in_range("number of namespaces", self.namespaces.len(), 0, 1024)?;
        if !self.max_transfer.is_power_of_two() {
            return Err(ControllerBuildError::property("largest transfer", self.max_transfer, "a power of two"));
        }
        for namespace in &self.namespaces {
            if namespace.format == u8::MAX {
                return Err(ControllerBuildError::property("LBA size", "another size", "512 or 4096 bytes"));
            }
            let lba = 1u32 << namespace.lba_shift();
            let smallest = namespace.backing.smallest_lba();
            if lba < smallest {
                return Err(ControllerBuildError::property(
                    "LBA size",
                    lba,
                    format_args!("at least {smallest} for this backing"),
                ));
            }
            let len = namespace.backing.size();
            if len == 0 || !len.is_multiple_of(4096) {
                return Err(ControllerBuildError::property("namespace size", len, "a positive multiple of 4096 bytes"));
            }
        }
        Ok(())
    }

    /// Builds the controller and starts its workers.
    pub fn build(mut self) -> Result<Arc<SoftController>, ControllerBuildError> {
        self.check()?;
        self.config.mdts = (self.max_transfer / 4096).ilog2() as u8;
        let config = self.config;
        let mut rng = fastrand::Rng::with_seed(config.seed);
        for namespace in self.namespaces.iter_mut().filter(|namespace| namespace.uuid == [0; 16]) {
            rng.fill(&mut namespace.uuid);
            // Version 4, variant 1 (RFC 4122).
            namespace.uuid[6] = namespace.uuid[6] & 0x0f | 0x40;
            namespace.uuid[8] = namespace.uuid[8] & 0x3f | 0x80;
        }
        for namespace in &mut self.namespaces {
            namespace.add_cache(self.write_cache)?;
        }
        let mut shards = (0..config.workers.max(1))
            .map(|_| {
                let scratch = DmaMemory::allocate(self.max_transfer, warprow_dma::MemoryKind::Anonymous)?;
                let mut io = Io::new(self.max_transfer, scratch);
                for namespace in &self.namespaces {
                    // Beside an offload all commands go through the backing itself: what an engine writes would go past it.
                    let engine = if self.offload.is_some() { Ok(None) } else { namespace.backing.engine() };
                    io.add_engine(engine.map_err(ControllerBuildError::Backing)?);
                }
                Ok(Shard::new(io, rng.u64(..)))
            })
            .collect::<Result<Vec<_>, ControllerBuildError>>()?;
        shards[0].offload = self.offload;
        shards[0].linger = self.offload_linger;
        let doorbells = allocate_doorbells(&config)?;
        let control = Control::new(&config, self.namespaces);
        SoftController::start(Arc::new(Core::new(config, doorbells, control, shards)))
    }
}
