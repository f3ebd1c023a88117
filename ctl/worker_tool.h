/* SPDX-License-Identifier: Apache-2.0 */
/* worker_tool.h - commands that titan-worker runs on a checkpoint. */
#ifndef TITAN_CTL_WORKER_TOOL_H
#define TITAN_CTL_WORKER_TOOL_H

#include <limits.h>

#include "ctl/client.h"
#include "ctl/command.h"

/* Finds the checkpoint that the command's first word names. The word is a job's number (its newest checkpoint, or the
 * checkpoint of --step), a checkpoint's folder, a folder of checkpoints, or a job's folder. The suffix @STEP selects
 * the checkpoint of that step. */
titan_status checkpoint_resolve(struct ctl *ctl, const struct args *args, char out[PATH_MAX],
                                struct titan_error *err) TITAN_MUST_USE;
/* Replaces this process by `titan-worker argv[1]...` (argv[0] is filled in; NULL ends argv). Returns only on
 * failure. */
titan_status worker_become(char *const *argv, struct titan_error *err) TITAN_MUST_USE;
/* Calls worker_become() with the command's name, its own given options except --step, and these n words. json: the
 * option that --output json adds; NULL: it adds none. */
titan_status worker_do(const struct ctl *ctl, const struct args *args, char *const *words, int n, const char *json,
                       struct titan_error *err) TITAN_MUST_USE;

#endif
