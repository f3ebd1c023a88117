/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/epoch/attempt.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "worker/elastic/holdings.h"
#include "worker/elastic/peer_values.h"

static titan_status check(int rank, const struct attempt *a, struct titan_error *err)
{
    const struct peer_value reported[] = {
        {"failed", a->failed, 0, 1}, {"stop", a->stop, 0, 1}, {"must", a->must, 0, 1}};

    TRY(peer_values_check("checkpoint", rank, reported, ARRAY_SIZE(reported), err));
    return peer_values_check_words("checkpoint", rank, "why", a->why, sizeof a->why, a->failed != 0, err);
}

titan_status attempt_gather(const struct device_handle *device, const struct comm_ops *ops, struct comm *comm,
                            int world, const struct attempt *a, struct attempt *all, struct stream *s,
                            struct titan_error *err)
{
    titan_assert(world >= 1);
    TRY(holdings_gather_doubles(device, ops, comm, world, &a->failed, sizeof *a / sizeof(double), &all[0].failed, s,
                                err));
    for (int r = 0; r < world; r++)
        TRY(check(r, &all[r], err));
    return TITAN_OK;
}

titan_status attempt_agree(const struct device_handle *device, const struct comm_ops *ops, struct comm *comm, int world,
                           struct attempt *a, struct stream *s, struct titan_error *err)
{
    _cleanup_free_ struct attempt *all = calloc((size_t)world, sizeof *all);

    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "checkpoint: out of memory");
    TRY(attempt_gather(device, ops, comm, world, a, all, s, err));
    *a = all[0];
    for (int r = world - 1; r >= 0; r--) {
        const double stop = MAX(a->stop, all[r].stop), must = MAX(a->must, all[r].must);
        if (all[r].failed != 0)
            *a = all[r];
        a->stop = stop;
        a->must = must;
    }
    return TITAN_OK;
}
