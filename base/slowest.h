/* SPDX-License-Identifier: Apache-2.0 */
/* slowest.h - which handler of a thread's event loop took longest: for the line that says that an iteration did.
 *
 * A handler names itself with HANDLER() at its start. One that calls another that has a name is not charged with the
 * other's time. What has no name is in no sum. */
#ifndef TITAN_BASE_SLOWEST_H
#define TITAN_BASE_SLOWEST_H

#include <stdint.h>

#include "base/cleanup.h"

struct slowest_handler {
    const char *name;
    int64_t start_ns, others_ns; /* others_ns: of the handler around this one, spent in others so far */
};

struct slowest {
    const char *name; /* "none" where no handler has run */
    int64_t ns;
};

/* The rest of the scope is the handler name, text that stays. Once in a scope. */
#define HANDLER(name) _cleanup_(slowest_end) struct slowest_handler handler_ = slowest_begin(name)

struct slowest_handler slowest_begin(const char *name);
void slowest_end(struct slowest_handler *h);

/* The longest one of this thread that has ended since the last call. */
struct slowest slowest_take(void);

#endif
