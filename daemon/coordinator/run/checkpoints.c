/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/checkpoints.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "base/vec.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/run/job_clock.h"
#include "daemon/coordinator/run/job_progress.h"

void checkpoints_committed(struct core *c, struct jobrec *j, const Titan__Internal__CheckpointWritten *m)
{
    titan_assert(m->job_id == j->id && m->path);
    size_t at = 0;
    while (at < j->n_ckpts && j->ckpts[at].step > m->step)
        at++;
    bool again = at < j->n_ckpts && j->ckpts[at].step == m->step;
    if (at > 0 || (again && j->ckpts[at].epoch == m->epoch))
        return; /* a repeated report: an epoch writes its checkpoints in order of steps */
    const struct ckptrec written = {
        .step = m->step, .epoch = m->epoch, .path = core_strdup(m->path), .at_ms = c->now.wall_ms};
    if (again) {
        free(j->ckpts[at].path);
        j->ckpts[at] = written;
    } else {
        VEC_MUST_INSERT(j->ckpts, j->n_ckpts, j->cap_ckpts, at, written);
    }
    titan_assert(at + 1 == j->n_ckpts || j->ckpts[at].step > j->ckpts[at + 1].step); /* newest first */
    if (j->state == JOB_CANCELLING) /* the step's own report may be lost, and no later report comes */
        job_progress_reaches(j, m->step);
    emit_checkpoint(c, j, m);
    store_status(c, j);
    checkpoints_well(j);
    size_t keep = j->spec.keep_latest ? j->spec.keep_latest : SIZE_MAX;
    Titan__Internal__CheckpointCommitted *committed = batch_alloc(c->out, sizeof(*committed));
    titan__internal__checkpoint_committed__init(committed);
    committed->job_id = j->id;
    committed->step = m->step;
    committed->expired_paths = batch_alloc(c->out, (j->n_ckpts + 1) * sizeof(char *));
    for (size_t i = j->n_ckpts; i-- > (MUTANT(EXPIRED_NEWEST) && keep == 1 ? 0 : keep);) {
        struct ckptrec *old = &j->ckpts[i];
        if (old->step == m->resumable_step || old->step == m->sound_step)
            continue; /* the worker keeps this checkpoint */
        emit_checkpoint_expired(c, j, old);
        committed->expired_paths[committed->n_expired_paths++] = batch_strdup(c->out, old->path);
        free(old->path);
        memmove(old, old + 1, (--j->n_ckpts - i) * sizeof(*old));
    }
    const struct workrec *first = NULL;
    for (uint32_t i = 0; i < j->n_members && !first; i++)
        first = j->rank_slots[i].worker;
    if (first && first->node->session)
        batch_message(c->out, first->node->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECKPOINT_COMMITTED,
                      committed);
}

void checkpoints_well(struct jobrec *j)
{
    free(j->trouble.words);
    free(j->trouble.why);
    memset(&j->trouble, 0, sizeof(j->trouble));
}

const char *checkpoints_lost(struct core *c, const struct jobrec *j, bool wanted)
{
    const struct ckptrec *newest = j->n_ckpts ? &j->ckpts[0] : NULL;
    const bool written = newest && newest->step == j->status.step, failed = j->trouble.words && !j->trouble.reading;
    if (j->status.step == 0 || (!failed && (written || !wanted)))
        return NULL;
    const char *words =
        failed ? j->trouble.words
               : batch_printf(c->out, "no checkpoint of step %llu was written", (unsigned long long)j->status.step);
    return newest ? batch_printf(c->out, "%s; the newest checkpoint is of step %llu: %s", words,
                                 (unsigned long long)newest->step, newest->path)
                  : batch_printf(c->out, "%s; there is no checkpoint", words);
}

void checkpoints_failed(struct core *c, struct jobrec *j, const struct workrec *w,
                        const Titan__Internal__CheckpointFailed *m)
{
    titan_assert(w->job == j && m->reason);
    /* The cause is the text after the last name in the reason, since paths differ from step to step. */
    const char *why = m->reason;
    for (const char *p = why; (p = strstr(p, ": ")); p += 2)
        why = p + 2;
    const bool changed = !j->trouble.why || strcmp(j->trouble.why, why) != 0 || j->trouble.reading != m->reading;
    /* Every member may report the same checkpoint. */
    const bool counts = j->trouble.streak == 0 || job_rank_slot(j, w) == j->rank_slots;
    if (!counts && !changed)
        return;
    if (m->reading)
        core_set_string(&j->trouble.words,
                        batch_printf(c->out, "trying again to read checkpoint %s: %s", m->path, m->reason));
    else
        core_set_string(&j->trouble.words, batch_printf(c->out, "the checkpoint of step %llu was not written to %s: %s",
                                                        (unsigned long long)m->step, m->path, m->reason));
    core_set_string(&j->trouble.why, why);
    j->trouble.reading = m->reading;
    if (counts)
        j->trouble.streak++;
    if (counts && !m->reading)
        j->status.checkpoint_failures++;
    job_progress_unsaved(j);
    if (changed || (counts && (j->trouble.streak & (j->trouble.streak - 1)) == 0)) {
        emit_checkpoint_failed(c, j, m);
        store_status(c, j);
    }
    job_clock_tries(c, j); /* the run is not hanging, but its members wait for a disk */
}
