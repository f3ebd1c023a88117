/* SPDX-License-Identifier: Apache-2.0 */
/* events.c - titanctl events: the events of a job, or of all jobs and nodes, in order. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ctl/args.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/live_stream.h"
#include "ctl/output.h"

struct printing {
    const struct ctl *ctl;
    bool all; /* show the events of all jobs and nodes */
    Titan__V1__WatchEventsRequest request;
};

static bool each(const ProtobufCMessage *message, void *data)
{
    struct printing *p = data;
    const Titan__V1__Event *event = (const Titan__V1__Event *)message;
    p->request.after_event_id = event->id;
    if (p->ctl->json)
        return output_json(message, false);
    char at[32];
    output_fit(message);
    (void)printf("%s  %-22s ", clock_format(event->at_ms, at), event->type);
    if (p->all && event->job_id)
        (void)printf("job %llu  ", (unsigned long long)event->job_id);
    char epoch[32];
    const int begins = snprintf(epoch, sizeof(epoch), "epoch %llu ", (unsigned long long)event->epoch);
    if (event->epoch && strncmp(event->message, epoch, (size_t)begins) != 0)
        (void)printf("%s ", epoch);
    if (event->rank >= 0)
        (void)printf("rank %d  ", event->rank);
    (void)printf("%s\n", event->message);
    return fflush(stdout) == 0;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    int64_t after;
    uint64_t id = 0;
    if (args->n > 0)
        TRY(args_job(args, 0, &id, err));
    TRY(args_int(args, "after", (struct int_range){0, INT64_MAX}, 0, &after, err));
    struct printing p = {.ctl = ctl, .all = args->n == 0, .request = TITAN__V1__WATCH_EVENTS_REQUEST__INIT};
    struct live_stream live = {
        .ctl = ctl,
        .call = {TITAN_METHOD("WatchEvents"), &p.request.base, &titan__v1__event__descriptor, each, &p},
        .job_id = id};
    TRY(live_stream_patience(args, &live.patience_ms, err));
    p.request.job_id = id;
    p.request.after_event_id = (uint64_t)after;
    p.request.follow = args_has(args, "follow");
    live.once = !p.request.follow;
    return live_stream_read(&live, err);
}

const struct command command_events = {
    .name = "events",
    .summary = "print what happened to a job, or to all jobs and nodes, in order",
    .arguments = "[JOB]",
    .text =
        "With -o json each line is one event, with the event's own fields under \"detail\" (docs/api.md lists them).",
    .min_args = 0,
    .max_args = 1,
    .word = WORD_JOB,
    .options = (const struct option_spec[]){{"follow", 'f', NULL, "go on until the job has ended", WORD_NONE},
                                            {"after", 0, "ID", "only events after this number", WORD_NONE},
                                            SERVER_GONE,
                                            {NULL}},
    .examples = (const struct example[]){{"titanctl events 12 -f", "watch a job live"},
                                         {"titanctl events -f | grep node", "watch the nodes"},
                                         {"titanctl -o json events 12 | jq 'select(.type == \"epoch.formed\")'",
                                          "when membership changed"},
                                         {NULL}},
    .run = run,
};
