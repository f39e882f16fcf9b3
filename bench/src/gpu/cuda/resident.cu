// The ring code of the look-up against a controller at hardware speed, and nothing beside: random reads of one LBA each.
#include "content.cuh"
#undef SHARED
#include "ring.cuh"
#include "controller.cuh"

// The image: LBA i holds row i of the oracle's table. grid: any.
KERNEL fill_image(u64 image, u64 lbas, u64 words, u64 key) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < lbas * words; i += step)
        at<u64>(image)[i] = row_word(row_start(key, i / words), i % words);
}

// What became of the reads of one queue.
struct Read {
    u64 commands, wrong, checked, anomalies, poison, doorbells;
};

struct Reads {
    const QueueDescriptor& queue;
    const u64 lbas, key, seed, gate_at, commands;
    const u32 batch;
    const bool compared;
    u64 sent, wrong, checked;

    METHOD u64 gate() const { return gate_at; }
    METHOD u64 launch() const { return 1; }
    METHOD bool reads_again(u32, u32) const { return false; }
    METHOD bool rings_each() const { return false; }
    METHOD u64 lba_of(u32 tag) const { return __umul64hi(word_at(seed, tag), lbas); }
    METHOD bool more() const { return sent < commands; }

    METHOD u32 fill(Ring& ring, const CommandBatch& to) {
        const u32 t = threadIdx.x, count = (u32)min_of(batch, commands - sent);
        __syncthreads();
        if (t < count) put_command(queue, ring, to, t, lba_of((u32)(sent + t)), 1, (u32)(sent + t));
        sent += count;
        __syncthreads();
        return count;
    }

    // Compares each LBA with what it holds, a warp for each, and counts what failed as wrong.
    METHOD void take(const Ring& ring, u32 count) {
        constexpr u32 UNROLL = 4, WARPS = BATCH / 32;
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, quads = (1u << queue.lba_shift) / 16;
        for (u32 i = threadIdx.x; i < count; i += BATCH) {
            const u32 place = ring.landed[i];
            wrong += place != NOTHING && (ring.failed[place / 32] >> place % 32 & 1);
        }
        for (u32 first = warp; compared && first < count; first += WARPS * UNROLL) {
            for (u32 quad = lane; quad < quads; quad += 32) {
                Quad data[UNROLL];
                for (u32 k = 0; k < UNROLL; ++k) {
                    const u32 place = first + k * WARPS < count ? ring.landed[first + k * WARPS] : NOTHING;
                    if (place != NOTHING) data[k] = load_relaxed(at<const Quad>(queue.landing + (u64)place * queue.landing_stride) + quad);
                }
                for (u32 k = 0; k < UNROLL; ++k) {
                    const u32 place = first + k * WARPS < count ? ring.landed[first + k * WARPS] : NOTHING;
                    if (place == NOTHING) continue;
                    const u64 start = row_start(key, lba_of(ring.tag[place]));
                    const u64 low = row_word(start, 2 * quad), high = row_word(start, 2 * quad + 1);
                    const bool right = data[k].x == (u32)low && data[k].y == (u32)(low >> 32) && data[k].z == (u32)high && data[k].w == (u32)(high >> 32);
                    if (!right) ++wrong;
                    if (quad == 0) ++checked;
                }
            }
        }
    }

    METHOD void finished() {}
};

// Reads `commands` random LBAs through each of the queues, `batch` at a time. grid: queues, blocks of WR_LANES.
KERNEL __launch_bounds__(WR_LANES) read_lbas(u64 queues, u64 lbas, u64 key, u64 seed, u64 gate, u64 commands, u64 batch, u64 compared, u64 reports) {
    SHARED(Ring, ring);
    const QueueDescriptor& queue = at<const QueueDescriptor>(queues)[blockIdx.x];
    Reads reads{queue, lbas, key, seed + blockIdx.x * STEP, gate, commands, (u32)batch, compared != 0, 0, 0, 0};
    const RingOutcome outcome = drive_queue(queue, ring, reads);
    Read& report = at<Read>(reports)[blockIdx.x];
    if (reads.wrong) atomicAdd(&report.wrong, reads.wrong);
    if (reads.checked) atomicAdd(&report.checked, reads.checked);
    if (threadIdx.x != 0) return;
    report.commands += outcome.commands;
    report.anomalies += outcome.anomalies;
    report.poison = outcome.poison;
    report.doorbells += outcome.doorbells;
}
