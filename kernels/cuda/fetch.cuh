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

// The LBA of a unique row, on its drive.
DEVICE u64 lba_of(const Lookup& p, u32 unique) { return home_of(p, at<const u64>(p.unique)[unique]).at & 0xffffffffffffull; }

// Copies a row from the landing area to staging, and says that it is there, if it is what was written. By a warp. `place` is its command's.
DEVICE void take_row(const Lookup& p, const QueueDescriptor& queue, const Ring& s, Checks& checks, u32 unique, u64 from, u32 bytes, u32 place) {
    const u64 to = p.staging + (u64)unique * p.staging_stride;
    // Rows start at multiples of their own length, which may be odd.
    if (from % 16 == 0) {
        for (u32 byte = threadIdx.x % 32 * 16; byte < bytes; byte += 512)
            *at<Quad>(to + byte) = load_relaxed(at<const Quad>(from + byte));
    } else if (from % 4 == 0) {
        // Up to 3 bytes more than the row: both sides are of whole words.
        for (u32 byte = threadIdx.x % 32 * 4; byte < bytes; byte += 128)
            *at<u32>(to + byte) = load_relaxed(at<const u32>(from + byte));
    } else {
        for (u32 byte = threadIdx.x % 32; byte < bytes; byte += 32) {
            u64 address = from + byte;
            at<u8>(to)[byte] = load_relaxed(at<const u32>(address & ~3ull)) >> address % 4 * 8;
        }
    }
    const bool sound = p.slices == 0 || is_sound(p, checks, unique);
    if (threadIdx.x % 32 != 0) return;
    at<u8>(p.status)[unique] = sound ? ROW_READ : ROW_DAMAGED;
    if (sound) return;
    atomicAdd(&checks.damaged, 1u);
    if (atomicCAS(&checks.unique, NOTHING, unique) == NOTHING) {
        checks.cid = s.generation[place / BATCH] << queue.cid_shift | place;
        checks.lba = lba_of(p, s.tag[place]);
    }
}

// Whether rows of different LBAs share a command: the one from LBA `at` to before `end`, and the next one. Drives are in the upper bits.
DEVICE bool share_window(const QueueDescriptor& queue, u64 at, u64 end, u64 next_at, u64 next_end) {
    // Whatever the order of chunks: only what ascends, within one aligned window. That holds all rows between, then, and them whole.
    return next_at >= end && next_at - end <= queue.window >> 8 && (at ^ (next_end - 1)) >> (queue.window & 0xff) == 0;
}

// Where rows share no window, TEAM lanes walk a part of the share together, so many uniques a step: a sector of 32 B of them, or two.
constexpr u32 TEAM = 4, TEAMS = BATCH / TEAM;

// What the submitting block of a drive reads: its share of the uniques. The tag of a command is the first unique that its LBAs hold.
//
// A share of several batches is cut into as many parts as there are teams of lanes, and all teams walk theirs at the same time. So a batch is
// spread over the share: neighbours may lie on one die of a flash drive, whoever wrote them, and a place is used again only when
// all of its batch was answered.
//
// Rows of one LBA share a command. So do those of a window (QueueDescriptor), in their order and as far as a tile of BATCH uniques of the share goes, which
// is so wherever batches begin: `take` finds the rows of a command as `fill` did. Tiles then follow each other, and are not walked by teams. A command reads from
// the first LBA that is wanted to the last. If a medium fails, the rows of such a command are read again, each LBA by itself, when everything else was: a second
// pass over the share, of rows whose status says so.
struct Rows {
    const Lookup& p;
    const QueueDescriptor& queue;
    const u32 begin, end;

    // What all lanes share. Homes stand beside those of their neighbours: of a tile, or of a team.
    struct Tile {
        u64 homes[TEAMS * (TEAM + 2)];
        u64 ends[BATCH + 1];           // behind each row's last LBA; with a window
        u64 bytes;
        u32 room[BATCH / 32];
        u32 next;
        u32 joined[MAX_PLACES / 32];   // a bit each: rows of several LBAs, to be read again if the medium fails
        u32 split;                     // commands of which that has happened
        u8 last[BATCH];                // of each command of a batch, the lane with its last row
        u32 alone[MAX_PLACES];         // of a command for one row: its bytes and, in the lowest 12 bits, where it begins in its LBA; else 0
    };
    Tile& tile;
    Checks& checks;
    const u32 part = part_of(queue, end - begin);  // uniques of a team; 0: there are none, a step is a tile
    u32 position = 0;       // the next to look at: lane position % BATCH of step position / BATCH
    u32 flying = 0;         // batches that were filled and are not finished
    u32 parts = 0;          // commands of the second pass
    bool parting = false;   // it has begun

    // Of this lane, in a team: the step that it was at last, its home there and in the next.
    u32 step = NOTHING;
    Home own{}, ahead{};

    METHOD static u32 part_of(const QueueDescriptor& queue, u32 share) {
        if (queue.window != 0 || share <= BATCH) return 0;
        return ((share - 1) / BATCH + 1) * TEAM;
    }

    METHOD u64 gate() const { return p.gate; }
    METHOD u64 launch() const { return at<SlotState>(p.slot)->launch; }
    METHOD u64 lba_of(u32 unique) const { return ::lba_of(p, unique); }
    METHOD u32 positions() const { return part != 0 ? part / TEAM * BATCH : end - begin; }
    METHOD bool more() const { return position < positions() || (flying == 0 && !parting && tile.split != 0); }
    METHOD bool has_windows() const { return queue.window != 0 && !parting; }

    METHOD bool reads_again(u32 place, u32 status) {
        constexpr u32 MEDIA = 2;  // status code type
        const u32 bit = 1u << place % 32;
        if ((tile.joined[place / 32] & bit) == 0) return false;
        if ((status >> 8 & 7) == MEDIA) return true;
        atomicAnd(&tile.joined[place / 32], ~bit);
        return false;
    }

    // No drive's where there is no such unique.
    METHOD Home home_at(u32 unique) const {
        Home home{};
        home.at = ~0ull;
        if (unique < end) home = home_of(p, at<const u64>(p.unique)[unique]);
        return home;
    }

    // Puts the homes of a step's uniques into the tile, and those of their neighbours; `entry` is where this lane's is. Behind a tile's last there is none.
    METHOD u32 look(u32 first, u32& entry, Home& home) {
        const u32 t = threadIdx.x;
        if (part == 0) {
            home = home_at(begin + first + t);
            entry = t + 1;
            if (t == 0) tile.homes[0] = first != 0 ? home_at(begin + first - 1).at : ~0ull;
            if (has_windows()) tile.ends[entry] = home.at + home.lbas;
            tile.homes[entry] = home.at;
            return begin + first + t;
        }
        const u32 team = t / TEAM, member = t % TEAM, now = first / BATCH, unique = begin + team * part + now * TEAM + member;
        entry = team * (TEAM + 2) + 1 + member;
        if (now != step) {
            u64 before;
            if (now == 0) {
                own = home_at(unique);
                before = member == 0 && team != 0 ? home_at(unique - 1).at : ~0ull;
            } else {
                own = ahead;
                before = __shfl_sync(FULL, tile.homes[entry], t % 32 | (TEAM - 1));
            }
            // The first that is behind a part is a neighbour of it.
            ahead = home_at(unique + TEAM);
            step = now;
            tile.homes[entry] = own.at;
            if (member == 0) {
                tile.homes[entry - 1] = before;
                tile.homes[entry + TEAM] = ahead.at;
            }
        }
        // Its first word lies in the tile for as long as the step does: registers are few.
        home = Home{tile.homes[entry], own.byte, own.lbas, own.row_bytes};
        return unique;
    }

    // Fills a batch with commands for the LBAs that hold the next uniques; how many there are.
    METHOD u32 fill(Ring& s, const Batch& batch) {
        const u32 t = threadIdx.x;
        if (position >= positions()) {
            position = 0;
            parting = true;
        }
        if (t < BATCH_WORDS) tile.joined[batch.slot * BATCH_WORDS + t] = 0;
        u32 filled = 0;
        // What a step more would hardly add to is full enough.
        while (filled < BATCH - BATCH / 8 && position < positions()) {
            const u32 first = position - position % BATCH;
            u32 entry;
            Home home;
            const u32 unique = look(first, entry, home);
            if (t == 0) tile.next = first + BATCH;
            __syncthreads();
            const bool here = first + t >= position && unique < end && (u32)(home.at >> 48) == queue.drive;
            const bool mine = here && !joins(entry) && (!parting || at<const u8>(p.status)[unique] == ROW_AGAIN);
            // What goes on from another tile has its command there.
            const bool ends = has_windows() && here && home.at != tile.homes[0] && (t + 1 == BATCH || !joins(entry + 1));
            u32 total;
            const u32 number = filled + block_scan<BATCH>(mine, tile.room, total);
            u64 behind = home.at + home.lbas;
            if (has_windows()) {
                // The command of a row that begins none is the latest before it.
                const u32 own = number - !mine;
                if (ends && own < BATCH) tile.last[own] = t;
                __syncthreads();
                if (mine && number < BATCH) behind = tile.ends[tile.last[number] + 1];
            }
            if (mine && number < BATCH) {
                const u32 lbas = (u32)(behind - home.at), place = batch.slot * BATCH + number;
                put_command(queue, s, batch, number, home.at & 0xffffffffffffull, lbas, unique);
                // A tile's last may share its command with the next tile's first.
                const bool alone = unique + 1 == end || ((part != 0 || t + 1 < BATCH) && !joins(entry + 1));
                tile.alone[place] = alone && home.byte < 4096 ? home.row_bytes << 12 | home.byte : 0;
                if (lbas > home.lbas) atomicOr(&tile.joined[place / 32], 1u << place % 32);
                atomicAdd(&tile.bytes, (u64)lbas << queue.lba_shift);
            } else if (mine) {
                atomicMin(&tile.next, first + t);
            }
            __syncthreads();
            filled = filled + total < BATCH ? filled + total : BATCH;
            position = tile.next;
            __syncthreads();
        }
        flying += filled != 0;
        if (parting) parts += filled;
        return filled;
    }

    // Whether the command for the row of an entry of the tile is that of the row before.
    METHOD bool joins(u32 entry) const {
        const u64 before = tile.homes[entry - 1], home = tile.homes[entry];
        if (before == home) return true;
        // What goes on from another tile takes in no other LBA here.
        return has_windows() && before != tile.homes[0] && share_window(queue, before, tile.ends[entry - 1], home, tile.ends[entry]);
    }

    // Copies what has landed to staging; the block's warps share the commands. Each lane follows the rows of one: those that are of
    // up to 512 B, which is most, are copied several at a time, for the landing area may lie across the bus.
    METHOD void take(const Ring& s, u32 count) {
        constexpr u32 WARPS = FETCH_THREADS / 32, UNROLL = 8;
        const u32 lane = threadIdx.x % 32, number = threadIdx.x / 32 + WARPS * lane;
        const u32 place = number < count ? s.landed[number] : NOTHING;
        bool there = place != NOTHING;
        const bool failed = there && (s.failed[place / 32] >> place % 32 & 1), again = failed && (tile.joined[place / 32] >> place % 32 & 1);
        there = there && (!failed || again);
        const u32 tag = there ? s.tag[place] : end, alone = there ? tile.alone[place] : 0;
        const u32 tile_end = begin + (tag - begin) / BATCH * BATCH + BATCH;
        u32 unique = tag;
        Home row{0, alone & 0xfff, 0, alone >> 12};
        if (there && alone == 0) row = home_of(p, at<const u64>(p.unique)[unique]);
        const u64 first = row.at;
        if (there && again) atomicAdd(&tile.split, 1u);
        while (__ballot_sync(FULL, there) != 0) {
            const u64 from = queue.landing + (u64)place * queue.landing_stride + ((row.at - first) << queue.lba_shift) + row.byte;
            const bool plain = there && !again && p.slices == 0 && from % 16 == 0 && row.row_bytes <= 512;
            for (u32 left = __ballot_sync(FULL, plain); left != 0;) {
                Quad data[UNROLL];
                u64 to[UNROLL];
#pragma unroll
                for (u32 k = 0; k < UNROLL; ++k) {
                    const u32 whose = left != 0 ? __ffs(left) - 1 : 0;
                    const u64 source = __shfl_sync(FULL, from, whose);
                    const u32 len = __shfl_sync(FULL, row.row_bytes, whose), which = __shfl_sync(FULL, unique, whose);
                    to[k] = left != 0 && lane * 16 < len ? p.staging + (u64)which * p.staging_stride + lane * 16 : 0;
                    if (to[k] != 0) data[k] = load_relaxed(at<const Quad>(source + lane * 16));
                    left &= left - 1;
                }
#pragma unroll
                for (u32 k = 0; k < UNROLL; ++k)
                    if (to[k] != 0) *at<Quad>(to[k]) = data[k];
            }
            if (plain) at<u8>(p.status)[unique] = ROW_READ;
            if (there && again) at<u8>(p.status)[unique] = ROW_AGAIN;
            for (u32 left = __ballot_sync(FULL, there && !again && !plain); left != 0; left &= left - 1) {
                const u32 whose = __ffs(left) - 1;
                const u64 source = __shfl_sync(FULL, from, whose);
                const u32 len = __shfl_sync(FULL, row.row_bytes, whose), which = __shfl_sync(FULL, unique, whose);
                take_row(p, queue, s, checks, which, source, len, __shfl_sync(FULL, place, whose));
            }
            // The next row of the command, if there is one.
            if (there) {
                const u64 before = row.at, behind = row.at + row.lbas;
                there = alone == 0 && ++unique < end;
                if (there) row = home_of(p, at<const u64>(p.unique)[unique]);
                if (there && row.at != before)
                    there = has_windows() && unique < tile_end && share_window(queue, before, behind, row.at, row.at + row.lbas);
            }
        }
    }

    METHOD void finished() { --flying; }
};

// Reads what one drive holds of the uniques from `begin` to `end`, through the queue that this block owns. Rows count as failed until
// they are in staging, so that leaving in any way is safe. Commands that it leaves behind poison the queue.
DEVICE void submit(const Lookup& p, const QueueDescriptor& queue, const u32 begin, const u32 end) {
    SHARED Ring s;
    SHARED Rows::Tile tile;
    SHARED Checks checks;
    if (threadIdx.x == 0) tile.bytes = tile.split = 0;
    begin_checks(p, checks);
    Rows rows{p, queue, begin, end, tile, checks};
    const Driven driven = drive(queue, s, rows);
    if (threadIdx.x != 0) return;
    SlotState& slot = *at<SlotState>(p.slot);
    atomicAdd(&slot.counters.commands, (u64)(driven.commands - rows.parts));
    if (tile.split) atomicAdd(&slot.counters.split, (u64)tile.split);
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
// drive takes commands share its rows; where none does, they fail. `early`: the next kernel's blocks are few, and may come at once; others would
// keep other work from the GPU for as long as drives take.
KERNEL __launch_bounds__(FETCH_THREADS, 2) warprow_fetch(const Lookup p, const u32 early) {
    wait_for_previous();
    if (early) let_next_come();
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
