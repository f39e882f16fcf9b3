//! What is reported, and what it was measured with.

use warprow_workload::MachineInfo;

use crate::commands::demo::arguments::DemoArgs;
use crate::commands::demo::place::Place;
use crate::commands::demo::results::Results;
use crate::commands::demo::workload::Workload;

/// What is reported, and what it was measured with.
pub(super) struct Measured<'a> {
    pub(super) args: &'a DemoArgs,
    pub(super) workload: &'a Workload<'a>,
    pub(super) place: &'a Place,
    pub(super) results: &'a Results,
    pub(super) machine: MachineInfo,
}
