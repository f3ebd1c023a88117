/* SPDX-License-Identifier: Apache-2.0 */
/* gzip.c - see gzip.h. */
#include "worker/data/gzip.h"

#include "base/cleanup.h"
#ifndef TITAN_BARE
#include <zlib.h>

#define PIECE ((size_t)1 << 20)

titan_status gzip_pack(const struct buf *in, struct buf *out, struct titan_error *err)
{
    z_stream z = {0};
    int rc = Z_OK;
    size_t done = 0;
    titan_assert(in != out);
    if (deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return titan_fail(err, TITAN_ENOMEM, "no memory to compress %zu bytes", in->len);
    while (rc != Z_STREAM_END && buf_reserve(out, PIECE) == TITAN_OK) {
        if (z.avail_in == 0) {
            const size_t n = MIN(in->len - done, PIECE);
            z.next_in = (Bytef *)in->data + done;
            z.avail_in = (uInt)n;
            done += n;
        }
        z.next_out = (Bytef *)out->data + out->len;
        z.avail_out = (uInt)PIECE;
        rc = deflate(&z, done == in->len ? Z_FINISH : Z_NO_FLUSH);
        out->len += PIECE - z.avail_out;
        out->data[out->len] = '\0';
    }
    (void)deflateEnd(&z);
    return rc == Z_STREAM_END ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "no memory to compress %zu bytes", in->len);
}
#else
titan_status gzip_pack(const struct buf *in, struct buf *out, struct titan_error *err)
{
    titan_assert(in != out);
    return titan_fail(err, TITAN_EUNSUPPORTED, "this build has no zlib (BARE=1): without .gz");
}
#endif
