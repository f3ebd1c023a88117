/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vec.h"

#include <stdlib.h>

#include "base/cleanup.h"

enum { CAP_FIRST = 4 };

void *vec_grow(void *array, size_t *cap, size_t need, size_t size, size_t cap_max)
{
    const size_t doubled = *cap > cap_max / 2 ? cap_max : MAX((size_t)CAP_FIRST, 2 * *cap);
    const size_t more = MAX(doubled, need);
    size_t bytes;
    if (need > cap_max || __builtin_mul_overflow(more, size, &bytes))
        return NULL;
    void *grown = realloc(array, bytes);
    if (grown)
        *cap = more;
    return grown;
}
