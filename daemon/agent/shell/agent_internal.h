/* SPDX-License-Identifier: Apache-2.0 */
/* agent_internal.h - what the files of the agent's shell share; agent.h is its contract.
 *
 *   agent.c          opens and closes the parts
 *   action_queue.c   carries out what the core decides, and keeps the core's time
 *   agent_events.c   supervises: events of workers, session, datagrams and GPUs become inputs of the core
 *   agent_settings.c  options checked                 agent_session.c   the stream to the coordinator
 *   workers.c         workers' processes and sockets  worker_start.c    what a worker starts with
 *   worker_process.c  start, kill and reap            worker_channel.c  the socket for workers
 *   page_watch.c      pages of workers                pages_dir.c       where the pages lie
 *   record_writer.c   records to the disk             records.c         records as files
 *   comm_segments.c   shared memory of epochs         oom.c             workers killed for memory
 *   worker_logs.c     output of workers               log_bounds.c      bounds of the logs
 *   flight_dumps.c    workers' flight recorders       job_folders.c     where jobs' folders are
 *   node_check.c      problems of this node           reach.c           are other nodes reachable?
 *   gpu_watch.c       GPUs of the slots               nvml.c            NVIDIA's library
 *   worker_limits.c   a worker's memory, processors   worker_cgroup.c   cgroups that enforce them
 *   installation.c    the state directory's id        spawn_client.c    calls to titan-spawnd
 *   agent_metrics.c   metrics for Prometheus          site_hooks.c      the site's own node checks
 *
 * Jobs' folders are read in daemon/common/file_pool.c, datagrams go through daemon/common/peers.c.
 *
 * A worker's message passes three functions from the channel's read to the session's send: on_worker_message()
 * (agent_events.c), agent_core_worker() (inputs/worker_messages.c), and agent_carry_out() (action_queue.c). */
#ifndef TITAN_DAEMON_AGENT_SHELL_AGENT_INTERNAL_H
#define TITAN_DAEMON_AGENT_SHELL_AGENT_INTERNAL_H

#include "base/clock.h"
#include "base/log.h"
#include "daemon/agent/agent_core.h"
#include "daemon/agent/shell/agent.h"
#include "daemon/agent/shell/agent_session.h"
#include "daemon/agent/shell/agent_settings.h"
#include "daemon/agent/shell/comm_segments.h"
#include "daemon/agent/shell/gpu_watch.h"
#include "daemon/agent/shell/log_bounds.h"
#include "daemon/agent/shell/node_check.h"
#include "daemon/agent/shell/record_writer.h"
#include "daemon/agent/shell/worker_logs.h"
#include "daemon/agent/shell/workers.h"
#include "daemon/common/file_pool.h"
#include "daemon/common/peers.h"

/* The actions of one input. */
struct action_batch {
    struct action_batch *next;
    struct agent_actions actions;
    const struct agent_action *at; /* the next to carry out */
};

struct agent {
    uv_loop_t *loop;
    struct log log;
    struct agent_settings settings;
    struct agent_core *core;
    struct action_batch *batches, **batches_tail;
    bool carrying_out; /* agent_carry_out is on the stack */
    struct record_writer *records;
    struct file_pool *files; /* opens files that may lie on a file server: jobs' folders */
    struct workers *workers;
    struct session *session;
    struct renewal *renewal; /* renews this agent's certificate; NULL = no certificate */
    struct peers *peers;     /* NULL = none */
    struct logs *logs;
    struct log_bounds *log_bounds;
    struct node_checks *checks;
    struct gpu_watch *gpus; /* NULL = none */
    struct comm_segments segments;
    uv_timer_t close_timer, adoption_timer, tick_timer, sample_timer;
    bool as_users; /* titan-spawnd starts the workers */
    struct {
        uint64_t starts, start_failures, clean, failed, signalled, out_of_memory;
    } counts; /* of workers, since the start */
    bool draining, closing;
    int open_parts; /* agent_close waits for these */
    void (*done)(void *);
    void *done_data;
};

/* --- action_queue.c ----------------------------------------------------------------------------------------------- */
struct action_batch *agent_batch_new(void);
/* Carries out the actions of earlier inputs, then the actions of this batch (NULL = none). Takes batch over. If an
 * action causes an input, this appends a batch. */
void agent_carry_out(struct agent *a, struct action_batch *batch);
/* Writes the state that the next agent of this node and workers without an agent need. */
void agent_publish(struct agent *a);
void agent_sample_all(struct agent *a); /* samples the pages of all workers */
void agent_worker_not_started(struct agent *a, uint64_t job_id, uint64_t worker_id, const struct titan_error *why);

/* An input for the core: CORE(a, agent_core_sample, id, &sample). */
#define CORE(a, input, ...)                                                                                            \
    do {                                                                                                               \
        struct action_batch *batch_ = agent_batch_new();                                                               \
        input((a)->core, ##__VA_ARGS__, clock_mono_ms(), &batch_->actions);                                            \
        agent_carry_out((a), batch_);                                                                                  \
    } while (0)

/* --- agent_events.c ----------------------------------------------------------------------------------------------- */
extern const struct session_events agent_session_events;
extern const struct workers_events agent_workers_events;
/* Callbacks of the other parts; data is the agent. */
void agent_on_peer_message(const Titan__Internal__PeerMessage *m, const char *from, void *data);
bool agent_on_log_chunk(const Titan__Internal__AgentLogChunk *chunk, void *data);
bool agent_on_checked(const Titan__Internal__NodeChecked *answer, void *data);
void agent_on_gpus_changed(void *data);
void agent_report_gpus(struct agent *a); /* gives the core the slots' GPUs and their workers */

#endif
