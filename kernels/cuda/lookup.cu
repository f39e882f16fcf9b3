// All kernels of a look-up, and those that update rows, replace tables, test rings and hash tokens: one translation unit. A *launch* is one run of the
// kernels of a look-up; a *key* numbers a row outside GPU memory, and is no key of a caller (docs/gpu.md).
#include "bitmap.cuh"
#include "dedupe.cuh"
#include "prepare.cuh"
#include "fetch.cuh"
#include "expand.cuh"
#include "direct.cuh"
#include "finish.cuh"
#include "prefetch.cuh"
#include "few.cuh"
#include "adopt.cuh"
#include "ring_test.cuh"
#include "ngrams.cuh"
