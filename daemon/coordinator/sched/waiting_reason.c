/* SPDX-License-Identifier: Apache-2.0 */
/* Text of the reason why a job waits now. */
#include "daemon/coordinator/records/core_record.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/records/job_queue.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/records/node_slots.h"
#include "daemon/coordinator/records/refusals.h"
#include "daemon/coordinator/run/stale_store.h"
#include "daemon/coordinator/sched/backfill.h"

#define NODES_NAMED 3

struct text {
    char *at;
    size_t left;
};

static void put(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void put(struct text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->at, t->left, fmt, ap);
    va_end(ap);
    size_t used = n < 0 ? 0 : MIN((size_t)n, t->left - 1);
    t->at += used;
    t->left -= used;
}

static bool may_use(const struct jobrec *j, const struct noderec *n)
{
    return node_accepts(n) && job_fits_device(j, n->device) && !refusal_holds(j, n);
}

/* Puts ", 2 free on node b, 1 on node c; 3 on nodes out of service; 2 on nodes that refuse it". */
static void put_slots(const struct core *c, const struct jobrec *j, struct text *t)
{
    uint32_t named = 0, more = 0, out = 0, refusing = 0;
    const struct noderec *unfit = NULL; /* the first one */
    for (const struct noderec *n = c->nodes; n; n = n->next) {
        const uint32_t spare = may_use(j, n) ? node_spare(c, n) : 0;
        if (spare > 0 && named++ < NODES_NAMED)
            put(t, ", %u%s on node %s", spare, named == 1 ? " free" : "", n->name);
        else
            more += spare;
        if (n->state == NODE_READY && n->session && !may_use(j, n) && job_fits_device(j, n->device))
            *(refusal_holds(j, n) ? &refusing : &out) += n->slots;
        if (!unfit && n->session && node_unfit(n))
            unfit = n;
    }
    if (more)
        put(t, ", %u on others", more);
    if (named == 0)
        put(t, ", none free");
    if (out)
        put(t, "; %u on nodes out of service", out);
    if (refusing)
        put(t, "; %u on nodes that refuse it", refusing);
    if (unfit)
        put(t, "; node %s is unfit: %s", unfit->name, node_unfit_words(unfit));
}

/* Puts "; node a slot 0 is out of use: Xid 79". */
static void put_unused_slot(const struct core *c, const struct jobrec *j, struct text *t)
{
    for (const struct noderec *n = c->nodes; n; n = n->next) {
        const Titan__Internal__GpuState *g = may_use(j, n) ? node_unused_gpu(n) : NULL;
        if (!g)
            continue;
        put(t, "; node %s slot %u is out of use: %s", n->name, g->slot, g->reason);
        return;
    }
}

bool core_job_lacks_nodes(const struct core *c, uint64_t job_id, char *buf, size_t size)
{
    const struct jobrec *j = core_find_job(c, job_id);
    struct text t = {buf, size};
    if (!j || j->state != JOB_PENDING || size == 0)
        return false;
    /* Does no node have the job's device? The text does not mention this before the first node has registered. */
    const char *others = NULL;
    unsigned nodes = 0, fit = 0;
    for (const struct noderec *n = c->nodes; n; n = n->next) {
        if (!*n->device)
            continue;
        others = n->device; /* there are only two device kinds */
        nodes++;
        fit += job_fits_device(j, n->device);
    }
    if (nodes > 0 && fit == 0) {
        put(&t, "waiting: no node has a %s device (%u node%s: %s)", j->spec.device, nodes, nodes == 1 ? "" : "s",
            others);
        return true;
    }
    const uint32_t slots = queue_room(c, j);
    if (slots == 0 || !queue_too_large(j))
        return false;
    put(&t, "waiting for nodes: the %s%s needs %u workers, all nodes together have %u slot%s",
        *j->spec.mesh ? "mesh " : "run", j->spec.mesh, size_least(j), slots, slots == 1 ? "" : "s");
    put_unused_slot(c, j, &t);
    return true;
}

bool core_job_reason(const struct core *c, uint64_t job_id, char *buf, size_t size)
{
    const struct jobrec *j = core_find_job(c, job_id);
    struct text t = {buf, size};
    if (j && size > 0 && j->trouble.words && j->state != JOB_PENDING && !job_final(j)) {
        const bool cancelling = j->state == JOB_CANCELLING;
        put(&t, "%s%s%s", cancelling ? j->stop.why : "", cancelling ? "; " : "", j->trouble.words);
        return true;
    }
    if (j && j->short_why && size && j->state != JOB_PENDING && !job_final(j)) {
        put(&t, "%s", j->short_why);
        return true;
    }
    if (j && j->status.passed && size && j->state == JOB_RUNNING) {
        put(&t, BACKFILL_WORDS, (unsigned long long)j->status.passed);
        return true;
    }
    if (core_job_lacks_nodes(c, job_id, buf, size))
        return true;
    if (!j || j->state != JOB_PENDING || size == 0)
        return false;
    if (j->status.preemptions && j->stop.why && *j->stop.why)
        put(&t, "%s; ", j->stop.why);
    if (c->stale) {
        const struct noderec *n = stale_awaits(c);
        put(&t, "waiting: the store came from a backup, nothing starts before store.settled");
        if (n)
            put(&t, ": node %s has not said yet what it knows", n->name);
        return true;
    }
    uint32_t claimed = 0, need = size_least(j), others = 0;
    if (queue_allows(c, j, &others) < need) {
        put(&t, "waiting: %s runs on %u of %u slots that one user may have (limits.user_slots)",
            queue_user_name(j->user), others, c->options.user_slots);
        if (others < c->options.user_slots)
            put(&t, ", and this job needs %u", need);
        return true;
    }
    for (size_t i = 0; i < CORE_DEVICES; i++) {
        const struct jobrec *first = job_fits_device(j, core_devices[i]) ? c->heads[i].job : NULL;
        if (first && first != j) {
            put(&t, "waiting behind job %llu (priority %d)", (unsigned long long)first->id, first->spec.priority);
            return true;
        }
        claimed += first ? c->heads[i].claimed : 0;
    }
    put(&t, "waiting: needs %u slot%s", need, need == 1 ? "" : "s");
    put_slots(c, j, &t);
    put_unused_slot(c, j, &t);
    if (claimed)
        put(&t, "; %u held for jobs that run", claimed);
    return true;
}
