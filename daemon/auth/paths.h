/* SPDX-License-Identifier: Apache-2.0 */
/* paths.h - may a caller's run file name these paths? Without titan-spawnd workers open them with the daemon's rights,
 * so Submit first asks whether the caller could open them too.
 *
 * Admins and anonymous callers may name any path. Other callers may name paths that lie, links resolved, below a
 * configured root, and paths that their uid may read or write by modes and POSIX access lists of the file and every
 * folder on the way (other kinds of access lists are ignored). Callers without a uid on this machine: the roots only.
 */
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
    struct paths_roots data, checkpoints; /* data: readable; checkpoints: writable */
    /* Titan's own folders: neither their content nor their parents count as below a root */
    struct paths_roots own;
    bool as_users; /* workers run as their jobs' users and open what those may */
};

/* TITAN_EINVAL: the path is not absolute or does not exist. */
titan_status paths_add_root(struct paths_roots *roots, const char *path, struct titan_error *err) TITAN_MUST_USE;

/* Checks every path of the recipe before any of them is opened. For callers other than admins, paths are replaced by
 * their resolved form, and workers follow no links (job.follow_links), since a link could be put there later. granted:
 * paths that need no right of the caller's own; NULL ends them. May block. TITAN_EPERM names the key, never the
 * content. With as_users and a caller with a uid, links are followed. A path behind a folder that only the caller may
 * search then passes unchanged: the worker judges it. */
titan_status paths_check(const struct paths_options *options, const struct auth_user *u, const char *const *granted,
                         struct recipe *r, struct titan_error *err) TITAN_MUST_USE;

/* Could the user open the path without Titan? A file, or a folder with everything in it. May block. */
bool paths_user_reads(const struct auth_user *u, const char *path);

#endif
