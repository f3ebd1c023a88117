/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/shell/job_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define SLOTS 1024 /* a power of two; jobs with consecutive ids use separate slots */

struct slot {
    struct job job; /* id 0 = empty; text holds its strings */
    char *text;
    size_t changing; /* changes under way to jobs of this slot */
};

struct job_cache {
    struct slot slots[SLOTS];
};

struct job_cache *job_cache_new(void)
{
    return calloc(1, sizeof(struct job_cache));
}

static void clear(struct slot *s)
{
    free(s->text);
    s->text = NULL;
    s->job.id = 0;
}

void job_cache_free(struct job_cache *c)
{
    for (size_t i = 0; c && i < SLOTS; i++)
        clear(&c->slots[i]);
    free(c);
}

static struct slot *slot_of(struct job_cache *c, uint64_t id)
{
    return &c->slots[id & (SLOTS - 1)];
}

struct reading {
    struct slot *slot;
    void (*with)(const struct job *job, void *data);
    void *data;
};

/* Keeps a copy of the job that was read, with its strings in one block, one after the other. */
static void with_read(const struct job *job, void *data)
{
    struct reading *r = data;
    struct slot *s = r->slot;
    const char *const from[] = {job->name, job->user, job->labels, job->reason, job->status.checkpoint};
    const char *to[ARRAY_SIZE(from)] = {0};
    size_t bytes = 1;
    for (size_t i = 0; i < ARRAY_SIZE(from); i++)
        bytes += from[i] ? strlen(from[i]) + 1 : 0;
    if (s->changing == 0) {
        clear(s);
        s->text = malloc(bytes);
    }
    if (s->changing == 0 && s->text) {
        char *at = s->text;
        for (size_t i = 0; i < ARRAY_SIZE(from); i++) {
            if (!from[i])
                continue;
            to[i] = at;
            at = stpcpy(at, from[i]) + 1;
        }
        titan_assert(at < s->text + bytes);
        s->job = *job;
        s->job.name = to[0];
        s->job.user = to[1];
        s->job.labels = to[2];
        s->job.reason = to[3];
        s->job.status.checkpoint = to[4];
    }
    r->with(job, r->data);
}

titan_status job_cache_get(struct job_cache *c, struct db *db, uint64_t id,
                           void (*with)(const struct job *job, void *data), void *data, struct titan_error *err)
{
    if (!c || id == 0)
        return job_get(db, id, with, data, err);
    struct slot *s = slot_of(c, id);
    if (s->job.id == id) {
        with(&s->job, data);
        return TITAN_OK;
    }
    return job_get(db, id, with_read, &(struct reading){s, with, data}, err);
}

static struct slot *slot_changed(struct job_cache *c, const struct change *change)
{
    switch (change->kind) {
    case CHANGE_JOB_MOVE:
    case CHANGE_JOB_UPDATE:
    case CHANGE_JOB_REASON:
    case CHANGE_JOB_DESIRED:
        return slot_of(c, change->job.id);
    case CHANGE_EVENT:
    case CHANGE_RUN_ADD:
    case CHANGE_RUN_MOVE:
    case CHANGE_EPOCH_ADD:
    case CHANGE_EPOCH_MOVE:
    case CHANGE_EPOCH_ORIGIN:
    case CHANGE_WORKER_ADD:
    case CHANGE_WORKER_MOVE:
    case CHANGE_WORKER_PID:
    case CHANGE_CHECKPOINT_COMMIT:
    case CHANGE_CHECKPOINT_EXPIRE:
    case CHANGE_NODE_PUT:
    case CHANGE_NODE_REMOVE:
    case CHANGE_NODE_POLICY:
    case CHANGE_LOSS_ADD:
    case CHANGE_STORE_SETTLED:
        break; /* these changes touch other tables */
    }
    return NULL;
}

void job_cache_drop(struct job_cache *c, uint64_t id)
{
    titan_assert(id > 0);
    if (c && slot_of(c, id)->job.id == id)
        clear(slot_of(c, id));
}

void job_cache_begin(struct job_cache *c, const struct change *list)
{
    for (; c && list; list = list->next) {
        struct slot *s = slot_changed(c, list);
        if (!s)
            continue;
        s->changing++;
        clear(s);
    }
}

void job_cache_end(struct job_cache *c, const struct change *list)
{
    for (; c && list; list = list->next) {
        struct slot *s = slot_changed(c, list);
        titan_assert(!s || s->changing > 0);
        if (s)
            s->changing--;
    }
}
