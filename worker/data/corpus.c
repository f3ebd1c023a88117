/* SPDX-License-Identifier: Apache-2.0 */
/* corpus.c - see corpus.h. */
#include "worker/data/corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/vec.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are little-endian");

/* --- building ----------------------------------------------------------------------------------------------------- */

titan_status corpus_map(const char *path, struct mapping *ret, struct titan_error *err)
{
    struct stat st;
    _cleanup_fd_ int fd = file_open_named(path, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        return titan_fail_errno(err, "training data '%s'", path);
    if (!S_ISREG(st.st_mode) || st.st_size <= 0)
        return titan_fail(err, TITAN_EINVAL, "training data '%s' is %s", path,
                          S_ISREG(st.st_mode) ? "empty" : "not a regular file");
    void *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return titan_fail_errno(err, "cannot map %lld bytes of '%s'", (long long)st.st_size, path);
    *ret = (struct mapping){.at = at, .bytes = (size_t)st.st_size};
    return TITAN_OK;
}

void corpus_unmap(struct mapping *m)
{
    if (m->at)
        (void)munmap(m->at, m->bytes);
    *m = (struct mapping){0};
}

static void segment_close(struct segment *s)
{
    corpus_unmap(&s->mapping);
    corpus_unmap(&s->index_mapping);
}

titan_status corpus_add(struct corpus *c, struct segment segment, const char *name, struct titan_error *err)
{
    titan_status status = TITAN_OK;
    titan_assert(segment.width == 1 || segment.width == 2 || segment.width == 4 || segment.width == 8);
    if (c->n == 0)
        c->hash = HASH_INIT;
    segment.start = c->tokens;
    if (segment.tokens > INT64_MAX - c->tokens)
        status = titan_fail(err, TITAN_EINVAL, "training data of more than 2^63 tokens");
    else if (!VEC_PUSH(c->segments, c->n, c->cap, segment))
        status = titan_fail(err, TITAN_ENOMEM, "no memory for %zu files of training data", c->n + 1);
    if (status != TITAN_OK) {
        segment_close(&segment);
        return status;
    }
    const uint64_t in_file = segment.tokens - segment.separated;
    c->hash = hash_bytes(c->hash, name, strlen(name) + 1);
    c->hash = hash_bytes(c->hash, &in_file, sizeof(in_file));
    c->tokens += segment.tokens;
    return TITAN_OK;
}

void corpus_close(struct corpus *c)
{
    for (size_t i = 0; i < c->n; i++)
        segment_close(&c->segments[i]);
    free(c->segments);
    free(c->small);
    *c = (struct corpus){0};
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* The segment that holds token number t of the stream. */
static size_t find_segment(const struct corpus *c, uint64_t t)
{
    titan_assert(c->n > 0 && t < c->tokens);
    size_t lo = 0, hi = c->n - 1;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo + 1) / 2;
        if (c->segments[mid].start <= t)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static const uint8_t *segment_data(const struct corpus *c, const struct segment *s)
{
    return s->data ? s->data : c->small + s->small_offset;
}

static uint64_t token_at(const uint8_t *data, uint32_t width, uint64_t at)
{
    uint16_t two;
    uint32_t four;
    uint64_t eight;
    switch (width) { /* little-endian, as this machine is */
    case 1:
        return data[at];
    case 2:
        memcpy(&two, data + 2 * at, sizeof(two));
        return two;
    case 4:
        memcpy(&four, data + 4 * at, sizeof(four));
        return four;
    default:
        memcpy(&eight, data + 8 * at, sizeof(eight));
        return eight;
    }
}

static titan_status too_large(uint64_t id, uint64_t place, int64_t vocab_size, titan_status status,
                              struct titan_error *err)
{
    return titan_fail(err, status,
                      "token %" PRIu64 " of the training data has the id %" PRIu64 ", model.vocab_size is %" PRId64
                      ": the data was made with a larger vocabulary",
                      place, id, vocab_size);
}

titan_status corpus_read(const struct corpus *c, uint64_t at, int64_t n, int64_t vocab_size, int32_t *ret,
                         struct titan_error *err)
{
    const uint64_t limit = vocab_size > 0 ? MIN((uint64_t)vocab_size, (uint64_t)INT32_MAX) : INT32_MAX;
    titan_assert(n >= 0 && at <= c->tokens && (uint64_t)n <= c->tokens - at);
    for (size_t k = n > 0 ? find_segment(c, at) : 0; n > 0; k++) {
        const struct segment *s = &c->segments[k];
        const uint64_t from = at - s->start, in_file = s->tokens - s->separated;
        const int64_t here = (int64_t)MIN((uint64_t)n, s->tokens - from);
        const int64_t stored = from < in_file ? (int64_t)MIN((uint64_t)here, in_file - from) : 0;
        const uint8_t *data = segment_data(c, s);
        titan_assert(stored >= 0 && stored <= here);
        for (int64_t i = 0; i < stored; i++) {
            const uint64_t id = token_at(data, s->width, from + (uint64_t)i);
            if (id >= limit)
                return too_large(id, at + (uint64_t)i, (int64_t)limit, TITAN_ECORRUPT, err);
            ret[i] = (int32_t)id;
        }
        if (stored < here)
            ret[stored] = c->separator;
        at += (uint64_t)here;
        ret += here;
        n -= here;
    }
    return TITAN_OK;
}

/* --- documents ---------------------------------------------------------------------------------------------------- */

uint64_t corpus_document(const struct segment *s, uint64_t d)
{
    const struct document_index *x = &s->index;
    if (x->select)
        d = token_at(x->select, 8, d);
    if (d >= x->n_offsets)
        return s->tokens;
    return MIN(token_at(x->offsets, 8, d) / x->unit, s->tokens);
}

void corpus_starts(const struct corpus *c, uint64_t at, int64_t n, const int32_t *tokens, int32_t *ret)
{
    titan_assert(n >= 0 && at <= c->tokens && (uint64_t)n <= c->tokens - at);
    int32_t start = 0; /* where the token's document begins, relative to `at` */
    for (int64_t i = 0; i < n;) {
        const struct segment *s = &c->segments[find_segment(c, at + (uint64_t)i)];
        const uint64_t base = at + (uint64_t)i - s->start, documents = s->index.documents;
        const int64_t first = i, end = i + (int64_t)MIN((uint64_t)(n - i), s->tokens - base);
        if (documents == 0) { /* the segment has no index: separators end the documents */
            for (; i < end; i++) {
                ret[i] = start;
                if (tokens[i] == c->separator)
                    start = (int32_t)i + 1;
            }
            continue;
        }

        /* Finds the last document that begins at or before token `base` of the segment. */
        uint64_t d = 0;
        for (uint64_t hi = documents; hi - d > 1;) {
            const uint64_t mid = d + (hi - d) / 2;
            if (corpus_document(s, mid) <= base)
                d = mid;
            else
                hi = mid;
        }
        uint64_t next = corpus_document(s, d + 1);
        if (corpus_document(s, d) == base)
            start = (int32_t)first;
        for (; i < end; i++) {
            while (base + (uint64_t)(i - first) >= next && d + 1 < documents) {
                const uint64_t after = corpus_document(s, ++d + 1);
                start = (int32_t)i;
                next = after < next ? s->tokens : after; /* not ascending: to the segment's end */
            }
            ret[i] = start;
        }
    }
}

titan_status corpus_list_documents(const struct corpus *c, struct bin_document **ret, struct titan_error *err)
{
    const uint64_t n = corpus_documents(c);
    uint64_t at = 0;
    _cleanup_free_ struct bin_document *list = calloc(n + 1, sizeof(*list));
    if (!list)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a list of %" PRIu64 " documents", n);
    for (size_t i = 0; i < c->n; i++) {
        const struct segment *s = &c->segments[i];
        if (s->separated)
            list[at++] = (struct bin_document){s->start, s->tokens};
        else if (s->index.documents == 0)
            return titan_fail(err, TITAN_EINVAL, "its files have no index of documents");
        for (uint64_t d = 0; d < s->index.documents; d++) {
            const uint64_t from = corpus_document(s, d),
                           to = d + 1 < s->index.documents ? corpus_document(s, d + 1) : s->tokens;
            list[at++] = (struct bin_document){s->start + from, to > from ? to - from : 0};
        }
    }
    titan_assert(at == n);
    *ret = TAKE(list);
    return TITAN_OK;
}

bool corpus_masked(const struct corpus *c)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->segments[i].mask)
            return true;
    return false;
}

int64_t corpus_mask(const struct corpus *c, uint64_t at, int64_t n, int32_t *targets)
{
    titan_assert(n >= 0 && at <= c->tokens && (uint64_t)n <= c->tokens - at);
    int64_t trained = 0;
    for (int64_t i = 0; i < n;) {
        const struct segment *s = &c->segments[find_segment(c, at + (uint64_t)i)];
        const uint64_t base = at + (uint64_t)i - s->start;
        const int64_t end = i + (int64_t)MIN((uint64_t)(n - i), s->tokens - base);
        for (uint64_t t = base; i < end; i++, t++) {
            const bool counts = !s->mask || s->mask[t / 8] >> (t % 8) & 1;
            trained += counts;
            if (targets && !counts)
                targets[i] = -1;
        }
    }
    return trained;
}

uint64_t corpus_documents(const struct corpus *c)
{
    uint64_t n = 0;
    for (size_t i = 0; i < c->n; i++)
        n += c->segments[i].index.documents + c->segments[i].separated;
    return n;
}

/* --- the vocabulary ----------------------------------------------------------------------------------------------- */

/* at most CHECK_TOKENS tokens of one file are checked, in CHECK_PARTS parts */
#define CHECK_TOKENS (UINT64_C(1) << 26)
#define CHECK_PARTS 64

titan_status corpus_check_ids(const struct corpus *c, int64_t vocab_size, struct titan_error *err)
{
    titan_assert(vocab_size > 0);
    for (size_t k = 0; k < c->n; k++) {
        const struct segment *s = &c->segments[k];
        titan_assert(s->separated <= s->tokens);
        const uint64_t n = s->tokens - s->separated;
        if ((s->width < 8 && (uint64_t)vocab_size >= UINT64_C(1) << 8 * s->width) ||
            (s->id_max >= 0 && s->id_max < vocab_size))
            continue;
        if (s->id_max >= 0)
            return titan_fail(err, TITAN_EINVAL,
                              "the training data has ids up to %" PRId64 ", model.vocab_size is %" PRId64
                              ": it was made with a larger vocabulary",
                              s->id_max, vocab_size);
        const bool whole = n <= CHECK_TOKENS;
        const uint64_t parts = whole ? 1 : CHECK_PARTS, part = whole ? n : CHECK_TOKENS / CHECK_PARTS,
                       step = (n - part) / (CHECK_PARTS - 1);
        const uint8_t *const data = segment_data(c, s);
        titan_assert((parts - 1) * step + part <= n);
        for (uint64_t i = 0; i < parts; i++)
            for (uint64_t t = i * step; t < i * step + part; t++) {
                const uint64_t id = token_at(data, s->width, t);
                if (id >= (uint64_t)vocab_size)
                    return too_large(id, s->start + t, vocab_size, TITAN_EINVAL, err);
            }
    }
    return TITAN_OK;
}
