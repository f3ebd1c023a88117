/* SPDX-License-Identifier: Apache-2.0 */
/* slowest.h - finds the slowest handler of a thread's event loop, for the log line about a slow iteration.
 *
 * A handler names itself with HANDLER() at its start. The time of a named inner handler is not charged to the outer
 * handler. Code outside handlers is not counted. */
#ifndef TITAN_BASE_SLOWEST_H
#define TITAN_BASE_SLOWEST_H

#include <stdint.h>

#include "base/cleanup.h"

struct slowest_handler {
    const char *name;
    int64_t start_ns, others_ns; /* others_ns: time of the enclosing handler spent in inner handlers so far */
};

struct slowest {
    const char *name; /* "none" when no handler has run */
    int64_t ns;
};

/* Charges the rest of the scope to the handler called `name`, a static text. Use it once per scope. */
#define HANDLER(name) _cleanup_(slowest_end) struct slowest_handler handler_ = slowest_begin(name)

struct slowest_handler slowest_begin(const char *name);
void slowest_end(struct slowest_handler *h);

/* This thread's longest handler that ended since the last call. */
struct slowest slowest_take(void);

#endif
