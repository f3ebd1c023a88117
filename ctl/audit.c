/* SPDX-License-Identifier: Apache-2.0 */
/* audit.c - titanctl audit: successful changes and refused calls. */
#include <stdio.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/live_stream.h"
#include "ctl/output.h"
#include "ctl/when.h"

struct printing {
    const struct ctl *ctl;
    Titan__V1__AuditRequest request;
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
    (void)printf("%s  %-14s  %-20s ", clock_format(event->at_ms, at), event->type, event->actor);
    if (event->job_id)
        (void)printf("job %llu  ", (unsigned long long)event->job_id);
    (void)printf("%s\n", event->message);
    return fflush(stdout) == 0;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    struct printing p = {.ctl = ctl, .request = TITAN__V1__AUDIT_REQUEST__INIT};
    struct live_stream live = {
        .ctl = ctl, .call = {TITAN_METHOD("Audit"), &p.request.base, &titan__v1__event__descriptor, each, &p}};
    const char *since = args_text(args, "since", NULL);
    int64_t after;
    if (since)
        TRY(when_past(since, clock_wall_ms(), &p.request.since_ms, err));
    TRY(args_int(args, "after", (struct int_range){0, INT64_MAX}, 0, &after, err));
    TRY(live_stream_patience(args, &live.patience_ms, err));
    p.request.after_event_id = (uint64_t)after;
    p.request.actor = (char *)(uintptr_t)args_text(args, "actor", "");
    p.request.follow = args_has(args, "follow");
    live.once = !p.request.follow;
    return live_stream_read(&live, err);
}

const struct command command_audit = {
    .name = "audit",
    .summary = "print which calls changed something, and which were refused, with their callers",
    .arguments = "",
    .text = "For operators and admins. Part of the event log, which is a chain: `titanctl admin verify` finds a line "
            "that was\nchanged or taken out. Calls of one identity that are refused again and again are one line a "
            "minute, with their number.",
    .options =
        (const struct option_spec[]){{"since", 0, "WHEN", "2h (ago), 22:30, 2026-11-20T03:00", WORD_NONE},
                                     {"actor", 0, "WHO", "only of this identity, as the lines write it", WORD_NONE},
                                     {"after", 0, "ID", "only events after this number", WORD_NONE},
                                     {"follow", 'f', NULL, "go on until it is interrupted", WORD_NONE},
                                     SERVER_GONE,
                                     {NULL}},
    .examples = (const struct example[]){{"titanctl audit --since 1d | grep refused", "what was tried since yesterday"},
                                         {"titanctl -o json audit --actor alice", "what alice has done"},
                                         {NULL}},
    .run = run,
};
