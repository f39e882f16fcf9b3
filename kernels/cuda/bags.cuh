// The ids of a batch as features and bags: which feature and bag a position belongs to, and what a block keeps of that in shared memory.
#pragma once
#include "cache.cuh"
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

// Whether the batch has signed ids.
DEVICE bool is_signed(const Lookup& lookup) { return lookup.batch.id_type == ID_I32 || lookup.batch.id_type == ID_I64; }

// Whether an id is the padding id of its feature.
DEVICE bool is_padding(const Lookup& lookup, const Feature& feature, u64 id) {
    if (feature.has_padding == PADDING_NONE || id != feature.padding) return false;
    if (feature.has_padding == PADDING_SIGNED) return is_signed(lookup);
    return feature.has_padding == PADDING_ANY || lookup.batch.id_type == ID_U64;
}

// How the ids of a launch form bags.
struct Bags {
    u64 ids;          // ids of the batch; a position is the index of one
    u64 per_feature;  // bags of each feature
    u64 ids_each;     // ids of a bag, where all bags are of one length
};

// The bags of a batch of that size.
DEVICE Bags bags_of(const Lookup& lookup, const Size& size) {
    u64 all = lookup.plan.feature_count * size.bags;
    return Bags{size.ids, size.bags, lookup.batch.offsets == 0 && all != 0 ? divide(size.ids, all) : 0};
}

// The position at which bag `bag` begins, of all bags of all features; the number of all bags gives the end of the last. Never past the ids.
DEVICE u64 bag_begin(const Lookup& lookup, const Bags& bags, u64 bag) {
    if (bag >= lookup.plan.feature_count * bags.per_feature && (lookup.batch.offsets == 0 || !lookup.batch.has_end)) return bags.ids;
    if (lookup.batch.offsets == 0) return bag * bags.ids_each;
    return min_of(id_at(lookup.batch.offsets, lookup.batch.offset_type, bag), bags.ids);
}

constexpr u32 SHARED_FEATURES = 32;  // features of a plan that fit shared memory
constexpr u32 SHARED_BEGINS = 256;   // features of which shared memory holds where they begin
constexpr u32 COUNT_KINDS = 7;       // numbers of IdCounts
constexpr u32 PLAIN_KINDS = 5;       // of these, the first: the others are counted by plans with a cache only

// Shared memory of a block that goes through positions.
struct alignas(16) Scratch {
    Feature features[SHARED_FEATURES];  // all features of the plan, if they are no more than that
    u64 begins[SHARED_BEGINS];          // the positions at which the first features begin, if bags differ in length
    u32 sums[COUNT_KINDS];              // IdCounts of the whole block
    u32 flaws;                          // Flaw bits that the block has found
};

DEVICE Scratch& scratch_of_block() {
    SHARED(Scratch, scratch);
    return scratch;
}

// Fills the scratch, by the whole block. ONE_FEATURE: nobody will ask for features. UPDATED: the overlay will be asked for updated rows. CACHED: the cache
// will be asked for rows on drives.
template <bool ONE_FEATURE, bool UPDATED, bool CACHED = false> DEVICE void set_up_scratch(const Lookup& lookup, const Bags& bags, Scratch& scratch) {
    if (!ONE_FEATURE && lookup.plan.feature_count <= SHARED_FEATURES) {
        uint4* to = reinterpret_cast<uint4*>(scratch.features);
        for (u32 i = threadIdx.x; i < lookup.plan.feature_count * (sizeof(Feature) / 16); i += blockDim.x) to[i] = at<const uint4>(lookup.plan.features)[i];
    }
    if (threadIdx.x < COUNT_KINDS) scratch.sums[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        scratch.flaws = 0;
        if constexpr (UPDATED) block_snapshot() = snapshot_of(*at<const SlotState>(lookup.slot.state));
        if constexpr (CACHED) set_up_cache(lookup, *at<const SlotState>(lookup.slot.state));
    }
    for (u32 feature = threadIdx.x; !ONE_FEATURE && lookup.batch.offsets != 0 && feature < lookup.plan.feature_count && feature < SHARED_BEGINS; feature += blockDim.x)
        scratch.begins[feature] = bag_begin(lookup, bags, feature * bags.per_feature);
    __syncthreads();
}

// Feature number `number` of the plan.
DEVICE const Feature& feature_at(const Lookup& lookup, const Scratch& scratch, u32 number) {
    return (lookup.plan.feature_count <= SHARED_FEATURES ? scratch.features : at<const Feature>(lookup.plan.features))[number];
}

// The number of the feature that position `index` belongs to, if it is `low` or a later one; `end` becomes the position at which that feature ends.
DEVICE u32 feature_from(const Lookup& lookup, const Bags& bags, const Scratch& scratch, u64 index, u32 low, u64& end) {
    end = bags.ids;
    if (lookup.plan.feature_count == 1) return 0;
    if (lookup.batch.offsets == 0) {
        u64 own = bags.per_feature * bags.ids_each;
        if (own == 0) return lookup.plan.feature_count - 1;
        u64 feature = min_of(divide(index, own), lookup.plan.feature_count - 1);
        if (feature + 1 < lookup.plan.feature_count) end = (feature + 1) * own;
        return (u32)feature;
    }
    u32 high = lookup.plan.feature_count;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        u64 begin = middle < SHARED_BEGINS ? scratch.begins[middle] : bag_begin(lookup, bags, middle * bags.per_feature);
        if (begin <= index) {
            low = middle;
        } else {
            high = middle;
            end = begin;
        }
    }
    return low;
}

// The number of the feature that position `index` belongs to.
DEVICE u32 feature_of(const Lookup& lookup, const Bags& bags, const Scratch& scratch, u64 index) {
    u64 end;
    return feature_from(lookup, bags, scratch, index, 0, end);
}

// The size of the batch as the host or the device gives it; zero, and `flaws`, if it is more than planned.
DEVICE Size size_of(const Lookup& lookup, u32& flaws) {
    Size size{lookup.batch.id_count, lookup.batch.bag_count};
    if (lookup.batch.counts != 0) size = Size{at<const u64>(lookup.batch.counts)[0], at<const u64>(lookup.batch.counts)[1]};
    flaws = (size.ids > lookup.batch.max_ids ? FLAW_TOO_MANY_IDS : 0) | (size.bags > lookup.batch.max_bags ? FLAW_TOO_MANY_BAGS : 0);
    return flaws == 0 ? size : Size{0, 0};
}

// Notes FLAW_OFFSETS in the scratch if offsets do not ascend or pass the ids, or if the ids do not divide into bags of one length. The launch goes
// on: bag_begin gives such bags some bounds within the ids. By threads from `thread` on, `threads` in all.
DEVICE void check_offsets(const Lookup& lookup, const Bags& bags, Scratch& scratch, u64 thread, u64 threads) {
    u64 bag_count = lookup.plan.feature_count * bags.per_feature, entries = bag_count + (lookup.batch.has_end ? 1 : 0);
    if (lookup.batch.offsets == 0) {
        // All bags are of one length. Where the host knows the counts, it has checked them.
        const bool even = lookup.batch.counts == 0 || (bag_count == 0 ? bags.ids == 0 : bags.ids % bag_count == 0);
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
            here[k] = i < entries ? id_at(lookup.batch.offsets, lookup.batch.offset_type, i) : 0;
            before[k] = i < entries && i != 0 ? id_at(lookup.batch.offsets, lookup.batch.offset_type, i - 1) : 0;
        }
#pragma unroll
        for (u32 k = 0; k < UNROLL; ++k) {
            const u64 i = first + k * threads;
            if (i >= entries) break;
            bad |= i == 0 ? here[k] != 0 : here[k] < before[k];
            bad |= here[k] > bags.ids || (i == bag_count && here[k] != bags.ids);
        }
    }
    if (bad) atomicOr(&scratch.flaws, (u32)FLAW_OFFSETS);
}
