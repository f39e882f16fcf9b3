//! Ring tests before a GPU stores to doorbell registers of a store's drives.

use warprow_gpu_queues::{DoorbellAccess, RingTest};
use warprow_kernels::Kernels;
use warprow_store::view::StoreView;

use crate::error::GpuError;

/// Tests each drive whose doorbells are registers, if the GPU is to store to those. For each drive in turn the reason
/// why it had better not; an error if `doorbells` leaves no choice.
pub(crate) fn ring_refusals(
    kernels: &Kernels,
    store: &StoreView,
    doorbells: DoorbellAccess,
) -> Result<Vec<Option<String>>, GpuError> {
    let mut refusals = Vec::new();
    for member in store.drives().iter().flatten() {
        let is_tested = doorbells.wants_registers() && member.controller().function().doorbell_memory().is_none();
        if !is_tested {
            refusals.push(None);
            continue;
        }
        let test = RingTest::new((member.controller().clone(), member.namespace().clone()), doorbells);
        refusals.push(match kernels.test_ring(&test) {
            Ok(report) => {
                tracing::info!(drive = %member.controller().name(), ?report, "the GPU rings the doorbells of the drive");
                None
            }
            Err(error) if doorbells == DoorbellAccess::Best => {
                tracing::warn!(drive = %member.controller().name(), %error, "a host thread rings the doorbells of the drive");
                Some(error.to_string())
            }
            Err(error) => return Err(error.into()),
        });
    }
    Ok(refusals)
}
