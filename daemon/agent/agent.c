/* agent.c - the node's half; see agent.h. What the coordinator says goes to the workers, what the workers say goes to
 * the coordinator; the parts are session.c (one side), workers.c (the other) and logs.c. */
#include "daemon/agent/agent.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/version.h"
#include "daemon/agent/logs.h"
#include "daemon/agent/session.h"
#include "daemon/agent/workers.h"

#define SLOTS_CPU 4
#define SLOTS_MAX 1024
#define LEASE_MS 30000
#define LOG_BYTES_MAX ((uint64_t)64 << 20)
#define LOG_CHECK_MS 250
#define ADOPTION_WAIT_MS 1000 /* for adopted workers to say where they are, before the first hello */
#define CLOSE_POLL_MS 2

/* The shared-memory segment of a job's newest epoch. */
struct segment {
    struct segment *next;
    uint64_t job_id;
    unsigned char comm_id[16];
    int fd;
};

struct agent {
    uv_loop_t *loop;
    struct log log;
    char node[256], address[256], device[16], run_dir[PATH_MAX];
    uint32_t slots, lease_ms;
    uint64_t log_bytes_max, incarnation;
    bool quiet_stop;
    struct workers *workers;
    struct session *session;
    struct logs *logs;
    struct segment *segments;
    uv_timer_t log_timer, close_timer, adoption_timer;
    int works;     /* in the thread pool */
    bool bounding; /* one of them bounds logs */
    bool draining, closing;
    int open_parts; /* what agent_close still waits for */
    void (*done)(void *);
    void *done_data;
};

/* --- to the coordinator ---------------------------------------------------------------------------------------------
 */

#define AGENT_MESSAGE(name, KIND, field, value)                                                                        \
    Titan__Internal__AgentMessage name = TITAN__INTERNAL__AGENT_MESSAGE__INIT;                                         \
    (name).kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_##KIND;                                                    \
    (name).field = (value)

static void report_exit(struct agent *a, uint64_t job_id, uint64_t worker_id, const struct worker_exit *how)
{
    Titan__Internal__WorkerExited exited = TITAN__INTERNAL__WORKER_EXITED__INIT;
    exited.job_id = job_id;
    exited.worker_id = worker_id;
    exited.exit_code = how->signal ? -1 : how->code;
    exited.signal = how->signal;
    exited.reason = (char *)how->reason;
    exited.last_step = how->last_step;
    AGENT_MESSAGE(message, WORKER_EXITED, worker_exited, &exited);
    (void)session_send(a->session, &message, SESSION_KEEP);
}

static void segments_sweep(struct agent *a);

static void on_worker_exit(struct worker *w, const struct worker_exit *how, void *data)
{
    struct agent *a = data;
    if (!a->draining || !a->quiet_stop)
        report_exit(a, w->job_id, w->id, how);
    segments_sweep(a);
}

static void on_worker_connected(struct worker *w, void *data)
{
    struct agent *a = data;
    (void)w;
    if (workers_expected(a->workers) == 0)
        session_start(a->session);
}

/* A worker speaks for itself only. */
#define OWN(w, part) ((part)->job_id == (w)->job_id && (part)->worker_id == (w)->id)

static void on_worker_message(struct worker *w, const Titan__Internal__WorkerToAgent *m, void *data)
{
    struct agent *a = data;
    Titan__Internal__AgentMessage out = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    enum session_keep keep = SESSION_KEEP;
    bool own = false;
    switch (m->kind_case) {
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_READY:
        own = OWN(w, m->ready);
        (void)snprintf(w->address, sizeof(w->address), "%s", m->ready->address);
        out.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_READY;
        out.worker_ready = m->ready;
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_QUIESCED:
        own = OWN(w, m->quiesced);
        out.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_QUIESCED;
        out.worker_quiesced = m->quiesced;
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_PROGRESS:
        own = OWN(w, m->progress);
        keep = SESSION_NOW;
        out.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS;
        out.progress = m->progress;
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_CHECKPOINT:
        own = OWN(w, m->checkpoint);
        out.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKPOINT;
        out.checkpoint = m->checkpoint;
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_FINISHED:
        own = OWN(w, m->finished);
        out.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_FINISHED;
        out.finished = m->finished;
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_FAILING:
        tlog_warn(&a->log, "worker fails", "job=%" PRIu64 " worker=%" PRIu64 " reason=\"%s\"", w->job_id, w->id,
                  m->failing->reason);
        return; /* its page says it again when it has exited */
    default:
        return;
    }
    /* A quiet stop is not a change of membership: the coordinator hears of the last checkpoint and nothing else. */
    bool quiet = a->draining && a->quiet_stop && out.kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_QUIESCED;
    if (own && !quiet)
        (void)session_send(a->session, &out, keep);
    else if (!own)
        tlog_warn(&a->log, "worker spoke for another one, not passed on", "worker=%" PRIu64, w->id);
}

static bool on_log_chunk(const Titan__Internal__AgentLogChunk *chunk, void *data)
{
    struct agent *a = data;
    AGENT_MESSAGE(message, LOG, log, (Titan__Internal__AgentLogChunk *)chunk);
    return session_send(a->session, &message, SESSION_NOW);
}

static uint32_t on_slots_used(void *data)
{
    return workers_count(((struct agent *)data)->workers);
}

static void on_session_lost(void *data)
{
    logs_forget(((struct agent *)data)->logs);
}

static uint64_t memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

static void live_worker(const struct worker *w, Titan__Internal__LiveWorker *out)
{
    titan__internal__live_worker__init(out);
    out->job_id = w->job_id;
    out->worker_id = w->id;
    out->epoch = atomic_load(&w->page->epoch);
    out->rank = w->rank;
    out->step = atomic_load(&w->page->step);
    out->state = atomic_load(&w->page->phase);
    out->address = (char *)w->address;
}

static void on_greet(struct session *session, void *data)
{
    struct agent *a = data;
    uint32_t n = 0, max = workers_count(a->workers);
    Titan__Internal__AgentHello hello = TITAN__INTERNAL__AGENT_HELLO__INIT;
    _cleanup_free_ Titan__Internal__LiveWorker *workers = calloc(max + 1, sizeof(*workers));
    _cleanup_free_ Titan__Internal__LiveWorker **list = calloc(max + 1, sizeof(*list));
    for (const struct worker *w = workers_first(a->workers); workers && list && w && n < max; w = w->next) {
        if (w->reported)
            continue;
        live_worker(w, &workers[n]);
        list[n] = &workers[n];
        n++;
    }
    hello.node = a->node;
    hello.slots = a->slots;
    hello.device = a->device;
    hello.address = a->address;
    hello.version = (char *)TITAN_VERSION;
    hello.memory_bytes = memory_bytes();
    hello.workers = list;
    hello.n_workers = n;
    hello.incarnation = a->incarnation;
    AGENT_MESSAGE(message, HELLO, hello, &hello);
    (void)session_send(session, &message, SESSION_NOW);
}

/* --- from the coordinator -------------------------------------------------------------------------------------------
 */

static void start_worker(struct agent *a, const Titan__Internal__StartWorkers *m, uint64_t worker_id)
{
    struct titan_error err = {0};
    if (workers_start(a->workers, m->job_id, worker_id, m->directory, m->recipe, m->device, &err) != TITAN_OK) {
        struct worker_exit how = {.code = titan_status_exit(err.status)};
        tlog_error(&a->log, "worker not started", "job=%" PRIu64 " worker=%" PRIu64 " reason=\"%s\"", m->job_id,
                   worker_id, err.msg);
        (void)snprintf(how.reason, sizeof(how.reason), "%s", err.msg);
        if (err.status != TITAN_EEXIST)
            report_exit(a, m->job_id, worker_id, &how);
        return;
    }
    Titan__Internal__WorkerStarted started = TITAN__INTERNAL__WORKER_STARTED__INIT;
    started.job_id = m->job_id;
    started.worker_id = worker_id;
    started.pid = workers_find(a->workers, worker_id)->process.pid;
    AGENT_MESSAGE(message, WORKER_STARTED, worker_started, &started);
    (void)session_send(a->session, &message, SESSION_KEEP);
    logs_record(a->logs, m->directory, worker_id, -1);
    (void)uv_timer_again(&a->log_timer);
}

static void on_start(struct agent *a, const Titan__Internal__StartWorkers *m)
{
    if (a->draining)
        return;
    for (size_t i = 0; i < m->n_worker_ids; i++)
        start_worker(a, m, m->worker_ids[i]);
}

/* Members, then leavers. */
static const Titan__Internal__Member *form_rank(const Titan__Internal__FormEpoch *m, size_t rank)
{
    return rank < m->n_members ? m->members[rank] : m->leavers[rank - m->n_members];
}

/* The segment all members and leavers of this epoch share: an empty memfd, which the communicator sizes. -1: they are not all
 * here, or there is none to be had (the workers then connect over TCP). */
static int segment_for(struct agent *a, const Titan__Internal__FormEpoch *m)
{
    for (size_t i = 0; i < m->n_members + m->n_leavers; i++)
        if (strcmp(form_rank(m, i)->node, a->node) != 0)
            return -1;
    if (m->comm_id.len != sizeof((struct segment){0}.comm_id))
        return -1;
    struct segment *s = a->segments;
    while (s && s->job_id != m->job_id)
        s = s->next;
    if (s && !memcmp(s->comm_id, m->comm_id.data, sizeof(s->comm_id)))
        return s->fd;
    int fd = memfd_create("titan-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (!s && fd >= 0 && (s = calloc(1, sizeof(*s)))) {
        s->fd = -1;
        s->job_id = m->job_id;
        s->next = a->segments;
        a->segments = s;
    }
    if (!s) {
        if (fd >= 0)
            (void)close(fd);
        return -1;
    }
    if (s->fd >= 0)
        (void)close(s->fd);
    s->fd = fd;
    memcpy(s->comm_id, m->comm_id.data, sizeof(s->comm_id));
    return fd;
}

/* Drop the segments of jobs that have no worker here any more; the workers keep their own descriptors. */
static void segments_sweep(struct agent *a)
{
    for (struct segment **at = &a->segments; *at;) {
        struct segment *s = *at;
        bool used = false;
        for (const struct worker *w = workers_first(a->workers); w && !used; w = w->next)
            used = w->job_id == s->job_id && !w->reported;
        if (used) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        if (s->fd >= 0)
            (void)close(s->fd);
        free(s);
    }
}

static void on_form(struct agent *a, Titan__Internal__FormEpoch *m)
{
    Titan__Internal__AgentToWorker message = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    message.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_FORM;
    message.form = m;
    int fd = segment_for(a, m);
    for (size_t i = 0; i < m->n_members + m->n_leavers; i++) {
        struct worker *w = workers_find(a->workers, form_rank(m, i)->worker_id);
        if (!w || w->job_id != m->job_id || w->dying)
            continue;
        if (i >= m->n_members) {
            worker_send(w, &message, fd);
            continue;
        }
        if (w->rank != i || !w->recorded)
            logs_record(a->logs, w->job_dir, w->id, (int32_t)i);
        w->recorded = true;
        w->rank = (uint32_t)i;
        worker_send(w, &message, fd);
    }
}

static void to_job(struct agent *a, uint64_t job_id, const Titan__Internal__AgentToWorker *message)
{
    for (struct worker *w = workers_first(a->workers); w; w = w->next)
        if (w->job_id == job_id)
            worker_send(w, message, -1);
}

static void on_stop(struct agent *a, const Titan__Internal__StopWorkers *m)
{
    for (struct worker *w = workers_first(a->workers); w; w = w->next) {
        bool named = m->n_worker_ids == 0;
        for (size_t i = 0; i < m->n_worker_ids && !named; i++)
            named = m->worker_ids[i] == w->id;
        if (w->job_id == m->job_id && named)
            workers_stop(w, m->grace_ms, m->grace_ms > 0, m->reason);
    }
}

static void on_log(struct agent *a, const Titan__Internal__LogRequest *m)
{
    char job_dir[PATH_MAX];
    if (m->cancel) {
        logs_cancel(a->logs, m->request_id);
        return;
    }
    /* A request may come before the order to start: it then follows what will be there. */
    const bool known =
        workers_job_dir(a->workers, m->job_id, job_dir) || workers_job_link(a->workers, m->job_id, job_dir);
    logs_request(a->logs, m, known ? job_dir : NULL);
}

/* Deleting gigabytes takes time: in the thread pool. */
struct expiry {
    uv_work_t work;
    struct agent *agent;
    size_t n;
    char *paths[];
};

static void expiry_run(uv_work_t *work)
{
    struct expiry *e = work->data;
    for (size_t i = 0; i < e->n; i++) {
        struct titan_error err = {0};
        char hidden[PATH_MAX];
        const char *name = strrchr(e->paths[i], '/');
        /* Renamed first: a crash half way leaves no half checkpoint that looks whole. */
        if (snprintf(hidden, sizeof(hidden), "%.*s/.expired-%s", (int)(name - e->paths[i]), e->paths[i], name + 1) >=
                PATH_MAX ||
            rename(e->paths[i], hidden) < 0)
            continue;
        if (dir_remove(hidden, &err) != TITAN_OK)
            tlog_warn(&e->agent->log, "old checkpoint not removed", "path=\"%s\" reason=\"%s\"", hidden, err.msg);
    }
}

static void expiry_done(uv_work_t *work, int status)
{
    struct expiry *e = work->data;
    (void)status;
    e->agent->works--;
    for (size_t i = 0; i < e->n; i++)
        free(e->paths[i]);
    free(e);
}

/* Only what is a checkpoint: an absolute path to a folder step-NUMBER with a manifest. It may lie outside the job's
 * folder, where checkpoint.folder says so. */
static bool expirable(const char *path)
{
    char manifest[PATH_MAX];
    const char *name = strrchr(path, '/');
    if (path[0] != '/' || strstr(path, "/../") || strncmp(name, "/step-", 6) != 0 || !name[6] ||
        name[6 + strspn(name + 6, "0123456789")])
        return false;
    return snprintf(manifest, sizeof(manifest), "%s/manifest.json", path) < PATH_MAX && access(manifest, F_OK) == 0;
}

static void expire(struct agent *a, const Titan__Internal__CheckpointCommitted *m)
{
    struct expiry *e = calloc(1, sizeof(*e) + m->n_expired_paths * sizeof(char *));
    if (!e)
        return;
    e->agent = a;
    e->work.data = e;
    for (size_t i = 0; i < m->n_expired_paths; i++) {
        if (expirable(m->expired_paths[i]) && (e->paths[e->n] = strdup(m->expired_paths[i])))
            e->n++;
        else
            tlog_warn(&a->log, "not a checkpoint, left alone", "path=\"%s\"", m->expired_paths[i]);
    }
    if (uv_queue_work(a->loop, &e->work, expiry_run, expiry_done) == 0)
        a->works++;
    else
        free(e);
}

static void on_committed(struct agent *a, Titan__Internal__CheckpointCommitted *m)
{
    if (m->n_expired_paths)
        expire(a, m);
    Titan__Internal__CheckpointCommitted committed = TITAN__INTERNAL__CHECKPOINT_COMMITTED__INIT;
    Titan__Internal__AgentToWorker message = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    committed.job_id = m->job_id;
    committed.step = m->step;
    message.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_CHECKPOINT_COMMITTED;
    message.checkpoint_committed = &committed;
    to_job(a, m->job_id, &message);
}

static void on_coordinator_message(const Titan__Internal__CoordinatorMessage *m, void *data)
{
    struct agent *a = data;
    Titan__Internal__AgentToWorker out = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    switch (m->kind_case) {
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_START:
        on_start(a, m->start);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_FORM:
        on_form(a, m->form);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_REVOKE:
        out.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_REVOKE;
        out.revoke = m->revoke;
        to_job(a, m->revoke->job_id, &out);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PAUSE:
        out.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_PAUSE;
        out.pause = m->pause;
        to_job(a, m->pause->job_id, &out);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_STOP:
        on_stop(a, m->stop);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_LOG:
        on_log(a, m->log);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECKPOINT_COMMITTED:
        on_committed(a, m->checkpoint_committed);
        break;
    default: /* welcome is the session's; the rest is of a newer coordinator */
        break;
    }
}

/* --- bounding logs --------------------------------------------------------------------------------------------------
 */

struct bounding {
    uv_work_t work;
    struct agent *agent;
    uint64_t max;
    size_t n;
    char (*paths)[PATH_MAX];
};

static void bounding_run(uv_work_t *work)
{
    struct bounding *b = work->data;
    for (size_t i = 0; i < b->n; i++) {
        struct titan_error err = {0};
        if (log_bound(b->paths[i], b->max, &err) != TITAN_OK)
            tlog_warn(&b->agent->log, "log cut short", "reason=\"%s\"", err.msg);
    }
}

static void bounding_done(uv_work_t *work, int status)
{
    struct bounding *b = work->data;
    (void)status;
    b->agent->works--;
    b->agent->bounding = false;
    free(b->paths);
    free(b);
}

static void on_log_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;
    uint32_t max = workers_count(a->workers);
    if (max == 0) {
        (void)uv_timer_stop(timer); /* an idle agent does nothing */
        return;
    }
    struct bounding *b = a->bounding ? NULL : calloc(1, sizeof(*b));
    if (!b)
        return;
    b->paths = calloc(max, sizeof(*b->paths));
    for (const struct worker *w = workers_first(a->workers); b->paths && w && b->n < max; w = w->next)
        if (!w->reported)
            memcpy(b->paths[b->n++], w->log_path, PATH_MAX);
    b->agent = a;
    b->max = a->log_bytes_max;
    b->work.data = b;
    if (b->n && uv_queue_work(a->loop, &b->work, bounding_run, bounding_done) == 0) {
        a->works++;
        a->bounding = true;
        return;
    }
    free(b->paths);
    free(b);
}

/* --- open and close -------------------------------------------------------------------------------------------------
 */

static titan_status choose_device(struct agent *a, const struct agent_options *o, struct titan_error *err)
{
    const char *wanted = o->device && *o->device ? o->device : "auto";
    uint32_t gpus = machine_gpus();
    if (strcmp(wanted, "auto") != 0 && strcmp(wanted, "cpu") != 0 && strcmp(wanted, "cuda") != 0)
        return titan_fail(err, TITAN_EINVAL, "device '%s' is not one of auto, cpu, cuda", wanted);
    if (!strcmp(wanted, "cuda") && gpus == 0)
        return titan_fail(err, TITAN_EDEVICE, "device 'cuda' asked for, but there is no /dev/nvidia0");
    bool cuda = strcmp(wanted, "cpu") != 0 && gpus > 0;
    (void)snprintf(a->device, sizeof(a->device), "%s", cuda ? "cuda" : "cpu");
    a->slots = o->slots ? o->slots : cuda ? gpus : SLOTS_CPU;
    if (a->slots > SLOTS_MAX)
        return titan_fail(err, TITAN_EINVAL, "%u slots, at most %d are possible", a->slots, SLOTS_MAX);
    return TITAN_OK;
}

static titan_status fill_options(struct agent *a, const struct agent_options *o, char program[PATH_MAX],
                                 struct titan_error *err)
{
    char folder[PATH_MAX];
    TRY(choose_device(a, o, err));
    a->lease_ms = o->lease_ms ? o->lease_ms : LEASE_MS;
    a->log_bytes_max = o->log_bytes_max ? o->log_bytes_max : LOG_BYTES_MAX;
    a->quiet_stop = o->quiet_stop;
    (void)snprintf(a->address, sizeof(a->address), "%s", o->address ? o->address : "127.0.0.1");
    if (o->node)
        (void)snprintf(a->node, sizeof(a->node), "%s", o->node);
    else if (gethostname(a->node, sizeof(a->node) - 1) < 0)
        return titan_fail_errno(err, "cannot find the host's name");
    if (!a->node[0] || strpbrk(a->node, " \t\r\n/"))
        return titan_fail(err, TITAN_EINVAL, "node name '%s' is empty or has spaces or slashes", a->node);
    if (snprintf(a->run_dir, sizeof(a->run_dir), "%s/run", o->state_dir) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "state directory '%s' is too long", o->state_dir);
    if (!o->worker)
        TRY(self_dir(folder, sizeof(folder), err));
    if (snprintf(program, PATH_MAX, "%s%s", o->worker ? o->worker : folder, o->worker ? "" : "/titan-worker") >=
        PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "path of titan-worker is too long");
    if (access(program, X_OK) < 0)
        return titan_fail_errno(err, "cannot run worker program '%s'", program);
    if (getrandom(&a->incarnation, sizeof(a->incarnation), 0) != (ssize_t)sizeof(a->incarnation))
        return titan_fail_errno(err, "no random numbers");
    return TITAN_OK;
}

static void on_adoption_timer(uv_timer_t *timer)
{
    session_start(((struct agent *)timer->data)->session);
}

static titan_status open_parts(struct agent *a, const struct agent_options *o, const char *program,
                               struct titan_error *err)
{
    static const struct session_events session_events = {on_greet, on_coordinator_message, on_session_lost,
                                                         on_slots_used};
    static const struct workers_events workers_events = {on_worker_message, on_worker_connected, on_worker_exit};
    struct workers_options options = {.run_dir = a->run_dir,
                                      .program = program,
                                      .host = a->address,
                                      .device = a->device,
                                      .slots = a->slots,
                                      .lease_ms = a->lease_ms};
    TRY(session_open(a->loop, o->coordinator, &session_events, a, &a->session, err));
    TRY(logs_open(a->loop, a->node, on_log_chunk, a, &a->logs, err));
    return workers_open(a->loop, &options, &workers_events, a, &a->workers, err);
}

static void on_nothing(void *data)
{
    (void)data;
}

titan_status agent_open(uv_loop_t *loop, const struct agent_options *o, struct agent **ret, struct titan_error *err)
{
    char program[PATH_MAX];
    struct agent *a = calloc(1, sizeof(*a));
    if (!a)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the agent");
    a->loop = loop;
    titan_status status = fill_options(a, o, program, err);
    if (status == TITAN_OK)
        status = dir_make(a->run_dir, err);
    if (status == TITAN_OK)
        status = open_parts(a, o, program, err);
    if (status != TITAN_OK) {
        if (a->logs)
            logs_close(a->logs, NULL, NULL);
        if (a->session)
            session_close(a->session, on_nothing, NULL);
        free(a);
        return status;
    }
    log_init(&a->log, "agent", "node=%s", a->node);
    (void)uv_timer_init(loop, &a->log_timer);
    (void)uv_timer_init(loop, &a->close_timer);
    (void)uv_timer_init(loop, &a->adoption_timer);
    a->log_timer.data = a->close_timer.data = a->adoption_timer.data = a;
    /* Runs only while there are workers: started here so that uv_timer_again has an interval. */
    (void)uv_timer_start(&a->log_timer, on_log_timer, LOG_CHECK_MS, LOG_CHECK_MS);
    bool wait = workers_expected(a->workers) > 0;
    (void)uv_timer_start(&a->adoption_timer, on_adoption_timer, wait ? ADOPTION_WAIT_MS : 0, 0);
    tlog_info(&a->log, "agent up", "slots=%u device=%s workers=%u", a->slots, a->device, workers_count(a->workers));
    *ret = a;
    return TITAN_OK;
}

static void on_part_closed(void *data)
{
    struct agent *a = data;
    if (--a->open_parts > 0)
        return;
    void (*done)(void *) = a->done;
    void *done_data = a->done_data;
    while (a->segments) {
        struct segment *s = a->segments;
        a->segments = s->next;
        if (s->fd >= 0)
            (void)close(s->fd);
        free(s);
    }
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
    a->open_parts = 5;
    uv_close((uv_handle_t *)&a->log_timer, on_handle_closed);
    uv_close((uv_handle_t *)&a->close_timer, on_handle_closed);
    uv_close((uv_handle_t *)&a->adoption_timer, on_handle_closed);
    workers_close(a->workers, on_part_closed, a);
    logs_close(a->logs, on_part_closed, a);
}

/* Workers have ended, or will be let go: first the session, so that nothing more is asked of them. */
static void close_parts(struct agent *a)
{
    a->closing = true;
    (void)uv_timer_stop(&a->close_timer);
    (void)uv_timer_stop(&a->log_timer);
    (void)uv_timer_stop(&a->adoption_timer);
    logs_forget(a->logs);
    session_close(a->session, on_session_closed, a);
}

static void on_close_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;
    if ((a->draining && workers_first(a->workers)) || a->works > 0)
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
    for (struct worker *w = workers_first(a->workers); w && stop_workers; w = w->next)
        workers_stop(w, grace_ms, grace_ms > 0, "the node's daemon stops");
    (void)uv_timer_start(&a->close_timer, on_close_timer, 0, CLOSE_POLL_MS);
}

uint32_t agent_workers(const struct agent *a)
{
    return workers_count(a->workers);
}

bool agent_connected(const struct agent *a)
{
    return session_connected(a->session);
}
