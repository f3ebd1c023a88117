/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/outbox/messages.h"

#include <string.h>

#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/common/proof.h"

void send_registration_ack(struct core *c, struct noderec *n)
{
    Titan__Internal__RegistrationAck *m = batch_alloc(c->out, sizeof(*m));
    titan__internal__registration_ack__init(m);
    m->term = c->options.term;
    m->heartbeat_ms = c->options.heartbeat_ms;
    m->away_ms = c->options.away_ms;
    m->leader_lease_ms = c->options.leader_lease_ms;
    m->idle_heartbeat_ms = node_idle_ms(c, n);
    m->term_proof.len = MAC_BYTES;
    m->term_proof.data = batch_alloc(c->out, MAC_BYTES);
    proof_term(c->term_secret, c->options.term, m->term_proof.data);
    if (n->keyed) {
        m->key.len = MAC_BYTES;
        m->key.data = batch_alloc(c->out, MAC_BYTES);
        memcpy(m->key.data, n->key, MAC_BYTES);
    }
    batch_answer(c->out, n->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK, m);
}

void send_check(struct core *c, struct noderec *n)
{
    Titan__Internal__CheckNode *m = batch_alloc(c->out, sizeof(*m));
    titan__internal__check_node__init(m);
    m->jobs_dir = batch_strdup(c->out, c->jobs_dir);
    m->token = batch_strdup(c->out, c->jobs_token);
    batch_answer(c->out, n->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECK, m);
}

void send_release_gpus(struct core *c, struct noderec *n)
{
    Titan__Internal__ReleaseGpus *m = batch_alloc(c->out, sizeof(*m));
    titan__internal__release_gpus__init(m);
    titan_assert(n->gpus);
    m->slots = batch_alloc(c->out, n->gpus->n_gpus * sizeof(*m->slots));
    for (size_t i = 0; i < n->gpus->n_gpus; i++)
        if (n->gpus->gpus[i]->health == TITAN__INTERNAL__GPU_HEALTH__GPU_FAULTY)
            m->slots[m->n_slots++] = n->gpus->gpus[i]->slot;
    batch_message(c->out, n->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_RELEASE_GPUS, m);
}

void send_epochs(struct core *c, uint64_t session)
{
    Titan__Internal__ListEpochs *m = batch_alloc(c->out, sizeof(*m));
    titan__internal__list_epochs__init(m);
    m->restored_term = c->options.restored_term;
    batch_answer(c->out, session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_LIST_EPOCHS, m);
}

void send_start(struct core *c, struct jobrec *j, struct noderec *n, const uint64_t *ids, size_t count)
{
    if (!n->session)
        return;
    Titan__Internal__StartWorkers *m = batch_alloc(c->out, sizeof(*m));
    titan__internal__start_workers__init(m);
    m->job_id = j->id;
    m->n_worker_ids = count;
    m->worker_ids = batch_alloc(c->out, count * sizeof(*ids));
    memcpy(m->worker_ids, ids, count * sizeof(*ids));
    m->directory = batch_printf(c->out, "%s/%llu", c->jobs_dir, (unsigned long long)j->id);
    m->device = batch_strdup(c->out, n->device);
    batch_message(c->out, n->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_START, m);
}

static Titan__Internal__Member **members_of(struct core *c, const struct rank_slot *rank_slots, uint32_t n)
{
    Titan__Internal__Member **list = batch_alloc(c->out, (n + 1) * sizeof(*list));
    for (uint32_t i = 0; i < n; i++) {
        const struct workrec *w = rank_slots[i].worker;
        list[i] = batch_alloc(c->out, sizeof(**list));
        titan__internal__member__init(list[i]);
        list[i]->worker_id = rank_slots[i].worker_id;
        list[i]->node = batch_strdup(c->out, w ? w->node->name : "");
        list[i]->address = batch_strdup(c->out, w ? w->address : "");
        list[i]->peer_address =
            w && w->node->peer_port ? batch_printf(c->out, "%s:%u", w->node->address, w->node->peer_port) : (char *)"";
    }
    return list;
}

void send_form(struct core *c, struct jobrec *j, struct noderec *n)
{
    if (!n->session)
        return;
    titan_assert(epoch_live(j) && j->n_members > 0);
    const Titan__Internal__FormEpoch *sent = c->form_sent ? c->form_sent->form : NULL;
    if (sent && sent->job_id == j->id && sent->epoch == j->status.epoch) {
        batch_message_again(c->out, n->session, c->form_sent);
        return;
    }
    Titan__Internal__FormEpoch *m = batch_alloc(c->out, sizeof(*m));
    titan__internal__form_epoch__init(m);
    m->job_id = j->id;
    m->epoch = j->status.epoch;
    m->comm_id.len = sizeof(j->epoch_id.comm_id);
    m->comm_id.data = batch_alloc(c->out, sizeof(j->epoch_id.comm_id));
    memcpy(m->comm_id.data, j->epoch_id.comm_id, sizeof(j->epoch_id.comm_id));
    if (j->epoch_id.keyed) {
        m->key.len = sizeof(j->epoch_id.key);
        m->key.data = batch_alloc(c->out, sizeof(j->epoch_id.key));
        memcpy(m->key.data, j->epoch_id.key, sizeof(j->epoch_id.key));
    }
    m->n_members = j->n_members;
    m->members = members_of(c, j->rank_slots, j->n_members);
    m->n_departing = j->n_departing;
    m->departing = members_of(c, j->rank_slots + j->n_members, j->n_departing);
    m->source = (Titan__Internal__StateSource)j->source.kind;
    m->resume_step = j->source.resume_step;
    m->checkpoint_path = batch_strdup(c->out, j->source.checkpoint);
    if (j->source.kind == TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY) {
        m->n_state_holders = j->source.n_holders;
        m->state_holders = batch_alloc(c->out, j->source.n_holders * sizeof(*m->state_holders));
        memcpy(m->state_holders, j->source.holders, j->source.n_holders * sizeof(*m->state_holders));
        m->source_epoch = j->source.epoch;
    }
    /* Worlds to which an acting leader may shrink the epoch. */
    m->worlds = batch_alloc(c->out, (j->n_members + 1) * sizeof(*m->worlds));
    for (uint32_t world = size_min(j); world < j->n_members; world++)
        if (world_set_has(&j->spec.worlds, world))
            m->worlds[m->n_worlds++] = world;
    m->older_checkpoints = batch_alloc(c->out, (j->n_ckpts + 1) * sizeof(char *));
    bool older = false;
    for (size_t i = 0; i < j->n_ckpts; i++) {
        if (older)
            m->older_checkpoints[m->n_older_checkpoints++] = batch_strdup(c->out, j->ckpts[i].path);
        older |= strcmp(j->ckpts[i].path, j->source.checkpoint) == 0;
    }
    c->form_sent = batch_message(c->out, n->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_FORM, m);
}

void send_revoke(struct core *c, struct jobrec *j, struct noderec *n)
{
    if (!n->session)
        return;
    Titan__Internal__RevokeEpoch *m = batch_alloc(c->out, sizeof(*m));
    titan__internal__revoke_epoch__init(m);
    m->job_id = j->id;
    m->epoch = j->status.epoch;
    batch_message(c->out, n->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_REVOKE, m);
}

void send_pause(struct core *c, struct jobrec *j, struct noderec *n)
{
    if (!n->session)
        return;
    Titan__Internal__PauseJob *m = batch_alloc(c->out, sizeof(*m));
    titan__internal__pause_job__init(m);
    m->job_id = j->id;
    m->epoch = j->status.epoch;
    m->world = j->resize.next_world;
    batch_message(c->out, n->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PAUSE, m);
}

void send_checkpoint(struct core *c, const struct jobrec *j)
{
    Titan__Internal__PauseJob *m = batch_alloc(c->out, sizeof(*m));
    titan__internal__pause_job__init(m);
    m->job_id = j->id;
    m->epoch = j->status.epoch;
    titan_assert(j->n_members > 0 && j->rank_slots[0].worker);
    m->checkpoint = m->go_on = true;
    batch_message(c->out, j->rank_slots[0].worker->node->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PAUSE, m);
}

void send_stop(struct core *c, uint64_t session, uint64_t job_id, uint64_t worker_id, uint32_t grace_ms,
               const char *reason)
{
    if (!session)
        return;
    Titan__Internal__StopWorkers *m = batch_alloc(c->out, sizeof(*m));
    titan__internal__stop_workers__init(m);
    m->job_id = job_id;
    m->n_worker_ids = 1;
    m->worker_ids = batch_alloc(c->out, sizeof(worker_id));
    m->worker_ids[0] = worker_id;
    m->grace_ms = grace_ms;
    const struct jobrec *j = core_find_job(c, job_id);
    m->must_checkpoint = grace_ms > 0 && (!j || j->must_checkpoint);
    m->reason = batch_strdup(c->out, reason);
    batch_message(c->out, session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_STOP, m);
}

void send_stop_unknown(struct core *c, uint64_t session, uint64_t job_id, uint64_t worker_id)
{
    /* The job may have been submitted after the backup. Then the coordinator has no use for the worker, but the job's
     * user may want its results. */
    const bool late = c->options.restored_term && !core_find_job(c, job_id);
    send_stop(c, session, job_id, worker_id, late ? LAST_CHECKPOINT_MS : 0, "the coordinator has no use for it");
}

void send_stop_all(struct core *c, struct noderec *n, const char *reason)
{
    for (struct jobrec *j = c->active; j; j = j->next)
        for (size_t i = 0; i < j->n_workers && n->session; i++)
            if (j->workers[i]->node == n)
                send_stop(c, n->session, j->id, j->workers[i]->id, 0, reason);
}

static void send_once(struct core *c, struct jobrec *j, struct noderec *n,
                      void (*send)(struct core *, struct jobrec *, struct noderec *))
{
    if (!n || n->round == c->send_round)
        return;
    n->round = c->send_round;
    send(c, j, n);
}

void send_to_members(struct core *c, struct jobrec *j, void (*send)(struct core *, struct jobrec *, struct noderec *))
{
    c->send_round++;
    for (uint32_t i = 0; i < j->n_members + j->n_departing; i++)
        send_once(c, j, j->rank_slots[i].worker ? j->rank_slots[i].worker->node : NULL, send);
}

void send_all(struct core *c, struct jobrec *j, void (*send)(struct core *, struct jobrec *, struct noderec *))
{
    send_to_members(c, j, send);
    for (size_t i = 0; i < j->n_workers; i++)
        if (j->workers[i]->state == WORKER_READY)
            send_once(c, j, j->workers[i]->node, send);
}
