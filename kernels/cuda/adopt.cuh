// The kernel that gives a plan other tables while its look-ups go on: it replaces the description of each slot between two launches.
#pragma once
#include "admit.cuh"

constexpr u32 ADOPT_THREADS = 64;

// Reads: the new description.
// Writes: block i takes the lease of state i, so that no launch reads its description, replaces the description, gives the lease back and stores the
// result. Launches that begin meanwhile wait. A block that does not get the lease in time stores ADOPTED_BUSY and changes nothing.
// Relies on: every state is zero or was left by launches that ended or will end. grid: a block for each state.
KERNEL __launch_bounds__(ADOPT_THREADS) warprow_adopt(const Adoption adoption) {
    SHARED(u32, taken);
    SlotState& slot = *at<SlotState>(adoption.states + blockIdx.x * adoption.stride);
    if (threadIdx.x == 0) {
        const u64 end = now() + adoption.timeout_ns;
        while ((taken = atomicCAS(&slot.lease, 0u, LEASE_ADOPTING) == 0) == 0 && now() < end) pause(ADOPT_PAUSE);
        // The launch before gave the lease back behind a release.
        fence_gpu();
    }
    __syncthreads();
    u32* result = at<u32>(adoption.results) + blockIdx.x;
    if (!taken) {
        if (threadIdx.x == 0) store_relaxed(result, (u32)ADOPTED_BUSY);
        return;
    }
    const uint4* from = at<const uint4>(adoption.source);
    uint4* to = at<uint4>(adoption.states + blockIdx.x * adoption.stride + adoption.place);
    for (u64 i = threadIdx.x; i < adoption.bytes / 16; i += ADOPT_THREADS) to[i] = from[i];
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (adoption.bytes != 0) slot.generation = adoption.generation;
    fence_system();
    atomicAnd(&slot.lease, ~LEASE_ADOPTING);
    store_relaxed(result, (u32)ADOPTED_DONE);
}
