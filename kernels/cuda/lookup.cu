// The look-up, as one translation unit. docs/gpu.md says how the kernels work together.
#include "prepare.cuh"
#include "fetch.cuh"
#include "expand.cuh"
#include "prefetch.cuh"
#include "adopt.cuh"
