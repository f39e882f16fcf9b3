// Ids to unique keys in ascending order: begin, mark, count, place; or all of it by one block.
#pragma once
#include "keys.cuh"
#include "overlay.cuh"

// An id as an unsigned number: signed ones sign-extended, so that negative ones are beyond every table.
DEVICE u64 id_at(u64 ids, u32 type, u64 index) {
    switch (type) {
        case ID_I32: return (u64)(long long)at<const int>(ids)[index];
        case ID_U32: return at<const u32>(ids)[index];
        default: return at<const u64>(ids)[index];
    }
}

DEVICE bool is_signed(const Lookup& p) { return p.id_type == ID_I32 || p.id_type == ID_I64; }

DEVICE bool is_padding(const Lookup& p, const Feature& feature, u64 id) {
    if (feature.has_padding == PADDING_NONE || id != feature.padding) return false;
    if (feature.has_padding == PADDING_SIGNED) return is_signed(p);
    return feature.has_padding == PADDING_ANY || p.id_type == ID_U64;
}

// The quotient; most are of numbers that fit 32 bits, whose division takes a fraction of the time.
DEVICE u64 divide(u64 a, u64 b) { return (a | b) >> 32 == 0 ? (u64)((u32)a / (u32)b) : a / b; }

// A launch's bags.
struct Bags {
    u64 ids;    // positions
    u64 bags;   // of each feature
    u64 each;   // ids of a bag where all are of one length
};

DEVICE Bags bags_of(const Lookup& p, const Size& size) {
    u64 all = p.features * size.bags;
    return Bags{size.ids, size.bags, p.offsets == 0 && all != 0 ? divide(size.ids, all) : 0};
}

// Where bag `bag` of all F * B bags begins; `bag` = F * B gives the end of the last. Never past the ids.
DEVICE u64 bag_begin(const Lookup& p, const Bags& it, u64 bag) {
    if (bag >= p.features * it.bags && (p.offsets == 0 || !p.has_end)) return it.ids;
    if (p.offsets == 0) return bag * it.each;
    return min_of(id_at(p.offsets, p.offset_type, bag), it.ids);
}

constexpr u32 BEGINS = 256;
constexpr u32 HELD_FEATURES = 32;
constexpr u32 KINDS = 5;

// What a block that goes through positions shares.
struct alignas(16) Scratch {
    Feature features[HELD_FEATURES];  // all of them, if they are so few
    u64 begins[BEGINS];  // where the first features begin, if bags differ in length
    u32 sums[KINDS];     // of Marked
    u32 flaws;
};

DEVICE Scratch& scratch_of_block() {
    SHARED Scratch scratch;
    return scratch;
}

// By the whole block. ONE: features are not asked for. UPDATED: updated rows are.
template <bool ONE, bool UPDATED> DEVICE void set_up(const Lookup& p, const Bags& it, Scratch& scratch) {
    if (!ONE && p.features <= HELD_FEATURES) {
        uint4* to = reinterpret_cast<uint4*>(scratch.features);
        for (u32 i = threadIdx.x; i < p.features * (sizeof(Feature) / 16); i += blockDim.x) to[i] = at<const uint4>(p.feature)[i];
    }
    if (threadIdx.x < KINDS) scratch.sums[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        scratch.flaws = 0;
        if constexpr (UPDATED) seen() = seen_by(*at<const SlotState>(p.slot));
    }
    for (u32 feature = threadIdx.x; !ONE && p.offsets != 0 && feature < p.features && feature < BEGINS; feature += blockDim.x)
        scratch.begins[feature] = bag_begin(p, it, feature * it.bags);
    __syncthreads();
}

DEVICE const Feature& feature_at(const Lookup& p, const Scratch& scratch, u32 number) {
    return (p.features <= HELD_FEATURES ? scratch.features : at<const Feature>(p.feature))[number];
}

// The feature that position `index` belongs to, where it is `low` or a later one; `end` becomes the position at which that ends.
DEVICE u32 feature_from(const Lookup& p, const Bags& it, const Scratch& scratch, u64 index, u32 low, u64& end) {
    end = it.ids;
    if (p.features == 1) return 0;
    if (p.offsets == 0) {
        u64 own = it.bags * it.each;
        if (own == 0) return p.features - 1;
        u64 feature = min_of(divide(index, own), p.features - 1);
        if (feature + 1 < p.features) end = (feature + 1) * own;
        return (u32)feature;
    }
    u32 high = p.features;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        u64 begin = middle < BEGINS ? scratch.begins[middle] : bag_begin(p, it, middle * it.bags);
        if (begin <= index) {
            low = middle;
        } else {
            high = middle;
            end = begin;
        }
    }
    return low;
}

DEVICE u32 feature_of(const Lookup& p, const Bags& it, const Scratch& scratch, u64 index) {
    u64 end;
    return feature_from(p, it, scratch, index, 0, end);
}

// What the host or the device says; nothing at all if that is more than planned.
DEVICE Size size_of(const Lookup& p, u32& flaws) {
    Size size{p.id_count, p.bag_count};
    if (p.counts != 0) size = Size{at<const u64>(p.counts)[0], at<const u64>(p.counts)[1]};
    flaws = (size.ids > p.max_ids ? FLAW_TOO_MANY_IDS : 0) | (size.bags > p.max_bags ? FLAW_TOO_MANY_BAGS : 0);
    return flaws == 0 ? size : Size{0, 0};
}

// A word's part in a ticket's check, of which the halves are summed apart. src/abi.rs has the same.
DEVICE u64 check_part(u32 index, u64 word) { return word * ((2 * index + 1) * 0x9e3779b97f4a7c15ull); }

constexpr u32 ADOPT_PAUSE = 200;  // ns

// Takes a slot's lease for a launch, unless another has it. While tables are replaced it waits: a kernel that runs already copies them.
DEVICE bool take_lease(SlotState& slot) {
    for (;;) {
        const u32 was = atomicCAS(&slot.lease, 0u, 1u);
        if ((was & LEASE_ADOPTING) == 0) return was == 0;
        pause(ADOPT_PAUSE);
    }
}

// One thread: may this launch run, and on what? Takes the lease.
DEVICE bool admit(const Lookup& p) {
    SlotState& slot = *at<SlotState>(p.slot);
    Ticket& ticket = at<Ticket>(p.tickets)[p.ticket];
    if (!take_lease(slot)) {
        slot.admitted[p.ticket] = 0;
        u64 launches = atomicAdd(&slot.launches[p.ticket], 1ull) + 1;
        u64 first = check_part(0, launches), second = check_part(1, OUTCOME_BUSY);
        store_relaxed(reinterpret_cast<u64*>(&ticket) + 1, (u64)OUTCOME_BUSY);
        store_relaxed(&ticket.check, (u64)((u32)(first >> 32) + (u32)(second >> 32)) << 32 | ((u32)first + (u32)second));
        store_release(&ticket.sequence, launches);
        return false;
    }
    // The launch before gave the lease back behind a release.
    fence_acquire();
    slot.admitted[p.ticket] = 1;
    ++slot.launch;
    slot.began = now();
    slot.faults = 0;
    slot.uniques = 0;
    slot.dram_uniques = 0;
    slot.counters = Counters{};
    slot.size = size_of(p, slot.flaws);
    slot.counters.ids = slot.size.ids;
    return true;
}

// One thread, of a launch that was admitted: passes the gate, which is two ways across the bus.
// UPDATED: rows may be updated; then it takes the snapshot of the overlay too.
template <bool UPDATED> DEVICE void pass_gate(const Lookup& p) {
    SlotState& slot = *at<SlotState>(p.slot);
    // Whoever closes the gate stores `closed` and then looks at `inside`: one of the two sees the other.
    store_relaxed(gate_inside(p), slot.launch);
    fence_sequential();
    if (UPDATED && p.overlay != 0) slot.snapshot = published(p);
    slot.gate_was_closed = load_relaxed(gate_closed(p));
    if (slot.gate_was_closed) store_relaxed(gate_inside(p), 0ull);
    // What the host did before it opened the gate is seen by whoever finds it open; and what was updated, by who has the snapshot.
    fence_acquire();
}

struct Marked {
    u32 missing, padding, hbm, dram, ssd;
};

// Where the row of an id lies in the overlay; 0: it is not there. `row`: what the table itself has the id's row to be.
DEVICE u64 overlaid_row(const Lookup& p, const Table& table, u64 id, u64 row) {
    const u64 snapshot = seen();
    if (table.overlay == 0 || snapshot == 0) return 0;
    if (table.keys != 0 && (snapshot & SNAPSHOT_CREATED) != 0) {
        const KeyIndex& index = *at<const KeyIndex>(table.keys);
        // A key that was found by itself was not created; one whose fingerprint alone is known may have been.
        if ((row == SLOT_ABSENT || index.stored == 0) && is_key(index, id, is_signed(p))) {
            const u64 created = updated_row(p.overlay, snapshot, table.overlay | TABLE_CREATED, id);
            if (created != 0) return created;
        }
    }
    return row < table.rows ? updated_row(p.overlay, snapshot, table.overlay, row) : 0;
}

// What becomes of an id of `feature`: its place, which is a key where it has one. DIRECT: rows in DRAM are read where they lie.
// UPDATED: some rows may be, and keys created. They count as rows in DRAM, as the host has them.
template <bool DIRECT, bool UPDATED> DEVICE u64 place_of(const Lookup& p, const Feature& feature, u64 id, Marked& marked) {
    const Table& table = feature.table;
    const u64 row = table.keys == 0 ? id : row_of_key(table, id, is_signed(p));
    const bool padding = is_padding(p, feature, id);
    u64 updated = 0;
    if constexpr (UPDATED) updated = padding && p.pooled ? 0 : overlaid_row(p, table, id, row);
    if (padding && (p.pooled || (row >= table.rows && updated == 0))) {
        ++marked.padding;
        return PLACE_PADDING;
    }
    if (UPDATED && updated != 0) {
        ++marked.dram;
        return PLACE_HERE | updated;
    }
    if (row >= table.rows) {
        ++marked.missing;
        return PLACE_MISSING;
    }
    const u64 rank = rank_of(table, row);
    if (rank < table.hbm_rows) {
        ++marked.hbm;
        return PLACE_HERE | (table.hbm + rank * table.row_stride);
    }
    if (rank < table.dram_end) {
        ++marked.dram;
        if (DIRECT) return PLACE_HERE | (table.dram + (rank - table.hbm_rows) * table.row_stride);
        return table.dram_key + (rank - table.hbm_rows);
    }
    ++marked.ssd;
    return table.ssd_key + (rank - table.dram_end);
}

DEVICE void add(Marked& sum, const Marked& other) {
    sum.missing += other.missing;
    sum.padding += other.padding;
    sum.hbm += other.hbm;
    sum.dram += other.dram;
    sum.ssd += other.ssd;
}

// Adds up in shared memory what all threads of the block marked. A barrier follows.
DEVICE void sum_marked(const Marked& marked, Scratch& scratch) {
    u32 mine[KINDS] = {marked.missing, marked.padding, marked.hbm, marked.dram, marked.ssd};
    for (u32 kind = 0; kind < KINDS; ++kind) {
        u32 sum = __reduce_add_sync(FULL, mine[kind]);
        if (threadIdx.x % 32 == 0 && sum != 0) atomicAdd(&scratch.sums[kind], sum);
    }
    __syncthreads();
}

// One thread: adds the block's sums and flaws to the launch's.
DEVICE void add_sums(SlotState& slot, const Scratch& scratch) {
    Counters& it = slot.counters;
    u64* to[KINDS] = {&it.missing, &it.padding, &it.ids_hbm, &it.ids_dram, &it.ids_ssd};
    for (u32 kind = 0; kind < KINDS; ++kind)
        if (scratch.sums[kind]) atomicAdd(to[kind], (u64)scratch.sums[kind]);
    if (scratch.flaws) atomicOr(&slot.flaws, scratch.flaws);
}

// 1 where the table has the row and the id is no padding. A row that fails later is cleared by `expand`.
DEVICE void mask_at(const Lookup& p, const Feature& feature, u64 index, u64 place) {
    if (p.mask == 0) return;
    bool padding = is_padding(p, feature, id_at(p.ids, p.id_type, index));
    at<u8>(p.mask)[index] = place != PLACE_MISSING && !padding;
}

// What the report is to say of an id that its table lacks, after it was counted as missing. RICH: a feature may want another thing.
template <bool RICH> DEVICE void tell_missing(const Lookup& p, const Feature& feature, u64 index, u64 place, Marked& marked) {
    if (!RICH || place != PLACE_MISSING || feature.bounds == BOUNDS_COUNT) return;
    if (feature.bounds == BOUNDS_REPORT) {
        atomicMax(&at<SlotState>(p.slot)->counters.first_missing, ~index);
    } else {
        --marked.missing;
        ++marked.padding;
    }
}

// Offsets that do not ascend, or that pass the ids, or ids that are no bags of one length: noted; what they mean is then whatever bag_begin makes of them.
DEVICE void check_offsets(const Lookup& p, const Bags& it, Scratch& scratch, u64 thread, u64 threads) {
    u64 bags = p.features * it.bags, entries = bags + (p.has_end ? 1 : 0);
    if (p.offsets == 0) {
        // All bags are of one length. Of counts that it knows the host has seen to that.
        const bool even = p.counts == 0 || (bags == 0 ? it.ids == 0 : it.ids % bags == 0);
        if (thread == 0 && !even) atomicOr(&scratch.flaws, (u32)FLAW_OFFSETS);
        return;
    }
    // There may be many more of them than ids: several are on their way at once.
    constexpr u32 UNROLL = 4;
    bool bad = false;
    for (u64 first = thread; first < entries; first += threads * UNROLL) {
        u64 here[UNROLL], before[UNROLL];
#pragma unroll
        for (u32 k = 0; k < UNROLL; ++k) {
            const u64 i = first + k * threads;
            here[k] = i < entries ? id_at(p.offsets, p.offset_type, i) : 0;
            before[k] = i < entries && i != 0 ? id_at(p.offsets, p.offset_type, i - 1) : 0;
        }
#pragma unroll
        for (u32 k = 0; k < UNROLL; ++k) {
            const u64 i = first + k * threads;
            if (i >= entries) break;
            bad |= i == 0 ? here[k] != 0 : here[k] < before[k];
            bad |= here[k] > it.ids || (i == bags && here[k] != it.ids);
        }
    }
    if (bad) atomicOr(&scratch.flaws, (u32)FLAW_OFFSETS);
}

// --- Any number of ids ---------------------------------------------------------------------------------------------------------

constexpr u32 MARK_THREADS = 256;
constexpr u32 WALK_THREADS = 256;

// grid 1, block 1.
KERNEL warprow_begin(const Lookup p) {
    let_next_come();
    if (admit(p)) pass_gate<true>(p);
}

// Sets the bit of each id's key. grid: any. Reads ids once, writes 8 B an id; a bit costs an atomic only if it is not yet set.
template <bool UPDATED> DEVICE void mark(const Lookup& p, Scratch& scratch) {
    if (!is_admitted(p)) return;
    SlotState& slot = *at<SlotState>(p.slot);
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    const Bags bags = bags_of(p, slot.size);
    set_up<false, UPDATED>(p, bags, scratch);
    check_offsets(p, bags, scratch, thread, threads);
    Marked marked{};
    for (u64 i = thread; i < bags.ids; i += threads) {
        const Feature& feature = feature_at(p, scratch, feature_of(p, bags, scratch, i));
        u64 place = place_of<false, UPDATED>(p, feature, id_at(p.ids, p.id_type, i), marked);
        at<u64>(p.place)[i] = place;
        mask_at(p, feature, i, place);
        tell_missing<true>(p, feature, i, place, marked);
        if (place >= PLACE_STAGED) continue;
        u32* word = at<u32>(p.bitmap) + place / 32;
        u32 bit = 1u << place % 32;
        // Bits are only ever set here, so that a stale word costs an atomic and nothing else.
        if (*word & bit) continue;
        if (atomicOr(word, bit) == 0) {
            u32* summary = at<u32>(p.summary) + place / 32768;
            u32 block = 1u << place / 1024 % 32;
            if (!(*summary & block)) atomicOr(summary, block);
        }
    }
    sum_marked(marked, scratch);
    if (threadIdx.x == 0) add_sums(slot, scratch);
}

KERNEL warprow_mark(const Lookup p) {
    wait_for_previous();
    let_next_come();
    mark<false>(p, scratch_of_block());
}
// Of executors that follow updates.
KERNEL warprow_mark_updated(const Lookup p) {
    wait_for_previous();
    let_next_come();
    mark<true>(p, scratch_of_block());
}

// The words of the summary that a warp walks.
struct Walk {
    u64 begin, end;
};

DEVICE Walk walk_of(const Lookup& p, u32 warp, u32 warps) {
    u64 words = (p.keys + 32767) / 32768;
    return Walk{words * warp / warps, words * (warp + 1) / warps};
}

// Calls visit(first key, this lane's word) for every 1,024 keys of which one is set, in ascending order. By a whole warp.
template <class Visit> DEVICE void walk(const Lookup& p, const Walk& range, Visit visit) {
    u32 lane = threadIdx.x % 32;
    for (u64 first = range.begin; first < range.end; first += 32) {
        u32 mine = first + lane < range.end ? at<const u32>(p.summary)[first + lane] : 0;
        for (u32 set = __ballot_sync(FULL, mine != 0); set != 0; set &= set - 1) {
            u32 word = __ffs(set) - 1;
            for (u32 bits = __shfl_sync(FULL, mine, word); bits != 0; bits &= bits - 1) {
                u64 key = (first + word) * 32768 + (u64)(__ffs(bits) - 1) * 1024;
                visit(key, at<const u32>(p.bitmap)[key / 32 + lane]);
            }
        }
    }
}

// Counts the keys of each warp's part. grid: fixed; `place` has the same.
KERNEL warprow_count(const Lookup p) {
    wait_for_previous();
    let_next_come();
    if (!is_admitted(p)) return;
    u32 warp = blockIdx.x * (WALK_THREADS / 32) + threadIdx.x / 32, warps = gridDim.x * (WALK_THREADS / 32);
    u32 sum = 0, dram = 0;
    walk(p, walk_of(p, warp, warps), [&](u64 key, u32 word) {
        sum += __popc(word);
        if (key < p.ssd_key) dram += __popc(word);
    });
    for (u32 step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(FULL, sum, step);
        dram += __shfl_xor_sync(FULL, dram, step);
    }
    if (threadIdx.x % 32 != 0) return;
    SlotState& slot = *at<SlotState>(p.slot);
    at<u32>(p.parts)[warp] = sum;
    if (sum) atomicAdd(&slot.uniques, sum);
    if (dram) atomicAdd(&slot.dram_uniques, dram);
}

// Writes the unique keys in ascending order, and how many lie before each 1,024.
KERNEL warprow_place(const Lookup p) {
    wait_for_previous();
    let_next_come();
    if (!is_admitted(p)) return;
    SHARED u32 room[WALK_THREADS / 32];
    SHARED u32 totals[WALK_THREADS / 32];
    SlotState& slot = *at<SlotState>(p.slot);
    u32 lane = threadIdx.x % 32, mine = threadIdx.x / 32, per_block = WALK_THREADS / 32;
    u32 before = 0;
    for (u32 i = threadIdx.x; i < blockIdx.x * per_block; i += WALK_THREADS) before += at<const u32>(p.parts)[i];
    before = block_sum<WALK_THREADS>(before, room);
    if (threadIdx.x < per_block) totals[threadIdx.x] = at<const u32>(p.parts)[blockIdx.x * per_block + threadIdx.x];
    __syncthreads();
    for (u32 warp = 0; warp < mine; ++warp) before += totals[warp];
    walk(p, walk_of(p, blockIdx.x * per_block + mine, gridDim.x * per_block), [&](u64 key, u32 word) {
        u32 inclusive = __popc(word);
        for (u32 step = 1; step < 32; step *= 2) {
            u32 other = __shfl_up_sync(FULL, inclusive, step);
            if (lane >= step) inclusive += other;
        }
        if (lane == 0) at<u32>(p.base)[key / 1024] = before;
        u32 to = before + inclusive - __popc(word);
        for (u32 bits = word; bits != 0; bits &= bits - 1, ++to) {
            at<u64>(p.unique)[to] = key + lane * 32 + (__ffs(bits) - 1);
            at<u8>(p.status)[to] = ROW_FAILED;
        }
        before += __shfl_sync(FULL, inclusive, 31);
    });
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        slot.counters.rows_dram = slot.dram_uniques;
        slot.counters.rows_ssd = slot.uniques - slot.dram_uniques;
        slot.prepared = now();
    }
}

// --- Up to SMALL ids, by one block ---------------------------------------------------------------------------------------------

constexpr u32 SMALL_THREADS = 1024;
constexpr u32 SMALL = 8192;
constexpr u32 POSITION_BITS = 13;
constexpr u64 NO_KEY = ~0ull;

// A warp of the sort has a chunk of words, each lane these: one in 32.
constexpr u32 HELD = SMALL / SMALL_THREADS;
constexpr u32 CHUNK = 32 * HELD;

// The steps of `run` from `most` (less than CHUNK) on, within a chunk. `first`: the number of the lane's first word.
DEVICE void merge_chunk(u64 (&held)[HELD], u32 first, u32 run, u32 most) {
#pragma unroll
    for (u32 apart = HELD / 2; apart > 0; apart /= 2) {
        if (32 * apart > most) continue;
#pragma unroll
        for (u32 k = 0; k < HELD; ++k) {
            if ((k & apart) != 0) continue;
            const u64 a = held[k], b = held[k + apart];
            const bool swaps = (a > b) == (((first + 32 * k) & run) == 0);
            held[k] = swaps ? b : a;
            held[k + apart] = swaps ? a : b;
        }
    }
    for (u32 step = most < 16 ? most : 16; step > 0; step /= 2) {
#pragma unroll
        for (u32 k = 0; k < HELD; ++k) {
            const u64 other = __shfl_xor_sync(FULL, held[k], step);
            const bool least = ((first & step) == 0) == (((first + 32 * k) & run) == 0);
            if ((other < held[k]) == least) held[k] = other;
        }
    }
}

// Sorts `size` (a power of two, CHUNK or more) words ascending, in shared memory: Batcher's bitonic network. What is less than a chunk apart is
// compared within a warp, without a barrier.
DEVICE void block_sort(u64* words, u32 size) {
    const u32 first = threadIdx.x / 32 * CHUNK + threadIdx.x % 32;
    const bool holds = first < size;  // the same in a whole warp
    u64 held[HELD];
    if (holds) {
        for (u32 k = 0; k < HELD; ++k) held[k] = words[first + 32 * k];
        for (u32 run = 2; run <= CHUNK; run *= 2) merge_chunk(held, first, run, run / 2);
        for (u32 k = 0; k < HELD; ++k) words[first + 32 * k] = held[k];
    }
    __syncthreads();
    for (u32 run = 2 * CHUNK; run <= size; run *= 2) {
        for (u32 step = run / 2; step >= CHUNK; step /= 2) {
            for (u32 i = threadIdx.x; i < size / 2; i += SMALL_THREADS) {
                u32 low = 2 * i - (i & (step - 1)), high = low + step;
                u64 a = words[low], b = words[high];
                if ((a > b) == ((low & run) == 0)) {
                    words[low] = b;
                    words[high] = a;
                }
            }
            __syncthreads();
        }
        if (holds) {
            for (u32 k = 0; k < HELD; ++k) held[k] = words[first + 32 * k];
            merge_chunk(held, first, run, CHUNK / 2);
            for (u32 k = 0; k < HELD; ++k) words[first + 32 * k] = held[k];
        }
        __syncthreads();
    }
}

// What the block shares beside.
struct Preparing {
    u32 room[SMALL_THREADS / 32];
    u32 admitted, keyed;
};

DEVICE Preparing& preparing() {
    SHARED Preparing it;
    return it;
}

// All of begin, mark, count and place. Only rows on drives are deduplicated and staged; those in DRAM are read where they lie.
// grid 1; dynamic shared memory: 8 B for each id, rounded up to a power of two, CHUNK at least.
template <bool UPDATED> DEVICE void prepare(const Lookup& p, Scratch& scratch) {
    extern __shared__ u64 words[];
    Preparing& own = preparing();
    SlotState& slot = *at<SlotState>(p.slot);
    if (threadIdx.x == 0) {
        own.admitted = admit(p);
        // Updated rows are looked for in the snapshot.
        if (UPDATED && own.admitted) pass_gate<true>(p);
    }
    __syncthreads();
    if (!own.admitted) return;
    const Bags bags = bags_of(p, slot.size);
    if (threadIdx.x == 0) own.keyed = 0;
    set_up<false, UPDATED>(p, bags, scratch);
    // While the other warps look at ids; nobody asks what it found before the next kernel.
    if (!UPDATED && threadIdx.x == SMALL_THREADS - 32) pass_gate<false>(p);
    check_offsets(p, bags, scratch, threadIdx.x, SMALL_THREADS);
    Marked marked{};
    for (u32 i = threadIdx.x; i < bags.ids; i += SMALL_THREADS) {
        const Feature& feature = feature_at(p, scratch, feature_of(p, bags, scratch, i));
        u64 place = place_of<true, UPDATED>(p, feature, id_at(p.ids, p.id_type, i), marked);
        at<u64>(p.place)[i] = place;
        mask_at(p, feature, i, place);
        tell_missing<true>(p, feature, i, place, marked);
        if (place < PLACE_STAGED) words[atomicAdd(&own.keyed, 1u)] = place << POSITION_BITS | i;
    }
    sum_marked(marked, scratch);
    if (threadIdx.x == 0) add_sums(slot, scratch);
    u32 size = CHUNK;
    while (size < own.keyed) size *= 2;
    for (u32 i = own.keyed + threadIdx.x; i < size; i += SMALL_THREADS) words[i] = NO_KEY;
    __syncthreads();
    block_sort(words, size);
    // Each warp numbers the different keys of its chunk, 32 words at a time.
    const u32 lane = threadIdx.x % 32, first = threadIdx.x / 32 * CHUNK + lane;
    u64 held[HELD];
    u32 heads[HELD], number = 0, total;
#pragma unroll
    for (u32 k = 0; k < HELD; ++k) {
        const u32 i = first + 32 * k;
        held[k] = i < size ? words[i] : NO_KEY;
        const u64 before = i == 0 || i >= size ? NO_KEY : words[i - 1];
        heads[k] = __ballot_sync(FULL, held[k] != NO_KEY && before >> POSITION_BITS != held[k] >> POSITION_BITS);
        number += __popc(heads[k]);
    }
    // Of all warps before this one.
    number = block_scan<SMALL_THREADS>(lane == 31 ? number : 0, own.room, total);
#pragma unroll
    for (u32 k = 0; k < HELD; ++k) {
        if (held[k] != NO_KEY) {
            // That of the latest head up to this lane.
            const u32 unique = number + __popc(heads[k] & (FULL >> (31 - lane))) - 1;
            if (heads[k] >> lane & 1) {
                at<u64>(p.unique)[unique] = held[k] >> POSITION_BITS;
                at<u8>(p.status)[unique] = ROW_FAILED;
            }
            at<u64>(p.place)[held[k] & ((1u << POSITION_BITS) - 1)] = PLACE_STAGED | unique;
        }
        number += __popc(heads[k]);
    }
    if (threadIdx.x == 0) {
        slot.uniques = total;
        slot.counters.rows_ssd = total;
        slot.prepared = now();
    }
}

KERNEL __launch_bounds__(SMALL_THREADS) warprow_prepare(const Lookup p) {
    let_next_come();
    prepare<false>(p, scratch_of_block());
}
// Of executors that follow updates.
KERNEL __launch_bounds__(SMALL_THREADS) warprow_prepare_updated(const Lookup p) {
    let_next_come();
    prepare<true>(p, scratch_of_block());
}
