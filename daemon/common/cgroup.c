/* SPDX-License-Identifier: Apache-2.0 */
/* cgroup.c - see cgroup.h. */
#include "daemon/common/cgroup.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"

#define FILE_BYTES 65536
#define CPU_PERIOD_US 100000

bool cgroup_write(const char *folder, const char *name, const char *text)
{
    char path[PATH_MAX + 64];
    titan_assert(*folder && !strchr(name, '/'));
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    _cleanup_fd_ int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

static bool read_text(const char *folder, const char *name, struct buf *ret)
{
    char path[PATH_MAX + 64];
    titan_assert(*folder && !strchr(name, '/'));
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return file_read(path, FILE_BYTES, ret, NULL) == TITAN_OK && ret->data;
}

bool cgroup_number(const char *folder, const char *name, const char *key, uint64_t *ret)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    const size_t len = strlen(key);
    const char *at = read_text(folder, name, &text) ? text.data : NULL;
    while (at && strncmp(at, key, len) != 0)
        at = (at = strchr(at, '\n')) ? at + 1 : NULL;
    char *end = NULL;
    *ret = at ? strtoull(at + len, &end, 10) : 0;
    return at && end != at + len;
}

bool cgroup_has(const char *folder, const char *name, const char *word)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    if (!read_text(folder, name, &text))
        return false;
    for (char *save = NULL, *at = strtok_r(text.data, " \n", &save); at; at = strtok_r(NULL, " \n", &save))
        if (strcmp(at, word) == 0)
            return true;
    return false;
}

struct cgroup_holds cgroup_hand_on(const char *folder)
{
    /* Writes the controllers one by one, because the kernel applies a line as a whole or not at all. */
    return (struct cgroup_holds){.memory = cgroup_write(folder, "cgroup.subtree_control", "+memory"),
                                 .cpus = cgroup_write(folder, "cgroup.subtree_control", "+cpu")};
}

titan_status cgroup_limit(const char *folder, const struct cgroup_limits *limits, struct titan_error *err)
{
    char text[64];
    (void)snprintf(text, sizeof(text), "%" PRIu64, limits->memory);
    if (limits->memory && !cgroup_write(folder, "memory.max", text))
        return titan_fail_errno(err, "cannot limit the memory of cgroup '%s'", folder);
    if (limits->memory)
        (void)cgroup_write(folder, "memory.swap.max", "0"); /* the file is missing on a machine without swap */
    (void)snprintf(text, sizeof(text), "%" PRIu64 " %d", (uint64_t)limits->cpus * CPU_PERIOD_US / 1000, CPU_PERIOD_US);
    if (limits->cpus && !cgroup_write(folder, "cpu.max", text))
        return titan_fail_errno(err, "cannot limit the processors of cgroup '%s'", folder);
    return TITAN_OK;
}
