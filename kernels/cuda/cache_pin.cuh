// The kernel that has rows stay in a cache, and lets them go again.
#pragma once
#include "cache.cuh"

constexpr u32 PIN_CACHE_THREADS = 256;
constexpr u32 PIN_CACHE_TRIES = 64;  // others may renew a line's stamp meanwhile: after so many tries the row counts as having no line

// Whether the line of a word had the row of that tag, and is now as `pins` says.
DEVICE bool pin_line(u64* place, u64 tag, bool pins) {
    u64 word = load_relaxed(place);
    for (u32 i = 0; i < PIN_CACHE_TRIES && has_tag(word, tag); ++i) {
        const u64 wanted = pins ? word | CACHE_PINNED : word & ~CACHE_PINNED;
        if (wanted == word) return true;
        const u64 found = atomicCAS(place, word, wanted);
        if (found == word) return true;
        word = found;
    }
    return false;
}

// Reads: the ranks, and the words of the rows' sets.
// Writes: whether each row has a line; sets or clears one bit of that line's word, and leaves the stamp as it is.
// Relies on: pins and sweeps of one cache follow each other. grid: any.
KERNEL __launch_bounds__(PIN_CACHE_THREADS) warprow_pin_cache(const CachePin pin) {
    const CacheRange& range = at<const CacheRange>(at<const Cache>(pin.cache)->ranges)[pin.range - 1];
    for (u64 i = (u64)blockIdx.x * PIN_CACHE_THREADS + threadIdx.x; i < pin.count; i += (u64)gridDim.x * PIN_CACHE_THREADS) {
        const CacheSet set = cache_set_of(range, at<const u64>(pin.ranks)[i]);
        bool has_line = false;
        // Two lines may have one row: one of them is pinned, and neither is any more.
        for (u32 way = 0; way < CACHE_WAYS && !(has_line && pin.pins); ++way) has_line |= pin_line(at<u64>(set.words) + way, set.tag, pin.pins != 0);
        at<u8>(pin.found)[i] = has_line;
    }
}
