/* SPDX-License-Identifier: Apache-2.0 */
/* worker_cgroup.c - see worker_cgroup.h. */
#include "daemon/agent/shell/worker_cgroup.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"

/* Checks for cgroup.kill, which the inner cgroups need (Linux 5.14); the root and v1 hierarchies lack it. The agent's
 * own cgroup need not be writable: in a unit with Delegate= it is root's, and only cgroups made inside are the
 * user's. */
static bool can_hold_others(const char *folder)
{
    char kill[PATH_MAX + 16];
    (void)snprintf(kill, sizeof(kill), "%s/cgroup.kill", folder);
    return access(kill, F_OK) == 0;
}

static bool ends_in(const char *folder, const char *name)
{
    const size_t len = strlen(folder), n = strlen(name);
    return len > n && strcmp(folder + len - n, name) == 0;
}

/* Finds the cgroup of this process. *ret_inside: whether this process is in main/ below it. */
static bool find_home(char home[PATH_MAX], bool *ret_inside)
{
    static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    char parent[PATH_MAX], procs[PATH_MAX + 16];
    bool found = false;
    *ret_inside = false;
    const char *own = file_read("/proc/self/cgroup", 65536, &text, NULL) == TITAN_OK ? text.data : NULL;
    const char *line = own && strncmp(own, "0::", 3) != 0 ? strstr(own, "\n0::") : own;
    line = line && *line == '\n' ? line + 1 : line;
    for (size_t i = 0; line && i < ARRAY_SIZE(mounts) && !found; i++) {
        const int len = (int)strcspn(line + 3, "\n");
        found = snprintf(home, PATH_MAX, "%s%.*s", mounts[i], len, line + 3) < PATH_MAX && can_hold_others(home);
    }
    if (!found) {
        home[0] = '\0';
        return false;
    }
    file_parent(home, parent);
    (void)snprintf(procs, sizeof(procs), "%s/cgroup.procs", parent);
    *ret_inside = ends_in(home, "/" CGROUP_MAIN) && can_hold_others(parent) && access(procs, W_OK) == 0;
    if (*ret_inside)
        memcpy(home, parent, PATH_MAX);
    return true;
}

bool worker_cgroup_home(char out[PATH_MAX])
{
    bool inside;
    return find_home(out, &inside);
}

/* --- limits ------------------------------------------------------------------------------------------------------- */

static bool has_all(const struct cgroup_holds *h)
{
    return h->memory && h->cpus;
}

static struct cgroup_holds listed(const char *home, const char *name)
{
    return (struct cgroup_holds){cgroup_has(home, name, "memory"), cgroup_has(home, name, "cpu")};
}

struct cgroup_holds worker_cgroup_holds(char why[WORKER_CGROUP_WHY])
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    static const char service[] = ".service";
    struct cgroup_holds held = {.memory = false};
    char home[PATH_MAX];
    bool inside;
    why[0] = '\0';
    (void)pthread_mutex_lock(&one_at_a_time);
    if (!find_home(home, &inside)) {
        (void)snprintf(why, WORKER_CGROUP_WHY, "there is no cgroup of version 2 here to make others in");
    } else if (held = listed(home, "cgroup.subtree_control"), !has_all(&held)) {
        const struct cgroup_holds there = listed(home, "cgroup.controllers");
        const bool stays = !inside && ends_in(home, service);
        if ((there.memory || there.cpus) && !stays) {
            /* Moves this process into main/, and back if the folder still cannot have controllers. */
            char main_group[PATH_MAX + 8];
            (void)snprintf(main_group, sizeof(main_group), "%s/" CGROUP_MAIN, home);
            if (inside ||
                ((mkdir(main_group, 0755) == 0 || errno == EEXIST) && cgroup_write(main_group, "cgroup.procs", "0"))) {
                held = cgroup_hand_on(home);
                if (!inside && !held.memory && !held.cpus && cgroup_write(home, "cgroup.procs", "0"))
                    (void)rmdir(main_group);
            } else {
                held = (struct cgroup_holds){.memory = false};
            }
        }
        if (!there.memory || !there.cpus)
            (void)snprintf(why, WORKER_CGROUP_WHY, "its cgroups of version 2 have no controller of %s",
                           there.memory ? "processors"
                           : there.cpus ? "memory"
                                        : "memory and processors");
        else if (stays)
            (void)snprintf(why, WORKER_CGROUP_WHY,
                           "that takes titan-spawnd (agent.spawnd), or DelegateSubgroup=" CGROUP_MAIN
                           " in the unit (systemd 254)");
        else if (!has_all(&held))
            (void)snprintf(why, WORKER_CGROUP_WHY,
                           "its cgroup is not its own alone: that takes titan-spawnd (agent.spawnd), or a unit with "
                           "Delegate=yes");
    }
    (void)pthread_mutex_unlock(&one_at_a_time);
    titan_assert(has_all(&held) || why[0]);
    return held;
}

/* --- a worker's --------------------------------------------------------------------------------------------------- */

static void name_cgroup(uint64_t worker_id, char out[PATH_MAX])
{
    char home[PATH_MAX];
    if (!worker_cgroup_home(home) ||
        snprintf(out, PATH_MAX, "%s/" CGROUP_WORKER "%" PRIu64, home, worker_id) >= PATH_MAX)
        out[0] = '\0';
}

titan_status worker_cgroup_make(uint64_t worker_id, const struct cgroup_limits *limits, char out[PATH_MAX],
                                struct titan_error *err)
{
    const bool wanted = limits->memory || limits->cpus;
    titan_status status = TITAN_OK;
    name_cgroup(worker_id, out);
    if (!out[0])
        return wanted ? titan_fail(err, TITAN_EUNPLACEABLE, "there is no cgroup to limit a worker in") : TITAN_OK;
    if (mkdir(out, 0755) != 0 && errno != EEXIST)
        status = titan_fail_errno(err, "cannot make cgroup '%s'", out);
    else if ((status = cgroup_limit(out, limits, err)) != TITAN_OK)
        (void)rmdir(out);
    if (status != TITAN_OK)
        out[0] = '\0';
    return wanted ? status : TITAN_OK; /* without a cgroup, the process group alone holds the worker together */
}

void worker_cgroup_find(uint64_t worker_id, char out[PATH_MAX])
{
    name_cgroup(worker_id, out);
    if (out[0] && access(out, F_OK) != 0)
        out[0] = '\0';
}

bool worker_cgroup_enter(const char *cgroup, pid_t pid)
{
    char text[24];
    titan_assert(pid > 1);
    (void)snprintf(text, sizeof(text), "%d", (int)pid);
    return cgroup_write(cgroup, "cgroup.procs", text);
}

void worker_cgroup_kill(const char *cgroup)
{
    (void)cgroup_write(cgroup, "cgroup.kill", "1");
}
