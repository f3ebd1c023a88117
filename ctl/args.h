/* SPDX-License-Identifier: Apache-2.0 */
/* args.h - words of a command line with the same meaning in every command of titanctl. */
#ifndef TITAN_CTL_ARGS_H
#define TITAN_CTL_ARGS_H

#include "base/options.h"

/* Parses the number of a job, 1 or more. TITAN_EINVAL: the text is no such number. */
titan_status args_job_of(const char *text, uint64_t *ret, struct titan_error *err) TITAN_MUST_USE;
/* Parses argument i as the number of a job. */
titan_status args_job(const struct args *args, int i, uint64_t *ret, struct titan_error *err) TITAN_MUST_USE;

#endif
