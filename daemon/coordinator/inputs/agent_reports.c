/* SPDX-License-Identifier: Apache-2.0 */
/* Messages and datagrams of agents. */
#include "daemon/coordinator/records/core_record.h"

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/coordinator/cluster/failure_detector.h"
#include "daemon/coordinator/cluster/faulty_slots.h"
#include "daemon/coordinator/cluster/fencing.h"
#include "daemon/coordinator/inputs/input.h"
#include "daemon/coordinator/inputs/node_registration.h"
#include "daemon/coordinator/outbox/messages.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/run/leader_epochs.h"
#include "daemon/coordinator/run/job_driver.h"
#include "daemon/coordinator/run/kept_epochs.h"
#include "daemon/coordinator/run/worker_end.h"
#include "daemon/coordinator/run/worker_reports.h"
#include "daemon/coordinator/sched/maintenance.h"
#include "daemon/common/proof.h"

/* True: a step of this job is no event. Only the first step of an epoch and the last step change the coordinator's
 * actions. */
static bool just_trains(const struct jobrec *j)
{
    return j->state == JOB_RUNNING && j->epoch_state == EPOCH_RUNNING && j->status.step + 1 < j->spec.steps;
}

/* Handles an agent's message. True: no deadline becomes earlier. */
static bool hear(struct core *c, struct noderec *n, const Titan__Internal__AgentMessage *m)
{
    struct subject about;
    detector_streams(c, n);
    if (worker_subject(m, &about)) {
        struct jobrec *j = core_find_job(c, about.job_id);
        struct workrec *w = j ? job_worker(j, about.worker_id) : NULL;
        if (w && (w->node == n || MUTANT(FOREIGN_REPORT_BELIEVED))) {
            const bool trained = m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS && just_trains(j);
            const bool unsaved = j->progress.unsaved;
            worker_report(c, j, w, m);
            if (trained && just_trains(j))
                return unsaved == j->progress.unsaved;
            job_received(c, j);
        } else if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_EXITED) {
            c->counters.duplicate++; /* the agent kept the report and had sent it in another session */
            if (j && !w) {           /* or the core dropped the worker's record before the worker had ended */
                kept_release(j, n, about.worker_id);
                job_received(c, j);
            }
        } else {
            fence_unknown_worker(c, n, &about);
            if (!w) /* otherwise the worker is another node's, and must not be stopped */
                send_stop_unknown(c, n->session, about.job_id, about.worker_id);
        }
        return false;
    }
    switch (m->kind_case) {
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_HEARTBEAT: {
        Titan__Internal__HeartbeatAnswer *answer = batch_alloc(c->out, sizeof(*answer));
        titan__internal__heartbeat_answer__init(answer);
        answer->number = m->heartbeat->number;
        batch_answer(c->out, n->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_HEARTBEAT_ANSWER, answer);
        detector_answered(c, n);
        detector_promised(c, n, m->heartbeat->next_ms);
        fence_refusals(c, n, m->heartbeat);
        if (!n->unconfirmed)
            return true;
        n->unconfirmed = false;
        detector_has_key(n); /* a heartbeat proves that the acknowledgement has arrived */
        worker_reports_complete(c, n);
        job_driver_look_again(c, n);
        break;
    }
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROBE_RESULT:
        detector_probe_result(c, n, m->probe_result);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_LEADER_EPOCH:
        leader_epochs_report(c, n, m->leader_epoch);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_REFUSED: {
        struct jobrec *j = leader_epochs_refused(c, n, m->refused);
        if (j)
            job_advance(c, j);
        break;
    }
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKED:
        node_checked(c, n, m->checked);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_LEAVES:
        maintenance_agent_leaves(c, n, m->leaves);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_GPUS:
        faulty_slots_report(c, n, m->gpus);
        break;
    default:
        break;
    }
    return false;
}

titan_status core_agent(struct core *c, uint64_t session, const Titan__Internal__AgentMessage *m, struct core_time now,
                        struct batch *out, struct titan_error *err)
{
    TRY(core_accepts(c, err));
    const struct due due = c->due;
    core_begin(c, now, out);
    struct noderec *n = core_find_session(c, session);
    bool drop = false;
    titan_status status = fence_range(c, n, m, err);
    if (status == TITAN_OK && n && m->kind_case != TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION)
        status = fence_message(c, n->name, m, &drop, err);
    if (status == TITAN_OK && m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION) {
        status = node_registration(c, session, m, err);
    } else if (status == TITAN_OK && !n) {
        c->counters.unknown_node++;
        status = titan_fail(err, TITAN_ECONFLICT, "the session has not registered, or its node was given up");
    } else if (status == TITAN_OK && c->options.leader_lease_ms &&
               now.mono_ms - n->answered_mono >= c->options.away_ms + n->slack_ms) {
        /* Queued stream messages may be older than an epoch that the agent has formed without us. A new registration
         * reports such an epoch first. */
        status = titan_fail(err, TITAN_ECONFLICT, "node %s has had no answer for %lld ms: it registers again", n->name,
                            (long long)(now.mono_ms - n->answered_mono));
    } else if (status == TITAN_OK && !drop) {
        const bool suspected = n->probe.at != 0; /* the probe's deadline may be later than the node's next suspicion */
        const int64_t expected = detector_expected(n);
        const bool calm = hear(c, n, m);
        if (m->kind_case != TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROBE_RESULT && !suspected &&
            detector_expected(n) >= expected)
            c->due.node = due.node;
        if (calm && n->slack_ms)
            c->due.calm = due.calm;
        if (calm && !c->slots_changed)
            c->due.job = due.job;
    }
    if (!core_fenced(c))
        core_finish(c);
    return status;
}

bool core_heartbeat(struct core *c, const Titan__Internal__PeerMessage *m, struct core_time now, struct proof_keys *ret)
{
    if (core_fenced(c) || m->kind_case != TITAN__INTERNAL__PEER_MESSAGE__KIND_HEARTBEAT)
        return false;
    /* the message is for an earlier coordinator, or for a coordinator of another store */
    if (m->term != c->options.term) {
        c->counters.old_term++;
        return false;
    }
    struct noderec *n = core_find_node(c, m->from);
    if (!n || n->incarnation != m->heartbeat->incarnation) {
        c->counters.unknown_node++;
        return false;
    }
    if (!detector_proved(c, n, m, ret))
        return false;
    core_moves(c, now);
    const int64_t expected = detector_expected(n);
    if (!detector_datagram(c, n, m->heartbeat->hears))
        return false;
    if (m->heartbeat->hears)
        detector_promised(c, n, m->heartbeat->next_ms);
    if (detector_expected(n) < expected) {
        c->due.node = 0;
        c->due.calm = false;
    }
    return true;
}
