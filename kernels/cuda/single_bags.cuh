// Bags of one id at most, as features of one value have them: a warp pools many at a time. The host executor's arithmetic, bit for bit.
//
// A lane looks for the row of one bag, and so all rows of a warp's bags are found in the time of one. Then as many lanes share a row as it takes, with four
// elements each, and the rows of many bags are on their way at once. A warp for each bag would wait for every row by itself, with most of its lanes idle
// where rows are short.
#pragma once
#include "addends.cuh"

constexpr u32 SINGLE_BAGS = 32;        // that a warp takes at a time, at most
constexpr u32 SINGLE_LEAST = 4;        // and at least: fewer, where there are few bags
constexpr u32 SINGLE_UNROLL = 8;       // loads of a lane that are on their way at once
constexpr u64 SINGLE_IDLE = 8;         // of so many warps one is to have bags at least

// How many bags a warp takes at a time, of so many bags in all.
DEVICE u32 singles_at_once(u64 bags, u64 warps) {
    u32 bags_each = SINGLE_BAGS;
    while (bags_each > SINGLE_LEAST && bags * SINGLE_IDLE < warps * bags_each) bags_each /= 2;
    return bags_each;
}

// Whether the bags of feature `number` have one id or fewer, on the average. Where offsets descend, no feature's have.
DEVICE bool has_single_bags(const Lookup& lookup, const Bags& bags, const Scratch& scratch, u32 number) {
    if (lookup.batch.offsets == 0) return bags.ids_each <= 1;
    const auto begin_of = [&](u32 feature) {
        return feature < lookup.plan.feature_count && feature < SHARED_BEGINS ? scratch.begins[feature] : bag_begin(lookup, bags, feature * bags.per_feature);
    };
    return begin_of(number + 1) - begin_of(number) <= bags.per_feature;
}

// A warp's bags, which are neighbours: of each lane one.
struct SingleBags {
    u64 row;      // address of the row of this lane's bag, or ROW_NONE
    u64 out;      // of the first bag: address of the first element of the feature in the output row
    u64 stride;   // bytes to the same place in the next output row
    float weight; // of this lane's bag
    u32 count;    // bags
    u32 lost;     // a bit for each lane whose row could not be read
    u32 counted;  // a bit for each lane whose bag's mean counts a position
};

// Writes the sums of rows of elements of BITS bits. Each row costs a lane a shuffle for its address, one for a weight, two for a scale, and a load of 16 to 2
// B, and of 1 B where blocks have scales.
template <u32 BITS> DEVICE void put_singles(const Lookup& lookup, const Feature& feature, const SingleBags& bags) {
    const Table& table = feature.table;
    const bool has_scale = BITS <= 8 && is_scaled(table.element), blocks = BITS <= 8 && has_blocks(table.element);
    Scale own{};
    if (has_scale && bags.row != ROW_NONE) own = load_scale(bags.row, table.element, table.dim);
    // A power of two of lanes shares a row.
    u32 lanes_log2 = 0;
    while (lanes_log2 < 5 && 4u << lanes_log2 < table.dim) ++lanes_log2;
    const u32 lane = threadIdx.x % 32, lanes = 1u << lanes_log2, rows = 32 >> lanes_log2, of_rows = lane >> lanes_log2;
    for (u32 from = 0; from < table.dim; from += lanes * 4) {
        const u32 first = from + (lane & (lanes - 1)) * 4;
        for (u32 base = 0; base < bags.count; base += rows * SINGLE_UNROLL) {
            Raw<BITS> raw[SINGLE_UNROLL];
            u8 block[SINGLE_UNROLL];
            u32 present = 0;
#pragma unroll
            for (u32 k = 0; k < SINGLE_UNROLL; ++k) {
                // Past the last bag no lane has a row.
                const u32 bag = base + k * rows + of_rows;
                const u64 address = __shfl_sync(FULL, bags.row, bag);
                const bool wanted = bag < bags.count && address != ROW_NONE && first < table.dim;
                present |= (u32)wanted << k;
                raw[k] = wanted ? load_part<BITS, 4>(address, first) : Raw<BITS>{};
                block[k] = blocks && wanted ? at<const u8>(address)[block_at(table.element, table.dim, first)] : 0;
            }
#pragma unroll
            for (u32 k = 0; k < SINGLE_UNROLL; ++k) {
                const u32 bag = base + k * rows + of_rows;
                Scale by{};
                if (has_scale) by = Scale{__shfl_sync(FULL, own.scale, bag), __shfl_sync(FULL, own.bias, bag)};
                if (blocks) by.scale = block_scale(table.element, block[k], by);
                const float factor = feature.weighted ? __shfl_sync(FULL, bags.weight, bag) : 1.0f;
                if (bag >= bags.count || first >= table.dim) continue;
                Four sum{};
                if (present >> k & 1) {
                    const Four values = widen_part<BITS>(table.element, raw[k], by);
                    // As any sum that begins at +0.
                    for (u32 e = 0; e < 4; ++e) sum.value[e] = __fadd_rn(0.0f, feature.weighted ? __fmul_rn(factor, values.value[e]) : values.value[e]);
                }
                if (bags.lost >> bag & 1) {
                    for (u32 e = 0; e < 4; ++e) sum.value[e] = lost_value(lookup);
                } else if (feature.pooling == POOLING_MEAN && (bags.counted >> bag & 1)) {
                    for (u32 e = 0; e < 4; ++e) sum.value[e] = __fdiv_rn(sum.value[e], 1.0f);
                }
                put_four(bags.out + bag * bags.stride, lookup.output.element, first, table.dim, sum);
            }
        }
    }
}

// By a warp: pools the bags of a feature from bag `bag` of all on, of which each lane's has `length` ids, 0 or 1, at position `begin`.
template <bool DIRECT, bool RICH, bool UPDATED>
DEVICE void pool_singles(const Lookup& lookup, const SlotState& slot, const Feature& feature, u64 begin, u32 length, SingleBags bags, u32& failed, IdCounts& counts) {
    BagTally tally{};
    bags.row = ROW_NONE;
    bags.weight = 1.0f;
    if (length != 0) {
        const u64 input = input_at<DIRECT>(lookup, begin);
        if (feature.weighted) bags.weight = at<const float>(lookup.batch.weights)[begin];
        bags.row = addend_at<DIRECT, RICH, UPDATED>(lookup, slot, feature, begin, input, true, tally, failed, counts);
    }
    bags.lost = __ballot_sync(FULL, tally.lost);
    bags.counted = __ballot_sync(FULL, tally.counted != 0);
    switch (element_bits(feature.table.element)) {
        case 32: return put_singles<32>(lookup, feature, bags);
        case 16: return put_singles<16>(lookup, feature, bags);
        case 8: return put_singles<8>(lookup, feature, bags);
        default:
            if (RICH) put_singles<4>(lookup, feature, bags);
    }
}
