// Sums of long bags, each by a whole block. The host executor's arithmetic, bit for bit: rows are added in the order of the bag.
//
// All threads look for rows, a position each; all threads copy rows into shared memory, several stages ahead of the sum; and each thread adds up one element.
// So each id is looked for once, and no thread waits for a row that it has just asked for.
#pragma once
#include "addends.cuh"

constexpr u32 LONG_THREADS = 256;  // of a block; and positions whose rows it looks for at a time: a tile
constexpr u32 LONG_LOG2 = 8;
constexpr u32 LONG_AHEAD = 3;      // stages that are on their way while one is added
constexpr u32 LONG_STAGES = LONG_AHEAD + 1;
constexpr u32 LONG_STAGE_LOG2 = 9, LONG_STAGE_QUADS = 1 << LONG_STAGE_LOG2;  // of 16 B
constexpr u32 LONG_STRETCH = 512;      // bytes of a row that a block takes at a time
constexpr u32 LONG_ROWS_LOG2 = 6;      // of a stage, at most: a tile has more stages than are on their way, so that two tiles are known at a time
constexpr u32 LONG_WARPS = LONG_THREADS / 32;
static_assert(1 << LONG_LOG2 == LONG_THREADS && LONG_THREADS >> LONG_ROWS_LOG2 > LONG_AHEAD, "a tile is not given up before its rows are added");

// Dynamic shared memory of a block that pools long bags; LONG_SHARED of src/lookup.rs.
struct LongBags {
    uint4 stages[LONG_STAGES][LONG_STAGE_QUADS];
    u64 rows[2][LONG_THREADS];       // of two tiles: addresses, or ROW_NONE
    float weights[2][LONG_THREADS];
    u32 counted[LONG_WARPS];         // by each warp: positions that a mean counts
    u32 lost[LONG_WARPS];            // whether it met a row that could not be read
};
static_assert(sizeof(LongBags) == 38976 && LONG_THREADS == 256, "src/lookup.rs");

// Whether blocks pool the bags of a launch, one each: they are long on the average, and the host has given the blocks shared memory for it.
DEVICE bool are_long(const Lookup& lookup, u64 ids, u64 bags) {
    return lookup.lanes.long_bags != 0 && dynamic_shared_bytes() >= sizeof(LongBags) && ids >= bags * lookup.lanes.long_bags;
}

// Element `number` of a row in shared memory, widened.
template <u32 ELEMENT> DEVICE float staged_element(const uint4* row, u32 number) {
    if constexpr (ELEMENT == ELEMENT_F32) return reinterpret_cast<const float*>(row)[number];
    const u16 half = reinterpret_cast<const u16*>(row)[number];
    return ELEMENT == ELEMENT_F16 ? widen_f16(half) : widen_bf16(half);
}

// Adds an element of `rows` rows of a stage to a sum, in their order. Rows that positions do not have are zeros there, which change no sum that began at +0.
template <u32 ELEMENT, bool WEIGHTED> DEVICE float add_staged(float sum, const uint4* stage, u32 row_quads_log2, u32 rows, const float* weights, u32 number) {
#pragma unroll 8
    for (u32 row = 0; row < rows; ++row) {
        const float value = staged_element<ELEMENT>(stage + (row << row_quads_log2), number);
        sum = __fadd_rn(sum, WEIGHTED ? __fmul_rn(weights[row], value) : value);
    }
    return sum;
}

// `add_staged` for each of the elements that blocks pool.
template <bool WEIGHTED> DEVICE float add_staged_of(u32 element, float sum, const uint4* stage, u32 row_quads_log2, u32 rows, const float* weights, u32 number) {
    switch (element) {
        case ELEMENT_F32: return add_staged<ELEMENT_F32, WEIGHTED>(sum, stage, row_quads_log2, rows, weights, number);
        case ELEMENT_F16: return add_staged<ELEMENT_F16, WEIGHTED>(sum, stage, row_quads_log2, rows, weights, number);
        default: return add_staged<ELEMENT_BF16, WEIGHTED>(sum, stage, row_quads_log2, rows, weights, number);
    }
}

// By a block: pools a bag of rows of f32, f16 or bf16, or the block's part of it, which is neighbouring lines of 128 B of the rows.
template <bool DIRECT, bool RICH, bool UPDATED>
DEVICE void add_up_long(const Lookup& lookup, const SlotState& slot, const Feature& feature, const Bag& bag, u32& failed, IdCounts& counts) {
    DYNAMIC_SHARED(words);
    LongBags& shared = *reinterpret_cast<LongBags*>(words);
    const Table& table = feature.table;
    const u32 thread = threadIdx.x, element_log2 = table.element == ELEMENT_F32 ? 2 : 1;
    const u32 row_bytes = table.dim << element_log2, lines = (row_bytes + 127) / 128;
    const u32 stretch = (u32)min_of(LONG_STRETCH, (lines + bag.parts - 1) / bag.parts * 128);
    const u32 length = (u32)(bag.end - bag.begin);
    for (u32 from = bag.part * stretch; from < row_bytes; from += bag.parts * stretch) {
        const u32 bytes = (u32)min_of(stretch, row_bytes - from), quads = (bytes + 15) / 16;
        // Of the stretch of a row in a stage, a power of two; and of rows in a stage.
        u32 quads_log2 = 0;
        while (1u << quads_log2 < quads) ++quads_log2;
        const u32 rows_log2 = (u32)min_of(LONG_STAGE_LOG2 - quads_log2, LONG_ROWS_LOG2), stage_rows = 1u << rows_log2, tile_log2 = LONG_LOG2 - rows_log2;
        const u32 stages = (length + stage_rows - 1) >> rows_log2;
        const u32 quad = thread & ((1u << quads_log2) - 1);
        const bool is_summing = thread << element_log2 < bytes;
        BagTally tally{};
        float sum = 0.0f;
        u64 next = thread < length ? input_at<DIRECT>(lookup, bag.begin + thread) : 0;
        const auto begin_stage = [&](u32 number) {
            if (number < stages) {
                const u32 tile = number >> tile_log2 & 1, first = (number << rows_log2) & (LONG_THREADS - 1);
                if (first == 0) {
                    const u64 i = bag.begin + ((u64)number << rows_log2) + thread, input = next;
                    u64 row = ROW_NONE;
                    float weight = 1.0f;
                    if (i + LONG_THREADS < bag.end) next = input_at<DIRECT>(lookup, i + LONG_THREADS);
                    if (i < bag.end) {
                        if (feature.weighted) weight = at<const float>(lookup.batch.weights)[i];
                        row = addend_at<DIRECT, RICH, UPDATED>(lookup, slot, feature, i, input, from == 0, tally, failed, counts);
                    }
                    shared.rows[tile][thread] = row;
                    // Of a row that is not there: its zeros stay zeros.
                    shared.weights[tile][thread] = row == ROW_NONE ? 1.0f : weight;
                    __syncthreads();
                }
                uint4* to = shared.stages[number % LONG_STAGES];
                for (u32 row = thread >> quads_log2; row < stage_rows; row += LONG_THREADS >> quads_log2) {
                    const u64 address = shared.rows[tile][first + row];
                    if (quad < quads) begin_shared_copy(to + (row << quads_log2) + quad, at<const u8>(address + from + quad * 16), address != ROW_NONE);
                }
            }
            end_shared_copies();
        };
        for (u32 number = 0; number < LONG_AHEAD; ++number) begin_stage(number);
        for (u32 number = 0; number < stages; ++number) {
            await_shared_copies<LONG_AHEAD - 1>();
            // All copies of this stage are there, and the stage before is added: its place is free.
            __syncthreads();
            begin_stage(number + LONG_AHEAD);
            if (!is_summing) continue;
            const u32 first = number << rows_log2, rows = (u32)min_of(stage_rows, length - first);
            const uint4* stage = shared.stages[number % LONG_STAGES];
            const float* weights = shared.weights[number >> tile_log2 & 1] + (first & (LONG_THREADS - 1));
            sum = feature.weighted ? add_staged_of<true>(table.element, sum, stage, quads_log2, rows, weights, thread)
                                   : add_staged_of<false>(table.element, sum, stage, quads_log2, rows, weights, thread);
        }
        const u32 counted = __reduce_add_sync(FULL, (u32)tally.counted);
        const bool is_lost = __ballot_sync(FULL, tally.lost) != 0;
        if (thread % 32 == 0) {
            shared.counted[thread / 32] = counted;
            shared.lost[thread / 32] = is_lost;
        }
        __syncthreads();
        u32 all = 0, lost = 0;
        for (u32 warp = 0; warp < LONG_WARPS; ++warp) {
            all += shared.counted[warp];
            lost |= shared.lost[warp];
        }
        if (lost) sum = lost_value(lookup);
        else if (feature.pooling == POOLING_MEAN && all != 0) sum = __fdiv_rn(sum, (float)all);
        if (is_summing) narrow(bag.out, lookup.output.element, (from >> element_log2) + thread, sum);
        // Nobody needs the shared memory any more.
        __syncthreads();
    }
}
