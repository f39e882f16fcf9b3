/* What programs do wrong, each of which must come back as a code with a message, and change nothing. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <warprow.h>

enum { ROWS = 100, DIM = 4 };

static int checks = 0;

/* Ends the program unless a call came to `wanted`, with an error whose message has `words`. */
static void expect(int line, warprow_status wanted, warprow_status status, warprow_error **error, const char *words) {
    const char *message = *error == NULL ? "" : warprow_error_message(*error);
    int is_told = wanted == WARPROW_STATUS_OK ? *error == NULL : *error != NULL;
    if (status != wanted || !is_told || strstr(message, words) == NULL ||
        (*error != NULL && warprow_error_status(*error) != status)) {
        fprintf(stderr, "line %d: status %d instead of %d, \"%s\" lacks \"%s\"\n", line, (int)status, (int)wanted, message,
                words);
        exit(1);
    }
    if (wanted != WARPROW_STATUS_OK && strlen(message) < 10) {
        fprintf(stderr, "line %d: the message is \"%s\"\n", line, message);
        exit(1);
    }
    warprow_error_free(*error);
    *error = NULL;
    checks++;
}

static void require(int line, int holds) {
    if (!holds) {
        fprintf(stderr, "line %d: it does not hold\n", line);
        exit(1);
    }
    checks++;
}

static warprow_error *error = NULL;
/* The generation of the table "t". */
static uint64_t generation = 0;

#define OK(call) expect(__LINE__, WARPROW_STATUS_OK, (call), &error, "")
#define INVALID(call, words) expect(__LINE__, WARPROW_STATUS_INVALID_ARGUMENT, (call), &error, words)
#define HANDLE(call, words) expect(__LINE__, WARPROW_STATUS_INVALID_HANDLE, (call), &error, words)
#define FAILS(status, call, words) expect(__LINE__, WARPROW_STATUS_##status, (call), &error, words)
#define REQUIRE(holds) require(__LINE__, (holds))

static int32_t fails_to_read(void *user, uint64_t first, uint64_t count, void *rows, size_t bytes) {
    (void)user, (void)first, (void)count, (void)rows, (void)bytes;
    return 42;
}

static int32_t stops(void *user, uint64_t done, uint64_t total) {
    (void)user, (void)done, (void)total;
    return 1;
}

static float elements[ROWS * DIM];

static warprow_table_source source(const char *name) {
    warprow_table_source table;
    memset(&table, 0, sizeof table);
    table.struct_size = sizeof table;
    table.name = name;
    table.rows = ROWS;
    table.dim = DIM;
    table.data = elements;
    table.data_bytes = sizeof elements;
    return table;
}

static warprow_store *open_and_close(const char *address) {
    const char *drives[] = {address, address};
    warprow_store *store = (warprow_store *)&drives;
    /* Nothing of this opens anything. */
    FAILS(ABI_MISMATCH, warprow_store_open(0, drives, 1, NULL, &store, &error), "header");
    FAILS(ABI_MISMATCH, warprow_store_open(WARPROW_ABI_VERSION + 1, drives, 1, NULL, &store, &error), "install");
    FAILS(ABI_MISMATCH, warprow_store_format(WARPROW_ABI_VERSION + 0x10000, drives, 1, NULL, &store, &error), "");
    INVALID(warprow_store_open(WARPROW_ABI_VERSION, drives, 1, NULL, NULL, &error), "store");
    INVALID(warprow_store_open(WARPROW_ABI_VERSION, NULL, 1, NULL, &store, &error), "drives");
    REQUIRE(store == NULL);
    INVALID(warprow_store_open(WARPROW_ABI_VERSION, drives, 0, NULL, &store, &error), "no drive");
    const char *nothing[] = {NULL};
    INVALID(warprow_store_open(WARPROW_ABI_VERSION, nothing, 1, NULL, &store, &error), "drives[0] is NULL");
    const char *no_text[] = {"emulated:\xff\xfe"};
    INVALID(warprow_store_open(WARPROW_ABI_VERSION, no_text, 1, NULL, &store, &error), "UTF-8");
    const char *no_drive[] = {"/dev/nvme0n1"};
    INVALID(warprow_store_open(WARPROW_ABI_VERSION, no_drive, 1, NULL, &store, &error), "PCI");
    FAILS(NOT_FOUND, warprow_store_open(WARPROW_ABI_VERSION, drives, 1, NULL, &store, &error), "");
    char unaligned[2 * sizeof store + sizeof store];
    INVALID(warprow_store_open(WARPROW_ABI_VERSION, drives, 1, NULL,
                               (warprow_store **)(void *)(((uintptr_t)unaligned | 7) + 2), &error),
            "not aligned");

    warprow_open_options open = {0};
    INVALID(warprow_store_open(WARPROW_ABI_VERSION, drives, 1, &open, &store, &error), "struct_size");
    open.struct_size = sizeof open;
    open.access = 9;
    INVALID(warprow_store_open(WARPROW_ABI_VERSION, drives, 1, &open, &store, &error), "access");
    open.access = 0;
    open.reserved = 1;
    INVALID(warprow_store_open(WARPROW_ABI_VERSION, drives, 1, &open, &store, &error), "reserved");
    struct {
        warprow_open_options known;
        uint64_t newer;
    } newer = {{sizeof newer, 0, 0, 0, 0, 0}, 5};
    FAILS(UNSUPPORTED, warprow_store_open(WARPROW_ABI_VERSION, drives, 1, &newer.known, &store, &error), "newer");

    OK(warprow_store_format(WARPROW_ABI_VERSION, drives, 1, NULL, &store, &error));
    /* It is open here, and nowhere else. */
    warprow_store *second = NULL;
    FAILS(BUSY, warprow_store_open(WARPROW_ABI_VERSION, drives, 1, NULL, &second, &error), "");
    OK(warprow_store_close(store, &error));
    HANDLE(warprow_store_close(store, &error), "was closed");
    OK(warprow_store_close(NULL, &error));
    FAILS(INVALID_ARGUMENT, warprow_store_open(WARPROW_ABI_VERSION, drives, 2, NULL, &second, &error), "twice");

    /* What is on it goes only if somebody agrees to just that. */
    warprow_status status = warprow_store_format(WARPROW_ABI_VERSION, drives, 1, NULL, &store, &error);
    REQUIRE(status == WARPROW_STATUS_REFUSED && warprow_error_consent(error) != NULL);
    char token[64];
    snprintf(token, sizeof token, "%s", warprow_error_consent(error));
    /* An error's handle is no store's, and is nothing once it was freed. */
    warprow_store *no_store = (warprow_store *)error;
    warprow_error *freed = error;
    warprow_error_free(error);
    error = NULL;
    HANDLE(warprow_store_switch(no_store, 1, 0, &error), "no handle of a warprow_store");
    REQUIRE(warprow_error_status(freed) == WARPROW_STATUS_INVALID_HANDLE && warprow_error_consent(freed) == NULL);
    warprow_error_free(freed);
    warprow_format_options format = {0};
    format.struct_size = sizeof format;
    format.consent = "00000000-00000000-00000000";
    FAILS(REFUSED, warprow_store_format(WARPROW_ABI_VERSION, drives, 1, &format, &store, &error), "");
    format.consent = token;
    OK(warprow_store_format(WARPROW_ABI_VERSION, drives, 1, &format, &store, &error));
    return store;
}

static void loads(warprow_store *store) {
    warprow_table_source table = source("t");
    INVALID(warprow_store_load(NULL, "m", &table, 1, NULL, NULL, &error), "warprow_store is NULL");
    INVALID(warprow_store_load(store, NULL, &table, 1, NULL, NULL, &error), "model");
    INVALID(warprow_store_load(store, "m", NULL, 1, NULL, NULL, &error), "NULL");
    INVALID(warprow_store_load(store, "m", NULL, 0, NULL, NULL, &error), "no table");
    table.data_bytes -= 1;
    INVALID(warprow_store_load(store, "m", &table, 1, NULL, NULL, &error), "bytes of data");
    table = source("t");
    table.rows = 0;
    INVALID(warprow_store_load(store, "m", &table, 1, NULL, NULL, &error), "no rows");
    table = source("t");
    table.dtype = 99;
    INVALID(warprow_store_load(store, "m", &table, 1, NULL, NULL, &error), "dtype");
    table = source("t");
    table.dim = 0;
    INVALID(warprow_store_load(store, "m", &table, 1, NULL, NULL, &error), "cannot be");
    table = source("t");
    table.rows = UINT64_MAX;
    INVALID(warprow_store_load(store, "m", &table, 1, NULL, NULL, &error), "");
    table = source("");
    INVALID(warprow_store_load(store, "m", &table, 1, NULL, NULL, &error), "");
    table = source("t");
    table.read = fails_to_read;
    INVALID(warprow_store_load(store, "m", &table, 1, NULL, NULL, &error), "either data or read");
    table.data = NULL;
    FAILS(FILE, warprow_store_load(store, "m", &table, 1, NULL, NULL, &error), "returned 42");
    table = source("t");
    table.key_type = WARPROW_KEY_TYPE_U64;
    INVALID(warprow_store_load(store, "m", &table, 1, NULL, NULL, &error), "both or neither");
    uint64_t keys[ROWS] = {0};
    table.keys = keys;
    INVALID(warprow_store_load(store, "m", &table, 1, NULL, NULL, &error), "");
    table = source("t");
    float row[DIM] = {0};
    table.default_row = row;
    table.default_row_bytes = 3;
    INVALID(warprow_store_load(store, "m", &table, 1, NULL, NULL, &error), "default row");
    warprow_table_source two[2] = {source("t"), source("t")};
    INVALID(warprow_store_load(store, "m", two, 2, NULL, NULL, &error), "");
    two[1].struct_size = 8;
    INVALID(warprow_store_load(store, "m", two, 2, NULL, NULL, &error), "struct_size");
    table = source("t");
    warprow_load_options options = {0};
    options.struct_size = sizeof options;
    options.span = 2;
    INVALID(warprow_store_load(store, "m", &table, 1, &options, NULL, &error), "span");
    options.span = WARPROW_SPAN_WHOLE;
    options.reserved = 1;
    INVALID(warprow_store_load(store, "m", &table, 1, &options, NULL, &error), "reserved");
    options.reserved = 0;
    options.progress = stops;
    FAILS(INTERRUPTED, warprow_store_load(store, "m", &table, 1, &options, NULL, &error), "nothing was committed");
    FAILS(NOT_FOUND, warprow_store_load_file(store, "m", "/nowhere/a.safetensors", NULL, NULL, NULL, &error), "look at the path");
    INVALID(warprow_store_load_file(store, "m", NULL, NULL, NULL, NULL, &error), "file");
    warprow_table_list *tables = NULL;
    OK(warprow_store_tables(store, &tables, &error));
    REQUIRE(warprow_table_list_count(tables) == 0);
    OK(warprow_table_list_close(tables, &error));

    OK(warprow_store_load(store, "m", &table, 1, NULL, NULL, &error));
    FAILS(EXISTS, warprow_store_load(store, "m", &table, 1, NULL, NULL, &error), "replace");
    OK(warprow_store_tables(store, &tables, &error));
    warprow_table_info info = {0};
    info.struct_size = sizeof info;
    OK(warprow_table_list_get(tables, 0, &info, &error));
    generation = info.generation;
    INVALID(warprow_table_list_get(tables, 1, &info, &error), "past the end");
    INVALID(warprow_table_list_get(tables, 0, NULL, &error), "NULL");
    OK(warprow_table_list_close(tables, &error));
    HANDLE(warprow_table_list_get(tables, 0, &info, &error), "was closed");
    REQUIRE(warprow_table_list_count(tables) == 0);
}

static void updates(warprow_store *store) {
    uint64_t ids[2] = {1, ROWS};
    float rows[2 * DIM] = {0};
    INVALID(warprow_store_update(store, "t", ids, 1, rows, 5, NULL, NULL, &error), "5 bytes");
    INVALID(warprow_store_update(store, "t", NULL, 1, rows, sizeof rows / 2, NULL, NULL, &error), "ids");
    INVALID(warprow_store_update(store, "t", ids, SIZE_MAX, rows, sizeof rows, NULL, NULL, &error), "too many");
    FAILS(NOT_FOUND, warprow_store_update(store, "t", ids, 2, rows, sizeof rows, NULL, NULL, &error), "none of id");
    FAILS(NOT_FOUND, warprow_store_update(store, "u", ids, 1, rows, sizeof rows / 2, NULL, NULL, &error), "no table");
    INVALID(warprow_store_remove(store, "t", NULL, 1, NULL, NULL, &error), "keys");
    FAILS(UNSUPPORTED, warprow_store_remove(store, "t", ids, 1, NULL, NULL, &error), "no keys");
    FAILS(NOT_FOUND, warprow_store_remove(store, "u", ids, 1, NULL, NULL, &error), "no table");
    warprow_update_options update = {0};
    update.struct_size = sizeof update;
    update.has_generation = 1;
    update.generation = 77;
    FAILS(NOT_FOUND, warprow_store_update(store, "t", ids, 1, rows, sizeof rows / 2, &update, NULL, &error), "77");
    update.generation = generation;
    update.create_keys = 1;
    FAILS(NOT_FOUND, warprow_store_update(store, "t", ids, 2, rows, sizeof rows, &update, NULL, &error), "none of id");
    FAILS(NOT_FOUND, warprow_store_switch(store, 77, 0, &error), "77");
    FAILS(NOT_FOUND, warprow_store_compact(store, 77, NULL, &error), "77");
    FAILS(REFUSED, warprow_store_drop_generation(store, generation, &error), "switch");
    INVALID(warprow_store_verify(store, "t", NULL, NULL, NULL, &error), "report");
    warprow_verify_report report = {0};
    report.struct_size = sizeof report;
    FAILS(NOT_FOUND, warprow_store_verify(store, "u", NULL, NULL, &report, &error), "no table");
    FAILS(INTERRUPTED, warprow_store_verify(store, "t", stops, NULL, &report, &error), "");
    OK(warprow_store_verify(store, "t", NULL, NULL, &report, &error));
    REQUIRE(report.rows == ROWS && report.is_sound == 1 && report.checked == 0);
}

static void plans(warprow_host_executor *executor) {
    warprow_feature feature = {0};
    warprow_host_plan *plan = NULL;
    INVALID(warprow_host_executor_plan(executor, NULL, 1, NULL, &plan, &error), "NULL");
    INVALID(warprow_host_executor_plan(executor, NULL, 0, NULL, &plan, &error), "features");
    feature.struct_size = sizeof feature;
    INVALID(warprow_host_executor_plan(executor, &feature, 1, NULL, &plan, &error), "table is NULL");
    feature.table = "nothing";
    FAILS(NOT_FOUND, warprow_host_executor_plan(executor, &feature, 1, NULL, &plan, &error), "the store has t");
    feature.table = "t";
    feature.pooling = 7;
    INVALID(warprow_host_executor_plan(executor, &feature, 1, NULL, &plan, &error), "pooling");
    feature.pooling = 0;
    feature.weighted = 1;
    INVALID(warprow_host_executor_plan(executor, &feature, 1, NULL, &plan, &error), "weighted");
    feature.weighted = 0;
    warprow_plan_options options = {0};
    options.struct_size = sizeof options;
    options.out_dtype = WARPROW_DTYPE_I8;
    INVALID(warprow_host_executor_plan(executor, &feature, 1, &options, &plan, &error), "i8");
    options.out_dtype = -1;
    INVALID(warprow_host_executor_plan(executor, &feature, 1, &options, &plan, &error), "out_dtype");
    options.out_dtype = 0;
    options.failed_rows = 9;
    INVALID(warprow_host_executor_plan(executor, &feature, 1, &options, &plan, &error), "failed_rows");
    options.failed_rows = 0;
    options.mask = 9;
    INVALID(warprow_host_executor_plan(executor, &feature, 1, &options, &plan, &error), "mask");
    options.mask = 0;
    warprow_resident_scales scales = {0};
    scales.struct_size = sizeof scales;
    options.scale_count = 1;
    options.scales = &scales;
    FAILS(UNSUPPORTED, warprow_host_executor_plan(executor, &feature, 1, &options, &plan, &error), "resident=1");
    options.scale_count = 0;
    options.max_ids = SIZE_MAX;
    INVALID(warprow_host_executor_plan(executor, &feature, 1, &options, &plan, &error), "max_ids");
    REQUIRE(plan == NULL);
}

static void look_ups(warprow_host_executor *executor) {
    warprow_feature feature = {0};
    feature.struct_size = sizeof feature;
    feature.table = "t";
    feature.missing = WARPROW_MISSING_ERROR;
    warprow_plan_options options = {0};
    options.struct_size = sizeof options;
    options.max_batch = options.max_ids = 4;
    warprow_host_plan *plan = NULL;
    OK(warprow_host_executor_plan(executor, &feature, 1, &options, &plan, &error));
    warprow_host_slot *slot = NULL, *other = NULL;
    OK(warprow_host_plan_slot(plan, &slot, &error));
    FAILS(BUSY, warprow_host_plan_slot(plan, &other, &error), "slots");

    int64_t ids[5] = {3, 99, 0, 3, 5};
    float rows[4 * DIM + 2], before[4 * DIM + 2];
    uint8_t mask[4];
    warprow_batch batch = {0};
    batch.struct_size = sizeof batch;
    batch.ids = ids;
    batch.id_count = batch.batch = 4;
    warprow_output output = {0};
    output.struct_size = sizeof output;
    output.rows = rows;
    output.elements = 4 * DIM;
    output.mask = mask;
    output.mask_bytes = sizeof mask;
    memset(rows, 0x55, sizeof rows);
    memcpy(before, rows, sizeof rows);
    warprow_batch right = batch;
    warprow_output good = output;

    INVALID(warprow_host_slot_lookup(NULL, &batch, &output, NULL, &error), "warprow_host_slot is NULL");
    INVALID(warprow_host_slot_lookup(slot, NULL, &output, NULL, &error), "warprow_batch is NULL");
    INVALID(warprow_host_slot_lookup(slot, &batch, NULL, NULL, &error), "warprow_output is NULL");
    HANDLE(warprow_host_slot_lookup((warprow_host_slot *)plan, &batch, &output, NULL, &error), "no handle");
    HANDLE(warprow_host_slot_lookup((warprow_host_slot *)rows, &batch, &output, NULL, &error), "no handle");
    batch.ids = NULL;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "ids is NULL");
    batch.ids = (char *)ids + 4;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "not aligned");
    batch = right;
    batch.id_type = 8;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "type of ids");
    batch = right;
    batch.id_count = batch.batch = 5;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "max_");
    batch = right;
    batch.batch = 3;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "offsets");
    batch = right;
    batch.id_count = SIZE_MAX / 4;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "");
    batch = right;
    float weights[4] = {1, 1, 1, 1};
    batch.weights = weights;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "weights");
    batch = right;
    int64_t offsets[5] = {0, 2, 1, 3, 4};
    batch.offsets = offsets;
    batch.offset_count = 5;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "offsets[2]");
    batch.offset_count = 2;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "2 offsets");
    batch = right;
    batch.offset_count = 5;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "offsets is NULL");
    batch = right;
    uint64_t counts[2] = {4, 4};
    batch.counts = counts;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "GPU");
    batch = right;

    output.elements -= 1;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "15 elements");
    output = good;
    output.row_stride = DIM - 1;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "row_stride");
    output = good;
    output.dtype = WARPROW_DTYPE_F16;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "f16");
    output = good;
    output.dtype = WARPROW_DTYPE_Q8;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "type");
    output = good;
    output.rows = NULL;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "rows is NULL");
    output = good;
    output.rows = (char *)rows + 2;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "not aligned");
    output = good;
    output.mask_bytes = 3;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "mask");
    output = good;
    output.mask = (uint8_t *)rows;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "overlap");
    output = good;
    output.rows = ids;
    output.elements = 10;
    INVALID(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), "overlaps with the ids");
    output = good;
    REQUIRE(memcmp(rows, before, sizeof rows) == 0);

    FAILS(INVALID_ARGUMENT, warprow_host_slot_prefetch(slot, &batch, &error), "prefetch");
    FAILS(INVALID_ARGUMENT, warprow_host_slot_lookup_prefetched(slot, &output, NULL, &error), "prefetch");

    /* Which ids are missing is told. */
    ids[1] = ROWS;
    ids[2] = -1;
    warprow_report report = {0};
    report.struct_size = sizeof report;
    warprow_status status = warprow_host_slot_lookup(slot, &batch, &output, &report, &error);
    size_t count = 0;
    const size_t *positions = warprow_error_positions(error, &count);
    REQUIRE(status == WARPROW_STATUS_MISSING_IDS && count == 2 && positions[0] == 1 && positions[1] == 2);
    REQUIRE(report.ids == 4 && report.missing == 2);
    FAILS(MISSING_IDS, status, "2 of 4 ids are missing");
    REQUIRE(memcmp(rows, before, sizeof rows) == 0);

    /* An empty batch is none of these. */
    batch.ids = NULL;
    batch.id_count = batch.batch = 0;
    output.rows = NULL;
    output.elements = 0;
    output.mask = NULL;
    output.mask_bytes = 0;
    OK(warprow_host_slot_lookup(slot, &batch, &output, &report, &error));
    REQUIRE(report.ids == 0);

    OK(warprow_host_slot_close(slot, &error));
    HANDLE(warprow_host_slot_lookup(slot, &right, &good, NULL, &error), "was closed");
    HANDLE(warprow_host_slot_close(slot, &error), "was closed");
    /* The slot is back, and the plan outlives its executor's handle. */
    OK(warprow_host_plan_slot(plan, &slot, &error));
    OK(warprow_host_plan_close(plan, &error));
    REQUIRE(warprow_host_plan_width(plan) == 0);
    ids[1] = 99;
    ids[2] = 0;
    OK(warprow_host_slot_lookup(slot, &right, &good, NULL, &error));
    REQUIRE(rows[0] == elements[3 * DIM] && rows[DIM] == elements[99 * DIM] && rows[4 * DIM] == before[4 * DIM]);
    OK(warprow_host_slot_close(slot, &error));
}

/* Look-ups note keys, an executor saves them, and the others expire. */
static void expires(warprow_store *store, const char *folder) {
    char first[4096], second[4096];
    snprintf(first, sizeof first, "%s.first", folder);
    snprintf(second, sizeof second, "%s.second", folder);
    const char *files[] = {first, second};
    warprow_expire_options how = {0};
    INVALID(warprow_store_expire(store, "k", files, 1, &how, NULL, &error), "struct_size");
    how.struct_size = sizeof how;
    INVALID(warprow_store_expire(store, "k", files, 1, &how, NULL, &error), "before is 0");
    INVALID(warprow_store_expire(store, "k", files, 1, NULL, NULL, &error), "before is 0");
    how.before = 70000;
    INVALID(warprow_store_expire(store, "k", files, 1, &how, NULL, &error), "before is 70000");
    how.before = 5;
    INVALID(warprow_store_expire(store, "k", files, 0, &how, NULL, &error), "no file");
    INVALID(warprow_store_expire(store, "k", NULL, 1, &how, NULL, &error), "files");
    FAILS(FILE, warprow_store_expire(store, "k", files, 1, &how, NULL, &error), "first");

    uint64_t keys[ROWS];
    for (int n = 0; n < ROWS; n++) {
        keys[n] = 1000003 * (uint64_t)n + 5;
    }
    warprow_table_source table = source("k");
    table.key_type = WARPROW_KEY_TYPE_U64;
    table.keys = keys;
    OK(warprow_store_load(store, "keyed", &table, 1, NULL, NULL, &error));

    warprow_host_options host = {0};
    host.struct_size = sizeof host;
    warprow_host_executor *executor = NULL;
    host.touch_epoch = 65536;
    INVALID(warprow_host_executor_attach(store, &host, &executor, &error), "touch_epoch is 65536");
    host.touch_epoch = 0;
    host.touch_reserved = 1;
    INVALID(warprow_host_executor_attach(store, &host, &executor, &error), "reserved");
    host.touch_reserved = 0;
    OK(warprow_host_executor_attach(store, &host, &executor, &error));
    INVALID(warprow_host_executor_set_touch_epoch(executor, 3, &error), "touch_epoch");
    INVALID(warprow_host_executor_save_touches(executor, first, &error), "touch_epoch");
    OK(warprow_host_executor_close(executor, &error));
    host.touch_epoch = 4;
    for (int file = 0; file < 2; file++) {
        OK(warprow_host_executor_attach(store, &host, &executor, &error));
        INVALID(warprow_host_executor_set_touch_epoch(executor, 0, &error), "epoch is 0");
        INVALID(warprow_host_executor_set_touch_epoch(executor, 65536, &error), "epoch is 65536");
        OK(warprow_host_executor_set_touch_epoch(executor, 5, &error));
        INVALID(warprow_host_executor_set_touch_epoch(executor, 4, &error), "epoch 4 of last touches comes before 5");
        warprow_feature feature = {0};
        feature.struct_size = sizeof feature;
        feature.name = "f";
        feature.table = "k";
        warprow_plan_options most = {0};
        most.struct_size = sizeof most;
        most.max_batch = 1;
        most.max_ids = 10;
        warprow_host_plan *plan = NULL;
        warprow_host_slot *slot = NULL;
        OK(warprow_host_executor_plan(executor, &feature, 1, &most, &plan, &error));
        OK(warprow_host_plan_slot(plan, &slot, &error));
        float rows[10 * DIM];
        warprow_batch batch = {0};
        batch.struct_size = sizeof batch;
        batch.ids = keys + 10 * file;
        batch.id_count = 10;
        batch.id_type = WARPROW_INT_TYPE_U64;
        batch.batch = 1;
        warprow_output output = {0};
        output.struct_size = sizeof output;
        output.rows = rows;
        output.elements = 10 * DIM;
        output.row_stride = DIM;
        OK(warprow_host_slot_lookup(slot, &batch, &output, NULL, &error));
        REQUIRE(rows[9 * DIM] == elements[(10 * file + 9) * DIM]);
        INVALID(warprow_host_executor_save_touches(executor, NULL, &error), "file");
        FAILS(FILE, warprow_host_executor_save_touches(executor, "/nowhere/touches", &error), "/nowhere/touches");
        OK(warprow_host_executor_save_touches(executor, files[file], &error));
        OK(warprow_host_slot_close(slot, &error));
        OK(warprow_host_plan_close(plan, &error));
        OK(warprow_host_executor_close(executor, &error));
    }
    HANDLE(warprow_host_executor_save_touches(executor, first, &error), "was closed");

    warprow_expire_report report = {0};
    report.struct_size = sizeof report;
    FAILS(NOT_FOUND, warprow_store_expire(store, "u", files, 1, &how, &report, &error), "no table");
    FAILS(UNSUPPORTED, warprow_store_expire(store, "t", files, 1, &how, &report, &error), "no keys");
    how.before = 6;
    FAILS(REFUSED, warprow_store_expire(store, "k", files, 2, &how, &report, &error), "would be left");
    how.before = 5;
    how.dry_run = 1;
    OK(warprow_store_expire(store, "k", files, 1, &how, &report, &error));
    REQUIRE(report.present == ROWS && report.expired == ROWS - 10 && report.removed == 0 && report.unknown == 0);
    how.dry_run = 0;
    how.batch = 7;
    OK(warprow_store_expire(store, "k", files, 2, &how, &report, &error));
    REQUIRE(report.present == ROWS && report.expired == ROWS - 20 && report.removed == ROWS - 20 && report.updated == 0);
    OK(warprow_store_expire(store, "k", files, 2, &how, &report, &error));
    REQUIRE(report.present == 20 && report.removed == 0);
    uint64_t removed = 9;
    OK(warprow_store_remove(store, "k", keys + 20, 1, NULL, &removed, &error));
    REQUIRE(removed == 0);
    OK(warprow_store_remove(store, "k", keys + 19, 1, NULL, &removed, &error));
    REQUIRE(removed == 1);

    INVALID(warprow_gpu_executor_set_touch_epoch(NULL, 3, &error), "warprow_gpu_executor is NULL");
    INVALID(warprow_gpu_executor_save_touches(NULL, first, &error), "warprow_gpu_executor is NULL");
    warprow_gpu_options gpu = {0};
    gpu.struct_size = sizeof gpu;
    gpu.touch_epoch = 65536;
    warprow_gpu_executor *none = NULL;
    INVALID(warprow_gpu_executor_attach(store, 4096, &gpu, &none, &error), "touch_epoch is 65536");
    /* A program of version 1.5 knows nothing of touches. */
    gpu.struct_size = offsetof(warprow_gpu_options, touch_epoch);
    FAILS(GPU, warprow_gpu_executor_attach(store, 4096, &gpu, &none, &error), "");
}

static void caches(warprow_store *store, warprow_host_executor *without) {
    warprow_cache_statistics statistics = {0};
    statistics.struct_size = sizeof statistics;
    INVALID(warprow_host_executor_cache_statistics(without, &statistics, &error), "no cache");
    INVALID(warprow_host_executor_clear_cache(without, &error), "cache_bytes");
    warprow_host_options host = {0};
    host.struct_size = sizeof host;
    host.cache_bytes = 1;
    warprow_host_executor *executor = NULL;
    INVALID(warprow_host_executor_attach(store, &host, &executor, &error), "has no room");
    host.cache_bytes = 1 << 20;
    OK(warprow_host_executor_attach(store, &host, &executor, &error));
    INVALID(warprow_host_executor_cache_statistics(executor, NULL, &error), "statistics");
    statistics.struct_size = 0;
    INVALID(warprow_host_executor_cache_statistics(executor, &statistics, &error), "struct_size");
    statistics.struct_size = sizeof statistics;
    OK(warprow_host_executor_cache_statistics(executor, &statistics, &error));
    REQUIRE(statistics.lines >= 64 && statistics.used == 0 && statistics.hold == 0);
    OK(warprow_host_executor_clear_cache(executor, &error));
    OK(warprow_host_executor_close(executor, &error));
    HANDLE(warprow_host_executor_clear_cache(executor, &error), "was closed");
    warprow_cache_share shares[2] = {{sizeof shares[0], "t", 1 << 16}, {sizeof shares[0], "t", 1 << 16}};
    host.cache_shares = shares;
    host.cache_share_count = 1;
    OK(warprow_host_executor_attach(store, &host, &executor, &error));
    OK(warprow_host_executor_cache_statistics(executor, &statistics, &error));
    REQUIRE(statistics.lines >= 64);
    OK(warprow_host_executor_close(executor, &error));
    host.cache_share_count = 2;
    INVALID(warprow_host_executor_attach(store, &host, &executor, &error), "two shares");
    host.cache_share_count = 1;
    shares[0].table = "shop";
    FAILS(NOT_FOUND, warprow_host_executor_attach(store, &host, &executor, &error), "shop");
    shares[0].table = NULL;
    INVALID(warprow_host_executor_attach(store, &host, &executor, &error), "a cache share's table is NULL");
    shares[0].table = "t";
    shares[0].bytes = 2 << 20;
    INVALID(warprow_host_executor_attach(store, &host, &executor, &error), "come to 2097152 bytes");
    shares[0].struct_size = 8;
    INVALID(warprow_host_executor_attach(store, &host, &executor, &error), "struct_size");
    host.cache_shares = NULL;
    INVALID(warprow_host_executor_attach(store, &host, &executor, &error), "warprow_cache_share is NULL");
    REQUIRE(executor == NULL);
    /* A program of version 1.7 knows nothing of shares. */
    host.struct_size = offsetof(warprow_host_options, cache_shares);
    OK(warprow_host_executor_attach(store, &host, &executor, &error));
    OK(warprow_host_executor_close(executor, &error));
    INVALID(warprow_gpu_executor_cache_statistics(NULL, &statistics, &error), "warprow_gpu_executor is NULL");
    INVALID(warprow_gpu_executor_clear_cache(NULL, 0, &error), "warprow_gpu_executor is NULL");
    uint64_t id = 1;
    INVALID(warprow_gpu_executor_warm_cache(NULL, "t", &id, 1, NULL, &error), "warprow_gpu_executor is NULL");
    INVALID(warprow_gpu_executor_pin_cache_rows(NULL, "t", &id, 1, NULL, &error), "warprow_gpu_executor is NULL");
    INVALID(warprow_gpu_executor_save_cache(NULL, "f", NULL, &error), "warprow_gpu_executor is NULL");
    INVALID(warprow_gpu_executor_warm_cache_from(NULL, "f", NULL, &error), "warprow_gpu_executor is NULL");
    INVALID(warprow_gpu_executor_unpin_cache_rows(NULL, "t", NULL, 0, NULL, &error), "warprow_gpu_executor is NULL");
    warprow_gpu_options gpu = {0};
    gpu.struct_size = sizeof gpu;
    warprow_gpu_executor *none = NULL;
    gpu.cache_chance = 1.5;
    INVALID(warprow_gpu_executor_attach(store, 4096, &gpu, &none, &error), "cache_chance is 1.5");
    gpu.cache_chance = -0.5;
    INVALID(warprow_gpu_executor_attach(store, 4096, &gpu, &none, &error), "cache_chance");
    gpu.cache_chance = 0.5;
    gpu.cache_sketch = 1;
    INVALID(warprow_gpu_executor_attach(store, 4096, &gpu, &none, &error), "exclude each other");
    gpu.cache_sketch = 0;
    gpu.cache_share_count = 1;
    INVALID(warprow_gpu_executor_attach(store, 4096, &gpu, &none, &error), "warprow_cache_share is NULL");
    gpu.cache_shares = shares + 1;
    FAILS(GPU, warprow_gpu_executor_attach(store, 4096, &gpu, &none, &error), "");
    /* A program of version 1.0 knows nothing of caches. */
    gpu.struct_size = offsetof(warprow_gpu_options, cache_bytes);
    FAILS(GPU, warprow_gpu_executor_attach(store, 4096, &gpu, &none, &error), "");
    REQUIRE(none == NULL);
}

static void gpu(warprow_store *store) {
    warprow_gpu_executor *executor = NULL;
    INVALID(warprow_gpu_executor_attach(NULL, 0, NULL, &executor, &error), "warprow_store is NULL");
    INVALID(warprow_gpu_executor_attach(store, 0, NULL, NULL, &error), "executor");
    FAILS(GPU, warprow_gpu_executor_attach(store, 4096, NULL, &executor, &error), "");
    INVALID(warprow_gpu_slot_lookup(NULL, NULL, NULL, NULL, NULL, &error), "ticket");
    warprow_gpu_ticket *ticket = NULL;
    INVALID(warprow_gpu_slot_lookup(NULL, NULL, NULL, NULL, &ticket, &error), "warprow_gpu_slot is NULL");
    int32_t ended = 1;
    INVALID(warprow_gpu_ticket_poll(NULL, &ended, NULL, &error), "warprow_gpu_ticket is NULL");
    REQUIRE(ended == 0);
    OK(warprow_gpu_ticket_close(NULL, &error));
    char name[4];
    FAILS(GPU, warprow_gpu_name(4096, name, sizeof name, &error), "");
    INVALID(warprow_gpu_name(0, name, 0, &error), "room");
}

/* The hash of a model's n-grams: that of Qwen3.8-Flash-Next, whose ids tests/ngram/goldens.txt of the crate warprow-keys has. */
static void ngrams(void) {
    const uint64_t multipliers[] = {23703573157769, 20109073645365, 8052911324071};
    const int64_t tokens[] = {248044, 5};
    int32_t narrow[] = {248044, 5};
    const uint32_t starts[] = {0, 2}, wrong[] = {0, 3};
    int64_t ids[32];
    warprow_ngram_hash *hash = NULL;
    warprow_gpu_ngram_hash *on_gpu = NULL;
    warprow_ngram_rules rules = {0};
    INVALID(warprow_ngram_hash_create(NULL, &hash, &error), "NULL");
    INVALID(warprow_ngram_hash_create(&rules, &hash, &error), "struct_size");
    rules.struct_size = sizeof rules;
    INVALID(warprow_ngram_hash_create(&rules, &hash, &error), "multipliers");
    rules.multipliers = multipliers;
    rules.multiplier_count = 3;
    rules.heads_per_order = 8;
    INVALID(warprow_ngram_hash_create(&rules, &hash, &error), "primes");
    rules.first_prime = 20000000;
    rules.fill = rules.stop = 248044;
    rules.has_stop = 1;
    rules.word_count = 1;
    INVALID(warprow_ngram_hash_create(&rules, &hash, &error), "words is NULL");
    rules.word_count = 0;
    rules.columns = 5000;
    INVALID(warprow_ngram_hash_create(&rules, &hash, &error), "column");
    rules.columns = 0;
    REQUIRE(hash == NULL);
    OK(warprow_ngram_hash_create(&rules, &hash, &error));
    size_t columns = 0;
    uint64_t rows = 0;
    OK(warprow_ngram_hash_shape(hash, &columns, &rows, &error));
    REQUIRE(columns == 16 && rows == 320001446);
    warprow_tokens batch = {0};
    batch.struct_size = sizeof batch;
    batch.tokens = tokens;
    batch.count = 2;
    INVALID(warprow_ngram_hash_ids(hash, &batch, ids, 31, &error), "tokens times columns");
    batch.token_type = WARPROW_INT_TYPE_U32;
    INVALID(warprow_ngram_hash_ids(hash, &batch, ids, 32, &error), "WARPROW_INT_TYPE_I32");
    batch.token_type = WARPROW_INT_TYPE_I64;
    batch.starts = wrong;
    batch.sequences = 1;
    INVALID(warprow_ngram_hash_ids(hash, &batch, ids, 32, &error), "behind the last token");
    batch.starts = starts;
    OK(warprow_ngram_hash_ids(hash, &batch, ids, 32, &error));
    REQUIRE(ids[0] == 9663979 && ids[15] == 300986548 && ids[16] == 15389869 && ids[31] == 315720898);
    narrow[0] = -1;
    batch.tokens = narrow;
    batch.token_type = WARPROW_INT_TYPE_I32;
    batch.starts = NULL;
    OK(warprow_ngram_hash_ids(hash, &batch, ids, 32, &error));
    REQUIRE(ids[0] == -1 && ids[15] == -1 && ids[16] == 15389869 && ids[31] == 315720898);
    INVALID(warprow_gpu_ngram_hash_create(NULL, hash, &on_gpu, &error), "NULL");
    INVALID(warprow_gpu_ngram_hash_launch(on_gpu, NULL, &batch, ids, WARPROW_INT_TYPE_I64, &error), "NULL");
    OK(warprow_gpu_ngram_hash_close(on_gpu, &error));
    OK(warprow_ngram_hash_close(hash, &error));
    HANDLE(warprow_ngram_hash_ids(hash, &batch, ids, 32, &error), "was closed");
}

int main(int argc, char **argv) {
    if (argc != 2) {
        return 2;
    }
    for (int n = 0; n < ROWS * DIM; n++) {
        elements[n] = (float)n;
    }
    char address[4096];
    snprintf(address, sizeof address, "emulated:%s?size=64M", argv[1]);
    REQUIRE(strcmp(warprow_error_message(NULL), "") != 0 && warprow_error_consent(NULL) == NULL);
    warprow_store *store = open_and_close(address);
    loads(store);
    updates(store);
    warprow_host_executor *executor = NULL;
    warprow_host_options host = {0};
    host.struct_size = sizeof host;
    host.queue_pairs = 100000;
    INVALID(warprow_host_executor_attach(store, &host, &executor, &error), "queue pairs");
    host.queue_pairs = 0;
    host.merging = 17;
    INVALID(warprow_host_executor_attach(store, &host, &executor, &error), "merging");
    OK(warprow_host_executor_attach(store, NULL, &executor, &error));
    plans(executor);
    look_ups(executor);
    caches(store, executor);
    gpu(store);
    expires(store, argv[1]);
    ngrams();
    /* No error is asked for. */
    REQUIRE(warprow_store_switch(store, 77, 0, NULL) == WARPROW_STATUS_NOT_FOUND);
    OK(warprow_store_close(store, &error));
    warprow_host_executor *none = executor;
    HANDLE(warprow_host_executor_attach(store, NULL, &none, &error), "was closed");
    REQUIRE(none == NULL && warprow_open_handles() == 1);
    OK(warprow_host_executor_close(executor, &error));
    REQUIRE(warprow_open_handles() == 0);
    printf("%d checks, and nothing else happened\n", checks);
    return 0;
}
