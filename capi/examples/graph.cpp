// Captures a look-up in a CUDA graph and replays it with other ids. The emulated drive's commands are written by the GPU itself. CUDA's
// driver is loaded when the program runs; where there is none, or no GPU, the program says so and ends.
//
//     c++ -std=c++17 graph.cpp $(pkg-config --cflags --libs warprow) -ldl -o graph && ./graph /tmp/a.drive
//
// A program that is compiled with nvcc calls the CUDA runtime (cudaStreamBeginCapture and so on) in the same places: its cudaStream_t is
// what warprow.h takes.

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <warprow.h>

namespace {

constexpr uint64_t rows = 20'000;
constexpr size_t dim = 64;
constexpr size_t ids_of_batch = 1'000;
constexpr int replays = 5;

float element(uint64_t id, size_t column) { return static_cast<float>(id) + static_cast<float>(column) / 64.0f; }

// An error of the library's, as an exception of this program's.
void check(warprow_status status, warprow_error **error) {
    std::unique_ptr<warprow_error, void (*)(warprow_error *)> owned(*error, warprow_error_free);
    if (status != WARPROW_STATUS_OK) {
        throw std::runtime_error(warprow_error_message(*error));
    }
}

void require(bool holds, const std::string &what) {
    if (!holds) {
        throw std::runtime_error("wrong: " + what);
    }
}

// A handle that is closed at the end of its scope.
template <typename T>
class Handle {
public:
    using Close = warprow_status (*)(T *, warprow_error **);

    explicit Handle(Close close) : close_(close) {}
    Handle(const Handle &) = delete;
    Handle &operator=(const Handle &) = delete;
    ~Handle() { close_(handle_, nullptr); }

    T *get() const { return handle_; }
    T **out() { return &handle_; }

private:
    Close close_;
    T *handle_ = nullptr;
};

// What is called of CUDA's driver.
class Cuda {
public:
    using Pointer = unsigned long long;

    Cuda() : library_(dlopen("libcuda.so.1", RTLD_NOW)) {
        require(library_ != nullptr, "libcuda.so.1 can be loaded");
        find(init, "cuInit");
        find(get_device, "cuDeviceGet");
        find(retain, "cuDevicePrimaryCtxRetain");
        find(set_current, "cuCtxSetCurrent");
        find(create_stream, "cuStreamCreate");
        find(synchronize, "cuStreamSynchronize");
        find(begin_capture, "cuStreamBeginCapture_v2");
        find(end_capture, "cuStreamEndCapture");
        find(instantiate, "cuGraphInstantiateWithFlags");
        find(launch, "cuGraphLaunch");
        find(destroy_exec, "cuGraphExecDestroy");
        find(destroy_graph, "cuGraphDestroy");
        find(destroy_stream, "cuStreamDestroy_v2");
        find(allocate, "cuMemAlloc_v2");
        find(release, "cuMemFree_v2");
        find(to_gpu, "cuMemcpyHtoDAsync_v2");
        find(from_gpu, "cuMemcpyDtoHAsync_v2");
    }

    void call(int result, const char *what) const {
        require(result == 0, std::string(what) + " returned " + std::to_string(result));
    }

    int (*init)(unsigned) = nullptr;
    int (*get_device)(int *, int) = nullptr;
    int (*retain)(void **, int) = nullptr;
    int (*set_current)(void *) = nullptr;
    int (*create_stream)(CUstream_st **, unsigned) = nullptr;
    int (*synchronize)(CUstream_st *) = nullptr;
    int (*begin_capture)(CUstream_st *, int) = nullptr;
    int (*end_capture)(CUstream_st *, void **) = nullptr;
    int (*instantiate)(void **, void *, unsigned long long) = nullptr;
    int (*launch)(void *, CUstream_st *) = nullptr;
    int (*destroy_exec)(void *) = nullptr;
    int (*destroy_graph)(void *) = nullptr;
    int (*destroy_stream)(CUstream_st *) = nullptr;
    int (*allocate)(Pointer *, size_t) = nullptr;
    int (*release)(Pointer) = nullptr;
    int (*to_gpu)(Pointer, const void *, size_t, CUstream_st *) = nullptr;
    int (*from_gpu)(void *, Pointer, size_t, CUstream_st *) = nullptr;

private:
    template <typename F>
    void find(F &function, const char *name) {
        function = reinterpret_cast<F>(dlsym(library_, name));
        require(function != nullptr, std::string("libcuda.so.1 has ") + name);
    }

    void *library_;
};

void load(warprow_store *store) {
    std::vector<float> elements(rows * dim);
    for (uint64_t id = 0; id < rows; id++) {
        for (size_t column = 0; column < dim; column++) {
            elements[id * dim + column] = element(id, column);
        }
    }
    warprow_table_source table{};
    table.struct_size = sizeof table;
    table.name = "user";
    table.rows = rows;
    table.dim = dim;
    table.dtype = WARPROW_DTYPE_F32;
    table.data = elements.data();
    table.data_bytes = elements.size() * sizeof(float);
    warprow_error *error = nullptr;
    check(warprow_store_load(store, "model", &table, 1, nullptr, nullptr, &error), &error);
}

// The ids of a replay: all over the table.
std::vector<int64_t> ids_of(int replay) {
    std::vector<int64_t> ids(ids_of_batch);
    for (size_t n = 0; n < ids.size(); n++) {
        ids[n] = static_cast<int64_t>((n * 7'919 + static_cast<size_t>(replay) * 13) % rows);
    }
    return ids;
}

void run(const std::string &file) {
    const std::string address = "emulated:" + file + "?size=64M";
    const char *drives[] = {address.c_str()};
    warprow_error *error = nullptr;
    Handle<warprow_store> store(warprow_store_close);
    check(warprow_store_format(WARPROW_ABI_VERSION, drives, 1, nullptr, store.out(), &error), &error);
    load(store.get());

    // A tenth of the rows in GPU memory, a tenth in pinned memory, the others on the drive.
    warprow_gpu_options options{};
    options.struct_size = sizeof options;
    options.hbm_bytes = options.dram_bytes = rows / 10 * dim * sizeof(float);
    Handle<warprow_gpu_executor> executor(warprow_gpu_executor_close);
    check(warprow_gpu_executor_attach(store.get(), 0, &options, executor.out(), &error), &error);

    warprow_feature feature{};
    feature.struct_size = sizeof feature;
    feature.table = "user";
    warprow_plan_options planned{};
    planned.struct_size = sizeof planned;
    planned.max_batch = planned.max_ids = ids_of_batch;
    Handle<warprow_gpu_plan> plan(warprow_gpu_plan_close);
    check(warprow_gpu_executor_plan(executor.get(), &feature, 1, &planned, plan.out(), &error), &error);
    Handle<warprow_gpu_slot> slot(warprow_gpu_slot_close);
    check(warprow_gpu_plan_slot(plan.get(), slot.out(), &error), &error);

    // The program's own stream and memory, in the GPU's primary context.
    Cuda cuda;
    int device = 0;
    void *context = nullptr;
    cuda.call(cuda.init(0), "cuInit");
    cuda.call(cuda.get_device(&device, 0), "cuDeviceGet");
    cuda.call(cuda.retain(&context, device), "cuDevicePrimaryCtxRetain");
    cuda.call(cuda.set_current(context), "cuCtxSetCurrent");
    CUstream_st *stream = nullptr;
    cuda.call(cuda.create_stream(&stream, 1 /* non-blocking */), "cuStreamCreate");
    Cuda::Pointer ids_on_gpu = 0, rows_on_gpu = 0;
    std::vector<float> found(ids_of_batch * dim);
    cuda.call(cuda.allocate(&ids_on_gpu, ids_of_batch * sizeof(int64_t)), "cuMemAlloc");
    cuda.call(cuda.allocate(&rows_on_gpu, found.size() * sizeof(float)), "cuMemAlloc");
    const std::vector<int64_t> first = ids_of(0);
    cuda.call(cuda.to_gpu(ids_on_gpu, first.data(), first.size() * sizeof(int64_t), stream), "cuMemcpyHtoDAsync");
    cuda.call(cuda.synchronize(stream), "cuStreamSynchronize");

    warprow_batch batch{};
    batch.struct_size = sizeof batch;
    batch.ids = reinterpret_cast<const void *>(ids_on_gpu);
    batch.id_count = batch.batch = ids_of_batch;
    warprow_output output{};
    output.struct_size = sizeof output;
    output.rows = reinterpret_cast<void *>(rows_on_gpu);
    output.elements = found.size();
    output.dtype = WARPROW_DTYPE_F32;

    // The graph keeps the addresses; the ticket tells how its latest run ended.
    Handle<warprow_gpu_ticket> ticket(warprow_gpu_ticket_close);
    void *graph = nullptr, *replayed = nullptr;
    cuda.call(cuda.begin_capture(stream, 1 /* this thread's calls */), "cuStreamBeginCapture");
    check(warprow_gpu_slot_lookup(slot.get(), stream, &batch, &output, ticket.out(), &error), &error);
    cuda.call(cuda.end_capture(stream, &graph), "cuStreamEndCapture");
    cuda.call(cuda.instantiate(&replayed, graph, 0), "cuGraphInstantiate");

    uint64_t from_drive = 0;
    // Runs that nobody asked about are not lost: this tells of all since it was called last.
    check(warprow_gpu_ticket_check(ticket.get(), &error), &error);
    for (int replay = 0; replay < replays; replay++) {
        const std::vector<int64_t> ids = ids_of(replay);
        cuda.call(cuda.to_gpu(ids_on_gpu, ids.data(), ids.size() * sizeof(int64_t), stream), "cuMemcpyHtoDAsync");
        cuda.call(cuda.launch(replayed, stream), "cuGraphLaunch");
        cuda.call(cuda.from_gpu(found.data(), rows_on_gpu, found.size() * sizeof(float), stream), "cuMemcpyDtoHAsync");
        cuda.call(cuda.synchronize(stream), "cuStreamSynchronize");
        int32_t ended = 0;
        warprow_gpu_report report{};
        report.struct_size = sizeof report;
        check(warprow_gpu_ticket_poll(ticket.get(), &ended, &report, &error), &error);
        require(ended == 1 && report.runs == static_cast<uint64_t>(replay) + 1, "the ticket tells of this replay");
        for (size_t position = 0; position < ids.size(); position++) {
            for (size_t column = 0; column < dim; column++) {
                const float wanted = element(static_cast<uint64_t>(ids[position]), column);
                require(found[position * dim + column] == wanted, "row " + std::to_string(ids[position]));
            }
        }
        from_drive += report.ids_ssd;
    }
    check(warprow_gpu_ticket_check(ticket.get(), &error), &error);
    std::printf("captured once, replayed %d times with other ids\n", replays);
    std::printf("the GPU read the rows of %llu ids from the drive\n", static_cast<unsigned long long>(from_drive));
    require(from_drive > 0, "rows came from the drive");

    // What a GPU cannot reach is refused before anything is launched.
    Handle<warprow_gpu_ticket> none(warprow_gpu_ticket_close);
    output.rows = found.data();
    const warprow_status status = warprow_gpu_slot_lookup(slot.get(), stream, &batch, &output, none.out(), &error);
    require(status == WARPROW_STATUS_INVALID_ARGUMENT && none.get() == nullptr, "plain memory is refused");
    std::printf("refused: %s\n", warprow_error_message(error));
    warprow_error_free(error);

    // A look-up that is not captured.
    output.rows = reinterpret_cast<void *>(rows_on_gpu);
    Handle<warprow_gpu_ticket> eager(warprow_gpu_ticket_close);
    check(warprow_gpu_slot_lookup(slot.get(), stream, &batch, &output, eager.out(), &error), &error);
    int32_t ended = 0;
    check(warprow_gpu_ticket_wait(eager.get(), 10'000, &ended, nullptr, &error), &error);
    require(ended == 1, "the look-up ended");

    cuda.call(cuda.destroy_exec(replayed), "cuGraphExecDestroy");
    cuda.call(cuda.destroy_graph(graph), "cuGraphDestroy");
    cuda.call(cuda.release(ids_on_gpu), "cuMemFree");
    cuda.call(cuda.release(rows_on_gpu), "cuMemFree");
    cuda.call(cuda.destroy_stream(stream), "cuStreamDestroy");
    std::printf("every row is right\n");
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s FILE: the file of an emulated drive, which is made\n", argv[0]);
        return 2;
    }
    if (warprow_gpu_count() == 0) {
        std::printf("skipped: there is no GPU, or no CUDA driver\n");
        return 0;
    }
    try {
        char name[256];
        warprow_error *error = nullptr;
        check(warprow_gpu_name(0, name, sizeof name, &error), &error);
        std::printf("on %s\n", name);
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
