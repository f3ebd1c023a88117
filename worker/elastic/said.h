/* SPDX-License-Identifier: Apache-2.0 */
/* said.h - numbers and words that ranks tell each other in doubles: are they in range? Asked of every one, where it has
 * come in and before it counts, indexes or becomes an integer. */
#ifndef TITAN_WORKER_ELASTIC_SAID_H
#define TITAN_WORKER_ELASTIC_SAID_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define SAID_EXACT ((double)(INT64_C(1) << 53)) /* whole numbers up to it are exact */

struct said {
    const char *name;
    double value, least, most;
};

/* TITAN_ECONFLICT: one is not whole, or not in its range; the message names it and the rank. about: begins it. */
titan_status said_check(const char *about, int rank, const struct said *said, size_t n,
                        struct titan_error *err) TITAN_MUST_USE;
/* The same of words that do not end in their array, or are missing where they are needed. */
titan_status said_check_words(const char *about, int rank, const char *name, const char *words, size_t size,
                              bool needed, struct titan_error *err) TITAN_MUST_USE;

#endif
