/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's metrics, for Prometheus. Nothing is read from the store or a disk. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/vec.h"
#include "daemon/api/api.h"
#include "daemon/common/exposition.h"
#include "daemon/coordinator/shell/enrol.h"
#include "daemon/coordinator/shell/webhooks.h"

titan_status api_may_scrape(struct coordinator *c, const struct rpc_identity *transport, const char *bearer,
                            bool *ret_known, struct titan_error *err)
{
    struct rpc_identity identity = *transport;
    struct auth_user u;
    const int64_t now = clock_wall_ms();
    *ret_known = transport->kind != RPC_ID_NONE;
    TRY(enrol_admits(c->enrol, transport, now, err)); /* a token does not make up for a revoked certificate */
    if (bearer && c->auth) {
        const titan_status status = auth_bearer(c->auth, bearer, transport, now, &identity, err);
        *ret_known = identity.kind != RPC_ID_NONE;
        TRY(status);
    }
    auth_resolve(c->auth, &identity, now, &u);
    return policy_scrapes(u.roles)
               ? TITAN_OK
               : titan_fail(err, TITAN_EPERM,
                            "not permitted: metrics are for the roles metrics, operator and admin; you are %s",
                            u.actor);
}

/* --- nodes -------------------------------------------------------------------------------------------------------- */

#define STATES_MAX 8

struct node_sums {
    struct {
        const char *name; /* a literal */
        uint32_t n;
    } states[STATES_MAX];
    size_t n_states;
    struct {
        char device[16];
        uint64_t used, free, drained, lost;
    } slots[4];
    size_t n_devices;
};

static void sum_node(const struct core_node *n, void *data)
{
    struct node_sums *s = data;
    size_t i = 0;
    while (i < s->n_states && strcmp(s->states[i].name, n->state_text) != 0)
        i++;
    titan_assert(i < STATES_MAX);
    if (i == s->n_states) {
        s->n_states++;
        s->states[i].name = n->state_text;
    }
    s->states[i].n++;

    uint32_t faulty = 0;
    for (size_t g = 0; n->gpus && g < n->gpus->n_gpus; g++)
        faulty += n->gpus->gpus[g]->health != TITAN__INTERNAL__GPU_HEALTH__GPU_HEALTHY && !n->gpus->gpus[g]->worker_id;
    for (i = 0; i < s->n_devices && strcmp(s->slots[i].device, n->device) != 0;)
        i++;
    if (!*n->device || i == ARRAY_SIZE(s->slots))
        return; /* it has not registered yet */
    if (i == s->n_devices)
        (void)snprintf(s->slots[s->n_devices++].device, sizeof(s->slots[i].device), "%.15s", n->device);
    const uint32_t used = MIN(n->slots_used, n->slots), left = n->slots - used;
    if (!n->connected) {
        s->slots[i].lost += n->slots;
        return;
    }
    faulty = n->accepts ? MIN(faulty, left) : left;
    s->slots[i].used += used;
    s->slots[i].drained += faulty;
    s->slots[i].free += left - faulty;
}

static void put_node_up(const struct core_node *n, void *data)
{
    PUT(data, titan_node_up, n->connected, n->name);
}

static void put_node_slots(const struct core_node *n, void *data)
{
    PUT(data, titan_node_slots, n->slots, n->name);
}

static void put_node_used(const struct core_node *n, void *data)
{
    PUT(data, titan_node_slots_used, n->slots_used, n->name);
}

static void put_nodes(const struct core *core, struct exposition *e)
{
    struct node_sums s = {
        .states = {{"ready"}, {"lost"}, {"draining"}, {"drained"}, {"maintenance"}, {"quarantined"}, {"unfit"}},
        .n_states = 7};
    core_nodes(core, sum_node, &s);
    for (size_t i = 0; i < s.n_states; i++)
        PUT(e, titan_nodes, s.states[i].n, s.states[i].name);
    core_nodes(core, put_node_up, e);
    core_nodes(core, put_node_slots, e);
    core_nodes(core, put_node_used, e);
    for (size_t i = 0; i < s.n_devices; i++) {
        PUT(e, titan_slots, (double)s.slots[i].used, s.slots[i].device, "used");
        PUT(e, titan_slots, (double)s.slots[i].free, s.slots[i].device, "free");
        PUT(e, titan_slots, (double)s.slots[i].drained, s.slots[i].device, "drained");
        PUT(e, titan_slots, (double)s.slots[i].lost, s.slots[i].device, "lost");
    }
}

/* --- jobs --------------------------------------------------------------------------------------------------------- */

struct job_list {
    struct core_job *jobs;
    size_t n, cap;
    uint64_t active[JOB_CANCELLED + 1];
};

static void take_job(const struct core_job *j, void *data)
{
    struct job_list *l = data;
    if (!sm_final(&job_sm, (int)j->state))
        l->active[j->state]++;
    VEC_MUST_PUSH(l->jobs, l->n, l->cap, *j);
}

/* One series of each job. */
#define EACH_JOB(l, j) for (const struct core_job *j = (l)->jobs; j < (l)->jobs + (l)->n; j++)
#define JOB_ID(j)                                                                                                      \
    char id[24];                                                                                                       \
    (void)snprintf(id, sizeof(id), "%" PRIu64, (j)->id)
#define PUT_JOBS(e, l, name, is_there, value)                                                                          \
    EACH_JOB(l, j)                                                                                                     \
    {                                                                                                                  \
        JOB_ID(j);                                                                                                     \
        if (is_there)                                                                                                  \
            PUT(e, name, value, id);                                                                                   \
    }

static void put_jobs(const struct job_list *l, struct exposition *e)
{
    EACH_JOB(l, j)
    {
        JOB_ID(j);
        PUT(e, titan_job_info, 1, id, j->name, j->user, j->mesh);
    }
    EACH_JOB(l, j)
    {
        JOB_ID(j);
        PUT(e, titan_job_state, 1, id, sm_name(&job_sm, (int)j->state));
    }
    PUT_JOBS(e, l, titan_job_step, true, (double)j->step)
    PUT_JOBS(e, l, titan_job_steps, j->steps > 0, (double)j->steps)
    PUT_JOBS(e, l, titan_job_loss, j->step > 0, j->loss)
    PUT_JOBS(e, l, titan_job_grad_norm, j->step_at_ms > 0, j->grad_norm)
    PUT_JOBS(e, l, titan_job_tokens_total, j->step_at_ms > 0, (double)j->tokens)
    PUT_JOBS(e, l, titan_job_tokens_per_second, true, j->tokens_per_second)
    PUT_JOBS(e, l, titan_job_mfu_ratio, j->mfu > 0, j->mfu)
    PUT_JOBS(e, l, titan_job_world_size, true, j->world_size)
    PUT_JOBS(e, l, titan_job_epoch, true, (double)j->epoch)
    PUT_JOBS(e, l, titan_job_skipped_steps_total, j->step_at_ms > 0, j->skipped_steps)
    PUT_JOBS(e, l, titan_job_last_step_timestamp_seconds, j->step_at_ms > 0, (double)j->step_at_ms / 1000)
    PUT_JOBS(e, l, titan_job_checkpoint_timestamp_seconds, j->checkpoint_at_ms > 0, (double)j->checkpoint_at_ms / 1000)
    PUT_JOBS(e, l, titan_job_checkpoint_failures_total, true, j->checkpoint_failures)
    EACH_JOB(l, j)
    {
        JOB_ID(j);
        for (size_t i = 0; i < j->n_losses; i++)
            PUT(e, titan_job_losses_in_window, j->losses[i].count, id, j->losses[i].cause);
    }
    EACH_JOB(l, j)
    {
        JOB_ID(j);
        for (size_t i = 0; i < j->n_losses; i++)
            PUT(e, titan_job_losses_allowed, j->losses[i].budget, id, j->losses[i].cause);
    }
}

static void put_queue(const struct core *core, struct exposition *e)
{
    static const char *const reasons[CORE_WAITS] = {[CORE_WAITS_SLOTS] = "slots",
                                                    [CORE_WAITS_BEHIND] = "behind",
                                                    [CORE_WAITS_NODES] = "nodes",
                                                    [CORE_WAITS_USER] = "user_limit",
                                                    [CORE_WAITS_SETTLED] = "settling"};
    struct core_queue q;
    core_queue(core, &q);
    for (size_t i = 0; i < CORE_WAITS; i++)
        PUT(e, titan_queue_jobs, (double)q.waits[i], reasons[i]);
    for (size_t i = 0; i < q.n_priorities; i++) {
        char priority[16];
        (void)snprintf(priority, sizeof(priority), "%d", q.priorities[i].priority);
        PUT(e, titan_queue_oldest_timestamp_seconds, (double)q.priorities[i].oldest_ms / 1000, priority);
    }
}

/* --- what has happened -------------------------------------------------------------------------------------------- */

static void put_counters(const struct core *core, struct exposition *e)
{
    const struct core_counters *n = core_counters(core);
    const struct core_recoveries *r = core_recoveries(core);
    PUT(e, titan_nodes_lost_total, (double)n->nodes_lost);
    PUT(e, titan_node_silences_total, (double)n->silences);
    PUT(e, titan_workers_hung_total, (double)n->workers_hung);
    PUT(e, titan_jobs_quarantined_total, (double)n->quarantined);
    PUT(e, titan_epochs_total, (double)n->state_init, "init");
    PUT(e, titan_epochs_total, (double)n->state_checkpoint, "checkpoint");
    PUT(e, titan_epochs_total, (double)n->state_memory, "memory");
    PUT(e, titan_epochs_total, (double)n->state_replica, "replica");
    PUT(e, titan_epochs_total, (double)n->state_buddy, "buddy");
#define REFUSED(name) PUT(e, titan_refused_total, (double)n->name, #name);
    REFUSED(old_term)
    REFUSED(old_epoch)
    REFUSED(unknown_node)
    REFUSED(name_taken)
    REFUSED(unknown_worker)
    REFUSED(unknown_rank)
    REFUSED(out_of_range)
    REFUSED(implausible)
    REFUSED(term_unproved)
    REFUSED(duplicate)
    REFUSED(epoch_refused)
    REFUSED(unproved)
    REFUSED(agents_old_term)
    REFUSED(agents_old_epoch)
    REFUSED(agents_other_epoch)
    REFUSED(agents_unproved)
    REFUSED(agents_imposter)
    REFUSED(agents_out_of_range)
#undef REFUSED
    PUT_HISTOGRAM(e, titan_recovery_seconds, &r->whole);
    for (size_t i = 0; i < CORE_RECOVERY_PHASES; i++) {
        char phase[16]; /* without "_ms" */
        (void)snprintf(phase, sizeof(phase), "%.*s", (int)strcspn(core_recovery_phases[i], "_"),
                       core_recovery_phases[i]);
        PUT_HISTOGRAM(e, titan_recovery_phase_seconds, &r->phases[i], phase);
    }
}

static void put_store(const struct coordinator *c, struct exposition *e)
{
    const struct store_stats s = store_stats(c->store);
    for (size_t i = 0; i < STORE_FILES; i++)
        PUT(e, titan_store_bytes, (double)s.bytes[i], store_files[i]);
    PUT(e, titan_store_writes_total, (double)s.writes);
    PUT(e, titan_store_commits_total, (double)s.commits);
    PUT(e, titan_store_failures_total, (double)s.failures);
    PUT_HISTOGRAM(e, titan_store_commit_seconds, &s.commit_seconds);
    PUT(e, titan_store_lag_seconds, (double)store_lag_ms(c->store) / 1000);
    PUT(e, titan_store_stalled, c->stalled);
    PUT(e, titan_leader, shell_may_answer(c));
    struct coordinator_member members[HA_MEMBERS_MAX];
    const int n = c->options.lead ? c->options.lead->members(c->options.lead->data, members) : 0;
    for (int i = 0; i < n; i++)
        PUT(e, titan_replog_lag, (double)members[i].lag, members[i].name);
    if (c->backup_at_ms > 0)
        PUT(e, titan_backup_timestamp_seconds, (double)c->backup_at_ms / 1000);
}

/* --- endpoints for events ----------------------------------------------------------------------------------------- */

#define PUT_WEBHOOK(metric, field)                                                                                     \
    static void put_##metric(const struct webhook_state *s, void *data)                                                \
    {                                                                                                                  \
        PUT(data, titan_webhook_##metric, (double)s->field, s->options->name);                                         \
    }
PUT_WEBHOOK(deliveries_total, delivered)
PUT_WEBHOOK(failures_total, failures)
PUT_WEBHOOK(passed_over_total, passed_over)
PUT_WEBHOOK(lag_seconds, lag_s)

static void put_webhooks(const struct coordinator *c, struct exposition *e)
{
    webhooks_each(c, put_deliveries_total, e);
    webhooks_each(c, put_failures_total, e);
    webhooks_each(c, put_passed_over_total, e);
    webhooks_each(c, put_lag_seconds, e);
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

struct call_writer {
    struct exposition *e;
    const char *server;
};

static void put_codes(const struct rpc_method_calls *calls, void *data)
{
    const struct call_writer *w = data;
    for (unsigned code = 0; code < RPC_CODES; code++)
        if (calls->codes[code] > 0)
            PUT(w->e, titan_rpc_handled_total, (double)calls->codes[code], w->server, calls->path, rpc_code_name(code));
}

static void put_durations(const struct rpc_method_calls *calls, void *data)
{
    const struct call_writer *w = data;
    if (calls->duration && histogram_total(calls->duration) > 0)
        PUT_HISTOGRAM(w->e, titan_rpc_seconds, calls->duration, w->server, calls->path);
}

static void put_calls(const struct coordinator *c, struct exposition *e)
{
    static const char *const names[] = {"clients", "agents"};
    _Static_assert(ARRAY_SIZE(names) == ARRAY_SIZE(((struct coordinator *)0)->servers), "a name for each server");
    for (size_t i = 0; i < ARRAY_SIZE(names) && c->servers[i]; i++)
        rpc_server_calls(c->servers[i], put_codes, &(struct call_writer){e, names[i]});
    for (size_t i = 0; i < ARRAY_SIZE(names) && c->servers[i]; i++)
        rpc_server_calls(c->servers[i], put_durations, &(struct call_writer){e, names[i]});
    for (size_t i = 0; i < ARRAY_SIZE(names) && c->servers[i]; i++) {
        const struct rpc_refusals refused = rpc_server_refusals(c->servers[i]);
        PUT(e, titan_rpc_refused_total, (double)refused.connections, names[i], "connections");
        PUT(e, titan_rpc_refused_total, (double)refused.calls, names[i], "calls");
    }
}

void api_scrape(struct coordinator *c, struct exposition *e)
{
    struct job_list l = {.jobs = NULL};
    PUT(e, titan_coordinator_up, coordinator_ready(c, NULL) == TITAN_OK);
    PUT(e, titan_coordinator_term, (double)store_term(c->store));
    PUT(e, titan_coordinator_fenced, core_fenced(c->core));
    core_jobs(c->core, shell_now(c), take_job, &l);
    l.active[JOB_PENDING] = core_pending(c->core);
    for (int state = JOB_PENDING; state < JOB_COMPLETED; state++)
        PUT(e, titan_jobs, (double)l.active[state], sm_name(&job_sm, state));
    put_queue(c->core, e);
    put_nodes(c->core, e);
    put_counters(c->core, e);
    put_store(c, e);
    put_calls(c, e);
    put_jobs(&l, e);
    put_webhooks(c, e);
    free(l.jobs);
}
