/* SPDX-License-Identifier: Apache-2.0 */
/* args.h - words of a command line that mean the same in every command of titanctl. */
#ifndef TITAN_CTL_ARGS_H
#define TITAN_CTL_ARGS_H

#include "base/options.h"

/* The number of a job, 1 or more. TITAN_EINVAL: the text is not one. */
titan_status args_job_of(const char *text, uint64_t *ret, struct titan_error *err) TITAN_MUST_USE;
/* Argument i as the number of a job. */
titan_status args_job(const struct args *args, int i, uint64_t *ret, struct titan_error *err) TITAN_MUST_USE;

#endif
