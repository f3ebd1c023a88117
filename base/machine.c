/* SPDX-License-Identifier: Apache-2.0 */
#include "base/machine.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"

#define ENTRY_MAX 127 /* a number, or the UUID of a GPU or of a GPU partition */

/* Finds the i-th entry and its length; NULL: the list is shorter. */
static const char *entry_of(const char *list, uint32_t i, size_t *ret_len)
{
    for (uint32_t at = 0; *list; at++) {
        list += strspn(list, " ");
        size_t len = strcspn(list, ","), trimmed = len;
        while (trimmed > 0 && list[trimmed - 1] == ' ')
            trimmed--;
        /* An entry is "3", "GPU-8932f937-..." or "MIG-...". CUDA stops at any other entry, such as "-1" or
         * "NoDevFiles". */
        if (trimmed == 0 || trimmed > ENTRY_MAX ||
            (strspn(list, "0123456789") < trimmed && strncmp(list, "GPU-", 4) != 0 && strncmp(list, "MIG-", 4) != 0))
            return NULL;
        *ret_len = trimmed;
        if (at == i)
            return list;
        list += len + (list[len] == ',');
    }
    return NULL;
}

static uint32_t count_devices(const char *devices)
{
    uint32_t n = 0;
    DIR *dir = opendir(devices);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        const bool gpu = !strncmp(e->d_name, "nvidia", 6) && isdigit((unsigned char)e->d_name[6]);
        _cleanup_fd_ int fd = gpu ? openat(dirfd(dir), e->d_name, O_RDWR | O_CLOEXEC | O_NONBLOCK) : -1;
        n += fd >= 0;
    }
    if (dir)
        (void)closedir(dir);
    return n;
}

uint32_t machine_gpus_in(const char *visible, const char *devices)
{
    uint32_t n = 0;
    size_t len;
    if (!visible)
        return count_devices(devices);
    while (entry_of(visible, n, &len))
        n++;
    return n;
}

bool machine_gpu_in(const char *visible, const char *devices, uint32_t i, char out[128])
{
    size_t len = 0;
    const char *entry = visible ? entry_of(visible, i, &len) : NULL;
    if (visible ? !entry : i >= count_devices(devices))
        return false;
    titan_assert(len <= ENTRY_MAX);
    if (entry)
        (void)snprintf(out, 128, "%.*s", (int)len, entry);
    else
        (void)snprintf(out, 128, "%u", i);
    return true;
}

uint32_t machine_gpus(void)
{
    return machine_gpus_in(getenv("CUDA_VISIBLE_DEVICES"), "/dev");
}

bool machine_gpu(uint32_t i, char out[128])
{
    return machine_gpu_in(getenv("CUDA_VISIBLE_DEVICES"), "/dev", i, out);
}
