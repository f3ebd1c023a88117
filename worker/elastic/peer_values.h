/* SPDX-License-Identifier: Apache-2.0 */
/* peer_values.h - range checks for numbers and strings that ranks send each other. Each value is checked when it is
 * received: before it is counted, used as an index or converted to an integer. */
#ifndef TITAN_WORKER_ELASTIC_PEER_VALUES_H
#define TITAN_WORKER_ELASTIC_PEER_VALUES_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/comm/comm.h"

#define PEER_VALUE_EXACT ((double)(INT64_C(1) << 53)) /* whole numbers are exact up to here */

/* Ranks that tell each other values: the members of a communicator. */
struct peer_ranks {
    const struct device_handle *device;
    const struct comm_ops *ops;
    struct comm *comm; /* NULL = alone */
    int n;
    struct stream *s;
};

/* Gathers `bytes` of each rank, in rank order. Both sides are in host memory; the call waits for the stream.
 * Collective. */
titan_status peer_values_gather(const struct peer_ranks *ranks, const void *mine, size_t bytes, void *ret_all,
                                struct titan_error *err) TITAN_MUST_USE;

#define PEER_WORDS 384 /* bytes for the words of an error */

struct peer_value {
    const char *name;
    double value, least, most;
};

/* TITAN_ECONFLICT: a value is not whole or out of range; the message names the value and the rank. about: start of the
 * message. */
titan_status peer_values_check(const char *about, int rank, const struct peer_value *reported, size_t n,
                               struct titan_error *err) TITAN_MUST_USE;
struct peer_words {
    const char *name, *words;
    size_t size; /* of the array */
    bool needed;
};
/* TITAN_ECONFLICT: the words do not end in their array, or needed words are empty. */
titan_status peer_values_check_words(const char *about, int rank, const struct peer_words *reported,
                                     struct titan_error *err) TITAN_MUST_USE;

#endif
