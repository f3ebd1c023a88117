/* SPDX-License-Identifier: Apache-2.0 */
/* waits.c - hazards between streams.
 *
 * shadow.h finds the actions that must come before an action. Each stream has a clock: for every other stream, the last
 * action that is known to be over. After a wait, a stream also knows all that was known to the stream of the signalling
 * action. So most hazards are already ordered when they are found. */
#include "worker/program/waits.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/vec.h"
#include "worker/program/shadow.h"

#define NONE (-1)

struct clock {
    int done[STREAM_COUNT]; /* last action of each stream that is over */
};

struct hazards {
    struct program *p;
    struct shadow shadow;
    struct clock need; /* actions that must be over before the current action */
    struct clock now[STREAM_COUNT];
    int version[STREAM_COUNT]; /* index in `clocks` of each stream's `now` */
    struct clock *clocks;
    int n_clocks, cap_clocks;
    int *at; /* per action: index in `clocks` of the clock that its stream had when the action was issued */
};

static void hazards_free(struct hazards *h)
{
    shadow_free(&h->shadow);
    free(h->clocks);
    free(h->at);
}

static void must_follow(void *arg, int earlier)
{
    struct hazards *h = arg;
    int *done = &h->need.done[h->p->actions[earlier].stream];
    titan_assert(earlier >= 0 && earlier < h->p->n_actions);
    *done = MAX(*done, earlier);
}

titan_status waits_derive(struct program *p, struct titan_error *err)
{
    _cleanup_(hazards_free) struct hazards h = {.p = p};

    h.at = malloc(((size_t)p->n_actions + 1) * sizeof *h.at);
    memset(h.now, 0xff, sizeof h.now);
    if (!shadow_init(&h.shadow, p) || !h.at || !VEC_PUSH(h.clocks, h.n_clocks, h.cap_clocks, h.now[0]))
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    p->n_waits = 0;
    for (int i = 0; i < p->n_actions; i++)
        p->actions[i].signal = false;
    for (int i = 0; i < p->n_actions; i++) {
        struct action *a = &p->actions[i];
        const struct operand *o = action_operands(p, a);
        struct clock *now = &h.now[a->stream];

        memset(&h.need, 0xff, sizeof h.need); /* NONE everywhere */
        for (int k = 0; k < a->n_operands && a->op != OP_RELEASE; k++)
            if (!shadow_touch(&h.shadow, i, &o[k], must_follow, &h))
                return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
        h.need.done[a->stream] = NONE;

        a->wait = p->n_waits;
        for (;;) {
            int latest = NONE; /* a wait for the latest needed action is likely to cover the others */
            for (int s = 0; s < STREAM_COUNT; s++)
                if (h.need.done[s] > now->done[s])
                    latest = MAX(latest, h.need.done[s]);
            if (latest == NONE)
                break;
            struct action *const other = &p->actions[latest];
            titan_assert(other->stream != a->stream);
            if (!VEC_PUSH(p->waits, p->n_waits, p->cap_waits, latest))
                return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
            other->signal = true;
            for (int s = 0; s < STREAM_COUNT; s++)
                now->done[s] = MAX(now->done[s], h.clocks[h.at[latest]].done[s]);
            now->done[other->stream] = MAX(now->done[other->stream], latest);
        }
        a->n_waits = p->n_waits - a->wait;
        if (a->n_waits > 0) {
            h.version[a->stream] = h.n_clocks;
            if (!VEC_PUSH(h.clocks, h.n_clocks, h.cap_clocks, *now))
                return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
        }
        titan_assert(h.version[a->stream] < h.n_clocks);
        h.at[i] = h.version[a->stream];
    }
    return TITAN_OK;
}
