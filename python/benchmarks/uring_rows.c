// A thread of the host that reads rows for a CUDA graph, by io_uring: the way of engines that keep n-gram tables on disks without a GPU that sends
// commands. ngram_layers.py compiles it, and captures the graph's half: ids to pinned memory, `asked` set to 1, a wait until `done` is 1.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BLOCK = 4096, SPAN = 2 * BLOCK };

// The rows of one layer. Pinned memory: `asked`, `done`, ids, and the rows that are read, one for each id.
struct layer {
    uint64_t codes_at, scales_at;  // where row 0 begins in the file
    const uint8_t *scales_here;    // scales in memory, which are not read; NULL: they are
    volatile uint32_t *asked, *done;
    const int64_t *ids;
    uint8_t *codes, *scales;
    uint32_t count, code_bytes, scale_bytes;
    int32_t failed;                // an errno, once a read has failed
};

struct rows {
    int file, ring;
    unsigned depth;
    struct layer layer[2];
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    uint8_t *room;  // SPAN bytes for each read under way
    _Atomic int ends;
    pthread_t thread;
};

// A read under way, or its place. Several ids may want its bytes.
struct part {
    uint64_t from;
    uint32_t bytes, first, behind, scale;  // positions `first` to before `behind` of the sorted ids want it
};

struct place { int64_t id; uint32_t at; };

static int by_id(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

static void serve(struct rows *rows, struct layer *layer, struct place *places, struct part *parts, unsigned *idle) {
    for (uint32_t i = 0; i < layer->count; ++i) places[i] = (struct place){layer->ids[i], i};
    qsort(places, layer->count, sizeof *places, by_id);
    unsigned count = 0;
    for (uint32_t i = 0, behind; i < layer->count; i = behind) {
        for (behind = i + 1; behind < layer->count && places[behind].id == places[i].id; ++behind) {}
        const uint64_t id = (uint64_t)places[i].id;
        parts[count++] = (struct part){layer->codes_at + id * layer->code_bytes, layer->code_bytes, i, behind, 0};
        if (layer->scales_here)
            for (uint32_t j = i; j < behind; ++j)
                memcpy(layer->scales + (size_t)places[j].at * layer->scale_bytes, layer->scales_here + id * layer->scale_bytes, layer->scale_bytes);
        else
            parts[count++] = (struct part){layer->scales_at + id * layer->scale_bytes, layer->scale_bytes, i, behind, 1};
    }
    unsigned next = 0, done = 0, free_count = rows->depth;
    unsigned *slots = idle, *of_slot = idle + rows->depth;
    for (unsigned i = 0; i < rows->depth; ++i) slots[i] = i;
    while (done < count) {
        unsigned tail = *rows->sq_tail, fresh = 0;
        while (next < count && free_count) {
            const unsigned slot = slots[--free_count];
            const struct part *part = parts + next;
            const uint64_t from = part->from & ~(uint64_t)(BLOCK - 1);
            struct io_uring_sqe *sqe = rows->sqes + (tail & *rows->sq_mask);
            memset(sqe, 0, sizeof *sqe);
            sqe->opcode = IORING_OP_READ;
            sqe->fd = rows->file;
            sqe->off = from;
            sqe->addr = (uint64_t)(uintptr_t)(rows->room + (size_t)slot * SPAN);
            sqe->len = (uint32_t)((part->from + part->bytes - from + BLOCK - 1) & ~(uint64_t)(BLOCK - 1));
            sqe->user_data = slot;
            of_slot[slot] = next++;
            rows->sq_array[tail & *rows->sq_mask] = tail & *rows->sq_mask;
            ++tail, ++fresh;
        }
        atomic_store_explicit((_Atomic unsigned *)rows->sq_tail, tail, memory_order_release);
        // Completions are looked for without sleeping.
        if (fresh && syscall(__NR_io_uring_enter, rows->ring, fresh, 0, 0, NULL, 0) < 0) layer->failed = errno;
        if (layer->failed) return;
        unsigned head = *rows->cq_head;
        while (head != atomic_load_explicit((_Atomic unsigned *)rows->cq_tail, memory_order_acquire)) {
            const struct io_uring_cqe *cqe = rows->cqes + (head & *rows->cq_mask);
            const unsigned slot = (unsigned)cqe->user_data;
            const struct part *part = parts + of_slot[slot];
            const uint32_t within = (uint32_t)(part->from & (BLOCK - 1));
            if (cqe->res < (int32_t)(within + part->bytes)) layer->failed = cqe->res < 0 ? -cqe->res : EIO;
            uint8_t *to = part->scale ? layer->scales : layer->codes;
            for (uint32_t j = part->first; j < part->behind; ++j)
                memcpy(to + (size_t)places[j].at * part->bytes, rows->room + (size_t)slot * SPAN + within, part->bytes);
            slots[free_count++] = slot;
            ++head, ++done;
        }
        atomic_store_explicit((_Atomic unsigned *)rows->cq_head, head, memory_order_release);
    }
}

static void *run(void *given) {
    struct rows *rows = given;
    uint32_t most = 0;
    for (int i = 0; i < 2; ++i) most = rows->layer[i].count > most ? rows->layer[i].count : most;
    struct place *places = malloc(sizeof *places * most);
    struct part *parts = malloc(sizeof *parts * most * 2);
    unsigned *idle = malloc(sizeof *idle * rows->depth * 2);
    while (places && parts && idle && !rows->ends) {
        // The first layer's rows are needed first.
        for (int i = 0; i < 2; ++i) {
            struct layer *layer = rows->layer + i;
            if (!atomic_load_explicit((volatile _Atomic uint32_t *)layer->asked, memory_order_acquire)) continue;
            *layer->asked = 0;
            serve(rows, layer, places, parts, idle);
            // A graph is not to hang: failed rows are the caller's to find.
            atomic_store_explicit((volatile _Atomic uint32_t *)layer->done, 1, memory_order_release);
        }
    }
    free(places), free(parts), free(idle);
    return NULL;
}

// Begins to serve both layers of a file that is read past the page cache. NULL: `*error` is an errno.
struct rows *rows_begin(const char *path, const struct layer *layers, unsigned depth, int *error) {
    struct rows *rows = calloc(1, sizeof *rows);
    struct io_uring_params how = {0};
    rows->depth = depth;
    memcpy(rows->layer, layers, sizeof rows->layer);
    rows->file = open(path, O_RDONLY | O_DIRECT);
    rows->ring = rows->file < 0 ? -1 : (int)syscall(__NR_io_uring_setup, depth, &how);
    if (rows->ring < 0) {
        *error = errno;
        return free(rows), NULL;
    }
    char *sq = mmap(NULL, how.sq_off.array + how.sq_entries * sizeof(unsigned), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, rows->ring, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, how.cq_off.cqes + how.cq_entries * sizeof *rows->cqes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, rows->ring, IORING_OFF_CQ_RING);
    rows->sqes = mmap(NULL, how.sq_entries * sizeof *rows->sqes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, rows->ring, IORING_OFF_SQES);
    rows->sq_tail = (unsigned *)(sq + how.sq_off.tail), rows->sq_mask = (unsigned *)(sq + how.sq_off.ring_mask), rows->sq_array = (unsigned *)(sq + how.sq_off.array);
    rows->cq_head = (unsigned *)(cq + how.cq_off.head), rows->cq_tail = (unsigned *)(cq + how.cq_off.tail), rows->cq_mask = (unsigned *)(cq + how.cq_off.ring_mask);
    rows->cqes = (struct io_uring_cqe *)(cq + how.cq_off.cqes);
    if (posix_memalign((void **)&rows->room, BLOCK, (size_t)depth * SPAN) || pthread_create(&rows->thread, NULL, run, rows)) {
        *error = ENOMEM;
        return NULL;
    }
    return rows;
}

// Ends the thread; an errno if a read of some layer has failed, else 0.
int rows_end(struct rows *rows) {
    rows->ends = 1;
    pthread_join(rows->thread, NULL);
    const int failed = rows->layer[0].failed ? rows->layer[0].failed : rows->layer[1].failed;
    close(rows->ring), close(rows->file);
    free(rows->room), free(rows);
    return failed;
}
