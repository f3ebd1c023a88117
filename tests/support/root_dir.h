/* SPDX-License-Identifier: Apache-2.0 */
/* root_dir.h - a folder of one test, that goes with it. Include cmocka first. */
#ifndef TITAN_TESTS_SUPPORT_ROOT_DIR_H
#define TITAN_TESTS_SUPPORT_ROOT_DIR_H

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

static char root[64];

static inline int make_root(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof(root), "/tmp/titan-test-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static inline int remove_root(void **state)
{
    (void)state;
    return dir_remove(root, NULL) == TITAN_OK ? 0 : -1;
}

/* A file in it; good for the next three calls. */
static inline const char *root_path(const char *name)
{
    static char paths[4][PATH_MAX];
    static int next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, PATH_MAX, "%s/%s", root, name);
    return path;
}

#endif
