// From an id to its place, and from a place to the address of a row.
#pragma once
#include "bags.cuh"
#include "listed.cuh"

// How many ids a thread, or all of them, found to be of each kind. `probed`: those that the cache has, and times DRAM_MISS those in DRAM that may be cached and are
// not: one register for both, as a thread looks at fewer than DRAM_MISS ids.
struct IdCounts {
    u32 missing, padding, hbm, dram, ssd, probed;
};
constexpr u32 DRAM_MISS = 1 << 16;

// The address of an id's row in the overlay; 0: the overlay does not have it; REMOVED. `row`: the row of the id by the table itself.
DEVICE u64 overlaid_row(const Lookup& lookup, const Table& table, u64 id, u64 row) {
    const u64 snapshot = block_snapshot();
    if (table.overlay == 0 || snapshot == 0) return 0;
    if (table.keys != 0 && (snapshot & SNAPSHOT_CREATED) != 0) {
        const KeyIndex& index = *at<const KeyIndex>(table.keys);
        // A key that the index has was not created. Where only fingerprints are compared, another key may have passed for this one.
        if ((row == SLOT_ABSENT || index.stored == 0) && is_key(index, id, is_signed(lookup))) {
            const u64 created = updated_row(lookup.plan.overlay, snapshot, table.overlay | TABLE_CREATED, id);
            if (created != 0) return created;
        }
    }
    return row < table.rows ? updated_row(lookup.plan.overlay, snapshot, table.overlay, row) : 0;
}

// The place of an id of `feature` (PLACE_*), which is a key where the row has one; counts the id. DIRECT: rows in DRAM are read where they lie.
// UPDATED: rows may have been updated, keys created, and rows listed for DRAM. Updated rows count as rows in DRAM, as on the host.
// CACHED: rows in DRAM that may be cached have a key, DIRECT or not.
template <bool DIRECT, bool UPDATED, bool CACHED = false> DEVICE u64 place_of(const Lookup& lookup, const Feature& feature, u64 id, IdCounts& counts) {
    const Table& table = feature.table;
    const u64 row = table.keys == 0 ? id : row_of_key(table, id, is_signed(lookup));
    const bool padding = is_padding(lookup, feature, id);
    // By what the index says, as on the host: removed keys are touched, and created ones are not.
    if (table.keys != 0 && row != SLOT_ABSENT && !(padding && lookup.plan.pooled)) touch(table, row);
    u64 updated = 0;
    if constexpr (UPDATED) updated = padding && lookup.plan.pooled ? 0 : overlaid_row(lookup, table, id, row);
    const bool absent = updated == 0 ? row >= table.rows : updated == REMOVED;
    if (padding && (lookup.plan.pooled || absent)) {
        ++counts.padding;
        return PLACE_PADDING;
    }
    if (absent) {
        ++counts.missing;
        return PLACE_MISSING;
    }
    if (UPDATED && updated != 0) {
        ++counts.dram;
        return PLACE_HERE | updated;
    }
    const u64 rank = rank_of(table, row);
    if (rank < table.hbm_rows) {
        ++counts.hbm;
        return PLACE_HERE | (table.hbm + rank * table.row_stride);
    }
    const bool is_direct = DIRECT && !(CACHED && table.caches_dram != 0);
    if constexpr (UPDATED) {
        const u64 listed = table.listed != 0 ? listed_place(table, rank) : LISTED_NONE;
        if (listed != LISTED_NONE) {
            ++counts.dram;
            return is_direct ? PLACE_HERE | (table.dram + listed * table.row_stride) : table.dram_key + listed;
        }
    }
    if (rank < table.dram_end) {
        ++counts.dram;
        if (is_direct) return PLACE_HERE | (table.dram + (rank - table.hbm_rows) * table.row_stride);
        return table.dram_key + (rank - table.hbm_rows);
    }
    ++counts.ssd;
    return table.ssd_key + (rank - table.dram_end);
}

// Adds `other` to `sum`.
DEVICE void add_counts(IdCounts& sum, const IdCounts& other) {
    sum.missing += other.missing;
    sum.padding += other.padding;
    sum.hbm += other.hbm;
    sum.dram += other.dram;
    sum.ssd += other.ssd;
    sum.probed += other.probed;
}

// Adds up in shared memory the counts of all threads of the block. It ends with a barrier. CACHED: rows may have been found in the cache.
template <bool CACHED = false> DEVICE void sum_counts(const IdCounts& counts, Scratch& scratch) {
    u32 mine[COUNT_KINDS] = {counts.missing, counts.padding, counts.hbm, counts.dram, counts.ssd, counts.probed % DRAM_MISS, counts.probed / DRAM_MISS};
    // What was published in lines that this thread has found is seen by the kernels behind this one.
    if (CACHED && counts.probed % DRAM_MISS != 0) fence_gpu();
    for (u32 kind = 0; kind < (CACHED ? COUNT_KINDS : PLAIN_KINDS); ++kind) {
        u32 sum = __reduce_add_sync(FULL, mine[kind]);
        if (threadIdx.x % 32 == 0 && sum != 0) atomicAdd(&scratch.sums[kind], sum);
    }
    __syncthreads();
}

// By one thread: adds the sums and flaws of the block to those of the launch. CACHED: as for sum_counts; rows in DRAM that the cache lacks are added to the
// cache's misses.
template <bool CACHED = false> DEVICE void add_sums(const Lookup& lookup, SlotState& slot, const Scratch& scratch) {
    Counters& counters = slot.counters;
    u64* const misses = CACHED ? &cache_of(lookup).misses : nullptr;
    u64* to[COUNT_KINDS] = {&counters.missing, &counters.padding, &counters.ids_hbm, &counters.ids_dram, &counters.ids_ssd, &counters.ids_cached, misses};
    for (u32 kind = 0; kind < (CACHED ? COUNT_KINDS : PLAIN_KINDS); ++kind)
        if (scratch.sums[kind]) atomicAdd(to[kind], (u64)scratch.sums[kind]);
    if (scratch.flaws) atomicOr(&slot.flaws, scratch.flaws);
}

// Writes the mask of a position: 1 where the table has the row and the id is no padding, which `mask_lost` changes for a row that fails later; with LOST_MASK
// it is 0 until then.
DEVICE void write_mask(const Lookup& lookup, const Feature& feature, u64 index, u64 place) {
    if (lookup.output.mask == 0) return;
    bool padding = is_padding(lookup, feature, id_at(lookup.batch.ids, lookup.batch.id_type, index));
    at<u8>(lookup.output.mask)[index] = place != PLACE_MISSING && !padding && !(lookup.plan.lost & LOST_MASK);
}

// Writes the mask of a position whose row could not be read.
DEVICE void mask_lost(const Lookup& lookup, u64 index) {
    if (lookup.output.mask != 0) at<u8>(lookup.output.mask)[index] = (lookup.plan.lost & LOST_MASK) != 0;
}

// What elements of a row that could not be read are.
DEVICE float lost_value(const Lookup& lookup) { return lookup.plan.lost & LOST_NAN ? __uint_as_float(0x7fc00000) : 0.0f; }

// Reports a missing id, which place_of has counted, as its feature wants it. RICH: a feature may want another thing than that it is counted.
template <bool RICH> DEVICE void report_missing(const Lookup& lookup, const Feature& feature, u64 index, u64 place, IdCounts& counts) {
    if (!RICH || place != PLACE_MISSING || feature.bounds == BOUNDS_COUNT) return;
    if (feature.bounds != BOUNDS_IGNORE) {
        const u64 first = first_missing_of(index, feature.bounds == BOUNDS_ERROR);
        atomicMax(&at<SlotState>(lookup.slot.state)->counters.first_missing, first);
    } else {
        --counts.missing;
        ++counts.padding;
    }
}

// The place of position `index`: counts the id, writes its mask, and reports it if it is missing. `feature` becomes its feature. Parameters as for place_of.
// CACHED: rows on drives, and those in DRAM of some tables, may lie in the cache, and whole warps come here, with lanes of which `there` is not set for want of
// positions.
template <bool DIRECT, bool UPDATED, bool CACHED>
DEVICE u64 located(const Lookup& lookup, const Bags& bags, const Scratch& scratch, u64 index, const bool there, const Feature*& feature, IdCounts& counts) {
    u64 place = PLACE_PADDING;
    feature = nullptr;
    if (there) {
        feature = &feature_at(lookup, scratch, feature_of(lookup, bags, scratch, index));
        place = place_of<DIRECT, UPDATED, CACHED>(lookup, *feature, id_at(lookup.batch.ids, lookup.batch.id_type, index), counts);
    }
    if constexpr (CACHED) {
        const bool is_cold = place < PLACE_STAGED && place >= lookup.keys.first_ssd_key;
        const bool is_asked = is_cold || (place < lookup.keys.first_ssd_key && feature->table.caches_dram != 0);
        const u64 row = cached_row(is_asked ? &feature->table : nullptr, is_asked ? cache_number(feature->table, place, is_cold) : 0);
        if (row != 0) {
            counts.ssd -= is_cold;
            counts.dram -= !is_cold;
            ++counts.probed;
            place = PLACE_HERE | row;
        } else if (is_asked && !is_cold) {
            counts.probed += DRAM_MISS;
        }
    }
    if (!there) return place;
    write_mask(lookup, *feature, index, place);
    report_missing<true>(lookup, *feature, index, place, counts);
    return place;
}

// What row_at gives where there is no address.
constexpr u64 ROW_NONE = 0;  // the position has no row
constexpr u64 ROW_LOST = 1;  // the row could not be read

// The address of the row of a place, in GPU memory or in staging. DIRECT: nothing was staged.
template <bool DIRECT> DEVICE u64 row_at(const Lookup& lookup, const SlotState& slot, u64 place) {
    if (place >= PLACE_PADDING) return ROW_NONE;
    if (DIRECT || (place & PLACE_HERE)) return place & ~PLACE_HERE;
    u32 unique;
    if (place & PLACE_STAGED) {
        unique = (u32)place;
        if (place & PLACE_HASHED) unique = at<const u32>(lookup.sort.numbers)[unique];
    } else {
        const uint4* words = at<const uint4>(lookup.bitmap.bits) + place / 1024 * 8;
        u32 whole = (u32)(place % 1024 / 32), before = at<const u32>(lookup.bitmap.base)[place / 1024];
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
    if (unique >= slot.dram_uniques && at<const u8>(lookup.unique.status)[unique] != ROW_READ) return ROW_LOST;
    return lookup.unique.staging + (u64)unique * lookup.unique.staging_stride;
}

// What is known of a position before its row is looked for. DIRECT: its id; else its place, which an earlier kernel wrote.
template <bool DIRECT> DEVICE u64 input_at(const Lookup& lookup, u64 index) {
    return DIRECT ? id_at(lookup.batch.ids, lookup.batch.id_type, index) : at<const u64>(lookup.unique.places)[index];
}
