/* SPDX-License-Identifier: Apache-2.0 */
/* paths.h - may a caller's run file name these paths? Without titan-spawnd, workers open paths with the daemon's
 * rights. So Submit first asks whether the caller could open them too.
 *
 * Admins and anonymous callers may name any path. Other callers may name two kinds of paths, judged with links
 * resolved. The first kind lies below a configured root. The second kind may be read or written by the caller's uid:
 * modes and POSIX access lists of the file and of every folder on the way permit it (other kinds of access lists are
 * ignored). Callers without a uid on this machine have the roots only. */
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
    bool as_users; /* workers run as their jobs' users and open only what these users may open */
};

/* TITAN_EINVAL: the path is not absolute or does not exist. */
titan_status paths_add_root(struct paths_roots *roots, const char *path, struct titan_error *err) TITAN_MUST_USE;

/* Checks every path of the recipe before any path is opened. Admins' paths stay as they are. For other callers,
 * resolved paths replace the given paths, and workers follow no links (job.follow_links), because a link could be put
 * there later. granted: paths for which the caller needs no right; NULL ends them. May block. TITAN_EPERM names the
 * key, never the content. If as_users is set and the caller has a uid, links are followed. A path behind a folder that
 * only the caller may search then passes unchanged, and the worker judges it. */
titan_status paths_check(const struct paths_options *options, const struct auth_user *u, const char *const *granted,
                         struct recipe *r, struct titan_error *err) TITAN_MUST_USE;

/* Could the user open the path without Titan? A file, or a folder with everything in it. May block. */
bool paths_user_reads(const struct auth_user *u, const char *path);

#endif
