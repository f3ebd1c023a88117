/* SPDX-License-Identifier: Apache-2.0 */
/* peer_values.h - range checks for numbers and strings that ranks send each other as doubles. Each value is checked on
 * receipt, before it counts, indexes or becomes an integer. */
#ifndef TITAN_WORKER_ELASTIC_PEER_VALUES_H
#define TITAN_WORKER_ELASTIC_PEER_VALUES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define PEER_VALUE_EXACT ((double)(INT64_C(1) << 53)) /* whole numbers are exact up to here */

struct peer_value {
    const char *name;
    double value, least, most;
};

/* TITAN_ECONFLICT: a value is not whole or out of range; the message names it and the rank. about: start of the
 * message. */
titan_status peer_values_check(const char *about, int rank, const struct peer_value *reported, size_t n,
                               struct titan_error *err) TITAN_MUST_USE;
/* The same for strings: unterminated in their array, or empty though needed. */
titan_status peer_values_check_words(const char *about, int rank, const char *name, const char *words, size_t size,
                                     bool needed, struct titan_error *err) TITAN_MUST_USE;

#endif
