/* restore.c - memory, then checkpoints, then nothing. */
#include "worker/elastic/restore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "worker/elastic/transfer.h"

const char *state_rung_name(enum state_rung rung)
{
    static const char *const names[] = {"init", "checkpoint", "memory", "replica", "buddy"};
    return (size_t)rung < ARRAY_SIZE(names) ? names[rung] : "?";
}

/* --- memory ---------------------------------------------------------------------------------------------------------
 */

/* How the source epoch cut the model. TITAN_ECONFLICT: the recipe never ran on so many. */
static titan_status open_source(struct restore *r, struct titan_error *err)
{
    struct mesh mesh;

    titan_status status = mesh_build(r->recipe, r->view->holders, &mesh, err);
    if (status == TITAN_OK)
        status = layout_of_recipe(r->recipe, r->model, &mesh, &r->from, err);
    if (status == TITAN_EINVAL)
        return titan_fail(err, TITAN_ECONFLICT, "state in memory: %d ranks cannot have held it", r->view->holders);
    return status;
}

/* The report of the furthest step, from one rank that has it to all: they are the ones to know that it is wanted. */
static titan_status share_report(struct restore *r, double *report, struct titan_error *err)
{
    const struct holdings *h = &r->holdings;
    const struct device_ops *dev = r->device->ops;
    const size_t bytes = (size_t)h->report_size * sizeof *report;
    const bool mine = h->report_from == r->view->rank;
    void *memory = NULL;

    TRY(dev->alloc(r->device->dev, bytes, &memory, err));
    titan_status status = mine ? dev->copy(r->s, memory, report, bytes) : TITAN_OK;
    if (status == TITAN_OK)
        status = r->ops->broadcast(r->comm, memory, bytes, h->report_from, r->s);
    if (status == TITAN_OK && !mine)
        status = dev->copy(r->s, report, memory, bytes);
    const titan_status sync = dev->stream_sync(r->s, err);
    dev->release(r->device->dev, memory);
    return status != TITAN_OK ? status : sync;
}

static titan_status roll_forward(struct restore *r, const double *report, struct titan_error *err)
{
    const struct holdings *h = &r->holdings;
    const struct train_state *own = r->brought.parts.own;
    _cleanup_free_ double *room = malloc((size_t)h->report_size * sizeof *room + 1);

    if (!room)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    if (h->report_from == r->view->rank)
        memcpy(room, report, (size_t)h->report_size * sizeof *room);
    TRY(share_report(r, room, err));
    TRY(failpoint("state.report", err));
    r->rolled_forward = true;
    if (!own || own->step == h->step)
        return TITAN_OK;
    tlog_info(r->log, "a prepared step is finished", "step=%lu report_of_rank=%d", (unsigned long)h->step,
              h->report_from);
    TRY(r->finish(r->arg, room, err));
    return failpoint("state.finished", err);
}

/* Replicas that differ are no state to go on from. A copy that differs from its ward's part, which is here too, is not
 * used, and the new epoch makes another. */
static titan_status compare_parts(struct restore *r, struct titan_error *err)
{
    struct verified v;

    const titan_status status = verify_parts(&r->from->mesh, &r->brought.parts, 0, r->device, r->ops, r->comm,
                                             r->view->world + r->view->leavers, r->s, &v, err);
    if (status == TITAN_ECORRUPT) { /* alike on all ranks */
        tlog_error(r->log, "the members' memory is damaged", "reason=\"%s\"", err ? err->msg : "");
        r->covered = false;
        return TITAN_OK;
    }
    TRY(status);
    if (v.copies_differ)
        tlog_error(r->log, "a keeper's copy is damaged", "reason=\"%s\"", v.why.msg);
    r->parameters = v.parameters;
    return TITAN_OK;
}

titan_status restore_agree(struct restore *r, struct titan_error *err)
{
    if (r->view->source != STATE_FROM_MEMORY)
        return TITAN_OK;
    titan_status status = open_source(r, err);
    if (status == TITAN_OK)
        status = holdings_gather(r->view, r->from, &r->brought, r->device, r->ops, r->comm, r->s, &r->holdings, err);
    if (status == TITAN_ECONFLICT) { /* alike on all ranks */
        tlog_warn(r->log, "the members' memory is no whole state", "reason=\"%s\"", err ? err->msg : "");
        return TITAN_OK;
    }
    TRY(status);
    r->covered = true;
    TRY(failpoint("state.agreed", err));
    if (r->holdings.behind > 0)
        TRY(roll_forward(r, r->brought.report, err));
    return compare_parts(r, err);
}

/* --- checkpoints ----------------------------------------------------------------------------------------------------
 */

#define WORDS 48 /* doubles that carry the words of an error */

/* What one rank says about a checkpoint that all have tried. */
struct vote {
    double damaged;
    char why[WORDS * sizeof(double)];
};

static bool is_damage(titan_status status)
{
    return status == TITAN_ECORRUPT || status == TITAN_ENOTFOUND || status == TITAN_EIO;
}

/* A damaged file may be read by some ranks only: all have to know. *ret_by: one that has seen it, -1: it is fine. */
static titan_status vote(struct restore *r, titan_status mine, const char *why, int *ret_by, struct vote *ret,
                         struct titan_error *err)
{
    const int ranks = r->view->world + r->view->leavers;
    struct vote me = {.damaged = is_damage(mine)};
    _cleanup_free_ struct vote *all = calloc((size_t)ranks, sizeof *all);

    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    (void)snprintf(me.why, sizeof me.why, "%s", why);
    TRY(gather_doubles(r->device, r->ops, r->comm, ranks, &me.damaged, sizeof me / sizeof(double), &all[0].damaged,
                       r->s, err));
    *ret_by = -1;
    for (int i = ranks - 1; i >= 0; i--)
        if (all[i].damaged != 0) {
            *ret_by = i;
            *ret = all[i];
        }
    return TITAN_OK;
}

/* TITAN_ECORRUPT on all ranks alike when it does not load on one of them. */
static titan_status try_checkpoint(struct restore *r, const char *path, struct train_state *to, struct titan_error *err)
{
    struct titan_error fault = {0};
    struct vote seen;
    int by;

    const titan_status status = to ? state_load(to, path, r->recipe_hash, r->stop, r->s, &fault) : TITAN_OK;
    if (status != TITAN_OK && !is_damage(status)) {
        if (err)
            *err = fault;
        return status;
    }
    TRY(vote(r, status, fault.msg, &by, &seen, err));
    if (by < 0)
        return TITAN_OK;
    if (!r->damaged[0])
        (void)snprintf(r->damaged, sizeof r->damaged, "%s", path);
    tlog_warn(r->log, "checkpoint refused", "path=\"%s\" rank=%d reason=\"%s\"", path, by, seen.why);
    return titan_fail(err, TITAN_ECORRUPT, "%s", seen.why);
}

static titan_status load_checkpoints(struct restore *r, struct train_state *to, struct titan_error *err)
{
    titan_status status = try_checkpoint(r, r->view->checkpoint_path, to, err);

    for (int i = 0; i < r->view->n_older && status == TITAN_ECORRUPT; i++)
        status = try_checkpoint(r, r->view->older_checkpoints[i], to, err);
    if (status == TITAN_ECORRUPT)
        titan_error_hint(err, "no checkpoint of this run loads; to begin again from step 0, remove them");
    return status;
}

titan_status restore_fill(struct restore *r, const struct layout *cut, struct train_state *to, struct titan_error *err)
{
    if (r->covered) {
        r->rung = r->holdings.rung;
        return state_transfer(&r->holdings, &r->brought.parts, cut, to, r->device, r->ops, r->comm, r->s,
                              &r->bytes_sent, err);
    }
    if (r->view->memory_only)
        return titan_fail(err, TITAN_EPEER,
                          "epoch %llu was formed without the coordinator, and its members do not hold the whole state",
                          (unsigned long long)r->view->epoch);
    if (r->view->checkpoint_path[0]) {
        r->rung = STATE_RUNG_CHECKPOINT;
        return load_checkpoints(r, to, err);
    }
    r->rung = STATE_RUNG_INIT;
    return to ? state_init(to, (uint64_t)r->recipe->training.seed, r->s, err) : TITAN_OK;
}

/* --- proof ----------------------------------------------------------------------------------------------------------
 */

/* Alike on all ranks: they have the same numbers. */
static titan_status compare_new(struct restore *r, const struct mesh *mesh, const struct parts *parts,
                                struct verified *ret, struct titan_error *err)
{
    TRY(verify_parts(mesh, parts, r->bytes_sent, r->device, r->ops, r->comm, r->view->world + r->view->leavers, r->s,
                     ret, err));
    if (ret->copies_differ)
        return titan_fail(err, TITAN_ECORRUPT, "%s", ret->why.msg);
    if (r->covered && ret->parameters != r->parameters)
        return titan_fail(err, TITAN_ECORRUPT, "parameters with hash %016lx became %016lx when the state moved",
                          (unsigned long)r->parameters, (unsigned long)ret->parameters);
    return TITAN_OK;
}

titan_status restore_verify(struct restore *r, const struct mesh *mesh, const struct parts *parts, struct verified *ret,
                            bool *ret_again, struct titan_error *err)
{
    *ret_again = false;
    const titan_status status = compare_new(r, mesh, parts, ret, err);
    if (status != TITAN_ECORRUPT || !r->covered)
        return status;
    tlog_error(r->log, "state from memory is damaged", "reason=\"%s\"", err ? err->msg : "");
    r->covered = false;
    *ret_again = true;
    return TITAN_OK;
}

void restore_clear(struct restore *r)
{
    holdings_clear(&r->holdings);
    layout_close(r->from);
    r->from = NULL;
}
