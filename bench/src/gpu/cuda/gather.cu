// What measuring ways to gather needs: rows, the look-up's own gather by itself, and the comparison of what was gathered.
#include "content.cuh"
#undef SHARED
#include "fetch.cuh"

// Rows of the oracle's table, one after another. grid: any.
KERNEL fill_rows(u64 table, u64 rows, u64 words, u64 key) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < rows * words; i += step)
        at<u64>(table)[i] = row_word(row_start(key, i / words), i % words);
}

// As `fetch` does it where no row lies on a drive. grid: any.
KERNEL __launch_bounds__(FETCH_THREADS) gather_keys(u64 launch) { gather(*at<const Lookup>(launch), blockIdx.x, gridDim.x); }

// Whether row i at `out` is that of key i. Counts wrong words, and all. grid: any.
KERNEL check_gathered(u64 out, u64 keys, u64 count, u64 words, u64 key, u64 found) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    u64 wrong = 0, seen = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count * words; i += step, ++seen)
        if (at<const u64>(out)[i] != row_word(row_start(key, at<const u64>(keys)[i / words]), i % words)) ++wrong;
    if (wrong) atomicAdd(at<u64>(found), wrong);
    if (seen) atomicAdd(at<u64>(found) + 1, seen);
}
