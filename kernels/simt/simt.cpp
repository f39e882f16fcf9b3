// The scheduler of simt.h, and the kernels. Rust's tests call simt_run; one launch at a time in one loaded copy of this library.
#include "simt.h"

#include <cstdio>
#include <ctime>
#include <sched.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "lookup.cu"

// Dynamic shared memory of the block that runs. What other blocks have in theirs is kept apart.
constexpr u32 DYNAMIC_WORDS = 8192;
alignas(16) u64 words[DYNAMIC_WORDS];

// So that the section is there whatever the kernels have.
SHARED u64 anchor[2];
extern char __start_simt_shared[], __stop_simt_shared[];

namespace simt {

constexpr u32 STACK = 32768, STAGGER = 192, MAX_LANES = 1024, MAX_BLOCKS = 64, MEETINGS = 16;
constexpr u32 MAX_LATE = 8192;
constexpr u32 MAX_COPIES = 16;
constexpr u64 CANARY = 0x5afe57ac5afe57acull;

enum State : u32 { READY, PAUSED, AT_BARRIER, AT_MEETING, EXITED };

struct Meeting {
    u32 mask, arrived, line;
    Collective what;
    const char* file;
};

struct Warp {
    u32 ready, paused, exited;
    Meeting meetings[MEETINGS];
};

// A store that nobody has seen yet, and how often the block had met at a barrier before it.
struct LateStore {
    Quad* at;
    Quad value;
    u32 lane;
    u32 barriers;
};

// A copy to shared memory that has not been made yet, and how many groups of its lane came before its own.
struct LateCopy {
    void* to;
    const void* from;  // null: zeros
    u32 group;
};

struct Block {
    Lane lanes[MAX_LANES];
    LateCopy copies[MAX_LANES][MAX_COPIES];
    Warp warps[MAX_LANES / 32];
    u32 live, at_barrier, barrier_line, barriers, late_count;
    LateStore late[MAX_LATE];
    const char* barrier_file;
    char* shared;
    char* dynamic;
};

// What Rust asks for.
struct Options {
    u64 seed;
    u64 limit_ns;
    u32 shared_bytes;
    u32 how;
    // Blocks that run at once, as on a GPU that has room for no more: others begin, from any one on, when some have ended. 0: all.
    u32 resident;
    // Called now and then, and with `idle` when every lane waits. Gives the time.
    u64 (*turn)(void* context, u32 idle);
    void* context;
};

Lane* lane;
Index block, blocks, threads;

static Block grid[MAX_BLOCKS];
static Block* running;
static const Lookup* parameters;
static void (*entry)();
static const Options* options;
static char* message;
static u64 message_bytes;
static bool failed, preempted;
static u64 virtual_now;
static u64 random_state;

static u64 random_word() {
    u64 z = random_state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
static bool one_in(u32 many) { return random_word() % many == 0; }

static u64 wall() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (u64)time.tv_sec * 1000000000ull + (u64)time.tv_nsec;
}

// Processor time of this thread: what a kernel has taken, however busy the machine is with other things.
static u64 spent() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (u64)time.tv_sec * 1000000000ull + (u64)time.tv_nsec;
}

// --- Fibers --------------------------------------------------------------------------------------------------------------------

#if defined(__x86_64__)
extern "C" void simt_switch(void** from, void* to);
asm(R"(
.text
.local simt_switch
.type simt_switch, @function
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size simt_switch, .-simt_switch
)");
static void* scheduler;
static void to_scheduler() { simt_switch(&lane->top, scheduler); }
static void to_lane() { simt_switch(&scheduler, lane->top); }
static void begin_lane(Lane& it, char* stack, void (*body)()) {
    void** top = reinterpret_cast<void**>(stack + STACK) - 2;
    top[0] = reinterpret_cast<void*>(body);
    top[1] = nullptr;
    it.top = top - 6;
}
#else
static ucontext_t scheduler, contexts[MAX_BLOCKS * MAX_LANES];
static void to_scheduler() { swapcontext(static_cast<ucontext_t*>(lane->top), &scheduler); }
static void to_lane() { swapcontext(&scheduler, static_cast<ucontext_t*>(lane->top)); }
static void begin_lane(Lane& it, char* stack, void (*body)()) {
    static u32 next;
    ucontext_t& context = contexts[next++ % (MAX_BLOCKS * MAX_LANES)];
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK;
    makecontext(&context, body, 0);
    it.top = &context;
}
#endif

// --- What lanes wait for -------------------------------------------------------------------------------------------------------

static Warp& warp_of(const Lane& it) { return running->warps[it.thread.x / 32]; }
static u32 bit_of(const Lane& it) { return 1u << it.thread.x % 32; }

static const char* name_of(u32 state) {
    constexpr const char* NAMES[] = {"runs", "pauses", "waits at a barrier", "waits for its warp", "has exited"};
    return NAMES[state];
}
static const char* file_name(const char* path) {
    const char* slash = path == nullptr ? nullptr : std::strrchr(path, '/');
    return path == nullptr ? "?" : slash != nullptr ? slash + 1 : path;
}

// Says what is wrong, and where one lane of each state is.
static void fail(const char* what, bool of_lane = false) {
    if (failed) return;
    failed = true;
    int at = std::snprintf(message, message_bytes, "block %u, ", block.x);
    if (of_lane) at += std::snprintf(message + at, message_bytes - at, "lane %u (%s:%u), ", lane->thread.x, file_name(lane->file), lane->line);
    at += std::snprintf(message + at, message_bytes - at, "%s;", what);
    for (u32 state = READY; state <= EXITED; ++state) {
        const Lane* first = nullptr;
        u32 count = 0;
        for (u32 i = 0; i < threads.x; ++i) {
            if (running->lanes[i].state != state) continue;
            if (count++ == 0) first = &running->lanes[i];
        }
        if (count == 0 || at < 0 || (u64)at >= message_bytes) continue;
        at += std::snprintf(message + at, message_bytes - at, " %u: lane %u %s (%s:%u);", count, first->thread.x, name_of(state),
                            file_name(first->file), first->line);
    }
}

// Leaves the lane, which somebody else makes ready again.
static void wait(u32 state) {
    Warp& warp = warp_of(*lane);
    lane->state = state;
    if (state != READY) warp.ready &= ~bit_of(*lane);
    if (state == PAUSED) warp.paused |= bit_of(*lane);
    if (state == EXITED) warp.exited |= bit_of(*lane);
    to_scheduler();
}
[[noreturn]] static void stop(const char* what) {
    fail(what, true);
    for (;;) to_scheduler();
}

void preempt() {
    if (!one_in(4)) return;
    // Other blocks, too, come in between here.
    preempted = true;
    wait(READY);
}

void barrier(const char* file, u32 line) {
    Block& mine = *running;
    lane->file = file;
    lane->line = line;
    if (mine.at_barrier++ == 0) {
        mine.barrier_file = file;
        mine.barrier_line = line;
    } else if (mine.barrier_line != line || std::strcmp(mine.barrier_file, file) != 0) {
        stop("lanes meet at different barriers");
    }
    if (mine.live != threads.x) stop("a lane waits at a barrier that an exited lane does not reach");
    if (mine.at_barrier < threads.x) return wait(AT_BARRIER);
    mine.at_barrier = 0;
    ++mine.barriers;
    for (u32 i = 0; i < threads.x; ++i) {
        mine.lanes[i].state = READY;
        mine.warps[i / 32].ready |= 1u << i % 32;
    }
    wait(READY);
}

static void store_words(const LateStore& it) {
    const u32 values[] = {it.value.x, it.value.y, it.value.z, it.value.w};
    for (u32 i = 0; i < 4; ++i) __atomic_store_n(&it.at->x + i, values[i], __ATOMIC_RELAXED);
}

// Lets everybody see the stores of this block that a fence of this lane orders: its own, and those of lanes that it has met at a barrier
// since; all of them, when the block has ended.
static void release(bool all) {
    Block& mine = *running;
    u32 kept = 0;
    for (u32 i = 0; i < mine.late_count; ++i) {
        const LateStore it = mine.late[i];
        if (all || it.lane == lane->thread.x || it.barriers != mine.barriers) store_words(it);
        else mine.late[kept++] = it;
    }
    mine.late_count = kept;
}

static u64 answer(const Lane* warp, const Meeting& meeting, u32 me) {
    u64 value = 0;
    u32 from = me;
    switch (meeting.what) {
        case SYNC: return 0;
        case BALLOT:
            for (u32 i = 0; i < 32; ++i)
                if (meeting.mask >> i & 1) value |= warp[i].value << i;
            return value;
        case SHUFFLE: from = warp[me].argument % 32; break;
        case SHUFFLE_XOR: from = (me ^ warp[me].argument) % 32; break;
        case SHUFFLE_UP: from = me < warp[me].argument ? me : me - warp[me].argument; break;
    }
    if (!(meeting.mask >> from & 1)) stop("a lane shuffles from one that takes no part");
    return warp[from].value;
}

u64 meet(Collective what, u32 mask, u64 value, u32 argument, const char* file, u32 line) {
    Warp& warp = warp_of(*lane);
    const u32 bit = bit_of(*lane);
    lane->file = file;
    lane->line = line;
    if (!(mask & bit)) stop("a lane is not in the mask that it gives");
    if (mask & warp.exited) stop("a mask names a lane that has exited");
    Meeting* meeting = nullptr;
    for (Meeting& it : warp.meetings) {
        if (it.arrived == 0) continue;
        // Who waits for this lane cannot come here; others may still meet among themselves before they do.
        if (it.mask != mask && (it.mask & bit) && (it.arrived & mask)) stop("lanes meet with different masks");
        if (it.mask == mask) meeting = &it;
    }
    for (Meeting& it : warp.meetings)
        if (meeting == nullptr && it.arrived == 0) {
            meeting = &it;
            *meeting = Meeting{mask, 0, line, what, file};
        }
    if (meeting == nullptr) stop("too many masks at once");
    if (meeting->what != what || meeting->line != line || std::strcmp(meeting->file, file) != 0) stop("lanes of a warp meet in different calls");
    lane->value = value;
    lane->argument = argument;
    meeting->arrived |= bit;
    if (meeting->arrived != mask) {
        wait(AT_MEETING);
        return lane->result;
    }
    Lane* lanes = running->lanes + lane->thread.x / 32 * 32;
    for (u32 i = 0; i < 32; ++i) {
        if (!(mask >> i & 1)) continue;
        lanes[i].result = answer(lanes, *meeting, i);
        lanes[i].state = READY;
    }
    warp.ready |= mask;
    meeting->arrived = 0;
    wait(READY);
    return lane->result;
}

// --- Which lane runs -----------------------------------------------------------------------------------------------------------

// An order of 32 things: i -> a * i + b, with a odd.
struct Order {
    u32 a, b;
    u32 at(u32 i) const { return (a * i + b) % 32; }
};
static Order draw() { return Order{(u32)random_word() | 1, (u32)random_word()}; }

static void body() {
    entry();
    wait(EXITED);
}

static void swap_in(u32 number) {
    Block* next = &grid[number];
    if (next == running) return;
    const size_t bytes = (size_t)(__stop_simt_shared - __start_simt_shared);
    const size_t dynamic = options->shared_bytes;
    if (running != nullptr) {
        std::memcpy(running->shared, __start_simt_shared, bytes);
        std::memcpy(running->dynamic, words, dynamic);
    }
    std::memcpy(__start_simt_shared, next->shared, bytes);
    std::memcpy(words, next->dynamic, dynamic);
    running = next;
    block.x = number;
}

static void give_turn(bool idle) {
    if (options->turn != nullptr) virtual_now = options->turn(options->context, idle);
    else if (idle) sched_yield();
}

static void set_up(char* stacks, char* shared, char* dynamic) {
    const size_t bytes = (size_t)(__stop_simt_shared - __start_simt_shared);
    for (u32 b = 0; b < blocks.x; ++b) {
        Block& it = grid[b];
        std::memset(it.warps, 0, sizeof it.warps);
        for (Warp& warp : it.warps) warp.exited = FULL;
        it.live = threads.x;
        it.at_barrier = it.barriers = it.late_count = 0;
        it.shared = shared + b * bytes;
        it.dynamic = dynamic + (size_t)b * options->shared_bytes;
        // Nobody has cleared it. What comes next does not depend on how much of it there is.
        u64 word = random_word();
        for (size_t i = 0; i < bytes; ++i) {
            word = word * 6364136223846793005ull + 1442695040888963407ull;
            it.shared[i] = (char)(word >> 56);
        }
        for (u32 i = 0; i < options->shared_bytes; ++i) {
            word = word * 6364136223846793005ull + 1442695040888963407ull;
            it.dynamic[i] = (char)(word >> 56);
        }
        for (u32 i = 0; i < threads.x; ++i) {
            char* stack = stacks + (size_t)(b * threads.x + i) * (STACK + STAGGER);
            *reinterpret_cast<u64*>(stack) = CANARY;
            it.lanes[i] = Lane{};
            it.lanes[i].thread.x = i;
            it.lanes[i].stack = stack;
            it.warps[i / 32].ready |= 1u << i % 32;
            it.warps[i / 32].exited &= ~(1u << i % 32);
            begin_lane(it.lanes[i], stack, body);
        }
    }
}

// The next ready lane of the block in these orders.
static Lane* next_ready(Block& it, const Order& warps, const Order& lanes) {
    for (u32 i = 0; i < 32; ++i) {
        u32 warp = warps.at(i), ready = it.warps[warp].ready;
        if (ready == 0) continue;
        for (u32 j = 0;; ++j)
            if (ready >> lanes.at(j) & 1) return &it.lanes[warp * 32 + lanes.at(j)];
    }
    return nullptr;
}

static bool wake_paused(Block& it) {
    bool any = false;
    for (u32 w = 0; w < MAX_LANES / 32; ++w) {
        Warp& warp = it.warps[w];
        for (u32 i = 0; i < 32; ++i)
            if (warp.paused >> i & 1) it.lanes[w * 32 + i].state = READY;
        any |= warp.paused != 0;
        warp.ready |= warp.paused;
        warp.paused = 0;
    }
    return any;
}

static void schedule() {
    // How long an order of lanes, of warps and of blocks lasts. The longest lets one lane fall behind for good.
    constexpr u32 LASTS[] = {1, 8, 128, 4096, ~0u};
    const u32 lanes_last = LASTS[random_word() % 5], warps_last = LASTS[random_word() % 5], blocks_last = LASTS[1 + random_word() % 4];
    Order lanes = draw(), warps = draw();
    u32 current = (u32)(random_word() % blocks.x), left = blocks.x;
    const u32 resident = options->resident != 0 && options->resident < blocks.x ? options->resident : blocks.x;
    const u32 shift = resident < blocks.x ? (u32)(random_word() % blocks.x) : 0;
    const u64 began = spent();
    for (u64 steps = 0; left != 0 && !failed; ++steps) {
        if (one_in(lanes_last)) lanes = draw();
        if (one_in(warps_last)) warps = draw();
        if (one_in(preempted ? 4 : blocks_last)) current = (u32)(random_word() % blocks.x);
        preempted = false;
        if (steps % 32 == 0) give_turn(false);
        if (steps % 1024 == 0 && spent() - began > options->limit_ns) {
            swap_in(current);
            return fail("divergence deadlock: lanes spin, and no end comes");
        }
        Lane* next = nullptr;
        for (u32 i = 0; i < blocks.x && next == nullptr; ++i) {
            u32 number = (current + i) % blocks.x;
            if ((number + shift) % blocks.x >= resident + (blocks.x - left)) continue;
            next = next_ready(grid[number], warps, lanes);
            if (next != nullptr) current = number;
        }
        if (next == nullptr) {
            // Everybody waits: for time to pass, or for each other, which is an error.
            bool any = false;
            for (u32 b = 0; b < blocks.x; ++b) any |= wake_paused(grid[b]);
            give_turn(true);
            if (any) continue;
            for (u32 b = 0; b < blocks.x; ++b)
                if (grid[b].live != 0) swap_in(b);
            return fail("divergence deadlock: lanes wait for each other");
        }
        swap_in(current);
        lane = next;
        to_lane();
        if (*static_cast<u64*>(lane->stack) != CANARY) return fail("a stack overflowed");
        if (lane->state == EXITED && --running->live == 0) {
            release(true);
            --left;
        }
        if (lane->state == EXITED && running->at_barrier != 0) return fail("a lane exits while others wait at a barrier");
    }
}

}  // namespace simt

void preempt() { simt::preempt(); }

void store_late(Quad* at, Quad value) {
    simt::Block& mine = *simt::running;
    if (mine.late_count == simt::MAX_LATE) simt::stop("more stores wait for a fence than there is room for");
    mine.late[mine.late_count++] = simt::LateStore{at, value, simt::lane->thread.x, mine.barriers};
}

void release_late_stores() { simt::release(false); }

static void make_copy(const simt::LateCopy& it) {
    if (it.from != nullptr) std::memcpy(it.to, it.from, 16);
    else std::memset(it.to, 0, 16);
}

// A GPU makes a copy at any time until it has been waited for: here at once, or then.
void copy_late(void* shared, const void* global) {
    simt::Lane& mine = *simt::lane;
    const simt::LateCopy copy{shared, global, mine.groups};
    if ((mine.thread.x / 3 + mine.groups) % 2 == 0) return make_copy(copy);
    if (mine.copies == simt::MAX_COPIES) simt::stop("more copies are under way than there is room for");
    simt::running->copies[mine.thread.x][mine.copies++] = copy;
}

void end_late_copies() { ++simt::lane->groups; }

void make_late_copies(u32 left) {
    simt::Lane& mine = *simt::lane;
    simt::LateCopy* copies = simt::running->copies[mine.thread.x];
    u32 kept = 0;
    for (u32 i = 0; i < mine.copies; ++i) {
        if (copies[i].group + left < mine.groups) make_copy(copies[i]);
        else copies[kept++] = copies[i];
    }
    mine.copies = kept;
}

u32 dynamic_shared_bytes() { return simt::options->shared_bytes; }

u64 now() {
    simt::preempt();
    return simt::options->turn != nullptr ? simt::virtual_now : simt::wall();
}

void pause(u32) {
    simt::lane->file = "pause";
    simt::lane->line = 0;
    simt::wait(simt::PAUSED);
}

// The compiler's checks call these: what an x86 forgives and a GPU does not.
struct Place {
    const char* file;
    u32 line, column;
};
#define FORBID(handler, what) \
    extern "C" void __ubsan_handle_##handler(const Place* place, u64, u64) { \
        simt::lane->file = place->file; \
        simt::lane->line = place->line; \
        simt::stop(what); \
    }
FORBID(type_mismatch_v1, "an access that is misaligned, or to address zero")
FORBID(shift_out_of_bounds, "a shift by more bits than there are")
FORBID(divrem_overflow, "a division by zero")

struct Named {
    const char* name;
    void (*call)();
};
#define NAMED(kernel) {#kernel, [] { kernel(*simt::parameters); }}
static const Named KERNELS[] = {
    NAMED(warprow_sample), NAMED(warprow_begin), NAMED(warprow_mark),  NAMED(warprow_count),  NAMED(warprow_place),
    NAMED(warprow_prepare), NAMED(warprow_finish), NAMED(warprow_rest), NAMED(warprow_mask),
    NAMED(warprow_direct_rows), NAMED(warprow_direct_bags), NAMED(warprow_direct_one),
    NAMED(warprow_direct_rich_rows), NAMED(warprow_direct_rich_bags), NAMED(warprow_direct_rich_one),
    NAMED(warprow_direct_updated_rows), NAMED(warprow_direct_updated_bags), NAMED(warprow_mark_updated), NAMED(warprow_prepare_updated),
    NAMED(warprow_prepare_cached), NAMED(warprow_mark_cached), NAMED(warprow_hash_cached), NAMED(warprow_list_cached),
    NAMED(warprow_hash), NAMED(warprow_hash_updated), NAMED(warprow_list), NAMED(warprow_list_updated), NAMED(warprow_rank), NAMED(warprow_number),
    {"warprow_few", [] { warprow_few(*simt::parameters, simt::options->how); }},
    {"warprow_few_updated", [] { warprow_few_updated(*simt::parameters, simt::options->how); }},
    {"warprow_fetch", [] { warprow_fetch(*simt::parameters, simt::options->how); }},
    {"warprow_sweep", [] { warprow_sweep(*simt::parameters, simt::options->how); }},
    {"warprow_adopt", [] { warprow_adopt(*reinterpret_cast<const Adoption*>(simt::parameters)); }},
    {"warprow_test_ring", [] { warprow_test_ring(*reinterpret_cast<const RingReads*>(simt::parameters)); }},
    {"warprow_ngrams", [] { warprow_ngrams(*reinterpret_cast<const NgramTokens*>(simt::parameters)); }},
    {"warprow_pin_cache", [] { warprow_pin_cache(*reinterpret_cast<const CachePin*>(simt::parameters)); }},
    {"warprow_sweep_cache", [] { warprow_sweep_cache(*reinterpret_cast<const CacheSweep*>(simt::parameters)); }},
    {"warprow_update", [] { warprow_update(*reinterpret_cast<const Update*>(simt::parameters)); }},
    {"warprow_expand_rows", [] { warprow_expand_rows(*simt::parameters, simt::options->how); }},
    {"warprow_expand_bags", [] { warprow_expand_bags(*simt::parameters, simt::options->how); }},
    {"warprow_expand_rich_rows", [] { warprow_expand_rich_rows(*simt::parameters, simt::options->how); }},
    {"warprow_expand_cached_rows", [] { warprow_expand_cached_rows(*simt::parameters, simt::options->how); }},
    {"warprow_expand_cached_bags", [] { warprow_expand_cached_bags(*simt::parameters, simt::options->how); }},
    {"warprow_expand_unwritten", [] { warprow_expand_unwritten(*simt::parameters); }},
    {"warprow_expand_rich_bags", [] { warprow_expand_rich_bags(*simt::parameters, simt::options->how); }},
};

// Runs a kernel to its end: 0, or 1 and a message that says what its lanes did wrong.
extern "C" int simt_run(const char* kernel, const Lookup* lookup, u32 grid, u32 block, const simt::Options* options, char* message,
                        u64 message_bytes) {
    using namespace simt;
    simt::message = message;
    simt::message_bytes = message_bytes;
    simt::options = options;
    parameters = lookup;
    entry = nullptr;
    for (const Named& it : KERNELS)
        if (std::strcmp(it.name, kernel) == 0) entry = it.call;
    if (entry == nullptr || grid == 0 || grid > MAX_BLOCKS || block == 0 || block > MAX_LANES ||
        options->shared_bytes > sizeof words) {
        std::snprintf(message, message_bytes, "%s with %u blocks of %u lanes cannot be launched here", kernel, grid, block);
        return 1;
    }
    blocks.x = grid;
    threads.x = block;
    random_state = options->seed;
    failed = false;
    running = nullptr;
    anchor[0] = 0;
    const size_t stack_bytes = (size_t)grid * block * (STACK + STAGGER);
    const size_t shared_bytes = (size_t)grid * (size_t)(__stop_simt_shared - __start_simt_shared);
    const size_t dynamic_bytes = (size_t)grid * options->shared_bytes;
    void* memory = mmap(nullptr, stack_bytes + shared_bytes + dynamic_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        std::snprintf(message, message_bytes, "no memory for the stacks of %u lanes", grid * block);
        return 1;
    }
    char* const shared = static_cast<char*>(memory) + stack_bytes;
    set_up(static_cast<char*>(memory), shared, shared + shared_bytes);
    give_turn(false);
    schedule();
    munmap(memory, stack_bytes + shared_bytes + dynamic_bytes);
    // Words beyond what the launch asked for.
    return failed;
}
