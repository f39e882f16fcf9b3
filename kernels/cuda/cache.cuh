// A cache of rows in GPU memory: rows that look-ups have read from drives lie in *lines*, and later look-ups find them there. docs/cache.md has the
// protocol, and why no look-up sees a wrong row.
//
// A row may lie in the lines of one *set*. A word for each line says which row the line has, and a *stamp*: the number of a launch that used it lately.
// Launches number themselves by the cache's clock, and each tells in `running` up to which stamp it may read: its *horizon*. A line is given to another
// row only if its stamp is below the horizons of all launches, those that begin later included.
#pragma once
#include "common.cuh"

constexpr u64 CACHE_OFF = 1ull << 63;        // in the clock
constexpr u64 CACHE_PUBLISHED = 1ull << 63;  // in a word: the line has a whole row. Without it the line is empty, and the word 0, or a warp fills it
constexpr u64 CACHE_PINNED = 1ull << 62;     // in a word: the line is not given away
constexpr u32 CACHE_STAMP_BITS = 38, CACHE_TAG_BITS = 24, CACHE_WAYS = 8;
constexpr u64 CACHE_STAMP = (1ull << CACHE_STAMP_BITS) - 1, CACHE_TAG = (1ull << CACHE_TAG_BITS) - 1;
constexpr u64 CACHE_RESERVED = CACHE_STAMP;  // a word: a warp fills the line
constexpr u64 CACHE_MOST_AGE = 1u << 20;     // an eviction's age counts as this at most: a thread adds up hundreds, and a warp its threads
// From this number on launches do without the cache: as many more as may be counted before the host looks leave the stamp's bits alone.
constexpr u64 CACHE_CLOCK_END = (1ull << CACHE_STAMP_BITS) - (1ull << 20);

DEVICE Cache& cache_of(const Lookup& lookup) { return *at<Cache>(lookup.plan.cache); }

// The slot's word in Cache.running.
DEVICE u64* running_of(const Lookup& lookup) { return at<u64>(cache_of(lookup).running) + lookup.slot.cache_slot; }

// By one thread, of a launch that has its slot's lease: takes a number by the cache's clock, and tells the horizon of the launch to those that keep rows.
// Until they know it they see 1, below which no stamp is.
DEVICE void enter_cache(const Lookup& lookup, SlotState& slot) {
    Cache& cache = cache_of(lookup);
    u64* running = running_of(lookup);
    // Each store releases what the launch before has read.
    fence_gpu();
    store_relaxed(running, 1ull);
    fence_gpu();
    u64 number = atomicAdd(&cache.clock, 1ull);
    fence_gpu();
    if (number >= CACHE_CLOCK_END) {
        store_relaxed(running, 0ull);
        number = 0;
    } else {
        store_relaxed(running, number - cache.hold);
    }
    slot.cache_launch = number;
}

// By one thread of the last block: the launch reads no line any more. The caller has fenced what came before.
DEVICE void leave_cache(const Lookup& lookup) {
    if (lookup.plan.cache != 0) store_relaxed(running_of(lookup), 0ull);
}

// By one warp of the last block: what this lane has to add to the totals of the cache. Loads of the report wait together with it.
DEVICE u64 cache_count(const Lookup& lookup, const SlotState& slot) {
    if (lookup.plan.cache == 0) return 0;
    return threadIdx.x == 1 ? load_relaxed(&slot.counters.ids_cached) : threadIdx.x == 2 ? load_relaxed(&slot.counters.ids_ssd) : 0;
}

// Adds it. Nobody waits for that.
DEVICE void add_cache_count(const Lookup& lookup, u64 count) {
    if (count == 0) return;
    Cache& cache = cache_of(lookup);
    atomicAdd(threadIdx.x == 1 ? &cache.hits : &cache.misses, count);
}

// The block's copy of what probing takes, in shared memory: set_up_scratch puts it there.
struct CacheLaunch {
    u64 number;   // SlotState.cache_launch
    u64 horizon;
    u64 ranges;   // CacheRange[]
};

DEVICE CacheLaunch& block_cache() {
    SHARED(CacheLaunch, launch);
    return launch;
}

// By one thread, in a kernel that comes behind the launch's first.
DEVICE void set_up_cache(const Lookup& lookup, const SlotState& slot) {
    const Cache& cache = cache_of(lookup);
    block_cache() = CacheLaunch{slot.cache_launch, slot.cache_launch - cache.hold, cache.ranges};
}

// Spreads numbers of so many bits: each number has one image, and each image one number.
DEVICE u64 spread_number(u64 number, u32 bits) {
    const u64 mask = (1ull << bits) - 1;
    const u32 half = (bits + 1) / 2;
    number ^= number >> half;
    number = number * 0x9e3779b97f4a7c15ull & mask;
    number ^= number >> half;
    number = number * 0xbf58476d1ce4e5b9ull & mask;
    return number ^ number >> half;
}

// A sketch of a set: how often its rows were asked for lately, whether they lie in lines or not. It is a count-min sketch of bytes: a row has four of them by
// its tag, of which the lowest count, and only these grow. The last byte counts additions; after SKETCH_PERIOD of them all are halved. Threads that count at
// the same time may lose counts, which costs hits and no row.
constexpr u32 SKETCH_BYTES = 64, SKETCH_COUNTERS = SKETCH_BYTES - 1, SKETCH_HASHES = 4;
constexpr u32 SKETCH_PERIOD = 160;  // additions: 20 a line
constexpr u32 SKETCH_MOST = 60;     // a counter does not grow further, so that it stays a byte whoever else counts

// Where the counters of a row are, among those of its set.
struct SketchPlaces {
    u32 places[SKETCH_HASHES];
};

DEVICE SketchPlaces sketch_places(u64 tag) {
    const u64 hash = (tag >> CACHE_STAMP_BITS) * 0x9e3779b97f4a7c15ull;
    SketchPlaces found;
#pragma unroll
    for (u32 i = 0; i < SKETCH_HASHES; ++i) found.places[i] = (u32)(hash >> (40 + 6 * i)) % SKETCH_COUNTERS;
    return found;
}

DEVICE u32 sketch_byte(u64 sketch, u32 place) { return load_relaxed(at<const u32>(sketch) + place / 4) >> place % 4 * 8 & 255; }

// How often a row was asked for, roughly.
DEVICE u32 sketched(u64 sketch, u64 tag) {
    const SketchPlaces row = sketch_places(tag);
    u32 least = 255;
#pragma unroll
    for (u32 i = 0; i < SKETCH_HASHES; ++i) {
        const u32 count = sketch_byte(sketch, row.places[i]);
        least = count < least ? count : least;
    }
    return least;
}

// Counts a row once more.
DEVICE void count_in_sketch(u64 sketch, u64 tag) {
    const SketchPlaces row = sketch_places(tag);
    const u32 least = sketched(sketch, tag);
    u32* words = at<u32>(sketch);
    for (u32 i = 0; i < SKETCH_HASHES && least < SKETCH_MOST; ++i) {
        const u32 place = row.places[i];
        bool is_done = false;
        for (u32 j = 0; j < i; ++j) is_done |= row.places[j] == place;
        if (!is_done && sketch_byte(sketch, place) == least) atomicAdd(words + place / 4, 1u << place % 4 * 8);
    }
    const u32 before = atomicAdd(words + SKETCH_BYTES / 4 - 1, 1u << 24) >> 24;
    if (before + 1 < SKETCH_PERIOD) return;
    for (u32 i = 0; i < SKETCH_BYTES / 4; ++i) store_relaxed(words + i, load_relaxed(words + i) >> 1 & 0x7f7f7f7fu);
}

// Where a row may lie: the words and lines of its set, and the tag of its word. The images of numbers that share a set follow each other, and are at most
// 2^24: so their lowest 24 bits tell them apart.
struct CacheSet {
    u64 words;
    u64 lines;
    u64 tag;      // at its place in a word
    u64 sketch;   // the counters of the set; 0: nobody counts
};

// `number`: of the row among those of the range.
DEVICE CacheSet cache_set_of(const CacheRange& range, u64 number) {
    const u64 image = spread_number(range.first + number, range.bits);
    const u64 set = __umul64hi(image << (64 - range.bits), range.sets);
    return CacheSet{range.words + set * (CACHE_WAYS * sizeof(u64)), range.lines + set * CACHE_WAYS * range.stride, (image & CACHE_TAG) << CACHE_STAMP_BITS,
                    range.sketch == 0 ? 0 : range.sketch + set * SKETCH_BYTES};
}

// The number of the row of a key among those of its table's range. Which rank is the n-th of a list, a key does not tell: such rows have numbers behind
// those of all ranks.
DEVICE u64 cache_number(const Table& table, u64 key, const bool is_cold) {
    if (is_cold) return table.dram_end + (key - table.ssd_key);
    return (table.listed != 0 ? table.rows : table.hbm_rows) + (key - table.dram_key);
}

// Whether a word says that its line has the row of that tag, pinned or not.
DEVICE bool has_tag(u64 word, u64 tag) { return ((word ^ CACHE_PUBLISHED ^ tag) & ~(CACHE_STAMP | CACHE_PINNED)) == 0; }

// 64 bits of another lane.
DEVICE u64 shuffled(u64 value, u32 lane) { return (u64)__shfl_sync(FULL, (u32)(value >> 32), lane) << 32 | __shfl_sync(FULL, (u32)value, lane); }

// So many lanes look at the words of a set, two each.
constexpr u32 SET_LANES = CACHE_WAYS / 2, SETS_AT_ONCE = 32 / SET_LANES;

// By whole warps: for each lane the address of a row of a cached table in its line, which stays as it is until the launch has ended; 0: the row is read from
// its drive or DRAM, or the lane asks for none (no `table`). `number`: as for cache_set_of. A thread with a hit fences before it ends. Four lanes read the
// 64 B of a set, so that each sector is loaded once; all sets of the warp are on their way at once.
DEVICE u64 cached_row(const Table* table, u64 number) {
    const CacheLaunch& launch = block_cache();
    const bool wants = table != nullptr && table->cached != 0 && launch.number != 0;
    if (__ballot_sync(FULL, wants) == 0) return 0;
    const u32 lane = threadIdx.x % 32;
    CacheSet set{};
    u32 stride = 0;
    if (wants) {
        const CacheRange& range = at<const CacheRange>(launch.ranges)[table->cached - 1];
        set = cache_set_of(range, number);
        stride = range.stride;
    }
    WordPair pairs[SET_LANES];
#pragma unroll
    for (u32 turn = 0; turn < SET_LANES; ++turn) {
        const u64 words = shuffled(set.words, turn * SETS_AT_ONCE + lane / SET_LANES);
        pairs[turn] = words != 0 ? load_relaxed(at<const WordPair>(words) + lane % SET_LANES) : WordPair{};
    }
    u32 way = CACHE_WAYS;
    u64 word = 0;
#pragma unroll
    for (u32 turn = 0; turn < SET_LANES; ++turn) {
        const u64 tag = shuffled(set.tag, turn * SETS_AT_ONCE + lane / SET_LANES);
        // An empty word has no tag. Which lane has the word of a set's row, and which of its two.
        const bool is_second = has_tag(pairs[turn].words[1], tag), is_first = has_tag(pairs[turn].words[0], tag);
        const u32 lanes = __ballot_sync(FULL, is_first || is_second) >> lane % SETS_AT_ONCE * SET_LANES & ((1u << SET_LANES) - 1);
        const u32 seconds = __ballot_sync(FULL, is_second) >> lane % SETS_AT_ONCE * SET_LANES;
        const u32 member = lanes == 0 ? 0 : __ffs(lanes) - 1, from = lane % SETS_AT_ONCE * SET_LANES + member;
        const u64 found = shuffled(is_second ? pairs[turn].words[1] : pairs[turn].words[0], from);
        if (lane / SETS_AT_ONCE == turn && lanes != 0 && wants) {
            way = member * 2 + (seconds >> member & 1);
            word = found;
        }
    }
    if (way == CACHE_WAYS) return 0;
    if ((word & CACHE_STAMP) < launch.horizon) {
        const u64 found = atomicCAS(at<u64>(set.words) + way, word, (word & ~CACHE_STAMP) | launch.number);
        // Another launch may have renewed the stamp, or the line may be given away.
        if (found != word && !(has_tag(found, set.tag) && (found & CACHE_STAMP) >= launch.horizon)) return 0;
        // A hit counts when its stamp moves.
        if (found == word && set.sketch != 0) count_in_sketch(set.sketch, set.tag);
    }
    return set.lines + way * stride;
}

// Shared memory of a block that keeps rows.
template <u32 THREADS> struct KeepShared {
    u64 bounds[THREADS / 32];
};

// By the block, of a launch that has told its own horizon: stamps below this are read by no launch that runs, and by none that will begin. Launches that have
// added to the clock before this one told 1 before they did; those that add later have higher horizons than this one.
template <u32 THREADS> DEVICE u64 cache_bound(const Cache& cache, KeepShared<THREADS>& shared) {
    u64 bound = CACHE_STAMP;
    for (u64 i = threadIdx.x; i < cache.running_count; i += THREADS) {
        const u64 horizon = load_relaxed(at<const u64>(cache.running) + i);
        if (horizon != 0) bound = min_of(bound, horizon);
    }
    // Launches that have ended have read what they wanted to.
    fence_gpu();
    for (u32 step = 16; step > 0; step /= 2) bound = min_of(bound, __shfl_xor_sync(FULL, bound, step));
    if (threadIdx.x % 32 == 0) shared.bounds[threadIdx.x / 32] = bound;
    __syncthreads();
    for (u32 warp = 0; warp < THREADS / 32; ++warp) bound = min_of(bound, shared.bounds[warp]);
    return bound;
}

// So many lanes look for a line for one row: each has two words of the set.
constexpr u32 KEEP_LANES = CACHE_WAYS / 2, KEEP_ROWS = 32 / KEEP_LANES;

// How well a line may be given away: the lower, the better. Empty lines come first, then those whose rows were asked for least, where that is counted, then
// those with the oldest stamps.
constexpr u64 CACHE_NO_VICTIM = ~0ull;
DEVICE u64 victim_order(u64 word, u64 bound, u64 sketch) {
    if (word == 0) return 0;
    const bool is_victim = (word & CACHE_PUBLISHED) && !(word & CACHE_PINNED) && (word & CACHE_STAMP) < bound;
    if (!is_victim) return CACHE_NO_VICTIM;
    const u64 count = sketch == 0 ? 0 : sketched(sketch, word & CACHE_TAG << CACHE_STAMP_BITS);
    return count << CACHE_STAMP_BITS | (word & CACHE_STAMP);
}

// As victim_order, with a place of the set below it.
DEVICE u64 placed_order(u64 word, u64 bound, u64 sketch, u32 place) {
    const u64 order = victim_order(word, bound, sketch);
    return order == CACHE_NO_VICTIM ? CACHE_NO_VICTIM : order * CACHE_WAYS + place;
}

// How often the row of an order was asked for.
DEVICE u32 count_of_order(u64 order) { return (u32)(order >> CACHE_STAMP_BITS) / CACHE_WAYS; }

// 32 random bits, of a row and a launch.
DEVICE u64 random_of(u64 launch, u64 tag, u32 unique) { return spread_number((launch << 24 ^ unique ^ tag) & CACHE_STAMP, CACHE_STAMP_BITS) >> (CACHE_STAMP_BITS - 32); }

// Whether the admission takes a row for the line of that order. `count`: how often the row was asked for.
DEVICE bool is_row_admitted(const Cache& cache, u64 launch, u64 tag, u32 unique, u32 count, u64 order) {
    if (cache.admission == CACHE_ADMISSION_ALWAYS) return true;
    if (cache.admission == CACHE_ADMISSION_SKETCH) return order < CACHE_WAYS || count > count_of_order(order);
    return random_of(launch, tag, unique) < cache.chance;
}

// A row in staging that may get a line.
struct Keepable {
    CacheSet set;       // `words` is 0: it gets none
    u32 stride, bytes;  // of its line, and of the row
};

// Unique row number `unique` of a launch, if it was read from a drive, or from DRAM of a table whose rows there are cached. `fetch` has brought all rows of
// DRAM to staging, whatever their status.
DEVICE Keepable keepable_at(const Lookup& lookup, const Cache& cache, const SlotState& slot, u64 unique) {
    Keepable row{};
    if (unique >= slot.uniques) return row;
    // Neither load waits for the other.
    const u8 status = at<const u8>(lookup.unique.status)[unique];
    const u64 key = at<const u64>(lookup.unique.keys)[unique];
    const bool is_cold = unique >= slot.dram_uniques;
    if (is_cold && status != ROW_READ) return row;
    const Segment& segment = segment_of(lookup, key);
    const Table& table = at<const Table>(lookup.plan.tables)[segment.table];
    if (table.cached == 0 || !(is_cold || table.caches_dram != 0)) return row;
    const CacheRange& range = at<const CacheRange>(cache.ranges)[table.cached - 1];
    return Keepable{cache_set_of(range, cache_number(table, key, is_cold)), range.stride, table.row_bytes};
}

// So many quads of a row are on their way at once to a lane that copies it.
constexpr u32 KEEP_QUADS = 4;

// A lane's quads of a row from byte `first` on.
struct KeptQuads {
    Quad quads[KEEP_QUADS];
};

DEVICE KeptQuads load_kept(u64 from, u32 first, u32 bytes) {
    KeptQuads kept;
#pragma unroll
    for (u32 i = 0; i < KEEP_QUADS; ++i) {
        const u32 byte = first + i * KEEP_LANES * 16;
        kept.quads[i] = byte < bytes ? *at<const Quad>(from + byte) : Quad{};
    }
    return kept;
}

DEVICE void store_kept(const KeptQuads& kept, u64 to, u32 first, u32 bytes) {
#pragma unroll
    for (u32 i = 0; i < KEEP_QUADS; ++i) {
        const u32 byte = first + i * KEEP_LANES * 16;
        if (byte < bytes) *at<Quad>(to + byte) = kept.quads[i];
    }
}

// By block `block` of `blocks`, at the end of a launch: gives lines to the rows in staging that may be cached (keepable_at), as far as lines of their sets may
// be given away. What loses against another launch is not kept, and nobody waits. Traffic: 64 B of words for each unique row; a row read and written for each
// that is kept.
template <u32 THREADS> DEVICE void keep_rows(const Lookup& lookup, const SlotState& slot, u32 block, u32 blocks, KeepShared<THREADS>& shared) {
    Cache& cache = cache_of(lookup);
    const u32 first_unique = cache.caches_dram != 0 ? 0 : slot.dram_uniques;
    if (slot.cache_launch == 0 || first_unique >= slot.uniques) return;
    const u32 lane = threadIdx.x % 32, member = lane % KEEP_LANES;
    const u32 warp = block * (THREADS / 32) + threadIdx.x / 32, warps = blocks * (THREADS / 32);
    const u64 step_rows = (u64)warps * KEEP_ROWS;
    u64 unique = first_unique + (u64)warp * KEEP_ROWS + lane / KEEP_LANES;
    // Where the first rows may lie is found while the horizons of other launches are on their way.
    Keepable row = keepable_at(lookup, cache, slot, unique);
    const u64 bound = cache_bound<THREADS>(cache, shared);
    u32 admitted = 0, evicted = 0, aged = 0, full = 0, refused = 0;
    for (u64 first = unique - lane / KEEP_LANES; first < slot.uniques; first += step_rows) {
        const CacheSet set = row.set;
        WordPair own{};
        if (set.words != 0) own = load_relaxed(at<const WordPair>(set.words) + member);
        const bool has_row = set.words != 0 && (has_tag(own.words[0], set.tag) || has_tag(own.words[1], set.tag));
        const u32 team = FULL >> (32 - KEEP_LANES) << lane / KEEP_LANES * KEEP_LANES;
        const bool is_known = (__ballot_sync(FULL, has_row) & team) != 0;
        // The best of the set, with its place below it. Rows that come to a set at the same time count its places from different ones, each from its tag's:
        // of those that choose one place only one is kept.
        const u32 start = (u32)(set.tag >> CACHE_STAMP_BITS) % CACHE_WAYS;
        const u64 mine = min_of(placed_order(own.words[0], bound, set.sketch, member * 2 ^ start), placed_order(own.words[1], bound, set.sketch, (member * 2 + 1) ^ start));
        // A miss counts as often as a hit does, whose stamp moves once in so many launches.
        const bool counts = set.sketch != 0 && random_of(~slot.cache_launch, set.tag, (u32)unique) * (cache.hold == 0 ? 1 : cache.hold) >> 32 == 0;
        // Others may count meanwhile: one lane asks for its team, which decides alike.
        u32 count = set.sketch != 0 && member == 0 ? sketched(set.sketch, set.tag) + counts : 0;
        count = __shfl_sync(FULL, count, lane / KEEP_LANES * KEEP_LANES);
        if (counts && member == 0) count_in_sketch(set.sketch, set.tag);
        u64 best = mine;
        for (u32 step = KEEP_LANES / 2; step > 0; step /= 2) best = min_of(best, __shfl_xor_sync(FULL, best, step));
        const bool is_wanted = set.words != 0 && !is_known;
        const bool is_admitted = lookup.plan.admits != 0 || is_row_admitted(cache, slot.cache_launch, set.tag, (u32)unique, count, best);
        const bool is_taken = is_wanted && best != CACHE_NO_VICTIM && is_admitted;
        if (is_wanted && member == 0) {
            full += best == CACHE_NO_VICTIM;
            refused += best != CACHE_NO_VICTIM && !is_taken;
        }
        const u32 way = (u32)best % CACHE_WAYS ^ start;
        const u64 victim = way % 2 ? own.words[1] : own.words[0];
        bool reserves = false;
        // The row is on its way while the line is taken.
        const u64 from = lookup.unique.staging + unique * lookup.unique.staging_stride, to = set.lines + (u64)way * row.stride;
        const u32 bytes = is_taken ? row.bytes : 0;
        const KeptQuads kept = load_kept(from, member * 16, bytes);
        if (is_taken && best == mine) {
            reserves = atomicCAS(at<u64>(set.words) + way, victim, CACHE_RESERVED) == victim;
            // The row that lay there is not read any more.
            fence_gpu();
        }
        if ((__ballot_sync(FULL, reserves) & team) != 0) {
            store_kept(kept, to, member * 16, bytes);
            for (u32 byte = (KEEP_QUADS * KEEP_LANES + member) * 16; byte < bytes; byte += KEEP_QUADS * KEEP_LANES * 16) store_kept(load_kept(from, byte, bytes), to, byte, bytes);
        }
        // What the team has stored comes before the word.
        __syncwarp();
        if (reserves) {
            fence_gpu();
            store_relaxed(at<u64>(set.words) + way, CACHE_PUBLISHED | set.tag | slot.cache_launch);
            ++admitted;
            evicted += victim != 0;
            // No stamp is of this launch or later: the bound is below.
            if (victim != 0) aged += (u32)min_of(slot.cache_launch - (victim & CACHE_STAMP), CACHE_MOST_AGE);
        }
        unique += step_rows;
        row = keepable_at(lookup, cache, slot, unique);
    }
    u64* counts[5] = {&cache.admissions, &cache.evictions, &cache.evicted_age, &cache.full, &cache.refusals};
    const u32 own_counts[5] = {admitted, evicted, aged, full, refused};
    for (u32 i = 0; i < 5; ++i) {
        const u32 sum = __reduce_add_sync(FULL, own_counts[i]);
        if (lane == 0 && sum != 0) atomicAdd(counts[i], (u64)sum);
    }
}
