/* SPDX-License-Identifier: Apache-2.0 */
/* paths.h - workers open what a run file names, without titan-spawnd with the daemon's rights. So Submit asks first
 * whether its caller could open it, too.
 *
 * Admins and anonymous callers may name any path. Others: what lies, links resolved, below one
 * of the configured roots; and what their uid may read or write itself by the modes and POSIX access lists of the files
 * and of every folder on the way (an access list of another kind is not known here). Without a uid on this machine: the
 * roots only. */
#ifndef TITAN_DAEMON_AUTH_PATHS_H
#define TITAN_DAEMON_AUTH_PATHS_H

#include "base/recipe.h"
#include "daemon/auth/identity.h"

#define PATHS_ROOTS_MAX 16

struct paths_roots {
    char path[PATHS_ROOTS_MAX][1024]; /* absolute, links resolved */
    size_t n;
};
struct paths_options {
    struct paths_roots data, checkpoints; /* to read; to write */
    struct paths_roots own;               /* Titan's folders: what is in them, and what they are in, is below no root */
    bool as_users;                        /* workers are the users of their jobs, and open what those may */
};

/* TITAN_EINVAL for one that is not absolute or not there. */
titan_status paths_add_root(struct paths_roots *roots, const char *path, struct titan_error *err) TITAN_MUST_USE;

/* Every path of the recipe, before any of them is opened. Those of others than admins are replaced by what they are
 * with links resolved, and workers are told to follow none (job.follow_links): one could be put there later. granted:
 * paths that need no right of the caller's own; NULL ends them. May block. TITAN_EPERM says which key, never what is
 * there. as_users, and a caller with a uid: links are followed, and a path behind a folder that the caller may search
 * and this process may not passes as it is: the worker judges it. */
titan_status paths_check(const struct paths_options *options, const struct auth_user *u, const char *const *granted,
                         struct recipe *r, struct titan_error *err) TITAN_MUST_USE;

/* Could the user open it without Titan: a file, or a folder with all that is in it? May block. */
bool paths_user_reads(const struct auth_user *u, const char *path);

#endif
