/* SPDX-License-Identifier: Apache-2.0 */
#include "base/histogram.h"

const double histogram_bounds[HISTOGRAM_BOUNDS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                   0.5,   1,      2.5,   5,    10,    30,   60};

void histogram_add(struct histogram *h, double seconds)
{
    unsigned i = 0;
    while (i < HISTOGRAM_BOUNDS && !(seconds <= histogram_bounds[i]))
        i++;
    h->counts[i]++;
    h->sum += seconds;
}

uint64_t histogram_total(const struct histogram *h)
{
    uint64_t n = 0;
    for (unsigned i = 0; i <= HISTOGRAM_BOUNDS; i++)
        n += h->counts[i];
    return n;
}
