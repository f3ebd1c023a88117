/* agent.c - the node's half; see agent.h. Everything is decided by the core (agent_core.h): this is its clock, its
 * sockets, its files and its processes. What it wants done is carried out in order; where a record has to be on disk
 * first, a thread of the pool writes it and the rest waits. The parts are session.c (the coordinator), workers.c and
 * logs.c. */
#include "daemon/agent/agent.h"

#include <ctype.h>
#include <errno.h>
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
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/version.h"
#include "daemon/agent/check.h"
#include "daemon/agent/agent_core.h"
#include "daemon/agent/logs.h"
#include "daemon/peers.h"
#include "daemon/agent/records.h"
#include "daemon/agent/session.h"
#include "daemon/agent/workers.h"
#include "daemon/auth/enrolling.h"

#define SLOTS_CPU 4
#define SLOTS_MAX 1024
#define LEASE_MS 30000
#define LOG_BYTES_MAX ((uint64_t)64 << 20)
#define LOG_CHECK_MS 250
#define ADOPTION_WAIT_MS 1000 /* for adopted workers to say where they are, before the first hello */
#define CLOSE_POLL_MS 2
#define RECORD_AGAIN_MS 200
#define LOGS_AHEAD 64 /* chunks and other messages that wait to go out, before more of workers' logs is read */

/* The shared-memory segment of a job's newest epoch. */
struct segment {
    struct segment *next;
    uint64_t job_id;
    unsigned char comm_id[16];
    int fd;
};

/* What one input has led to. */
struct turn {
    struct turn *next;
    struct agent_actions actions;
    const struct agent_action *at; /* to be carried out next */
};

struct agent {
    uv_loop_t *loop;
    struct log log;
    char node[256], address[256], device[16], run_dir[PATH_MAX];
    uint32_t slots, lease_ms;
    uint64_t log_bytes_max;
    bool quiet_stop;
    struct agent_core *core;
    struct turn *turns, **turns_tail;
    bool carrying_out;       /* a call of carry_out is on the stack */
    struct writing *writing; /* a record is on its way to the disk */
    struct workers *workers;
    struct session *session;
    struct renewal *renewal; /* of the certificate; NULL = none */
    struct peers *peers;     /* NULL: none */
    struct logs *logs;
    struct node_checks *checks;
    struct segment *segments;
    uv_timer_t log_timer, close_timer, adoption_timer, tick_timer, sample_timer, record_timer;
    int works;     /* in the thread pool */
    bool bounding; /* one of them bounds logs */
    bool draining, closing;
    int open_parts; /* what agent_close still waits for */
    void (*done)(void *);
    void *done_data;
};

static void carry_out(struct agent *a);

static int64_t now_ms(void)
{
    return clock_mono_ns() / 1000000;
}

/* An input for the core: CORE(a, agent_core_sample, id, &sample). */
#define CORE(a, input, ...)                                                                                            \
    do {                                                                                                               \
        struct turn *turn_ = turn_new();                                                                               \
        input((a)->core, ##__VA_ARGS__, now_ms(), &turn_->actions);                                                    \
        turn_end((a), turn_);                                                                                          \
    } while (0)

static struct turn *turn_new(void)
{
    struct turn *t = calloc(1, sizeof(*t));
    titan_assert(t);
    agent_actions_init(&t->actions);
    return t;
}

static void turn_free(struct turn *t)
{
    agent_actions_free(&t->actions);
    free(t);
}

static void tick_arm(struct agent *a);

/* What the next agent of this node, and workers that are without one, have to know. */
static void tell_of_core(struct agent *a)
{
    workers_tell_of(a->workers, agent_core_term(a->core), agent_core_contact(a->core), agent_core_epoch_until(a->core));
}

static void turn_end(struct agent *a, struct turn *t)
{
    tell_of_core(a);
    if (t->actions.first && !a->closing) {
        t->at = t->actions.first;
        *a->turns_tail = t;
        a->turns_tail = &t->next;
        carry_out(a);
    } else {
        turn_free(t);
    }
    tick_arm(a);
}

static void on_tick_timer(uv_timer_t *timer)
{
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
        (void)uv_timer_start(&a->tick_timer, on_tick_timer, (uint64_t)MAX(due - now_ms(), INT64_C(1)), 0);
    }
    bool watch = agent_core_watches(a->core) && !a->closing;
    if (watch != (uv_is_active((uv_handle_t *)&a->sample_timer) != 0)) {
        if (watch)
            (void)uv_timer_start(&a->sample_timer, on_sample_timer, AGENT_SAMPLE_MS, AGENT_SAMPLE_MS);
        else
            (void)uv_timer_stop(&a->sample_timer);
    }
}

/* --- inputs --- */

static void segments_sweep(struct agent *a);

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
    segments_sweep(a);
}

static void on_worker_connected(struct worker *w, const Titan__Internal__WorkerHello *hello, void *data)
{
    struct agent *a = data;
    (void)w;
    CORE(a, agent_core_connected, hello);
    if (workers_expected(a->workers) == 0)
        session_start(a->session);
}

static void on_worker_message(struct worker *w, const Titan__Internal__WorkerToAgent *m, void *data)
{
    struct agent *a = data;
    CORE(a, agent_core_worker, w->id, m);
}

static void sample_all(struct agent *a)
{
    for (struct worker *w = workers_first(a->workers), *next; w; w = next) {
        struct agent_sample sample;
        next = w->next;
        if (w->dying)
            continue;
        worker_look(w, &sample);
        CORE(a, agent_core_sample, w->id, &sample);
    }
}

static void on_sample_timer(uv_timer_t *timer)
{
    sample_all(timer->data);
}

static void on_session_open(void *data)
{
    struct agent *a = data;
    if (a->peers)
        peers_look_again(a->peers); /* it may be on another machine than before, under the same name */
    sample_all(a);
    CORE(a, agent_core_session_up);
}

static void on_session_message(const Titan__Internal__CoordinatorMessage *m, void *data)
{
    struct agent *a = data;
    CORE(a, agent_core_coordinator, m);
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_WELCOME && agent_core_welcome(a->core))
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
    return agent_core_welcome(a->core) && session_queued(a->session) < LOGS_AHEAD &&
           session_send(a->session, &message) == TITAN_OK;
}

static bool on_checked(const Titan__Internal__NodeChecked *answer, void *data)
{
    struct agent *a = data;
    Titan__Internal__AgentMessage message = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    message.term = agent_core_term(a->core);
    message.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKED;
    message.checked = (Titan__Internal__NodeChecked *)answer;
    return agent_core_welcome(a->core) && session_send(a->session, &message) == TITAN_OK;
}

static uint64_t memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

/* --- what is to be done --- */

/* Not the worker's fault, nor its job's: when the node has them again it may start. */
static bool node_short(const struct titan_error *err)
{
    switch (err->sys_errno) {
    case EMFILE:
    case ENFILE:
    case EAGAIN:
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
        return true;
    default:
        return err->status == TITAN_ENOMEM || err->status == TITAN_ENOSPC;
    }
}

static void start_worker(struct agent *a, uint64_t worker_id, const Titan__Internal__StartWorkers *m)
{
    struct titan_error err = {0};
    if (!a->draining &&
        workers_start(a->workers, m->job_id, worker_id, m->directory, m->recipe, m->device, m->run, &err) == TITAN_OK) {
        logs_record(a->logs, m->directory, worker_id, -1);
        (void)uv_timer_again(&a->log_timer);
        CORE(a, agent_core_started, worker_id, (int64_t)workers_find(a->workers, worker_id)->process.pid);
        return;
    }
    if (a->draining)
        (void)titan_fail(&err, TITAN_ECANCELLED, "the node's daemon stops");
    tlog_error(&a->log, "worker not started", "job=%" PRIu64 " worker=%" PRIu64 " reason=\"%s\"", m->job_id, worker_id,
               err.msg);
    const struct agent_exit how = {
        .code = titan_status_exit(err.status), .reason = err.msg, .not_started = true, .node_short = node_short(&err)};
    CORE(a, agent_core_exited, worker_id, &how);
}

/* Members, then leavers. */
static const Titan__Internal__Member *form_rank(const Titan__Internal__FormEpoch *m, size_t rank)
{
    return rank < m->n_members ? m->members[rank] : m->leavers[rank - m->n_members];
}

/* The segment all members and leavers of this epoch share: an empty memfd, which the communicator sizes. -1: they are
 * not all here, or there is none to be had (the workers then connect over TCP). */
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

static void tell_worker(struct agent *a, uint64_t worker_id, const Titan__Internal__AgentToWorker *m)
{
    struct worker *w = workers_find(a->workers, worker_id);
    bool form = m->kind_case == TITAN__INTERNAL__AGENT_TO_WORKER__KIND_FORM;
    if (w && !w->dying)
        worker_send(w, m, form ? segment_for(a, m->form) : -1);
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
    /* A request may come before the order to start: it then follows what will be there. */
    const bool known =
        workers_job_dir(a->workers, m->job_id, job_dir) || workers_job_link(a->workers, m->job_id, job_dir);
    logs_request(a->logs, m, known ? job_dir : NULL);
}

/* What a stream that is over does not take is sent again in the next session. */
static void send_out(struct agent *a, const Titan__Internal__AgentMessage *m)
{
    const titan_status status = session_send(a->session, m);
    if (status == TITAN_OK || status == TITAN_ECANCELLED ||
        m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS)
        return; /* the next progress says more */
    session_end(a->session, status == TITAN_EAGAIN ? "the coordinator reads too slowly" : "no memory for a message");
}

static void say_line(struct agent *a, const struct agent_action *x)
{
    static const enum log_level levels[] = {LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR};
    log_write(&a->log, levels[x->level], x->text, "%s", x->pairs);
}

static void do_order(struct agent *a, const Titan__Internal__CoordinatorMessage *m)
{
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_LOG)
        on_log(a, m->log);
    else if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECK)
        node_checks_ask(a->checks, m->check);
    /* Checkpoints that are not listed any more are removed by the worker that writes the next: it knows its own. */
}

static void stop_worker(struct agent *a, const struct agent_action *x)
{
    struct worker *w = workers_find(a->workers, x->worker_id);
    if (w)
        workers_stop(w, x->grace_ms, x->grace_ms > 0, x->must_checkpoint, x->text);
}

static void write_start(struct agent *a, const struct agent_action *x);

static void do_action(struct agent *a, const struct agent_action *x)
{
    switch (x->kind) {
    case AGENT_RECORD_TERM:
    case AGENT_RECORD_JOB:
        write_start(a, x);
        break;
    case AGENT_FORGET_JOB:
        record_forget_job(a->run_dir, x->job_id);
        break;
    case AGENT_SEND:
        send_out(a, x->send);
        break;
    case AGENT_END_SESSION:
        session_end(a->session, x->text);
        break;
    case AGENT_TELL:
        tell_worker(a, x->worker_id, x->tell);
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
    case AGENT_ORDER:
        do_order(a, x->order);
        break;
    case AGENT_RANK:
        note_rank(a, x->worker_id, x->rank);
        break;
    case AGENT_SAY:
        say_line(a, x);
        break;
    }
}

/* From where it stopped. Inputs that this leads to append turns, which are seen here. */
static void carry_out(struct agent *a)
{
    if (a->carrying_out)
        return;
    a->carrying_out = true;
    while (a->turns && !a->writing) {
        struct turn *t = a->turns;
        const struct agent_action *x = a->closing ? NULL : t->at;
        if (x) {
            t->at = x->next;
            do_action(a, x);
            continue;
        }
        a->turns = t->next;
        a->turns_tail = a->turns ? a->turns_tail : &a->turns;
        turn_free(t);
    }
    a->carrying_out = false;
}

/* --- records --- */

/* One at a time; the action is of the first turn, which stays until it is written. */
struct writing {
    uv_work_t work;
    struct agent *agent;
    const struct agent_action *action;
    titan_status status;
    struct titan_error err;
    bool failed; /* before: said already */
};

static void write_run(uv_work_t *work)
{
    struct writing *w = work->data;
    const struct agent_action *x = w->action;
    (void)!failpoint("agent.record", NULL);
    w->status = x->kind == AGENT_RECORD_TERM ? record_write_term(w->agent->run_dir, &x->seen, &w->err)
                                             : record_write_job(w->agent->run_dir, x->record, &w->err);
    (void)!failpoint("agent.recorded", NULL);
}

static void write_done(uv_work_t *work, int status);

static void write_queue(struct writing *w)
{
    if (uv_queue_work(w->agent->loop, &w->work, write_run, write_done) == 0)
        w->agent->works++;
    else
        titan_bug("cannot queue work");
}

static void on_record_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;
    write_queue(a->writing);
}

static void write_done(uv_work_t *work, int status)
{
    struct writing *w = work->data;
    struct agent *a = w->agent;
    (void)status;
    a->works--;
    if (w->status != TITAN_OK && !a->closing) {
        if (!w->failed)
            tlog_error(&a->log, "record not written, nothing goes on without it", "reason=\"%s\"", w->err.msg);
        w->failed = true;
        (void)uv_timer_start(&a->record_timer, on_record_timer, RECORD_AGAIN_MS, 0);
        return;
    }
    if (w->failed)
        tlog_info(&a->log, "record written after all", "%s", "");
    a->writing = NULL;
    free(w);
    carry_out(a);
}

static void write_start(struct agent *a, const struct agent_action *x)
{
    struct writing *w = calloc(1, sizeof(*w));
    titan_assert(w);
    w->agent = a;
    w->action = x;
    w->work.data = w;
    a->writing = w;
    write_queue(w);
}

/* --- bounding logs --- */

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
    workers_look_after(a->workers);
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

/* --- open and close --- */

static titan_status choose_device(struct agent *a, const struct agent_options *o, struct titan_error *err)
{
    const char *wanted = o->device && *o->device ? o->device : "auto";
    uint32_t gpus = machine_gpus();
    if (strcmp(wanted, "auto") != 0 && strcmp(wanted, "cpu") != 0 && strcmp(wanted, "cuda") != 0)
        return titan_fail(err, TITAN_EINVAL, "device '%s' is not one of auto, cpu, cuda", wanted);
    if (!strcmp(wanted, "cuda") && gpus == 0)
        return titan_fail(err, TITAN_EDEVICE, "device 'cuda' asked for, but %s",
                          getenv("CUDA_VISIBLE_DEVICES") ? "CUDA_VISIBLE_DEVICES names no GPU"
                                                         : "none of /dev/nvidia0 and so on can be opened");
    bool cuda = strcmp(wanted, "cpu") != 0 && gpus > 0;
    (void)snprintf(a->device, sizeof(a->device), "%s", cuda ? "cuda" : "cpu");
    a->slots = o->slots ? o->slots : cuda ? gpus : SLOTS_CPU;
    if (cuda && a->slots > gpus) {
        (void)titan_fail(err, TITAN_EINVAL, "%u slots, but this agent may use %u GPU%s", a->slots, gpus,
                         gpus == 1 ? "" : "s");
        titan_error_hint(err, "a slot has a GPU of its own: at most %u slots, or device cpu", gpus);
        return TITAN_EINVAL;
    }
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
    return TITAN_OK;
}

/* The port of the time before, so that others still find us by what they were told of this node. */
static uint16_t last_port(const char *path)
{
    struct buf text = BUF_INIT;
    long port = file_read(path, 16, &text, NULL) == TITAN_OK && text.data ? strtol(text.data, NULL, 10) : 0;
    buf_free(&text);
    return port > 0 && port < 65536 ? (uint16_t)port : 0;
}

static titan_status open_peers(struct agent *a, const struct agent_options *o, struct titan_error *err)
{
    char path[PATH_MAX + 16], listen[sizeof(a->address) + 16], text[16];
    if (o->peer_listen)
        return *o->peer_listen ? peers_open(a->loop, o->peer_listen, on_peer_message, a, &a->peers, err) : TITAN_OK;
    const bool v6 = strchr(a->address, ':') != NULL;
    (void)snprintf(path, sizeof(path), "%s/peer_port", a->run_dir);
    uint16_t ports[] = {last_port(path), 0};
    titan_status status = TITAN_EIO;
    for (size_t i = 0; i < ARRAY_SIZE(ports) && status != TITAN_OK; i++) {
        (void)snprintf(listen, sizeof(listen), "%s%s%s:%u", v6 ? "[" : "", a->address, v6 ? "]" : "", ports[i]);
        status = peers_open(a->loop, listen, on_peer_message, a, &a->peers, err);
    }
    if (status == TITAN_EINVAL)
        return status; /* the address */
    if (status != TITAN_OK) {
        tlog_warn(&a->log, "no socket for other agents: nobody can ask for this node, and it for nobody",
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
    const struct agent_core_options options = {
        .node = a->node,
        .device = a->device,
        .address = a->address,
        .version = TITAN_VERSION,
        .slots = a->slots,
        .memory_bytes = memory_bytes(),
        .checks = true,
        .incarnation = random[0],
        .seed = random[1],
        .peer_port = a->peers ? peers_port(a->peers) : 0,
        .coordinator = a->peers && strncmp(o->coordinator, "unix:", 5) != 0 ? o->coordinator : NULL,
        .hang_floor_ms = o->hang_floor_ms,
        .away_ms = o->away_ms,
        .delegate_lease_ms = o->delegate_lease_ms};
    TRY(record_read_term(a->run_dir, &seen, err));
    TRY(agent_core_new(&options, &a->core, err));
    agent_core_restore_term(a->core, &seen);
    struct titan_error damaged = {0};
    if (record_read_jobs(a->run_dir, on_job_record, a, &damaged) != TITAN_OK)
        tlog_error(&a->log, "record of a job not read, going on without it", "reason=\"%s\"", damaged.msg);
    return TITAN_OK;
}

/* What an earlier agent's workers were at, before any of them speaks. */
static void adopt(struct agent *a)
{
    int64_t epoch_until = 0, contact = workers_contact(a->workers, &epoch_until);
    if (contact) /* in the life of an earlier agent; the lease runs on */
        agent_core_restore_contact(a->core, contact, epoch_until);
    tell_of_core(a);
    for (struct worker *w = workers_first(a->workers); w; w = w->next) {
        struct agent_sample sample;
        worker_look(w, &sample);
        agent_core_adopted(a->core, w->job_id, w->id, &sample, now_ms());
    }
}

static void on_adoption_timer(uv_timer_t *timer)
{
    session_start(((struct agent *)timer->data)->session);
}

static titan_status open_parts(struct agent *a, const struct agent_options *o, const char *program,
                               struct titan_error *err)
{
    static const struct session_events session_events = {on_session_open, on_session_message, on_session_lost};
    static const struct workers_events workers_events = {on_worker_message, on_worker_connected, on_worker_exit};
    struct workers_options options = {.run_dir = a->run_dir,
                                      .program = program,
                                      .host = a->address,
                                      .device = a->device,
                                      .slots = a->slots,
                                      .lease_ms = a->lease_ms};
    TRY(session_open(a->loop, o->coordinator, o->tls, &session_events, a, &a->session, err));
    if (o->tls && o->renew)
        TRY(renewal_open(a->loop, o->tls, session_client(a->session), &a->renewal, err));
    TRY(logs_open(a->loop, a->node, on_log_chunk, a, &a->logs, err));
    const struct node_checks_options checks = {
        .node = a->node, .address = a->address, .program = program, .tls = o->tls, .peers = a->peers != NULL};
    TRY(node_checks_open(a->loop, &checks, on_checked, a, &a->checks, err));
    return workers_open(a->loop, &options, &workers_events, a, &a->workers, err);
}

enum { N_TIMERS = 6 };

static uv_timer_t *timer_of(struct agent *a, size_t i)
{
    uv_timer_t *const timers[N_TIMERS] = {&a->log_timer,  &a->close_timer,  &a->adoption_timer,
                                          &a->tick_timer, &a->sample_timer, &a->record_timer};
    return timers[i];
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
    a->turns_tail = &a->turns;
    titan_status status = fill_options(a, o, program, err);
    log_init(&a->log, "agent", "node=%s", a->node);
    if (status == TITAN_OK)
        status = dir_make(a->run_dir, err);
    if (status == TITAN_OK)
        status = open_peers(a, o, err);
    if (status == TITAN_OK)
        status = open_core(a, o, err);
    if (status == TITAN_OK)
        status = open_parts(a, o, program, err);
    if (status != TITAN_OK) {
        if (a->logs)
            logs_close(a->logs, NULL, NULL);
        renewal_close(a->renewal, NULL, NULL);
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
    adopt(a);
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
    a->open_parts = N_TIMERS + 5;
    for (size_t i = 0; i < N_TIMERS; i++)
        uv_close((uv_handle_t *)timer_of(a, i), on_handle_closed);
    renewal_close(a->renewal, on_part_closed, a); /* its call has come back with the session's end */
    peers_close(a->peers, on_part_closed, a);
    workers_close(a->workers, on_part_closed, a);
    logs_close(a->logs, on_part_closed, a);
    node_checks_close(a->checks, on_part_closed, a);
}

/* Workers have ended, or will be let go: first the session, so that nothing more is asked of them. */
static void close_parts(struct agent *a)
{
    a->closing = true;
    for (size_t i = 0; i < N_TIMERS; i++)
        (void)uv_timer_stop(timer_of(a, i));
    free(a->writing); /* one that failed and would have been tried again */
    a->writing = NULL;
    carry_out(a); /* which lets go of all */
    logs_forget(a->logs);
    session_close(a->session, on_session_closed, a);
}

static void on_close_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;
    bool behind = a->turns && !(a->writing && a->writing->failed); /* the last reports want to go out */
    if ((a->draining && workers_first(a->workers)) || a->works > 0 || behind)
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
        agent_core_drain(a->core, a->quiet_stop);
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
    return agent_core_welcome(a->core);
}
