// Sparse ids: the slot of a key by its table's index, evaluated where the index's bytes lie. docs/keys.md has the function and why.
#pragma once
#include "common.cuh"

constexpr u64 SLOT_ABSENT = ~0ull;

// Mixes the bits of a key, or of a pilot.
DEVICE u64 mix_key(u64 x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

// The slot of a key (of a signed one its 64 bits), or SLOT_ABSENT: two dependent loads, three for one key in fifty or so.
DEVICE u64 slot_of(const KeyIndex& index, u64 key) {
    u64 hash = mix_key(key ^ index.seed);
    u64 part = __umul64hi(hash, index.parts);
    u64 bucket = part * index.buckets + __umul64hi(hash * index.parts, index.buckets);
    u64 pilot = at<const u8>(index.pilots)[bucket];
    u64 slot = part * index.slots + __umul64hi(hash * (mix_key(pilot + 1) | 1), index.slots);
    if (slot >= index.keys) {
        slot -= index.keys;
        slot = index.remap_bytes == 4 ? at<const u32>(index.remap)[slot] : at<const u64>(index.remap)[slot];
    }
    u32 print;
    if (index.fingerprint_bytes == 2) print = at<const u16>(index.fingerprints)[slot] ^ (u16)hash;
    else if (index.fingerprint_bytes == 1) print = at<const u8>(index.fingerprints)[slot] ^ (u8)hash;
    else print = at<const u32>(index.fingerprints)[slot] ^ (u32)hash;
    return print == 0 ? slot : SLOT_ABSENT;
}

// The rank of row `row`; `row` is below the table's.
DEVICE u64 rank_of(const Table& table, u64 row) {
    if (table.ranks == 0) return row;
    return table.rank_bytes == 4 ? at<const u32>(table.ranks)[row] : at<const u64>(table.ranks)[row];
}

// Whether the keys' type can hold an id: numbers that it cannot have the upper bit. `is_signed`: the id's type is.
DEVICE bool is_key(const KeyIndex& index, u64 id, bool is_signed) { return (index.is_signed != 0) == is_signed || id >> 63 == 0; }

// The row of a sparse id, or SLOT_ABSENT.
DEVICE u64 row_of_key(const Table& table, u64 id, bool is_signed) {
    const KeyIndex& index = *at<const KeyIndex>(table.keys);
    if (!is_key(index, id, is_signed)) return SLOT_ABSENT;
    const u64 row = slot_of(index, id);
    if (index.stored == 0 || row == SLOT_ABSENT) return row;
    return at<const u64>(index.stored)[rank_of(table, row)] == id ? row : SLOT_ABSENT;
}

// Notes the epoch of now for the key of row `row`, which a look-up has found. All that touch a key in one epoch store one number, so plain stores do; and
// nobody stores what is there already, so that keys that are asked for often cost a load. The epoch is read from GPU memory, for look-ups in captured graphs
// take that of the time when they run. Where one launch has read it before it was raised and another after, the key may be left with either: both touched it
// in the microseconds between.
DEVICE void touch(const Table& table, u64 row) {
    const KeyIndex& index = *at<const KeyIndex>(table.keys);
    if (index.touched == 0) return;
    const u32 epoch = *at<const u32>(index.epoch);
    u16& last = at<u16>(index.touched)[row];
    if (last < epoch) last = (u16)epoch;
}
