// Random reads of a file past the page cache by io_uring, and nothing else: what a read costs a core at least. For `attached_fio.py`.
//
//     cc -O2 -o uring_reads uring_reads.c && ./uring_reads FILE SECONDS [DEPTH [BATCH]]
//
// Blocks of 4 KiB, up to 256 under way, of a registered file into registered memory; each call into the kernel submits what is fresh and waits for
// one completion. It prints reads a second, and the cores that they took. With BATCH, so many reads are begun at once, and the next when all have
// ended, 5 ms later; completions are looked for without sleeping. Then it also prints the median of their microseconds.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 4096, MOST = 4096 };

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return 1;
}

int main(int count, char **given) {
    if (count < 3) return fprintf(stderr, "usage: uring_reads FILE SECONDS [DEPTH [BATCH]]\n"), 2;
    const double limit = atof(given[2]);
    const unsigned depth = count > 3 ? (unsigned)atoi(given[3]) : 256;
    const unsigned batch = count > 4 ? (unsigned)atoi(given[4]) : 0;
    if (batch > depth) return fprintf(stderr, "a batch of up to DEPTH\n"), 2;
    if (depth < 1 || depth > MOST) return fprintf(stderr, "a depth of 1 to %d\n", MOST), 2;
    const int file = open(given[1], O_RDONLY | O_DIRECT);
    struct stat stat;
    if (file < 0 || fstat(file, &stat) != 0) return fail(given[1]);
    const uint64_t blocks = (uint64_t)stat.st_size / BLOCK;
    if (blocks == 0) return fprintf(stderr, "%s: no block of %d bytes\n", given[1], BLOCK), 1;
    struct io_uring_params how = {.flags = IORING_SETUP_COOP_TASKRUN};
    const int ring = (int)syscall(__NR_io_uring_setup, depth, &how);
    if (ring < 0) return fail("io_uring_setup");
    const int access = PROT_READ | PROT_WRITE, kind = MAP_SHARED | MAP_POPULATE;
    char *sq = mmap(NULL, how.sq_off.array + how.sq_entries * sizeof(unsigned), access, kind, ring, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, how.cq_off.cqes + how.cq_entries * sizeof(struct io_uring_cqe), access, kind, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *sqes = mmap(NULL, how.sq_entries * sizeof *sqes, access, kind, ring, IORING_OFF_SQES);
    void *room = NULL;
    if (sq == MAP_FAILED || cq == MAP_FAILED || sqes == MAP_FAILED || posix_memalign(&room, BLOCK, (size_t)depth * BLOCK) != 0) return fail("memory");
    memset(room, 0, (size_t)depth * BLOCK);
    const struct iovec memory = {room, (size_t)depth * BLOCK};
    if (syscall(__NR_io_uring_register, ring, IORING_REGISTER_FILES, &file, 1) != 0) return fail("the file cannot be registered");
    if (syscall(__NR_io_uring_register, ring, IORING_REGISTER_BUFFERS, &memory, 1) != 0) return fail("the memory cannot be registered");
    unsigned *const sq_tail = (unsigned *)(sq + how.sq_off.tail), sq_mask = *(unsigned *)(sq + how.sq_off.ring_mask);
    unsigned *const sq_array = (unsigned *)(sq + how.sq_off.array);
    unsigned *const cq_head = (unsigned *)(cq + how.cq_off.head), cq_mask = *(unsigned *)(cq + how.cq_off.ring_mask);
    _Atomic unsigned *const cq_tail = (_Atomic unsigned *)(cq + how.cq_off.tail);
    const struct io_uring_cqe *const cqes = (struct io_uring_cqe *)(cq + how.cq_off.cqes);
    static unsigned idle[MOST];
    unsigned free_count = depth;
    for (unsigned i = 0; i < depth; ++i) idle[i] = i;
    static double times[MOST];
    unsigned timed = 0, least = batch ? depth - batch : 0;
    double begun = 0;
    uint64_t done = 0, state = 88172645463325252u;
    const double began = seconds(CLOCK_MONOTONIC), processor = seconds(CLOCK_PROCESS_CPUTIME_ID);
    double now = began;
    while (now - began < limit) {
        unsigned tail = *sq_tail, fresh = 0;
        if (batch && free_count == depth) {
            const struct timespec pause = {0, 5000000};
            if (begun > 0 && timed < MOST) times[timed++] = (seconds(CLOCK_MONOTONIC) - begun) * 1e6;
            nanosleep(&pause, NULL);
            begun = seconds(CLOCK_MONOTONIC);
        }
        for (; free_count > least && (!batch || free_count + fresh == depth); ++tail, ++fresh) {
            const unsigned slot = idle[--free_count];
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            sqes[tail & sq_mask] = (struct io_uring_sqe){
                .opcode = IORING_OP_READ_FIXED, .flags = IOSQE_FIXED_FILE, .fd = 0, .off = state % blocks * BLOCK,
                .addr = (uint64_t)(uintptr_t)((char *)room + (size_t)slot * BLOCK), .len = BLOCK, .user_data = slot,
            };
            sq_array[tail & sq_mask] = tail & sq_mask;
        }
        atomic_store_explicit((_Atomic unsigned *)sq_tail, tail, memory_order_release);
        if (syscall(__NR_io_uring_enter, ring, fresh, batch ? 0 : 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0 && errno != EINTR) return fail("io_uring_enter");
        unsigned head = *cq_head;
        for (; head != atomic_load_explicit(cq_tail, memory_order_acquire); ++head, ++done) {
            if (cqes[head & cq_mask].res != BLOCK) return fprintf(stderr, "a read: %d\n", cqes[head & cq_mask].res), 1;
            idle[free_count++] = (unsigned)cqes[head & cq_mask].user_data;
        }
        atomic_store_explicit((_Atomic unsigned *)cq_head, head, memory_order_release);
        now = seconds(CLOCK_MONOTONIC);
    }
    qsort(times, timed, sizeof *times, by_size);
    printf("%.0f %.4f", (double)done / (now - began), (seconds(CLOCK_PROCESS_CPUTIME_ID) - processor) / (now - began));
    if (timed) printf(" %.0f", times[timed / 2]);
    printf("\n");
    return 0;
}
