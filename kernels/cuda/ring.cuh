// A queue pair driven by one block: batches of commands with one doorbell each, completions in any order, every wait bounded. What is
// read, and what becomes of it, is the caller's *work*. docs/gpu.md has the protocol.
#pragma once
#include "common.cuh"

constexpr u32 BATCH = WR_LANES;  // commands of a batch at most: one a lane
constexpr u32 BATCH_WORDS = BATCH / 32;
constexpr u32 MAX_PLACES = BATCH * WR_MAX_BATCHES;
constexpr u32 NOTHING = ~0u;

// Nothing is due for so long between two polls, nanoseconds.
constexpr u32 POLL_PAUSE = 64;
// The gate is looked at so often while nothing comes, nanoseconds: it lies across the bus.
constexpr u64 GATE_PAUSE = 5000;
// Passes that found something, but finished nothing, between two looks at the clock.
constexpr u32 BUSY_PASSES = 64;

// Shared memory of the block that drives a queue. A *place* is batch slot * BATCH + lane.
struct Ring {
    u32 tag[MAX_PLACES];               // what the work calls the command of a place
    u32 outstanding[MAX_PLACES / 32];  // a bit each
    u32 failed[MAX_PLACES / 32];
    u32 count[WR_MAX_BATCHES];         // commands of a batch
    u32 generation[WR_MAX_BATCHES];
    u64 deadline[WR_MAX_BATCHES];
    u64 gate_seen;                     // when the gate was last looked at
    u32 ready[BATCH_WORDS];
    u32 landed[BATCH];                 // the places of the commands that the latest look found answered; NOTHING for what is no answer
    u32 verdict;
    u32 overdue;
    u32 anomalies;
    // The first command that failed by its status; none has while `failed_tag` is NOTHING.
    u32 failed_tag;
    u32 failed_status;
    u32 failed_cid;
    u32 answered;                      // a command of a finished batch succeeded
};

// A batch that is being filled: its slot, and the SQ's tail before it.
struct CommandBatch {
    u32 slot;
    u32 tail;
};

// What a block did with its queue.
struct RingOutcome {
    u32 commands;
    u32 doorbells;
    u32 anomalies;
    u32 poison;  // WR_FAULT_*
};

// By one lane: puts command `number` of a batch into the SQ, a read of `lbas` LBAs from `lba` on into the command's own place.
DEVICE void put_command(const QueueDescriptor& queue, Ring& ring, const CommandBatch& batch, u32 number, u64 lba, u32 lbas, u32 tag) {
    const u32 place = batch.slot * BATCH + number;
    const u64 iova = queue.landing_iova + (u64)place * queue.landing_stride;
    const u32 cid = ring.generation[batch.slot] << queue.cid_shift | place;
    u32 index = batch.tail + number;
    if (index >= queue.sq_size) index -= queue.sq_size;
    Quad* entry = at<Quad>(queue.sq + (u64)index * WR_SQE_BYTES);
    // PRP2 names the second page of what crosses one: landing_stride says when; or the list of all further ones.
    const u64 bytes = (u64)lbas << queue.lba_shift;
    u64 second = bytes > 4096 ? iova + 4096 : 0;
    // Places are powers of two, so that the list of one lies in one page.
    if (bytes > 8192) second = queue.prp_list + (((u64)place * queue.landing_stride >> 12) + 1) * 8;
    store_relaxed(entry, Quad{2u | cid << 16, queue.nsid, 0, 0});
    store_relaxed(entry + 1, Quad{0, 0, (u32)iova, (u32)(iova >> 32)});
    store_relaxed(entry + 2, Quad{(u32)second, (u32)(second >> 32), (u32)lba, (u32)(lba >> 32)});
    store_relaxed(entry + 3, Quad{lbas - 1, 0, 0, 0});
    ring.tag[place] = tag;
    atomicOr(&ring.outstanding[place / 32], 1u << place % 32);
}

// Stores a queue's new tail or head to its doorbell.
DEVICE void ring_bell(const QueueDescriptor& queue, u64 bell, u32 value) {
    if (queue.doorbell_kind == WR_DOORBELL_MMIO) store_mmio(at<u32>(bell), value);
    else store_relaxed(at<u32>(bell), value);
}

// Drives the queue, by all lanes of the block that owns it, until `work` has nothing more to read and all of it was answered; or until
// it gives up, which poisons the queue: what is outstanding then is never used again. `Work` has
//   gate()              address of the launch's Gate
//   launch()            number of the launch
//   more()              whether there is anything to read at present; the same in all lanes. Asked again when all was taken
//   fill(ring, batch)   puts commands into a batch, numbers from 0 on; how many. A barrier before the first, and one behind the last
//   take(ring, n)       takes what has landed for the first n of `landed`, but for commands whose bit in `failed` is set
//   finished()          a batch that was filled has been taken
//   reads_again(place, status)  by the lane that retires a command which failed: whether it is no failure yet, because `more` will give
//                       what it was to read in other commands
//   rings_each()        whether each command has a tail doorbell of its own, which is slower; the same in all lanes
//   lba_of(tag)         for reports
template <class Work> DEVICE RingOutcome drive_queue(const QueueDescriptor& queue, Ring& ring, Work& work) {
    QueueState& state = *at<QueueState>(queue.state);
    const u32 thread = threadIdx.x, lane = thread % 32, warp = thread / 32, batches = queue.batches;
    const u32 mask = (1u << queue.cid_shift) - 1;
    const u32* const closed = at<u32>(work.gate() + WR_GATE_CLOSED);
    u32 tail = state.tail, head = state.head, turn = state.turn;
    // Batches by number, and the slots of the oldest and of the next.
    u32 oldest = 0, newest = 0, old_slot = 0, new_slot = 0, outstanding = 0, commands = 0, doorbells = 0;
    // Entries that were consumed since the controller was last told.
    u32 owed = 0;
    u32 poison = WR_FAULT_NONE, width = 32, busy = 0;
    bool overdue = false;
    if (thread < WR_MAX_BATCHES) ring.generation[thread] = state.generation[thread];
    for (u32 i = thread; i < MAX_PLACES / 32; i += BATCH) ring.outstanding[i] = ring.failed[i] = 0;
    if (thread == 0) {
        ring.anomalies = ring.answered = 0;
        ring.failed_tag = NOTHING;
        ring.gate_seen = now();
    }
    __syncthreads();

    while (!poison && (work.more() || oldest != newest)) {
        // A batch, if a slot is free and there is something to read.
        u32 filled = 0;
        if (newest - oldest < batches && work.more()) {
            filled = work.fill(ring, CommandBatch{new_slot, tail});
            if (filled == 0 && oldest == newest) continue;
        }
        if (filled != 0) {
            tail += filled;
            if (tail >= queue.sq_size) tail -= queue.sq_size;
            outstanding += filled;
            commands += filled;
        }
        // Look for completions: a prefix, lane i at entry head + i. Entries cross the bus whether they are new or not: while nothing comes only one warp
        // looks; all lanes do where each that looked found something; else twice as many as found something.
        u32 position = head + thread, wraps = turn;
        if (position >= queue.cq_size) {
            position -= queue.cq_size;
            ++wraps;
        }
        const bool looks = thread < outstanding && thread < width;
        const u64 word = looks ? load_relaxed(at<const u64>(queue.cq + (u64)position * WR_CQE_BYTES + 8)) : 0;
        if (filled != 0) {
            // While what was looked at is under way. Every lane's entry is ordered before the doorbell: they passed a barrier with this
            // lane since. So are the looks at the entries whose room is given back.
            if (thread == 0) {
                ring.count[new_slot] = filled;
                ring.deadline[new_slot] = now() + queue.timeout_ns;
                fence_release();
                if (owed != 0) {
                    ring_bell(queue, queue.cq_head, head);
                    // Where the queue could look full to whoever sees the new tail and the old head, this one comes first.
                    if (outstanding + owed >= queue.cq_size) fence_release();
                }
                // One store, after all commands of the batch or after each.
#pragma unroll 1
                for (u32 untold = work.rings_each() ? filled - 1 : 0;; --untold) {
                    ring_bell(queue, queue.sq_tail, tail >= untold ? tail - untold : tail + queue.sq_size - untold);
                    if (untold == 0) break;
                    fence_release();
                }
            }
            doorbells += (work.rings_each() ? filled : 1) + (owed != 0);
            owed = 0;
            ++newest;
            if (++new_slot == batches) new_slot = 0;
        }
        const bool here = looks && (word >> 48 & 1) == ((wraps + 1) & 1);
        const u32 ballot = __ballot_sync(FULL, here);
        if (lane == 0) ring.ready[warp] = ballot == FULL ? 32 : __ffs(~ballot) - 1;
        __syncthreads();
        u32 found = 0;
        for (u32 i = 0; i < BATCH_WORDS; ++i) {
            found += ring.ready[i];
            if (ring.ready[i] < 32) break;
        }
        if (thread < found) {
            fence_acquire();
            const u32 cid = word >> 32 & 0xffff, place = cid & mask, slot = place / BATCH;
            const bool known = (u32)(word >> 16 & 0xffff) == queue.queue_id && slot < batches &&
                               cid >> queue.cid_shift == ring.generation[slot];
            const u32 bit = 1u << place % 32;
            const bool answers = known && (atomicAnd(&ring.outstanding[place / 32], ~bit) & bit) != 0;
            ring.landed[thread] = answers ? place : NOTHING;
            if (answers) {
                const u32 status = word >> 49;
                if (status != 0) {
                    atomicOr(&ring.failed[place / 32], bit);
                    if (!work.reads_again(place, status) && atomicCAS(&ring.failed_tag, NOTHING, ring.tag[place]) == NOTHING) {
                        ring.failed_status = status;
                        ring.failed_cid = cid;
                    }
                }
            } else {
                atomicAdd(&ring.anomalies, 1u);
            }
        }
        __syncthreads();
        width = found == width ? BATCH : found == 0 ? 32 : (u32)min_of((2 * found + 31) / 32 * 32, BATCH);
        const bool waits = lane < BATCH_WORDS && ring.outstanding[old_slot * BATCH_WORDS + lane] != 0;
        const bool finished = __ballot_sync(FULL, waits) == 0;
        if (found != 0) {
            head += found;
            if (head >= queue.cq_size) {
                head -= queue.cq_size;
                ++turn;
            }
            owed += found;
            // What is left over is what nobody answered; anomalies were no answers.
            u32 left = 0;
            for (u32 i = lane; i < batches * BATCH_WORDS; i += 32) left += __popc(ring.outstanding[i]);
            outstanding = __reduce_add_sync(FULL, left);
            // At once: what comes last is all that is left to copy when it has come.
            work.take(ring, found);
        }
        if (finished) {
            __syncthreads();
            if (thread == 0) {
                u32 bad = 0;
                for (u32 i = 0; i < BATCH_WORDS; ++i) {
                    bad += __popc(ring.failed[old_slot * BATCH_WORDS + i]);
                    ring.failed[old_slot * BATCH_WORDS + i] = 0;
                }
                ring.answered |= bad < ring.count[old_slot];
                ring.generation[old_slot] = ring.generation[old_slot] + 1 == queue.generations ? 0 : ring.generation[old_slot] + 1;
            }
            work.finished();
            ++oldest;
            if (++old_slot == batches) old_slot = 0;
            overdue = false;
            busy = 0;
            __syncthreads();
            continue;
        }
        // Room for what is outstanding, at any time; else with the next tail, or when there is time for it.
        if (owed != 0 && (found + filled == 0 || outstanding + owed + BATCH >= queue.cq_size)) {
            if (thread == 0) {
                fence_release();
                ring_bell(queue, queue.cq_head, head);
            }
            ++doorbells;
            owed = 0;
        }
        if ((found != 0 || filled != 0) && ++busy % BUSY_PASSES != 0) continue;
        // One lane decides for all. Nothing extends a batch's time; once it is over, the queue is looked at until it holds no more,
        // for this block may have been held up, but not for ever: a drive may post what nobody asked for without end.
        if (thread == 0) {
            const u64 time = now();
            const bool hopeless = time > ring.deadline[old_slot] + queue.timeout_ns;
            u32 verdict = (found == 0 && overdue) || hopeless ? WR_FAULT_TIMED_OUT : WR_FAULT_NONE;
            if (verdict == WR_FAULT_NONE && found == 0 && time - ring.gate_seen >= GATE_PAUSE) {
                if (load_relaxed(closed) != 0) verdict = WR_FAULT_CLOSED;
                ring.gate_seen = time;
            }
            ring.verdict = verdict;
            ring.overdue = time > ring.deadline[old_slot];
        }
        __syncthreads();
        poison = ring.verdict;
        overdue = ring.overdue;
        if (found == 0 && !poison && !overdue) pause(POLL_PAUSE);
        __syncthreads();
    }

    __syncthreads();
    if (thread < WR_MAX_BATCHES) state.generation[thread] = ring.generation[thread];
    if (owed != 0) ++doorbells;
    const RingOutcome outcome{commands, doorbells, ring.anomalies, poison};
    if (thread != 0) return outcome;
    if (owed != 0) {
        fence_release();
        ring_bell(queue, queue.cq_head, head);
    }
    state.tail = tail;
    state.head = head;
    state.turn = turn;
    state.anomalies += ring.anomalies;
    state.commands += commands;
    state.doorbells += doorbells;
    Fault& fault = *at<Fault>(queue.fault);
    const u64 launch = work.launch();
    if (ring.answered) store_relaxed(&fault.answered, launch);
    if (ring.failed_tag != NOTHING) {
        // The host may be looking: there is none until all of it is there.
        store_relaxed(&fault.status, 0u);
        fence_release();
        store_relaxed(&fault.failed_lba, work.lba_of(ring.failed_tag));
        store_relaxed(&fault.failed_launch, launch);
        store_relaxed(&fault.failed_cid, ring.failed_cid);
        fence_release();
        store_relaxed(&fault.status, ring.failed_status);
    }
    if (poison) {
        store_relaxed(&state.poisoned_by, launch);
        fence_release();
        store_relaxed(&state.poison, poison);
        u32 place = 0;
        while (place < MAX_PLACES - 1 && !(ring.outstanding[place / 32] >> place % 32 & 1)) ++place;
        store_relaxed(&fault.drive, queue.drive);
        store_relaxed(&fault.queue, queue.queue_id);
        store_relaxed(&fault.cid, ring.generation[place / BATCH] << queue.cid_shift | place);
        store_relaxed(&fault.lba, work.lba_of(ring.tag[place]));
        store_relaxed(&fault.waited_ns, now() + queue.timeout_ns - ring.deadline[old_slot]);
        store_relaxed(&fault.launch, launch);
        store_relaxed(&fault.outstanding, outstanding);
        fence_release();
        store_relaxed(&fault.kind, poison);
    }
    return outcome;
}
