// The other ways from ids to unique keys: a hash table, and a sort of what is different; or a sort of all. Neither has anything of the
// size of the tables. docs/gpu.md says when which is taken.
#pragma once
#include "prepare.cuh"
#include "sort.cuh"

// Positions that a block goes through before it gives away what it found.
constexpr u32 COLLECTED = 4 * MARK_THREADS;

// What a block collects.
struct Collector {
    u64 words[COLLECTED];
    u32 digits[MOST_SWEEPS * DIGITS];
    u32 count, begin;
};

DEVICE Collector& collector_of_block() {
    SHARED Collector collector;
    return collector;
}

// The slot of a key in the hash table, which is at most half full; `is_new` becomes true if it was not there. A slot once taken is not given to another
// key, so that a stale one costs an atomic and nothing else.
DEVICE u32 slot_of(const Lookup& p, u64 key, bool& is_new) {
    u64* slots = at<u64>(p.slots);
    const u64 mask = (1ull << p.slots_log2) - 1, word = key + 1;
    for (u64 slot = key * 0x9e3779b97f4a7c15ull >> (64 - p.slots_log2);; slot = (slot + 1) & mask) {
        u64 found = slots[slot];
        if (found == 0) {
            found = atomicCAS(slots + slot, 0ull, word);
            is_new = found == 0;
            if (is_new) return (u32)slot;
        }
        if (found == word) return (u32)slot;
    }
}

// Collects words of keys: of each different one with its slot in the hash table, or of each position with that. grid: any.
template <bool HASHED, bool UPDATED> DEVICE void collect(const Lookup& p, Scratch& scratch, Collector& own) {
    if (!is_admitted(p)) return;
    SlotState& slot = *at<SlotState>(p.slot);
    Sorting& sorting = *at<Sorting>(p.sorting);
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    const Bags bags = bags_of(p, slot.size);
    const u32 digits = p.sweeps * DIGITS;
    for (u32 i = threadIdx.x; i < digits; i += MARK_THREADS) own.digits[i] = 0;
    if (threadIdx.x == 0) own.count = 0;
    set_up<false, UPDATED>(p, bags, scratch);
    check_offsets(p, bags, scratch, thread, threads);
    Marked marked{};
    for (u64 first = (u64)blockIdx.x * COLLECTED; first < bags.ids; first += (u64)gridDim.x * COLLECTED) {
        for (u64 i = first + threadIdx.x; i < bags.ids && i < first + COLLECTED; i += MARK_THREADS) {
            const Feature& feature = feature_at(p, scratch, feature_of(p, bags, scratch, i));
            u64 place = place_of<false, UPDATED>(p, feature, id_at(p.ids, p.id_type, i), marked);
            mask_at(p, feature, i, place);
            tell_missing<true>(p, feature, i, place, marked);
            u64 word = place << WORD_BITS | i;
            bool is_word = place < PLACE_STAGED;
            if (HASHED && is_word) {
                is_word = false;
                const u32 found = slot_of(p, place, is_word);
                word = place << WORD_BITS | found;
                place = PLACE_STAGED | PLACE_HASHED | found;
            }
            // Of a position with a word of its own the number is written here later.
            if (HASHED || !is_word) at<u64>(p.place)[i] = place;
            if (is_word) own.words[atomicAdd(&own.count, 1u)] = word;
        }
        __syncthreads();
        if (threadIdx.x == 0) own.begin = atomicAdd(&sorting.count, own.count);
        __syncthreads();
        for (u32 i = threadIdx.x; i < own.count; i += MARK_THREADS) {
            const u64 word = own.words[i];
            words_of(p, 0)[own.begin + i] = word;
            for (u32 sweep = 0; sweep < p.sweeps; ++sweep) atomicAdd(&own.digits[sweep * DIGITS + digit_of(word, sweep)], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) own.count = 0;
        __syncthreads();
    }
    for (u32 i = threadIdx.x; i < digits; i += MARK_THREADS)
        if (own.digits[i]) atomicAdd(&sorting.digits[i], own.digits[i]);
    sum_marked(marked, scratch);
    if (threadIdx.x == 0) add_sums(slot, scratch);
}

KERNEL __launch_bounds__(MARK_THREADS) warprow_hash(const Lookup p) {
    wait_for_previous();
    let_next_come();
    collect<true, false>(p, scratch_of_block(), collector_of_block());
}
KERNEL __launch_bounds__(MARK_THREADS) warprow_list(const Lookup p) {
    wait_for_previous();
    let_next_come();
    collect<false, false>(p, scratch_of_block(), collector_of_block());
}
// Of executors that follow updates.
KERNEL __launch_bounds__(MARK_THREADS) warprow_hash_updated(const Lookup p) {
    wait_for_previous();
    let_next_come();
    collect<true, true>(p, scratch_of_block(), collector_of_block());
}
KERNEL __launch_bounds__(MARK_THREADS) warprow_list_updated(const Lookup p) {
    wait_for_previous();
    let_next_come();
    collect<false, true>(p, scratch_of_block(), collector_of_block());
}

// The unique key number `number` is there.
DEVICE void put_unique(const Lookup& p, u32 number, u64 key) {
    at<u64>(p.unique)[number] = key;
    at<u8>(p.status)[number] = ROW_FAILED;
}

// Uniques with rows in DRAM end before this number; by one thread.
DEVICE void tell_dram_uniques(SlotState& slot, u32 number) {
    slot.dram_uniques = number;
    atomicAdd(&slot.counters.rows_dram, (u64)number);
    atomicAdd(&slot.counters.rows_ssd, 0 - (u64)number);
}

// So many uniques there are, the last of which is `key`; by one thread.
DEVICE void tell_uniques(const Lookup& p, SlotState& slot, u32 count, u64 key) {
    slot.uniques = count;
    atomicAdd(&slot.counters.rows_ssd, (u64)count);
    if (key < p.ssd_key) tell_dram_uniques(slot, count);
}

// Numbers the different keys, which are sorted, by their slots in the hash table. grid: by ids.
KERNEL warprow_rank(const Lookup p) {
    wait_for_previous();
    let_next_come();
    if (!is_admitted(p)) return;
    SlotState& slot = *at<SlotState>(p.slot);
    const u64 threads = (u64)gridDim.x * blockDim.x, *words = words_of(p, p.sweeps);
    const u32 count = at<const Sorting>(p.sorting)->count;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
        const u64 word = words[i], key = word >> WORD_BITS;
        put_unique(p, (u32)i, key);
        at<u32>(p.numbers)[word & WORD_MASK] = (u32)i;
        if (key >= p.ssd_key && i > 0 && words[i - 1] >> WORD_BITS < p.ssd_key) tell_dram_uniques(slot, (u32)i);
        if (i + 1 == count) tell_uniques(p, slot, count, key);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) slot.prepared = now();
}

// What the block of `number` shares.
struct Numbering {
    u32 heads[SORT_WARPS];
    u32 before, tile;
};

DEVICE Numbering& numbering_of_block() {
    SHARED Numbering numbering;
    return numbering;
}

// By a warp: how many uniques there are in the tiles before `tile`, which has `own`.
DEVICE u32 uniques_before(const Lookup& p, u32 tile, u32 own) {
    const u32 lane = threadIdx.x % 32, state = p.sweeps % 2 * DIGITS;
    if (lane == 0) store_relaxed(states_of(p, tile) + state, (tile == 0 ? STATE_ALL : STATE_OWN) | own);
    u32 before = 0;
    for (u32 end = tile; end > 0; end -= 32) {
        // The nearest first. Those before the first have nothing.
        const u32 found = lane < end ? published_state(states_of(p, end - 1 - lane) + state) : STATE_ALL;
        const u32 all = __ballot_sync(FULL, found & STATE_ALL), last = all == 0 ? 31 : __ffs(all) - 1;
        before += __reduce_add_sync(FULL, lane <= last ? found & STATE_COUNT : 0);
        if (all != 0) break;
    }
    if (lane == 0 && tile > 0) store_relaxed(states_of(p, tile) + state, STATE_ALL | (before + own));
    return before;
}

// Numbers the different keys among all, which are sorted, and writes the number of each position. grid: any.
KERNEL __launch_bounds__(SORT_THREADS) warprow_number(const Lookup p) {
    wait_for_previous();
    let_next_come();
    if (!is_admitted(p)) return;
    Numbering& s = numbering_of_block();
    SlotState& slot = *at<SlotState>(p.slot);
    Sorting& sorting = *at<Sorting>(p.sorting);
    const u32 count = sorting.count, tiles = tiles_of(count), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64* words = words_of(p, p.sweeps);
    for (;;) {
        const u32 tile = claim_tile(sorting, p.sweeps, s.tile);
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
            heads[k] = __ballot_sync(FULL, i < count && (i == 0 || before >> WORD_BITS != word[k] >> WORD_BITS));
            sum += __popc(heads[k]);
        }
        if (lane == 0) s.heads[warp] = sum;
        __syncthreads();
        u32 own = 0, number = 0;
        for (u32 i = 0; i < SORT_WARPS; ++i) {
            if (i == warp) number = own;
            own += s.heads[i];
        }
        if (warp == 0) {
            const u32 before = uniques_before(p, tile, own);
            if (lane == 0) s.before = before;
        }
        __syncthreads();
        number += s.before;
#pragma unroll
        for (u32 k = 0; k < SORT_ITEMS; ++k) {
            const u32 i = mine + k * 32, here = number + __popc(heads[k] & (2u << lane) - 1) - 1;
            const u64 key = word[k] >> WORD_BITS;
            number += __popc(heads[k]);
            if (i >= count) continue;
            if (heads[k] >> lane & 1) {
                put_unique(p, here, key);
                if (key >= p.ssd_key && i > 0 && words[i - 1] >> WORD_BITS < p.ssd_key) tell_dram_uniques(slot, here);
            }
            at<u64>(p.place)[word[k] & WORD_MASK] = PLACE_STAGED | here;
            if (i + 1 == count) tell_uniques(p, slot, here + 1, key);
        }
    }
}

// Forgets what was collected, but for how much. By threads from `thread`, so many.
DEVICE void forget_collected(const Lookup& p, u64 thread, u64 threads) {
    const u32 count = at<const Sorting>(p.sorting)->count;
    const u64* words = words_of(p, p.sweeps);
    for (u64 i = thread; p.dedupe == DEDUPE_HASH && i < count; i += threads) at<u64>(p.slots)[words[i] & WORD_MASK] = 0;
    clear_sorting(p, thread, threads);
}
