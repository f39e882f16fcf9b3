// The kernels of plans with a cache (cache.cuh), in the place of others: those that turn ids into places look for rows in the cache, and those that write
// the output have blocks more, which keep what was read from drives, and from DRAM where that is wanted. Plans without a cache take the other kernels, which
// know nothing of it.
#pragma once
#include "bitmap.cuh"
#include "dedupe.cuh"
#include "expand.cuh"
#include "prepare.cuh"

// Reads: as `prepare_updated`, and the cache's words.
// Writes: as `prepare_updated`; the cache's clock, the launch's horizon, stamps of lines that the launch uses.
// Relies on: as `prepare`.
KERNEL __launch_bounds__(SMALL_THREADS) warprow_prepare_cached(const Lookup lookup) {
    let_next_come();
    prepare<true, true>(lookup, scratch_of_block());
}

// Reads: as `mark_updated`, and the cache's words.
// Writes: as `mark_updated`, and stamps of lines that the launch uses; if its output is not pooled and known, the output rows of positions that have no key.
// Relies on: as `mark`.
KERNEL __launch_bounds__(MARK_THREADS, 4) warprow_mark_cached(const Lookup lookup) {
    wait_for_previous();
    let_next_come();
    mark<true, true>(lookup, scratch_of_block());
}

// Reads: as `hash_updated`, and the cache's words.
// Writes: as `hash_updated`, and what `mark_cached` writes.
// Relies on: as `hash`.
KERNEL __launch_bounds__(COLLECT_THREADS, 4) warprow_hash_cached(const Lookup lookup) {
    wait_for_previous();
    let_next_come();
    collect<true, true, true>(lookup, scratch_of_block(), collector_of_block());
}

// Reads: as `list_updated`, and the cache's words.
// Writes: as `list_updated`, and what `mark_cached` writes.
// Relies on: as `list`.
KERNEL __launch_bounds__(COLLECT_THREADS, 4) warprow_list_cached(const Lookup lookup) {
    wait_for_previous();
    let_next_come();
    collect<false, true, true>(lookup, scratch_of_block(), collector_of_block());
}

// Shared memory of a block that keeps rows.
DEVICE KeepShared<EXPAND_THREADS>& keep_shared_of_block() {
    SHARED(KeepShared<EXPAND_THREADS>, shared);
    return shared;
}

// What both kernels do that write the output of plans with a cache.
template <bool POOLED> DEVICE void expand_and_keep(const Lookup& lookup, const u32 how, Scratch& scratch) {
    if (!is_admitted(lookup)) return;
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    const u32 keepers = how / EXPANSION_KEEPERS, writers = gridDim.x - keepers;
    // Those that keep rows take longest, and come first.
    if (blockIdx.x == 0 && threadIdx.x == 0) note_fetched(slot, how & EXPANSION_FETCHED);
    if (blockIdx.x >= keepers) {
        // Blocks may be there since before the lines were written that they read.
        fence_gpu();
        const Bags bags = bags_of(lookup, slot.size);
        IdCounts ignored{};
        const bool is_large = !(how & EXPANSION_FETCHED) && (!(how & EXPANSION_ENDS) || (how & EXPANSION_CLEARS));
        if (POOLED) expand_bags<false, true, false>(lookup, slot, bags, scratch, ignored, writers, keepers);
        // Of large look-ups that were not fetched ahead, some positions are left at most.
        else if (is_large && serves(lookup)) put_left(lookup, slot, bags, scratch, serve_shared_of_block(), blockIdx.x - keepers, writers);
        else expand_rows<false, false, true, false>(lookup, slot, bags, scratch, ignored, writers, keepers);
    } else {
        keep_rows<EXPAND_THREADS>(lookup, slot, blockIdx.x, keepers, keep_shared_of_block());
    }
    if (how & EXPANSION_CLEARS) clear_sorting(lookup, (u64)blockIdx.x * EXPAND_THREADS + threadIdx.x, (u64)gridDim.x * EXPAND_THREADS);
    if (!(how & EXPANSION_ENDS) || !is_last(slot.expand_left) || threadIdx.x >= 32) return;
    // All blocks have read how many words there were.
    if ((how & EXPANSION_CLEARS) && threadIdx.x == 0) at<Sorting>(lookup.sort.state)->count = 0;
    release<true>(lookup);
}

// Reads: as `expand_rich_rows`, and the cache's words.
// Writes: as `expand_rich_rows`; words and lines of the cache, for rows that were read from drives.
// Relies on: as `expand_rich_rows`; the blocks that keep rows are some of the grid and not all.
KERNEL __launch_bounds__(EXPAND_THREADS, 4) warprow_expand_cached_rows(const Lookup lookup, const u32 how) {
    wait_for_previous();
    if (!(how & EXPANSION_ENDS)) let_next_come();
    expand_and_keep<false>(lookup, how, scratch_of_block());
}

// Reads: as `expand_rich_bags`, and the cache's words.
// Writes: as `expand_rich_bags`; words and lines of the cache, for rows that were read from drives.
// Relies on: as `expand_cached_rows`.
KERNEL __launch_bounds__(EXPAND_THREADS, 2) warprow_expand_cached_bags(const Lookup lookup, const u32 how) {
    wait_for_previous();
    if (!(how & EXPANSION_ENDS)) let_next_come();
    expand_and_keep<true>(lookup, how, scratch_of_block());
}
