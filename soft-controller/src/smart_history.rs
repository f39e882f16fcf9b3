use std::time::Duration;

/// What the SMART log page knows that survives resets.
#[derive(Debug)]
pub(crate) struct SmartHistory {
    pub(crate) power_cycles: u64,
    pub(crate) unsafe_shutdowns: u64,
    /// CC.SHN was answered since the controller was last enabled.
    pub(crate) shut_down: bool,
    pub(crate) powered_on: Duration,
}

impl SmartHistory {
    pub(crate) fn new() -> Self {
        Self { power_cycles: 1, unsafe_shutdowns: 0, shut_down: true, powered_on: Duration::ZERO }
    }
}
