/* SPDX-License-Identifier: Apache-2.0 */
/* registration.c - the session with the coordinator: the registration with this node's state, the acknowledgement, the
 * end. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/agent/inputs/inputs.h"

#define KNOWN_BYTES_MAX ((size_t)1 << 20) /* limit for the epochs in a registration; a message has at most 4 MiB */

/* Lists all jobs with workers here, then the other jobs, newest first, while the message has room. Only epochs of
 * coordinators up to `term` count. The arrays `known` and `list` have room for all jobs. */
static void list_known_epochs(const struct agent_core *c, uint64_t term, Titan__Internal__EpochsKnown *known,
                              Titan__Internal__EpochsKnown **list, size_t *ret_n)
{
    size_t n = 0, room = KNOWN_BYTES_MAX;
    for (int here = 1; here >= 0; here--)
        for (const struct agent_job *j = c->jobs; j; j = j->next) {
            const job_record *r = j->record;
            if (agent_job_has_workers(c, j->id) != here || !r->accepted || r->term > term)
                continue;
            titan__internal__epochs_known__init(&known[n]);
            known[n].job_id = j->id;
            known[n].epochs = calloc(r->n_before + 1, sizeof(*known[n].epochs));
            titan_assert(known[n].epochs);
            for (size_t i = 0; i < r->n_before && !j->complete; i++)
                known[n].epochs[known[n].n_epochs++] = r->before[i];
            known[n].epochs[known[n].n_epochs++] = r->accepted;
            if (j->checkpoint)
                known[n].checkpoint_path = j->checkpoint;

            const size_t bytes = here ? 0 : titan__internal__epochs_known__get_packed_size(&known[n]);
            if (bytes > room) {
                free(known[n].epochs);
                continue;
            }
            room -= bytes;
            list[n] = &known[n];
            n++;
        }
    *ret_n = n;
}

/* known_term: lists the epochs up to this term; 0 = no list. */
static void send_registration(struct agent_core *c, uint64_t known_term, struct agent_actions *out)
{
    Titan__Internal__AgentRegistration registration = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    titan_assert(c->up);
    size_t n_leader_epochs = 0, n_jobs = 0;
    for (const struct agent_job *j = c->jobs; j; j = j->next, n_jobs++)
        n_leader_epochs += j->record->n_leader_epochs;
    _cleanup_free_ Titan__Internal__LiveWorker *workers = calloc(agent_workers_alive(c) + 1, sizeof(*workers));
    _cleanup_free_ Titan__Internal__LiveWorker **list = calloc(agent_workers_alive(c) + 1, sizeof(*list));
    _cleanup_free_ Titan__Internal__LeaderEpoch **leader_epochs = calloc(n_leader_epochs + 1, sizeof(*leader_epochs));
    _cleanup_free_ Titan__Internal__EpochsKnown *known = calloc(n_jobs + 1, sizeof(*known));
    _cleanup_free_ Titan__Internal__EpochsKnown **known_list = calloc(n_jobs + 1, sizeof(*known_list));
    titan_assert(workers && list && leader_epochs && known && known_list);
    for (struct agent_worker *w = c->workers; w; w = w->next) {
        Titan__Internal__LiveWorker *live = &workers[registration.n_workers];
        titan__internal__live_worker__init(live);
        live->job_id = w->job_id;
        live->worker_id = w->id;
        live->epoch = w->sample.epoch;
        live->rank = w->rank;
        live->step = w->sample.step;
        live->state = w->sample.phase;
        live->address = w->address;
        live->quiesced = w->quiesced;
        /* The page already shows that the worker left its epoch. Its holdings follow in a report after this
         * registration. */
        if (live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED &&
            !(w->quiesced && w->quiesced->epoch >= w->sample.epoch))
            live->state = TITAN__INTERNAL__WORKER_PHASE__WORKER_FORMING;
        list[registration.n_workers++] = live;
    }
    for (const struct agent_job *j = c->jobs; j; j = j->next)
        for (size_t i = 0; i < j->record->n_leader_epochs; i++)
            leader_epochs[registration.n_leader_epochs++] = j->record->leader_epochs[i];
    registration.node = c->node;
    registration.slots = c->options.slots;
    registration.device = c->device;
    registration.address = c->address;
    registration.version = c->version;
    registration.memory_bytes = c->options.memory_bytes;
    registration.checks = c->options.checks;
    registration.workers = list;
    registration.leader_epochs = leader_epochs;
    registration.lists_epochs = known_term != 0;
    registration.proves = true;
    registration.known = known_list;
    if (known_term)
        list_known_epochs(c, known_term, known, known_list, &registration.n_known);
    registration.gpus = c->gpus;
    c->gpus_reported = true;
    registration.incarnation = c->options.incarnation;
    registration.ephemeral = c->options.ephemeral;
    if (memcmp(c->options.installation, (uint8_t[INSTALLATION_BYTES]){0}, INSTALLATION_BYTES) != 0)
        registration.installation = (ProtobufCBinaryData){INSTALLATION_BYTES, c->options.installation};
    registration.seen_term = c->seen.term;
    registration.seen_proof = agent_term_proof(c);
    registration.peer_port = c->options.peer_port;
    titan_assert(registration.n_workers == agent_workers_alive(c) && registration.n_leader_epochs == n_leader_epochs);
    titan_assert(registration.n_known <= n_jobs);
    MESSAGE(m, REGISTRATION, registration, &registration);
    agent_send(c, &m, out);
    c->leader_epoch_since = false;
    for (size_t i = 0; i < registration.n_known; i++)
        free(known[i].epochs);
}

void agent_core_session_up(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    titan_assert(!c->up);
    c->up = true;
    c->registered = c->answered = c->ending = c->fenced_reported = c->forged_reported = c->range_reported = false;
    c->registration_at = now;
    c->sessions++;
    send_registration(c, 0, out);
}

void agent_core_session_down(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    (void)out;
    titan_assert(c->up);
    c->up = c->registered = c->ending = false;
    agent_heartbeat_session_down(c, now);
    agent_forms_drop(c);
    agent_reports_resend(c);
    agent_probes_drop(c);
}

static void send_leave(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    Titan__Internal__AgentLeaves leaves = TITAN__INTERNAL__AGENT_LEAVES__INIT;
    if (!c->leave_at)
        return;
    leaves.deadline_ms = (uint32_t)MAX(c->leave_at - now, 0);
    MESSAGE(m, LEAVES, leaves, &leaves);
    agent_send(c, &m, out);
}

void agent_core_leave(struct agent_core *c, uint32_t deadline_ms, int64_t now, struct agent_actions *out)
{
    c->leave_at = now + deadline_ms;
    send_leave(c, now, out);
}

void agent_on_registration_ack(struct agent_core *c, const Titan__Internal__RegistrationAck *m, int64_t now,
                               struct agent_actions *out)
{
    if (!agent_fence_term(c, m->term, &m->term_proof, out))
        return;
    if (c->registered && m->term != c->session_term) /* the previous acknowledgement was from an older coordinator */
        agent_reports_resend(c);
    titan_assert(m->term == c->seen.term);
    c->registered = true;
    c->session_term = m->term;
    const struct proof_keys before = c->session_keys;
    c->session_keys.n = 0;
    if (m->key.len == MAC_BYTES)
        proof_add_key(&c->session_keys, m->key.data);
    for (size_t i = 0; c->session_keys.n == 1 && i < before.n; i++)
        proof_add_key(&c->session_keys, before.key[i]);
    c->heartbeat_ms = m->heartbeat_ms ? m->heartbeat_ms : HEARTBEAT_MS;
    c->away_ms = m->away_ms ? m->away_ms : AWAY_MS;
    c->leader_lease_ms = m->leader_lease_ms;
    c->idle_ms = m->idle_heartbeat_ms;
    agent_coordinator_received(c, c->registration_at);
    agent_log(out, AGENT_INFO, "session with the coordinator", "term=%" PRIu64 " heartbeat_ms=%u", m->term,
              c->heartbeat_ms);
    send_leave(c, now, out);
    agent_gpus_report(c, out);

    /* While the registration waited in the stream, an acting leader's epoch may have been accepted. So these epochs are
     * sent again. */
    for (const struct agent_job *j = c->jobs; j && c->leader_epoch_since; j = j->next)
        for (size_t i = 0; i < j->record->n_leader_epochs; i++) {
            MESSAGE(epoch, LEADER_EPOCH, leader_epoch, j->record->leader_epochs[i]);
            agent_send(c, &epoch, out);
        }
    c->leader_epoch_since = false;

    agent_reports_flush(c, now, out);
    for (struct agent_worker *w = c->workers; w; w = w->next)
        if (w->progress)
            agent_send(c, w->progress, out);
    c->stream_heartbeat_at = now;
    agent_heartbeat(c, now, out); /* after this heartbeat no message is older than this session */
}

/* A restored coordinator asks before its acknowledgement, so its term counts only once it has acknowledged. */
void agent_on_list_epochs(struct agent_core *c, uint64_t term, uint64_t restored_term, int64_t now,
                          struct agent_actions *out)
{
    if (c->registered || (term < c->seen.term && !agent_fence_term(c, term, NULL, out)))
        return;
    c->registration_at = now;
    send_registration(c, MAX(restored_term, UINT64_C(1)), out);
}
