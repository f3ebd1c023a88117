/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/args.h"

#include <errno.h>
#include <stdlib.h>

titan_status args_job_of(const char *text, uint64_t *ret, struct titan_error *err)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value == 0 || value > INT64_MAX) {
        titan_status status = titan_fail(err, TITAN_EINVAL, "'%.64s' is not the number of a job", text);
        titan_error_hint(err, "titanctl list shows them");
        return status;
    }
    *ret = value;
    return TITAN_OK;
}

titan_status args_job(const struct args *args, int i, uint64_t *ret, struct titan_error *err)
{
    return args_job_of(args->words[i], ret, err);
}
