use std::sync::Arc;

use warprow_dma::{Function, FunctionError};
use warprow_spec::registers::{Aqa, Cap, Cc, Crto, Csts, Nssr, Vs, offset};

use crate::error::DriverError;

/// The controller's registers (NVMe Base 2.0, 3.1.3; NVMe 1.4, 3.1), with all ones in CSTS understood as absence. Other
/// registers may have all bits set (CRTO), so they are not asked.
#[derive(Clone, Debug)]
pub(crate) struct Registers {
    pub(crate) function: Arc<dyn Function>,
    pub(crate) name: Arc<str>,
}

impl Registers {
    pub(crate) fn new(function: Arc<dyn Function>) -> Self {
        let name = function.name().into();
        Self { function, name }
    }

    pub(crate) fn gone(&self, during: &'static str) -> DriverError {
        DriverError::Gone { function: self.name.clone(), during }
    }

    /// Turns [`FunctionError::Gone`] into [`DriverError::Gone`], so that a device that is gone is one error, whoever
    /// noticed.
    fn known<T>(&self, result: Result<T, FunctionError>, during: &'static str) -> Result<T, DriverError> {
        result.map_err(|error| match error {
            FunctionError::Gone { .. } => self.gone(during),
            other => other.into(),
        })
    }

    fn u32(&self, offset: u64, during: &'static str) -> Result<u32, DriverError> {
        self.known(self.function.read_u32(offset), during)
    }

    pub(crate) fn cap(&self) -> Result<Cap, DriverError> {
        let during = "reading its capabilities";
        let cap = self.known(self.function.read_u64(offset::CAP), during)?;
        // What was read of a device that is gone means nothing.
        self.csts(during).map(|_| Cap::from_bits(cap))
    }

    pub(crate) fn vs(&self) -> Result<Vs, DriverError> {
        self.u32(offset::VS, "reading its version").map(Vs::from_bits)
    }

    pub(crate) fn crto(&self) -> Result<Crto, DriverError> {
        self.u32(offset::CRTO, "reading its time limits").map(Crto::from_bits)
    }

    pub(crate) fn cc(&self, during: &'static str) -> Result<Cc, DriverError> {
        self.u32(offset::CC, during).map(Cc::from_bits)
    }

    pub(crate) fn set_cc(&self, cc: Cc, during: &'static str) -> Result<(), DriverError> {
        self.known(self.function.write_u32(offset::CC, cc.into_bits()), during)
    }

    pub(crate) fn csts(&self, during: &'static str) -> Result<Csts, DriverError> {
        let csts = Csts::from_bits(self.u32(offset::CSTS, during)?);
        if csts.is_absent() { Err(self.gone(during)) } else { Ok(csts) }
    }

    pub(crate) fn clear_nssro(&self, during: &'static str) -> Result<(), DriverError> {
        let csts = Csts::new().with_nssro(true);
        self.known(self.function.write_u32(offset::CSTS, csts.into_bits()), during)
    }

    pub(crate) fn reset_subsystem(&self) -> Result<(), DriverError> {
        let written = self.function.write_u32(offset::NSSR, Nssr::RESET.into_bits());
        self.known(written, "an NVM subsystem reset")
    }

    /// Places the admin queues; both addresses are page-aligned.
    pub(crate) fn set_admin_queues(&self, aqa: Aqa, asq: u64, acq: u64) -> Result<(), DriverError> {
        let during = "placing the admin queues";
        self.known(self.function.write_u32(offset::AQA, aqa.into_bits()), during)?;
        self.known(self.function.write_u64(offset::ASQ, asq), during)?;
        self.known(self.function.write_u64(offset::ACQ, acq), during)
    }

    pub(crate) fn set_bus_master(&self, enabled: bool, during: &'static str) -> Result<(), DriverError> {
        self.known(self.function.set_bus_master(enabled), during)
    }

    /// Controller Status for an error message: all ones where it cannot be read.
    pub(crate) fn csts_or_absent(&self) -> Csts {
        self.function.read_u32(offset::CSTS).map_or(Csts::ABSENT, Csts::from_bits)
    }

    /// Reads CSTS while something is waited for: an error if the device is gone, has failed or is not ready.
    pub(crate) fn health(&self, during: &'static str) -> Result<Csts, DriverError> {
        let csts = self.csts(during)?;
        if csts.cfs() || !csts.rdy() {
            return Err(DriverError::Fatal { function: self.name.clone(), during, csts });
        }
        Ok(csts)
    }
}
