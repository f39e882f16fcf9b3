// Other tables for a plan whose look-ups go on: descriptions are replaced between launches.
#pragma once
#include "prepare.cuh"

constexpr u32 ADOPT_THREADS = 64;

// Block i waits until no launch reads the description of state i, and replaces it; launches that come meanwhile wait for that.
// grid: states. Traffic: the description twice, for each.
KERNEL __launch_bounds__(ADOPT_THREADS) warprow_adopt(const Adoption p) {
    SHARED u32 taken;
    SlotState& slot = *at<SlotState>(p.states + blockIdx.x * p.stride);
    if (threadIdx.x == 0) {
        const u64 end = now() + p.timeout_ns;
        while ((taken = atomicCAS(&slot.lease, 0u, LEASE_ADOPTING) == 0) == 0 && now() < end) pause(ADOPT_PAUSE);
        // The launch before gave the lease back behind a release.
        fence_gpu();
    }
    __syncthreads();
    u32* result = at<u32>(p.results) + blockIdx.x;
    if (!taken) {
        if (threadIdx.x == 0) store_relaxed(result, (u32)ADOPTED_BUSY);
        return;
    }
    const uint4* from = at<const uint4>(p.source);
    uint4* to = at<uint4>(p.states + blockIdx.x * p.stride + p.place);
    for (u64 i = threadIdx.x; i < p.bytes / 16; i += ADOPT_THREADS) to[i] = from[i];
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (p.bytes != 0) slot.generation = p.generation;
    fence_system();
    atomicAnd(&slot.lease, ~LEASE_ADOPTING);
    store_relaxed(result, (u32)ADOPTED_DONE);
}
