/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's part of the membership: what its agent may say, the connection, the time, and what its training thread
 * asks and reports meanwhile. What it says itself is what an agent takes. */
#include "tests/fuzz/message.h"

#include "proto/ranges.h"
#include "worker/elastic/member.h"

static const char *const texts[] = {"here", "b", "", "127.0.0.1:7", "127.0.0.1:8", "/c/step-00000005", NULL};

struct host {
    bool ended;
    uint64_t revoked;
    struct member *member;
};

static void say(void *arg, const Titan__Internal__WorkerToAgent *message)
{
    struct titan_error err = {0};
    const struct host *h = arg;
    fuzz_assert(!h->member || member_state(h->member)->connected);
    if (range_check(&message->base, &err) != TITAN_OK) {
        fprintf(stderr, "%s\n", err.msg);
        fuzz_assert(!"a worker says what its agent would end it for");
    }
}

static void on_revoke(void *arg, uint64_t epoch)
{
    struct host *h = arg;
    fuzz_assert(epoch >= h->revoked);
    h->revoked = epoch;
}

static void end(void *arg, enum member_end why, const char *words)
{
    struct host *h = arg;
    fuzz_assert(!h->ended && *words && (why == MEMBER_END_LEASE || why == MEMBER_END_UNQUIESCED));
    h->ended = true;
}

static void enter(struct member *m)
{
    struct epoch_view view;
    if (member_next(m, &view) != MEMBER_FORM)
        return;
    const int all = view.world + view.departing;
    fuzz_assert(view.world > 0 && view.rank >= 0 && view.rank < all && view.epoch > 0);
    for (int i = 0; i < all; i++)
        fuzz_assert(view.addresses[i]);
    for (int i = 0; i < view.holders; i++)
        fuzz_assert(view.holder_ranks[i] >= -1 && view.holder_ranks[i] < all);
    for (int i = 0; i < view.n_older; i++)
        fuzz_assert(view.older_checkpoints[i]);
}

/* As the training thread would: of the epoch it is in, steps that go up. */
static void train(struct member *m, struct fuzz_input *in, uint8_t what)
{
    const struct member_state *s = member_state(m);
    const uint64_t step = s->step + fuzz_take(in, 1) % 4;
    const struct quiesced q = {.epoch = s->epoch,
                               .last_step = step,
                               .paused = what & 8,
                               .prepared = what & 16,
                               .installed_epoch = what & 32 ? s->epoch : 0};
    const struct state_ready ready = {.epoch = s->epoch, .step = step, .damaged_checkpoint = ""};
    const struct step_report report = {.epoch = s->epoch, .step = step, .loss = 1, .step_ms = 1, .world = 1};
    if (what % 8 < 3) {
        enter(m);
        return;
    }
    if (!s->in)
        return;
    switch (what % 8) {
    case 3:
        member_quiesced(m, &q);
        break;
    case 4:
        member_state_ready(m, &ready);
        break;
    case 5:
        member_progress(m, &report, 1);
        if (what & 32 && step > 0)
            member_evaluated(m, &(struct evaluation_report){.step = step, .tokens = 1, .loss = 1});
        break;
    case 6:
        if (step > 0) /* an order is heard in a step, so it is done after one */
            member_checkpoint_written(
                m, &(struct checkpoint_report){.step = step, .bytes = 10, .path = texts[5], .world = 1});
        break;
    default:
        if (what & 64)
            member_finished(m, step);
        else
            member_checkpoint_failed(m, step, texts[5], "x", what & 32);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct host h = {0};
    int64_t now = 1000;
    uint64_t actions = 0;
    const struct member_host host = {.arg = &h, .send = say, .revoke = on_revoke, .end = end};
    const struct member_options o = {.job_id = 1, .worker_id = 1, .pid = 7, .address = "127.0.0.1:7"};
    h.member = member_open(&o, &host, now);
    fuzz_assert(h.member);
    member_connected(h.member, now);
    member_opened(h.member);
    for (int i = 0; in.len > 0 && i < 96 && !h.ended; i++) {
        const uint8_t what = (uint8_t)fuzz_take(&in, 1);
        if (what < 150) {
            ProtobufCMessage *m = fuzz_message(&in, &titan__internal__agent_to_worker__descriptor, texts, what);
            Titan__Internal__AgentToWorker *order = (Titan__Internal__AgentToWorker *)m;
            order->term %= 4;
            /* agent_connection.c does not hand on what cannot be. */
            if (range_check(m, NULL) == TITAN_OK && member_state(h.member)->connected)
                (void)member_hear(h.member, order, now);
            protobuf_c_message_free_unpacked(m, NULL);
        } else if (what < 160) {
            member_disconnected(h.member);
        } else if (what < 170) {
            if (!member_state(h.member)->connected)
                member_connected(h.member, now);
        } else if (what < 230) {
            train(h.member, &in, what);
        } else {
            now += (int64_t)fuzz_take(&in, 2);
            actions += what & 1;
            member_tick(h.member, now, actions);
        }
        (void)member_commands(h.member);
        (void)member_deadline(h.member);
    }
    member_close(h.member);
    return 0;
}
