// Rows that are listed for DRAM: which ranks lie there is a list apart from their order. docs/gpu.md, "Listed rows".
#pragma once
#include "common.cuh"

constexpr u64 LISTED_RANKS = 7 * 64;  // of a block
constexpr u64 LISTED_NONE = ~0ull;

// How many listed ranks of a table with a list are below `rank`, if `rank` is listed itself; else LISTED_NONE. One load for a rank that is not listed; for
// one that is, loads from the same 64 B.
DEVICE u64 listed_place(const Table& table, u64 rank) {
    const u64 number = rank / LISTED_RANKS;
    const u32 bit = (u32)(rank - number * LISTED_RANKS), word = bit / 64;
    const ListedBlock& block = at<const ListedBlock>(table.listed)[number];
    const u64 own = block.bits[word];
    if ((own >> bit % 64 & 1) == 0) return LISTED_NONE;
    u64 place = block.below + __popcll(own & ((1ull << bit % 64) - 1));
    for (u32 before = 0; before < word; ++before) place += __popcll(block.bits[before]);
    return place;
}
