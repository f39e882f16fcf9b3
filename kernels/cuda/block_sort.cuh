// A sort of words in shared memory, by one block.
#pragma once
#include "common.cuh"

constexpr u32 POSITION_BITS = 13;    // a word to sort: a key above, a position below
constexpr u64 NO_KEY = ~0ull;

// In the sort each warp has chunks of 32 * PER_LANE words, and each lane one word in 32 of a chunk.

// By a warp: the steps of a merge of `run` words that compare words `most` (less than a chunk) apart or nearer. `first`: the number of the lane's
// first word.
template <u32 PER_LANE> DEVICE void merge_chunk(u64 (&own_words)[PER_LANE], u32 first, u32 run, u32 most) {
#pragma unroll
    for (u32 apart = PER_LANE / 2; apart > 0; apart /= 2) {
        if (32 * apart > most) continue;
#pragma unroll
        for (u32 k = 0; k < PER_LANE; ++k) {
            if ((k & apart) != 0) continue;
            const u64 a = own_words[k], b = own_words[k + apart];
            const bool swaps = (a > b) == (((first + 32 * k) & run) == 0);
            own_words[k] = swaps ? b : a;
            own_words[k + apart] = swaps ? a : b;
        }
    }
    for (u32 step = most < 16 ? most : 16; step > 0; step /= 2) {
#pragma unroll
        for (u32 k = 0; k < PER_LANE; ++k) {
            const u64 other = __shfl_xor_sync(FULL, own_words[k], step);
            const bool least = ((first & step) == 0) == (((first + 32 * k) & run) == 0);
            if ((other < own_words[k]) == least) own_words[k] = other;
        }
    }
}

// By a block of THREADS: sorts `size` (a power of two, a chunk or more) words in shared memory, by Batcher's bitonic network. Words less than a chunk apart
// are compared within a warp, without a barrier. If there are more chunks than warps, a warp takes several in turn.
template <u32 THREADS, u32 PER_LANE> DEVICE void block_sort(u64* words, u32 size) {
    constexpr u32 CHUNK_WORDS = 32 * PER_LANE;
    const u32 begin = threadIdx.x / 32 * CHUNK_WORDS + threadIdx.x % 32;
    u64 own_words[PER_LANE];
    // Each warp sorts its chunk of words by itself.
    for (u32 first = begin; first < size; first += THREADS * PER_LANE) {
        for (u32 k = 0; k < PER_LANE; ++k) own_words[k] = words[first + 32 * k];
        for (u32 run = 2; run <= CHUNK_WORDS; run *= 2) merge_chunk<PER_LANE>(own_words, first, run, run / 2);
        for (u32 k = 0; k < PER_LANE; ++k) words[first + 32 * k] = own_words[k];
    }
    __syncthreads();
    for (u32 run = 2 * CHUNK_WORDS; run <= size; run *= 2) {
        for (u32 step = run / 2; step >= CHUNK_WORDS; step /= 2) {
            for (u32 i = threadIdx.x; i < size / 2; i += THREADS) {
                u32 low = 2 * i - (i & (step - 1)), high = low + step;
                u64 a = words[low], b = words[high];
                if ((a > b) == ((low & run) == 0)) {
                    words[low] = b;
                    words[high] = a;
                }
            }
            __syncthreads();
        }
        for (u32 first = begin; first < size; first += THREADS * PER_LANE) {
            for (u32 k = 0; k < PER_LANE; ++k) own_words[k] = words[first + 32 * k];
            merge_chunk<PER_LANE>(own_words, first, run, CHUNK_WORDS / 2);
            for (u32 k = 0; k < PER_LANE; ++k) words[first + 32 * k] = own_words[k];
        }
        __syncthreads();
    }
}
