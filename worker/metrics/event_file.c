/* SPDX-License-Identifier: Apache-2.0 */
/* event_file.c - writes event records. The messages are small and are never read here, so this file encodes them by
 * hand. */
#include "worker/metrics/event_file.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/file.h"

/* --- protobuf's wire format --------------------------------------------------------------------------------------- */

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };
/* Fields of Event, Summary, Summary.Value and SessionLog. */
enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY = 5,
    EVENT_SESSION_LOG = 7,
    SUMMARY_VALUE = 1,
    VALUE_TAG = 1,
    VALUE_SIMPLE = 2,
    SESSION_STATUS = 1,
    SESSION_START = 1
};

static void put(struct buf *b, const void *data, size_t len)
{
    if (buf_append(b, data, len) != TITAN_OK)
        b->limit = SIZE_MAX; /* buf_failed() reports it */
}

static void put_varint(struct buf *b, uint64_t v)
{
    do {
        const unsigned char byte = (unsigned char)(v & 127) | (v > 127 ? 128 : 0);
        put(b, &byte, 1);
        v >>= 7;
    } while (v);
}

static void put_key(struct buf *b, int field, int wire)
{
    put_varint(b, (uint64_t)(field << 3 | wire));
}

static void put_bytes(struct buf *b, int field, const void *data, size_t len)
{
    put_key(b, field, WIRE_BYTES);
    put_varint(b, len);
    put(b, data, len);
}

static void begin_event(struct buf *event, uint64_t step, int64_t wall_ms)
{
    const double seconds = (double)wall_ms * 1e-3;

    put_key(event, EVENT_WALL_TIME, WIRE_64);
    put(event, &seconds, sizeof seconds);
    if (step > 0) {
        put_key(event, EVENT_STEP, WIRE_VARINT);
        put_varint(event, step);
    }
}

/* --- records ------------------------------------------------------------------------------------------------------ */

static uint32_t masked_crc(const void *data, size_t len)
{
    const uint32_t crc = crc32c(0, data, len);
    return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

/* Appends a whole record. It must be whole, because readers stop at a partial record. */
static titan_status append_record(struct event_file *f, const struct buf *event, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf record = BUF_INIT;
    const uint64_t len = event->len;
    const uint32_t len_crc = masked_crc(&len, sizeof len), crc = masked_crc(event->data, event->len);

    put(&record, &len, sizeof len);
    put(&record, &len_crc, sizeof len_crc);
    put(&record, event->data, event->len);
    put(&record, &crc, sizeof crc);
    if (buf_failed(event) || buf_failed(&record))
        return titan_fail(err, TITAN_ENOMEM, "event file: out of memory");
    const titan_status status = file_append(f->fd, record.data, record.len, err);
    return status == TITAN_OK ? TITAN_OK : titan_error_wrap(err, "event file");
}

titan_status event_file_open(struct event_file *f, const char *folder, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf event = BUF_INIT;
    static const char version[] = "brain.Event:2";
    char path[PATH_MAX], host[64] = "host";
    const int64_t now = clock_wall_ms();

    titan_assert(f->fd < 0);
    (void)gethostname(host, sizeof host - 1);
    TRY(dir_make_named(folder, err));
    /* TensorBoard reads files in the order of their names. */
    if (snprintf(path, sizeof path, "%s/events.out.tfevents.%lld.%03d.%s.%d", folder, (long long)(now / 1000),
                 (int)(now % 1000), host, (int)getpid()) >= (int)sizeof path)
        return titan_fail(err, TITAN_EINVAL, "folder '%.64s...' has too long a name", folder);
    *f = (struct event_file){.fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644)};
    if (f->fd < 0)
        return titan_fail_errno(err, "cannot open '%s'", path);
    begin_event(&event, 0, now);
    put_bytes(&event, EVENT_FILE_VERSION, version, sizeof version - 1);
    const titan_status status = append_record(f, &event, err);
    if (status != TITAN_OK) {
        event_file_close(f);
        (void)unlink(path);
    }
    return status;
}

void event_file_close(struct event_file *f)
{
    close_fd(&f->fd);
    *f = (struct event_file){.fd = -1};
}

titan_status event_file_add(struct event_file *f, uint64_t step, int64_t wall_ms, const struct event_scalar *scalars,
                            int n, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf event = BUF_INIT, summary = BUF_INIT, session = BUF_INIT, start = BUF_INIT;

    titan_assert(f->fd >= 0 && step > 0 && n > 0);
    if (!f->started) { /* voids earlier files' events from this step on: these steps are trained again */
        begin_event(&start, step, wall_ms);
        put_key(&session, SESSION_STATUS, WIRE_VARINT);
        put_varint(&session, SESSION_START);
        put_bytes(&start, EVENT_SESSION_LOG, session.data, session.len);
        TRY(append_record(f, &start, err));
        f->started = true;
    }
    for (int i = 0; i < n; i++) {
        _cleanup_(buf_free) struct buf value = BUF_INIT;
        const float simple = (float)scalars[i].value;
        put_bytes(&value, VALUE_TAG, scalars[i].tag, strlen(scalars[i].tag));
        put_key(&value, VALUE_SIMPLE, WIRE_32);
        put(&value, &simple, sizeof simple);
        put_bytes(&summary, SUMMARY_VALUE, value.data, value.len);
    }
    begin_event(&event, step, wall_ms);
    put_bytes(&event, EVENT_SUMMARY, summary.data, summary.len);
    return append_record(f, &event, err);
}
