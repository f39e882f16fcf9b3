// The scheduler of simt.h. Rust's tests call simt_run; one launch at a time in one loaded copy of this library.
#include "simt.h"

#include <cstdio>
#include <ctime>
#include <sched.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "order.cuh"

namespace simt {

constexpr u32 STACK = 32768, STAGGER = 192, MAX_LANES = 1024, MAX_BLOCKS = 64, MEETINGS = 16;
constexpr u32 MAX_LATE = 8192;
constexpr u32 MAX_COPIES = 16;
// Bytes of shared memory of a block: variables, and what the launch decides.
constexpr u32 MAX_SHARED = 1 << 17, MAX_DYNAMIC = 1 << 16, SHARED_ALIGN = 64;
constexpr u64 CANARY = 0x5afe57ac5afe57acull;

enum State : u32 { READY, PAUSED, AT_BARRIER, AT_MEETING, EXITED };

struct Meeting {
    u32 mask, arrived, line;
    Collective what;
    const char* file;
};

struct Warp {
    u32 ready, paused, exited;
    u32 met;  // by place, the meetings at which somebody has arrived
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
    u32 ready, paused;  // warps with lanes that are ready, and with ones that have paused
    u32 live, at_barrier, barrier_line, barriers, late_count;
    LateStore late[MAX_LATE];
    const char* barrier_file;
    u64 garbage;  // decides what is in shared memory before anybody has written there
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
    // Whether somebody is held in the launch (Held).
    u32 holds;
    // Called now and then, and with `idle` when every lane waits. Gives the time.
    u64 (*turn)(void* context, u32 idle);
    void* context;
};

Lane* lane;
Index block, blocks, threads;

static Block grid[MAX_BLOCKS];
static Block* running;
char* shared;
u64* dynamic;
const void* parameters;
u32 how;
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
// `many` is a power of two, or NEVER.
constexpr u32 NEVER = ~0u;
static bool one_in(u32 many) {
    const u64 word = random_word();
    return many != NEVER && (word & (many - 1)) == 0;
}

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
static void* scheduler;
// Leaves one stack for another. Nothing is called and nothing returns here, so that the processor foresees where lanes' own calls return to.
// What is below the stack's end may be the caller's.
__attribute__((always_inline)) static inline void switch_stacks(void** from, void* to) {
    asm volatile(R"(
        leaq -128(%%rsp), %%rsp
        leaq 1f(%%rip), %%rax
        pushq %%rax
        pushq %%rbp
        movq %%rsp, (%%rdi)
        movq %%rsi, %%rsp
        popq %%rbp
        popq %%rax
        jmp *%%rax
    1:  leaq 128(%%rsp), %%rsp
    )"
                 : "+D"(from), "+S"(to)
                 :
                 : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
                   "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
}
static void to_scheduler() { switch_stacks(&lane->top, scheduler); }
static void to_lane() { switch_stacks(&scheduler, lane->top); }
static void begin_lane(Lane& it, char* stack, void (*body)()) {
    void** top = reinterpret_cast<void**>(stack + STACK) - 3;
    top[0] = top[2] = nullptr;
    top[1] = reinterpret_cast<void*>(body);
    it.top = top;
}
static bool is_off_its_stack(const Lane& it, const void* stack) { return it.top < stack; }
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
static bool is_off_its_stack(const Lane&, const void*) { return false; }
#endif

// --- What lanes wait for -------------------------------------------------------------------------------------------------------

static Warp& warp_of(const Lane& it) { return running->warps[it.thread.x / 32]; }
static u32 bit_of(const Lane& it) { return 1u << it.thread.x % 32; }

// The first so many lanes of a warp.
static u32 lanes_of(u32 count) { return count >= 32 ? FULL : (1u << count) - 1; }

static void make_ready(Block& it, u32 warp, u32 lanes) {
    it.warps[warp].ready |= lanes;
    it.ready |= 1u << warp;
}

static const char* name_of(u32 state) {
    constexpr const char* NAMES[] = {"runs", "pauses", "waits at a barrier", "waits for its warp", "has exited"};
    return NAMES[state];
}
static const char* file_name(const char* path) {
    const char* slash = path == nullptr ? nullptr : std::strrchr(path, '/');
    return path == nullptr ? "?" : slash != nullptr ? slash + 1 : path;
}

static bool is_same(const char* file, const char* other) { return file == other || std::strcmp(file, other) == 0; }

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
    const u32 own = 1u << lane->thread.x / 32;
    lane->state = state;
    if (state != READY && (warp.ready &= ~bit_of(*lane)) == 0) running->ready &= ~own;
    if (state == PAUSED) {
        warp.paused |= bit_of(*lane);
        running->paused |= own;
    }
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
    } else if (mine.barrier_line != line || !is_same(mine.barrier_file, file)) {
        stop("lanes meet at different barriers");
    }
    if (mine.live != threads.x) stop("a lane waits at a barrier that an exited lane does not reach");
    if (mine.at_barrier < threads.x) return wait(AT_BARRIER);
    mine.at_barrier = 0;
    ++mine.barriers;
    for (u32 i = 0; i < threads.x; ++i) mine.lanes[i].state = READY;
    for (u32 i = 0; i < threads.x; i += 32) make_ready(mine, i / 32, lanes_of(threads.x - i));
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

// The votes of a ballot, or 0.
static u64 votes(const Lane* warp, const Meeting& meeting) {
    u64 value = 0;
    for (u32 lanes = meeting.what == BALLOT ? meeting.mask : 0; lanes != 0; lanes &= lanes - 1) {
        const u32 i = (u32)__builtin_ctz(lanes);
        value |= warp[i].value << i;
    }
    return value;
}

// What a lane has of a shuffle.
static u64 shuffled(const Lane* warp, const Meeting& meeting, u32 me) {
    const u32 argument = warp[me].argument;
    u32 from = argument % 32;
    if (meeting.what == SHUFFLE_XOR) from = (me ^ argument) % 32;
    if (meeting.what == SHUFFLE_UP) from = me < argument ? me : me - argument;
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
    for (u32 met = warp.met; met != 0; met &= met - 1) {
        Meeting& it = warp.meetings[__builtin_ctz(met)];
        // Who waits for this lane cannot come here; others may still meet among themselves before they do.
        if (it.mask != mask && (it.mask & bit) && (it.arrived & mask)) stop("lanes meet with different masks");
        if (it.mask == mask) meeting = &it;
    }
    if (meeting == nullptr) {
        const u32 place = (u32)__builtin_ctz(~warp.met);
        if (place >= MEETINGS) stop("too many masks at once");
        meeting = &warp.meetings[place];
        *meeting = Meeting{mask, 0, line, what, file};
        warp.met |= 1u << place;
    }
    if (meeting->what != what || meeting->line != line || !is_same(meeting->file, file)) stop("lanes of a warp meet in different calls");
    lane->value = value;
    lane->argument = argument;
    meeting->arrived |= bit;
    if (meeting->arrived != mask) {
        wait(AT_MEETING);
        return lane->result;
    }
    const u32 number = lane->thread.x / 32;
    Lane* lanes = running->lanes + number * 32;
    const u64 all = votes(lanes, *meeting);
    for (u32 left = mask; left != 0; left &= left - 1) {
        const u32 i = (u32)__builtin_ctz(left);
        lanes[i].result = what == SYNC || what == BALLOT ? all : shuffled(lanes, *meeting, i);
        lanes[i].state = READY;
    }
    make_ready(*running, number, mask);
    warp.met &= ~(1u << (meeting - warp.meetings));
    wait(READY);
    return lane->result;
}

// --- Which lane runs -----------------------------------------------------------------------------------------------------------

// An order of 32 things: i -> a * i + b, with a odd.
struct Order {
    u32 a, b;
    // Of the bits that are set, of which there is one, that which comes first.
    u32 first(u32 bits) const {
        // Of many, one of the first few things is mostly among them; few are looked at one by one.
        u32 at = b % 32;
        for (u32 i = 0; i < 4; ++i, at = (at + a) % 32)
            if (bits >> at & 1) return at;
        // a * (2 - a * a) is 1 / a: a is so for the lowest 3 bits already.
        const u32 inverse = a * (2 - a * a);
        u32 least = 31;
        for (; bits != 0; bits &= bits - 1) {
            const u32 i = ((u32)__builtin_ctz(bits) - b) * inverse % 32;
            least = i < least ? i : least;
        }
        return (a * least + b) % 32;
    }
};
static Order draw() {
    const u32 a = (u32)random_word() | 1;
    return Order{a, (u32)random_word()};
}

static void body() {
    entry();
    wait(EXITED);
}

static void swap_in(u32 number) {
    Block* next = &grid[number];
    if (next == running) return;
    shared = next->shared;
    dynamic = reinterpret_cast<u64*>(next->dynamic);
    running = next;
    block.x = number;
}

static void give_turn(bool idle) {
    if (options->turn != nullptr) virtual_now = options->turn(options->context, idle);
    else if (idle) sched_yield();
}

// Memory that launches use one after the other. What one leaves there the next finds: nobody has cleared it.
struct Room {
    char* at;
    size_t bytes;
    // Whether there is room for so many bytes.
    bool holds(size_t wanted) {
        if (wanted <= bytes) return true;
        give_back();
        void* memory = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return false;
        at = static_cast<char*>(memory);
        bytes = wanted;
        // Lanes take turns at their stacks: one entry for all of them in the processor's table of pages.
        madvise(memory, wanted, MADV_HUGEPAGE);
        return true;
    }
    void give_back() {
        if (bytes != 0) munmap(at, bytes);
        bytes = 0;
    }
};
static Room stacks, shared_memory;
__attribute__((destructor)) static void give_back() {
    stacks.give_back();
    shared_memory.give_back();
}

// What is between these places of a block's memory: nobody has cleared it.
static void spoil(const Block& it, char* memory, u32 from, u32 to) {
    for (u32 i = from; i < to; i += sizeof(u64)) {
        const u64 word = (it.garbage + i) * 6364136223846793005ull, mixed = word ^ word >> 32;
        std::memcpy(memory + i, &mixed, sizeof mixed);
    }
}

static u32 allotted;
static u32 rounded(u64 bytes) { return (u32)((bytes + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN); }

u32 allot(u64 bytes) {
    const u32 place = allotted;
    if (bytes > MAX_SHARED - place) stop("more shared memory than there is room for");
    allotted += rounded(bytes);
    for (u32 b = 0; b < blocks.x; ++b) spoil(grid[b], grid[b].shared, place, allotted);
    return place;
}

static char* stack_of(u32 block, u32 lane) { return stacks.at + (size_t)(block * threads.x + lane) * (STACK + STAGGER); }

static void set_up() {
    for (u32 b = 0; b < blocks.x; ++b) {
        Block& it = grid[b];
        it.live = threads.x;
        it.at_barrier = it.barriers = it.late_count = 0;
        it.ready = it.paused = 0;
        it.shared = shared_memory.at + (size_t)b * (MAX_SHARED + MAX_DYNAMIC);
        it.dynamic = it.shared + MAX_SHARED;
        it.garbage = random_word();
        spoil(it, it.shared, 0, allotted);
        spoil(it, it.dynamic, 0, rounded(options->shared_bytes));
        for (u32 i = 0; i < threads.x; i += 32) {
            Warp& warp = it.warps[i / 32];
            warp.ready = warp.paused = warp.met = 0;
            warp.exited = ~lanes_of(threads.x - i);
            make_ready(it, i / 32, ~warp.exited);
        }
        for (u32 i = 0; i < threads.x; ++i) {
            char* stack = stack_of(b, i);
            *reinterpret_cast<u64*>(stack) = CANARY;
            it.lanes[i] = Lane{};
            it.lanes[i].thread.x = i;
            begin_lane(it.lanes[i], stack, body);
        }
    }
}

// Lanes that run when no other lane is ready, so that everybody else is as far ahead of them as can be. What counts on a barrier that is not
// there, or on an atomic that is none, shows best like this.
struct Held {
    u32 block, warps, lanes;
    bool holds(u32 number) const { return block == number; }
    // The lanes of a warp of its block that are not held.
    u32 free(const Block& it, u32 warp) const { return it.warps[warp].ready & ~(warps >> warp & 1 ? lanes : 0); }
};
constexpr u32 NO_BLOCK = ~0u;

// Who is held in a launch: a warp, a lane or a block, from the begin to the end or until somebody else is drawn; nobody, where that is not
// asked for. Drawn apart from all else that a seed decides.
struct Holding {
    u64 state;
    u32 lasts;
    Held held;

    u64 word() {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return state >> 32 ^ state >> 56;
    }
    void draw_held() {
        const u32 number = (u32)word() % blocks.x, of = (u32)word() % threads.x, kind = (u32)word() % 3;
        const u32 warp = kind == 2 ? FULL : 1u << of / 32;
        held = Held{number, warp, kind == 1 ? 1u << of % 32 : FULL};
    }
    Holding(u64 seed, bool holds) : state(seed ^ 0xd6e8feb86659fd93ull), lasts(NEVER), held{NO_BLOCK, 0, 0} {
        if (!holds) return;
        constexpr u32 LASTS[] = {64, 512, 4096, NEVER};
        word();
        lasts = LASTS[word() % 4];
        draw_held();
    }
    void step(u64 steps) {
        if (lasts != NEVER && steps % lasts == 0) draw_held();
    }
};

// The next ready lane of the block in these orders; null if there is none but those that are held.
static Lane* next_ready(Block& it, const Order& warps, const Order& lanes, const Held* held) {
    u32 ready = it.ready;
    for (u32 left = held == nullptr ? 0 : ready & held->warps; left != 0; left &= left - 1) {
        const u32 warp = (u32)__builtin_ctz(left);
        if (held->free(it, warp) == 0) ready &= ~(1u << warp);
    }
    if (ready == 0) return nullptr;
    const u32 warp = warps.first(ready);
    return &it.lanes[warp * 32 + lanes.first(held == nullptr ? it.warps[warp].ready : held->free(it, warp))];
}

static bool wake_paused(Block& it) {
    const bool any = it.paused != 0;
    for (; it.paused != 0; it.paused &= it.paused - 1) {
        const u32 number = (u32)__builtin_ctz(it.paused);
        Warp& warp = it.warps[number];
        for (u32 lanes = warp.paused; lanes != 0; lanes &= lanes - 1) it.lanes[number * 32 + (u32)__builtin_ctz(lanes)].state = READY;
        make_ready(it, number, warp.paused);
        warp.paused = 0;
    }
    return any;
}

static void schedule() {
    // How long an order of lanes, of warps and of blocks lasts. The longest lets one lane fall behind for good.
    constexpr u32 LASTS[] = {1, 8, 128, 4096, NEVER};
    const u32 lanes_last = LASTS[random_word() % 5], warps_last = LASTS[random_word() % 5], blocks_last = LASTS[1 + random_word() % 4];
    Order lanes = draw(), warps = draw();
    u32 current = (u32)(random_word() % blocks.x), left = blocks.x;
    const u32 resident = options->resident != 0 && options->resident < blocks.x ? options->resident : blocks.x;
    const u32 shift = resident < blocks.x ? (u32)(random_word() % blocks.x) : 0;
    Holding holding(options->seed, options->holds != 0);
    const Held& held = holding.held;
    const auto may_begin = [&](u32 number) { return resident == blocks.x || (number + shift) % blocks.x < resident + (blocks.x - left); };
    const u64 began = spent();
    for (u64 steps = 0; left != 0 && !failed; ++steps) {
        if (one_in(lanes_last)) lanes = draw();
        if (one_in(warps_last)) warps = draw();
        if (one_in(preempted ? 4 : blocks_last)) current = (u32)(random_word() % blocks.x);
        preempted = false;
        holding.step(steps);
        if (steps % 32 == 0) give_turn(false);
        if (steps % 1024 == 0 && spent() - began > options->limit_ns) {
            swap_in(current);
            return fail("divergence deadlock: lanes spin, and no end comes");
        }
        Lane* next = nullptr;
        for (u32 i = 0; i < blocks.x && next == nullptr; ++i) {
            const u32 number = current + i < blocks.x ? current + i : current + i - blocks.x;
            if (grid[number].ready == 0 || !may_begin(number)) continue;
            next = next_ready(grid[number], warps, lanes, held.holds(number) ? &held : nullptr);
            if (next != nullptr) current = number;
        }
        if (next == nullptr && held.block < blocks.x && grid[held.block].ready != 0 && may_begin(held.block)) {
            current = held.block;
            next = next_ready(grid[current], warps, lanes, nullptr);
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
        const char* stack = stack_of(current, lane->thread.x);
        if (is_off_its_stack(*lane, stack)) return fail("a stack overflowed");
        if (lane->state != EXITED) continue;
        if (*reinterpret_cast<const u64*>(stack) != CANARY) return fail("a stack overflowed");
        if (--running->live == 0) {
            release(true);
            --left;
        }
        if (running->at_barrier != 0) return fail("a lane exits while others wait at a barrier");
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

// Runs a kernel to its end: 0, or 1 and a message that says what its lanes did wrong.
extern "C" __attribute__((visibility("default"))) int simt_run(const char* kernel, const void* parameters, u32 grid, u32 block,
                                                              const simt::Options* options, char* message, u64 message_bytes) {
    using namespace simt;
    simt::message = message;
    simt::message_bytes = message_bytes;
    simt::options = options;
    simt::parameters = parameters;
    how = options->how;
    entry = kernel_named(kernel);
    if (entry == nullptr || grid == 0 || grid > MAX_BLOCKS || block == 0 || block > MAX_LANES ||
        options->shared_bytes > MAX_DYNAMIC) {
        std::snprintf(message, message_bytes, "%s with %u blocks of %u lanes cannot be launched here", kernel, grid, block);
        return 1;
    }
    blocks.x = grid;
    threads.x = block;
    random_state = options->seed;
    failed = false;
    running = nullptr;
    if (!stacks.holds((size_t)grid * block * (STACK + STAGGER)) || !shared_memory.holds((size_t)grid * (MAX_SHARED + MAX_DYNAMIC))) {
        std::snprintf(message, message_bytes, "no memory for the stacks of %u lanes", grid * block);
        return 1;
    }
    set_up();
    give_turn(false);
    schedule();
    return failed;
}
