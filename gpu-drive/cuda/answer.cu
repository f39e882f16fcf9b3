// The answering kernel: plain reads of a drive's I/O queues for one turn, from a copy of its namespace in GPU memory
// (docs/gpu-drive.md). Block i serves queue i. gpu-drive/src/abi.rs has the same structures.
#include "order.cuh"

#define KERNEL extern "C" __global__ void
#define DEVICE __device__ __forceinline__
#define FULL 0xffffffffu

// What lies at a device address.
template <class T> DEVICE T* at(u64 address) { return reinterpret_cast<T*>(address); }

// A queue pair as its controller has it. In pinned memory: the kernel reads it once, and writes the second half once.
struct Queue {
    u64 sq, cq;             // rings
    u64 sq_tail, cq_head;   // doorbells, u32
    u32 sq_size, cq_size;   // entries
    u32 id;
    u32 seen_head;          // the CQ's head as it was seen last
    // Where the queue stands.
    u32 head;               // SQ: the next command to be fetched
    u32 tail;               // CQ: the next entry to be posted
    u32 phase;              // of that entry
    u32 stopped;            // 1: the next command, or a doorbell, is for the host
    u64 reads, bytes;       // answered in this turn
    u64 first_ns, last_ns;  // since the turn began: the first tail that told of commands, the last completion. 0: none
};

// Memory that the host has mapped for the drive, in order of `first`.
struct Mapping {
    u64 first, end;  // I/O virtual addresses
    u64 address;     // of `first`, on the GPU
    u64 writable;
};

// What all blocks of a turn share. In GPU memory.
struct Common {
    u64 last;   // when a block last had work, nanoseconds; 0: none had any
    u64 began;  // when the first block came; 0: none has
    u32 over;   // 1: the turn ends
    u32 blocks; // that have ended
};

struct Turn {
    u64 queues;         // Queue[]
    u64 mappings;       // Mapping[]
    u64 common;         // Common
    u64 clock;          // u64 of the drive: when its next command may begin, in steps of 1/TICKS ns
    u64 image;          // the namespace's bytes
    u64 lbas;
    u64 leave, admin;   // u32: whoever asks for the end, the admin queue's tail doorbell
    u64 words;          // u32 in pinned memory, WORD_*
    u64 linger_ns, linger_after_ns, limit_ns, latency_ns;
    u64 ticks;          // of the clock for a command, at least
    u64 ticks_per_4k;   // of the clock for 4096 bytes
    u32 mapping_count;
    u32 leave_count, admin_seen;
    u32 nsid, lba_shift, page_shift;
    u32 number;         // of the launch
    u32 unused;
};

static_assert(sizeof(Queue) == 96 && sizeof(Mapping) == 32 && sizeof(Common) == 24 && sizeof(Turn) == 152, "gpu-drive/src/abi.rs");

// Words in pinned memory: the latest launch of which a block has come, the latest that has ended, the latest that the host has called off.
constexpr u64 WORD_BEGUN = 0, WORD_ENDED = 8, WORD_CALLED_OFF = 64;

constexpr u32 THREADS = 384;
constexpr u32 MOST_FETCHED = THREADS;         // commands of a pass
constexpr u32 MOST_PIECES = 1024;             // of a pass
constexpr u32 MOST_BYTES_OF_PASS = 512 << 10;
constexpr u32 MOST_BYTES = 128 << 10;         // of a command
constexpr u32 FIFO = 4096;                    // commands that were fetched and not yet answered
constexpr u64 TICKS = 8;                      // of the clock in a nanosecond
constexpr u64 AHEAD_NS = 20000;               // a command is fetched if its time comes by then
constexpr u32 MOST_PASSES = 1u << 26;
constexpr u32 SQE_BYTES = 64, CQE_BYTES = 16, QUADS_OF_SQE = SQE_BYTES / 16;
constexpr u32 WARPS = THREADS / 32;
constexpr u32 UNROLL = 8;                     // pieces that a warp copies at a time

// Bytes that follow each other at both ends, a multiple of 16.
struct Piece {
    u64 from, to;
    u32 quads;
};

struct Desk {
    Quad entry[MOST_FETCHED * QUADS_OF_SQE];  // of the SQ
    Mapping near;      // one of the mappings: the one where most addresses lie that commands write to
    u32 hint;          // the index of a mapping that was searched for, plus 1; 0: none was since `near` was chosen
    Piece piece[MOST_PIECES];
    u64 due[FIFO];     // ticks since the turn began
    unsigned short cid[FIFO];
    u64 sum[WARPS];
    u32 over, first_bad;
    u32 n, pieces;
    u64 bytes;
    u64 base;          // ticks: when this pass's first command begins
    u64 began;         // the turn, nanoseconds
    // The queue as it was when the turn began; from `seen_head` on, and but for heads and tails, thread 0 keeps it as it is.
    Queue queue;
};

static_assert(sizeof(Desk) == 90384, "SHARED_BYTES of gpu-drive/src/abi.rs");

// Where `len` bytes at `iova` of a mapping lie on the GPU; 0: not inside, or not at a multiple of 16.
DEVICE u64 inside(const Mapping& mapping, u64 iova, u64 len, bool writes) {
    if (iova < mapping.first || iova >= mapping.end || len > mapping.end - iova || (writes && mapping.writable == 0)) return 0;
    const u64 address = mapping.address + (iova - mapping.first);
    return address % 16 == 0 ? address : 0;
}

// The address on the GPU of `len` bytes that the drive may write at `iova`; 0 if there is none, or it is not a multiple of 16.
DEVICE u64 locate(const Turn& turn, Desk& s, u64 iova, u64 len, bool writes) {
    const u64 near = inside(s.near, iova, len, writes);
    if (near != 0) return near;
    const Mapping* mapping = at<const Mapping>(turn.mappings);
    u32 low = 0, high = turn.mapping_count;
#pragma unroll 1
    while (low < high) {
        const u32 middle = (low + high) / 2;
        if (mapping[middle].end <= iova) low = middle + 1; else high = middle;
    }
    if (low == turn.mapping_count) return 0;
    // Any thread's will do.
    if (writes) s.hint = low + 1;
    return inside(mapping[low], iova, len, writes);
}

// A command that is a plain read: where its bytes go. Pieces are one for each memory page that it touches.
struct Read {
    u64 from, prp1, prp2;
    u32 len, first, pieces;  // bytes; of the first piece
    u32 cid;
};

// Whether the entry is a plain read.
DEVICE bool parse(const Turn& turn, const Quad* entry, Read& read) {
    const Quad first = entry[0], second = entry[1], third = entry[2], fourth = entry[3];
    const u32 page = 1u << turn.page_shift;
    const u64 lba = (u64)third.w << 32 | third.z, count = (fourth.x & 0xffff) + 1ull;
    read.cid = first.x >> 16;
    read.prp1 = (u64)second.w << 32 | second.z;
    read.prp2 = (u64)third.y << 32 | third.x;
    if ((first.x & 0xffff) != 2 || first.y != turn.nsid || fourth.x >> 16 != 0) return false;
    if (lba >= turn.lbas || count > turn.lbas - lba || count << turn.lba_shift > MOST_BYTES) return false;
    read.len = (u32)(count << turn.lba_shift);
    read.from = turn.image + (lba << turn.lba_shift);
    const u32 offset = (u32)read.prp1 & (page - 1);
    read.first = page - offset < read.len ? page - offset : read.len;
    read.pieces = 1 + ((read.len - read.first) + page - 1) / page;
    if (read.pieces <= 2) return true;
    // A list, all of it in its first page.
    const u32 list = (u32)read.prp2 & (page - 1);
    return list % 8 == 0 && list + (read.pieces - 1) * 8 <= page;
}

// Writes the pieces of `read` from `piece` on. False if an address of it is none that the drive may write.
DEVICE bool cut(const Turn& turn, Desk& s, const Read& read, Piece* piece) {
    const u32 page = 1u << turn.page_shift;
    u64 list = 0;
    if (read.pieces > 2) {
        const u32 before = (u32)read.prp2 % 16;
        list = locate(turn, s, read.prp2 - before, before + (read.pieces - 1) * 8, false);
        if (list == 0) return false;
        list += before;
    }
    u32 done = 0;
#pragma unroll 1
    for (u32 k = 0; k < read.pieces; ++k) {
        const u32 left = read.len - done, len = k == 0 ? read.first : left < page ? left : page;
        const u64 iova = k == 0 ? read.prp1 : list == 0 ? read.prp2 : load_relaxed(at<const u64>(list + (k - 1) * 8));
        if (k != 0 && (iova & (page - 1)) != 0) return false;
        const u64 to = locate(turn, s, iova, len, true);
        if (to == 0) return false;
        piece[k] = Piece{read.from + done, to, len / 16};
        done += len;
    }
    return true;
}

// The sum of `value` of the threads before this one; `total` becomes that of all.
DEVICE u64 scan(u64 value, u64* room, u64& total) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 inclusive = value;
    for (u32 step = 1; step < 32; step *= 2) {
        const u64 other = __shfl_up_sync(FULL, inclusive, step);
        if (lane >= step) inclusive += other;
    }
    __syncthreads();
    if (lane == 31) room[warp] = inclusive;
    __syncthreads();
    u64 before = 0, sum = 0;
#pragma unroll 1
    for (u32 w = 0; w < WARPS; ++w) {
        if (w == warp) before = sum;
        sum += room[w];
    }
    total = sum;
    return before + inclusive - value;
}

// Copies 16 bytes to shared memory, by way of no register; they are there when this thread has awaited its copies.
DEVICE void begin_copy(Quad* to, const Quad* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
DEVICE void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Loads a word anew, so that it takes no register before it is needed.
DEVICE u64 volatile_u64(const u64& word) { return *reinterpret_cast<const volatile u64*>(&word); }

// By one warp: looks at the words that others write, a lane each, by one load: the tail's doorbell, whoever asks for the end, the admin queue's
// doorbell, the end. Whoever uses what it gives waits for it, and executes a fence.
DEVICE u32 look(const Queue& q, const Turn& turn, const Common* common) {
    const u32 lane = threadIdx.x % 32;
    u64 word = q.sq_tail;
    if (lane == 1) word = turn.leave;
    if (lane == 2) word = turn.admin;
    if (lane == 3) word = reinterpret_cast<u64>(&common->over);
    return lane < 4 ? load_relaxed(at<const u32>(word)) : 0;
}

// Block i serves queue i of the turn. grid: queues; threads: THREADS; shared memory: a Desk.
KERNEL __launch_bounds__(THREADS, 2) answer(const __grid_constant__ Turn turn) {
    extern __shared__ __align__(16) unsigned char memory[];
    Desk& s = *reinterpret_cast<Desk*>(memory);
    Queue* const out = at<Queue>(turn.queues) + blockIdx.x;
    Common* const common = at<Common>(turn.common);
    const u32 t = threadIdx.x, lane = t % 32, warp = t / 32;
    Queue& q = s.queue;
    if (t < sizeof(Queue) / sizeof(u64)) reinterpret_cast<u64*>(&q)[t] = reinterpret_cast<const u64*>(out)[t];
    if (t == 0) {
        const u64 time = now();
        const u64 was = atomicCAS(&common->began, 0ull, time);
        s.began = was == 0 ? time : was;
        s.near = Mapping{1, 0, 0, 0};
        s.hint = 0;
        // A launch that CUDA has held back until the host gave it up, or called it off, touches nothing of the drive's any more. Either the
        // host sees that a block has come, or this one sees what the host has stored: both have such a fence between their steps.
        store_relaxed(at<u32>(turn.words + WORD_BEGUN), turn.number);
        fence_sequential();
        s.over = load_relaxed(at<const u32>(turn.leave)) != turn.leave_count ||
                 load_relaxed(at<const u32>(turn.words + WORD_CALLED_OFF)) == turn.number;
    }
    __syncthreads();
    bool over = s.over != 0;
    if (t == 0) q.stopped = q.reads = q.bytes = q.first_ns = q.last_ns = 0;
    u32 head = q.head, tail = q.tail, phase = q.phase;
    __syncthreads();
    u32 begin = 0, end = 0;  // of the FIFO
    const bool is_timed = turn.ticks != 0 || turn.latency_ns != 0;
    // What the looking warp saw before the pass before began to copy, if it copied.
    u32 seen = 0;
    bool has_looked = false;
    for (u32 pass = 0; !over || begin != end; ++pass) {
        // One warp looks at all words that others write; what they stored before is seen behind the fence.
        if (warp == 0) {
            if (!has_looked) seen = look(q, turn, common);
            has_looked = false;
            fence_acquire();
            const u32 new_tail = __shfl_sync(FULL, seen, 0);
            const u32 before = lane == 1 ? turn.leave_count : lane == 2 ? turn.admin_seen : 0;
            const u32 ends = __ballot_sync(FULL, lane != 0 && seen != before);
            if (lane == 0) {
                const u64 time = now();
                u32 leaves = ends != 0 || over || pass >= MOST_PASSES || time - s.began > turn.limit_ns;
                u32 waiting = 0;
                if (new_tail >= q.sq_size) {
                    q.stopped = leaves = 1;
                } else {
                    waiting = new_tail >= head ? new_tail - head : new_tail + q.sq_size - head;
                }
                u32 n = 0;
                if (waiting != 0 && q.first_ns == 0) q.first_ns = time - s.began + 1;
                bool works = begin != end;
                if (!leaves && waiting != 0) {
                    n = waiting < MOST_FETCHED ? waiting : MOST_FETCHED;
                    // Each command has an entry of the CQ before it is fetched.
                    u32 used = tail >= q.seen_head ? tail - q.seen_head : tail + q.cq_size - q.seen_head;
                    if (q.cq_size - 1 - used < n + (end - begin)) {
                        const u32 told = load_relaxed(at<u32>(q.cq_head));
                        if (told < q.cq_size) q.seen_head = told;
                        used = tail >= q.seen_head ? tail - q.seen_head : tail + q.cq_size - q.seen_head;
                    }
                    const u32 room = q.cq_size - 1 - used > end - begin ? q.cq_size - 1 - used - (end - begin) : 0;
                    n = n < room ? n : room;
                    const u32 places = FIFO - (end - begin);
                    n = n < places ? n : places;
                    if (turn.ticks != 0) {
                        // What is fetched is waited for at the turn's end.
                        const u64 most = AHEAD_NS * TICKS / turn.ticks;
                        n = n < most ? n : n != 0 && most == 0 ? 1 : (u32)most;
                    }
                    works |= n != 0;
                    if (turn.ticks != 0 && load_relaxed(at<u64>(turn.clock)) > (time + AHEAD_NS) * TICKS) n = 0;
                }
                // A queue that can do nothing, because its CQ is full, does not keep the turn going.
                if (works) {
                    atomicMax(&common->last, time);
                } else if (!leaves) {
                    const u64 last = load_relaxed(&common->last);
                    const u64 since = last == 0 ? s.began : last;
                    leaves = time > since && time - since > (last == 0 ? turn.linger_ns : turn.linger_after_ns);
                }
                if (leaves) {
                    n = 0;
                    store_relaxed(&common->over, 1u);
                }
                s.over = leaves;
                s.n = n;
                s.first_bad = n;
            }
        }
        __syncthreads();
        over = s.over != 0;
        u32 n = s.n;
        if (n != 0) {
            // Neighbouring lanes read neighbouring words: whole lines cross the link to pinned memory, once each. All are under way before
            // the first is waited for. Nobody writes to them since the doorbell that the fence is behind.
            for (u32 i = t; i < n * QUADS_OF_SQE; i += THREADS) {
                u32 index = head + i / QUADS_OF_SQE;
                if (index >= q.sq_size) index -= q.sq_size;
                begin_copy(s.entry + i, at<const Quad>(q.sq + (u64)index * SQE_BYTES) + i % QUADS_OF_SQE);
            }
            await_copies();
            __syncthreads();
            Read read;
            const bool plain = t < n && parse(turn, s.entry + t * QUADS_OF_SQE, read);
            // Pieces in the upper half, bytes in the lower.
            u64 total;
            const u64 before = scan(plain ? (u64)read.pieces << 32 | read.len : 0, s.sum, total);
            const u32 piece_at = (u32)(before >> 32), size_at = (u32)before;
            const bool over_full = plain && t != 0 && (piece_at + read.pieces > MOST_PIECES || size_at + read.len > MOST_BYTES_OF_PASS);
            if (t < n && (!plain || over_full)) atomicMin(&s.first_bad, t);
            __syncthreads();
            if (t < s.first_bad && !cut(turn, s, read, s.piece + piece_at)) atomicMin(&s.first_bad, t);
            __syncthreads();
            const u32 found = s.first_bad;
            // What is at the head of the queue is not plain: it is the host's.
            if (found == 0) {
                over = true;
                if (t == 0) {
                    q.stopped = 1;
                    store_relaxed(&common->over, 1u);
                }
            }
            n = found;
            if (n != 0) {
                // Each command costs the drive's clock its share, in the order of the queue.
                u64 cost = 0, cost_at = 0, costs = 0;
                if (turn.ticks != 0) {
                    if (t < n) {
                        const u64 by_bytes = (u64)read.len * turn.ticks_per_4k / 4096;
                        cost = turn.ticks > by_bytes ? turn.ticks : by_bytes;
                    }
                    cost_at = scan(cost, s.sum, costs);
                }
                if (t == 0) {
                    const u64 time = now() * TICKS;
                    s.base = time;
                    if (turn.ticks != 0) {
                        atomicMax(at<u64>(turn.clock), time);
                        s.base = atomicAdd(at<u64>(turn.clock), costs);
                    }
                }
                if (t == n - 1) {
                    s.pieces = piece_at + read.pieces;
                    s.bytes = size_at + read.len;
                }
                __syncthreads();
                if (t < n) {
                    const u32 place = (end + t) % FIFO;
                    s.cid[place] = (unsigned short)read.cid;
                    if (is_timed) s.due[place] = s.base - s.began * TICKS + cost_at + cost + turn.latency_ns * TICKS;
                }
                // The next look is under way while this pass copies.
                if (warp == 0) seen = look(q, turn, common);
                has_looked = true;
                const u32 count = s.pieces;
#pragma unroll 1
                for (u32 first = warp; first < count; first += WARPS * UNROLL) {
                    u32 most = 0;
#pragma unroll
                    for (u32 k = 0; k < UNROLL; ++k) {
                        const u32 i = first + k * WARPS;
                        if (i < count && s.piece[i].quads > most) most = s.piece[i].quads;
                    }
#pragma unroll 1
                    for (u32 quad = lane; quad < most; quad += 32) {
                        Quad data[UNROLL];
#pragma unroll
                        for (u32 k = 0; k < UNROLL; ++k) {
                            const u32 i = first + k * WARPS;
                            if (i < count && quad < s.piece[i].quads) data[k] = at<const Quad>(s.piece[i].from)[quad];
                        }
#pragma unroll
                        for (u32 k = 0; k < UNROLL; ++k) {
                            const u32 i = first + k * WARPS;
                            if (i < count && quad < s.piece[i].quads) store_relaxed(at<Quad>(volatile_u64(s.piece[i].to)) + quad, data[k]);
                        }
                    }
                }
                head += n;
                if (head >= q.sq_size) head -= q.sq_size;
                end += n;
                if (t == 0) {
                    q.reads += n;
                    q.bytes += s.bytes;
                }
            }
        }
        // All warps' copies come before the completions behind this barrier.
        __syncthreads();
        // The mapping that was searched for, for the next pass.
        if (t == THREADS - 1 && s.hint != 0) {
            s.near = at<const Mapping>(turn.mappings)[s.hint - 1];
            s.hint = 0;
        }
#pragma unroll 1
        while (begin != end) {
            const u32 left = end - begin;
            u32 due = left < THREADS ? left : THREADS;
            if (is_timed) {
                const u64 time = now();
                const bool is_due = t < left && (pass >= MOST_PASSES || s.due[(begin + t) % FIFO] <= (time - s.began) * TICKS);
                due = __syncthreads_count(is_due);
                if (due == 0) break;
            }
            if (t < due) {
                // In another order than that of the queue; 521 is a prime above `due`.
                const u32 value = s.cid[(begin + (u32)((u64)t * 521u + pass) % due) % FIFO];
                u32 index = tail + t, of = phase;
                if (index >= q.cq_size) index -= q.cq_size, of ^= 1;
                fence_release();
                store_whole(at<u64>(q.cq + (u64)index * CQE_BYTES), 0, (u64)of << 48 | (u64)value << 32 | (u64)q.id << 16 | head);
            }
            tail += due;
            if (tail >= q.cq_size) tail -= q.cq_size, phase ^= 1;
            begin += due;
            if (t == 0) q.last_ns = now() - s.began + 1;
        }
        __syncthreads();
        if (begin != end || n == 0) pause(begin == end ? 50 : 20);
    }
    if (t == 0) {
        q.head = head;
        q.tail = tail;
        q.phase = phase;
        *out = q;
        // The last block makes it ready for the next turn: nobody looks at it any more. Then it tells the host, for which all that every
        // block has stored is there.
        fence_system();
        if (atomicAdd(&common->blocks, 1u) == gridDim.x - 1) {
            *common = Common{0, 0, 0, 0};
            fence_system();
            store_relaxed(at<u32>(turn.words + WORD_ENDED), turn.number);
        }
    }
}

// For the self-test: waits until `released` is set, for `limit_ns` at most. `outcome`: 1, it was set; 2, it was not.
KERNEL hold(const u64 released, const u64 outcome, const u64 limit_ns) {
    const u64 began = now();
    u32 is_released = 0;
    while (is_released == 0 && now() - began < limit_ns) {
        is_released = load_relaxed(at<const u32>(released));
        pause(1000);
    }
    store_relaxed(at<u32>(outcome), is_released != 0 ? 1u : 2u);
}

KERNEL release(const u64 released) { store_relaxed(at<u32>(released), 1u); }
