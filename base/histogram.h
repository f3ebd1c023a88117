/* SPDX-License-Identifier: Apache-2.0 */
/* histogram.h - counts of durations by size, from 1 ms to a minute, as Prometheus takes them. Not thread-safe. */
#ifndef TITAN_BASE_HISTOGRAM_H
#define TITAN_BASE_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BOUNDS 15

/* Upper ends of the buckets in seconds, ascending. */
extern const double histogram_bounds[HISTOGRAM_BOUNDS];

struct histogram {
    uint64_t counts[HISTOGRAM_BOUNDS + 1]; /* of one bucket alone; the last one is for longer durations */
    double sum;                            /* seconds */
};

void histogram_add(struct histogram *h, double seconds);
uint64_t histogram_total(const struct histogram *h); /* number of durations */

#endif
