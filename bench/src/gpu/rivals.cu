// What others do, as plainly as it can be done.

// Rows in the order of the request, by loads from pinned memory through unified addressing, 16 bytes a thread.
extern "C" __global__ void gather(const uint4* table, const long long* ids, uint4* out, unsigned long long count,
                                  unsigned long long quads) {
    unsigned long long all = count * quads, step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step)
        out[i] = table[(unsigned long long)ids[i / quads] * quads + i % quads];
}
