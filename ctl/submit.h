/* SPDX-License-Identifier: Apache-2.0 */
/* submit.h - the call behind submit and run. */
#ifndef TITAN_CTL_SUBMIT_H
#define TITAN_CTL_SUBMIT_H

#include "ctl/client.h"
#include "ctl/run_file.h"

/* Name and idempotency key come from the options. */
titan_status submit_run(struct ctl *ctl, const struct run_file *file, const struct args *args, uint64_t *ret_job,
                        bool *ret_existed, struct titan_error *err) TITAN_MUST_USE;

#endif
