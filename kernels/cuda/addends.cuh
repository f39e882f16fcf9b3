// Bags, and the rows that are added to their sums: what pools them is in expand_bags.cuh and long_bags.cuh.
#pragma once
#include "elements.cuh"
#include "locate.cuh"

// A bag, or a part of it: each of `parts` warps, or blocks, takes every `parts`th stretch of the elements of the bag's rows.
struct Bag {
    u64 begin, end;  // positions
    u64 out;         // address of the first element of the bag's feature in the output row
    u32 part, parts;
};

// What a thread has found in its positions of a bag.
struct BagTally {
    u64 counted = 0;    // positions that a mean counts
    bool lost = false;  // a row could not be read: the bag's sum is zero
};

// The address of the row that position `i` adds to its bag, or ROW_NONE. `leads`: of all lanes that read this position, this one counts it and writes its mask.
template <bool DIRECT, bool RICH, bool UPDATED>
DEVICE u64 addend_at(const Lookup& lookup, const SlotState& slot, const Feature& feature, u64 i, u64 input, const bool leads, BagTally& tally, u32& failed, IdCounts& counts) {
    IdCounts own_counts{};
    const u64 place = DIRECT ? place_of<true, UPDATED>(lookup, feature, input, own_counts) : input;
    const u64 row = row_at<DIRECT>(lookup, slot, place);
    if (DIRECT && leads) {
        write_mask(lookup, feature, i, place);
        report_missing<RICH>(lookup, feature, i, place, own_counts);
        add_counts(counts, own_counts);
    }
    if (row == ROW_LOST) {
        tally.lost = true;
        if (!leads) return ROW_NONE;
        ++failed;
        mask_lost(lookup, i);
        return ROW_NONE;
    }
    const bool skipped = place == PLACE_PADDING || (place == PLACE_MISSING && feature.missing == MISSING_SKIP);
    if (!skipped) ++tally.counted;
    return place == PLACE_MISSING && feature.missing == MISSING_DEFAULT ? feature.table.default_row : row;
}
