/* SPDX-License-Identifier: Apache-2.0 */
/* workers.h - the workers of this node: started or adopted, talked to, watched, stopped, buried.
 *
 *   start ──► process runs ──► registered (connection, watch) ──► ... ──► death noticed ──► reported ──► reaped
 *     │   adopt ──┘
 *     └──► not started ──► reported, slot free
 *
 * A start opens its job's folder on a thread of the file pool (worker_start.h). A folder that misses the pool's
 * deadline makes the start fail; a process from a late answer is killed before it acts. Two signals show a death, and
 * the first one counts. The page's mutex shows it within a millisecond, whatever the worker's size. The pidfd shows it
 * for workers that have not locked the page yet, and for other workers once their memory is freed. A worker's last
 * messages are read from its socket and page before its end is reported. */
#ifndef TITAN_DAEMON_AGENT_SHELL_WORKERS_H
#define TITAN_DAEMON_AGENT_SHELL_WORKERS_H

#include <limits.h>
#include <uv.h>

#include "base/error.h"
#include "base/frame.h"
#include "base/listen.h"
#include "daemon/agent/shell/worker_channel.h"
#include "daemon/agent/agent_core.h"
#include "daemon/agent/shell/gpu_watch.h"
#include "daemon/agent/shell/oom.h"
#include "daemon/agent/shell/page_watch.h"
#include "daemon/agent/shell/worker_process.h"
#include "daemon/agent/shell/worker_start.h"

#define WORKER_REASON_MAX 600

struct workers;

struct worker {
    struct workers *set;
    struct worker *next, *prev;
    uint64_t job_id, id;
    uint32_t slot;
    bool adopted, dying, reported, stopping;
    struct worker_start *start;     /* the start in progress; NULL: there is a process, or there will be none */
    struct titan_error start_error; /* why there is no process; TITAN_OK = there is one */
    bool greeted;                   /* it has connected to this agent */
    bool killed;                    /* this agent killed it */
    struct worker_process process;
    struct oom_group *memory; /* counts its kills for memory; NULL = no process */
    struct worker_page *page;
    char page_path[PATH_MAX], job_dir[PATH_MAX], log_path[PATH_MAX];
    uint32_t rank;             /* in its current or last epoch */
    bool recorded;             /* the job's record has the rank */
    int stat_fd;               /* descriptor of /proc/PID/stat */
    uint64_t rss_max, actions; /* actions: value in its page at the last look */
    int dumped_for;
    int64_t dumped_ns, hung_ns; /* its last dump, and its last dump as a hanging worker (flight_dumps.h) */
    struct channel_connection *connection;
    struct frame_writer pending; /* messages queued without a connection */
    struct page_watch *watch;
    struct worker_end end;
    uv_poll_t watch_poll, process_poll;
    uv_timer_t kill_timer, report_timer;
    int open_handles;
    bool process_polled, watch_started, bounding, closing; /* bounding: its log is being bounded (log_bounds.h) */
};

struct worker_exit {
    int code, signal; /* code -1: a signal ended it; then signal 0 = unknown */
    char reason[WORKER_REASON_MAX];
    uint64_t last_step;
    bool out_of_memory; /* killed for its memory: reason has limit and peak */
};

/* A worker that failed without an agent, according to its page. */
struct departed {
    struct departed *next;
    uint64_t job_id, worker_id;
    struct worker_exit how; /* code > 0, or a signal */
};

struct workers_events {
    /* One of these two is called for each worker that workers_start() accepted. on_started: its process runs.
     * on_not_started: the start failed for this reason, and no other event follows. */
    void (*on_started)(struct worker *w, void *data);
    void (*on_not_started)(struct worker *w, const struct titan_error *why, void *data);
    void (*on_message)(void *worker, const Titan__Internal__WorkerToAgent *message, void *data);
    /* The worker is connected (again), with the right token. */
    void (*on_connected)(struct worker *w, const Titan__Internal__WorkerRegistration *registration, void *data);
    /* Called once. The worker no longer counts; the struct is freed later. */
    void (*on_exit)(struct worker *w, const struct worker_exit *how, void *data);
};

struct workers_options {
    const char *run_dir; /* socket, jobs/, and a link to the workers' pages (pages_dir.h) */
    const char *program, *host, *device, *node;
    const char *spawnd;       /* titan-spawnd's socket: workers run as their jobs' users; NULL = as the agent's user */
    const char *default_user; /* user for jobs without a user of this node; NULL = such jobs are not run */
    uint32_t slots, lease_ms;
    struct listen_ports ports;   /* ports for workers' listeners */
    struct worker_limits limits; /* of this node */
    struct file_pool *files;     /* must be closed before these workers */
    struct gpu_watch *gpus;      /* must be closed before these workers; NULL = none */
};

/* Opens the socket, adopts an earlier agent's workers, and removes the files of its dead workers.
 * workers_take_departed() lists the dead workers that left a reason. */
titan_status workers_open(uv_loop_t *loop, const struct workers_options *options, const struct workers_events *events,
                          void *data, struct workers **ret, struct titan_error *err) TITAN_MUST_USE;
/* Once, after workers_open(); the caller frees each entry with free(). NULL = none. */
struct departed *workers_take_departed(struct workers *set);
/* Releases the workers: they live on for their lease. done runs on the loop when all is freed. */
void workers_close(struct workers *set, void (*done)(void *), void *data);

/* Begins a start. From now on the worker is in the set and can get messages and stops. TITAN_ELIMIT: no free slot;
 * TITAN_EEXIST: the worker exists; TITAN_EAGAIN: folders of earlier starts do not answer, or the GPUs of all free slots
 * are out of use. */
titan_status workers_start(struct workers *set, uint64_t worker_id, const Titan__Internal__StartWorkers *m,
                           struct titan_error *err) TITAN_MUST_USE;
struct worker *workers_find(struct workers *set, uint64_t worker_id);
struct worker *workers_first(struct workers *set); /* the list goes on in ->next; skip workers with `reported` set */
uint32_t workers_count(const struct workers *set); /* alive */
const struct worker *workers_in_slot(const struct workers *set, uint32_t slot); /* NULL = none */
const char *workers_node(const struct workers *set);                            /* this node's name */
/* Leases and stops for workers carry this term from now on. The contact and the end of the epochs' lease (agent_core.h)
 * go into the workers' pages, for the next agent. Workers get their lease every AGENT_LEASE_MS, and at once when its
 * end moved by that much. */
void workers_publish(struct workers *set, uint64_t term, int64_t contact_ms, int64_t epoch_until_ms);
/* Returns the latest contact in the workers' pages, 0 = none. *ret_epoch_until_ms: the lease's end that was written
 * with this contact. */
int64_t workers_contact(const struct workers *set, int64_t *ret_epoch_until_ms);
/* Samples the worker's page and process now. */
void worker_look(struct worker *w, struct agent_sample *ret);
/* Called now and then while there are workers (oom.h). */
void workers_look_after(struct workers *set);
/* Number of adopted workers that have not connected yet. */
uint32_t workers_expected(const struct workers *set);

/* Asserts the workers' invariants after an input. Returns true; a broken invariant ends the process. */
bool workers_check(const struct workers *set);

/* Delivers the message now, or when the worker connects. fd -1 = none. */
void worker_send(struct worker *w, const Titan__Internal__AgentToWorker *message, int fd);
/* Asks the worker to stop. SIGKILL follows after grace_ms, 0 = now. A worker without a process gets no SIGKILL.
 * checkpoint: the worker first writes a checkpoint, if the recipe has checkpoints or `must` is set. */
void workers_stop(struct worker *w, uint32_t grace_ms, bool checkpoint, bool must, const char *reason);

#endif
