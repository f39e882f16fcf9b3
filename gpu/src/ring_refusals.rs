//! Ring tests before a GPU stores to doorbell registers of a store's drives.

use warprow_gpu_queues::{DoorbellAccess, MemoryPlacement, RingTest};
use warprow_kernels::Kernels;
use warprow_store::view::StoreView;

use crate::error::GpuError;
use crate::options::GpuOptions;

/// Tests each drive whose doorbells are registers, if the GPU is to store to those, with its completions and rows in the
/// memory that the options name. For each drive in turn the reason why it had better not; an error if the options leave no
/// choice.
pub(crate) fn ring_refusals(
    kernels: &Kernels,
    store: &StoreView,
    options: &GpuOptions,
) -> Result<Vec<Option<String>>, GpuError> {
    let doorbells = options.doorbells;
    if options.drive_memory.is_some() && !doorbells.wants_registers() {
        let why = "a GPU's memory for drives (with_drive_memory) wants the GPU to store to the drives' doorbells: ask for registers or the best (with_doorbells)";
        return Err(GpuError::Unsupported(why.to_owned()));
    }
    let mut refusals = Vec::new();
    for member in store.drives().iter().flatten() {
        let is_tested = doorbells.wants_registers() && member.controller().function().doorbell_memory().is_none();
        if !is_tested {
            refusals.push(None);
            continue;
        }
        let drive = (member.controller().clone(), member.namespace().clone());
        let test = match &options.drive_memory {
            Some(_) => RingTest {
                memory: MemoryPlacement::Pinned,
                writable: options.drive_memory.clone(),
                ..RingTest::new(drive, doorbells)
            },
            None => RingTest::new(drive, doorbells),
        };
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
