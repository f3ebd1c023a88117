/* SPDX-License-Identifier: Apache-2.0 */
/* agent.c - opens, leaves and closes the shell around the core. The core makes all decisions (agent_core.h).
 * agent_internal.h lists its files. */
#include "daemon/agent/shell/agent_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/version.h"
#include "daemon/agent/shell/installation.h"
#include "daemon/agent/shell/records.h"
#include "daemon/auth/enrolling.h"

#define ADOPTION_WAIT_MS 1000 /* wait for adopted workers' states before the first registration */
#define CLOSE_POLL_MS 2
#define FILES_WAIT_MS 5000 /* wait for a file server to open a job's folder */

static uint64_t memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

static void on_record_written(void *data)
{
    agent_carry_out(data, NULL);
}

static titan_status open_peers(struct agent *a, const struct agent_options *o, struct titan_error *err)
{
    char path[PATH_MAX + 16], listen[sizeof(a->settings.address) + 16], text[16];
    if (o->peer_listen)
        return *o->peer_listen ? peers_open(a->loop, o->peer_listen, agent_on_peer_message, a, &a->peers, err)
                               : TITAN_OK;
    const bool v6 = strchr(a->settings.address, ':') != NULL;
    (void)snprintf(path, sizeof(path), "%s/peer_port", a->settings.run_dir);
    /* The port of the last start is tried first, because other agents still use it for this node. */
    _cleanup_(buf_free) struct buf before = BUF_INIT;
    const long port = file_read(path, 16, &before, NULL) == TITAN_OK && before.data ? strtol(before.data, NULL, 10) : 0;
    const long ports[] = {port > 0 && port < 65536 ? port : 0, 0};
    titan_status status = TITAN_EIO;
    for (size_t i = 0; i < ARRAY_SIZE(ports) && status != TITAN_OK; i++) {
        (void)snprintf(listen, sizeof(listen), "%s%s%s:%ld", v6 ? "[" : "", a->settings.address, v6 ? "]" : "",
                       ports[i]);
        status = peers_open(a->loop, listen, agent_on_peer_message, a, &a->peers, err);
    }
    if (status == TITAN_EINVAL)
        return status; /* the address is wrong */
    if (status != TITAN_OK) {
        tlog_warn(&a->log, "no socket for other agents: this node can neither be probed nor probe others",
                  "reason=\"%s\"", err->msg);
        return TITAN_OK;
    }
    int len = snprintf(text, sizeof(text), "%u\n", peers_port(a->peers));
    if (file_replace(path, text, (size_t)len, err) != TITAN_OK)
        tlog_warn(&a->log, "port not recorded", "reason=\"%s\"", err->msg);
    return TITAN_OK;
}

static void on_job_record(const Titan__Internal__AgentJobRecord *record, void *data)
{
    agent_core_restore_job(((struct agent *)data)->core, record);
}

static void on_adoption_timer(uv_timer_t *timer)
{
    session_start(((struct agent *)timer->data)->session);
}

static bool has_no_workers(void *data)
{
    return workers_count(((struct agent *)data)->workers) == 0;
}

/* Opens the parts whose opening can fail. */
static titan_status open_parts(struct agent *a, const struct agent_options *o, struct titan_error *err)
{
    TRY(dir_make(a->settings.run_dir, err));
    TRY(open_peers(a, o, err));

    struct seen_term seen;
    uint64_t random[2];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return titan_fail_errno(err, "no random numbers");
    struct agent_core_options core = {.node = a->settings.node,
                                      .device = a->settings.device,
                                      .address = a->settings.address,
                                      .version = titan_version,
                                      .slots = a->settings.slots,
                                      .memory_bytes = memory_bytes(),
                                      .checks = true,
                                      .ephemeral = o->ephemeral,
                                      .incarnation = random[0],
                                      .seed = random[1],
                                      .peer_port = a->peers ? peers_port(a->peers) : 0,
                                      .coordinator =
                                          a->peers && strncmp(o->coordinator, "unix:", 5) != 0 ? o->coordinator : NULL,
                                      .hang_floor_ms = o->hang_floor_ms,
                                      .away_ms = o->away_ms,
                                      .leader_lease_ms = o->leader_lease_ms};
    TRY(installation_read(a->settings.run_dir, core.installation, err));
    TRY(record_read_term(a->settings.run_dir, &seen, err));
    TRY(agent_core_new(&core, &a->core, err));
    agent_core_restore_term(a->core, &seen);
    struct titan_error damaged = {0};
    if (record_read_jobs(a->settings.run_dir, on_job_record, a, &damaged) != TITAN_OK)
        tlog_error(&a->log, "record of a job not read, going on without it", "reason=\"%s\"", damaged.msg);

    TRY(file_pool_open(a->loop, FILES_WAIT_MS, &a->files, err));
    if (strcmp(a->settings.device, "cuda") == 0) {
        const struct gpu_watch_options watch = {a->settings.slots, getenv("TITAN_NVML"), agent_on_gpus_changed, a};
        const titan_status status = gpu_watch_open(a->loop, &watch, &a->gpus, err);
        if (status == TITAN_ENOTFOUND) /* without NVML the node works, but its GPUs' state is unknown */
            tlog_warn(&a->log, "GPUs are not watched", "reason=\"%s\"", err->msg);
        else
            TRY(status);
    }
    const struct session_options session = {o->coordinator, o->tls, &agent_session_events, a};
    TRY(session_open(a->loop, &session, &a->session, err));
    if (o->tls && o->renew)
        TRY(renewal_open(a->loop, o->tls, session_client(a->session), &a->renewal, err));
    const struct logs_options logs = {a->files, a->settings.node, agent_on_log_chunk, a};
    TRY(logs_open(a->loop, &logs, &a->logs, err));
    const struct site_hooks_options hooks = {.dir = o->hooks_dir,
                                             .node = a->settings.node,
                                             .device = a->settings.device,
                                             .slots = a->settings.slots,
                                             .timeout_ms = o->hook_timeout_ms,
                                             .period_ms = o->node_check_ms,
                                             .idle = has_no_workers,
                                             .data = a};
    const struct node_checks_options checks = {.node = a->settings.node,
                                               .address = a->settings.address,
                                               .program = a->settings.program,
                                               .tls = o->tls,
                                               .ports = a->settings.ports,
                                               .limits = a->settings.limits,
                                               .spawnd = o->spawnd,
                                               .look = o->look,
                                               .settings = o->settings,
                                               .hooks = o->hooks_dir ? &hooks : NULL,
                                               .peers = a->peers != NULL};
    TRY(node_checks_open(a->loop, &checks, agent_on_checked, a, &a->checks, err));

    const struct workers_options options = {.run_dir = a->settings.run_dir,
                                            .program = a->settings.program,
                                            .host = a->settings.address,
                                            .device = a->settings.device,
                                            .spawnd = o->spawnd,
                                            .default_user = o->default_user,
                                            .slots = a->settings.slots,
                                            .ports = a->settings.ports,
                                            .limits = a->settings.limits,
                                            .lease_ms = a->settings.lease_ms,
                                            .node = a->settings.node,
                                            .files = a->files,
                                            .gpus = a->gpus};
    return workers_open(a->loop, &options, &agent_workers_events, a, &a->workers, err);
}

enum { N_TIMERS = 4, N_PARTS = 9 };

static uv_timer_t *timer_of(struct agent *a, size_t i)
{
    uv_timer_t *const timers[N_TIMERS] = {&a->close_timer, &a->adoption_timer, &a->tick_timer, &a->sample_timer};
    return timers[i];
}

static void on_nothing(void *data)
{
    (void)data;
}

titan_status agent_open(uv_loop_t *loop, const struct agent_options *o, struct agent **ret, struct titan_error *err)
{
    struct agent *a = calloc(1, sizeof(*a));
    if (!a)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the agent");
    a->loop = loop;
    a->batches_tail = &a->batches;
    a->as_users = o->spawnd && *o->spawnd;
    titan_status status = agent_settings_fill(o, &a->settings, err);
    log_init(&a->log, "agent", "node=%s", a->settings.node);
    if (status == TITAN_OK)
        status = open_parts(a, o, err);
    if (status != TITAN_OK) {
        if (a->files)
            file_pool_close(a->files, NULL, NULL);
        if (a->logs)
            logs_close(a->logs, NULL, NULL);
        renewal_close(a->renewal, NULL, NULL);
        gpu_watch_close(a->gpus, NULL, NULL);
        if (a->checks)
            node_checks_close(a->checks, on_nothing, NULL);
        if (a->session)
            session_close(a->session, on_nothing, NULL);
        peers_close(a->peers, NULL, NULL);
        agent_core_free(a->core);
        free(a);
        return status;
    }
    for (size_t i = 0; i < N_TIMERS; i++) {
        uv_timer_t *timer = timer_of(a, i);
        (void)uv_timer_init(loop, timer);
        timer->data = a;
    }
    a->records = record_writer_open(loop, a->settings.run_dir, &a->log, on_record_written, a);
    a->log_bounds = log_bounds_open(loop, a->workers, a->files, a->settings.log_bytes_max, &a->log);

    /* Samples an earlier agent's workers before any of them sends a message. */
    int64_t epoch_until = 0, contact = workers_contact(a->workers, &epoch_until);
    if (contact) /* an earlier agent had this contact; the lease continues */
        agent_core_restore_contact(a->core, contact, epoch_until);
    agent_publish(a);
    for (struct worker *w = workers_first(a->workers); w; w = w->next) {
        struct agent_sample sample;
        worker_look(w, &sample);
        agent_core_adopted(a->core, w->job_id, w->id, &sample, clock_mono_ms());
    }

    /* Exits of workers that ended without an agent wait for the first session, like other exits without a session. */
    for (struct departed *d = workers_take_departed(a->workers), *next; d; d = next) {
        const struct agent_sample nothing = {.step = d->how.last_step};
        const struct agent_exit end = {
            .code = d->how.code, .signal = d->how.signal, .reason = d->how.reason, .last_step = d->how.last_step};
        next = d->next;
        if (!workers_find(a->workers, d->worker_id)) {
            agent_core_adopted(a->core, d->job_id, d->worker_id, &nothing, clock_mono_ms());
            CORE(a, agent_core_exited, d->worker_id, &end);
        }
        free(d);
    }

    agent_report_gpus(a);
    log_bounds_watch(a->log_bounds);
    bool wait = workers_expected(a->workers) > 0;
    (void)uv_timer_start(&a->adoption_timer, on_adoption_timer, wait ? ADOPTION_WAIT_MS : 0, 0);

    /* If the node cannot enforce the site's limits, workers run without these limits. A job that itself requests such a
     * limit is refused at its start. */
    const struct cgroup_limits *site = &a->settings.limits.site;
    struct worker_limits_held held = {.why = ""};
    if (site->memory || site->cpus)
        worker_limits_look(o->spawnd ? o->spawnd : "", &held);
    if (worker_limits_unheld(&a->settings.limits, &held))
        tlog_warn(&a->log, "workers run without the limits that are configured",
                  "settings=\"agent.worker_memory, agent.worker_cpus\" reason=\"%s\"", held.why);

    tlog_info(&a->log, "agent up", "slots=%u device=%s workers=%u", a->settings.slots, a->settings.device,
              workers_count(a->workers));
    *ret = a;
    return TITAN_OK;
}

static void on_part_closed(void *data)
{
    struct agent *a = data;
    titan_assert(a->open_parts > 0);
    if (--a->open_parts > 0)
        return;
    void (*done)(void *) = a->done;
    void *done_data = a->done_data;
    titan_assert(!a->batches && !a->carrying_out);
    comm_segments_close(&a->segments);
    agent_core_free(a->core);
    free(a);
    done(done_data);
}

static void on_handle_closed(uv_handle_t *handle)
{
    on_part_closed(handle->data);
}

static void on_session_closed(void *data)
{
    struct agent *a = data;
    titan_assert(a->closing && a->open_parts == 0);
    a->open_parts = N_TIMERS + N_PARTS;
    for (size_t i = 0; i < N_TIMERS; i++)
        uv_close((uv_handle_t *)timer_of(a, i), on_handle_closed);
    file_pool_close(a->files, on_part_closed, a); /* closed first, because its tasks end in the parts below */
    renewal_close(a->renewal, on_part_closed, a); /* the renewal's call ended with the session */
    peers_close(a->peers, on_part_closed, a);
    gpu_watch_close(a->gpus, on_part_closed, a);
    workers_close(a->workers, on_part_closed, a);
    logs_close(a->logs, on_part_closed, a);
    node_checks_close(a->checks, on_part_closed, a);
    record_writer_close(a->records, on_part_closed, a);
    log_bounds_close(a->log_bounds, on_part_closed, a);
}

static void on_close_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;
    const bool waits = a->batches && !record_writer_fails(a->records); /* the last reports must go out */
    if ((a->draining && workers_first(a->workers)) || record_writer_on_disk(a->records) ||
        log_bounds_working(a->log_bounds) || waits)
        return;

    /* The session closes first, so no more commands come. */
    a->closing = true;
    for (size_t i = 0; i < N_TIMERS; i++)
        (void)uv_timer_stop(timer_of(a, i));
    log_bounds_stop(a->log_bounds);
    record_writer_stop(a->records);
    agent_carry_out(a, NULL); /* frees all waiting batches */
    logs_forget(a->logs);
    session_close(a->session, on_session_closed, a);
}

void agent_close(struct agent *a, bool stop_workers, uint32_t grace_ms, void (*done)(void *), void *data)
{
    if (!a->done) {
        a->done = done ? done : on_nothing;
        a->done_data = data;
    }
    if (a->closing)
        return;
    a->draining = stop_workers;
    if (stop_workers)
        agent_core_drain(a->core, a->settings.quiet_stop);
    for (struct worker *w = workers_first(a->workers); w && stop_workers; w = w->next)
        workers_stop(w, grace_ms, grace_ms > 0, false, "the node's daemon stops");
    (void)uv_timer_start(&a->close_timer, on_close_timer, 0, CLOSE_POLL_MS);
}

void agent_leave(struct agent *a, uint32_t deadline_ms)
{
    CORE(a, agent_core_leave, deadline_ms);
}

uint32_t agent_workers(const struct agent *a)
{
    return workers_count(a->workers);
}

bool agent_connected(const struct agent *a)
{
    return agent_core_registered(a->core);
}
