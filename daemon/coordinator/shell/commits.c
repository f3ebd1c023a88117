/* SPDX-License-Identifier: Apache-2.0 */
/* The core's decisions on their way to the store and to agents; and the timer that drives the core. */
#include "daemon/coordinator/shell/commits.h"
#include "daemon/coordinator/shell/disk_usage.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/slowest.h"
#include "daemon/common/job_files.h"
#include "daemon/coordinator/shell/sessions.h"
#include "state/job_quarantine.h"

#define RETRY_MS 250 /* wait until a refused commit is tried again */
#define BACKFILL_BYTES_MAX ((size_t)256 << 20)
#define BACKFILL_TAIL ((size_t)512 << 10) /* bytes at the end of the file that are read first */
#define METRICS_FLUSH_MS 100              /* longest delay until a step's metrics are stored and visible to followers */

struct commit {
    struct commit *next;
    struct coordinator *owner;
    struct batch batch;
    uint64_t sequence;
    int64_t made_mono;
    bool in_flight;
    struct set_aside *asides;
    const struct change *failed; /* the change that the store refused; NULL = the commit failed for another reason */
    shell_done done;
    void *arg;
};

struct core_time shell_now(const struct coordinator *c)
{
    const int64_t now = clock_mono_ms();
    return (struct core_time){
        .mono_ms = now, .wall_ms = clock_wall_ms(), .held_ms = c->commits ? now - c->commits->made_mono : 0};
}

struct metrics_write {
    struct coordinator *owner;
    size_t n;
    struct metric metrics[];
};

static titan_status write_metrics(struct db *db, void *arg, struct titan_error *err)
{
    const struct metrics_write *w = arg;
    for (size_t i = 0; i < w->n; i++)
        TRY(metric_put(db, &w->metrics[i], err));
    return TITAN_OK;
}

static void metrics_written(void *arg, const struct titan_error *err)
{
    struct metrics_write *w = arg;
    struct coordinator *c = w->owner;
    c->metrics_stored += w->n;
    if (err->status != TITAN_OK && !c->metrics_failed)
        tlog_warn(&c->log, "metrics are not stored", "reason=\"%s\"", err->msg);
    c->metrics_failed = err->status != TITAN_OK;
    uint64_t last = 0;
    for (size_t i = 0; i < w->n && !c->closing; i++) {
        if (w->metrics[i].job_id != last)
            c->options.observer->job_changed(c, w->metrics[i].job_id);
        last = w->metrics[i].job_id;
    }
    if (!c->closing)
        c->options.observer->metrics_stored(c);
    free(w);
}

void shell_flush_metrics(struct coordinator *c)
{
    size_t bytes = c->n_metrics * sizeof(*c->metrics);
    struct metrics_write *w = c->n_metrics ? malloc(sizeof(*w) + bytes) : NULL;
    if (w) {
        w->owner = c;
        w->n = c->n_metrics;
        memcpy(w->metrics, c->metrics, bytes);
        store_write_metrics(c->store, write_metrics, w, metrics_written);
    } else {
        c->metrics_stored += c->n_metrics; /* these metrics are lost */
    }
    c->n_metrics = 0;
}

/* --- what was not heard of: agents that were away pass no metrics on, but the workers write them down ------------- */

struct backfill {
    struct file_task task; /* must be first */
    struct backfill *next; /* next in the coordinator's list */
    struct coordinator *owner;
    uint64_t job_id, after;
    bool ended; /* the job has ended */
    char job_dir[PATH_MAX + 24];
    struct buf text;
    struct metric last;
    struct titan_error err;
};

static titan_status fill_metrics(struct db *db, void *arg, struct titan_error *err)
{
    struct backfill *b = arg;
    return metric_backfill(db, b->job_id, &b->text, &b->last, err);
}

static void backfill_free(struct file_task *k)
{
    struct backfill *b = (struct backfill *)(void *)k;
    buf_free(&b->text);
    free(b);
}

/* Ends a backfill, whatever its result, because a watcher of the job's metrics waits for the end. */
static void backfill_over(struct backfill *b, const struct titan_error *err)
{
    struct coordinator *c = b->owner;
    struct backfill **at = &c->backfills;
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    if (err->status != TITAN_OK &&
        err->status != TITAN_ENOTFOUND) /* ENOTFOUND: the file is on the job's node, or the job never ran */
        tlog_warn(&c->log, "metrics of an ended job may lack steps", "job=%llu reason=\"%s\"",
                  (unsigned long long)b->job_id, err->msg);
    if (!c->closing) {
        c->options.observer->job_changed(c, b->job_id);
        c->options.observer->metrics_stored(c);
    }
}

static titan_status fill_job(struct db *db, void *arg, struct titan_error *err)
{
    return job_fill(db, &((const struct backfill *)arg)->last, err);
}

static void job_filled(void *arg, const struct titan_error *err)
{
    struct backfill *b = arg;
    job_cache_drop(b->owner->jobs, b->job_id);
    backfill_over(b, err);
    backfill_free(&b->task);
}

static void metrics_filled(void *arg, const struct titan_error *err)
{
    struct backfill *b = arg;
    if (err->status == TITAN_OK && b->ended && b->last.step)
        store_write(b->owner->store, fill_job, b, job_filled);
    else
        job_filled(b, err);
}

/* Reads the job's metrics file, which may be on a file server. So this runs on a file thread, not on the store's writer
 * thread, for which every epoch waits. Of a long file only the end is read, from the line of a stored step. */
static void backfill_run(struct file_task *k)
{
    struct backfill *b = (struct backfill *)(void *)k;
    bool whole = false, reached = false;
    _cleanup_fd_ int folder = -1, fd = -1;
    if (job_files_folder(b->job_dir, "", false, &folder, &b->err) != TITAN_OK ||
        job_files_open(folder, "metrics.jsonl", O_RDONLY, &fd, &b->err) != TITAN_OK)
        return;
    for (size_t most = BACKFILL_TAIL; !whole && !reached; most = MIN(4 * most, BACKFILL_BYTES_MAX)) {
        buf_clear(&b->text);
        if (file_read_tail(fd, "metrics.jsonl", most, &b->text, &whole, &b->err) != TITAN_OK)
            return;
        const char *cut = whole || b->text.len == 0 ? NULL : memchr(b->text.data, '\n', b->text.len);
        if (cut)
            buf_consume(&b->text, (size_t)(cut - b->text.data) + 1);
        reached = metric_skip(&b->text, b->after) || most == BACKFILL_BYTES_MAX;
    }
}

static void backfill_read(struct file_task *k)
{
    struct backfill *b = (struct backfill *)(void *)k;
    if (b->err.status == TITAN_OK)
        store_write_metrics(b->owner->store, fill_metrics, b, metrics_filled);
    else
        metrics_filled(b, &b->err);
}

static void backfill_given_up(struct file_task *k, bool started)
{
    struct backfill *b = (struct backfill *)(void *)k;
    struct titan_error err = {0};
    (void)titan_fail(&err, TITAN_ETIMEDOUT, "'%s' does not answer", b->job_dir);
    backfill_over(b, &err);
    if (!started)
        backfill_free(k);
}

bool shell_fills_metrics(const struct coordinator *c, uint64_t job_id)
{
    const struct backfill *b = c->backfills;
    while (b && b->job_id != job_id)
        b = b->next;
    return b;
}

/* after: the last step that is stored already. */
static void backfill_metrics(struct coordinator *c, uint64_t job_id, uint64_t after, bool ended)
{
    static const struct file_calls backfill_calls = {
        .run = backfill_run, .done = backfill_read, .given_up = backfill_given_up, .free = backfill_free};
    struct backfill *b = c->closing ? NULL : calloc(1, sizeof(*b));
    if (!b)
        return;
    b->owner = c;
    b->job_id = job_id;
    b->after = after;
    b->ended = ended;
    (void)snprintf(b->job_dir, sizeof(b->job_dir), "%s/%llu", c->jobs_dir, (unsigned long long)job_id);
    shell_flush_metrics(c); /* metrics received so far come first */
    b->next = c->backfills;
    c->backfills = b;
    if (file_pool_add(c->files, &b->task, &backfill_calls, sizeof(*b), &b->err) != TITAN_OK)
        metrics_filled(b, &b->err);
}

#define ENDED_FILLED 64 /* jobs per start, because each job reads a file */

static bool fill_ended(const struct job *job, void *data)
{
    backfill_metrics(data, job->id, 0, true);
    return true;
}

void shell_fill_ended(struct coordinator *c)
{
    struct titan_error err = {0};
    if (job_list_without_loss(store_reader(c->store), ENDED_FILLED, fill_ended, c, &err) != TITAN_OK)
        tlog_warn(&c->log, "metrics of ended jobs may lack steps", "reason=\"%s\"", err.msg);
}

static void on_metrics_timer(uv_timer_t *timer)
{
    HANDLER("coordinator.metrics");
    shell_flush_metrics(timer->data);
}

static bool forms_an_epoch(const struct batch *batch)
{
    const struct change *k = batch->changes;
    while (k && k->kind != CHANGE_EPOCH_ADD)
        k = k->next;
    return k;
}

/* Runs on the writer thread. The store keeps the sequence number, so it moves with the transaction. */
static titan_status apply_commit(struct db *db, void *arg, struct titan_error *err)
{
    struct commit *k = arg;
    k->failed = NULL;
    TRY(db_run(db, err, "UPDATE meta SET value = ? WHERE key = 'turn' AND value = ?", "uu", k->sequence,
               k->sequence - 1));
    if (db_changes(db) != 1)
        return titan_fail(err, TITAN_EAGAIN, "job store: an earlier change is not in yet");
    if (forms_an_epoch(&k->batch))
        TRY(failpoint("coordinator.decided", err));
    for (const struct set_aside *a = k->asides; a; a = a->next)
        TRY(job_quarantine(db, a->job_id, a->reason, a->at_ms, err));
    k->failed = k->batch.changes;
    return change_apply_from(db, &k->failed, err);
}

static void commit_returned(void *arg, const struct titan_error *err);

static void send_commit(struct coordinator *c, struct commit *k)
{
    titan_assert(!k->in_flight && k->sequence < c->next_sequence);
    k->in_flight = true;
    c->in_flight++;
    store_write(c->store, apply_commit, k, commit_returned);
}

static void send_waiting(struct coordinator *c)
{
    for (struct commit *k = c->commits, *next; k; k = next) {
        next = k->next;
        send_commit(c, k);
    }
}

static void on_retry(uv_timer_t *timer)
{
    struct coordinator *c = timer->data;
    if (c->in_flight == 0)
        send_waiting(c);
}

struct start_parts {
    char run[64], user[256], *recipe;
    Titan__Internal__StartWorkers *start;
};

static void with_owner(const struct job *job, void *data)
{
    struct start_parts *p = data;
    (void)snprintf(p->user, sizeof(p->user), "%s", job->user ? job->user : "");
    p->start->user = p->user;
    p->start->has_uid = job->uid >= 0 && job->uid < UINT32_MAX;
    p->start->uid = p->start->has_uid ? (uint32_t)job->uid : 0;
}

static void release_messages(struct coordinator *c, const struct batch *batch)
{
    const Titan__Internal__CoordinatorMessage *last = NULL;
    struct rpc_packed *packed = NULL; /* `last`, packed */
    for (const struct batch_message *m = batch->messages; m; m = m->next) {
        struct start_parts parts = {.recipe = NULL};
        if (m->message->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_START) {
            /* Recipe and owner are added. The agents make the job's folder, so that a hanging share delays no other
             * job. */
            Titan__Internal__StartWorkers *start = m->message->start;
            const uint64_t job_id = start->job_id;
            struct titan_error err = {0};
            parts.start = start;
            (void)snprintf(parts.run, sizeof(parts.run), "job-%llu-%016llx", (unsigned long long)job_id,
                           (unsigned long long)store_id(c->store));
            start->run = parts.run;
            if (job_get(store_reader(c->store), job_id, with_owner, &parts, &err) == TITAN_OK &&
                job_recipe(store_reader(c->store), job_id, &parts.recipe, &err) == TITAN_OK)
                start->recipe = parts.recipe;
            else
                tlog_warn(&c->log, "recipe cannot be read", "job=%llu reason=\"%s\"", (unsigned long long)job_id,
                          err.msg);
        }
        if (m->message != last) {
            rpc_packed_free(packed);
            packed = rpc_packed_new(&m->message->base);
            last = m->message;
        }
        session_post_packed(c, m->session, packed);
        free(parts.recipe);
    }
    rpc_packed_free(packed);
    for (const struct batch_drop *d = batch->drops; d; d = d->next)
        session_drop(c, d->session);
}

static void stall(struct coordinator *c, const struct titan_error *err)
{
    if (!c->stalled)
        tlog_error(&c->log, "the job store refuses writes; trying again", "reason=\"%s\"", err->msg);
    if (!c->stalled || err->status != TITAN_EAGAIN)
        c->stall = *err;
    c->stalled = true;
}

/* A stand-in change of a job that is set aside, for the job cache. */
static struct change aside_change(uint64_t job_id)
{
    struct change change = {.kind = CHANGE_JOB_UPDATE};
    change.job.id = job_id;
    return change;
}

static void end_asides(struct coordinator *c, struct commit *k)
{
    for (struct set_aside *a = k->asides, *next; a; a = next) {
        const struct change change = aside_change(a->job_id);
        next = a->next;
        job_cache_end(c->jobs, &change);
        if (!c->closing)
            c->options.observer->job_changed(c, a->job_id);
        free(a);
    }
    k->asides = NULL;
}

static void finish_commit(struct coordinator *c, struct commit *k)
{
    titan_assert(c->commits == k && !k->in_flight && (!k->next || k->next->sequence == k->sequence + 1));
    c->commits = k->next;
    if (!c->commits)
        c->commits_tail = &c->commits;
    if (c->stalled && !c->commits) {
        c->stalled = false;
        tlog_info(&c->log, "the job store takes writes again", "%s", "");
    }
    if (!c->closing) {
        for (const struct change *x = k->batch.changes; x; x = x->next)
            if (x->has_event && x->kind != CHANGE_WORKER_PID)
                tlog_info(&c->log, x->event.type, "job=%llu epoch=%llu%s%s text=\"%s\"",
                          (unsigned long long)x->event.job_id, (unsigned long long)x->event.epoch,
                          *x->event.node ? " node=" : "", x->event.node, x->event.message);
        if (!core_fenced(c->core))
            release_messages(c, &k->batch);
        for (const struct change *x = k->batch.changes; x; x = x->next)
            if (x->kind == CHANGE_JOB_MOVE && sm_final(&job_sm, (int)x->job.state))
                backfill_metrics(c, x->job.id, 0, true);
        uint64_t last = UINT64_MAX;
        for (const struct change *x = k->batch.changes; x; x = x->next) {
            if (!x->has_event || x->event.job_id == last)
                continue;
            last = x->event.job_id;
            c->options.observer->job_changed(c, last);
        }
        disk_usage_stored(c, &k->batch);
    }
    job_cache_end(c->jobs, k->batch.changes);
    end_asides(c, k);
    batch_free(&k->batch);
    free(k);
}

/* Drops all decisions about the job: they reach neither the store nor agents. */
static void strip(struct coordinator *c, struct batch *batch, uint64_t job_id)
{
    struct change **at = &batch->changes;
    while (*at) {
        struct change *k = *at;
        if (change_job(k) != job_id) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        k->next = NULL;
        job_cache_end(c->jobs, k);
    }
    batch->changes_tail = at;
    struct batch_message **to = &batch->messages;
    while (*to) {
        const Titan__Internal__CoordinatorMessage *m = (*to)->message;
        /* 0: no job, or the message stops a worker, which stays right whatever becomes of the job */
        uint64_t about = 0;
        if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_START)
            about = m->start->job_id;
        else if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_FORM)
            about = m->form->job_id;
        else if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_REVOKE)
            about = m->revoke->job_id;
        else if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PAUSE)
            about = m->pause->job_id;
        else if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECKPOINT_COMMITTED)
            about = m->checkpoint_committed->job_id;
        if (about == job_id)
            *to = (*to)->next;
        else
            to = &(*to)->next;
    }
    batch->messages_tail = to;
}

/* The store refuses a decision of the core about one job as impossible. The job ends as it is stored, and nothing else
 * is lost. Returns false if the change is about no job, or the job's end is impossible too. */
static bool set_aside(struct coordinator *c, struct commit *k, const struct titan_error *err)
{
    const uint64_t job_id = k->failed ? change_job(k->failed) : 0;
    struct set_aside *a = job_id && err->status != TITAN_ECORRUPT ? calloc(1, sizeof(*a)) : NULL;
    struct batch batch;
    if (!a)
        return false;
    const struct core_time now = shell_now(c);
    const struct change change = aside_change(job_id);
    tlog_error(&c->log, "the job store contradicts the coordinator about a job, which ends", "job=%llu reason=\"%s\"",
               (unsigned long long)job_id, err->msg);
    a->job_id = job_id;
    a->at_ms = now.wall_ms;
    (void)snprintf(a->reason, sizeof(a->reason),
                   "quarantined: the job store contradicts what was decided about it (%s)", err->msg);
    a->next = k->asides;
    k->asides = a;
    job_cache_begin(c->jobs, &change);
    for (struct commit *x = k; x; x = x->next) /* the store refuses these commits, so the job's end comes first */
        strip(c, &x->batch, job_id);
    c->again = true;
    batch_init(&batch);
    core_quarantine(c->core, job_id, now, &batch);
    shell_commit(c, &batch, NULL, NULL);
    return true;
}

static void commit_returned(void *arg, const struct titan_error *err)
{
    struct commit *k = arg;
    struct coordinator *c = k->owner;
    titan_assert(k->in_flight && c->in_flight > 0);
    k->in_flight = false;
    c->in_flight--;
    if (k->done) {
        shell_done done = TAKE(k->done);
        done(k->arg, err);
    }
    if (err->status == TITAN_OK) {
        if (forms_an_epoch(&k->batch))
            (void)!failpoint("coordinator.stored", NULL);
        finish_commit(c, k);
        if (c->in_flight == 0 && !c->closing)
            send_waiting(c); /* batches that arrived while earlier batches were tried again */
        return;
    }
    if (c->again && err->status == TITAN_EAGAIN) {
        if (c->in_flight == 0 && !c->closing)
            c->again = false, send_waiting(c);
        return;
    }
    bool refused = err->status != TITAN_ENOSPC && err->status != TITAN_EIO && err->status != TITAN_EAGAIN &&
                   err->status != TITAN_ENOMEM && err->status != TITAN_ECANCELLED && err->status != TITAN_EPERM;
    if (refused && set_aside(c, k, err)) {
        if (c->in_flight == 0 && !c->closing)
            c->again = false, send_waiting(c);
        return;
    }
    if (refused) {
        /* Going on would act on the refused decision; a new process starts from the store. */
        tlog_error(&c->log, "the job store contradicts the coordinator", "reason=\"%s\"", err->msg);
        log_flush(LOG_LAST_MS);
        abort();
    }
    stall(c, err);
    if (c->in_flight == 0 && !c->closing)
        uv_timer_start(&c->retry_timer, on_retry, RETRY_MS, 0);
}

static void on_timer(uv_timer_t *timer)
{
    HANDLER("coordinator.tick");
    struct coordinator *c = timer->data;
    struct batch batch;
    batch_init(&batch);
    core_tick(c->core, shell_now(c), &batch);
    shell_commit(c, &batch, NULL, NULL);
}

void shell_set_timer(struct coordinator *c)
{
    if (c->closing)
        return;
    int64_t now = clock_mono_ms(), at = core_deadline(c->core);
    int64_t wait = at <= now ? 1 : MIN(at - now, (int64_t)core_tick_ms(c->core));
    uint64_t due = uv_timer_get_due_in(&c->timer);
    if (uv_is_active((uv_handle_t *)&c->timer) && due <= (uint64_t)wait)
        return;
    uv_timer_start(&c->timer, on_timer, (uint64_t)wait, 0);
}

void shell_commit(struct coordinator *c, struct batch *batch, shell_done done, void *arg)
{
    for (const struct batch_metric *m = batch->metrics; m; m = m->next) {
        if (c->n_metrics == METRICS_BUFFER)
            shell_flush_metrics(c);
        if (c->n_metrics == 0 && !c->closing)
            uv_timer_start(&c->metrics_timer, on_metrics_timer, METRICS_FLUSH_MS, 0);
        c->metrics[c->n_metrics++] = m->metric;
        c->metrics_taken++;
        titan_assert(c->n_metrics <= METRICS_BUFFER && c->metrics_stored + c->n_metrics <= c->metrics_taken);
    }
    for (const struct batch_gap *g = batch->gaps; g; g = g->next)
        if (!shell_fills_metrics(c, g->job_id))
            backfill_metrics(c, g->job_id, g->after, false);

    const bool answers = shell_may_answer(c);
    for (const struct batch_message *m = batch->answers; m && answers; m = m->next) /* they do not wait for the store */
        session_post(c, m->session, m->message);
    batch->answers = NULL;
    batch->answers_tail = &batch->answers;
    shell_set_timer(c);
    if (!batch->changes && !batch->messages && !batch->drops && !done) {
        batch_free(batch);
        return;
    }
    struct commit *k = calloc(1, sizeof(*k));
    titan_assert(k); /* without memory the process ends, as in batch_alloc, because a decision cannot be undone */
    k->owner = c;
    k->batch = *batch;
    /* Tails of empty lists point into the copied struct. */
    if (!k->batch.changes)
        k->batch.changes_tail = &k->batch.changes;
    if (!k->batch.messages)
        k->batch.messages_tail = &k->batch.messages;
    if (!k->batch.metrics)
        k->batch.metrics_tail = &k->batch.metrics;
    k->batch.answers_tail = &k->batch.answers;
    batch_init(batch);
    job_cache_begin(c->jobs, k->batch.changes);
    k->sequence = c->next_sequence++;
    k->made_mono = clock_mono_ms();
    k->done = done;
    k->arg = arg;
    *c->commits_tail = k;
    c->commits_tail = &k->next;
    if (!c->stalled)
        send_commit(c, k);
    else if (done)
        done(arg, &c->stall), k->done = NULL;
}

bool shell_may_answer(const struct coordinator *c)
{
    return !c->options.lead || c->options.lead->may_answer(c->options.lead->data);
}

titan_status shell_accepts(const struct coordinator *c, struct titan_error *err)
{
    if (!shell_may_answer(c))
        return titan_fail(err, TITAN_EUNREACHABLE, "another coordinator may lead by now");
    if (c->closing)
        return titan_fail(err, TITAN_EUNREACHABLE, "the coordinator is stopping");
    TRY(core_accepts(c->core, err));
    if (c->stalled) {
        if (err)
            *err = c->stall;
        return c->stall.status;
    }
    return TITAN_OK;
}

void commits_free(struct coordinator *c)
{
    for (struct commit *k = c->commits, *next; k; k = next) {
        next = k->next;
        end_asides(c, k);
        batch_free(&k->batch);
        free(k);
    }
}
