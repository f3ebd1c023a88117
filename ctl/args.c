/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/args.h"

titan_status args_job_of(const char *text, uint64_t *ret, struct titan_error *err)
{
    int64_t value;
    if (text[0] < '0' || text[0] > '9' || !args_read_int(text, &value) || value == 0) {
        titan_status status = titan_fail(err, TITAN_EINVAL, "'%.64s' is not the number of a job", text);
        titan_error_hint(err, "titanctl list shows them");
        return status;
    }
    *ret = (uint64_t)value;
    return TITAN_OK;
}

titan_status args_job(const struct args *args, int i, uint64_t *ret, struct titan_error *err)
{
    return args_job_of(args->words[i], ret, err);
}
