/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoints.c - starting, collecting and retrying checkpoints between steps. */
#include "worker/epoch/checkpoints.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/progress.h"
#include "worker/checkpoint/writer.h"
#include "worker/elastic/fold.h"
#include "worker/epoch/attempt.h"
#include "worker/epoch/due.h"
#include "worker/epoch/epoch.h"

int checkpoints_retry_ms(const struct recipe *r)
{
    return (int)MIN(r->fault_tolerance.checkpoint_retry_s * 1000, (int64_t)INT_MAX);
}

/* checkpoint.export_dtype in the files' spelling. "float32" casts nothing: bf16 weights are exported as they are. */
static const char *export_dtype(const struct recipe *r)
{
    const char *word = r->checkpoint.export_dtype;
    if (strcmp(word, "float16") == 0)
        return "F16";
    return strcmp(word, "bfloat16") == 0 || recipe_master_bytes(r) == 2 ? "BF16" : "F32";
}

static titan_status open_writer(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    const struct writer_options options = {.dir = t->folder.path,
                                           .device = t->folder.held.device,
                                           .inode = t->folder.held.inode,
                                           .run = t->members->run_id,
                                           .rank = e->view.rank,
                                           .world = e->view.world,
                                           .keep = (int)t->recipe->checkpoint.keep_latest_k,
                                           .hf_dtype =
                                               t->recipe->checkpoint.last_save_in_hf ? export_dtype(t->recipe) : NULL,
                                           .layout = e->state.shards.own->layout,
                                           .types = e->state.shards.own->types,
                                           .memory_of = &t->device};
    struct checkpoint_writer *opened = NULL;

    titan_assert(!atomic_load(&e->checkpoints.writer));
    TRY(checkpoint_writer_open(&options, &opened, err));
    atomic_store(&e->checkpoints.writer, opened);
    return TITAN_OK;
}

/* Removes checkpoints that a killed rank 0 left. It removes unfinished checkpoints, because this epoch has not begun
 * any, and complete checkpoints beyond the kept number. But if the members go on from memory, no member has read a
 * file, so complete checkpoints are removed only after the next checkpoint. */
static void tidy_folder(const struct epoch *e)
{
    const struct trainer *t = e->t;
    const struct train_state *const st = e->state.shards.own;
    const int at = t->folder.held.at;
    struct checkpoint_info of = {.step = st->step, .recipe_hash = t->recipe_hash, .skipped = st->skipped};
    struct spared_checkpoints spared;
    struct titan_error err = {0};

    if (e->view.rank != 0 || at < 0)
        return;
    checkpoint_sweep(at, e->view.epoch + 1);
    (void)snprintf(of.owner, sizeof of.owner, "%s", t->recipe->job.owner);
    if (!e->state.restore.covered &&
        checkpoint_prune(at, t->folder.path, (int)t->recipe->checkpoint.keep_latest_k, &of, &spared, &err) != TITAN_OK)
        tlog_warn(&t->log, "old checkpoint not removed", "folder=\"%s\" reason=\"%s\"", t->folder.path, err.msg);
}

titan_status checkpoints_open(struct epoch *e, struct titan_error *err)
{
    titan_assert(e->state.installed);
    if (!recipe_writes_checkpoints(e->t->recipe))
        return TITAN_OK;
    tidy_folder(e);
    return open_writer(e, err);
}

void checkpoints_cancel(struct epoch *e)
{
    struct checkpoint_writer *writer = atomic_load(&e->checkpoints.writer);
    if (writer)
        checkpoint_writer_cancel(writer);
}

void checkpoints_await_copy(struct epoch *e)
{
    struct checkpoint_writer *writer = atomic_load(&e->checkpoints.writer);
    const int64_t begin = clock_mono_ns();

    if (!writer)
        return;
    step_clock_lap(&e->step.clock, STEP_COMPUTE);
    checkpoint_writer_await_copy(writer);
    step_clock_lap(&e->step.clock, STEP_CHECKPOINT);
    e->checkpoints.waited_ns += clock_mono_ns() - begin;
}

void checkpoints_close(struct epoch *e)
{
    checkpoint_writer_close(atomic_load(&e->checkpoints.writer));
    atomic_store(&e->checkpoints.writer, NULL);
}

/* --- one checkpoint ----------------------------------------------------------------------------------------------- */

/* Reports a checkpoint that the writer has finished. A failed checkpoint does not end the epoch, unless the run needs
 * the checkpoint. The failure is kept in c->fault. This call fails only if the epoch ends. */
static titan_status collect(struct epoch *e, bool wait, struct titan_error *err)
{
    struct trainer *t = e->t;
    struct checkpoints *const c = &e->checkpoints;
    struct titan_error fault = {0};
    struct written_checkpoint w;
    bool fresh;

    const titan_status status = checkpoint_writer_collect(atomic_load(&c->writer), wait, &fresh, &w, &fault);
    if (!fresh)
        return TITAN_OK;
    if (status == TITAN_OK) {
        if (w.step >= e->published.reports[1].step) /* all ranks have written their shards of the checkpoint */
            publish_step(e);
        if (w.step > 0)
            tlog_info(&t->log, "checkpoint written", "step=%lu bytes=%lu waited_ms=%.2f written_ms=%.1f path=\"%s\"",
                      (unsigned long)w.step, (unsigned long)w.bytes, (double)e->checkpoints.waited_ns / 1e6,
                      (double)w.ns / 1e6, w.path);
        if (w.step > 0) /* rank 0 reports; a checkpoint of step 0 has no training to report */
            t->members->ops->checkpoint_written(t->members,
                                                &(struct checkpoint_report){.step = w.step,
                                                                            .bytes = w.bytes,
                                                                            .path = w.path,
                                                                            .world = w.world,
                                                                            .resumable_step = w.spared.resumable,
                                                                            .sound_step = w.spared.sound});
        return TITAN_OK;
    }
    tlog_error(&t->log, "checkpoint not written", "step=%lu reason=\"%s\"", (unsigned long)w.step, fault.msg);
    if (status == TITAN_EREVOKED) { /* the epoch ended before the checkpoint was written */
        if (err)
            *err = fault;
        return status;
    }
    t->members->ops->checkpoint_failed(t->members, w.step, t->folder.path, fault.msg, false);
    c->fault = fault;
    c->unreported = e->view.rank != 0;
    return TITAN_OK;
}

unsigned checkpoints_outcome(const struct epoch *e)
{
    return e->checkpoints.unreported ? PART_FAILED : 0;
}

/* Collective. Tells rank 0 which ranks could not write their part of the current checkpoint. So rank 0 does not wait
 * for these parts. A rank that cannot write into the folder cannot leave a message there either. */
static titan_status share_failures(struct epoch *e, struct titan_error *err)
{
    struct checkpoints *const c = &e->checkpoints;
    struct checkpoint_writer *const writer = atomic_load(&c->writer);
    const int world = e->view.world;
    _cleanup_free_ struct attempt *all = calloc((size_t)world, sizeof *all);
    struct attempt a = {.failed = c->unreported};

    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "checkpoint: out of memory");
    titan_assert(writer);
    (void)snprintf(a.why, sizeof a.why, "%s", c->unreported ? c->fault.msg : "");
    const struct peer_ranks members = epoch_members(e);
    TRY(attempt_gather(&members, &a, all, err));
    c->unreported = false;
    for (int r = 1; r < world && e->view.rank == 0; r++)
        if (all[r].failed != 0)
            checkpoint_writer_part_failed(writer, r, all[r].why);
    return TITAN_OK;
}

/* Collective. Waits until the current checkpoint is complete or has failed. First each rank waits for its own part,
 * then rank 0 waits for all parts. */
static titan_status settle(struct epoch *e, struct titan_error *err)
{
    if (!e->checkpoints.under_way)
        return TITAN_OK;
    if (e->view.rank != 0)
        TRY(collect(e, true, err));
    TRY(share_failures(e, err));
    if (e->view.rank == 0)
        checkpoint_writer_parts_over(atomic_load(&e->checkpoints.writer));
    TRY(collect(e, true, err));
    e->checkpoints.under_way = false;
    return TITAN_OK;
}

void checkpoints_finish(struct epoch *e, bool failed)
{
    if (!atomic_load(&e->checkpoints.writer))
        return;
    if (failed)
        checkpoints_cancel(e);
    /* Failures have been reported already, and a peer's death is handled by the next epoch. So the status is
     * dropped. */
    (void)!(failed ? collect(e, true, NULL) : settle(e, NULL));
}

/* Checks, at a checkpoint, whether the copies of the state are still the same. If a buddy's copy differs, all copies
 * are made again. If data-parallel replicas differ, this can only be reported. Every rank comes to the same result. */
static titan_status verify_replicas(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    struct buddy *const buddy = e->state.buddy;
    struct titan_error fault = {0};
    struct verified v;

    if (!buddy && mesh_group_size(&e->plan.plan->mesh, GROUP_REPLICATE) == 1)
        return TITAN_OK;
    if (buddy)
        TRY(buddy_sync(buddy, err));
    const struct peer_ranks members = epoch_members(e);
    const titan_status status = verify_shards(&e->plan.plan->mesh, &e->state.shards, 0, &members, &v, &fault);
    if (status == TITAN_ECORRUPT) {
        tlog_error(&t->log, "replicas have drifted apart", "step=%lu reason=\"%s\"",
                   (unsigned long)e->state.shards.own->step, fault.msg);
        return TITAN_OK;
    }
    if (status != TITAN_OK && err)
        *err = fault;
    TRY(status);
    if (!v.copies_differ)
        return TITAN_OK;
    if (!buddy) /* there are no copies, so replicas differ */
        return titan_fail(err, TITAN_ECONFLICT, "%s", v.why.msg);
    tlog_error(&t->log, "a buddy's copy is damaged, all are made again", "step=%lu reason=\"%s\"",
               (unsigned long)e->state.shards.own->step, v.why.msg);
    return buddy_seed(buddy, e->state.shards.own, err);
}

/* Agrees on the result of an attempt. a: has this rank's commands; this call adds this rank's result. */
static titan_status agree_on(struct epoch *e, struct attempt *a, titan_status status, const char *why,
                             struct titan_error *err)
{
    const struct peer_ranks members = epoch_members(e);

    a->failed = status != TITAN_OK;
    (void)snprintf(a->why, sizeof a->why, "%s", why[0] ? why : titan_status_text(status));
    return attempt_agree(&members, a, err);
}

/* Opens the writer for a commanded checkpoint of a recipe without checkpoints. All ranks take the folder before any
 * rank writes in it. If a rank cannot take the folder, no writer is opened, and the reason is reported. */
static titan_status open_commanded(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    struct titan_error fault = {0};
    struct attempt a = {0};
    const uint64_t step = e->state.shards.own->step;

    if (run_folder_take_late(t, &fault) == TITAN_EREVOKED) {
        if (err)
            *err = fault;
        return TITAN_EREVOKED;
    }
    tidy_folder(e); /* no rank writes yet */
    TRY(agree_on(e, &a, fault.status, fault.msg, err));
    if (a.failed == 0)
        return open_writer(e, err);
    (void)titan_fail(&e->checkpoints.fault, TITAN_EIO, "%s", a.why);
    tlog_error(&t->log, "checkpoint not written", "step=%lu reason=\"%s\"", (unsigned long)step, a.why);
    if (e->view.rank == 0)
        t->members->ops->checkpoint_failed(t->members, step, t->folder.path, a.why, false);
    return TITAN_OK;
}

/* Starts a checkpoint. If there is no writer afterwards, the folder could not be taken; the reason is in
 * e->checkpoints.fault. */
static titan_status start(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    const struct train_state *st = e->state.shards.own;
    const struct recipe *r = t->recipe;
    const bool last = st->step >= (uint64_t)r->training.steps;
    const bool model_only = st->step == 0 || (last && r->checkpoint.last_save_model_only);
    struct checkpoint_info info = {.step = st->step,
                                   .epoch = e->view.epoch,
                                   .tokens = st->tokens,
                                   .world = e->view.world,
                                   .recipe_hash = t->recipe_hash,
                                   .skipped = st->skipped,
                                   .recipe = t->recipe_text.data,
                                   .model_only = model_only,
                                   .identity = t->identity};
    _cleanup_(buf_free) struct buf metrics = BUF_INIT;
    const int64_t begin = clock_mono_ns();

    if (e->published.reports[1].step == st->step && st->step > 0)
        metrics_print_step(&e->published.reports[1], &metrics);
    info.identity.step = st->step;
    info.identity.samples = identity_samples(&t->identity, r, st->step);
    info.identity.moved =
        info.identity.samples != st->step * (uint64_t)r->training.global_batch_size || info.identity.data.first > 0;
    (void)snprintf(info.run, sizeof info.run, "%s", t->members->run_id);
    (void)snprintf(info.owner, sizeof info.owner, "%s", t->recipe->job.owner);
    if (metrics.len < sizeof info.metrics)
        (void)snprintf(info.metrics, sizeof info.metrics, "%s", metrics.len ? metrics.data : "");
    (void)snprintf(info.dtype, sizeof info.dtype, "%s", model_only && st->step > 0 ? export_dtype(r) : "");
    titan_assert(e->state.installed && e->checkpoints.newest <= st->step);
    if (e->checkpoints.newest == st->step && st->step > 0)
        return TITAN_OK;
    if (!atomic_load(&e->checkpoints.writer))
        TRY(open_commanded(e, err));
    if (!atomic_load(&e->checkpoints.writer))
        return TITAN_OK;
    TRY(settle(e, err)); /* the previous checkpoint */
    e->checkpoints.fault = (struct titan_error){0};
    TRY(verify_replicas(e, err));
    if (st->layout->kinds.each) {
        const struct mesh *const mesh = &e->plan.plan->mesh;
        const struct peer_ranks replicas = {.device = &t->device,
                                            .ops = e->groups.ops,
                                            .comm = e->groups.comms[CHANNEL_REPLICATE],
                                            .n = mesh_group_size(mesh, GROUP_REPLICATE),
                                            .s = t->streams[STREAM_COMPUTE]};
        TRY(fold_replicas(st, &replicas, checkpoint_writer_means(atomic_load(&e->checkpoints.writer)), err));
    }
    TRY(checkpoint_writer_start(atomic_load(&e->checkpoints.writer), st, &info, t->streams[STREAM_COMPUTE], err));
    e->checkpoints.newest = st->step;
    e->checkpoints.under_way = true;
    e->checkpoints.waited_ns = clock_mono_ns() - begin;
    return TITAN_OK;
}

/* --- one that must be --------------------------------------------------------------------------------------------- */

#define RETRY_MS 500 /* first wait between two attempts; RETRY_MOST_MS: the longest */
#define RETRY_MOST_MS 5000

titan_status checkpoints_write_surely(struct epoch *e, bool *ret_stopped, struct titan_error *err)
{
    struct membership *m = e->t->members;
    const atomic_int *const revoked = m->ops->revoked(m);
    const int most_ms = checkpoints_retry_ms(e->t->recipe);
    int spent_ms = 0;

    *ret_stopped = false;
    for (;;) {
        const struct titan_error *const fault = &e->checkpoints.fault;
        const unsigned commands = m->ops->commands(m) & (COMMAND_STOP | COMMAND_MUST);
        struct attempt a = {.stop = commands == COMMAND_STOP, .must = commands == (COMMAND_STOP | COMMAND_MUST)};
        TRY(start(e, err));
        TRY(settle(e, err));
        TRY(agree_on(e, &a, fault->status, fault->msg, err));
        publish_step(e); /* all ranks have the step, because they have agreed on this attempt */
        if (a.failed == 0)
            return TITAN_OK;
        e->checkpoints.newest = 0;
        const int wait = MIN(MAX(spent_ms, RETRY_MS), RETRY_MOST_MS);
        *ret_stopped = a.must != 0 ? spent_ms + wait > most_ms : a.stop != 0;
        if (*ret_stopped)
            return TITAN_OK;
        if (spent_ms + wait > most_ms)
            return titan_fail(err, TITAN_EINVAL, "the last checkpoint, of step %lu, could not be written in %d s: %s",
                              (unsigned long)e->state.shards.own->step, spent_ms / 1000, a.why);
        spent_ms += wait;
        progress_wait_begin();
        for (int waited = 0; waited < wait && !atomic_load(revoked); waited += 20)
            (void)nanosleep(&(struct timespec){.tv_nsec = 20 * 1000000}, NULL);
        progress_wait_end();
        if (atomic_load(revoked))
            return titan_fail(err, TITAN_EREVOKED, "epoch %lu is revoked", (unsigned long)e->view.epoch);
    }
}

static titan_status write_due(struct epoch *e, bool last, bool *ret_stopped, struct titan_error *err)
{
    const unsigned commands = e->step.outcome.commands;
    const struct train_state *const st = e->state.shards.own;
    const struct due_step step = {.number = st->step,
                                  .last = last,
                                  .skipped = st->skipped.in_a_row > 0,
                                  .put_off = e->checkpoints.put_off,
                                  .agreed = commands};
    enum checkpoint_due due = checkpoint_due(e->t->recipe, &step);

    e->checkpoints.put_off = due == CHECKPOINT_PUT_OFF;
    if (due == CHECKPOINT_PUT_OFF)
        due = CHECKPOINT_NOT_DUE;
    *ret_stopped = false;
    const bool leaves = (commands & (COMMAND_STOP | COMMAND_CHECKPOINT)) == (COMMAND_STOP | COMMAND_CHECKPOINT);
    if ((last || leaves) && due != CHECKPOINT_NOT_DUE)
        return checkpoints_write_surely(e, ret_stopped, err);
    if (commands & PART_FAILED)
        TRY(share_failures(e, err));
    if (due != CHECKPOINT_NOT_DUE)
        TRY(start(e, err));
    if (!atomic_load(&e->checkpoints.writer))
        return TITAN_OK;
    return due == CHECKPOINT_WAITED ? settle(e, err) : collect(e, false, err);
}

titan_status checkpoints_after_step(struct epoch *e, bool last, bool *ret_stopped, struct titan_error *err)
{
    const titan_status status = write_due(e, last, ret_stopped, err);

    step_clock_lap(&e->step.clock, STEP_CHECKPOINT);
    return status;
}
