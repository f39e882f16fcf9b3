// HugeCTR's gpu_cache of 4 GiB: hugectr_gpu_cache FOLDER ROWS. Prints a line of JSON for each kind of look-up; the files are those of hierarchical_kv.cu.
#include "harness.cuh"
#include <nv_gpu_cache.hpp>


using namespace harness;
using Key = long long;
using Cache = gpu_cache::gpu_cache<Key, uint64_t, std::numeric_limits<Key>::max(), SET_ASSOCIATIVITY, SLAB_SIZE>;

int main(int argc, char** argv) {
    if (argc != 3) return std::fprintf(stderr, "usage: hugectr_gpu_cache FOLDER ROWS\n"), 2;
    const std::string folder = argv[1];
    const uint64_t rows = std::strtoull(argv[2], nullptr, 10);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    Key *ids, *missing_keys;
    float *out, *found_rows;
    uint64_t* missing_index;
    size_t* missing;
    CHECK(cudaMalloc(&ids, BATCH * sizeof(Key)));
    CHECK(cudaMalloc(&missing_keys, BATCH * sizeof(Key)));
    CHECK(cudaMalloc(&out, (uint64_t)BATCH * DIM * 4));
    CHECK(cudaMalloc(&found_rows, (uint64_t)BATCH * DIM * 4));
    CHECK(cudaMalloc(&missing_index, BATCH * 8));
    CHECK(cudaMallocManaged(&missing, 8));
    const std::vector<int> resident = read_ids(folder + "/resident.ids");
    int* resident_ids;
    CHECK(cudaMalloc(&resident_ids, resident.size() * 4));
    CHECK(cudaMemcpy(resident_ids, resident.data(), resident.size() * 4, cudaMemcpyHostToDevice));
    const Batches<Key> uniform(folder, "uniform"), power(folder, "power");

    for (const bool full : {false, true}) {
        Cache cache(CACHE_BYTES / (DIM * 4) / (SET_ASSOCIATIVITY * SLAB_SIZE), DIM);
        const char* filled = full ? "0.75" : "0.06";
        for (uint64_t first = 0; full && first < rows; first += BATCH) {
            const uint64_t count = std::min<uint64_t>(BATCH, rows - first);
            ascending<Key><<<blocks(count), 256, 0, stream>>>(first, count, ids);
            fill_rows<Key><<<132 * 8, 256, 0, stream>>>(ids, 0, count, out);
            cache.Replace(ids, count, out, stream);
        }
        for (uint64_t first = 0; first < resident.size(); first += BATCH) {
            const uint64_t count = std::min<uint64_t>(BATCH, resident.size() - first);
            widen<Key><<<blocks(count), 256, 0, stream>>>(resident_ids + first, count, ids);
            fill_rows<Key><<<132 * 8, 256, 0, stream>>>(ids, 0, count, out);
            cache.Replace(ids, count, out, stream);
        }
        CHECK(cudaStreamSynchronize(stream));
        for (const auto* batches : {&uniform, &power}) {
            // Its Query has a number of keys for each tile of a warp; 1 is its default.
            measure_both<Key>("HugeCTR gpu_cache", filled, *batches, ids, out, 1, stream, "Query", [&] { cache.Query(ids, BATCH, out, missing_index, missing_keys, missing, stream); });
            std::printf("{\"who\": \"HugeCTR gpu_cache\", \"missing in the last batch\": %zu}\n", *missing);
            for (const uint32_t bag : {32u, 1024u}) {
                measure_both<Key>("HugeCTR gpu_cache", filled, *batches, ids, out, bag, stream, "Query, sum", [&] {
                    cache.Query(ids, BATCH, found_rows, missing_index, missing_keys, missing, stream);
                    sum_rows<<<BATCH / bag, DIM, 0, stream>>>(found_rows, bag, out);
                });
            }
        }
    }
    return 0;
}
