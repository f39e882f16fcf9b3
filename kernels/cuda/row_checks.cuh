// Rows from drives against their checksums.
#pragma once
#include "crc.cuh"
#include "ring.cuh"

// Shared memory of a block that checks rows.
struct RowChecks {
    u32 slices[CRC_SLICES];
    // How many rows are not what was written, and the first of them with its command.
    u32 damaged;
    u32 unique;  // NOTHING: there is none
    u32 cid;
    u64 lba;
};

// Begins the checks of a launch, by the whole block; the caller passes a barrier behind it.
DEVICE void begin_checks(const Lookup& lookup, RowChecks& checks) {
    for (u32 i = threadIdx.x; i < CRC_SLICES && lookup.plan.crc_slices != 0; i += FETCH_THREADS) checks.slices[i] = at<const u32>(lookup.plan.crc_slices)[i];
    if (threadIdx.x != 0) return;
    checks.damaged = 0;
    checks.unique = NOTHING;
}

// By a warp: whether the row in staging of unique number `unique` is what was written.
DEVICE bool matches_checksum(const Lookup& lookup, const RowChecks& checks, u32 unique) {
    const u64 key = at<const u64>(lookup.unique.keys)[unique];
    const Segment& segment = segment_of(lookup, key);
    const Table& table = at<Table>(lookup.plan.tables)[segment.table];
    if (table.crcs == 0) return true;
    const u64 index = key - segment.first_key;
    const u32 stored = at<const u32>(table.crcs + sizeof(RowCrcs))[index];
    // The checksum reads what other lanes of the warp have stored.
    __syncwarp();
    const u64 staged = lookup.unique.staging + unique * lookup.unique.staging_stride;
    return row_crc(checks.slices, *at<const RowCrcs>(table.crcs), segment.first_rank + index, staged, table.row_bytes - table.scale_bytes) == stored;
}

// By one thread, behind all batches: counts the damaged rows and tells the host of the first.
DEVICE void end_checks(const Lookup& lookup, const QueueDescriptor& queue, const RowChecks& checks) {
    if (checks.unique == NOTHING) return;
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    Fault& fault = *at<Fault>(queue.fault);
    const u64 key = at<const u64>(lookup.unique.keys)[checks.unique];
    const Segment& segment = segment_of(lookup, key);
    atomicAdd(&slot.counters.damaged, (u64)checks.damaged);
    store_relaxed(&fault.damaged_launch, 0ull);
    fence_release();
    store_relaxed(&fault.damaged_rank, segment.first_rank + (key - segment.first_key));
    store_relaxed(&fault.damaged_lba, checks.lba);
    store_relaxed(&fault.damaged_table, segment.table);
    store_relaxed(&fault.damaged_cid, checks.cid);
    fence_release();
    store_relaxed(&fault.damaged_launch, slot.launch);
}
