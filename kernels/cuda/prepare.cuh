// The first kernel of a look-up of few ids: one block finds the unique keys of up to SMALL ids, in ascending order, by a sort in shared memory.
#pragma once
#include "admit.cuh"
#include "block_sort.cuh"
#include "locate.cuh"

constexpr u32 SMALL_THREADS = 1024;
constexpr u32 SMALL = 8192;          // ids at most

// The sort: each lane has so many words of a warp's chunk.
constexpr u32 WORDS_PER_LANE = SMALL / SMALL_THREADS;
constexpr u32 CHUNK = 32 * WORDS_PER_LANE;

// What the block shares besides its Scratch and the words.
struct PrepareShared {
    u32 room[SMALL_THREADS / 32];
    u32 admitted;
    u32 keyed;  // positions with a key
    u32 dram;   // different keys of rows in DRAM
};

DEVICE PrepareShared& prepare_shared_of_block() {
    SHARED(PrepareShared, shared);
    return shared;
}

// What the kernels `begin`, `mark`, `count` and `place` do for many ids, by one block. Only rows on drives are deduplicated and staged, and with CACHED those in
// DRAM that may be cached; other rows in DRAM are read where they lie.
template <bool UPDATED, bool CACHED = false> DEVICE void prepare(const Lookup& lookup, Scratch& scratch) {
    DYNAMIC_SHARED(words);
    PrepareShared& shared = prepare_shared_of_block();
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    if (threadIdx.x == 0) {
        shared.admitted = admit(lookup);
        // Updated rows are looked for in the snapshot, so that it has to be known first.
        if (UPDATED && !CACHED && lookup.plan.overlay != 0 && shared.admitted) pass_gate<true>(lookup);
    }
    __syncthreads();
    if (!shared.admitted) return;
    // Only updates have the gate come before ids; and a launch that asks the cache has a number first. Two warps, so that neither waits for what the other
    // waits for.
    const bool follows = UPDATED && lookup.plan.overlay != 0;
    if (CACHED && follows && threadIdx.x == 0) pass_gate<true>(lookup);
    if (CACHED && threadIdx.x == 32) {
        enter_cache(lookup, slot);
        set_up_cache(lookup, slot);
    }
    const Bags bags = bags_of(lookup, slot.size);
    if (threadIdx.x == 0) shared.keyed = shared.dram = 0;
    set_up_scratch<false, UPDATED>(lookup, bags, scratch);
    // One warp passes the gate while the others look at ids; nobody asks what it found before the next kernel.
    if (!follows && threadIdx.x == SMALL_THREADS - 32) pass_gate<false>(lookup);
    check_offsets(lookup, bags, scratch, threadIdx.x, SMALL_THREADS);
    IdCounts counts{};
    // Lanes look for rows in the cache together, so that all of a warp come along.
    for (u32 i = threadIdx.x; (CACHED ? i - threadIdx.x % 32 : i) < bags.ids; i += SMALL_THREADS) {
        const Feature* feature;
        const bool there = i < bags.ids;
        const u64 place = located<true, UPDATED, CACHED>(lookup, bags, scratch, i, there, feature, counts);
        if (!there) continue;
        at<u64>(lookup.unique.places)[i] = place;
        if (place < PLACE_STAGED) words[atomicAdd(&shared.keyed, 1u)] = place << POSITION_BITS | i;
    }
    sum_counts<CACHED>(counts, scratch);
    if (threadIdx.x == 0) add_sums<CACHED>(lookup, slot, scratch);
    u32 size = CHUNK;
    while (size < shared.keyed) size *= 2;
    for (u32 i = shared.keyed + threadIdx.x; i < size; i += SMALL_THREADS) words[i] = NO_KEY;
    __syncthreads();
    block_sort<SMALL_THREADS, WORDS_PER_LANE>(words, size);
    // Each warp numbers the different keys of its chunk, 32 words at a time.
    const u32 lane = threadIdx.x % 32, first = threadIdx.x / 32 * CHUNK + lane;
    u64 own_words[WORDS_PER_LANE];
    u32 heads[WORDS_PER_LANE], number = 0, total;
#pragma unroll
    for (u32 k = 0; k < WORDS_PER_LANE; ++k) {
        const u32 i = first + 32 * k;
        own_words[k] = i < size ? words[i] : NO_KEY;
        const u64 before = i == 0 || i >= size ? NO_KEY : words[i - 1];
        heads[k] = __ballot_sync(FULL, own_words[k] != NO_KEY && before >> POSITION_BITS != own_words[k] >> POSITION_BITS);
        number += __popc(heads[k]);
        if constexpr (CACHED) {
            const u32 dram = __ballot_sync(FULL, own_words[k] >> POSITION_BITS < lookup.keys.first_ssd_key) & heads[k];
            if (lane == 0 && dram != 0) atomicAdd(&shared.dram, (u32)__popc(dram));
        }
    }
    // The heads of all warps before this one.
    number = block_scan<SMALL_THREADS>(lane == 31 ? number : 0, shared.room, total);
#pragma unroll
    for (u32 k = 0; k < WORDS_PER_LANE; ++k) {
        if (own_words[k] != NO_KEY) {
            // The number of the latest head up to this lane.
            const u32 unique = number + __popc(heads[k] & (FULL >> (31 - lane))) - 1;
            if (heads[k] >> lane & 1) {
                at<u64>(lookup.unique.keys)[unique] = own_words[k] >> POSITION_BITS;
                at<u8>(lookup.unique.status)[unique] = ROW_FAILED;
            }
            at<u64>(lookup.unique.places)[own_words[k] & ((1u << POSITION_BITS) - 1)] = PLACE_STAGED | unique;
        }
        number += __popc(heads[k]);
    }
    if (threadIdx.x == 0) {
        slot.uniques = total;
        // The scan's barriers came behind what the warps have added.
        const u32 dram = CACHED ? shared.dram : 0;
        if (CACHED) slot.counters.rows_dram = slot.dram_uniques = dram;
        slot.counters.rows_ssd = total - dram;
        slot.prepared = now();
    }
}

// Reads: ids, offsets, features, the tables' indexes and permutations; the slot's lease and gate, and counts in device memory.
// Writes: the launch's fields of SlotState; the place of each position, the mask, the unique keys in ascending order and their status (ROW_FAILED).
// Relies on: a batch of up to SMALL ids; one block, with dynamic shared memory of 8 B for each id, rounded up to a power of two of CHUNK or more.
KERNEL __launch_bounds__(SMALL_THREADS) warprow_prepare(const Lookup lookup) {
    let_next_come();
    prepare<false>(lookup, scratch_of_block());
}

// Reads: as `prepare`, the overlay, as of a snapshot that the kernel takes, and lists of rows in DRAM. Plans whose tables have lists, and executors that
// follow updates, launch it in the place of `prepare`.
// Writes: as `prepare`, and the launch's snapshot.
// Relies on: as `prepare`.
KERNEL __launch_bounds__(SMALL_THREADS) warprow_prepare_updated(const Lookup lookup) {
    let_next_come();
    prepare<true>(lookup, scratch_of_block());
}
