// One output row for each bag: rows are pooled. The host executor's arithmetic, bit for bit.
#pragma once
#include "long_bags.cuh"
#include "single_bags.cuh"

// Up to 32 rows that a warp adds to a sum, one a lane.
struct Addends {
    u64 row;      // address of this lane's row, or ROW_NONE
    u32 present;  // a bit for each lane that has a row
    float weight;
};

// Adds the addends, rows of elements of BITS bits, in order to a lane's sums: of each row, EACH elements from `first` on. Several rows are under way
// at once, for a bag may be long and bags may be few. Where rows have scales, each lane loads one of them for all lanes. Each row costs two shuffles for
// its address, one for a weight, two for a scale, and a load of 16 to 2 B, and of 1 B where blocks have scales; each element costs a conversion, at most two products, and at most two sums.
template <u32 BITS, u32 EACH> DEVICE void add_rows(const Feature& feature, const Addends& addends, u32 first, float (&sum)[4]) {
    constexpr u32 ROWS = EACH == 1 ? 32 : EACH == 2 ? 16 : 8;
    const Table& table = feature.table;
    const bool has_scale = BITS <= 8 && is_scaled(table.element), blocks = BITS <= 8 && has_blocks(table.element);
    Scale own{};
    if (has_scale && addends.row != ROW_NONE) own = load_scale(addends.row, table.element, table.dim);
    // No bit is set past the last row.
    for (u32 row = 0; row < 32 && addends.present >> row != 0; row += ROWS) {
        Raw<BITS, EACH> raw[ROWS];
        u8 block[ROWS];
#pragma unroll
        for (u32 j = 0; j < ROWS; ++j) {
            const u64 address = __shfl_sync(FULL, addends.row, row + j);
            const bool wanted = addends.present >> (row + j) & 1 && first < table.dim;
            raw[j] = wanted ? load_part<BITS, EACH>(address, first) : Raw<BITS, EACH>{};
            block[j] = blocks && wanted ? at<const u8>(address)[block_at(table.element, table.dim, first)] : 0;
        }
#pragma unroll
        for (u32 j = 0; j < ROWS; ++j) {
            Scale by{};
            if (has_scale) by = Scale{__shfl_sync(FULL, own.scale, row + j), __shfl_sync(FULL, own.bias, row + j)};
            if (blocks) by.scale = block_scale(table.element, block[j], by);
            const float factor = feature.weighted ? __shfl_sync(FULL, addends.weight, row + j) : 1.0f;
            if (!(addends.present >> (row + j) & 1)) continue;
            const Values<EACH> values = widen_part<BITS, EACH>(table.element, raw[j], by);
            for (u32 e = 0; e < EACH; ++e) {
                const float value = feature.weighted ? __fmul_rn(factor, values.value[e]) : values.value[e];
                sum[e] = __fadd_rn(sum[e], value);
            }
        }
    }
}

// By a warp: pools a bag, or the warp's part of it. A lane sums four neighbouring elements, or those of one word where warps share a bag, so that a
// warp reads whole lines of 128 B. Each byte of a row is read once; the next positions are loaded meanwhile.
template <bool DIRECT, bool RICH, bool UPDATED>
DEVICE void add_up(const Lookup& lookup, const SlotState& slot, const Feature& feature, const Bag& bag, u32& failed, IdCounts& counts) {
    const Table& table = feature.table;
    const u32 lane = threadIdx.x % 32, bits = element_bits(table.element);
    const u32 each = bag.parts > 1 && bits > 8 ? 32 / bits : 4;
    for (u32 from = bag.part * 32 * each; from < table.dim; from += bag.parts * 32 * each) {
        const u32 first = from + lane * each;
        float sum[4] = {};
        BagTally tally{};
        u64 next = bag.begin + lane < bag.end ? input_at<DIRECT>(lookup, bag.begin + lane) : 0;
        for (u64 tile = bag.begin; tile < bag.end; tile += 32) {
            const u64 i = tile + lane, input = next;
            Addends addends{ROW_NONE, 0, feature.weighted && i < bag.end ? at<const float>(lookup.batch.weights)[i] : 1.0f};
            if (i + 32 < bag.end) next = input_at<DIRECT>(lookup, i + 32);
            if (i < bag.end) addends.row = addend_at<DIRECT, RICH, UPDATED>(lookup, slot, feature, i, input, from == 0, tally, failed, counts);
            addends.present = __ballot_sync(FULL, addends.row != ROW_NONE);
            switch (bits) {
                case 32:
                    if (each == 1) add_rows<32, 1>(feature, addends, first, sum); else add_rows<32, 4>(feature, addends, first, sum);
                    break;
                case 16:
                    if (each == 2) add_rows<16, 2>(feature, addends, first, sum); else add_rows<16, 4>(feature, addends, first, sum);
                    break;
                case 8: add_rows<8, 4>(feature, addends, first, sum); break;
                default:
                    if (RICH) add_rows<4, 4>(feature, addends, first, sum);
            }
        }
        for (u32 step = 16; step > 0; step /= 2) tally.counted += __shfl_xor_sync(FULL, tally.counted, step);
        const bool lost = __ballot_sync(FULL, tally.lost) != 0;
        if (first >= table.dim) continue;
        for (u32 e = 0; e < 4; ++e) {
            if (lost) sum[e] = lost_value(lookup);
            else if (feature.pooling == POOLING_MEAN && tally.counted != 0) sum[e] = __fdiv_rn(sum[e], (float)tally.counted);
        }
        if (each == 4) {
            put_four(bag.out, lookup.output.element, first, table.dim, Four{{sum[0], sum[1], sum[2], sum[3]}});
        } else {
            for (u32 e = 0; e < 2; ++e)
                if (e < each && first + e < table.dim) narrow(bag.out, lookup.output.element, first + e, sum[e]);
        }
    }
}

// By warps, of which this one is `own` of `warps`: pools the bags of features whose bags have one id at most on the average. A longer bag of such a feature is
// pooled by itself.
template <bool DIRECT, bool RICH, bool UPDATED>
DEVICE void expand_single_bags(const Lookup& lookup, const SlotState& slot, const Bags& all_bags, const Scratch& scratch, u64 own, u64 warps, bool& flawed, u32& failed, IdCounts& counts) {
    const u32 out_bytes = element_bytes(lookup.output.element), lane = threadIdx.x % 32;
    const u32 at_once = singles_at_once(lookup.plan.feature_count * all_bags.per_feature, warps);
    const u64 groups = divide(all_bags.per_feature + at_once - 1, at_once);
    for (u64 item = own; item < lookup.plan.feature_count * groups; item += warps) {
        const u32 number = (u32)divide(item, groups);
        if (!has_single_bags(lookup, all_bags, scratch, number)) continue;
        const Feature& feature = feature_at(lookup, scratch, number);
        const u64 first = (item - number * groups) * at_once, bag = number * all_bags.per_feature + first + lane;
        const u32 count = (u32)min_of(at_once, all_bags.per_feature - first);
        u64 begin = 0, end = 0;
        if (lane < count) begin = bag_begin(lookup, all_bags, bag), end = bag_begin(lookup, all_bags, bag + 1);
        flawed |= __ballot_sync(FULL, end < begin) != 0;
        if (flawed) end = begin;
        SingleBags bags{};
        bags.stride = lookup.output.row_stride * out_bytes;
        bags.out = lookup.output.rows + first * bags.stride + feature.column * out_bytes;
        bags.count = count;
        if (__ballot_sync(FULL, end - begin > 1) == 0) {
            pool_singles<DIRECT, RICH, UPDATED>(lookup, slot, feature, begin, (u32)(end - begin), bags, failed, counts);
            continue;
        }
        u64 walked = 0;
        for (u32 i = 0; i < count; ++i) {
            const u64 own_begin = __shfl_sync(FULL, begin, i), own_end = __shfl_sync(FULL, end, i);
            flawed |= walked > all_bags.ids;
            const Bag one{own_begin, flawed ? own_begin : own_end, bags.out + i * bags.stride, 0, 1};
            walked += one.end - one.begin;
            add_up<DIRECT, RICH, UPDATED>(lookup, slot, feature, one, failed, counts);
        }
    }
}

// Whether some feature's bags have more than one id on the average. By a warp.
DEVICE bool has_other_bags(const Lookup& lookup, const Bags& all_bags, const Scratch& scratch) {
    bool others = false;
    for (u32 number = threadIdx.x % 32; number < lookup.plan.feature_count; number += 32) others |= !has_single_bags(lookup, all_bags, scratch, number);
    return __ballot_sync(FULL, others) != 0;
}

// Writes one output row for each bag, by a warp, or by several where there are so few bags that warps would be left over: each of them takes lines of
// 128 B of the rows. Long bags are pooled by blocks instead (long_bags.cuh), and many bags of one id at a time (single_bags.cuh). Rows are added in the order
// of the bag. Traffic: 8 B and a row for each id, the row out for each bag; warps, or blocks, that share a bag read the same positions. Parameters as for
// expand_rows.
template <bool DIRECT, bool RICH, bool UPDATED> DEVICE void expand_bags(const Lookup& lookup, SlotState& slot, const Bags& all_bags, Scratch& scratch, IdCounts& counts, const u32 blocks = gridDim.x, const u32 first_block = 0) {
    set_up_scratch<false, UPDATED>(lookup, all_bags, scratch);
    u32 out_bytes = element_bytes(lookup.output.element), failed = 0;
    const u64 bags = lookup.plan.feature_count * all_bags.per_feature, block = blockIdx.x - first_block;
    const bool by_blocks = are_long(lookup, all_bags.ids, bags);
    // Warps or blocks, and the number of this one.
    const u64 workers = by_blocks ? blocks : (u64)blocks * blockDim.x / 32, own = by_blocks ? block : (block * blockDim.x + threadIdx.x) / 32;
    const u32 parts = bags * 2 > workers ? 1 : (u32)min_of(divide(workers, bags == 0 ? 1 : bags), lookup.lanes.lines_of_row);
    // Where offsets descend, bags may overlap and be far longer together than the ids: such bags are read as empty.
    bool flawed = !DIRECT && (slot.flaws & FLAW_OFFSETS) != 0;
    u64 walked = 0;
    // Of few wide rows a warp for each line brings more at a time.
    const bool by_groups = !by_blocks && parts == 1;
    if (by_groups) expand_single_bags<DIRECT, RICH, UPDATED>(lookup, slot, all_bags, scratch, own, workers, flawed, failed, counts);
    const bool others = !by_groups || has_other_bags(lookup, all_bags, scratch);
    for (u64 item = own; others && item < bags * parts; item += workers) {
        const u64 bag = parts == 1 ? item : divide(item, parts);
        u32 number = (u32)divide(bag, all_bags.per_feature);
        if (by_groups && has_single_bags(lookup, all_bags, scratch, number)) continue;
        const Feature& feature = feature_at(lookup, scratch, number);
        u64 begin = bag_begin(lookup, all_bags, bag), end = bag_begin(lookup, all_bags, bag + 1);
        flawed |= end < begin || walked > all_bags.ids;
        if (flawed) end = begin;
        walked += end - begin;
        const u64 out = lookup.output.rows + ((bag - number * all_bags.per_feature) * lookup.output.row_stride + feature.column) * out_bytes;
        const Bag part{begin, end, out, (u32)(item - bag * parts), parts};
        if (by_blocks) add_up_long<DIRECT, RICH, UPDATED>(lookup, slot, feature, part, failed, counts);
        else add_up<DIRECT, RICH, UPDATED>(lookup, slot, feature, part, failed, counts);
    }
    if (failed) atomicAdd(&slot.counters.failed, (u64)failed);
}
