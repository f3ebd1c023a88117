/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/inputs/node_registration.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/coordinator/cluster/failure_detector.h"
#include "daemon/coordinator/cluster/faulty_slots.h"
#include "daemon/coordinator/cluster/fencing.h"
#include "daemon/coordinator/cluster/quarantine.h"
#include "daemon/coordinator/inputs/input.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/messages.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/records/refusals.h"
#include "daemon/coordinator/run/leader_epochs.h"
#include "daemon/coordinator/run/epoch_forming.h"
#include "daemon/coordinator/run/job_clock.h"
#include "daemon/coordinator/run/job_driver.h"
#include "daemon/coordinator/run/kept_epochs.h"
#include "daemon/coordinator/run/plausible.h"
#include "daemon/coordinator/run/quorum.h"
#include "daemon/coordinator/run/stale_store.h"
#include "daemon/coordinator/run/worker_end.h"
#include "daemon/coordinator/run/worker_reports.h"

/* Time for an agent's last reports about ended workers. They arrive between its registration and the next heartbeat,
 * however busy both machines are (worker_reports_complete). An agent that falls silent in between is not waited for. */
#define MISSING_MS 10000

void node_checked(struct core *c, struct noderec *n, const Titan__Internal__NodeChecked *m)
{
    if (m->request_id != 0)
        return;
    n->unchecked = false;
    if (strcmp(n->unfit ? n->unfit : "", m->problem) != 0)
        emit_node_fit(c, n, m->problem);
    core_set_string(&n->unfit, m->problem);
    c->slots_changed = true;
}

/* identity NULL = the sender's certificate is revoked. */
static titan_status check_registration(const Titan__Internal__AgentRegistration *m, const char *identity,
                                       struct titan_error *err)
{
    if (!node_name_ok(m->node))
        return titan_fail(err, TITAN_EINVAL,
                          "registration: a node's name has letters, digits, '.', '_', '-', at most 253");
    if (m->slots < 1 || m->slots > 4096)
        return titan_fail(err, TITAN_EINVAL, "registration of node %s: %u slots; 1 to 4096 are possible", m->node,
                          m->slots);
    if (strcmp(m->device, "cpu") != 0 && strcmp(m->device, "cuda") != 0)
        return titan_fail(err, TITAN_EINVAL, "registration of node %s: unknown device '%.32s'", m->node, m->device);
    if (!identity)
        return titan_fail(err, TITAN_EPERM,
                          "registration of node %s: the certificate was revoked after the session was opened", m->node);
    return TITAN_OK;
}

/* Takes over which workers the agent lists. Then sends again everything in force for the node's jobs. awaited: the
 * first registration of the node since our start. */
static void take_workers(struct core *c, struct noderec *n, const Titan__Internal__AgentRegistration *m, bool awaited)
{
    /* Workers of the node that the agent does not list count as ended after a while. With a restored store the list may
     * be outdated. So no worker counts as ended while the store is stale. */
    const int64_t missing = MUTANT(DEAD_ADOPTED) ? 0 : c->stale ? INT64_MAX : c->now.mono_ms + MISSING_MS;
    for (struct jobrec *j = c->active; j; j = j->next)
        for (size_t i = 0; i < j->n_workers; i++) {
            if (j->workers[i]->node != n)
                continue;
            j->workers[i]->away = false;
            if (!*j->device) /* the store knew no node of the job */
                (void)snprintf(j->device, sizeof(j->device), "%s", n->device);
            worker_missing(j->workers[i], missing);
        }
    for (size_t i = 0; i < m->n_workers; i++) {
        const Titan__Internal__LiveWorker *live = m->workers[i];
        struct jobrec *j = core_find_job(c, live->job_id);
        struct workrec *w = j ? job_worker(j, live->worker_id) : NULL;
        const uint64_t step = MAX(live->step, live->quiesced ? live->quiesced->last_step : 0);
        /* The worker itself writes its page, so implausible values harm only this worker. */
        const bool ours = w && w->node == n;
        if (ours && plausible_epoch(c, j, live->epoch) && plausible_step(j, step)) {
            worker_adopt(c, w, live);
            continue;
        }
        if (ours)
            fence_implausible(c, n, j->id,
                              batch_printf(c->out,
                                           "worker %" PRIu64 " at step %" PRIu64 " of epoch %" PRIu64 " cannot be",
                                           w->id, step, live->epoch));
        send_stop_unknown(c, n->session, live->job_id, live->worker_id);
    }
    kept_node_known(c, n, m);

    for (struct jobrec *j = c->active, *next; j; j = next) {
        next = j->next;
        if (!job_on_node(j, n))
            continue;
        /* The members learn only now that the epoch is over. So their time to leave it starts now. */
        if (awaited && epoch_leaving(j) && j->clock.epoch_deadline != INT64_MAX)
            job_clock_limit(j, c->now.mono_ms + job_clock_quiesce_ms(c, j));
        job_resend(c, j, n);
        job_received(c, j);
    }
}

titan_status node_registration(struct core *c, uint64_t session, const Titan__Internal__AgentMessage *message,
                               struct titan_error *err)
{
    const Titan__Internal__AgentRegistration *m = message->registration;
    _cleanup_free_ char *identity = fence_take_identity(c, session);
    bool drop;
    TRY(check_registration(m, identity, err));
    /* A second registration of a session is refused, because it could be outdated. Workers that it does not list would
     * count as ended. */
    if (core_find_session(c, session)) {
        c->counters.duplicate++;
        return titan_fail(err, TITAN_ECONFLICT, "registration of node %s: this session has registered before", m->node);
    }
    struct noderec *n = core_find_node(c, m->node);
    if (n) {
        /* May one of the node's workers train, as far as known? A restored store does not know all workers. */
        bool has_worker = c->stale;
        for (struct jobrec *j = c->active; j && !has_worker; j = j->next)
            has_worker = (job_on_node(j, n) || kept_awaits(j, n)) && !(MUTANT(GONE_BEFORE_LAST_WORD) && n->leaving);
        TRY(fence_name(c, n, m, identity, has_worker, err));
    }
    TRY(fence_message(c, m->node, message, &drop, err));
    if (stale_asks(c, m)) {
        core_session_opened(c, session, identity); /* the next registration brings the identity again */
        send_epochs(c, session);
        return TITAN_OK;
    }

    if (!n)
        n = core_add_node(c, m->node, NODE_NONE);
    else if (fence_replaces(n, m) && !MUTANT(REPLACED_KNOWS_ALL))
        for (struct jobrec *j = c->active; j; j = j->next)
            quorum_give_up(c, j, n);
    if (n->session)
        batch_drop(c->out, n->session);
    const bool back = n->state == NODE_READY, awaited = n->awaited, same_agent = n->incarnation == m->incarnation;
    const bool known = same_agent && !n->unchecked;
    if (n->state == NODE_LOST)
        detector_returned(c, n, same_agent);
    core_set_session(c, n, session);
    n->given_up = false;
    core_set_string(&n->identity, identity);
    if (!same_agent)
        n->refusals = (struct node_refusals){0};
    struct node is = {.slots = m->slots,
                      .device = m->device,
                      .address = m->address,
                      .version = m->version,
                      .memory_bytes = m->memory_bytes,
                      .incarnation = m->incarnation,
                      .peer_port = m->peer_port,
                      .ephemeral = m->ephemeral};
    if (m->installation.len == sizeof(is.installation))
        memcpy(is.installation, m->installation.data, sizeof(is.installation));
    node_is(n, &is);
    detector_answered(c, n);
    n->unconfirmed = true;
    detector_streams(c, n);
    const uint64_t about[] = {session, ++c->last_key};
    n->keyed = c->secret_set && m->proves;
    n->unkeyed = !n->keyed;
    n->key_had &= n->keyed;
    if (n->keyed)
        mac_derive(c->secret, "titan session", about, sizeof(about), n->key);
    move_node(c, n, NODE_READY, back ? "is back" : "is ready");
    send_registration_ack(c, n);

    quarantine_answered(c, n);
    refusals_lift(c, n);
    /* A new agent is asked whether it sees the jobs' folders. If it does not, its workers would use other folders of
     * the same name. */
    if (!known)
        core_set_string(&n->unfit, "");
    n->unchecked = m->checks && !known;
    if (m->checks)
        send_check(c, n);
    faulty_slots_registered(c, n, m->gpus);
    detector_set_interval(c);
    stale_registration(c, n, m);
    leader_epochs_register(c, n, m);
    take_workers(c, n, m, awaited);
    c->slots_changed = true;
    return TITAN_OK;
}

void core_session_closed(struct core *c, uint64_t session, struct core_time now, struct batch *out)
{
    if (core_fenced(c))
        return;
    core_begin(c, now, out);
    struct noderec *n = core_find_session(c, session);
    free(fence_take_identity(c, session));
    if (n) {
        detector_closed(c, n);
        core_set_session(c, n, 0); /* the node is silent from now on */
    }
    core_finish(c);
}
