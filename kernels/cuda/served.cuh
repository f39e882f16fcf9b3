// Rows of large look-ups, where a plan has a cache and its rows are not pooled: the kernel that looks at the ids writes the output of all positions whose row
// it finds in memory, or that have none. What comes behind it is for the positions that are left, and has nothing to do where there are none.
#pragma once
#include "expand_rows.cuh"

// Threads of a block that serves, and positions that it goes through at a time.
constexpr u32 SERVE_THREADS = 256;

static_assert(SERVE_THREADS == 256, "blocks of mark, hash, list and expand");

// So many rows are on their way to a lane at once.
constexpr u32 SERVE_ROWS = 2;

// Instead of the address of a row: the position is served by another kernel.
constexpr u64 ROW_LATER = 2;

// What a block shares of the positions that it goes through.
struct ServeShared {
    u64 rows[SERVE_THREADS];       // addresses, ROW_NONE, ROW_LOST or ROW_LATER
    u32 positions[SERVE_THREADS];  // of those whose row was read from a drive, or was to be
    u32 count;
};

DEVICE ServeShared& serve_shared_of_block() {
    SHARED(ServeShared, shared);
    return shared;
}

// Whether the kernel that looks at the ids writes output. Who fetches rows ahead has none yet.
DEVICE bool serves(const Lookup& lookup) { return lookup.plan.pooled == 0 && lookup.output.rows != 0; }

// The address of the row of a place that has no key.
DEVICE u64 served_row(const Feature& feature, u64 place) {
    if (place == PLACE_MISSING && feature.missing == MISSING_DEFAULT) return feature.table.default_row;
    return place >= PLACE_PADDING ? ROW_NONE : place & ~PLACE_HERE;
}

// By the block: writes the output rows of positions from `first` on whose rows it shares. Whoever put a line of the cache there has fenced.
DEVICE void put_served(const Lookup& lookup, const Bags& bags, const Scratch& scratch, const ServeShared& shared, u64 first) {
    const RowGroup group = row_group<SERVE_THREADS>(lookup);
    const u32 parts = lookup.lanes.parts_of_row, items = group.number < group.count ? SERVE_THREADS * parts : 0;
    for (u32 item = group.number; item < items; item += group.count * SERVE_ROWS) {
        uint4 data[SERVE_ROWS];
        u64 rows[SERVE_ROWS];
        const Table* tables[SERVE_ROWS];
#pragma unroll
        for (u32 k = 0; k < SERVE_ROWS; ++k) {
            const u32 own = item + k * group.count, entry = parts == 1 ? own : own / parts;
            rows[k] = own < items ? shared.rows[entry] : ROW_LATER;
            tables[k] = nullptr;
            if (rows[k] == ROW_LATER) continue;
            tables[k] = &feature_at(lookup, scratch, feature_of(lookup, bags, scratch, first + entry)).table;
            data[k] = load_row(lookup, *tables[k], rows[k], own - entry * parts, group.lane);
        }
#pragma unroll
        for (u32 k = 0; k < SERVE_ROWS; ++k) {
            const u32 own = item + k * group.count, entry = parts == 1 ? own : own / parts;
            if (rows[k] != ROW_LATER) put_loaded<true>(lookup, *tables[k], rows[k], first + entry, own - entry * parts, group.lane, data[k], 0.0f);
        }
    }
}

// By the block, each thread of which has found the row of position `first` and its own number on: writes their output. A thread with a line of the cache
// fences, so that the others see the row.
DEVICE void put_tile(const Lookup& lookup, const Bags& bags, const Scratch& scratch, ServeShared& shared, u64 first, u64 row, const IdCounts& counts) {
    shared.rows[threadIdx.x] = row;
    if (counts.probed % DRAM_MISS != 0) fence_gpu();
    __syncthreads();
    put_served(lookup, bags, scratch, shared, first);
    __syncthreads();
}

// By block `block` of `blocks`: writes the output rows of the positions that were left, whose rows were read from drives or DRAM, or failed.
DEVICE void put_left(const Lookup& lookup, SlotState& slot, const Bags& bags, Scratch& scratch, ServeShared& shared, u32 block, u32 blocks) {
    if (slot.uniques == 0) return;
    set_up_scratch<false, false>(lookup, bags, scratch);
    const RowGroup group = row_group<SERVE_THREADS>(lookup);
    const u32 parts = lookup.lanes.parts_of_row;
    u32 failed = 0;
    for (u64 tile = (u64)block * SERVE_THREADS; tile < bags.ids; tile += (u64)blocks * SERVE_THREADS) {
        if (threadIdx.x == 0) shared.count = 0;
        __syncthreads();
        const u64 i = tile + threadIdx.x, place = i < bags.ids ? at<const u64>(lookup.unique.places)[i] : PLACE_SERVED;
        if (place != PLACE_SERVED) {
            const u32 entry = atomicAdd(&shared.count, 1u);
            shared.positions[entry] = threadIdx.x;
            shared.rows[entry] = row_at<false>(lookup, slot, place);
        }
        __syncthreads();
        const u32 items = group.number < group.count ? shared.count * parts : 0;
        for (u32 item = group.number; item < items; item += group.count) {
            const u32 entry = parts == 1 ? item : item / parts, part = item - entry * parts;
            const u64 row = shared.rows[entry], position = tile + shared.positions[entry];
            if (row == ROW_LOST && group.lane == 0 && part == 0) {
                ++failed;
                mask_lost(lookup, position);
            }
            const Feature& feature = feature_at(lookup, scratch, feature_of(lookup, bags, scratch, position));
            put_row<true>(lookup, feature.table, row, position, part, group.lane, row == ROW_LOST ? lost_value(lookup) : 0.0f);
        }
        __syncthreads();
    }
    if (failed) atomicAdd(&slot.counters.failed, (u64)failed);
}
