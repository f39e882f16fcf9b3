/* warprow_torch.h: what a C++ program calls in the library of operators, libwarprow_torch.so, beside the models that use them.
 *
 * The program loads that library, by dlopen or by linking with it, before it loads a model. docs/python.md has the rules. A function
 * whose value is a number returns 0, or another number if it failed; then warprow_torch_message tells. No function throws. */
#ifndef WARPROW_TORCH_H
#define WARPROW_TORCH_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opens the drive `to` wherever a model carries the address `from`, of a machine where it was compiled. For stores that are not open
 * yet. Any thread may call it. */
int32_t warprow_torch_rename_drive(const char *from, const char *to);

/* Waits up to `patience_ms` milliseconds for all look-ups on GPUs that no graph has, and fails with what befell one: ids that a table
 * lacks, or rows that could not be read. On the host a look-up fails by itself. Any thread may call it. */
int32_t warprow_torch_check(uint64_t patience_ms);

/* Starts queues of drives anew that take no commands, after a replay of a CUDA graph met a drive that failed: call it between two
 * steps, behind warprow_torch_check. `recovered`, if it is not NULL, gets 1 if there was anything to do, else 0. */
int32_t warprow_torch_recover(int32_t *recovered);

/* Closes the stores that models have opened: their drives are free for others when this returns. Who calls a model again opens its
 * store again. */
int32_t warprow_torch_close(void);

/* What went wrong in this thread's latest call that failed: a function of this header, or an operator of a model that was run. (What
 * runs models may throw an exception that does not have the text.) Valid until the thread's next call. */
const char *warprow_torch_message(void);

#ifdef __cplusplus
}
#endif

#endif
