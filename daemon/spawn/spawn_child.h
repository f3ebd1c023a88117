/* SPDX-License-Identifier: Apache-2.0 */
/* spawn_child.h - what a site lets titan-spawnd start, and the child that becomes the worker. */
#ifndef TITAN_DAEMON_SPAWN_SPAWN_CHILD_H
#define TITAN_DAEMON_SPAWN_SPAWN_CHILD_H

#include <limits.h>

#include "daemon/spawn/spawn_frames.h"

#define SPAWN_NO_GROUP ((gid_t)-1)

struct spawn_policy {
    uid_t agent;           /* titand's uid; no other uid may send requests */
    uid_t uid_min;         /* lower uids are the system's */
    gid_t group;           /* users must be in this group; SPAWN_NO_GROUP = any */
    char worker[PATH_MAX]; /* titan-worker, as installed */
    uint64_t memory;       /* the machine's bytes and processors */
    uint32_t cpus;
};

/* TITAN_EPERM or TITAN_EINVAL: the request exceeds the policy; err has one line. The child checks what needs a name
 * service or the job's folder. */
titan_status spawn_policy_check(const struct spawn_policy *p, const struct spawn_request *r,
                                struct titan_error *err) TITAN_MUST_USE;

/* Runs in the child as root: becomes the user, then the worker. fds: the descriptors of the request. report closes when
 * the worker runs. On a failure the text goes to report, and the child exits with the negated status. */
void spawn_child_run(const struct spawn_policy *p, const struct spawn_request *r, const struct spawn_fds *fds,
                     int report) __attribute__((noreturn));

#endif
