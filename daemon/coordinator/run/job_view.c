/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/job_view.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/records/job_queue.h"

struct ended_job {
    struct core_job is; /* its name is owned; its user and the causes live as long as the core */
    char mesh[sizeof(((struct job_spec *)0)->mesh)];
    int64_t at_mono;
};

static void view(const struct core *c, const struct jobrec *j, struct core_job *ret)
{
    *ret = (struct core_job){.id = j->id,
                             .name = j->name,
                             .user = queue_user_name(j->user),
                             .mesh = j->spec.mesh,
                             .state = j->state,
                             .step = j->status.step,
                             .steps = j->spec.steps,
                             .epoch = j->status.epoch,
                             .tokens = j->progress.tokens,
                             .loss = j->status.loss,
                             .grad_norm = j->progress.grad_norm,
                             .tokens_per_second = j->status.tokens_per_second,
                             .mfu = j->status.mfu,
                             .world_size = j->status.world_size,
                             .skipped_steps = j->progress.skipped_steps,
                             .checkpoint_failures = j->status.checkpoint_failures,
                             .step_at_ms = j->progress.step_at_ms,
                             .checkpoint_at_ms = j->n_ckpts ? j->ckpts[0].at_ms : 0};
    ret->n_losses = core_job_losses(c, j->id, ret->losses);
}

void job_view_keep(struct core *c, const struct jobrec *j)
{
    if (!c->ended)
        c->ended = core_alloc(ENDED_JOBS * sizeof(*c->ended));
    struct ended_job *e = &c->ended[c->n_ended++ % ENDED_JOBS];
    free((char *)(uintptr_t)e->is.name);
    view(c, j, &e->is);
    e->is.name = core_strdup(j->name);
    memcpy(e->mesh, j->spec.mesh, sizeof(e->mesh));
    e->is.mesh = e->mesh;
    e->at_mono = c->now.mono_ms;
}

void job_view_free(struct core *c)
{
    for (size_t i = 0; c->ended && i < ENDED_JOBS; i++)
        free((char *)(uintptr_t)c->ended[i].is.name);
    free(c->ended);
}

void core_jobs(const struct core *c, struct core_time now, void (*each)(const struct core_job *j, void *data),
               void *data)
{
    struct core_job job;
    for (const struct jobrec *j = c->active; j; j = j->next) {
        view(c, j, &job);
        each(&job, data);
    }
    for (size_t i = 0; i < MIN(c->n_ended, (size_t)ENDED_JOBS); i++)
        if (now.mono_ms - c->ended[i].at_mono < CORE_ENDED_MS)
            each(&c->ended[i].is, data);
}
