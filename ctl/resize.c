/* SPDX-License-Identifier: Apache-2.0 */
/* resize.c - titanctl resize: changes the number of workers of a job. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "ctl/args.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/live_stream.h"
#include "ctl/output.h"

/* "3", "2:4" or "recipe". */
static titan_status parse_range(const char *text, Titan__V1__ResizeJobRequest *request, struct titan_error *err)
{
    unsigned first = 0, second = 0;
    int end = 0;
    if (strcmp(text, "recipe") == 0)
        return TITAN_OK;
    if (text[0] >= '0' && text[0] <= '9') {
        if (sscanf(text, "%9u%n", &first, &end) == 1 && first > 0 && text[end] == '\0') {
            request->workers = first;
            return TITAN_OK;
        }
        if (sscanf(text, "%9u:%9u%n", &first, &second, &end) == 2 && first > 0 && text[end] == '\0') {
            request->min_workers = first;
            request->max_workers = second;
            return TITAN_OK;
        }
    }
    return titan_fail(err, TITAN_EINVAL, "resize: '%.32s' is not a number of workers: N, MIN:MAX or recipe", text);
}

/* --- --wait ------------------------------------------------------------------------------------------------------- */

/* State from the job's events, up to the event with the requested workers. */
struct waiting {
    uint32_t request, least, most; /* the awaited request and its range */
    bool asked;                    /* the request's event was seen */
    uint32_t world;                /* members of the running epoch; 0 = none */
    enum { WAIT_MORE, WAIT_THERE, WAIT_OVERTAKEN } outcome;
    Titan__V1__WatchEventsRequest events;
};

static uint32_t detail_number(const char *detail, const char *key)
{
    struct json *root = NULL;
    if (json_parse(detail, strlen(detail), &root, NULL) != TITAN_OK)
        return 0;
    uint32_t number = (uint32_t)json_int(root, key, 0);
    json_free(root);
    return number;
}

static bool on_event(const ProtobufCMessage *message, void *data)
{
    const Titan__V1__Event *e = (const Titan__V1__Event *)message;
    struct waiting *w = data;
    w->events.after_event_id = e->id;
    if (strcmp(e->type, "resize.requested") == 0) {
        uint32_t request = detail_number(e->detail, "request");
        w->asked |= request == w->request;
        if (request > w->request)
            w->outcome = WAIT_OVERTAKEN;
    } else if (strcmp(e->type, "epoch.formed") == 0) {
        w->world = detail_number(e->detail, "world");
    } else if (strcmp(e->type, "epoch.ended") == 0 || strcmp(e->type, "epoch.revoked") == 0) {
        w->world = 0;
    }
    if (w->asked && w->world >= w->least && w->world <= w->most && w->world > 0 && w->outcome == WAIT_MORE)
        w->outcome = WAIT_THERE;
    return w->outcome == WAIT_MORE;
}

/* --- the command -------------------------------------------------------------------------------------------------- */

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    const int64_t begin_ns = clock_mono_ns();
    Titan__V1__ResizeJobRequest request = TITAN__V1__RESIZE_JOB_REQUEST__INIT;
    TRY(args_job(args, 0, &request.job_id, err));
    TRY(parse_range(args->words[1], &request, err));
    _cleanup_message_ Titan__V1__ResizeJobResponse *reply = NULL;
    TRY(ctl_call(ctl, TITAN_METHOD("ResizeJob"), &request.base, &titan__v1__resize_job_response__descriptor, &reply,
                 err));
    const unsigned long long job = request.job_id;
    const char *const several = reply->world_size == 1 ? "" : "s";
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    if (!args_has(args, "wait")) {
        if (ctl->json)
            return output_json(&reply->base, false), TITAN_OK;
        buf_printf(&text, "job %llu %s: %u worker%s now, asked for %u", job, ctl_state_name(reply->state),
                   reply->world_size, several, reply->max_workers);
        if (reply->min_workers != reply->max_workers)
            buf_printf(&text, ", at least %u", reply->min_workers);
        (void)output_line(&text);
        return TITAN_OK;
    }

    if (request.workers)
        reply->min_workers = request.workers;

    /* The server has stored the request. After a restart the server still knows the request and is not asked again. */
    struct waiting awaited = {.request = reply->request,
                              .least = reply->min_workers,
                              .most = reply->max_workers,
                              .events = TITAN__V1__WATCH_EVENTS_REQUEST__INIT};
    struct live_stream live = {
        .ctl = ctl,
        .call = {TITAN_METHOD("WatchEvents"), &awaited.events.base, &titan__v1__event__descriptor, on_event, &awaited},
        .job_id = request.job_id};
    awaited.events.job_id = request.job_id;
    awaited.events.follow = true;
    TRY(live_stream_patience(args, &live.patience_ms, err));
    TRY(live_stream_read(&live, err));
    if (awaited.outcome == WAIT_OVERTAKEN)
        return titan_fail(err, TITAN_ECONFLICT, "job %llu was asked for another size meanwhile", job);
    if (awaited.outcome != WAIT_THERE)
        return titan_fail(err, TITAN_EJOB, "job %llu ended before it had %u workers", job, reply->max_workers);
    const double seconds = (double)(clock_mono_ns() - begin_ns) / 1e9;
    if (ctl->json) {
        struct json_writer w = {.out = &text};
        json_begin_object(&w, NULL);
        json_put_uint(&w, "job_id", job);
        json_put_uint(&w, "world_size", awaited.world);
        json_put_uint(&w, "request", reply->request);
        json_put_real(&w, "seconds", seconds);
        json_end_object(&w);
    } else {
        buf_printf(&text, "job %llu: now %u worker%s, after %.1f s", job, awaited.world, awaited.world == 1 ? "" : "s",
                   seconds);
    }
    (void)output_line(&text);
    return TITAN_OK;
}

const struct command command_resize = {
    .name = "resize",
    .summary = "change the number of workers of a job, without losing a step",
    .arguments = "JOB N|MIN:MAX|recipe",
    .text =
        "With N the job runs on N workers, and on fewer only after losses; with MIN:MAX on as many as there are slots\n"
        "for; with recipe on what its run file says. The members stop at a step boundary and go on from memory. N "
        "must be a\nnumber the job's mesh can have; a wrong one is refused with the nearest that can. The desired size "
        "is "
        "kept when the\nserver restarts, and --wait goes on waiting.",
    .min_args = 2,
    .max_args = 2,
    .word = WORD_JOB,
    .options =
        (const struct option_spec[]){
            {"wait", 'w', NULL, "until the job trains with so many; then say how many, and after how long", WORD_NONE},
            SERVER_GONE,
            {NULL}},
    .examples = (const struct example[]){{"titanctl resize 12 3 --wait", "shrink to three, or grow"},
                                         {"titanctl resize 12 2:8", "between two and eight"},
                                         {"titanctl resize 12 recipe", "as it was submitted"},
                                         {NULL}},
    .run = run,
};
