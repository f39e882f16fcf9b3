// The kernels, and their names. The scheduler is a translation unit of its own, simt.cpp, which is optimised even where kernels are not.
#include "simt.h"

#include "lookup.cu"

// The parameter of the kernel that runs.
template <class T> static const T& parameter() { return *static_cast<const T*>(simt::parameters); }

struct Named {
    const char* name;
    void (*call)();
};
#define NAMED(kernel) {#kernel, [] { kernel(parameter<Lookup>()); }}
#define NAMED_HOW(kernel) {#kernel, [] { kernel(parameter<Lookup>(), simt::how); }}
static const Named KERNELS[] = {
    NAMED(warprow_sample), NAMED(warprow_begin), NAMED(warprow_mark),  NAMED(warprow_count),  NAMED(warprow_place),
    NAMED(warprow_prepare), NAMED(warprow_finish), NAMED(warprow_rest), NAMED(warprow_mask),
    NAMED(warprow_direct_rows), NAMED(warprow_direct_bags), NAMED(warprow_direct_one),
    NAMED(warprow_direct_rich_rows), NAMED(warprow_direct_rich_bags), NAMED(warprow_direct_rich_one),
    NAMED(warprow_direct_updated_rows), NAMED(warprow_direct_updated_bags), NAMED(warprow_mark_updated), NAMED(warprow_prepare_updated),
    NAMED(warprow_prepare_cached), NAMED(warprow_mark_cached), NAMED(warprow_hash_cached), NAMED(warprow_list_cached),
    NAMED(warprow_hash), NAMED(warprow_hash_updated), NAMED(warprow_list), NAMED(warprow_list_updated), NAMED(warprow_rank), NAMED(warprow_number),
    NAMED_HOW(warprow_few),
    NAMED_HOW(warprow_few_updated),
    NAMED_HOW(warprow_fetch),
    NAMED_HOW(warprow_sweep),
    {"warprow_adopt", [] { warprow_adopt(parameter<Adoption>()); }},
    {"warprow_test_ring", [] { warprow_test_ring(parameter<RingReads>()); }},
    {"warprow_ngrams", [] { warprow_ngrams(parameter<NgramTokens>()); }},
    {"warprow_pin_cache", [] { warprow_pin_cache(parameter<CachePin>()); }},
    {"warprow_sweep_cache", [] { warprow_sweep_cache(parameter<CacheSweep>()); }},
    {"warprow_update", [] { warprow_update(parameter<Update>()); }},
    NAMED_HOW(warprow_expand_rows),
    NAMED_HOW(warprow_expand_bags),
    NAMED_HOW(warprow_expand_rich_rows),
    NAMED_HOW(warprow_expand_cached_rows),
    NAMED_HOW(warprow_expand_cached_bags),
    NAMED(warprow_expand_unwritten),
    NAMED_HOW(warprow_expand_rich_bags),
};

void (*simt::kernel_named(const char* name))() {
    for (const Named& it : KERNELS)
        if (std::strcmp(it.name, name) == 0) return it.call;
    return nullptr;
}
