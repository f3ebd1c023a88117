/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/api/quota.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/coordinator/shell/disk_usage.h"

#define MINUTE_MS 60000

struct quota {
    struct quota *next;
    size_t submitting; /* submits that are not durable yet */
    int64_t minute_ms; /* begin of the minute in which `submits` were counted */
    uint32_t submits;
    char user[];
};

/* Finds the user's entry, and drops entries without content on the way. */
static struct quota *find(struct coordinator *c, const char *user, int64_t now)
{
    struct quota **at = &c->quotas, *found = NULL;
    while (*at) {
        struct quota *q = *at;
        if (strcmp(q->user, user) == 0)
            found = q;
        if (q == found || q->submitting || now - q->minute_ms < MINUTE_MS) {
            at = &q->next;
            continue;
        }
        *at = q->next;
        free(q);
    }
    return found;
}

titan_status quota_enter(struct coordinator *c, const char *user, struct titan_error *err)
{
    const struct user_limits *most = &c->options.user;
    const int64_t now = clock_mono_ms();
    struct quota *q = find(c, user, now);
    char disk[128];
    if (!q) {
        const size_t len = strlen(user) + 1;
        q = calloc(1, sizeof(*q) + len);
        titan_assert(q);
        memcpy(q->user, user, len);
        q->next = c->quotas;
        c->quotas = q;
    }
    if (now - q->minute_ms >= MINUTE_MS) {
        q->minute_ms = now;
        q->submits = 0;
    }
    if (most->submits_per_minute && q->submits >= most->submits_per_minute) {
        titan_fail(err, TITAN_ELIMIT,
                   "%s has submitted %u of %u jobs that one user may submit within a minute "
                   "(limits.user_submits_per_minute)",
                   user, q->submits, most->submits_per_minute);
        titan_error_hint(err, "try again in %lld s", (long long)(q->minute_ms + MINUTE_MS - now + 999) / 1000);
        return TITAN_ELIMIT;
    }
    const size_t pending = core_user_pending(c->core, user) + q->submitting;
    if (most->pending_jobs && pending >= most->pending_jobs) {
        titan_fail(err, TITAN_ELIMIT, "%s has %zu of %u jobs that may wait of one user (limits.user_pending_jobs)",
                   user, pending, most->pending_jobs);
        titan_error_hint(err, "wait until some have run, or cancel some");
        return TITAN_ELIMIT;
    }
    if (disk_usage_over(c, user, disk, sizeof(disk))) {
        titan_fail(err, TITAN_ELIMIT, "%s has %s that one user may have below jobs_dir (limits.user_disk_mb)", user,
                   disk);
        titan_error_hint(err, "remove jobs that have ended: titanctl rm, titanctl gc");
        return TITAN_ELIMIT;
    }
    q->submits++;
    q->submitting++;
    return TITAN_OK;
}

void quota_leave(struct coordinator *c, const char *user)
{
    struct quota *q = find(c, user, clock_mono_ms());
    titan_assert(!q || q->submitting > 0);
    if (q) /* NULL after quota_free() */
        q->submitting--;
}

titan_status quota_check_workers(uint32_t user_slots, uint32_t workers, struct titan_error *err)
{
    if (!user_slots || workers <= user_slots)
        return TITAN_OK;
    titan_fail(err, TITAN_ELIMIT, "the run needs %u workers, and one user may have %u slots (limits.user_slots)",
               workers, user_slots);
    titan_error_hint(err, "elastic.min_workers or the mesh would have to be smaller");
    return TITAN_ELIMIT;
}

void quota_free(struct coordinator *c)
{
    while (c->quotas) {
        struct quota *q = c->quotas;
        c->quotas = q->next;
        free(q);
    }
}
