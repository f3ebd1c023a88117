/* SPDX-License-Identifier: Apache-2.0 */
/* acl.h - evaluates a POSIX access list (acl(5)) for a user. The list's bytes are untrusted, because a foreign file
 * system (FUSE, NFS) may return anything. */
#ifndef TITAN_DAEMON_AUTH_ACL_H
#define TITAN_DAEMON_AUTH_ACL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#define ACL_NAME "system.posix_acl_access" /* the extended attribute */
#define ACL_ENTRIES_MAX 1024
#define ACL_BYTES_MAX (4 + 8 * ACL_ENTRIES_MAX)
#define ACL_GROUPS_MAX 256

/* A user's identity for file access. */
struct acl_user {
    int64_t uid; /* -1 = none on this machine */
    gid_t groups[ACL_GROUPS_MAX];
    int n_groups;
};

bool acl_in_group(const struct acl_user *u, gid_t gid);
/* Does the list give u all of bits ("rwx", 0 to 7)? u is not the file's owner. list: the attribute's bytes, unaligned.
 * st has the mode for others. A malformed list grants nothing, nor does a list that the kernel rejects. */
bool acl_permits(const struct acl_user *u, const void *list, size_t len, const struct stat *st, mode_t bits);

#endif
