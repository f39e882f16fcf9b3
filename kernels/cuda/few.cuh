// A whole look-up of few ids by one kernel, rows on drives included: docs/gpu.md, "Few rows in one kernel".
#pragma once
#include "block_sort.cuh"
#include "expand_rows.cuh"
#include "fetch.cuh"
#include "finish.cuh"
#include "prefetch.cuh"

constexpr u32 FEW_THREADS = FETCH_THREADS;
constexpr u32 FEW_WARPS = FEW_THREADS / 32;
constexpr u32 FEW_WORDS_PER_LANE = 2;
constexpr u32 FEW_LEAST = 32 * FEW_WORDS_PER_LANE;  // words that are sorted at least
constexpr u32 FEW_TURN = 16;                        // positions of one row that are written in a turn
constexpr u32 ADMISSION_PAUSE = 20;                 // nanoseconds between two looks at what the first block has found

// TicketState.blocks: one more block has begun, or ended.
constexpr u32 BLOCK_BEGAN = 1, BLOCK_ENDED = 1 << 16;

// What a block shares besides its Scratch and, in dynamic shared memory, its FewWords.
struct FewShared {
    u32 room[FEW_WARPS];
    u32 admission;  // what was found last: Admission
    u32 keyed;      // positions with a key of a row on the block's drive
    u32 lower;      // positions with keys of rows on the drives before it
    u32 cold;       // positions with keys of rows on any drive
    u32 due;        // entries of FewWords.due, or of the next two
    u32 read;       // rows of the block's part that are in staging
    u32 is_last;
    u64 places[FEW_THREADS];     // of a writer: positions without a key, and what they stand for
    u32 positions[FEW_THREADS];
};

DEVICE FewShared& few_shared_of_block() {
    SHARED(FewShared, shared);
    return shared;
}

// What a submitting block has of the positions whose rows lie on its drive.
struct FewWords {
    u64* words;     // of each, ascending: its key above, itself in the POSITION_BITS below
    u16* numbers;   // of each, the number of its key among the unique keys of the drive
    u16* begins;    // of each of these keys, its first word
    u16* due;       // first words of turns whose row is in staging
    u32 count;
};

// Places in dynamic shared memory for `size` words.
DEVICE FewWords few_words(u64* words, u32 size, u32 count) {
    u16* numbers = reinterpret_cast<u16*>(words + size);
    return FewWords{words, numbers, numbers + size, numbers + 2 * size, count};
}

DEVICE u32 position_of(u64 word) { return (u32)word & ((1u << POSITION_BITS) - 1); }

// By one thread of the block that began first: takes the lease, begins the launch, passes the gate, and tells the other blocks after each step.
template <bool UPDATED> DEVICE void admit_blocks(const Lookup& lookup) {
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    u32* const admitted = &ticket_state(lookup).admitted;
    if (!take_lease(slot)) return store_relaxed(admitted, (u32)ADMISSION_REFUSED);
    begin_launch(lookup, slot);
    slot.prepared = slot.fetched = slot.began;
    if (UPDATED && lookup.plan.overlay != 0) slot.snapshot = published(lookup);
    // Whoever sees the answer sees what the launch begins with; and whoever has the snapshot what was updated before.
    fence_system();
    store_relaxed(admitted, (u32)ADMISSION_GRANTED);
    pass_gate<false>(lookup);
    fence_gpu();
    store_relaxed(admitted, (u32)(ADMISSION_GRANTED | (slot.gate_was_closed ? ADMISSION_CLOSED : ADMISSION_OPEN)));
}

// By the block: waits until the block that began first has found one of `wanted`, and returns all that it has found. That block runs already, and waits
// for none of this launch.
DEVICE u32 await_admission(const Lookup& lookup, FewShared& shared, u32 wanted) {
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32* const admitted = &ticket_state(lookup).admitted;
        u32 found;
        while (((found = load_relaxed(admitted)) & wanted) == 0) pause(ADMISSION_PAUSE);
        fence_gpu();
        shared.admission = found;
    }
    __syncthreads();
    return shared.admission;
}

// By the block: waits until it is known whether the launch has the lease; whether it has.
DEVICE bool is_granted(const Lookup& lookup, FewShared& shared) { return (await_admission(lookup, shared, ADMISSION_GRANTED | ADMISSION_REFUSED) & ADMISSION_GRANTED) != 0; }

// By a submitting block, but for its first warp, which may be busy with the lease and the gate: makes a word of each position whose row lies on the
// block's drive.
template <bool UPDATED> DEVICE void collect_few(const Lookup& lookup, const Bags& bags, const Scratch& scratch, FewShared& shared, u64* words, u32 drive) {
    constexpr u32 COLLECTORS = FEW_THREADS - 32;
    if (threadIdx.x < 32) return;
    const u32 first = threadIdx.x - 32;
    u32 lower = 0, cold = 0;
    u64 next = first < bags.ids ? id_at(lookup.batch.ids, lookup.batch.id_type, first) : 0;
    for (u32 i = first; i < bags.ids; i += COLLECTORS) {
        const u64 id = next;
        if (i + COLLECTORS < bags.ids) next = id_at(lookup.batch.ids, lookup.batch.id_type, i + COLLECTORS);
        const Feature& feature = feature_at(lookup, scratch, feature_of(lookup, bags, scratch, i));
        IdCounts ignored{};
        const u64 place = place_of<true, UPDATED>(lookup, feature, id, ignored);
        if (place >= PLACE_STAGED) continue;
        const Table& table = feature.table;
        // Where no queue is, the last drive's block answers for the row, which it does not find.
        const u32 home = (u32)min_of(location_in(table, table.dram_end + (place - table.ssd_key)).drive_lba >> 48, lookup.queues.drives - 1);
        ++cold;
        lower += home < drive;
        if (home == drive) words[atomicAdd(&shared.keyed, 1u)] = place << POSITION_BITS | i;
    }
    lower = __reduce_add_sync(FULL, lower);
    cold = __reduce_add_sync(FULL, cold);
    if (threadIdx.x % 32 != 0 || cold == 0) return;
    atomicAdd(&shared.lower, lower);
    atomicAdd(&shared.cold, cold);
}

// By the block: numbers the unique keys of the sorted words, and returns how many there are.
DEVICE u32 number_few(const FewWords& few, FewShared& shared) {
    u32 uniques = 0;
    for (u32 tile = 0; tile < few.count; tile += FEW_THREADS) {
        const u32 i = tile + threadIdx.x;
        const bool heads = i < few.count && (i == 0 || few.words[i - 1] >> POSITION_BITS != few.words[i] >> POSITION_BITS);
        u32 total;
        const u32 before = uniques + block_scan<FEW_THREADS>(heads, shared.room, total);
        if (heads) few.begins[before] = (u16)i;
        if (i < few.count) few.numbers[i] = (u16)(before + heads - 1);
        uniques += total;
    }
    __syncthreads();
    return uniques;
}

// The part of a drive's unique keys that a submitting block answers for: numbers of the drive's from `begin` to before `end`. Row `number` of the drive lies
// in staging as unique `base` + number.
struct FewPart {
    u32 begin, end, base;
};

// The *rows* of row_reads.cuh: as rows arrive, output rows are written of all positions that want them.
struct FewRows {
    const Lookup& lookup;
    const Bags& bags;
    const Scratch& scratch;
    FewShared& shared;
    const FewWords& few;
    const FewPart& part;
    const bool ahead;

    // Notes the row's turns.
    METHOD void read(u32 unique) {
        atomicAdd(&shared.read, 1u);
        if (ahead) return;
        const u32 number = unique - part.base, begin = few.begins[number];
        for (u32 i = begin; i < few.count && few.numbers[i] == number; i += FEW_TURN) few.due[atomicAdd(&shared.due, 1u)] = (u16)i;
    }

    // Writes the output of all turns that were noted.
    METHOD void taken() {
        if (ahead) return;
        // Rows that a warp copied are read by others.
        __syncthreads();
        const RowGroup group = row_group<FEW_THREADS>(lookup);
        const u32 parts = lookup.lanes.parts_of_row, items = group.number < group.count ? shared.due * parts : 0;
        for (u32 item = group.number; item < items; item += group.count) {
            const u32 turn = parts == 1 ? item : item / parts, of_row = item - turn * parts;
            const u32 begin = few.due[turn], number = few.numbers[begin];
            const u64 row = lookup.unique.staging + (u64)(part.base + number) * lookup.unique.staging_stride;
            for (u32 i = begin; i < begin + FEW_TURN && i < few.count && few.numbers[i] == number; ++i) {
                const u32 position = position_of(few.words[i]);
                const Feature& feature = feature_at(lookup, scratch, feature_of(lookup, bags, scratch, position));
                if (group.lane == 0 && of_row == 0) write_mask(lookup, feature, position, few.words[i] >> POSITION_BITS);
                put_row<true>(lookup, feature.table, row, position, of_row, group.lane, 0.0f);
            }
        }
        __syncthreads();
        // Nobody notes a turn before the next barrier.
        if (threadIdx.x == 0) shared.due = 0;
    }
};

// By a submitting block, behind all that it read: writes the output of positions whose rows are not in staging, and counts them.
DEVICE void put_lost(const Lookup& lookup, SlotState& slot, const Bags& bags, const Scratch& scratch, const FewWords& few, const FewPart& part) {
    const RowGroup group = row_group<FEW_THREADS>(lookup);
    const u32 parts = lookup.lanes.parts_of_row;
    u32 failed = 0;
    for (u32 i = group.number < group.count ? group.number : few.count; i < few.count; i += group.count) {
        const u32 number = few.numbers[i];
        if (number < part.begin || number >= part.end || at<const u8>(lookup.unique.status)[part.base + number] == ROW_READ) continue;
        const u32 position = position_of(few.words[i]);
        const Feature& feature = feature_at(lookup, scratch, feature_of(lookup, bags, scratch, position));
        if (group.lane == 0) {
            ++failed;
            mask_lost(lookup, position);
        }
        for (u32 of_row = 0; of_row < parts; ++of_row) put_row<true>(lookup, feature.table, ROW_LOST, position, of_row, group.lane, lost_value(lookup));
    }
    if (failed) atomicAdd(&slot.counters.failed, (u64)failed);
}

// By a submitting block: the part of its drive's `uniques` that it answers for. Behind a closed gate, or where no queue of the drive takes commands, that is all
// of them for set 0 and nothing for the others; `submits` becomes whether the block's queue reads them.
DEVICE FewPart part_of(const Lookup& lookup, SlotState& slot, const FewShared& shared, u32 block, u32 uniques, bool is_open, bool& submits) {
    const u32 set = block / lookup.queues.drives, drive = block % lookup.queues.drives;
    FewPart part{0, set == 0 ? uniques : 0, shared.lower};
    submits = false;
    if (!is_open) return part;
    const QueueShare share = share_of(lookup, set, drive, slot.launch);
    if (!share.is_healthy && shared.cold != 0 && threadIdx.x == 0) atomicAdd(&slot.faults, 1u);
    if (share.healthy == 0) return part;
    submits = share.is_healthy;
    part.begin = submits ? (u32)((u64)uniques * share.healthy_before / share.healthy) : 0;
    part.end = submits ? (u32)((u64)uniques * (share.healthy_before + 1) / share.healthy) : 0;
    return part;
}

// By submitting block `block`, of a launch that was admitted: answers for its part of the words.
DEVICE void answer_few(const Lookup& lookup, SlotState& slot, const Bags& bags, const Scratch& scratch, FewShared& shared, const FewWords& few, u32 block, const bool ahead) {
    const u32 uniques = number_few(few, shared);
    // Shares are not to be computed behind a closed gate: the host may be changing the queues.
    const bool is_open = (await_admission(lookup, shared, ADMISSION_OPEN | ADMISSION_CLOSED) & ADMISSION_OPEN) != 0;
    bool submits;
    const FewPart part = part_of(lookup, slot, shared, block, uniques, is_open, submits);
    for (u32 number = part.begin + threadIdx.x; number < part.end; number += FEW_THREADS) {
        const u64 key = few.words[few.begins[number]] >> POSITION_BITS;
        at<u64>(lookup.unique.keys)[part.base + number] = key;
        at<u8>(lookup.unique.status)[part.base + number] = ROW_FAILED;
        if (lookup.plan.scaled) put_scales(lookup, key, part.base + number);
    }
    for (u32 i = threadIdx.x; ahead && i < few.count; i += FEW_THREADS) {
        const u32 number = few.numbers[i], position = position_of(few.words[i]);
        if (number < part.begin || number >= part.end) continue;
        at<u64>(lookup.unique.places)[position] = PLACE_STAGED | (part.base + number);
        write_mask(lookup, feature_at(lookup, scratch, feature_of(lookup, bags, scratch, position)), position, few.words[i] >> POSITION_BITS);
    }
    if (threadIdx.x == 0 && block == 0) slot.prepared = now();
    if (threadIdx.x == 0 && part.begin < part.end) atomicAdd(&slot.counters.rows_ssd, (u64)(part.end - part.begin));
    __syncthreads();
    if (submits && part.begin < part.end) {
        FewRows rows{lookup, bags, scratch, shared, few, part, ahead};
        submit(lookup, at<QueueDescriptor>(lookup.queues.descriptors)[block], part.base + part.begin, part.base + part.end, submit_shared_of_block(), rows);
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicMax(&slot.fetched, now());
    if (!ahead && shared.read < part.end - part.begin) put_lost(lookup, slot, bags, scratch, few, part);
}

// By writer `block` of `blocks`: what each id stands for; the output of those without a row on drives.
template <bool UPDATED>
DEVICE void write_few(const Lookup& lookup, const Bags& bags, const Scratch& scratch, FewShared& shared, IdCounts& counts, u32 block, u32 blocks, const bool ahead) {
    const RowGroup group = row_group<FEW_THREADS>(lookup);
    const u32 parts = lookup.lanes.parts_of_row;
    for (u32 tile = 0; tile < bags.ids; tile += blocks * FEW_THREADS) {
        const u32 i = tile + threadIdx.x * blocks + block;
        if (i < bags.ids) {
            const Feature& feature = feature_at(lookup, scratch, feature_of(lookup, bags, scratch, i));
            IdCounts own_counts{};
            const u64 place = place_of<true, UPDATED>(lookup, feature, id_at(lookup.batch.ids, lookup.batch.id_type, i), own_counts);
            report_missing<true>(lookup, feature, i, place, own_counts);
            add_counts(counts, own_counts);
            // Of those with a key, submitting blocks answer for output and mask.
            if (place >= PLACE_STAGED) {
                write_mask(lookup, feature, i, place);
                if (ahead) {
                    at<u64>(lookup.unique.places)[i] = place;
                } else {
                    const u32 entry = atomicAdd(&shared.due, 1u);
                    shared.positions[entry] = i;
                    shared.places[entry] = place;
                }
            }
        }
        __syncthreads();
        const u32 items = group.number < group.count ? shared.due * parts : 0;
        for (u32 item = group.number; item < items; item += group.count) {
            const u32 entry = parts == 1 ? item : item / parts, position = shared.positions[entry];
            const u64 place = shared.places[entry];
            const Feature& feature = feature_at(lookup, scratch, feature_of(lookup, bags, scratch, position));
            u64 row = place >= PLACE_PADDING ? ROW_NONE : place & ~PLACE_HERE;
            if (place == PLACE_MISSING && feature.missing == MISSING_DEFAULT) row = feature.table.default_row;
            put_row<true>(lookup, feature.table, row, position, item - entry * parts, group.lane, 0.0f);
        }
        __syncthreads();
        if (threadIdx.x == 0) shared.due = 0;
        __syncthreads();
    }
}

// By the block, when it has done its part: counts it out. The last block ends the launch, or its first half.
DEVICE void end_few_blocks(const Lookup& lookup, FewShared& shared, const bool is_admitted, const bool ahead) {
    TicketState& counts = ticket_state(lookup);
    __syncthreads();
    if (threadIdx.x == 0) {
        fence_gpu();
        shared.is_last = (atomicAdd(&counts.blocks, BLOCK_ENDED) >> 16) == gridDim.x - 1;
        fence_gpu();
        if (shared.is_last) counts.blocks = 0;
    }
    __syncthreads();
    if (!shared.is_last || threadIdx.x >= 32) return;
    if (is_admitted && !ahead) return release<true>(lookup);
    if (threadIdx.x != 0) return;
    if (!is_admitted) return tell_busy(lookup);
    counts.admitted = ADMISSION_GRANTED;
    begin_rest(lookup, *at<SlotState>(lookup.slot.state));
}

// The whole look-up, or with `ahead` its first half: submitting blocks come first, and writers behind them.
template <bool UPDATED> DEVICE void few(const Lookup& lookup, const bool ahead, Scratch& scratch) {
    DYNAMIC_SHARED(words);
    FewShared& shared = few_shared_of_block();
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    const u32 submitters = lookup.queues.sets * lookup.queues.drives;
    const bool submits = blockIdx.x < submitters;
    if (threadIdx.x == 32) shared.keyed = shared.lower = shared.cold = shared.due = shared.read = 0;
    if (threadIdx.x == 0 && (atomicAdd(&ticket_state(lookup).blocks, BLOCK_BEGAN) & (BLOCK_ENDED - 1)) == 0) admit_blocks<UPDATED>(lookup);
    // A description that may be replaced, and a snapshot, are there when the launch has the lease. Writers write from their first id on.
    const bool follows = lookup.plan.follows;
    bool admitted = follows || !submits ? is_granted(lookup, shared) : true;
    if (admitted) {
        u32 flaws;
        const Bags bags = bags_of(lookup, size_of(lookup, flaws));
        set_up_scratch<false, UPDATED>(lookup, bags, scratch);
        if (submits) {
            collect_few<UPDATED>(lookup, bags, scratch, shared, words, blockIdx.x % lookup.queues.drives);
            __syncthreads();
            u32 size = FEW_LEAST;
            while (size < shared.keyed) size *= 2;
            for (u32 i = shared.keyed + threadIdx.x; i < size; i += FEW_THREADS) words[i] = NO_KEY;
            __syncthreads();
            block_sort<FEW_THREADS, FEW_WORDS_PER_LANE>(words, size);
            if (!follows) admitted = is_granted(lookup, shared);
            if (admitted) answer_few(lookup, slot, bags, scratch, shared, few_words(words, size, shared.keyed), blockIdx.x, ahead);
        } else {
            const u32 block = blockIdx.x - submitters, blocks = gridDim.x - submitters;
            IdCounts counts{};
            write_few<UPDATED>(lookup, bags, scratch, shared, counts, block, blocks, ahead);
            check_offsets(lookup, bags, scratch, (u64)block * FEW_THREADS + threadIdx.x, (u64)blocks * FEW_THREADS);
            sum_counts(counts, scratch);
            if (threadIdx.x == 0) add_sums(lookup, slot, scratch);
        }
    }
    end_few_blocks(lookup, shared, admitted, ahead);
}

// Reads: ids, offsets, features, the tables' indexes and permutations; rows in GPU memory and DRAM; rows on drives by way of the queues; the slot's lease and gate.
// Writes: one output row for each id, the mask, the ticket. With `ahead` instead what `prepare`, `fetch` and `rest` write: the place of each position, the mask, rows
// in staging and their status.
// Relies on: unpooled rows; as many ids as dynamic shared memory has room for (14 B each, for a power of two of FEW_LEAST or more), fewer than 2^POSITION_BITS;
// room for as many unique rows as ids; TicketState.blocks and .admitted are zero. grid: sets * drives submitting blocks, then one writer or more.
KERNEL __launch_bounds__(FEW_THREADS, 1) warprow_few(const Lookup lookup, const u32 ahead) {
    few<false>(lookup, ahead != 0, scratch_of_block());
}

// Reads: as `few`, the overlay, as of a snapshot that the kernel takes, and lists of rows in DRAM. Plans whose tables have lists, and executors that follow
// updates, launch it in the place of `few`.
// Writes: as `few`, and the launch's snapshot.
// Relies on: as `few`.
KERNEL __launch_bounds__(FEW_THREADS, 1) warprow_few_updated(const Lookup lookup, const u32 ahead) {
    few<true>(lookup, ahead != 0, scratch_of_block());
}
