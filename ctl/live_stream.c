/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/live_stream.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "ctl/outcomes.h"
#include "ctl/when.h"

enum {
    RETRY_MS = 200,
    PROBE_MS = 2000,
    SETTLE_MS = 5000 /* the nodes return within this time after the server */
};

titan_status live_stream_patience(const struct args *args, int64_t *ret_ms, struct titan_error *err)
{
    const char *text = args_text(args, "server-gone", NULL);
    *ret_ms = PATIENT_FOR_EVER;
    if (text && when_duration(text, ret_ms, err) != TITAN_OK)
        return titan_error_wrap(err, "--server-gone");
    return TITAN_OK;
}

struct reading {
    const struct live_stream *stream;
    bool enough;
};

static bool pass(const ProtobufCMessage *message, void *data)
{
    struct reading *r = data;
    r->enough = !r->stream->call.each(message, r->stream->call.data);
    return !r->enough;
}

static titan_status rest(struct titan_error *err)
{
    const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000L};
    (void)nanosleep(&pause, NULL);
    return ctl_interrupted ? titan_fail(err, TITAN_ECANCELLED, "interrupted") : TITAN_OK;
}

static titan_status probe(struct ctl *ctl, struct titan_error *err)
{
    Titan__V1__VersionRequest request = TITAN__V1__VERSION_REQUEST__INIT;
    _cleanup_message_ ProtobufCMessage *reply = NULL;
    rpc_channel_close(ctl->channel);
    ctl->channel = NULL;
    TRY(ctl_channel(ctl, err));
    return rpc_channel_call(ctl->channel,
                            &(struct rpc_request){TITAN_METHOD("Version"), &request.base,
                                                  &titan__v1__version_response__descriptor, PROBE_MS},
                            &reply, err);
}

/* why: how the stream ended; becomes the error when patience ends. */
static titan_status await_server(const struct live_stream *s, struct titan_error *why)
{
    const int64_t begin_ms = clock_mono_ms();
    struct titan_error now = *why;
    now.hint[0] = '\0';
    (void)titan_error_wrap(&now, "waiting for the server");
    outcome_print(&now);
    for (titan_status status = TITAN_EUNREACHABLE; status != TITAN_OK;) {
        if (s->patience_ms >= 0 && clock_mono_ms() - begin_ms >= s->patience_ms)
            return why->status;
        TRY(rest(why));
        status = probe(s->ctl, &now);
        if (status != TITAN_OK && status != TITAN_EUNREACHABLE && status != TITAN_ETIMEDOUT) {
            *why = now;
            return status;
        }
    }
    (void)fprintf(stderr, "titanctl: the server is back after %lld s\n",
                  (long long)(clock_mono_ms() - begin_ms + 500) / 1000);
    return TITAN_OK;
}

titan_status live_stream_await(struct ctl *ctl, int64_t patience_ms, struct titan_error *why)
{
    return await_server(&(struct live_stream){.ctl = ctl, .patience_ms = patience_ms}, why);
}

/* Is the job over? Called after the stream's end, if the server is there or gave a reason. */
static titan_status is_over(const struct live_stream *s, bool *ret, struct titan_error *err)
{
    _cleanup_message_ Titan__V1__GetJobResponse *now = NULL;
    *ret = false;
    if (s->job_id == 0)
        return TITAN_OK;
    TRY(ctl_job(s->ctl, s->job_id, &now, err));
    *ret = ctl_state_final(now->job->state);
    return TITAN_OK;
}

titan_status live_stream_read(const struct live_stream *s, struct titan_error *err)
{
    struct reading reading = {.stream = s};
    struct stream_call call = s->call;
    int64_t back_ms = INT64_MIN / 2;
    if (s->once)
        return ctl_stream(s->ctl, &call, err);
    call.each = pass;
    call.data = &reading;
    ctl_catch_interrupt();
    TRY(s->job_id ? is_over(s, &reading.enough, err) : probe(s->ctl, err));
    for (;;) {
        reading.enough = false;
        titan_status status = ctl_stream(s->ctl, &call, err);
        if (reading.enough || (status != TITAN_OK && status != TITAN_EUNREACHABLE))
            return status;
        bool away = status == TITAN_EUNREACHABLE && err->sys_errno == ENOTCONN, over = false;
        if (!away) {
            struct titan_error why = {.status = TITAN_OK};
            const titan_status known = is_over(s, &over, &why);
            away = known == TITAN_EUNREACHABLE;
            if (known != TITAN_OK)
                *err = why;
            if (known != TITAN_OK && !away)
                return known;
        }
        if (over && (status == TITAN_OK || clock_mono_ms() - back_ms > SETTLE_MS))
            return status;
        if (away) {
            TRY(await_server(s, err));
            back_ms = clock_mono_ms();
        } else {
            TRY(rest(err)); /* the server is about to stop, or its nodes are not back yet */
        }
    }
}
