// What the programs of rivals' caches have in common: ids from files, rows with a content that is known, times by the GPU's clock, and the comparison of every row.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#define CHECK(call)                                                                                        \
    do {                                                                                                   \
        const cudaError_t error = (call);                                                                  \
        if (error != cudaSuccess) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error)); \
            std::exit(1);                                                                                  \
        }                                                                                                  \
    } while (0)

namespace harness {

constexpr int DIM = 128;         // elements of a row, f32: rows of 512 B
constexpr int BATCH = 262144;    // ids of a look-up
constexpr int WARM_UP = 10;      // look-ups of each kind that do not count
constexpr double PATIENCE = 1e6;  // microseconds of look-ups of a kind; fewer are measured where they take longer, and half of them do not count
constexpr uint64_t CACHE_BYTES = 4ull << 30;

// Element `element` of the row of `id`: an integer below 256, so that sums of 1,024 rows are exact in any order. caches.py has the same formula.
__host__ __device__ inline float element_of(uint64_t id, uint32_t element) { return (float)(((uint32_t)id * 2654435761u + element * 2246822519u) >> 24); }

template <class Key> __global__ void fill_rows(const Key* ids, uint64_t first, uint64_t count, float* rows) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count * DIM; i += (uint64_t)gridDim.x * blockDim.x)
        rows[i] = element_of(ids == nullptr ? first + i / DIM : (uint64_t)ids[i / DIM], i % DIM);
}

template <class Key> __global__ void widen(const int* from, uint64_t count, Key* to) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x) to[i] = (Key)from[i];
}

template <class Key> __global__ void ascending(uint64_t first, uint64_t count, Key* to) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x) to[i] = (Key)(first + i);
}

// Counts elements that are not what they should be. A bag of 1: rows as they are.
template <class Key> __global__ void compare(const Key* ids, uint64_t bags, uint32_t bag, const float* rows, unsigned long long* wrong) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < bags * DIM; i += (uint64_t)gridDim.x * blockDim.x) {
        float sum = 0;
        for (uint32_t j = 0; j < bag; ++j) sum += element_of((uint64_t)ids[i / DIM * bag + j], i % DIM);
        if (rows[i] != sum) atomicAdd(wrong, 1ull);
    }
}

// Sums of bags of rows that lie one after the other, as users write it where a cache gives rows: a block a bag, a thread an element, 16 loads under way.
__global__ void sum_rows(const float* rows, uint32_t bag, float* sums) {
    const float* from = rows + (uint64_t)blockIdx.x * bag * DIM + threadIdx.x;
    float sum = 0;
#pragma unroll 16
    for (uint32_t j = 0; j < bag; ++j) sum += from[(uint64_t)j * DIM];
    sums[(uint64_t)blockIdx.x * DIM + threadIdx.x] = sum;
}

// Sums of bags of rows that are given by their addresses.
__global__ void sum_pointers(float* const* rows, uint32_t bag, float* sums) {
    float* const* from = rows + (uint64_t)blockIdx.x * bag;
    float sum = 0;
#pragma unroll 16
    for (uint32_t j = 0; j < bag; ++j) sum += from[j][threadIdx.x];
    sums[(uint64_t)blockIdx.x * DIM + threadIdx.x] = sum;
}

// Holds a stream until the host has enqueued what is measured; no longer than half a millisecond, for some calls wait for their stream.
__global__ void hold(const volatile int* go) {
    uint64_t began, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (*go == 0 && now - began < 500000);
}

inline int blocks(uint64_t threads) { return (int)std::min<uint64_t>((threads + 255) / 256, 132 * 16); }

inline std::vector<int> read_ids(const std::string& path) {
    FILE* file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) std::fprintf(stderr, "%s cannot be read\n", path.c_str()), std::exit(1);
    std::fseek(file, 0, SEEK_END);
    std::vector<int> ids(std::ftell(file) / 4);
    std::rewind(file);
    if (std::fread(ids.data(), 4, ids.size(), file) != ids.size()) std::exit(1);
    std::fclose(file);
    return ids;
}

// Batches of ids on the GPU, one of which lies where calls read it.
template <class Key> struct Batches {
    std::string name;
    std::vector<int> host;
    int* all = nullptr;
    int count = 0;

    Batches(const std::string& folder, const std::string& name) : name(name), host(read_ids(folder + "/" + name + ".ids")) {
        count = (int)(host.size() / BATCH);
        CHECK(cudaMalloc(&all, host.size() * 4));
        CHECK(cudaMemcpy(all, host.data(), host.size() * 4, cudaMemcpyHostToDevice));
    }
    void put(int batch, Key* to, cudaStream_t stream) const { widen<Key><<<blocks(BATCH), 256, 0, stream>>>(all + (uint64_t)batch * BATCH, BATCH, to); }
};

struct Times {
    double median, low, high;
    unsigned long long wrong;
};

// Times of `call`, each for ids of its own. `bag`: 1 for rows, or the ids of a sum.
template <class Key> Times measure(const Batches<Key>& batches, Key* ids, float* out, uint32_t bag, cudaStream_t stream, const std::function<void()>& call) {
    static int *go = nullptr, *device_go;
    static unsigned long long* wrong;
    static cudaEvent_t from, to;
    if (go == nullptr) {
        CHECK(cudaHostAlloc(&go, 4, cudaHostAllocMapped));
        CHECK(cudaHostGetDevicePointer(&device_go, go, 0));
        CHECK(cudaMallocManaged(&wrong, 8));
        CHECK(cudaEventCreate(&from));
        CHECK(cudaEventCreate(&to));
    }
    *wrong = 0;
    std::vector<double> times;
    double all = 0;
    for (int batch = 0; batch < batches.count && all < PATIENCE; ++batch) {
        batches.put(batch, ids, stream);
        CHECK(cudaMemsetAsync(out, 0xff, (uint64_t)BATCH / bag * DIM * 4, stream));
        CHECK(cudaStreamSynchronize(stream));
        *(volatile int*)go = 0;
        hold<<<1, 1, 0, stream>>>(device_go);
        CHECK(cudaEventRecord(from, stream));
        call();
        CHECK(cudaEventRecord(to, stream));
        *(volatile int*)go = 1;
        CHECK(cudaStreamSynchronize(stream));
        float taken;
        CHECK(cudaEventElapsedTime(&taken, from, to));
        times.push_back(taken * 1e3);
        all += taken * 1e3;
        compare<Key><<<132 * 8, 256, 0, stream>>>(ids, BATCH / bag, bag, out, wrong);
    }
    CHECK(cudaStreamSynchronize(stream));
    times.erase(times.begin(), times.begin() + std::min<size_t>(WARM_UP, times.size() / 2));
    std::sort(times.begin(), times.end());
    return Times{times[times.size() / 2], times[times.size() / 20], times[times.size() * 19 / 20], *wrong};
}

inline void print(const char* who, const char* filled, const std::string& ids, const char* what, uint32_t bag, const Times& times) {
    std::printf("{\"who\": \"%s\", \"filled\": \"%s\", \"ids\": \"%s\", \"what\": \"%s\", \"bag\": %u, \"us\": %.1f, \"p5\": %.1f, \"p95\": %.1f, \"wrong\": %llu}\n", who, filled, ids.c_str(),
                what, bag, times.median, times.low, times.high, times.wrong);
    std::fflush(stdout);
}

// As `measure`, of a graph of `call`; nothing is printed where it cannot be captured.
template <class Key> void measure_both(const char* who, const char* filled, const Batches<Key>& batches, Key* ids, float* out, uint32_t bag, cudaStream_t stream, const std::string& what, const std::function<void()>& call) {
    print(who, filled, batches.name, what.c_str(), bag, measure<Key>(batches, ids, out, bag, stream, call));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t run = nullptr;
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (error == cudaSuccess) {
        try {
            call();
        } catch (...) {
        }
        error = cudaStreamEndCapture(stream, &graph);
    }
    if (error == cudaSuccess && graph != nullptr) error = cudaGraphInstantiate(&run, graph, 0);
    if (error != cudaSuccess || run == nullptr) {
        cudaGetLastError();
        std::printf("{\"who\": \"%s\", \"what\": \"%s\", \"graph\": \"cannot be captured: %s\"}\n", who, what.c_str(), cudaGetErrorString(error));
        return;
    }
    print(who, filled, batches.name, (what + ", graph").c_str(), bag, measure<Key>(batches, ids, out, bag, stream, [&] { CHECK(cudaGraphLaunch(run, stream)); }));
    CHECK(cudaGraphExecDestroy(run));
    CHECK(cudaGraphDestroy(graph));
}

}  // namespace harness
