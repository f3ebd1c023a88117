/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/outcomes.h"

#include <stdio.h>

#include "base/cleanup.h"
#include "base/utf8.h"

/* Position of a status by severity; 0 = the worst. The most informative status is the worst, a passing trouble the
 * least. */
static size_t badness(titan_status status)
{
    static const int worst_first[] = {130, 4, 5, 2, 3, 75, 1, 7, 6, 124};
    for (size_t i = 0; i < ARRAY_SIZE(worst_first); i++)
        if (titan_status_exit(status) == worst_first[i])
            return ARRAY_SIZE(worst_first) - i;
    titan_assert(status == TITAN_OK);
    return 0;
}

bool outcome_worse(titan_status status, titan_status than)
{
    return badness(status) > badness(than);
}

void outcome_print(const struct titan_error *err)
{
    char line[sizeof(err->msg) + sizeof(err->hint) + 32];
    (void)snprintf(line, sizeof(line), "titanctl: %s%s%s%s", err->msg, *err->hint ? " (" : "", err->hint,
                   *err->hint ? ")" : "");
    text_fit(line, ' ');
    (void)fprintf(stderr, "%s\n", line);
}

titan_status outcomes(size_t n, titan_status (*one)(void *data, size_t i, struct titan_error *err), void *data,
                      const char *what, struct titan_error *err)
{
    titan_status worst = TITAN_OK;
    size_t bad = 0;
    if (n == 1)
        return one(data, 0, err);
    for (size_t i = 0; i < n; i++) {
        struct titan_error why = {.status = TITAN_OK};
        const titan_status status = one(data, i, &why);
        if (status == TITAN_OK)
            continue;
        bad++;
        worst = outcome_worse(status, worst) ? status : worst;
        outcome_print(&why);
        if (status != TITAN_EUNREACHABLE && status != TITAN_ECANCELLED)
            continue;
        bad += n - i - 1;
        break;
    }
    titan_assert(bad <= n);
    return bad ? titan_fail(err, worst, "%zu of %zu %s", bad, n, what) : TITAN_OK;
}
