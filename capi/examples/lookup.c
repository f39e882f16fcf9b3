/* Formats an emulated drive, loads two tables (one from an array, one from a function), looks every row of both up on the host, and
 * compares each with what was loaded. Then it updates rows, fetches a batch ahead, and looks at what errors say.
 *
 *     cc -std=c99 lookup.c $(pkg-config --cflags --libs warprow) -o lookup && ./lookup /tmp/a.drive
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <warprow.h>

enum { ROWS = 2000, DIM = 16, BATCH = 250, FEATURES = 2 };

/* Element `column` of row `id` of table 0 ("user") or 1 ("item"). */
static float element(int table, uint64_t id, int column) {
    float value = (float)id + (float)column / 16.0f;
    return table == 0 ? value : -value;
}

/* Ends the program if a call failed. The message says what happened, and what can be done. */
static void check(const char *what, warprow_status status, warprow_error **error) {
    if (status != WARPROW_STATUS_OK) {
        fprintf(stderr, "%s: %s (status %d)\n", what, warprow_error_message(*error), (int)status);
        warprow_error_free(*error);
        exit(1);
    }
}

static void require(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "wrong: %s\n", what);
        exit(1);
    }
}

/* Gives rows of "item". The library may call it from several threads at once. */
static int32_t read_item(void *user, uint64_t first, uint64_t count, void *rows, size_t bytes) {
    float *elements = rows;
    (void)user;
    if (bytes != count * DIM * sizeof(float)) {
        return 1;
    }
    for (uint64_t row = 0; row < count; row++) {
        for (int column = 0; column < DIM; column++) {
            elements[row * DIM + column] = element(1, first + row, column);
        }
    }
    return 0;
}

static int32_t count_calls(void *user, uint64_t done, uint64_t total) {
    require(done <= total, "more was written than there is");
    *(int *)user += 1;
    return 0;
}

static void load(warprow_store *store) {
    float *user = malloc(ROWS * DIM * sizeof(float));
    uint64_t *counts = malloc(ROWS * sizeof(uint64_t));
    require(user != NULL && counts != NULL, "there is memory");
    for (uint64_t id = 0; id < ROWS; id++) {
        counts[id] = id; /* The last rows are looked up most. */
        for (int column = 0; column < DIM; column++) {
            user[id * DIM + column] = element(0, id, column);
        }
    }
    warprow_table_source tables[2];
    memset(tables, 0, sizeof tables);
    tables[0].struct_size = tables[1].struct_size = sizeof(warprow_table_source);
    tables[0].name = "user";
    tables[1].name = "item";
    tables[0].rows = tables[1].rows = ROWS;
    tables[0].dim = tables[1].dim = DIM;
    tables[0].dtype = tables[1].dtype = WARPROW_DTYPE_F32;
    tables[0].data = user;
    tables[0].data_bytes = ROWS * DIM * sizeof(float);
    tables[0].counts = counts;
    tables[0].row_crc = 1;
    tables[1].read = read_item;

    int calls = 0;
    warprow_load_options options = {sizeof options};
    options.progress = count_calls;
    options.user = &calls;
    warprow_load_report report = {sizeof report};
    warprow_error *error = NULL;
    check("load", warprow_store_load(store, "model", tables, 2, &options, &report, &error), &error);
    require(report.tables == 2 && report.bytes >= 2 * ROWS * DIM * sizeof(float), "what the load reports");
    require(calls > 0, "the load told nobody how far it was");
    printf("loaded generation %llu, %llu bytes\n", (unsigned long long)report.generation,
           (unsigned long long)report.bytes);
    free(user);
    free(counts);
}

static void list(warprow_store *store) {
    warprow_error *error = NULL;
    warprow_table_list *tables = NULL;
    check("tables", warprow_store_tables(store, &tables, &error), &error);
    require(warprow_table_list_count(tables) == 2, "there are two tables");
    for (size_t index = 0; index < warprow_table_list_count(tables); index++) {
        warprow_table_info table = {sizeof table};
        check("table", warprow_table_list_get(tables, index, &table, &error), &error);
        require(table.rows == ROWS && table.dim == DIM && table.dtype == WARPROW_DTYPE_F32, "a table's shape");
        printf("table %s of model %s: %llu rows of %u bytes\n", table.name, table.model,
               (unsigned long long)table.rows, table.row_bytes);
    }
    check("close the list", warprow_table_list_close(tables, &error), &error);
}

/* Compares the rows of a batch: the first half has ids of "user", the second half ids of "item". */
static void compare(const int64_t *ids, const float *rows, const uint8_t *mask) {
    for (int position = 0; position < FEATURES * BATCH; position++) {
        int table = position < BATCH ? 0 : 1;
        for (int column = 0; column < DIM; column++) {
            require(rows[position * DIM + column] == element(table, (uint64_t)ids[position], column), "a row");
        }
        require(mask[position] == 1, "the mask of a row that is there");
    }
}

static void look_up(warprow_host_slot *slot, size_t width) {
    static int64_t ids[FEATURES * BATCH];
    static float rows[FEATURES * BATCH * DIM];
    static uint8_t mask[FEATURES * BATCH];
    warprow_error *error = NULL;
    require(width == DIM, "the plan's width");

    warprow_batch batch = {sizeof batch};
    batch.ids = ids;
    batch.id_type = WARPROW_INT_TYPE_I64;
    batch.id_count = FEATURES * BATCH;
    batch.batch = BATCH;
    warprow_output output = {sizeof output};
    output.rows = rows;
    output.elements = FEATURES * BATCH * DIM;
    output.dtype = WARPROW_DTYPE_F32;
    output.mask = mask;
    output.mask_bytes = sizeof mask;

    for (int first = 0; first < ROWS; first += BATCH) {
        for (int n = 0; n < BATCH; n++) {
            ids[n] = first + n;
            ids[BATCH + n] = first + BATCH - 1 - n;
        }
        warprow_report report = {sizeof report};
        check("look-up", warprow_host_slot_lookup(slot, &batch, &output, &report, &error), &error);
        compare(ids, rows, mask);
        require(report.ids == FEATURES * BATCH && report.ids == report.ids_dram + report.ids_ssd, "the counts");
    }
    printf("every row is right\n");

    /* Rows of the next batch are fetched while the program does something else. */
    check("prefetch", warprow_host_slot_prefetch(slot, &batch, &error), &error);
    memset(rows, 0, sizeof rows);
    check("look-up", warprow_host_slot_lookup_prefetched(slot, &output, NULL, &error), &error);
    compare(ids, rows, mask);
    printf("every row that was fetched ahead is right\n");

    /* An id that the table does not have gets zeros here, and its mask is 0. */
    ids[3] = ROWS + 5;
    check("look-up", warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), &error);
    require(mask[3] == 0 && rows[3 * DIM] == 0.0f && mask[4] == 1, "a missing id");

    /* What does not fit is refused, and says why. */
    output.elements -= 1;
    warprow_status status = warprow_host_slot_lookup(slot, &batch, &output, NULL, &error);
    require(status == WARPROW_STATUS_INVALID_ARGUMENT && error != NULL, "a short output is refused");
    printf("refused: %s\n", warprow_error_message(error));
    warprow_error_free(error);
}

static void update(warprow_store *store, warprow_host_slot *slot) {
    uint64_t ids[2] = {7, 1999};
    float rows[2 * DIM], found[2 * DIM];
    for (int n = 0; n < 2 * DIM; n++) {
        rows[n] = 0.5f * (float)n;
    }
    warprow_error *error = NULL;
    uint64_t sequence = 0;
    check("update", warprow_store_update(store, "user", ids, 2, rows, sizeof rows, NULL, &sequence, &error), &error);

    /* Ids of "user" first, then as many of "item". */
    int64_t wanted[4] = {7, 1999, 0, 1};
    float all[4 * DIM];
    warprow_batch batch = {sizeof batch};
    batch.ids = wanted;
    batch.id_count = 4;
    batch.batch = 2;
    warprow_output output = {sizeof output};
    output.rows = all;
    output.elements = 4 * DIM;
    check("look-up", warprow_host_slot_lookup(slot, &batch, &output, NULL, &error), &error);
    memcpy(found, all, sizeof found);
    require(memcmp(found, rows, sizeof rows) == 0, "updated rows");
    printf("updated rows are right\n");

    uint64_t nowhere = ROWS;
    warprow_status status = warprow_store_update(store, "user", &nowhere, 1, rows, sizeof rows / 2, NULL, NULL, &error);
    require(status == WARPROW_STATUS_NOT_FOUND, "an update of a row that is not there is refused");
    warprow_error_free(error);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s FILE: the file of an emulated drive, which is made\n", argv[0]);
        return 2;
    }
    require((warprow_abi_version() >> 16) == (WARPROW_ABI_VERSION >> 16), "the library fits the header");
    char address[4096];
    snprintf(address, sizeof address, "emulated:%s?size=64M", argv[1]);
    const char *drives[] = {address};
    warprow_error *error = NULL;
    warprow_store *store = NULL;
    check("format", warprow_store_format(WARPROW_ABI_VERSION, drives, 1, NULL, &store, &error), &error);
    load(store);
    list(store);

    warprow_host_options host = {sizeof host};
    host.dram_bytes = 64 << 10; /* A quarter of the rows of one table. */
    warprow_host_executor *executor = NULL;
    check("attach", warprow_host_executor_attach(store, &host, &executor, &error), &error);

    warprow_feature features[FEATURES];
    memset(features, 0, sizeof features);
    features[0].struct_size = features[1].struct_size = sizeof(warprow_feature);
    features[0].table = "user";
    features[1].table = "item";
    warprow_plan_options options = {sizeof options};
    options.max_batch = BATCH;
    options.max_ids = FEATURES * BATCH;
    options.prefetch = 1;
    warprow_host_plan *plan = NULL;
    check("plan", warprow_host_executor_plan(executor, features, FEATURES, &options, &plan, &error), &error);
    warprow_host_slot *slot = NULL;
    check("slot", warprow_host_plan_slot(plan, &slot, &error), &error);

    look_up(slot, warprow_host_plan_width(plan));
    update(store, slot);

    warprow_metrics metrics = {sizeof metrics};
    check("metrics", warprow_host_executor_metrics(executor, &metrics, &error), &error);
    require(metrics.lookups > 0 && metrics.ids_dram > 0 && metrics.ids_ssd > 0, "the metrics");
    printf("%llu look-ups: %llu ids from memory, %llu from the drive\n", (unsigned long long)metrics.lookups,
           (unsigned long long)metrics.ids_dram, (unsigned long long)metrics.ids_ssd);

    warprow_verify_report verified = {sizeof verified};
    check("verify", warprow_store_verify(store, "user", NULL, NULL, &verified, &error), &error);
    require(verified.is_sound == 1 && verified.checked == 1 && verified.rows == ROWS, "what was verified");

    check("close the slot", warprow_host_slot_close(slot, &error), &error);
    check("close the plan", warprow_host_plan_close(plan, &error), &error);
    check("close the executor", warprow_host_executor_close(executor, &error), &error);
    check("close the store", warprow_store_close(store, &error), &error);
    require(warprow_open_handles() == 0, "every handle is closed");

    /* The same store, opened again, as another program would. */
    warprow_open_options how = {sizeof how};
    how.access = WARPROW_ACCESS_READ_ONLY;
    check("open", warprow_store_open(WARPROW_ABI_VERSION, drives, 1, &how, &store, &error), &error);
    list(store);
    check("close the store", warprow_store_close(store, &error), &error);
    require(warprow_store_close(store, NULL) == WARPROW_STATUS_INVALID_HANDLE, "a store is closed once");
    printf("all is closed\n");
    return 0;
}
