// Two kernels of a look-up whose rows are fetched ahead. Its first half, up to `fetch`, ends with `rest`; its second half begins with `mask`, when the
// caller asks for the output, and goes on with `expand`. The slot's lease is held from one half to the other. docs/gpu.md has the protocol.
#pragma once
#include "ticket.cuh"

// By one thread: has the slot rest, when the launch has read all that it reads from drives.
DEVICE void begin_rest(const Lookup& lookup, SlotState& slot) {
    slot.missing_id = missing_id(lookup, slot.counters.first_missing);
    slot.fetched = now();
    fence_release();
    store_relaxed(gate_inside(lookup), 0ull);
}

// Reads: the ids, for the first missing one.
// Writes: SlotState.missing_id and .fetched; zero to the gate's `inside`, so that whoever resets a drive need not wait for the second half.
// Relies on: `fetch` has ended, and with it the use of the queues. One thread in all. When the kernel has ended, the ids are the caller's again.
KERNEL warprow_rest(const Lookup lookup) {
    wait_for_previous();
    if (is_admitted(lookup)) begin_rest(lookup, *at<SlotState>(lookup.slot.state));
}

// Reads: the mask that the first half kept in the slot's memory.
// Writes: the caller's mask, as if no row had failed; `expand` then clears the entries of rows that failed.
// Relies on: `rest` has ended, and `expand` has not begun. grid: any.
KERNEL warprow_mask(const Lookup lookup) {
    if (!is_admitted(lookup)) return;
    const u64 ids = at<SlotState>(lookup.slot.state)->size.ids, threads = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < ids; i += threads) at<u8>(lookup.output.mask)[i] = at<const u8>(lookup.output.kept_mask)[i];
}
