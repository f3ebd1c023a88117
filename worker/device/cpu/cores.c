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

double cpu_cores_quota(const char *root, const char *cgroup, uint64_t *ret_bound)
{
    char path[PATH_MAX], file[PATH_MAX + 16];
    double least = INFINITY;
    struct stat st;

    *ret_bound = 0;
    if ((size_t)snprintf(path, sizeof path, "%s%s", root, cgroup) >= sizeof path)
        return least;
    for (;;) {
        /* cpu.max is "QUOTA PERIOD" in microseconds; "max PERIOD" or no file means no limit */
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        double quota, period;
        (void)snprintf(file, sizeof file, "%s/cpu.max", path);
        if (file_read(file, 4096, &text, NULL) == TITAN_OK && text.data &&
            sscanf(text.data, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0 && quota / period < least &&
            stat(path, &st) == 0) {
            least = quota / period;
            *ret_bound = (uint64_t)st.st_ino;
        }
        char *slash = strrchr(path, '/');
        if (!slash || slash < path + strlen(root))
            return least;
        *slash = '\0';
    }
}

struct cpu_cores cpu_cores_find(void)
{
    _cleanup_(buf_free) struct buf cgroups = BUF_INIT, boot = BUF_INIT;
    char *line = NULL;
    double quota = INFINITY;
    uint64_t bound = 0;
    cpu_set_t set, seen;
    int cores = 0;

    /* Counts the cores among the processors that this process may use, because two threads of a core share its
     * units. */
    CPU_ZERO(&set);
    CPU_ZERO(&seen);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        CPU_ZERO(&set);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        char path[96];
        int first = i;
        if (!CPU_ISSET(i, &set))
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
    cores = MAX(cores, 1);

    /* Finds the limit of this process's cgroup. The line of cgroup version 2 is "0::/PATH". */
    if (file_read("/proc/self/cgroup", 65536, &cgroups, NULL) == TITAN_OK && cgroups.data)
        line = strncmp(cgroups.data, "0::", 3) == 0 ? cgroups.data : strstr(cgroups.data, "\n0::");
    if (line)
        line = strchr(line, '/');
    if (line) {
        line[strcspn(line, "\n")] = '\0';
        quota = cpu_cores_quota(CGROUPS, line, &bound);
    }

    /* The machine, the set of processors and the limiting cgroup identify the cores. Different sets have different ids,
     * even if they overlap. */
    uint64_t hash = hash_bytes(HASH_INIT, &set, sizeof set);
    if (file_read("/proc/sys/kernel/random/boot_id", 4096, &boot, NULL) == TITAN_OK)
        hash = hash_bytes(hash, boot.data, boot.len);
    return (struct cpu_cores){.usable = fmin(cores, quota), .id = hash_mix(hash_word(hash, quota < cores ? bound : 0))};
}
