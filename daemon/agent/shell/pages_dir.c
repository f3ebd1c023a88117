/* SPDX-License-Identifier: Apache-2.0 */
/* pages_dir.c - see pages_dir.h. */
#include "daemon/agent/shell/pages_dir.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/flight.h"

enum { FOLDER_PREFIX = sizeof(PAGES_FOLDERS) + 2 * 17 };

static void link_path(const char *run_dir, char out[PATH_MAX])
{
    (void)snprintf(out, PATH_MAX, "%.4000s/pages", run_dir);
}

void pages_dir_open(const char *run_dir, char out[PATH_MAX], const struct log *log)
{
    char link[PATH_MAX], prefix[FOLDER_PREFIX];
    link_path(run_dir, link);
    /* The folder's name begins with the device and inode numbers of run_dir. So the link in a copy of run_dir is not
     * followed, because the workers belong to the original. */
    struct stat st = {0};
    (void)stat(run_dir, &st);
    (void)snprintf(prefix, sizeof(prefix), PAGES_FOLDERS "%llx-%llx-", (unsigned long long)st.st_dev,
                   (unsigned long long)st.st_ino);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
    /* All users may write in /dev/shm. So this agent accepts no folder of another user, and none that is open to
     * others. */
    if (n > 0 && strncmp(out, prefix, strlen(prefix)) == 0 && lstat(out, &st) == 0 && S_ISDIR(st.st_mode) &&
        st.st_uid == geteuid() && (st.st_mode & 07777) == 0700)
        return;
    if (n > 0 && access(out, F_OK) == 0)
        tlog_warn(log, "a folder of workers' pages is not this agent's: workers that are there are not adopted",
                  "path=\"%s\"", out);
    (void)unlink(link);
    (void)snprintf(out, PATH_MAX, "%sXXXXXX", prefix);
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
