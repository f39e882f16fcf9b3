//! A plan, as the executor knows it: what of it has to follow when tables are replaced or updated.

use std::sync::{Arc, Mutex, Weak};

use warprow_gpu_queues::DeviceMemory;

use crate::error::GpuError;
use crate::view::View;

/// States of a plan's slots that lie side by side in GPU memory, each with a description behind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanStates {
    /// The first.
    pub address: u64,
    /// Bytes from a state to the next.
    pub stride: u64,
    /// Bytes from a state to its description.
    pub place: u64,
    /// How many.
    pub count: u32,
}

/// A plan's new description.
#[derive(Debug)]
pub(crate) struct Adopting {
    pub generation: u64,
    pub bytes: u64,
    pub source: DeviceMemory,
}

/// A plan that reads an executor's tables.
pub(crate) trait ReadingPlan: std::fmt::Debug + Send + Sync {
    /// The plan's states, which live as long as the plan. While [`ReadingPlans`] are locked, no others come.
    fn states(&self) -> Vec<PlanStates>;

    /// Describes the plan on other tables; an error if its slots have no room for these.
    fn describe_on(&self, view: &View) -> Result<Arc<Adopting>, GpuError>;

    /// Launches may read `view` from now on.
    fn may_read(&self, view: &Arc<View>);

    /// No launch reads anything but `view` any more.
    fn reads_only(&self, view: &Arc<View>);
}

/// The plans that read an executor's tables.
pub(crate) type ReadingPlans = Mutex<Vec<Weak<dyn ReadingPlan>>>;
