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

/* "3", "GPU-8932f937-...", "MIG-..."; CUDA stops at any other entry, such as "-1" or "NoDevFiles". */
static bool names_gpu(const char *entry, size_t len)
{
    if (len == 0 || len > ENTRY_MAX)
        return false;
    return strspn(entry, "0123456789") >= len || !strncmp(entry, "GPU-", 4) || !strncmp(entry, "MIG-", 4);
}

/* Finds the i-th entry and its length; NULL: the list is shorter. */
static const char *entry_of(const char *list, uint32_t i, size_t *ret_len)
{
    for (uint32_t at = 0; *list; at++) {
        list += strspn(list, " ");
        size_t len = strcspn(list, ","), trimmed = len;
        while (trimmed > 0 && list[trimmed - 1] == ' ')
            trimmed--;
        if (!names_gpu(list, trimmed))
            return NULL;
        *ret_len = trimmed;
        if (at == i)
            return list;
        list += len + (list[len] == ',');
    }
    return NULL;
}

static bool opens(int folder, const char *name)
{
    _cleanup_fd_ int fd = openat(folder, name, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    return fd >= 0;
}

static uint32_t count_devices(const char *devices)
{
    uint32_t n = 0;
    DIR *dir = opendir(devices);
    for (struct dirent *e; dir && (e = readdir(dir));)
        n += !strncmp(e->d_name, "nvidia", 6) && isdigit((unsigned char)e->d_name[6]) && opens(dirfd(dir), e->d_name);
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
