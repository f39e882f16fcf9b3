// What all kernels share: addresses, where a row lies, sums over a block.
#pragma once
#include "order.cuh"
#include "abi.h"

#ifndef WARPROW_HOST
// A variable of the block's: its type, its name, and behind them the length of an array in brackets.
#define SHARED(type, name, ...) __shared__ type name __VA_ARGS__
// Words whose number the launch decides.
#define DYNAMIC_SHARED(name) extern __shared__ u64 name[]
#define KERNEL extern "C" __global__ void
#define DEVICE __device__ __forceinline__
#define METHOD __device__ __forceinline__
// A call of its own, so that code that seldom runs takes no registers of code that always does.
#define APART __device__ __noinline__
#define FULL 0xffffffffu
#endif

// What lies at a device address.
template <class T> DEVICE T* at(u64 address) { return reinterpret_cast<T*>(address); }

DEVICE u64 min_of(u64 a, u64 b) { return a < b ? a : b; }

// a / b. Most numbers fit 32 bits, and dividing those takes a fraction of the time.
DEVICE u64 divide(u64 a, u64 b) { return (a | b) >> 32 == 0 ? (u64)((u32)a / (u32)b) : a / b; }

// The place of a position (UniqueRows.places). Below PLACE_STAGED it is a key, whose row is found through the bitmap.
constexpr u64 PLACE_MISSING = ~0ull;
constexpr u64 PLACE_PADDING = ~0ull - 1;
constexpr u64 PLACE_SERVED = ~0ull - 2;  // of plans with a cache: the position's output is written (served.cuh)
constexpr u64 PLACE_HERE = 1ull << 63;    // the lower bits are the row's address in GPU memory
constexpr u64 PLACE_STAGED = 1ull << 62;  // the lower bits are its number among the uniques
constexpr u64 PLACE_HASHED = 1ull << 61;  // with PLACE_STAGED: they are its slot in the hash table, which has the number

// The status of a unique row on drives.
// Damaged: the row is not what was written. Again: the command that was to read the row with others failed, and the row is to be read by itself. Written:
// the row is in the output, and not in staging.
enum RowStatus : u8 { ROW_READ, ROW_FAILED, ROW_DAMAGED, ROW_AGAIN, ROW_WRITTEN };

// With DriveQueues.writes_output, in the place of the position that wants a unique row: several do.
constexpr u32 SEVERAL = ~0u;

// Counters.first_missing for a missing id at that position.
constexpr u64 MISSING_IS_ERROR = 1ull << 63;
DEVICE u64 first_missing_of(u64 index, const bool is_error) { return is_error ? ~index : ~index & ~MISSING_IS_ERROR; }

// The two words of the gate.
DEVICE u32* gate_closed(const Lookup& lookup) { return at<u32>(lookup.slot.gate + WR_GATE_CLOSED); }
DEVICE u64* gate_inside(const Lookup& lookup) { return at<u64>(lookup.slot.gate + WR_GATE_INSIDE); }

// How many lanes to leave out before a row's first lane, so that eight lanes read a whole line of 128 B. A lane reads 16 B.
DEVICE u32 skew_of(const Lookup& lookup, u64 row) { return lookup.lanes.by_lines ? (u32)(row % 128 / 16) : 0; }

// Whether the launch has the lease of its slot: the first kernel noted it.
DEVICE bool is_admitted(const Lookup& lookup) { return at<TicketState>(lookup.slot.counts)[lookup.slot.ticket].admitted != 0; }

// The sum of `value` of all threads of the block, for every thread. `room`: shared memory, a word for each warp.
template <u32 THREADS> DEVICE u32 block_sum(u32 value, u32* room) {
    for (u32 step = 16; step > 0; step /= 2) value += __shfl_xor_sync(FULL, value, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
    __syncthreads();
    u32 sum = 0;
    for (u32 warp = 0; warp < THREADS / 32; ++warp) sum += room[warp];
    return sum;
}

// The sum of `value` of the threads before this one; `total` becomes the sum of all.
template <u32 THREADS> DEVICE u32 block_scan(u32 value, u32* room, u32& total) {
    u32 lane = threadIdx.x % 32, inclusive = value;
    for (u32 step = 1; step < 32; step *= 2) {
        u32 other = __shfl_up_sync(FULL, inclusive, step);
        if (lane >= step) inclusive += other;
    }
    __syncthreads();
    if (lane == 31) room[threadIdx.x / 32] = inclusive;
    __syncthreads();
    u32 before = 0, sum = 0;
    for (u32 warp = 0; warp < THREADS / 32; ++warp) {
        if (warp == threadIdx.x / 32) before = sum;
        sum += room[warp];
    }
    total = sum;
    return before + inclusive - value;
}

// The segment of a key.
DEVICE const Segment& segment_of(const Lookup& lookup, u64 key) {
    const Segment* segment = at<Segment>(lookup.plan.segments);
    u32 low = 0, high = lookup.plan.segment_count;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (segment[middle].first_key <= key) low = middle; else high = middle;
    }
    return segment[low];
}

// Where a row on drives lies.
struct RowLocation {
    u64 drive_lba;  // drive in the upper 16 bits, first LBA in the lower 48
    u32 byte;       // in that LBA
    u32 lbas;       // to read for the row
    u32 row_bytes;  // that drives have
};

// Where the row of a rank of a table lies on drives.
DEVICE RowLocation location_in(const Table& table, u64 rank) {
    const u64 group = divide(rank, table.group_rows), row = rank - group * table.group_rows;
    u64 lba = table.first_lba + group * table.group_lbas + row * table.step_lbas;
    const u64 unit = lba >> table.stripe_shift, turn = divide(unit, table.chunks);
    u32 chunk = at<u32>(table.map)[unit - turn * table.chunks];
    u64 within = turn << table.stripe_shift | (lba & ((1ull << table.stripe_shift) - 1));
    u64 on_drive = table.base_lba + ((u64)(chunk & 0xffffff) << table.chunk_shift) + within;
    return RowLocation{(u64)(chunk >> 24) << 48 | on_drive, (u32)row * table.step_bytes, table.row_lbas, table.row_bytes - table.scale_bytes};
}

// Where the row of a key lies on drives.
DEVICE RowLocation location_of(const Lookup& lookup, u64 key) {
    const Segment& segment = segment_of(lookup, key);
    return location_in(at<Table>(lookup.plan.tables)[segment.table], segment.first_rank + (key - segment.first_key));
}

// By a thread: puts those bytes of the row of `key` into its place in staging that drives do not have, if there are such. Nobody else writes them.
DEVICE void put_scales(const Lookup& lookup, u64 key, u64 unique) {
    const Segment& segment = segment_of(lookup, key);
    const Table& table = at<Table>(lookup.plan.tables)[segment.table];
    const u32 bytes = table.scale_bytes;
    const u64 from = table.scales + (segment.first_rank + (key - segment.first_key)) * bytes;
    // What drives have of such a row is a multiple of 32 B, and staging begins at multiples of 16.
    const u64 to = lookup.unique.staging + unique * lookup.unique.staging_stride + (table.row_bytes - bytes);
    u32 done = 0;
    for (; from % 8 == 0 && done + 8 <= bytes; done += 8) *at<u64>(to + done) = *at<const u64>(from + done);
    for (; done < bytes; ++done) *at<u8>(to + done) = *at<const u8>(from + done);
}
