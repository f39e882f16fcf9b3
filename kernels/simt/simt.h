// A CUDA thread block on a CPU, for tests: what the kernels use of the language and its built-ins. simt.cpp has the scheduler,
// kernels.cpp the kernels.
//
// Each lane is a fiber; all of a grid's lanes run on one thread, in an order that a seed decides. A lane runs until it meets others
// (a barrier, a warp collective), waits (`pause`), or touches memory that others touch while a kernel runs (atomics, `load_relaxed` and
// its kin, `now`): there the scheduler may run somebody else. So a test sees missing barriers, wrong counts, lost updates between an
// atomic's load and its store, protocol errors against a real controller; and, by the compiler's checks, misaligned accesses, which an
// x86 forgives, and shifts and divisions that C++ leaves open. It does not see:
//  - fences, scopes and the order of memory accesses: all lanes share one CPU core, whose program order they see. One order is modelled:
//    stores of 16 bytes, which are those of SQ entries, reach memory only when a fence that releases them comes (`store_late`), so that a
//    doorbell before that fence is found.
//    Copies to shared memory that a lane begins and waits for later are modelled too: half of them are made only when they are waited for;
//  - races between two plain accesses with none of the above between them: a lane is not interrupted there, so that lanes of a warp
//    never run in lock step, nor half an instruction apart;
//  - spins without a yield, on plain memory: they hang (the time bound is looked at where lanes yield);
//  - anything of the hardware: occupancy, registers, caches, misaligned atomics, `st.mmio`, forward progress between blocks.
#pragma once
#include <cstring>

typedef unsigned int u32;
typedef unsigned long long u64;
#define WARPROW_FIXED_WIDTHS

// A copy for each call would run no faster here, and takes four times as long to compile.
#define DEVICE static inline
#define METHOD inline
#define APART static __attribute__((noinline))
#define KERNEL extern "C" void
#define FULL 0xffffffffu
#define __launch_bounds__(...)
// A block's variables lie in memory of its own, each at a place that is taken when a lane first comes to it.
#define SHARED(type, name, ...) \
    static const u32 place_of_##name = simt::allot(sizeof(type __VA_ARGS__)); \
    auto& name = *reinterpret_cast<type(*) __VA_ARGS__>(simt::shared + place_of_##name)
#define DYNAMIC_SHARED(name) u64* const name = simt::dynamic

// Small tiles, so that few words are many of them.
#define SORT_ITEMS 2

struct alignas(16) uint4 {
    u32 x, y, z, w;
};

namespace simt {

struct Index {
    u32 x;
};

// What a lane is about to do, and what came of it: a line of the processor's cache.
struct alignas(64) Lane {
    Index thread;
    u64 value, result;
    u32 argument;
    u32 state;
    u32 copies, groups;  // copies to shared memory that are under way, and groups of them that have ended
    const char* file;
    u32 line;
    void* top;  // of its stack, while it does not run
};

enum Collective : u32 { SYNC, BALLOT, SHUFFLE, SHUFFLE_XOR, SHUFFLE_UP };

// Hidden, for kernels and scheduler are parts of one library: no access goes through its tables.
#pragma GCC visibility push(hidden)
extern Lane* lane;
extern Index block, blocks, threads;
// The shared memory of the block that runs, and that whose size the launch decides.
extern char* shared;
extern u64* dynamic;
// A place in shared memory for so many bytes, which the caller keeps for all launches.
u32 allot(u64 bytes);
// The parameter of the kernel that runs, and the second one of those that have two.
extern const void* parameters;
extern u32 how;
// Null if there is none of that name: kernels.cpp.
void (*kernel_named(const char* name))();

// Meets the lanes of `mask` in this warp; the result is in `lane`.
u64 meet(Collective what, u32 mask, u64 value, u32 argument, const char* file, u32 line);
void barrier(const char* file, u32 line);
// Here somebody else may run.
void preempt();
#pragma GCC visibility pop

template <class T> u64 to_bits(T value) {
    u64 bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}
template <class T> T from_bits(u64 bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace simt

#define threadIdx (simt::lane->thread)
#define blockIdx simt::block
#define gridDim simt::blocks
#define blockDim simt::threads

#define SIMT_HERE const char *file = __builtin_FILE(), u32 line = __builtin_LINE()

static inline void __syncthreads(SIMT_HERE) { simt::barrier(file, line); }
static inline void __syncwarp(u32 mask = FULL, SIMT_HERE) { simt::meet(simt::SYNC, mask, 0, 0, file, line); }
static inline u32 __ballot_sync(u32 mask, bool vote, SIMT_HERE) { return (u32)simt::meet(simt::BALLOT, mask, vote, 0, file, line); }
template <class T> T __shfl_sync(u32 mask, T value, u32 from, SIMT_HERE) {
    return simt::from_bits<T>(simt::meet(simt::SHUFFLE, mask, simt::to_bits(value), from, file, line));
}
template <class T> T __shfl_xor_sync(u32 mask, T value, u32 with, SIMT_HERE) {
    return simt::from_bits<T>(simt::meet(simt::SHUFFLE_XOR, mask, simt::to_bits(value), with, file, line));
}
template <class T> T __shfl_up_sync(u32 mask, T value, u32 by, SIMT_HERE) {
    return simt::from_bits<T>(simt::meet(simt::SHUFFLE_UP, mask, simt::to_bits(value), by, file, line));
}
static inline u32 __reduce_add_sync(u32 mask, u32 value, SIMT_HERE) {
    for (u32 with = 16; with > 0; with /= 2) value += (u32)simt::meet(simt::SHUFFLE_XOR, mask, value, with, file, line);
    return value;
}

// Atomics of T with an operand that converts to it, as CUDA overloads them.
template <class T, class V> T atomicAdd(T* at, V value) { return simt::preempt(), __atomic_fetch_add(at, (T)value, __ATOMIC_RELAXED); }
template <class T, class V> T atomicSub(T* at, V value) { return simt::preempt(), __atomic_fetch_sub(at, (T)value, __ATOMIC_RELAXED); }
template <class T, class V> T atomicOr(T* at, V value) { return simt::preempt(), __atomic_fetch_or(at, (T)value, __ATOMIC_RELAXED); }
template <class T, class V> T atomicAnd(T* at, V value) { return simt::preempt(), __atomic_fetch_and(at, (T)value, __ATOMIC_RELAXED); }
template <class T, class V> T atomicExch(T* at, V value) { return simt::preempt(), __atomic_exchange_n(at, (T)value, __ATOMIC_RELAXED); }
template <class T, class V> T atomicCAS(T* at, V expected, V value) {
    simt::preempt();
    T found = (T)expected;
    __atomic_compare_exchange_n(at, &found, (T)value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return found;
}
template <class T, class V> T atomicMax(T* at, V value) {
    simt::preempt();
    T found = __atomic_load_n(at, __ATOMIC_RELAXED);
    while ((T)value > found && !__atomic_compare_exchange_n(at, &found, (T)value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return found;
}
template <class T, class V> T atomicMin(T* at, V value) {
    simt::preempt();
    T found = __atomic_load_n(at, __ATOMIC_RELAXED);
    while ((T)value < found && !__atomic_compare_exchange_n(at, &found, (T)value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return found;
}

// What tests/simt/mutants.rs puts in the place of synchronisation: an atomic in two steps, and a lane that meets nobody.
namespace torn {

template <class T, class F> T in_two_steps(T* at, F change) {
    simt::preempt();
    const T found = __atomic_load_n(at, __ATOMIC_RELAXED);
    simt::preempt();
    __atomic_store_n(at, change(found), __ATOMIC_RELAXED);
    return found;
}
template <class T, class V> T atomicAdd(T* at, V value) { return in_two_steps(at, [=](T was) { return (T)(was + (T)value); }); }
template <class T, class V> T atomicSub(T* at, V value) { return in_two_steps(at, [=](T was) { return (T)(was - (T)value); }); }
template <class T, class V> T atomicOr(T* at, V value) { return in_two_steps(at, [=](T was) { return (T)(was | (T)value); }); }
template <class T, class V> T atomicAnd(T* at, V value) { return in_two_steps(at, [=](T was) { return (T)(was & (T)value); }); }
template <class T, class V> T atomicExch(T* at, V value) { return in_two_steps(at, [=](T) { return (T)value; }); }
template <class T, class V> T atomicMin(T* at, V value) {
    return in_two_steps(at, [=](T was) { return (T)value < was ? (T)value : was; });
}
template <class T, class V> T atomicCAS(T* at, V expected, V value) {
    simt::preempt();
    const T found = __atomic_load_n(at, __ATOMIC_RELAXED);
    simt::preempt();
    if (found == (T)expected) __atomic_store_n(at, (T)value, __ATOMIC_RELAXED);
    return found;
}

static inline u32 ballot(u32, bool vote) { return vote ? 1u << simt::lane->thread.x % 32 : 0; }
template <class T> T shuffle(u32, T value, u32) { return value; }
template <class T> T sum(u32, T value) { return value; }

}  // namespace torn

static inline u64 __umul64hi(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
static inline u32 __popc(u32 bits) { return (u32)__builtin_popcount(bits); }
static inline u32 __popcll(u64 bits) { return (u32)__builtin_popcountll(bits); }
static inline u32 __ffs(u32 bits) { return (u32)__builtin_ffs((int)bits); }
static inline float __uint_as_float(u32 bits) { return simt::from_bits<float>(bits); }
static inline u32 __float_as_uint(float value) { return (u32)simt::to_bits(value); }
// One rounding each: the shim is compiled without contraction, for a target whose float arithmetic is IEEE 754's.
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline int __float2int_rn(float value) { return (int)__builtin_rintf(value); }
