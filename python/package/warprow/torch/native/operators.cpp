// The operators warprow::lookup, warprow::lookup_masked and warprow::lookup_numbered against torch's stable ABI. docs/python.md says how
// they find their stores. This file is compiled by `python -m warprow.torch.native build`, and works with every torch from 2.10 on.

#define TORCH_TARGET_VERSION (((0ULL + 2) << 56) | ((0ULL + 10) << 48))

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "operators.h"
#include "warprow_torch.h"

// Of builds of torch for CUDA. Others lack it, and have no tensors in a GPU's memory.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void **stream);

namespace {

using namespace warprow;
using torch::stable::Tensor;

std::atomic<const operator_table *> given_table{nullptr};
thread_local std::string own_message;
// Whether the latest failure of this thread was this library's.
thread_local bool is_own = false;

[[noreturn]] void fail(const std::string &text) {
    own_message = text;
    is_own = true;
    throw std::runtime_error(text);
}

const operator_table *checked(const void *address, const std::string &from) {
    auto table = static_cast<const operator_table *>(address);
    if (table->version != operators_version || table->struct_size != sizeof(operator_table)) {
        fail(from + " has version " + std::to_string(table->version) + " of the operators' table, this library was compiled for version " +
             std::to_string(operators_version) + ": compile it anew, with `python -m warprow.torch.native build`");
    }
    return table;
}

// The table of libwarprow, for a process that is not Python's.
const operator_table *load_table() {
    static std::mutex loading;
    std::lock_guard<std::mutex> held(loading);
    if (auto table = given_table.load(std::memory_order_acquire)) return table;
    const char *chosen = std::getenv("WARPROW_LIBRARY");
    const std::string name = chosen && *chosen ? chosen : "libwarprow.so.1";
    void *library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        fail("no " + name + " (" + (why ? why : "?") + "): install it (docs/capi.md), or name its file in WARPROW_LIBRARY");
    }
    auto ask = reinterpret_cast<const void *(*)()>(dlsym(library, "warprow_operator_table"));
    if (!ask) fail(name + " is older than this library of operators: install that of this version");
    auto table = checked(ask(), name);
    given_table.store(table, std::memory_order_release);
    return table;
}

const operator_table &table() {
    auto found = given_table.load(std::memory_order_acquire);
    return found ? *found : *load_table();
}

[[noreturn]] void fail_by(const operator_table &table) {
    is_own = false;
    throw std::runtime_error(table.message());
}

class held_lookup {
  public:
    held_lookup(const operator_table &table, const module_lookup *lookup) : table_(table), lookup_(lookup) {}
    held_lookup(const held_lookup &) = delete;
    held_lookup &operator=(const held_lookup &) = delete;
    ~held_lookup() { table_.release(lookup_); }
    const module_lookup *get() const { return lookup_; }

  private:
    const operator_table &table_;
    const module_lookup *lookup_;
};

struct element_type {
    int32_t dtype;
    element code;
    const char *name;
};

// Torch's numbers of types are asked for once.
const std::array<element_type, 12> &types() {
    static const std::array<element_type, 12> found{{
        {aoti_torch_dtype_int64(), i64, "int64"},
        {aoti_torch_dtype_int32(), i32, "int32"},
        {aoti_torch_dtype_float32(), f32, "float32"},
        {aoti_torch_dtype_float16(), f16, "float16"},
        {aoti_torch_dtype_bfloat16(), bf16, "bfloat16"},
        {aoti_torch_dtype_int8(), i8, "int8"},
        {aoti_torch_dtype_uint8(), u8, "uint8"},
        {aoti_torch_dtype_float64(), other, "float64"},
        {aoti_torch_dtype_int16(), other, "int16"},
        {aoti_torch_dtype_bool(), other, "bool"},
        {aoti_torch_dtype_complex64(), other, "complex64"},
        {aoti_torch_dtype_uint64(), other, "uint64"},
    }};
    return found;
}

int32_t dtype_of(uint32_t code) {
    for (const auto &type : types()) {
        if (type.code == code && code != other) return type.dtype;
    }
    fail("the look-up yields elements of a type that this library does not know: compile it anew");
}

operator_tensor described(const Tensor &tensor) {
    AtenTensorHandle handle = tensor.get();
    int64_t count, dims, *sizes;
    int32_t dtype, device_type, device = -1;
    void *data;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_numel(handle, &count));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dims));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &sizes));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(handle, &dtype));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(handle, &device_type));
    if (device_type == aoti_torch_device_type_cuda()) TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(handle, &device));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, &data));
    operator_tensor told{};
    told.data = data;
    told.count = static_cast<uint64_t>(count);
    told.first = dims > 0 ? static_cast<uint64_t>(sizes[0]) : 0;
    told.dims = static_cast<uint32_t>(dims);
    told.device = device;
    told.is_there = 1;
    told.element_name = "another type";
    for (const auto &type : types()) {
        if (type.dtype == dtype) {
            told.element = type.code;
            told.element_name = type.name;
            break;
        }
    }
    return told;
}

// Refuses a tensor whose storage has fewer bytes than the tensor names, as it has behind `untyped_storage().resize_(0)`: nothing of it can
// be read, and torch's own copies would read it all the same.
void check_memory(const char *argument, const Tensor &tensor) {
    AtenTensorHandle handle = tensor.get();
    int64_t count, dims, *sizes, *strides, last, bytes;
    int32_t dtype;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_numel(handle, &count));
    if (count == 0) return;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dims));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &sizes));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(handle, &strides));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_offset(handle, &last));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(handle, &bytes));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(handle, &dtype));
    for (int64_t at = 0; at < dims; at++) last += (sizes[at] - 1) * strides[at];
    const int64_t needed = (last + 1) * static_cast<int64_t>(aoti_torch_dtype_element_size(dtype));
    if (needed > bytes) {
        fail(std::string(argument) + ": a tensor whose storage has " + std::to_string(bytes) + " bytes of the " + std::to_string(needed) +
             " that it names: give a tensor that has memory of its own");
    }
}

// A tensor whose elements follow each other, aligned. Those over bytes of a file or a message may lie at any address.
Tensor plain(const Tensor &tensor) {
    if (!tensor.is_contiguous()) return torch::stable::contiguous(tensor);
    AtenTensorHandle handle = tensor.get();
    int32_t dtype;
    void *data;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(handle, &dtype));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, &data));
    const bool aligned = reinterpret_cast<uintptr_t>(data) % aoti_torch_dtype_element_size(dtype) == 0;
    return aligned ? tensor : torch::stable::clone(tensor);
}

// Weights are float32, as torch's own modules convert them to the type of their rows.
Tensor plain_weights(const Tensor &tensor) {
    int32_t dtype;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
    const bool narrow = dtype == aoti_torch_dtype_float16() || dtype == aoti_torch_dtype_bfloat16() || dtype == aoti_torch_dtype_float64();
    return plain(narrow ? torch::stable::to(tensor, torch::headeronly::ScalarType::Float) : tensor);
}

bool same_shape(const Tensor &one, const Tensor &another) {
    int64_t dims, dims_there, *sizes, *sizes_there;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(one.get(), &dims));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(another.get(), &dims_there));
    if (dims != dims_there) return false;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(one.get(), &sizes));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(another.get(), &sizes_there));
    return std::equal(sizes, sizes + dims, sizes_there);
}

Tensor empty(const int64_t *sizes, int64_t dims, int32_t dtype, int32_t device) {
    constexpr int64_t most = 16;
    if (dims > most) fail("input: more than 15 dimensions");
    int64_t strides[most], stride = 1;
    for (int64_t at = dims - 1; at >= 0; at--) {
        strides[at] = stride;
        stride *= sizes[at] > 0 ? sizes[at] : 1;
    }
    AtenTensorHandle made;
    const int32_t type = device < 0 ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda();
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(dims, sizes, strides, dtype, type, device < 0 ? 0 : device, &made));
    return Tensor(made);
}

// Rows, and a mask if one is wanted.
std::tuple<Tensor, std::optional<Tensor>> run(const operator_table &table, const module_lookup *lookup, const Tensor &given_ids,
                                              const std::optional<Tensor> &given_offsets, const std::optional<Tensor> &given_weights,
                                              bool masked) {
    check_memory("input", given_ids);
    if (given_offsets) check_memory("offsets", *given_offsets);
    if (given_weights) check_memory("per_sample_weights", *given_weights);
    const Tensor ids = plain(given_ids);
    const std::optional<Tensor> offsets = given_offsets ? std::optional<Tensor>(plain(*given_offsets)) : std::nullopt;
    const std::optional<Tensor> weights = given_weights ? std::optional<Tensor>(plain_weights(*given_weights)) : std::nullopt;
    operator_batch batch{};
    batch.ids = described(ids);
    if (offsets) batch.offsets = described(*offsets);
    if (weights) {
        batch.weights = described(*weights);
        batch.weights_fit = same_shape(ids, *weights);
    }
    batch.masked = masked;
    operator_shape shape{};
    if (table.shape(lookup, &batch, &shape) != 0) fail_by(table);

    int64_t *sizes, dims = batch.ids.dims, made[16];
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(ids.get(), &sizes));
    if (dims > 15) fail("input: more than 15 dimensions");
    std::copy(sizes, sizes + dims, made);
    const int32_t device = batch.ids.device;
    std::optional<Tensor> mask;
    if (masked) mask = empty(made, dims, aoti_torch_dtype_bool(), device);
    if (shape.pooled) {
        made[0] = static_cast<int64_t>(shape.rows);
        dims = 1;
    }
    made[dims] = static_cast<int64_t>(shape.width);
    Tensor rows = empty(made, dims + 1, dtype_of(shape.element), device);
    if (batch.ids.count == 0) {
        torch::stable::zero_(rows);
        return {rows, mask};
    }
    operator_output output{};
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(rows.get(), &output.rows));
    if (mask) TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(mask->get(), &output.mask));
    if (device >= 0) {
        if (!aoti_torch_get_current_cuda_stream) fail("input: a tensor in a GPU's memory, and this build of torch has no CUDA");
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &output.stream));
    }
    if (table.lookup(lookup, &batch, &output) != 0) fail_by(table);
    return {rows, mask};
}

std::tuple<Tensor, std::optional<Tensor>> run_by_text(const Tensor &ids, const std::optional<Tensor> &offsets,
                                                      const std::optional<Tensor> &weights, const std::string &spec, bool masked) {
    const operator_table &found = table();
    const module_lookup *lookup = nullptr;
    if (found.find(spec.data(), spec.size(), &lookup) != 0) fail_by(found);
    held_lookup held(found, lookup);
    return run(found, held.get(), ids, offsets, weights, masked);
}

Tensor lookup(Tensor ids, std::optional<Tensor> offsets, std::optional<Tensor> weights, std::string spec) {
    return std::get<0>(run_by_text(ids, offsets, weights, spec, false));
}

std::tuple<Tensor, Tensor> lookup_masked(Tensor ids, std::optional<Tensor> offsets, std::optional<Tensor> weights, std::string spec) {
    auto [rows, mask] = run_by_text(ids, offsets, weights, spec, true);
    return {rows, *mask};
}

Tensor lookup_numbered(Tensor ids, std::optional<Tensor> offsets, std::optional<Tensor> weights, int64_t number) {
    const operator_table &found = table();
    const module_lookup *lookup = nullptr;
    if (found.numbered(number, &lookup) != 0) fail_by(found);
    held_lookup held(found, lookup);
    return std::get<0>(run(found, held.get(), ids, offsets, weights, false));
}

// Calls a function of the table, for a program: an exception becomes a code.
template <typename Work> int32_t told(Work work) {
    try {
        const operator_table &found = table();
        is_own = false;
        return work(found);
    } catch (const std::exception &) {
        return 1;
    }
}

} // namespace

STABLE_TORCH_LIBRARY(warprow, m) {
    m.def("lookup(Tensor ids, Tensor? offsets, Tensor? weights, str spec) -> Tensor");
    m.def("lookup_masked(Tensor ids, Tensor? offsets, Tensor? weights, str spec) -> (Tensor, Tensor)");
    m.def("lookup_numbered(Tensor ids, Tensor? offsets, Tensor? weights, int number) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(warprow, CPU, m) {
    m.impl("lookup", TORCH_BOX(&lookup));
    m.impl("lookup_masked", TORCH_BOX(&lookup_masked));
    m.impl("lookup_numbered", TORCH_BOX(&lookup_numbered));
}

STABLE_TORCH_LIBRARY_IMPL(warprow, CUDA, m) {
    m.impl("lookup", TORCH_BOX(&lookup));
    m.impl("lookup_masked", TORCH_BOX(&lookup_masked));
    m.impl("lookup_numbered", TORCH_BOX(&lookup_numbered));
}

// The Python package gives its table. Returns 0, or 1 if it is of another version.
extern "C" __attribute__((visibility("default"))) int32_t warprow_torch_use_table(const void *address) {
    try {
        given_table.store(checked(address, "the Python package"), std::memory_order_release);
        return 0;
    } catch (const std::exception &) {
        return 1;
    }
}

extern "C" __attribute__((visibility("default"))) int32_t warprow_torch_rename_drive(const char *from, const char *to) {
    return told([&](const operator_table &found) { return found.rename_drive(from, to); });
}

extern "C" __attribute__((visibility("default"))) int32_t warprow_torch_check(uint64_t patience_ms) {
    return told([&](const operator_table &found) { return found.check(patience_ms); });
}

extern "C" __attribute__((visibility("default"))) int32_t warprow_torch_recover(int32_t *recovered) {
    return told([&](const operator_table &found) { return found.recover(recovered); });
}

extern "C" __attribute__((visibility("default"))) int32_t warprow_torch_close(void) {
    return told([](const operator_table &found) { return found.close_all(); });
}

extern "C" __attribute__((visibility("default"))) const char *warprow_torch_message(void) {
    auto found = given_table.load(std::memory_order_acquire);
    return is_own || !found ? own_message.c_str() : found->message();
}
