// A sample of the ids of look-ups, for counting which rows are popular: docs/cache.md, "What is looked up most".
#pragma once
#include "bags.cuh"

constexpr u32 SAMPLE_THREADS = 256;

// A sampled id's word beside the id: from the lowest bit on its feature, the number of its plan, a bit that is 1, and how often the ring was gone around.
constexpr u32 SAMPLED_PLAN_SHIFT = 24, SAMPLED_BIT = 47, SAMPLED_LAP_SHIFT = 48;
// log2 of the ids in the ring: a lap is what lies above it in 32 bits.
constexpr u32 SAMPLED_LOG2 = 16;

// The feature that a position belongs to. Descriptions are not read: they may be replaced meanwhile.
DEVICE u32 sampled_feature(const Lookup& lookup, const Bags& bags, u64 position) {
    u32 low = 0, high = lookup.plan.feature_count;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (bag_begin(lookup, bags, middle * bags.per_feature) <= position) low = middle; else high = middle;
    }
    return low;
}

// Reads: ids, offsets, counts in device memory.
// Writes: of each `every` positions one that is drawn at random, into the ring in pinned memory, over what the host has not taken in time; the ring's tail.
// Relies on: it is the first kernel of a launch, so that the others begin when it has ended. It takes no lease: of launches that find their slot busy ids are
// counted too. grid: any.
KERNEL __launch_bounds__(SAMPLE_THREADS) warprow_sample(const Lookup lookup) {
    Sampling& sampling = *at<Sampling>(lookup.slot.sampling);
    u32 flaws;
    const Bags bags = bags_of(lookup, size_of(lookup, flaws));
    const u64 every = sampling.every, strata = (bags.ids + every - 1) / every;
    const u64 drawn_by = now();
    for (u64 first = (u64)blockIdx.x * SAMPLE_THREADS; first < strata; first += (u64)gridDim.x * SAMPLE_THREADS) {
        const u64 stratum = first + threadIdx.x;
        const u64 position = stratum * every + mix_key(drawn_by ^ mix_key(stratum)) % every;
        const bool drawn = stratum < strata && position < bags.ids;
        const u32 lanes = __ballot_sync(FULL, drawn), lane = threadIdx.x % 32;
        u32 index = lane == 0 && lanes != 0 ? atomicAdd(&sampling.tail, (u32)__popc(lanes)) : 0;
        index = __shfl_sync(FULL, index, 0) + __popc(lanes & ((1u << lane) - 1));
        if (!drawn) continue;
        const u64 tag = sampled_feature(lookup, bags, position) | (u64)lookup.slot.plan_number << SAMPLED_PLAN_SHIFT | 1ull << SAMPLED_BIT;
        const u64 place = sampling.ring + (u64)(index & ((1u << SAMPLED_LOG2) - 1)) * 16;
        store_whole(at<u64>(place), id_at(lookup.batch.ids, lookup.batch.id_type, position), tag | (u64)(index >> SAMPLED_LOG2) << SAMPLED_LAP_SHIFT);
    }
}
