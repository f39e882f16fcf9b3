// NVE (nv-embedding-cache), layers LinearUVM: nve hits FOLDER ROWS, or nve shape ROWS SECONDS. Prints lines of JSON.
//   hits   a cache of 4 GiB before a table in pinned memory, rows of which all lie in the cache; the files are those of hierarchical_kv.cu
//   shape  the published benchmark of one GPU: 256 samples of 1,024 ids by a power law of 1.05, a cache of a tenth of the rows, which learns for SECONDS
#include <chrono>
#include <gpu_table.hpp>
#include <insert_heuristic.hpp>
#include <linear_embedding_layer.hpp>

#include "harness.cuh"

using namespace harness;
using Key = int64_t;
using Table = nve::GpuTable<Key>;
using Layer = nve::LinearUVMEmbeddingLayer<Key>;

struct Cached {
    std::shared_ptr<Table> table;
    std::shared_ptr<Layer> layer;
    nve::context_ptr_t context;

    Cached(void* rows, uint64_t cache_bytes, bool learns, cudaStream_t stream) {
        nve::GPUTableConfig config;
        config.device_id = 0;
        config.cache_size = cache_bytes;
        config.row_size_in_bytes = DIM * 4;
        config.uvm_table = rows;
        config.value_dtype = nve::DataType_t::Float32;
        config.count_misses = true;
        table = std::make_shared<Table>(config);
        Layer::Config of_layer;
        // A heuristic that never inserts spares a cache of hits alone the count of its misses, and the wait for it.
        if (!learns) of_layer.insert_heuristic = std::make_shared<nve::NeverInsertHeuristic>();
        layer = std::make_shared<Layer>(of_layer, table);
        context = layer->create_execution_context(stream, stream, nullptr, nullptr);
    }
    ~Cached() {
        context->wait();
        context.reset();
    }
};

static float* pinned_rows(uint64_t rows, cudaStream_t stream) {
    float* table;
    CHECK(cudaHostAlloc(&table, rows * DIM * 4, cudaHostAllocMapped));
    fill_rows<Key><<<132 * 8, 256, 0, stream>>>(nullptr, 0, rows, table);
    CHECK(cudaStreamSynchronize(stream));
    return table;
}

static int hits(const std::string& folder, uint64_t rows) {
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    float* table = pinned_rows(rows, stream);
    Key *ids, *hotness;
    float* out;
    Key* offsets;
    CHECK(cudaMalloc(&ids, BATCH * sizeof(Key)));
    CHECK(cudaMalloc(&out, (uint64_t)BATCH * DIM * 4));
    CHECK(cudaMalloc(&offsets, (BATCH + 1) * sizeof(Key)));
    CHECK(cudaHostAlloc(&hotness, (BATCH + 1) * sizeof(Key), cudaHostAllocMapped));
    const std::vector<int> resident = read_ids(folder + "/resident.ids");
    int* resident_ids;
    CHECK(cudaMalloc(&resident_ids, resident.size() * 4));
    CHECK(cudaMemcpy(resident_ids, resident.data(), resident.size() * 4, cudaMemcpyHostToDevice));
    const Batches<Key> uniform(folder, "uniform"), power(folder, "power");

    for (const bool full : {false, true}) {
        Cached cached(table, CACHE_BYTES, false, stream);
        const char* filled = full ? "0.75" : "0.06";
        const auto insert = [&](uint64_t count) {
            fill_rows<Key><<<132 * 8, 256, 0, stream>>>(ids, 0, count, out);
            cached.layer->insert(cached.context, (int64_t)count, ids, DIM * 4, DIM * 4, out, 0);
            CHECK(cudaStreamSynchronize(stream));
        };
        for (uint64_t first = 0; full && first < rows; first += BATCH) {
            const uint64_t count = std::min<uint64_t>(BATCH, rows - first);
            ascending<Key><<<blocks(count), 256, 0, stream>>>(first, count, ids);
            insert(count);
        }
        for (int again = 0; again < 3; ++again) {
            for (uint64_t first = 0; first < resident.size(); first += BATCH) {
                const uint64_t count = std::min<uint64_t>(BATCH, resident.size() - first);
                widen<Key><<<blocks(count), 256, 0, stream>>>(resident_ids + first, count, ids);
                insert(count);
            }
        }
        for (const auto* batches : {&uniform, &power}) {
            float share = 0;
            batches->put(0, ids, stream);
            cached.layer->lookup(cached.context, BATCH, ids, out, DIM * 4, nullptr, nullptr, &share);
            std::printf("{\"who\": \"NVE\", \"filled\": \"%s\", \"ids\": \"%s\", \"hits\": %.6f}\n", filled, batches->name.c_str(), share);
            measure_both<Key>("NVE", filled, *batches, ids, out, 1, stream, "lookup", [&] { cached.layer->lookup(cached.context, BATCH, ids, out, DIM * 4, nullptr, nullptr, nullptr); });
            for (const uint32_t bag : {32u, 1024u}) {
                nve::EmbeddingLayerBase::PoolingParams pooling;
                pooling.pooling_type = nve::PoolingType_t::Sum;
                pooling.sparse_type = nve::SparseType_t::Fixed;
                for (uint32_t i = 0; i <= BATCH / bag; ++i) hotness[i] = bag;
                pooling.key_indices = hotness;
                pooling.num_key_indices = BATCH / bag + 1;
                measure_both<Key>("NVE", filled, *batches, ids, out, bag, stream, "lookup, pooled", [&] { cached.layer->lookup(cached.context, BATCH, ids, out, DIM * 4, nullptr, &pooling, nullptr); });
            }
        }
    }
    return 0;
}

__device__ uint64_t mixed(uint64_t it) {
    it = (it ^ (it >> 30)) * 0xbf58476d1ce4e5b9ull;
    it = (it ^ (it >> 27)) * 0x94d049bb133111ebull;
    return it ^ (it >> 31);
}

// Ids by a power law, whose ranks are spread over the rows (a power of two of them).
__global__ void draw(uint64_t seed, uint64_t rows, double alpha, Key* ids) {
    const uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (i >= BATCH) return;
    const double uniform = (double)(mixed(seed * BATCH + i + 0x9e3779b97f4a7c15ull) >> 11) / 9007199254740992.0, power = 1 - alpha;
    const uint64_t rank = (uint64_t)(pow(1 + uniform * (pow((double)rows, power) - 1), 1 / power)) - 1;
    ids[i] = (Key)((rank < rows ? rank : rows - 1) * 0x9e3779b1ull + 12345 & (rows - 1));
}

static int shape(uint64_t rows, double seconds) {
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    float* table = pinned_rows(rows, stream);
    constexpr int STEPS = 100;
    std::vector<Key*> ids(STEPS);
    for (Key*& it : ids) CHECK(cudaMalloc(&it, BATCH * sizeof(Key)));
    float* out;
    unsigned long long* wrong;
    CHECK(cudaMalloc(&out, (uint64_t)BATCH * DIM * 4));
    CHECK(cudaMallocManaged(&wrong, 8));
    *wrong = 0;
    Cached cached(table, rows / 10 * DIM * 4, true, stream);
    const auto began = std::chrono::steady_clock::now();
    const auto elapsed = [](auto since) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count(); };
    uint64_t seed = 1, steps = 0;
    while (elapsed(began) < seconds) {
        for (int i = 0; i < STEPS; ++i, ++steps) {
            draw<<<BATCH / 256, 256, 0, stream>>>(seed++, rows, 1.05, ids[0]);
            cached.layer->lookup(cached.context, BATCH, ids[0], out, DIM * 4, nullptr, nullptr, nullptr);
        }
    }
    float share = 0;
    for (Key* it : ids) draw<<<BATCH / 256, 256, 0, stream>>>(seed++, rows, 1.05, it);
    cached.layer->lookup(cached.context, BATCH, ids[0], out, DIM * 4, nullptr, nullptr, &share);
    CHECK(cudaDeviceSynchronize());
    const auto from = std::chrono::steady_clock::now();
    for (Key* it : ids) cached.layer->lookup(cached.context, BATCH, it, out, DIM * 4, nullptr, nullptr, nullptr);
    CHECK(cudaDeviceSynchronize());
    const double taken = elapsed(from);
    compare<Key><<<132 * 8, 256, 0, stream>>>(ids.back(), BATCH, 1, out, wrong);
    CHECK(cudaDeviceSynchronize());
    std::printf("{\"who\": \"NVE\", \"what\": \"shape\", \"rows\": %llu, \"batches that it learnt from\": %llu, \"hits\": %.4f, \"us\": %.1f, \"M ids/s\": %.1f, \"wrong\": %llu}\n", (unsigned long long)rows,
                (unsigned long long)steps, share, taken / STEPS * 1e6, STEPS * (double)BATCH / taken / 1e6, *wrong);
    return 0;
}

int main(int argc, char** argv) {
    if (argc == 4 && std::string(argv[1]) == "hits") return hits(argv[2], std::strtoull(argv[3], nullptr, 10));
    if (argc == 4 && std::string(argv[1]) == "shape") return shape(std::strtoull(argv[2], nullptr, 10), std::atof(argv[3]));
    return std::fprintf(stderr, "usage: nve hits FOLDER ROWS | nve shape ROWS SECONDS\n"), 2;
}
