//! Descriptions of plans that are replaced while look-ups run.
#![allow(unsafe_code, reason = "a kernel writes to the states of plans")]

use std::sync::Arc;
use std::time::Duration;

use warprow_gpu_queues::{Gpu, PinnedMemory};
use warprow_kernels::{Kernels, abi};

use crate::error::GpuError;
use crate::launch::Stream;
use crate::reading_plan::{Adopting, PlanStates};
use crate::view::View;

/// A launched replacement of descriptions, with everything that the kernel uses and that the new descriptions name. It
/// is kept until the kernel has ended.
#[derive(Debug)]
pub(crate) struct Attempt {
    adopting: Arc<Adopting>,
    /// For each state, what became of it: one u32 of [`abi::adopted`](warprow_kernels::abi::adopted).
    results: PinnedMemory,
    _view: Arc<View>,
}

impl Attempt {
    pub(crate) fn new(gpu: &Arc<Gpu>, states: u32, adopting: Arc<Adopting>, view: Arc<View>) -> Result<Self, GpuError> {
        let results = PinnedMemory::allocate(gpu, u64::from(states) * 4)?;
        Ok(Self { adopting, results, _view: view })
    }

    /// Launches the replacement for the states of a plan.
    ///
    /// # Safety
    /// `states` are those of a plan whose descriptions have room for what is adopted; they live, and this attempt is
    /// kept, until its results say that it has ended.
    pub(crate) unsafe fn begin(
        &self,
        kernels: &Kernels,
        states: &PlanStates,
        stream: &Stream,
        patience: Duration,
    ) -> Result<(), GpuError> {
        let adoption = abi::Adoption {
            states: states.address,
            stride: states.stride,
            place: states.place,
            source: self.adopting.source.address(),
            bytes: self.adopting.bytes,
            generation: self.adopting.generation,
            results: self.results.address(),
            timeout_ns: u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX / 2).min(u64::MAX / 2),
        };
        // SAFETY: the caller's promise.
        unsafe { stream.adopt(kernels, &adoption, states.count) }
    }

    /// How many of the states are in each of the ways of [`adopted`].
    pub(crate) fn count(&self, states: u32, what: u32) -> usize {
        (0..states as usize).filter(|state| self.results.memory().load_u32(state * 4) == what).count()
    }
}
