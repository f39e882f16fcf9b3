// What every measurement needs: a kernel that holds a stream, fresh ids, and the comparison of an answer with the truth.

// A table, as ids are drawn from it and answers compared with it.
struct Table {
    u64 key;     // of its content
    u64 rows;
    double span; // of the power law, 0: uniform
    double power;
};

__device__ inline u64 now() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Holds the stream until the host has stored `turn` to `go` (pinned memory), so that everything that comes after it was enqueued
// before it begins. Past `limit` nanoseconds it stores `turn` to `late` and goes.
extern "C" __global__ void hold(u64 go, u64 turn, u64 limit, u64 late) {
    u64 began = now();
    while (*(volatile u32*)go != (u32)turn) {
        if (now() - began > limit) {
            *(volatile u32*)late = (u32)turn;
            __threadfence_system();
            break;
        }
    }
}

// A rank of the power law, as `PowerLaw::rank`: the inverse of the continuous distribution function.
__device__ inline u64 rank_of(const Table& table, u64 word) {
    if (table.span == 0.0) return __umul64hi(word, table.rows);
    double u = (double)(word >> 11) * (1.0 / 9007199254740992.0);
    double x = table.power == 0.0 ? exp(table.span * u) : exp(log1p(table.span * u) * table.power);
    u64 rank = (u64)x;
    rank = (rank < 1 ? 1 : rank) - 1;
    return rank < table.rows ? rank : table.rows - 1;
}

// Ids of `count` positions, `each` of them for each table in turn. Writes 8 B an id.
extern "C" __global__ void draw(long long* ids, u64 count, u64 each, const Table* tables, u64 seed) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        ids[i] = (long long)rank_of(tables[i / each], word_at(seed, i));
}

// `found`: elements that are wrong, the first of them (a position in the output), elements compared.
__device__ inline void tell(u64* found, u64 wrong, u64 first, u64 seen) {
    __shared__ u64 all[3];
    if (threadIdx.x == 0) all[0] = 0, all[1] = ~0ull, all[2] = 0;
    __syncthreads();
    if (wrong) atomicAdd(&all[0], wrong), atomicMin(&all[1], first);
    if (seen) atomicAdd(&all[2], seen);
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (all[0]) atomicAdd(&found[0], all[0]), atomicMin(&found[1], all[1]);
    if (all[2]) atomicAdd(&found[2], all[2]);
}

// Compares two elements (one at the end of a row of odd length) with `expected`, bit for bit.
__device__ inline void compare(const u32* out, u64 at, u64 expected, u32 elements, u64& wrong, u64& first) {
    for (u32 i = 0; i < elements; i++) {
        if (out[at + i] == (u32)(expected >> (32 * i))) continue;
        wrong++;
        if (at + i < first) first = at + i;
    }
}

// Rows of `dim` elements, one for each id, `stride` elements apart. Reads all of them once.
extern "C" __global__ void check_rows(const u32* out, u64 stride, const long long* ids, u64 count, u64 each,
                                      const Table* tables, u64 dim, u64* found) {
    u64 pairs = (dim + 1) / 2, all = count * pairs, step = (u64)gridDim.x * blockDim.x;
    u64 wrong = 0, first = ~0ull, seen = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
        u64 position = i / pairs, pair = i % pairs, id = (u64)ids[position];
        const Table& table = tables[position / each];
        u32 elements = dim - 2 * pair < 2 ? 1 : 2;
        u64 expected = id < table.rows ? row_word(row_start(table.key, id), pair) : 0;
        compare(out, position * stride + 2 * pair, expected, elements, wrong, first);
        seen += elements;
    }
    tell(found, wrong, first, seen);
}

// Sums of bags of `hot` ids: row b has the sums of all tables side by side. Elements are added in the order of the bag, from +0.
extern "C" __global__ void check_sums(const u32* out, u64 stride, const long long* ids, u64 bags, u64 hot, u64 features,
                                      const Table* tables, u64 dim, u64* found) {
    u64 pairs = (dim + 1) / 2, all = bags * features * pairs, step = (u64)gridDim.x * blockDim.x;
    u64 wrong = 0, first = ~0ull, seen = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
        u64 pair = i % pairs, feature = i / pairs % features, bag = i / pairs / features;
        const Table& table = tables[feature];
        float low = 0.0f, high = 0.0f;
        for (u64 j = 0; j < hot; j++) {
            u64 id = (u64)ids[(feature * bags + bag) * hot + j];
            u64 word = id < table.rows ? row_word(row_start(table.key, id), pair) : 0;
            low = __fadd_rn(low, __uint_as_float((u32)word));
            high = __fadd_rn(high, __uint_as_float((u32)(word >> 32)));
        }
        u64 expected = (u64)__float_as_uint(high) << 32 | __float_as_uint(low);
        u32 elements = dim - 2 * pair < 2 ? 1 : 2;
        compare(out, bag * stride + feature * dim + 2 * pair, expected, elements, wrong, first);
        seen += elements;
    }
    tell(found, wrong, first, seen);
}
