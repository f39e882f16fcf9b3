//! The register file (NVMe Base 2.0, 3.1.3; NVMe 1.4, 3.1).

use std::time::Duration;

use warprow_spec::registers::{
    Aqa, Arbitration, Cap, Cc, CommandSetSelected, Crto, Csts, Nssr, ShutdownStatus, Vs, offset,
};

use crate::config::Config;

/// What turns by itself after a register was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Ready,
    NotReady,
    ShutDown,
}

/// The registers of a controller.
#[derive(Debug)]
pub(crate) struct Registers {
    pub(crate) cap: Cap,
    vs: Vs,
    crto: Crto,
    interrupt_mask: u32,
    pub(crate) cc: Cc,
    pub(crate) csts: Csts,
    pub(crate) aqa: Aqa,
    pub(crate) asq: u64,
    pub(crate) acq: u64,
    turn: Option<(Duration, Turn)>,
}

/// What a register write asks of the rest of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// CC.EN went from 0 to 1.
    Enable,
    /// CC.EN went from 1 to 0.
    Disable,
    /// CC.SHN asks for a shutdown.
    Shutdown,
    /// The NVM subsystem is to be reset.
    SubsystemReset,
}

impl Registers {
    pub(crate) fn new(config: &Config) -> Self {
        let mqes_z = u16::try_from(config.queue_entries.saturating_sub(1)).unwrap_or(u16::MAX);
        // The longest that RDY takes, rounded up, with a second to spare.
        let units = config.ready_delay.as_millis() / 500 + 2;
        let has_crto = config.version >= Vs::V2_0;
        let cap = Cap::new()
            .with_mqes_z(mqes_z)
            .with_cqr(true)
            .with_to(units.min(255) as u8)
            .with_dstrd(config.dstrd)
            .with_nssrs(true)
            .with_css_nvm(true)
            .with_mpsmax(config.mpsmax)
            .with_crwms(has_crto);
        let crto = if has_crto { Crto::new().with_crwmt(units.min(0xffff) as u16) } else { Crto::new() };
        Self {
            cap,
            vs: config.version,
            crto,
            interrupt_mask: 0,
            cc: Cc::new(),
            csts: Csts::new(),
            aqa: Aqa::new(),
            asq: 0,
            acq: 0,
            turn: None,
        }
    }

    /// All registers as after power-on; `subsystem` if by an NVM subsystem reset.
    pub(crate) fn reset(&mut self, subsystem: bool) {
        self.interrupt_mask = 0;
        self.cc = Cc::new();
        self.csts = Csts::new().with_nssro(subsystem);
        self.aqa = Aqa::new();
        self.asq = 0;
        self.acq = 0;
        self.turn = None;
    }

    /// The 32 bits at `at`, a multiple of 4 below the doorbells. Reserved registers read as zero.
    pub(crate) fn read(&self, at: u64, fatal: bool) -> u32 {
        let half = |value: u64| if at.is_multiple_of(8) { value as u32 } else { (value >> 32) as u32 };
        match at & !7 {
            offset::CAP => half(self.cap.into_bits()),
            offset::ASQ => half(self.asq),
            offset::ACQ => half(self.acq),
            _ => match at {
                offset::VS => self.vs.into_bits(),
                offset::INTMS | offset::INTMC => self.interrupt_mask,
                offset::CC => self.cc.into_bits(),
                offset::CSTS => self.csts.with_cfs(fatal).into_bits(),
                offset::AQA => self.aqa.into_bits(),
                offset::CRTO => self.crto.into_bits(),
                _ => 0,
            },
        }
    }

    /// Stores 32 bits at `at`, a multiple of 4 below the doorbells. Stores to read-only registers are ignored.
    pub(crate) fn write(&mut self, at: u64, value: u32, now: Duration, config: &Config) -> Effect {
        let low = |old: u64, keep: u64| old >> 32 << 32 | u64::from(value) & keep;
        let high = |old: u64| old & 0xffff_ffff | u64::from(value) << 32;
        const HIGH_ASQ: u64 = offset::ASQ + 4;
        const HIGH_ACQ: u64 = offset::ACQ + 4;
        match at {
            offset::INTMS => self.interrupt_mask |= value,
            offset::INTMC => self.interrupt_mask &= !value,
            offset::CC => return self.write_cc(Cc::from_bits(value), now, config),
            offset::CSTS if Csts::from_bits(value).nssro() => self.csts.set_nssro(false),
            offset::NSSR if Nssr::from_bits(value) == Nssr::RESET => return Effect::SubsystemReset,
            // The queues' place cannot change under an enabled controller.
            offset::AQA if !self.cc.en() => self.aqa = Aqa::from_bits(value & 0x0fff_0fff),
            offset::ASQ if !self.cc.en() => self.asq = low(self.asq, !0xfff),
            offset::ACQ if !self.cc.en() => self.acq = low(self.acq, !0xfff),
            HIGH_ASQ if !self.cc.en() => self.asq = high(self.asq),
            HIGH_ACQ if !self.cc.en() => self.acq = high(self.acq),
            _ => {}
        }
        Effect::None
    }

    fn write_cc(&mut self, new: Cc, now: Duration, config: &Config) -> Effect {
        let old = self.cc;
        if old.en() && new.en() {
            // Only the shutdown notification and the entry sizes change while enabled.
            self.cc = old.with_shn(new.shn()).with_iosqes(new.iosqes()).with_iocqes(new.iocqes());
        } else {
            self.cc = new;
        }
        match (old.en(), new.en()) {
            (false, true) => {
                self.turn = Some((now + config.ready_delay, Turn::Ready));
                return Effect::Enable;
            }
            (true, false) => {
                self.csts.set_shst(ShutdownStatus::NORMAL);
                self.turn = Some((now + config.ready_delay, Turn::NotReady));
                return Effect::Disable;
            }
            _ => {}
        }
        if new.shn().0 & 3 != 0 && old.shn().0 & 3 == 0 && self.csts.shst() == ShutdownStatus::NORMAL {
            self.csts.set_shst(ShutdownStatus::OCCURRING);
            self.turn = Some((now + config.shutdown_delay, Turn::ShutDown));
            return Effect::Shutdown;
        }
        Effect::None
    }

    /// Whether an enabled controller can work with what the registers say.
    pub(crate) fn are_valid(&self) -> bool {
        let page = self.cc.page_bytes();
        self.aqa.asqs_z() > 0
            && self.aqa.acqs_z() > 0
            && self.asq != 0
            && self.acq != 0
            && self.asq.is_multiple_of(page)
            && self.acq.is_multiple_of(page)
            && (self.cap.mpsmin()..=self.cap.mpsmax()).contains(&self.cc.mps())
            && self.cc.css() == CommandSetSelected::NVM
            && self.cc.ams() == Arbitration::ROUND_ROBIN
    }

    /// Carries out what is due; true if the controller became ready.
    pub(crate) fn advance(&mut self, now: Duration) -> bool {
        match self.turn {
            Some((due, turn)) if due <= now => {
                self.turn = None;
                match turn {
                    Turn::Ready => self.csts.set_rdy(true),
                    Turn::NotReady => self.csts.set_rdy(false),
                    Turn::ShutDown => self.csts.set_shst(ShutdownStatus::COMPLETE),
                }
                turn == Turn::Ready
            }
            _ => false,
        }
    }

    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.turn.map(|(due, _)| due)
    }

    /// Gives up becoming ready.
    pub(crate) fn cancel_turn(&mut self) {
        self.turn = None;
    }
}
