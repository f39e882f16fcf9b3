// One output row for each id. The host executor's arithmetic, bit for bit.
#pragma once
#include "locate.cuh"
#include "put_row.cuh"

// The 16 B that lane `lane` holds of part `part` of a row, zeros past its end. `row`: as for put_row.
DEVICE uint4 load_row(const Lookup& lookup, const Table& table, u64 row, u32 part, u32 lane) {
    // A number before the row's begin wraps to beyond its end.
    const u32 quad = part * lookup.lanes.row_lanes + lane - skew_of(lookup, row);
    return row > ROW_LOST && quad < (table.row_bytes + 15) / 16 ? at<const uint4>(row)[quad] : uint4{};
}

// By the lanes that share a row, of which this one is number `lane`: writes part `part` of the output row of position `i`. `row`: the address of its row in
// memory; up to ROW_LOST: it has none. `data`: what load_row gave. `rest`: what elements of the output row are that no row has. RICH: rows may be of any
// element, else all are of the output's.
template <bool RICH> DEVICE void put_loaded(const Lookup& lookup, const Table& table, u64 row, u64 i, u32 part, u32 lane, const uint4& data, float rest) {
    const u32 lanes = lookup.lanes.row_lanes, parts = lookup.lanes.parts_of_row, out_bytes = element_bytes(lookup.output.element);
    // Groups of lanes are parts of a warp, or else follow each other without gaps.
    const bool aligned = lanes == 1u << lookup.lanes.group_log2;
    const u64 out = lookup.output.rows + i * lookup.output.row_stride * out_bytes;
    const u32 own = part * lanes + lane, dim = row > ROW_LOST ? table.dim : 0;
    // A number before the row's begin wraps to beyond its end.
    const u32 quad = own - skew_of(lookup, row);
    if (table.element == lookup.output.element) {
        const bool holds = dim != 0 && quad < (table.row_bytes + 15) / 16;
        const bool by_words = (out | table.row_bytes) % 16 != 0 && (out | table.row_bytes) % 4 == 0 && lanes >= 4 && aligned;
        if (dim != 0 && by_words) put_words(out, table.row_bytes, quad - lane, lanes, data);
        else if (holds) put_quad(out + quad * 16, table.row_bytes - quad * 16, data);
    } else if (RICH) {
        if (dim != 0) put_widened(lookup, out, table, row, quad - lane, data);
    }
    for (u32 e = dim + own; e < lookup.output.width; e += parts * lanes) narrow(out, lookup.output.element, e, rest);
}

// As put_loaded, of a row that is loaded for it.
template <bool RICH> DEVICE void put_row(const Lookup& lookup, const Table& table, u64 row, u64 i, u32 part, u32 lane, float rest) {
    const bool is_read = RICH || table.element == lookup.output.element;
    put_loaded<RICH>(lookup, table, row, i, part, lane, is_read ? load_row(lookup, table, row, part, lane) : uint4{}, rest);
}

// Lanes that share rows, in one block.
struct RowGroup {
    u32 number, count;  // of this one, and of all; lanes that are left over have a number beyond
    u32 lane;
};

// The group of a thread, in blocks of so many threads.
template <u32 THREADS> DEVICE RowGroup row_group(const Lookup& lookup) {
    const u32 lanes = lookup.lanes.row_lanes;
    if (lanes == 1u << lookup.lanes.group_log2) {
        const u32 log2 = lookup.lanes.group_log2;
        return RowGroup{threadIdx.x >> log2, THREADS >> log2, threadIdx.x & (lanes - 1)};
    }
    const u32 number = threadIdx.x / lanes;
    return RowGroup{number, THREADS / lanes, threadIdx.x - number * lanes};
}

// Writes one output row for each id. RowLanes.row_lanes lanes share a row, or a part of it, each with 16 B: rows begin at multiples of 16 B and are
// padded to them. Traffic: 8 B a position, the row from staging or GPU memory, the row out.
// DIRECT: nothing was prepared, and each row is read where it lies. ONE_FEATURE: the plan has one feature.
// RICH: rows may be of any element, else all are of the output's. UPDATED: the overlay may have newer rows.
// `blocks`: so many blocks write, from block `first_block` of the grid on.
template <bool DIRECT, bool ONE_FEATURE, bool RICH, bool UPDATED> DEVICE void expand_rows(const Lookup& lookup, SlotState& slot, const Bags& bags, Scratch& scratch, IdCounts& counts, const u32 blocks = gridDim.x, const u32 first_block = 0) {
    const u32 lanes = lookup.lanes.row_lanes, parts = lookup.lanes.parts_of_row;
    const bool aligned = lanes == 1u << lookup.lanes.group_log2;
    const u32 thread = (blockIdx.x - first_block) * blockDim.x + threadIdx.x, threads = blocks * blockDim.x;
    const u32 group = aligned ? thread >> lookup.lanes.group_log2 : thread / lanes, lane = thread - group * lanes;
    const u64 groups = aligned ? threads >> lookup.lanes.group_log2 : threads / lanes, items = bags.ids * parts;
    // The last of the threads may be too few for a group.
    u64 item = group < groups ? group : items, end = 0;
    u32 failed = 0, number = 0;
    // Loads that wait for nothing come first.
    u64 next = item < items ? input_at<DIRECT>(lookup, parts == 1 ? item : divide(item, parts)) : 0;
    set_up_scratch<ONE_FEATURE, UPDATED>(lookup, bags, scratch);
    for (; item < items; item += groups) {
        const u64 i = parts == 1 ? item : divide(item, parts), input = next;
        if (item + groups < items) next = input_at<DIRECT>(lookup, parts == 1 ? item + groups : divide(item + groups, parts));
        const u32 part = (u32)(item - i * parts);
        if (!ONE_FEATURE && i >= end) number = feature_from(lookup, bags, scratch, i, number, end);
        const Feature& feature = ONE_FEATURE ? lookup.plan.first_feature : feature_at(lookup, scratch, number);
        const Table& table = feature.table;
        IdCounts own_counts{};
        u64 place = DIRECT ? place_of<true, UPDATED>(lookup, feature, input, own_counts) : input;
        u64 row = row_at<DIRECT>(lookup, slot, place);
        const bool leads = lane == 0 && part == 0;
        if (DIRECT && leads) {
            report_missing<RICH>(lookup, feature, i, place, own_counts);
            add_counts(counts, own_counts);
            write_mask(lookup, feature, i, place);
        }
        if (row == ROW_LOST && leads) {
            ++failed;
            mask_lost(lookup, i);
        }
        if (place == PLACE_MISSING && feature.missing == MISSING_DEFAULT) row = table.default_row;
        const float rest = !DIRECT && row == ROW_LOST ? lost_value(lookup) : 0.0f;
        put_row<RICH>(lookup, table, row, i, part, lane, rest);
    }
    if (failed) atomicAdd(&slot.counters.failed, (u64)failed);
}
