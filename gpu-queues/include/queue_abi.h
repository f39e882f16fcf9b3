/* The structures that host and kernels share for a queue; gpu-queues/src/abi.rs has the same, field by field. A test compares the two.
 * Plain C, for NVRTC as for any compiler; no includes. All pointers are device pointers, as numbers. */
#ifndef WARPROW_QUEUE_ABI_H
#define WARPROW_QUEUE_ABI_H

#ifndef WARPROW_FIXED_WIDTHS
#define WARPROW_FIXED_WIDTHS
typedef unsigned int u32;
typedef unsigned long long u64;
#endif

/* Threads of the block that drives a queue, and commands of a batch (T). */
#define WR_LANES 256
/* Most batches in flight on a queue (K). */
#define WR_MAX_BATCHES 8
/* Bytes of a submission and of a completion queue entry. */
#define WR_SQE_BYTES 64
#define WR_CQE_BYTES 16

/* QueueDescriptor.doorbell_kind: ordinary memory (`st.relaxed.sys`), or a device's register (`st.mmio.relaxed.sys`). */
#define WR_DOORBELL_MEMORY 0
#define WR_DOORBELL_MMIO 1

/* Fault.kind, and QueueState.poison. */
#define WR_FAULT_NONE 0
/* Commands were not answered within timeout_ns. */
#define WR_FAULT_TIMED_OUT 1
/* The gate closed while commands were outstanding. */
#define WR_FAULT_CLOSED 2
/* The host gave the drive up. */
#define WR_FAULT_GIVEN_UP 3

/* Gate: byte offsets of its two words in pinned memory. `closed` is a u32, not zero while launches stay out; `inside` is a
 * u64, the launch that is inside, or zero. */
#define WR_GATE_CLOSED 0
#define WR_GATE_INSIDE 128
#define WR_GATE_BYTES 256

/* One queue pair, for the thread block that drives it. Constant while the queue lives. */
typedef struct QueueDescriptor {
    u64 sq;             /* sq_size entries of 64 B */
    u64 cq;             /* cq_size entries of 16 B */
    u64 landing;        /* T * batches places of landing_stride bytes: what command (slot, lane) reads lands in place
                           slot * T + lane */
    u64 landing_iova;   /* where the controller sees the landing area: PRP1 is this + place * landing_stride */
    u64 sq_tail;        /* doorbell, u32 */
    u64 cq_head;        /* doorbell, u32 */
    u64 state;          /* QueueState, GPU memory */
    u64 fault;          /* Fault, pinned memory */
    u64 timeout_ns;     /* from the doorbell of a batch to the last completion of it */
    u32 landing_stride; /* a power of two from the LBA size to 65536: up to 4096 a place never crosses a page, and PRP2 is 0;
                           else PRP2 is PRP1 + 4096 for commands of two pages, and their place in prp_list for longer ones */
    u32 sq_size;        /* entries */
    u32 cq_size;        /* entries */
    u32 doorbell_kind;  /* WR_DOORBELL_* */
    u32 queue_id;       /* NVMe queue identifier, from 1 */
    u32 drive;          /* index of the drive in its queue set */
    u32 nsid;           /* NVMe namespace identifier */
    u32 lba_shift;      /* an LBA is 1 << lba_shift bytes */
    u32 batches;        /* K: batches in flight; T * K < min(sq_size, cq_size) */
    u32 cid_shift;      /* CID = generation << cid_shift | slot * T + lane; T * K <= 1 << cid_shift */
    u32 generations;    /* a slot's generation counts modulo this, so that no CID is FFFFh */
    u32 window;         /* which rows of different LBAs share a command: bits 0 to 7 are the logarithm of the LBAs of an aligned
                           window that holds all of it, bits 8 to 31 the most LBAs between two rows; 0: none do */
    u64 prp_list;       /* where the controller sees a u64 for each page of the landing area, its address; used if
                           landing_stride > 8192 */
} QueueDescriptor;

/* What the block that drives a queue keeps from launch to launch, in GPU memory. A queue just created has zeros. Blocks of the drive's other
 * queues look at `poison` and, behind an acquire, at `poisoned_by`. */
typedef struct QueueState {
    u32 tail;                       /* index of the next SQ entry to write, < sq_size */
    u32 head;                       /* index of the next CQ entry to look at, < cq_size */
    u32 turn;                       /* times that head wrapped: the phase of a new entry is (turn + 1) & 1 */
    u32 poison;                     /* not zero: a WR_FAULT_*, and no command until the host has recreated the queue; stored
                                       behind a release */
    u32 generation[WR_MAX_BATCHES]; /* of each batch slot, < generations */
    u32 anomalies;                  /* completions that nobody waited for */
    u32 unused;
    u64 commands;                   /* submitted since the queue was created */
    u64 doorbells;                  /* stored since then */
    u64 poisoned_by;                /* number of the launch that stored `poison`: for this one the queue was healthy */
    u32 reserved[12];
} QueueState;

/* What went wrong on a queue, in pinned memory: written by the block that met it, `kind` last, behind a release. */
typedef struct Fault {
    u32 kind;      /* WR_FAULT_* */
    u32 drive;     /* as in the descriptor */
    u32 queue;     /* NVMe queue identifier */
    u32 cid;       /* of a command that was outstanding */
    u64 lba;       /* its first LBA */
    u64 waited_ns; /* from its doorbell */
    u64 launch;    /* number of the launch, counted by its slot from 1 */
    u32 outstanding; /* commands outstanding when the block gave up */
    /* The first command that ended with an error status in the latest launch in which one did, `status` last, behind a release;
     * the queue goes on. Zero while the others are being written. */
    u32 status;      /* status field of its completion, or 0: none since the queue was created */
    u64 failed_lba;  /* its first LBA */
    u64 failed_launch; /* number of the launch */
    u32 failed_cid;
    u32 unused;
    u64 answered;    /* number of the latest launch in which a command succeeded; 0: none since the queue was created */
    /* The first row that did not match its checksum in the latest launch in which one did not, `damaged_launch` last, behind a
     * release; the queue goes on. */
    u64 damaged_rank;
    u64 damaged_lba;    /* the first LBA of the command that read it */
    u64 damaged_launch; /* number of the launch; 0: there is none, or the others are being written */
    u32 damaged_table;  /* index among the launch's tables */
    u32 damaged_cid;
    u32 reserved[4];
} Fault;

/* Reads of one LBA each, through one queue: what the kernel of a ring test is told, by value. One block of WR_LANES threads carries them
 * out, and is inside the gate meanwhile. */
typedef struct RingReads {
    u64 queue;   /* QueueDescriptor */
    u64 gate;    /* Gate, pinned memory */
    u64 launch;  /* number of the launch, from 1 */
    u64 lbas;    /* count u64: what to read */
    u64 landed;  /* count places of one LBA: what was read, in the order of lbas */
    u64 is_read; /* count u32, zero before: 1 where the command succeeded */
    u64 count;
} RingReads;

#endif
