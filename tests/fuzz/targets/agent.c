/* SPDX-License-Identifier: Apache-2.0 */
/* An agent's core with a worker of a job: what its coordinator, its workers and the agents of others may say, in any
 * order; records that it wants kept are read back by the next one. */
#include "tests/fuzz/message.h"

#include "daemon/agent/agent_core.h"

static const char *const texts[] = {"here", "evil", "b", "", "127.0.0.1:7", "127.0.0.1:8", "cpu", "/c/step-00000005",
                                    NULL};
static int64_t now;
static bool session; /* up: it comes and goes in turn */

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
                                               .delegate_lease_ms = 20000,
                                               .away_ms = 500};
    fuzz_assert(agent_core_new(&options, &c, &err) == TITAN_OK);
    return c;
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
        &titan__internal__peer_message__descriptor, &titan__internal__worker_hello__descriptor};
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
        agent_core_connected(c, (Titan__Internal__WorkerHello *)m, now, out);
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    Titan__Internal__AgentJobRecord *kept = NULL;
    struct agent_actions out;
    struct agent_core *c = up(1);
    now = 1000;
    session = false;
    agent_actions_init(&out);
    for (int i = 0; in.len > 0 && i < 96; i++) {
        uint8_t what = (uint8_t)fuzz_take(&in, 1);
        agent_actions_init(&out);
        if (what < 200)
            hear(c, &in, what, &out);
        else
            pass(c, &in, what, &out);
        act(c, &out, &kept);
        (void)agent_core_check(c);
        (void)agent_core_deadline(c);
        if (what == 255) { /* it dies, and the next one begins with what was kept */
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
