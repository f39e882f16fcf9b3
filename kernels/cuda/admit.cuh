// How a launch begins: it takes its slot's lease and passes the gate.
#pragma once
#include "cache.cuh"
#include "ticket.cuh"

constexpr u32 ADOPT_PAUSE = 200;  // nanoseconds between two looks at a lease

// Takes a slot's lease for a launch, unless another launch has it. While tables are being replaced it waits: the kernel that copies them runs already.
DEVICE bool take_lease(SlotState& slot) {
    for (;;) {
        const u32 was = atomicCAS(&slot.lease, 0u, 1u);
        if ((was & LEASE_ADOPTING) == 0) return was == 0;
        pause(ADOPT_PAUSE);
    }
}

// By one thread: tells the ticket of a launch that another launch has the lease.
DEVICE void tell_busy(const Lookup& lookup) {
    Ticket& ticket = at<Ticket>(lookup.slot.tickets)[lookup.slot.ticket];
    TicketState& counts = ticket_state(lookup);
    counts.admitted = 0;
    const u64 launches = ++counts.launches, failures = ++counts.failures;
    const u64 words[3] = {check_part(0, launches), check_part(1, OUTCOME_BUSY), check_part(TICKET_FAILURES, failures)};
    u32 high = 0, low = 0;
    for (u64 word : words) {
        high += (u32)(word >> 32);
        low += (u32)word;
    }
    store_relaxed(reinterpret_cast<u64*>(&ticket) + 1, (u64)OUTCOME_BUSY);
    store_relaxed(&ticket.failures, failures);
    store_relaxed(&ticket.check, (u64)high << 32 | low);
    store_release(&ticket.sequence, launches);
}

// By one thread, which has taken the lease: begins the launch, whose size it reads.
DEVICE void begin_launch(const Lookup& lookup, SlotState& slot) {
    // The launch before gave the lease back behind a release.
    fence_acquire();
    ++slot.launch;
    slot.began = now();
    slot.faults = 0;
    slot.uniques = 0;
    slot.dram_uniques = 0;
    slot.counters = Counters{};
    slot.size = size_of(lookup, slot.flaws);
    slot.counters.ids = slot.size.ids;
}

// By one thread: takes the lease and begins the launch. If another launch has the lease, it tells the ticket so and returns false.
DEVICE bool admit(const Lookup& lookup) {
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    if (!take_lease(slot)) {
        tell_busy(lookup);
        return false;
    }
    begin_launch(lookup, slot);
    ticket_state(lookup).admitted = ADMISSION_GRANTED;
    return true;
}

// By one thread, of a launch that was admitted: passes the gate, which is two ways across the bus.
// UPDATED: rows may be updated, so that the launch takes a snapshot of the overlay as well.
template <bool UPDATED> DEVICE void pass_gate(const Lookup& lookup) {
    SlotState& slot = *at<SlotState>(lookup.slot.state);
    // Whoever closes the gate stores `closed` and then looks at `inside`: one of the two sees the other.
    store_relaxed(gate_inside(lookup), slot.launch);
    fence_sequential();
    if (UPDATED && lookup.plan.overlay != 0) slot.snapshot = published(lookup);
    slot.gate_was_closed = load_relaxed(gate_closed(lookup));
    if (slot.gate_was_closed) store_relaxed(gate_inside(lookup), 0ull);
    // Whoever finds the gate open sees what the host did before it opened it; whoever has the snapshot sees what was updated before.
    fence_acquire();
}

// Whether the block's launch has the lease.
DEVICE u32& begin_of_block() {
    SHARED(u32, admitted);
    return admitted;
}

// Reads: the slot's lease and gate, and counts in device memory; the overlay's snapshot.
// Writes: what SlotState has of the launch, and the gate's `inside`; the ticket, if another launch has the lease; of plans with a cache, its clock and the
// launch's horizon.
// Relies on: it is the first kernel of a large look-up. One block: of one thread; of two warps in plans with a cache, so that neither the gate nor the
// clock waits for the other.
KERNEL warprow_begin(const Lookup lookup) {
    let_next_come();
    u32& admitted = begin_of_block();
    if (threadIdx.x == 0) admitted = admit(lookup);
    __syncthreads();
    if (!admitted) return;
    if (threadIdx.x == 0) pass_gate<true>(lookup);
    if (lookup.plan.cache != 0 && threadIdx.x == 32) enter_cache(lookup, *at<SlotState>(lookup.slot.state));
}
