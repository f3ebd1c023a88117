/* core.c - the table of workers, and what they and the coordinator say; see core.h. */
#include "daemon/agent/core.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/vec.h"
#include "daemon/agent/core_internal.h"
#include "daemon/epochs.h"
#include "proto/ranges.h"

#define SIGNALS_MAX 64
#define KEEP_MS 5000  /* how long a report that has arrived may have to be sent again: to the next coordinator */
#define KEEP_MAX 4096 /* reports; fewer than a stream's queue takes (proto/rpc/client.h) */
#define BEAT_MS 200   /* of a coordinator that does not say */
#define AWAY_MS 1000
#define STREAM_BEATS 4 /* in away_ms, while datagrams are answered */
#define DEAF_MS 10000  /* beats without an answer, from a coordinator that has answered: another session */
#define JOBS_KEPT 256  /* records of jobs that have no worker here any more; the newest */
#define TOLD_MAX                                                                                                       \
    ((size_t)1 << 20)         /* bytes of their epochs in a hello that tells of them; a message has at most 4 MiB */
#define REVOKE_LIMIT_MS 10000 /* to leave an epoch, however much it moves meanwhile */
#define STRAGGLER_STEPS 20    /* a window has at least so many, and */
#define STRAGGLER_MS 5000     /* lasts so long: short steps are noisy */
#define STRAGGLER_RATIO 1.5

/* --- the tables -----------------------------------------------------------------------------------------------------
 */

static char *copy_text(const char *text)
{
    char *copy = strdup(text ? text : "");
    titan_assert(copy);
    return copy;
}

titan_status agent_core_new(const struct agent_core_options *o, struct agent_core **ret, struct titan_error *err)
{
    struct agent_core *c = calloc(1, sizeof(*c));
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the agent");
    c->options = *o;
    c->node = copy_text(o->node);
    c->device = copy_text(o->device);
    c->address = copy_text(o->address);
    c->version = copy_text(o->version);
    c->coordinator = o->coordinator ? copy_text(o->coordinator) : NULL;
    c->datagram_at = INT64_MIN;
    c->options.hang_floor_ms = o->hang_floor_ms ? o->hang_floor_ms : 300;
    c->options.hang_unknown_ms = o->hang_unknown_ms ? o->hang_unknown_ms : 10000;
    c->options.revoke_ms = o->revoke_ms ? o->revoke_ms : 1000;
    c->beat_ms = BEAT_MS;
    c->away_ms = o->away_ms ? o->away_ms : AWAY_MS;
    c->delegate_lease_ms = o->delegate_lease_ms;
    *ret = c;
    return TITAN_OK;
}

static void worker_free(struct aworker *w)
{
    if (w->quiesced)
        titan__internal__worker_quiesced__free_unpacked(w->quiesced, NULL);
    free(w->fault);
    free(w);
}

static void job_free(struct ajob *j)
{
    titan__internal__agent_job_record__free_unpacked(j->record, NULL);
    agent_delegation_free(j->delegation);
    free(j->checkpoint);
    free(j);
}

static void held_drop(struct agent_core *c)
{
    for (size_t i = 0; i < c->n_held; i++)
        titan__internal__form_epoch__free_unpacked(c->held[i], NULL);
    c->n_held = 0;
}

void agent_core_free(struct agent_core *c)
{
    if (!c)
        return;
    for (struct aworker *w = c->workers, *next; w; w = next) {
        next = w->next;
        worker_free(w);
    }
    for (struct ajob *j = c->jobs, *next; j; j = next) {
        next = j->next;
        job_free(j);
    }
    for (struct report *r = c->reports, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    for (struct probe *p = c->probes, *next; p; p = next) {
        next = p->next;
        agent_probe_free(p);
    }
    for (size_t i = 0; i < MIN(c->n_ended, (size_t)ENDED_KEPT); i++)
        titan__internal__agent_message__free_unpacked(c->ended[i].report, NULL);
    held_drop(c);
    free(c->held);
    free(c->node);
    free(c->device);
    free(c->address);
    free(c->version);
    free(c->coordinator);
    free(c);
}

struct aworker *agent_worker_of(const struct agent_core *c, uint64_t worker_id)
{
    struct aworker *w = c->workers;
    while (w && w->id != worker_id)
        w = w->next;
    return w;
}

uint32_t agent_alive(const struct agent_core *c)
{
    uint32_t n = 0;
    for (const struct aworker *w = c->workers; w; w = w->next)
        n++;
    return n;
}

struct ajob *agent_job_of(struct agent_core *c, uint64_t job_id, bool make)
{
    struct ajob *j = c->jobs;
    while (j && j->id != job_id)
        j = j->next;
    if (j || !make)
        return j;
    Titan__Internal__AgentJobRecord empty = TITAN__INTERNAL__AGENT_JOB_RECORD__INIT;
    empty.job_id = job_id;
    j = calloc(1, sizeof(*j));
    titan_assert(j);
    j->id = job_id;
    j->record = agent_message_copy(&empty.base);
    j->next = c->jobs;
    c->jobs = j;
    return j;
}

static struct aworker *worker_add(struct agent_core *c, uint64_t job_id, uint64_t worker_id)
{
    struct aworker *w = calloc(1, sizeof(*w));
    titan_assert(w);
    w->job_id = job_id;
    w->id = worker_id;
    struct aworker **at = &c->workers; /* in the order they came */
    while (*at)
        at = &(*at)->next;
    *at = w;
    return w;
}

void agent_core_restore_term(struct agent_core *c, const struct seen_term *seen)
{
    if (seen->term > c->seen.term)
        c->seen = *seen;
}

void agent_core_restore_contact(struct agent_core *c, int64_t at, int64_t epoch_until)
{
    c->contact_at = at;
    c->contact = true;
    c->delegate_lease_ms = epoch_until > at ? (uint32_t)MIN(epoch_until - at, (int64_t)UINT32_MAX) : 0;
}

int64_t agent_core_contact(const struct agent_core *c)
{
    return c->contact ? c->contact_at : INT64_MIN;
}

void agent_core_restore_job(struct agent_core *c, const Titan__Internal__AgentJobRecord *record)
{
    struct ajob *j = agent_job_of(c, record->job_id, true);
    titan__internal__agent_job_record__free_unpacked(j->record, NULL);
    j->record = agent_message_copy(&record->base);
}

/* A worker's page is the worker's own to write. */
static bool sample_can_be(const struct agent_sample *s)
{
    return s->epoch <= RANGE_EPOCH_MAX && s->step <= RANGE_STEP_MAX &&
           s->phase <= TITAN__INTERNAL__WORKER_PHASE__WORKER_DONE;
}

void agent_core_adopted(struct agent_core *c, uint64_t job_id, uint64_t worker_id, const struct agent_sample *sample,
                        int64_t now)
{
    (void)now;
    struct aworker *w = worker_add(c, job_id, worker_id);
    if (!sample_can_be(sample))
        return; /* the next look at it ends it */
    w->sample = *sample;
    w->told_epoch = sample->epoch;
}

/* --- to the coordinator ---------------------------------------------------------------------------------------------
 */

#define MESSAGE(name, KIND, field, value)                                                                              \
    agent_message name = TITAN__INTERNAL__AGENT_MESSAGE__INIT;                                                         \
    (name).kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_##KIND;                                                    \
    (name).field = (value)

void agent_send(struct agent_core *c, agent_message *m, struct agent_actions *out)
{
    bool always = m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_HELLO ||
                  m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_REFUSED;
    if (!c->up || c->ending || (!c->welcomed && !always))
        return;
    m->term = c->welcomed ? c->session_term : c->seen.term;
    agent_action_add(out, AGENT_SEND)->send = agent_action_copy(out, &m->base);
}

static void report_drop_first(struct agent_core *c)
{
    struct report *r = c->reports;
    c->reports = r->next;
    c->reports_last = c->reports ? c->reports_last : NULL;
    c->n_reports--;
    free(r);
}

/* Reports that a beat has followed, which was answered, have arrived. */
static void reports_expire(struct agent_core *c, int64_t now)
{
    while (c->reports && c->reports->sent && c->reports->sent_at < c->contact_at && now - c->reports->sent_at > KEEP_MS)
        report_drop_first(c);
}

/* What was sent may not have been heard. */
static void reports_again(struct agent_core *c)
{
    for (struct report *r = c->reports; r; r = r->next)
        r->sent = false;
}

/* All that wait, in order. */
static void reports_flush(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    for (struct report *r = c->reports; r && c->welcomed; r = r->next) {
        if (r->sent)
            continue;
        agent_message *m = titan__internal__agent_message__unpack(NULL, r->len, r->bytes);
        titan_assert(m);
        agent_send(c, m, out);
        titan__internal__agent_message__free_unpacked(m, NULL);
        r->sent = true;
        r->sent_at = now;
    }
}

void agent_report(struct agent_core *c, agent_message *m, int64_t now, struct agent_actions *out)
{
    size_t len = titan__internal__agent_message__get_packed_size(m);
    struct report *r = malloc(sizeof(*r) + len);
    titan_assert(r);
    *r = (struct report){.len = len};
    (void)titan__internal__agent_message__pack(m, r->bytes);
    if (c->n_reports == KEEP_MAX) {
        agent_say(out, AGENT_WARN, "too many reports wait for the coordinator, the oldest is dropped", "%s", "");
        report_drop_first(c);
    }
    *(c->reports_last ? &c->reports_last->next : &c->reports) = r;
    c->reports_last = r;
    c->n_reports++;
    reports_flush(c, now, out);
}

static void live_worker(struct aworker *w, Titan__Internal__LiveWorker *out)
{
    titan__internal__live_worker__init(out);
    out->job_id = w->job_id;
    out->worker_id = w->id;
    out->epoch = w->sample.epoch;
    out->rank = w->rank;
    out->step = w->sample.step;
    out->state = w->sample.phase;
    out->address = w->address;
    out->quiesced = w->quiesced;
    /* Its page is ahead of its words: what it holds is not known yet, and comes behind this. */
    if (out->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED &&
        !(w->quiesced && w->quiesced->epoch >= w->sample.epoch))
        out->state = TITAN__INTERNAL__WORKER_PHASE__WORKER_FORMING;
}

/* What is known of a job's epochs, from coordinators up to that term; false: nothing. */
static bool known_epochs(const struct ajob *j, uint64_t term, Titan__Internal__EpochsKnown *out)
{
    const job_record *r = j->record;
    titan__internal__epochs_known__init(out);
    if (!r->accepted || r->term > term)
        return false;
    out->job_id = j->id;
    out->epochs = calloc(r->n_before + 1, sizeof(*out->epochs));
    titan_assert(out->epochs);
    for (size_t i = 0; i < r->n_before && !j->complete; i++)
        out->epochs[out->n_epochs++] = r->before[i];
    out->epochs[out->n_epochs++] = r->accepted;
    if (j->checkpoint)
        out->checkpoint_path = j->checkpoint;
    return true;
}

static bool lives_here(const struct agent_core *c, uint64_t job_id)
{
    const struct aworker *w = c->workers;
    while (w && w->job_id != job_id)
        w = w->next;
    return w != NULL;
}

/* Of all jobs with workers here; and of others, the newest first, as long as there is room in the message. known and
 * its list have room for all. */
static void tell_known(const struct agent_core *c, uint64_t term, Titan__Internal__EpochsKnown *known,
                       Titan__Internal__EpochsKnown **list, size_t *ret_n)
{
    size_t n = 0, room = TOLD_MAX;
    for (int here = 1; here >= 0; here--)
        for (const struct ajob *j = c->jobs; j; j = j->next) {
            if (lives_here(c, j->id) != here || !known_epochs(j, term, &known[n]))
                continue;
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

/* known_term: tell of the epochs up to it; 0 = nobody has asked. */
static void hello_send(struct agent_core *c, uint64_t known_term, struct agent_actions *out)
{
    Titan__Internal__AgentHello hello = TITAN__INTERNAL__AGENT_HELLO__INIT;
    size_t n_delegated = 0, n_jobs = 0;
    for (const struct ajob *j = c->jobs; j; j = j->next, n_jobs++)
        n_delegated += j->record->n_delegated;
    _cleanup_free_ Titan__Internal__LiveWorker *workers = calloc(agent_alive(c) + 1, sizeof(*workers));
    _cleanup_free_ Titan__Internal__LiveWorker **list = calloc(agent_alive(c) + 1, sizeof(*list));
    _cleanup_free_ Titan__Internal__EpochDelegated **delegated = calloc(n_delegated + 1, sizeof(*delegated));
    _cleanup_free_ Titan__Internal__EpochsKnown *known = calloc(n_jobs + 1, sizeof(*known));
    _cleanup_free_ Titan__Internal__EpochsKnown **known_list = calloc(n_jobs + 1, sizeof(*known_list));
    titan_assert(workers && list && delegated && known && known_list);
    for (struct aworker *w = c->workers; w; w = w->next) {
        live_worker(w, &workers[hello.n_workers]);
        list[hello.n_workers] = &workers[hello.n_workers];
        hello.n_workers++;
    }
    for (const struct ajob *j = c->jobs; j; j = j->next)
        for (size_t i = 0; i < j->record->n_delegated; i++)
            delegated[hello.n_delegated++] = j->record->delegated[i];
    hello.node = c->node;
    hello.slots = c->options.slots;
    hello.device = c->device;
    hello.address = c->address;
    hello.version = c->version;
    hello.memory_bytes = c->options.memory_bytes;
    hello.checks = c->options.checks;
    hello.workers = list;
    hello.delegated = delegated;
    hello.told = known_term != 0;
    hello.proves = true;
    hello.known = known_list;
    if (known_term)
        tell_known(c, known_term, known, known_list, &hello.n_known);
    hello.incarnation = c->options.incarnation;
    hello.seen_term = c->seen.term;
    hello.seen_proof = agent_term_proof(c);
    hello.peer_port = c->options.peer_port;
    MESSAGE(m, HELLO, hello, &hello);
    agent_send(c, &m, out);
    c->delegated_since = false;
    for (size_t i = 0; i < hello.n_known; i++)
        free(known[i].epochs);
}

void agent_core_session_up(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    c->up = true;
    c->welcomed = c->answered = c->ending = c->fenced_said = c->imposter_said = c->range_said = false;
    c->hello_at = now;
    c->sessions++;
    hello_send(c, 0, out);
}

void agent_core_session_down(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    (void)now;
    (void)out;
    c->up = c->welcomed = c->ending = false;
    held_drop(c);
    reports_again(c);
    for (struct probe *p = c->probes, *next; p; p = next) {
        next = p->next;
        agent_probe_free(p);
    }
    c->probes = NULL;
}

/* The coordinator has answered what was sent at that time. */
static void heard(struct agent_core *c, int64_t at)
{
    c->contact_at = c->contact ? MAX(c->contact_at, at) : at;
    c->contact = true;
}

/* An answer has come lately, by stream or as a datagram. */
static bool hears(const struct agent_core *c, int64_t now)
{
    return MAX(c->contact ? c->contact_at : INT64_MIN, c->datagram_at) > now - (int64_t)c->away_ms;
}

/* Also between two sessions: it takes long to open one where many packets are lost. */
static bool beats(const struct agent_core *c, int64_t now)
{
    return (c->welcomed && !c->ending) || (c->coordinator && c->session_term && hears(c, now));
}

static void beat_datagram(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    Titan__Internal__PeerBeat b = TITAN__INTERNAL__PEER_BEAT__INIT;
    peer_message m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    struct proof_keys newest = {0};
    b.incarnation = c->options.incarnation;
    b.number = c->beat;
    b.hears = hears(c, now);
    if (c->session_keys.n) {
        newest.n = 1;
        memcpy(newest.key[0], c->session_keys.key[0], MAC_BYTES);
    }
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_BEAT;
    m.beat = &b;
    (void)agent_peer_send(c, c->coordinator, &m, &newest, out);
}

static void beat_stream(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    Titan__Internal__AgentBeat b = TITAN__INTERNAL__AGENT_BEAT__INIT;
    b.slots_used = agent_alive(c);
    b.number = c->beat;
    b.old_terms = c->counters.fenced_terms;
    b.old_epochs = c->counters.fenced_epochs;
    b.other_epochs = c->counters.refused;
    b.imposters = c->counters.imposters;
    b.out_of_range = c->counters.out_of_range;
    b.unproved = c->counters.unproved;
    MESSAGE(m, BEAT, beat, &b);
    agent_send(c, &m, out);
    c->stream_beat_at = now + c->away_ms / STREAM_BEATS;
}

/* Datagrams say that this node lives, the stream that it carries orders and reports: when datagrams are answered, it
 * needs few beats for that. */
static void beat(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    const bool answered = c->datagram_at > now - 3 * (int64_t)c->beat_ms;
    c->beat++;
    c->beats[c->beat % BEATS_KEPT].number = c->beat;
    c->beats[c->beat % BEATS_KEPT].at = now;
    if (c->coordinator)
        beat_datagram(c, now, out);
    if (c->welcomed && !c->ending && (!answered || now >= c->stream_beat_at))
        beat_stream(c, now, out);
    c->next_beat_at = now + MAX(c->beat_ms * 3 / 4, 1u); /* at least every beat_ms, also when a timer is late */
}

void agent_beat_answered(struct agent_core *c, const peer_message *m)
{
    const uint64_t number = m->beat_answer->number;
    if (m->term == c->session_term && number && c->beats[number % BEATS_KEPT].number == number)
        c->datagram_at = MAX(c->datagram_at, c->beats[number % BEATS_KEPT].at);
}

/* --- to workers -----------------------------------------------------------------------------------------------------
 */

void agent_tell(const struct agent_core *c, const struct aworker *w, worker_order *order, struct agent_actions *out)
{
    order->term = c->seen.term;
    struct agent_action *a = agent_action_add(out, AGENT_TELL);
    a->job_id = w->job_id;
    a->worker_id = w->id;
    a->tell = agent_action_copy(out, &order->base);
}

static void tell_job(const struct agent_core *c, uint64_t job_id, worker_order *order, struct agent_actions *out)
{
    for (const struct aworker *w = c->workers; w; w = w->next)
        if (w->job_id == job_id)
            agent_tell(c, w, order, out);
}

/* rank below 0: a leaver, which has none in the epoch to come. */
static void tell_one_form(struct agent_core *c, const form_epoch *form, uint64_t worker_id, int32_t rank,
                          struct agent_actions *out)
{
    struct aworker *w = agent_worker_of(c, worker_id);
    worker_order order = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    if (!w || w->job_id != form->job_id)
        return;
    w->told_epoch = MAX(w->told_epoch, form->epoch);
    if (rank >= 0) {
        w->rank = (uint32_t)rank;
        struct agent_action *a = agent_action_add(out, AGENT_RANK);
        a->job_id = w->job_id;
        a->worker_id = w->id;
        a->rank = w->rank;
    }
    order.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_FORM;
    order.form = (form_epoch *)form;
    agent_tell(c, w, &order, out);
}

/* Workers do not learn their agents' key. */
void agent_tell_form(struct agent_core *c, const form_epoch *said, struct agent_actions *out)
{
    uint8_t mesh[MAC_BYTES];
    form_epoch told = *said;
    const form_epoch *form = &told;
    if (told.key.len == MAC_BYTES)
        proof_mesh(said, mesh);
    told.key = (ProtobufCBinaryData){told.key.len == MAC_BYTES ? MAC_BYTES : 0, mesh};
    for (size_t i = 0; i < form->n_members; i++)
        tell_one_form(c, form, form->members[i]->worker_id, (int32_t)i, out);
    for (size_t i = 0; i < form->n_leavers; i++)
        tell_one_form(c, form, form->leavers[i]->worker_id, -1, out);
}

bool agent_in_epoch(const struct aworker *w, uint64_t epoch)
{
    uint64_t newest = MAX(w->told_epoch, w->sample.epoch);
    return newest > 0 && newest <= epoch && !(w->quiesced && w->quiesced->epoch >= newest) &&
           w->sample.phase != TITAN__INTERNAL__WORKER_PHASE__WORKER_DONE;
}

void agent_tell_revoke(struct agent_core *c, uint64_t job_id, uint64_t epoch, int64_t now, struct agent_actions *out)
{
    Titan__Internal__RevokeEpoch revoke = TITAN__INTERNAL__REVOKE_EPOCH__INIT;
    worker_order order = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    revoke.job_id = job_id;
    revoke.epoch = epoch;
    order.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_REVOKE;
    order.revoke = &revoke;
    tell_job(c, job_id, &order, out);
    for (struct aworker *w = c->workers; w; w = w->next) {
        /* One that was told to stop has its grace. */
        if (w->job_id != job_id || w->end == END_ASKED || !agent_in_epoch(w, epoch) || w->revoked_epoch >= epoch)
            continue;
        if (w->revoked_epoch == 0) /* asked before and still in: that time counts */
            w->revoked_at = now;
        w->revoked_epoch = epoch;
    }
}

void agent_tell_pause(struct agent_core *c, uint64_t job_id, uint64_t epoch, struct agent_actions *out)
{
    Titan__Internal__PauseJob pause = TITAN__INTERNAL__PAUSE_JOB__INIT;
    worker_order order = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    pause.job_id = job_id;
    pause.epoch = epoch;
    order.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_PAUSE;
    order.pause = &pause;
    tell_job(c, job_id, &order, out);
}

static void stop_worker(struct aworker *w, uint32_t grace_ms, bool must_checkpoint, const char *reason,
                        enum end_cause cause, struct agent_actions *out)
{
    if (w->end == END_BY_ITSELF)
        w->end = cause;
    w->killed |= grace_ms == 0;
    struct agent_action *a = agent_action_add(out, AGENT_STOP_WORKER);
    a->job_id = w->job_id;
    a->worker_id = w->id;
    a->grace_ms = grace_ms;
    a->must_checkpoint = must_checkpoint;
    a->text = agent_action_text(out, "%s", reason ? reason : "");
}

/* --- from the coordinator -------------------------------------------------------------------------------------------
 */

/* A hello that lay in a link for long does not tell of what was done since. */
static void delegated_again(struct agent_core *c, struct agent_actions *out)
{
    for (const struct ajob *j = c->jobs; j && c->delegated_since; j = j->next)
        for (size_t i = 0; i < j->record->n_delegated; i++) {
            MESSAGE(m, DELEGATED, delegated, j->record->delegated[i]);
            agent_send(c, &m, out);
        }
    c->delegated_since = false;
}

static void take_key(struct agent_core *c, const ProtobufCBinaryData *key)
{
    const struct proof_keys before = c->session_keys;
    c->session_keys.n = 0;
    if (key->len != MAC_BYTES)
        return;
    proof_add_key(&c->session_keys, key->data);
    for (size_t i = 0; i < before.n && c->session_keys.n < 2; i++)
        proof_add_key(&c->session_keys, before.key[i]);
}

static void say_leaves(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    Titan__Internal__AgentLeaves leaves = TITAN__INTERNAL__AGENT_LEAVES__INIT;
    if (!c->leave_at)
        return;
    leaves.deadline_ms = (uint32_t)MAX(c->leave_at - now, 0);
    MESSAGE(m, LEAVES, leaves, &leaves);
    agent_send(c, &m, out);
}

static void on_welcome(struct agent_core *c, const Titan__Internal__Welcome *m, int64_t now, struct agent_actions *out)
{
    if (!agent_fence_term(c, m->term, &m->term_proof, out))
        return;
    if (c->welcomed && m->term != c->session_term) /* the one before was an older coordinator's, which heard nothing */
        reports_again(c);
    c->welcomed = true;
    c->session_term = m->term;
    take_key(c, &m->key);
    c->beat_ms = m->beat_ms ? m->beat_ms : BEAT_MS;
    c->away_ms = m->away_ms ? m->away_ms : AWAY_MS;
    c->delegate_lease_ms = m->delegate_lease_ms;
    heard(c, c->hello_at);
    agent_say(out, AGENT_INFO, "session with the coordinator", "term=%" PRIu64 " beat_ms=%u", m->term, c->beat_ms);
    say_leaves(c, now, out);
    delegated_again(c, out);
    reports_flush(c, now, out);
    c->stream_beat_at = now;
    beat(c, now, out); /* behind it nothing is older than this session */
}

/* Asked by one that is not obeyed yet: its term is taken with its welcome, when it has heard all of this. */
static void on_tell_epochs(struct agent_core *c, uint64_t term, uint64_t restored_term, int64_t now,
                           struct agent_actions *out)
{
    if (c->welcomed || (term < c->seen.term && !agent_fence_term(c, term, NULL, out)))
        return;
    c->hello_at = now;
    hello_send(c, MAX(restored_term, UINT64_C(1)), out);
}

/* An order about a worker that has ended is answered with how. Whoever does not hear that gives the order again, so it
 * is not kept to be said in the next session: there it would be said once more for every order there has been. */
static bool say_ended(struct agent_core *c, uint64_t worker_id, struct agent_actions *out)
{
    for (size_t i = 0; i < MIN(c->n_ended, (size_t)ENDED_KEPT); i++)
        if (c->ended[i].worker_id == worker_id) {
            agent_send(c, c->ended[i].report, out);
            return true;
        }
    return false;
}

static void on_start(struct agent_core *c, const Titan__Internal__StartWorkers *m, struct agent_actions *out)
{
    for (size_t i = 0; i < m->n_worker_ids && !c->draining; i++) {
        if (say_ended(c, m->worker_ids[i], out) || agent_worker_of(c, m->worker_ids[i]))
            continue;
        Titan__Internal__StartWorkers one = *m;
        uint64_t id = m->worker_ids[i];
        one.worker_ids = &id;
        one.n_worker_ids = 1;
        (void)worker_add(c, m->job_id, id);
        struct agent_action *a = agent_action_add(out, AGENT_START_WORKER);
        a->job_id = m->job_id;
        a->worker_id = id;
        a->start = agent_action_copy(out, &one.base);
    }
}

static void on_form(struct agent_core *c, const form_epoch *m, struct agent_actions *out)
{
    if (!epoch_seats_distinct(m)) {
        c->counters.out_of_range++;
        agent_say(out, AGENT_WARN, "an epoch with a worker in two places, dropped", "job=%" PRIu64 " epoch=%" PRIu64,
                  m->job_id, m->epoch);
        return;
    }
    struct ajob *j = agent_job_of(c, m->job_id, true);
    switch (agent_fence_form(j, m)) {
    case FENCE_OLDER:
        agent_fenced_epoch(c, "order to form", m->job_id, m->epoch, agent_job_accepted(j), out);
        agent_refuse_form(c, j, m, out);
        return;
    case FENCE_OTHER:
        c->counters.refused++;
        agent_say(out, AGENT_WARN, "another epoch of this number is accepted or promised here",
                  "job=%" PRIu64 " epoch=%" PRIu64, m->job_id, m->epoch);
        agent_refuse_form(c, j, m, out);
        return;
    default:
        agent_job_accept(c, j, m, NULL, out);
        agent_tell_form(c, m, out);
    }
}

/* An order to form may have lain in the socket of an agent that was stopped, while its node was given up and the job
 * went on without it: it waits for an answer to a beat that was sent since. */
static bool stale(const struct agent_core *c, int64_t now)
{
    return c->answered && agent_coordinator_away(c, now);
}

static void hold(struct agent_core *c, const form_epoch *m, int64_t now)
{
    c->next_beat_at = c->stream_beat_at = now;
    titan_assert(VEC_PUSH(c->held, c->n_held, c->cap_held, agent_message_copy(&m->base)));
}

static void on_beat_answer(struct agent_core *c, const Titan__Internal__BeatAnswer *m, int64_t now,
                           struct agent_actions *out)
{
    if (m->number == 0 || c->beats[m->number % BEATS_KEPT].number != m->number)
        return;
    c->answered = true;
    heard(c, c->beats[m->number % BEATS_KEPT].at);
    if (stale(c, now))
        return;
    for (size_t i = 0; i < c->n_held; i++)
        on_form(c, c->held[i], out);
    held_drop(c);
}

static void on_revoke(struct agent_core *c, const Titan__Internal__RevokeEpoch *m, int64_t now,
                      struct agent_actions *out)
{
    const struct ajob *j = agent_job_of(c, m->job_id, false);
    if (j && m->epoch < agent_job_accepted(j))
        agent_fenced_epoch(c, "revoke", m->job_id, m->epoch, agent_job_accepted(j), out);
    else
        agent_tell_revoke(c, m->job_id, m->epoch, now, out);
}

static void on_pause(struct agent_core *c, Titan__Internal__PauseJob *m, struct agent_actions *out)
{
    const struct ajob *j = agent_job_of(c, m->job_id, false);
    if (j && m->epoch < agent_job_accepted(j)) {
        agent_fenced_epoch(c, "pause", m->job_id, m->epoch, agent_job_accepted(j), out);
        return;
    }
    worker_order order = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    order.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_PAUSE;
    order.pause = m;
    tell_job(c, m->job_id, &order, out);
}

static void on_stop(struct agent_core *c, const Titan__Internal__StopWorkers *m, struct agent_actions *out)
{
    for (size_t i = 0; i < m->n_worker_ids; i++)
        (void)say_ended(c, m->worker_ids[i], out);
    for (struct aworker *w = c->workers; w; w = w->next) {
        bool named = m->n_worker_ids == 0;
        for (size_t i = 0; i < m->n_worker_ids && !named; i++)
            named = m->worker_ids[i] == w->id;
        if (w->job_id == m->job_id && named)
            stop_worker(w, m->grace_ms, m->must_checkpoint, m->reason, END_ASKED, out);
    }
}

static void on_committed(struct agent_core *c, const Titan__Internal__CheckpointCommitted *m, struct agent_actions *out)
{
    Titan__Internal__CheckpointCommitted committed = TITAN__INTERNAL__CHECKPOINT_COMMITTED__INIT;
    worker_order order = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    committed.job_id = m->job_id;
    committed.step = m->step;
    order.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_CHECKPOINT_COMMITTED;
    order.checkpoint_committed = &committed;
    tell_job(c, m->job_id, &order, out);
}

void agent_core_coordinator(struct agent_core *c, const coordinator_message *m, int64_t now, struct agent_actions *out)
{
    struct titan_error why;
    if (!c->up || c->ending)
        return;
    if (!agent_fence_range(c, &m->base, &why)) {
        char *text = agent_action_text(out, "the coordinator says what cannot be: %s", why.msg);
        agent_say(out, AGENT_WARN, "fenced", "reason=\"%s\"", text);
        agent_action_add(out, AGENT_END_SESSION)->text = text;
        c->ending = true;
        return;
    }
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_WELCOME) {
        on_welcome(c, m->welcome, now, out);
        return;
    }
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_TELL_EPOCHS) {
        on_tell_epochs(c, m->term, m->tell_epochs->restored_term, now, out);
        return;
    }
    /* Unsaid, it is that of the session's welcome. */
    if (!c->welcomed || !agent_fence_term(c, m->term ? m->term : c->session_term, NULL, out))
        return;
    switch (m->kind_case) {
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_START:
        on_start(c, m->start, out);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_FORM:
        if (stale(c, now))
            hold(c, m->form, now);
        else
            on_form(c, m->form, out);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_REVOKE:
        on_revoke(c, m->revoke, now, out);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PAUSE:
        on_pause(c, m->pause, out);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_STOP:
        on_stop(c, m->stop, out);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_BEAT_ANSWER:
        on_beat_answer(c, m->beat_answer, now, out);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PROBE:
        agent_probe_start(c, m->probe, now, out);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECKPOINT_COMMITTED:
        on_committed(c, m->checkpoint_committed, out);
        if (m->checkpoint_committed->n_expired_paths)
            agent_action_add(out, AGENT_ORDER)->order = agent_action_copy(out, &m->base);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_LOG:
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECK:
        agent_action_add(out, AGENT_ORDER)->order = agent_action_copy(out, &m->base);
        break;
    default: /* of a newer coordinator */
        break;
    }
}

/* --- from workers ---------------------------------------------------------------------------------------------------
 */

void agent_core_started(struct agent_core *c, uint64_t worker_id, int64_t pid, int64_t now, struct agent_actions *out)
{
    struct aworker *w = agent_worker_of(c, worker_id);
    if (!w)
        return;
    Titan__Internal__WorkerStarted started = TITAN__INTERNAL__WORKER_STARTED__INIT;
    started.job_id = w->job_id;
    started.worker_id = worker_id;
    started.pid = pid;
    MESSAGE(m, WORKER_STARTED, worker_started, &started);
    agent_report(c, &m, now, out);
}

/* What it says cannot be: it is out of its mind, and its job goes on without it. */
static void end_faulty(struct aworker *w, const char *what, struct agent_actions *out)
{
    if (w->fault)
        return;
    w->fault = copy_text(what);
    agent_say(out, AGENT_WARN, "a worker breaks the protocol, killing it",
              "job=%" PRIu64 " worker=%" PRIu64 " reason=\"%s\"", w->job_id, w->id, what);
    stop_worker(w, 0, false, "it breaks the protocol", END_BY_ITSELF, out);
}

void agent_core_connected(struct agent_core *c, const Titan__Internal__WorkerHello *hello, int64_t now,
                          struct agent_actions *out)
{
    (void)now;
    struct aworker *w = agent_worker_of(c, hello->worker_id);
    struct titan_error why;
    if (!w)
        return;
    if (!agent_fence_range(c, &hello->base, &why)) {
        end_faulty(w, why.msg, out);
        return;
    }
    w->rank = hello->rank;
    w->told_epoch = MAX(w->told_epoch, hello->epoch);
    (void)snprintf(w->address, sizeof(w->address), "%s", hello->address);
}

/* All members of that epoch have had their state, a worker here shows. */
static void note_complete(struct agent_core *c, uint64_t job_id, uint64_t epoch)
{
    struct ajob *j = agent_job_of(c, job_id, false);
    if (j && epoch && epoch == agent_job_accepted(j))
        j->complete = true;
}

static void on_quiesced(struct agent_core *c, struct aworker *w, const Titan__Internal__WorkerQuiesced *m, int64_t now,
                        struct agent_actions *out)
{
    if (w->quiesced)
        titan__internal__worker_quiesced__free_unpacked(w->quiesced, NULL);
    w->quiesced = agent_message_copy(&m->base);
    if (!agent_in_epoch(w, w->revoked_epoch))
        w->revoked_epoch = 0;
    note_complete(c, w->job_id, m->sealed_epoch);
    agent_delegate_quiesced(c, m, now, out);
}

static void on_checkpoint(struct agent_core *c, const Titan__Internal__CheckpointWritten *m)
{
    struct ajob *j = agent_job_of(c, m->job_id, true);
    if (j->checkpoint && m->step <= j->checkpoint_step)
        return;
    free(j->checkpoint);
    j->checkpoint = copy_text(m->path);
    j->checkpoint_step = m->step;
}

/* A worker speaks for itself only. */
#define OWN(w, part) ((part)->job_id == (w)->job_id && (part)->worker_id == (w)->id)

#define PASS(KIND, field, part)                                                                                        \
    own = OWN(w, part);                                                                                                \
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_##KIND;                                                         \
    m.field = (part)

/* What a worker says to the coordinator, as it is passed on. false: it is not its own to say. */
static bool pass_on(const struct aworker *w, const Titan__Internal__WorkerToAgent *in, agent_message *out_message)
{
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    bool own = true;
    switch (in->kind_case) {
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_READY:
        PASS(WORKER_READY, worker_ready, in->ready);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_QUIESCED:
        PASS(WORKER_QUIESCED, worker_quiesced, in->quiesced);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_PROGRESS:
        PASS(PROGRESS, progress, in->progress);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_CHECKPOINT:
        PASS(CHECKPOINT, checkpoint, in->checkpoint);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_CHECKPOINT_FAILED:
        PASS(CHECKPOINT_FAILED, checkpoint_failed, in->checkpoint_failed);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_FINISHED:
        PASS(FINISHED, finished, in->finished);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_STATE_READY:
        PASS(STATE_READY, state_ready, in->state_ready);
        break;
    default:
        break;
    }
    *out_message = m;
    return own;
}

void agent_core_worker(struct agent_core *c, uint64_t worker_id, const Titan__Internal__WorkerToAgent *in, int64_t now,
                       struct agent_actions *out)
{
    struct aworker *w = agent_worker_of(c, worker_id);
    struct titan_error why;
    agent_message m;
    if (!w || w->fault)
        return;
    if (!agent_fence_range(c, &in->base, &why)) {
        end_faulty(w, why.msg, out);
        return;
    }
    if (!pass_on(w, in, &m)) {
        c->counters.imposters++;
        if (!w->imposter) /* once */
            agent_say(out, AGENT_WARN, "worker spoke for another one, not passed on", "worker=%" PRIu64, w->id);
        w->imposter = true;
        return;
    }
    switch (in->kind_case) {
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_READY:
        (void)snprintf(w->address, sizeof(w->address), "%s", in->ready->address);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_QUIESCED:
        on_quiesced(c, w, in->quiesced, now, out);
        if (c->draining && c->quiet)
            return; /* no change of membership: the coordinator hears of the last checkpoint and nothing else */
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_PROGRESS:
        in->progress->busy_ms = w->pace.busy_ms;
        agent_send(c, &m, out);
        return;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_FINISHED:
        agent_job_of(c, w->job_id, true)->finished = true;
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_STATE_READY:
        note_complete(c, w->job_id, in->state_ready->epoch);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_CHECKPOINT:
        on_checkpoint(c, in->checkpoint);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_CHECKPOINT_FAILED: /* not kept for a coordinator that is away */
        agent_send(c, &m, out);
        return;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_FAILING: /* its page says it again when it has exited */
        agent_say(out, AGENT_WARN, "worker fails", "job=%" PRIu64 " worker=%" PRIu64 " reason=\"%s\"", w->job_id, w->id,
                  in->failing->reason);
        return;
    default:
        break;
    }
    if (m.kind_case != TITAN__INTERNAL__AGENT_MESSAGE__KIND__NOT_SET)
        agent_report(c, &m, now, out);
}

static Titan__Internal__ExitCause exit_cause(const struct aworker *w, const struct agent_exit *how, bool started)
{
    if (how->node_short)
        return TITAN__INTERNAL__EXIT_CAUSE__CAUSE_NODE_SHORT;
    if (!started)
        return TITAN__INTERNAL__EXIT_CAUSE__CAUSE_NOT_STARTED;
    if (how->out_of_memory)
        return TITAN__INTERNAL__EXIT_CAUSE__CAUSE_OUT_OF_MEMORY;
    if (w->end == END_HUNG)
        return TITAN__INTERNAL__EXIT_CAUSE__CAUSE_HANG;
    if (w->fault)
        return TITAN__INTERNAL__EXIT_CAUSE__CAUSE_FAULTY;
    if (w->end == END_ASKED)
        return TITAN__INTERNAL__EXIT_CAUSE__CAUSE_STOPPED;
    if (how->code == 0)
        return TITAN__INTERNAL__EXIT_CAUSE__CAUSE_NONE;
    return how->code > 0 ? TITAN__INTERNAL__EXIT_CAUSE__CAUSE_EXIT : TITAN__INTERNAL__EXIT_CAUSE__CAUSE_SIGNAL;
}

/* For an order to start it that is on its way again. */
static void ended_add(struct agent_core *c, const struct aworker *w, const agent_message *report)
{
    size_t at = c->n_ended++ % ENDED_KEPT;
    if (c->n_ended > ENDED_KEPT)
        titan__internal__agent_message__free_unpacked(c->ended[at].report, NULL);
    c->ended[at].job_id = w->job_id;
    c->ended[at].worker_id = w->id;
    c->ended[at].report = agent_message_copy(&report->base);
}

static bool job_idle(const struct agent_core *c, const struct ajob *j)
{
    for (const struct aworker *w = c->workers; w; w = w->next)
        if (w->job_id == j->id)
            return false;
    return j->record->n_delegated == 0; /* which a coordinator has to hear of */
}

static void jobs_trim(struct agent_core *c, struct agent_actions *out)
{
    size_t n = 0;
    struct ajob **oldest = NULL;
    for (struct ajob **at = &c->jobs; *at; at = &(*at)->next) {
        if (!job_idle(c, *at))
            continue;
        n++;
        if (!oldest || (*at)->id < (*oldest)->id)
            oldest = at;
    }
    if (n <= JOBS_KEPT)
        return;
    struct ajob *j = *oldest;
    *oldest = j->next;
    agent_action_add(out, AGENT_FORGET_JOB)->job_id = j->id;
    job_free(j);
}

void agent_core_exited(struct agent_core *c, uint64_t worker_id, const struct agent_exit *how, int64_t now,
                       struct agent_actions *out)
{
    struct aworker **at = &c->workers;
    while (*at && (*at)->id != worker_id)
        at = &(*at)->next;
    struct aworker *w = *at;
    if (!w)
        return;
    *at = w->next;
    Titan__Internal__WorkerExited exited = TITAN__INTERNAL__WORKER_EXITED__INIT;
    const char *reason = how->reason ? how->reason : "";
    bool hung = w->end == END_HUNG && !*reason;
    exited.job_id = w->job_id;
    exited.worker_id = worker_id;
    exited.exit_code = how->signal ? -1 : MIN(MAX(how->code, -1), 255);
    exited.signal = MIN(MAX(how->signal, 0), SIGNALS_MAX);
    exited.reason = w->fault ? agent_action_text(out, "it broke the protocol: %s", w->fault)
                    : hung   ? agent_action_text(out, "did not leave epoch %" PRIu64 " in time", w->revoked_epoch)
                             : agent_action_text(out, "%s", reason);
    range_fit_text(exited.reason, strlen(exited.reason) + 1);
    exited.last_step = MIN(how->last_step, RANGE_STEP_MAX);
    exited.cause = exit_cause(w, how, !how->not_started);
    MESSAGE(m, WORKER_EXITED, worker_exited, &exited);
    ended_add(c, w, &m);
    if (!c->draining || !c->quiet)
        agent_report(c, &m, now, out);
    worker_free(w);
    jobs_trim(c, out);
}

/* --- the watch ------------------------------------------------------------------------------------------------------
 */

bool agent_core_watches(const struct agent_core *c)
{
    return c->workers != NULL;
}

static void stalled(struct agent_core *c, const struct aworker *w, bool stopped, uint32_t ms, struct agent_actions *out)
{
    Titan__Internal__WorkerStalled s = TITAN__INTERNAL__WORKER_STALLED__INIT;
    s.job_id = w->job_id;
    s.worker_id = w->id;
    s.epoch = w->sample.epoch;
    s.step = w->sample.step;
    s.actions = w->sample.actions;
    s.for_ms = ms;
    s.stopped = stopped;
    c->counters.stalls++;
    agent_say(out, AGENT_WARN, stopped ? "worker is stopped" : "worker hangs",
              "job=%" PRIu64 " worker=%" PRIu64 " step=%" PRIu64 " for_ms=%u", w->job_id, w->id, s.step, ms);
    MESSAGE(m, STALLED, stalled, &s);
    agent_send(c, &m, out);
}

/* Lower median of the last windows of a job's workers here; 0 with fewer than two. */
static double pace_median(const struct agent_core *c, uint64_t job_id, uint64_t epoch)
{
    size_t n = 0, all = agent_alive(c);
    _cleanup_free_ double *values = calloc(all + 1, sizeof(*values));
    titan_assert(values);
    for (const struct aworker *w = c->workers; w; w = w->next) {
        if (w->job_id != job_id || w->pace.epoch != epoch || w->pace.busy_ms <= 0)
            continue;
        size_t i = n++;
        for (; i > 0 && values[i - 1] > w->pace.busy_ms; i--)
            values[i] = values[i - 1];
        values[i] = w->pace.busy_ms;
    }
    return n < 2 ? 0 : values[(n - 1) / 2];
}

/* Own time per step over windows of some steps, and whether the others of its job here need much less. */
static void follow_pace(struct agent_core *c, struct aworker *w, int64_t now, struct agent_actions *out)
{
    const struct agent_sample *s = &w->sample;
    if (s->epoch != w->pace.epoch || s->step < w->pace.step || s->busy_ns < w->pace.busy_ns) {
        w->pace.epoch = s->epoch;
        w->pace.step = s->step;
        w->pace.busy_ns = s->busy_ns;
        w->pace.at = now;
        w->pace.busy_ms = 0;
        w->pace.straggles = false;
        return;
    }
    uint64_t steps = s->step - w->pace.step;
    if (steps < STRAGGLER_STEPS || now - w->pace.at < STRAGGLER_MS)
        return;
    w->pace.busy_ms = (double)(s->busy_ns - w->pace.busy_ns) / 1e6 / (double)steps;
    w->pace.step = s->step;
    w->pace.busy_ns = s->busy_ns;
    w->pace.at = now;
    double median = pace_median(c, w->job_id, s->epoch);
    bool before = w->pace.straggles;
    w->pace.straggles = median > 0 && w->pace.busy_ms > STRAGGLER_RATIO * median;
    if (!w->pace.straggles || before)
        return;
    Titan__Internal__WorkerStraggles m = TITAN__INTERNAL__WORKER_STRAGGLES__INIT;
    m.job_id = w->job_id;
    m.worker_id = w->id;
    m.epoch = s->epoch;
    m.busy_ms = w->pace.busy_ms;
    m.median_ms = median;
    m.steps = (uint32_t)steps;
    MESSAGE(message, STRAGGLES, straggles, &m);
    agent_send(c, &message, out);
}

void agent_core_sample(struct agent_core *c, uint64_t worker_id, const struct agent_sample *sample, int64_t now,
                       struct agent_actions *out)
{
    struct aworker *w = agent_worker_of(c, worker_id);
    if (!w)
        return;
    const struct watch_limits limits = {c->options.hang_floor_ms, c->options.hang_unknown_ms};
    uint32_t ms = 0;
    if (!sample_can_be(sample)) {
        c->counters.out_of_range += !w->fault;
        end_faulty(w,
                   agent_action_text(out, "its page has epoch %" PRIu64 ", step %" PRIu64 ", phase %u", sample->epoch,
                                     sample->step, sample->phase),
                   out);
        return;
    }
    w->sample = *sample;
    bool out_of_it = sample->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_IDLE ||
                     sample->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED;
    if (w->quiesced && !out_of_it && sample->epoch > w->quiesced->epoch) {
        titan__internal__worker_quiesced__free_unpacked(w->quiesced, NULL);
        w->quiesced = NULL;
    }
    if (sample->epoch > w->revoked_epoch)
        w->revoked_epoch = 0;
    if (sample->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING)
        note_complete(c, w->job_id, sample->epoch);
    if (sample->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_DONE)
        agent_job_of(c, w->job_id, true)->finished = true;
    enum watch_verdict verdict = watch_sample(&w->watch, sample, &limits, now, &ms);
    if (verdict != WATCH_WELL && !w->killed)
        stalled(c, w, verdict == WATCH_STOPPED, ms, out);
    follow_pace(c, w, now, out);
}

/* When a revoked worker's time is up: a second, or as long as one of its actions may take; one that moves gets more,
 * but not without end. */
static int64_t revoke_due(const struct agent_core *c, const struct aworker *w)
{
    const struct watch_limits limits = {c->options.hang_floor_ms, c->options.hang_unknown_ms};
    uint64_t patience = w->watch.steps.total >= TAIL_TRUSTED ? watch_patience(&w->watch, &limits) : 0;
    int64_t wait = (int64_t)MAX(patience, (uint64_t)c->options.revoke_ms);
    int64_t from = w->watch.seen ? MAX(w->revoked_at, w->watch.moved_at) : w->revoked_at;
    return MIN(from + wait, w->revoked_at + REVOKE_LIMIT_MS);
}

static void kill_overdue(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    for (struct aworker *w = c->workers; w; w = w->next) {
        if (!w->revoked_epoch || w->killed || now < revoke_due(c, w))
            continue;
        agent_say(out, AGENT_WARN, "worker does not leave its epoch, killing it",
                  "job=%" PRIu64 " worker=%" PRIu64 " epoch=%" PRIu64 " after_ms=%" PRId64, w->job_id, w->id,
                  w->revoked_epoch, now - w->revoked_at);
        c->counters.kills++;
        w->end = END_HUNG;
        stop_worker(w, 0, false, "does not leave a revoked epoch", END_HUNG, out);
    }
}

/* --- time -----------------------------------------------------------------------------------------------------------
 */

/* Beats go out and nothing comes back: whatever holds this session, a new one may do better. */
static void end_deaf_session(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    if (!c->welcomed || !c->answered || c->ending || now - c->contact_at < DEAF_MS)
        return;
    c->ending = true;
    agent_action_add(out, AGENT_END_SESSION)->text = "the coordinator does not answer beats";
}

void agent_core_tick(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    c->ticked_at = now;
    if (beats(c, now) && now >= c->next_beat_at) {
        reports_expire(c, now);
        beat(c, now, out);
        end_deaf_session(c, now, out);
    }
    kill_overdue(c, now, out);
    agent_probes_tick(c, now, out);
    agent_delegate_tick(c, now, out);
}

int64_t agent_core_deadline(const struct agent_core *c)
{
    int64_t due = agent_probes_deadline(c);
    if (beats(c, c->ticked_at))
        due = MIN(due, c->next_beat_at);
    for (const struct aworker *w = c->workers; w; w = w->next)
        if (w->revoked_epoch && !w->killed)
            due = MIN(due, revoke_due(c, w));
    return MIN(due, agent_delegate_deadline(c));
}

void agent_core_leave(struct agent_core *c, uint32_t deadline_ms, int64_t now, struct agent_actions *out)
{
    c->leave_at = now + deadline_ms;
    say_leaves(c, now, out);
}

void agent_core_drain(struct agent_core *c, bool quiet)
{
    c->draining = true;
    c->quiet = quiet;
    for (struct aworker *w = c->workers; w; w = w->next)
        if (w->end == END_BY_ITSELF)
            w->end = END_ASKED;
}

/* --- what can be asked ----------------------------------------------------------------------------------------------
 */

uint64_t agent_core_term(const struct agent_core *c)
{
    return c->seen.term;
}

bool agent_core_welcome(const struct agent_core *c)
{
    return c->welcomed && !c->ending;
}

uint64_t agent_core_epoch(const struct agent_core *c, uint64_t job_id)
{
    const struct ajob *j = agent_job_of((struct agent_core *)c, job_id, false);
    return j ? agent_job_accepted(j) : 0;
}

const struct agent_counters *agent_core_counters(const struct agent_core *c)
{
    return &c->counters;
}
