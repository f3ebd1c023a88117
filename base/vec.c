/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vec.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/error.h"

enum { CAP_FIRST = 4 };

void *vec_grow(void *array, size_t *cap, size_t need, size_t size, size_t cap_max)
{
    titan_assert(need > *cap && size > 0);
    const size_t doubled = *cap > cap_max / 2 ? cap_max : MAX((size_t)CAP_FIRST, 2 * *cap);
    const size_t more = MAX(doubled, need);
    size_t bytes;
    if (need > cap_max || __builtin_mul_overflow(more, size, &bytes))
        return NULL;
    titan_assert(more >= need && more <= cap_max);
    void *grown = realloc(array, bytes);
    if (grown)
        *cap = more;
    return grown;
}
