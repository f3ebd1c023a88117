/* SPDX-License-Identifier: Apache-2.0 */
/* sharing.h - checkpoint.shared_with as access lists (acl(5)): where each worker is its job's user, the users that a
 * folder of checkpoints is shared with read it by these. */
#ifndef TITAN_WORKER_CHECKPOINT_SHARING_H
#define TITAN_WORKER_CHECKPOINT_SHARING_H

#include "base/error.h"

/* The folder at, what is in it and what will be: read by those of entries ("user:bob,uid:7,group:ml,*"; names of this
 * node, others are passed over), and no longer by those of an earlier list. Where at lies in a job's folder, which is
 * of titand's group, they may also pass the folders up to that. Only what is this process's own is changed. A failure:
 * the file system has no access lists, or they are full. May wait for a name service. */
titan_status sharing_set(int at, const char *entries, struct titan_error *err) TITAN_MUST_USE;

#endif
