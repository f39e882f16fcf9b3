// The end of a launch: it writes the report, says at the gate that nobody is inside, gives the slot's lease back, and clears what the next launch
// needs to be zero.
#pragma once
#include "cache.cuh"
#include "dedupe.cuh"
#include "ticket.cuh"

constexpr u32 FINISH_THREADS = 256;

// By one warp of the last block: stores the report, says at the gate that nobody is inside, and gives the lease back.
template <bool RICH> DEVICE void release(const Lookup& lookup) {
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    const CountsBefore before = counts_before(lookup);
    const u64 count = cache_count(lookup, slot);
    report<RICH>(lookup, slot, before, true);
    add_cache_count(lookup, count);
    if (threadIdx.x != 0) return;
    TicketState& counts = ticket_state(lookup);
    const u64 launches = before.launches + 1;
    counts.admitted = 0;
    counts.launches = launches;
    fence_release();
    store_relaxed(gate_inside(lookup), 0ull);
    leave_cache(lookup);
    // The next launch stores `inside` after this zero.
    fence_release();
    atomicExch(&slot.lease, 0u);
    store_release(&at<Ticket>(lookup.slot.tickets)[lookup.slot.ticket].sequence, launches);
}

// By all threads of the block: whether this block is the last of its kernel to come here. `count` is zero before the first block comes; the last
// block sets it to zero again.
DEVICE bool is_last(u32& count) {
    SHARED(bool, last);
    __syncthreads();
    if (threadIdx.x == 0) {
        fence_gpu();
        last = atomicAdd(&count, 1u) == gridDim.x - 1;
        fence_gpu();
        if (last) count = 0;
    }
    __syncthreads();
    return last;
}

// Reads: the unique keys (with a bitmap), or the words that were sorted (with a hash table or a sort).
// Writes: zeros to the bits and the summary of these keys, or to the hash table and the sort's state; then the ticket, the gate's `inside`, the lease.
// Relies on: `expand` has ended; the slot's `finish_left` is zero. grid: any.
KERNEL __launch_bounds__(FINISH_THREADS) warprow_finish(const Lookup lookup) {
    wait_for_previous();
    if (!is_admitted(lookup)) return;
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    if (lookup.keys.dedupe == DEDUPE_BITMAP) {
        for (u64 i = thread; i < slot.uniques; i += threads) {
            u64 key = at<const u64>(lookup.unique.keys)[i];
            at<u32>(lookup.bitmap.bits)[key / 32] = 0;
            at<u32>(lookup.bitmap.summary)[key / 32768] = 0;
        }
    } else {
        forget_collected(lookup, thread, threads);
    }
    if (!is_last(slot.finish_left) || threadIdx.x >= 32) return;
    if (lookup.keys.dedupe != DEDUPE_BITMAP && threadIdx.x == 0) at<Sorting>(lookup.sort.state)->count = 0;
    release<true>(lookup);
}
