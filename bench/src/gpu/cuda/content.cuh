// The content of a table of the benchmarks' oracle, rows of f32 (workload/src/content.rs, random.rs). A C++ compiler takes it
// too, so that a test can hold it against the original.

#ifdef __CUDACC__
#define SHARED __device__ inline
#else
#define SHARED inline
#endif

typedef unsigned long long u64;
typedef unsigned int u32;

static const u64 STEP = 0x9e3779b97f4a7c15ull;

SHARED u64 mix(u64 word) {
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ull;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebull;
    return word ^ (word >> 31);
}

// Word `index` of the sequence that begins at `start`.
SHARED u64 word_at(u64 start, u64 index) { return mix(start + (index + 1) * STEP); }

// What the words of row `id` of the table with that key begin from.
SHARED u64 row_start(u64 key, u64 id) {
    u64 hash = mix(((STEP + key) * STEP) ^ 0);
    return mix(((hash + id) * STEP) ^ 1);
}

// Elements 2 · `index` (lower half) and 2 · `index` + 1 of a row of f32.
SHARED u64 row_word(u64 start, u64 index) {
    return (word_at(start, index) & 0x807fffff807fffffull) | 0x3f0000003f000000ull;
}
