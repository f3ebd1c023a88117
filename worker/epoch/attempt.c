/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/epoch/attempt.h"

#include <stdlib.h>

#include "base/cleanup.h"

titan_status attempt_gather(const struct peer_ranks *ranks, const struct attempt *a, struct attempt *all,
                            struct titan_error *err)
{
    TRY(peer_values_gather(ranks, a, sizeof *a, all, err));
    for (int r = 0; r < ranks->n; r++) {
        const struct peer_value reported[] = {
            {"failed", all[r].failed, 0, 1}, {"stop", all[r].stop, 0, 1}, {"must", all[r].must, 0, 1}};
        const struct peer_words why = {"why", all[r].why, sizeof all[r].why, all[r].failed != 0};
        TRY(peer_values_check("checkpoint", r, reported, ARRAY_SIZE(reported), err));
        TRY(peer_values_check_words("checkpoint", r, &why, err));
    }
    return TITAN_OK;
}

titan_status attempt_agree(const struct peer_ranks *ranks, struct attempt *a, struct titan_error *err)
{
    _cleanup_free_ struct attempt *all = calloc((size_t)ranks->n, sizeof *all);

    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "checkpoint: out of memory");
    TRY(attempt_gather(ranks, a, all, err));
    *a = all[0];
    for (int r = ranks->n - 1; r >= 0; r--) {
        const double stop = MAX(a->stop, all[r].stop), must = MAX(a->must, all[r].must);
        if (all[r].failed != 0)
            *a = all[r];
        a->stop = stop;
        a->must = must;
    }
    return TITAN_OK;
}
