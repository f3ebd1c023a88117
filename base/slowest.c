/* SPDX-License-Identifier: Apache-2.0 */
#include "base/slowest.h"

#include <stddef.h>

#include "base/clock.h"
#include "base/log.h"

static _Thread_local struct slowest slowest;
static _Thread_local int64_t others_ns; /* time that the running handler has spent in inner handlers */

struct slowest_handler slowest_begin(const char *name)
{
    titan_assert(name);
    struct slowest_handler h = {.name = name, .start_ns = clock_mono_ns(), .others_ns = others_ns};
    others_ns = 0;
    return h;
}

void slowest_end(struct slowest_handler *h)
{
    const int64_t all_ns = clock_mono_ns() - h->start_ns, own_ns = all_ns - others_ns;
    if (!slowest.name || own_ns > slowest.ns)
        slowest = (struct slowest){h->name, own_ns};
    others_ns = h->others_ns + all_ns;
}

struct slowest slowest_take(void)
{
    const struct slowest last = slowest;
    slowest = (struct slowest){0};
    return last.name ? last : (struct slowest){"none", 0};
}
