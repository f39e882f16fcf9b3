// Ordered accesses: the only code that touches memory which a device or the host may write while a kernel runs.
//
// Scope is .sys throughout: the other side is a drive, a host thread, or another GPU. A fence of .sys scope by one thread covers
// what other threads of its block stored before a block barrier that both passed (causality order is transitive over bar.sync).
// On a host (tests) the same functions are C++ atomics; x86 is stronger than what they ask for.
#pragma once

#include "queue_abi.h"

typedef unsigned char u8;
typedef unsigned short u16;

struct Quad {
    u32 x, y, z, w;
};

struct alignas(16) WordPair {
    u64 words[2];
};

#ifdef __CUDA_ARCH__

__device__ __forceinline__ u32 load_relaxed(const u32* at) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

__device__ __forceinline__ u64 load_relaxed(const u64* at) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

// 16 bytes, aligned; each of the four words is atomic, the whole is not.
__device__ __forceinline__ Quad load_relaxed(const Quad* at) {
    Quad value;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(at)
                 : "memory");
    return value;
}

// 16 bytes, aligned; each of the two words is atomic, the whole is not.
__device__ __forceinline__ WordPair load_relaxed(const WordPair* at) {
    WordPair value;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(value.words[0]), "=l"(value.words[1]) : "l"(at) : "memory");
    return value;
}

__device__ __forceinline__ void store_relaxed(u32* at, u32 value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed(u64* at, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

// 16 bytes, aligned; each of the four words is atomic, the whole is not.
__device__ __forceinline__ void store_relaxed(Quad* at, Quad value) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

// 16 bytes, aligned: whoever looks sees all of it or nothing.
__device__ __forceinline__ void store_whole(u64* at, u64 low, u64 high) {
    asm volatile("{\n\t.reg .b128 value;\n\tmov.b128 value, {%1, %2};\n\tst.relaxed.sys.global.b128 [%0], value;\n\t}" ::"l"(at), "l"(low), "l"(high)
                 : "memory");
}

__device__ __forceinline__ void store_release(u64* at, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

// A store to a device's register: exactly one, never merged, of this width.
__device__ __forceinline__ void store_mmio(u32* at, u32 value) {
    asm volatile("st.mmio.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

// ptxas splits fences by semantics from sm_90 on; before, it accepts the spelling and emits what the hardware cannot decode.
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void fence_release() { asm volatile("fence.release.sys;" ::: "memory"); }
__device__ __forceinline__ void fence_acquire() { asm volatile("fence.acquire.sys;" ::: "memory"); }
#else
__device__ __forceinline__ void fence_release() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ __forceinline__ void fence_acquire() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
#endif
__device__ __forceinline__ void fence_sequential() { asm volatile("fence.sc.sys;" ::: "memory"); }
// Acquires what a relaxed access before saw, and releases to a relaxed store behind.
__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
// Between blocks of one GPU. What they stored before is also before what a thread that met them releases to the system.
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Nanoseconds of a clock that all SMs share; its step may be a microsecond.
__device__ __forceinline__ u64 now() {
    u64 value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
    return value;
}

// Programmatic dependent launch: blocks may be there before the kernel before has ended. Waits until it has, and what it stored is seen;
// where a kernel begins behind the one before anyway, it does nothing.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel's blocks may come when all of this one's have said so or left; they wait as above.
__device__ __forceinline__ void let_next_come() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Copies 16 bytes of global memory to shared memory, both aligned, while the thread goes on: it takes no register. They are there for this thread when
// `await_shared_copies` has returned, and for others behind a barrier after that.
__device__ __forceinline__ void begin_shared_copy(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}
// Begins to copy 16 B to shared memory, or to write 16 zeros there if nothing is `there`: then the address is not read.
__device__ __forceinline__ void begin_shared_copy(void* shared, const void* global, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(shared)), "l"(global), "r"(there ? 16u : 0u)
                 : "memory");
}
// The copies that this thread has begun since the last call are one group, which may be empty.
__device__ __forceinline__ void end_shared_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void await_shared_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Waits for all groups of this thread but the latest LEFT.
template <u32 LEFT> __device__ __forceinline__ void await_shared_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// Bytes of dynamic shared memory that the launch gave the block.
__device__ __forceinline__ u32 dynamic_shared_bytes() {
    u32 bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

// Between two looks at something that has not come.
__device__ __forceinline__ void pause(u32 nanoseconds) { __nanosleep(nanoseconds); }

#else  // The host's twin.

// Here a test's scheduler may run another lane.
void preempt();

static inline u32 load_relaxed(const u32* at) { return preempt(), __atomic_load_n(at, __ATOMIC_RELAXED); }
static inline u64 load_relaxed(const u64* at) { return preempt(), __atomic_load_n(at, __ATOMIC_RELAXED); }
static inline Quad load_relaxed(const Quad* at) {
    return Quad{load_relaxed(&at->x), load_relaxed(&at->y), load_relaxed(&at->z), load_relaxed(&at->w)};
}
static inline WordPair load_relaxed(const WordPair* at) { return WordPair{{load_relaxed(&at->words[0]), load_relaxed(&at->words[1])}}; }
static inline void store_relaxed(u32* at, u32 value) { preempt(), __atomic_store_n(at, value, __ATOMIC_RELAXED); }
static inline void store_relaxed(u64* at, u64 value) { preempt(), __atomic_store_n(at, value, __ATOMIC_RELAXED); }
// A store that a test's scheduler holds back until a fence orders it, and the fence. Entries of submission queues are stored like this.
void store_late(Quad* at, Quad value);
void release_late_stores();
static inline void store_relaxed(Quad* at, Quad value) { preempt(), store_late(at, value); }
static inline void store_whole(u64* at, u64 low, u64 high) {
    store_relaxed(at, low);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    store_relaxed(at + 1, high);
}
static inline void store_release(u64* at, u64 value) { preempt(), __atomic_store_n(at, value, __ATOMIC_RELEASE); }
static inline void store_mmio(u32* at, u32 value) { preempt(), __atomic_store_n(at, value, __ATOMIC_RELAXED); }
static inline void fence_release() { release_late_stores(), __atomic_thread_fence(__ATOMIC_RELEASE); }
static inline void fence_acquire() { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
static inline void fence_sequential() { release_late_stores(), __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void fence_system() { release_late_stores(), __atomic_thread_fence(__ATOMIC_ACQ_REL); }
static inline void fence_gpu() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
// Copies to shared memory, which a test's scheduler makes when they are waited for, and the groups that they form.
void copy_late(void* shared, const void* global);
void end_late_copies();
void make_late_copies(u32 left);
static inline void begin_shared_copy(void* shared, const void* global, bool there = true) { copy_late(shared, there ? global : nullptr); }
static inline void end_shared_copies() { end_late_copies(); }
static inline void await_shared_copies() { end_late_copies(), make_late_copies(0); }
template <u32 LEFT> static inline void await_shared_copies() { make_late_copies(LEFT); }
u32 dynamic_shared_bytes();
static inline void wait_for_previous() {}
static inline void let_next_come() {}
u64 now();
void pause(u32 nanoseconds);

#endif
