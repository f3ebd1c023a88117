/* SPDX-License-Identifier: Apache-2.0 */
#include "base/codecs.h"

#include "base/cleanup.h"
#include "base/error.h"
#include "base/round.h"

/* The order of enum codec. */
#define ROWS(X)                                                                                                        \
    X("none", 0, false, false, false)                                                                                  \
    X("f32", 32, false, false, false)                                                                                  \
    X("bf16", 16, false, false, false)                                                                                 \
    X("fp8", 8, true, false, false)                                                                                    \
    X("int8", 8, true, false, true)                                                                                    \
    X("int4", 4, true, false, true)                                                                                    \
    X("loco", 4, true, true, false)

#define ROW(...) {__VA_ARGS__},
static const struct codec_row rows[CODECS] = {ROWS(ROW)};
#define NAME(name, ...) "|" name
static const char names[] = ROWS(NAME);

const struct codec_row *codec_row(enum codec c)
{
    titan_assert(c < CODECS);
    return &rows[c];
}

const char *codec_names(void)
{
    return names + 1;
}

enum codec codec_find(const char *name)
{
    int c = 0;

    while (c < CODECS && strcmp(rows[c].name, name) != 0)
        c++;
    return (enum codec)c;
}

struct codec_places codec_places(enum codec c, int64_t n)
{
    const int64_t buckets = codec_buckets(n), scales = round_up(buckets * (int64_t)sizeof(float), 16);
    const int64_t codes = codec_row(c)->scaled ? scales : 0;

    return (struct codec_places){.buckets = buckets,
                                 .bytes = codes + round_up((n * codec_row(c)->bits + 7) / 8, 16),
                                 .codes = codes,
                                 .error_bytes = scales + round_up(n, 16),
                                 .error_codes = scales};
}

size_t codec_bytes(enum codec c, int64_t n)
{
    return (size_t)codec_places(c, n).bytes;
}

size_t codec_error_bytes(int64_t n)
{
    return (size_t)codec_places(CODEC_LOCO, n).error_bytes;
}
