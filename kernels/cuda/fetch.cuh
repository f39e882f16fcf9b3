// Unique rows into staging: from DRAM by loads, from drives by commands in their queues. docs/gpu.md has the protocol.
#pragma once
#include "common.cuh"

constexpr u32 FETCH_THREADS = WR_LANES;
constexpr u32 BATCH = FETCH_THREADS;  // commands of a batch: one a lane
constexpr u32 MAX_PLACES = BATCH * WR_MAX_BATCHES;
constexpr u32 NOTHING = ~0u;

// Nothing is due for so long between two polls.
constexpr u32 POLL_PAUSE = 64;

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

// What one submitting block shares. A *place* is batch slot * BATCH + lane.
struct Submitter {
    u32 first[MAX_PLACES];          // the first unique of a place's command
    u32 outstanding[MAX_PLACES / 32];
    u32 failed[MAX_PLACES / 32];
    u32 left[WR_MAX_BATCHES];       // commands of a batch that have not ended
    u32 count[WR_MAX_BATCHES];      // commands of a batch
    u32 generation[WR_MAX_BATCHES];
    u64 deadline[WR_MAX_BATCHES];
    u64 homes[FETCH_THREADS + 1];
    u32 room[FETCH_THREADS / 32];
    u32 ready[FETCH_THREADS / 32];
    u32 next;
    u32 overdue;
    u32 anomalies;
    // The first command that failed by its status; none has while `failed_unique` is NOTHING.
    u32 failed_unique;
    u32 failed_status;
    u32 failed_cid;
    u32 answered;                   // a command of a finished batch succeeded
    u64 bytes;
};

// Copies the rows of a finished batch from the landing area to staging, a warp for each command, and says that they are there.
DEVICE void take_batch(const Lookup& p, const QueueDescriptor& queue, const Submitter& s, u32 slot, u32 count, u32 end) {
    for (u32 lane = threadIdx.x / 32; lane < count; lane += FETCH_THREADS / 32) {
        u32 place = slot * BATCH + lane, unique = s.first[place];
        if (s.failed[place / 32] >> place % 32 & 1) continue;
        u64 landing = queue.landing + (u64)place * queue.landing_stride, home = 0;
        for (u32 i = unique; i < end; ++i) {
            Home row = home_of(p, at<const u64>(p.unique)[i]);
            if (i == unique) home = row.at;
            if (row.at != home) break;
            u64 to = p.staging + (u64)i * p.staging_stride, from = landing + row.byte;
            // Rows start at multiples of their own length, which may be odd.
            if (from % 16 == 0) {
                for (u32 byte = threadIdx.x % 32 * 16; byte < row.row_bytes; byte += 512)
                    *at<Quad>(to + byte) = load_relaxed(at<const Quad>(from + byte));
            } else {
                for (u32 byte = threadIdx.x % 32; byte < row.row_bytes; byte += 32) {
                    u64 address = from + byte;
                    at<u8>(to)[byte] = load_relaxed(at<const u32>(address & ~3ull)) >> address % 4 * 8;
                }
            }
            if (threadIdx.x % 32 == 0) at<u8>(p.status)[i] = ROW_READ;
        }
    }
}

// The LBA of a unique row, on its drive.
DEVICE u64 lba_of(const Lookup& p, u32 unique) { return home_of(p, at<const u64>(p.unique)[unique]).at & 0xffffffffffffull; }

// Reads what one drive holds of the uniques from `cursor` to `end`, through the queue that this block owns. Rows count as failed until
// they are in staging, so that leaving in any way is safe. Commands that it leaves behind poison the queue.
DEVICE void submit(const Lookup& p, const QueueDescriptor& queue, u32 cursor, const u32 end) {
    SHARED Submitter s;
    QueueState& state = *at<QueueState>(queue.state);
    SlotState& slot_state = *at<SlotState>(p.slot);
    const u32 t = threadIdx.x, warp = t / 32, batches = queue.batches, begin = cursor;
    const u32 mask = (1u << queue.cid_shift) - 1;
    u32 tail = state.tail, head = state.head, turn = state.turn;
    u32 oldest = 0, newest = 0, outstanding = 0, commands = 0, doorbells = 0;
    u32 poison = WR_FAULT_NONE;
    bool overdue = false;
    u32 width = 32;
    if (t < WR_MAX_BATCHES) s.generation[t] = state.generation[t];
    for (u32 i = t; i < MAX_PLACES / 32; i += FETCH_THREADS) s.outstanding[i] = s.failed[i] = 0;
    if (t == 0) {
        s.anomalies = s.answered = 0;
        s.failed_unique = NOTHING;
        s.bytes = 0;
    }
    __syncthreads();

    while (!poison && (cursor < end || oldest != newest)) {
        // Fill and submit batches while there is a free one and something to read.
        while (newest - oldest < batches && cursor < end) {
            const u32 slot = newest % batches;
            u32 filled = 0, at_tail = tail;
            while (filled < BATCH && cursor < end) {
                // The homes of a tile of uniques, and of the one before.
                u32 unique = cursor + t;
                Home home{};
                u64 key = 0;
                if (unique < end) {
                    key = at<const u64>(p.unique)[unique];
                    home = home_of(p, key);
                }
                s.homes[t + 1] = home.at;
                if (t == 0) {
                    s.homes[0] = cursor > begin ? home_of(p, at<const u64>(p.unique)[cursor - 1]).at : ~0ull;
                    s.next = cursor + FETCH_THREADS;
                }
                __syncthreads();
                bool mine = unique < end && (u32)(home.at >> 48) == queue.drive && s.homes[t] != home.at;
                u32 total, number = filled + block_scan<FETCH_THREADS>(mine, s.room, total);
                if (mine && number < BATCH) {
                    u32 place = slot * BATCH + number;
                    u64 iova = queue.landing_iova + (u64)place * queue.landing_stride;
                    u64 length = (u64)home.lbas << queue.lba_shift;
                    u32 cid = s.generation[slot] << queue.cid_shift | place;
                    u64* entry = at<u64>(queue.sq + (u64)((tail + number) % queue.sq_size) * WR_SQE_BYTES);
                    store_relaxed(entry, 2ull | (u64)cid << 16 | (u64)queue.nsid << 32);
                    store_relaxed(entry + 1, 0ull);
                    store_relaxed(entry + 2, 0ull);
                    store_relaxed(entry + 3, iova);
                    store_relaxed(entry + 4, length > 4096 ? iova + 4096 : 0ull);
                    store_relaxed(entry + 5, home.at & 0xffffffffffffull);
                    store_relaxed(entry + 6, (u64)(home.lbas - 1));
                    store_relaxed(entry + 7, 0ull);
                    s.first[place] = unique;
                    atomicOr(&s.outstanding[place / 32], 1u << place % 32);
                    atomicAdd(&s.bytes, length);
                } else if (mine) {
                    atomicMin(&s.next, unique);
                }
                __syncthreads();
                filled = filled + total < BATCH ? filled + total : BATCH;
                cursor = s.next < end ? s.next : end;
                __syncthreads();
            }
            if (filled == 0) break;
            tail = (at_tail + filled) % queue.sq_size;
            outstanding += filled;
            commands += filled;
            ++doorbells;
            ++newest;
            if (t == 0) {
                s.left[slot] = s.count[slot] = filled;
                s.deadline[slot] = now() + queue.timeout_ns;
                // Every lane's entry is ordered before the doorbell: they passed a barrier with this lane since.
                fence_release();
                if (queue.doorbell_kind == WR_DOORBELL_MMIO) store_mmio(at<u32>(queue.sq_tail), tail);
                else store_relaxed(at<u32>(queue.sq_tail), tail);
            }
            __syncthreads();
        }
        if (oldest == newest) break;

        // Look for completions: a prefix, lane i at entry head + i. While nothing comes only one warp looks, to spare the bus.
        u32 position = head + t, wraps = turn;
        if (position >= queue.cq_size) {
            position -= queue.cq_size;
            ++wraps;
        }
        bool looks = t < outstanding && t < width;
        u64 word = looks ? load_relaxed(at<const u64>(queue.cq + (u64)position * WR_CQE_BYTES + 8)) : 0;
        bool here = looks && (word >> 48 & 1) == ((wraps + 1) & 1);
        u32 ballot = __ballot_sync(FULL, here);
        if (t % 32 == 0) s.ready[warp] = ballot == FULL ? 32 : __ffs(~ballot) - 1;
        __syncthreads();
        u32 found = 0;
        for (u32 i = 0; i < FETCH_THREADS / 32; ++i) {
            found += s.ready[i];
            if (s.ready[i] < 32) break;
        }
        if (t < found) {
            fence_acquire();
            u32 cid = word >> 32 & 0xffff, place = cid & mask, slot = place / BATCH;
            bool known = (u32)(word >> 16 & 0xffff) == queue.queue_id && slot < batches &&
                         cid >> queue.cid_shift == s.generation[slot];
            u32 bit = 1u << place % 32;
            if (known && (atomicAnd(&s.outstanding[place / 32], ~bit) & bit) != 0) {
                u32 status = word >> 49;
                if (status != 0) {
                    atomicOr(&s.failed[place / 32], bit);
                    if (atomicCAS(&s.failed_unique, NOTHING, s.first[place]) == NOTHING) {
                        s.failed_status = status;
                        s.failed_cid = cid;
                    }
                }
                atomicSub(&s.left[slot], 1u);
            } else {
                atomicAdd(&s.anomalies, 1u);
            }
        }
        __syncthreads();
        width = found == 0 ? 32 : FETCH_THREADS;
        const u32 done_slot = oldest % batches;
        const bool finished = s.left[done_slot] == 0;
        if (found != 0) {
            head += found;
            if (head >= queue.cq_size) {
                head -= queue.cq_size;
                ++turn;
            }
            ++doorbells;
            if (t == 0) {
                fence_release();
                if (queue.doorbell_kind == WR_DOORBELL_MMIO) store_mmio(at<u32>(queue.cq_head), head);
                else store_relaxed(at<u32>(queue.cq_head), head);
            }
            // What is left over is what nobody answered; anomalies were no answers.
            outstanding = 0;
            for (u32 i = oldest; i != newest; ++i) outstanding += s.left[i % batches];
        }
        if (finished) {
            fence_acquire();
            __syncthreads();
            if (t == 0) {
                u32 bad = 0;
                for (u32 i = 0; i < BATCH / 32; ++i) bad += __popc(s.failed[done_slot * (BATCH / 32) + i]);
                s.answered |= bad < s.count[done_slot];
            }
            take_batch(p, queue, s, done_slot, s.count[done_slot], end);
            __syncthreads();
            for (u32 i = t; i < BATCH / 32; i += FETCH_THREADS) s.failed[done_slot * (BATCH / 32) + i] = 0;
            if (t == 0) s.generation[done_slot] = (s.generation[done_slot] + 1) % queue.generations;
            ++oldest;
            overdue = false;
            __syncthreads();
            continue;
        }
        // One lane decides for all. Nothing extends a batch's time; once it is over, the queue is looked at until it holds no more,
        // for this block may have been held up, but not for ever: a drive may post what nobody asked for without end.
        if (t == 0) {
            bool hopeless = now() > s.deadline[done_slot] + queue.timeout_ns;
            s.next = (found == 0 && overdue) || hopeless               ? WR_FAULT_TIMED_OUT
                     : found == 0 && load_relaxed(gate_closed(p)) != 0 ? WR_FAULT_CLOSED
                                                                       : WR_FAULT_NONE;
            s.overdue = now() > s.deadline[done_slot];
        }
        __syncthreads();
        poison = s.next;
        overdue = s.overdue;
        if (found == 0 && !poison && !overdue) pause(POLL_PAUSE);
        __syncthreads();
    }

    __syncthreads();
    if (t < WR_MAX_BATCHES) state.generation[t] = s.generation[t];
    if (t != 0) return;
    state.tail = tail;
    state.head = head;
    state.turn = turn;
    state.anomalies += s.anomalies;
    state.commands += commands;
    state.doorbells += doorbells;
    atomicAdd(&slot_state.counters.commands, (u64)commands);
    atomicAdd(&slot_state.counters.doorbells, (u64)doorbells);
    atomicAdd(&slot_state.counters.bytes, s.bytes);
    if (s.anomalies) atomicAdd(&slot_state.counters.anomalies, (u64)s.anomalies);
    Fault& fault = *at<Fault>(queue.fault);
    if (s.answered) store_relaxed(&fault.answered, slot_state.launch);
    if (s.failed_unique != NOTHING) {
        // The host may be looking: there is none until all of it is there.
        store_relaxed(&fault.status, 0u);
        fence_release();
        store_relaxed(&fault.failed_lba, lba_of(p, s.failed_unique));
        store_relaxed(&fault.failed_launch, slot_state.launch);
        store_relaxed(&fault.failed_cid, s.failed_cid);
        fence_release();
        store_relaxed(&fault.status, s.failed_status);
    }
    if (poison) {
        store_relaxed(&state.poisoned_by, slot_state.launch);
        fence_release();
        store_relaxed(&state.poison, poison);
        u32 place = 0;
        while (place < MAX_PLACES - 1 && !(s.outstanding[place / 32] >> place % 32 & 1)) ++place;
        store_relaxed(&fault.drive, queue.drive);
        store_relaxed(&fault.queue, queue.queue_id);
        store_relaxed(&fault.cid, s.generation[place / BATCH] << queue.cid_shift | place);
        store_relaxed(&fault.lba, lba_of(p, s.first[place]));
        store_relaxed(&fault.waited_ns, now() + queue.timeout_ns - s.deadline[oldest % batches]);
        store_relaxed(&fault.launch, slot_state.launch);
        store_relaxed(&fault.outstanding, outstanding);
        fence_release();
        store_relaxed(&fault.kind, poison);
        atomicAdd(&slot_state.faults, 1u);
    }
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
KERNEL __launch_bounds__(FETCH_THREADS) warprow_fetch(const Lookup p) {
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
