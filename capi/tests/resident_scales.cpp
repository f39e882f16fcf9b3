// Rows of codes in a checkpoint, whose scales lie in GPU memory: the same bits as of the tensor with its scales beside it, by the same calls,
// and the numbers that the formats' definition gives. Where there is no GPU, the program says so and ends.

#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <warprow.h>

namespace {

constexpr uint64_t rows = 3'000;
constexpr size_t dim = 64, blocks = dim / 32;

void require(bool holds, const std::string &what) {
    if (!holds) {
        throw std::runtime_error("wrong: " + what);
    }
}

void check(warprow_status status, warprow_error **error) {
    if (status != WARPROW_STATUS_OK) {
        const std::string message = warprow_error_message(*error);
        warprow_error_free(*error);
        throw std::runtime_error(message);
    }
}

struct Cuda {
    using Pointer = unsigned long long;

    Cuda() : library(dlopen("libcuda.so.1", RTLD_NOW)) {
        require(library != nullptr, "libcuda.so.1 can be loaded");
        int device = 0;
        void *context = nullptr;
        call<int (*)(unsigned)>("cuInit", 0u);
        call<int (*)(int *, int)>("cuDeviceGet", &device, 0);
        call<int (*)(void **, int)>("cuDevicePrimaryCtxRetain", &context, device);
        call<int (*)(void *)>("cuCtxSetCurrent", context);
    }

    template <typename F, typename... A>
    void call(const char *name, A... arguments) const {
        const F function = reinterpret_cast<F>(dlsym(library, name));
        require(function != nullptr, std::string("libcuda.so.1 has ") + name);
        const int code = function(arguments...);
        require(code == 0, std::string(name) + " returned " + std::to_string(code));
    }

    Pointer holding(const void *bytes, size_t count) const {
        Pointer memory = 0;
        call<int (*)(Pointer *, size_t)>("cuMemAlloc_v2", &memory, count);
        call<int (*)(Pointer, const void *, size_t)>("cuMemcpyHtoD_v2", memory, bytes, count);
        return memory;
    }

    void *library;
};

// What a code of E4M3 stands for.
float number(uint8_t code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                     : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    return (code & 128) != 0 ? -size : size;
}

// Rows by a plan on the GPU.
std::vector<float> looked_up(const Cuda &cuda, const std::string &address, const char *table, const std::vector<int64_t> &ids,
                             const warprow_resident_scales *scales) {
    const char *drives[] = {address.c_str()};
    warprow_error *error = nullptr;
    warprow_open_options reading{};
    reading.struct_size = sizeof reading;
    reading.access = WARPROW_ACCESS_READ_ONLY;
    warprow_store *store = nullptr;
    check(warprow_store_open(WARPROW_ABI_VERSION, drives, 1, &reading, &store, &error), &error);
    warprow_gpu_executor *executor = nullptr;
    check(warprow_gpu_executor_attach(store, 0, nullptr, &executor, &error), &error);
    warprow_feature feature{};
    feature.struct_size = sizeof feature;
    feature.table = table;
    warprow_plan_options options{};
    options.struct_size = sizeof options;
    options.max_batch = options.max_ids = ids.size();
    options.missing = WARPROW_MISSING_ZERO;
    options.bounds = WARPROW_BOUNDS_IGNORE;
    options.scales = scales;
    options.scale_count = scales == nullptr ? 0 : 1;
    warprow_gpu_plan *plan = nullptr;
    check(warprow_gpu_executor_plan(executor, &feature, 1, &options, &plan, &error), &error);
    warprow_gpu_slot *slot = nullptr;
    check(warprow_gpu_plan_slot(plan, &slot, &error), &error);
    std::vector<float> found(ids.size() * dim, 7.0f);
    const Cuda::Pointer ids_there = cuda.holding(ids.data(), ids.size() * sizeof(int64_t));
    const Cuda::Pointer rows_there = cuda.holding(found.data(), found.size() * sizeof(float));
    warprow_batch batch{};
    batch.struct_size = sizeof batch;
    batch.ids = reinterpret_cast<const void *>(ids_there);
    batch.id_count = batch.batch = ids.size();
    warprow_output output{};
    output.struct_size = sizeof output;
    output.rows = reinterpret_cast<void *>(rows_there);
    output.elements = found.size();
    output.dtype = WARPROW_DTYPE_F32;
    warprow_gpu_ticket *ticket = nullptr;
    check(warprow_gpu_slot_lookup(slot, nullptr, &batch, &output, &ticket, &error), &error);
    int32_t ended = 0;
    check(warprow_gpu_ticket_wait(ticket, 10'000, &ended, nullptr, &error), &error);
    require(ended == 1, "the look-up ended");
    cuda.call<int (*)(void *, Cuda::Pointer, size_t)>("cuMemcpyDtoH_v2", static_cast<void *>(found.data()), rows_there,
                                                      found.size() * sizeof(float));
    warprow_gpu_ticket_close(ticket, nullptr);
    warprow_gpu_slot_close(slot, nullptr);
    warprow_gpu_plan_close(plan, nullptr);
    warprow_gpu_executor_close(executor, nullptr);
    warprow_store_close(store, nullptr);
    cuda.call<int (*)(Cuda::Pointer)>("cuMemFree_v2", ids_there);
    cuda.call<int (*)(Cuda::Pointer)>("cuMemFree_v2", rows_there);
    return found;
}

void run(const std::string &file) {
    std::vector<uint8_t> codes(rows * dim), scales(rows * blocks);
    uint32_t state = 5;
    const auto next = [&state] { return state = state * 1'664'525u + 1'013'904'223u, static_cast<uint8_t>(state >> 24); };
    for (uint8_t &code : codes) {
        code = next();
        // 127 and 255 are not numbers.
        code = (code & 127) == 127 ? static_cast<uint8_t>(code - 1) : code;
    }
    for (uint8_t &scale : scales) {
        scale = static_cast<uint8_t>(120 + next() % 16);
    }
    const std::string path = file + ".safetensors", ends = std::to_string(codes.size());
    const std::string header = "{\"t.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[3000,64],\"data_offsets\":[0," + ends +
                               "]},\"t.scale\":{\"dtype\":\"F8_E8M0\",\"shape\":[3000,2],\"data_offsets\":[" + ends + "," +
                               std::to_string(codes.size() + scales.size()) + "]}}";
    const uint64_t length = header.size();
    std::ofstream written(path, std::ios::binary);
    written.write(reinterpret_cast<const char *>(&length), sizeof length);
    written.write(header.data(), static_cast<std::streamsize>(header.size()));
    written.write(reinterpret_cast<const char *>(codes.data()), static_cast<std::streamsize>(codes.size()));
    written.write(reinterpret_cast<const char *>(scales.data()), static_cast<std::streamsize>(scales.size()));
    written.close();

    const Cuda cuda;
    warprow_resident_scales resident{};
    resident.struct_size = sizeof resident;
    resident.table = "t";
    const Cuda::Pointer scales_there = cuda.holding(scales.data(), scales.size());
    resident.scales = reinterpret_cast<const void *>(scales_there);
    resident.bytes = scales.size();
    for (const size_t count : {48, 2'000, 20'000}) {
        std::vector<int64_t> ids(count);
        for (size_t n = 0; n < count; n++) {
            // Some are padding, and some are beyond the table.
            ids[n] = static_cast<int64_t>((n * 7'919 + count) % (rows + 20)) - 10;
        }
        const std::vector<float> beside = looked_up(cuda, "attached:" + path + ",tensor=t=t.weight", "t", ids, nullptr);
        const std::vector<float> found = looked_up(cuda, "attached:" + path + ",tensor=t=t.weight,scales=", "t", ids, &resident);
        require(std::memcmp(found.data(), beside.data(), found.size() * sizeof(float)) == 0, "the bits of scales beside the rows");
        size_t there = 0;
        for (size_t n = 0; n < count; n++) {
            const bool has_row = ids[n] >= 0 && ids[n] < static_cast<int64_t>(rows);
            there += has_row;
            for (size_t column = 0; column < dim; column++) {
                const size_t row = has_row ? static_cast<size_t>(ids[n]) : 0;
                const float scale = std::ldexp(1.0f, scales[row * blocks + column / 32] - 127);
                const float wanted = has_row ? number(codes[row * dim + column]) * scale : 0.0f;
                require(found[n * dim + column] == wanted, "element " + std::to_string(column) + " of id " + std::to_string(ids[n]));
            }
        }
        require(there > count * 9 / 10, "most ids have rows");
    }
    cuda.call<int (*)(Cuda::Pointer)>("cuMemFree_v2", scales_there);
    std::printf("every row is right\n");
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s FILE: beside it a checkpoint is written\n", argv[0]);
        return 2;
    }
    if (warprow_gpu_count() == 0) {
        std::printf("skipped: there is no GPU, or no CUDA driver\n");
        return 0;
    }
    try {
        run(argv[1]);
    } catch (const std::exception &failure) {
        std::fprintf(stderr, "%s\n", failure.what());
        return 1;
    }
    const size_t open = warprow_open_handles();
    if (open != 0) {
        std::fprintf(stderr, "%zu handles are open\n", open);
        return 1;
    }
    return 0;
}
