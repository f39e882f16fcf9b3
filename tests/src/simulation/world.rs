//! Drives, their clock, and what befalls them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use fastrand::Rng;
use warprow_dma::Clock;
use warprow_soft_controller::{Fault, Namespace, PowerCut, QueueMatch, RamBacking, Rule, RuleId, SoftController};
use warprow_spec::{AdminOpcode, NvmOpcode, Status, StatusCode};
use warprow_store::Device;

use crate::VirtualClock;
use crate::simulation::Lie;

/// The limit of every wait of the host.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

pub(crate) struct World {
    pub(crate) drives: Vec<Arc<SoftController>>,
    pub(crate) clock: Arc<VirtualClock>,
    /// Bytes of the largest transfer of a command.
    pub(crate) max_transfer: usize,
    pub(crate) lba: u32,
    rules: Vec<(usize, RuleId)>,
    dma_faults: Vec<u64>,
    power: Arc<Power>,
    /// Drives that are off, or will be when their rule fires, with what their caches will have lost.
    off: Vec<(usize, RuleId, PowerCut)>,
}

/// Power cuts that wait for a rule to fire.
#[derive(Default)]
struct Power {
    armed: AtomicBool,
    triggers: Mutex<Vec<Trigger>>,
}

struct Trigger {
    drive: usize,
    rule: RuleId,
    cuts: Vec<(usize, PowerCut)>,
}

/// How much harm an incident can do at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Harm {
    /// None.
    Nothing,
    /// Commands fail, or are answered late or not at all.
    Commands,
    /// A controller fails or loses power: queues are gone.
    Controller,
}

impl World {
    pub(crate) fn new(rng: &mut Rng) -> Result<Self> {
        let clock = VirtualClock::new();
        let lba = if rng.bool() { 512 } else { 4096 };
        let max_transfer = 8192 << rng.u32(..3);
        let count = if rng.u32(..3) == 0 { 1 } else { rng.usize(2..=3) };
        // A store of equal drives, but for the size of one.
        let mut drives = Vec::with_capacity(count);
        for index in 0..count {
            let mebibytes = 7 + u64::from(index == 1 && rng.bool());
            let capacity = if rng.u32(..4) == 0 { 64 << 10 } else { u64::MAX };
            let mut namespace = Namespace::new(RamBacking::new(mebibytes << 20)?).lba(lba);
            if rng.u32(..10) != 0 {
                namespace = namespace.write_cache(capacity);
            }
            let name = format!("drive{index}");
            let mut builder = SoftController::builder().stepped().name(&name).serial(&name).seed(rng.u64(..));
            builder = builder.namespace(namespace).queue_pairs(rng.u16(7..=9)).max_transfer(max_transfer);
            if rng.bool() {
                builder = builder.permute().jitter(Duration::from_micros(rng.u64(0..200)));
            }
            if rng.bool() {
                builder = builder.partial_fetch();
            }
            if rng.u32(..4) == 0 {
                builder = builder.delay_one_in(rng.u32(20..200), Duration::from_millis(rng.u64(1..100)));
            }
            if rng.u32(..4) == 0 {
                builder = builder.ready_delay(Duration::from_millis(rng.u64(0..20)));
            }
            let drive = builder.queue_entries(if rng.u32(..4) == 0 { 64 } else { 1024 }).build()?;
            clock.step_too(drive.clone());
            drives.push(drive);
        }
        let power = Arc::new(Power::default());
        clock.on_turn({
            let power = power.clone();
            let drives = drives.clone();
            move |_| power.look(&drives)
        });
        let dma_faults = vec![0; drives.len()];
        Ok(Self { drives, clock, max_transfer, lba, rules: Vec::new(), dma_faults, power, off: Vec::new() })
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    pub(crate) fn devices(&self) -> Vec<Device> {
        self.drives.iter().map(|drive| Device::new(drive.clone(), 1)).collect()
    }

    fn inject(&mut self, drive: usize, rule: Rule) -> RuleId {
        let id = self.drives[drive].faults().inject(rule);
        self.rules.push((drive, id));
        id
    }

    /// Something that is to happen during the next operation, of few commands or of many; in words.
    pub(crate) fn incident(&mut self, is_short: bool, rng: &mut Rng) -> (Harm, String) {
        let drive = rng.usize(..self.drives.len());
        let nth = |rng: &mut Rng| {
            let most = if is_short { [1, 4, 12] } else { [4, 16, 64] }[rng.usize(..3)];
            rng.u64(1..=most)
        };
        match rng.u32(..10) {
            // A write that comes long after its time, from a queue that is hard to delete.
            0 => {
                let nth = nth(rng);
                let late = Duration::from_millis(rng.u64(500..3000));
                self.inject(drive, Rule::new(Fault::Delay(late)).io(NvmOpcode::WRITE).nth(nth));
                let stubborn = [Fault::Status(StatusCode::InternalError.into()), Fault::Drop, Fault::Swallow];
                let fault = stubborn[rng.usize(..3)];
                let times = rng.u64(1..3);
                self.inject(drive, Rule::new(fault).admin(AdminOpcode::DELETE_IO_SQ).times(times));
                (
                    Harm::Commands,
                    format!("drive{drive}: write {nth} comes {late:?} late, {fault:?} at {times} deletions"),
                )
            }
            1..5 => {
                let count = if rng.u32(..4) == 0 { 2 } else { 1 };
                let mut words = Vec::new();
                for _ in 0..count {
                    let (rule, what) = command_fault(nth(rng), rng);
                    self.inject(drive, rule);
                    words.push(what);
                }
                (Harm::Commands, format!("drive{drive}: {}", words.join(", ")))
            }
            5 => {
                let nth = nth(rng);
                self.inject(drive, Rule::new(Fault::Fatal).nth(nth));
                (Harm::Controller, format!("drive{drive}: CSTS.CFS at command {nth}"))
            }
            // The power of one drive, or of all, goes and comes back at once.
            6 | 7 => {
                let nth = nth(rng);
                let rule = self.inject(drive, Rule::new(Fault::Delay(Duration::ZERO)).on(QueueMatch::Io).nth(nth));
                let hit = if rng.bool() { drive..drive + 1 } else { 0..self.drives.len() };
                let cuts: Vec<_> = hit.map(|drive| (drive, cut(rng))).collect();
                let words = format!("power cut {cuts:?} at I/O command {nth} of drive{drive}");
                self.power.arm(Trigger { drive, rule, cuts });
                (Harm::Controller, words)
            }
            // The power of one drive, or of all, goes and comes back when the operation has ended.
            _ => {
                let nth = nth(rng);
                let rule = self.inject(drive, Rule::new(Fault::Disappear).on(QueueMatch::Io).nth(nth));
                let own = cut(rng);
                self.off.push((drive, rule, own));
                let mut cuts = Vec::new();
                if rng.bool() {
                    cuts =
                        (0..self.drives.len()).filter(|&other| other != drive).map(|other| (other, cut(rng))).collect();
                }
                let words = format!("drive{drive} off at I/O command {nth}, {own:?}, and power cut {cuts:?}");
                self.power.arm(Trigger { drive, rule, cuts });
                (Harm::Controller, words)
            }
        }
    }

    /// A drive that lies, for proving that the simulation notices.
    pub(crate) fn lie(&mut self, lie: Lie, rng: &mut Rng) {
        let drive = rng.usize(..self.drives.len());
        let nth = 1 + rng.u64(..8);
        let success = Rule::new(Fault::Status(Status::SUCCESS)).nth(nth);
        let rule = match lie {
            Lie::Flush => success.nth(1).always().io(NvmOpcode::FLUSH),
            Lie::StaleRead => success.io(NvmOpcode::READ),
            Lie::LostWrite => success.io(NvmOpcode::WRITE),
            Lie::DamagedWrite => Rule::new(Fault::Corrupt).nth(nth).io(NvmOpcode::WRITE),
        };
        self.drives[drive].faults().inject(rule);
    }

    /// One bit of the data of some read is flipped. Only where checksums cover what is read.
    pub(crate) fn corrupt_read(&mut self, rng: &mut Rng) -> (Harm, String) {
        let drive = rng.usize(..self.drives.len());
        let nth = 1 + rng.u64(..8);
        self.inject(drive, Rule::new(Fault::Corrupt).io(NvmOpcode::READ).nth(nth));
        (Harm::Commands, format!("drive{drive}: read {nth} flips a bit"))
    }

    /// Whether something has happened since the last [`settle`](Self::settle).
    pub(crate) fn disturbed(&self) -> bool {
        self.rules.iter().any(|&(drive, rule)| self.drives[drive].faults().fired(rule) > 0)
    }

    /// Nothing more happens, and all drives have power. No drive may have reached for memory that is not mapped for it: none
    /// was taken back too early.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.power.look(&self.drives);
        for (index, (drive, known)) in self.drives.iter().zip(&self.dma_faults).enumerate() {
            let is_off = self.off.iter().any(|&(off, rule, _)| off == index && drive.faults().fired(rule) > 0);
            ensure!(is_off || drive.dma_faults() == *known, "drive{index} reached for memory that is not mapped");
        }
        self.power.disarm();
        for (drive, rule, cut) in std::mem::take(&mut self.off) {
            if self.drives[drive].faults().fired(rule) > 0 {
                self.drives[drive].power_cut(cut)?;
            }
        }
        // What was in flight on a drive when it went is carried out in part when its power comes back: too late for its host.
        self.dma_faults = self.drives.iter().map(|drive| drive.dma_faults()).collect();
        self.drives.iter().for_each(|drive| drive.faults().clear());
        self.rules.clear();
        Ok(())
    }

    /// The power of all drives goes, and comes back.
    pub(crate) fn blackout(&mut self, rng: &mut Rng) -> Result<()> {
        for drive in &self.drives {
            drive.power_cut(cut(rng))?;
        }
        Ok(())
    }
}

impl Power {
    fn arm(&self, trigger: Trigger) {
        self.triggers.lock().unwrap_or_else(PoisonError::into_inner).push(trigger);
        self.armed.store(true, Ordering::Relaxed);
    }

    fn disarm(&self) {
        self.triggers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.armed.store(false, Ordering::Relaxed);
    }

    fn look(&self, drives: &[Arc<SoftController>]) {
        if !self.armed.load(Ordering::Relaxed) {
            return;
        }
        self.triggers.lock().unwrap_or_else(PoisonError::into_inner).retain(|trigger| {
            if drives[trigger.drive].faults().fired(trigger.rule) == 0 {
                return true;
            }
            for &(drive, cut) in &trigger.cuts {
                // The media is memory and does not fail.
                let _ = drives[drive].power_cut(cut);
            }
            false
        });
    }
}

fn cut(rng: &mut Rng) -> PowerCut {
    match rng.u32(..4) {
        0 => PowerCut::LoseAll,
        1 => PowerCut::KeepAll,
        _ => PowerCut::Random(rng.u64(..)),
    }
}

/// A fault of one command.
fn command_fault(nth: u64, rng: &mut Rng) -> (Rule, String) {
    let codes = [
        StatusCode::InternalError,
        StatusCode::DataTransferError,
        StatusCode::NamespaceNotReady,
        StatusCode::CapacityExceeded,
        StatusCode::UnrecoveredReadError,
        StatusCode::WriteFault,
        StatusCode::AbortRequested,
    ];
    let late = Duration::from_millis(rng.u64(1..600));
    let faults = [
        Fault::Status(codes[rng.usize(..codes.len())].into()),
        Fault::Drop,
        Fault::Swallow,
        Fault::Delay(late),
        Fault::Duplicate,
        // A CID that is outstanding now and then; what that does cannot be told without checksums in every row.
        Fault::WrongCid(0xfff0 | rng.u16(..14)),
    ];
    let fault = faults[rng.usize(..faults.len())];
    let io = [NvmOpcode::READ, NvmOpcode::WRITE, NvmOpcode::FLUSH];
    let admin = [
        AdminOpcode::CREATE_IO_CQ,
        AdminOpcode::CREATE_IO_SQ,
        AdminOpcode::DELETE_IO_SQ,
        AdminOpcode::DELETE_IO_CQ,
        AdminOpcode::IDENTIFY,
    ];
    let (rule, on) = match rng.u32(..4) {
        0 => {
            let opcode = admin[rng.usize(..admin.len())];
            (Rule::new(fault).admin(opcode), format!("{opcode}"))
        }
        1 => (Rule::new(fault).on(QueueMatch::Io), "I/O command".to_owned()),
        _ => {
            let opcode = io[rng.usize(..io.len())];
            (Rule::new(fault).io(opcode), format!("{opcode}"))
        }
    };
    let times = if rng.u32(..8) == 0 { rng.u64(2..5) } else { 1 };
    (rule.nth(nth).times(times), format!("{fault:?} at {on} {nth} × {times}"))
}
