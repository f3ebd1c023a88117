#include "daemon/auth/enrol.h"
#include "daemon/coordinator/shell/shell.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/mac.h"
#include "daemon/api/checks.h"
#include "daemon/coordinator/shell/store_restore.h"
#include "state/backup.h"
#include "state/home.h"
#include "state/quarantine.h"

#define RETRY_MS 250         /* a store that refused is tried again */
#define METRICS_FLUSH_MS 100 /* a step's metrics are stored, and seen by followers, within this */
#define UNHEALTHY_MS 10000   /* a commit that takes longer */

/* A job that the store contradicts, ended with the commit it was found in. */
struct set_aside {
    struct set_aside *next;
    uint64_t job_id;
    int64_t at_ms;
    char reason[512];
};

struct commit {
    struct commit *next;
    struct coordinator *owner;
    struct batch batch;
    uint64_t turn;
    bool in_flight;
    struct set_aside *asides;
    const struct change *failed; /* the one the store refused; NULL = it was none */
    shell_done done;
    void *arg;
};

struct core_time shell_now(void)
{
    return (struct core_time){.mono_ms = clock_mono_ns() / 1000000, .wall_ms = clock_wall_ms()};
}

/* --- metrics --------------------------------------------------------------------------------------------------- */

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
            watch_poke(c, w->metrics[i].job_id);
        last = w->metrics[i].job_id;
    }
    if (!c->closing)
        watch_metrics_stored(c);
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
        c->metrics_stored += c->n_metrics; /* lost */
    }
    c->n_metrics = 0;
}

/* --- what was not heard of: agents and coordinators that were away pass nothing on, but the workers write it down */

struct backfill {
    struct coordinator *owner;
    uint64_t job_id;
    char path[PATH_MAX];
};

static titan_status fill_metrics(struct db *db, void *arg, struct titan_error *err)
{
    const struct backfill *b = arg;
    return metric_backfill(db, b->job_id, b->path, err);
}

static void metrics_filled(void *arg, const struct titan_error *err)
{
    struct backfill *b = arg;
    struct coordinator *c = b->owner;
    c->metrics_stored++;
    if (err->status != TITAN_OK &&
        err->status != TITAN_ENOTFOUND) /* not there: the job's node has it, or it never ran */
        tlog_warn(&c->log, "metrics of an ended job may lack steps", "job=%llu reason=\"%s\"",
                  (unsigned long long)b->job_id, err->msg);
    if (!c->closing) {
        watch_poke(c, b->job_id);
        watch_metrics_stored(c);
    }
    free(b);
}

/* A watcher of the job's metrics ends when this is done: it counts as one that is to be stored. */
static void backfill_metrics(struct coordinator *c, uint64_t job_id)
{
    struct backfill *b = c->closing ? NULL : calloc(1, sizeof(*b));
    if (!b)
        return;
    b->owner = c;
    b->job_id = job_id;
    if (snprintf(b->path, sizeof(b->path), "%s/%llu/metrics.jsonl", c->jobs_dir, (unsigned long long)job_id) >=
        (int)sizeof(b->path)) {
        free(b);
        return;
    }
    shell_flush_metrics(c); /* what was heard comes first */
    c->metrics_taken++;
    store_write_metrics(c->store, fill_metrics, b, metrics_filled);
}

static void on_metrics_timer(uv_timer_t *timer)
{
    shell_flush_metrics(timer->data);
}

static void take_metrics(struct coordinator *c, const struct batch *batch)
{
    for (const struct batch_metric *m = batch->metrics; m; m = m->next) {
        if (c->n_metrics == METRICS_BUFFER)
            shell_flush_metrics(c);
        if (c->n_metrics == 0 && !c->closing)
            uv_timer_start(&c->metrics_timer, on_metrics_timer, METRICS_FLUSH_MS, 0);
        c->metrics[c->n_metrics++] = m->metric;
        c->metrics_taken++;
    }
}

/* --- commits --------------------------------------------------------------------------------------------------- */

static bool forms_an_epoch(const struct batch *batch)
{
    const struct change *k = batch->changes;
    while (k && k->kind != CHANGE_EPOCH_ADD)
        k = k->next;
    return k;
}

/* Runs on the writer thread. The turn is kept in the store, so it moves with the transaction. */
static titan_status apply_commit(struct db *db, void *arg, struct titan_error *err)
{
    struct commit *k = arg;
    k->failed = NULL;
    TRY(db_run(db, err, "UPDATE meta SET value = ? WHERE key = 'turn' AND value = ?", "uu", k->turn, k->turn - 1));
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

/* The recipe goes along, and the job's folder is made, when its first workers start. */
static void complete_start(struct coordinator *c, Titan__Internal__StartWorkers *start, char *run, char **ret_recipe)
{
    struct titan_error err = {0};
    start->run = run;
    titan_status status = job_recipe(store_reader(c->store), start->job_id, ret_recipe, &err);
    if (status == TITAN_OK) {
        start->recipe = *ret_recipe;
        status = dir_make(start->directory, &err);
    }
    char path[PATH_MAX];
    if (status == TITAN_OK && snprintf(path, sizeof(path), "%s/recipe.toml", start->directory) < (int)sizeof(path) &&
        access(path, F_OK) != 0) {
        _cleanup_file_ FILE *f = fopen(path, "we");
        if (!f || fputs(*ret_recipe, f) == EOF)
            status = titan_fail_errno(&err, "'%s'", path);
    }
    if (status != TITAN_OK)
        tlog_warn(&c->log, "job folder is incomplete", "job=%llu reason=\"%s\"", (unsigned long long)start->job_id,
                  err.msg);
}

static void release_messages(struct coordinator *c, const struct batch *batch)
{
    const Titan__Internal__CoordinatorMessage *last = NULL;
    struct rpc_packed *packed = NULL; /* that one */
    for (const struct batch_message *m = batch->messages; m; m = m->next) {
        _cleanup_free_ char *recipe = NULL;
        char run[64];
        if (m->message->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_START) {
            (void)snprintf(run, sizeof(run), "job-%llu-%016llx", (unsigned long long)m->message->start->job_id,
                           (unsigned long long)store_id(c->store));
            complete_start(c, m->message->start, run, &recipe);
        }
        if (m->message != last) {
            rpc_packed_free(packed);
            packed = rpc_packed_new(&m->message->base);
            last = m->message;
        }
        session_tell_packed(c, m->session, packed);
    }
    rpc_packed_free(packed);
    for (const struct batch_drop *d = batch->drops; d; d = d->next)
        session_drop(c, d->session);
}

static void log_changes(struct coordinator *c, const struct batch *batch)
{
    for (const struct change *k = batch->changes; k; k = k->next) {
        const struct event *e = &k->event;
        if (k->has_event && k->kind != CHANGE_WORKER_PID)
            tlog_info(&c->log, e->type, "job=%llu epoch=%llu%s%s text=\"%s\"", (unsigned long long)e->job_id,
                      (unsigned long long)e->epoch, *e->node ? " node=" : "", e->node, e->message);
    }
}

static void poke_watchers(struct coordinator *c, const struct batch *batch)
{
    uint64_t last = UINT64_MAX;
    for (const struct change *k = batch->changes; k; k = k->next)
        if (k->kind == CHANGE_JOB_MOVE && sm_final(&job_sm, (int)k->job.state))
            backfill_metrics(c, k->job.id);
    for (const struct change *k = batch->changes; k; k = k->next) {
        if (!k->has_event || k->event.job_id == last)
            continue;
        last = k->event.job_id;
        watch_poke(c, last);
    }
}

static void stall(struct coordinator *c, const struct titan_error *err)
{
    if (!c->stalled)
        tlog_error(&c->log, "the job store refuses writes; trying again", "reason=\"%s\"", err->msg);
    if (!c->stalled || err->status != TITAN_EAGAIN)
        c->stall = *err;
    c->stalled = true;
}

/* Stands for the change of a job that is set aside, for who keeps jobs. */
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
            watch_poke(c, a->job_id);
        free(a);
    }
    k->asides = NULL;
}

static void finish_commit(struct coordinator *c, struct commit *k)
{
    titan_assert(c->commits == k);
    c->commits = k->next;
    if (!c->commits)
        c->commits_tail = &c->commits;
    if (c->stalled && !c->commits) {
        c->stalled = false;
        tlog_info(&c->log, "the job store takes writes again", "%s", "");
    }
    if (!c->closing) {
        log_changes(c, &k->batch);
        if (!core_fenced(c->core))
            release_messages(c, &k->batch);
        poke_watchers(c, &k->batch);
    }
    job_cache_end(c->jobs, k->batch.changes);
    end_asides(c, k);
    batch_free(&k->batch);
    free(k);
}

/* 0 = no job's, or an order to stop, which is right in any case. */
static uint64_t message_job(const Titan__Internal__CoordinatorMessage *m)
{
    switch (m->kind_case) {
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_START:
        return m->start->job_id;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_FORM:
        return m->form->job_id;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_REVOKE:
        return m->revoke->job_id;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PAUSE:
        return m->pause->job_id;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECKPOINT_COMMITTED:
        return m->checkpoint_committed->job_id;
    default:
        return 0;
    }
}

/* Nothing of what was decided about the job goes into the store or to agents any more. */
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
        if (message_job((*to)->message) == job_id)
            *to = (*to)->next;
        else
            to = &(*to)->next;
    }
    batch->messages_tail = to;
}

/* The core has decided what the store knows to be impossible, about one job. That job is ended by what is stored, and
 * nothing else is lost. False: it is about no job, or its end is impossible too. */
static bool set_aside(struct coordinator *c, struct commit *k, const struct titan_error *err)
{
    const uint64_t job_id = k->failed ? change_job(k->failed) : 0;
    struct set_aside *a = job_id && err->status != TITAN_ECORRUPT ? calloc(1, sizeof(*a)) : NULL;
    struct batch batch;
    if (!a)
        return false;
    const struct core_time now = shell_now();
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
    for (struct commit *x = k; x; x = x->next) /* those behind it have been refused, or will be: its turn comes first */
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
            send_waiting(c); /* what came while those before it were tried again */
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
        /* Going on would act on it; a new process starts from what is stored. */
        tlog_error(&c->log, "the job store contradicts the coordinator", "reason=\"%s\"", err->msg);
        abort();
    }
    stall(c, err);
    if (c->in_flight == 0 && !c->closing)
        uv_timer_start(&c->retry_timer, on_retry, RETRY_MS, 0);
}

static void set_timer(struct coordinator *c);

/* What does not wait for the store. */
static void send_answers(struct coordinator *c, struct batch *batch)
{
    for (const struct batch_message *m = batch->answers; m; m = m->next)
        session_tell(c, m->session, m->message);
    batch->answers = NULL;
    batch->answers_tail = &batch->answers;
}

void shell_commit(struct coordinator *c, struct batch *batch, shell_done done, void *arg)
{
    take_metrics(c, batch);
    send_answers(c, batch);
    set_timer(c);
    if (!batch->changes && !batch->messages && !batch->drops && !done) {
        batch_free(batch);
        return;
    }
    struct commit *k = calloc(1, sizeof(*k));
    titan_assert(k); /* as in batch_alloc: a decision cannot be taken back */
    k->owner = c;
    k->batch = *batch;
    /* The tails of empty lists point into the struct that was copied. */
    if (!k->batch.changes)
        k->batch.changes_tail = &k->batch.changes;
    if (!k->batch.messages)
        k->batch.messages_tail = &k->batch.messages;
    if (!k->batch.metrics)
        k->batch.metrics_tail = &k->batch.metrics;
    k->batch.answers_tail = &k->batch.answers;
    batch_init(batch);
    job_cache_begin(c->jobs, k->batch.changes);
    k->turn = c->next_turn++;
    k->done = done;
    k->arg = arg;
    *c->commits_tail = k;
    c->commits_tail = &k->next;
    if (!c->stalled)
        send_commit(c, k);
    else if (done)
        done(arg, &c->stall), k->done = NULL;
}

titan_status shell_accepts(const struct coordinator *c, struct titan_error *err)
{
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

/* --- time ------------------------------------------------------------------------------------------------------ */

static void on_timer(uv_timer_t *timer)
{
    struct coordinator *c = timer->data;
    struct batch batch;
    batch_init(&batch);
    core_tick(c->core, shell_now(), &batch);
    shell_commit(c, &batch, NULL, NULL);
}

static void set_timer(struct coordinator *c)
{
    if (c->closing)
        return;
    int64_t now = clock_mono_ns() / 1000000, at = core_deadline(c->core);
    int64_t wait = at <= now ? 1 : MIN(at - now, (int64_t)c->options.beat_ms);
    uint64_t due = uv_timer_get_due_in(&c->timer);
    if (uv_is_active((uv_handle_t *)&c->timer) && due <= (uint64_t)wait)
        return;
    uv_timer_start(&c->timer, on_timer, (uint64_t)wait, 0);
}

/* --- open and close -------------------------------------------------------------------------------------------- */

/* Nothing may be said any more: not that a write is durable, nor that it is not. Clients see their call broken off and
 * ask again with their key; agents and workers go on without a coordinator until the next one is there. */
static void on_store_failure(void *data, const struct titan_error *err)
{
    struct coordinator *c = data;
    tlog_error(&c->log, "the store cannot be trusted any more; ending, to start from what is on the disk",
               "reason=\"%s\" hint=\"%s\"", err->msg, err->hint);
    _exit(COORDINATOR_EXIT_STORE);
}

static titan_status init_store(struct db *db, void *arg, struct titan_error *err)
{
    const struct coordinator *c = arg;
    TRY(home_claim(db, c->state_dir, c->options.adopt_state, err));
    return db_run(db, err, "INSERT INTO meta VALUES ('turn', 0) ON CONFLICT DO NOTHING", "");
}

static titan_status end_bad_job(struct db *db, void *arg, struct titan_error *err)
{
    const struct set_aside *a = arg;
    return job_quarantine(db, a->job_id, a->reason, a->at_ms, err);
}

static void on_bad_job(uint64_t job_id, const char *why, void *data)
{
    struct set_aside **list = data, *a = calloc(1, sizeof(*a));
    titan_assert(a);
    a->job_id = job_id;
    a->at_ms = clock_wall_ms();
    (void)snprintf(a->reason, sizeof(a->reason), "quarantined: what the job store says of it cannot be (%s)", why);
    a->next = *list;
    *list = a;
}

/* Jobs of which the store says what cannot be are ended, and the others go on. */
static titan_status restore_core(struct coordinator *c, struct titan_error *err)
{
    struct set_aside *bad = NULL;
    titan_status status = core_restore_but(c->core, store_reader(c->store), shell_now(), on_bad_job, &bad, err);
    for (struct set_aside *a = bad, *next; a; a = next) {
        next = a->next;
        if (status == TITAN_OK) {
            tlog_error(&c->log, "a job is quarantined", "job=%llu reason=\"%s\"", (unsigned long long)a->job_id,
                       a->reason);
            status = store_write_now(c->store, end_bad_job, a, err);
        }
        free(a);
    }
    return status;
}

static titan_status open_core(struct coordinator *c, struct titan_error *err)
{
    struct db *db = store_reader(c->store);
    uint64_t last_worker = 0, last_job = 0;
    int64_t turn = 0, gone_job = 0, gone_worker = 0; /* numbers given out after the backup this store comes from */
    struct backup_origin origin;
    TRY(backup_origin(db, &origin, err));
    TRY(worker_last_id(db, &last_worker, err));
    TRY(job_last_id(db, &last_job, err));
    TRY(db_int(db, 0, &turn, err, "SELECT value FROM meta WHERE key = 'turn'", ""));
    TRY(db_int(db, 0, &gone_job, err, "SELECT value FROM meta WHERE key = 'last_job'", ""));
    TRY(db_int(db, 0, &gone_worker, err, "SELECT value FROM meta WHERE key = 'last_worker'", ""));
    last_job = MAX(last_job, (uint64_t)gone_job);
    last_worker = MAX(last_worker, (uint64_t)gone_worker);
    c->next_job_id = last_job + 1;
    c->next_turn = (uint64_t)turn + 1;
    uint8_t secret[MAC_BYTES];
    if (getrandom(secret, sizeof(secret), 0) != (ssize_t)sizeof(secret))
        return titan_fail_errno(err, "no random numbers");
    struct core_options options = {
        .term = store_term(c->store),
        .seed = (uint64_t)clock_wall_ms() ^ store_term(c->store) << 48,
        .secret = secret,
        .term_secret = store_secret(c->store),
        .next_worker_id = last_worker + 1,
        .jobs_dir = c->jobs_dir,
        .jobs_token = c->jobs_token,
        .beat_ms = c->options.beat_ms,
        .suspect_ms = c->options.suspect_ms,
        .confirm_ms = c->options.confirm_ms,
        .node_timeout_ms = c->options.node_timeout_ms,
        .quarantine_crashes = c->options.quarantine_crashes,
        .reachable_ms = c->options.reachable_ms,
        .away_ms = c->options.away_ms,
        .delegate_lease_ms = c->options.delegate_lease_ms,
        .restored_term = origin.term,
        .backup_worker = origin.backup_worker,
        .gone_worker = origin.gone_worker,
        .settled = origin.settled,
    };
    titan_status status = core_new(&options, &c->core, err);
    mac_wipe(secret, sizeof(secret));
    TRY(status);
    return restore_core(c, err);
}

static bool take_token(const struct token *token, void *data)
{
    auth_put_token(data, token);
    return true;
}

/* Who may what; and what is refused is counted. */
static titan_status open_auth(struct coordinator *c, const struct auth_options *options, struct titan_error *err)
{
    if (!options)
        return TITAN_OK;
    c->auth = auth_new(options);
    return token_list(store_reader(c->store), take_token, c->auth, err);
}

static void free_parts(struct coordinator *c)
{
    core_free(c->core);
    enrol_free(c->enrol);
    job_cache_free(c->jobs);
    auth_free(c->auth);
    audit_free(c->audit);
    free(c);
}

static void init_timer(struct coordinator *c, uv_timer_t *timer)
{
    uv_timer_init(c->loop, timer);
    timer->data = c;
    c->open_handles++;
}

titan_status coordinator_open(uv_loop_t *loop, const struct coordinator_options *options, struct coordinator **ret,
                              struct titan_error *err)
{
    struct coordinator *c = calloc(1, sizeof(*c));
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    c->loop = loop;
    log_init(&c->log, "coordinator", "%s", "");
    c->options = *options;
    c->options.beat_ms = options->beat_ms ? options->beat_ms : 50;
    c->options.check_ms = options->check_ms ? options->check_ms : 10000;
    c->options.max_pending_jobs = options->max_pending_jobs ? options->max_pending_jobs : 100000;
    c->started_wall_ms = clock_wall_ms();
    c->jobs = job_cache_new();
    c->audit = audit_new();
    c->commits_tail = &c->commits;
    c->next_session = c->next_log_request = 1;
    titan_status status = TITAN_OK;
    if (!realpath(options->state_dir, c->state_dir))
        status = titan_fail_errno(err, "state directory '%s'", options->state_dir);
    if (status == TITAN_OK)
        status = jobs_open(c->state_dir, options->jobs_dir, c->jobs_dir, c->jobs_token, err);
    if (status == TITAN_OK)
        status = store_open(loop, c->state_dir, &c->store, err);
    if (status == TITAN_OK)
        store_on_failure(c->store, on_store_failure, c);
    if (status == TITAN_OK && (status = store_write_now(c->store, init_store, c, err)) == TITAN_OK)
        status = open_core(c, err);
    if (status == TITAN_OK)
        status = enrol_open(c, &c->enrol, err);
    if (status == TITAN_OK)
        status = open_auth(c, options->auth, err);
    if (status == TITAN_OK)
        status = api_checks_open(c, err);
    if (status != TITAN_OK) {
        if (c->store)
            store_close(c->store, NULL, NULL);
        free_parts(c);
        return status;
    }
    init_timer(c, &c->timer);
    init_timer(c, &c->retry_timer);
    init_timer(c, &c->metrics_timer);
    init_timer(c, &c->audit_timer);
    c->open_handles++; /* the checks' */
    set_timer(c);
    *ret = c;
    return TITAN_OK;
}

void shell_part_closed(struct coordinator *c)
{
    if (--c->open_handles > 0)
        return;
    for (struct commit *k = c->commits, *next; k; k = next) {
        next = k->next;
        end_asides(c, k);
        batch_free(&k->batch);
        free(k);
    }
    void (*closed)(void *) = c->closed;
    void *data = c->closed_data;
    free_parts(c);
    if (closed)
        closed(data);
}

static void on_handle_closed(uv_handle_t *handle)
{
    shell_part_closed(handle->data);
}

static void on_checks_closed(void *data)
{
    shell_part_closed(data);
}

static void on_store_closed(void *data)
{
    struct coordinator *c = data;
    uv_close((uv_handle_t *)&c->timer, on_handle_closed);
    uv_close((uv_handle_t *)&c->retry_timer, on_handle_closed);
    uv_close((uv_handle_t *)&c->metrics_timer, on_handle_closed);
    uv_close((uv_handle_t *)&c->audit_timer, on_handle_closed);
    enrol_close(c->enrol);
}

titan_status coordinator_identity(struct coordinator *c, const struct rpc_tls *files, struct titan_error *err)
{
    return enrol_renew_own(c->enrol, files, err);
}

void coordinator_serves_tls(struct coordinator *c, const char *address)
{
    enrol_serves(c->enrol, address);
}

void coordinator_close(struct coordinator *c, void (*done)(void *), void *data)
{
    c->closed = done;
    c->closed_data = data;
    shell_flush_metrics(c);
    api_audit_flush(c, true);
    c->closing = true;
    uv_timer_stop(&c->timer);
    uv_timer_stop(&c->retry_timer);
    uv_timer_stop(&c->metrics_timer);
    uv_timer_stop(&c->audit_timer);
    beats_close(c);
    checks_close(c->checks, on_checks_closed, c);
    store_close(c->store, on_store_closed, c);
}

bool coordinator_healthy(const struct coordinator *c)
{
    return store_lag_ms(c->store) < UNHEALTHY_MS;
}
