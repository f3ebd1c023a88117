/* SPDX-License-Identifier: Apache-2.0 */
/* worker_table.c - this node's workers in the core's view (agent_core.h). */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/agent/core/agent_core_internal.h"
#include "proto/ranges.h"

struct agent_worker *agent_worker_add(struct agent_core *c, uint64_t job_id, uint64_t worker_id)
{
    titan_assert(!agent_worker_find(c, worker_id));
    struct agent_worker *w = calloc(1, sizeof(*w));
    titan_assert(w);
    w->job_id = job_id;
    w->id = worker_id;
    struct agent_worker **at = &c->workers; /* appends, so the list is in order of arrival */
    while (*at)
        at = &(*at)->next;
    *at = w;
    return w;
}

void agent_worker_free(struct agent_worker *w)
{
    if (w->quiesced)
        titan__internal__worker_quiesced__free_unpacked(w->quiesced, NULL);
    if (w->progress)
        titan__internal__agent_message__free_unpacked(w->progress, NULL);
    free(w->fault);
    free(w);
}

struct agent_worker *agent_worker_find(const struct agent_core *c, uint64_t worker_id)
{
    struct agent_worker *w = c->workers;
    while (w && w->id != worker_id)
        w = w->next;
    return w;
}

uint32_t agent_workers_alive(const struct agent_core *c)
{
    uint32_t n = 0;
    for (const struct agent_worker *w = c->workers; w; w = w->next)
        n++;
    return n;
}

bool agent_sample_legal(const struct agent_sample *s)
{
    return s->epoch <= RANGE_EPOCH_MAX && s->step <= RANGE_STEP_MAX &&
           s->phase <= TITAN__INTERNAL__WORKER_PHASE__WORKER_DONE;
}

void agent_core_adopted(struct agent_core *c, uint64_t job_id, uint64_t worker_id, const struct agent_sample *sample,
                        int64_t now)
{
    (void)now;
    titan_assert(c->sessions == 0); /* before the first input */
    struct agent_worker *w = agent_worker_add(c, job_id, worker_id);
    if (!agent_sample_legal(sample))
        return; /* the next sample ends the worker */
    w->sample = *sample;
    w->commanded_epoch = sample->epoch;
}

bool agent_in_epoch(const struct agent_worker *w, uint64_t epoch)
{
    uint64_t newest = MAX(w->commanded_epoch, w->sample.epoch);
    return newest > 0 && newest <= epoch && !(w->quiesced && w->quiesced->epoch >= newest) &&
           w->sample.phase != TITAN__INTERNAL__WORKER_PHASE__WORKER_DONE;
}
