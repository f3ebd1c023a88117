/* The core's messages to agents. */
#include "daemon/coordinator/core_internal.h"

#include <string.h>

void tell_welcome(struct core *c, struct noderec *n)
{
    Titan__Internal__Welcome *m = batch_alloc(c->out, sizeof(*m));
    titan__internal__welcome__init(m);
    m->term = c->options.term;
    m->beat_ms = c->options.beat_ms;
    batch_message(c->out, n->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_WELCOME, m);
}

void tell_start(struct core *c, struct jobrec *j, struct noderec *n, const uint64_t *ids, size_t count)
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

/* In the order of the ranks they had. */
static void add_leavers(struct core *c, const struct jobrec *j, Titan__Internal__FormEpoch *m)
{
    m->leavers = batch_alloc(c->out, (j->n_holders + 1) * sizeof(*m->leavers));
    for (size_t i = 0; i < j->n_holders; i++) {
        const struct workrec *w = job_worker(j, j->holders[i]);
        if (!w || !w->leaver)
            continue;
        Titan__Internal__Member *leaver = batch_alloc(c->out, sizeof(*leaver));
        titan__internal__member__init(leaver);
        leaver->worker_id = w->id;
        leaver->node = batch_strdup(c->out, w->node->name);
        leaver->address = batch_strdup(c->out, w->address);
        m->leavers[m->n_leavers++] = leaver;
    }
}

void tell_form(struct core *c, struct jobrec *j, struct noderec *n)
{
    if (!n->session)
        return;
    Titan__Internal__FormEpoch *m = batch_alloc(c->out, sizeof(*m));
    titan__internal__form_epoch__init(m);
    m->job_id = j->id;
    m->epoch = j->status.epoch;
    m->comm_id.len = sizeof(j->comm_id);
    m->comm_id.data = batch_alloc(c->out, sizeof(j->comm_id));
    memcpy(m->comm_id.data, j->comm_id, sizeof(j->comm_id));
    m->n_members = j->n_seats;
    m->members = batch_alloc(c->out, j->n_seats * sizeof(*m->members));
    for (uint32_t i = 0; i < j->n_seats; i++) {
        const struct workrec *w = j->seats[i].worker;
        m->members[i] = batch_alloc(c->out, sizeof(**m->members));
        titan__internal__member__init(m->members[i]);
        m->members[i]->worker_id = j->seats[i].worker_id;
        m->members[i]->node = batch_strdup(c->out, w ? w->node->name : "");
        m->members[i]->address = batch_strdup(c->out, w ? w->address : "");
    }
    m->source = (Titan__Internal__StateSource)j->source;
    m->resume_step = j->resume_step;
    m->checkpoint_path = batch_strdup(c->out, j->epoch_checkpoint);
    if (j->source == TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY) {
        m->n_state_holders = j->n_holders;
        m->state_holders = batch_alloc(c->out, j->n_holders * sizeof(*m->state_holders));
        memcpy(m->state_holders, j->holders, j->n_holders * sizeof(*m->state_holders));
    }
    add_leavers(c, j, m);
    batch_message(c->out, n->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_FORM, m);
}

void tell_revoke(struct core *c, struct jobrec *j, struct noderec *n)
{
    if (!n->session)
        return;
    Titan__Internal__RevokeEpoch *m = batch_alloc(c->out, sizeof(*m));
    titan__internal__revoke_epoch__init(m);
    m->job_id = j->id;
    m->epoch = j->status.epoch;
    batch_message(c->out, n->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_REVOKE, m);
}

void tell_pause(struct core *c, struct jobrec *j, struct noderec *n)
{
    if (!n->session)
        return;
    Titan__Internal__PauseJob *m = batch_alloc(c->out, sizeof(*m));
    titan__internal__pause_job__init(m);
    m->job_id = j->id;
    m->epoch = j->status.epoch;
    batch_message(c->out, n->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PAUSE, m);
}

void tell_stop(struct core *c, uint64_t session, uint64_t job_id, uint64_t worker_id, uint32_t grace_ms,
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
    m->reason = batch_strdup(c->out, reason);
    batch_message(c->out, session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_STOP, m);
}

/* The node of a worker that has to do with the current epoch. */
static struct noderec *concerned(struct jobrec *j, const struct workrec *w)
{
    return job_seat(j, w) || w->leaver ? w->node : NULL;
}

void tell_seats(struct core *c, struct jobrec *j, void (*tell)(struct core *, struct jobrec *, struct noderec *))
{
    for (size_t i = 0; i < j->n_workers; i++) {
        struct noderec *n = concerned(j, j->workers[i]);
        bool told = false;
        for (size_t k = 0; n && k < i && !told; k++)
            told = concerned(j, j->workers[k]) == n;
        if (n && !told)
            tell(c, j, n);
    }
}
