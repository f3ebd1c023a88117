/* SPDX-License-Identifier: Apache-2.0 */
/* The core: creation, ticks, queries. */
#include "daemon/coordinator/records/core_record.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/cluster/failure_detector.h"
#include "daemon/coordinator/cluster/fencing.h"
#include "daemon/coordinator/inputs/core_check.h"
#include "daemon/coordinator/inputs/input.h"
#include "daemon/coordinator/inputs/lost_node.h"
#include "daemon/coordinator/records/job_queue.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/records/node_slots.h"
#include "daemon/coordinator/run/job_driver.h"
#include "daemon/coordinator/run/job_view.h"
#include "daemon/coordinator/run/stale_store.h"
#include "daemon/coordinator/sched/maintenance.h"
#include "daemon/coordinator/sched/placement.h"

titan_status core_new(const struct core_options *options, struct core **ret, struct titan_error *err)
{
    struct core *c = calloc(1, sizeof(*c));
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    c->options = *options;
#define DEFAULT(field, value) c->options.field = c->options.field ? c->options.field : (value)
    DEFAULT(heartbeat_ms, 50);
    DEFAULT(idle_heartbeat_ms, 60 * c->options.heartbeat_ms);
    DEFAULT(suspect_ms, 5 * c->options.heartbeat_ms);
    DEFAULT(confirm_ms, 3 * c->options.heartbeat_ms);
    DEFAULT(node_timeout_ms, 20 * c->options.heartbeat_ms);
    DEFAULT(reachable_ms, 100 * c->options.heartbeat_ms);
    DEFAULT(away_ms, 2 * c->options.node_timeout_ms);
    DEFAULT(adopt_ms, MAX(3 * c->options.node_timeout_ms, 6000u));
    DEFAULT(start_ms, 180000);
    DEFAULT(answer_ms, 30000);
    DEFAULT(quiesce_ms, 1200);
    DEFAULT(pause_ms, 60000);
    DEFAULT(form_ms, 180000);
    DEFAULT(stall_ms, 300000);
    DEFAULT(stop_ms, 5000);
    DEFAULT(starve_ms, 30000);
    DEFAULT(quarantine_crashes, 3);
    DEFAULT(next_worker_id, 1);
    DEFAULT(at_once, 64);
#undef DEFAULT
    c->asked = c->options;
    c->options.jobs_dir = c->options.jobs_token = NULL;
    c->options.secret = c->options.term_secret = NULL;
    if (options->term_secret)
        memcpy(c->term_secret, options->term_secret, sizeof(c->term_secret));
    c->secret_set = options->secret != NULL;
    if (c->secret_set)
        memcpy(c->secret, options->secret, sizeof(c->secret));
    c->jobs_dir = core_strdup(options->jobs_dir);
    c->jobs_token = core_strdup(options->jobs_token ? options->jobs_token : "");
    c->next_worker_id = c->options.next_worker_id;
    c->stale = c->options.restored_term && !c->options.settled;
    *ret = c;
    return TITAN_OK;
}

void core_free(struct core *c)
{
    if (!c)
        return;
    mac_wipe(c->secret, sizeof(c->secret));
    mac_wipe(c->term_secret, sizeof(c->term_secret));
    for (size_t b = 0; b < CORE_BUCKETS; b++) {
        for (struct jobrec *j = c->buckets[b], *next; j; j = next) {
            next = j->hash_next;
            job_free(j);
        }
    }
    for (struct noderec *n = c->nodes, *next; n; n = next) {
        next = n->next;
        node_free(n);
    }
    while (c->greetings)
        free(fence_take_identity(c, c->greetings->session));
    queue_free(c);
    job_view_free(c);
    free(c->jobs_dir);
    free(c->jobs_token);
    free(c->fenced_by);
    free(c->taken);
    free(c);
}

void core_tick(struct core *c, struct core_time now, struct batch *out)
{
    if (core_fenced(c))
        return;
    core_begin(c, now, out);
    detector_round(c);
    for (struct noderec *n = c->nodes; n; n = n->next) {
        const char *words = detector_look(c, n);
        if (words)
            node_lose(c, n, words);
    }
    detector_set_interval(c);
    maintenance_tick(c);
    lost_nodes_tick(c);
    stale_tick(c);
    for (struct jobrec *j = c->active, *next; j; j = next) {
        next = j->next;
        job_tick(c, j);
    }
    sched_settle(c);
    c->unsettled = false;
    c->due.calm = !c->active && detector_calm(c);
    c->out = NULL;
    CHECK_CORE(c);
}

int64_t core_deadline(struct core *c)
{
    if (core_fenced(c))
        return INT64_MAX;
    if (c->unsettled)
        return c->now.mono_ms;
    if (c->due.node <= c->now.mono_ms)
        c->due.node = detector_deadline(c);
    if (c->due.job <= c->now.mono_ms) {
        c->due.job = INT64_MAX;
        for (const struct jobrec *j = c->active; j; j = j->next)
            c->due.job = MIN(c->due.job, job_deadline(j, c->now.mono_ms));
    }
    return MIN(c->due.node, c->due.job);
}

const struct core_counters *core_counters(const struct core *c)
{
    return &c->counters;
}

const struct core_recoveries *core_recoveries(const struct core *c)
{
    return &c->recoveries;
}

void core_queue(const struct core *c, struct core_queue *ret)
{
    queue_count(c, ret);
}

size_t core_pending(const struct core *c)
{
    return c->pending;
}

size_t core_user_pending(const struct core *c, const char *user)
{
    return queue_user_pending(c, user);
}

bool core_job_status(const struct core *c, uint64_t job_id, struct job_status *ret)
{
    const struct jobrec *j = core_find_job(c, job_id);
    if (!j || j->state == JOB_PENDING || job_final(j))
        return false;
    *ret = j->status;
    return true;
}

uint64_t core_node_session(const struct core *c, const char *node)
{
    const struct noderec *n = core_find_node(c, node);
    return n ? n->session : 0;
}

void core_nodes(const struct core *c, void (*each)(const struct core_node *n, void *data), void *data)
{
    for (const struct noderec *n = c->nodes; n; n = n->next) {
        const Titan__Internal__GpuState *gpu = n->policy.reason[0] ? NULL : node_faulty_gpu(n);
        const bool empties = node_empties(n);
        /* A node that has just dropped its stream is not lost yet, but cannot be counted on. */
        const char *state = n->in_window && n->used == 0            ? "maintenance"
                            : n->state != NODE_READY || !n->session ? "lost"
                            : empties                               ? (n->used > 0 ? "draining" : "drained")
                            : n->quarantine_end                     ? "quarantined"
                            : node_unfit(n)                         ? "unfit"
                                                                    : "ready";
        const char *reason = node_leaves(n)                  ? "its agent is told to stop"
                             : !empties && n->quarantine_end ? n->policy.quarantine_reason
                             : !empties && node_unfit(n)     ? node_unfit_words(n)
                             : !empties && n->given_up       ? "given up by an operator"
                             : gpu                           ? gpu->reason
                                                             : n->policy.reason;
        each(&(struct core_node){.name = n->name,
                                 .device = n->device,
                                 .address = n->address,
                                 .version = n->version,
                                 .connected = n->session != 0,
                                 .by_datagram = detector_by_datagram(c, n),
                                 .state = n->state,
                                 .state_text = state,
                                 .reason = reason,
                                 .policy = &n->policy,
                                 .quarantined = n->quarantine_end != 0,
                                 .accepts = node_accepts(n),
                                 .slots = n->slots,
                                 .slots_used = n->used,
                                 .gpus = n->gpus,
                                 .memory_bytes = n->memory_bytes,
                                 .last_seen_ms = n->seen_wall},
             data);
    }
}

static void job_placements(const struct jobrec *j, void (*each)(const struct core_placement *p, void *data), void *data)
{
    for (size_t i = 0; i < j->n_workers; i++) {
        const struct noderec *n = j->workers[i]->node;
        uint32_t workers = 0;
        size_t before = i;
        titan_assert(n);
        while (before > 0 && j->workers[before - 1]->node != n)
            before--;
        if (before > 0)
            continue; /* the job was reported with an earlier worker */
        for (size_t k = i; k < j->n_workers; k++)
            workers += j->workers[k]->node == n;
        each(&(struct core_placement){j->id, n->name, workers}, data);
    }
}

void core_placements(const struct core *c, uint64_t job_id, void (*each)(const struct core_placement *p, void *data),
                     void *data)
{
    const struct jobrec *one = job_id ? core_find_job(c, job_id) : NULL;
    titan_assert(each && (!one || one->id == job_id));
    if (one)
        job_placements(one, each, data);
    for (const struct jobrec *j = job_id ? NULL : c->active; j; j = j->next)
        job_placements(j, each, data);
}
