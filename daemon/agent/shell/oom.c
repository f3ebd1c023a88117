/* SPDX-License-Identifier: Apache-2.0 */
/* oom.c - see oom.h. */
#include "daemon/agent/shell/oom.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/units.h"
#include "daemon/common/cgroup.h"

struct oom_group {
    struct oom_group *next;
    uint32_t users;
    bool v1;
    char path[PATH_MAX];              /* the counting folder; "" = the machine */
    size_t root;                      /* length of the hierarchy's root in path */
    uint64_t kills[OOM_LOOKS], looks; /* kills: a ring of the counts at the newest looks */
    uint64_t attributed;              /* kills up to this count are attributed to a process */
};

/* --- which cgroup counts ------------------------------------------------------------------------------------------ */

static bool count(const struct oom_watch *o, const struct oom_group *g, uint64_t *ret)
{
    if (!g->path[0])
        return cgroup_number(o->proc, "vmstat", "oom_kill ", ret);
    if (g->v1)
        return cgroup_number(g->path, "memory.oom_control", "oom_kill ", ret);
    return cgroup_number(g->path, "memory.events.local", "oom_kill ", ret) ||
           cgroup_number(g->path, "memory.events", "oom_kill ", ret);
}

/* Cgroup version 1 counts kills in the process's cgroup. Version 2 counts kills in the nearest cgroup, at or above the
 * process, that has the memory controller. */
static void find_folder(const struct oom_watch *o, pid_t pid, struct oom_group *g)
{
    char file[PATH_MAX], path[PATH_MAX];
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    uint64_t kills;
    g->path[0] = '\0';
    (void)snprintf(file, sizeof(file), "%s/%d/cgroup", o->proc, (int)pid);
    if (file_read(file, 65536, &text, NULL) != TITAN_OK || !text.data)
        return;

    /* Reads the path of the line "ID:CONTROLLERS:PATH" for the hierarchy with memory: version 1, or else version 2. */
    bool found = false;
    for (const char *line = text.data, *end; line && *line && !g->v1; line = end ? end + 1 : NULL) {
        char controllers[256];
        const char *names = strchr(line, ':'), *at = names ? strchr(names + 1, ':') : NULL;
        end = strchr(line, '\n');
        if (!at || (end && at > end))
            continue;
        (void)snprintf(controllers, sizeof(controllers), ",%.*s,", (int)MIN(at - names - 1, 250), names + 1);
        g->v1 = strstr(controllers, ",memory,");
        if (!g->v1 && (found || strcmp(controllers, ",,") != 0))
            continue;
        (void)snprintf(path, PATH_MAX, "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
        found = true;
    }
    if (!found)
        return;
    static const char *const mounts[] = {"/memory", "", "/unified"};
    for (size_t i = g->v1 ? 0 : 1; i < (g->v1 ? 1u : ARRAY_SIZE(mounts)); i++) {
        g->root = (size_t)snprintf(g->path, PATH_MAX, "%s%s", o->cgroups, mounts[i]);
        if (snprintf(g->path, PATH_MAX, "%s%s%s", o->cgroups, mounts[i], strcmp(path, "/") == 0 ? "" : path) >=
                PATH_MAX ||
            access(g->path, F_OK) != 0)
            continue;
        for (char *slash; !count(o, g, &kills) && !g->v1 && (slash = strrchr(g->path, '/')) > g->path + g->root - 1;)
            *slash = '\0';
        if (count(o, g, &kills))
            return;
    }
    g->path[0] = '\0';
}

void oom_group_leave(struct oom_watch *o, struct oom_group **group)
{
    struct oom_group *g = TAKE(*group), **at = &o->groups;
    if (!g || --g->users > 0)
        return;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    free(g);
}

void oom_group_follow(struct oom_watch *o, struct oom_group **group, pid_t pid)
{
    struct oom_group now = {.users = 0};
    find_folder(o, pid, &now);
    /* Cgroup version 1 shows an ending process in the root. So its known group stays. */
    const bool ends = *group && (!now.path[0] || (now.v1 && now.path[now.root] == '\0'));
    if (ends || (*group && strcmp(now.path, (*group)->path) == 0))
        return;
    oom_group_leave(o, group);
    struct oom_group *g = o->groups;
    while (g && strcmp(g->path, now.path) != 0)
        g = g->next;
    if (!g && (g = malloc(sizeof(*g)))) {
        *g = now;
        g->next = o->groups;
        o->groups = g;
        (void)count(o, g, &g->kills[0]);
        for (size_t i = 1; i < OOM_LOOKS; i++)
            g->kills[i] = g->kills[0];
    }
    if (g)
        g->users++;
    *group = g;
}

void oom_watch_init(struct oom_watch *o)
{
    *o = (struct oom_watch){.proc = "/proc", .cgroups = "/sys/fs/cgroup"};
}

void oom_watch_look(struct oom_watch *o)
{
    for (struct oom_group *g = o->groups; g; g = g->next) {
        const uint64_t before = g->kills[g->looks % OOM_LOOKS];
        uint64_t *newest = &g->kills[++g->looks % OOM_LOOKS];
        if (!count(o, g, newest))
            *newest = before;
    }
}

/* --- what acted --------------------------------------------------------------------------------------------------- */

bool oom_limit_reached(uint64_t limit, uint64_t peak)
{
    return limit && (!peak || peak >= limit - limit / 64);
}

void oom_reason(const struct oom_numbers *n, const char *of, char *reason, size_t cap)
{
    char limit[UNITS_TEXT], peak[UNITS_TEXT];
    (void)snprintf(reason, cap, "out of memory: limit %s%s, peak %s (oom_kill %" PRIu64 ")",
                   format_bytes(n->limit, limit), of, format_bytes(n->peak, peak), n->kills);
}

enum oom oom_verdict(const struct oom_watch *o, const struct oom_victim *v, char *reason, size_t cap)
{
    struct oom_group *group = v->group;
    uint64_t all = 0, limit = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE), of_limit, peak = 0;
    char path[PATH_MAX], of[300] = " (the machine's)", limit_text[UNITS_TEXT], peak_text[UNITS_TEXT];
    if (!group)
        return OOM_NO;
    const uint64_t before = MAX(group->attributed, group->kills[(group->looks + 1) % OOM_LOOKS]); /* the oldest look */
    if (!count(o, group, &all) || all <= before)
        return OOM_NO;
    if (!group->path[0] && v->rss_max < limit / 1000)
        return OOM_NO;              /* too small to be the machine's victim */
    group->attributed = before + 1; /* a kill explains only one process */
    if (!group->path[0]) {
        (void)snprintf(reason, cap,
                       "perhaps out of memory: the kernel has just ended a process for memory, no cgroup says which; "
                       "peak %s of the machine's %s",
                       format_bytes(v->rss_max, peak_text), format_bytes(limit, limit_text));
        return OOM_PERHAPS;
    }
    /* Finds the nearest cgroup, at or above the process, whose limit was reached. Its folder is in path. */
    bool reached = false;
    memcpy(path, group->path, PATH_MAX);
    for (char *slash; !reached && strlen(path) > group->root && (slash = strrchr(path, '/'));) {
        const bool limited = group->v1
                                 ? cgroup_number(path, "memory.limit_in_bytes", "", &of_limit) && of_limit >> 60 == 0
                                 : cgroup_number(path, "memory.max", "", &of_limit); /* "max" is not a number */
        const bool known =
            limited && cgroup_number(path, group->v1 ? "memory.max_usage_in_bytes" : "memory.peak", "", &peak);
        reached = limited && oom_limit_reached(of_limit, known ? peak : 0);
        if (!reached)
            *slash = '\0';
    }
    if (reached) {
        limit = of_limit;
        if (strcmp(path, v->own) == 0)
            (void)snprintf(of, sizeof(of), "%s", worker_limits_origin(v->node, limit));
        else
            (void)snprintf(of, sizeof(of), " (of %.255s)", strrchr(path, '/') + 1);
    }
    oom_reason(&(struct oom_numbers){limit, peak ? peak : v->rss_max, all - before}, of, reason, cap);
    return OOM_YES;
}
