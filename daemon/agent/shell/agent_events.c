/* SPDX-License-Identifier: Apache-2.0 */
/* agent_events.c - events of workers, of the session, of other agents and of GPUs, as inputs of the core. */
#include "daemon/agent/shell/agent_internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/slowest.h"
#include "daemon/agent/shell/flight_dumps.h"
#include "proto/ranges.h"

#define LOGS_AHEAD 64 /* messages in the session's queue at which reading workers' logs pauses */

/* Gives the core the slots' GPUs and their workers. */
void agent_report_gpus(struct agent *a)
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

void agent_on_gpus_changed(void *data)
{
    agent_report_gpus(data);
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
    *(how->out_of_memory ? &a->counts.out_of_memory
      : how->code == 0   ? &a->counts.clean
      : how->code > 0    ? &a->counts.failed
                         : &a->counts.signalled) += 1;
    CORE(a, agent_core_exited, w->id, &end);
    char detail[160];
    if (how->signal)
        (void)snprintf(detail, sizeof detail, "signal %d", how->signal);
    else
        (void)snprintf(detail, sizeof detail, "code %d: %.120s", how->code, how->reason);
    /* A worker that this node killed for hanging has already been dumped in that state. */
    if (how->code != 0 && !(w->killed && w->dumped_ns))
        dump_worker(w, DUMP_EXIT, detail, a->files, &a->log);
    agent_report_gpus(a);
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

static void on_worker_not_started(struct worker *w, const struct titan_error *why, void *data)
{
    struct agent *a = data;
    a->counts.start_failures++;
    agent_worker_not_started(a, w->job_id, w->id, why);
    comm_segments_sweep(&a->segments, a->workers);
}

static void on_worker_started(struct worker *w, void *data)
{
    struct agent *a = data;
    a->counts.starts++;
    log_bounds_watch(a->log_bounds);
    CORE(a, agent_core_started, w->id, (int64_t)w->process.pid);
    agent_report_gpus(a);
}

const struct workers_events agent_workers_events = {.on_started = on_worker_started,
                                                    .on_not_started = on_worker_not_started,
                                                    .on_message = on_worker_message,
                                                    .on_connected = on_worker_connected,
                                                    .on_exit = on_worker_exit};

static void on_session_open(void *data)
{
    struct agent *a = data;
    if (a->peers)
        peers_look_again(a->peers); /* another machine may now have the coordinator's name */
    agent_core_coordinator_at(a->core, session_target(a->session));
    agent_sample_all(a);
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

const struct session_events agent_session_events = {on_session_open, on_session_message, on_session_lost};

void agent_on_peer_message(const Titan__Internal__PeerMessage *m, const char *from, void *data)
{
    struct agent *a = data;
    CORE(a, agent_core_peer, m, from);
}

bool agent_on_log_chunk(const Titan__Internal__AgentLogChunk *chunk, void *data)
{
    struct agent *a = data;
    Titan__Internal__AgentMessage message = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    message.term = agent_core_term(a->core);
    message.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_LOG;
    message.log = (Titan__Internal__AgentLogChunk *)chunk;
    return !a->closing && agent_core_registered(a->core) && session_queued(a->session) < LOGS_AHEAD &&
           session_send(a->session, &message) == TITAN_OK;
}

bool agent_on_checked(const Titan__Internal__NodeChecked *answer, void *data)
{
    struct agent *a = data;
    Titan__Internal__AgentMessage message = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    message.term = agent_core_term(a->core);
    message.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKED;
    message.checked = (Titan__Internal__NodeChecked *)answer;
    return !a->closing && agent_core_registered(a->core) && session_send(a->session, &message) == TITAN_OK;
}
