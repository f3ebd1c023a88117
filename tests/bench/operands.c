/* SPDX-License-Identifier: Apache-2.0 */
/* operands.so - preloaded into bench_ops: large blocks of calloc() hold random numbers.
 *
 * Trees from before bench_ops wrote its operands measure on pages that were never written: the kernel shows one page of
 * zeros for all of them, which stays in the first cache. With this both trees of `make turns` read from memory. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum { LARGE = 1 << 20 };

extern void *__libc_calloc(size_t n, size_t size);

/* Between 0.125 and 0.5 as fp32 and as bf16: also fit for a second moment. */
void *calloc(size_t n, size_t size)
{
    uint32_t *const p = __libc_calloc(n, size);
    uint64_t random = 1;

    if (!p || n == 0 || size < LARGE / n)
        return p;
    for (size_t i = 0; i < n * size / sizeof *p; i++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        p[i] = ((uint32_t)(random >> 32) & 0x01ff01ffu) | 0x3e003e00u;
    }
    return p;
}
