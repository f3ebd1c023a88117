/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/auth/audit.h"

#include <stdlib.h>
#include <string.h>

/* One actor, method and outcome within a minute; the last slot takes all others. */
struct slot {
    bool used;
    int64_t until_ms;
    struct audit_record counted; /* calls after the recorded call */
};

struct audit {
    struct slot slots[AUDIT_SLOTS + 1];
};

struct audit *audit_new(void)
{
    struct audit *a = calloc(1, sizeof(*a));
    titan_assert(a);
    return a;
}

void audit_free(struct audit *a)
{
    free(a);
}

bool audit_failed(struct audit *a, const struct audit_record *r, int64_t now_ms)
{
    titan_assert(r->outcome != TITAN_OK);
    struct slot *const others = &a->slots[AUDIT_SLOTS], *s = NULL, *unused = others;
    for (size_t i = 0; i < AUDIT_SLOTS && !s; i++) {
        struct slot *x = &a->slots[i];
        if (!x->used)
            unused = unused == others ? x : unused;
        else if (x->counted.method == r->method && x->counted.outcome == r->outcome &&
                 strcmp(x->counted.actor, r->actor) == 0)
            s = x;
    }
    s = s ? s : unused;
    if (s->used && now_ms < s->until_ms) {
        if (s->counted.count++ == 0) /* the job is kept only while one call is counted */
            s->counted.job_id = r->job_id;
        else if (s->counted.job_id != r->job_id)
            s->counted.job_id = 0;
        return false;
    }
    *s = (struct slot){.used = true, .until_ms = now_ms + AUDIT_WINDOW_MS, .counted = *r};
    s->counted.count = 0;
    if (s == others) {
        (void)strcpy(s->counted.actor, "others");
        s->counted.method = 0;
    }
    return true;
}

int64_t audit_flush(struct audit *a, int64_t now_ms, bool all, void (*each)(const struct audit_record *r, void *data),
                    void *data)
{
    int64_t next = 0;
    for (size_t i = 0; i <= AUDIT_SLOTS; i++) {
        struct slot *s = &a->slots[i];
        bool over = all || now_ms >= s->until_ms || s->until_ms > now_ms + AUDIT_WINDOW_MS;
        if (s->used && over) {
            s->used = false;
            if (s->counted.count)
                each(&s->counted, data);
        } else if (s->used && (next == 0 || s->until_ms < next)) {
            next = s->until_ms;
        }
    }
    return next;
}
