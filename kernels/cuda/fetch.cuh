// The kernel that brings unique rows into staging: from DRAM by loads, from drives by commands. docs/gpu.md has the protocol.
#pragma once
#include "row_reads.cuh"

// The part of a drive's rows that one queue set reads. All sets whose queue on the drive took commands when the launch began are healthy, and read
// equal parts.
struct QueueShare {
    u32 healthy_before;  // healthy sets before it
    u32 healthy;         // all healthy sets
    bool is_healthy;     // the set itself is healthy
};

// By whole warps: the share of `set` in the rows of `drive`. Every block of the drive finds the same, whenever it looks, for a queue that this launch
// poisoned counts as healthy.
DEVICE QueueShare share_of(const Lookup& lookup, u32 set, u32 drive, u64 launch) {
    QueueShare share{};
    for (u32 first = 0; first < lookup.queues.sets; first += 32) {
        u32 other = first + threadIdx.x % 32;
        bool healthy = false;
        if (other < lookup.queues.sets) {
            const QueueState& state = *at<QueueState>(at<QueueDescriptor>(lookup.queues.descriptors)[other * lookup.queues.drives + drive].state);
            healthy = load_relaxed(&state.poison) == WR_FAULT_NONE;
            if (!healthy) {
                fence_acquire();
                healthy = load_relaxed(&state.poisoned_by) == launch;
            }
        }
        u32 bits = __ballot_sync(FULL, healthy);
        u32 below = set <= first ? 0 : set - first < 32 ? (1u << (set - first)) - 1 : FULL;
        share.healthy_before += __popc(bits & below);
        share.healthy += __popc(bits);
        if (set / 32 == first / 32) share.is_healthy = bits >> set % 32 & 1;
    }
    return share;
}

// Reads: the unique keys, rows in DRAM, and rows on drives by way of the queues.
// Writes: rows to staging, or with DriveQueues.writes_output those that one position wants to the output, and their status; the queues, their states, and their faults in pinned memory; counts of commands, bytes and rows.
// Relies on: `prepare`, `place`, `rank` or `number` has ended; every status is ROW_FAILED. grid: sets * drives submitting blocks, then gatherers.
// The submitting block of a set and a drive owns their queue until it exits. Where no queue on a drive takes commands, the drive's rows fail. `early`: the
// next kernel has few blocks, so that they may start now and wait. Many blocks that wait for drives would keep other work off the GPU.
KERNEL __launch_bounds__(FETCH_THREADS, 2) warprow_fetch(const Lookup lookup, const u32 early) {
    wait_for_previous();
    if (early) let_next_come();
    if (!is_admitted(lookup)) return;
    const SlotState& slot = *at<SlotState>(lookup.slot.state);
    u32 submitters = lookup.queues.sets * lookup.queues.drives;
    if (blockIdx.x >= submitters) {
        gather(lookup, blockIdx.x - submitters, gridDim.x - submitters);
        if (lookup.plan.scaled) gather_scales(lookup, blockIdx.x - submitters, gridDim.x - submitters);
        return;
    }
    u32 cold = slot.uniques - slot.dram_uniques;
    // While the gate is closed the host may be changing the queues. The status of the rows stays ROW_FAILED.
    if (cold == 0 || slot.gate_was_closed) return;
    QueueShare share = share_of(lookup, blockIdx.x / lookup.queues.drives, blockIdx.x % lookup.queues.drives, slot.launch);
    if (!share.is_healthy) {
        if (threadIdx.x == 0) atomicAdd(&at<SlotState>(lookup.slot.state)->faults, 1u);
        return;
    }
    u32 begin = slot.dram_uniques + (u32)((u64)cold * share.healthy_before / share.healthy);
    u32 end = slot.dram_uniques + (u32)((u64)cold * (share.healthy_before + 1) / share.healthy);
    RowsRest rows;
    if (begin < end) submit(lookup, at<QueueDescriptor>(lookup.queues.descriptors)[blockIdx.x], begin, end, submit_shared_of_block(), rows);
}
