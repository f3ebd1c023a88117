/* delegate.c - epochs without a coordinator (docs/membership.md, "Who may decide"; the rules are checked by
 * tests/model/membership.pml).
 *
 *   watch ──► propose ──► revoke ──► commit: watch the new epoch
 *     ▲          │           │
 *     └──────────┴───────────┘  too few promise, too few are left
 *
 * Every agent of a job's members watches while no coordinator is heard: it asks those before it, by the lowest rank of
 * their members, until one answers; that one is the delegate and asks all. Whoever has missed a commit is given it when
 * it is asked or answers. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "base/rng.h"
#include "daemon/agent/agent_core_internal.h"
#include "daemon/epochs.h"

#define ASK_MS 100
#define SILENT_MS 350 /* asked for so long without an answer */
#define PROPOSE_MS 600
#define REVOKE_MS 3000 /* by then who hangs has been killed */
#define AGAIN_MS 50    /* datagrams get lost */
#define REST_MS 200    /* after a try that failed, and twice as long after each more */
#define REST_MS_MAX 6400
#define NUMBER_STEP UINT64_C(1024)
#define PAUSE_BEFORE_MS 2000 /* the end of the lease, or a quarter of it */
#define FORM_BYTES_MAX 60000 /* a datagram */
#define ASKS_KEPT 4          /* whose answers may still come */

/* An agent of members of the epoch. */
struct peer {
    const char *node, *address;   /* of the record */
    bool self, asked, heard, out; /* asked: no answer since; out: hears a coordinator, or can give no promise */
    bool promised, finished;
    int64_t asked_at;
    uint64_t asks[ASKS_KEPT]; /* ids of the newest: another's answer may be of long ago */
    size_t n_asks;
    uint64_t epoch;
    uint64_t *alive;
    size_t n_alive;
};

enum stage { STAGE_WATCH, STAGE_PROPOSE, STAGE_REVOKE };

struct delegation {
    uint64_t epoch; /* the accepted one that it is about */
    enum stage stage;
    size_t n_peers;
    struct peer *peers; /* by the lowest rank of their members */
    int64_t ask_at, again_at, until, rest_until;
    unsigned fails;
    uint64_t above; /* numbers up to here are taken */
    uint64_t message;
    form_epoch *proposal;                       /* owned */
    size_t n_members;                           /* of the epoch */
    Titan__Internal__WorkerQuiesced **quiesced; /* by rank in it; owned */
};

void agent_delegation_free(struct delegation *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->n_peers; i++)
        free(d->peers[i].alive);
    free(d->peers);
    if (d->proposal)
        titan__internal__form_epoch__free_unpacked(d->proposal, NULL);
    for (size_t i = 0; i < d->n_members; i++)
        if (d->quiesced[i])
            titan__internal__worker_quiesced__free_unpacked(d->quiesced[i], NULL);
    free(d->quiesced);
    free(d);
}

/* --- time and leases --- */

bool agent_coordinator_away(const struct agent_core *c, int64_t now)
{
    return c->contact && now - c->contact_at >= (int64_t)c->away_ms;
}

static bool by_delegate(const struct agent_job *j)
{
    const job_record *r = j->record;
    return r->accepted && r->n_delegated && r->delegated[r->n_delegated - 1]->epoch->epoch == r->accepted->epoch;
}

static int64_t lease_end(const struct agent_core *c)
{
    return c->contact ? c->contact_at + (int64_t)c->delegate_lease_ms : INT64_MIN;
}

static int64_t lease_pause(const struct agent_core *c)
{
    return c->contact ? lease_end(c) - MIN((int64_t)PAUSE_BEFORE_MS, (int64_t)c->delegate_lease_ms / 4) : INT64_MIN;
}

int64_t agent_core_epoch_until(const struct agent_core *c)
{
    return c->delegate_lease_ms && c->contact ? lease_end(c) : 0;
}

/* Away, and the lease lasts: this agent can promise. */
static bool able(const struct agent_core *c, int64_t now)
{
    return c->delegate_lease_ms && agent_coordinator_away(c, now) && now < lease_pause(c);
}

static bool works_here(const struct agent_core *c, const struct agent_job *j)
{
    const struct agent_worker *w = c->workers;
    while (w && w->job_id != j->id)
        w = w->next;
    return w != NULL && j->record->accepted;
}

/* No epoch goes on for longer than the coordinator waits with the next one: it may have to be formed without anybody of
 * this. */
static void lease_check(struct agent_core *c, struct agent_job *j, int64_t now, struct agent_actions *out)
{
    if (!agent_core_epoch_until(c) || !works_here(c, j) || MUTANT(LEASE_IGNORED))
        return;
    if (now < lease_pause(c)) { /* heard again meanwhile: whoever has paused waits for its order */
        j->lease_paused = j->lease_revoked = false;
        return;
    }
    if (!j->lease_paused) {
        agent_say(out, AGENT_WARN, "no coordinator for the whole lease: workers pause until there is one",
                  "job=%" PRIu64 " epoch=%" PRIu64, j->id, agent_job_accepted(j));
        agent_tell_pause(c, j->id, agent_job_accepted(j), out);
        j->lease_paused = true;
    }
    if (now >= lease_end(c) && !j->lease_revoked) {
        agent_tell_revoke(c, j->id, agent_job_accepted(j), now, out);
        j->lease_revoked = true;
    }
}

/* --- the members of an epoch --- */

static struct peer *peer_of(const struct delegation *d, const char *node)
{
    for (size_t i = 0; i < d->n_peers; i++)
        if (!strcmp(d->peers[i].node, node))
            return &d->peers[i];
    return NULL;
}

static bool is_member(const form_epoch *form, uint64_t worker_id)
{
    for (size_t i = 0; i < form->n_members; i++)
        if (form->members[i]->worker_id == worker_id)
            return true;
    return false;
}

static bool is_leaver(const form_epoch *form, uint64_t worker_id)
{
    for (size_t i = 0; i < form->n_leavers; i++)
        if (form->leavers[i]->worker_id == worker_id)
            return true;
    return false;
}

static const Titan__Internal__Member *member_on(const form_epoch *form, const char *node)
{
    for (size_t i = 0; i < form->n_members; i++)
        if (!strcmp(form->members[i]->node, node))
            return form->members[i];
    for (size_t i = 0; i < form->n_leavers; i++)
        if (!strcmp(form->leavers[i]->node, node))
            return form->leavers[i];
    return NULL;
}

/* The members in rank order, then the leavers. */
static const Titan__Internal__Member *rank_of(const form_epoch *form, size_t i)
{
    return i < form->n_members ? form->members[i] : form->leavers[i - form->n_members];
}

static bool hosts(const form_epoch *form, const char *node)
{
    return member_on(form, node) != NULL;
}

/* Where the agent of a node is that has a place in an epoch to count by; NULL = nothing is heard from that one. */
static const char *address_of(const struct agent_job *j, const char *node)
{
    const job_record *r = j->record;
    const Titan__Internal__Member *m = member_on(r->accepted, node);
    for (size_t i = r->n_before; i-- > 0 && !m;)
        m = member_on(r->before[i], node);
    return m && *m->peer_address ? m->peer_address : NULL;
}

/* Is M, the members and leavers of form, more than half of that epoch's? */
static bool majority(const form_epoch *form, const form_epoch *of)
{
    size_t n = 0;
    for (size_t i = 0; i < of->n_members; i++)
        n += is_member(form, of->members[i]->worker_id) || is_leaver(form, of->members[i]->worker_id);
    return 2 * n > of->n_members || MUTANT(DELEGATE_MINORITY);
}

/* Of each epoch it has to count by. */
static bool enough(const struct agent_job *j, const form_epoch *form)
{
    for (size_t i = 0; !j->complete && i < j->record->n_before; i++)
        if (!majority(form, j->record->before[i]))
            return false;
    return majority(form, j->record->accepted);
}

static bool legal(const form_epoch *accepted, size_t n)
{
    bool found = n == accepted->n_members;
    for (size_t i = 0; i < accepted->n_worlds && !found; i++)
        found = accepted->worlds[i] == n;
    return found;
}

static struct delegation *delegation_new(const struct agent_core *c, const form_epoch *form)
{
    struct delegation *d = calloc(1, sizeof(*d));
    titan_assert(d);
    d->epoch = form->epoch;
    d->peers = calloc(form->n_members + 1, sizeof(*d->peers));
    d->quiesced = calloc(form->n_members + 1, sizeof(*d->quiesced));
    titan_assert(d->peers && d->quiesced);
    d->n_members = form->n_members;
    for (size_t i = 0; i < form->n_members; i++) {
        const Titan__Internal__Member *m = form->members[i];
        if (!peer_of(d, m->node))
            d->peers[d->n_peers++] =
                (struct peer){.node = m->node, .address = m->peer_address, .self = !strcmp(m->node, c->node)};
    }
    return d;
}

/* --- who lives --- */

static bool worker_lives(const struct agent_core *c, const struct agent_job *j, uint64_t worker_id)
{
    const struct agent_worker *w = agent_worker_find(c, worker_id);
    return w && w->job_id == j->id && w->end == END_BY_ITSELF && !watch_hangs(&w->watch);
}

static void fill_state(const struct agent_core *c, const struct agent_job *j, int64_t now,
                       Titan__Internal__PeerState *state, struct agent_actions *out)
{
    titan__internal__peer_state__init(state);
    uint64_t *ids = agent_action_alloc(out, (agent_workers_alive(c) + 1) * sizeof(*ids));
    for (const struct agent_worker *w = c->workers; w; w = w->next)
        if (w->job_id == j->id && worker_lives(c, j, w->id))
            ids[state->n_alive++] = w->id;
    state->epoch = agent_job_accepted(j);
    state->alive = ids;
    state->coordinator = !able(c, now);
    state->finished = j->finished;
}

/* Everything that an agent may have promised or accepted of the job is counted by here too: one key is common. */
static void keys_of(const struct agent_job *j, struct proof_keys *keys)
{
    const job_record *r = j->record;
    keys->n = 0;
    proof_add_epoch(keys, r->accepted);
    if (r->n_before)
        proof_add_epoch(keys, r->before[0]);
    for (size_t i = r->n_before; i-- > 0;)
        proof_add_epoch(keys, r->before[i]);
}

/* To the agent of that node, proved. Returns the message's id; 0 = nobody knows where it is. */
static uint64_t tell_agent(struct agent_core *c, const struct agent_job *j, const char *node, peer_message *m,
                           struct agent_actions *out)
{
    struct proof_keys keys;
    const char *address = address_of(j, node);
    if (!address)
        return 0;
    m->job_id = j->id;
    m->to = (char *)node;
    keys_of(j, &keys);
    return agent_peer_send(c, address, m, &keys, out);
}

/* id: of the ask it answers; 0 = it is one itself. Returns its own. */
static uint64_t send_state(struct agent_core *c, const struct agent_job *j, const char *node, uint64_t id, int64_t now,
                           struct agent_actions *out)
{
    Titan__Internal__PeerState state;
    peer_message m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    fill_state(c, j, now, &state, out);
    m.id = id;
    m.kind_case = id ? TITAN__INTERNAL__PEER_MESSAGE__KIND_STATE : TITAN__INTERNAL__PEER_MESSAGE__KIND_ASK;
    *(id ? &m.state : &m.ask) = &state;
    return tell_agent(c, j, node, &m, out);
}

/* Whoever promises has what it takes to know an epoch's key, and whoever accepts gets it covered: never bare. */
static void send_commit(struct agent_core *c, const struct agent_job *j, const char *node, struct agent_actions *out)
{
    uint8_t covered[PROOF_KEYS_MAX * MAC_BYTES];
    struct proof_keys keys;
    peer_message m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    form_epoch form = *j->record->accepted;
    keys_of(j, &keys);
    for (size_t i = 0; i < keys.n && form.key.len == MAC_BYTES; i++) {
        memcpy(covered + i * MAC_BYTES, form.key.data, MAC_BYTES);
        proof_cover(keys.key[i], &form, covered + i * MAC_BYTES);
        m.covered_key = (ProtobufCBinaryData){(i + 1) * MAC_BYTES, covered};
    }
    form.key = (ProtobufCBinaryData){0};
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_COMMIT;
    m.commit = &form;
    (void)tell_agent(c, j, node, &m, out);
}

static void ask(struct agent_core *c, const struct agent_job *j, struct peer *p, int64_t now, struct agent_actions *out)
{
    if (p->self || !*p->address)
        return;
    if (!p->asked)
        p->asked_at = now;
    p->asked = true;
    p->asks[p->n_asks++ % ASKS_KEPT] = send_state(c, j, p->node, 0, now, out);
}

static bool was_asked(const struct peer *p, uint64_t id)
{
    for (size_t i = 0; i < MIN(p->n_asks, (size_t)ASKS_KEPT); i++)
        if (p->asks[i] == id)
            return true;
    return false;
}

static bool silent(const struct peer *p, int64_t now)
{
    return !p->self && (!*p->address || (p->asked && now - p->asked_at >= SILENT_MS));
}

/* The first that answers and can promise; NULL while it is not known. */
static struct peer *leader(const struct delegation *d, int64_t now)
{
    for (size_t i = 0; i < d->n_peers; i++) {
        struct peer *p = &d->peers[i];
        if (p->self || (!silent(p, now) && !(p->heard && p->out)))
            return p;
    }
    return NULL;
}

static void ask_round(struct agent_core *c, const struct agent_job *j, struct delegation *d, int64_t now,
                      struct agent_actions *out)
{
    struct peer *lead = leader(d, now);
    for (size_t i = 0; i < d->n_peers; i++) {
        struct peer *p = &d->peers[i];
        /* The delegate asks all; the others those before them, up to the one that answers. */
        if (!lead || lead->self || p <= lead)
            ask(c, j, p, now, out);
    }
    d->ask_at = now + ASK_MS;
}

enum life { LIFE_UNKNOWN, LIFE_GONE, LIFE_THERE };

static enum life life_of(const struct agent_core *c, const struct agent_job *j, const struct delegation *d,
                         const Titan__Internal__Member *m, int64_t now)
{
    const struct peer *p = peer_of(d, m->node);
    if (p->self)
        return worker_lives(c, j, m->worker_id) ? LIFE_THERE : LIFE_GONE;
    if (silent(p, now))
        return LIFE_GONE;
    if (!p->heard)
        return LIFE_UNKNOWN;
    for (size_t i = 0; i < p->n_alive; i++)
        if (p->alive[i] == m->worker_id)
            return LIFE_THERE;
    return LIFE_GONE;
}

/* A member here that lives, and is out of the epoch. */
static bool left(const struct agent_core *c, const struct agent_job *j)
{
    for (const struct agent_worker *w = c->workers; w; w = w->next)
        if (w->job_id == j->id && is_member(j->record->accepted, w->id) && w->quiesced &&
            w->sample.phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED &&
            w->quiesced->epoch >= agent_job_accepted(j))
            return true;
    return false;
}

/* --- what it forms --- */

struct choice {
    size_t n;
    Titan__Internal__Member **all; /* who can be in it, in rank order */
};

/* The largest legal number of them in form, in rank order, the others as leavers; false: there is none, or too few.
 * What form points to stays the choice's. */
static bool choose(const struct agent_job *j, const struct choice *choice, form_epoch *form)
{
    size_t n = choice->n;
    while (n > 0 && !legal(j->record->accepted, n))
        n--;
    form->members = choice->all;
    form->n_members = n;
    form->leavers = choice->all + n;
    form->n_leavers = choice->n - n;
    return n > 0 && enough(j, form);
}

static void set_proposal(struct delegation *d, const form_epoch *form)
{
    form_epoch *copy = form ? agent_message_copy(&form->base) : NULL;
    if (d->proposal)
        titan__internal__form_epoch__free_unpacked(d->proposal, NULL);
    d->proposal = copy;
}

static void give_up(struct delegation *d, int64_t now)
{
    d->stage = STAGE_WATCH;
    d->rest_until = now + MIN(REST_MS << MIN(d->fails, 10u), REST_MS_MAX);
    d->fails++;
    set_proposal(d, NULL);
    for (size_t i = 0; i < d->n_peers; i++)
        d->peers[i].promised = false;
}

static uint64_t next_number(const struct agent_job *j, const struct delegation *d)
{
    uint64_t above = MAX(MAX(agent_job_accepted(j), j->record->promised_epoch), d->above);
    return (above / NUMBER_STEP + 1) * NUMBER_STEP;
}

static void propose(struct agent_core *c, struct agent_job *j, struct delegation *d, const struct choice *choice,
                    int64_t now, struct agent_actions *out)
{
    const form_epoch *accepted = j->record->accepted;
    form_epoch form = TITAN__INTERNAL__FORM_EPOCH__INIT;
    uint64_t id[2];
    if (!choose(j, choice, &form))
        return;
    id[0] = agent_draw(c, "communicator", ++c->ids);
    id[1] = agent_draw(c, "communicator", ++c->ids);
    form.job_id = j->id;
    form.epoch = next_number(j, d);
    form.comm_id = (ProtobufCBinaryData){sizeof(id), (uint8_t *)id};
    form.source_epoch = accepted->epoch; /* of a proposal: the epoch it goes on from */
    if (titan__internal__form_epoch__get_packed_size(&form) > FORM_BYTES_MAX)
        return;
    set_proposal(d, &form);
    agent_job_promise(c, j, &form, out);
    d->stage = STAGE_PROPOSE;
    d->message = agent_draw(c, "datagram", ++c->ids) | 1;
    d->until = now + PROPOSE_MS;
    d->again_at = now;
    for (size_t i = 0; i < d->n_peers; i++)
        d->peers[i].promised = d->peers[i].self;
    agent_say(out, AGENT_INFO, "no coordinator: asking for promises",
              "job=%" PRIu64 " epoch=%" PRIu64 " members=%zu of=%zu", j->id, form.epoch, form.n_members,
              accepted->n_members);
}

/* Members that live, on agents that can promise; false: something is not known yet, or nothing is amiss. Whoever has
 * done all steps and is gone is not missing. */
static bool survivors(const struct agent_core *c, const struct agent_job *j, const struct delegation *d, int64_t now,
                      struct choice *choice)
{
    const form_epoch *accepted = j->record->accepted;
    bool gone = false;
    if (j->finished)
        return false;
    for (size_t i = 0; i < accepted->n_members; i++) {
        const struct peer *p = peer_of(d, accepted->members[i]->node);
        if (p->finished)
            return false;
        switch (life_of(c, j, d, accepted->members[i], now)) {
        case LIFE_UNKNOWN:
            return false;
        case LIFE_GONE:
            gone = true;
            break;
        case LIFE_THERE:
            if (p->heard && p->epoch > accepted->epoch)
                return false; /* behind: it will be told */
            if (p->self || !p->out)
                choice->all[choice->n++] = accepted->members[i];
        }
    }
    /* Members that have left a delegate's epoch which never became whole lack state: the same again would not help. */
    return gone || (left(c, j) && (j->complete || !by_delegate(j)));
}

static struct choice choice_new(const form_epoch *accepted, struct agent_actions *out)
{
    return (struct choice){.all =
                               agent_action_alloc(out, (accepted->n_members + 1) * sizeof(Titan__Internal__Member *))};
}

/* Everyone the proposal is about has promised, or time is up: those who have. */
static void promises(struct agent_core *c, struct agent_job *j, struct delegation *d, int64_t now,
                     struct agent_actions *out)
{
    bool all = true;
    struct choice choice = choice_new(j->record->accepted, out);
    form_epoch form = *d->proposal;
    for (size_t i = 0; i < j->record->accepted->n_members; i++) {
        Titan__Internal__Member *m = j->record->accepted->members[i];
        if (!is_member(d->proposal, m->worker_id) && !is_leaver(d->proposal, m->worker_id))
            continue;
        if (peer_of(d, m->node)->promised)
            choice.all[choice.n++] = m;
        else
            all = false;
    }
    if (!all && now < d->until)
        return;
    if (!choose(j, &choice, &form)) {
        give_up(d, now);
        return;
    }
    set_proposal(d, &form);
    d->stage = STAGE_REVOKE;
    d->until = now + REVOKE_MS;
    d->again_at = now;
    agent_tell_revoke(c, j->id, agent_job_accepted(j), now, out);
}

static void note_quiesced(struct delegation *d, const form_epoch *accepted, const Titan__Internal__WorkerQuiesced *m)
{
    for (size_t i = 0; i < accepted->n_members; i++) {
        if (accepted->members[i]->worker_id != m->worker_id)
            continue;
        if (d->quiesced[i])
            titan__internal__worker_quiesced__free_unpacked(d->quiesced[i], NULL);
        d->quiesced[i] = agent_message_copy(&m->base);
    }
}

/* Members of the epoch that state is sealed of, in its rank order; false: not known here. */
static bool holders_of(const struct agent_job *j, uint64_t epoch, form_epoch *form, struct agent_actions *out)
{
    const job_record *r = j->record;
    const form_epoch *found = r->accepted->epoch == epoch ? r->accepted : NULL;
    for (size_t i = 0; i < r->n_before && !found; i++)
        found = r->before[i]->epoch == epoch ? r->before[i] : NULL;
    size_t n = found ? found->n_members : r->accepted->n_state_holders;
    if (!found && r->accepted->source_epoch != epoch)
        return false;
    form->state_holders = agent_action_alloc(out, (n + 1) * sizeof(uint64_t));
    form->n_state_holders = n;
    for (size_t i = 0; i < n; i++)
        form->state_holders[i] = found ? found->members[i]->worker_id : r->accepted->state_holders[i];
    return true;
}

static void set_checkpoints(const struct agent_job *j, form_epoch *form, struct agent_actions *out)
{
    const form_epoch *a = j->record->accepted;
    size_t n = 0;
    bool newer = j->checkpoint && strcmp(j->checkpoint, a->checkpoint_path) != 0;
    form->checkpoint_path = newer ? j->checkpoint : a->checkpoint_path;
    form->older_checkpoints = agent_action_alloc(out, (a->n_older_checkpoints + 1) * sizeof(char *));
    if (newer && *a->checkpoint_path)
        form->older_checkpoints[n++] = a->checkpoint_path;
    for (size_t i = 0; i < a->n_older_checkpoints; i++)
        form->older_checkpoints[n++] = a->older_checkpoints[i];
    form->n_older_checkpoints = n;
}

/* Where the state comes from, of what they hold; as the coordinator does it. false: it is not known whose it is. */
static bool set_source(const struct agent_job *j, const struct delegation *d, form_epoch *form,
                       struct agent_actions *out)
{
    uint64_t sealed = 0;
    form->resume_step = 0;
    for (size_t i = 0; i < j->record->accepted->n_members; i++)
        if (d->quiesced[i])
            sealed = MAX(sealed, d->quiesced[i]->sealed_epoch);
    for (size_t i = 0; i < j->record->accepted->n_members; i++)
        if (d->quiesced[i] && sealed && d->quiesced[i]->sealed_epoch == sealed)
            form->resume_step = MAX(form->resume_step, d->quiesced[i]->last_step);
    set_checkpoints(j, form, out);
    form->source_epoch = sealed;
    /* Whoever is not reached may hold what is missing here: only the coordinator takes an older state. */
    form->source = TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
    form->memory_only = !MUTANT(DELEGATE_FROM_BELOW);
    return sealed && holders_of(j, sealed, form, out);
}

static void set_worlds(const form_epoch *accepted, form_epoch *form, struct agent_actions *out)
{
    form->worlds = agent_action_alloc(out, (accepted->n_worlds + 1) * sizeof(uint32_t));
    form->n_worlds = 0;
    for (size_t i = 0; i < accepted->n_worlds; i++)
        if (accepted->worlds[i] < form->n_members)
            form->worlds[form->n_worlds++] = accepted->worlds[i];
}

static void report_delegated(struct agent_core *c, const struct agent_job *j, struct agent_actions *out)
{
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_DELEGATED;
    m.delegated = j->record->delegated[j->record->n_delegated - 1];
    agent_send(c, &m, out);
}

static void commit(struct agent_core *c, struct agent_job *j, struct delegation *d, form_epoch *form,
                   struct agent_actions *out)
{
    const form_epoch *accepted = j->record->accepted;
    set_worlds(accepted, form, out);
    uint8_t key[MAC_BYTES];
    if (accepted->key.len == MAC_BYTES) {
        proof_delegated(accepted, &form->comm_id, key);
        form->key = (ProtobufCBinaryData){MAC_BYTES, key};
    }
    form_epoch *final = agent_action_copy(out, &form->base);
    agent_say(out, AGENT_WARN, "no coordinator: a delegate's epoch",
              "job=%" PRIu64 " epoch=%" PRIu64 " members=%zu source_epoch=%" PRIu64 " step=%" PRIu64, j->id,
              final->epoch, final->n_members, final->source_epoch, final->resume_step);
    c->counters.delegated++;
    agent_job_accept(c, j, final, c->node, out);
    agent_tell_form(c, final, out);
    report_delegated(c, j, out);
    const size_t n = final->n_members + final->n_leavers;
    for (size_t i = 0; i < n; i++) {
        const char *node = rank_of(final, i)->node;
        size_t first = 0;
        while (strcmp(rank_of(final, first)->node, node) != 0)
            first++;
        if (first == i && strcmp(node, c->node) != 0)
            send_commit(c, j, node, out);
    }
    agent_delegation_free(d);
    j->delegation = NULL;
}

/* All that promised are out of the epoch, or gone, or late: the others form the next one. */
static void settle(struct agent_core *c, struct agent_job *j, struct delegation *d, int64_t now,
                   struct agent_actions *out)
{
    const form_epoch *accepted = j->record->accepted;
    struct choice choice = choice_new(accepted, out);
    form_epoch form = *d->proposal;
    for (size_t i = 0; i < accepted->n_members; i++) {
        Titan__Internal__Member *m = accepted->members[i];
        if (!is_member(d->proposal, m->worker_id) && !is_leaver(d->proposal, m->worker_id))
            continue;
        bool gone = life_of(c, j, d, m, now) == LIFE_GONE;
        if (d->quiesced[i] && !gone)
            choice.all[choice.n++] = m;
        else if (!gone && now < d->until)
            return;
    }
    if (choose(j, &choice, &form) && set_source(j, d, &form, out))
        commit(c, j, d, &form, out);
    else
        give_up(d, now);
}

/* --- datagrams --- */

static void on_state(struct agent_core *c, struct agent_job *j, const peer_message *m, struct agent_actions *out)
{
    const Titan__Internal__PeerState *s = m->state;
    struct delegation *d = j->delegation;
    struct peer *p = d ? peer_of(d, m->from) : NULL;
    if (s->epoch < agent_job_accepted(j) && by_delegate(j) && hosts(j->record->accepted, m->from))
        send_commit(c, j, m->from, out);
    if (!p || p->self || !was_asked(p, m->id))
        return;
    p->heard = true;
    p->asked = false;
    p->out = s->coordinator;
    p->finished = s->finished;
    p->epoch = s->epoch;
    free(p->alive);
    p->alive = calloc(s->n_alive + 1, sizeof(*p->alive));
    titan_assert(p->alive);
    if (s->n_alive)
        memcpy(p->alive, s->alive, s->n_alive * sizeof(*p->alive));
    p->n_alive = s->n_alive;
}

static void on_ask(struct agent_core *c, struct agent_job *j, const peer_message *m, int64_t now,
                   struct agent_actions *out)
{
    if (m->ask->epoch < agent_job_accepted(j) && by_delegate(j) && hosts(j->record->accepted, m->from))
        send_commit(c, j, m->from, out);
    (void)send_state(c, j, m->from, m->id, now, out);
}

/* Is it sound, and of nobody but members of the accepted epoch? */
static bool shrinks(const struct agent_job *j, const form_epoch *form)
{
    const form_epoch *accepted = j->record->accepted;
    size_t n = form->n_members + form->n_leavers;
    if (form->job_id != j->id || form->comm_id.len != EPOCH_ID_BYTES || form->n_members == 0 ||
        form->epoch <= accepted->epoch || form->epoch - accepted->epoch > EPOCH_STEP_MAX || n > accepted->n_members)
        return false;
    for (size_t i = 0; i < n; i++) {
        const Titan__Internal__Member *m = rank_of(form, i);
        if (!is_member(accepted, m->worker_id))
            return false;
        for (size_t k = 0; k < i; k++)
            if (rank_of(form, k)->worker_id == m->worker_id)
                return false;
    }
    return true;
}

/* May it be promised? */
static bool promisable(const struct agent_core *c, const struct agent_job *j, const peer_message *m, int64_t now)
{
    const form_epoch *form = m->propose;
    return m->term >= c->seen.term && able(c, now) && agent_fence_form(j, form) == FENCE_NEW && shrinks(j, form) &&
           form->source_epoch >= agent_job_accepted(j);
}

static void on_propose(struct agent_core *c, struct agent_job *j, const peer_message *m, int64_t now,
                       struct agent_actions *out)
{
    Titan__Internal__EpochPromise promise = TITAN__INTERNAL__EPOCH_PROMISE__INIT;
    peer_message answer = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    const job_record *r = j->record;
    promise.epoch = m->propose->epoch;
    promise.granted = promisable(c, j, m, now);
    promise.seen_epoch = MAX(agent_job_accepted(j), r->promised_epoch);
    promise.coordinator = !able(c, now);
    promise.contact_ms = c->contact ? (uint32_t)MIN(now - c->contact_at, (int64_t)UINT32_MAX) : UINT32_MAX;
    promise.counts = agent_action_alloc(out, (r->n_before + 1) * sizeof(uint64_t));
    for (size_t i = 0; !j->complete && i < r->n_before; i++)
        promise.counts[promise.n_counts++] = r->before[i]->epoch;
    promise.counts[promise.n_counts++] = agent_job_accepted(j);
    if (promise.granted)
        agent_job_promise(c, j, m->propose, out);
    answer.id = m->id;
    answer.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_PROMISE;
    answer.promise = &promise;
    (void)tell_agent(c, j, m->from, &answer, out);
}

/* Does the delegate know every epoch the other counts by? */
static bool knows(const struct agent_job *j, const Titan__Internal__EpochPromise *promise)
{
    for (size_t i = 0; i < promise->n_counts; i++) {
        bool found = promise->counts[i] == agent_job_accepted(j);
        for (size_t k = 0; k < j->record->n_before && !found; k++)
            found = promise->counts[i] == j->record->before[k]->epoch;
        if (!found)
            return false;
    }
    return true;
}

static void on_promise(struct agent_core *c, struct agent_job *j, const peer_message *m, int64_t now,
                       struct agent_actions *out)
{
    struct delegation *d = j->delegation;
    struct peer *p = d ? peer_of(d, m->from) : NULL;
    if (!p || d->stage != STAGE_PROPOSE || m->id != d->message || m->promise->epoch != d->proposal->epoch)
        return;
    if (m->promise->granted && knows(j, m->promise)) {
        p->promised = true;
        promises(c, j, d, now, out);
        return;
    }
    if (m->promise->seen_epoch < d->epoch + EPOCH_STEP_MAX)
        d->above = MAX(d->above, m->promise->seen_epoch);
    p->out |= m->promise->coordinator;
    give_up(d, now);
}

static void relay(struct agent_core *c, const struct agent_job *j, const Titan__Internal__WorkerQuiesced *q,
                  struct agent_actions *out)
{
    peer_message m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    m.number = j->record->promised_epoch;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_QUIESCED;
    m.quiesced = (Titan__Internal__WorkerQuiesced *)q;
    (void)tell_agent(c, j, j->relay_to, &m, out);
}

/* By the delegate that has our promise, which it still needs. */
static void on_revoke(struct agent_core *c, struct agent_job *j, const peer_message *m, int64_t now,
                      struct agent_actions *out)
{
    uint64_t epoch = m->revoke->epoch;
    const job_record *r = j->record;
    if (m->term < c->seen.term || !able(c, now) || m->revoke->job_id != j->id || epoch < agent_job_accepted(j) ||
        m->number <= epoch || m->number != r->promised_epoch)
        return;
    if (j->relay_epoch != epoch)
        agent_tell_revoke(c, j->id, epoch, now, out);
    j->relay_epoch = epoch;
    (void)snprintf(j->relay_to, sizeof(j->relay_to), "%s", m->from);
    for (const struct agent_worker *w = c->workers; w; w = w->next)
        if (w->job_id == j->id && w->quiesced && !agent_in_epoch(w, epoch))
            relay(c, j, w->quiesced, out);
}

/* The agent's own entry of it, so that a peer says who is in an epoch and not where they are. */
static Titan__Internal__Member **own_members(const form_epoch *accepted, Titan__Internal__Member *const *of, size_t n,
                                             struct agent_actions *out)
{
    Titan__Internal__Member **list = agent_action_alloc(out, (n + 1) * sizeof(*list));
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < accepted->n_members; k++)
            if (accepted->members[k]->worker_id == of[i]->worker_id)
                list[i] = accepted->members[k];
    return list;
}

/* What was promised here, and nothing else: its members from this agent's own books, their memory or nothing as the
 * source, no path but those the coordinator or a worker here has named. false: it was not promised, or is not sound. */
static bool promised(const struct agent_core *c, const struct agent_job *j, const peer_message *m, int64_t now,
                     form_epoch *form, struct agent_actions *out)
{
    const job_record *r = j->record;
    const form_epoch *said = m->commit;
    if (m->term < c->seen.term || !able(c, now) || agent_fence_form(j, said) != FENCE_NEW ||
        said->epoch != r->promised_epoch || !shrinks(j, said) || !enough(j, said) || said->source_epoch == 0 ||
        said->source_epoch >= said->epoch || said->n_state_holders > EPOCH_HOLDERS_MAX)
        return false;
    *form = *said;
    form->members = own_members(r->accepted, said->members, said->n_members, out);
    form->leavers = own_members(r->accepted, said->leavers, said->n_leavers, out);
    form->source = TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
    form->memory_only = true;
    set_checkpoints(j, form, out);
    set_worlds(r->accepted, form, out);
    return true;
}

/* The key of that epoch, under the one that k and at say; false: it has one, and it is not here. */
static bool uncover(const struct agent_job *j, const peer_message *m, const uint8_t under[MAC_BYTES], size_t at,
                    uint8_t ret[MAC_BYTES])
{
    if (m->covered_key.len < (at + 1) * MAC_BYTES)
        return j->record->accepted->key.len == 0;
    memcpy(ret, m->covered_key.data + at * MAC_BYTES, MAC_BYTES);
    proof_cover(under, m->commit, ret);
    return true;
}

static void on_commit(struct agent_core *c, struct agent_job *j, const peer_message *m, const struct proof_keys *keys,
                      int k, size_t at, int64_t now, struct agent_actions *out)
{
    uint8_t key[MAC_BYTES];
    form_epoch form;
    if (!promised(c, j, m, now, &form, out))
        return;
    form.key = (ProtobufCBinaryData){0};
    if (k >= 0) {
        if (!uncover(j, m, keys->key[k], at, key))
            return;
        form.key = (ProtobufCBinaryData){MAC_BYTES, key};
    }
    form_epoch *final = agent_action_copy(out, &form.base);
    agent_say(out, AGENT_WARN, "no coordinator: a delegate's epoch accepted",
              "job=%" PRIu64 " epoch=%" PRIu64 " delegate=%s", j->id, final->epoch, m->from);
    agent_job_accept(c, j, final, m->from, out);
    agent_delegation_free(j->delegation);
    j->delegation = NULL;
    agent_tell_form(c, final, out);
    report_delegated(c, j, out);
}

static void on_peer_quiesced(struct agent_core *c, struct agent_job *j, const peer_message *m, int64_t now,
                             struct agent_actions *out)
{
    struct delegation *d = j->delegation;
    const struct peer *p = d ? peer_of(d, m->from) : NULL;
    if (!p || d->stage != STAGE_REVOKE || m->quiesced->job_id != j->id || m->number != d->proposal->epoch)
        return;
    for (size_t i = 0; i < j->record->accepted->n_members; i++) { /* it speaks for its own workers only */
        const Titan__Internal__Member *member = j->record->accepted->members[i];
        if (member->worker_id == m->quiesced->worker_id && !strcmp(member->node, m->from)) {
            note_quiesced(d, j->record->accepted, m->quiesced);
            settle(c, j, d, now, out);
            return;
        }
    }
}

void agent_delegate_peer(struct agent_core *c, const peer_message *m, const char *from, int64_t now,
                         struct agent_actions *out)
{
    struct agent_job *j = agent_job_find(c, m->job_id);
    const char *address = j && j->record->accepted ? address_of(j, m->from) : NULL;
    struct proof_keys keys = {0};
    size_t at = 0;
    int k = -1;
    if (address)
        keys_of(j, &keys);
    if (keys.n && !strcmp(m->to, c->node))
        k = proof_find(m, &keys, &at);
    /* Of an older version's epoch, which has no key, where a datagram comes from is all there is to go by. */
    if (!address || (keys.n ? k < 0 : strcmp(address, from) != 0)) {
        agent_unproved(c, from, out);
        return;
    }
    switch (m->kind_case) {
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_ASK:
        on_ask(c, j, m, now, out);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_STATE:
        on_state(c, j, m, out);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_PROPOSE:
        on_propose(c, j, m, now, out);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_PROMISE:
        on_promise(c, j, m, now, out);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_REVOKE:
        on_revoke(c, j, m, now, out);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_COMMIT:
        on_commit(c, j, m, &keys, k, at, now, out);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_QUIESCED:
        on_peer_quiesced(c, j, m, now, out);
        break;
    default:
        break;
    }
}

void agent_delegate_quiesced(struct agent_core *c, const Titan__Internal__WorkerQuiesced *m, int64_t now,
                             struct agent_actions *out)
{
    struct agent_job *j = agent_job_find(c, m->job_id);
    (void)now;
    const struct agent_worker *w = agent_worker_find(c, m->worker_id);
    if (j && w && j->relay_epoch && !agent_in_epoch(w, j->relay_epoch))
        relay(c, j, m, out);
}

/* --- time --- */

/* What workers here hold that are out of the epoch. */
static void own_quiesced(struct agent_core *c, struct agent_job *j, struct delegation *d)
{
    for (const struct agent_worker *w = c->workers; w; w = w->next)
        if (w->job_id == j->id && w->quiesced && !agent_in_epoch(w, d->epoch))
            note_quiesced(d, j->record->accepted, w->quiesced);
}

static void repeat(struct agent_core *c, struct agent_job *j, struct delegation *d, int64_t now,
                   struct agent_actions *out)
{
    Titan__Internal__RevokeEpoch revoke = TITAN__INTERNAL__REVOKE_EPOCH__INIT;
    peer_message m = TITAN__INTERNAL__PEER_MESSAGE__INIT, proposal = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    proposal.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_PROPOSE;
    proposal.propose = d->proposal;
    revoke.job_id = j->id;
    revoke.epoch = d->epoch;
    m.number = d->proposal->epoch;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_REVOKE;
    m.revoke = &revoke;
    for (size_t i = 0; i < d->n_peers; i++) {
        const struct peer *p = &d->peers[i];
        if (p->self || !hosts(d->proposal, p->node))
            continue;
        if (d->stage == STAGE_PROPOSE && !p->promised) {
            proposal.id = d->message;
            (void)tell_agent(c, j, p->node, &proposal, out);
        } else if (d->stage == STAGE_REVOKE) {
            m.id = 0;
            (void)tell_agent(c, j, p->node, &m, out);
        }
    }
    d->again_at = now + AGAIN_MS;
}

static void watch(struct agent_core *c, struct agent_job *j, struct delegation *d, int64_t now,
                  struct agent_actions *out)
{
    struct choice choice = choice_new(j->record->accepted, out);
    const struct peer *lead = leader(d, now);
    if (now >= d->rest_until && lead && lead->self && survivors(c, j, d, now, &choice))
        propose(c, j, d, &choice, now, out);
}

static void delegation_tick(struct agent_core *c, struct agent_job *j, int64_t now, struct agent_actions *out)
{
    struct delegation *d = j->delegation;
    if (now >= d->ask_at)
        ask_round(c, j, d, now, out);
    if (d->stage == STAGE_WATCH)
        watch(c, j, d, now, out);
    if (d->stage == STAGE_PROPOSE) {
        if (now >= d->again_at)
            repeat(c, j, d, now, out);
        promises(c, j, d, now, out);
    }
    if (d->stage == STAGE_REVOKE) {
        if (now >= d->again_at)
            repeat(c, j, d, now, out);
        own_quiesced(c, j, d);
        settle(c, j, d, now, out); /* the end of d, perhaps */
    }
}

/* Is there something to watch? Members here, living or not, and the others within reach. It is asked after every input,
 * and an epoch may have very many members: they are looked at once. */
static bool wants(const struct agent_core *c, struct agent_job *j)
{
    const form_epoch *accepted = j->record->accepted;
    if (!accepted || accepted->n_worlds == 0)
        return false;
    if (j->looked_epoch == accepted->epoch)
        return j->watched;
    bool here = false, elsewhere = false;
    for (size_t i = 0; i < accepted->n_members; i++) {
        bool self = !strcmp(accepted->members[i]->node, c->node);
        here |= self;
        elsewhere |= !self;
    }
    j->looked_epoch = accepted->epoch;
    j->watched = here && (!elsewhere || c->options.peer_port);
    return j->watched;
}

void agent_delegate_tick(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    bool can = able(c, now);
    for (struct agent_job *j = c->jobs; j; j = j->next) {
        lease_check(c, j, now, out);
        bool wanted = can && wants(c, j);
        if (j->delegation && (!wanted || j->delegation->epoch != agent_job_accepted(j))) {
            agent_delegation_free(j->delegation);
            j->delegation = NULL;
        }
        if (wanted && !j->delegation)
            j->delegation = delegation_new(c, j->record->accepted);
        if (j->delegation)
            delegation_tick(c, j, now, out);
    }
}

int64_t agent_delegate_deadline(const struct agent_core *c)
{
    int64_t due = INT64_MAX;
    for (struct agent_job *j = c->jobs; j; j = j->next) {
        const struct delegation *d = j->delegation;
        if (agent_core_epoch_until(c) && works_here(c, j) && !j->lease_revoked)
            due = MIN(due, j->lease_paused ? lease_end(c) : lease_pause(c));
        if (!c->contact || !c->delegate_lease_ms || !wants(c, j))
            continue;
        int64_t away = c->contact_at + (int64_t)c->away_ms;
        if (!d) {
            if (away > c->ticked_at || c->ticked_at < lease_pause(c)) /* at once, for an epoch accepted since */
                due = MIN(due, away);
            continue;
        }
        due = MIN(due, d->ask_at);
        if (d->stage != STAGE_WATCH)
            due = MIN(due, MIN(d->again_at, d->until));
    }
    return due;
}
