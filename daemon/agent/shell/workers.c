/* SPDX-License-Identifier: Apache-2.0 */
/* workers.c - the workers of this node; see workers.h. */
#include "daemon/agent/shell/workers.h"

#include "daemon/agent/shell/pages_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/flight.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/slowest.h"
#include "daemon/agent/shell/job_folders.h"

/* How long the report of a death waits for the exit status; the death is already certain. */
#define STATUS_WAIT_MS 10
#define KILL_AGAIN_MS 200

struct workers {
    uv_loop_t *loop;
    struct workers_events events;
    void *data;
    struct log log;
    struct channel *channel;
    uv_timer_t lease_timer;
    struct worker *first;
    struct departed *departed; /* until workers_take_departed() */
    struct file_pool *files;
    struct gpu_watch *gpus;
    char spawnd[SPAWN_SOCKET_MAX], default_user[256];
    char run_dir[PATH_MAX], pages_dir[PATH_MAX], program[PATH_MAX], host[256], node[256], device[16], socket[PATH_MAX];
    struct listen_ports ports;
    struct worker_limits limits;
    uint32_t slots, lease_ms;
    uint64_t term;
    int64_t epoch_until_ms, epoch_until_reported; /* the current value, and the value last sent to workers */
    struct oom_watch oom;
    int open_handles;
    bool closing;
    void (*done)(void *);
    void *done_data;
};

/* --- a worker's page, and its flight recorder beside it ----------------------------------------------------------- */

static void page_remove(const char *page_path)
{
    char path[PATH_MAX];
    flight_path(page_path, path);
    (void)unlink(path);
    (void)unlink(page_path);
}

/* --- end of a worker ---------------------------------------------------------------------------------------------- */

static void set_finish(struct workers *set)
{
    if (!set->closing || set->first || set->open_handles)
        return;
    void (*done)(void *) = set->done;
    void *data = set->done_data;
    for (struct departed *d = workers_take_departed(set), *next; d; d = next) {
        next = d->next;
        free(d);
    }
    pages_dir_close(set->run_dir, set->pages_dir);
    free(set);
    if (done)
        done(data);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct worker *w = handle->data;
    if (--w->open_handles > 0)
        return;
    struct workers *set = w->set;
    titan_assert(w->closing && w->open_handles == 0 && !w->start);
    titan_assert(w->prev ? w->prev->next == w : set->first == w);
    *(w->prev ? &w->prev->next : &set->first) = w->next;
    if (w->next)
        w->next->prev = w->prev;
    page_watch_stop(w->watch);
    if (w->stat_fd >= 0)
        (void)close(w->stat_fd);
    page_close(w->page);
    oom_group_leave(&set->oom, &w->memory);
    worker_process_clear(&w->process);
    frame_writer_clear(&w->pending);
    free(w);
    set_finish(set);
}

/* Releases the worker's resources; the process and its page stay. */
static void worker_close(struct worker *w)
{
    if (w->closing)
        return;
    titan_assert(!w->start);
    w->closing = true;
    channel_drop(w->connection);
    w->connection = NULL;
    if (w->process_polled)
        uv_close((uv_handle_t *)&w->process_poll, on_handle_closed);
    uv_close((uv_handle_t *)&w->kill_timer, on_handle_closed);
    uv_close((uv_handle_t *)&w->report_timer, on_handle_closed);
    if (w->watch_started)
        uv_close((uv_handle_t *)&w->watch_poll, on_handle_closed);
}

/* Appends the slot to the reason, because the next worker there gets the same device. */
static void name_slot(const struct worker *w, struct worker_exit *how)
{
    char words[sizeof how->reason];
    memcpy(words, how->reason, sizeof words);
    (void)snprintf(how->reason, sizeof how->reason, "the device of slot %u failed%s%.*s", w->slot, words[0] ? ": " : "",
                   (int)sizeof words - 64, words);
    tlog_warn(&w->set->log, "the device of a slot failed", "job=%" PRIu64 " worker=%" PRIu64 " slot=%u reason=\"%s\"",
              w->job_id, w->id, w->slot, words);
    gpu_watch_look(w->set->gpus, w->slot);
}

static void worker_report(struct worker *w)
{
    if (w->reported)
        return;
    titan_assert(w->dying);
    w->reported = true;
    bool known = w->end.code >= 0 || w->end.signal > 0 || worker_process_ending(&w->process, &w->end);
    struct worker_exit how = {.code = w->end.code, .signal = w->end.signal, .last_step = atomic_load(&w->page->step)};
    int32_t reported = atomic_load(&w->page->exit_code);
    if (!known)
        how.code = reported; /* -1 unless the worker exited in order */
    _Static_assert(sizeof(how.reason) == sizeof(w->page->last_words), "one holds the other");
    memcpy(how.reason, w->page->last_words, sizeof(how.reason) - 1);
    if (how.signal == SIGKILL && !w->killed) {
        /* Asks the worker's own cgroup, if titan-spawnd made one; its counts include limits above it. */
        const struct worker_limits *node = &w->set->limits;
        const struct worker_end *e = &w->end;
        const struct oom_victim victim = {w->memory, w->process.cgroup, node, w->rss_max};
        struct oom_numbers n = {e->limit, e->peak ? e->peak : w->rss_max, e->oom_kills};
        how.out_of_memory = true;
        if (e->oom_kills && oom_limit_reached(e->limit, e->peak)) {
            oom_reason(&n, worker_limits_origin(node, e->limit), how.reason, sizeof(how.reason));
        } else if (oom_verdict(&w->set->oom, &victim, how.reason, sizeof(how.reason)) != OOM_YES) {
            n.limit = node->machine.memory;
            how.out_of_memory = e->oom_kills > 0;
            if (how.out_of_memory)
                oom_reason(&n, " (the machine's, or of a cgroup above)", how.reason, sizeof(how.reason));
        }
    }
    if (how.signal == 0 && how.code == titan_status_exit(TITAN_EDEVICE))
        name_slot(w, &how);
    (void)uv_timer_stop(&w->report_timer);
    tlog_info(&w->set->log, "worker ended", "job=%" PRIu64 " worker=%" PRIu64 " code=%d signal=%d", w->job_id, w->id,
              how.code, how.signal);
    w->set->events.on_exit(w, &how, w->set->data);
}

static void on_report_timer(uv_timer_t *timer)
{
    HANDLER("worker.report");
    struct worker *w = timer->data;
    if (w->start_error.status == TITAN_OK) {
        worker_report(w);
        return;
    }
    w->reported = true;
    w->set->events.on_not_started(w, &w->start_error, w->set->data);
    worker_close(w);
}

/* The worker is dead or about to be. The agent reads its last messages, and reports it once its status is known. */
static void worker_dying(struct worker *w)
{
    if (w->dying)
        return;
    w->dying = true;
    if (w->connection)
        channel_drain(w->connection);
    channel_drop(w->connection);
    w->connection = NULL;
    (void)uv_timer_stop(&w->kill_timer);
    (void)uv_timer_start(&w->report_timer, on_report_timer, STATUS_WAIT_MS, 0);
}

static void on_process(uv_poll_t *handle, int status, int events)
{
    HANDLER("worker.ended");
    struct worker *w = handle->data;
    (void)status;
    (void)events;
    worker_dying(w);
    struct worker_end end;
    if (worker_process_reap(&w->process, &end) != TITAN_OK)
        return;
    if (end.code >= 0 || end.signal > 0)
        w->end = end;
    (void)uv_poll_stop(&w->process_poll);
    worker_report(w);
    page_remove(w->page_path);
    worker_close(w);
}

static void on_watch(uv_poll_t *handle, int status, int events)
{
    HANDLER("worker.ended");
    (void)status;
    (void)events;
    struct worker *w = handle->data;
    (void)uv_poll_stop(handle);
    worker_dying(w);
    /* On a busy machine the worker's threads and memory may take long to go. */
    if (worker_process_ending(&w->process, &w->end))
        worker_report(w);
}

/* --- a worker's connection ---------------------------------------------------------------------------------------- */

static void worker_watch(struct worker *w)
{
    struct titan_error err = {0};
    if (w->watch_started || !atomic_load(&w->page->locked))
        return;
    if (page_watch_start(w->page_path, &w->watch, &err) != TITAN_OK) {
        tlog_warn(&w->set->log, "worker's death will be noticed late", "worker=%" PRIu64 " reason=\"%s\"", w->id,
                  err.msg);
        return;
    }
    if (uv_poll_init(w->set->loop, &w->watch_poll, page_watch_fd(w->watch)) != 0)
        return;
    w->watch_poll.data = w;
    w->watch_started = true;
    w->open_handles++;
    (void)uv_poll_start(&w->watch_poll, UV_READABLE, on_watch);
}

static void send_lease(struct worker *w)
{
    Titan__Internal__WorkerLease lease = TITAN__INTERNAL__WORKER_LEASE__INIT;
    Titan__Internal__AgentToWorker message = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    titan_assert(w->set->lease_ms > 0); /* a worker without a lease would train on alone for ever */
    lease.lease_ms = w->set->lease_ms;
    lease.epoch_until_ms = w->set->epoch_until_ms;
    lease.host = w->set->host;
    message.term = w->set->term;
    message.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_LEASE;
    message.lease = &lease;
    if (w->connection)
        channel_send(w->connection, &message, -1);
}

static void send_leases(struct workers *set)
{
    for (struct worker *w = set->first; w; w = w->next)
        send_lease(w);
    set->epoch_until_reported = set->epoch_until_ms;
}

static void on_lease_timer(uv_timer_t *timer)
{
    struct workers *set = timer->data;
    send_leases(set);
    if (!set->first)
        (void)uv_timer_stop(timer);
}

static void *on_registration(struct channel_connection *connection,
                             const Titan__Internal__WorkerRegistration *registration, void *data,
                             struct titan_error *err)
{
    struct workers *set = data;
    struct worker *w = workers_find(set, registration->worker_id);
    const ProtobufCBinaryData *token = &registration->token;
    unsigned char differs = !w || token->len != sizeof(w->page->token);
    for (size_t i = 0; w && token->len == sizeof(w->page->token) && i < token->len; i++)
        differs |= (unsigned char)(token->data[i] ^ w->page->token[i]);
    if (!w || w->dying || w->start || w->job_id != registration->job_id || registration->pid != w->process.pid ||
        !channel_speaks_for(connection, w->process.pid) || differs) {
        (void)titan_fail(err, TITAN_EPERM, "worker %" PRIu64 " of job %" PRIu64 " (process %" PRId64 ") is not ours",
                         registration->worker_id, registration->job_id, registration->pid);
        return NULL;
    }
    titan_assert(w->connection != connection);
    channel_drop(w->connection);
    w->connection = connection;
    w->greeted = true;
    worker_watch(w);
    send_lease(w);
    if (w->connection)
        channel_send_queue(w->connection, &w->pending);
    tlog_debug(&set->log, "worker connected", "job=%" PRIu64 " worker=%" PRIu64 " adopted=%d", w->job_id, w->id,
               w->adopted);
    set->events.on_connected(w, registration, set->data);
    return w;
}

static void on_connection_closed(void *owner, void *data)
{
    (void)data;
    ((struct worker *)owner)->connection = NULL;
}

void worker_send(struct worker *w, const Titan__Internal__AgentToWorker *message, int fd)
{
    struct titan_error err = {0};
    if (w->dying)
        return;
    if (w->connection)
        channel_send(w->connection, message, fd);
    else if (channel_pack(&w->pending, message, fd, &err) != TITAN_OK)
        tlog_error(&w->set->log, "message to worker lost", "worker=%" PRIu64 " reason=\"%s\"", w->id, err.msg);
}

static void on_kill_timer(uv_timer_t *timer);

static void worker_kill(struct worker *w)
{
    w->killed = true;
    if (!worker_process_kill(&w->process)) /* titan-spawnd is restarting */
        (void)uv_timer_start(&w->kill_timer, on_kill_timer, KILL_AGAIN_MS, 0);
}

static void on_kill_timer(uv_timer_t *timer)
{
    struct worker *w = timer->data;
    if (!w->killed)
        tlog_warn(&w->set->log, "worker did not stop in time, killing it", "job=%" PRIu64 " worker=%" PRIu64, w->job_id,
                  w->id);
    worker_kill(w);
}

/* --- start -------------------------------------------------------------------------------------------------------- */

struct worker *workers_find(struct workers *set, uint64_t worker_id)
{
    for (struct worker *w = set->first; w; w = w->next)
        if (w->id == worker_id)
            return w;
    return NULL;
}

const char *workers_node(const struct workers *set)
{
    return set->node;
}

struct worker *workers_first(struct workers *set)
{
    return set->first;
}

uint32_t workers_count(const struct workers *set)
{
    uint32_t n = 0;
    for (const struct worker *w = set->first; w; w = w->next)
        n += !w->reported;
    return n;
}

void worker_look(struct worker *w, struct agent_sample *ret)
{
    const struct worker_page *p = w->page;
    uint64_t rss = 0, cpu_ms = 0;
    *ret = (struct agent_sample){.epoch = atomic_load(&p->epoch),
                                 .step = atomic_load(&p->step),
                                 .actions = atomic_load(&p->actions),
                                 .busy_ns = atomic_load(&p->busy_ns),
                                 .phase = atomic_load(&p->phase),
                                 .waiting = atomic_load(&p->waiting),
                                 .process_state = worker_process_state(w->stat_fd, &rss, &cpu_ms)};
    ret->cpu_ms = cpu_ms;
    ret->runnable = ret->actions == w->actions && ret->waiting == 0 && worker_process_runnable(&w->process);
    w->actions = ret->actions;
    w->rss_max = MAX(w->rss_max, rss);
}

void workers_publish(struct workers *set, uint64_t term, int64_t contact_ms, int64_t epoch_until_ms)
{
    set->term = term;
    for (struct worker *w = set->first; w && contact_ms > 0; w = w->next) {
        if (w->dying)
            continue;
        atomic_store_explicit(&w->page->epoch_until_ms, epoch_until_ms, memory_order_relaxed);
        atomic_store_explicit(&w->page->contact_ms, contact_ms, memory_order_relaxed);
    }
    set->epoch_until_ms = epoch_until_ms;
    if (llabs(epoch_until_ms - set->epoch_until_reported) >= AGENT_LEASE_MS)
        send_leases(set);
}

int64_t workers_contact(const struct workers *set, int64_t *ret_epoch_until_ms)
{
    int64_t contact = 0;
    for (const struct worker *w = set->first; w; w = w->next) {
        if (atomic_load(&w->page->contact_ms) <= contact)
            continue;
        contact = atomic_load(&w->page->contact_ms);
        *ret_epoch_until_ms = atomic_load(&w->page->epoch_until_ms);
    }
    return contact;
}

void workers_look_after(struct workers *set)
{
    for (struct worker *w = set->first; w; w = w->next)
        if (w->memory && !w->dying)
            oom_group_follow(&set->oom, &w->memory, w->process.pid);
    oom_watch_look(&set->oom);
}

uint32_t workers_expected(const struct workers *set)
{
    uint32_t n = 0;
    for (const struct worker *w = set->first; w; w = w->next)
        n += w->adopted && !w->greeted && !w->dying;
    return n;
}

const struct worker *workers_in_slot(const struct workers *set, uint32_t slot)
{
    const struct worker *w = set->first;
    while (w && (w->slot != slot || w->reported))
        w = w->next;
    return w;
}

static titan_status slot_free(const struct workers *set, uint32_t *ret, struct titan_error *err)
{
    struct gpu_state gpu, faulty = {0};
    uint32_t faulty_slot = 0;
    for (uint32_t slot = 0; slot < set->slots; slot++) {
        if (workers_in_slot(set, slot))
            continue;
        if (!gpu_watch_get(set->gpus, slot, &gpu) || gpu.health == GPU_WELL) {
            *ret = slot;
            return TITAN_OK;
        }
        faulty = gpu;
        faulty_slot = slot;
    }
    if (faulty.reason[0])
        return titan_fail(err, TITAN_EAGAIN, "slot %u is out of use: %s", faulty_slot, faulty.reason);
    return titan_fail(err, TITAN_ELIMIT, "all %u slots of this node are taken", set->slots);
}

static titan_status worker_paths(struct worker *w, const char *directory, struct titan_error *err)
{
    if (snprintf(w->job_dir, PATH_MAX, "%s", directory) >= PATH_MAX ||
        snprintf(w->log_path, PATH_MAX, "%s/logs/worker-%" PRIu64 ".log", directory, w->id) >= PATH_MAX ||
        snprintf(w->page_path, PATH_MAX, "%s/w%" PRIu64 ".page", w->set->pages_dir, w->id) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "job directory '%s' is too long", directory);
    return TITAN_OK;
}

/* Makes page and recorder in dir. last: dir is on disk, where the recorder may be missing. */
static titan_status worker_page_in(struct worker *w, const char *dir, bool last, struct titan_error *err)
{
    (void)snprintf(w->page_path, PATH_MAX, "%.4000s/w%" PRIu64 ".page", dir, w->id);
    TRY(page_create(w->page_path, w->job_id, w->id, w->slot, &w->page, err));
    struct titan_error why = {0};
    char path[PATH_MAX];
    flight_path(w->page_path, path);
    if (flight_create(path, &why) == TITAN_OK)
        return TITAN_OK;
    /* After a failure the worker runs without a recorder. */
    tlog_warn(&w->set->log, "no flight recorder", "job=%" PRIu64 " worker=%" PRIu64 " reason=\"%s\"", w->job_id, w->id,
              why.msg);
    if (last)
        return TITAN_OK;
    page_close(TAKE(w->page));
    page_remove(w->page_path);
    return titan_fail(err, TITAN_ENOSPC, "'%s' has no room for a flight recorder", dir);
}

/* Falls back to disk if memory for files is full. Containers have little of this memory, and NCCL and other software
 * use it too. */
static titan_status worker_page(struct worker *w, struct titan_error *err)
{
    struct workers *set = w->set;
    bool last = strcmp(set->pages_dir, set->run_dir) == 0;
    titan_status status = worker_page_in(w, set->pages_dir, last, err);
    if (status == TITAN_ENOTFOUND &&
        !last) { /* a log-out with RemoveIPC, or a script that cleans /dev/shm, removed the folder */
        tlog_warn(&set->log, "the folder of workers' pages is gone, another one is made", "path=\"%s\"",
                  set->pages_dir);
        pages_dir_open(set->run_dir, set->pages_dir, &set->log);
        last = strcmp(set->pages_dir, set->run_dir) == 0;
        status = worker_page_in(w, set->pages_dir, last, err);
    }
    return status == TITAN_OK || last ? status : worker_page_in(w, set->run_dir, true, err);
}

/* Starts to watch the worker's process. */
static titan_status worker_attach(struct worker *w, struct titan_error *err)
{
    if (uv_poll_init(w->set->loop, &w->process_poll, w->process.pidfd) != 0)
        return titan_fail(err, TITAN_EIO, "cannot watch process %d", (int)w->process.pid);
    w->process_poll.data = w;
    w->process_polled = true;
    w->open_handles++;
    w->stat_fd = worker_process_stat(&w->process);
    oom_group_follow(&w->set->oom, &w->memory, w->process.pid);
    (void)uv_poll_start(&w->process_poll, UV_READABLE, on_process);
    return TITAN_OK;
}

/* Adds the worker to the list, and opens its timers. */
static void worker_enter(struct worker *w)
{
    struct workers *set = w->set;
    (void)uv_timer_init(set->loop, &w->kill_timer);
    (void)uv_timer_init(set->loop, &w->report_timer);
    w->kill_timer.data = w->report_timer.data = w;
    w->open_handles += 2;
    w->end.code = -1;
    w->next = set->first;
    if (set->first)
        set->first->prev = w;
    set->first = w;
    if (!uv_is_active((uv_handle_t *)&set->lease_timer))
        (void)uv_timer_start(&set->lease_timer, on_lease_timer, AGENT_LEASE_MS, AGENT_LEASE_MS);
}

/* Reports by a timer, so that a caller that gives up a start gets no callback within that call. */
static void worker_not_started(struct worker *w, const struct titan_error *why)
{
    titan_assert(!w->start && !w->dying && !w->process_polled && why->status != TITAN_OK);
    w->dying = true;
    w->start_error = *why;
    page_remove(w->page_path);
    (void)uv_timer_start(&w->report_timer, on_report_timer, 0, 0);
}

static void on_start_done(struct file_task *k)
{
    struct worker_start *s = (struct worker_start *)(void *)k;
    struct worker *w = s->worker;
    struct titan_error err = s->err;
    titan_assert(w->start == s && !w->dying);
    w->start = NULL;
    if (err.status == TITAN_OK) {
        w->process = s->process;
        s->process = WORKER_PROCESS_NONE;
        if (worker_attach(w, &err) != TITAN_OK) { /* the process ends with the start */
            s->process = w->process;
            w->process = WORKER_PROCESS_NONE;
        }
    }
    if (err.status != TITAN_OK) {
        worker_not_started(w, &err);
    } else {
        /* The process waits for its pid in the page (wait_until_started() in worker/elastic/agent_connection.c). */
        __atomic_store_n(&w->page->pid, (int64_t)w->process.pid, __ATOMIC_RELEASE);
        tlog_info(&w->set->log, "worker started", "job=%" PRIu64 " worker=%" PRIu64 " pid=%d slot=%u", w->job_id, w->id,
                  (int)w->process.pid, w->slot);
        w->set->events.on_started(w, w->set->data);
    }
    worker_start_free(k);
}

static void on_start_given_up(struct file_task *k, bool started)
{
    struct worker_start *s = (struct worker_start *)(void *)k;
    struct worker *w = s->worker;
    struct titan_error err = {0};
    const uint32_t ms = file_pool_deadline_ms(w->set->files);
    titan_assert(w->start == s);
    w->start = NULL;
    if (started)
        (void)titan_fail(&err, TITAN_ETIMEDOUT,
                         "the job's folder '%s' has not answered for %u ms: look at its file server", w->job_dir, ms);
    else
        (void)titan_fail(
            &err, TITAN_ETIMEDOUT,
            "the job's folder '%s' was not opened within %u ms, an earlier start still hangs: look at the file server",
            w->job_dir, ms);
    worker_not_started(w, &err);
    if (!started)
        worker_start_free(k);
}

static const struct file_calls start_calls = {
    .run = worker_start_run, .done = on_start_done, .given_up = on_start_given_up, .free = worker_start_free};

static titan_status worker_begin(struct worker *w, const Titan__Internal__StartWorkers *m, struct titan_error *err)
{
    struct workers *set = w->set;
    const char *device = *m->device ? m->device : set->device;
    char cuda[128] = "";
    if (!strcmp(device, "cuda") && !machine_gpu(w->slot, cuda))
        return titan_fail(err, TITAN_EDEVICE, "slot %u has no GPU: this agent may use %u", w->slot, machine_gpus());
    TRY(worker_page(w, err));
    struct worker_start *s = worker_start_new(m->recipe);
    if (!s)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a worker");
    s->worker = w;
    s->job_id = w->job_id;
    s->worker_id = w->id;
    s->task.key = s->directory;
    s->has_uid = m->has_uid;
    s->uid = m->uid;
    (void)snprintf(s->directory, sizeof(s->directory), "%s", w->job_dir);
    (void)snprintf(s->log, sizeof(s->log), "%s", w->log_path);
    (void)snprintf(s->page, sizeof(s->page), "%s", w->page_path);
    (void)snprintf(s->program, sizeof(s->program), "%s", set->program);
    (void)snprintf(s->socket, sizeof(s->socket), "%s", set->socket);
    (void)snprintf(s->run, sizeof(s->run), "%s", *m->run ? m->run : m->directory);
    (void)snprintf(s->run_dir, sizeof(s->run_dir), "%s", set->run_dir);
    (void)snprintf(s->host, sizeof(s->host), "%s", set->host);
    if (set->ports.first)
        listen_ports_print(&set->ports, s->ports);
    (void)snprintf(s->node, sizeof(s->node), "%s", set->node);
    (void)snprintf(s->cuda, sizeof(s->cuda), "%s", cuda);
    (void)snprintf(s->spawnd, sizeof(s->spawnd), "%s", set->spawnd);
    s->limits = set->limits;
    (void)snprintf(s->user, sizeof(s->user), "%s", m->user);
    (void)snprintf(s->default_user, sizeof(s->default_user), "%s", set->default_user);
    titan_status status = file_pool_add(set->files, &s->task, &start_calls, sizeof(*s) + strlen(m->recipe), err);
    if (status != TITAN_OK) {
        worker_start_free(&s->task);
        return titan_error_wrap(err, "job's folder '%s'", w->job_dir);
    }
    w->start = s;
    worker_enter(w);
    return TITAN_OK;
}

titan_status workers_start(struct workers *set, uint64_t worker_id, const Titan__Internal__StartWorkers *m,
                           struct titan_error *err)
{
    uint32_t slot = 0;
    if (workers_find(set, worker_id))
        return titan_fail(err, TITAN_EEXIST, "worker %" PRIu64 " is there already", worker_id);
    if (m->directory[0] != '/')
        return titan_fail(err, TITAN_EINVAL, "job directory '%s' is not an absolute path", m->directory);
    TRY(slot_free(set, &slot, err));
    struct worker *w = calloc(1, sizeof(*w));
    if (!w)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a worker");
    *w = (struct worker){
        .set = set, .job_id = m->job_id, .id = worker_id, .slot = slot, .stat_fd = -1, .process = WORKER_PROCESS_NONE};
    titan_status status = worker_paths(w, m->directory, err);
    status = status == TITAN_OK ? worker_begin(w, m, err) : status;
    if (status != TITAN_OK) {
        if (w->page)
            page_remove(w->page_path);
        page_close(w->page);
        free(w);
    }
    return status;
}

/* --- stop --------------------------------------------------------------------------------------------------------- */

void workers_stop(struct worker *w, uint32_t grace_ms, bool checkpoint, bool must, const char *reason)
{
    if (w->start) { /* after this the worker has a process, or never gets a process */
        struct worker_start *s = w->start;
        const bool ours = file_pool_abandon(w->set->files, &s->task);
        if (ours && (s->process.pid > 0 || s->err.status != TITAN_OK)) { /* the start has ended */
            on_start_done(&s->task);
        } else {
            struct titan_error err = {0};
            w->start = NULL;
            (void)titan_fail(&err, TITAN_ECANCELLED, "stopped before it was started%s%s", reason && *reason ? ": " : "",
                             reason ? reason : "");
            worker_not_started(w, &err);
            if (ours)
                worker_start_free(&s->task);
        }
    }
    if (w->dying)
        return;
    if (grace_ms == 0) {
        worker_kill(w);
        return;
    }
    Titan__Internal__WorkerStop stop = TITAN__INTERNAL__WORKER_STOP__INIT;
    Titan__Internal__AgentToWorker message = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    message.term = w->set->term;
    stop.grace_ms = grace_ms;
    stop.checkpoint = checkpoint;
    stop.must_checkpoint = must;
    stop.reason = (char *)(reason ? reason : "");
    message.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_STOP;
    message.stop = &stop;
    worker_send(w, &message, -1);
    uint64_t due = uv_is_active((uv_handle_t *)&w->kill_timer) ? uv_timer_get_due_in(&w->kill_timer) : UINT64_MAX;
    w->stopping = true;
    if (grace_ms < due)
        (void)uv_timer_start(&w->kill_timer, on_kill_timer, grace_ms, 0);
}

/* --- adoption ----------------------------------------------------------------------------------------------------- */

/* Adds a dead worker to the list of departed workers, if it left a reason. A worker that left no fault counts as lost,
 * because its last reports may be missing. */
static void departed_keep(const struct worker *w, const char *page_path)
{
    const int32_t code = atomic_load(&w->page->exit_code);
    char name[40];
    (void)snprintf(name, sizeof(name), "/w%" PRIu64 ".page", w->id);
    struct worker_end end = {.code = code};
    bool explained = code > 0 || (code == 0 && w->page->last_words[0]);
    if (!explained && w->set->spawnd[0]) /* the parent, titan-spawnd, knows its end */
        explained = worker_process_departed(w->set->spawnd, w->id, &end) && (end.code > 0 || end.signal > 0);
    struct departed *d = explained && strcmp(strrchr(page_path, '/'), name) == 0 ? calloc(1, sizeof(*d)) : NULL;
    if (!d)
        return;
    d->job_id = w->job_id;
    d->worker_id = w->id;
    d->how.code = end.code;
    d->how.signal = end.signal;
    d->how.last_step = atomic_load(&w->page->step);
    memcpy(d->how.reason, w->page->last_words, sizeof(d->how.reason) - 1);
    if (end.code == titan_status_exit(TITAN_EDEVICE))
        name_slot(w, &d->how);
    tlog_info(&w->set->log, "a worker ended while it had no agent", "job=%" PRIu64 " worker=%" PRIu64 " code=%d",
              d->job_id, d->worker_id, d->how.code);
    d->next = w->set->departed;
    w->set->departed = d;
}

struct departed *workers_take_departed(struct workers *set)
{
    return TAKE(set->departed);
}

static titan_status worker_adopt(struct workers *set, const char *page_path, struct titan_error *err)
{
    struct worker *w = calloc(1, sizeof(*w));
    char directory[PATH_MAX];
    if (!w)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a worker");
    *w = (struct worker){.set = set, .adopted = true, .stat_fd = -1, .process = WORKER_PROCESS_NONE};
    titan_status status = page_open(page_path, &w->page, err);
    if (status == TITAN_OK) {
        w->id = w->page->worker_id;
        w->job_id = w->page->job_id;
        w->slot = w->page->slot;
    }
    if (status == TITAN_OK && page_owner(w->page) == PAGE_DEAD) {
        departed_keep(w, page_path);
        status = titan_fail(err, TITAN_ENOTFOUND, "its process is gone");
    }
    if (status == TITAN_OK) {
        const struct worker_found found = {(pid_t)w->page->pid, page_path, w->job_id, w->id, set->spawnd};
        if (!job_folder_find(set->run_dir, w->job_id,
                             directory)) { /* not recorded: the folder is the worker's working directory */
            char path[64];
            (void)snprintf(path, sizeof(path), "/proc/%d/cwd", (int)found.pid);
            const ssize_t n = readlink(path, directory, PATH_MAX - 1);
            directory[n > 0 ? n : 0] = '\0';
        }
        status = worker_process_adopt(&found, &w->process, err);
    }
    if (status == TITAN_OK && workers_find(set, w->id))
        status = titan_fail(err, TITAN_ECORRUPT, "worker %" PRIu64 " has two pages", w->id);
    status = status == TITAN_OK ? worker_paths(w, directory, err) : status;
    (void)snprintf(w->page_path, PATH_MAX, "%.4095s", page_path); /* the page's actual path, which may be in run/ */
    status = status == TITAN_OK ? worker_attach(w, err) : status;
    if (status != TITAN_OK) {
        if (w->id && !workers_find(set, w->id))
            worker_process_sweep(w->id);
        worker_process_clear(&w->process);
        page_close(w->page);
        free(w);
        return status;
    }
    worker_enter(w);
    worker_watch(w);
    tlog_info(&set->log, "worker adopted", "job=%" PRIu64 " worker=%" PRIu64 " pid=%d", w->job_id, w->id,
              (int)w->process.pid);
    return TITAN_OK;
}

/* Every page in the folder belongs to an earlier agent's worker. Adopts live workers, and removes dead workers'
 * pages. */
static titan_status workers_adopt(struct workers *set, const char *folder, struct titan_error *err)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return titan_fail_errno(err, "cannot read '%s'", folder);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[PATH_MAX + 300];
        size_t len = strlen(e->d_name);
        struct titan_error why = {0};
        if (len < 7 || e->d_name[0] != 'w' || strcmp(e->d_name + len - 5, ".page") != 0)
            continue;
        if (snprintf(path, sizeof(path), "%s/%s", folder, e->d_name) >= PATH_MAX)
            continue;
        if (worker_adopt(set, path, &why) == TITAN_OK)
            continue;
        tlog_info(&set->log, "page of a worker that is gone removed", "page=\"%s\" reason=\"%s\"", path, why.msg);
        page_remove(path);
    }
    (void)closedir(dir);
    return TITAN_OK;
}

/* --- folders of jobs that are gone -------------------------------------------------------------------------------- */

struct folder_sweep {
    struct file_task task; /* must be the first member */
    struct workers *set;   /* for the loop only */
    char run_dir[PATH_MAX];
    struct job_leftovers found;
};

static void sweep_run(struct file_task *k)
{
    struct folder_sweep *s = (struct folder_sweep *)(void *)k;
    job_leftovers_find(s->run_dir, &s->found);
}

static void sweep_free(struct file_task *k)
{
    struct folder_sweep *s = (struct folder_sweep *)(void *)k;
    free(s->found.names);
    free(s);
}

/* Does the job have a worker here? Its folder may have been made after the leftovers were listed. */
static bool job_has_worker(uint64_t job_id, void *data)
{
    const struct worker *w = ((struct workers *)data)->first;
    while (w && w->job_id != job_id)
        w = w->next;
    return w;
}

static void sweep_done(struct file_task *k)
{
    struct folder_sweep *s = (struct folder_sweep *)(void *)k;
    job_leftovers_remove(&s->found, s->run_dir, job_has_worker, s->set);
    sweep_free(k);
}

/* If this agent gives the sweep up, the next agent sweeps. */
static const struct file_calls sweep_calls = {.run = sweep_run, .done = sweep_done, .free = sweep_free};

/* --- open and close ----------------------------------------------------------------------------------------------- */

titan_status workers_open(uv_loop_t *loop, const struct workers_options *o, const struct workers_events *events,
                          void *data, struct workers **ret, struct titan_error *err)
{
    char jobs[PATH_MAX];
    struct workers *set = calloc(1, sizeof(*set));
    if (!set)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the agent");
    set->loop = loop;
    set->events = *events;
    set->data = data;
    set->slots = o->slots;
    set->lease_ms = o->lease_ms;
    set->gpus = o->gpus;
    set->files = o->files;
    log_init(&set->log, "agent", "%s", "");
    (void)snprintf(set->program, sizeof(set->program), "%s", o->program);
    (void)snprintf(set->host, sizeof(set->host), "%s", o->host);
    set->ports = o->ports;
    set->limits = o->limits;
    (void)snprintf(set->node, sizeof(set->node), "%s", o->node);
    (void)snprintf(set->device, sizeof(set->device), "%s", o->device);
    (void)snprintf(set->spawnd, sizeof(set->spawnd), "%s", o->spawnd ? o->spawnd : "");
    (void)snprintf(set->default_user, sizeof(set->default_user), "%s", o->default_user ? o->default_user : "");
    titan_status status = TITAN_OK;
    if (snprintf(set->run_dir, PATH_MAX, "%s", o->run_dir) >= PATH_MAX - 64 ||
        snprintf(set->socket, PATH_MAX, "%s/agent.sock", o->run_dir) >= PATH_MAX ||
        snprintf(jobs, PATH_MAX, "%s/jobs", o->run_dir) >= PATH_MAX)
        status = titan_fail(err, TITAN_EINVAL, "state directory '%s' is too long", o->run_dir);
    status = status == TITAN_OK ? dir_make(jobs, err) : status;
    if (status == TITAN_OK)
        pages_dir_open(set->run_dir, set->pages_dir, &set->log);
    struct channel_events channel_events = {.on_registration = on_registration,
                                            .on_message = events->on_message,
                                            .message_data = data,
                                            .on_close = on_connection_closed,
                                            .any_user = set->spawnd[0] != '\0'};
    /* Other users' workers enter by a descriptor of this folder; the state directory around it stays closed. */
    if (status == TITAN_OK && set->spawnd[0] && chmod(set->run_dir, 0711) != 0)
        status = titan_fail_errno(err, "cannot open '%s' to the workers of users", set->run_dir);
    status = status == TITAN_OK ? channel_open(loop, set->socket, &channel_events, set, &set->channel, err) : status;
    if (status != TITAN_OK) {
        free(set);
        return status;
    }
    (void)uv_timer_init(loop, &set->lease_timer);
    set->lease_timer.data = set;
    set->open_handles = 2; /* the timer and the channel */
    oom_watch_init(&set->oom);
    struct folder_sweep *sweep = calloc(1, sizeof(*sweep));
    if (sweep) {
        sweep->set = set;
        (void)snprintf(sweep->run_dir, sizeof(sweep->run_dir), "%s", set->run_dir);
        if (file_pool_add(set->files, &sweep->task, &sweep_calls, sizeof(*sweep), NULL) != TITAN_OK)
            sweep_free(&sweep->task);
    }
    struct titan_error why = {0};
    /* Also adopts from run/: older agents' pages lie there, and pages that found no room elsewhere. */
    if (workers_adopt(set, set->run_dir, &why) != TITAN_OK ||
        (strcmp(set->pages_dir, set->run_dir) != 0 && workers_adopt(set, set->pages_dir, &why) != TITAN_OK))
        tlog_warn(&set->log, "no worker adopted", "reason=\"%s\"", why.msg);
    *ret = set;
    return TITAN_OK;
}

static void on_channel_closed(void *data)
{
    struct workers *set = data;
    set->open_handles--;
    set_finish(set);
}

static void on_timer_closed(uv_handle_t *handle)
{
    on_channel_closed(handle->data);
}

bool workers_check(const struct workers *set)
{
    for (const struct worker *w = set->first; w; w = w->next) {
        titan_assert(w->set == set && w->page);
        titan_assert(w->prev ? w->prev->next == w : set->first == w);
        titan_assert(!w->next || w->next->prev == w);
        titan_assert(!w->reported || w->dying);
        titan_assert(!w->start || (!w->dying && !w->process_polled && !w->connection));
        titan_assert(w->start || w->process_polled || w->start_error.status != TITAN_OK);
        titan_assert(!w->connection || (w->greeted && !w->dying && !w->closing));
        titan_assert(w->adopted || w->slot < set->slots);
        titan_assert(!w->watch_started || w->watch);
        titan_assert(w->open_handles > 0);
        for (const struct worker *x = w->next; x; x = x->next)
            titan_assert(x->id != w->id);
    }
    return true;
}

void workers_close(struct workers *set, void (*done)(void *), void *data)
{
    titan_assert(!set->closing);
    set->closing = true;
    set->done = done;
    set->done_data = data;
    for (struct worker *w = set->first; w; w = w->next)
        worker_close(w);
    channel_close(set->channel, on_channel_closed, set);
    uv_close((uv_handle_t *)&set->lease_timer, on_timer_closed);
}
