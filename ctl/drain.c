/* SPDX-License-Identifier: Apache-2.0 */
/* drain.c - titanctl drain, undrain: takes nodes out of service and puts them back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/live_stream.h"
#include "ctl/outcomes.h"
#include "ctl/output.h"
#include "ctl/when.h"

static titan_status duration_option(const struct args *args, const char *option, uint64_t *ret_ms,
                                    struct titan_error *err)
{
    const char *text = args_text(args, option, NULL);
    int64_t ms = 0;
    if (text && when_duration(text, &ms, err) != TITAN_OK)
        return titan_error_wrap(err, "--%s", option);
    titan_assert(ms >= 0);
    *ret_ms = (uint64_t)ms;
    return TITAN_OK;
}

enum {
    LOOK_MS = 200,
    GONE_FOR_MS = 15000 /* a node returns within this time after the coordinator's start */
};

struct nodes_named {
    struct ctl *ctl;
    const struct args *args;
    Titan__V1__DrainNodeRequest drain;
    bool *drains; /* per name: the request was accepted; NULL: do not wait */
    int64_t begin_ms, until_ms, patience_ms;
};

static titan_status drain_one(void *data, size_t i, struct titan_error *err)
{
    struct nodes_named *of = data;
    _cleanup_message_ Titan__V1__DrainNodeResponse *reply = NULL;
    of->drain.node = of->args->words[i];
    TRY(ctl_call(of->ctl, TITAN_METHOD("DrainNode"), &of->drain.base, &titan__v1__drain_node_response__descriptor,
                 &reply, err));
    if (of->drains)
        of->drains[i] = true;
    else
        output_node(of->ctl, reply->node);
    return TITAN_OK;
}

/* --- --wait ------------------------------------------------------------------------------------------------------- */

/* Waits until a node is drained. A lost node that still has workers is waited for. A lost node without workers fails
 * after GONE_FOR_MS, because it was lost before it was drained. */
static titan_status await_drained(void *data, size_t i, struct titan_error *err)
{
    const struct nodes_named *of = data;
    const char *name = of->args->words[i];
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000L};
    int64_t there_ms = clock_mono_ms();
    titan_assert(of->drains && i < (size_t)of->args->n);
    while (of->drains[i]) {
        _cleanup_message_ Titan__V1__ListNodesResponse *reply = NULL;
        const Titan__V1__ListNodesRequest request = TITAN__V1__LIST_NODES_REQUEST__INIT;
        const Titan__V1__Node *node = NULL; /* NULL: it is no longer listed */
        titan_status status;
        while ((status = ctl_call(of->ctl, TITAN_METHOD("ListNodes"), &request.base,
                                  &titan__v1__list_nodes_response__descriptor, &reply, err)) == TITAN_EUNREACHABLE)
            TRY(live_stream_await(of->ctl, of->patience_ms, err));
        TRY(status);
        for (size_t k = 0; k < reply->n_nodes; k++)
            if (strcmp(reply->nodes[k]->name, name) == 0)
                node = reply->nodes[k];
        if (!node)
            return titan_fail(err, TITAN_ENOTFOUND, "node %s is not there any more", name);
        const int64_t now_ms = clock_mono_ms();
        const bool lost = strcmp(node->state, "lost") == 0, draining = strcmp(node->state, "draining") == 0;
        if (strcmp(node->state, "drained") == 0 || strcmp(node->state, "maintenance") == 0) {
            _cleanup_(buf_free) struct buf text = BUF_INIT;
            if (of->ctl->json)
                return output_json(&node->base, false), TITAN_OK;
            output_fit(&node->base);
            buf_printf(&text, "node %s: %s, after %.1f s", node->name, node->state,
                       (double)(now_ms - of->begin_ms) / 1000);
            (void)output_line(&text);
            return TITAN_OK;
        }
        if (!lost && !draining)
            return titan_fail(err, TITAN_ECONFLICT, "node %s was put back into service before it was empty", name);
        there_ms = lost && !node->slots_used ? there_ms : now_ms;
        if (now_ms - there_ms > GONE_FOR_MS)
            return titan_fail(err, TITAN_ECONFLICT, "node %s was lost before it was drained", name);
        if (of->until_ms && now_ms >= of->until_ms)
            return titan_fail(err, TITAN_ETIMEDOUT, "node %s has %u worker%s still", name, node->slots_used,
                              node->slots_used == 1 ? "" : "s");
        if (ctl_interrupted)
            return titan_fail(err, TITAN_ECANCELLED, "interrupted");
        (void)nanosleep(&pause, NULL);
    }
    return TITAN_OK;
}

static titan_status run_drain(void *with, const struct args *args, struct titan_error *err)
{
    struct nodes_named of = {
        .ctl = with, .args = args, .drain = TITAN__V1__DRAIN_NODE_REQUEST__INIT, .begin_ms = clock_mono_ms()};
    _cleanup_free_ bool *drains = NULL;
    uint64_t timeout_ms = 0;
    of.drain.reason = (char *)(uintptr_t)args_text(args, "reason", "");
    TRY(duration_option(args, "deadline", &of.drain.deadline_ms, err));

    const char *from = args_text(args, "from", NULL), *length = args_text(args, "for", NULL);
    if (from && !length)
        return titan_fail(err, TITAN_EINVAL, "drain: --from wants --for, the length of the window");
    if (length) {
        TRY(duration_option(args, "for", &of.drain.for_ms, err));
        if (when_time(from ? from : "now", clock_wall_ms(), &of.drain.from_ms, err) != TITAN_OK)
            return titan_error_wrap(err, "--from");
        if (args_has(args, "deadline"))
            return titan_fail(err, TITAN_EINVAL,
                              "drain: with a window the deadline is its beginning; --lead says how long "
                              "before it the node drains");
        TRY(duration_option(args, "lead", &of.drain.deadline_ms, err));
    }
    TRY(duration_option(args, "timeout", &timeout_ms, err));
    TRY(live_stream_patience(args, &of.patience_ms, err));
    if (!args_has(args, "wait") && timeout_ms)
        return titan_fail(err, TITAN_EINVAL, "drain: --timeout is how long --wait waits");
    if (args_has(args, "wait") && of.drain.for_ms)
        return titan_fail(err, TITAN_EINVAL, "drain: --wait is not for a maintenance window");
    if (args_has(args, "wait"))
        of.drains = drains = calloc((size_t)args->n, sizeof(*drains));
    of.until_ms = timeout_ms ? of.begin_ms + (int64_t)timeout_ms : 0;
    const titan_status asked = outcomes((size_t)args->n, drain_one, &of, "nodes are not drained", err);
    if (!drains || asked == TITAN_EUNREACHABLE)
        return asked;

    /* Waits for the draining nodes even if others cannot be drained. */
    struct titan_error late = {.status = TITAN_OK};
    ctl_catch_interrupt();
    const titan_status waited = outcomes((size_t)args->n, await_drained, &of, "nodes are not drained", &late);
    if (waited == TITAN_OK)
        return asked;
    if (asked != TITAN_OK && !outcome_worse(waited, asked)) {
        outcome_print(&late);
        return asked;
    }
    if (asked != TITAN_OK)
        outcome_print(err);
    *err = late;
    return waited;
}

static titan_status undrain_one(void *data, size_t i, struct titan_error *err)
{
    const struct nodes_named *of = data;
    Titan__V1__UndrainNodeRequest request = TITAN__V1__UNDRAIN_NODE_REQUEST__INIT;
    _cleanup_message_ Titan__V1__UndrainNodeResponse *reply = NULL;
    request.node = of->args->words[i];
    TRY(ctl_call(of->ctl, TITAN_METHOD("UndrainNode"), &request.base, &titan__v1__undrain_node_response__descriptor,
                 &reply, err));
    output_node(of->ctl, reply->node);
    return TITAN_OK;
}

static titan_status run_undrain(void *with, const struct args *args, struct titan_error *err)
{
    struct nodes_named of = {.ctl = with, .args = args};
    return outcomes((size_t)args->n, undrain_one, &of, "nodes are not back in service", err);
}

const struct command command_drain = {
    .name = "drain",
    .summary = "take nodes out of service, now or for a maintenance window",
    .arguments = "NODE...",
    .text =
        "A drained node gets no new workers. Those it has are started elsewhere first, where there are slots, and "
        "take\n"
        "over at a step boundary; otherwise the run shrinks, if it may; otherwise it waits, and at the deadline it is\n"
        "stopped with a checkpoint and queued again. With a window the node drains ahead of it and is back in service\n"
        "after it. With --wait it ends with 0 when the nodes are drained, 6 when one was put back into service or "
        "lost\n"
        "before, and 124 after the timeout; they drain on then. Times are 30s, 5m, 2h, 1d; --from takes 22:30,\n"
        "2026-11-22T03:00 or +2h.",
    .min_args = 1,
    .max_args = ANY_NUMBER,
    .word = WORD_NODE,
    .options =
        (const struct option_spec[]){
            {"deadline", 0, "TIME", "stop what has found no other place after so long (default: never)", WORD_NONE},
            {"reason", 0, "TEXT", "why; shown with the node", WORD_NONE},
            {"from", 0, "WHEN", "begin of a maintenance window", WORD_NONE},
            {"for", 0, "TIME", "its length", WORD_NONE},
            {"lead", 0, "TIME", "drain so long before it (default 5m)", WORD_NONE},
            {"wait", 'w', NULL, "until they are drained: they can be switched off then", WORD_NONE},
            {"timeout", 't', "TIME", "give up waiting after so long (default: never)", WORD_NONE},
            SERVER_GONE,
            {NULL}},
    .examples = (const struct example[]){{"titanctl drain gpu7 gpu8 --wait --timeout 30m", "and switch them off"},
                                         {"titanctl drain gpu7 --deadline 10m --reason 'new disk'", "soon"},
                                         {"titanctl drain gpu7 --from 22:30 --for 2h", "tonight"},
                                         {NULL}},
    .run = run_drain,
};

const struct command command_undrain = {
    .name = "undrain",
    .summary = "put nodes back into service",
    .arguments = "NODE...",
    .text = "Ends a drain, drops a maintenance window, and lets a node out of quarantine, and slots of GPUs that are "
            "well again.",
    .min_args = 1,
    .max_args = ANY_NUMBER,
    .word = WORD_NODE,
    .examples = (const struct example[]){{"titanctl undrain gpu7", "it takes workers again"}, {NULL}},
    .run = run_undrain,
};
