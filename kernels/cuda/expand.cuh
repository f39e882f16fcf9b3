// The kernels that write the output from rows in staging and in GPU memory.
#pragma once
#include "expand_bags.cuh"
#include "expand_rows.cuh"
#include "finish.cuh"

constexpr u32 EXPAND_THREADS = 256;

// By one thread: notes when all rows were there. `ahead`: they were fetched ahead, and the time since then is no part of the look-up's.
DEVICE void note_fetched(SlotState& slot, const bool ahead) {
    const u64 at = now(), rest = ahead ? at - slot.fetched : 0;
    slot.fetched = at;
    slot.began += rest;
    slot.prepared += rest;
}

// What all four kernels do. `how`: bits of Expansion.
template <bool POOLED, bool RICH> DEVICE void expand(const Lookup& lookup, const u32 how, Scratch& scratch) {
    if (!is_admitted(lookup)) return;
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    if (blockIdx.x == 0 && threadIdx.x == 0) note_fetched(slot, how & EXPANSION_FETCHED);
    const Bags bags = bags_of(lookup, slot.size);
    IdCounts ignored{};
    if (POOLED) expand_bags<false, RICH, false>(lookup, slot, bags, scratch, ignored); else expand_rows<false, false, RICH, false>(lookup, slot, bags, scratch, ignored);
    if ((how & EXPANSION_ENDS) && is_last(slot.expand_left) && threadIdx.x < 32) release<RICH>(lookup);
}

// Rows and bags have kernels of their own, for one needs more registers than the other.

// Reads: the places of positions, the status of unique rows, rows in staging, in GPU memory and, after `prepare`, in DRAM.
// Writes: one output row for each id, and the mask of those that failed; with EXPANSION_ENDS what `finish` writes of the report, the gate and the lease.
// Relies on: `fetch` has ended; the slot's `expand_left` is zero. Tables are of the output's element. grid: any.
KERNEL __launch_bounds__(EXPAND_THREADS) warprow_expand_rows(const Lookup lookup, const u32 how) {
    wait_for_previous();
    if (!(how & EXPANSION_ENDS)) let_next_come();
    expand<false, false>(lookup, how, scratch_of_block());
}

// Reads: as `expand_rows`, and offsets and weights.
// Writes: one output row for each bag; the rest as `expand_rows`.
// Relies on: as `expand_rows`, but tables are of ELEMENT_F32 to ELEMENT_U8.
KERNEL __launch_bounds__(EXPAND_THREADS, 2) warprow_expand_bags(const Lookup lookup, const u32 how) {
    wait_for_previous();
    if (!(how & EXPANSION_ENDS)) let_next_come();
    expand<true, false>(lookup, how, scratch_of_block());
}

// Reads: as `expand_rows`.
// Writes: as `expand_rows`.
// Relies on: as `expand_rows`, but tables are of any element, in groups of lanes that are parts of a warp: rich plans take this one.
KERNEL __launch_bounds__(EXPAND_THREADS, 4) warprow_expand_rich_rows(const Lookup lookup, const u32 how) {
    wait_for_previous();
    if (!(how & EXPANSION_ENDS)) let_next_come();
    expand<false, true>(lookup, how, scratch_of_block());
}

// Reads: as `expand_bags`.
// Writes: as `expand_bags`.
// Relies on: as `expand_bags`, but tables are of any element: rich plans take this one.
KERNEL __launch_bounds__(EXPAND_THREADS, 2) warprow_expand_rich_bags(const Lookup lookup, const u32 how) {
    wait_for_previous();
    if (!(how & EXPANSION_ENDS)) let_next_come();
    expand<true, true>(lookup, how, scratch_of_block());
}
