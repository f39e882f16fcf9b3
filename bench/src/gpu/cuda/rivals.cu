// What others do, as plainly as it can be done: rows in the order of the request, by loads from pinned memory through unified
// addressing. The table's rows are `stride` bytes apart, the output's follow each other.

// 16 bytes a thread: rows of whole 16 bytes. All lengths in units of 16 bytes.
extern "C" __global__ void gather16(const uint4* table, u64 stride, const long long* ids, uint4* out, u64 count, u64 len) {
    u64 all = count * len, step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step)
        out[i] = table[(u64)ids[i / len] * stride + i % len];
}

// 4 bytes a thread: other rows. All lengths in units of 4 bytes.
extern "C" __global__ void gather4(const u32* table, u64 stride, const long long* ids, u32* out, u64 count, u64 len) {
    u64 all = count * len, step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step)
        out[i] = table[(u64)ids[i / len] * stride + i % len];
}
