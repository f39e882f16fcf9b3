// Rows of ascending keys from pinned memory into GPU memory by bulk copies (cp.async.bulk, sm_90 on): each row by one into shared memory,
// where an mbarrier counts its bytes, and all rows of a stage, which follow each other at their destination, by one out of it.
#include "order.cuh"

constexpr u32 WARP = 32;
constexpr u32 STAGES = 4;     // as in bulk.rs
constexpr u32 PER_LANE = 4;   // rows of a stage: 128 at most
constexpr u64 LONGEST = 2000000000;

__device__ __forceinline__ u32 shared_at(const void* at) { return (u32)__cvta_generic_to_shared(at); }

__device__ __forceinline__ void begin_barrier(u32 barrier) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory"); }

// What was begun becomes visible to copies.
__device__ __forceinline__ void fence_begun() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ bool is_full(u32 barrier, u32 parity) {
    u32 full;
    asm volatile("{ .reg .pred full; mbarrier.try_wait.parity.shared::cta.b64 full, [%1], %2; selp.u32 %0, 1, 0, full; }"
                 : "=r"(full)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return full;
}

// A copy that never ends becomes an error of the launch.
__device__ __forceinline__ void await(u32 barrier, u32 parity) {
    const u64 began = now();
    while (!is_full(barrier, parity))
        if (now() - began > LONGEST) __trap();
}

__device__ __forceinline__ void copy_in(u32 to, u64 from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void copy_out(u64 to, u32 from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Until all but the latest copy out have been read from shared memory.
__device__ __forceinline__ void await_read() { asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory"); }
__device__ __forceinline__ void await_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Row keys[i] of the table goes to row i of `out`. Each block is a warp and takes every gridDim.x-th chunk of `each` rows, so that what is
// being read is a window that moves up the addresses. Of the stages, two less than all are on their way while one is waited for, and one is
// being written out. Addresses and lengths are multiples of 16.
// Shared memory: STAGES · each · row_bytes. Traffic: a load of 8 B a key, each row once over the bus, once into GPU memory.
extern "C" __global__ void __launch_bounds__(WARP) bulk_gather(u64 table, u64 keys, u64 out, u64 count, u64 row_bytes, u64 each) {
    extern __shared__ __align__(128) u8 room[];
    __shared__ __align__(8) u64 barriers[STAGES];
    const u32 lane = threadIdx.x, row = (u32)row_bytes, rows = (u32)each;
    const u64 chunks = (count + each - 1) / each;
    if (lane < STAGES) begin_barrier(shared_at(&barriers[lane]));
    fence_begun();
    __syncwarp();

    const u32 rooms = shared_at(room);
    auto chunk_of = [&](u64 turn) { return blockIdx.x + turn * gridDim.x; };
    auto rows_of = [&](u64 chunk) { return (u32)(count - chunk * each < each ? count - chunk * each : each); };
    // Begins the copies of a turn's chunk into its stage.
    auto begin = [&](u64 turn) {
        const u64 chunk = chunk_of(turn);
        if (chunk >= chunks) return;
        const u32 stage = (u32)(turn % STAGES), barrier = shared_at(&barriers[stage]), here = rows_of(chunk);
        u64 key[PER_LANE];
        for (u32 i = 0; i < PER_LANE; ++i)
            if (lane + i * WARP < here) key[i] = reinterpret_cast<const u64*>(keys)[chunk * each + lane + i * WARP];
        if (lane == 0) expect(barrier, here * row);
        __syncwarp();
        for (u32 i = 0; i < PER_LANE; ++i)
            if (lane + i * WARP < here) copy_in(rooms + (stage * rows + lane + i * WARP) * row, table + key[i] * row_bytes, row, barrier);
    };

    for (u64 turn = 0; turn < STAGES - 2; ++turn) begin(turn);
    for (u64 turn = 0; chunk_of(turn) < chunks; ++turn) {
        // The stage of the turn before the last is to be filled again.
        if (lane == 0) await_read();
        __syncwarp();
        begin(turn + STAGES - 2);
        const u32 stage = (u32)(turn % STAGES);
        await(shared_at(&barriers[stage]), (u32)(turn / STAGES % 2));
        const u64 chunk = chunk_of(turn);
        if (lane == 0) copy_out(out + chunk * each * row_bytes, rooms + stage * rows * row, rows_of(chunk) * row);
    }
    if (lane == 0) await_written();
}
