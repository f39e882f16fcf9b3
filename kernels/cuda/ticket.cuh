// What a launch tells the host: its ticket, word by word.
#pragma once
#include "bags.cuh"

// What word number `index` of a ticket adds to the ticket's check, the two halves of which are summed apart. `check_of` in src/abi.rs does the same.
DEVICE u64 check_part(u32 index, u64 word) { return word * ((2 * index + 1) * 0x9e3779b97f4a7c15ull); }

// Indices of words of a ticket.
constexpr u32 TICKET_COUNTERS = 3, TICKET_BEGAN = TICKET_COUNTERS + sizeof(Counters) / sizeof(u64);
constexpr u32 TICKET_ENDED = TICKET_BEGAN + 3, TICKET_LAUNCH = TICKET_ENDED + 1, TICKET_GENERATION = TICKET_LAUNCH + 1;
constexpr u32 TICKET_MISSING = TICKET_GENERATION + 1, TICKET_FAILURES = TICKET_MISSING + 1, TICKET_CHECK = TICKET_FAILURES + 1;
constexpr u32 TICKET_FAILED = TICKET_COUNTERS + 6, TICKET_FIRST_MISSING = TICKET_BEGAN - 1;
static_assert(TICKET_CHECK + 1 == sizeof(Ticket) / sizeof(u64) && TICKET_CHECK < 32, "a word a lane");

// The words of the launch's ticket.
DEVICE u64* ticket_words(const Lookup& lookup) { return reinterpret_cast<u64*>(at<Ticket>(lookup.slot.tickets) + lookup.slot.ticket); }

// What GPU memory has of the launch's ticket.
DEVICE TicketState& ticket_state(const Lookup& lookup) { return at<TicketState>(lookup.slot.counts)[lookup.slot.ticket]; }

// The first 16 bytes of TicketState, as they were before the launch that runs. Nobody stores them before the last block of the launch does.
struct alignas(16) CountsBefore {
    u64 launches;
    u32 failures;
    u32 admitted;
};

DEVICE const CountsBefore& counts_before(const Lookup& lookup) { return *reinterpret_cast<const CountsBefore*>(&ticket_state(lookup)); }

// By one warp, whose lane i has word i of the ticket of a launch that has ended: in lane TICKET_FAILURES the word becomes how many launches of the ticket
// have failed with this one; `before`: without it.
DEVICE u64 count_failure(const Lookup& lookup, u64 word, u32 before) {
    const u32 lane = threadIdx.x;
    const bool is_failure = lane == 1 ? word >> 32 != 0 : lane == TICKET_FAILED ? word != 0 : lane == TICKET_FIRST_MISSING && (word & MISSING_IS_ERROR) != 0;
    const bool failed = __ballot_sync(FULL, is_failure) != 0;
    if (lane != TICKET_FAILURES) return word;
    if (failed) ticket_state(lookup).failures = before + 1;
    return before + failed;
}

// By one warp: stores the ticket's words and their check; lane i has word i. `times`: all four times are stored, else only the last.
// `whole`: the sequence number is stored among the other words, in no order, and readers go by the check. The caller has fenced what came before.
DEVICE void store_words(const Lookup& lookup, u64 launches, u64 word, bool times, bool whole) {
    const u32 lane = threadIdx.x;
    const bool is_told = lane < TICKET_BEGAN || (lane >= TICKET_ENDED && lane < TICKET_CHECK);
    if (lane == 0) word = launches;
    const u64 part = is_told ? check_part(lane, word) : 0;
    const u64 check = (u64)__reduce_add_sync(FULL, (u32)(part >> 32)) << 32 | __reduce_add_sync(FULL, (u32)part);
    if (lane == TICKET_CHECK) word = check;
    if (lane <= TICKET_CHECK && (lane > 0 || whole) && (times || is_told || lane == TICKET_CHECK)) store_relaxed(ticket_words(lookup) + lane, word);
    __syncwarp();
}

// The first missing id that the launch reports; 0: there is none. `first_missing`: Counters.first_missing.
DEVICE u64 missing_id(const Lookup& lookup, u64 first_missing) { return first_missing != 0 ? id_at(lookup.batch.ids, lookup.batch.id_type, ~(first_missing | MISSING_IS_ERROR)) : 0; }

// By one warp, after everything else: stores the report of the launch, a word a lane, so that the loads wait for memory once.
// `times`: the launch has a number, and the slot has its times; else the launch has no number, and the ticket has the first three times.
template <bool RICH> DEVICE void report(const Lookup& lookup, const SlotState& slot, const CountsBefore& before, bool times) {
    u32 lane = threadIdx.x;
    u64 word = 0;
    if (lane == 1) word = OUTCOME_DONE | (u64)load_relaxed(&slot.flaws) << 32;
    else if (lane == 2) word = slot.gate_was_closed | (u64)load_relaxed(&slot.faults) << 32;
    else if (lane < TICKET_COUNTERS) word = 0;
    else if (lane < TICKET_BEGAN) word = load_relaxed(reinterpret_cast<const u64*>(&slot.counters) + (lane - TICKET_COUNTERS));
    else if (lane == TICKET_BEGAN) word = slot.began;
    else if (lane == TICKET_BEGAN + 1) word = slot.prepared;
    else if (lane == TICKET_BEGAN + 2) word = slot.fetched;
    else if (lane == TICKET_ENDED) word = now();
    else if (lane == TICKET_LAUNCH) word = times ? slot.launch : 0;
    else if (lane == TICKET_GENERATION) word = slot.generation;
    else if (RICH && lane == TICKET_MISSING) word = lookup.output.kept_mask != 0 ? slot.missing_id : missing_id(lookup, load_relaxed(&slot.counters.first_missing));
    word = count_failure(lookup, word, before.failures);
    store_words(lookup, before.launches + 1, word, times, false);
}
