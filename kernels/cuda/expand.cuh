// Rows to the caller's output: found, converted, pooled. The host executor's arithmetic, bit for bit.
#pragma once
#include "elements.cuh"
#include "fetch.cuh"
#include "dedupe.cuh"

// What a position stands for: an address, or one of these.
constexpr u64 ROW_NONE = 0;
constexpr u64 ROW_LOST = 1;

template <bool DIRECT> DEVICE u64 row_at(const Lookup& p, const SlotState& slot, u64 place) {
    if (place >= PLACE_PADDING) return ROW_NONE;
    if (DIRECT || (place & PLACE_HERE)) return place & ~PLACE_HERE;
    u32 unique;
    if (place & PLACE_STAGED) {
        unique = (u32)place;
        if (place & PLACE_HASHED) unique = at<const u32>(p.numbers)[unique];
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

DEVICE u32 word_of(const uint4& quad, u32 word) {
    return word < 2 ? (word == 0 ? quad.x : quad.y) : (word == 2 ? quad.z : quad.w);
}

// Writes the first `left` bytes of a quad, as they are.
DEVICE void put_quad(u64 to, u32 left, const uint4& quad) {
    if (left >= 16 && to % 16 == 0) {
        *at<uint4>(to) = quad;
    } else if ((to | left) % 4 == 0) {
        for (u32 i = 0; i < 4 && i * 4 < left; ++i) at<u32>(to)[i] = word_of(quad, i);
    } else if ((to | left) % 2 == 0) {
        for (u32 i = 0; i < 8 && i * 2 < left; ++i) at<u16>(to)[i] = (u16)(word_of(quad, i / 2) >> i % 2 * 16);
    } else {
        for (u32 i = 0; i < 16 && i < left; ++i) at<u8>(to)[i] = (u8)(word_of(quad, i / 4) >> i % 4 * 8);
    }
}

// Writes a part of a row whose length and place are multiples of 4 B, by the lanes that share it: neighbours write neighbouring words.
// `first`: the part's first quad, of which lane i holds number i.
DEVICE void put_words(u64 out, u32 row_bytes, u32 first, u32 lanes, const uint4& quad) {
    const u32 lane = threadIdx.x & (lanes - 1), begin = threadIdx.x % 32 - lane;
    const u32 all = lanes == 32 ? FULL : ((1u << lanes) - 1) << begin;
    for (u32 i = 0; i < 4; ++i) {
        const u32 from = begin + (i * lanes + lane) / 4;
        uint4 there;
        there.x = __shfl_sync(all, quad.x, from);
        there.y = __shfl_sync(all, quad.y, from);
        there.z = __shfl_sync(all, quad.z, from);
        there.w = __shfl_sync(all, quad.w, from);
        // Before the row's begin, it wraps to beyond its end.
        const u32 word = first * 4 + i * lanes + lane;
        if (word < row_bytes / 4) at<u32>(out)[word] = word_of(there, lane % 4);
    }
}

// Writes the elements of a part of a row, converted, by the lanes that share it, of which lane i holds quad `first` + i (before the row's
// begin that wraps to beyond its end). Each lane writes four elements at a time, and neighbours write neighbouring ones: so output rows
// are written by whole lines, for four shuffles each time. RICH plans' groups of lanes are parts of a warp. BITS: of an element.
template <u32 BITS> DEVICE void put_widened_as(const Lookup& p, u64 out, const Table& table, u64 row, u32 first, const uint4& quad) {
    const u32 lanes = p.row_lanes, lane = threadIdx.x & (lanes - 1), begin = threadIdx.x % 32 - lane;
    const u32 all = lanes == 32 ? FULL : ((1u << lanes) - 1) << begin;
    Scale by{};
    if (is_scaled(table.element)) {
        const u32 at = scale_at(table.element, table.dim);
        if (p.parts_of_row == 1) {
            // Some of these lanes hold it: a load less, of memory that may be behind a bus.
            u32 words[3];
            for (u32 i = 0; i < 3; ++i) {
                const u32 word = at / 4 + i;
                words[i] = __shfl_sync(all, word_of(quad, word % 4), begin + ((word / 4 - first) & (lanes - 1)));
            }
            by = scale_of(table.element, at, words[0], words[1], words[2]);
        } else {
            by = load_scale(row, table.element, table.dim);
        }
    }
    // A quad has four times as many elements as there are turns.
    for (u32 turn = 0; turn < 32 / BITS; ++turn) {
        const u32 unit = turn * lanes + lane, from = begin + unit * BITS / 32;
        const u32 e = first * (128 / BITS) + unit * 4;
        uint4 there = quad;
        if constexpr (BITS != 32) {
            there.x = __shfl_sync(all, quad.x, from);
            there.y = __shfl_sync(all, quad.y, from);
            there.z = __shfl_sync(all, quad.z, from);
            there.w = __shfl_sync(all, quad.w, from);
        }
        Raw<BITS> raw;
        if constexpr (BITS == 32) raw = Raw<BITS>{{there.x, there.y, there.z, there.w}};
        if constexpr (BITS == 16) raw = unit % 2 == 0 ? Raw<BITS>{{there.x, there.y}} : Raw<BITS>{{there.z, there.w}};
        if constexpr (BITS == 8) raw = Raw<BITS>{{word_of(there, unit % 4)}};
        if constexpr (BITS == 4) raw = Raw<BITS>{{word_of(there, unit / 2 % 4) >> unit % 2 * 16}};
        if (e < table.dim) put_four(out, p.out_element, e, table.dim, widen_part<BITS>(table.element, raw, by));
    }
}

DEVICE void put_widened(const Lookup& p, u64 out, const Table& table, u64 row, u32 first, const uint4& quad) {
    switch (element_bits(table.element)) {
        case 32: return put_widened_as<32>(p, out, table, row, first, quad);
        case 16: return put_widened_as<16>(p, out, table, row, first, quad);
        case 8: return put_widened_as<8>(p, out, table, row, first, quad);
        default: return put_widened_as<4>(p, out, table, row, first, quad);
    }
}

// What a position begins with: its id, or its place.
template <bool DIRECT> DEVICE u64 given_at(const Lookup& p, u64 index) {
    return DIRECT ? id_at(p.ids, p.id_type, index) : at<const u64>(p.place)[index];
}

// One output row for each id. `row_lanes` lanes share a row, or a part of it, each with 16 B: rows begin at multiples of that and are padded
// to them. Traffic: 8 B a position, the row from staging or GPU memory, the row out.
// DIRECT: the row from where it lies, in the order of the request; nothing was prepared.
// ONE: the plan has one feature.
// RICH: rows may be of any element; else all are of the output's. UPDATED: rows may have been updated since they were put where they lie.
template <bool DIRECT, bool ONE, bool RICH, bool UPDATED> DEVICE void expand_rows(const Lookup& p, SlotState& slot, const Bags& bags, Scratch& scratch, Marked& marked) {
    const u32 lanes = p.row_lanes, parts = p.parts_of_row, out_bytes = element_bytes(p.out_element);
    // Groups of lanes are parts of a warp, or follow each other without gaps.
    const bool aligned = lanes == 1u << p.lanes;
    const u32 thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    const u32 group = aligned ? thread >> p.lanes : thread / lanes, lane = thread - group * lanes;
    const u64 groups = aligned ? threads >> p.lanes : threads / lanes, items = bags.ids * parts;
    // The last of the threads may be too few for a group.
    u64 item = group < groups ? group : items, end = 0;
    u32 failed = 0, number = 0;
    // Loads that wait for nothing come first.
    u64 next = item < items ? given_at<DIRECT>(p, parts == 1 ? item : divide(item, parts)) : 0;
    set_up<ONE, UPDATED>(p, bags, scratch);
    for (; item < items; item += groups) {
        const u64 i = parts == 1 ? item : divide(item, parts), given = next;
        if (item + groups < items) next = given_at<DIRECT>(p, parts == 1 ? item + groups : divide(item + groups, parts));
        const u32 part = (u32)(item - i * parts);
        if (!ONE && i >= end) number = feature_from(p, bags, scratch, i, number, end);
        const Feature& feature = ONE ? p.first : feature_at(p, scratch, number);
        const Table& table = feature.table;
        Marked mine{};
        u64 place = DIRECT ? place_of<true, UPDATED>(p, feature, given, mine) : given;
        u64 row = row_at<DIRECT>(p, slot, place);
        const bool leads = lane == 0 && part == 0;
        if (DIRECT && leads) {
            tell_missing<RICH>(p, feature, i, place, mine);
            add(marked, mine);
            mask_at(p, feature, i, place);
        }
        if (row == ROW_LOST && leads) {
            ++failed;
            if (p.mask != 0) at<u8>(p.mask)[i] = 0;
        }
        if (place == PLACE_MISSING && feature.missing == MISSING_DEFAULT) row = table.default_row;
        const u64 out = p.out + i * p.out_stride * out_bytes;
        const u32 own = part * lanes + lane, dim = row > ROW_LOST ? table.dim : 0;
        // Before the row's begin, it wraps to beyond its end.
        const u32 quad = own - skew_of(p, row);
        if (table.element == p.out_element) {
            const bool holds = dim != 0 && quad < (table.row_bytes + 15) / 16;
            const uint4 data = holds ? at<const uint4>(row)[quad] : uint4{};
            const bool by_words = (out | table.row_bytes) % 16 != 0 && (out | table.row_bytes) % 4 == 0 && lanes >= 4 && aligned;
            if (dim != 0 && by_words) put_words(out, table.row_bytes, quad - lane, lanes, data);
            else if (holds) put_quad(out + quad * 16, table.row_bytes - quad * 16, data);
        } else if (RICH) {
            const uint4 data = dim != 0 && quad < (table.row_bytes + 15) / 16 ? at<const uint4>(row)[quad] : uint4{};
            if (dim != 0) put_widened(p, out, table, row, quad - lane, data);
        }
        for (u32 e = dim + own; e < p.width; e += parts * lanes) narrow(out, p.out_element, e, 0.0f);
    }
    if (failed) atomicAdd(&slot.counters.failed, (u64)failed);
}

// A bag, or a warp's part of it: of `parts` warps, each takes every `parts`th stretch of its rows' elements.
struct Bag {
    u64 begin, end;  // positions
    u64 out;         // its feature's first element
    u32 part, parts;
};

// What a warp's lanes have seen of a bag.
struct Seen {
    u64 counted = 0;    // of its positions, those that a mean counts
    bool lost = false;  // a row lacks: nothing of the bag can be given
};

// The row that a position adds to its bag. `leads`: of all that read this position, who tells of it.
template <bool DIRECT, bool RICH, bool UPDATED>
DEVICE u64 addend_at(const Lookup& p, const SlotState& slot, const Feature& feature, u64 i, u64 given, const bool leads, Seen& seen, u32& failed, Marked& marked) {
    Marked mine{};
    const u64 place = DIRECT ? place_of<true, UPDATED>(p, feature, given, mine) : given;
    const u64 row = row_at<DIRECT>(p, slot, place);
    if (DIRECT && leads) {
        mask_at(p, feature, i, place);
        tell_missing<RICH>(p, feature, i, place, mine);
        add(marked, mine);
    }
    if (row == ROW_LOST) {
        seen.lost = true;
        if (!leads) return ROW_NONE;
        ++failed;
        if (p.mask != 0) at<u8>(p.mask)[i] = 0;
        return ROW_NONE;
    }
    const bool skipped = place == PLACE_PADDING || (place == PLACE_MISSING && feature.missing == MISSING_SKIP);
    if (!skipped) ++seen.counted;
    return place == PLACE_MISSING && feature.missing == MISSING_DEFAULT ? feature.table.default_row : row;
}

// Up to 32 rows that are added, one a lane.
struct Addends {
    u64 row;      // ROW_NONE: there is none
    u32 there;    // of which lanes there is one
    float weight;
};

// Adds rows of elements of BITS bits, in order, to a lane's sums: of each row, EACH elements from `first` on. Several rows are under way at
// once, for a bag may be long, and there may be few of them. Of rows with a scale, each lane loads that of one, for all. For each row
// there are two shuffles for its address, one for a weight, two for a scale, a load of 16 to 2 B, and for each element a conversion, at most
// two products, and at most two sums.
template <u32 BITS, u32 EACH> DEVICE void add_rows(const Feature& feature, const Addends& mine, u32 first, float (&sum)[4]) {
    constexpr u32 ROWS = EACH == 1 ? 32 : EACH == 2 ? 16 : 8;
    const Table& table = feature.table;
    const bool has_scale = BITS <= 8 && is_scaled(table.element);
    Scale own{};
    if (has_scale && mine.row != ROW_NONE) own = load_scale(mine.row, table.element, table.dim);
    // Past the last row there is none.
    for (u32 row = 0; row < 32 && mine.there >> row != 0; row += ROWS) {
        Raw<BITS, EACH> raw[ROWS];
#pragma unroll
        for (u32 j = 0; j < ROWS; ++j) {
            const u64 address = __shfl_sync(FULL, mine.row, row + j);
            raw[j] = mine.there >> (row + j) & 1 && first < table.dim ? load_part<BITS, EACH>(address, first) : Raw<BITS, EACH>{};
        }
#pragma unroll
        for (u32 j = 0; j < ROWS; ++j) {
            Scale by{};
            if (has_scale) by = Scale{__shfl_sync(FULL, own.scale, row + j), __shfl_sync(FULL, own.bias, row + j)};
            const float factor = feature.weighted ? __shfl_sync(FULL, mine.weight, row + j) : 1.0f;
            if (!(mine.there >> (row + j) & 1)) continue;
            const Values<EACH> values = widen_part<BITS, EACH>(table.element, raw[j], by);
            for (u32 e = 0; e < EACH; ++e) {
                const float value = feature.weighted ? __fmul_rn(factor, values.value[e]) : values.value[e];
                sum[e] = __fadd_rn(sum[e], value);
            }
        }
    }
}

// A bag, by a warp, or a part of it: a lane sums elements side by side, four, or those of one word where warps share a bag, so that a warp
// reads whole lines of 128 B. Each byte of a row is read once; the next ids are on their way meanwhile.
template <bool DIRECT, bool RICH, bool UPDATED>
DEVICE void add_up(const Lookup& p, const SlotState& slot, const Feature& feature, const Bag& bag, u32& failed, Marked& marked) {
    const Table& table = feature.table;
    const u32 lane = threadIdx.x % 32, bits = element_bits(table.element);
    const u32 each = bag.parts > 1 && bits > 8 ? 32 / bits : 4;
    for (u32 from = bag.part * 32 * each; from < table.dim; from += bag.parts * 32 * each) {
        const u32 first = from + lane * each;
        float sum[4] = {};
        Seen seen{};
        u64 next = bag.begin + lane < bag.end ? given_at<DIRECT>(p, bag.begin + lane) : 0;
        for (u64 tile = bag.begin; tile < bag.end; tile += 32) {
            const u64 i = tile + lane, given = next;
            Addends mine{ROW_NONE, 0, feature.weighted && i < bag.end ? at<const float>(p.weights)[i] : 1.0f};
            if (i + 32 < bag.end) next = given_at<DIRECT>(p, i + 32);
            if (i < bag.end) mine.row = addend_at<DIRECT, RICH, UPDATED>(p, slot, feature, i, given, from == 0, seen, failed, marked);
            mine.there = __ballot_sync(FULL, mine.row != ROW_NONE);
            switch (bits) {
                case 32:
                    if (each == 1) add_rows<32, 1>(feature, mine, first, sum); else add_rows<32, 4>(feature, mine, first, sum);
                    break;
                case 16:
                    if (each == 2) add_rows<16, 2>(feature, mine, first, sum); else add_rows<16, 4>(feature, mine, first, sum);
                    break;
                case 8: add_rows<8, 4>(feature, mine, first, sum); break;
                default:
                    if (RICH) add_rows<4, 4>(feature, mine, first, sum);
            }
        }
        for (u32 step = 16; step > 0; step /= 2) seen.counted += __shfl_xor_sync(FULL, seen.counted, step);
        const bool lost = __ballot_sync(FULL, seen.lost) != 0;
        if (first >= table.dim) continue;
        for (u32 e = 0; e < 4; ++e) {
            if (lost) sum[e] = 0.0f;
            else if (feature.pooling == POOLING_MEAN && seen.counted != 0) sum[e] = __fdiv_rn(sum[e], (float)seen.counted);
        }
        if (each == 4) {
            put_four(bag.out, p.out_element, first, table.dim, Four{{sum[0], sum[1], sum[2], sum[3]}});
        } else {
            for (u32 e = 0; e < 2; ++e)
                if (e < each && first + e < table.dim) narrow(bag.out, p.out_element, first + e, sum[e]);
        }
    }
}

// One output row for each bag, by a warp, or by several where there are so few bags that warps would be left over: each takes lines of
// 128 B of the rows. Rows are added in the order of the bag. Traffic: 8 B and a row for each id, the row out for each bag; several warps
// read the same ids.
template <bool DIRECT, bool RICH, bool UPDATED> DEVICE void expand_bags(const Lookup& p, SlotState& slot, const Bags& all, Scratch& scratch, Marked& marked) {
    set_up<false, UPDATED>(p, all, scratch);
    u32 out_bytes = element_bytes(p.out_element), failed = 0;
    u64 warps = (u64)gridDim.x * blockDim.x / 32, bags = p.features * all.bags, walked = 0;
    const u32 parts = bags * 2 > warps ? 1 : (u32)min_of(divide(warps, bags == 0 ? 1 : bags), p.lines_of_row);
    // Bags of offsets that descend may overlap, and be far longer together than the ids.
    bool flawed = !DIRECT && (slot.flaws & FLAW_OFFSETS) != 0;
    for (u64 item = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; item < bags * parts; item += warps) {
        const u64 bag = parts == 1 ? item : divide(item, parts);
        u32 number = (u32)divide(bag, all.bags);
        const Feature& feature = feature_at(p, scratch, number);
        u64 begin = bag_begin(p, all, bag), end = bag_begin(p, all, bag + 1);
        flawed |= end < begin || walked > all.ids;
        if (flawed) end = begin;
        walked += end - begin;
        const u64 out = p.out + ((bag - number * all.bags) * p.out_stride + feature.column) * out_bytes;
        add_up<DIRECT, RICH, UPDATED>(p, slot, feature, Bag{begin, end, out, (u32)(item - bag * parts), parts}, failed, marked);
    }
    if (failed) atomicAdd(&slot.counters.failed, (u64)failed);
}

// Words of a ticket.
constexpr u32 TICKET_COUNTERS = 3, TICKET_BEGAN = TICKET_COUNTERS + sizeof(Counters) / sizeof(u64);
constexpr u32 TICKET_ENDED = TICKET_BEGAN + 3, TICKET_LAUNCH = TICKET_ENDED + 1, TICKET_GENERATION = TICKET_LAUNCH + 1;
constexpr u32 TICKET_MISSING = TICKET_GENERATION + 1, TICKET_CHECK = TICKET_MISSING + 1;
static_assert(TICKET_CHECK + 1 == sizeof(Ticket) / sizeof(u64) && TICKET_CHECK < 32, "a word a lane");

DEVICE u64* ticket_words(const Lookup& p) { return reinterpret_cast<u64*>(at<Ticket>(p.tickets) + p.ticket); }

// One warp: stores a ticket's words, of each lane its own, and their check. `times`: all of those; else only the end.
// `whole`: the sequence number among them, in no order; readers go by the check. What came before has to be fenced.
DEVICE void store_words(const Lookup& p, u64 launches, u64 word, bool times, bool whole) {
    const u32 lane = threadIdx.x;
    const bool is_told = lane < TICKET_BEGAN || (lane >= TICKET_ENDED && lane < TICKET_CHECK);
    if (lane == 0) word = launches;
    const u64 part = is_told ? check_part(lane, word) : 0;
    const u64 check = (u64)__reduce_add_sync(FULL, (u32)(part >> 32)) << 32 | __reduce_add_sync(FULL, (u32)part);
    if (lane == TICKET_CHECK) word = check;
    if (lane <= TICKET_CHECK && (lane > 0 || whole) && (times || is_told || lane == TICKET_CHECK)) store_relaxed(ticket_words(p) + lane, word);
    __syncwarp();
}

// The id that a launch tells of, for it was not found.
DEVICE u64 missing_id(const Lookup& p, u64 first_missing) { return first_missing != 0 ? id_at(p.ids, p.id_type, ~first_missing) : 0; }

// One warp, after everything else: the report, a word a lane, so that the loads wait for memory once.
// `times`: but for the end, they are the slot's, and the launch has a number; else they are in the ticket.
template <bool RICH> DEVICE void report(const Lookup& p, const SlotState& slot, u64 launches, bool times) {
    u32 lane = threadIdx.x;
    u64 word = 0;
    if (lane == 1) word = OUTCOME_DONE | (u64)load_relaxed(&slot.flaws) << 32;
    else if (lane == 2) word = slot.gate_was_closed | (u64)load_relaxed(&slot.faults) << 32;
    else if (lane < TICKET_COUNTERS) word = 0;
    else if (lane < TICKET_BEGAN) word = load_relaxed(reinterpret_cast<const u64*>(&slot.counters) + (lane - TICKET_COUNTERS));
    else if (lane == TICKET_BEGAN) word = slot.began;
    else if (lane == TICKET_BEGAN + 1) word = slot.prepared;
    else if (lane == TICKET_BEGAN + 2) word = slot.fetched;
    else if (lane == TICKET_ENDED) word = now();
    else if (lane == TICKET_LAUNCH) word = times ? slot.launch : 0;
    else if (lane == TICKET_GENERATION) word = slot.generation;
    else if (RICH && lane == TICKET_MISSING) word = p.kept != 0 ? slot.missing_id : missing_id(p, load_relaxed(&slot.counters.first_missing));
    store_words(p, launches, word, times, false);
}

// The same, and the launch is over: the gate, the lease.
template <bool RICH> DEVICE void release(const Lookup& p) {
    SlotState& slot = *at<SlotState>(p.slot);
    const u64 launches = slot.launches[p.ticket] + 1;
    report<RICH>(p, slot, launches, true);
    if (threadIdx.x != 0) return;
    slot.admitted[p.ticket] = 0;
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
        fence_gpu();
        last = atomicAdd(&count, 1u) == gridDim.x - 1;
        fence_gpu();
        if (last) count = 0;
    }
    __syncthreads();
    return last;
}

constexpr u32 EXPAND_THREADS = 256;

// Rows are there. What passed since they were fetched ahead is no part of the look-up's time.
DEVICE void note_fetched(SlotState& slot, const bool ahead) {
    const u64 at = now(), rest = ahead ? at - slot.fetched : 0;
    slot.fetched = at;
    slot.began += rest;
    slot.prepared += rest;
}

// `how`: of Expansion.
template <bool POOLED, bool RICH> DEVICE void expand(const Lookup& p, const u32 how, Scratch& scratch) {
    if (!is_admitted(p)) return;
    SlotState& slot = *at<SlotState>(p.slot);
    if (blockIdx.x == 0 && threadIdx.x == 0) note_fetched(slot, how & EXPANSION_FETCHED);
    const Bags bags = bags_of(p, slot.size);
    Marked ignored{};
    if (POOLED) expand_bags<false, RICH, false>(p, slot, bags, scratch, ignored); else expand_rows<false, false, RICH, false>(p, slot, bags, scratch, ignored);
    if ((how & EXPANSION_ENDS) && is_last(slot.expand_left) && threadIdx.x < 32) release<RICH>(p);
}

// Kernels of their own, for the one needs more registers than the other. grid: by output.
KERNEL __launch_bounds__(EXPAND_THREADS) warprow_expand_rows(const Lookup p, const u32 how) {
    wait_for_previous();
    if (!(how & EXPANSION_ENDS)) let_next_come();
    expand<false, false>(p, how, scratch_of_block());
}
KERNEL __launch_bounds__(EXPAND_THREADS, 2) warprow_expand_bags(const Lookup p, const u32 how) {
    wait_for_previous();
    if (!(how & EXPANSION_ENDS)) let_next_come();
    expand<true, false>(p, how, scratch_of_block());
}
// Of RICH plans.
KERNEL __launch_bounds__(EXPAND_THREADS, 4) warprow_expand_rich_rows(const Lookup p, const u32 how) {
    wait_for_previous();
    if (!(how & EXPANSION_ENDS)) let_next_come();
    expand<false, true>(p, how, scratch_of_block());
}
KERNEL __launch_bounds__(EXPAND_THREADS, 2) warprow_expand_rich_bags(const Lookup p, const u32 how) {
    wait_for_previous();
    if (!(how & EXPANSION_ENDS)) let_next_come();
    expand<true, true>(p, how, scratch_of_block());
}

// Clears what was set to find uniques. grid: by uniques.
KERNEL __launch_bounds__(EXPAND_THREADS) warprow_finish(const Lookup p) {
    wait_for_previous();
    if (!is_admitted(p)) return;
    SlotState& slot = *at<SlotState>(p.slot);
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    if (p.dedupe == DEDUPE_BITMAP) {
        for (u64 i = thread; i < slot.uniques; i += threads) {
            u64 key = at<const u64>(p.unique)[i];
            at<u32>(p.bitmap)[key / 32] = 0;
            at<u32>(p.summary)[key / 32768] = 0;
        }
    } else {
        forget_collected(p, thread, threads);
    }
    if (!is_last(slot.finish_left) || threadIdx.x >= 32) return;
    if (p.dedupe != DEDUPE_BITMAP && threadIdx.x == 0) at<Sorting>(p.sorting)->count = 0;
    release<true>(p);
}

// Up to so many ids, what a launch counts fits one word, so that the last block knows the sums with no further load: 11 bits each for
// blocks and for those that found flaws, 14 each for missing, padding and HBM. Bags of flawed offsets may overlap, so that positions
// are counted more than once: the last three may overflow then, and nobody reads them.
constexpr u32 FEW = (1 << 14) - 1, FEW_BLOCKS = (1 << 11) - 1;
constexpr u32 FEW_FLAWED = 11, FEW_MISSING = 22, FEW_PADDING = 36, FEW_HBM = 50;

// A block of a launch that takes no slot begins to read the description: where that may be replaced, only between launches. Who replaces
// it does so while no block is inside, so that all blocks of a launch read the same. UPDATED: the first of
// them takes the snapshot of the overlay for all: it runs, so that those who wait for it wait for a few loads.
template <bool UPDATED> DEVICE void enter(const Lookup& p, SlotState& slot) {
    if (!p.follows) return;
    if (threadIdx.x == 0) {
        const u32 before = atomicAdd(&slot.lease, 1u);
        u32 seen = before;
        while (seen & LEASE_ADOPTING) {
            pause(ADOPT_PAUSE);
            seen = load_relaxed(&slot.lease);
        }
        fence_gpu();
        if (UPDATED) {
            if ((before & ~LEASE_ADOPTING) == 0) store_relaxed(&slot.snapshot, published(p));
            else while (load_relaxed(&slot.snapshot) == 0) pause(ADOPT_PAUSE);
            fence_gpu();
        }
    }
    __syncthreads();
}

// One thread of the last block, when all have read what they will.
template <bool UPDATED> DEVICE void leave(const Lookup& p, SlotState& slot) {
    if (!p.follows) return;
    if (UPDATED) store_relaxed(&slot.snapshot, 0ull);
    fence_gpu();
    atomicSub(&slot.lease, gridDim.x);
}

// One warp of the last block: the report of a launch of few ids. Times but the last are in the ticket.
template <bool RICH> DEVICE void report_few(const Lookup& p, u64 launches, u64 generation, u64 ids, u32 flaws, u64 sum, u64 first_missing) {
    u32 lane = threadIdx.x, count = lane - TICKET_COUNTERS;
    u64 missing = sum >> FEW_MISSING & FEW, padding = sum >> FEW_PADDING & FEW, hbm = sum >> FEW_HBM;
    if (sum >> FEW_FLAWED & FEW_BLOCKS) flaws |= FLAW_OFFSETS;
    // Selected, not branched to: lanes that part ways take turns.
    u64 word = lane == 1 ? OUTCOME_DONE | (u64)flaws << 32 : 0;
    word = count == 0 ? ids : word;
    word = count == 1 ? missing : word;
    word = count == 2 ? padding : word;
    word = count == 3 ? hbm : word;
    word = count == 4 ? ids - missing - padding - hbm : word;
    word = lane == TICKET_GENERATION ? generation : word;
    if (RICH) {
        constexpr u32 FIRST_MISSING = sizeof(Counters) / sizeof(u64) - 1;
        const u64 id = missing_id(p, first_missing);
        word = count == FIRST_MISSING ? first_missing : word;
        word = lane == TICKET_MISSING ? id : word;
    }
    word = lane == TICKET_ENDED ? now() : word;
    // Each block's own fence put what it stored before its count, and all counts before this. Nothing waits for the report to arrive.
    store_words(p, launches, word, false, true);
}

constexpr u32 EXPAND_WARPS = EXPAND_THREADS / 32;

// By the block: a word for each warp.
DEVICE u64* few_sums() {
    SHARED u64 sums[EXPAND_WARPS];
    return sums;
}

// The end of a launch of few ids, by all threads.
template <bool RICH, bool UPDATED> DEVICE void end_few(const Lookup& p, SlotState& slot, u64 ids, u64 launches, u64 generation, u32 flaws, const Marked& marked, const Scratch& scratch) {
    u64* sums = few_sums();
    u64 missing = __reduce_add_sync(FULL, marked.missing), padding = __reduce_add_sync(FULL, marked.padding);
    u64 hbm = __reduce_add_sync(FULL, marked.hbm), sum = 0;
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = (missing << FEW_MISSING) + (padding << FEW_PADDING) + (hbm << FEW_HBM);
    __syncthreads();
    if (threadIdx.x >= 32) return;
    if (threadIdx.x == 0) {
        sum = 1 + ((u64)(scratch.flaws != 0) << FEW_FLAWED);
        for (u32 warp = 0; warp < EXPAND_WARPS; ++warp) sum += sums[warp];
        // What this block stored is there for everybody before it is counted: the block that finds all counted need not fence again.
        fence_system();
        sum += atomicAdd(&slot.few, sum);
        fence_acquire();
    }
    sum = __shfl_sync(FULL, sum, 0);
    if ((sum & FEW_BLOCKS) != gridDim.x) return;
    u64 first_missing = 0;
    if (threadIdx.x == 0) {
        if (RICH) {
            first_missing = load_relaxed(&slot.counters.first_missing);
            slot.counters.first_missing = 0;
        }
        slot.few = 0;
        slot.launches[p.ticket] = launches;
        leave<UPDATED>(p, slot);
    }
    if (RICH) first_missing = __shfl_sync(FULL, first_missing, 0);
    report_few<RICH>(p, launches, generation, ids, flaws, sum, first_missing);
}

// The whole look-up, where no row lies on a drive and few enough are asked for: each is read where it lies. Needs no slot, only a
// state of its ticket's own. Traffic: ids, rows, output.
template <bool POOLED, bool ONE, bool RICH, bool UPDATED> DEVICE void direct(const Lookup& p, Scratch& scratch) {
    SlotState& slot = *at<SlotState>(p.slot);
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    u32 flaws = 0;
    enter<UPDATED>(p, slot);
    const Size size = size_of(p, flaws);
    // Rows of one feature: nobody asks for bags, and dividing takes a while.
    const Bags bags = ONE ? Bags{size.ids, size.bags, 0} : bags_of(p, size);
    const u64 launches = threadIdx.x < 32 ? slot.launches[p.ticket] + 1 : 0;
    const u64 generation = p.follows && threadIdx.x < 32 ? slot.generation : 0;
    if (thread == 0) {
        u64 began = now();
        for (u32 i = 0; i < 3; ++i) store_relaxed(ticket_words(p) + TICKET_BEGAN + i, began);
    }
    Marked marked{};
    if (POOLED) expand_bags<true, RICH, UPDATED>(p, slot, bags, scratch, marked); else expand_rows<true, ONE, RICH, UPDATED>(p, slot, bags, scratch, marked);
    check_offsets(p, bags, scratch, thread, threads);
    if (bags.ids <= FEW && gridDim.x <= FEW_BLOCKS) return end_few<RICH, UPDATED>(p, slot, bags.ids, launches, generation, flaws, marked, scratch);
    sum_marked(marked, scratch);
    if (threadIdx.x == 0) add_sums(slot, scratch);
    if (!is_last(slot.expand_left) || threadIdx.x >= 32) return;
    if (threadIdx.x == 0) slot.counters.ids = bags.ids;
    __syncwarp();
    report<RICH>(p, slot, launches, false);
    if (threadIdx.x != 0) return;
    slot.counters = Counters{};
    slot.flaws = 0;
    slot.launches[p.ticket] = launches;
    leave<UPDATED>(p, slot);
    store_release(&at<Ticket>(p.tickets)[p.ticket].sequence, launches);
}

// grid: by output.
KERNEL __launch_bounds__(EXPAND_THREADS, 5) warprow_direct_rows(const Lookup p) {
    direct<false, false, false, false>(p, scratch_of_block());
}
KERNEL __launch_bounds__(EXPAND_THREADS, 2) warprow_direct_bags(const Lookup p) {
    direct<true, false, false, false>(p, scratch_of_block());
}
KERNEL __launch_bounds__(EXPAND_THREADS, 5) warprow_direct_one(const Lookup p) {
    direct<false, true, false, false>(p, scratch_of_block());
}
// Of RICH plans.
KERNEL __launch_bounds__(EXPAND_THREADS, 4) warprow_direct_rich_rows(const Lookup p) {
    direct<false, false, true, false>(p, scratch_of_block());
}
KERNEL __launch_bounds__(EXPAND_THREADS, 2) warprow_direct_rich_bags(const Lookup p) {
    direct<true, false, true, false>(p, scratch_of_block());
}
KERNEL __launch_bounds__(EXPAND_THREADS, 4) warprow_direct_rich_one(const Lookup p) {
    direct<false, true, true, false>(p, scratch_of_block());
}
// Of executors that follow updates: the others pay nothing for that.
KERNEL __launch_bounds__(EXPAND_THREADS, 4) warprow_direct_updated_rows(const Lookup p) {
    direct<false, false, true, true>(p, scratch_of_block());
}
KERNEL __launch_bounds__(EXPAND_THREADS, 2) warprow_direct_updated_bags(const Lookup p) {
    direct<true, false, true, true>(p, scratch_of_block());
}
