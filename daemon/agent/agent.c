/* SPDX-License-Identifier: Apache-2.0 */
/* agent.c - the shell around the core (agent_core.h), which decides everything: its clock, its inputs, and its actions,
 * carried out in order; actions behind a record wait until it is on disk.
 *
 *   agent_settings.c  options checked                 agent_session.c   the stream to the coordinator
 *   workers.c         workers' processes and sockets  worker_start.c    what a worker is started with
 *   worker_process.c  start, kill and reap            worker_channel.c  the socket for workers
 *   page_watch.c      pages of workers                pages_dir.c       where the pages lie
 *   record_writer.c   records to the disk             records.c         records as files
 *   comm_segments.c   shared memory of epochs         oom.c             workers killed for memory
 *   worker_logs.c     output of workers               log_bounds.c      how long it gets
 *   flight_dumps.c    workers' flight recorders       job_folders.c     where folders of jobs are
 *   node_check.c      what would not work here        reach.c           whether other nodes are reached
 *   gpu_watch.c       GPUs of the slots               nvml.c            NVIDIA's library
 *   worker_limits.c   memory and processors of one    worker_cgroup.c   where the agent holds it to them
 *   installation.c    which state directory it is     spawn_client.c    what is asked of titan-spawnd
 *
 * Folders of jobs are read in daemon/common/file_pool.c, datagrams go through daemon/common/peers.c.
 *
 * A worker's message passes three functions from the channel's read to the session's send: on_worker_message() here,
 * agent_core_worker() (worker_messages.c), and carry_out() here. */
#include "daemon/agent/agent.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/log.h"
#include "base/slowest.h"
#include "base/version.h"
#include "daemon/agent/agent_core.h"
#include "daemon/agent/agent_session.h"
#include "daemon/agent/agent_settings.h"
#include "daemon/agent/comm_segments.h"
#include "daemon/agent/flight_dumps.h"
#include "daemon/agent/gpu_watch.h"
#include "daemon/agent/job_folders.h"
#include "daemon/agent/log_bounds.h"
#include "daemon/agent/node_check.h"
#include "daemon/agent/record_writer.h"
#include "daemon/agent/records.h"
#include "daemon/agent/worker_logs.h"
#include "daemon/agent/workers.h"
#include "daemon/auth/enrolling.h"
#include "daemon/common/file_pool.h"
#include "daemon/common/peers.h"
#include "proto/ranges.h"

#define ADOPTION_WAIT_MS 1000 /* for adopted workers to say where they are, before the first registration */
#define CLOSE_POLL_MS 2
#define FILES_WAIT_MS 5000 /* for a file server: to open a job's folder */
#define LOGS_AHEAD 64      /* chunks and other messages that wait to go out, before more of workers' logs is read */

/* What one input has led to. */
struct action_batch {
    struct action_batch *next;
    struct agent_actions actions;
    const struct agent_action *at; /* to be carried out next */
};

struct agent {
    uv_loop_t *loop;
    struct log log;
    struct agent_settings settings;
    struct agent_core *core;
    struct action_batch *batches, **batches_tail;
    bool carrying_out; /* a call of carry_out is on the stack */
    struct record_writer *records;
    struct file_pool *files; /* for what may be on a file server: jobs' folders */
    struct workers *workers;
    struct session *session;
    struct renewal *renewal; /* of this agent's certificate; NULL = it has none */
    struct peers *peers;     /* NULL: none */
    struct logs *logs;
    struct log_bounds *log_bounds;
    struct node_checks *checks;
    struct gpu_watch *gpus; /* NULL: none */
    struct comm_segments segments;
    uv_timer_t close_timer, adoption_timer, tick_timer, sample_timer;
    bool as_users; /* titan-spawnd starts the workers */
    bool draining, closing;
    int open_parts; /* what agent_close still waits for */
    void (*done)(void *);
    void *done_data;
};

static void carry_out(struct agent *a, struct action_batch *batch);

/* An input for the core: CORE(a, agent_core_sample, id, &sample). */
#define CORE(a, input, ...)                                                                                            \
    do {                                                                                                               \
        struct action_batch *batch_ = batch_new();                                                                     \
        input((a)->core, ##__VA_ARGS__, clock_mono_ms(), &batch_->actions);                                            \
        carry_out((a), batch_);                                                                                        \
    } while (0)

static struct action_batch *batch_new(void)
{
    struct action_batch *t = calloc(1, sizeof(*t));
    titan_assert(t);
    agent_actions_init(&t->actions);
    return t;
}

static void batch_free(struct action_batch *t)
{
    agent_actions_free(&t->actions);
    free(t);
}

static void tick_arm(struct agent *a);

/* What the next agent of this node, and workers without an agent, have to know. */
static void publish_core(struct agent *a)
{
    workers_publish(a->workers, agent_core_term(a->core), agent_core_contact(a->core), agent_core_epoch_until(a->core));
}

static void on_tick_timer(uv_timer_t *timer)
{
    HANDLER("agent.tick");
    struct agent *a = timer->data;
    CORE(a, agent_core_tick);
}

static void on_sample_timer(uv_timer_t *timer);

static void tick_arm(struct agent *a)
{
    int64_t due = agent_core_deadline(a->core);
    if (a->closing || due == INT64_MAX)
        (void)uv_timer_stop(&a->tick_timer);
    else {
        uv_update_time(a->loop);
        (void)uv_timer_start(&a->tick_timer, on_tick_timer, (uint64_t)MAX(due - clock_mono_ms(), INT64_C(1)), 0);
    }
    bool watch = agent_core_watches(a->core) && !a->closing;
    if (watch != (uv_is_active((uv_handle_t *)&a->sample_timer) != 0)) {
        if (watch)
            (void)uv_timer_start(&a->sample_timer, on_sample_timer, AGENT_SAMPLE_MS, AGENT_SAMPLE_MS);
        else
            (void)uv_timer_stop(&a->sample_timer);
    }
}

/* --- inputs ------------------------------------------------------------------------------------------------------- */

/* One that this node killed for standing still has been dumped as it stood. */
static void dump_exited(const struct agent *a, struct worker *w, const struct worker_exit *how)
{
    char detail[160];
    if (how->code == 0 || (w->killed && w->dumped_ns))
        return;
    if (how->signal)
        (void)snprintf(detail, sizeof detail, "signal %d", how->signal);
    else
        (void)snprintf(detail, sizeof detail, "code %d: %.120s", how->code, how->reason);
    dump_worker(w, DUMP_EXIT, detail, a->files, &a->log);
}

/* To the core: what is known of the slots' GPUs, and the workers there. */
static void report_gpus(struct agent *a)
{
    const uint32_t slots = a->settings.slots;
    struct gpu_state known;
    if (a->closing || !gpu_watch_get(a->gpus, 0, &known))
        return;
    _cleanup_free_ struct gpu_state *states = calloc(slots, sizeof(*states));
    _cleanup_free_ Titan__Internal__GpuState *gpus = calloc(slots, sizeof(*gpus)),
                                             **list = calloc(slots, sizeof(*list));
    titan_assert(states && gpus && list);
    for (uint32_t i = 0; i < slots; i++) {
        static const Titan__Internal__GpuHealth healths[] = {
            [GPU_WELL] = TITAN__INTERNAL__GPU_HEALTH__GPU_HEALTHY,
            [GPU_UNSEEN] = TITAN__INTERNAL__GPU_HEALTH__GPU_UNKNOWN,
            [GPU_OUT] = TITAN__INTERNAL__GPU_HEALTH__GPU_FAULTY,
        };
        const struct worker *w = workers_in_slot(a->workers, i);
        Titan__Internal__GpuState *m = list[i] = &gpus[i];
        struct gpu_state *s = &states[i];
        (void)gpu_watch_get(a->gpus, i, s);
        range_fit_text(s->name, sizeof(s->name));
        range_fit_text(s->uuid, sizeof(s->uuid));
        range_fit_text(s->reason, sizeof(s->reason));
        titan__internal__gpu_state__init(m);
        m->slot = i;
        m->name = s->name;
        m->uuid = s->uuid;
        m->memory_used = s->memory_used;
        m->memory_total = s->memory_total;
        m->celsius = s->celsius;
        m->ecc = s->ecc;
        m->ecc_errors = s->ecc_errors;
        m->xid = s->xid;
        m->health = healths[s->health];
        m->reason = s->reason;
        m->job_id = w ? w->job_id : 0;
        m->worker_id = w ? w->id : 0;
    }
    Titan__Internal__NodeGpus all = TITAN__INTERNAL__NODE_GPUS__INIT;
    all.n_gpus = slots;
    all.gpus = list;
    CORE(a, agent_core_gpus, &all);
}

static void on_gpus_changed(void *data)
{
    report_gpus(data);
}

static void on_worker_exit(struct worker *w, const struct worker_exit *how, void *data)
{
    struct agent *a = data;
    const struct agent_exit end = {.code = how->code,
                                   .signal = how->signal,
                                   .reason = how->reason,
                                   .last_step = how->last_step,
                                   .out_of_memory = how->out_of_memory};
    (void)!failpoint("agent.exit", NULL);
    CORE(a, agent_core_exited, w->id, &end);
    dump_exited(a, w, how);
    report_gpus(a);
    comm_segments_sweep(&a->segments, a->workers);
}

static void on_worker_connected(struct worker *w, const Titan__Internal__WorkerRegistration *registration, void *data)
{
    struct agent *a = data;
    (void)w;
    CORE(a, agent_core_connected, registration);
    if (workers_expected(a->workers) == 0)
        session_start(a->session);
}

static void on_worker_message(void *worker, const Titan__Internal__WorkerToAgent *m, void *data)
{
    struct agent *a = data;
    CORE(a, agent_core_worker, ((const struct worker *)worker)->id, m);
}

static void sample_all(struct agent *a)
{
    for (struct worker *w = workers_first(a->workers), *next; w; w = next) {
        struct agent_sample sample;
        next = w->next;
        if (w->dying || w->start)
            continue;
        worker_look(w, &sample);
        CORE(a, agent_core_sample, w->id, &sample);
    }
}

static void on_sample_timer(uv_timer_t *timer)
{
    HANDLER("agent.sample");
    sample_all(timer->data);
}

static void on_session_open(void *data)
{
    struct agent *a = data;
    if (a->peers)
        peers_look_again(a->peers); /* it may be on another machine than before, under the same name */
    agent_core_coordinator_at(a->core, session_target(a->session));
    sample_all(a);
    CORE(a, agent_core_session_up);
}

static void on_session_message(const Titan__Internal__CoordinatorMessage *m, void *data)
{
    HANDLER("agent.message");
    struct agent *a = data;
    CORE(a, agent_core_coordinator, m);
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK && agent_core_registered(a->core))
        session_settled(a->session);
}

static void on_session_lost(void *data)
{
    struct agent *a = data;
    CORE(a, agent_core_session_down);
    node_checks_forget(a->checks);
    logs_forget(a->logs);
}

static void on_peer_message(const Titan__Internal__PeerMessage *m, const char *from, void *data)
{
    struct agent *a = data;
    CORE(a, agent_core_peer, m, from);
}

static bool on_log_chunk(const Titan__Internal__AgentLogChunk *chunk, void *data)
{
    struct agent *a = data;
    Titan__Internal__AgentMessage message = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    message.term = agent_core_term(a->core);
    message.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_LOG;
    message.log = (Titan__Internal__AgentLogChunk *)chunk;
    return !a->closing && agent_core_registered(a->core) && session_queued(a->session) < LOGS_AHEAD &&
           session_send(a->session, &message) == TITAN_OK;
}

static bool on_checked(const Titan__Internal__NodeChecked *answer, void *data)
{
    struct agent *a = data;
    Titan__Internal__AgentMessage message = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    message.term = agent_core_term(a->core);
    message.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKED;
    message.checked = (Titan__Internal__NodeChecked *)answer;
    return !a->closing && agent_core_registered(a->core) && session_send(a->session, &message) == TITAN_OK;
}

static uint64_t memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

/* --- what is to be done ------------------------------------------------------------------------------------------- */

/* Did the start fail for want of what the node has too little of? Then it is no fault of worker or job. */
static bool node_short(const struct titan_error *err)
{
    return titan_error_short(err) || err->sys_errno == EAGAIN || err->status == TITAN_ENOMEM ||
           err->status == TITAN_ETIMEDOUT || err->status == TITAN_EAGAIN;
}

/* Is it this node that does not start workers of that job: its user, its folder, its limits? */
static bool refused(const struct agent *a, const struct titan_error *err)
{
    return err->status == TITAN_EUNPLACEABLE ||
           (a->as_users && (err->status == TITAN_EPERM || err->status == TITAN_EINVAL));
}

static void not_started(struct agent *a, uint64_t job_id, uint64_t worker_id, const struct titan_error *why)
{
    tlog_error(&a->log, "worker not started", "job=%" PRIu64 " worker=%" PRIu64 " reason=\"%s\"", job_id, worker_id,
               why->msg);
    const struct agent_exit how = {.code = titan_status_exit(why->status),
                                   .reason = why->msg,
                                   .not_started = true,
                                   .node_short = node_short(why),
                                   .refused = refused(a, why)};
    CORE(a, agent_core_exited, worker_id, &how);
}

static void on_worker_not_started(struct worker *w, const struct titan_error *why, void *data)
{
    struct agent *a = data;
    not_started(a, w->job_id, w->id, why);
    comm_segments_sweep(&a->segments, a->workers);
}

static void on_worker_started(struct worker *w, void *data)
{
    struct agent *a = data;
    log_bounds_watch(a->log_bounds);
    CORE(a, agent_core_started, w->id, (int64_t)w->process.pid);
    report_gpus(a);
}

static void start_worker(struct agent *a, uint64_t worker_id, const Titan__Internal__StartWorkers *m)
{
    struct titan_error err = {0};
    titan_status status = TITAN_OK;
    if (a->draining)
        status = titan_fail(&err, TITAN_ECANCELLED, "the node's daemon stops");
    else
        status = workers_start(a->workers, worker_id, m, &err);
    if (status != TITAN_OK)
        not_started(a, m->job_id, worker_id, &err);
}

/* Dumps the worker that hangs, and all of its job's workers here: they show what they wait for. */
static void dump_stalled(const struct agent *a, const Titan__Internal__WorkerStalled *m)
{
    struct worker *w = workers_find(a->workers, m->worker_id);
    if (w)
        dump_worker(w, DUMP_HANG, m->stopped ? "stopped" : "no progress", a->files, &a->log);
    dump_job(a->workers, m->job_id, DUMP_HANG, a->files, &a->log);
}

static void command_worker(struct agent *a, uint64_t worker_id, const Titan__Internal__AgentToWorker *m)
{
    struct worker *w = workers_find(a->workers, worker_id);
    if (!w || w->dying)
        return;
    if (m->kind_case == TITAN__INTERNAL__AGENT_TO_WORKER__KIND_REVOKE)
        dump_worker(w, DUMP_REVOKE, NULL, a->files, &a->log); /* now: the revoke ends the waits that it shows */
    const bool form = m->kind_case == TITAN__INTERNAL__AGENT_TO_WORKER__KIND_FORM;
    worker_send(w, m, form ? comm_segments_get(&a->segments, a->settings.node, m->form) : -1);
}

static void note_rank(struct agent *a, uint64_t worker_id, uint32_t rank)
{
    struct worker *w = workers_find(a->workers, worker_id);
    if (!w || (w->rank == rank && w->recorded))
        return;
    logs_record(a->logs, w->job_dir, w->id, (int32_t)rank);
    w->recorded = true;
    w->rank = rank;
}

static void on_log(struct agent *a, const Titan__Internal__LogRequest *m)
{
    char job_dir[PATH_MAX];
    if (m->cancel) {
        logs_cancel(a->logs, m->request_id);
        return;
    }
    /* A request may come before the command to start: it then follows what will be there. */
    const bool known = job_folder_find(a->settings.run_dir, m->job_id, job_dir) ||
                       job_folder_link(a->settings.run_dir, m->job_id, job_dir);
    if (m->flight) /* before it is read: the tasks of a folder are done in order */
        dump_job(a->workers, m->job_id, DUMP_REQUEST, a->files, &a->log);
    logs_request(a->logs, m, known ? job_dir : NULL);
}

/* A message that was not taken because the stream is over (TITAN_ECANCELLED) is sent again in the next session. */
static void note_sent(struct agent *a, titan_status status, Titan__Internal__AgentMessage__KindCase kind)
{
    if (status == TITAN_OK || status == TITAN_ECANCELLED || kind == TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS)
        return; /* the next progress says more */
    session_end(a->session, status == TITAN_EAGAIN ? "the coordinator reads too slowly" : "no memory for a message");
}

static void do_request(struct agent *a, const Titan__Internal__CoordinatorMessage *m)
{
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_LOG)
        on_log(a, m->log);
    else if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECK)
        node_checks_ask(a->checks, m->check);
    else if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_RELEASE_GPUS)
        for (size_t i = 0; i < m->release_gpus->n_slots; i++)
            gpu_watch_release(a->gpus, m->release_gpus->slots[i]);
    /* Checkpoints that are not listed any more are removed by the worker that writes the next: it knows its own. */
}

static void stop_worker(struct agent *a, const struct agent_action *x)
{
    struct worker *w = workers_find(a->workers, x->worker_id);
    if (w)
        workers_stop(w, x->grace_ms, x->grace_ms > 0, x->must_checkpoint, x->text);
}

/* Does what earlier inputs led to, and then the newest batch (NULL: none). Inputs that this leads to append batches.
 */
static void carry_out(struct agent *a, struct action_batch *batch)
{
    static const enum log_level levels[] = {LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR};
    const bool outermost = !a->carrying_out;
    publish_core(a);
    if (batch && (a->closing || !batch->actions.first)) {
        batch_free(batch);
    } else if (batch) {
        batch->at = batch->actions.first;
        *a->batches_tail = batch;
        a->batches_tail = &batch->next;
    }
    a->carrying_out = true;
    while (outermost && a->batches && !record_writer_busy(a->records)) {
        struct action_batch *t = a->batches;
        const struct agent_action *x = a->closing ? NULL : t->at;
        if (!x) {
            a->batches = t->next;
            a->batches_tail = a->batches ? a->batches_tail : &a->batches;
            batch_free(t);
            continue;
        }
        t->at = x->next;
        switch (x->kind) {
        case AGENT_RECORD_TERM:
        case AGENT_RECORD_JOB:
        case AGENT_FORGET_JOB:
            record_writer_start(a->records, x); /* the batch stays until it is done */
            break;
        case AGENT_SEND:
            if (x->send->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_STALLED)
                dump_stalled(a, x->send->stalled);
            note_sent(a, session_send(a->session, x->send), x->send->kind_case);
            break;
        case AGENT_END_SESSION:
            session_end(a->session, x->text);
            break;
        case AGENT_COMMAND:
            command_worker(a, x->worker_id, x->command);
            break;
        case AGENT_START_WORKER:
            start_worker(a, x->worker_id, x->start);
            break;
        case AGENT_STOP_WORKER:
            stop_worker(a, x);
            break;
        case AGENT_PEER:
            if (a->peers)
                peers_send(a->peers, x->text, x->peer);
            break;
        case AGENT_REQUEST:
            do_request(a, x->request);
            break;
        case AGENT_RANK:
            note_rank(a, x->worker_id, x->rank);
            break;
        case AGENT_LOG:
            log_write(&a->log, levels[x->level], x->text, "%s", x->pairs);
            break;
        }
    }
    if (outermost)
        a->carrying_out = false;
    titan_assert(a->batches ? !*a->batches_tail : a->batches_tail == &a->batches);
    titan_debug_assert(agent_core_check(a->core) && workers_check(a->workers));
    tick_arm(a);
}

static void on_record_written(void *data)
{
    carry_out(data, NULL);
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

/* The port of the last start, where other agents still expect this one. */
static uint16_t last_port(const char *path)
{
    struct buf text = BUF_INIT;
    long port = file_read(path, 16, &text, NULL) == TITAN_OK && text.data ? strtol(text.data, NULL, 10) : 0;
    buf_free(&text);
    return port > 0 && port < 65536 ? (uint16_t)port : 0;
}

static titan_status open_peers(struct agent *a, const struct agent_options *o, struct titan_error *err)
{
    char path[PATH_MAX + 16], listen[sizeof(a->settings.address) + 16], text[16];
    if (o->peer_listen)
        return *o->peer_listen ? peers_open(a->loop, o->peer_listen, on_peer_message, a, &a->peers, err) : TITAN_OK;
    const bool v6 = strchr(a->settings.address, ':') != NULL;
    (void)snprintf(path, sizeof(path), "%s/peer_port", a->settings.run_dir);
    uint16_t ports[] = {last_port(path), 0};
    titan_status status = TITAN_EIO;
    for (size_t i = 0; i < ARRAY_SIZE(ports) && status != TITAN_OK; i++) {
        (void)snprintf(listen, sizeof(listen), "%s%s%s:%u", v6 ? "[" : "", a->settings.address, v6 ? "]" : "",
                       ports[i]);
        status = peers_open(a->loop, listen, on_peer_message, a, &a->peers, err);
    }
    if (status == TITAN_EINVAL)
        return status; /* the address */
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

static titan_status open_core(struct agent *a, const struct agent_options *o, struct titan_error *err)
{
    struct seen_term seen;
    uint64_t random[2];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return titan_fail_errno(err, "no random numbers");
    struct agent_core_options options = {
        .node = a->settings.node,
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
        .coordinator = a->peers && strncmp(o->coordinator, "unix:", 5) != 0 ? o->coordinator : NULL,
        .hang_floor_ms = o->hang_floor_ms,
        .away_ms = o->away_ms,
        .leader_lease_ms = o->leader_lease_ms};
    TRY(installation_read(a->settings.run_dir, options.installation, err));
    TRY(record_read_term(a->settings.run_dir, &seen, err));
    TRY(agent_core_new(&options, &a->core, err));
    agent_core_restore_term(a->core, &seen);
    struct titan_error damaged = {0};
    if (record_read_jobs(a->settings.run_dir, on_job_record, a, &damaged) != TITAN_OK)
        tlog_error(&a->log, "record of a job not read, going on without it", "reason=\"%s\"", damaged.msg);
    return TITAN_OK;
}

/* Where an earlier agent's workers stand, before any of them sends a message. */
static void adopt(struct agent *a)
{
    int64_t epoch_until = 0, contact = workers_contact(a->workers, &epoch_until);
    if (contact) /* in the life of an earlier agent; the lease runs on */
        agent_core_restore_contact(a->core, contact, epoch_until);
    publish_core(a);
    for (struct worker *w = workers_first(a->workers); w; w = w->next) {
        struct agent_sample sample;
        worker_look(w, &sample);
        agent_core_adopted(a->core, w->job_id, w->id, &sample, clock_mono_ms());
    }
}

/* Their exits wait for the first session, as those of workers that end while there is none. */
static void report_departed(struct agent *a)
{
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
}

static void on_adoption_timer(uv_timer_t *timer)
{
    session_start(((struct agent *)timer->data)->session);
}

/* Without NVML the node works all the same, and nothing is known of its GPUs. */
static titan_status open_gpus(struct agent *a, struct titan_error *err)
{
    if (strcmp(a->settings.device, "cuda") != 0)
        return TITAN_OK;
    const titan_status status =
        gpu_watch_open(a->loop, a->settings.slots, getenv("TITAN_NVML"), on_gpus_changed, a, &a->gpus, err);
    if (status != TITAN_ENOTFOUND)
        return status;
    tlog_warn(&a->log, "GPUs are not watched", "reason=\"%s\"", err->msg);
    return TITAN_OK;
}

static titan_status open_parts(struct agent *a, const struct agent_options *o, struct titan_error *err)
{
    static const struct session_events session_events = {on_session_open, on_session_message, on_session_lost};
    static const struct workers_events workers_events = {.on_started = on_worker_started,
                                                         .on_not_started = on_worker_not_started,
                                                         .on_message = on_worker_message,
                                                         .on_connected = on_worker_connected,
                                                         .on_exit = on_worker_exit};
    struct workers_options options = {.run_dir = a->settings.run_dir,
                                      .program = a->settings.program,
                                      .host = a->settings.address,
                                      .device = a->settings.device,
                                      .spawnd = o->spawnd,
                                      .default_user = o->default_user,
                                      .slots = a->settings.slots,
                                      .ports = a->settings.ports,
                                      .limits = a->settings.limits,
                                      .lease_ms = a->settings.lease_ms,
                                      .node = a->settings.node};
    TRY(file_pool_open(a->loop, FILES_WAIT_MS, &a->files, err));
    options.files = a->files;
    TRY(open_gpus(a, err));
    options.gpus = a->gpus;
    TRY(session_open(a->loop, o->coordinator, o->tls, &session_events, a, &a->session, err));
    if (o->tls && o->renew)
        TRY(renewal_open(a->loop, o->tls, session_client(a->session), &a->renewal, err));
    TRY(logs_open(a->loop, a->files, a->settings.node, on_log_chunk, a, &a->logs, err));
    const struct node_checks_options checks = {.node = a->settings.node,
                                               .address = a->settings.address,
                                               .program = a->settings.program,
                                               .tls = o->tls,
                                               .ports = a->settings.ports,
                                               .limits = a->settings.limits,
                                               .spawnd = o->spawnd,
                                               .peers = a->peers != NULL};
    TRY(node_checks_open(a->loop, &checks, on_checked, a, &a->checks, err));
    return workers_open(a->loop, &options, &workers_events, a, &a->workers, err);
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

/* Workers run without them then: a job that asks for one itself is refused when it starts. */
static void warn_of_limits(const struct agent *a, const char *spawnd)
{
    const struct cgroup_limits *site = &a->settings.limits.site;
    struct worker_limits_held held = {.why = ""};
    if (site->memory || site->cpus)
        worker_limits_look(spawnd ? spawnd : "", &held);
    if (worker_limits_unheld(&a->settings.limits, &held))
        tlog_warn(&a->log, "workers run without the limits that are configured",
                  "settings=\"agent.worker_memory, agent.worker_cpus\" reason=\"%s\"", held.why);
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
        status = dir_make(a->settings.run_dir, err);
    if (status == TITAN_OK)
        status = open_peers(a, o, err);
    if (status == TITAN_OK)
        status = open_core(a, o, err);
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
    adopt(a);
    report_departed(a);
    report_gpus(a);
    log_bounds_watch(a->log_bounds);
    bool wait = workers_expected(a->workers) > 0;
    (void)uv_timer_start(&a->adoption_timer, on_adoption_timer, wait ? ADOPTION_WAIT_MS : 0, 0);
    warn_of_limits(a, o->spawnd);
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
    file_pool_close(a->files, on_part_closed, a); /* first: tasks end in the parts below */
    renewal_close(a->renewal, on_part_closed, a); /* the end of the session has ended its call */
    peers_close(a->peers, on_part_closed, a);
    gpu_watch_close(a->gpus, on_part_closed, a);
    workers_close(a->workers, on_part_closed, a);
    logs_close(a->logs, on_part_closed, a);
    node_checks_close(a->checks, on_part_closed, a);
    record_writer_close(a->records, on_part_closed, a);
    log_bounds_close(a->log_bounds, on_part_closed, a);
}

/* The session goes first, so that no more commands come. */
static void close_parts(struct agent *a)
{
    a->closing = true;
    for (size_t i = 0; i < N_TIMERS; i++)
        (void)uv_timer_stop(timer_of(a, i));
    log_bounds_stop(a->log_bounds);
    record_writer_stop(a->records);
    carry_out(a, NULL); /* frees all that waits */
    logs_forget(a->logs);
    session_close(a->session, on_session_closed, a);
}

static void on_close_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;
    const bool waits = a->batches && !record_writer_fails(a->records); /* the last reports are to go out */
    if ((a->draining && workers_first(a->workers)) || record_writer_on_disk(a->records) ||
        log_bounds_working(a->log_bounds) || waits)
        return;
    close_parts(a);
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
