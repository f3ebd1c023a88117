/* SPDX-License-Identifier: Apache-2.0 */
/* sets.c - see sets.h. */
#include "tests/support/sets.h"

#include <stdlib.h>
#include <string.h>

#ifdef TITAN_DEBUG
#define SLOWER 4
#else
#define SLOWER 1
#endif

static bool in_set(const char *name)
{
    const char *set = getenv("TITAN_TEST_SET");
    return set && strcmp(set, name) == 0;
}

bool in_fast_set(void)
{
    return in_set("fast");
}

bool in_slow_set(void)
{
    return in_set("slow");
}

long sliced(long few, long all)
{
    if (!in_fast_set())
        return all;
    return few / SLOWER > 0 ? few / SLOWER : 1;
}
