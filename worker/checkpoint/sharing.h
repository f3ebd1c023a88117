/* SPDX-License-Identifier: Apache-2.0 */
/* sharing.h - checkpoint.shared_with as access lists (acl(5)). They let the listed users read a folder of checkpoints
 * when each worker runs as its job's user. */
#ifndef TITAN_WORKER_CHECKPOINT_SHARING_H
#define TITAN_WORKER_CHECKPOINT_SHARING_H

#include "base/error.h"

/* Lets the users of entries ("user:bob,uid:7,group:ml,*"; names unknown on this node are skipped) read the folder at
 * with its present and future content, and removes an earlier list's users. In a job's folder, which has titand's
 * group, they may also traverse the folders up to it. Changes only files of this process's user. A failure: the file
 * system has no access lists, or they are full. May wait for a name service. */
titan_status sharing_set(int at, const char *entries, struct titan_error *err) TITAN_MUST_USE;

#endif
