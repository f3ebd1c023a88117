/* SPDX-License-Identifier: Apache-2.0 */
/* live_stream.h - a stream that goes on as long as its job does, over a server that is away in between. */
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
/* What SERVER_GONE says, in ms. */
titan_status live_stream_patience(const struct args *args, int64_t *ret_ms, struct titan_error *err) TITAN_MUST_USE;

struct live_stream {
    struct ctl *ctl;
    const char *method;
    const ProtobufCMessage *request; /* each() moves it on, behind what it has seen: so it is sent again */
    const ProtobufCMessageDescriptor *reply;
    bool (*each)(const ProtobufCMessage *message, void *data); /* false: it has seen enough */
    void *data;
    uint64_t job_id; /* it is over when this one has ended; 0: never */
    int64_t patience_ms;
};
/* One line on stderr says that the server is away, another that it is back. A server that is not there in the
 * beginning is an error at once. */
titan_status live_stream_read(const struct live_stream *s, struct titan_error *err) TITAN_MUST_USE;

/* The same for a command that asks again and again instead: waits until the server answers, after a call that ended
 * with *why. */
titan_status live_stream_await(struct ctl *ctl, int64_t patience_ms, struct titan_error *why) TITAN_MUST_USE;

#endif
