// The kernel that writes the output rows that no block of `fetch` has written: of rows in memory, of rows that several positions want, of missing ids, of rows
// that failed.
#pragma once
#include "expand.cuh"

// What unwritten_row gives where nothing is left to write.
constexpr u64 ROW_DONE = 2;

// The address of the row of a place, as row_at; ROW_DONE: its output row is written. Of launches that sort all keys.
DEVICE u64 unwritten_row(const Lookup& lookup, const SlotState& slot, u64 place) {
    if (place >= PLACE_PADDING) return ROW_NONE;
    if (place & PLACE_HERE) return place & ~PLACE_HERE;
    const u32 unique = (u32)place, status = unique >= slot.dram_uniques ? at<const u8>(lookup.unique.status)[unique] : ROW_READ;
    if (status == ROW_WRITTEN) return ROW_DONE;
    return status == ROW_READ ? lookup.unique.staging + (u64)unique * lookup.unique.staging_stride : ROW_LOST;
}

// A warp looks at 32 positions at once and copies the rows that are left, each lane 16 B at a time. Traffic: 8 B a position, 1 B of those whose row lies on
// drives, and what is copied.
DEVICE void expand_unwritten(const Lookup& lookup, SlotState& slot, const Bags& bags, Scratch& scratch) {
    constexpr u32 UNROLL = 4;
    const u32 lane = threadIdx.x % 32, warps = gridDim.x * (blockDim.x / 32), warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const u32 bytes = lookup.output.width * element_bytes(lookup.output.element);
    const u64 stride = lookup.output.row_stride * element_bytes(lookup.output.element);
    u32 failed = 0;
    set_up_scratch<false, false>(lookup, bags, scratch);
    for (u64 first = (u64)warp * 32; first < bags.ids; first += (u64)warps * 32) {
        const u64 i = first + lane;
        u64 row = ROW_DONE;
        if (i < bags.ids) {
            const u64 place = input_at<false>(lookup, i);
            row = unwritten_row(lookup, slot, place);
            if (place == PLACE_MISSING) {
                const Feature& feature = feature_at(lookup, scratch, feature_of(lookup, bags, scratch, i));
                if (feature.missing == MISSING_DEFAULT) row = feature.table.default_row;
            }
            if (row == ROW_LOST) {
                ++failed;
                mask_lost(lookup, i);
            }
        }
        // What no row has.
        for (u32 left = __ballot_sync(FULL, row <= ROW_LOST); left != 0; left &= left - 1) {
            const u32 source_lane = __ffs(left) - 1;
            const float value = __shfl_sync(FULL, row, source_lane) == ROW_LOST ? lost_value(lookup) : 0.0f;
            const u64 out = lookup.output.rows + (first + source_lane) * stride;
            for (u32 e = lane; e < lookup.output.width; e += 32) narrow(out, lookup.output.element, e, value);
        }
        for (u32 left = __ballot_sync(FULL, row > ROW_DONE); left != 0;) {
            u64 from[UNROLL], to[UNROLL];
#pragma unroll
            for (u32 k = 0; k < UNROLL; ++k) {
                const u32 source_lane = left != 0 ? __ffs(left) - 1 : 0;
                const u64 source = __shfl_sync(FULL, row, source_lane);
                from[k] = left != 0 ? source : 0;
                to[k] = lookup.output.rows + (first + source_lane) * stride;
                left &= left - 1;
            }
            for (u32 byte = lane * 16; byte < bytes; byte += 512) {
                uint4 data[UNROLL];
#pragma unroll
                for (u32 k = 0; k < UNROLL; ++k)
                    if (from[k] != 0) data[k] = *at<const uint4>(from[k] + byte);
#pragma unroll
                for (u32 k = 0; k < UNROLL; ++k)
                    if (from[k] != 0) *at<uint4>(to[k] + byte) = data[k];
            }
        }
    }
    if (failed) atomicAdd(&slot.counters.failed, (u64)failed);
}

// Reads: as `expand_rows`.
// Writes: one output row for each id, but for those that `fetch` has written, and the mask of those that failed.
// Relies on: DriveQueues.writes_output, and what it says of rows; `fetch` has ended. grid: any.
KERNEL __launch_bounds__(EXPAND_THREADS) warprow_expand_unwritten(const Lookup lookup) {
    wait_for_previous();
    let_next_come();
    if (!is_admitted(lookup)) return;
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    if (blockIdx.x == 0 && threadIdx.x == 0) note_fetched(slot, false);
    expand_unwritten(lookup, slot, bags_of(lookup, slot.size), scratch_of_block());
}
