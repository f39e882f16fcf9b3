// From ids to unique keys in ascending order, by a bit for each key that there is: mark, count, place.
#pragma once
#include "locate.cuh"
#include "served.cuh"

constexpr u32 MARK_THREADS = 256;
constexpr u32 WALK_THREADS = 256;  // of `count` and `place`

// Sets the bit of a key.
DEVICE void mark_key(const Lookup& lookup, u64 key) {
    u32* word = at<u32>(lookup.bitmap.bits) + key / 32;
    u32 bit = 1u << key % 32;
    // Bits are only ever set here, so that a stale word costs an atomic and nothing else.
    if (*word & bit) return;
    if (atomicOr(word, bit) == 0) {
        u32* summary = at<u32>(lookup.bitmap.summary) + key / 32768;
        u32 block = 1u << key / 1024 % 32;
        if (!(*summary & block)) atomicOr(summary, block);
    }
}

// Sets the bit of each id's key. Traffic: each id once, 8 B for its place; a bit costs an atomic only if it is not yet set. CACHED: 64 B more for each row
// of a cached table on drives.
template <bool UPDATED, bool CACHED = false> DEVICE void mark(const Lookup& lookup, Scratch& scratch) {
    if (!is_admitted(lookup)) return;
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    const Bags bags = bags_of(lookup, slot.size);
    set_up_scratch<false, UPDATED, CACHED>(lookup, bags, scratch);
    check_offsets(lookup, bags, scratch, thread, threads);
    IdCounts counts{};
    const Feature* feature;
    if constexpr (CACHED) {
        // Whole blocks go through the positions: lanes look for rows together.
        const bool is_serving = serves(lookup);
        for (u64 first = (u64)blockIdx.x * MARK_THREADS; first < bags.ids; first += (u64)gridDim.x * MARK_THREADS) {
            const u64 i = first + threadIdx.x;
            const bool there = i < bags.ids;
            u64 place = located<false, UPDATED, true>(lookup, bags, scratch, i, there, feature, counts), row = ROW_LATER;
            if (there && place < PLACE_STAGED) mark_key(lookup, place);
            if (there && is_serving && place >= PLACE_STAGED) {
                row = served_row(*feature, place);
                place = PLACE_SERVED;
            }
            if (there) at<u64>(lookup.unique.places)[i] = place;
            if (is_serving) put_tile(lookup, bags, scratch, serve_shared_of_block(), first, row, counts);
        }
    } else {
        for (u64 i = thread; i < bags.ids; i += threads) {
            const u64 place = located<false, UPDATED, false>(lookup, bags, scratch, i, true, feature, counts);
            at<u64>(lookup.unique.places)[i] = place;
            if (place < PLACE_STAGED) mark_key(lookup, place);
        }
    }
    sum_counts<CACHED>(counts, scratch);
    if (threadIdx.x == 0) add_sums<CACHED>(lookup, slot, scratch);
}

// Reads: ids, offsets, features, and the tables' indexes and permutations.
// Writes: the place of each position, the mask, the bits and the summary of keys; counts of ids.
// Relies on: `begin`; bits and summary are zero. grid: any.
KERNEL warprow_mark(const Lookup lookup) {
    wait_for_previous();
    let_next_come();
    mark<false>(lookup, scratch_of_block());
}

// Reads: as `mark`, the overlay, as of the launch's snapshot, and lists of rows in DRAM: plans whose tables have lists, and executors that follow updates,
// launch this kernel in the place of `mark`.
// Writes: as `mark`.
// Relies on: as `mark`.
KERNEL warprow_mark_updated(const Lookup lookup) {
    wait_for_previous();
    let_next_come();
    mark<true>(lookup, scratch_of_block());
}

// The words of the summary that a warp walks.
struct SummaryRange {
    u64 begin, end;
};

// The part of the summary for warp number `warp` of `warps`.
DEVICE SummaryRange summary_range_of(const Lookup& lookup, u32 warp, u32 warps) {
    u64 words = (lookup.keys.count + 32767) / 32768;
    return SummaryRange{words * warp / warps, words * (warp + 1) / warps};
}

// By a whole warp: calls visit(first key, this lane's word of bits) for every 1,024 keys of which a bit is set, in ascending order.
template <class Visit> DEVICE void visit_marked(const Lookup& lookup, const SummaryRange& range, Visit visit) {
    u32 lane = threadIdx.x % 32;
    for (u64 first = range.begin; first < range.end; first += 32) {
        u32 mine = first + lane < range.end ? at<const u32>(lookup.bitmap.summary)[first + lane] : 0;
        for (u32 set = __ballot_sync(FULL, mine != 0); set != 0; set &= set - 1) {
            u32 word = __ffs(set) - 1;
            for (u32 bits = __shfl_sync(FULL, mine, word); bits != 0; bits &= bits - 1) {
                u64 key = (first + word) * 32768 + (u64)(__ffs(bits) - 1) * 1024;
                visit(key, at<const u32>(lookup.bitmap.bits)[key / 32 + lane]);
            }
        }
    }
}

// Reads: the summary, and the bits that it leads to.
// Writes: how many keys are in each warp's part of the summary; the slot's `uniques` and `dram_uniques`.
// Relies on: `mark`; the two numbers are zero. grid: as many warps as KeyBitmap.parts has words.
KERNEL warprow_count(const Lookup lookup) {
    wait_for_previous();
    let_next_come();
    if (!is_admitted(lookup)) return;
    u32 warp = blockIdx.x * (WALK_THREADS / 32) + threadIdx.x / 32, warps = gridDim.x * (WALK_THREADS / 32);
    u32 sum = 0, dram = 0;
    visit_marked(lookup, summary_range_of(lookup, warp, warps), [&](u64 key, u32 word) {
        sum += __popc(word);
        if (key < lookup.keys.first_ssd_key) dram += __popc(word);
    });
    for (u32 step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(FULL, sum, step);
        dram += __shfl_xor_sync(FULL, dram, step);
    }
    if (threadIdx.x % 32 != 0) return;
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    at<u32>(lookup.bitmap.parts)[warp] = sum;
    if (sum) atomicAdd(&slot.uniques, sum);
    if (dram) atomicAdd(&slot.dram_uniques, dram);
}

// Reads: the summary, the bits, and what `count` wrote.
// Writes: the unique keys in ascending order, their status (ROW_FAILED), how many come before each 1,024 keys; counts of rows.
// Relies on: `count`, with the same grid.
KERNEL warprow_place(const Lookup lookup) {
    wait_for_previous();
    let_next_come();
    if (!is_admitted(lookup)) return;
    SHARED(u32, room, [WALK_THREADS / 32]);
    SHARED(u32, totals, [WALK_THREADS / 32]);
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    u32 lane = threadIdx.x % 32, mine = threadIdx.x / 32, per_block = WALK_THREADS / 32;
    u32 before = 0;
    for (u32 i = threadIdx.x; i < blockIdx.x * per_block; i += WALK_THREADS) before += at<const u32>(lookup.bitmap.parts)[i];
    before = block_sum<WALK_THREADS>(before, room);
    if (threadIdx.x < per_block) totals[threadIdx.x] = at<const u32>(lookup.bitmap.parts)[blockIdx.x * per_block + threadIdx.x];
    __syncthreads();
    for (u32 warp = 0; warp < mine; ++warp) before += totals[warp];
    visit_marked(lookup, summary_range_of(lookup, blockIdx.x * per_block + mine, gridDim.x * per_block), [&](u64 key, u32 word) {
        u32 inclusive = __popc(word);
        for (u32 step = 1; step < 32; step *= 2) {
            u32 other = __shfl_up_sync(FULL, inclusive, step);
            if (lane >= step) inclusive += other;
        }
        if (lane == 0) at<u32>(lookup.bitmap.base)[key / 1024] = before;
        u32 to = before + inclusive - __popc(word);
        for (u32 bits = word; bits != 0; bits &= bits - 1, ++to) {
            at<u64>(lookup.unique.keys)[to] = key + lane * 32 + (__ffs(bits) - 1);
            at<u8>(lookup.unique.status)[to] = ROW_FAILED;
        }
        before += __shfl_sync(FULL, inclusive, 31);
    });
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        slot.counters.rows_dram = slot.dram_uniques;
        slot.counters.rows_ssd = slot.uniques - slot.dram_uniques;
        slot.prepared = now();
    }
}
