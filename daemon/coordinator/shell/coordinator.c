/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/shell/enrol.h"
#include "daemon/coordinator/shell/commits.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mac.h"
#include "daemon/auth/signing_key.h"
#include "daemon/coordinator/shell/disk_usage.h"
#include "daemon/coordinator/shell/log_head.h"
#include "daemon/coordinator/shell/store_restore.h"
#include "daemon/coordinator/shell/webhooks.h"
#include "proto/ranges.h"
#include "state/backup.h"
#include "state/home.h"
#include "state/job_quarantine.h"

#define UNHEALTHY_MS 10000 /* a commit that takes longer makes the coordinator unhealthy */

/* No answer may leave any more, neither that a write is durable nor that it is not. Clients see a broken call and ask
 * again with their idempotency key. Agents and workers go on without a coordinator until the next one is there. */
static void on_store_failure(void *data, const struct titan_error *err)
{
    struct coordinator *c = data;
    if (c->options.lead)
        c->options.lead->lost(c->options.lead->data, err);
    tlog_error(&c->log, "the store cannot be trusted any more; ending, to start from what is on the disk",
               "reason=\"%s\" hint=\"%s\"", err->msg, err->hint);
    log_flush(LOG_LAST_MS);
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

static titan_status open_core(struct coordinator *c, struct titan_error *err)
{
    struct db *db = store_reader(c->store);
    uint64_t last_worker = 0, last_job = 0;
    int64_t sequence = 0, gone_job = 0, gone_worker = 0; /* numbers given out after the backup of this store */
    struct backup_origin origin;
    TRY(backup_origin(db, &origin, err));
    TRY(worker_last_id(db, &last_worker, err));
    TRY(job_last_id(db, &last_job, err));
    TRY(db_int(db, &sequence, err, "SELECT value FROM meta WHERE key = 'turn'", ""));
    TRY(db_int(db, &gone_job, err, "SELECT value FROM meta WHERE key = 'last_job'", ""));
    TRY(db_int(db, &gone_worker, err, "SELECT value FROM meta WHERE key = 'last_worker'", ""));
    TRY(db_int(db, &c->backup_at_ms, err, "SELECT value FROM meta WHERE key = 'backup_at_ms'", ""));
    last_job = MAX(last_job, (uint64_t)gone_job);
    last_worker = MAX(last_worker, (uint64_t)gone_worker);
    if (last_job >= RANGE_ID_MAX || last_worker >= RANGE_ID_MAX)
        return titan_fail(err, TITAN_ECORRUPT,
                          "job store: numbers up to job %" PRIu64 " and worker %" PRIu64 " are given out", last_job,
                          last_worker);
    c->next_job_id = last_job + 1;
    c->next_sequence = (uint64_t)sequence + 1;
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
        .heartbeat_ms = c->options.heartbeat_ms,
        .idle_heartbeat_ms = c->options.idle_heartbeat_ms,
        .suspect_ms = c->options.suspect_ms,
        .confirm_ms = c->options.confirm_ms,
        .node_timeout_ms = c->options.node_timeout_ms,
        .quarantine_crashes = c->options.quarantine_crashes,
        .user_slots = c->options.user.slots,
        .reachable_ms = c->options.reachable_ms,
        .away_ms = c->options.away_ms,
        .leader_lease_ms = c->options.leader_lease_ms,
        .restored_term = origin.term,
        .backup_worker = origin.backup_worker,
        .gone_worker = origin.gone_worker,
        .settled = origin.settled,
    };
    titan_status status = core_new(&options, &c->core, err);
    mac_wipe(secret, sizeof(secret));
    TRY(status);
    /* Ends the jobs with impossible stored state; the other jobs go on. */
    struct set_aside *bad = NULL;
    status = core_restore(c->core, db, shell_now(c), on_bad_job, &bad, err);
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

/* Only backups need the signing key. */
static void open_signing_key(const struct coordinator *c)
{
    struct signature_key key;
    struct titan_error err = {0};
    bool made = false;
    if (signing_key_open(c->state_dir, &key, &made, &err) != TITAN_OK)
        tlog_error(&c->log, "backups fail until their key can be read", "reason=\"%s\" hint=\"%s\"", err.msg, err.hint);
    else if (made)
        tlog_info(&c->log, "a key for backups is made: keep a copy elsewhere than the backups",
                  "path=\"%s" SIGNING_KEY_FILE "\" key=%s", c->state_dir, key.id);
    signature_key_wipe(&key);
}

static void on_commit(void *data)
{
    struct coordinator *c = data;
    log_head_committed(c);
    webhooks_committed(c);
}

static bool take_token(const struct token *token, void *data)
{
    auth_put_token(data, token, clock_wall_ms());
    return true;
}

enum { TIMERS = 7 };

static void timers_of(struct coordinator *c, uv_timer_t *ret[TIMERS])
{
    uv_timer_t *const timers[TIMERS] = {&c->timer,        &c->retry_timer, &c->metrics_timer, &c->audit_timer,
                                        &c->review_timer, &c->disk_timer,  &c->head_timer};
    memcpy(ret, timers, sizeof(timers));
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
    c->options.heartbeat_ms = options->heartbeat_ms ? options->heartbeat_ms : 50;
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
        status = jobs_open(c->state_dir, options->jobs_dir, c->options.check_ms, c->jobs_dir, c->jobs_token, err);
    if (status == TITAN_OK)
        status = options->lead
                     ? store_open_led(loop, c->state_dir, &options->lead->log, options->lead->term, &c->store, err)
                     : store_open(loop, c->state_dir, &c->store, err);
    if (status == TITAN_OK)
        store_on_failure(c->store, on_store_failure, c);
    if (status == TITAN_OK && (status = store_write_now(c->store, init_store, c, err)) == TITAN_OK)
        status = open_core(c, err);
    if (status == TITAN_OK)
        status = enrol_open(c, &c->enrol, err);
    if (status == TITAN_OK && options->auth) {
        c->auth = auth_new(options->auth);
        status = token_list(store_reader(c->store), take_token, c->auth, err);
    }
    if (status == TITAN_OK)
        status = webhooks_open(c, err);
    if (status == TITAN_OK)
        status = file_pool_open(loop, c->options.check_ms, &c->files, err);
    if (status != TITAN_OK) {
        if (c->store)
            store_close(c->store, NULL, NULL);
        shell_free_parts(c);
        return status;
    }
    open_signing_key(c);
    uv_timer_t *timers[TIMERS];
    timers_of(c, timers);
    for (size_t i = 0; i < TIMERS; i++) {
        uv_timer_init(loop, timers[i]);
        timers[i]->data = c;
    }
    c->open_handles += TIMERS + 1; /* 1: the file pool's handle */
    shell_set_timer(c);
    disk_usage_open(c);
    log_head_open(c);
    store_on_commit(c->store, on_commit, c);
    webhooks_start(c);
    shell_fill_ended(c);
    *ret = c;
    return TITAN_OK;
}

static void on_handle_closed(uv_handle_t *handle)
{
    shell_part_closed(handle->data);
}

static void on_store_closed(void *data)
{
    struct coordinator *c = data;
    uv_timer_t *timers[TIMERS];
    timers_of(c, timers);
    for (size_t i = 0; i < TIMERS; i++)
        uv_close((uv_handle_t *)timers[i], on_handle_closed);
    enrol_close(c->enrol, shell_part_closed);
}

titan_status coordinator_identity(struct coordinator *c, const struct rpc_tls *files, struct titan_error *err)
{
    return enrol_renew_own(c->enrol, files, err);
}

void coordinator_served_by(struct coordinator *c, struct rpc_server *server)
{
    struct rpc_server **at = c->servers;
    while (*at)
        at++;
    titan_assert(at < c->servers + ARRAY_SIZE(c->servers));
    *at = server;
}

titan_status coordinator_reload(struct coordinator *c, const struct auth_options *auth,
                                const struct webhooks_options *webhooks, struct titan_error *err)
{
    if (c->auth)
        auth_reload(c->auth, auth);
    c->options.observer->rights_changed(c);
    return c->closing ? TITAN_OK : webhooks_reload(c, webhooks, err);
}

void coordinator_serves_tls(struct coordinator *c, const char *address, bool agents)
{
    enrol_serves(c->enrol, address, agents);
}

void coordinator_close(struct coordinator *c, void (*done)(void *), void *data)
{
    c->closed = done;
    c->closed_data = data;
    shell_flush_metrics(c);
    c->options.observer->stopping(c);
    c->closing = true;
    uv_timer_t *timers[TIMERS];
    timers_of(c, timers);
    for (size_t i = 0; i < TIMERS; i++)
        uv_timer_stop(timers[i]);
    heartbeat_sockets_close(c);
    webhooks_close(c, shell_part_closed);
    file_pool_close(c->files, shell_part_closed, c);
    store_close(c->store, on_store_closed, c);
    log_head_close(c);
}

bool coordinator_healthy(const struct coordinator *c)
{
    return store_lag_ms(c->store) < UNHEALTHY_MS;
}

titan_status coordinator_ready(const struct coordinator *c, struct titan_error *err)
{
    TRY(shell_accepts(c, err));
    return coordinator_healthy(c) ? TITAN_OK : titan_fail(err, TITAN_ETIMEDOUT, "the store's writer does not answer");
}
