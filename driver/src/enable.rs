//! Enabling and disabling a controller (NVMe Base 2.0, 3.5.1 and 3.7.2; NVMe 1.4, 7.3.2 and 7.6.1).

use std::time::Duration;

use warprow_dma::Clock;
use warprow_spec::registers::{
    Aqa, Arbitration, Cap, Cc, CommandSetSelected, Csts, ShutdownNotification, ShutdownStatus,
};
use warprow_spec::{Cqe, Sqe};

use crate::error::DriverError;
use crate::patience::Patience;
use crate::registers::Registers;

/// The shortest time that a controller gets to become ready or disabled, even if it says CAP.TO = 0.
const LEAST_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time that a controller gets to become ready; CRTO can say nine hours.
const MOST_TIMEOUT: Duration = Duration::from_secs(600);

fn unusable(registers: &Registers, why: String) -> DriverError {
    DriverError::Unusable { function: registers.name.clone(), why }
}

/// Reads CAP and refuses what the driver cannot work with.
pub(crate) fn checked_cap(registers: &Registers) -> Result<Cap, DriverError> {
    let cap = registers.cap()?;
    if cap.mqes_z() == 0 {
        return Err(unusable(
            registers,
            "CAP.MQES is 0: queues of one entry, where the specification asks for two".into(),
        ));
    }
    if cap.mpsmin() != 0 {
        let least = cap.min_page_bytes() >> 10;
        return Err(unusable(registers, format!("CAP.MPSMIN asks for memory pages of {least} KiB; 4 KiB are needed")));
    }
    if !cap.css_nvm() {
        return Err(unusable(registers, "CAP.CSS does not offer the NVM command set".into()));
    }
    Ok(cap)
}

pub(crate) fn disable_limit(cap: Cap) -> Duration {
    Duration::from_millis(cap.disable_timeout_ms().into()).max(LEAST_TIMEOUT)
}

/// Waits until `done` is true of CSTS. After `limit`, the result has the time waited and the last CSTS.
fn await_csts(
    registers: &Registers,
    clock: &dyn Clock,
    limit: Duration,
    during: &'static str,
    done: impl Fn(Csts) -> bool,
) -> Result<Result<Csts, (Duration, Csts)>, DriverError> {
    let mut patience = Patience::new(clock, limit);
    loop {
        let more = patience.wait();
        let csts = registers.csts(during)?;
        if done(csts) {
            return Ok(Ok(csts));
        }
        if !more {
            return Ok(Err((patience.waited(), csts)));
        }
    }
}

/// Clears CC.EN and waits for CSTS.RDY = 0. When this returns success the controller has let go of all memory.
pub(crate) fn disable(registers: &Registers, clock: &dyn Clock, cap: Cap) -> Result<(), DriverError> {
    let during = "disabling it";
    let limit = disable_limit(cap);
    let cc = registers.cc(during)?;
    let csts = registers.csts(during)?;
    // CC.EN must not be cleared before CSTS.RDY = 1 has followed CC.EN = 1. A failed controller never becomes ready.
    if cc.en() && !csts.rdy() && !csts.cfs() && csts.shst() == ShutdownStatus::NORMAL {
        let _ = await_csts(registers, clock, limit, during, |csts| csts.rdy() || csts.cfs())?;
    }
    if cc.en() {
        registers.set_cc(cc.with_en(false).with_shn(ShutdownNotification::NONE), during)?;
    }
    match await_csts(registers, clock, limit, during, |csts| !csts.rdy())? {
        Ok(csts) if csts.cfs() => Err(DriverError::Fatal { function: registers.name.clone(), during, csts }),
        Ok(_) => Ok(()),
        Err((waited, csts)) => {
            Err(DriverError::NotReady { function: registers.name.clone(), ready: false, waited, csts })
        }
    }
}

/// As [`disable`]; if the controller does not obey CC.EN, the function is reset and the controller disabled again.
pub(crate) fn disable_or_reset(registers: &Registers, clock: &dyn Clock, cap: Cap) -> Result<(), DriverError> {
    let Err(error) = disable(registers, clock, cap) else { return Ok(()) };
    if matches!(error, DriverError::Gone { .. }) {
        return Err(error);
    }
    tracing::warn!(%error, "the controller does not obey CC.EN; resetting the function");
    match registers.function.reset() {
        Ok(()) => disable(registers, clock, cap),
        Err(_) => Err(error),
    }
}

/// Where the admin queues lie.
pub(crate) struct AdminPlace {
    pub(crate) entries: u16,
    pub(crate) sq: u64,
    pub(crate) cq: u64,
}

/// Configures a disabled controller and waits until it is ready. Bus master goes on here, after RDY = 0.
pub(crate) fn enable(
    registers: &Registers,
    clock: &dyn Clock,
    cap: Cap,
    admin: &AdminPlace,
) -> Result<(), DriverError> {
    let during = "enabling it";
    registers.set_bus_master(true, during)?;
    let size_z = admin.entries - 1;
    registers.set_admin_queues(Aqa::new().with_asqs_z(size_z).with_acqs_z(size_z), admin.sq, admin.cq)?;
    let cc = Cc::new()
        .with_css(CommandSetSelected::NVM)
        .with_mps(0)
        .with_ams(Arbitration::ROUND_ROBIN)
        .with_iosqes(Sqe::SIZE_LOG2)
        .with_iocqes(Cqe::SIZE_LOG2);
    // The settings are written first; then EN is set by a write that changes nothing else.
    registers.set_cc(cc, during)?;
    registers.set_cc(cc.with_en(true), during)?;
    let crto = if cap.crwms() { registers.crto()? } else { Default::default() };
    let limit = Duration::from_millis(cap.enable_timeout_ms(crto, false).into()).clamp(LEAST_TIMEOUT, MOST_TIMEOUT);
    match await_csts(registers, clock, limit, during, |csts| csts.rdy() || csts.cfs())? {
        Ok(csts) if csts.cfs() => Err(DriverError::Fatal { function: registers.name.clone(), during, csts }),
        Ok(_) => Ok(()),
        Err((waited, csts)) => {
            Err(DriverError::NotReady { function: registers.name.clone(), ready: true, waited, csts })
        }
    }
}

/// Tells an enabled controller to shut down normally and waits until it has (NVMe Base 2.0, 3.6.1; NVMe 1.4, 7.6.2).
pub(crate) fn notify_shutdown(registers: &Registers, clock: &dyn Clock, limit: Duration) -> Result<(), DriverError> {
    let during = "shutting it down";
    let cc = registers.cc(during)?;
    if !cc.en() {
        return Ok(());
    }
    registers.set_cc(cc.with_shn(ShutdownNotification::NORMAL), during)?;
    match await_csts(registers, clock, limit, during, |csts| csts.shst() == ShutdownStatus::COMPLETE || csts.cfs())? {
        Ok(csts) if csts.cfs() => Err(DriverError::Fatal { function: registers.name.clone(), during, csts }),
        Ok(_) => Ok(()),
        Err((waited, csts)) => Err(DriverError::ShutdownTimeout { function: registers.name.clone(), waited, csts }),
    }
}
