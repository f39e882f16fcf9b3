// The whole look-up by one kernel, where no row lies on a drive and few enough are asked for.
#pragma once
#include "admit.cuh"
#include "expand_bags.cuh"
#include "expand_rows.cuh"
#include "finish.cuh"

constexpr u32 DIRECT_THREADS = 256;

// The counts of a launch of up to FEW ids fit one word (SlotState.few), so that the last block knows the sums with no further load: 11 bits each for
// blocks and for blocks that found flaws, 14 each for ids that are missing, padding, and in GPU memory. Where offsets are flawed, bags may overlap and
// positions be counted more than once: the last three may overflow then, and nobody reads them.
constexpr u32 FEW = (1 << 14) - 1, FEW_BLOCKS = (1 << 11) - 1;
constexpr u32 FEW_FLAWED = 11, FEW_MISSING = 22, FEW_PADDING = 36, FEW_HBM = 50;

// By the block, before it reads a description that may be replaced: counts the block in. The description is replaced while no block is inside, so that
// all blocks of a launch read the same one. UPDATED: the first block takes the snapshot of the overlay for all; it runs already, so that the others wait
// for a few loads only.
template <bool UPDATED> DEVICE void enter(const Lookup& lookup, SlotState& slot) {
    if (!lookup.plan.follows) return;
    if (threadIdx.x == 0) {
        const u32 before = atomicAdd(&slot.lease, 1u);
        u32 lease = before;
        while (lease & LEASE_ADOPTING) {
            pause(ADOPT_PAUSE);
            lease = load_relaxed(&slot.lease);
        }
        fence_gpu();
        if (UPDATED) {
            if ((before & ~LEASE_ADOPTING) == 0) store_relaxed(&slot.snapshot, published(lookup));
            else while (load_relaxed(&slot.snapshot) == 0) pause(ADOPT_PAUSE);
            fence_gpu();
        }
    }
    __syncthreads();
}

// One thread of the last block, when all blocks have read what they need: counts all blocks out.
template <bool UPDATED> DEVICE void leave(const Lookup& lookup, SlotState& slot) {
    if (!lookup.plan.follows) return;
    if (UPDATED) store_relaxed(&slot.snapshot, 0ull);
    fence_gpu();
    atomicSub(&slot.lease, gridDim.x);
}

// By one warp of the last block: stores the report of a launch of few ids. The first three times are in the ticket already.
template <bool RICH> DEVICE void report_few(const Lookup& lookup, const CountsBefore& before, u64 generation, u64 ids, u32 flaws, u64 sum, u64 first_missing) {
    u32 lane = threadIdx.x, count = lane - TICKET_COUNTERS;
    u64 missing = sum >> FEW_MISSING & FEW, padding = sum >> FEW_PADDING & FEW, hbm = sum >> FEW_HBM;
    if (sum >> FEW_FLAWED & FEW_BLOCKS) flaws |= FLAW_OFFSETS;
    // By selection, for lanes that branch apart would take turns.
    u64 word = lane == 1 ? OUTCOME_DONE | (u64)flaws << 32 : 0;
    word = count == 0 ? ids : word;
    word = count == 1 ? missing : word;
    word = count == 2 ? padding : word;
    word = count == 3 ? hbm : word;
    word = count == 4 ? ids - missing - padding - hbm : word;
    word = lane == TICKET_GENERATION ? generation : word;
    if (RICH) {
        const u64 id = missing_id(lookup, first_missing);
        word = lane == TICKET_FIRST_MISSING ? first_missing : word;
        word = lane == TICKET_MISSING ? id : word;
    }
    word = count_failure(lookup, word, before.failures);
    word = lane == TICKET_ENDED ? now() : word;
    // Each block's fence ordered what it stored before its count, and this comes behind all counts. Nothing waits for the report to arrive.
    store_words(lookup, before.launches + 1, word, false, true);
}

constexpr u32 DIRECT_WARPS = DIRECT_THREADS / 32;

// Shared memory of end_few: a word for each warp.
DEVICE u64* few_sums() {
    SHARED(u64, sums, [DIRECT_WARPS]);
    return sums;
}

// The block's copy of what the ticket has counted. It is there when `direct` has waited for it.
DEVICE CountsBefore& block_counts() {
    SHARED(CountsBefore, before);
    return before;
}

// By all threads of every block: the end of a launch of few ids.
template <bool RICH, bool UPDATED> DEVICE void end_few(const Lookup& lookup, SlotState& slot, u64 ids, const CountsBefore& before, u64 generation, u32 flaws, const IdCounts& counts, const Scratch& scratch) {
    u64* sums = few_sums();
    u64 missing = __reduce_add_sync(FULL, counts.missing), padding = __reduce_add_sync(FULL, counts.padding);
    u64 hbm = __reduce_add_sync(FULL, counts.hbm), sum = 0;
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = (missing << FEW_MISSING) + (padding << FEW_PADDING) + (hbm << FEW_HBM);
    __syncthreads();
    if (threadIdx.x >= 32) return;
    if (threadIdx.x == 0) {
        sum = 1 + ((u64)(scratch.flaws != 0) << FEW_FLAWED);
        for (u32 warp = 0; warp < DIRECT_WARPS; ++warp) sum += sums[warp];
        // Everybody sees what this block stored before it is counted, so that the block that finds all counted need not fence again.
        fence_system();
        sum += atomicAdd(&slot.few, sum);
        fence_acquire();
    }
    sum = __shfl_sync(FULL, sum, 0);
    if ((sum & FEW_BLOCKS) != gridDim.x) return;
    u64 first_missing = 0;
    if (threadIdx.x == 0) {
        if (RICH) {
            first_missing = load_relaxed(&slot.counters.first_missing);
            slot.counters.first_missing = 0;
        }
        slot.few = 0;
        ticket_state(lookup).launches = before.launches + 1;
        leave<UPDATED>(lookup, slot);
    }
    if (RICH) first_missing = __shfl_sync(FULL, first_missing, 0);
    report_few<RICH>(lookup, before, generation, ids, flaws, sum, first_missing);
}

// The whole look-up: each row is read where it lies. It needs no slot, only a SlotState of its ticket's own. Traffic: ids, rows, output.
template <bool POOLED, bool ONE_FEATURE, bool RICH, bool UPDATED> DEVICE void direct(const Lookup& lookup, Scratch& scratch) {
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    u32 flaws = 0;
    enter<UPDATED>(lookup, slot);
    const Size size = size_of(lookup, flaws);
    // With one feature nobody asks for bags, and dividing takes a while.
    const Bags bags = ONE_FEATURE ? Bags{size.ids, size.bags, 0} : bags_of(lookup, size);
    CountsBefore& before = block_counts();
    // Nobody needs it before the end.
    if (threadIdx.x == 0) begin_shared_copy(&before, &counts_before(lookup));
    const u64 generation = lookup.plan.follows && threadIdx.x < 32 ? slot.generation : 0;
    if (thread == 0) {
        u64 began = now();
        for (u32 i = 0; i < 3; ++i) store_relaxed(ticket_words(lookup) + TICKET_BEGAN + i, began);
    }
    IdCounts counts{};
    if (POOLED) expand_bags<true, RICH, UPDATED>(lookup, slot, bags, scratch, counts); else expand_rows<true, ONE_FEATURE, RICH, UPDATED>(lookup, slot, bags, scratch, counts);
    check_offsets(lookup, bags, scratch, thread, threads);
    if (threadIdx.x == 0) await_shared_copies();
    if (bags.ids <= FEW && gridDim.x <= FEW_BLOCKS) return end_few<RICH, UPDATED>(lookup, slot, bags.ids, before, generation, flaws, counts, scratch);
    sum_counts(counts, scratch);
    if (threadIdx.x == 0) add_sums(lookup, slot, scratch);
    if (!is_last(slot.expand_left) || threadIdx.x >= 32) return;
    if (threadIdx.x == 0) slot.counters.ids = bags.ids;
    __syncwarp();
    report<RICH>(lookup, slot, before, false);
    if (threadIdx.x != 0) return;
    slot.counters = Counters{};
    slot.flaws = 0;
    ticket_state(lookup).launches = before.launches + 1;
    leave<UPDATED>(lookup, slot);
    store_release(&at<Ticket>(lookup.slot.tickets)[lookup.slot.ticket].sequence, before.launches + 1);
}

// Reads: ids, offsets, features, the tables' indexes, permutations and rows.
// Writes: one output row for each id, the mask, the ticket.
// Relies on: no kernel before it; no row lies on a drive; `slot.state` is the ticket's own, and all that launches count in it is zero. grid: any.
KERNEL __launch_bounds__(DIRECT_THREADS, 5) warprow_direct_rows(const Lookup lookup) {
    direct<false, false, false, false>(lookup, scratch_of_block());
}

// Reads: as `direct_rows`, and weights.
// Writes: one output row for each bag; the rest as `direct_rows`.
// Relies on: as `direct_rows`.
KERNEL __launch_bounds__(DIRECT_THREADS, 2) warprow_direct_bags(const Lookup lookup) {
    direct<true, false, false, false>(lookup, scratch_of_block());
}

// Reads: as `direct_rows`, the feature from the launch itself.
// Writes: as `direct_rows`.
// Relies on: as `direct_rows`; the plan has one feature and no description that may be replaced.
KERNEL __launch_bounds__(DIRECT_THREADS, 5) warprow_direct_one(const Lookup lookup) {
    direct<false, true, false, false>(lookup, scratch_of_block());
}

// Reads: as `direct_rows`.
// Writes: as `direct_rows`.
// Relies on: as `direct_rows`, but tables are of any element, and features tell of missing ids in any way: rich plans take this one.
KERNEL __launch_bounds__(DIRECT_THREADS, 4) warprow_direct_rich_rows(const Lookup lookup) {
    direct<false, false, true, false>(lookup, scratch_of_block());
}

// Reads: as `direct_bags`.
// Writes: as `direct_bags`.
// Relies on: as `direct_rich_rows`.
KERNEL __launch_bounds__(DIRECT_THREADS, 2) warprow_direct_rich_bags(const Lookup lookup) {
    direct<true, false, true, false>(lookup, scratch_of_block());
}

// Reads: as `direct_one`.
// Writes: as `direct_one`.
// Relies on: as `direct_one` and `direct_rich_rows`.
KERNEL __launch_bounds__(DIRECT_THREADS, 4) warprow_direct_rich_one(const Lookup lookup) {
    direct<false, true, true, false>(lookup, scratch_of_block());
}

// Reads: as `direct_rows`, and the overlay, as of a snapshot that it takes: executors that follow updates take this one, and others pay nothing for that.
// Writes: as `direct_rows`, and SlotState.snapshot while it runs.
// Relies on: as `direct_rich_rows`; SlotState.snapshot is zero.
KERNEL __launch_bounds__(DIRECT_THREADS, 4) warprow_direct_updated_rows(const Lookup lookup) {
    direct<false, false, true, true>(lookup, scratch_of_block());
}

// Reads: as `direct_bags`, and the overlay.
// Writes: as `direct_bags`, and SlotState.snapshot while it runs.
// Relies on: as `direct_updated_rows`.
KERNEL __launch_bounds__(DIRECT_THREADS, 2) warprow_direct_updated_bags(const Lookup lookup) {
    direct<true, false, true, true>(lookup, scratch_of_block());
}
