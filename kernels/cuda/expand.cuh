// Rows to the caller's output: found, converted, pooled. The host executor's arithmetic, bit for bit.
#pragma once
#include "fetch.cuh"
#include "prepare.cuh"

DEVICE float bits_to_float(u32 bits) { return __uint_as_float(bits); }

// Exact; NaNs keep their payload and become quiet.
DEVICE float widen_f16(u16 half) {
    u32 sign = (u32)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    if (exponent != 0) return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
    float magnitude = __fmul_rn((float)mantissa, 5.9604644775390625e-8f);  // 2^-24
    return bits_to_float(sign | __float_as_uint(magnitude));
}

// To nearest, ties to even.
DEVICE u16 narrow_f16(float value) {
    u32 bits = __float_as_uint(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (u16)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) return (u16)(sign | 0x7c00);  // 65520 and above
    if (magnitude < 0x38800000) {                              // below 2^-14: subnormal, counted in units of 2^-24
        float units = __fmul_rn(bits_to_float(magnitude), 16777216.0f);
        return (u16)(sign | (u32)__float2int_rn(units));
    }
    u32 rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (u16)(sign | ((rounded - 0x38000000) >> 13));
}

DEVICE float widen_bf16(u16 half) {
    u32 bits = (u32)half << 16, quiet = (half & 0x7fff) > 0x7f80 ? 0x400000 : 0;
    return bits_to_float(bits | quiet);
}

DEVICE u16 narrow_bf16(float value) {
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (u16)(bits >> 16 | 0x40);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

DEVICE u32 element_bytes(u32 element) {
    return element == ELEMENT_F32 ? 4 : element == ELEMENT_F16 || element == ELEMENT_BF16 ? 2 : 1;
}

DEVICE float widen(u64 row, u32 element, u32 index) {
    switch (element) {
        case ELEMENT_F32: return at<const float>(row)[index];
        case ELEMENT_F16: return widen_f16(at<const u16>(row)[index]);
        case ELEMENT_BF16: return widen_bf16(at<const u16>(row)[index]);
        case ELEMENT_I8: return (float)at<const signed char>(row)[index];
        default: return (float)at<const u8>(row)[index];
    }
}

DEVICE void narrow(u64 row, u32 element, u64 index, float value) {
    switch (element) {
        case ELEMENT_F32: at<float>(row)[index] = value; break;
        case ELEMENT_F16: at<u16>(row)[index] = narrow_f16(value); break;
        case ELEMENT_BF16: at<u16>(row)[index] = narrow_bf16(value); break;
        // Integers are only ever copied or cleared.
        default: at<u8>(row)[index] = 0;
    }
}

// What a position stands for: an address, or one of these.
constexpr u64 ROW_NONE = 0;
constexpr u64 ROW_LOST = 1;

template <bool DIRECT> DEVICE u64 row_at(const Lookup& p, const SlotState& slot, u64 place) {
    if (place >= PLACE_PADDING) return ROW_NONE;
    if (DIRECT || (place & PLACE_HERE)) return place & ~PLACE_HERE;
    u32 unique;
    if (place & PLACE_STAGED) {
        unique = (u32)place;
    } else {
        const uint4* words = at<const uint4>(p.bitmap) + place / 1024 * 8;
        u32 whole = (u32)(place % 1024 / 32), before = at<const u32>(p.base)[place / 1024];
        for (u32 i = 0; i <= whole / 4; ++i) {
            uint4 four = words[i];
            u32 word[4] = {four.x, four.y, four.z, four.w};
            for (u32 j = 0; j < 4; ++j) {
                u32 number = i * 4 + j;
                u32 keep = number < whole ? ~0u : number == whole ? (1u << place % 32) - 1 : 0;
                before += __popc(word[j] & keep);
            }
        }
        unique = before;
    }
    if (unique >= slot.dram_uniques && at<const u8>(p.status)[unique] != ROW_READ) return ROW_LOST;
    return p.staging + (u64)unique * p.staging_stride;
}

// One output row for each id. `group` lanes share a row. Traffic: 8 B a position, the row from staging or GPU memory, the row out.
// DIRECT: the row from where it lies, in the order of the request; nothing was prepared.
template <bool DIRECT> DEVICE void expand_rows(const Lookup& p, SlotState& slot, const Size& size, Marked& marked) {
    u32 group = 1u << p.lanes, lane = threadIdx.x & (group - 1), out_bytes = element_bytes(p.out_element);
    u64 groups = (u64)gridDim.x * blockDim.x / group;
    u32 failed = 0;
    for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / group; i < size.ids; i += groups) {
        const Feature& feature = at<Feature>(p.feature)[feature_of(p, size, i)];
        const Table& table = at<Table>(p.table)[feature.table];
        Marked mine{};
        u64 place = DIRECT ? place_of<true>(p, feature, i, mine) : at<const u64>(p.place)[i];
        u64 row = row_at<DIRECT>(p, slot, place);
        if (DIRECT && lane == 0) {
            add(marked, mine);
            mask_at(p, feature, i, place);
        }
        if (row == ROW_LOST && lane == 0) {
            ++failed;
            if (p.mask != 0) at<u8>(p.mask)[i] = 0;
        }
        if (place == PLACE_MISSING && feature.missing == MISSING_DEFAULT) row = table.default_row;
        u64 out = p.out + i * p.out_stride * out_bytes;
        u32 dim = row > ROW_LOST ? table.dim : 0;
        if (row > ROW_LOST && table.element == p.out_element) {
            if ((out | row) % 16 == 0 && table.row_bytes % 16 == 0) {
                for (u32 quad = lane; quad < table.row_bytes / 16; quad += group)
                    at<uint4>(out)[quad] = at<const uint4>(row)[quad];
            } else if (out_bytes == 4) {
                for (u32 e = lane; e < dim; e += group) at<u32>(out)[e] = at<const u32>(row)[e];
            } else if (out_bytes == 2) {
                for (u32 e = lane; e < dim; e += group) at<u16>(out)[e] = at<const u16>(row)[e];
            } else {
                for (u32 e = lane; e < dim; e += group) at<u8>(out)[e] = at<const u8>(row)[e];
            }
        } else {
            for (u32 e = lane; e < dim; e += group) narrow(out, p.out_element, e, widen(row, table.element, e));
        }
        for (u32 e = dim + lane; e < p.width; e += group) narrow(out, p.out_element, e, 0.0f);
    }
    if (failed) atomicAdd(&slot.counters.failed, (u64)failed);
}

// One output row for each bag, by a warp. Rows are added in the order of the bag, each element by one lane.
// Traffic: 8 B and a row for each id, the row out for each bag.
template <bool DIRECT> DEVICE void expand_bags(const Lookup& p, SlotState& slot, const Size& size, Marked& marked) {
    constexpr u32 HELD = 4;  // elements that a lane adds up at once
    u32 lane = threadIdx.x % 32, out_bytes = element_bytes(p.out_element), failed = 0;
    u64 warps = (u64)gridDim.x * blockDim.x / 32, bags = p.features * size.bags;
    for (u64 bag = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; bag < bags; bag += warps) {
        u32 number = (u32)(bag / size.bags);
        const Feature& feature = at<Feature>(p.feature)[number];
        const Table& table = at<Table>(p.table)[feature.table];
        u64 begin = bag_begin(p, size, bag), end = bag_begin(p, size, bag + 1), counted = 0;
        // Does any row of the bag lack?
        bool lost = false;
        for (u64 i = begin + lane; i < end; i += 32) {
            u64 place = DIRECT ? place_of<true>(p, feature, i, marked) : at<const u64>(p.place)[i];
            if (DIRECT) mask_at(p, feature, i, place);
            if (row_at<DIRECT>(p, slot, place) == ROW_LOST) {
                lost = true;
                ++failed;
                if (p.mask != 0) at<u8>(p.mask)[i] = 0;
            }
            if (place == PLACE_PADDING || (place == PLACE_MISSING && feature.missing == MISSING_SKIP)) continue;
            ++counted;
        }
        for (u32 step = 16; step > 0; step /= 2) counted += __shfl_xor_sync(FULL, counted, step);
        lost = __ballot_sync(FULL, lost) != 0;
        u64 out = p.out + ((bag % size.bags) * p.out_stride + feature.column) * out_bytes;
        for (u32 first = 0; first < table.dim; first += 32 * HELD) {
            float sum[HELD] = {};
            for (u64 tile = begin; tile < end && !lost; tile += 32) {
                u64 mine = 0;
                float weight = 1.0f;
                if (tile + lane < end) {
                    Marked again{};
                    u64 place = DIRECT ? place_of<true>(p, feature, tile + lane, again) : at<const u64>(p.place)[tile + lane];
                    mine = row_at<DIRECT>(p, slot, place);
                    if (place == PLACE_MISSING && feature.missing == MISSING_DEFAULT) mine = table.default_row;
                    if (feature.weighted) weight = at<const float>(p.weights)[tile + lane];
                }
                u32 rows = (u32)min_of(32, end - tile);
                for (u32 i = 0; i < rows; ++i) {
                    u64 row = __shfl_sync(FULL, mine, i);
                    float factor = __shfl_sync(FULL, weight, i);
                    if (row == ROW_NONE) continue;
                    for (u32 held = 0; held < HELD; ++held) {
                        u32 e = first + held * 32 + lane;
                        if (e >= table.dim) continue;
                        float value = widen(row, table.element, e);
                        if (feature.weighted) value = __fmul_rn(factor, value);
                        sum[held] = __fadd_rn(sum[held], value);
                    }
                }
            }
            for (u32 held = 0; held < HELD; ++held) {
                u32 e = first + held * 32 + lane;
                if (e >= table.dim) continue;
                float value = sum[held];
                if (feature.pooling == POOLING_MEAN && counted != 0 && !lost) value = __fdiv_rn(value, (float)counted);
                narrow(out, p.out_element, e, value);
            }
        }
    }
    if (failed) atomicAdd(&slot.counters.failed, (u64)failed);
}

// One thread, after everything else: the report.
DEVICE void report(const Lookup& p, SlotState& slot) {
    Ticket& ticket = at<Ticket>(p.tickets)[p.ticket];
    store_relaxed(&ticket.outcome, OUTCOME_DONE);
    store_relaxed(&ticket.flaws, slot.flaws);
    store_relaxed(&ticket.gate_was_closed, slot.gate_was_closed);
    store_relaxed(&ticket.faults, slot.faults);
    const u64* from = reinterpret_cast<const u64*>(&slot.counters);
    u64* to = reinterpret_cast<u64*>(&ticket.counters);
    for (u32 i = 0; i < sizeof(Counters) / sizeof(u64); ++i) store_relaxed(to + i, load_relaxed(from + i));
    store_relaxed(&ticket.began, slot.began);
    store_relaxed(&ticket.prepared, slot.prepared);
    store_relaxed(&ticket.fetched, slot.fetched);
    store_relaxed(&ticket.ended, now());
}

// The same, and the launch is over: the gate, the lease.
DEVICE void release(const Lookup& p) {
    SlotState& slot = *at<SlotState>(p.slot);
    report(p, slot);
    slot.admitted[p.ticket] = 0;
    u64 launches = slot.launches[p.ticket] + 1;
    slot.launches[p.ticket] = launches;
    fence_release();
    store_relaxed(gate_inside(p), 0ull);
    // The next launch's `inside` comes after this one's zero.
    fence_release();
    atomicExch(&slot.lease, 0u);
    store_release(&at<Ticket>(p.tickets)[p.ticket].sequence, launches);
}

// Whether this block is the last of its kernel to come here; by all threads.
DEVICE bool is_last(u32& count) {
    SHARED bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        fence_release();
        last = atomicAdd(&count, 1u) == gridDim.x - 1;
        fence_acquire();
        if (last) count = 0;
    }
    __syncthreads();
    return last;
}

constexpr u32 EXPAND_THREADS = 256;

// grid: by output. `ends`: there is nothing to clear, and the last block ends the launch.
KERNEL __launch_bounds__(EXPAND_THREADS) warprow_expand(const Lookup p, const u32 ends) {
    if (!is_admitted(p)) return;
    SlotState& slot = *at<SlotState>(p.slot);
    if (blockIdx.x == 0 && threadIdx.x == 0) slot.fetched = now();
    const Size size = slot.size;
    Marked ignored{};
    if (p.pooled) expand_bags<false>(p, slot, size, ignored); else expand_rows<false>(p, slot, size, ignored);
    if (ends && is_last(slot.expand_left) && threadIdx.x == 0) release(p);
}

// Clears what `mark` set. grid: by uniques.
KERNEL __launch_bounds__(EXPAND_THREADS) warprow_finish(const Lookup p) {
    if (!is_admitted(p)) return;
    SlotState& slot = *at<SlotState>(p.slot);
    u64 threads = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < slot.uniques; i += threads) {
        u64 key = at<const u64>(p.unique)[i];
        at<u32>(p.bitmap)[key / 32] = 0;
        at<u32>(p.summary)[key / 32768] = 0;
    }
    if (is_last(slot.finish_left) && threadIdx.x == 0) release(p);
}

// The whole look-up, where no row lies on a drive and few enough are asked for: each is read where it lies. Needs no slot, only a
// state of its ticket's own. grid: by output. Traffic: ids, rows, output.
KERNEL __launch_bounds__(EXPAND_THREADS) warprow_direct(const Lookup p) {
    SlotState& slot = *at<SlotState>(p.slot);
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    u32 flaws = 0;
    const Size size = size_of(p, flaws);
    if (thread == 0) {
        slot.began = slot.prepared = slot.fetched = now();
        store_relaxed(&at<Ticket>(p.tickets)[p.ticket].outcome, OUTCOME_NONE);
        atomicOr(&slot.flaws, flaws);
    }
    check_offsets(p, size, slot.flaws, thread, threads);
    Marked marked{};
    if (p.pooled) expand_bags<true>(p, slot, size, marked); else expand_rows<true>(p, slot, size, marked);
    add_marked(slot.counters, marked);
    if (!is_last(slot.expand_left) || threadIdx.x != 0) return;
    slot.counters.ids = size.ids;
    report(p, slot);
    slot.counters = Counters{};
    slot.flaws = 0;
    u64 launches = slot.launches[p.ticket] + 1;
    slot.launches[p.ticket] = launches;
    store_release(&at<Ticket>(p.tickets)[p.ticket].sequence, launches);
}
