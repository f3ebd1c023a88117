/* SPDX-License-Identifier: Apache-2.0 */
/* jobs_dir.h - folders that all nodes share: the folder of all jobs' folders, and the configured roots. A path alone
 * proves little, because another machine may have another folder of that name. So a file in the folder holds a token. A
 * node that cannot read this token there, or cannot write beside it, gets no workers. */
#ifndef TITAN_DAEMON_COMMON_JOBS_DIR_H
#define TITAN_DAEMON_COMMON_JOBS_DIR_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define JOBS_TOKEN_FILE ".titan-jobs"
#define JOBS_TOKEN_MAX 40

/* Opens the coordinator's jobs folder. given: the configured folder; NULL = a folder in state_dir. Makes the token if
 * there is none. TITAN_ETIMEDOUT: the folder did not answer within wait_ms. */
titan_status jobs_open(const char *state_dir, const char *given, uint32_t wait_ms, char ret_path[PATH_MAX],
                       char ret_token[JOBS_TOKEN_MAX], struct titan_error *err) TITAN_MUST_USE;
/* A node checks that it sees the same folder and may write there. */
titan_status jobs_check(const char *path, const char *token, const char *node, struct titan_error *err) TITAN_MUST_USE;

#define ROOT_TOKEN_FILE ".titan-root"
#define ROOT_MARK_MAX 48

/* A node checks that a configured root exists and can be used: a folder of storage.data_roots or, if `writes` is
 * set, of checkpoint_roots. ret_mark is equal on nodes that see the same folder. With `writes` it is the folder's
 * token, which is made if missing; otherwise it is a hash of the names in the folder. "" = not comparable. May block
 * for ever. */
titan_status jobs_dir_check_root(const char *path, bool writes, const char *node, char ret_mark[ROOT_MARK_MAX],
                                 struct titan_error *err) TITAN_MUST_USE;

#endif
