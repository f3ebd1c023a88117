/* SPDX-License-Identifier: Apache-2.0 */
/* failover_epoch.c - questions about epochs: their members, their quorums, and whether one may follow another. */
#include <string.h>

#include "base/mutant.h"
#include "daemon/agent/failover/failover_internal.h"
#include "daemon/common/epochs.h"

bool failover_is_member(const form_epoch *form, uint64_t worker_id)
{
    for (size_t i = 0; i < form->n_members; i++)
        if (form->members[i]->worker_id == worker_id)
            return true;
    return false;
}

size_t failover_ranks(const form_epoch *form)
{
    return form->n_members + form->n_departing;
}

const Titan__Internal__Member *failover_rank(const form_epoch *form, size_t i)
{
    titan_assert(i < failover_ranks(form));
    return i < form->n_members ? form->members[i] : form->departing[i - form->n_members];
}

bool failover_takes_part(const form_epoch *form, uint64_t worker_id)
{
    for (size_t i = 0; i < failover_ranks(form); i++)
        if (failover_rank(form, i)->worker_id == worker_id)
            return true;
    return false;
}

const Titan__Internal__Member *failover_member_on(const form_epoch *form, const char *node)
{
    for (size_t i = 0; i < failover_ranks(form); i++)
        if (!strcmp(failover_rank(form, i)->node, node))
            return failover_rank(form, i);
    return NULL;
}

static bool is_majority(const form_epoch *form, const form_epoch *of)
{
    size_t n = 0;
    for (size_t i = 0; i < of->n_members; i++)
        n += failover_takes_part(form, of->members[i]->worker_id);
    return 2 * n > of->n_members || MUTANT(LEADER_MINORITY);
}

bool failover_has_quorum(const struct failover *f, const form_epoch *form)
{
    titan_assert(f->job->record->accepted);
    for (size_t i = 0; !f->job->complete && i < f->job->record->n_before; i++)
        if (!is_majority(form, f->job->record->before[i]))
            return false;
    return is_majority(form, f->job->record->accepted);
}

bool failover_world_is_legal(const form_epoch *accepted, size_t n)
{
    bool found = n == accepted->n_members;
    for (size_t i = 0; i < accepted->n_worlds && !found; i++)
        found = accepted->worlds[i] == n;
    return found;
}

bool failover_by_leader(const struct failover *f)
{
    const job_record *r = f->job->record;
    return r->accepted && r->n_leader_epochs &&
           r->leader_epochs[r->n_leader_epochs - 1]->epoch->epoch == r->accepted->epoch;
}

bool failover_can_shrink(const struct failover *f, const form_epoch *form)
{
    const form_epoch *accepted = f->job->record->accepted;
    const size_t n = failover_ranks(form);
    if (form->job_id != f->job->id || form->comm_id.len != EPOCH_ID_BYTES || form->n_members == 0 ||
        form->epoch <= accepted->epoch || form->epoch - accepted->epoch > EPOCH_STEP_MAX || n > accepted->n_members)
        return false;
    for (size_t i = 0; i < n; i++) {
        const Titan__Internal__Member *m = failover_rank(form, i);
        if (!failover_is_member(accepted, m->worker_id))
            return false;
        for (size_t k = 0; k < i; k++)
            if (failover_rank(form, k)->worker_id == m->worker_id)
                return false;
    }
    return true;
}

void failover_set_checkpoints(const struct failover *f, form_epoch *form)
{
    const form_epoch *a = f->job->record->accepted;
    size_t n = 0;
    bool newer = f->job->checkpoint && strcmp(f->job->checkpoint, a->checkpoint_path) != 0;
    form->checkpoint_path = newer ? f->job->checkpoint : a->checkpoint_path;
    form->older_checkpoints = agent_action_alloc(f->out, (a->n_older_checkpoints + 1) * sizeof(char *));
    if (newer && *a->checkpoint_path)
        form->older_checkpoints[n++] = a->checkpoint_path;
    for (size_t i = 0; i < a->n_older_checkpoints; i++)
        form->older_checkpoints[n++] = a->older_checkpoints[i];
    form->n_older_checkpoints = n;
}

void failover_set_worlds(const struct failover *f, form_epoch *form)
{
    const form_epoch *accepted = f->job->record->accepted;
    form->worlds = agent_action_alloc(f->out, (accepted->n_worlds + 1) * sizeof(uint32_t));
    form->n_worlds = 0;
    for (size_t i = 0; i < accepted->n_worlds; i++)
        if (accepted->worlds[i] < form->n_members)
            form->worlds[form->n_worlds++] = accepted->worlds[i];
    titan_assert(form->n_worlds <= accepted->n_worlds);
}
