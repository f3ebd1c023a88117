/* SPDX-License-Identifier: Apache-2.0 */
/* worker_tool.h - commands that are titan-worker's work on a checkpoint. */
#ifndef TITAN_CTL_WORKER_TOOL_H
#define TITAN_CTL_WORKER_TOOL_H

#include <limits.h>

#include "ctl/client.h"
#include "ctl/command.h"

/* The checkpoint that a command's first word names: a job's number (its newest one, or that of --step), a checkpoint's
 * folder, a folder of them or a job's; with @STEP behind it, the one of that step. */
titan_status checkpoint_resolve(struct ctl *ctl, const struct args *args, char out[PATH_MAX],
                                struct titan_error *err) TITAN_MUST_USE;
/* Become `titan-worker argv[1]...` (argv[0] is filled in; NULL ends it). Returns only when that fails. */
titan_status worker_become(char *const *argv, struct titan_error *err) TITAN_MUST_USE;
/* The same with the command's own name, the options of its own that it was given, but --step, and these n words. json:
 * what tells titan-worker of --output json, NULL: it prints none. */
titan_status worker_do(const struct ctl *ctl, const struct args *args, char *const *words, int n, const char *json,
                       struct titan_error *err) TITAN_MUST_USE;

#endif
