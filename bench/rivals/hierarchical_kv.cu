// HierarchicalKV as a table wholly in GPU memory, 8,388,608 rows of 512 B: hierarchical_kv FOLDER ROWS. Prints a line of JSON for each kind of look-up.
// FOLDER has the files of ids that caches.py writes: resident.ids, uniform.ids and power.ids. ROWS rows, from 0 on, are inserted before the
// resident ones, which decides the load factor. A process measures one load factor, for HierarchicalKV chooses kernels by the one that it saw at first.
#include "harness.cuh"
#include "merlin_hashtable.cuh"

using namespace harness;
using Key = uint64_t;
using Table = nv::merlin::HashTable<Key, float, uint64_t, nv::merlin::EvictStrategy::kLru>;

int main(int argc, char** argv) {
    if (argc != 3) return std::fprintf(stderr, "usage: hierarchical_kv FOLDER ROWS\n"), 2;
    const std::string folder = argv[1];
    const uint64_t rows = std::strtoull(argv[2], nullptr, 10);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    Key* ids;
    float *out, **pointers;
    bool* found;
    CHECK(cudaMalloc(&ids, BATCH * sizeof(Key)));
    CHECK(cudaMalloc(&out, (uint64_t)BATCH * DIM * 4));
    CHECK(cudaMalloc(&pointers, BATCH * sizeof(float*)));
    CHECK(cudaMalloc(&found, BATCH));
    const std::vector<int> resident = read_ids(folder + "/resident.ids");
    int* resident_ids;
    CHECK(cudaMalloc(&resident_ids, resident.size() * 4));
    CHECK(cudaMemcpy(resident_ids, resident.data(), resident.size() * 4, cudaMemcpyHostToDevice));
    const Batches<Key> uniform(folder, "uniform"), power(folder, "power");

    for (const bool tuned : {false, true}) {
        const char* who = tuned ? "HierarchicalKV, no locks, large allocations" : "HierarchicalKV";
        Table table;
        nv::merlin::HashTableOptions options;
        options.init_capacity = options.max_capacity = CACHE_BYTES / (DIM * 4);
        options.dim = DIM;
        options.max_hbm_for_vectors = 2 * CACHE_BYTES;
        if (tuned) {
            options.api_lock = false;
            options.num_of_buckets_per_alloc = 4096;
        }
        table.init(options);
        for (uint64_t first = 0; first < rows; first += BATCH) {
            const uint64_t count = std::min<uint64_t>(BATCH, rows - first);
            ascending<Key><<<blocks(count), 256, 0, stream>>>(first, count, ids);
            fill_rows<Key><<<132 * 8, 256, 0, stream>>>(ids, 0, count, out);
            table.insert_or_assign(count, ids, out, nullptr, stream);
        }
        for (uint64_t first = 0; first < resident.size(); first += BATCH) {
            const uint64_t count = std::min<uint64_t>(BATCH, resident.size() - first);
            widen<Key><<<blocks(count), 256, 0, stream>>>(resident_ids + first, count, ids);
            fill_rows<Key><<<132 * 8, 256, 0, stream>>>(ids, 0, count, out);
            table.insert_or_assign(count, ids, out, nullptr, stream);
        }
        CHECK(cudaStreamSynchronize(stream));
        char filled[16];
        std::snprintf(filled, sizeof filled, "%.2f", table.load_factor(stream));
        std::printf("{\"who\": \"%s\", \"filled\": \"%s\", \"rows\": %zu}\n", who, filled, table.size(stream));
        for (const auto* batches : {&uniform, &power}) {
            measure_both<Key>(who, filled, *batches, ids, out, 1, stream, "find", [&] { table.find(BATCH, ids, out, found, nullptr, stream); });
            for (const uint32_t bag : {32u, 1024u}) {
                // No graph: it asks for its load factor now and then, and waits for the answer.
                const Times times = measure<Key>(*batches, ids, out, bag, stream, [&] {
                    table.find(BATCH, ids, pointers, found, nullptr, stream, true);
                    sum_pointers<<<BATCH / bag, DIM, 0, stream>>>(pointers, bag, out);
                });
                print(who, filled, batches->name, "find addresses, sum", bag, times);
            }
        }
    }
    return 0;
}
