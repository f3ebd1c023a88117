/* SPDX-License-Identifier: Apache-2.0 */
/* An agent's core with a worker of a job: what its coordinator, its workers and the agents of others may say, in any
 * order; records that it wants kept are read back by the next one. Agents of an epoch with a key prove what they say:
 * that is made here with the key, so that what is behind the proof is reached. */
#include "tests/fuzz/message.h"

#include "daemon/agent/agent_core.h"

enum { EPOCH = 5, TERM = 3, PEERS = 2, OP_LEAVES = 251, OP_WRONG, OP_PROVED, OP_KEYED, OP_DIES };

static const char *const texts[] = {"here", "evil", "b", "", "127.0.0.1:7", "127.0.0.1:8", "cpu", "/c/step-00000005",
                                    NULL};
static const char *const peers[PEERS] = {"b", "c"}; /* at texts[4] and texts[5] */
static int64_t now;
static bool session; /* up: it comes and goes in turn */
/* What it has said last to peers: ids to answer, numbers to speak of. */
static struct {
    uint64_t asked[PEERS], proposal, proposed, promised;
} reported;

static struct agent_core *up(uint64_t seed)
{
    struct titan_error err = {0};
    struct agent_core *c = NULL;
    const struct agent_core_options options = {.node = "here",
                                               .device = "cpu",
                                               .address = "10.0.0.1",
                                               .version = "1",
                                               .slots = 4,
                                               .incarnation = 5,
                                               .seed = seed,
                                               .peer_port = 7,
                                               .coordinator = "127.0.0.1:9",
                                               .leader_lease_ms = 20000,
                                               .away_ms = 500};
    fuzz_assert(agent_core_new(&options, &c, &err) == TITAN_OK);
    return c;
}

static void note_peer(const char *to, const Titan__Internal__PeerMessage *m)
{
    fuzz_assert(m->proof.len % MAC_BYTES == 0 && !strcmp(m->from, "here"));
    if (m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_ASK)
        reported.asked[!strcmp(to, texts[5])] = m->id;
    if (m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_PROPOSE) {
        reported.proposal = m->id;
        reported.proposed = m->propose->epoch;
    }
    if (m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_PROMISE && m->promise->granted)
        reported.promised = m->promise->epoch;
}

/* What is to be done is done: records are kept for the next agent, workers that are started run. */
static void act(struct agent_core *c, struct agent_actions *out, Titan__Internal__AgentJobRecord **kept)
{
    struct agent_actions later;
    uint64_t started[8];
    int n = 0;
    for (const struct agent_action *a = out->first; a; a = a->next) {
        if (a->kind == AGENT_RECORD_JOB) {
            size_t len = titan__internal__agent_job_record__get_packed_size(a->record);
            uint8_t *bytes = malloc(len + 1);
            fuzz_assert(bytes && titan__internal__agent_job_record__pack(a->record, bytes) == len);
            if (*kept)
                titan__internal__agent_job_record__free_unpacked(*kept, NULL);
            *kept = titan__internal__agent_job_record__unpack(NULL, len, bytes);
            fuzz_assert(*kept);
            free(bytes);
        } else if (a->kind == AGENT_START_WORKER && n < 8) {
            started[n++] = a->start->worker_ids[0];
        } else if (a->kind == AGENT_PEER) {
            note_peer(a->text, a->peer);
        }
    }
    agent_actions_free(out);
    for (int i = 0; i < n; i++) {
        agent_actions_init(&later);
        agent_core_started(c, started[i], 4711, now, &later);
        agent_actions_free(&later);
    }
}

static void hear(struct agent_core *c, struct fuzz_input *in, uint8_t what, struct agent_actions *out)
{
    const ProtobufCMessageDescriptor *const types[] = {
        &titan__internal__coordinator_message__descriptor, &titan__internal__worker_to_agent__descriptor,
        &titan__internal__peer_message__descriptor, &titan__internal__worker_registration__descriptor};
    int type = what % 4;
    ProtobufCMessage *m = fuzz_message(in, types[type], texts, type == 3 ? -1 : what / 4);
    if (type == 0) {
        ((Titan__Internal__CoordinatorMessage *)m)->term %= 4;
        agent_core_coordinator(c, (Titan__Internal__CoordinatorMessage *)m, now, out);
    } else if (type == 1) {
        agent_core_worker(c, 1 + what / 4 % 4, (Titan__Internal__WorkerToAgent *)m, now, out);
    } else if (type == 2) {
        ((Titan__Internal__PeerMessage *)m)->term %= 4;
        agent_core_peer(c, (Titan__Internal__PeerMessage *)m, texts[4 + what / 4 % 2], now, out);
    } else {
        agent_core_connected(c, (Titan__Internal__WorkerRegistration *)m, now, out);
    }
    protobuf_c_message_free_unpacked(m, NULL);
}

static void pass(struct agent_core *c, struct fuzz_input *in, uint8_t what, struct agent_actions *out)
{
    const struct agent_exit how = {.code = (int)fuzz_take(in, 1) - 2, .reason = "x", .last_step = fuzz_take(in, 1)};
    const struct agent_sample sample = {.epoch = fuzz_take(in, 1),
                                        .step = fuzz_take(in, 1),
                                        .actions = fuzz_take(in, 2),
                                        .phase = (uint32_t)fuzz_take(in, 1) % 6,
                                        .process_state = "RSTDZ"[fuzz_take(in, 1) % 5]};
    switch (what % 6) {
    case 0:
        if (!session)
            agent_core_session_up(c, now, out);
        session = true;
        break;
    case 1:
        if (session)
            agent_core_session_down(c, now, out);
        session = false;
        break;
    case 2:
        agent_core_exited(c, 1 + what / 6 % 4, &how, now, out);
        break;
    case 3:
        agent_core_sample(c, 1 + what / 6 % 4, &sample, now, out);
        break;
    case 4:
        agent_core_drain(c, what & 16);
        break;
    default:
        now += (int64_t)fuzz_take(in, 2);
        agent_core_tick(c, now, out);
    }
}

/* --- an epoch with a key ------------------------------------------------------------------------------------------ */

static void say(struct agent_core *c, Titan__Internal__CoordinatorMessage *m, struct agent_actions *out,
                Titan__Internal__AgentJobRecord **kept)
{
    m->term = TERM;
    agent_core_coordinator(c, m, now, out);
    act(c, out, kept);
    agent_actions_init(out);
}
#define SAY(KIND, member, body)                                                                                        \
    do {                                                                                                               \
        Titan__Internal__CoordinatorMessage m_ = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;                           \
        m_.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_##KIND;                                              \
        m_.member = &(body);                                                                                           \
        say(c, &m_, out, kept);                                                                                        \
    } while (0)

/* Workers 1, 2 and 3 on here, b and c train in it, and then the coordinator is away. */
static void keyed_epoch(struct agent_core *c, struct agent_actions *out, Titan__Internal__AgentJobRecord **kept)
{
    static uint8_t key[MAC_BYTES] = "the agents' key of that epoch..", id[16] = "its communicator";
    static const char *const at[] = {"10.0.0.1:7", "127.0.0.1:7", "127.0.0.1:8"};
    Titan__Internal__RegistrationAck ack = TITAN__INTERNAL__REGISTRATION_ACK__INIT;
    Titan__Internal__StartWorkers start = TITAN__INTERNAL__START_WORKERS__INIT;
    Titan__Internal__WorkerRegistration registration = TITAN__INTERNAL__WORKER_REGISTRATION__INIT;
    Titan__Internal__FormEpoch form = TITAN__INTERNAL__FORM_EPOCH__INIT;
    Titan__Internal__Member members[3], *list[3];
    uint64_t worker = 1;
    uint32_t worlds[] = {1, 2, 3};
    if (!session)
        agent_core_session_up(c, now, out);
    session = true;
    ack.leader_lease_ms = 20000;
    ack.away_ms = 500;
    SAY(ACK, ack, ack);
    start.job_id = 1;
    start.worker_ids = &worker;
    start.n_worker_ids = 1;
    SAY(START, start, start);
    registration.job_id = registration.worker_id = 1;
    registration.pid = 4711;
    registration.token = (ProtobufCBinaryData){sizeof(id), id};
    registration.address = (char *)at[0];
    const uint64_t refused = agent_core_counters(c)->out_of_range;
    agent_core_connected(c, &registration, now, out);
    fuzz_assert(agent_core_counters(c)->out_of_range == refused);
    for (size_t i = 0; i < ARRAY_SIZE(members); i++) {
        titan__internal__member__init(&members[i]);
        members[i].worker_id = i + 1;
        members[i].node = (char *)(i ? peers[i - 1] : texts[0]);
        members[i].address = members[i].peer_address = (char *)at[i];
        list[i] = &members[i];
    }
    form.job_id = 1;
    form.epoch = EPOCH;
    form.comm_id = (ProtobufCBinaryData){sizeof(id), id};
    form.key = (ProtobufCBinaryData){sizeof(key), key};
    form.members = list;
    form.n_members = ARRAY_SIZE(list);
    form.worlds = worlds;
    form.n_worlds = ARRAY_SIZE(worlds);
    SAY(FORM, form, form);
    agent_core_session_down(c, now, out);
    session = false;
    now += 600;
    agent_core_tick(c, now, out);
}

static void put_bytes(ProtobufCBinaryData *to, const uint8_t *bytes, size_t len)
{
    free(to->data);
    to->data = malloc(len + 1);
    fuzz_assert(to->data);
    memcpy(to->data, bytes, len);
    to->len = len;
}

static void put_text(char **to, const char *text)
{
    if (*to != (const char *)protobuf_c_empty_string)
        free(*to);
    *to = strdup(text);
    fuzz_assert(*to);
}

static void keep_members(Titan__Internal__Member **list, size_t *n, size_t most)
{
    while (*n > most)
        titan__internal__member__free_unpacked(list[--*n], NULL);
}

/* An epoch of the two that peer has a part in with this node, as far as as many were drawn. */
static void fit_form(Titan__Internal__FormEpoch *form, int peer, uint64_t epoch, uint64_t source)
{
    form->job_id = 1;
    form->epoch = epoch;
    form->source_epoch = source;
    put_bytes(&form->comm_id, (const uint8_t *)"the next of them", 16);
    keep_members(form->members, &form->n_members, 2);
    keep_members(form->departing, &form->n_departing, 0);
    for (size_t i = 0; i < form->n_members; i++)
        form->members[i]->worker_id = i ? (uint64_t)peer + 2 : 1;
}

/* Ids and numbers that fit what was said before; more: also what is said. All else stays as drawn. */
static void fit(Titan__Internal__PeerMessage *m, int peer, bool more, const Titan__Internal__AgentJobRecord *kept)
{
    const uint64_t epoch = kept->accepted->epoch;
    switch (m->kind_case) {
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_STATE:
        m->id = reported.asked[peer];
        m->state->epoch = epoch;
        m->state->coordinator &= !more;
        m->state->finished &= !more;
        for (size_t i = 0; i < m->state->n_alive && more; i++)
            m->state->alive[i] = (uint64_t)peer + 2;
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_PROMISE:
        m->id = reported.proposal;
        m->promise->epoch = reported.proposed;
        m->promise->granted |= more;
        for (size_t i = 0; i < m->promise->n_counts && more; i++)
            m->promise->counts[i] = epoch;
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_QUIESCED:
        m->number = reported.proposed;
        m->quiesced->job_id = 1;
        m->quiesced->worker_id = (uint64_t)peer + 2;
        m->quiesced->epoch = m->quiesced->installed_epoch = epoch;
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_REVOKE:
        m->number = reported.promised;
        m->revoke->job_id = 1;
        m->revoke->epoch = epoch;
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_PROPOSE:
        if (more)
            fit_form(m->propose, peer, epoch + 1024, epoch);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_COMMIT:
        if (more)
            fit_form(m->commit, peer, reported.promised, epoch);
        break;
    default:
        break;
    }
}

/* The worker here has left the epoch, and holds its part. */
static void leaves(struct agent_core *c, struct agent_actions *out, const Titan__Internal__AgentJobRecord *kept)
{
    Titan__Internal__WorkerQuiesced q = TITAN__INTERNAL__WORKER_QUIESCED__INIT;
    Titan__Internal__WorkerToAgent m = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    q.job_id = q.worker_id = 1;
    q.epoch = q.installed_epoch = kept && kept->accepted ? kept->accepted->epoch : EPOCH;
    q.last_step = 1;
    m.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_QUIESCED;
    m.quiesced = &q;
    agent_core_worker(c, 1, &m, now, out);
}

/* A peer's message, proved under the keys of the job's record; wrong: with another bit in its proofs. */
static void hear_peer(struct agent_core *c, struct fuzz_input *in, bool wrong, struct agent_actions *out,
                      const Titan__Internal__AgentJobRecord *kept)
{
    const uint8_t kind = (uint8_t)fuzz_take(in, 1), how = (uint8_t)fuzz_take(in, 1);
    const int peer = how & 1;
    uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES] = {0}, covered[MAC_BYTES] = {how};
    struct proof_keys keys = {0};
    Titan__Internal__PeerMessage *m =
        (Titan__Internal__PeerMessage *)fuzz_message(in, &titan__internal__peer_message__descriptor, texts, kind);
    put_text(&m->from, peers[peer]);
    put_text(&m->to, "here");
    m->job_id = 1;
    m->term = TERM;
    if (kept && kept->job_id == 1 && kept->accepted) {
        proof_add_epoch(&keys, kept->accepted);
        for (size_t i = 0; i < kept->n_before; i++)
            proof_add_epoch(&keys, kept->before[i]);
        if (how & 2)
            fit(m, peer, how & 4, kept);
    }
    if (keys.n && m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_COMMIT && m->commit->comm_id.len == 16) {
        proof_cover(keys.key[0], m->commit, covered);
        put_bytes(&m->covered_key, covered, sizeof(covered));
    }
    free(m->proof.data);
    m->proof = (ProtobufCBinaryData){0};
    proof_make(m, &keys, proofs);
    proofs[0] ^= wrong;
    m->proof.data = NULL;
    put_bytes(&m->proof, proofs, wrong ? MIN(m->proof.len, (size_t)MAC_BYTES) : m->proof.len);
    const uint64_t unproved = agent_core_counters(c)->unproved, ranges = agent_core_counters(c)->out_of_range;
    agent_core_peer(c, m, texts[4 + peer], now, out);
    const bool of_epoch = m->kind_case >= TITAN__INTERNAL__PEER_MESSAGE__KIND_PROPOSE &&
                          m->kind_case <= TITAN__INTERNAL__PEER_MESSAGE__KIND_STATE;
    if (wrong && keys.n && of_epoch) {
        fuzz_assert(agent_core_counters(c)->unproved + agent_core_counters(c)->out_of_range == unproved + ranges + 1);
        for (const struct agent_action *a = out->first; a; a = a->next)
            fuzz_assert(a->kind == AGENT_LOG);
    }
    protobuf_c_message_free_unpacked(&m->base, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    Titan__Internal__AgentJobRecord *kept = NULL;
    struct agent_actions out;
    struct agent_core *c = up(1);
    now = 1000;
    session = false;
    memset(&reported, 0, sizeof(reported));
    agent_actions_init(&out);
    for (int i = 0; in.len > 0 && i < 96; i++) {
        uint8_t what = (uint8_t)fuzz_take(&in, 1);
        agent_actions_init(&out);
        if (what < 200)
            hear(c, &in, what, &out);
        else if (what == OP_KEYED)
            keyed_epoch(c, &out, &kept);
        else if (what == OP_LEAVES)
            leaves(c, &out, kept);
        else if (what == OP_PROVED || what == OP_WRONG)
            hear_peer(c, &in, what == OP_WRONG, &out, kept);
        else
            pass(c, &in, what, &out);
        act(c, &out, &kept);
        (void)agent_core_check(c);
        (void)agent_core_deadline(c);
        if (what == OP_DIES) { /* and the next one begins with what was kept */
            agent_core_free(c);
            c = up(2 + (uint64_t)i);
            session = false;
            agent_core_restore_term(c, &(struct seen_term){.term = 1});
            if (kept)
                agent_core_restore_job(c, kept);
        }
    }
    agent_core_free(c);
    if (kept)
        titan__internal__agent_job_record__free_unpacked(kept, NULL);
    return 0;
}
