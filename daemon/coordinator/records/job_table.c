/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/records/job_table.h"

#include <stdlib.h>

#include "daemon/coordinator/records/job_queue.h"
#include "daemon/coordinator/records/refusals.h"

struct jobrec *core_find_job(const struct core *c, uint64_t id)
{
    struct jobrec *j = c->buckets[id % CORE_BUCKETS];
    while (j && j->id != id)
        j = j->hash_next;
    return j;
}

struct jobrec *core_add_job(struct core *c, const struct job *job)
{
    struct jobrec *j = core_alloc(sizeof(*j));
    j->id = job->id;
    j->state = job->state;
    j->spec = job->spec;
    j->desired = job->desired;
    j->name = core_strdup(job->name ? job->name : "");
    j->user = queue_user(c, job->user ? job->user : "");
    j->submitted_at_ms = job->submitted_at_ms;
    j->status = job->status;
    j->status.checkpoint = NULL;
    j->clock.epoch_deadline = j->clock.starve_at = j->quorum.at = INT64_MAX;
    j->hash_next = c->buckets[j->id % CORE_BUCKETS];
    c->buckets[j->id % CORE_BUCKETS] = j;
    if (j->state == JOB_PENDING) {
        j->phase = PHASE_QUEUED;
        queue_add(c, j);
    } else {
        core_list_append(&c->active, &c->active_last, j);
    }
    return j;
}

void job_free(struct jobrec *j)
{
    for (size_t i = 0; i < j->n_workers; i++) {
        free(j->workers[i]->address);
        free(j->workers[i]);
    }
    for (size_t i = 0; i < j->n_ckpts; i++)
        free(j->ckpts[i].path);
    free(j->name);
    free(j->workers);
    free(j->ckpts);
    free(j->rank_slots);
    free(j->source.holders);
    free(j->source.checkpoint);
    free(j->folder);
    free(j->trouble.words);
    free(j->trouble.why);
    for (size_t b = 0; b < j->n_kept; b++) {
        free(j->kept[b].members);
        free(j->kept[b].by_id);
    }
    free(j->kept);
    free(j->stop.why);
    free(j->short_why);
    free(j->budget.fault.words);
    free(j->waits.reported);
    free(j->budget.past);
    free(j->refusals);
    free(j);
}

void core_forget(struct core *c, struct jobrec *j)
{
    core_list_remove(&c->active, &c->active_last, j);
    struct jobrec **at = &c->buckets[j->id % CORE_BUCKETS];
    while (*at != j)
        at = &(*at)->hash_next;
    *at = j->hash_next;
    refusals_forget(c, j);
    job_free(j);
}

bool job_on_node(const struct jobrec *j, const struct noderec *n)
{
    for (size_t i = 0; i < j->n_workers; i++)
        if (j->workers[i]->node == n)
            return true;
    return false;
}
