// Unique rows from drives into staging: the *work* that a block gives its queue (ring.cuh).
#pragma once
#include "gather.cuh"
#include "numbers.cuh"
#include "row_checks.cuh"
#include "sort.cuh"

// The LBA of the row of unique number `unique`, on its drive.
DEVICE u64 lba_of(const Lookup& lookup, u32 unique) { return location_of(lookup, at<const u64>(lookup.unique.keys)[unique]).drive_lba & 0xffffffffffffull; }

// Where the row of `unique` goes from the landing area: to the output row of `position`, or with SEVERAL to staging.
DEVICE u64 target_of(const Lookup& lookup, u32 unique, u32 position) {
    if (position == SEVERAL) return lookup.unique.staging + (u64)unique * lookup.unique.staging_stride;
    return lookup.output.rows + position * lookup.output.row_stride * element_bytes(lookup.output.element);
}

// By a warp: copies the row of `unique` from the landing area to `to`, and sets its status by whether it is what was written, which it returns. `there`: its
// status if it is. `place`: the place of its command.
DEVICE bool take_row(const Lookup& lookup, const QueueDescriptor& queue, const Ring& ring, RowChecks& checks, u32 unique, u64 from, u64 to, u32 bytes, RowStatus there, u32 place) {
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
    const bool sound = lookup.plan.crc_slices == 0 || matches_checksum(lookup, checks, unique);
    if (threadIdx.x % 32 != 0) return sound;
    at<u8>(lookup.unique.status)[unique] = sound ? there : ROW_DAMAGED;
    if (sound) return true;
    atomicAdd(&checks.damaged, 1u);
    if (atomicCAS(&checks.unique, NOTHING, unique) == NOTHING) {
        checks.cid = ring.generation[place / BATCH] << queue.cid_shift | place;
        checks.lba = lba_of(lookup, ring.tag[place]);
    }
    return false;
}

// Whether two rows of different LBAs share a command: one on LBAs from `at` to before `end`, and the next one. The upper bits hold the drive.
DEVICE bool share_window(const QueueDescriptor& queue, u64 at, u64 end, u64 next_at, u64 next_end) {
    // Chunks may lie in any order: only rows that ascend within one aligned window share a command. All rows between them then lie in the window, too.
    return next_at >= end && next_at - end <= queue.window >> 8 && (at ^ (next_end - 1)) >> (queue.window & 0xff) == 0;
}

// Where rows share no window, a team of TEAM lanes walks a part of the share, TEAM uniques a step: their keys are 32 B, a sector or two.
constexpr u32 TEAM = 4, TEAMS = BATCH / TEAM;

// What all lanes share. The location of each row stands beside those of its neighbours: in a tile, or in a team.
struct RowTile {
    u64 drive_lbas[TEAMS * (TEAM + 2)];  // RowLocation.drive_lba
    u64 ends[BATCH + 1];                 // with windows: behind each row's last LBA
    u64 bytes;                           // that commands ask for
    u32 room[BATCH / 32];                // of block_scan
    u32 next;                            // the position behind what was put into the batch
    u32 joined[MAX_PLACES / 32];         // a bit for each command of rows of several LBAs, which are read again if the medium fails
    u32 split;                           // how many such commands failed by the medium
    u8 last[BATCH];                      // of each command of a batch, the lane with its last row
    u32 alone[MAX_PLACES];               // of a command for one row: the bytes of the row, above the 12 bits that say where it begins in its LBA; else 0
};

// What a launch does about rows in staging before all are there: nothing.
struct RowsRest {
    METHOD void read(u32) {}
    METHOD void taken() {}
};

// The rows that the submitting block of a drive reads: its share of the uniques. The tag of a command is the first unique that its LBAs hold.
//
// A share of several batches is cut into as many parts as there are teams of lanes, and all teams walk their parts at the same time. So a batch is
// spread over the share: neighbours may lie on one die of a flash drive, and a place is used again only when all of its batch was answered.
//
// Rows of one LBA share a command. So do rows of a window (QueueDescriptor.window), in their order, if they are in one tile of BATCH uniques. Tiles are
// counted from the share's begin, not from a batch's: so `take` finds the rows of a command as `fill` did. With windows, tiles follow each other and
// teams do not walk. A command reads from the first LBA that is wanted to the last. If the medium fails, the rows of a command of several LBAs are read
// again, each LBA by itself, when everything else was read: a second pass over the share takes the rows with status ROW_AGAIN.
//
// `Rows` is told of rows in staging:
//   read(unique)  by one lane, when the row of that unique is there and is what was written
//   taken()       by the whole block, behind all rows of one look at the completions, with no barrier between
template <class Rows> struct RowReads {
    const Lookup& lookup;
    const QueueDescriptor& queue;
    const u32 begin, end;

    RowTile& tile;
    RowChecks& checks;
    Rows& rows;
    const u32 team_uniques = team_uniques_of(queue, end - begin);  // uniques of a team's part; 0: there are no teams, and a step is a tile
    u32 position = 0;              // the next to look at: lane position % BATCH of step position / BATCH
    u32 batches_in_flight = 0;     // batches that were filled and are not finished
    u32 second_pass_commands = 0;
    bool is_second_pass = false;   // the second pass has begun

    // With teams, of this lane: the latest step, the location of its row there and in the step behind it.
    u32 step = NOTHING;
    RowLocation current{}, next{};

    // Uniques of each team's part of a share; 0: the share is not cut.
    METHOD static u32 team_uniques_of(const QueueDescriptor& queue, u32 share) {
        if (queue.window != 0 || share <= BATCH) return 0;
        return ((share - 1) / BATCH + 1) * TEAM;
    }

    METHOD u64 gate() const { return lookup.slot.gate; }
    METHOD u64 launch() const { return at<SlotState>(lookup.slot.state)->launch; }
    METHOD u64 lba_of(u32 unique) const { return ::lba_of(lookup, unique); }
    METHOD u32 positions() const { return team_uniques != 0 ? team_uniques / TEAM * BATCH : end - begin; }
    METHOD bool more() const { return position < positions() || (batches_in_flight == 0 && !is_second_pass && tile.split != 0); }
    METHOD bool has_windows() const { return queue.window != 0 && !is_second_pass; }
    METHOD bool rings_each() const { return (lookup.queues.ablated & ABLATED_SHARED_DOORBELLS) != 0; }
    METHOD bool shares_commands() const { return (lookup.queues.ablated & ABLATED_SHARED_COMMANDS) == 0; }

    // See ring.cuh. Only where the medium failed are rows of a command read again.
    METHOD bool reads_again(u32 place, u32 status) {
        constexpr u32 MEDIA = 2;  // status code type
        const u32 bit = 1u << place % 32;
        if ((tile.joined[place / 32] & bit) == 0) return false;
        if ((status >> 8 & 7) == MEDIA) return true;
        atomicAnd(&tile.joined[place / 32], ~bit);
        return false;
    }

    // The location of a unique's row; on no drive, where the share has no such unique.
    METHOD RowLocation location_at(u32 unique) const {
        RowLocation location{};
        location.drive_lba = ~0ull;
        if (unique < end) location = location_of(lookup, at<const u64>(lookup.unique.keys)[unique]);
        return location;
    }

    // Puts the locations of a step's rows into the tile, and those of their neighbours; a tile's last has no neighbour behind it. Gives this lane's unique,
    // its entry in the tile, and its location.
    METHOD u32 load_step(u32 first, u32& entry, RowLocation& location) {
        const u32 thread = threadIdx.x;
        if (team_uniques == 0) {
            location = location_at(begin + first + thread);
            entry = thread + 1;
            if (thread == 0) tile.drive_lbas[0] = first != 0 ? location_at(begin + first - 1).drive_lba : ~0ull;
            if (has_windows()) tile.ends[entry] = location.drive_lba + location.lbas;
            tile.drive_lbas[entry] = location.drive_lba;
            return begin + first + thread;
        }
        const u32 team = thread / TEAM, member = thread % TEAM, this_step = first / BATCH, unique = begin + team * team_uniques + this_step * TEAM + member;
        entry = team * (TEAM + 2) + 1 + member;
        if (this_step != step) {
            u64 before;
            if (this_step == 0) {
                current = location_at(unique);
                before = member == 0 && team != 0 ? location_at(unique - 1).drive_lba : ~0ull;
            } else {
                current = next;
                before = __shfl_sync(FULL, tile.drive_lbas[entry], thread % 32 | (TEAM - 1));
            }
            // The unique behind a part's last is its neighbour.
            next = location_at(unique + TEAM);
            step = this_step;
            tile.drive_lbas[entry] = current.drive_lba;
            if (member == 0) {
                tile.drive_lbas[entry - 1] = before;
                tile.drive_lbas[entry + TEAM] = next.drive_lba;
            }
        }
        // The first word of a location stays in the tile for as long as the step lasts: registers are few.
        location = RowLocation{tile.drive_lbas[entry], current.byte, current.lbas, current.row_bytes};
        return unique;
    }

    // Fills a batch with commands for the LBAs that hold the next uniques, and returns how many commands there are.
    METHOD u32 fill(Ring& ring, const CommandBatch& batch) {
        const u32 thread = threadIdx.x;
        if (position >= positions()) {
            position = 0;
            is_second_pass = true;
        }
        if (thread < BATCH_WORDS) tile.joined[batch.slot * BATCH_WORDS + thread] = 0;
        u32 filled = 0;
        // A batch goes out at 7/8 full: the next step would seldom fit.
        while (filled < BATCH - BATCH / 8 && position < positions()) {
            const u32 first = position - position % BATCH;
            u32 entry;
            RowLocation location;
            const u32 unique = load_step(first, entry, location);
            if (thread == 0) tile.next = first + BATCH;
            __syncthreads();
            const bool here = first + thread >= position && unique < end && (u32)(location.drive_lba >> 48) == queue.drive;
            const bool mine = here && !joins(entry) && (!is_second_pass || at<const u8>(lookup.unique.status)[unique] == ROW_AGAIN);
            // Rows that share a command with rows of the tile before have that command there.
            const bool ends = has_windows() && here && location.drive_lba != tile.drive_lbas[0] && (thread + 1 == BATCH || !joins(entry + 1));
            u32 total;
            const u32 number = filled + block_scan<BATCH>(mine, tile.room, total);
            u64 behind = location.drive_lba + location.lbas;
            if (has_windows()) {
                // A row that begins no command belongs to the latest command before it.
                const u32 own = number - !mine;
                if (ends && own < BATCH) tile.last[own] = thread;
                __syncthreads();
                if (mine && number < BATCH) behind = tile.ends[tile.last[number] + 1];
            }
            if (mine && number < BATCH) {
                const u32 lbas = (u32)(behind - location.drive_lba), place = batch.slot * BATCH + number;
                put_command(queue, ring, batch, number, location.drive_lba & 0xffffffffffffull, lbas, unique);
                // The last row of a tile may share its command with the first of the next tile.
                const bool alone = unique + 1 == end || !shares_commands() || ((team_uniques != 0 || thread + 1 < BATCH) && !joins(entry + 1));
                tile.alone[place] = alone && location.byte < 4096 ? location.row_bytes << 12 | location.byte : 0;
                if (lbas > location.lbas) atomicOr(&tile.joined[place / 32], 1u << place % 32);
                atomicAdd(&tile.bytes, (u64)lbas << queue.lba_shift);
            } else if (mine) {
                atomicMin(&tile.next, first + thread);
            }
            __syncthreads();
            filled = filled + total < BATCH ? filled + total : BATCH;
            position = tile.next;
            __syncthreads();
        }
        batches_in_flight += filled != 0;
        if (is_second_pass) second_pass_commands += filled;
        return filled;
    }

    // Whether the row of an entry of the tile shares its command with the row before.
    METHOD bool joins(u32 entry) const {
        const u64 before = tile.drive_lbas[entry - 1], own = tile.drive_lbas[entry];
        if (!shares_commands()) return false;
        if (before == own) return true;
        // A command of the tile before takes in no further LBA of this tile.
        return has_windows() && before != tile.drive_lbas[0] && share_window(queue, before, tile.ends[entry - 1], own, tile.ends[entry]);
    }

    // Copies what has landed to staging, or to the output where the launch writes it (DriveQueues.writes_output) and one position wants the row; the block's
    // warps share the commands. Each lane follows the rows of one command. Rows of up to 512 B, which are most, are copied several at a time, for the
    // landing area may lie across the bus.
    METHOD void take(const Ring& ring, u32 count) {
        constexpr u32 WARPS = FETCH_THREADS / 32, UNROLL = 8;
        const u32 lane = threadIdx.x % 32, number = threadIdx.x / 32 + WARPS * lane;
        const u32 place = number < count ? ring.landed[number] : NOTHING;
        bool there = place != NOTHING;
        const bool failed = there && (ring.failed[place / 32] >> place % 32 & 1), again = failed && (tile.joined[place / 32] >> place % 32 & 1);
        there = there && (!failed || again);
        const u32 tag = there ? ring.tag[place] : end, alone = there ? tile.alone[place] : 0;
        const u32 tile_end = begin + (tag - begin) / BATCH * BATCH + BATCH;
        u32 unique = tag;
        RowLocation row{0, alone & 0xfff, 0, alone >> 12};
        if (there && alone == 0) row = location_of(lookup, at<const u64>(lookup.unique.keys)[unique]);
        const u64 first = row.drive_lba;
        if (there && again) atomicAdd(&tile.split, 1u);
        while (__ballot_sync(FULL, there) != 0) {
            const u64 from = queue.landing + (u64)place * queue.landing_stride + ((row.drive_lba - first) << queue.lba_shift) + row.byte;
            const bool plain = there && !again && lookup.plan.crc_slices == 0 && from % 16 == 0 && row.row_bytes <= 512;
            // Looked at behind the loads of rows, which take as long.
            const u32 wanted_at = there && !again && from % 16 == 0 && lookup.queues.writes_output ? wanted_by(lookup)[unique] : SEVERAL;
            for (u32 left = __ballot_sync(FULL, plain); left != 0;) {
                Quad data[UNROLL];
                u32 copies = 0;
                const u32 turn = left;
#pragma unroll
                for (u32 k = 0; k < UNROLL; ++k) {
                    const u32 source_lane = left != 0 ? __ffs(left) - 1 : 0;
                    const u64 source = __shfl_sync(FULL, from, source_lane);
                    const u32 len = __shfl_sync(FULL, row.row_bytes, source_lane);
                    if (left != 0 && lane * 16 < len) {
                        copies |= 1u << k;
                        data[k] = load_relaxed(at<const Quad>(source + lane * 16));
                    }
                    left &= left - 1;
                }
                const u64 target = target_of(lookup, unique, wanted_at);
                u32 due = turn;
#pragma unroll
                for (u32 k = 0; k < UNROLL; ++k) {
                    const u64 to = __shfl_sync(FULL, target, due != 0 ? __ffs(due) - 1 : 0);
                    if (copies >> k & 1) *at<Quad>(to + lane * 16) = data[k];
                    due &= due - 1;
                }
            }
            const RowStatus status = wanted_at == SEVERAL ? ROW_READ : ROW_WRITTEN;
            if (plain) {
                at<u8>(lookup.unique.status)[unique] = status;
                rows.read(unique);
            }
            if (there && again) at<u8>(lookup.unique.status)[unique] = ROW_AGAIN;
            for (u32 left = __ballot_sync(FULL, there && !again && !plain); left != 0; left &= left - 1) {
                const u32 source_lane = __ffs(left) - 1;
                const u64 source = __shfl_sync(FULL, from, source_lane);
                const u32 len = __shfl_sync(FULL, row.row_bytes, source_lane), which = __shfl_sync(FULL, unique, source_lane);
                const u64 target = __shfl_sync(FULL, target_of(lookup, unique, wanted_at), source_lane);
                const RowStatus sound_is = __shfl_sync(FULL, (u32)status, source_lane) == ROW_READ ? ROW_READ : ROW_WRITTEN;
                const bool sound = take_row(lookup, queue, ring, checks, which, source, target, len, sound_is, __shfl_sync(FULL, place, source_lane));
                if (sound && lane == 0) rows.read(which);
            }
            // The next row of the command, if there is one.
            if (there) {
                const u64 before = row.drive_lba, behind = row.drive_lba + row.lbas;
                there = alone == 0 && shares_commands() && ++unique < end;
                if (there) row = location_of(lookup, at<const u64>(lookup.unique.keys)[unique]);
                if (there && row.drive_lba != before)
                    there = has_windows() && unique < tile_end && share_window(queue, before, behind, row.drive_lba, row.drive_lba + row.lbas);
            }
        }
        rows.taken();
    }

    METHOD void finished() { --batches_in_flight; }
};

// Shared memory of a block that reads rows from drives.
struct SubmitShared {
    Ring ring;
    RowTile tile;
    RowChecks checks;
};

DEVICE SubmitShared& submit_shared_of_block() {
    SHARED(SubmitShared, shared);
    return shared;
}

// By the block that owns the queue: reads those uniques from `begin` to before `end` whose rows lie on the queue's drive. Rows count as failed until they
// are in staging, so that the block may leave at any point. If it leaves commands behind, the queue is poisoned.
template <class Rows> DEVICE void submit(const Lookup& lookup, const QueueDescriptor& queue, const u32 begin, const u32 end, SubmitShared& shared, Rows& rows) {
    Ring& ring = shared.ring;
    RowTile& tile = shared.tile;
    RowChecks& checks = shared.checks;
    if (threadIdx.x == 0) tile.bytes = tile.split = 0;
    begin_checks(lookup, checks);
    RowReads<Rows> reads{lookup, queue, begin, end, tile, checks, rows};
    const RingOutcome outcome = drive_queue(queue, ring, reads);
    if (threadIdx.x != 0) return;
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    atomicAdd(&slot.counters.commands, (u64)(outcome.commands - reads.second_pass_commands));
    if (tile.split) atomicAdd(&slot.counters.split, (u64)tile.split);
    atomicAdd(&slot.counters.doorbells, (u64)outcome.doorbells);
    atomicAdd(&slot.counters.bytes, tile.bytes);
    if (outcome.anomalies) atomicAdd(&slot.counters.anomalies, (u64)outcome.anomalies);
    if (outcome.poison) atomicAdd(&slot.faults, 1u);
    end_checks(lookup, queue, checks);
}
