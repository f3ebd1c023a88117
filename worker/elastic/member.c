/* SPDX-License-Identifier: Apache-2.0 */
/* member.c - a worker's part in the membership protocol (docs/membership.md). */
#include "worker/elastic/member.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/mutant.h"
#include "base/pairs.h"
#include "base/utf8.h"
#include "worker/comm/comm.h"

#define NEVER INT64_MAX
#define LEASE_LOOKS 8   /* how often the clock is looked at during a lease, to notice that the machine stood still */
#define QUIESCE_LOOKS 4 /* how often a revoked worker is looked at in the time that it has to leave */

typedef Titan__Internal__AgentToWorker agent_message;
typedef Titan__Internal__WorkerToAgent worker_message;
#define HEARD(kind) TITAN__INTERNAL__AGENT_TO_WORKER__KIND_##kind
#define PHASE(phase) TITAN__INTERNAL__WORKER_PHASE__WORKER_##phase

/* A command to form an epoch, and what this worker reads from it. */
struct form {
    Titan__Internal__FormEpoch *command;
    int rank, holders;
    const char **addresses, **node_names; /* strings of the command; members, then departing ranks */
    int *nodes, *holder_ranks;
};

/* A checkpoint that the coordinator has not confirmed. */
struct unconfirmed {
    struct checkpoint_report report; /* path is owned */
    uint64_t epoch;
};

/* Refusals that are reported once per connection. */
enum complaint { SAID_FENCED = 1, SAID_STALE = 2, SAID_CONFLICT = 4, SAID_NONSENSE = 8 };

struct member {
    struct member_options opt;
    char address[320];
    struct member_host host;
    struct member_state state;
    struct form *current, *offered;
    unsigned complaints;

    /* Deadlines, milliseconds of the caller's clock. */
    int64_t lease_until, exit_at, ticked_at;
    int64_t epoch_until; /* end of the lease of the epoch (current or on offer); NEVER = no end */
    int64_t revoked_at, moved_at, checked_at;
    uint32_t lease_ms;
    uint64_t actions;  /* at the last tick */
    double step_ms[2]; /* of the last two steps */
    bool ended;

    /* State that still holds. It is reported again to the next agent. */
    struct quiesced quiesced;           /* the last report of leaving an epoch, with the holdings */
    struct state_ready ready;           /* the report of the current epoch, if it was made; otherwise its epoch is 0 */
    char damaged[PATH_MAX];             /* the path in `ready` */
    struct evaluation_report evaluated; /* the newest evaluation; step 0 = none */
    uint64_t evaluated_epoch;           /* the epoch in which `evaluated` was first reported */
    struct unconfirmed written[MEMBER_UNCONFIRMED_MAX];
    int n_written;
    uint64_t finished_step;
    char failure[640];
    int exit_code;

    unsigned stop_commands, pause_commands;
    uint64_t pause_epoch; /* the epoch of pause_commands */
    char stop_reason[256];
};

const struct member_state *member_state(const struct member *m)
{
    return &m->state;
}

__attribute__((format(printf, 3, 4))) static void note(const struct member *m, const char *sentence, const char *fmt,
                                                       ...)
{
    char pairs[256];
    va_list args;

    if (!m->host.note)
        return;
    va_start(args, fmt);
    pairs_format(pairs, sizeof pairs, fmt, args);
    va_end(args);
    m->host.note(m->host.arg, sentence, pairs);
}

/* Asserts the invariants that hold between two inputs. */
static void check(const struct member *m)
{
    const struct member_state *s = &m->state;

    titan_assert(s->offered == (m->offered ? m->offered->command->epoch : 0));
    titan_assert(s->epoch == (m->current ? m->current->command->epoch : 0));
    titan_assert(s->epoch <= s->seen && s->revoked <= s->seen && s->offered <= s->seen);
    titan_assert(!m->offered || (s->offered > s->epoch && s->offered > s->revoked));
    titan_assert(!s->in || (m->current && s->rank == m->current->rank));
    titan_assert(s->opened || s->epoch == 0);
    titan_assert(!s->in_revoked || s->in);
    titan_assert(!s->in || s->in_revoked || (s->epoch > s->revoked && !m->offered));
    titan_assert(!s->in || s->phase == PHASE(FORMING) || s->phase == PHASE(TRAINING));
    titan_assert(s->phase != PHASE(IDLE) || s->epoch == 0);
    titan_assert(m->ready.epoch <= s->epoch && m->quiesced.epoch <= s->seen && m->pause_epoch <= s->seen);
    titan_assert(s->stopped == ((m->stop_commands & COMMAND_STOP) != 0));
    titan_assert(!s->lease_over || s->stopped);
    titan_assert(m->n_written >= 0 && m->n_written <= MEMBER_UNCONFIRMED_MAX);
    titan_assert(!m->ended || s->lease_over || s->in_revoked || !s->in);
}

/* --- forms -------------------------------------------------------------------------------------------------------- */

static void form_free(struct form *f)
{
    if (!f)
        return;
    if (f->command)
        titan__internal__form_epoch__free_unpacked(f->command, NULL);
    free(f->addresses);
    free(f->node_names);
    free(f->nodes);
    free(f->holder_ranks);
    free(f);
}

/* Number of members and departing ranks. */
static int ranks_of(const Titan__Internal__FormEpoch *command)
{
    return (int)(command->n_members + command->n_departing);
}

static const Titan__Internal__Member *at_rank(const Titan__Internal__FormEpoch *command, int rank)
{
    const size_t r = (size_t)rank;
    return r < command->n_members ? command->members[r] : command->departing[r - command->n_members];
}

static int rank_of(const Titan__Internal__FormEpoch *command, uint64_t worker_id)
{
    for (int r = 0; r < ranks_of(command); r++)
        if (at_rank(command, r)->worker_id == worker_id)
            return r;
    return -1;
}

/* Returns the fault of a command to form an epoch; NULL = valid. */
static const char *fault_of(const struct member *m, const Titan__Internal__FormEpoch *o)
{
    if (o->epoch == 0)
        return "no number";
    if (o->n_members == 0 || o->n_members > COMM_WORLD_MAX || o->n_departing > COMM_WORLD_MAX - o->n_members ||
        o->n_state_holders > COMM_WORLD_MAX)
        return "number of members";
    if (rank_of(o, m->opt.worker_id) < 0)
        return "not a member";
    if (o->comm_id.len != COMM_ID_BYTES)
        return "communicator id";
    if (o->key.len != 0 && o->key.len != sizeof((struct epoch_view){0}.key))
        return "key";
    if (o->source > TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY || strlen(o->checkpoint_path) >= PATH_MAX)
        return "source of state";
    return NULL;
}

/* --- ranks of very many: a table by a hash of their node or id, open addressing ----------------------------------- */

/* Makes a table of *ret_size entries, all -1. At least half of them stay -1. NULL when out of memory. */
static int *rank_table(int ranks, size_t *ret_size)
{
    size_t size = 16;
    while (size < 2 * (size_t)ranks)
        size *= 2;
    int *table = malloc(size * sizeof *table);
    for (size_t i = 0; table && i < size; i++)
        table[i] = -1;
    *ret_size = size;
    return table;
}

/* NULL when out of memory. */
static struct form *form_make(const struct member *m, const Titan__Internal__FormEpoch *command)
{
    struct form *f = calloc(1, sizeof *f);

    titan_assert(!fault_of(m, command));
    const size_t len = titan__internal__form_epoch__get_packed_size(command);
    _cleanup_free_ uint8_t *bytes = malloc(len + 1);
    if (bytes)
        (void)titan__internal__form_epoch__pack(command, bytes);
    if (!f || !bytes || !(f->command = titan__internal__form_epoch__unpack(NULL, len, bytes))) {
        form_free(f);
        return NULL;
    }
    const int ranks = ranks_of(command);
    f->holders = (int)command->n_state_holders;
    f->rank = rank_of(command, m->opt.worker_id);
    f->addresses = calloc((size_t)ranks, sizeof *f->addresses);
    f->node_names = calloc((size_t)ranks, sizeof *f->node_names);
    f->nodes = calloc((size_t)ranks, sizeof *f->nodes);
    f->holder_ranks = calloc((size_t)f->holders + 1, sizeof *f->holder_ranks);
    size_t size = 0;
    _cleanup_free_ int *by_node = rank_table(ranks, &size), *by_id = rank_table(ranks, &size);
    if (!f->addresses || !f->node_names || !f->nodes || !f->holder_ranks || !by_node || !by_id)
        goto fail;
    titan_assert(f->rank >= 0 && f->rank < ranks);
    /* nodes[r]: the lowest rank on the same node. */
    for (int r = 0; r < ranks; r++) {
        const Titan__Internal__Member *its = at_rank(f->command, r);
        f->addresses[r] = its->address;
        f->node_names[r] = its->node;
        size_t i = hash_index(hash_text(HASH_INIT, its->node), size);
        while (by_node[i] >= 0 && strcmp(at_rank(command, by_node[i])->node, its->node) != 0)
            i = (i + 1) % size;
        by_node[i] = by_node[i] < 0 ? r : by_node[i];
        f->nodes[r] = by_node[i];
        titan_assert(f->nodes[r] <= r);
    }
    /* holder_ranks[h]: the lowest rank of holder h; -1 = the holder has no rank here. */
    for (int r = 0; r < ranks; r++) {
        size_t i = hash_index(hash_word(HASH_INIT, at_rank(command, r)->worker_id), size);
        while (by_id[i] >= 0 && at_rank(command, by_id[i])->worker_id != at_rank(command, r)->worker_id)
            i = (i + 1) % size;
        by_id[i] = by_id[i] < 0 ? r : by_id[i];
    }
    for (size_t h = 0; h < command->n_state_holders; h++) {
        size_t i = hash_index(hash_word(HASH_INIT, command->state_holders[h]), size);
        while (by_id[i] >= 0 && at_rank(command, by_id[i])->worker_id != command->state_holders[h])
            i = (i + 1) % size;
        f->holder_ranks[h] = by_id[i];
    }
    return f;
fail:
    form_free(f);
    return NULL;
}

/* --- messages out ------------------------------------------------------------------------------------------------- */

static void send_to_agent(const struct member *m, const worker_message *message)
{
    titan_assert(message->kind_case != TITAN__INTERNAL__WORKER_TO_AGENT__KIND__NOT_SET && message->registration);
    if (m->state.connected)
        m->host.send(m->host.arg, message);
}

/* Sends `part` to the agent, as a message of this kind, in this field. */
#define SAY(m, KIND, field, part)                                                                                      \
    do {                                                                                                               \
        worker_message message_ = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;                                              \
        message_.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_##KIND;                                            \
        message_.field = (part);                                                                                       \
        send_to_agent((m), &message_);                                                                                 \
    } while (0)

/* Initializes a part of a message, and fills in its sender. */
#define PART(m, upper, lower)                                                                                          \
    ({                                                                                                                 \
        Titan__Internal__##lower part_ = TITAN__INTERNAL__##upper##__INIT;                                             \
        part_.job_id = (m)->opt.job_id;                                                                                \
        part_.worker_id = (m)->opt.worker_id;                                                                          \
        part_;                                                                                                         \
    })

static void send_ready(struct member *m)
{
    Titan__Internal__WorkerReady ready = PART(m, WORKER_READY, WorkerReady);

    ready.address = m->address;
    ready.last_step = m->state.step;
    SAY(m, READY, ready, &ready);
}

static void send_quiesced(const struct member *m)
{
    Titan__Internal__WorkerQuiesced quiesced = PART(m, WORKER_QUIESCED, WorkerQuiesced);

    quiesced.epoch = m->quiesced.epoch;
    quiesced.last_step = m->quiesced.last_step;
    quiesced.paused = m->quiesced.paused;
    quiesced.prepared = m->quiesced.prepared;
    quiesced.installed_epoch = m->quiesced.installed_epoch;
    quiesced.pending_epoch = m->quiesced.pending_epoch;
    SAY(m, QUIESCED, quiesced, &quiesced);
}

static void send_state_ready(struct member *m)
{
    Titan__Internal__StateReady ready = PART(m, STATE_READY, StateReady);

    ready.epoch = m->ready.epoch;
    ready.recovery_source = (Titan__Internal__RecoverySource)m->ready.recovery_source;
    ready.step = m->ready.step;
    ready.bytes_moved = m->ready.bytes_moved;
    ready.params_hash = m->ready.params_hash;
    ready.rolled_forward = m->ready.rolled_forward;
    ready.connect_ms = m->ready.connect_ms;
    ready.plan_ms = m->ready.plan_ms;
    ready.state_ms = m->ready.state_ms;
    ready.prepare_ms = m->ready.prepare_ms;
    ready.damaged_checkpoint = m->damaged;
    SAY(m, STATE_READY, state_ready, &ready);
}

static void send_evaluated(const struct member *m)
{
    Titan__Internal__WorkerEvaluated evaluated = PART(m, WORKER_EVALUATED, WorkerEvaluated);

    evaluated.epoch = m->evaluated_epoch;
    evaluated.step = m->evaluated.step;
    evaluated.loss = m->evaluated.loss;
    evaluated.tokens = m->evaluated.tokens;
    evaluated.bytes = m->evaluated.bytes;
    evaluated.ms = m->evaluated.ms;
    SAY(m, EVALUATED, evaluated, &evaluated);
}

static void send_written(const struct member *m, const struct unconfirmed *w)
{
    Titan__Internal__CheckpointWritten written = PART(m, CHECKPOINT_WRITTEN, CheckpointWritten);

    written.epoch = w->epoch;
    written.step = w->report.step;
    written.path = (char *)(uintptr_t)w->report.path;
    written.bytes = w->report.bytes;
    written.world_size = (uint32_t)w->report.world;
    written.resumable_step = w->report.resumable_step;
    written.sound_step = w->report.sound_step;
    SAY(m, CHECKPOINT, checkpoint, &written);
}

static void send_finished(const struct member *m)
{
    Titan__Internal__WorkerFinished finished = PART(m, WORKER_FINISHED, WorkerFinished);

    finished.epoch = m->state.epoch;
    finished.step = m->finished_step;
    SAY(m, FINISHED, finished, &finished);
}

static void send_failing(struct member *m)
{
    Titan__Internal__WorkerFailing failing = PART(m, WORKER_FAILING, WorkerFailing);

    failing.exit_code = m->exit_code;
    failing.reason = m->failure;
    SAY(m, FAILING, failing, &failing);
}

void member_connected(struct member *m, int64_t now_ms)
{
    (void)now_ms; /* a connection alone does not extend the lease */
    m->state.connected = true;
    m->complaints = 0;
    Titan__Internal__WorkerRegistration registration = PART(m, WORKER_REGISTRATION, WorkerRegistration);
    registration.token.data = m->opt.token;
    registration.token.len = sizeof m->opt.token;
    registration.pid = m->opt.pid;
    registration.epoch = m->state.epoch;
    registration.rank = (uint32_t)m->state.rank;
    registration.step = m->state.step;
    registration.phase = m->state.phase;
    registration.address = m->state.opened ? m->address : "";
    SAY(m, REGISTRATION, registration, &registration);
    if (m->state.opened && m->state.epoch == 0) /* also if a revoke came before the member's first epoch */
        send_ready(m);
    if (m->state.phase == PHASE(QUIESCED))
        send_quiesced(m);
    if (m->state.in && m->ready.epoch == m->state.epoch)
        send_state_ready(m);
    if (m->evaluated.step > 0 && m->evaluated_epoch == m->state.epoch)
        send_evaluated(m);
    for (int i = 0; i < m->n_written; i++)
        send_written(m, &m->written[i]);
    if (m->state.phase == PHASE(DONE))
        send_finished(m);
    if (m->exit_code)
        send_failing(m);
    check(m);
}

void member_disconnected(struct member *m)
{
    m->state.connected = false;
}

/* --- commands in -------------------------------------------------------------------------------------------------- */

static bool first_time(struct member *m, enum complaint complaint)
{
    const bool first = !(m->complaints & complaint);
    m->complaints |= complaint;
    return first;
}

static void refuse_stale(struct member *m, const char *command, uint64_t epoch)
{
    m->state.counters.stale++;
    if (first_time(m, SAID_STALE))
        note(m, "command about an epoch that is over, ignored", "command=%s epoch=%" PRIu64 " seen=%" PRIu64, command,
             epoch, m->state.seen);
}

static void saw(struct member *m, uint64_t epoch)
{
    m->state.seen = MAX(m->state.seen, epoch);
}

/* Reports that the member is out of every epoch up to this one. The training thread reported the holdings when it left
 * its last epoch. */
static void quiet(struct member *m, uint64_t epoch, bool paused)
{
    titan_assert(!m->state.in && m->state.phase != PHASE(DONE));
    m->quiesced.epoch = epoch;
    m->quiesced.paused = paused;
    m->state.phase = PHASE(QUIESCED);
    send_quiesced(m);
}

static void revoke_current(struct member *m, int64_t now_ms)
{
    titan_assert(m->state.seen >= m->state.epoch);
    if (!m->state.in || m->state.in_revoked)
        return;
    m->state.in_revoked = true;
    m->revoked_at = m->moved_at = m->checked_at = now_ms;
    m->host.revoke(m->host.arg, m->state.epoch);
}

static void drop_offer(struct member *m)
{
    form_free(m->offered);
    m->offered = NULL;
    m->state.offered = 0;
}

/* Returns the command to form this epoch, if the epoch is the current one or on offer; NULL = neither. */
static const struct form *known_form(const struct member *m, uint64_t epoch)
{
    if (m->offered && m->offered->command->epoch == epoch)
        return m->offered;
    return m->current && m->current->command->epoch == epoch ? m->current : NULL;
}

static bool hear_form(struct member *m, const Titan__Internal__FormEpoch *o, int64_t now_ms)
{
    const char *fault = fault_of(m, o);

    if (fault) {
        m->state.counters.nonsense++;
        if (first_time(m, SAID_NONSENSE))
            note(m, "command to form an epoch refused", "epoch=%" PRIu64 " fault=\"%s\"", o->epoch, fault);
        return false;
    }
    if ((o->epoch <= m->state.seen && !MUTANT(WORKER_EPOCH)) || m->state.phase == PHASE(DONE)) {
        /* There are three cases: the command repeats a known command, names another membership under a known number, or
         * its epoch is over. */
        const struct form *known = known_form(m, o->epoch);
        if (!known) {
            refuse_stale(m, "form", o->epoch);
        } else if (memcmp(known->command->comm_id.data, o->comm_id.data, COMM_ID_BYTES) == 0) {
            m->state.counters.duplicates++;
        } else {
            /* Another membership has this number. A higher number may be known, too. */
            Titan__Internal__EpochRefused refused = TITAN__INTERNAL__EPOCH_REFUSED__INIT;
            refused.job_id = m->opt.job_id;
            refused.epoch = o->epoch;
            refused.seen_epoch = m->state.seen;
            refused.seen_term = m->state.term;
            m->state.counters.conflicts++;
            if (first_time(m, SAID_CONFLICT))
                note(m, "another membership under the number of an epoch it knows, refused", "epoch=%" PRIu64,
                     o->epoch);
            SAY(m, REFUSED, refused, &refused);
        }
        return false;
    }
    struct form *f = form_make(m, o);
    if (!f) {
        note(m, "command to form an epoch lost: out of memory", "epoch=%" PRIu64, o->epoch);
        return false;
    }
    drop_offer(m);
    saw(m, o->epoch);
    m->offered = f;
    m->state.offered = o->epoch;
    revoke_current(m, now_ms); /* a later epoch ends the current one */
    return true;
}

static void hear_revoke(struct member *m, uint64_t epoch, int64_t now_ms)
{
    if (epoch < m->state.epoch || epoch < m->state.revoked) {
        refuse_stale(m, "revoke", epoch);
        return;
    }
    if (epoch == m->state.revoked) {
        m->state.counters.duplicates++;
        return;
    }
    m->state.revoked = epoch;
    saw(m, epoch);
    if (m->offered && m->state.offered <= epoch)
        drop_offer(m);
    if (m->state.in)
        revoke_current(m, now_ms); /* when the member has left, it reports that it is out of both epochs */
    else if (epoch > m->quiesced.epoch && m->state.phase != PHASE(DONE))
        quiet(m, epoch, false); /* the epoch was revoked before it was entered: no other call reports this */
}

static void stop(struct member *m, unsigned checkpoint, const char *reason)
{
    m->stop_commands |= COMMAND_STOP | checkpoint;
    if (!m->state.stopped)
        (void)snprintf(m->stop_reason, sizeof m->stop_reason, "%s", reason);
    m->state.stopped = true;
}

static void hear_lease(struct member *m, const Titan__Internal__WorkerLease *o, int64_t now_ms)
{
    m->lease_ms = o->lease_ms ? o->lease_ms : m->opt.lease_ms;
    m->lease_until = now_ms + m->lease_ms;
    m->epoch_until = o->epoch_until_ms && !MUTANT(LEASE_IGNORED) ? o->epoch_until_ms : NEVER;
}

/* The job that a command is for. A stop and a lease are for the worker on this connection, whatever its job. */
static uint64_t job_of(const struct member *m, const agent_message *message)
{
    switch (message->kind_case) {
    case HEARD(FORM):
        return message->form->job_id;
    case HEARD(REVOKE):
        return message->revoke->job_id;
    case HEARD(PAUSE):
        return message->pause->job_id;
    case HEARD(CHECKPOINT_COMMITTED):
        return message->checkpoint_committed->job_id;
    default:
        return m->opt.job_id;
    }
}

static bool hear(struct member *m, const agent_message *message, int64_t now_ms)
{
    if (job_of(m, message) != m->opt.job_id) {
        m->state.counters.nonsense++;
        if (first_time(m, SAID_NONSENSE))
            note(m, "command for another job refused", "job=%" PRIu64, job_of(m, message));
        return false;
    }
    if (message->term >= m->state.term || MUTANT(WORKER_TERM)) {
        m->state.term = message->term;
    } else if (message->kind_case != HEARD(LEASE)) {
        m->state.counters.fenced++;
        if (first_time(m, SAID_FENCED))
            note(m, "command of an older term, ignored", "term=%" PRIu64 " seen=%" PRIu64, message->term,
                 m->state.term);
        return false;
    }
    switch (message->kind_case) {
    case HEARD(LEASE):
        hear_lease(m, message->lease, now_ms);
        break;
    case HEARD(FORM):
        return hear_form(m, message->form, now_ms);
    case HEARD(REVOKE):
        hear_revoke(m, message->revoke->epoch, now_ms);
        break;
    case HEARD(PAUSE): {
        /* A checkpoint without a pause is commanded only by rank 0, and only once, because ranks hear of it at
         * different steps. */
        const Titan__Internal__PauseJob *o = message->pause;
        const unsigned commands =
            (o->go_on ? 0 : COMMAND_PAUSE) | (o->checkpoint ? COMMAND_CHECKPOINT | COMMAND_MUST : 0);
        const struct form *f = known_form(m, o->epoch);
        if (o->world > 0 && o->world <= COMM_WORLD_MAX && m->host.expect)
            m->host.expect(m->host.arg, (int)o->world);
        if (!f && o->epoch > m->state.seen)
            break; /* this worker joins after the pause */
        if (!f || (f == m->current && !m->state.in)) {
            refuse_stale(m, "pause", o->epoch);
            break;
        }
        if (o->go_on && f->rank != 0)
            break;
        if (m->pause_epoch == o->epoch && (m->pause_commands & commands) == commands)
            m->state.counters.duplicates++;
        m->pause_commands = commands | (m->pause_epoch == o->epoch ? m->pause_commands : 0);
        m->pause_epoch = o->epoch;
        break;
    }
    case HEARD(STOP): {
        const Titan__Internal__WorkerStop *o = message->stop;
        stop(m,
             o->must_checkpoint ? COMMAND_CHECKPOINT | COMMAND_MUST
             : o->checkpoint    ? COMMAND_CHECKPOINT
                                : 0,
             *o->reason ? o->reason : "told to stop");
        break;
    }
    case HEARD(CHECKPOINT_COMMITTED): {
        int kept = 0;
        for (int i = 0; i < m->n_written; i++) {
            if (m->written[i].report.step > message->checkpoint_committed->step)
                m->written[kept++] = m->written[i];
            else
                free((void *)(uintptr_t)m->written[i].report.path);
        }
        m->n_written = kept;
        break;
    }
    default: /* a message of a newer agent */
        break;
    }
    return false;
}

bool member_hear(struct member *m, const agent_message *message, int64_t now_ms)
{
    const uint64_t term = m->state.term, seen = m->state.seen;
    const bool offer = hear(m, message, now_ms);

    titan_assert(m->state.term >= term || MUTANT(WORKER_TERM));
    titan_assert(m->state.seen >= seen);
    titan_assert(!offer || m->offered);
    check(m);
    return offer;
}

void member_moved(struct member *m, const char *address)
{
    (void)snprintf(m->address, sizeof m->address, "%s", address);
    if (m->state.opened)
        send_ready(m);
    check(m);
}

/* --- time --------------------------------------------------------------------------------------------------------- */

static void end(struct member *m, enum member_end why, const char *words)
{
    if (m->ended)
        return;
    m->ended = true;
    m->host.end(m->host.arg, why, words);
}

/* How long a worker without progress may take to leave a revoked epoch. Work that is already on the device may run to
 * the end of the step. The shorter of the last two steps is taken, so that a single long step does not count. */
static int64_t quiesce_ms(const struct member *m)
{
    return MAX((int64_t)m->opt.quiesce_ms, (int64_t)(1.5 * MIN(m->step_ms[0], m->step_ms[1])));
}

static int64_t quiesce_look(const struct member *m)
{
    return MAX(quiesce_ms(m) / QUIESCE_LOOKS, INT64_C(1));
}

/* Is the member in an epoch that is not revoked, or is an epoch on offer? */
static bool in_epoch(const struct member *m)
{
    return m->offered || (m->state.in && !m->state.in_revoked);
}

static int64_t lease_look(const struct member *m)
{
    return MAX((int64_t)m->lease_ms / LEASE_LOOKS, INT64_C(1));
}

void member_tick(struct member *m, int64_t now_ms, uint64_t actions)
{
    if (actions != m->actions)
        m->moved_at = now_ms;
    m->actions = actions;
    if (now_ms >= m->epoch_until && in_epoch(m)) {
        /* From now on the other members may go on without this worker. The agent sends the same command, if it can
         * reach the worker. */
        const uint64_t epoch = m->offered ? m->state.offered : m->state.epoch;
        note(m, "the lease of the epoch is over, leaving it", "epoch=%" PRIu64, epoch);
        hear_revoke(m, epoch, now_ms);
    }
    /* While the machine stood still, neither this process nor its agent ran. This time does not count as the agent's
     * silence. */
    const int64_t unheard = now_ms - m->ticked_at - lease_look(m);
    if (unheard > 0 && !m->state.lease_over)
        m->lease_until = MIN(m->lease_until + unheard, now_ms + m->lease_ms);
    m->ticked_at = now_ms;
    /* After a whole lease without the agent the worker stops with a checkpoint. If it still runs after the grace, the
     * process ends at once. */
    if (m->state.lease_over && now_ms >= m->exit_at)
        end(m, MEMBER_END_LEASE, "no agent for the whole lease");
    if (!m->state.lease_over && now_ms >= m->lease_until) {
        note(m, "no agent for the whole lease, stopping", "lease_ms=%" PRIu32, m->lease_ms);
        m->state.lease_over = true;
        m->exit_at = now_ms + m->opt.lease_grace_ms;
        stop(m, COMMAND_CHECKPOINT, "no agent for the whole lease");
    }

    if (m->state.in && m->state.in_revoked) {
        const int64_t patience = quiesce_ms(m), late = now_ms - m->checked_at - quiesce_look(m);
        if (late > 0) { /* this thread did not run, so perhaps the training thread did not run either */
            m->revoked_at += late;
            m->moved_at = MIN(m->moved_at + late, now_ms);
        }
        m->checked_at = now_ms;
        if (now_ms >= m->moved_at + patience || now_ms >= m->revoked_at + MEMBER_QUIESCE_MOVING * patience) {
            char words[160];
            (void)snprintf(words, sizeof words, "did not leave epoch %" PRIu64 " in %" PRId64 " ms; at action %" PRIu64,
                           m->state.epoch, now_ms - m->revoked_at, m->actions);
            end(m, MEMBER_END_UNQUIESCED, words);
        }
    }
    check(m);
}

int64_t member_deadline(const struct member *m)
{
    int64_t at = m->state.lease_over ? m->exit_at : MIN(m->lease_until, m->ticked_at + lease_look(m));

    if (m->ended)
        return NEVER;
    if (in_epoch(m))
        at = MIN(at, m->epoch_until);
    if (m->state.in && m->state.in_revoked)
        at = MIN(at, m->checked_at + quiesce_look(m));
    return at;
}

/* --- the training thread ------------------------------------------------------------------------------------------ */

void member_opened(struct member *m)
{
    titan_assert(!m->state.opened && m->state.epoch == 0);
    m->state.opened = true;
    if (m->state.connected)
        send_ready(m);
    check(m);
}

enum member_answer member_next(struct member *m, struct epoch_view *ret)
{
    static const enum state_source sources[] = {[TITAN__INTERNAL__STATE_SOURCE__STATE_INIT] = STATE_FROM_INIT,
                                                [TITAN__INTERNAL__STATE_SOURCE__STATE_CHECKPOINT] =
                                                    STATE_FROM_CHECKPOINT,
                                                [TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY] = STATE_FROM_MEMORY};
    titan_assert(m->state.opened);
    if (m->state.stopped)
        return MEMBER_STOPPED;
    if (!m->offered)
        return MEMBER_WAIT;
    titan_assert(!m->state.in || m->state.in_revoked);
    form_free(m->current);
    m->current = TAKE(m->offered);
    m->state.offered = 0;
    m->state.epoch = m->current->command->epoch;
    m->state.rank = m->current->rank;
    m->state.in = true;
    m->state.in_revoked = false;
    m->state.phase = PHASE(FORMING);
    const Titan__Internal__FormEpoch *o = m->current->command;
    *ret = (struct epoch_view){.epoch = o->epoch,
                               .rank = m->current->rank,
                               .world = (int)o->n_members,
                               .departing = (int)o->n_departing,
                               .addresses = m->current->addresses,
                               .nodes = m->current->nodes,
                               .node_names = m->current->node_names,
                               .memfd = -1,
                               .source = sources[o->source],
                               .resume_step = o->resume_step,
                               .n_older = (int)o->n_older_checkpoints,
                               .older_checkpoints = (const char *const *)o->older_checkpoints,
                               .memory_only = o->memory_only,
                               .source_epoch = o->source_epoch,
                               .holders = m->current->holders,
                               .holder_ranks = m->current->holder_ranks};
    memcpy(ret->comm_id, o->comm_id.data, sizeof ret->comm_id);
    ret->keyed = o->key.len == sizeof ret->key;
    if (ret->keyed)
        memcpy(ret->key, o->key.data, sizeof ret->key);
    (void)snprintf(ret->checkpoint_path, sizeof ret->checkpoint_path, "%s", o->checkpoint_path);
    check(m);
    return MEMBER_FORM;
}

const char *member_stop_reason(const struct member *m)
{
    return m->stop_reason;
}

unsigned member_commands(struct member *m)
{
    const unsigned commands = m->pause_epoch == m->state.epoch ? m->pause_commands : 0;

    if ((commands & (COMMAND_PAUSE | COMMAND_CHECKPOINT)) == COMMAND_CHECKPOINT)
        m->pause_commands = 0;
    return m->stop_commands | commands;
}

void member_quiesced(struct member *m, const struct quiesced *q)
{
    titan_assert(q->epoch == m->state.epoch);
    m->state.in = m->state.in_revoked = false;
    m->state.step = q->last_step;
    m->quiesced = *q;
    quiet(m, q->epoch, q->paused);
    if (m->state.revoked > q->epoch) /* an epoch on offer was revoked before it was entered */
        quiet(m, m->state.revoked, false);
    check(m);
}

void member_state_ready(struct member *m, const struct state_ready *r)
{
    titan_assert(r->epoch == m->state.epoch);
    m->ready = *r;
    (void)snprintf(m->damaged, sizeof m->damaged, "%s", r->damaged_checkpoint ? r->damaged_checkpoint : "");
    send_state_ready(m);
}

void member_progress(struct member *m, const struct step_report *r, int64_t wall_ms)
{
    Titan__Internal__WorkerProgress progress = PART(m, WORKER_PROGRESS, WorkerProgress);
    Titan__Internal__StepSplit split = TITAN__INTERNAL__STEP_SPLIT__INIT;
    Titan__Internal__ExpertLoad experts = TITAN__INTERNAL__EXPERT_LOAD__INIT;

    progress.epoch = r->epoch;
    progress.step = r->step;
    progress.loss = r->loss;
    progress.grad_norm = r->grad_norm;
    progress.learning_rate = r->learning_rate;
    progress.tokens_per_second = r->tokens_per_second;
    progress.mfu = r->mfu;
    progress.step_ms = r->step_ms;
    progress.tokens = r->tokens;
    progress.world_size = (uint32_t)r->world;
    progress.memory_bytes = r->memory_bytes;
    progress.skipped_steps = r->skipped_steps;
    progress.at_ms = wall_ms;
    progress.loss_max = r->loss_max;
    if (r->split.slowest >= 0) {
        split.data_ms = r->split.data;
        split.compute_ms = r->split.compute;
        split.communication_ms = r->split.communication;
        split.checkpoint_ms = r->split.checkpoint;
        split.straggler_ms = r->split.stragglers;
        split.slowest_busy_ms = r->split.slowest_busy;
        split.slowest_rank = (uint32_t)r->split.slowest;
        progress.split = &split;
    }
    progress.tflops = r->tflops;
    progress.mfu_causal = r->mfu_causal;
    if (r->expert_tokens_mean > 0) {
        experts.least = r->expert_tokens_min;
        experts.most = r->expert_tokens_max;
        experts.mean = r->expert_tokens_mean;
        experts.dropped = r->dropped;
        experts.further_rounds = r->further_rounds;
        experts.room_needed = r->room_needed;
        progress.experts = &experts;
    }
    m->state.step = r->step;
    m->state.phase = PHASE(TRAINING);
    m->step_ms[0] = m->step_ms[1];
    m->step_ms[1] = r->step_ms;
    SAY(m, PROGRESS, progress, &progress);
}

void member_evaluated(struct member *m, const struct evaluation_report *r)
{
    titan_assert(r->step > 0 && r->tokens > 0 && m->state.in);
    m->evaluated = *r;
    m->evaluated_epoch = m->state.epoch;
    send_evaluated(m);
}

void member_checkpoint_written(struct member *m, const struct checkpoint_report *report)
{
    char *copy = strdup(report->path);

    titan_assert(report->step > 0 && report->world > 0);
    if (!copy)
        return;
    if (m->n_written == MEMBER_UNCONFIRMED_MAX) {
        free((void *)(uintptr_t)m->written[0].report.path);
        memmove(m->written, m->written + 1, sizeof m->written - sizeof m->written[0]);
        m->n_written--;
    }
    struct unconfirmed *w = &m->written[m->n_written++];
    *w = (struct unconfirmed){.report = *report, .epoch = m->state.epoch};
    w->report.path = copy;
    send_written(m, w);
}

void member_checkpoint_failed(struct member *m, uint64_t step, const char *path, const char *reason, bool reading)
{
    Titan__Internal__CheckpointFailed failed = PART(m, CHECKPOINT_FAILED, CheckpointFailed);
    char words[512];

    (void)snprintf(words, sizeof words, "%s", reason);
    /* Cuts the words at the first bytes that are not UTF-8: a name that is not text, or an incomplete character. */
    words[utf8_check(words, strlen(words))] = '\0';
    text_fit(words, '?');
    if (utf8_check(path, strlen(path)) < strlen(path) || strpbrk(path, "\n\r\t\b\033"))
        path = "";
    reason = words;
    failed.epoch = m->state.epoch;
    failed.step = step;
    failed.path = (char *)path;
    failed.reason = (char *)reason;
    failed.reading = reading;
    SAY(m, CHECKPOINT_FAILED, checkpoint_failed, &failed);
}

void member_finished(struct member *m, uint64_t step)
{
    m->state.in = m->state.in_revoked = false;
    m->state.phase = PHASE(DONE);
    m->state.step = m->finished_step = step;
    send_finished(m);
    check(m);
}

void member_failing(struct member *m, int exit_code, const char *reason)
{
    titan_assert(exit_code != 0);
    m->exit_code = exit_code;
    (void)snprintf(m->failure, sizeof m->failure, "%s", reason);
    send_failing(m);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

struct member *member_open(const struct member_options *options, const struct member_host *host, int64_t now_ms)
{
    struct member *m = calloc(1, sizeof *m);

    titan_assert(host->send && host->revoke && host->end && options->address);
    if (!m)
        return NULL;
    m->opt = *options;
    m->host = *host;
    m->opt.lease_ms = options->lease_ms ? options->lease_ms : MEMBER_LEASE_MS;
    m->opt.lease_grace_ms = options->lease_grace_ms ? options->lease_grace_ms : MEMBER_LEASE_GRACE_MS;
    m->opt.quiesce_ms = options->quiesce_ms ? options->quiesce_ms : MEMBER_QUIESCE_MS;
    (void)snprintf(m->address, sizeof m->address, "%s", options->address);
    m->opt.address = m->address;
    m->state.phase = PHASE(IDLE);
    m->ticked_at = now_ms;
    hear_lease(m, &(Titan__Internal__WorkerLease)TITAN__INTERNAL__WORKER_LEASE__INIT, now_ms);
    check(m);
    return m;
}

void member_close(struct member *m)
{
    if (!m)
        return;
    form_free(m->current);
    form_free(m->offered);
    for (int i = 0; i < m->n_written; i++)
        free((void *)(uintptr_t)m->written[i].report.path);
    free(m);
}
