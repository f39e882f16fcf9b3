// An NVMe controller's I/O queues, answered by a resident kernel: reads of one LBA from an image in its GPU's memory. Commands are fetched
// in order and complete in any; some complete late. What a controller has to check is checked: addresses, LBAs, and that no command
// identifier is used again before it was answered. The timing is that of a profile: a rate and a latency.

// One queue pair, as its controller sees it. bench/src/gpu/resident/abi.rs has the same.
struct Channel {
    u64 sq, cq;               // rings
    u64 sq_tail, cq_head;     // doorbells, u32
    u64 image;                // 0: no data moves
    u64 lbas;
    u64 window, window_end;   // where data may land
    u64 clock;                // u64 of the drive: when its next command may begin, in quarters of nanoseconds
    u64 report;               // Answered
    u64 latency_ns;
    u64 step;                 // of the clock a command; 0: no cap
    u64 late_ns;
    u64 seed;
    u32 sq_size, cq_size;     // powers of two, 4096 at most
    u32 queue_id, nsid;
    u32 late_one_in;          // commands of which one is late; 0: none
    u32 lba_bytes;            // a multiple of 512
};

struct Answered {
    u64 commands;
    u64 late;
    u64 reused;    // identifiers that were used again too early
    u64 refused;   // commands that ended with another error
    u64 passes;    // that fetched something
    u64 overrun;   // doorbells out of range
};

static_assert(sizeof(Channel) == 136 && sizeof(Answered) == 48, "bench/src/gpu/resident/abi.rs");

constexpr u32 MOST_FETCHED = 1024;  // commands of a pass
constexpr u32 READY = 4096;         // room for commands that were executed and not yet answered
constexpr u32 GROUPS = 64;
constexpr u32 MOST_LATE = 64;
constexpr u32 NO_CID = ~0u;
constexpr u32 STATUS_INVALID_OPCODE = 0x01, STATUS_INVALID_FIELD = 0x02, STATUS_CID_CONFLICT = 0x03, STATUS_INVALID_NAMESPACE = 0x0b;
constexpr u32 STATUS_PRP_OFFSET = 0x13, STATUS_DATA_TRANSFER = 0x04, STATUS_LBA_RANGE = 0x80;

struct Job {
    u64 from, to;  // 0: nothing to copy
};

struct Group {
    u64 due;
    u32 left;
};

// What the block that answers a queue shares.
struct Desk {
    u32 busy[65536 / 32];
    u32 ready[READY];   // in the order in which they will be answered: CID, status above
    Job job[MOST_FETCHED];
    Group group[GROUPS];
    u32 late_cid[MOST_LATE];
    u64 late_due[MOST_LATE];
    u32 late, tail, cq_head, cq_tail, post, group_begin, group_end, over;
};

// A read's status, its data's way.
DEVICE u32 check_read(const Channel& c, const Quad* entry, u32& cid, Job& job) {
    const Quad first = load_relaxed(entry), second = load_relaxed(entry + 1), third = load_relaxed(entry + 2), fourth = load_relaxed(entry + 3);
    cid = first.x >> 16;
    const u64 lba = (u64)third.w << 32 | third.z, prp1 = (u64)second.w << 32 | second.z;
    job = Job{0, 0};
    if ((first.x & 0xff) != 2) return STATUS_INVALID_OPCODE;
    if ((first.x >> 8 & 0xff) != 0 || (fourth.x & 0xffff) != 0) return STATUS_INVALID_FIELD;
    if (first.y != c.nsid) return STATUS_INVALID_NAMESPACE;
    if (lba >= c.lbas) return STATUS_LBA_RANGE;
    if (prp1 % 4 != 0) return STATUS_PRP_OFFSET;
    if (prp1 < c.window || prp1 + c.lba_bytes > c.window_end) return STATUS_DATA_TRANSFER;
    if (c.image != 0) job = Job{c.image + lba * c.lba_bytes, prp1};
    return 0;
}

// Stores the completion of a command as entry number `number` of the queue.
DEVICE void complete(const Channel& c, u32 number, u32 cid_and_status, u32 sq_head) {
    const u32 index = number & (c.cq_size - 1), phase = (number / c.cq_size + 1) & 1;
    u64* entry = at<u64>(c.cq + (u64)index * WR_CQE_BYTES);
    const u64 status = (u64)(cid_and_status >> 16) << 1 | phase;
    store_relaxed(entry, 0ull);
    store_relaxed(entry + 1, status << 48 | (u64)(cid_and_status & 0xffff) << 32 | (u64)c.queue_id << 16 | sq_head);
}

// When a group of so many commands that arrived at `time` has been served, by the drive's rate and latency.
DEVICE u64 served(const Channel& c, u64 time, u32 commands) {
    u64 end = time;
    if (c.step != 0) {
        u64* clock = at<u64>(c.clock);
        u64 old = load_relaxed(clock), next;
        for (;;) {
            next = (old > time * 4 ? old : time * 4) + commands * c.step;
            const u64 seen = atomicCAS(clock, old, next);
            if (seen == old) break;
            old = seen;
        }
        end = next / 4;
    }
    return end + c.latency_ns;
}

// Block i answers queue i of `channels` until the word at `stop` is not zero, or for `limit` nanoseconds. grid: queues; threads: whole warps.
KERNEL __launch_bounds__(1024) answer(u64 channels, u64 stop, u64 limit) {
    SHARED(Desk, s);
    const Channel c = at<const Channel>(channels)[blockIdx.x];
    Answered& report = *at<Answered>(c.report);
    const u32 t = threadIdx.x, lane = t % 32, warp = t / 32, warps = blockDim.x / 32, mask = c.sq_size - 1;
    u32 head = 0, fifo_end = 0, fifo_begin = 0, idle = 0;
    u64 fetched = 0, passes = 0;
    for (u32 i = t; i < 65536 / 32; i += blockDim.x) s.busy[i] = 0;
    const u64 began = now();
    if (t == 0) s.late = s.cq_tail = s.group_begin = s.group_end = s.over = 0;
    __syncthreads();
    for (;;) {
        // What is new; how many of those that are due fit.
        if (t == 0) {
            const u32 tail = load_relaxed(at<u32>(c.sq_tail));
            const bool nothing = tail == head && s.group_begin == s.group_end && s.late == 0;
            if (nothing && ++idle % 64 == 0 && (load_relaxed(at<u32>(stop)) != 0 || now() - began > limit)) s.over = 1;
            if (tail >= c.sq_size) {
                ++report.overrun;
                s.over = 1;
            }
            fence_acquire();
            s.tail = s.group_end - s.group_begin < GROUPS ? tail : head;
        }
        __syncthreads();
        if (s.over) break;
        u32 n = (s.tail - head) & mask;
        n = n < MOST_FETCHED ? n : MOST_FETCHED;
        if (n > READY - (fifo_end - fifo_begin)) n = READY - (fifo_end - fifo_begin);
        if (n != 0) {
            const u32 turned = (u32)word_at(c.seed, passes) % n;
            for (u32 i = t; i < n; i += blockDim.x) {
                u32 cid;
                Job job;
                u32 status = check_read(c, at<Quad>(c.sq + (u64)((head + i) & mask) * WR_SQE_BYTES), cid, job);
                const u32 bit = 1u << cid % 32;
                if (atomicOr(&s.busy[cid / 32], bit) & bit) {
                    status = STATUS_CID_CONFLICT;
                    job = Job{0, 0};
                    atomicAdd(&report.reused, 1ull);
                } else if (status != 0) {
                    atomicAdd(&report.refused, 1ull);
                }
                s.job[i] = job;
                u32 value = cid | status << 16;
                if (c.late_one_in != 0 && status == 0 && word_at(c.seed + 1, fetched + i) % c.late_one_in == 0) {
                    const u32 place = atomicAdd(&s.late, 1u);
                    if (place < MOST_LATE) {
                        s.late_cid[place] = value;
                        s.late_due[place] = now() + c.late_ns;
                        value = NO_CID;
                        atomicAdd(&report.late, 1ull);
                    }
                }
                // A prime above every n: a permutation.
                s.ready[(fifo_end + (i * 4099u + turned) % n) % READY] = value;
            }
            __syncthreads();
            if (c.image != 0) {
                constexpr u32 UNROLL = 4;
                const u32 quads = c.lba_bytes / 16;
                for (u32 first = warp; first < n; first += warps * UNROLL) {
                    for (u32 quad = lane; quad < quads; quad += 32) {
                        Quad data[UNROLL];
                        for (u32 k = 0; k < UNROLL; ++k) {
                            const u32 i = first + k * warps;
                            if (i < n && s.job[i].to != 0) data[k] = at<const Quad>(s.job[i].from)[quad];
                        }
                        for (u32 k = 0; k < UNROLL; ++k) {
                            const u32 i = first + k * warps;
                            if (i < n && s.job[i].to != 0) store_relaxed(at<Quad>(s.job[i].to) + quad, data[k]);
                        }
                    }
                }
            }
            if (t == 0) {
                if (s.late > MOST_LATE) s.late = MOST_LATE;
                s.group[s.group_end % GROUPS] = Group{served(c, now(), n), n};
                ++s.group_end;
            }
            head = (head + n) & mask;
            fifo_end += n;
            fetched += n;
            ++passes;
        }
        if (t == 0) {
            // Room in the queue by what the host says that it has consumed.
            const u32 used = (s.cq_tail - load_relaxed(at<u32>(c.cq_head))) & (c.cq_size - 1);
            u32 room = c.cq_size - 1 - used;
            const u64 time = now();
            for (u32 i = 0; i < s.late && room != 0;) {
                if (s.late_due[i] > time) {
                    ++i;
                    continue;
                }
                const u32 value = s.late_cid[i];
                atomicAnd(&s.busy[value % 65536 / 32], ~(1u << value % 32));
                fence_release();
                complete(c, s.cq_tail++, value, head);
                --room;
                --s.late;
                s.late_cid[i] = s.late_cid[s.late];
                s.late_due[i] = s.late_due[s.late];
            }
            s.post = 0;
            if (s.group_begin != s.group_end) {
                Group& group = s.group[s.group_begin % GROUPS];
                if (group.due <= time || c.latency_ns + c.step == 0) {
                    s.post = group.left < room ? group.left : room;
                    group.left -= s.post;
                    if (group.left == 0) ++s.group_begin;
                }
            }
        }
        __syncthreads();
        const u32 post = s.post;
        for (u32 base = 0; base < post; base += blockDim.x) {
            const u32 i = base + t;
            const u32 value = i < post ? s.ready[(fifo_begin + i) % READY] : NO_CID;
            const u32 votes = __ballot_sync(FULL, value != NO_CID);
            u32 number = 0;
            if (lane == 0 && votes != 0) number = atomicAdd(&s.cq_tail, __popc(votes));
            number = __shfl_sync(FULL, number, 0) + __popc(votes & ((1u << lane) - 1));
            if (value != NO_CID) {
                // Before its answer: the identifier may come back at once.
                atomicAnd(&s.busy[value % 65536 / 32], ~(1u << value % 32));
                // All warps' copies came before the barrier, and so before this.
                fence_release();
                complete(c, number, value, head);
            }
        }
        fifo_begin += post;
        __syncthreads();
    }
    if (t == 0) {
        report.commands += fetched;
        report.passes += passes;
    }
}
