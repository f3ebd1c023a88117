/* SPDX-License-Identifier: Apache-2.0 */
/* jobs_dir.h - folders that all nodes share: the one that holds a folder for each job, and the configured roots. Nodes
 * are told its path, and that alone says little: another machine has another folder of that name. So a file in it holds
 * a token, and a node that cannot read the same one there, or cannot write beside it, gets no workers. */
#ifndef TITAN_DAEMON_COMMON_JOBS_DIR_H
#define TITAN_DAEMON_COMMON_JOBS_DIR_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define JOBS_TOKEN_FILE ".titan-jobs"
#define JOBS_TOKEN_MAX 40

/* The coordinator's: given as configured, NULL for state_dir's own. Makes the token when there is none yet.
 * TITAN_ETIMEDOUT: the folder has not answered within wait_ms. */
titan_status jobs_open(const char *state_dir, const char *given, uint32_t wait_ms, char ret_path[PATH_MAX],
                       char ret_token[JOBS_TOKEN_MAX], struct titan_error *err) TITAN_MUST_USE;
/* A node's look at it: the same folder, and it may write there. */
titan_status jobs_check(const char *path, const char *token, const char *node, struct titan_error *err) TITAN_MUST_USE;

#define ROOT_TOKEN_FILE ".titan-root"
#define ROOT_MARK_MAX 48

/* A node's look at what storage.data_roots or, with writes, checkpoint_roots names: it is there and can be used.
 * ret_mark is the same on nodes that see the same: of a folder that is written to the token in it, which is made where
 * there is none; else a hash of the names in it. "": nodes cannot be compared by it. May block for ever. */
titan_status jobs_dir_check_root(const char *path, bool writes, const char *node, char ret_mark[ROOT_MARK_MAX],
                                 struct titan_error *err) TITAN_MUST_USE;

#endif
