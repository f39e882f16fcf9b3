// Rows that were updated while look-ups go on: found by their table and number before any tier is asked.
//
// One hash table for all tables of an executor, in GPU memory, by linear probing: a word has 32 bits of the hash and the number, from 1, of
// the latest record of a row; 0 ends the search, for half of the words are empty. Records and rows are written once, in the order of their numbers, and
// `Overlay.published` says how many are to be seen. A launch takes that word once. Records with higher numbers are passed over, to the one
// before of the same row: so a launch sees all of an update or nothing of it. There are two sides: what has become full is copied, without what was updated
// again, to the other, in which no launch reads by then: the host sees to that, by the leases.
//
// Keys that a table's index does not have are in it like rows, by the key itself, and of a number of the table's that has one bit more: so they are published
// with the rows that are updated beside them.
#pragma once
#include "common.cuh"

constexpr u64 SNAPSHOT_TAKEN = 1ull << 63;
// Some of the records are of created keys.
constexpr u64 SNAPSHOT_CREATED = 1ull << 62;
// In a record's table: its row is a key.
constexpr u32 TABLE_CREATED = 1u << 31;

// How many records a snapshot shows: fewer than 2^32.
DEVICE u32 count_of(u64 snapshot) { return (u32)(snapshot >> 1); }

// What a launch sees, as place_of wants it; 0: no updated row.
DEVICE u64 seen_by(const SlotState& slot) {
    const u64 snapshot = slot.snapshot;
    return count_of(snapshot) == 0 ? 0 : snapshot;
}

// The same, by the block: set_up puts it there.
DEVICE u64& seen() {
    SHARED u64 snapshot;
    return snapshot;
}

DEVICE u64 published(const Lookup& p) { return load_relaxed(&at<const Overlay>(p.overlay)->published); }

// The same function is in src/overlay.rs. Small keys are no small rows: else each would meet the other's word.
DEVICE u64 overlay_hash(u32 table, u64 row) {
    const u64 turned = table & TABLE_CREATED ? ~row : row;
    const u64 mixed = (turned ^ (u64)table << 40) * 0x9e3779b97f4a7c15ull;
    return (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9ull;
}

// The address of the updated row `row` of overlay table `table`, as of `seen`; 0: it was not updated. With TABLE_CREATED, of a created key. One dependent load where it was not, mostly;
// two where it was, and the row.
APART u64 updated_row(u64 overlay_at, u64 seen, u32 table, u64 row) {
    const Overlay& overlay = *at<const Overlay>(overlay_at);
    const u32 side = seen & 1, count = count_of(seen);
    const u64* words = at<const u64>(overlay.words[side]);
    const Record* records = at<const Record>(overlay.records[side]);
    const u64 hash = overlay_hash(table, row);
    for (u64 place = hash & overlay.mask;; place = (place + 1) & overlay.mask) {
        const u64 word = load_relaxed(words + place);
        if (word == 0) return 0;
        if (word >> 32 != hash >> 32) continue;
        // What is published is known to be there; of what came later the release is in the word alone.
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

DEVICE void copy_quads(u64 to, u64 from, u64 bytes) {
    for (u64 i = threadIdx.x; i < bytes / 16; i += UPDATE_THREADS) at<uint4>(to)[i] = at<const uint4>(from)[i];
}

// Puts records and their rows in, then the words that lead to them, then says how many are to be seen. By one block: the next update waits.
// Traffic: what is put in, once over the bus, once to memory.
KERNEL __launch_bounds__(UPDATE_THREADS) warprow_update(const Update p) {
    for (u64 i = threadIdx.x; i < p.cleared; i += UPDATE_THREADS) store_relaxed(at<u64>(p.words) + i, 0ull);
    copy_quads(p.rows_to, p.rows_from, p.rows_bytes);
    copy_quads(p.records_to, p.records_from, p.records_bytes);
    __syncthreads();
    // What all threads wrote comes before each one's words.
    fence_gpu();
    for (u64 i = threadIdx.x; i < p.count; i += UPDATE_THREADS) {
        const u64* entry = at<const u64>(p.entries) + i * 2;
        store_relaxed(at<u64>(p.words) + entry[0], entry[1]);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    fence_gpu();
    if (p.published != 0) store_relaxed(&at<Overlay>(p.overlay)->published, p.published);
    fence_system();
    store_relaxed(at<u64>(p.result), p.number);
}
