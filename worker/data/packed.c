/* SPDX-License-Identifier: Apache-2.0 */
/* packed.c - see packed.h. */
#include "worker/data/packed.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifndef TITAN_BARE
#include <zlib.h>
#include <zstd.h>
#endif

#include "base/cleanup.h"
#include "base/file.h"
#include "worker/data/files.h"

#define INPUT_BYTES ((size_t)1 << 17)

enum packing { PACKING_NONE, PACKING_GZIP, PACKING_ZSTD };

struct packed {
    enum packing packing;
    int fd;
    char path[PATH_MAX];
    uint64_t place;
    uint8_t *input;
    size_t have, used; /* bytes of `input` */
    bool ended;        /* the file has no more */
    bool between;      /* reading stands at the file's beginning, or after the end of a member or frame */
#ifndef TITAN_BARE
    z_stream z;
    ZSTD_DStream *zstd;
#endif
};

static enum packing packing_of(const uint8_t *head, size_t n)
{
    if (n >= 3 && memcmp(head, "\x1f\x8b\x08", 3) == 0)
        return PACKING_GZIP;
    if (n >= 4 && memcmp(head, "\x28\xb5\x2f\xfd", 4) == 0)
        return PACKING_ZSTD;
    return PACKING_NONE;
}

bool packed_begins(const void *head, size_t n)
{
    return packing_of(head, n) != PACKING_NONE;
}

static titan_status start_unpacking(struct packed *p, struct titan_error *err)
{
#ifdef TITAN_BARE
    if (p->packing != PACKING_NONE)
        return titan_fail(err, TITAN_EUNSUPPORTED,
                          "'%s' is compressed: this worker was built without zlib and zstd (BARE=1)", p->path);
    return TITAN_OK;
#else
    p->between = true;
    if (p->packing == PACKING_GZIP && inflateInit2(&p->z, 15 + 16) != Z_OK) /* the largest window; gzip's header */
        return titan_fail(err, TITAN_ENOMEM, "no memory to unpack '%s'", p->path);
    if (p->packing == PACKING_ZSTD && !(p->zstd = ZSTD_createDStream()))
        return titan_fail(err, TITAN_ENOMEM, "no memory to unpack '%s'", p->path);
    return TITAN_OK;
#endif
}

titan_status packed_open(const char *path, struct packed **ret, struct titan_error *err)
{
    const char *const name = data_file_packing(path);
    struct packed *p = calloc(1, sizeof(*p));
    struct stat st;
    if (!p)
        return titan_fail(err, TITAN_ENOMEM, "no memory to read '%s'", path);
    (void)snprintf(p->path, sizeof(p->path), "%s", path);
    titan_status status = TITAN_OK;
    p->fd = file_open_named(path, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    if (p->fd < 0 || fstat(p->fd, &st) < 0)
        status = titan_fail_errno(err, "cannot read '%s'", path);
    else if (!S_ISREG(st.st_mode))
        status = titan_fail(err, TITAN_EINVAL, "'%s' is not a regular file", path);
    else if (!(p->input = malloc(INPUT_BYTES)))
        status = titan_fail(err, TITAN_ENOMEM, "no memory to read '%s'", path);
    if (status == TITAN_OK) {
        const ssize_t n = pread(p->fd, p->input, 4, 0);
        p->packing = packing_of(p->input, n > 0 ? (size_t)n : 0);
        if (p->packing == PACKING_NONE && *name)
            p->packing = strcmp(name, ".gz") == 0 ? PACKING_GZIP : PACKING_ZSTD;
        status = start_unpacking(p, err);
    }
    if (status == TITAN_OK)
        *ret = p;
    else
        packed_close(p);
    return status;
}

void packed_close(struct packed *p)
{
    if (!p)
        return;
#ifndef TITAN_BARE
    if (p->packing == PACKING_GZIP)
        (void)inflateEnd(&p->z);
    (void)ZSTD_freeDStream(p->zstd);
#endif
    if (p->fd >= 0)
        (void)close(p->fd);
    free(p->input);
    free(p);
}

uint64_t packed_place(const struct packed *p)
{
    return p->place;
}

static titan_status read_file(struct packed *p, void *out, size_t n, size_t *ret_got, struct titan_error *err)
{
    titan_assert(p->fd >= 0);
    ssize_t got;
    do
        got = read(p->fd, out, n);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return titan_fail_errno(err, "cannot read '%s'", p->path);
    p->place += (uint64_t)got;
    *ret_got = (size_t)got;
    return TITAN_OK;
}

#ifndef TITAN_BARE
static titan_status damaged(const struct packed *p, const char *what, struct titan_error *err)
{
    return titan_fail(err, TITAN_ECORRUPT, "'%s': %s", p->path, what);
}

static titan_status unpack(struct packed *p, uint8_t *out, size_t n, size_t *ret_got, struct titan_error *err)
{
    for (*ret_got = 0; *ret_got == 0;) {
        if (p->used == p->have && !p->ended) {
            p->used = 0;
            TRY(read_file(p, p->input, INPUT_BYTES, &p->have, err));
            p->ended = p->have == 0;
        }
        /* A gzip file may have padding of zeros after its members. */
        while (p->packing == PACKING_GZIP && p->between && p->place > p->have - p->used && p->used < p->have &&
               !p->input[p->used])
            p->used++;
        if (p->used == p->have && p->ended && p->between)
            return TITAN_OK;
        if (p->used == p->have && !p->ended)
            continue;

        const size_t before = p->used;
        titan_assert(p->used <= p->have && p->have <= INPUT_BYTES);
        if (p->packing == PACKING_GZIP) {
            p->z.next_in = p->input + p->used;
            p->z.avail_in = (uInt)(p->have - p->used);
            p->z.next_out = out;
            p->z.avail_out = (uInt)MIN(n, (size_t)1 << 30);
            const uInt room = p->z.avail_out;
            const int code = inflate(&p->z, Z_NO_FLUSH);
            p->used = p->have - p->z.avail_in;
            *ret_got = room - p->z.avail_out;
            p->between = code == Z_STREAM_END;
            if (p->between)
                (void)inflateReset(&p->z);
            else if (code != Z_OK && code != Z_BUF_ERROR)
                return damaged(p, "the gzip data is damaged", err);
        } else {
            ZSTD_inBuffer in = {p->input, p->have, p->used};
            ZSTD_outBuffer to = {out, n, 0};
            const size_t code = ZSTD_decompressStream(p->zstd, &to, &in);
            p->used = in.pos;
            *ret_got = to.pos;
            if (ZSTD_isError(code))
                return damaged(p, "the zstd data is damaged", err);
            p->between = code == 0;
        }
        if (p->ended && *ret_got == 0 && p->used == before)
            return damaged(p, "the compressed data is cut off", err);
    }
    return TITAN_OK;
}
#else
static titan_status unpack(struct packed *p, uint8_t *out, size_t n, size_t *ret_got, struct titan_error *err)
{
    return read_file(p, out, n, ret_got, err);
}
#endif

titan_status packed_read(struct packed *p, void *out, size_t n, size_t *ret_got, struct titan_error *err)
{
    uint8_t *at = out;
    for (*ret_got = 0; *ret_got < n;) {
        size_t got = 0;
        const titan_status status = p->packing == PACKING_NONE ? read_file(p, at + *ret_got, n - *ret_got, &got, err)
                                                               : unpack(p, at + *ret_got, n - *ret_got, &got, err);
        *ret_got += got;
        TRY(status);
        if (got == 0)
            break;
    }
    return TITAN_OK;
}
