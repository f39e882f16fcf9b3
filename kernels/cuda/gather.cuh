// Unique rows from DRAM into staging, by loads; and scales of rows on drives that drives do not have.
#pragma once
#include "common.cuh"

constexpr u32 FETCH_THREADS = WR_LANES;

// By block `block` of `blocks`: copies the unique rows that lie in DRAM. A group of lanes shares a row, each lane 16 B at a time, and has UNROLL rows
// under way. Warps take consecutive keys at the same time and move on together: what is being read is a window that moves up the addresses.
// Traffic: each row once over the bus, once into staging.
DEVICE void gather(const Lookup& lookup, u32 block, u32 blocks) {
    constexpr u32 UNROLL = 4;
    const SlotState& slot = *at<SlotState>(lookup.slot.state);
    u32 group = 1u << lookup.lanes.group_log2, lane = threadIdx.x & (group - 1);
    u64 groups = (u64)blocks * FETCH_THREADS / group;
    u64 first = ((u64)block * FETCH_THREADS + threadIdx.x) / group;
    for (u64 unique = first; unique < slot.dram_uniques; unique += groups * UNROLL) {
        const uint4* from[UNROLL];
        u32 quads[UNROLL], skew[UNROLL], most = 0;
        for (u32 i = 0; i < UNROLL; ++i) {
            u64 number = unique + i * groups;
            quads[i] = skew[i] = 0;
            from[i] = nullptr;
            if (number >= slot.dram_uniques) continue;
            u64 key = at<const u64>(lookup.unique.keys)[number];
            const Segment& segment = segment_of(lookup, key);
            const Table& table = at<Table>(lookup.plan.tables)[segment.table];
            u64 row = table.dram + (key - segment.first_key) * table.row_stride;
            from[i] = at<const uint4>(row);
            quads[i] = table.row_stride / 16;
            skew[i] = skew_of(lookup, row);
            most = quads[i] + skew[i] > most ? quads[i] + skew[i] : most;
        }
        for (u32 own = lane; own < most; own += group) {
            uint4 data[UNROLL];
            // Before a row's begin, `own` less the skew wraps to beyond its end.
            for (u32 i = 0; i < UNROLL; ++i)
                if (own - skew[i] < quads[i]) data[i] = from[i][own - skew[i]];
            for (u32 i = 0; i < UNROLL; ++i)
                if (own - skew[i] < quads[i]) at<uint4>(lookup.unique.staging + (unique + i * groups) * lookup.unique.staging_stride)[own - skew[i]] = data[i];
        }
    }
}

// By block `block` of `blocks`: puts the scales of the unique rows on drives into staging, while other blocks read the rows. Each thread follows the scales of
// a row, which are few bytes.
DEVICE void gather_scales(const Lookup& lookup, u32 block, u32 blocks) {
    const SlotState& slot = *at<SlotState>(lookup.slot.state);
    const u32 step = blocks * FETCH_THREADS;
    for (u64 unique = slot.dram_uniques + (u64)block * FETCH_THREADS + threadIdx.x; unique < slot.uniques; unique += step)
        put_scales(lookup, at<const u64>(lookup.unique.keys)[unique], unique);
}
