// Rows that were updated while look-ups go on: found by their table and number before any tier is asked.
//
// One hash table, in GPU memory, serves all tables of an executor, by linear probing: a word has 32 bits of the hash and the number, from 1, of the
// latest record of a row; 0 ends the search, for half of the words are empty. Records and rows are written once, in the order of their numbers, and
// `Overlay.published` says how many are to be seen. A launch takes that word once, as its snapshot. It passes over records with higher numbers, to the
// record before of the same row: so a launch sees all of an update or nothing of it. There are two sides: when one is full, the host copies the rows that
// count to the other, which by then no launch reads: the leases tell.
//
// Keys that a table's index does not have are records like rows, by the key itself, with one bit more in the number of the table: so they are published
// together with the rows that are updated beside them. A key that was removed is a record without a row, whose address is REMOVED: look-ups treat the key as
// one that the table never had.
#pragma once
#include "common.cuh"

constexpr u64 SNAPSHOT_TAKEN = 1ull << 63;
// Some of the records are of created keys.
constexpr u64 SNAPSHOT_CREATED = 1ull << 62;
// In a record's table: its row is a key.
constexpr u32 TABLE_CREATED = 1u << 31;
// In place of a record's address: its key was removed. No row has an odd address.
constexpr u64 REMOVED = 1;

// How many records a snapshot shows: fewer than 2^32.
DEVICE u32 count_of(u64 snapshot) { return (u32)(snapshot >> 1); }

// The snapshot of a launch, as place_of wants it; 0: it shows no updated row.
DEVICE u64 snapshot_of(const SlotState& slot) {
    const u64 snapshot = slot.snapshot;
    return count_of(snapshot) == 0 ? 0 : snapshot;
}

// The block's copy of the launch's snapshot, in shared memory: set_up_scratch puts it there.
DEVICE u64& block_snapshot() {
    SHARED(u64, snapshot);
    return snapshot;
}

// What the overlay shows at this moment.
DEVICE u64 published(const Lookup& lookup) { return load_relaxed(&at<const Overlay>(lookup.plan.overlay)->published); }

// src/overlay.rs has the same function. Created keys are turned around: else a small key would meet the word of the row of that number.
DEVICE u64 overlay_hash(u32 table, u64 row) {
    const u64 turned = table & TABLE_CREATED ? ~row : row;
    const u64 mixed = (turned ^ (u64)table << 40) * 0x9e3779b97f4a7c15ull;
    return (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9ull;
}

// The address of the updated row `row` of overlay table `table`, as of `snapshot`; 0: the row was not updated; REMOVED. With TABLE_CREATED in `table`, `row` is a
// created key. Mostly one dependent load for a row that was not updated; two, and the row, for one that was.
APART u64 updated_row(u64 overlay_at, u64 snapshot, u32 table, u64 row) {
    const Overlay& overlay = *at<const Overlay>(overlay_at);
    const u32 side = snapshot & 1, count = count_of(snapshot);
    const u64* words = at<const u64>(overlay.words[side]);
    const Record* records = at<const Record>(overlay.records[side]);
    const u64 hash = overlay_hash(table, row);
    for (u64 place = hash & overlay.mask;; place = (place + 1) & overlay.mask) {
        const u64 word = load_relaxed(words + place);
        if (word == 0) return 0;
        if (word >> 32 != hash >> 32) continue;
        // Records up to the snapshot are known to be there; a later record is released by its word alone.
        if ((u32)word > count) fence_acquire();
        const Record* record = records + ((u32)word - 1);
        if (record->row != row || record->table != table) continue;
        for (u32 number = (u32)word;; number = record->before) {
            if (number == 0) return 0;
            record = records + (number - 1);
            if (number <= count) return record->address;
        }
    }
}

constexpr u32 UPDATE_THREADS = 1024;

// By the block: copies `bytes`, a multiple of 16.
DEVICE void copy_quads(u64 to, u64 from, u64 bytes) {
    for (u64 i = threadIdx.x; i < bytes / 16; i += UPDATE_THREADS) at<uint4>(to)[i] = at<const uint4>(from)[i];
}

// Reads: rows, records and words that the host put into pinned memory.
// Writes: first the records and their rows, then the words that lead to the records, then the number of records that launches may see; last the
// number of the update, for the host.
// Relies on: the update before has ended; no launch reads the memory that is written. grid: one block.
KERNEL __launch_bounds__(UPDATE_THREADS) warprow_update(const Update update) {
    for (u64 i = threadIdx.x; i < update.cleared; i += UPDATE_THREADS) store_relaxed(at<u64>(update.words) + i, 0ull);
    copy_quads(update.rows_to, update.rows_from, update.rows_bytes);
    copy_quads(update.records_to, update.records_from, update.records_bytes);
    __syncthreads();
    // What all threads wrote comes before the words of each.
    fence_gpu();
    for (u64 i = threadIdx.x; i < update.count; i += UPDATE_THREADS) {
        const u64* entry = at<const u64>(update.entries) + i * 2;
        store_relaxed(at<u64>(update.words) + entry[0], entry[1]);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    fence_gpu();
    if (update.published != 0) store_relaxed(&at<Overlay>(update.overlay)->published, update.published);
    fence_system();
    store_relaxed(at<u64>(update.result), update.number);
}
