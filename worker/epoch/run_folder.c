/* SPDX-License-Identifier: Apache-2.0 */
/* run_folder.c - takes the run's checkpoint folder, and decides what a failure to take it means. */
#include "worker/epoch/run_folder.h"

#include <stdio.h>

#include "worker/epoch/epoch.h"

#define FOLDER_WAIT_MS 2000 /* for processes of the previous run that are about to end */

void run_folder_init(struct run_folder *f)
{
    *f = (struct run_folder){.held = FOLDER_NONE};
}

int run_folder_stall_ms(const struct recipe *r)
{
    return (int)(r->fault_tolerance.checkpoint_stall_s * 1000);
}

/* Takes the folder. Gives up when *stop is not zero; stop NULL: never. */
static titan_status take(struct trainer *t, const atomic_int *stop, struct titan_error *err)
{
    struct folder_owner owner = {
        .recipe = t->recipe, .text = t->recipe_text.data, .recipe_hash = t->recipe_hash, .wait_ms = FOLDER_WAIT_MS};
    const struct apart_limit limit = {run_folder_stall_ms(t->recipe), stop};

    (void)snprintf(owner.id, sizeof owner.id, "%s", t->members->run_id);
    (void)snprintf(owner.name, sizeof owner.name, "%s", t->members->run_name);
    (void)!folder_user_parse(t->recipe->job.owner, &owner.user);
    return folder_take(t->folder.path, &owner, &limit, &t->log, &t->folder.held, err);
}

titan_status run_folder_take(struct trainer *t, struct titan_error *err)
{
    struct run_folder *const f = &t->folder;
    struct titan_error fault = {0};

    titan_assert(!f->path[0]);
    TRY(recipe_checkpoint_folder(t->recipe, t->members->job_dir, f->path, err));
    if (recipe_writes_checkpoints(t->recipe) && take(t, NULL, &fault) != TITAN_OK)
        f->fault = fault;
    return TITAN_OK;
}

titan_status run_folder_take_late(struct trainer *t, struct titan_error *err)
{
    titan_assert(t->folder.path[0]);
    return t->folder.held.at >= 0 ? TITAN_OK : take(t, t->members->ops->revoked(t->members), err);
}

void run_folder_leave(struct trainer *t)
{
    folder_leave(&t->folder.held);
}

/* A run that would lose no training ends at once. A run that already trains goes on, because the next checkpoint may
 * work. If the folder is taken but the state came from other members' memory, these members hold the folder. */
titan_status run_folder_judge(struct epoch *e, bool filled, struct titan_error *err)
{
    struct trainer *t = e->t;
    struct titan_error *const fault = &t->folder.fault;
    const enum recovery_source recovery_source = e->state.restore.recovery_source;
    const bool conflict = fault->status == TITAN_ECONFLICT, from_memory = e->state.restore.covered;

    titan_assert(!filled || e->state.installed);
    if (fault->status == TITAN_OK)
        return TITAN_OK;
    if (e->view.epoch == 1 || (filled && (recovery_source == RECOVERY_SOURCE_INIT || (conflict && !from_memory)))) {
        /* Another attempt would end the same way: TITAN_EINVAL tells the agent not to start the worker again. */
        const titan_status status = t->members->solo_world > 0 ? fault->status : TITAN_EINVAL;
        if (err) {
            *err = *fault;
            err->status = status;
        }
        return status;
    }
    if (filled) {
        tlog_error(&t->log, "checkpoint folder not taken", "reason=\"%s\"", fault->msg);
        if (!conflict)
            t->members->ops->checkpoint_failed(t->members, e->state.shards.own->step, t->folder.path, fault->msg,
                                               false);
        *fault = (struct titan_error){0}; /* reported */
    }
    return TITAN_OK;
}
