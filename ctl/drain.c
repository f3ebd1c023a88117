/* SPDX-License-Identifier: Apache-2.0 */
/* drain.c - titanctl drain, undrain: take nodes out of service and put them back. */
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ctl/client.h"
#include "ctl/command.h"
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

static titan_status read_window(const struct args *args, Titan__V1__DrainNodeRequest *request, struct titan_error *err)
{
    const char *from = args_text(args, "from", NULL), *length = args_text(args, "for", NULL);
    if (!from && !length)
        return TITAN_OK;
    if (!length)
        return titan_fail(err, TITAN_EINVAL, "drain: --from wants --for, the length of the window");
    TRY(duration_option(args, "for", &request->for_ms, err));
    if (when_time(from ? from : "now", clock_wall_ms(), &request->from_ms, err) != TITAN_OK)
        return titan_error_wrap(err, "--from");
    if (args_has(args, "deadline"))
        return titan_fail(err, TITAN_EINVAL,
                          "drain: with a window the deadline is its beginning; --lead says how long "
                          "before it the node drains");
    return duration_option(args, "lead", &request->deadline_ms, err);
}

struct nodes_named {
    struct ctl *ctl;
    const struct args *args;
    Titan__V1__DrainNodeRequest drain;
};

static titan_status drain_one(void *data, size_t i, struct titan_error *err)
{
    struct nodes_named *of = data;
    _cleanup_message_ Titan__V1__DrainNodeResponse *reply = NULL;
    of->drain.node = of->args->words[i];
    TRY(ctl_call(of->ctl, TITAN_METHOD("DrainNode"), &of->drain.base, &titan__v1__drain_node_response__descriptor,
                 &reply, err));
    output_node(of->ctl, reply->node);
    return TITAN_OK;
}

static titan_status run_drain(void *with, const struct args *args, struct titan_error *err)
{
    titan_assert(args->n >= 1);
    struct nodes_named of = {.ctl = with, .args = args, .drain = TITAN__V1__DRAIN_NODE_REQUEST__INIT};
    of.drain.reason = (char *)(uintptr_t)args_text(args, "reason", "");
    TRY(duration_option(args, "deadline", &of.drain.deadline_ms, err));
    TRY(read_window(args, &of.drain, err));
    return outcomes((size_t)args->n, drain_one, &of, "nodes are not drained", err);
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
    titan_assert(args->n >= 1);
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
        "after it. Times are 30s, 5m, 2h, 1d; --from takes 22:30, 2026-11-22T03:00 or +2h.",
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
            {NULL}},
    .examples = (const struct example[]){{"titanctl drain gpu7 --deadline 10m --reason 'new disk'", "soon"},
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
