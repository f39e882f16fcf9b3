//! What `bench-plan` found.

use serde::{Deserialize, Serialize};

use crate::plan::{PlanResult, PlanSetup, SpeedResult};

/// Hit rates, commands and look-up rates, planned and measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanRates {
    /// Each drive and law.
    pub cases: Vec<PlanCase>,
}

/// One drive and law.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanCase {
    /// What was planned for.
    pub setup: PlanSetup,
    /// What was planned, and what happened.
    pub result: PlanResult,
}

/// How long a plan takes, and how much memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanSpeed {
    /// What was planned for.
    pub setup: PlanSetup,
    /// Time and memory.
    pub result: SpeedResult,
}
