// The kernel of a ring test (gpu-queues/src/ring_test.rs): reads of one LBA each through one queue, and nothing of a look-up.
#pragma once
#include "ring.cuh"

// The *work* of ring.cuh: the tag of a command is the index of its LBA.
struct LbaReads {
    const RingReads& reads;
    const QueueDescriptor& queue;
    u64 sent = 0;

    METHOD u64 gate() const { return reads.gate; }
    METHOD u64 launch() const { return reads.launch; }
    METHOD u64 lba_of(u32 tag) const { return at<const u64>(reads.lbas)[tag]; }
    METHOD bool more() const { return sent < reads.count; }
    METHOD bool reads_again(u32, u32) const { return false; }
    METHOD bool rings_each() const { return false; }
    METHOD void finished() {}

    METHOD u32 fill(Ring& ring, const CommandBatch& batch) {
        const u32 thread = threadIdx.x, count = (u32)min_of(BATCH, reads.count - sent);
        __syncthreads();
        if (thread < count) put_command(queue, ring, batch, thread, lba_of((u32)sent + thread), 1, (u32)sent + thread);
        sent += count;
        __syncthreads();
        return count;
    }

    // A warp copies an LBA.
    METHOD void take(const Ring& ring, u32 count) {
        const u32 lane = threadIdx.x % 32, bytes = 1u << queue.lba_shift;
        for (u32 i = threadIdx.x / 32; i < count; i += BATCH / 32) {
            const u32 place = ring.landed[i];
            if (place == NOTHING || (ring.failed[place / 32] >> place % 32 & 1)) continue;
            const u64 from = queue.landing + (u64)place * queue.landing_stride, to = reads.landed + (u64)ring.tag[place] * bytes;
            for (u32 byte = lane * 16; byte < bytes; byte += 512) *at<Quad>(to + byte) = load_relaxed(at<const Quad>(from + byte));
            if (lane == 0) at<u32>(reads.is_read)[ring.tag[place]] = 1;
        }
    }
};

// Reads: the LBAs' numbers, and what lies there on the drive.
// Writes: what was read, and which reads succeeded; the queue, its state and its fault; the gate's `inside`.
// Relies on: nobody else drives the queue. grid: 1. Behind a closed gate it reads nothing.
KERNEL __launch_bounds__(WR_LANES) warprow_test_ring(const RingReads reads) {
    SHARED(Ring, ring);
    SHARED(u32, is_closed);
    u64* const inside = at<u64>(reads.gate + WR_GATE_INSIDE);
    if (threadIdx.x == 0) {
        // Whoever closes the gate stores `closed` and then looks at `inside`: one of the two sees the other.
        store_relaxed(inside, reads.launch);
        fence_sequential();
        is_closed = load_relaxed(at<u32>(reads.gate + WR_GATE_CLOSED));
        fence_acquire();
    }
    __syncthreads();
    if (!is_closed) {
        LbaReads work{reads, at<const QueueDescriptor>(reads.queue)[0]};
        drive_queue(work.queue, ring, work);
    }
    // All lanes have stored what they keep of the queue.
    __syncthreads();
    if (threadIdx.x != 0) return;
    fence_release();
    store_relaxed(inside, 0ull);
}
