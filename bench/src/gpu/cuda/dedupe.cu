// What measuring deduplication needs: rows, and the comparison of uniques and inverse with the ids.
#include "content.cuh"
#undef SHARED
#include "common.cuh"

// Rows of the oracle's table, one after another. grid: any.
KERNEL fill_rows(u64 table, u64 rows, u64 words, u64 key) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < rows * words; i += step)
        at<u64>(table)[i] = row_word(row_start(key, i / words), i % words);
}

// Whether each position leads to the unique key of its id, which is `first_key` and the id. Notes which uniques are led to (a byte each),
// and counts wrong positions. Of a launch behind `fetch`, which has cleared nothing yet. grid: any.
KERNEL check_inverse(u64 launch, u64 ids, u64 count, u64 first_key, u64 seen, u64 found) {
    const Lookup& lookup = *at<const Lookup>(launch);
    const u64 step = (u64)gridDim.x * blockDim.x;
    u64 wrong = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const u64 place = at<const u64>(lookup.unique.places)[i], key = first_key + at<const u64>(ids)[i];
        u64 number = (u32)place;
        if (place >= PLACE_PADDING || (place & PLACE_HERE)) {
            number = ~0ull;
        } else if (place & PLACE_STAGED) {
            if (place & PLACE_HASHED) number = at<const u32>(lookup.sort.numbers)[number];
        } else {
            number = at<const u32>(lookup.bitmap.base)[place / 1024];
            for (u64 word = place / 1024 * 32; word < place / 32; ++word) number += __popc(at<const u32>(lookup.bitmap.bits)[word]);
            number += __popc(at<const u32>(lookup.bitmap.bits)[place / 32] & ((1u << place % 32) - 1));
        }
        if (number >= at<const SlotState>(lookup.slot.state)->uniques || at<const u64>(lookup.unique.keys)[number] != key) ++wrong;
        else at<u8>(seen)[number] = 1;
    }
    if (wrong) atomicAdd(at<u64>(found), wrong);
}

// Whether uniques ascend and each was led to. Counts those that do not or were not, and all. grid: any.
KERNEL check_uniques(u64 launch, u64 seen, u64 found) {
    const Lookup& lookup = *at<const Lookup>(launch);
    const u64 step = (u64)gridDim.x * blockDim.x, count = at<const SlotState>(lookup.slot.state)->uniques;
    const u64* unique = at<const u64>(lookup.unique.keys);
    u64 wrong = 0, all = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step, ++all)
        if (!at<const u8>(seen)[i] || (i > 0 && unique[i - 1] >= unique[i])) ++wrong;
    if (wrong) atomicAdd(at<u64>(found), wrong);
    if (all) atomicAdd(at<u64>(found) + 1, all);
}
