/* SPDX-License-Identifier: Apache-2.0 */
/* live_stream.h - a stream that lasts as long as its job, across absences of the server. */
#ifndef TITAN_CTL_LIVE_STREAM_H
#define TITAN_CTL_LIVE_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/options.h"
#include "ctl/client.h"

#define SERVER_GONE                                                                                                    \
    {                                                                                                                  \
        "server-gone", 0, "DURATION",                                                                                  \
            "end with 4 when the server does not answer for so long: 30s, 5m (default: never)", WORD_NONE              \
    }
#define PATIENT_FOR_EVER INT64_C(-1)
/* Value of SERVER_GONE, in ms. */
titan_status live_stream_patience(const struct args *args, int64_t *ret_ms, struct titan_error *err) TITAN_MUST_USE;

struct live_stream {
    struct ctl *ctl;
    /* each() moves the request past the received messages, so that a new stream continues there */
    struct stream_call call;
    bool once;       /* the stream ends when the call ends, after the past messages */
    uint64_t job_id; /* the stream ends with this job; 0: never */
    int64_t patience_ms;
};
/* Prints a line on stderr when the server is away, and another when it is back. A server missing at the start is an
 * immediate error. */
titan_status live_stream_read(const struct live_stream *s, struct titan_error *err) TITAN_MUST_USE;

/* The same for a polling command: waits until the server answers, after a call that ended with *why. */
titan_status live_stream_await(struct ctl *ctl, int64_t patience_ms, struct titan_error *why) TITAN_MUST_USE;

#endif
