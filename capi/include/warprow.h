/* warprow.h: the C interface of Warprow.
 *
 * This file is generated from the crate warprow-capi: change that. docs/capi.md has the rules that hold for all
 * functions. In short:
 *
 *   - A function that can fail returns a warprow_status, and takes a warprow_error ** as its last argument. If that is
 *     not NULL, it gets an error, which the caller frees with warprow_error_free, or NULL.
 *   - Handles (warprow_store *, ...) are no addresses. Each is closed once, with the function of its kind; NULL may be
 *     closed at any time. A handle that was closed is refused with WARPROW_STATUS_INVALID_HANDLE.
 *   - Structures begin with struct_size, which the caller sets to their size. A field of 0 means the usual.
 *   - No function throws. Functions that a program hands over must not throw either.
 */

#ifndef WARPROW_H
#define WARPROW_H

#include <stddef.h>
#include <stdint.h>

// The version of this interface: its major version in the upper 16 bits, its minor version in the lower ones.
//
// Within a major version nothing is taken away or changed; each addition raises the minor version. A program works with a library of
// the same major version, and of the same minor version or a later one.
#define WARPROW_ABI_VERSION 65544

// What a call came to. All but WARPROW_STATUS_OK come with a warprow_error, if the caller asked for one.
enum warprow_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The call did what it says.
  WARPROW_STATUS_OK = 0,
  // An argument is NULL, misaligned, out of range, of the wrong type or size, or does not fit the plan. Nothing was done.
  WARPROW_STATUS_INVALID_ARGUMENT = 1,
  // A handle was closed, is of another kind, or is none; or this process was forked after the library was used.
  WARPROW_STATUS_INVALID_HANDLE = 2,
  // The program was compiled against another version of this interface than the library has.
  WARPROW_STATUS_ABI_MISMATCH = 3,
  // This library, GPU, table or drive cannot do what was asked.
  WARPROW_STATUS_UNSUPPORTED = 4,
  // There is no table, generation, drive, file or key of that name or number.
  WARPROW_STATUS_NOT_FOUND = 5,
  // There is a table of that name already.
  WARPROW_STATUS_EXISTS = 6,
  // The call would destroy what nobody agreed to lose, or stands against the state of the store. Nothing was changed.
  WARPROW_STATUS_REFUSED = 7,
  // A slot, a drive or a store is in use; try again later.
  WARPROW_STATUS_BUSY = 8,
  // A callback of the program said stop. Nothing was committed.
  WARPROW_STATUS_INTERRUPTED = 9,
  // Memory, queues or room on drives do not suffice.
  WARPROW_STATUS_OUT_OF_RESOURCES = 10,
  // A file cannot be read, or holds nothing that can be loaded.
  WARPROW_STATUS_FILE = 11,
  // What lies on the drives is no store, is incomplete, or is damaged.
  WARPROW_STATUS_STORE = 12,
  // A drive failed.
  WARPROW_STATUS_DRIVE = 13,
  // The GPU, or CUDA, failed, or there is none.
  WARPROW_STATUS_GPU = 14,
  // Rows could not be read. All other rows of the output are valid. Of warprow_gpu_ticket_check also: runs before the latest failed.
  WARPROW_STATUS_ROWS_FAILED = 15,
  // Ids are missing, of features for which that is an error. On the host the output is untouched; on a GPU these ids have zeros.
  WARPROW_STATUS_MISSING_IDS = 16,
  // The library has a fault. Please report the error's message.
  WARPROW_STATUS_BUG = 17,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum warprow_status warprow_status;
#else
typedef int32_t warprow_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How a store is opened.
enum warprow_access
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // For reading and writing.
  WARPROW_ACCESS_READ_WRITE = 0,
  // For reading only: other processes may read emulated drives at the same time, and none may write to them.
  WARPROW_ACCESS_READ_ONLY = 1,
  // For reading what is left, also if drives are missing.
  WARPROW_ACCESS_DEGRADED = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum warprow_access warprow_access;
#else
typedef int32_t warprow_access;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a report says of ids that their table does not have.
enum warprow_bounds
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Of a feature: as the plan says. Of a plan: how many there are.
  WARPROW_BOUNDS_UNSET = 0,
  // Nothing: they count as padding.
  WARPROW_BOUNDS_IGNORE = 1,
  // How many there are.
  WARPROW_BOUNDS_COUNT = 2,
  // How many there are, and position and id of the first.
  WARPROW_BOUNDS_REPORT = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum warprow_bounds warprow_bounds;
#else
typedef int32_t warprow_bounds;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How look-ups on a GPU find the different rows among the ids.
enum warprow_dedupe
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The way that was fastest in the benchmarks among those that the batch is small enough for.
  WARPROW_DEDUPE_UNSET = 0,
  // One thread block sorts: up to 8,192 ids.
  WARPROW_DEDUPE_BLOCK = 1,
  // A bit for each row outside GPU memory.
  WARPROW_DEDUPE_BITMAP = 2,
  // A hash table, and a sort of what is different.
  WARPROW_DEDUPE_HASH = 3,
  // A sort of all.
  WARPROW_DEDUPE_RADIX = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum warprow_dedupe warprow_dedupe;
#else
typedef int32_t warprow_dedupe;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Types of elements: of tables, and of outputs.
enum warprow_dtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // IEEE 754 binary32.
  WARPROW_DTYPE_F32 = 0,
  // IEEE 754 binary16.
  WARPROW_DTYPE_F16 = 1,
  // The upper half of a binary32.
  WARPROW_DTYPE_BF16 = 2,
  // Signed bytes.
  WARPROW_DTYPE_I8 = 3,
  // Unsigned bytes.
  WARPROW_DTYPE_U8 = 4,
  // Eight-bit floats of OCP E4M3, without infinities.
  WARPROW_DTYPE_F8E4M3 = 5,
  // Eight-bit floats of OCP E5M2.
  WARPROW_DTYPE_F8E5M2 = 6,
  // Unsigned bytes, behind which each row has a scale and a bias of an f32 each. Of tables alone.
  WARPROW_DTYPE_Q8 = 7,
  // Halves of bytes, behind which each row has a scale and a bias of an f16 each. Of tables alone.
  WARPROW_DTYPE_Q4 = 8,
  // E4M3 bytes, behind which each row has a power of two for each 32 of them, a byte of E8M0: MXFP8. As an output: the bytes of rows.
  WARPROW_DTYPE_MXFP8 = 9,
  // E4M3 bytes, behind which each row has a scale of an f32. As an output: the bytes of rows.
  WARPROW_DTYPE_F8E4M3S = 10,
  // Halves of bytes of E2M1, behind which each row has an E4M3 scale for each 16 of them, and an f32 for all of these: NVFP4. As an
  // output: the bytes of rows.
  WARPROW_DTYPE_NVFP4 = 11,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum warprow_dtype warprow_dtype;
#else
typedef int32_t warprow_dtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What the output has for rows that could not be read.
enum warprow_failed_rows
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Zeros.
  WARPROW_FAILED_ROWS_ZEROS = 0,
  // NaN, in the place of these zeros. Of outputs of f32, f16 or bf16 alone.
  WARPROW_FAILED_ROWS_NAN = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum warprow_failed_rows warprow_failed_rows;
#else
typedef int32_t warprow_failed_rows;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Types of ids and offsets.
enum warprow_int_type
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Signed, 64 bits.
  WARPROW_INT_TYPE_I64 = 0,
  // Signed, 32 bits.
  WARPROW_INT_TYPE_I32 = 1,
  // Unsigned, 64 bits.
  WARPROW_INT_TYPE_U64 = 2,
  // Unsigned, 32 bits.
  WARPROW_INT_TYPE_U32 = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum warprow_int_type warprow_int_type;
#else
typedef int32_t warprow_int_type;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The numbers that a table's rows are looked up by.
enum warprow_key_type
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // There are no keys: ids count from 0.
  WARPROW_KEY_TYPE_NONE = 0,
  // Unsigned numbers of 64 bits.
  WARPROW_KEY_TYPE_U64 = 1,
  // Signed numbers of 64 bits, each passed as its bits.
  WARPROW_KEY_TYPE_I64 = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum warprow_key_type warprow_key_type;
#else
typedef int32_t warprow_key_type;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a mask tells of each id, by a byte that is 1 or 0.
enum warprow_mask
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // 1: the table has the id's row, which was read, and the id is no padding id.
  WARPROW_MASK_FOUND = 0,
  // 1: the id's row could not be read.
  WARPROW_MASK_FAILED = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum warprow_mask warprow_mask;
#else
typedef int32_t warprow_mask;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which rows on drives share a read command.
enum warprow_merging
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // On the host rows of neighbouring LBAs, on a GPU rows of one LBA.
  WARPROW_MERGING_UNSET = 0,
  // Rows of one LBA.
  WARPROW_MERGING_SEPARATE = 1,
  // Rows of neighbouring LBAs.
  WARPROW_MERGING_NEIGHBOURS = 2,
  // What each drive reads more cheaply together, which is measured when the executor is attached.
  WARPROW_MERGING_MEASURED = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum warprow_merging warprow_merging;
#else
typedef int32_t warprow_merging;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which row an id gets that its table does not have.
enum warprow_missing
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Of a feature: as the plan says. Of a plan: the table's default row.
  WARPROW_MISSING_UNSET = 0,
  // The table's default row.
  WARPROW_MISSING_DEFAULT_ROW = 1,
  // Zeros, which count for a mean.
  WARPROW_MISSING_ZERO = 2,
  // None: nothing is added, nothing counts.
  WARPROW_MISSING_SKIP = 3,
  // The look-up fails: on the host before it reads anything; on a GPU the ticket says so, and such ids get zeros.
  WARPROW_MISSING_ERROR = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum warprow_missing warprow_missing;
#else
typedef int32_t warprow_missing;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a feature's padding id is.
enum warprow_padding
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // There is none.
  WARPROW_PADDING_NONE = 0,
  // The field `padding`, as it is.
  WARPROW_PADDING_SIGNED = 1,
  // The bits of the field `padding` as an unsigned number.
  WARPROW_PADDING_UNSIGNED = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum warprow_padding warprow_padding;
#else
typedef int32_t warprow_padding;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How the rows of a bag become one.
enum warprow_pooling
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Rows stay single: each id has an output row of its own.
  WARPROW_POOLING_NONE = 0,
  // A bag becomes the sum of its rows.
  WARPROW_POOLING_SUM = 1,
  // A bag becomes the sum of its rows, divided by the number of rows that count.
  WARPROW_POOLING_MEAN = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum warprow_pooling warprow_pooling;
#else
typedef int32_t warprow_pooling;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which free chunks of each drive a load takes.
enum warprow_span
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The lowest.
  WARPROW_SPAN_PACKED = 0,
  // Some from all over the drive, evenly, for drives on which reads of rows that lie far apart go on side by side.
  WARPROW_SPAN_WHOLE = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum warprow_span warprow_span;
#else
typedef int32_t warprow_span;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What CUDA's stream handles point to: cudaStream_t and CUstream are CUstream_st *.
typedef struct CUstream_st CUstream_st;

// A list of drives, as they did at one moment.
typedef struct warprow_drive_list warprow_drive_list;

// Why a call failed: a code, a message, and what else is known. The program owns it, and frees it with warprow_error_free. Any
// thread may use it.
typedef struct warprow_error warprow_error;

// A list of generations, as a store had them at one moment.
typedef struct warprow_generation_list warprow_generation_list;

// Looks rows of a store up on a GPU: CUDA kernels read the hottest rows from GPU memory and DRAM, and the others from drives, to which
// they write commands themselves. It keeps its store open. Any thread may use it, several at once.
typedef struct warprow_gpu_executor warprow_gpu_executor;

// An n-gram hash with what a GPU needs for it. It keeps its executor. Any thread may use it, several at once.
typedef struct warprow_gpu_ngram_hash warprow_gpu_ngram_hash;

// Look-ups of a list of features on a GPU, with all that they need. It keeps its executor. Any thread may use it, several at once.
typedef struct warprow_gpu_plan warprow_gpu_plan;

// A batch whose rows are fetched ahead on a GPU. It keeps its slot.
typedef struct warprow_gpu_prefetched warprow_gpu_prefetched;

// Tables that a GPU executor prepared.
typedef struct warprow_gpu_prepared warprow_gpu_prepared;

// The right to one look-up at a time on a GPU. It keeps its plan. Any thread may use it, several at once; look-ups that are under way
// at once are not possible: the later one's ticket says WARPROW_STATUS_BUSY.
typedef struct warprow_gpu_slot warprow_gpu_slot;

// A look-up that was launched, or captured in a graph. It keeps its slot. Any thread may use it, several at once.
typedef struct warprow_gpu_ticket warprow_gpu_ticket;

// Looks rows of a store up on the host: the hottest rows lie in DRAM, the others are read from drives. It keeps its store open. Any
// thread may use it, several at once.
typedef struct warprow_host_executor warprow_host_executor;

// Look-ups of a list of features on the host, with all that they need. It keeps its executor. Any thread may use it, several at once.
typedef struct warprow_host_plan warprow_host_plan;

// Tables that a host executor prepared, and has not adopted yet.
typedef struct warprow_host_prepared warprow_host_prepared;

// The right to one look-up at a time on the host. It keeps its plan. Any thread may use it, but one at a time: another one's call is
// refused with WARPROW_STATUS_BUSY.
typedef struct warprow_host_slot warprow_host_slot;

// The hash of a language model's n-grams for one of its tables: tokens to ids. Any thread may use it, several at once.
typedef struct warprow_ngram_hash warprow_ngram_hash;

// An open store: drives with tables, held by this process alone. Any thread may use it, several at once.
typedef struct warprow_store warprow_store;

// A list of tables, as a store had them at one moment.
typedef struct warprow_table_list warprow_table_list;

// Options of warprow_store_open. Zeros, or NULL for all, mean the usual.
typedef struct warprow_open_options {
  // sizeof(warprow_open_options).
  size_t struct_size;
  // The longest wait for a read or a write, in milliseconds; 0: 10 s.
  uint64_t timeout_ms;
  // The longest wait for an administrative command, in milliseconds; 0: 30 s.
  uint64_t admin_timeout_ms;
  // Bytes of memory for updated rows of a generation, until it is compacted; 0: 64 MiB.
  uint64_t overlay_bytes;
  // A WARPROW_ACCESS_ constant.
  int32_t access;
  // 0.
  uint32_t reserved;
} warprow_open_options;

// Options of warprow_store_format. Zeros, or NULL for all, mean the usual.
typedef struct warprow_format_options {
  // sizeof(warprow_format_options).
  size_t struct_size;
  // The token of a refusal (warprow_error_consent), to agree to exactly what that refusal says is lost. NULL: only emulated drives
  // that are blank are formatted.
  const char *consent;
  // Bytes of a chunk, a power of two from 1 MiB to 64 MiB; 0: by the drives' size.
  uint64_t chunk_bytes;
  // Bytes of an LBA: 512 or 4096; 0: as the drives have it.
  uint32_t lba_bytes;
  // 0.
  uint32_t reserved;
  // How the new store is opened; NULL: as usual.
  const struct warprow_open_options *open;
} warprow_format_options;

// A table.
typedef struct warprow_table_info {
  // sizeof(warprow_table_info).
  size_t struct_size;
  // The table's name. It belongs to the list.
  const char *name;
  // The name of the model that the table was loaded with. It belongs to the list.
  const char *model;
  // Rows.
  uint64_t rows;
  // Elements in a row.
  uint32_t dim;
  // Bytes of a row.
  uint32_t row_bytes;
  // The type of the elements: a WARPROW_DTYPE_ constant.
  int32_t dtype;
  // The numbers that rows are looked up by: a WARPROW_KEY_TYPE_ constant.
  int32_t key_type;
  // How many rows are worth keeping in memory, as whoever loaded the table said.
  uint64_t hot_rows;
  // The generation that the table belongs to.
  uint64_t generation;
  // 1: rows have checksums; else 0.
  int32_t has_row_crc;
  // 0.
  uint32_t reserved;
} warprow_table_info;

// A generation: one version of a model's tables.
typedef struct warprow_generation_info {
  // sizeof(warprow_generation_info).
  size_t struct_size;
  // The generation's number, which is never given twice in a store.
  uint64_t id;
  // The model's name. It belongs to the list.
  const char *model;
  // The number of the generation's tables.
  size_t tables;
  // How many of them look-ups find by name: none of a generation on standby.
  size_t tables_found;
  // The number of the commit that switched to it; 0: it is on standby.
  uint64_t shown;
  // Bytes that it takes on the drives.
  uint64_t bytes;
} warprow_generation_info;

// A drive of a store.
typedef struct warprow_drive_info {
  // sizeof(warprow_drive_info).
  size_t struct_size;
  // The drive's name. It belongs to the list.
  const char *name;
  // Why the drive serves nothing; NULL: it serves. It belongs to the list.
  const char *failure;
  // How often its controller was reset since the store was opened.
  uint64_t resets;
} warprow_drive_info;

// Gives rows of a table that is loaded: fills `rows`, of `bytes` bytes, with the `count` rows from number `first` on, one after
// another. Returns 0, or anything else if that failed, which ends the load.
//
// It is called by the thread that called warprow_store_load and by threads of the library, several at once. It must not throw, and
// must not call longjmp. `rows` is the library's, and valid until the function returns.
typedef int32_t (*warprow_read_rows)(void *user, uint64_t first, uint64_t count, void *rows, size_t bytes);

// A table to load, and where its rows come from: either `data` or `read`. Everything it points to stays the caller's, and stays as it
// is until the call returns.
typedef struct warprow_table_source {
  // sizeof(warprow_table_source).
  size_t struct_size;
  // The table's name.
  const char *name;
  // Rows; at least one.
  uint64_t rows;
  // Elements in a row; at least one.
  uint32_t dim;
  // The type of the elements: a WARPROW_DTYPE_ constant.
  int32_t dtype;
  // All rows, one after another, little-endian; NULL: `read` gives them.
  const void *data;
  // Bytes of `data`.
  size_t data_bytes;
  // Gives rows; NULL: they lie at `data`.
  warprow_read_rows read;
  // What `read` gets first.
  void *user;
  // How often each row is looked up, `rows` numbers: rows lie in that order, the hottest first. NULL: the first rows are the
  // hottest, or nobody knows which are.
  const uint64_t *counts;
  // How many of the hottest rows are worth keeping in memory: a hint to executors.
  uint64_t hot_rows;
  // The key of each row, `rows` different numbers of 64 bits; NULL: row i is that of id i.
  const uint64_t *keys;
  // The row of ids that the table does not have: bytes as of any row. NULL: zeros.
  const void *default_row;
  // Bytes of `default_row`.
  size_t default_row_bytes;
  // What the keys are: a WARPROW_KEY_TYPE_ constant, WARPROW_KEY_TYPE_NONE exactly if `keys` is NULL.
  int32_t key_type;
  // Not 0: a checksum of each row is stored.
  int32_t row_crc;
} warprow_table_source;

// Is told how far something is: `done` of `total`, in bytes or rows as the call that takes it says. Returns 0 to go on, or anything
// else to stop it.
//
// It is called by the thread that made the call. It must not throw, and must not call longjmp.
typedef int32_t (*warprow_progress)(void *user, uint64_t done, uint64_t total);

// Options of a load. Zeros, or NULL for all, mean the usual.
typedef struct warprow_load_options {
  // sizeof(warprow_load_options).
  size_t struct_size;
  // Not 0: tables of the same names are dropped in the same commit.
  int32_t replace;
  // Not 0: the generation is on standby until warprow_store_switch, and tables of the same names stay.
  int32_t standby;
  // The most bytes of memory for putting rows in order; 0: 1 GiB.
  uint64_t memory_bytes;
  // Is told how many bytes were written, of how many. NULL: nobody is.
  warprow_progress progress;
  // What `progress` gets first.
  void *user;
  // Which free chunks of each drive the tables get: a WARPROW_SPAN_ constant. Since 1.8.
  int32_t span;
  // 0.
  uint32_t reserved;
} warprow_load_options;

// What a load did.
typedef struct warprow_load_report {
  // sizeof(warprow_load_report).
  size_t struct_size;
  // The new generation.
  uint64_t generation;
  // Bytes written to drives, without metadata.
  uint64_t bytes;
  // Tables that were loaded.
  size_t tables;
  // Nanoseconds from the first write to the end of the commit.
  uint64_t elapsed_ns;
} warprow_load_report;

// Which tables of a file are loaded, and how. Zeros, or NULL for all, mean all tables as the file has them.
typedef struct warprow_file_options {
  // sizeof(warprow_file_options).
  size_t struct_size;
  // The names of the tables in the file that are loaded; NULL: all.
  const char *const *tensors;
  // The names that they get in the store, in the same order; NULL: those of the file.
  const char *const *names;
  // How many names each list has.
  size_t tensor_count;
  // How many of the first rows of each table are worth keeping in memory: a hint to executors.
  uint64_t hot_rows;
  // Not 0: a checksum of each row is stored.
  int32_t row_crc;
  // 0.
  uint32_t reserved;
} warprow_file_options;

// Options of warprow_store_update and warprow_store_remove. Zeros, or NULL for all, mean the usual.
typedef struct warprow_update_options {
  // sizeof(warprow_update_options).
  size_t struct_size;
  // The generation whose table is updated, which may be on standby, if `has_generation` is set.
  uint64_t generation;
  // Not 0: `generation` says which generation; 0: the one that look-ups find.
  int32_t has_generation;
  // Not 0: keys that the table does not have are created. Of a table with keys alone.
  int32_t create_keys;
} warprow_update_options;

// What warprow_store_verify found.
typedef struct warprow_verify_report {
  // sizeof(warprow_verify_report).
  size_t struct_size;
  // Rows read.
  uint64_t rows;
  // Bytes that were compared.
  uint64_t bytes;
  // Rows that drives could not read, or whose checksum does not match.
  uint64_t damaged;
  // Rows that were read wrong once, and right when they were read again.
  uint64_t transient;
  // 1: nothing that could be checked is damaged; else 0.
  int32_t is_sound;
  // 1: rows have checksums, so that their content was checked; else 0.
  int32_t checked;
  // 1: which row belongs to which id or key is lost; else 0.
  int32_t order_damaged;
  // 0.
  uint32_t reserved;
} warprow_verify_report;

// Bytes of an executor's cache that one table has to itself, of the `cache_bytes` of its options. Since 1.8.
typedef struct warprow_cache_share {
  // sizeof(warprow_cache_share).
  size_t struct_size;
  // The name of the table, some of whose rows may be cached.
  const char *table;
  // Bytes of its rows in the cache, with what leads to them.
  uint64_t bytes;
} warprow_cache_share;

// Options of warprow_host_executor_attach. Zeros, or NULL for all, mean the usual.
typedef struct warprow_host_options {
  // sizeof(warprow_host_options).
  size_t struct_size;
  // Bytes of rows to keep in DRAM, the hottest ones.
  uint64_t dram_bytes;
  // The longest wait for a read, in milliseconds; 0: that of the store.
  uint64_t timeout_ms;
  // Queue pairs that each slot has on every drive; 0: 1.
  uint32_t queue_pairs;
  // Most commands in flight on each queue pair; 0: 1,023.
  uint32_t depth;
  // Which rows on drives share a read command: a WARPROW_MERGING_ constant.
  int32_t merging;
  // Not 0: rows that are read from drives are compared with their checksums, where there are any.
  int32_t check_rows;
  // Not 0: each key is compared with the stored one, so that one which the table does not have is missing for certain.
  int32_t check_keys;
  // 0.
  uint32_t reserved;
  // Bytes of memory for a cache: rows that look-ups have read from drives, which later ones then find there; 0: no row is cached.
  uint64_t cache_bytes;
  // Look-ups note this epoch, from 1 to 65,535, as that of the last touch of each key that they find, for warprow_store_expire: 2 bytes
  // for each row of tables whose keys are stored. 0: nothing is noted. Since 1.6.
  uint32_t touch_epoch;
  // 0.
  uint32_t touch_reserved;
  // Tables that have so many bytes of the cache each to themselves; the others share the rest. The array and its texts stay the
  // caller's. Since 1.8.
  const struct warprow_cache_share *cache_shares;
  // How many these are.
  size_t cache_share_count;
} warprow_host_options;

// Totals of all look-ups of a host executor.
typedef struct warprow_metrics {
  // sizeof(warprow_metrics).
  size_t struct_size;
  // Look-ups that were carried out, whether rows failed or not.
  uint64_t lookups;
  // Drives that serve nothing at this moment.
  uint64_t drives_failed;
  // Ids of the batch.
  uint64_t ids;
  // Padding ids that were not read, and missing ids that are ignored.
  uint64_t padding;
  // Ids that their table does not have.
  uint64_t missing;
  // Ids whose row could not be read.
  uint64_t failed;
  // Different rows among the ids.
  uint64_t unique;
  // Different rows that lay in DRAM.
  uint64_t rows_dram;
  // Different rows that had to be read from drives.
  uint64_t rows_ssd;
  // Ids served from DRAM.
  uint64_t ids_dram;
  // Ids served from drives.
  uint64_t ids_ssd;
  // Read commands.
  uint64_t commands;
  // Rows that another row's command read too.
  uint64_t merges;
  // Commands that were read again in parts, because of a bad block.
  uint64_t split;
  // Different rows that drives wrote straight to the output.
  uint64_t landed;
  // Stores to doorbells of submission queues.
  uint64_t sq_doorbells;
  // Stores to doorbells of completion queues.
  uint64_t cq_doorbells;
  // Bytes read from drives.
  uint64_t bytes_read;
  // Bytes of the rows that had to be read.
  uint64_t bytes_needed;
  // Nanoseconds of the stage that finds the different rows.
  uint64_t dedupe_ns;
  // Nanoseconds of the stage that finds where each row lies.
  uint64_t route_ns;
  // Nanoseconds of the stage that sorts rows by address.
  uint64_t order_ns;
  // Nanoseconds of the stage that makes read commands.
  uint64_t merge_ns;
  // Nanoseconds of the stage that submits commands and waits for them.
  uint64_t read_ns;
  // Nanoseconds of the stage that writes rows to the output.
  uint64_t expand_ns;
  // Different rows that lay in the cache.
  uint64_t rows_cached;
  // Ids served from the cache.
  uint64_t ids_cached;
} warprow_metrics;

// Options of preparing tables, for either executor. Zeros, or NULL for all, mean the usual.
typedef struct warprow_prepare_options {
  // sizeof(warprow_prepare_options).
  size_t struct_size;
  // Prepare for warprow_store_switch to this generation, if `has_generation` is set.
  uint64_t generation;
  // Bytes a second that may be read from drives for it; 0: as fast as they are.
  uint64_t bytes_per_second;
  // Not 0: `generation` says which generation; 0: the tables that the store shows now.
  int32_t has_generation;
  // 0.
  uint32_t reserved;
} warprow_prepare_options;

// A name under which ids of one table are looked up. Several features may share a table. Either all features of a plan are pooled,
// or none is. It stays the caller's.
typedef struct warprow_feature {
  // sizeof(warprow_feature).
  size_t struct_size;
  // The name by which errors call the feature; NULL: the table's name.
  const char *name;
  // The name of the table.
  const char *table;
  // An id that stands for no row; `padding_kind` says whether there is one.
  int64_t padding;
  // A WARPROW_PADDING_ constant.
  int32_t padding_kind;
  // How the rows of a bag become one: a WARPROW_POOLING_ constant.
  int32_t pooling;
  // Not 0: each row is multiplied by its id's weight. Of sums alone.
  int32_t weighted;
  // Which row an id gets that the table does not have: a WARPROW_MISSING_ constant.
  int32_t missing;
  // What a report says of such an id: a WARPROW_BOUNDS_ constant.
  int32_t bounds;
  // 0.
  uint32_t reserved;
} warprow_feature;

// The scales of a table's rows in memory of the caller's, where the table itself has rows of codes alone, of type
// WARPROW_DTYPE_F8E4M3 (docs/ngram.md). Look-ups give what they would give of a table of type WARPROW_DTYPE_MXFP8.
typedef struct warprow_resident_scales {
  // sizeof(warprow_resident_scales).
  size_t struct_size;
  // The name of the table, whose rows have a multiple of 32 elements.
  const char *table;
  // E8M0 scales of blocks of 32 elements, dim / 32 bytes for each row, by id: in GPU memory, or in host memory that CUDA has pinned.
  const void *scales;
  // How many bytes there are: rows * dim / 32.
  uint64_t bytes;
} warprow_resident_scales;

// Options of a plan: how large its look-ups may be. Zeros, or NULL for all, mean the usual.
typedef struct warprow_plan_options {
  // sizeof(warprow_plan_options).
  size_t struct_size;
  // Most bags of each feature in one batch; 0: 4,096.
  size_t max_batch;
  // Most ids in one batch, of all features; 0: 65,536.
  size_t max_ids;
  // Look-ups that can be under way at once; 0: 1.
  uint32_t slots;
  // The type of the output's elements: a WARPROW_DTYPE_ constant.
  int32_t out_dtype;
  // Which row an id gets that its table does not have: a WARPROW_MISSING_ constant.
  int32_t missing;
  // What a report says of such an id: a WARPROW_BOUNDS_ constant.
  int32_t bounds;
  // Not 0: buffers have room for batches whose rows are fetched ahead.
  int32_t prefetch;
  // Not 0: buffers have room for other tables, which the executor may adopt.
  int32_t adopt_room;
  // How a GPU finds different rows: a WARPROW_DEDUPE_ constant. The host ignores it.
  int32_t dedupe;
  // What the output has for rows that could not be read: a WARPROW_FAILED_ROWS_ constant.
  int32_t failed_rows;
  // What masks tell: a WARPROW_MASK_ constant.
  int32_t mask;
  // 0.
  uint32_t reserved;
  // On a GPU alone: tables whose scales lie in memory. The array and its texts stay the caller's; the scales themselves stay where
  // they are for as long as the plan, its slots, and graphs with look-ups of these live.
  const struct warprow_resident_scales *scales;
  // How many tables have such scales.
  size_t scale_count;
} warprow_plan_options;

// The ids of one look-up: B bags of each of F features, feature by feature. For the host everything lies in host memory; for a GPU in
// its memory, or in host memory that CUDA has pinned. All of it stays the caller's.
typedef struct warprow_batch {
  // sizeof(warprow_batch).
  size_t struct_size;
  // The ids of all bags, one after another: feature 0's bags 0 to B - 1, then feature 1's, and so on.
  const void *ids;
  // The number of ids. Not used if `counts` is set.
  size_t id_count;
  // B: how many bags each feature has. If `counts` is set: the most that there may be.
  size_t batch;
  // Where each bag begins in `ids`: F * B entries, or F * B + 1 with the end of the last bag. NULL: all bags have the same number
  // of ids.
  const void *offsets;
  // The number of offsets.
  size_t offset_count;
  // One weight for each id; NULL if and only if no feature of the plan is weighted.
  const float *weights;
  // On a GPU alone: two numbers, ids and bags of each feature, that are read when the look-up runs. NULL: `id_count` and `batch`
  // say it.
  const uint64_t *counts;
  // The type of the ids: a WARPROW_INT_TYPE_ constant.
  int32_t id_type;
  // The type of the offsets: a WARPROW_INT_TYPE_ constant.
  int32_t offset_type;
} warprow_batch;

// Where a look-up's result goes: memory of the caller's, where the batch lies too. Nothing of it overlaps with the batch.
typedef struct warprow_output {
  // sizeof(warprow_output).
  size_t struct_size;
  // The output rows. Pooled: row b has bag b of each feature side by side. Unpooled: row i is the row of id i.
  void *rows;
  // Elements that there is room for from `rows` on.
  size_t elements;
  // Elements from one row to the next; 0: the plan's width. What lies between rows is left as it is.
  size_t row_stride;
  // Gets one byte for each id, 1 or 0: the plan says what it tells, usually that the row was found and read. NULL: not wanted.
  uint8_t *mask;
  // Bytes that there is room for in `mask`.
  size_t mask_bytes;
  // The type of the elements: the plan's, a WARPROW_DTYPE_ constant.
  int32_t dtype;
  // 0.
  uint32_t reserved;
} warprow_output;

// What a look-up on the host did. The stages' times do not overlap, and add up to the look-up's.
typedef struct warprow_report {
  // sizeof(warprow_report).
  size_t struct_size;
  // Ids of the batch.
  uint64_t ids;
  // Padding ids that were not read, and missing ids that are ignored.
  uint64_t padding;
  // Ids that their table does not have.
  uint64_t missing;
  // Ids whose row could not be read.
  uint64_t failed;
  // Different rows among the ids.
  uint64_t unique;
  // Different rows that lay in DRAM.
  uint64_t rows_dram;
  // Different rows that had to be read from drives.
  uint64_t rows_ssd;
  // Ids served from DRAM.
  uint64_t ids_dram;
  // Ids served from drives.
  uint64_t ids_ssd;
  // Read commands.
  uint64_t commands;
  // Rows that another row's command read too.
  uint64_t merges;
  // Commands that were read again in parts, because of a bad block.
  uint64_t split;
  // Different rows that drives wrote straight to the output.
  uint64_t landed;
  // Stores to doorbells of submission queues.
  uint64_t sq_doorbells;
  // Stores to doorbells of completion queues.
  uint64_t cq_doorbells;
  // Bytes read from drives.
  uint64_t bytes_read;
  // Bytes of the rows that had to be read.
  uint64_t bytes_needed;
  // Nanoseconds of the stage that finds the different rows.
  uint64_t dedupe_ns;
  // Nanoseconds of the stage that finds where each row lies.
  uint64_t route_ns;
  // Nanoseconds of the stage that sorts rows by address.
  uint64_t order_ns;
  // Nanoseconds of the stage that makes read commands.
  uint64_t merge_ns;
  // Nanoseconds of the stage that submits commands and waits for them.
  uint64_t read_ns;
  // Nanoseconds of the stage that writes rows to the output.
  uint64_t expand_ns;
  // The latest generation that was read.
  uint64_t generation;
  // Position of the first missing id, of features with WARPROW_BOUNDS_REPORT.
  uint64_t first_missing_position;
  // The id that `first_missing_position` is the position of. A negative id is given by its bits.
  uint64_t first_missing_id;
  // 1: there is one; else 0.
  int32_t has_first_missing;
  // 0.
  uint32_t reserved;
  // Different rows that lay in the cache.
  uint64_t rows_cached;
  // Ids served from the cache.
  uint64_t ids_cached;
} warprow_report;

// Options of warprow_gpu_executor_attach. Zeros, or NULL for all, mean the usual.
typedef struct warprow_gpu_options {
  // sizeof(warprow_gpu_options).
  size_t struct_size;
  // Bytes of rows to keep in GPU memory, the hottest ones.
  uint64_t hbm_bytes;
  // Bytes of rows to keep in pinned DRAM, the hottest ones that are not in GPU memory.
  uint64_t dram_bytes;
  // Bytes of GPU memory for updated rows; 0: the store takes no updates while the executor lives.
  uint64_t overlay_bytes;
  // The longest wait for a read, in milliseconds; 0: that of the store.
  uint64_t timeout_ms;
  // Queue pairs that each slot has on every drive; 0: as many as suit the drives.
  uint32_t queue_sets;
  // Not 0: rows are compared with their checksums, where there are any.
  int32_t check_rows;
  // Not 0: each key is compared with the stored one, so that one which the table does not have is missing for certain.
  int32_t check_keys;
  // Not 0: plans can adopt other tables.
  int32_t adopting;
  // Which rows on drives share a read command: a WARPROW_MERGING_ constant.
  int32_t merging;
  // 0.
  uint32_t reserved;
  // Bytes of GPU memory for a cache: rows that look-ups have read from drives, which later ones then find there; 0: no row is
  // cached.
  uint64_t cache_bytes;
  // How many different rows on drives a usual batch has, by which the cache holds lines that were used lately; 0: 262,144.
  uint64_t cache_batch_rows;
  // With which probability a row that was read from a drive is cached, up to 1; 0: each row is, or as `cache_sketch` says.
  double cache_chance;
  // Not 0: a row is cached if it was asked for more often lately than the row whose place it would take. `cache_chance` is 0 then.
  int32_t cache_sketch;
  // 0.
  uint32_t cache_reserved;
  // Look-ups note this epoch, from 1 to 65,535, as that of the last touch of each key that they find, for warprow_store_expire: 2 bytes
  // of GPU memory, and 2 of the host's, for each row of tables whose keys are stored. 0: nothing is noted. Since 1.6.
  uint32_t touch_epoch;
  // 0.
  uint32_t touch_reserved;
  // Not 0: rows of `dram_bytes` are cached as those read from drives are. Since 1.7.
  int32_t cache_dram;
  // 0.
  uint32_t dram_reserved;
  // Tables that have so many bytes of the cache each to themselves; the others share the rest. The array and its texts stay the
  // caller's. Since 1.8.
  const struct warprow_cache_share *cache_shares;
  // How many these are.
  size_t cache_share_count;
} warprow_gpu_options;

// What a look-up on a GPU did.
typedef struct warprow_gpu_report {
  // sizeof(warprow_gpu_report).
  size_t struct_size;
  // Launches of the ticket's look-up that have ended: of a captured one, as often as its graph ran.
  uint64_t runs;
  // Ids of the batch.
  uint64_t ids;
  // Padding ids that were not read, and missing ids that are ignored.
  uint64_t padding;
  // Ids that their table does not have.
  uint64_t missing;
  // Ids whose row could not be read.
  uint64_t failed;
  // Ids served from GPU memory.
  uint64_t ids_hbm;
  // Ids served from DRAM.
  uint64_t ids_dram;
  // Ids served from drives.
  uint64_t ids_ssd;
  // Different rows that lay in DRAM.
  uint64_t rows_dram;
  // Different rows that had to be read from drives.
  uint64_t rows_ssd;
  // Read commands.
  uint64_t commands;
  // Stores to doorbells.
  uint64_t doorbells;
  // Bytes read from drives.
  uint64_t bytes_read;
  // Completions that answered no command.
  uint64_t anomalies;
  // Rows that did not match their checksums.
  uint64_t damaged;
  // Commands that were read again row by row, because of a bad block.
  uint64_t split;
  // Nanoseconds by the GPU's clock until the different rows were known.
  uint64_t prepare_ns;
  // Nanoseconds from then until all rows were in GPU memory.
  uint64_t fetch_ns;
  // Nanoseconds from then until the look-up ended.
  uint64_t expand_ns;
  // The latest generation that was read.
  uint64_t generation;
  // Position of the first missing id, of features with WARPROW_BOUNDS_REPORT.
  uint64_t first_missing_position;
  // The id that `first_missing_position` is the position of. A negative id is given by its bits.
  uint64_t first_missing_id;
  // 1: there is one; else 0.
  int32_t has_first_missing;
  // 0.
  uint32_t reserved;
  // Ids served from the cache in GPU memory.
  uint64_t ids_cached;
} warprow_gpu_report;

// How a model hashes n-grams of tokens for one of its tables: docs/ngram.md has the rules of two models.
typedef struct warprow_ngram_rules {
  // sizeof(warprow_ngram_rules).
  size_t struct_size;
  // The multipliers of an n-gram's tokens, that of the latest token first.
  const uint64_t *multipliers;
  // How many there are, 2 to 8: the longest n-gram has as many tokens.
  size_t multiplier_count;
  // For each token the word that is hashed in its place; UINT32_MAX for a token that takes no part. NULL: tokens are their own words.
  const uint32_t *words;
  // The number of words.
  size_t word_count;
  // The heads of all tables of the model have the primes from this number on, one after the other.
  uint64_t first_prime;
  // The word in the place of a token that is missing, or that an n-gram does not reach.
  uint64_t fill;
  // The word that ends a text, where `has_stop` is not 0.
  uint64_t stop;
  // The row of the whole table that has the id 0.
  uint64_t first_row;
  // How many heads the n-grams of each length have.
  uint32_t heads_per_order;
  // Which of the model's tables is meant, from 0 on: the heads of the tables before it have the smaller primes.
  uint32_t table;
  // The head of the first column of ids.
  uint32_t first_head;
  // How many columns of ids there are; 0: one for each head from the first one on. Columns past the last head have the id -1.
  uint32_t columns;
  // Not 0: `stop` is a word that ends a text.
  int32_t has_stop;
  // 0.
  uint32_t reserved;
} warprow_ngram_rules;

// Tokens of one or several sequences, one after the other. All of it stays the caller's.
typedef struct warprow_tokens {
  // sizeof(warprow_tokens).
  size_t struct_size;
  // The tokens. Negative ones are padding.
  const void *tokens;
  // The number of tokens, padding included.
  size_t count;
  // `sequences` + 1 numbers: where each sequence begins, and where the last one ends. Tokens outside are padding. NULL: all tokens are
  // one sequence.
  const uint32_t *starts;
  // The number of sequences. Not used if `starts` is NULL.
  size_t sequences;
  // For each sequence the tokens before its first one: one fewer than the longest n-gram has. A negative one is missing, and so are
  // those before it. NULL: each sequence begins a text.
  const void *history;
  // The type of tokens and history: WARPROW_INT_TYPE_I32 or WARPROW_INT_TYPE_I64.
  int32_t token_type;
  // Not 0: a sequence's history begins with the latest of its tokens.
  int32_t newest_first;
} warprow_tokens;

// What a cache has done since its executor was attached.
typedef struct warprow_cache_statistics {
  // sizeof(warprow_cache_statistics).
  size_t struct_size;
  // Rows that it has room for.
  uint64_t lines;
  // Rows that it has.
  uint64_t used;
  // Rows that were taken in.
  uint64_t admissions;
  // Rows that were given up for others.
  uint64_t evictions;
  // On the host: different rows of batches that were looked for and found. On a GPU: ids that were served from the cache, 0 until 1.7.
  uint64_t hits;
  // On the host: different rows of batches that were looked for and not found. On a GPU: ids that were served from drives, 0 until 1.7.
  uint64_t misses;
  // On a GPU: rows that found no line, because look-ups under way may read all lines that come into question. On the host 0.
  uint64_t full;
  // On a GPU: rows that the admission refused. On the host 0.
  uint64_t refusals;
  // On a GPU: for how many look-ups a line is held that one has used. On the host 0.
  uint64_t hold;
  // On a GPU: rows that stay until they are let go, by warprow_gpu_executor_pin_cache_rows. On the host 0. Since 1.4.
  uint64_t pinned;
  // How long ago rows that were given up for others had been used. On the host of the latest of them, in different rows of batches that
  // were looked for since; on a GPU of all of them, on average, in look-ups. 0: none was given up. Since 1.7.
  uint64_t eviction_age;
} warprow_cache_statistics;

// What became of rows that were to be brought into the cache of a GPU, or to stay there. Since 1.4.
typedef struct warprow_cache_warmed {
  // sizeof(warprow_cache_warmed).
  size_t struct_size;
  // Ids that the cache has now, each as often as it was given; of rows to pin: different rows that are pinned now and were not before.
  uint64_t cached;
  // Of rows to pin: different rows that were pinned before. Else 0.
  uint64_t already;
  // Ids whose row lies in GPU memory or DRAM anyway.
  uint64_t in_memory;
  // Ids that the table does not have.
  uint64_t missing;
  // Ids whose row found no line: all in which it may lie are pinned, or held for look-ups under way.
  uint64_t left;
} warprow_cache_warmed;

// Which keys warprow_store_expire removes, and how. Since 1.6.
typedef struct warprow_expire_options {
  // sizeof(warprow_expire_options).
  size_t struct_size;
  // Keys that are removed, and made durable, at once; 0: 4,096.
  uint64_t batch;
  // Keys that were last touched before this epoch, from 1 to 65,535.
  uint32_t before;
  // Not 0: nothing is removed, and the report counts what would be.
  int32_t dry_run;
} warprow_expire_options;

// What warprow_store_expire did. Since 1.6.
typedef struct warprow_expire_report {
  // sizeof(warprow_expire_report).
  size_t struct_size;
  // Keys that the table had, with those that updates created.
  uint64_t present;
  // Keys that were last touched before the epoch, of which none has a row that was updated.
  uint64_t expired;
  // Keys that were removed: those, or 0 if nothing was to be removed.
  uint64_t removed;
  // Keys that stay because no file has them, or because updates created them and no compaction has brought them into the table yet.
  uint64_t unknown;
  // Keys that stay because their rows were updated, and no compaction has brought that into the table yet.
  uint64_t updated;
} warprow_expire_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the interface that the library has, which may be a later one than WARPROW_ABI_VERSION.
//
// Any thread may call it. It never blocks.
uint32_t warprow_abi_version(void);

// The version of Warprow, as text.
//
// The text belongs to the library and is always valid. Any thread may call it. It never blocks.
const char *warprow_version(void);

// How many handles are open, of all kinds, errors included: to see whether a program closes what it opens.
//
// Any thread may call it. It never blocks.
size_t warprow_open_handles(void);

// The code of an error; WARPROW_STATUS_INVALID_HANDLE if it was freed.
//
// Any thread may call it. It never blocks.
warprow_status warprow_error_status(const struct warprow_error *error);

// The message of an error, in UTF-8: what went wrong, with the thing's name, and what can be done. Never NULL.
//
// The text belongs to the error, and is valid until that is freed. Any thread may call it. It never blocks.
const char *warprow_error_message(const struct warprow_error *error);

// The positions in the batch's ids that a look-up on the host failed for, ascending: of WARPROW_STATUS_ROWS_FAILED those whose row
// could not be read, of WARPROW_STATUS_MISSING_IDS those that are missing. Stores how many there are in `count`; NULL and 0 for
// other errors. (Of a look-up on a GPU the mask tells.)
//
// The positions belong to the error, and are valid until that is freed. Any thread may call it. It never blocks.
//
// `count` is NULL, or points to a size_t.
const size_t *warprow_error_positions(const struct warprow_error *error,
                                      size_t *count);

// The token that agrees to exactly what warprow_store_format refused; NULL for other errors.
//
// The text belongs to the error, and is valid until that is freed. Any thread may call it. It never blocks.
const char *warprow_error_consent(const struct warprow_error *error);

// Frees an error. NULL, and an error that was freed before, are left alone.
//
// Any thread may call it. It never blocks.
void warprow_error_free(struct warprow_error *error);

// Formats drives as an empty store and opens it. **What lies on them is lost.** Without consent only blank emulated drives are
// formatted; a refusal is WARPROW_STATUS_REFUSED, says what would be lost, and its warprow_error_consent agrees to just that.
//
// `abi_version` is WARPROW_ABI_VERSION. `drives` has the addresses of `drive_count` drives, such as "0000:41:00.0" or
// "emulated:/data/a.drive?size=64G"; the files of emulated drives are made if they are missing. All arguments stay the caller's. The
// store in `*store` is the caller's, who closes it with warprow_store_close.
//
// Any thread may call it. It blocks until the drives are formatted.
warprow_status warprow_store_format(uint32_t abi_version,
                                    const char *const *drives,
                                    size_t drive_count,
                                    const struct warprow_format_options *format_options,
                                    struct warprow_store **store,
                                    struct warprow_error **error);

// Opens the store that lies on drives, given in any order.
//
// `abi_version` is WARPROW_ABI_VERSION: a program that was compiled against a header that does not fit the library is refused with
// WARPROW_STATUS_ABI_MISMATCH. `drives` has the addresses of `drive_count` drives. All arguments stay the caller's. The store in
// `*store` is the caller's, who closes it with warprow_store_close.
//
// Any thread may call it. It blocks until drives and catalogue are read.
warprow_status warprow_store_open(uint32_t abi_version,
                                  const char *const *drives,
                                  size_t drive_count,
                                  const struct warprow_open_options *open,
                                  struct warprow_store **store,
                                  struct warprow_error **error);

// Closes a store. Executors, plans, slots and tickets that were made of it keep it open until they are closed too; only then are its
// drives free for others. NULL is left alone.
//
// Any thread may call it, also while others use the store: their calls end first. It may block until drives have shut down.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_store_close(struct warprow_store *store,
                                   struct warprow_error **error);

// Lists every table that look-ups find. The list in `*tables` is the caller's, who closes it with warprow_table_list_close.
//
// Any thread may call it. It reads memory only.
warprow_status warprow_store_tables(const struct warprow_store *store,
                                    struct warprow_table_list **tables,
                                    struct warprow_error **error);

// How many tables a list has; 0 if it was closed. Any thread may call it. It never blocks.
size_t warprow_table_list_count(const struct warprow_table_list *tables);

// Describes table number `index` of a list, from 0 on, in `*table`, whose struct_size the caller has set. Texts in it belong to the
// list, and are valid until that is closed.
//
// Any thread may call it. It never blocks.
warprow_status warprow_table_list_get(const struct warprow_table_list *tables,
                                      size_t index,
                                      struct warprow_table_info *table,
                                      struct warprow_error **error);

// Closes a list of tables, and the texts in it. NULL is left alone. Any thread may call it. It never blocks.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_table_list_close(struct warprow_table_list *tables, struct warprow_error **error);

// Lists all generations, oldest first. The list in `*generations` is the caller's, who closes it with warprow_generation_list_close.
//
// Any thread may call it. It reads memory only.
warprow_status warprow_store_generations(const struct warprow_store *store,
                                         struct warprow_generation_list **generations,
                                         struct warprow_error **error);

// How many generations a list has; 0 if it was closed. Any thread may call it. It never blocks.
size_t warprow_generation_list_count(const struct warprow_generation_list *generations);

// Describes generation number `index` of a list, from 0 on, in `*generation`, whose struct_size the caller has set. Texts in it belong
// to the list, and are valid until that is closed.
//
// Any thread may call it. It never blocks.
warprow_status warprow_generation_list_get(const struct warprow_generation_list *generations,
                                           size_t index,
                                           struct warprow_generation_info *generation,
                                           struct warprow_error **error);

// Closes a list of generations, and the texts in it. NULL is left alone. Any thread may call it. It never blocks.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_generation_list_close(struct warprow_generation_list *generations,
                                             struct warprow_error **error);

// Says how each drive does: whether it serves, or why not. The list in `*drives` is the caller's, who closes it with
// warprow_drive_list_close.
//
// Any thread may call it. It reads memory only.
warprow_status warprow_store_drives(const struct warprow_store *store,
                                    struct warprow_drive_list **drives,
                                    struct warprow_error **error);

// Tries every drive that was given up once more, when somebody says that it may work again, and lists how these drives do then. The
// list in `*drives` is the caller's, who closes it with warprow_drive_list_close.
//
// Any thread may call it. It blocks while drives are reset.
warprow_status warprow_store_retry_drives(const struct warprow_store *store,
                                          struct warprow_drive_list **drives,
                                          struct warprow_error **error);

// How many drives a list has; 0 if it was closed. Any thread may call it. It never blocks.
size_t warprow_drive_list_count(const struct warprow_drive_list *drives);

// Describes drive number `index` of a list, from 0 on, in `*drive`, whose struct_size the caller has set. Texts in it belong to the
// list, and are valid until that is closed.
//
// Any thread may call it. It never blocks.
warprow_status warprow_drive_list_get(const struct warprow_drive_list *drives,
                                      size_t index,
                                      struct warprow_drive_info *drive,
                                      struct warprow_error **error);

// Closes a list of drives, and the texts in it. NULL is left alone. Any thread may call it. It never blocks.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_drive_list_close(struct warprow_drive_list *drives, struct warprow_error **error);

// Makes names of tables mean the tables of a generation, and no longer those of other generations of its model: durable, and whole
// or not at all. If tables would vanish, the call is refused unless `allow_vanishing` is not 0. Executors go on with what they read
// until they adopt other tables.
//
// Any thread may call it. It blocks for a commit.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_store_switch(const struct warprow_store *store,
                                    uint64_t generation,
                                    int32_t allow_vanishing,
                                    struct warprow_error **error);

// Drops a generation of which no table is found by name. Its room is free once nobody in this process reads it any more.
//
// Any thread may call it. It blocks for a commit.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_store_drop_generation(const struct warprow_store *store,
                                             uint64_t generation,
                                             struct warprow_error **error);

// Loads tables as one generation of the model called `model`: when the call returns, all of them are there, or none is.
//
// `tables` has `table_count` sources, which stay the caller's, with everything that they point to. `report`, whose struct_size the
// caller has set, is filled, unless it is NULL.
//
// Any thread may call it; a store has one load at a time. It blocks until the tables are on the drives. Look-ups go on meanwhile.
warprow_status warprow_store_load(const struct warprow_store *store,
                                  const char *model,
                                  const struct warprow_table_source *tables,
                                  size_t table_count,
                                  const struct warprow_load_options *load,
                                  struct warprow_load_report *report,
                                  struct warprow_error **error);

// Loads tables of a file (safetensors, NumPy, Parquet and what else docs/formats.md names) as one generation of the model called
// `model`: when the call returns, all of them are there, or none is. Keys that are the ids in another order put the rows in order;
// other keys get an index.
//
// All arguments stay the caller's. `report`, whose struct_size the caller has set, is filled, unless it is NULL.
//
// Any thread may call it; a store has one load at a time. It blocks until the tables are on the drives. Look-ups go on meanwhile.
warprow_status warprow_store_load_file(const struct warprow_store *store,
                                       const char *model,
                                       const char *file,
                                       const struct warprow_file_options *file_options,
                                       const struct warprow_load_options *load,
                                       struct warprow_load_report *report,
                                       struct warprow_error **error);

// Gives rows of a table other content, by id, or by key where the table has keys (a signed key by its bits). When the call returns, they
// are durable, and every look-up that begins later sees them; no look-up sees some of them without the others. Where an id comes
// twice, its last row counts. If the call fails, nothing was changed, unless the code is WARPROW_STATUS_DRIVE, when nobody knows.
//
// `ids` has `id_count` numbers, `rows` one row after another, of `row_bytes` bytes all together; both stay the caller's. If `sequence` is
// not NULL, it gets the number of the last row's update in its generation.
//
// Any thread may call it. It blocks until drives have written.
warprow_status warprow_store_update(const struct warprow_store *store,
                                    const char *table,
                                    const uint64_t *ids,
                                    size_t id_count,
                                    const void *rows,
                                    size_t row_bytes,
                                    const struct warprow_update_options *update,
                                    uint64_t *sequence,
                                    struct warprow_error **error);

// Removes keys of a table, with their rows (a signed key by its bits). When the call returns, that is durable, and every look-up that
// begins later treats these keys as ones that the table never had. A key that the table does not have is passed over. If the call fails,
// nothing was changed, unless the code is WARPROW_STATUS_DRIVE, when nobody knows.
//
// `keys` has `key_count` numbers, and stays the caller's. Of `update`, the generation counts. If `removed` is not NULL, it gets the number
// of keys that were there. warprow_store_compact gives the room of the rows back.
//
// Any thread may call it. It blocks until drives have written.
warprow_status warprow_store_remove(const struct warprow_store *store,
                                    const char *table,
                                    const uint64_t *keys,
                                    size_t key_count,
                                    const struct warprow_update_options *update,
                                    uint64_t *removed,
                                    struct warprow_error **error);

// Brings the updates of a generation from the log into its chunks. If `chunks` is not NULL, it gets the number of chunks that were
// written. Executors keep the memory of updated rows until they prepare and adopt the tables anew.
//
// Any thread may call it. It blocks until the chunks are written. Look-ups and updates go on meanwhile.
warprow_status warprow_store_compact(const struct warprow_store *store,
                                     uint64_t generation,
                                     size_t *chunks,
                                     struct warprow_error **error);

// Reads all rows of a table, their order and their keys, and compares them with their checksums as far as there are any. Damage is
// no failure of the call: `report`, whose struct_size the caller has set, tells it.
//
// `progress` is told how many rows were read, of how many; NULL: nobody is. It gets `user` first.
//
// Any thread may call it. It blocks until the table is read. Look-ups go on meanwhile.
warprow_status warprow_store_verify(const struct warprow_store *store,
                                    const char *table,
                                    warprow_progress progress,
                                    void *user,
                                    struct warprow_verify_report *report,
                                    struct warprow_error **error);

// Attaches an executor to a store: fills DRAM with the hottest rows. It reads the tables as they are now, with all updates that come,
// until it adopts others.
//
// All arguments stay the caller's. The executor in `*executor` is the caller's, who closes it with warprow_host_executor_close.
//
// Any thread may call it. It blocks until DRAM is filled.
warprow_status warprow_host_executor_attach(const struct warprow_store *store,
                                            const struct warprow_host_options *host,
                                            struct warprow_host_executor **executor,
                                            struct warprow_error **error);

// Closes an executor. Its plans and slots go on until they are closed too. NULL is left alone.
//
// Any thread may call it, also while others use the executor: their calls end first.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_host_executor_close(struct warprow_host_executor *executor,
                                           struct warprow_error **error);

// Tells the totals of all look-ups since the executor was attached, in `*metrics`, whose struct_size the caller has set.
//
// Any thread may call it. It reads memory only.
warprow_status warprow_host_executor_metrics(const struct warprow_host_executor *executor,
                                             struct warprow_metrics *metrics,
                                             struct warprow_error **error);

// Prepares other tables than those that look-ups read, while look-ups go on: those of a generation to switch to, or the present ones
// after a compaction. Then follow warprow_store_switch, if it is another generation, and warprow_host_executor_adopt.
//
// The prepared tables in `*prepared` are the caller's, who gives them to warprow_host_executor_adopt, or closes them with
// warprow_host_prepared_close.
//
// Any thread may call it. It blocks until another DRAM tier is filled.
warprow_status warprow_host_executor_prepare(const struct warprow_host_executor *executor,
                                             const struct warprow_prepare_options *prepare,
                                             struct warprow_host_prepared **prepared,
                                             struct warprow_error **error);

// Has all plans of an executor read the prepared tables, from their next look-ups on. It waits up to `patience_ms` milliseconds for the
// look-ups that still read the tables before; if `freed` is not NULL, it gets 1 if all of these have ended, so that their memory is
// free, else 0.
//
// The prepared tables are closed, whether the call succeeds or not, unless their handle is invalid.
//
// Any thread may call it. It blocks for as long as said; no look-up waits.
warprow_status warprow_host_executor_adopt(const struct warprow_host_executor *executor,
                                           struct warprow_host_prepared *prepared,
                                           uint64_t patience_ms,
                                           int32_t *freed,
                                           struct warprow_error **error);

// Closes prepared tables that are not adopted. NULL is left alone. Any thread may call it.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_host_prepared_close(struct warprow_host_prepared *prepared,
                                           struct warprow_error **error);

// Plans look-ups of features: takes queue pairs and allocates all that look-ups will need.
//
// `features` has `feature_count` features. All arguments stay the caller's. The plan in `*plan` is the caller's, who closes it with
// warprow_host_plan_close.
//
// Any thread may call it. It blocks while orders and keys of tables are read.
warprow_status warprow_host_executor_plan(const struct warprow_host_executor *executor,
                                          const struct warprow_feature *features,
                                          size_t feature_count,
                                          const struct warprow_plan_options *how,
                                          struct warprow_host_plan **plan,
                                          struct warprow_error **error);

// Closes a plan. Its slots go on until they are closed too. NULL is left alone. Any thread may call it.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_host_plan_close(struct warprow_host_plan *plan, struct warprow_error **error);

// Elements of an output row: all features side by side if they are pooled, else the widest; 0 if the plan was closed.
//
// Any thread may call it. It never blocks.
size_t warprow_host_plan_width(const struct warprow_host_plan *plan);

// Takes a slot of a plan, which is one look-up that can be under way. WARPROW_STATUS_BUSY if all are taken.
//
// The slot in `*slot` is the caller's, who closes it with warprow_host_slot_close, which gives it back to the plan.
//
// Any thread may call it. It never blocks.
warprow_status warprow_host_plan_slot(const struct warprow_host_plan *plan,
                                      struct warprow_host_slot **slot,
                                      struct warprow_error **error);

// Gives a slot back to its plan. NULL is left alone.
//
// Any thread may call it. It blocks until rows that are fetched ahead have come.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_host_slot_close(struct warprow_host_slot *slot, struct warprow_error **error);

// Looks a batch up, and fills `output`.
//
// `batch` and `output` stay the caller's. `report`, whose struct_size the caller has set, is filled, unless it is NULL, also if rows
// failed. WARPROW_STATUS_ROWS_FAILED: drives failed, and warprow_error_positions tells for which ids; all other rows are valid, those
// of these ids are zeros, and pooled bags with one of them are zeros. WARPROW_STATUS_INVALID_ARGUMENT and
// WARPROW_STATUS_MISSING_IDS leave the output untouched.
//
// Any thread may call it, one at a time with a slot. It blocks until the rows are there, or their time-out has passed.
warprow_status warprow_host_slot_lookup(const struct warprow_host_slot *slot,
                                        const struct warprow_batch *batch,
                                        const struct warprow_output *output,
                                        struct warprow_report *report,
                                        struct warprow_error **error);

// Begins to fetch the rows of a batch from drives, for warprow_host_slot_lookup_prefetched: a thread of the slot's reads them. The plan
// was made with `prefetch`. The batch is the caller's again when the call returns. Until that look-up, or
// warprow_host_slot_forget_prefetched, the slot does nothing else.
//
// Any thread may call it, one at a time with a slot. It does not wait for drives.
warprow_status warprow_host_slot_prefetch(const struct warprow_host_slot *slot,
                                          const struct warprow_batch *batch,
                                          struct warprow_error **error);

// Looks up the batch that was prefetched, and fills `output`: what warprow_host_slot_lookup would have given when the batch was
// prefetched. If the output does not fit, the slot keeps the batch.
//
// `output` and `report` are as of warprow_host_slot_lookup.
//
// Any thread may call it, one at a time with a slot. It blocks until the rows are there, or their time-out has passed.
warprow_status warprow_host_slot_lookup_prefetched(const struct warprow_host_slot *slot,
                                                   const struct warprow_output *output,
                                                   struct warprow_report *report,
                                                   struct warprow_error **error);

// Stores 1 in `*fetched` if warprow_host_slot_lookup_prefetched would not wait, else 0, also if the slot holds no batch.
//
// Any thread may call it, one at a time with a slot. It never blocks.
warprow_status warprow_host_slot_is_fetched(const struct warprow_host_slot *slot,
                                            int32_t *fetched,
                                            struct warprow_error **error);

// Gives up the batch that was prefetched, if there is one.
//
// Any thread may call it, one at a time with a slot. It blocks until the batch's reads have ended.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_host_slot_forget_prefetched(const struct warprow_host_slot *slot,
                                                   struct warprow_error **error);

// How many GPUs CUDA sees; 0 also if there is no CUDA driver.
//
// Any thread may call it. The first call in a process loads the CUDA driver.
uint32_t warprow_gpu_count(void);

// Writes the name of a GPU to `name`, which has room for `name_bytes` bytes, with a NUL at its end; what is too long is cut off.
//
// Any thread may call it. It makes the GPU's primary context, if it is not there.
warprow_status warprow_gpu_name(uint32_t device,
                                char *name,
                                size_t name_bytes,
                                struct warprow_error **error);

// Attaches an executor on GPU number `device`, as CUDA counts, to a store: compiles the kernels, or takes them from a cache, and fills
// GPU memory and DRAM. It works in the GPU's primary context, which is the one of the CUDA runtime. It reads the tables as they are
// now, until it adopts others.
//
// All arguments stay the caller's. The executor in `*executor` is the caller's, who closes it with warprow_gpu_executor_close.
//
// Any thread may call it. It blocks until the memories are filled. No stream may be being captured meanwhile.
warprow_status warprow_gpu_executor_attach(const struct warprow_store *store,
                                           uint32_t device,
                                           const struct warprow_gpu_options *gpu,
                                           struct warprow_gpu_executor **executor,
                                           struct warprow_error **error);

// Closes an executor. Its plans, slots and tickets go on until they are closed too. NULL is left alone.
//
// Any thread may call it, also while others use the executor: their calls end first.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_gpu_executor_close(struct warprow_gpu_executor *executor,
                                          struct warprow_error **error);

// Prepares other tables than those that look-ups read, while look-ups go on. The executor was attached with `adopting`. Then follow
// warprow_store_switch, if it is another generation, and warprow_gpu_executor_adopt.
//
// The prepared tables in `*prepared` are the caller's, who closes them with warprow_gpu_prepared_close.
//
// Any thread may call it. It blocks until other GPU memory and DRAM are filled.
warprow_status warprow_gpu_executor_prepare(const struct warprow_gpu_executor *executor,
                                            const struct warprow_prepare_options *prepare,
                                            struct warprow_gpu_prepared **prepared,
                                            struct warprow_error **error);

// Has all plans of an executor read the prepared tables, captured look-ups too: those that begin after the call has returned. It waits up
// to `patience_ms` milliseconds for look-ups that are under way. WARPROW_STATUS_BUSY: some did not end; call it again.
//
// The prepared tables stay the caller's.
//
// Any thread may call it. It blocks for as long as said.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_gpu_executor_adopt(const struct warprow_gpu_executor *executor,
                                          const struct warprow_gpu_prepared *prepared,
                                          uint64_t patience_ms,
                                          struct warprow_error **error);

// Closes prepared tables. Executors that adopted them go on reading them. NULL is left alone. Any thread may call it.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_gpu_prepared_close(struct warprow_gpu_prepared *prepared,
                                          struct warprow_error **error);

// Plans look-ups of features: takes queue pairs and allocates all that look-ups will need.
//
// `features` has `feature_count` features. All arguments stay the caller's. The plan in `*plan` is the caller's, who closes it with
// warprow_gpu_plan_close.
//
// Any thread may call it. It blocks while memory and queues are made. No stream may be being captured meanwhile.
warprow_status warprow_gpu_executor_plan(const struct warprow_gpu_executor *executor,
                                         const struct warprow_feature *features,
                                         size_t feature_count,
                                         const struct warprow_plan_options *how,
                                         struct warprow_gpu_plan **plan,
                                         struct warprow_error **error);

// Closes a plan. Its slots and tickets go on until they are closed too. NULL is left alone. Any thread may call it.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_gpu_plan_close(struct warprow_gpu_plan *plan,
                                      struct warprow_error **error);

// Elements of an output row: all features side by side if they are pooled, else the widest; 0 if the plan was closed.
//
// Any thread may call it. It never blocks.
size_t warprow_gpu_plan_width(const struct warprow_gpu_plan *plan);

// Takes a slot of a plan, which is one look-up that can be under way. WARPROW_STATUS_BUSY if all are taken.
//
// The slot in `*slot` is the caller's, who closes it with warprow_gpu_slot_close. It goes back to the plan when all its tickets are
// closed too, and all graphs that hold look-ups of it are destroyed.
//
// Any thread may call it. It never blocks.
warprow_status warprow_gpu_plan_slot(const struct warprow_gpu_plan *plan,
                                     struct warprow_gpu_slot **slot,
                                     struct warprow_error **error);

// Closes a slot. Graphs that hold look-ups of it keep it until they are destroyed. NULL is left alone.
//
// Any thread may call it. It may block until the GPU has ended what it was given.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_gpu_slot_close(struct warprow_gpu_slot *slot, struct warprow_error **error);

// Starts the slot's queues anew that take no commands, since a drive did not answer. warprow_gpu_slot_lookup does so by itself; this is
// for slots whose look-ups are all in graphs: call it between replays. If `recovered` is not NULL, it gets 1 if there was anything to
// do, else 0.
//
// Any thread may call it. It blocks while drives are reset, if there is anything to do.
warprow_status warprow_gpu_slot_recover(const struct warprow_gpu_slot *slot,
                                        int32_t *recovered,
                                        struct warprow_error **error);

// Launches a look-up on `stream` (a cudaStream_t or CUstream; NULL: the default stream), or captures it, if the stream is being captured
// in a CUDA graph: whenever that graph runs, it looks up the ids that then lie where the batch says.
//
// `batch` and `output` stay the caller's, and are not needed after the call. What they point to lies in GPU memory, or in host memory
// that CUDA has pinned. Until the look-up has ended it stays valid, and nobody else writes to it; for a captured look-up, whenever its
// graph runs. A graph, with all its copies, runs once at a time; until it is destroyed, it keeps the slot. The ticket in `*ticket` is the caller's, who closes it with warprow_gpu_ticket_close.
//
// Any thread may call it. It waits for nothing, unless a drive did not answer an earlier look-up: then queues are started anew first.
warprow_status warprow_gpu_slot_lookup(const struct warprow_gpu_slot *slot,
                                       struct CUstream_st *stream,
                                       const struct warprow_batch *batch,
                                       const struct warprow_output *output,
                                       struct warprow_gpu_ticket **ticket,
                                       struct warprow_error **error);

// Asks whether a look-up has ended. If it has, `*ended` is 1, the code says how, and `report`, whose struct_size the caller has set, is
// filled, unless it is NULL; else `*ended` is 0, and the code WARPROW_STATUS_OK.
//
// WARPROW_STATUS_ROWS_FAILED: drives failed; the mask tells for which ids, all other rows are valid. WARPROW_STATUS_BUSY: another look-up of
// the slot was under way, and this one did nothing. WARPROW_STATUS_INVALID_ARGUMENT: the GPU found more ids or bags than planned, or
// offsets that descend. WARPROW_STATUS_MISSING_IDS: ids are missing of features with WARPROW_MISSING_ERROR, and got zeros. Of a captured look-up it is the outcome of the latest run of its graph that has ended.
//
// Any thread may call it. It reads memory only.
warprow_status warprow_gpu_ticket_poll(const struct warprow_gpu_ticket *ticket,
                                       int32_t *ended,
                                       struct warprow_gpu_report *report,
                                       struct warprow_error **error);

// As warprow_gpu_ticket_poll, but waits up to `timeout_ms` milliseconds for the end. (Who waits for the stream anyway has no need of it.)
//
// Any thread may call it. It blocks for as long as said.
warprow_status warprow_gpu_ticket_wait(const struct warprow_gpu_ticket *ticket,
                                       uint64_t timeout_ms,
                                       int32_t *ended,
                                       struct warprow_gpu_report *report,
                                       struct warprow_error **error);

// Tells what went wrong with the look-up's runs that have ended by now, and that no call of this function before was told of:
// WARPROW_STATUS_OK if nothing did, or if none has ended; else the code of the latest run, as of warprow_gpu_ticket_poll, or
// WARPROW_STATUS_ROWS_FAILED if the latest run was right, and runs of the graph before it failed. Each failure is told of once.
//
// Any thread may call it. It reads memory only.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_gpu_ticket_check(const struct warprow_gpu_ticket *ticket,
                                        struct warprow_error **error);

// Closes a ticket. The look-up goes on, and so does a graph that holds it. NULL is left alone.
//
// Any thread may call it. It may block until the GPU has ended what it was given, if the slot was closed before.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_gpu_ticket_close(struct warprow_gpu_ticket *ticket,
                                        struct warprow_error **error);

// Begins to fetch the rows of a batch that are not in GPU memory, for warprow_gpu_slot_lookup_prefetched, on a stream of the slot's, behind
// what `stream` has been given so far. The plan was made with `prefetch`. Until that look-up the slot does nothing else.
//
// The ids stay valid and as they are until the rows are there (warprow_gpu_prefetched_is_fetched, warprow_gpu_prefetched_hold); offsets and
// weights until the look-up has ended. The batch in `*prefetched` is the caller's, who gives it to warprow_gpu_slot_lookup_prefetched, or
// closes it with warprow_gpu_prefetched_close.
//
// If `stream` is being captured, the prefetch is recorded, and its look-up has to be recorded in the same capture: else CUDA refuses to
// end that.
//
// Any thread may call it. It waits for nothing, unless a drive did not answer an earlier look-up.
warprow_status warprow_gpu_slot_prefetch(const struct warprow_gpu_slot *slot,
                                         struct CUstream_st *stream,
                                         const struct warprow_batch *batch,
                                         struct warprow_gpu_prefetched **prefetched,
                                         struct warprow_error **error);

// Looks up a batch whose rows were fetched ahead, on `stream`, which waits for them.
//
// `output` and `ticket` are as of warprow_gpu_slot_lookup. The prefetched batch is closed, whether the call succeeds or not, unless a
// handle is invalid, or the output is not one.
//
// `stream` is part of the capture that the batch was prefetched in, or, if that was none, of none.
//
// Any thread may call it. It waits for nothing.
warprow_status warprow_gpu_slot_lookup_prefetched(const struct warprow_gpu_slot *slot,
                                                  struct warprow_gpu_prefetched *prefetched,
                                                  struct CUstream_st *stream,
                                                  const struct warprow_output *output,
                                                  struct warprow_gpu_ticket **ticket,
                                                  struct warprow_error **error);

// Stores 1 in `*fetched` if the rows of a batch are there, or have failed, else 0. From then on the ids are the caller's again.
//
// Any thread may call it. It never blocks.
warprow_status warprow_gpu_prefetched_is_fetched(const struct warprow_gpu_prefetched *prefetched,
                                                 int32_t *fetched,
                                                 struct warprow_error **error);

// What comes on `stream` next waits until the rows of a batch are there: it may write to the ids. `stream` must not be being captured.
//
// Any thread may call it. It never blocks.
//
// `stream` is NULL or a stream of CUDA's; `error` is NULL, or points to a place for a pointer.
warprow_status warprow_gpu_prefetched_hold(const struct warprow_gpu_prefetched *prefetched,
                                           struct CUstream_st *stream,
                                           struct warprow_error **error);

// Gives up a batch that was prefetched. Its reads end on the GPU; the ids stay valid until then. NULL is left alone.
//
// Any thread may call it. It never blocks.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_gpu_prefetched_close(struct warprow_gpu_prefetched *prefetched,
                                            struct warprow_error **error);

// Makes an n-gram hash by its rules, which stay the caller's. The hash in `*hash` is the caller's, who closes it with
// warprow_ngram_hash_close.
//
// Any thread may call it. It blocks for as long as it takes to find some primes.
warprow_status warprow_ngram_hash_create(const struct warprow_ngram_rules *rules,
                                         struct warprow_ngram_hash **hash,
                                         struct warprow_error **error);

// Tells how many columns of ids a hash gives, and how many rows the heads of its model's table have together.
//
// Any thread may call it. It never blocks.
warprow_status warprow_ngram_hash_shape(const struct warprow_ngram_hash *hash,
                                        size_t *columns,
                                        uint64_t *rows,
                                        struct warprow_error **error);

// Writes the ids of the n-grams that end at each token to `ids`, which has room for `id_count` of them, exactly one for each token and
// column: those of the first token first. Padding has the id -1. Tokens and ids lie in host memory.
//
// Any thread may call it. It never blocks.
warprow_status warprow_ngram_hash_ids(const struct warprow_ngram_hash *hash,
                                      const struct warprow_tokens *tokens,
                                      int64_t *ids,
                                      size_t id_count,
                                      struct warprow_error **error);

// Closes an n-gram hash. NULL is left alone. Any thread may call it.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_ngram_hash_close(struct warprow_ngram_hash *hash, struct warprow_error **error);

// Prepares an n-gram hash for the GPU of an executor: allocates memory there for its primes and words. Both arguments stay the caller's.
// The hash in `*on_gpu` is the caller's, who closes it with warprow_gpu_ngram_hash_close.
//
// Any thread may call it. It blocks until the memory is filled.
warprow_status warprow_gpu_ngram_hash_create(const struct warprow_gpu_executor *executor,
                                             const struct warprow_ngram_hash *hash,
                                             struct warprow_gpu_ngram_hash **on_gpu,
                                             struct warprow_error **error);

// Launches the hash of tokens on `stream` (a cudaStream_t or CUstream; NULL: the default stream), or captures it, if the stream is being
// captured in a CUDA graph. It writes ids of type `id_type`, WARPROW_INT_TYPE_I32 or WARPROW_INT_TYPE_I64, to `ids`: for each token one
// for each column, those of the first token first. Padding has the id -1. A look-up that is launched on the stream next finds them there.
//
// `tokens` stays the caller's, and is not needed after the call. What it points to lies in GPU memory, or in host memory that CUDA has
// pinned, and so does `ids`. Until the hash has ended they stay valid, and nobody else writes to them; of a captured one, whenever its
// graph runs. The starts of the sequences are read then, so that a graph takes fewer tokens too: all behind the last sequence are padding.
// Graphs do not keep the hash: it is closed after them.
//
// Any thread may call it. It waits for nothing.
warprow_status warprow_gpu_ngram_hash_launch(const struct warprow_gpu_ngram_hash *on_gpu,
                                             struct CUstream_st *stream,
                                             const struct warprow_tokens *tokens,
                                             void *ids,
                                             int32_t id_type,
                                             struct warprow_error **error);

// Closes an n-gram hash of a GPU. What was launched, or is in a graph, must have ended. NULL is left alone. Any thread may call it.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_gpu_ngram_hash_close(struct warprow_gpu_ngram_hash *on_gpu,
                                            struct warprow_error **error);

// Says what the cache of a host executor has done. WARPROW_STATUS_INVALID_ARGUMENT: it was attached without one.
//
// Any thread may call it. It never blocks.
warprow_status warprow_host_executor_cache_statistics(const struct warprow_host_executor *executor,
                                                      struct warprow_cache_statistics *statistics,
                                                      struct warprow_error **error);

// Gives up all rows of a host executor's cache. Look-ups go on meanwhile, and fill it again. WARPROW_STATUS_INVALID_ARGUMENT: it was
// attached without one.
//
// Any thread may call it. It never blocks for long.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_host_executor_clear_cache(const struct warprow_host_executor *executor,
                                                 struct warprow_error **error);

// Says what the cache of a GPU executor has done. WARPROW_STATUS_INVALID_ARGUMENT: it was attached without one.
//
// Any thread may call it. It waits for what CUDA's default stream was given before. No stream may be being captured meanwhile.
warprow_status warprow_gpu_executor_cache_statistics(const struct warprow_gpu_executor *executor,
                                                     struct warprow_cache_statistics *statistics,
                                                     struct warprow_error **error);

// Gives up all rows of a GPU executor's cache: they are read anew. Look-ups go on meanwhile without the cache. It waits up to
// `patience_ms` milliseconds for look-ups that may read the cache's rows. WARPROW_STATUS_BUSY: one did not end, such as one whose batch
// was fetched ahead; the cache is as it was. WARPROW_STATUS_INVALID_ARGUMENT: it was attached without one.
//
// Any thread may call it. It blocks for as long as said.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_gpu_executor_clear_cache(const struct warprow_gpu_executor *executor,
                                                uint64_t patience_ms,
                                                struct warprow_error **error);

// Brings rows of a table into a GPU executor's cache before they are looked up. `ids` has `id_count` ids of the table, or keys by their
// bits, the hottest first; they stay the caller's. Each row that has to be read gets a line, whatever the cache's admission says. If
// `warmed` is not NULL, whose struct_size the caller has set, it is told what came of it.
//
// Any thread may call it. It blocks until the rows are there. Look-ups go on meanwhile. It takes a slot's queue pairs on each drive for
// that time. No stream may be being captured meanwhile.
warprow_status warprow_gpu_executor_warm_cache(const struct warprow_gpu_executor *executor,
                                               const char *table,
                                               const uint64_t *ids,
                                               size_t id_count,
                                               struct warprow_cache_warmed *warmed,
                                               struct warprow_error **error);

// Brings rows into the cache as warprow_gpu_executor_warm_cache does, and has them stay there until they are let go, the cache is
// emptied, or other tables are adopted. WARPROW_STATUS_INVALID_ARGUMENT: of the 8 lines in which a row may lie more than 6 would be
// pinned; then nothing was changed.
//
// Any thread may call it. It blocks until the rows are there. Look-ups go on meanwhile. No stream may be being captured meanwhile.
warprow_status warprow_gpu_executor_pin_cache_rows(const struct warprow_gpu_executor *executor,
                                                   const char *table,
                                                   const uint64_t *ids,
                                                   size_t id_count,
                                                   struct warprow_cache_warmed *pinned,
                                                   struct warprow_error **error);

// Lets rows of a table go that stay in a GPU executor's cache: those of `ids`, or, if `ids` is NULL, all of them. They leave it when
// others take their places. If `count` is not NULL, it gets the number of these rows.
//
// Any thread may call it. It blocks for microseconds, or for as long as the order of a table takes to read. No stream may be being
// captured meanwhile.
warprow_status warprow_gpu_executor_unpin_cache_rows(const struct warprow_gpu_executor *executor,
                                                     const char *table,
                                                     const uint64_t *ids,
                                                     size_t id_count,
                                                     uint64_t *count,
                                                     struct warprow_error **error);

// Writes to the file `file` which rows a GPU executor's cache has, by their ids, so that warprow_gpu_executor_warm_cache_from can bring
// them back. The file replaces one that is there, whole. If `rows` is not NULL, it gets the number of rows that were listed; rows whose
// keys are not stored cannot be.
//
// Any thread may call it. It blocks until the file is written. Look-ups go on meanwhile. No stream may be being captured meanwhile.
warprow_status warprow_gpu_executor_save_cache(const struct warprow_gpu_executor *executor,
                                               const char *file,
                                               uint64_t *rows,
                                               struct warprow_error **error);

// Brings the rows into a GPU executor's cache that warprow_gpu_executor_save_cache has listed in `file`, as
// warprow_gpu_executor_warm_cache does. If `warmed` is not NULL, whose struct_size the caller has set, it is told what came of it, of
// all tables together. WARPROW_STATUS_INVALID_ARGUMENT: the file is damaged, no such file, or of another store; then nothing was
// changed.
//
// Any thread may call it. It blocks until the rows are there. Look-ups go on meanwhile. No stream may be being captured meanwhile.
warprow_status warprow_gpu_executor_warm_cache_from(const struct warprow_gpu_executor *executor,
                                                    const char *file,
                                                    struct warprow_cache_warmed *warmed,
                                                    struct warprow_error **error);

// The table of functions by which `libwarprow_torch.so`, the library of operators of PyTorch's (docs/python.md), looks rows up for compiled
// models. It is for that library alone, which compares the table's version and size with its own.
//
// The table belongs to the library and is always valid. Any thread may call it. It never blocks.
const void *warprow_operator_table(void);

// Has look-ups of a host executor that begin from now on note another epoch as that of the last touch of each key that they find: one
// that is no lower than the one before. WARPROW_STATUS_INVALID_ARGUMENT: it is lower, or the executor was attached without
// `touch_epoch`. Since 1.6.
//
// Any thread may call it. It never blocks.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_host_executor_set_touch_epoch(const struct warprow_host_executor *executor,
                                                     uint32_t epoch,
                                                     struct warprow_error **error);

// Writes to `file` when each key of a host executor's tables was last touched, together with what the file has from before, for
// warprow_store_expire. After a crash the file is the one before, or the new one. Each executor has a file of its own.
// WARPROW_STATUS_INVALID_ARGUMENT: the executor was attached without `touch_epoch`. WARPROW_STATUS_FILE: the file cannot be read or
// written, is something else, or is damaged. Since 1.6.
//
// Any thread may call it. It blocks until the keys of the tables are read and the file is written. Look-ups go on meanwhile.
warprow_status warprow_host_executor_save_touches(const struct warprow_host_executor *executor,
                                                  const char *file,
                                                  struct warprow_error **error);

// Has look-ups of a GPU executor note another epoch, as warprow_host_executor_set_touch_epoch does: those whose kernels begin when the
// call has returned, in graphs that were captured before too. Since 1.6.
//
// Any thread may call it. It blocks for as long as a copy of 4 bytes to the GPU takes. Streams may be being captured meanwhile.
//
// `error` is NULL, or points to a place for a pointer.
warprow_status warprow_gpu_executor_set_touch_epoch(const struct warprow_gpu_executor *executor,
                                                    uint32_t epoch,
                                                    struct warprow_error **error);

// Writes to `file` when each key of a GPU executor's tables was last touched, as warprow_host_executor_save_touches does. Look-ups that
// have not ended may be missing: synchronise with their streams first. Since 1.6.
//
// Any thread may call it. It blocks until the keys of the tables are read, 2 bytes for each are copied from the GPU, and the file is
// written. Look-ups go on meanwhile, and streams may be being captured.
warprow_status warprow_gpu_executor_save_touches(const struct warprow_gpu_executor *executor,
                                                 const char *file,
                                                 struct warprow_error **error);

// Removes the keys of a table that were last touched before an epoch, as executors have saved it in `file_count` files; of several files
// each key gets the latest epoch. A key stays that no file has, or whose row was created or updated since the table was loaded or
// compacted. Keys are removed in batches, each as warprow_store_remove does. After an error some batches are removed; the call may be
// made again.
//
// All arguments stay the caller's. `expire` says before which epoch, so it is not NULL. If `report` is not NULL, whose struct_size the
// caller has set, it is told what was done. WARPROW_STATUS_FILE: a file is not there, is something else, or is damaged.
// WARPROW_STATUS_NOT_FOUND: none has the table. WARPROW_STATUS_REFUSED: no key would be left. Since 1.6.
//
// Any thread may call it. It blocks until drives have written. Look-ups go on meanwhile.
warprow_status warprow_store_expire(const struct warprow_store *store,
                                    const char *table,
                                    const char *const *files,
                                    size_t file_count,
                                    const struct warprow_expire_options *expire,
                                    struct warprow_expire_report *report,
                                    struct warprow_error **error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WARPROW_H */
