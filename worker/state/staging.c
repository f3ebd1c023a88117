/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/state/staging.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/progress.h"

struct staging {
    const struct device_handle *device;
    size_t bytes;     /* bytes of a piece */
    void *buffers[2]; /* NULL = the device uses host memory */
    struct event *copied[2];
    bool copying[2]; /* the device uses the buffer until `copied` */
};

titan_status staging_open(const struct device_handle *device, bool own, size_t most, struct staging **ret,
                          struct titan_error *err)
{
    const struct device_ops *ops = device->ops;
    struct staging *g = calloc(1, sizeof *g);
    titan_status status = TITAN_OK;

    if (!g)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    g->device = device;
    g->bytes = MIN(MAX(most, (size_t)1), STAGING_BYTES);
    for (int i = 0; i < 2 && own && status == TITAN_OK; i++) {
        status = ops->alloc_host(device->dev, g->bytes, &g->buffers[i], err);
        if (status == TITAN_OK)
            status = ops->event_open(device->dev, &g->copied[i], err);
    }
    if (status != TITAN_OK) {
        staging_close(g);
        return status;
    }
    *ret = g;
    return TITAN_OK;
}

void staging_close(struct staging *g)
{
    if (!g)
        return;
    for (int i = 0; i < 2; i++) {
        if (g->copied[i])
            g->device->ops->event_close(g->copied[i]);
        if (g->buffers[i])
            g->device->ops->release_host(g->device->dev, g->buffers[i]);
    }
    free(g);
}

/* Waits until the device has done with the buffer. */
static titan_status take_back(struct staging *g, int i, struct titan_error *err)
{
    if (!g->copying[i])
        return TITAN_OK;
    g->copying[i] = false;
    return g->device->ops->event_sync(g->copied[i], err);
}

/* A copy of one piece between a buffer and the memory. */
struct piece {
    void *dst;
    const void *src;
    size_t bytes;
};

static titan_status start_copy(struct staging *g, int i, struct piece p, struct stream *s, struct titan_error *err)
{
    titan_assert(!g->copying[i]);
    TRY(g->device->ops->copy(s, p.dst, p.src, p.bytes));
    TRY(g->device->ops->event_record(g->copied[i], s, err));
    g->copying[i] = true;
    return TITAN_OK;
}

/* Lets the host work on the memory itself, which is host memory. */
static titan_status visit(struct staging *g, char *memory, size_t bytes, struct staging_work work, struct stream *s,
                          struct titan_error *err)
{
    TRY(g->device->ops->stream_sync(s, err));
    for (size_t at = 0; at < bytes; at += g->bytes) {
        progress_action();
        work.fn(work.arg, memory + at, MIN(g->bytes, bytes - at));
    }
    return TITAN_OK;
}

titan_status staging_read(struct staging *g, void *from, size_t bytes, struct staging_work work, struct stream *s,
                          struct titan_error *err)
{
    char *const memory = from;

    if (!g->buffers[0])
        return visit(g, memory, bytes, work, s, err);
    for (int i = 0; i < 2; i++)
        TRY(take_back(g, i, err));
    if (bytes > 0)
        TRY(start_copy(g, 0, (struct piece){g->buffers[0], memory, MIN(g->bytes, bytes)}, s, err));
    for (size_t at = 0, n = 0; at < bytes; at += g->bytes, n++) {
        const size_t next = at + g->bytes;
        const int mine = (int)(n % 2), other = 1 - mine;
        if (next < bytes)
            TRY(start_copy(g, other, (struct piece){g->buffers[other], memory + next, MIN(g->bytes, bytes - next)}, s,
                           err));
        TRY(take_back(g, mine, err));
        progress_action();
        work.fn(work.arg, g->buffers[mine], MIN(g->bytes, bytes - at));
    }
    return TITAN_OK;
}

titan_status staging_write(struct staging *g, void *to, size_t bytes, struct staging_work work, struct stream *s,
                           struct titan_error *err)
{
    char *const memory = to;

    if (!g->buffers[0])
        return visit(g, memory, bytes, work, s, err);
    for (size_t at = 0, n = 0; at < bytes; at += g->bytes, n++) {
        const int mine = (int)(n % 2);
        const size_t part = MIN(g->bytes, bytes - at);
        TRY(take_back(g, mine, err));
        progress_action();
        work.fn(work.arg, g->buffers[mine], part);
        TRY(start_copy(g, mine, (struct piece){memory + at, g->buffers[mine], part}, s, err));
    }
    return TITAN_OK;
}

bool staging_pinned(const struct staging *g)
{
    return g->buffers[0] != NULL;
}

titan_status staging_copy(struct staging *g, struct pinned_place to, const void *from, size_t bytes, struct stream *s,
                          struct titan_error *err)
{
    int i = 0;

    titan_assert(to.part > 0 && staging_pinned(g));
    for (int j = 0; j < 2; j++)
        TRY(take_back(g, j, err));
    for (size_t done = 0, n; done < bytes; done += n, i = 1 - i) {
        const size_t at = to.at + done;
        n = MIN(bytes - done, to.part - at % to.part);
        TRY(take_back(g, i, err)); /* the previous copy goes on meanwhile */
        progress_action();
        TRY(start_copy(g, i, (struct piece){(char *)to.host + at, (const char *)from + done, n}, s, err));
    }
    for (int j = 0; j < 2; j++) {
        TRY(take_back(g, j, err));
        progress_action();
    }
    return g->device->ops->stream_sync(s, err);
}
