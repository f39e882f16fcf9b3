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
    u64 linger_ns, linger_after_ns, limit_ns, latency_ns;
    u64 ticks;          // of the clock for a command, at least
    u64 ticks_per_4k;   // of the clock for 4096 bytes
    u32 mapping_count;
    u32 leave_count, admin_seen;
    u32 nsid, lba_shift, page_shift;
};

static_assert(sizeof(Queue) == 96 && sizeof(Mapping) == 32 && sizeof(Common) == 24 && sizeof(Turn) == 136, "gpu-drive/src/abi.rs");

constexpr u32 THREADS = 320;
constexpr u32 MOST_FETCHED = THREADS;         // commands of a pass
constexpr u32 MOST_PIECES = 1024;             // of a pass
constexpr u32 MOST_BYTES_OF_PASS = 512 << 10;
constexpr u32 MOST_BYTES = 128 << 10;         // of a command
constexpr u32 FIFO = 4096;                    // commands that were fetched and not yet answered
constexpr u64 TICKS = 8;                      // of the clock in a nanosecond
constexpr u64 AHEAD_NS = 20000;               // a command is fetched if its time comes by then
constexpr u32 MOST_PASSES = 1u << 26;
constexpr u32 SQE_BYTES = 64, CQE_BYTES = 16;

// Bytes that follow each other at both ends, a multiple of 16.
struct Piece {
    u64 from, to;
    u32 quads;
};

struct Desk {
    Quad entry[MOST_FETCHED * 4];  // of the SQ
    Piece piece[MOST_PIECES];
    u64 due[FIFO];     // ticks since the turn began
    unsigned short cid[FIFO];
    u32 word[THREADS / 32], sum[THREADS / 32];
    u32 over, first_bad;
    u32 n, pieces;
    u64 bytes;
    u64 base;          // ticks: when this pass's first command begins
};

// The address on the GPU of `len` bytes that the drive may write at `iova`; 0 if there is none, or it is not a multiple of 16.
DEVICE u64 locate(const Turn& turn, u64 iova, u64 len, bool writes) {
    const Mapping* mapping = at<const Mapping>(turn.mappings);
    u32 low = 0, high = turn.mapping_count;
    while (low < high) {
        const u32 middle = (low + high) / 2;
        if (mapping[middle].end <= iova) low = middle + 1; else high = middle;
    }
    if (low == turn.mapping_count) return 0;
    const Mapping found = mapping[low];
    if (iova < found.first || len > found.end - iova || (writes && found.writable == 0)) return 0;
    const u64 address = found.address + (iova - found.first);
    return address % 16 == 0 ? address : 0;
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
DEVICE bool cut(const Turn& turn, const Read& read, Piece* piece) {
    const u32 page = 1u << turn.page_shift;
    u64 list = 0;
    if (read.pieces > 2) {
        const u32 before = (u32)read.prp2 % 16;
        list = locate(turn, read.prp2 - before, before + (read.pieces - 1) * 8, false);
        if (list == 0) return false;
        list += before;
    }
    u32 done = 0;
    for (u32 k = 0; k < read.pieces; ++k) {
        const u32 left = read.len - done, len = k == 0 ? read.first : left < page ? left : page;
        const u64 iova = k == 0 ? read.prp1 : list == 0 ? read.prp2 : load_relaxed(at<const u64>(list + (k - 1) * 8));
        if (k != 0 && (iova & (page - 1)) != 0) return false;
        const u64 to = locate(turn, iova, len, true);
        if (to == 0) return false;
        piece[k] = Piece{read.from + done, to, len / 16};
        done += len;
    }
    return true;
}

// The sum of `value` of the threads before this one; `total` becomes that of all.
DEVICE u32 scan(u32 value, u32* room, u32& total) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 inclusive = value;
    for (u32 step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(FULL, inclusive, step);
        if (lane >= step) inclusive += other;
    }
    __syncthreads();
    if (lane == 31) room[warp] = inclusive;
    __syncthreads();
    u32 before = 0, sum = 0;
    for (u32 w = 0; w < THREADS / 32; ++w) {
        if (w == warp) before = sum;
        sum += room[w];
    }
    total = sum;
    return before + inclusive - value;
}

// Block i serves queue i of the turn. grid: queues; threads: THREADS; shared memory: a Desk.
KERNEL __launch_bounds__(THREADS, 2) answer(const __grid_constant__ Turn turn) {
    extern __shared__ __align__(16) unsigned char memory[];
    Desk& s = *reinterpret_cast<Desk*>(memory);
    Queue* const out = at<Queue>(turn.queues) + blockIdx.x;
    const Queue q = *out;
    Common* const common = at<Common>(turn.common);
    const u32 t = threadIdx.x, lane = t % 32, warp = t / 32;
    u32 head = q.head, tail = q.tail, phase = q.phase, seen_head = q.seen_head, stopped = 0;
    u32 begin = 0, end = 0;  // of the FIFO
    u64 reads = 0, bytes = 0, first_ns = 0, last_ns = 0;
    if (t == 0) {
        const u64 time = now();
        const u64 was = atomicCAS(&common->began, 0ull, time);
        s.base = was == 0 ? time : was;
    }
    __syncthreads();
    const u64 began = s.base, began_ticks = began * TICKS;
    bool over = false;
    for (u32 pass = 0;; ++pass) {
        // One warp looks at all words that others write; what they stored before is seen behind the fence.
        if (warp == 0) {
            u32 seen = 0;
            if (lane == 0) seen = load_relaxed(at<u32>(q.sq_tail));
            if (lane == 1) seen = load_relaxed(at<u32>(turn.leave)) != turn.leave_count;
            if (lane == 2) seen = load_relaxed(at<u32>(turn.admin)) != turn.admin_seen;
            if (lane == 3) seen = load_relaxed(&common->over);
            fence_acquire();
            const u32 new_tail = __shfl_sync(FULL, seen, 0);
            const u32 ends = __ballot_sync(FULL, lane != 0 && seen != 0);
            if (lane == 0) {
                const u64 time = now();
                u32 leaves = ends != 0 || over || pass >= MOST_PASSES || time - began > turn.limit_ns;
                u32 waiting = 0;
                if (new_tail >= q.sq_size) {
                    stopped = leaves = 1;
                } else {
                    waiting = new_tail >= head ? new_tail - head : new_tail + q.sq_size - head;
                }
                u32 n = 0;
                if (waiting != 0 && first_ns == 0) first_ns = time - began + 1;
                bool works = begin != end;
                if (!leaves && waiting != 0) {
                    n = waiting < MOST_FETCHED ? waiting : MOST_FETCHED;
                    // Each command has an entry of the CQ before it is fetched.
                    u32 used = tail >= seen_head ? tail - seen_head : tail + q.cq_size - seen_head;
                    if (q.cq_size - 1 - used < n + (end - begin)) {
                        const u32 told = load_relaxed(at<u32>(q.cq_head));
                        if (told < q.cq_size) seen_head = told;
                        used = tail >= seen_head ? tail - seen_head : tail + q.cq_size - seen_head;
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
                    const u64 since = last == 0 ? began : last;
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
            // Neighbouring lanes read neighbouring words: whole lines cross the link to pinned memory, once each.
            for (u32 i = t; i < n * (SQE_BYTES / 16); i += THREADS) {
                u32 index = head + i / (SQE_BYTES / 16);
                if (index >= q.sq_size) index -= q.sq_size;
                s.entry[i] = load_relaxed(at<const Quad>(q.sq + (u64)index * SQE_BYTES) + i % (SQE_BYTES / 16));
            }
            __syncthreads();
            Read read;
            const bool plain = t < n && parse(turn, s.entry + t * (SQE_BYTES / 16), read);
            const bool fits = t < n && plain;
            u32 pieces, size;
            const u32 piece_at = scan(fits ? read.pieces : 0, s.word, pieces);
            const u32 size_at = scan(fits ? read.len : 0, s.sum, size);
            const bool over_full = fits && t != 0 && (piece_at + read.pieces > MOST_PIECES || size_at + read.len > MOST_BYTES_OF_PASS);
            if (t < n && (!plain || over_full)) atomicMin(&s.first_bad, t);
            __syncthreads();
            if (t < s.first_bad && !cut(turn, read, s.piece + piece_at)) atomicMin(&s.first_bad, t);
            __syncthreads();
            const u32 found = s.first_bad;
            // What is at the head of the queue is not plain: it is the host's.
            if (found == 0) {
                stopped = 1;
                over = true;
                if (t == 0) store_relaxed(&common->over, 1u);
            }
            n = found;
            if (n != 0) {
                // Each command costs the drive's clock its share, in the order of the queue.
                u32 cost = 0, costs;
                if (t < n && turn.ticks != 0) {
                    const u64 by_bytes = (u64)read.len * turn.ticks_per_4k / 4096;
                    cost = (u32)(turn.ticks > by_bytes ? turn.ticks : by_bytes);
                }
                const u32 cost_at = scan(cost, s.word, costs);
                if (t == 0) {
                    const u64 time = now() * TICKS;
                    s.base = time;
                    if (turn.ticks != 0) {
                        atomicMax(at<u64>(turn.clock), time);
                        s.base = atomicAdd(at<u64>(turn.clock), (u64)costs);
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
                    s.due[place] = turn.ticks == 0 && turn.latency_ns == 0 ? 0 : s.base - began_ticks + cost_at + cost + turn.latency_ns * TICKS;
                }
                constexpr u32 UNROLL = 4, WARPS = THREADS / 32;
                const u32 count = s.pieces;
                for (u32 first = warp; first < count; first += WARPS * UNROLL) {
                    u32 most = 0;
                    for (u32 k = 0; k < UNROLL; ++k) {
                        const u32 i = first + k * WARPS;
                        if (i < count && s.piece[i].quads > most) most = s.piece[i].quads;
                    }
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
                            if (i < count && quad < s.piece[i].quads) store_relaxed(at<Quad>(s.piece[i].to) + quad, data[k]);
                        }
                    }
                }
                head += n;
                if (head >= q.sq_size) head -= q.sq_size;
                end += n;
                reads += n;
                bytes += s.bytes;
            }
        }
        // All warps' copies come before the completions behind this barrier.
        __syncthreads();
        const u64 time = now();
        for (;;) {
            const u32 left = end - begin;
            const bool is_due = t < left && (pass >= MOST_PASSES || s.due[(begin + t) % FIFO] <= time * TICKS - began_ticks);
            const u32 due = __syncthreads_count(is_due);
            if (due == 0) break;
            if (t < due) {
                // In another order than that of the queue; 521 is a prime above `due`.
                const u32 value = s.cid[(begin + (u32)((u64)t * 521u + pass) % due) % FIFO];
                u32 index = tail + t, of = phase;
                if (index >= q.cq_size) index -= q.cq_size, of ^= 1;
                u64* const entry = at<u64>(q.cq + (u64)index * CQE_BYTES);
                store_relaxed(entry, 0ull);
                fence_release();
                store_relaxed(entry + 1, (u64)of << 48 | (u64)value << 32 | (u64)q.id << 16 | head);
            }
            tail += due;
            if (tail >= q.cq_size) tail -= q.cq_size, phase ^= 1;
            begin += due;
            if (t == 0) last_ns = now() - began + 1;
            __syncthreads();
        }
        if (over && begin == end) break;
        if (begin != end || n == 0) pause(begin == end ? 50 : 20);
    }
    if (t == 0) {
        out->seen_head = seen_head;
        out->head = head;
        out->tail = tail;
        out->phase = phase;
        out->stopped = stopped;
        out->reads = reads;
        out->bytes = bytes;
        out->first_ns = first_ns;
        out->last_ns = last_ns;
        // The last block makes it ready for the next turn: nobody looks at it any more.
        fence_system();
        if (atomicAdd(&common->blocks, 1u) == gridDim.x - 1) *common = Common{0, 0, 0, 0};
    }
}
