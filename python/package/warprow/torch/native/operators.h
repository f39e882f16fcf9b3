/* The table of C functions by which the library of operators looks rows up. The Rust crate warprow-modules declares the same structures
 * (modules/src/operators.rs); version and size are compared when a table is taken. */
#pragma once

#include <cstddef>
#include <cstdint>

namespace warprow {

constexpr uint32_t operators_version = 1;

/* Types of elements. */
enum element : uint32_t { other = 0, i64 = 1, i32 = 2, f32 = 3, f16 = 4, bf16 = 5, i8 = 6, u8 = 7 };

struct module_lookup;

struct operator_tensor {
    const void *data;
    uint64_t count;
    uint64_t first;
    uint32_t dims;
    uint32_t element;
    int32_t device;
    uint32_t is_there;
    const char *element_name;
};

struct operator_batch {
    operator_tensor ids, offsets, weights;
    uint32_t weights_fit;
    uint32_t masked;
};

struct operator_shape {
    uint32_t pooled;
    uint32_t element;
    uint64_t rows;
    uint64_t width;
};

struct operator_output {
    void *rows;
    void *mask;
    void *stream;
};

struct operator_table {
    size_t struct_size;
    uint32_t version;
    uint32_t reserved;
    int32_t (*find)(const char *, size_t, const module_lookup **);
    int32_t (*numbered)(int64_t, const module_lookup **);
    void (*release)(const module_lookup *);
    int32_t (*shape)(const module_lookup *, const operator_batch *, operator_shape *);
    int32_t (*lookup)(const module_lookup *, const operator_batch *, const operator_output *);
    const char *(*message)();
    int32_t (*check)(uint64_t);
    int32_t (*recover)(int32_t *);
    int32_t (*rename_drive)(const char *, const char *);
    int32_t (*close_all)();
};

} // namespace warprow
