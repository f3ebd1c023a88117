/* SPDX-License-Identifier: Apache-2.0 */
/* oom.c - see oom.h. */
#include "daemon/agent/oom.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/units.h"

/* The number behind "key " at the start of a line; false when there is none. */
static bool file_number(const char *path, const char *key, uint64_t *ret)
{
    struct buf text = BUF_INIT;
    bool found = false;
    if (file_read(path, 1 << 20, &text, NULL) == TITAN_OK && text.data) {
        const char *at = text.data;
        size_t len = strlen(key);
        while (at && strncmp(at, key, len) != 0)
            at = (at = strchr(at, '\n')) ? at + 1 : NULL;
        char *end = NULL;
        unsigned long long value = at ? strtoull(at + len, &end, 10) : 0;
        found = at && end != at + len;
        *ret = found ? value : 0;
    }
    buf_free(&text);
    return found;
}

static bool cgroup_number(const char *cgroup, const char *name, const char *key, uint64_t *ret)
{
    char path[PATH_MAX + 32];
    (void)snprintf(path, sizeof(path), "%s/%s", cgroup, name);
    return file_number(path, key, ret);
}

/* The limit that counts for a cgroup: its own or that of the nearest above it that has one, which path then is; and
 * that one's peak. */
static bool nearest_limit(const char *root, char path[PATH_MAX], uint64_t *ret_limit, uint64_t *ret_peak)
{
    while (!strncmp(path, root, strlen(root))) {
        if (cgroup_number(path, "memory.max", "", ret_limit)) { /* "max" is no number */
            (void)cgroup_number(path, "memory.peak", "", ret_peak);
            return true;
        }
        char *slash = strrchr(path, '/');
        if (!slash)
            return false;
        *slash = '\0';
    }
    return false;
}

static void describe(const struct oom_watch *o, const char *cgroup, uint64_t rss_max, uint64_t kills, char *reason,
                     size_t cap)
{
    uint64_t limit = 0, peak = 0;
    char path[PATH_MAX], of[300] = " (the machine's)";
    (void)snprintf(path, sizeof(path), "%s", cgroup[0] ? cgroup : o->home);
    if (!nearest_limit(o->cgroup_root, path, &limit, &peak))
        limit = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    else if (!strcmp(path, cgroup))
        of[0] = '\0';
    else
        (void)snprintf(of, sizeof(of), " (of %.255s)", strrchr(path, '/') + 1);
    peak = peak ? peak : rss_max;
    char limit_text[UNITS_TEXT], peak_text[UNITS_TEXT];
    (void)snprintf(reason, cap, "out of memory: limit %s%s, peak %s (oom_kill %" PRIu64 ")",
                   format_bytes(limit, limit_text), of, format_bytes(peak, peak_text), kills);
}

void oom_watch_init(struct oom_watch *o)
{
    *o = (struct oom_watch){.vmstat = "/proc/vmstat", .cgroup_root = "/sys/fs/cgroup"};
    (void)worker_process_home(o->home);
    oom_watch_look(o);
    for (size_t i = 1; i < OOM_LOOKS; i++)
        o->kills[i] = o->kills[0];
}

void oom_watch_look(struct oom_watch *o)
{
    uint64_t *newest = &o->kills[o->looks % OOM_LOOKS];
    if (!file_number(o->vmstat, "oom_kill ", newest) && o->looks)
        *newest = o->kills[(o->looks - 1) % OOM_LOOKS];
    o->looks++;
}

bool oom_verdict(struct oom_watch *o, const struct worker_process *p, uint64_t rss_max, char *reason, size_t cap)
{
    uint64_t own = 0, all = 0;
    const uint64_t before = MAX(o->attributed, o->kills[o->looks % OOM_LOOKS]); /* the oldest */
    bool machine = file_number(o->vmstat, "oom_kill ", &all) && all > before;
    if (machine)
        o->attributed = before + 1; /* one process for one kill */
    bool known = p->cgroup[0] && cgroup_number(p->cgroup, "memory.events", "oom_kill ", &own);
    if (known ? own == 0 : !machine)
        return false;
    describe(o, p->cgroup, rss_max, known ? own : 1, reason, cap);
    return true;
}
