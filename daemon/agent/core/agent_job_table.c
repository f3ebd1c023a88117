/* SPDX-License-Identifier: Apache-2.0 */
/* agent_job_table.c - this node's jobs: their records, and the state shown by workers here. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/agent/core/agent_core_internal.h"

#define JOBS_KEPT 256 /* newest records of jobs without a worker here */

struct agent_job *agent_job_find(const struct agent_core *c, uint64_t job_id)
{
    struct agent_job *j = c->jobs;
    while (j && j->id != job_id)
        j = j->next;
    return j;
}

struct agent_job *agent_job_make(struct agent_core *c, uint64_t job_id)
{
    struct agent_job *j = agent_job_find(c, job_id);
    if (j)
        return j;
    Titan__Internal__AgentJobRecord empty = TITAN__INTERNAL__AGENT_JOB_RECORD__INIT;
    empty.job_id = job_id;
    j = calloc(1, sizeof(*j));
    titan_assert(j);
    j->id = job_id;
    j->record = agent_message_copy(&empty.base);
    j->next = c->jobs;
    c->jobs = j;
    return j;
}

void agent_job_free(const struct agent_core *c, struct agent_job *j)
{
    titan_assert(j->record && j->record->job_id == j->id);
    titan__internal__agent_job_record__free_unpacked(j->record, NULL);
    c->drop_failover(j);
    free(j->checkpoint);
    free(j);
}

bool agent_job_has_workers(const struct agent_core *c, uint64_t job_id)
{
    const struct agent_worker *w = c->workers;
    while (w && w->job_id != job_id)
        w = w->next;
    return w != NULL;
}

void agent_core_restore_job(struct agent_core *c, const Titan__Internal__AgentJobRecord *record)
{
    titan_assert(c->sessions == 0); /* before the first input */
    struct agent_job *j = agent_job_make(c, record->job_id);
    titan__internal__agent_job_record__free_unpacked(j->record, NULL);
    j->record = agent_message_copy(&record->base);
}

void agent_job_note_complete(struct agent_core *c, uint64_t job_id, uint64_t epoch)
{
    struct agent_job *j = agent_job_find(c, job_id);
    if (j && epoch && epoch == agent_job_accepted(j))
        j->complete = true;
}

void agent_job_note_checkpoint(struct agent_core *c, const Titan__Internal__CheckpointWritten *m)
{
    struct agent_job *j = agent_job_make(c, m->job_id);
    if (j->checkpoint && m->step <= j->checkpoint_step)
        return;
    free(j->checkpoint);
    j->checkpoint = agent_text_copy(m->path);
    j->checkpoint_step = m->step;
}

void agent_jobs_trim(struct agent_core *c, struct agent_actions *out)
{
    size_t n = 0;
    struct agent_job **oldest = NULL;
    for (struct agent_job **at = &c->jobs; *at; at = &(*at)->next) {
        if (agent_job_has_workers(c, (*at)->id) ||
            (*at)->record->n_leader_epochs) /* a coordinator must still get these epochs */
            continue;
        n++;
        if (!oldest || (*at)->id < (*oldest)->id)
            oldest = at;
    }
    if (n <= JOBS_KEPT)
        return;
    struct agent_job *j = *oldest;
    titan_assert(!agent_job_has_workers(c, j->id));
    *oldest = j->next;
    agent_action_add(out, AGENT_FORGET_JOB)->job_id = j->id;
    agent_job_free(c, j);
}

uint64_t agent_core_epoch(const struct agent_core *c, uint64_t job_id)
{
    const struct agent_job *j = agent_job_find(c, job_id);
    return j ? agent_job_accepted(j) : 0;
}
