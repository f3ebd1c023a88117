/* SPDX-License-Identifier: Apache-2.0 */
/* follow.c - see follow.h.
 *
 * The data comes from two streams: the events until the job's end, and the metrics from the job's present step on.
 * After an absence of the server, both streams continue behind the last received item, so a restart of titand appears
 * as a pause. */
#include "ctl/follow.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "ctl/client.h"
#include "ctl/output.h"
#include "ctl/progress.h"
#include "ctl/tls.h"
#include "proto/rpc/client.h"

enum { POLL_MS = 250, RETRY_MS = 200, METRICS_GRACE_MS = 1000, CHECKPOINT_EVERY_MS = 2000 };

struct follow {
    const struct follow_options *options;
    uv_loop_t loop;
    struct rpc_client *client;
    struct rpc_stream *events, *metrics;
    uv_timer_t tick, retry, timeout;
    uv_signal_t interrupt, terminate, save;
    struct progress progress;
    uint64_t last_event, last_step;
    int64_t checkpoint_ms; /* time of the last printed checkpoint */
    int64_t gone_ms;       /* begin of the server's absence; 0 = present */
    bool answered;         /* the server has answered at least once */
    int64_t lacks_ms;      /* begin of the lack of nodes; 0 = none */
    bool polling, asking_end, over, client_down, giving_up;
    bool known;   /* the job's status has arrived: metrics are requested from its step on */
    bool passing; /* skipping existing events */
    int interrupts;
    struct {
        char seen[256], reported[256]; /* the present reason; the last reason printed, alone or with an event */
    } reason;
    Titan__V1__GetJobResponse *final;
    titan_status status;
    struct titan_error *err;
};

static void open_streams(struct follow *f);
static void ask_job(struct follow *f);

/* --- end ---------------------------------------------------------------------------------------------------------- */

static void client_closed(void *data)
{
    ((struct follow *)data)->client_down = true;
}

static void finish(struct follow *f, titan_status status)
{
    if (f->over)
        return;
    titan_assert(f->client && !f->client_down);
    f->over = true;
    f->status = status;
    uv_handle_t *handles[] = {(uv_handle_t *)&f->tick,      (uv_handle_t *)&f->retry,     (uv_handle_t *)&f->timeout,
                              (uv_handle_t *)&f->interrupt, (uv_handle_t *)&f->terminate, (uv_handle_t *)&f->save};
    for (size_t i = 0; i < ARRAY_SIZE(handles); i++)
        uv_close(handles[i], NULL);
    rpc_client_close(f->client, client_closed, f);
}

static void fail(struct follow *f, const struct titan_error *err)
{
    if (f->over)
        return;
    if (f->err)
        *f->err = *err;
    if (f->err)
        ctl_unreachable_hint(f->options->server, f->err);
    finish(f, f->err ? f->err->status : err->status);
}

/* Ends if the job has ended and all metrics have come. */
static void maybe_done(struct follow *f)
{
    if (f->final && !f->metrics)
        finish(f, TITAN_OK);
}

/* --- the server is gone for a while ------------------------------------------------------------------------------- */

static void on_retry(uv_timer_t *timer)
{
    struct follow *f = timer->data;
    titan_assert(!f->over);
    if (f->gone_ms)
        rpc_client_reconnect(f->client, true);
    open_streams(f);
    ask_job(f);
}

static void say(struct follow *f, const char *text)
{
    if (f->options->progress)
        progress_print(&f->progress, text);
    else
        (void)fprintf(stderr, "titanctl: %s\n", text);
}

static void server_answers(struct follow *f)
{
    f->answered = true;
    if (f->gone_ms)
        say(f, "the server is back");
    f->gone_ms = 0;
}

/* Is the error a reason to wait for the server? */
static bool wait_for_server(struct follow *f, const struct titan_error *err)
{
    const int64_t now_ms = clock_mono_ms();
    int64_t patience_ms = f->options->patience_ms;
    char line[sizeof(err->msg) + 64];
    if (err->status != TITAN_EUNREACHABLE || f->over)
        return false;
    if (patience_ms < 0)
        patience_ms = f->answered ? INT64_MAX : GONE_MS;
    if (f->gone_ms == 0) {
        f->gone_ms = now_ms;
        (void)snprintf(line, sizeof(line), "waiting for the server: %s", err->msg);
        if (patience_ms > 0)
            say(f, line);
    }
    if (now_ms - f->gone_ms >= patience_ms)
        return false;
    (void)uv_timer_start(&f->retry, on_retry, RETRY_MS, 0);
    return true;
}

/* --- what comes in ------------------------------------------------------------------------------------------------ */

/* Events worth showing: changes of membership, losses, checkpoints, and states with a reason. */
static bool event_of_note(const Titan__V1__Event *event, const struct json *detail)
{
    static const char *const always[] = {"epoch.forming", "epoch.failed", "recovery.finished",    "resize.finished",
                                         "worker.lost",   "node.lost",    "checkpoint.committed", "job.waiting"};
    for (size_t i = 0; i < ARRAY_SIZE(always); i++)
        if (strcmp(event->type, always[i]) == 0)
            return true;
    if (strcmp(event->type, "worker.exited") == 0)
        return !json_get(detail, "asked") &&
               (json_int(detail, "exit_code", 0) != 0 || json_int(detail, "signal", 0) != 0);
    if (strcmp(event->type, "state.ready") == 0) /* worth showing only if steps are trained again */
        return strcmp(json_string(detail, "rung", ""), "checkpoint") == 0;
    return strcmp(event->type, "job.state") == 0 && json_string(detail, "reason", NULL) &&
           !ctl_state_final((Titan__V1__JobState)ctl_state_parse(json_string(detail, "to", "")));
}

static void on_event(struct rpc_stream *stream, const ProtobufCMessage *message, void *data)
{
    (void)stream;
    struct follow *f = data;
    const Titan__V1__Event *event = (const Titan__V1__Event *)message;
    server_answers(f);
    f->last_event = MAX(f->last_event, event->id);
    if (!f->options->progress || f->passing)
        return;
    struct json *detail = NULL;
    (void)!json_parse(event->detail, strlen(event->detail), &detail, NULL);
    int to = strcmp(event->type, "job.state") == 0 ? ctl_state_parse(json_string(detail, "to", "")) : -1;
    if (to >= 0)
        f->progress.state = (Titan__V1__JobState)to;
    /* Shows few checkpoints of a small model, which may write many a second. */
    bool crowd =
        strcmp(event->type, "checkpoint.committed") == 0 && event->at_ms - f->checkpoint_ms < CHECKPOINT_EVERY_MS;
    if (event_of_note(event, detail) && !crowd) {
        if (strcmp(event->type, "checkpoint.committed") == 0)
            f->checkpoint_ms = event->at_ms;
        char at[16], line[512];
        output_fit(message);
        (void)snprintf(line, sizeof(line), "%s  %s", output_clock(event->at_ms, at),
                       *event->message ? event->message : event->type);
        progress_print(&f->progress, line);
        if (to >= 0 || strcmp(event->type, "job.waiting") == 0)
            (void)snprintf(f->reason.reported, sizeof(f->reason.reported), "%s",
                           to >= 0 ? json_string(detail, "reason", "") : event->message);
    }
    json_free(detail);
}

static void on_events_end(struct rpc_stream *stream, const struct titan_error *err, void *data)
{
    (void)stream;
    struct follow *f = data;
    titan_assert(f->events == stream);
    f->events = NULL;
    if (f->over || f->final)
        return;
    if (err->status == TITAN_OK && f->passing) {
        f->passing = false;
        open_streams(f);
    } else if (err->status == TITAN_OK) {
        f->asking_end = true;
        ask_job(f);
    } else if (!wait_for_server(f, err)) {
        fail(f, err);
    }
}

static void on_point(struct rpc_stream *stream, const ProtobufCMessage *message, void *data)
{
    (void)stream;
    struct follow *f = data;
    const Titan__V1__MetricPoint *point = (const Titan__V1__MetricPoint *)message;
    f->last_step = point->step;
    progress_point(&f->progress, point);
    if (f->options->progress && !f->progress.live)
        progress_show(&f->progress, clock_wall_ms(), false);
}

static void on_metrics_end(struct rpc_stream *stream, const struct titan_error *err, void *data)
{
    (void)stream;
    (void)err; /* the stream of events handles errors */
    struct follow *f = data;
    titan_assert(f->metrics == stream);
    f->metrics = NULL;
    if (!f->over)
        maybe_done(f);
}

static void end_metrics(uv_timer_t *timer)
{
    struct follow *f = timer->data;
    if (f->metrics)
        rpc_stream_cancel(f->metrics);
}

static void on_given_up(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    (void)reply;
    struct follow *f = data;
    struct titan_error why;
    if (f->over || err->status == TITAN_ECONFLICT) /* the job ended meanwhile, as the events show */
        return;
    if (err->status == TITAN_OK) {
        (void)titan_fail(&why, TITAN_EUNPLACEABLE, "job %llu was cancelled: in %.0f s no nodes came that can hold it",
                         (unsigned long long)f->options->job_id, (double)f->options->nodes_ms / 1000);
        titan_error_hint(&why, "%s", f->reason.seen);
    }
    fail(f, err->status == TITAN_OK ? &why : err);
}

/* Tells why the job does not train, and gives up a job that has waited for nodes too long. */
static void job_waits(struct follow *f, const Titan__V1__Job *job)
{
    /* Prints why the job does not train, if no event has the reason: events come late while the store refuses writes,
     * and no event has the reason for queueing. A reason that is gone by the next look is skipped. */
    char reason[sizeof(f->reason.seen)], line[sizeof(reason) + 24], at[16];
    (void)snprintf(reason, sizeof(reason), "%s", job->reason);
    const bool stays = *reason && strcmp(reason, f->reason.seen) == 0;
    memcpy(f->reason.seen, reason, sizeof(reason));
    if (stays && strcmp(reason, f->reason.reported) != 0 && f->options->progress) {
        memcpy(f->reason.reported, reason, sizeof(reason));
        (void)snprintf(line, sizeof(line), "%s  %s", output_clock(clock_wall_ms(), at), reason);
        progress_print(&f->progress, line);
    }

    static const char *const reasons[] = {"waiting: no node has", "waiting for nodes"};
    const int64_t now_ms = clock_mono_ms();
    bool lacks = false; /* is the job queued until nodes are added? */
    for (size_t i = 0; i < ARRAY_SIZE(reasons) && job->state == TITAN__V1__JOB_STATE__PENDING; i++)
        lacks = lacks || strncmp(job->reason, reasons[i], strlen(reasons[i])) == 0;
    if (!lacks) {
        f->lacks_ms = 0;
        return;
    }
    f->lacks_ms = f->lacks_ms ? f->lacks_ms : now_ms;
    if (f->giving_up || f->options->nodes_ms == 0 || now_ms - f->lacks_ms < f->options->nodes_ms)
        return;
    f->giving_up = true;
    Titan__V1__CancelJobRequest request = TITAN__V1__CANCEL_JOB_REQUEST__INIT;
    request.job_id = job->id;
    request.reason = (char *)(uintptr_t) "no nodes came that can hold it";
    rpc_client_call(f->client,
                    &(struct rpc_request){TITAN_METHOD("CancelJob"), &request.base,
                                          &titan__v1__cancel_job_response__descriptor, CALL_MS},
                    on_given_up, f);
}

static void on_job(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    struct follow *f = data;
    titan_assert(f->polling);
    f->polling = false;
    if (f->over || f->final)
        return;
    if (err->status != TITAN_OK) {
        if (f->asking_end && !wait_for_server(f, err))
            fail(f, err);
        return; /* otherwise the stream of events reports the error */
    }
    const Titan__V1__Job *job = ((const Titan__V1__GetJobResponse *)reply)->job;
    server_answers(f);
    if (!job)
        return;
    progress_job(&f->progress, job);
    if (!f->known) {
        f->known = true;
        if (f->options->from_now && !f->progress.live)
            progress_show(&f->progress, clock_wall_ms(), true);
        f->last_step = job->step;
        open_streams(f);
        if (f->over)
            return;
    }
    if (f->options->progress && !f->progress.live) /* repeated steps send no points, so the status shows them */
        progress_show(&f->progress, clock_wall_ms(), false);
    if (!ctl_state_final(job->state)) {
        output_fit(reply);
        job_waits(f, job);
    }
    if (!f->asking_end)
        return;
    f->asking_end = false;
    if (!ctl_state_final(job->state)) {
        /* The stream ended before the job did: the server is about to stop. Asks again later. */
        (void)uv_timer_start(&f->retry, on_retry, RETRY_MS, 0);
        return;
    }
    size_t size = protobuf_c_message_get_packed_size(reply);
    uint8_t *bytes = malloc(size + 1);
    if (bytes) {
        (void)protobuf_c_message_pack(reply, bytes);
        f->final = titan__v1__get_job_response__unpack(NULL, size, bytes);
        free(bytes);
    }
    if (!f->final) {
        struct titan_error oom;
        (void)titan_fail(&oom, TITAN_ENOMEM, "no memory for the answer");
        fail(f, &oom);
        return;
    }
    (void)uv_timer_start(&f->retry, end_metrics, METRICS_GRACE_MS, 0);
    maybe_done(f);
}

/* --- what goes out ------------------------------------------------------------------------------------------------ */

static void ask_job(struct follow *f)
{
    if (f->polling || f->over)
        return;
    f->polling = true;
    Titan__V1__GetJobRequest request = TITAN__V1__GET_JOB_REQUEST__INIT;
    request.job_id = f->options->job_id;
    rpc_client_call(
        f->client,
        &(struct rpc_request){TITAN_METHOD("GetJob"), &request.base, &titan__v1__get_job_response__descriptor, CALL_MS},
        on_job, f);
}

static void open_streams(struct follow *f)
{
    struct titan_error err;
    if (!f->events && !f->asking_end) {
        static const struct rpc_stream_events events = {on_event, on_events_end};
        Titan__V1__WatchEventsRequest request = TITAN__V1__WATCH_EVENTS_REQUEST__INIT;
        request.job_id = f->options->job_id;
        request.after_event_id = f->last_event;
        request.follow = !f->passing;
        if (rpc_client_stream(
                f->client,
                &(struct rpc_request){TITAN_METHOD("WatchEvents"), &request.base, &titan__v1__event__descriptor, 0},
                &events, f, &f->events, &err) != TITAN_OK) {
            fail(f, &err);
            return;
        }
    }
    if (!f->metrics && f->options->progress && f->known) {
        static const struct rpc_stream_events events = {on_point, on_metrics_end};
        Titan__V1__MetricsRequest request = TITAN__V1__METRICS_REQUEST__INIT;
        request.job_id = f->options->job_id;
        request.after_step = f->last_step;
        request.follow = true;
        if (rpc_client_stream(
                f->client,
                &(struct rpc_request){TITAN_METHOD("Metrics"), &request.base, &titan__v1__metric_point__descriptor, 0},
                &events, f, &f->metrics, &err) != TITAN_OK)
            fail(f, &err);
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct follow *f = timer->data;
    titan_assert(!f->over);
    if (f->options->progress) {
        if (f->progress.live && f->known)
            progress_show(&f->progress, clock_wall_ms(), false);
        ask_job(f);
    }
}

static void on_timeout(uv_timer_t *timer)
{
    struct follow *f = timer->data;
    titan_assert(!f->over);
    struct titan_error err;
    (void)titan_fail(&err, TITAN_ETIMEDOUT, "job %llu has not ended within %u s",
                     (unsigned long long)f->options->job_id, f->options->timeout_ms / 1000);
    fail(f, &err);
}

static void on_cancelled(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    (void)reply;
    struct follow *f = data;
    /* TITAN_ECONFLICT: the job ended meanwhile, as the events show. */
    if (!f->over && err->status != TITAN_OK && err->status != TITAN_ECONFLICT)
        fail(f, err);
}

static void on_signal(uv_signal_t *handle, int number)
{
    (void)number;
    struct follow *f = handle->data;
    titan_assert(!f->over);
    f->interrupts++;
    if (f->options->cancel_on_interrupt && f->interrupts == 1) {
        if (f->options->progress)
            progress_print(&f->progress, "stopping the run; once more to leave without waiting");
        Titan__V1__CancelJobRequest request = TITAN__V1__CANCEL_JOB_REQUEST__INIT;
        request.job_id = f->options->job_id;
        request.reason = (char *)(uintptr_t) "interrupted";
        rpc_client_call(f->client,
                        &(struct rpc_request){TITAN_METHOD("CancelJob"), &request.base,
                                              &titan__v1__cancel_job_response__descriptor, CALL_MS},
                        on_cancelled, f);
        return;
    }
    struct titan_error err;
    (void)titan_fail(&err, TITAN_ECANCELLED, "interrupted");
    if (!f->options->cancel_on_interrupt)
        titan_error_hint(&err, "job %llu goes on", (unsigned long long)f->options->job_id);
    fail(f, &err);
}

static void on_saves(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    (void)reply;
    struct follow *f = data;
    if (!f->over && err->status != TITAN_OK && f->options->progress)
        progress_print(&f->progress, err->msg);
}

/* Handles the signal that a batch system sends before its time limit. */
static void on_save(uv_signal_t *handle, int number)
{
    (void)number;
    struct follow *f = handle->data;
    Titan__V1__CheckpointJobRequest request = TITAN__V1__CHECKPOINT_JOB_REQUEST__INIT;
    request.job_id = f->options->job_id;
    rpc_client_call(f->client,
                    &(struct rpc_request){TITAN_METHOD("CheckpointJob"), &request.base,
                                          &titan__v1__checkpoint_job_response__descriptor, CALL_MS},
                    on_saves, f);
}

static void signal_start(struct follow *f, uv_signal_t *handle, uv_signal_cb heed, int number)
{
    (void)uv_signal_init(&f->loop, handle);
    handle->data = f;
    if (heed)
        (void)uv_signal_start(handle, heed, number);
}

static void timer_init(struct follow *f, uv_timer_t *timer)
{
    (void)uv_timer_init(&f->loop, timer);
    timer->data = f;
}

titan_status follow_job(const struct follow_options *options, Titan__V1__GetJobResponse **ret_job,
                        struct titan_error *err)
{
    titan_assert(options->server && ret_job);
    struct follow f = {.options = options, .passing = options->from_now, .err = err};
    int rc = uv_loop_init(&f.loop);
    if (rc != 0)
        return titan_fail(err, titan_status_from_errno(-rc), "cannot start a loop: %s", uv_strerror(rc));
    titan_status status = rpc_client_open(&f.loop, options->server, ctl_tls(), &f.client, err);
    if (status != TITAN_OK) {
        (void)uv_loop_close(&f.loop);
        return status;
    }
    progress_init(&f.progress, stderr);
    f.progress.recipe = options->recipe;
    timer_init(&f, &f.tick);
    timer_init(&f, &f.retry);
    timer_init(&f, &f.timeout);
    signal_start(&f, &f.interrupt, on_signal, SIGINT);
    signal_start(&f, &f.terminate, on_signal, SIGTERM);
    signal_start(&f, &f.save, options->cancel_on_interrupt ? on_save : NULL, SIGUSR1);
    (void)uv_timer_start(&f.tick, on_tick, 0, POLL_MS);
    if (options->timeout_ms)
        (void)uv_timer_start(&f.timeout, on_timeout, options->timeout_ms, 0);
    struct titan_error refused = {0};
    if (*ctl_token && rpc_client_token(f.client, ctl_token, &refused) != TITAN_OK)
        fail(&f, &refused);
    else
        open_streams(&f);

    (void)uv_run(&f.loop, UV_RUN_DEFAULT);
    titan_assert(f.over && f.client_down);
    (void)uv_loop_close(&f.loop);
    if (options->progress) {
        if (f.status == TITAN_OK)
            progress_show(&f.progress, clock_wall_ms(), true);
        else
            progress_clear(&f.progress);
    }
    titan_assert(f.status != TITAN_OK || (f.final && f.final->job));
    if (f.status == TITAN_OK)
        *ret_job = TAKE(f.final);
    ctl_message_free(&f.final);
    return f.status;
}

titan_status follow_outcome(const Titan__V1__Job *job, struct titan_error *err)
{
    if (job->state == TITAN__V1__JOB_STATE__COMPLETED)
        return TITAN_OK;
    return titan_fail(err, TITAN_EJOB, "job %llu %s%s%s", (unsigned long long)job->id,
                      job->state == TITAN__V1__JOB_STATE__CANCELLED ? "was cancelled" : "failed",
                      *job->reason ? ": " : "", job->reason);
}
