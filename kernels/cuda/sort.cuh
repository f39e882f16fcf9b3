// Words in ascending order of their keys: least significant digit first, one sweep over the words for each digit.
//
// A sweep reads and writes each word once. A block takes tiles in their order, counts the digits of a tile, and finds how many
// of each lie in the tiles before by looking back at what those have published: of each either its own count, or that of all up to it.
// Who waits there waits for a block that runs already, for tiles are taken in order by blocks that run, and that waits in turn only
// for earlier ones: the first waits for none.
#pragma once
#include "common.cuh"

// A word: its key above, and below what goes with it.
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

// GPU memory; zero between launches. Behind it lie the states of tiles: of each two times DIGITS, for sweeps in turn.
struct Sorting {
    u32 count;                // words
    u32 unused;
    u32 claimed[MOST_SWEEPS + 1];  // tiles that were taken: of each sweep, and of what comes after the last
    u32 digits[MOST_SWEEPS * DIGITS];  // how many words have each digit, of each sweep
};
static_assert(sizeof(Sorting) == 5152 && sizeof(Sorting) % 16 == 0, "src/dedupe.rs");

// What a tile has published of a digit: nothing, its own count, or that of all tiles up to it.
constexpr u32 STATE_OWN = 1u << 30, STATE_ALL = 1u << 31, STATE_COUNT = STATE_OWN - 1;
constexpr u32 LOOK_PAUSE = 20;  // ns

DEVICE u32* states_of(const Lookup& p, u32 tile) { return at<u32>(p.sorting + sizeof(Sorting)) + (u64)tile * (2 * DIGITS); }

// The words that sweep number `sweep` reads, or those behind the last.
DEVICE u64* words_of(const Lookup& p, u32 sweep) { return at<u64>(sweep % 2 == 0 ? p.words : p.sorted); }

DEVICE u32 digit_of(u64 word, u32 sweep) { return (u32)(word >> (WORD_BITS + sweep * DIGIT_BITS)) % DIGITS; }

DEVICE u32 tiles_of(u32 count) { return (count + SORT_TILE - 1) / SORT_TILE; }

// What a tile has published, which another block publishes: waited for.
DEVICE u32 published_state(const u32* state) {
    u32 value;
    while ((value = load_relaxed(state)) == 0) pause(LOOK_PAUSE);
    return value;
}

// What the block of a sweep shares.
struct Sweep {
    u64 words[SORT_TILE];             // the tile's, in the order of this digit
    u32 counts[SORT_WARPS][DIGITS];   // of a warp's words; then of those of the warps before it
    u32 begins[DIGITS];               // where words of a digit begin in the tile
    u32 to[DIGITS];                   // what their place in the tile lacks to that among all
    u32 room[SORT_WARPS];
    u32 tile;
};

DEVICE Sweep& sweep_of_block() {
    SHARED Sweep sweep;
    return sweep;
}

// Takes the next tile of a sweep. Before it, the block is through with the one before.
DEVICE u32 claim_tile(Sorting& sorting, u32 sweep, u32& room) {
    __syncthreads();
    if (threadIdx.x == 0) room = atomicAdd(&sorting.claimed[sweep], 1u);
    __syncthreads();
    return room;
}

// Puts words in the order of one digit, and leaves those with the same in theirs. grid: any.
KERNEL __launch_bounds__(SORT_THREADS) warprow_sweep(const Lookup p, const u32 sweep) {
    wait_for_previous();
    let_next_come();
    if (!is_admitted(p)) return;
    Sweep& s = sweep_of_block();
    Sorting& sorting = *at<Sorting>(p.sorting);
    const u32 count = sorting.count, tiles = tiles_of(count), own = sweep % 2 * DIGITS, others = DIGITS - own;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, digit = threadIdx.x;
    const u64* from = words_of(p, sweep);
    u64* to = words_of(p, sweep + 1);
    u32 total;
    const u32 first = block_scan<SORT_THREADS>(sorting.digits[sweep * DIGITS + digit], s.room, total);
    for (;;) {
        const u32 tile = claim_tile(sorting, sweep, s.tile);
        if (tile >= tiles) return;
        for (u32 i = 0; i < SORT_WARPS; ++i) s.counts[i][digit] = 0;
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
            const u32 before = __popc(same & ((1u << lane) - 1)), seen = s.counts[warp][value];
            __syncwarp();
            if (there && before == 0) s.counts[warp][value] = seen + __popc(same);
            __syncwarp();
            rank[k] = seen + before;
        }
        __syncthreads();
        u32 sum = 0;
        for (u32 i = 0; i < SORT_WARPS; ++i) {
            const u32 of_warp = s.counts[i][digit];
            s.counts[i][digit] = sum;
            sum += of_warp;
        }
        store_relaxed(states_of(p, tile) + own + digit, (tile == 0 ? STATE_ALL : STATE_OWN) | sum);
        const u32 in_tile = block_scan<SORT_THREADS>(sum, s.room, total);
        u32 before = 0;
        for (u32 other = tile; other > 0;) {
            const u32 state = published_state(states_of(p, --other) + own + digit);
            before += state & STATE_COUNT;
            if (state & STATE_ALL) break;
        }
        if (tile > 0) store_relaxed(states_of(p, tile) + own + digit, STATE_ALL | (before + sum));
        // The next sweep's: nobody looks at what the one before has left there.
        states_of(p, tile)[others + digit] = 0;
        s.begins[digit] = in_tile;
        s.to[digit] = first + before - in_tile;
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < SORT_ITEMS; ++k) {
            const u32 value = digit_of(word[k], sweep);
            if (mine + k * 32 < count) s.words[s.begins[value] + s.counts[warp][value] + rank[k]] = word[k];
        }
        __syncthreads();
        // Neighbours go to neighbours, as far as their digits are the same.
        for (u32 i = threadIdx.x; i < SORT_TILE && i < count - begin; i += SORT_THREADS) {
            const u64 it = s.words[i];
            to[s.to[digit_of(it, sweep)] + i] = it;
        }
    }
}

// What sorting has left, but for the count: zero again. By threads from `thread`, so many. Who comes last clears the count.
DEVICE void clear_sorting(const Lookup& p, u64 thread, u64 threads) {
    Sorting& sorting = *at<Sorting>(p.sorting);
    const u64 states = (u64)tiles_of(sorting.count) * (2 * DIGITS);
    for (u64 i = thread; i < states; i += threads) states_of(p, 0)[i] = 0;
    for (u64 i = thread; i < MOST_SWEEPS * DIGITS; i += threads) sorting.digits[i] = 0;
    for (u64 i = thread; i < MOST_SWEEPS + 1; i += threads) sorting.claimed[i] = 0;
}
