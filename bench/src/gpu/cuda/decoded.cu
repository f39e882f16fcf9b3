// The comparison of looked-up rows of any elements with f32s that the processor has made of the same rows.
#include "common.cuh"

// Adds to `found`: elements that are wrong, and all.
DEVICE void tell(u64 found, u64 wrong, u64 seen) {
    if (wrong) atomicAdd(at<u64>(found), wrong);
    if (seen) atomicAdd(at<u64>(found) + 1, seen);
}

// Rows one after another, of `dim` elements. grid: any.
KERNEL check_decoded(u64 out, u64 ids, u64 count, u64 dim, u64 decoded, u64 found) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    u64 wrong = 0, seen = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count * dim; i += step, ++seen)
        if (at<const u32>(out)[i] != at<const u32>(decoded)[at<const u64>(ids)[i / dim] * dim + i % dim]) ++wrong;
    tell(found, wrong, seen);
}

// Sums of bags of `hot` ids, in their order, from +0. grid: any.
KERNEL check_decoded_sums(u64 out, u64 ids, u64 bags, u64 hot, u64 dim, u64 decoded, u64 found) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    u64 wrong = 0, seen = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < bags * dim; i += step, ++seen) {
        float sum = 0.0f;
        for (u64 j = i / dim * hot; j < (i / dim + 1) * hot; ++j)
            sum = __fadd_rn(sum, at<const float>(decoded)[at<const u64>(ids)[j] * dim + i % dim]);
        if (at<const u32>(out)[i] != __float_as_uint(sum)) ++wrong;
    }
    tell(found, wrong, seen);
}
