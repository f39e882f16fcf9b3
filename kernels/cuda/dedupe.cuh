// The other ways from ids to unique keys: by a hash table and a sort of the unique keys, or by a sort of all keys. Neither needs memory of the size of
// the tables. docs/gpu.md says when which is taken.
#pragma once
#include "locate.cuh"
#include "served.cuh"
#include "sort.cuh"

constexpr u32 COLLECT_THREADS = 256;
// Positions that a block goes through before it appends what it found to the words of all blocks.
constexpr u32 COLLECTED = 4 * COLLECT_THREADS;

// Shared memory of a block that collects words.
struct Collector {
    u64 words[COLLECTED];
    u32 digits[MOST_SWEEPS * DIGITS];
    u32 count;  // words so far
    u32 begin;  // where they go among the words of all blocks
};

DEVICE Collector& collector_of_block() {
    SHARED(Collector, collector);
    return collector;
}

// The slot of a key in the hash table, which is at most half full; `is_new` becomes true if the key was not there. A slot once taken is not given to
// another key, so that a stale read costs an atomic and nothing else.
DEVICE u32 hash_slot_of(const Lookup& lookup, u64 key, bool& is_new) {
    u64* slots = at<u64>(lookup.sort.slots);
    const u64 mask = (1ull << lookup.sort.slots_log2) - 1, word = key + 1;
    for (u64 slot = key * 0x9e3779b97f4a7c15ull >> (64 - lookup.sort.slots_log2);; slot = (slot + 1) & mask) {
        u64 found = slots[slot];
        if (found == 0) {
            found = atomicCAS(slots + slot, 0ull, word);
            is_new = found == 0;
            if (is_new) return (u32)slot;
        }
        if (found == word) return (u32)slot;
    }
}

// Collects words to sort. HASHED: one for each different key, with the slot of the key in the hash table; else one for each position, with the position.
template <bool HASHED, bool UPDATED, bool CACHED = false> DEVICE void collect(const Lookup& lookup, Scratch& scratch, Collector& collector) {
    if (!is_admitted(lookup)) return;
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    Sorting& sorting = *at<Sorting>(lookup.sort.state);
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    const Bags bags = bags_of(lookup, slot.size);
    const u32 digits = lookup.sort.sweeps * DIGITS;
    for (u32 i = threadIdx.x; i < digits; i += COLLECT_THREADS) collector.digits[i] = 0;
    if (threadIdx.x == 0) collector.count = 0;
    set_up_scratch<false, UPDATED, CACHED>(lookup, bags, scratch);
    check_offsets(lookup, bags, scratch, thread, threads);
    IdCounts counts{};
    // A block that serves goes through a position a thread at a time.
    const u32 positions = CACHED ? COLLECT_THREADS : COLLECTED;
    const bool is_serving = CACHED && serves(lookup);
    for (u64 first = (u64)blockIdx.x * positions; first < bags.ids; first += (u64)gridDim.x * positions) {
        u64 row = ROW_LATER;
        for (u64 i = first + threadIdx.x; CACHED ? i < first + positions : i < bags.ids && i < first + positions; i += COLLECT_THREADS) {
            const Feature* feature;
            const bool there = !CACHED || i < bags.ids;
            u64 place = located<false, UPDATED, CACHED>(lookup, bags, scratch, i, there, feature, counts);
            if (!there) continue;
            if (is_serving && place >= PLACE_STAGED) {
                row = served_row(*feature, place);
                place = PLACE_SERVED;
            }
            u64 word = place << WORD_BITS | i;
            bool is_word = place < PLACE_STAGED;
            if (HASHED && is_word) {
                is_word = false;
                const u32 found = hash_slot_of(lookup, place, is_word);
                word = place << WORD_BITS | found;
                place = PLACE_STAGED | PLACE_HASHED | found;
            }
            // Where a position has a word of its own, `number` writes its place later.
            if (HASHED || !is_word) at<u64>(lookup.unique.places)[i] = place;
            if (is_word) collector.words[atomicAdd(&collector.count, 1u)] = word;
        }
        if constexpr (CACHED) {
            if (is_serving) put_tile(lookup, bags, scratch, serve_shared_of_block(), first, row, counts);
        }
        __syncthreads();
        if (threadIdx.x == 0 && collector.count != 0) collector.begin = atomicAdd(&sorting.count, collector.count);
        __syncthreads();
        for (u32 i = threadIdx.x; i < collector.count; i += COLLECT_THREADS) {
            const u64 word = collector.words[i];
            words_of(lookup, 0)[collector.begin + i] = word;
            for (u32 sweep = 0; sweep < lookup.sort.sweeps; ++sweep) atomicAdd(&collector.digits[sweep * DIGITS + digit_of(word, sweep)], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) collector.count = 0;
        __syncthreads();
    }
    for (u32 i = threadIdx.x; i < digits; i += COLLECT_THREADS)
        if (collector.digits[i]) atomicAdd(&sorting.digits[i], collector.digits[i]);
    sum_counts<CACHED>(counts, scratch);
    if (threadIdx.x == 0) add_sums<CACHED>(lookup, slot, scratch);
}

// Reads: ids, offsets, features, and the tables' indexes and permutations.
// Writes: the hash table, its keys with their slots as words, how many words have each digit; the place of each position, the mask; counts of ids.
// Relies on: `begin`; the hash table and the sort's state are zero. grid: any.
KERNEL __launch_bounds__(COLLECT_THREADS) warprow_hash(const Lookup lookup) {
    wait_for_previous();
    let_next_come();
    collect<true, false>(lookup, scratch_of_block(), collector_of_block());
}

// Reads: as `hash`.
// Writes: a word for each position that has a key, how many words have each digit; the place of the other positions, the mask; counts of ids.
// Relies on: `begin`; the sort's state is zero. grid: any.
KERNEL __launch_bounds__(COLLECT_THREADS) warprow_list(const Lookup lookup) {
    wait_for_previous();
    let_next_come();
    collect<false, false>(lookup, scratch_of_block(), collector_of_block());
}

// Reads: as `hash`, the overlay, as of the launch's snapshot, and lists of rows in DRAM: plans whose tables have lists, and executors that follow updates,
// launch this kernel in the place of `hash`.
// Writes: as `hash`.
// Relies on: as `hash`.
KERNEL __launch_bounds__(COLLECT_THREADS) warprow_hash_updated(const Lookup lookup) {
    wait_for_previous();
    let_next_come();
    collect<true, true>(lookup, scratch_of_block(), collector_of_block());
}

// Reads: as `list`, the overlay, as of the launch's snapshot, and lists of rows in DRAM: plans whose tables have lists, and executors that follow updates,
// launch this kernel in the place of `list`.
// Writes: as `list`.
// Relies on: as `list`.
KERNEL __launch_bounds__(COLLECT_THREADS) warprow_list_updated(const Lookup lookup) {
    wait_for_previous();
    let_next_come();
    collect<false, true>(lookup, scratch_of_block(), collector_of_block());
}

// Writes unique key number `number`, whose row has yet to be read.
DEVICE void put_unique(const Lookup& lookup, u32 number, u64 key) {
    at<u64>(lookup.unique.keys)[number] = key;
    at<u8>(lookup.unique.status)[number] = ROW_FAILED;
}

// By one thread: notes that uniques with rows in DRAM end before `number`.
DEVICE void tell_dram_uniques(SlotState& slot, u32 number) {
    slot.dram_uniques = number;
    atomicAdd(&slot.counters.rows_dram, (u64)number);
    atomicAdd(&slot.counters.rows_ssd, 0 - (u64)number);
}

// By one thread: notes how many uniques there are, the last of which is `key`.
DEVICE void tell_uniques(const Lookup& lookup, SlotState& slot, u32 count, u64 key) {
    slot.uniques = count;
    atomicAdd(&slot.counters.rows_ssd, (u64)count);
    if (key < lookup.keys.first_ssd_key) tell_dram_uniques(slot, count);
}

// Reads: the sorted words: different keys with their slots in the hash table.
// Writes: the unique keys and their status (ROW_FAILED), the number of each slot's key; how many uniques there are.
// Relies on: `hash` and all sweeps. grid: any.
KERNEL warprow_rank(const Lookup lookup) {
    wait_for_previous();
    let_next_come();
    if (!is_admitted(lookup)) return;
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    const u64 threads = (u64)gridDim.x * blockDim.x, *words = words_of(lookup, lookup.sort.sweeps);
    const u32 count = at<const Sorting>(lookup.sort.state)->count;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
        const u64 word = words[i], key = word >> WORD_BITS;
        put_unique(lookup, (u32)i, key);
        at<u32>(lookup.sort.numbers)[word & WORD_MASK] = (u32)i;
        if (key >= lookup.keys.first_ssd_key && i > 0 && words[i - 1] >> WORD_BITS < lookup.keys.first_ssd_key) tell_dram_uniques(slot, (u32)i);
        if (i + 1 == count) tell_uniques(lookup, slot, count, key);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) slot.prepared = now();
}

// Shared memory of a block of `number`.
struct NumberShared {
    u32 heads[SORT_WARPS];  // of each warp, words with another key than the word before
    u32 before;             // heads in the tiles before
    u32 tile;
};

DEVICE NumberShared& number_shared_of_block() {
    SHARED(NumberShared, shared);
    return shared;
}

// By a warp: how many uniques there are in the tiles before `tile`, which has `own` of them.
DEVICE u32 uniques_before(const Lookup& lookup, u32 tile, u32 own) {
    const u32 lane = threadIdx.x % 32, state = lookup.sort.sweeps % 2 * DIGITS;
    if (lane == 0) store_relaxed(states_of(lookup, tile) + state, (tile == 0 ? STATE_ALL : STATE_OWN) | own);
    u32 before = 0;
    for (u32 end = tile; end > 0; end -= 32) {
        // Lane 0 looks at the nearest tile. Before the first tile there is nothing.
        const u32 found = lane < end ? published_state(states_of(lookup, end - 1 - lane) + state) : STATE_ALL;
        const u32 all = __ballot_sync(FULL, found & STATE_ALL), last = all == 0 ? 31 : __ffs(all) - 1;
        before += __reduce_add_sync(FULL, lane <= last ? found & STATE_COUNT : 0);
        if (all != 0) break;
    }
    if (lane == 0 && tile > 0) store_relaxed(states_of(lookup, tile) + state, STATE_ALL | (before + own));
    return before;
}

// Reads: the sorted words: the key of each position with the position.
// Writes: the unique keys and their status (ROW_FAILED), the place of each position; how many uniques there are; states of tiles. With
// DriveQueues.writes_output the position that wants each unique, or SEVERAL.
// Relies on: `list` and all sweeps; the states of tiles that the last sweep did not use are zero. grid: any.
KERNEL __launch_bounds__(SORT_THREADS) warprow_number(const Lookup lookup) {
    wait_for_previous();
    let_next_come();
    NumberShared& shared = number_shared_of_block();
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    Sorting& sorting = *at<Sorting>(lookup.sort.state);
    if (!is_admitted(lookup)) return;
    const u32 count = sorting.count, tiles = tiles_of(count), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64* words = words_of(lookup, lookup.sort.sweeps);
    if (count == 0) {
        if (blockIdx.x == 0 && threadIdx.x == 0) slot.prepared = now();
        return;
    }
    for (;;) {
        const u32 tile = claim_tile(sorting, lookup.sort.sweeps, shared.tile);
        if (tile >= tiles) {
            // One block comes to the end first.
            if (tile == tiles && threadIdx.x == 0) slot.prepared = now();
            return;
        }
        const u32 mine = tile * SORT_TILE + warp * (SORT_ITEMS * 32) + lane;
        u64 word[SORT_ITEMS];
        u32 heads[SORT_ITEMS], sum = 0;
#pragma unroll
        for (u32 k = 0; k < SORT_ITEMS; ++k) {
            const u32 i = mine + k * 32;
            word[k] = i < count ? words[i] : 0;
            u64 before = __shfl_up_sync(FULL, word[k], 1);
            if (lane == 0 && i > 0 && i < count) before = words[i - 1];
            heads[k] = __ballot_sync(FULL, i < count && (i == 0 || lookup.keys.repeats != 0 || before >> WORD_BITS != word[k] >> WORD_BITS));
            sum += __popc(heads[k]);
        }
        if (lane == 0) shared.heads[warp] = sum;
        __syncthreads();
        u32 own = 0, number = 0;
        for (u32 i = 0; i < SORT_WARPS; ++i) {
            if (i == warp) number = own;
            own += shared.heads[i];
        }
        if (warp == 0) {
            const u32 before = uniques_before(lookup, tile, own);
            if (lane == 0) shared.before = before;
        }
        __syncthreads();
        number += shared.before;
#pragma unroll
        for (u32 k = 0; k < SORT_ITEMS; ++k) {
            const u32 i = mine + k * 32, here = number + __popc(heads[k] & (2u << lane) - 1) - 1;
            const u64 key = word[k] >> WORD_BITS;
            number += __popc(heads[k]);
            if (i >= count) continue;
            if (heads[k] >> lane & 1) {
                put_unique(lookup, here, key);
                if (lookup.queues.writes_output) {
                    // The word behind has another key, or there is none.
                    bool is_single = lookup.keys.repeats != 0 || i + 1 >= count;
                    if (!is_single) is_single = lane < 31 ? heads[k] >> (lane + 1) & 1 : words[i + 1] >> WORD_BITS != key;
                    wanted_by(lookup)[here] = is_single ? (u32)(word[k] & WORD_MASK) : SEVERAL;
                }
                if (key >= lookup.keys.first_ssd_key && i > 0 && words[i - 1] >> WORD_BITS < lookup.keys.first_ssd_key) tell_dram_uniques(slot, here);
            }
            at<u64>(lookup.unique.places)[word[k] & WORD_MASK] = PLACE_STAGED | here;
            if (i + 1 == count) tell_uniques(lookup, slot, here + 1, key);
        }
    }
}

// Clears the hash table and the sort's state, but for the number of words. By threads from `thread` on, `threads` in all.
DEVICE void forget_collected(const Lookup& lookup, u64 thread, u64 threads) {
    const u32 count = at<const Sorting>(lookup.sort.state)->count;
    const u64* words = words_of(lookup, lookup.sort.sweeps);
    for (u64 i = thread; lookup.keys.dedupe == DEDUPE_HASH && i < count; i += threads) at<u64>(lookup.sort.slots)[words[i] & WORD_MASK] = 0;
    clear_sorting(lookup, thread, threads);
}
