// A look-up whose rows are fetched ahead: begins as any other, rests, and expands when it is asked to. docs/gpu.md has the protocol.
#pragma once
#include "expand.cuh"

// Behind `fetch`: rows are in staging, or have failed. The slot stays the launch's; of the ids nothing is needed any more; and the queues
// are at rest, so that nobody need wait for this launch to reset their drives. grid 1, block 1.
KERNEL warprow_rest(const Lookup p) {
    wait_for_previous();
    if (!is_admitted(p)) return;
    SlotState& slot = *at<SlotState>(p.slot);
    slot.missing_id = missing_id(p, slot.counters.first_missing);
    slot.fetched = now();
    fence_release();
    store_relaxed(gate_inside(p), 0ull);
}

// Before `expand`: the mask as it is so far, to the caller's. grid: by ids.
KERNEL warprow_mask(const Lookup p) {
    if (!is_admitted(p)) return;
    const u64 ids = at<SlotState>(p.slot)->size.ids, threads = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < ids; i += threads) at<u8>(p.mask)[i] = at<const u8>(p.kept)[i];
}
