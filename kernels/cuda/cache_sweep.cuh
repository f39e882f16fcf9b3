// The kernel that empties a cache: no launch reads a line or a word meanwhile, for the cache is off.
#pragma once
#include "cache.cuh"

constexpr u32 SWEEP_CACHE_THREADS = 1024;
constexpr u32 SWEEP_CACHE_PAUSE = 200;  // nanoseconds between two looks at launches

// What the block shares.
struct CacheSweeping {
    u32 late;   // slots whose launch did not end, by the highest number and 1 more
};

DEVICE CacheSweeping& cache_sweeping_of_block() {
    SHARED(CacheSweeping, sweeping);
    return sweeping;
}

// Reads: the horizons of launches.
// Writes: turns the cache off, waits until each launch that may use it has ended, empties all lines, has the clock begin anew, turns the cache on again;
// then the result. If a launch does not end in time, the cache is turned on again as it was.
// Relies on: one sweep of a cache at a time. grid: one block.
KERNEL __launch_bounds__(SWEEP_CACHE_THREADS) warprow_sweep_cache(const CacheSweep sweep) {
    CacheSweeping& shared = cache_sweeping_of_block();
    Cache& cache = *at<Cache>(sweep.cache);
    if (threadIdx.x == 0) {
        shared.late = 0;
        // Whoever adds to the clock from here on does without the cache, and whoever has added before shows it in `running`.
        fence_gpu();
        atomicOr(&cache.clock, CACHE_OFF);
        fence_gpu();
    }
    __syncthreads();
    const u64 end = now() + sweep.timeout_ns;
    for (u64 i = threadIdx.x; i < cache.running_count; i += SWEEP_CACHE_THREADS) {
        while (load_relaxed(at<const u64>(cache.running) + i) != 0) {
            if (now() >= end) {
                atomicMax(&shared.late, (u32)i + 1);
                break;
            }
            pause(SWEEP_CACHE_PAUSE);
        }
    }
    // Launches that have ended have read what they wanted to.
    fence_gpu();
    __syncthreads();
    const u32 late = shared.late;
    if (late == 0) {
        for (u64 i = threadIdx.x; i < sweep.word_count; i += SWEEP_CACHE_THREADS) store_relaxed(at<u64>(sweep.words) + i, 0ull);
    }
    fence_gpu();
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (late == 0) {
        // Nobody adds but launches that do without the cache.
        atomicExch(&cache.clock, cache.hold + 1);
        store_relaxed(&cache.swept, load_relaxed(&cache.admissions) - load_relaxed(&cache.evictions));
    } else {
        atomicAnd(&cache.clock, ~CACHE_OFF);
    }
    store_relaxed(at<u64>(sweep.result) + 1, late == 0 ? 0ull : (u64)late - 1);
    fence_system();
    store_relaxed(at<u64>(sweep.result), (u64)(late == 0 ? CACHE_SWEPT_DONE : CACHE_SWEPT_BUSY));
}
