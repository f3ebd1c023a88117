/* SPDX-License-Identifier: Apache-2.0 */
/* mixture.c - see mixture.h. */
#include "worker/data/mixture.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/rng.h"

#define ROW 1024 /* samples of a row, rows of a block */

titan_status mixture_init(struct mixture *m, uint64_t seed, int n, const uint64_t *windows, const double *weights,
                          struct titan_error *err)
{
    double given[MIXTURE_MAX] = {0}, rest[MIXTURE_MAX] = {0}, sum = 0;
    uint64_t shared = 0;
    bool any = false;
    titan_assert(n >= 1 && n <= MIXTURE_MAX);
    *m = (struct mixture){.n = n, .seed = seed};
    for (int k = 0; k < n; k++)
        any = any || weights[k] != 0;
    for (int k = 0; k < n; k++) {
        titan_assert(windows[k] > 0);
        m->windows[k] = windows[k];
        given[k] = any ? weights[k] : (double)windows[k];
        if (!(given[k] > 0) || !isfinite(given[k]))
            return titan_fail(err, TITAN_EINVAL, "weight %g of source %d of the mixture: expected a number above 0",
                              given[k], k + 1);
        sum += given[k];
    }

    /* Each source's count per block is found by the method of largest remainders, so that the counts add up to exactly
     * one block. */
    titan_assert(sum > 0);
    for (int k = 0; k < n; k++) {
        const double exact = given[k] / sum * (double)MIXTURE_BLOCK;
        m->count[k] = (uint64_t)exact;
        rest[k] = exact - floor(exact);
        shared += m->count[k];
    }
    for (; shared < MIXTURE_BLOCK; shared++) {
        int most = 0;
        for (int k = 1; k < n; k++)
            most = rest[k] > rest[most] ? k : most;
        m->count[most]++;
        rest[most] -= 1;
    }
    for (int k = 0; shared > MIXTURE_BLOCK; k = (k + 1) % n) { /* corrects a division that has rounded up */
        if (m->count[k] > 1) {
            m->count[k]--;
            shared--;
        }
    }
    for (int k = 0; k < n; k++)
        if (m->count[k] == 0)
            return titan_fail(err, TITAN_EINVAL,
                              "source %d of the mixture has a weight of %.3g of all: below 1 in %" PRIu64
                              ", it would never be read",
                              k + 1, given[k] / sum, MIXTURE_BLOCK);
    return TITAN_OK;
}

static uint64_t window_of(const struct mixture *m, int k, uint64_t n)
{
    char stream[64];
    const uint64_t windows = m->windows[k], pass = n / windows;
    if (m->n == 1)
        (void)snprintf(stream, sizeof(stream), "data.pass.%" PRIu64, pass);
    else
        (void)snprintf(stream, sizeof(stream), "data.%d.pass.%" PRIu64, k, pass);
    return rng_permute(rng_key(m->seed, stream), n % windows, windows);
}

struct mixture_pick mixture_pick(const struct mixture *m, uint64_t g)
{
    char stream[48];
    uint64_t first = 0;
    int k = 0;
    titan_assert(g >= m->first);
    g -= m->first;
    if (m->n == 1)
        return (struct mixture_pick){0, window_of(m, 0, m->from[0] + g)};
    (void)snprintf(stream, sizeof(stream), "data.row.%" PRIu64, g / ROW);
    const uint64_t q = rng_permute(rng_key(m->seed, stream), g % ROW, ROW), slot = q * ROW + g / ROW % ROW;
    while (slot >= first + m->count[k]) {
        first += m->count[k++];
        titan_assert(k < m->n);
    }
    const uint64_t n = m->from[k] + g / MIXTURE_BLOCK * m->count[k] + slot - first;
    return (struct mixture_pick){k, window_of(m, k, n)};
}
