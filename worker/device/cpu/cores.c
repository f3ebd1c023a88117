/* SPDX-License-Identifier: Apache-2.0 */
/* cores.c - the cores that a process may use, limited by its affinity and by its cgroups' CPU time. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "worker/device/cpu/cpu.h"

#define CGROUPS "/sys/fs/cgroup"

/* Cores among processors: two threads of a core share its units. */
static int cores_among(const cpu_set_t *set)
{
    cpu_set_t seen;
    int cores = 0;

    CPU_ZERO(&seen);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        char path[96];
        int first = i;
        if (!CPU_ISSET(i, set))
            continue;
        (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
        FILE *f = fopen(path, "re");
        if (f) {
            if (fscanf(f, "%d", &first) != 1 || first < 0 || first >= CPU_SETSIZE)
                first = i;
            (void)fclose(f);
        }
        cores += !CPU_ISSET(first, &seen);
        CPU_SET(first, &seen);
    }
    return MAX(cores, 1);
}

/* The cores' worth of time in cpu.max, which is "QUOTA PERIOD" in microseconds. "max PERIOD" or no file means no
 * limit. */
static double quota_of(const char *cgroup)
{
    char path[PATH_MAX + 16];
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    double quota, period;

    (void)snprintf(path, sizeof path, "%s/cpu.max", cgroup);
    if (file_read(path, 4096, &text, NULL) != TITAN_OK || !text.data ||
        sscanf(text.data, "%lf %lf", &quota, &period) != 2 || !(quota > 0) || !(period > 0))
        return INFINITY;
    return quota / period;
}

double cpu_cores_quota(const char *root, const char *cgroup, uint64_t *ret_bound)
{
    char path[PATH_MAX];
    double least = INFINITY;
    struct stat st;

    *ret_bound = 0;
    if ((size_t)snprintf(path, sizeof path, "%s%s", root, cgroup) >= sizeof path)
        return least;
    for (;;) {
        const double quota = quota_of(path);
        if (quota < least && stat(path, &st) == 0) {
            least = quota;
            *ret_bound = (uint64_t)st.st_ino;
        }
        char *slash = strrchr(path, '/');
        if (!slash || slash < path + strlen(root))
            return least;
        *slash = '\0';
    }
}

/* Limit of this process's cgroup. The line of cgroup version 2 is "0::/PATH". */
static double own_quota(uint64_t *ret_bound)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    char *line = NULL;

    *ret_bound = 0;
    if (file_read("/proc/self/cgroup", 65536, &text, NULL) == TITAN_OK && text.data)
        line = strncmp(text.data, "0::", 3) == 0 ? text.data : strstr(text.data, "\n0::");
    if (!line)
        return INFINITY;
    line = strchr(line, '/');
    if (!line)
        return INFINITY;
    line[strcspn(line, "\n")] = '\0';
    return cpu_cores_quota(CGROUPS, line, ret_bound);
}

/* Identifies the cores by machine, set of processors and limiting cgroup. Different sets have different ids, even if
 * they overlap. */
static uint64_t id_of(const cpu_set_t *set, uint64_t bound)
{
    _cleanup_(buf_free) struct buf boot = BUF_INIT;
    uint64_t hash = hash_bytes(HASH_INIT, set, sizeof *set);

    if (file_read("/proc/sys/kernel/random/boot_id", 4096, &boot, NULL) == TITAN_OK)
        hash = hash_bytes(hash, boot.data, boot.len);
    return hash_mix(hash_word(hash, bound));
}

struct cpu_cores cpu_cores_find(void)
{
    cpu_set_t set;
    uint64_t bound;

    CPU_ZERO(&set);
    const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? cores_among(&set) : 1;
    const double quota = own_quota(&bound);
    return (struct cpu_cores){.usable = fmin(cores, quota), .id = id_of(&set, quota < cores ? bound : 0)};
}
