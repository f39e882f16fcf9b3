//! Faults of emulated drives, which show a program what it does when a drive fails.

use pyo3::prelude::*;
use warprow_soft_controller::{Fault, FaultRules, NvmOpcode, Rule, StatusCode};
use warprow_store::Device;

use crate::error::invalid;

/// The fault rules of a store's drives, in their order; `None`: the drive is not emulated. They do not keep a drive open.
pub(crate) struct DriveFaults(Vec<Option<FaultRules>>);

impl DriveFaults {
    pub(crate) fn new(devices: &[Device]) -> Self {
        Self(devices.iter().map(|device| Some(device.soft_controller()?.faults().clone())).collect())
    }

    /// Has reads of a drive fail: `times` of them (`None`: all), from the `nth` on.
    pub(crate) fn inject(&self, drive: usize, fault: &str, nth: u64, times: Option<u64>) -> PyResult<()> {
        let fault = match fault {
            "unreadable" => Fault::Status(StatusCode::UnrecoveredReadError.into()),
            "unanswered" => Fault::Swallow,
            "corrupt" => Fault::Corrupt,
            "fatal" => Fault::Fatal,
            other => {
                let text = format!("{other:?} is no fault: give unreadable, unanswered, corrupt or fatal");
                return Err(invalid("fault", text));
            }
        };
        let rules = match self.0.get(drive) {
            Some(Some(rules)) => rules,
            Some(None) => {
                let text = format!("drive {drive} of the store is not emulated: no fault can be asked of it");
                return Err(invalid("drive", text));
            }
            None => return Err(invalid("drive", format!("the store has no drive {drive}; it has {}", self.0.len()))),
        };
        let rule = Rule::new(fault).io(NvmOpcode::READ).nth(nth).times(times.unwrap_or(u64::MAX));
        rules.inject(rule);
        Ok(())
    }

    /// Takes all rules back.
    pub(crate) fn clear(&self) {
        self.0.iter().flatten().for_each(FaultRules::clear);
    }
}
