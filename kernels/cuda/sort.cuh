// A radix sort of words by their keys, the least significant digit first, with one sweep over the words for each digit.
//
// A sweep reads and writes each word once. A block takes tiles in their order, counts the digits of its tile, and finds how many words of each digit
// lie in earlier tiles by looking back at what those tiles have published: for each digit either the tile's own count, or the count of all tiles up to
// it. Every wait ends: tiles are taken in order by blocks that run, so that a block waits only for blocks that run already, and the block of the first
// tile waits for none.
#pragma once
#include "common.cuh"

// A word: a key above; below, in WORD_BITS bits, what goes with it.
constexpr u32 WORD_BITS = 30;
constexpr u64 WORD_MASK = (1ull << WORD_BITS) - 1;

constexpr u32 DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS;
constexpr u32 MOST_SWEEPS = 5;
constexpr u32 SORT_THREADS = DIGITS;  // one for each digit
constexpr u32 SORT_WARPS = SORT_THREADS / 32;
#ifndef SORT_ITEMS
#define SORT_ITEMS 16
#endif
constexpr u32 SORT_TILE = SORT_THREADS * SORT_ITEMS;

// GPU memory; zero between launches. Behind it lie the states of tiles: for each tile two times DIGITS, which sweeps use in turn.
struct Sorting {
    u32 count;                // words
    u32 unused;
    u32 claimed[MOST_SWEEPS + 1];  // tiles that were taken: of each sweep, and of what comes after the last
    u32 digits[MOST_SWEEPS * DIGITS];  // how many words have each digit, of each sweep
};
static_assert(sizeof(Sorting) == 5152 && sizeof(Sorting) % 16 == 0, "src/dedupe.rs");

// What a tile has published of a digit: nothing, its own count, or the count of all tiles up to it.
constexpr u32 STATE_OWN = 1u << 30, STATE_ALL = 1u << 31, STATE_COUNT = STATE_OWN - 1;
constexpr u32 LOOK_PAUSE = 20;  // nanoseconds between two looks at a state

// The states of a tile.
DEVICE u32* states_of(const Lookup& lookup, u32 tile) { return at<u32>(lookup.sort.state + sizeof(Sorting)) + (u64)tile * (2 * DIGITS); }

// The words that sweep number `sweep` reads, or those behind the last.
DEVICE u64* words_of(const Lookup& lookup, u32 sweep) { return at<u64>(sweep % 2 == 0 ? lookup.sort.words : lookup.sort.sorted); }

// With DriveQueues.writes_output: of each unique the position that wants it, or SEVERAL; in the place of the words that the last sweep has read.
DEVICE u32* wanted_by(const Lookup& lookup) { return reinterpret_cast<u32*>(words_of(lookup, lookup.sort.sweeps + 1)); }

// The digit of a word that sweep number `sweep` sorts by.
DEVICE u32 digit_of(u64 word, u32 sweep) { return (u32)(word >> (WORD_BITS + sweep * DIGIT_BITS)) % DIGITS; }

// Tiles of so many words.
DEVICE u32 tiles_of(u32 count) { return (count + SORT_TILE - 1) / SORT_TILE; }

// What a tile has published; waits for the block that publishes it.
DEVICE u32 published_state(const u32* state) {
    u32 value;
    while ((value = load_relaxed(state)) == 0) pause(LOOK_PAUSE);
    return value;
}

// Shared memory of a block of a sweep.
struct SweepShared {
    u64 words[SORT_TILE];             // the tile's, in the order of this digit
    u32 counts[SORT_WARPS][DIGITS];   // of a warp's words; then of those of the warps before it
    u32 begins[DIGITS];               // where words of a digit begin in the tile
    u32 to[DIGITS];                   // of a digit: the place of its words among all, less their place in the tile
    u32 room[SORT_WARPS];
    u32 tile;
};

DEVICE SweepShared& sweep_shared_of_block() {
    SHARED(SweepShared, shared);
    return shared;
}

// By the block: takes the next tile of a sweep. The block is through with the tile before.
DEVICE u32 claim_tile(Sorting& sorting, u32 sweep, u32& room) {
    __syncthreads();
    if (threadIdx.x == 0) room = atomicAdd(&sorting.claimed[sweep], 1u);
    __syncthreads();
    return room;
}

// Reads: the words, sorted by the digits of the sweeps before, and how many words have each digit.
// Writes: the words, sorted by this digit as well, to the other array; states of tiles.
// Relies on: `hash` or `list` and the sweeps before have ended; the states of tiles for this sweep are zero. grid: any.
KERNEL __launch_bounds__(SORT_THREADS) warprow_sweep(const Lookup lookup, const u32 sweep) {
    wait_for_previous();
    let_next_come();
    SweepShared& shared = sweep_shared_of_block();
    Sorting& sorting = *at<Sorting>(lookup.sort.state);
    // Neither load waits for the other. Often there is nothing to sort, such as where a cache has all rows.
    const u32 count = sorting.count;
    if (!is_admitted(lookup)) return;
    const u32 tiles = tiles_of(count), own = sweep % 2 * DIGITS, others = DIGITS - own;
    if (count == 0) return;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, digit = threadIdx.x;
    const u64* from = words_of(lookup, sweep);
    u64* to = words_of(lookup, sweep + 1);
    u32 total;
    const u32 first = block_scan<SORT_THREADS>(sorting.digits[sweep * DIGITS + digit], shared.room, total);
    for (;;) {
        const u32 tile = claim_tile(sorting, sweep, shared.tile);
        if (tile >= tiles) return;
        for (u32 i = 0; i < SORT_WARPS; ++i) shared.counts[i][digit] = 0;
        __syncthreads();
        // Words of a warp follow each other, 32 at a time: so those with the same digit keep their order.
        const u32 begin = tile * SORT_TILE, mine = begin + warp * (SORT_ITEMS * 32) + lane;
        u64 word[SORT_ITEMS];
        u32 rank[SORT_ITEMS];
#pragma unroll
        for (u32 k = 0; k < SORT_ITEMS; ++k) word[k] = mine + k * 32 < count ? from[mine + k * 32] : 0;
#pragma unroll
        for (u32 k = 0; k < SORT_ITEMS; ++k) {
            const bool there = mine + k * 32 < count;
            const u32 value = digit_of(word[k], sweep);
            u32 same = __ballot_sync(FULL, there);
            for (u32 bit = 0; bit < DIGIT_BITS; ++bit) {
                const bool is_set = value >> bit & 1;
                const u32 set = __ballot_sync(FULL, is_set);
                same &= is_set ? set : ~set;
            }
            const u32 before = __popc(same & ((1u << lane) - 1)), seen = shared.counts[warp][value];
            __syncwarp();
            if (there && before == 0) shared.counts[warp][value] = seen + __popc(same);
            __syncwarp();
            rank[k] = seen + before;
        }
        __syncthreads();
        u32 sum = 0;
        for (u32 i = 0; i < SORT_WARPS; ++i) {
            const u32 of_warp = shared.counts[i][digit];
            shared.counts[i][digit] = sum;
            sum += of_warp;
        }
        store_relaxed(states_of(lookup, tile) + own + digit, (tile == 0 ? STATE_ALL : STATE_OWN) | sum);
        const u32 in_tile = block_scan<SORT_THREADS>(sum, shared.room, total);
        u32 before = 0;
        for (u32 other = tile; other > 0;) {
            const u32 state = published_state(states_of(lookup, --other) + own + digit);
            before += state & STATE_COUNT;
            if (state & STATE_ALL) break;
        }
        if (tile > 0) store_relaxed(states_of(lookup, tile) + own + digit, STATE_ALL | (before + sum));
        // The next sweep uses these states; nobody looks any more at what the sweep before left there.
        states_of(lookup, tile)[others + digit] = 0;
        shared.begins[digit] = in_tile;
        shared.to[digit] = first + before - in_tile;
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < SORT_ITEMS; ++k) {
            const u32 value = digit_of(word[k], sweep);
            if (mine + k * 32 < count) shared.words[shared.begins[value] + shared.counts[warp][value] + rank[k]] = word[k];
        }
        __syncthreads();
        // Neighbouring threads write neighbouring words, as far as the digits are the same.
        for (u32 i = threadIdx.x; i < SORT_TILE && i < count - begin; i += SORT_THREADS) {
            const u64 moved = shared.words[i];
            to[shared.to[digit_of(moved, sweep)] + i] = moved;
        }
    }
}

// Clears the sort's state, but for the number of words, which the last block of `finish` clears. By threads from `thread` on, `threads` in all.
DEVICE void clear_sorting(const Lookup& lookup, u64 thread, u64 threads) {
    Sorting& sorting = *at<Sorting>(lookup.sort.state);
    const u64 states = (u64)tiles_of(sorting.count) * (2 * DIGITS);
    for (u64 i = thread; i < states; i += threads) states_of(lookup, 0)[i] = 0;
    for (u64 i = thread; i < MOST_SWEEPS * DIGITS; i += threads) sorting.digits[i] = 0;
    for (u64 i = thread; i < MOST_SWEEPS + 1; i += threads) sorting.claimed[i] = 0;
}
