/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/device/shared_peak.h"

#include <stdlib.h>

#include "base/cleanup.h"

struct peak_claim peak_claim_of(const struct device_info *info, enum dtype dt)
{
    /* 53 bits: exact as a double */
    return (struct peak_claim){
        .hardware = (double)(info->hardware >> 11), .share = info->share, .peak = device_peak(info, dt)};
}

double peak_each(const struct device_info *info, enum dtype dt, int n)
{
    titan_assert(n > 0);
    return device_peak(info, dt) / MAX(1, n * info->share);
}

static int by_hardware(const void *x, const void *y)
{
    const struct peak_claim *a = x, *b = y;
    return (a->hardware > b->hardware) - (a->hardware < b->hardware);
}

double peak_together(struct peak_claim *claims, int n)
{
    double sum = 0;

    titan_assert(n > 0);
    qsort(claims, (size_t)n, sizeof *claims, by_hardware);
    for (int i = 0; i < n;) {
        const double hardware = claims[i].hardware;
        double peak = 0, share = 0;
        do { /* runs at least once: another process may claim a `hardware` that is NaN */
            if (!(claims[i].peak > 0))
                return 0;
            peak += claims[i].peak;
            share += claims[i].share;
        } while (++i < n && claims[i].hardware == hardware);
        sum += peak / MAX(1, share);
    }
    return sum;
}
