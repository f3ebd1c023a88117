/* SPDX-License-Identifier: Apache-2.0 */
/* pages_dir.c - see pages_dir.h. */
#include "daemon/agent/pages_dir.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPLATE "/dev/shm/titan-XXXXXX"

static void link_path(const char *run_dir, char out[PATH_MAX])
{
    titan_assert(run_dir && *run_dir);
    (void)snprintf(out, PATH_MAX, "%.4000s/pages", run_dir);
}

/* All users may write in /dev/shm: a folder that is another user's, or open to others, is not ours. */
static bool is_ours(const char *dir)
{
    struct stat st;
    return lstat(dir, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 07777) == 0700;
}

void pages_dir_open(const char *run_dir, char out[PATH_MAX])
{
    char link[PATH_MAX];
    link_path(run_dir, link);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
    if (n > 0 && strncmp(out, TEMPLATE, strlen("/dev/shm/titan-")) == 0 && is_ours(out))
        return;
    (void)unlink(link);
    (void)snprintf(out, PATH_MAX, "%s", TEMPLATE);
    if (mkdtemp(out) && symlink(out, link) == 0)
        return;
    (void)rmdir(out);
    (void)snprintf(out, PATH_MAX, "%s", run_dir);
}

void pages_dir_close(const char *run_dir, const char *pages_dir)
{
    char link[PATH_MAX];
    link_path(run_dir, link);
    if (strcmp(run_dir, pages_dir) != 0 && rmdir(pages_dir) == 0)
        (void)unlink(link);
}
