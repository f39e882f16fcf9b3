// Unique rows into staging: from DRAM by loads, from drives by commands in their queues. docs/gpu.md has the protocol.
#pragma once
#include "crc.cuh"
#include "ring.cuh"

constexpr u32 FETCH_THREADS = WR_LANES;

// --- DRAM ----------------------------------------------------------------------------------------------------------------------

// Copies rows that lie in DRAM. `group` lanes share a row, each 16 B at a time; UNROLL rows are under way in each group. Warps take
// consecutive keys at the same time and move on together: what is being read is a window that moves up the addresses.
// Traffic: each row once over the bus, once into staging.
DEVICE void gather(const Lookup& p, u32 block, u32 blocks) {
    constexpr u32 UNROLL = 4;
    const SlotState& slot = *at<SlotState>(p.slot);
    u32 group = 1u << p.lanes, lane = threadIdx.x & (group - 1);
    u64 groups = (u64)blocks * FETCH_THREADS / group;
    u64 first = ((u64)block * FETCH_THREADS + threadIdx.x) / group;
    for (u64 unique = first; unique < slot.dram_uniques; unique += groups * UNROLL) {
        const uint4* from[UNROLL];
        u32 quads[UNROLL], skew[UNROLL], most = 0;
        for (u32 i = 0; i < UNROLL; ++i) {
            u64 number = unique + i * groups;
            quads[i] = skew[i] = 0;
            from[i] = nullptr;
            if (number >= slot.dram_uniques) continue;
            u64 key = at<const u64>(p.unique)[number];
            const Segment& segment = segment_of(p, key);
            const Table& table = at<Table>(p.table)[segment.table];
            u64 row = table.dram + (key - segment.first_key) * table.row_stride;
            from[i] = at<const uint4>(row);
            quads[i] = table.row_stride / 16;
            skew[i] = skew_of(p, row);
            most = quads[i] + skew[i] > most ? quads[i] + skew[i] : most;
        }
        for (u32 own = lane; own < most; own += group) {
            uint4 data[UNROLL];
            // Before a row's begin, `own` less the skew wraps to beyond its end.
            for (u32 i = 0; i < UNROLL; ++i)
                if (own - skew[i] < quads[i]) data[i] = from[i][own - skew[i]];
            for (u32 i = 0; i < UNROLL; ++i)
                if (own - skew[i] < quads[i]) at<uint4>(p.staging + (unique + i * groups) * p.staging_stride)[own - skew[i]] = data[i];
        }
    }
}

// --- Drives --------------------------------------------------------------------------------------------------------------------

// What a block that checks rows shares.
struct Checks {
    u32 slices[CRC_SLICES];
    // Rows that are not what was written: how many, and the first of them.
    u32 damaged;
    u32 unique;  // NOTHING: there is none
    u32 cid;
    u64 lba;
};

// By the whole block; a barrier follows.
DEVICE void begin_checks(const Lookup& p, Checks& checks) {
    for (u32 i = threadIdx.x; i < CRC_SLICES && p.slices != 0; i += FETCH_THREADS) checks.slices[i] = at<const u32>(p.slices)[i];
    if (threadIdx.x != 0) return;
    checks.damaged = 0;
    checks.unique = NOTHING;
}

// Whether the row of a unique, which is in staging, is what was written. By a warp.
DEVICE bool is_sound(const Lookup& p, const Checks& checks, u32 unique) {
    const u64 key = at<const u64>(p.unique)[unique];
    const Segment& segment = segment_of(p, key);
    const Table& table = at<Table>(p.table)[segment.table];
    if (table.crcs == 0) return true;
    const u64 index = key - segment.first_key;
    const u32 stored = at<const u32>(table.crcs + sizeof(RowCrcs))[index];
    // What other lanes of the warp have stored is read.
    __syncwarp();
    const u64 staged = p.staging + unique * p.staging_stride;
    return row_crc(checks.slices, *at<const RowCrcs>(table.crcs), segment.first_rank + index, staged, table.row_bytes) == stored;
}

// One thread, behind all batches: counts the damaged rows and tells the host of the first.
DEVICE void end_checks(const Lookup& p, const QueueDescriptor& queue, const Checks& checks) {
    if (checks.unique == NOTHING) return;
    SlotState& slot = *at<SlotState>(p.slot);
    Fault& fault = *at<Fault>(queue.fault);
    const u64 key = at<const u64>(p.unique)[checks.unique];
    const Segment& segment = segment_of(p, key);
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

// Copies the rows that a command has read from its place in the landing area to staging, and says that they are there, if they are what
// was written. By a warp.
DEVICE void take_command(const Lookup& p, const QueueDescriptor& queue, const Ring& s, Checks& checks, u32 place, u32 end) {
    const u32 unique = s.tag[place];
    const u64 landing = queue.landing + (u64)place * queue.landing_stride;
    u64 home = 0;
    for (u32 i = unique; i < end; ++i) {
        Home row = home_of(p, at<const u64>(p.unique)[i]);
        if (i == unique) home = row.at;
        if (row.at != home) break;
        u64 to = p.staging + (u64)i * p.staging_stride, from = landing + row.byte;
        // Rows start at multiples of their own length, which may be odd.
        if (from % 16 == 0) {
            for (u32 byte = threadIdx.x % 32 * 16; byte < row.row_bytes; byte += 512)
                *at<Quad>(to + byte) = load_relaxed(at<const Quad>(from + byte));
        } else if (from % 4 == 0) {
            // Up to 3 bytes more than the row: both sides are of whole words.
            for (u32 byte = threadIdx.x % 32 * 4; byte < row.row_bytes; byte += 128)
                *at<u32>(to + byte) = load_relaxed(at<const u32>(from + byte));
        } else {
            for (u32 byte = threadIdx.x % 32; byte < row.row_bytes; byte += 32) {
                u64 address = from + byte;
                at<u8>(to)[byte] = load_relaxed(at<const u32>(address & ~3ull)) >> address % 4 * 8;
            }
        }
        const bool sound = p.slices == 0 || is_sound(p, checks, i);
        if (threadIdx.x % 32 != 0) continue;
        at<u8>(p.status)[i] = sound ? ROW_READ : ROW_DAMAGED;
        if (sound) continue;
        atomicAdd(&checks.damaged, 1u);
        if (atomicCAS(&checks.unique, NOTHING, i) == NOTHING) {
            checks.cid = s.generation[place / BATCH] << queue.cid_shift | place;
            checks.lba = home & 0xffffffffffffull;
        }
    }
}

// The same for all commands of a finished batch, which the block's warps share. Each lane finds out about one: those that have read one row
// of up to 512 B, which is most, are then copied several at a time, for the landing area may lie across the bus.
DEVICE void take_batch(const Lookup& p, const QueueDescriptor& queue, const Ring& s, Checks& checks, u32 slot, u32 count, u32 end) {
    constexpr u32 WARPS = FETCH_THREADS / 32, UNROLL = 4;
    const u32 lane = threadIdx.x % 32, number = threadIdx.x / 32 + WARPS * lane, place = slot * BATCH + number;
    const bool there = number < count && !(s.failed[place / 32] >> place % 32 & 1);
    u64 from = 0;
    u32 unique = 0, bytes = 0;
    bool plain = false;
    if (there && p.slices == 0) {
        unique = s.tag[place];
        const Home row = home_of(p, at<const u64>(p.unique)[unique]);
        from = queue.landing + (u64)place * queue.landing_stride + row.byte;
        bytes = row.row_bytes;
        plain = from % 16 == 0 && bytes <= 512 && (unique + 1 == end || home_of(p, at<const u64>(p.unique)[unique + 1]).at != row.at);
    }
    for (u32 left = __ballot_sync(FULL, plain); left != 0;) {
        Quad data[UNROLL];
        u64 to[UNROLL];
        for (u32 k = 0; k < UNROLL; ++k) {
            const u32 whose = left != 0 ? __ffs(left) - 1 : 0;
            const u64 begin = __shfl_sync(FULL, from, whose);
            const u32 len = __shfl_sync(FULL, bytes, whose), row = __shfl_sync(FULL, unique, whose);
            to[k] = left != 0 && lane * 16 < len ? p.staging + (u64)row * p.staging_stride + lane * 16 : 0;
            if (to[k] != 0) data[k] = load_relaxed(at<const Quad>(begin + lane * 16));
            left &= left - 1;
        }
        for (u32 k = 0; k < UNROLL; ++k)
            if (to[k] != 0) *at<Quad>(to[k]) = data[k];
    }
    if (plain) at<u8>(p.status)[unique] = ROW_READ;
    for (u32 left = __ballot_sync(FULL, there && !plain); left != 0; left &= left - 1)
        take_command(p, queue, s, checks, slot * BATCH + threadIdx.x / 32 + WARPS * (__ffs(left) - 1), end);
}

// The LBA of a unique row, on its drive.
DEVICE u64 lba_of(const Lookup& p, u32 unique) { return home_of(p, at<const u64>(p.unique)[unique]).at & 0xffffffffffffull; }

// What the submitting block of a drive reads: its share of the uniques. The tag of a command is the first unique that its LBAs hold.
struct Rows {
    const Lookup& p;
    const QueueDescriptor& queue;
    u32 cursor;  // the next unique to look at
    const u32 begin, end;

    // What all lanes share.
    struct Tile {
        u64 homes[BATCH + 1];
        u64 bytes;
        u32 room[BATCH / 32];
        u32 next;
    };
    Tile& tile;
    Checks& checks;

    METHOD u64 gate() const { return p.gate; }
    METHOD u64 launch() const { return at<SlotState>(p.slot)->launch; }
    METHOD u64 lba_of(u32 unique) const { return ::lba_of(p, unique); }
    METHOD bool more() const { return cursor < end; }

    // Fills a batch with commands for the LBAs that hold the next uniques; how many there are.
    METHOD u32 fill(Ring& s, const Batch& batch) {
        const u32 t = threadIdx.x;
        u32 filled = 0;
        while (filled < BATCH && cursor < end) {
            // The homes of a tile of uniques, and of the one before.
            const u32 unique = cursor + t;
            Home home{};
            if (unique < end) home = home_of(p, at<const u64>(p.unique)[unique]);
            tile.homes[t + 1] = home.at;
            if (t == 0) {
                tile.homes[0] = cursor > begin ? home_of(p, at<const u64>(p.unique)[cursor - 1]).at : ~0ull;
                tile.next = cursor + BATCH;
            }
            __syncthreads();
            const bool mine = unique < end && (u32)(home.at >> 48) == queue.drive && tile.homes[t] != home.at;
            u32 total;
            const u32 number = filled + block_scan<BATCH>(mine, tile.room, total);
            if (mine && number < BATCH) {
                put_command(queue, s, batch, number, home.at & 0xffffffffffffull, home.lbas, unique);
                atomicAdd(&tile.bytes, (u64)home.lbas << queue.lba_shift);
            } else if (mine) {
                atomicMin(&tile.next, unique);
            }
            __syncthreads();
            filled = filled + total < BATCH ? filled + total : BATCH;
            cursor = tile.next < end ? tile.next : end;
            __syncthreads();
        }
        return filled;
    }

    METHOD void take(const Ring& s, u32 slot, u32 count) { take_batch(p, queue, s, checks, slot, count, end); }
};

// Reads what one drive holds of the uniques from `begin` to `end`, through the queue that this block owns. Rows count as failed until
// they are in staging, so that leaving in any way is safe. Commands that it leaves behind poison the queue.
DEVICE void submit(const Lookup& p, const QueueDescriptor& queue, const u32 begin, const u32 end) {
    SHARED Ring s;
    SHARED Rows::Tile tile;
    SHARED Checks checks;
    if (threadIdx.x == 0) tile.bytes = 0;
    begin_checks(p, checks);
    Rows rows{p, queue, begin, begin, end, tile, checks};
    const Driven driven = drive(queue, s, rows);
    if (threadIdx.x != 0) return;
    SlotState& slot = *at<SlotState>(p.slot);
    atomicAdd(&slot.counters.commands, (u64)driven.commands);
    atomicAdd(&slot.counters.doorbells, (u64)driven.doorbells);
    atomicAdd(&slot.counters.bytes, tile.bytes);
    if (driven.anomalies) atomicAdd(&slot.counters.anomalies, (u64)driven.anomalies);
    if (driven.poison) atomicAdd(&slot.faults, 1u);
    end_checks(p, queue, checks);
}

// The place of a set among those whose queue on a drive took commands when the launch began.
struct Share {
    u32 before;   // healthy sets before it
    u32 healthy;  // all of them
    bool mine;    // it is one
};

// By whole warps. Every block of the drive finds the same, whenever it looks: what was poisoned by this launch was healthy.
DEVICE Share share_of(const Lookup& p, u32 set, u32 drive, u64 launch) {
    Share share{};
    for (u32 first = 0; first < p.sets; first += 32) {
        u32 other = first + threadIdx.x % 32;
        bool healthy = false;
        if (other < p.sets) {
            const QueueState& state = *at<QueueState>(at<QueueDescriptor>(p.queues)[other * p.drives + drive].state);
            healthy = load_relaxed(&state.poison) == WR_FAULT_NONE;
            if (!healthy) {
                fence_acquire();
                healthy = load_relaxed(&state.poisoned_by) == launch;
            }
        }
        u32 bits = __ballot_sync(FULL, healthy);
        u32 below = set <= first ? 0 : set - first < 32 ? (1u << (set - first)) - 1 : FULL;
        share.before += __popc(bits & below);
        share.healthy += __popc(bits);
        if (set / 32 == first / 32) share.mine = bits >> set % 32 & 1;
    }
    return share;
}

// grid: sets * drives submitting blocks, then gatherers. Block (set, drive) owns that queue until it exits. The sets whose queue on a
// drive takes commands share its rows; where none does, they fail.
KERNEL __launch_bounds__(FETCH_THREADS, 2) warprow_fetch(const Lookup p) {
    if (!is_admitted(p)) return;
    const SlotState& slot = *at<SlotState>(p.slot);
    u32 submitters = p.sets * p.drives;
    if (blockIdx.x >= submitters) {
        gather(p, blockIdx.x - submitters, gridDim.x - submitters);
        return;
    }
    u32 cold = slot.uniques - slot.dram_uniques;
    // Behind a closed gate the host may be at the queues: their rows stay as they are, failed.
    if (cold == 0 || slot.gate_was_closed) return;
    Share share = share_of(p, blockIdx.x / p.drives, blockIdx.x % p.drives, slot.launch);
    if (!share.mine) {
        if (threadIdx.x == 0) atomicAdd(&at<SlotState>(p.slot)->faults, 1u);
        return;
    }
    u32 begin = slot.dram_uniques + (u32)((u64)cold * share.before / share.healthy);
    u32 end = slot.dram_uniques + (u32)((u64)cold * (share.before + 1) / share.healthy);
    if (begin < end) submit(p, at<QueueDescriptor>(p.queues)[blockIdx.x], begin, end);
}
