/* SPDX-License-Identifier: Apache-2.0 */
/* sharing.h - checkpoint.shared_with as access lists (acl(5)). They let the listed users read a folder of checkpoints
 * when each worker runs as its job's user. */
#ifndef TITAN_WORKER_CHECKPOINT_SHARING_H
#define TITAN_WORKER_CHECKPOINT_SHARING_H

#include "base/error.h"

/* Lets the users of entries read the folder at `at` with its present and future content, and removes an earlier list's
 * users. entries: "user:bob,uid:7,group:ml,*"; names unknown on this node are skipped. If the folder is in a job's
 * folder, which has titand's group, the users may also traverse the folders up to the job's. Changes only files of this
 * process's user. Fails if the file system has no access lists, or if a list is full. May wait for a name service. */
titan_status sharing_set(int at, const char *entries, struct titan_error *err) TITAN_MUST_USE;

#endif
