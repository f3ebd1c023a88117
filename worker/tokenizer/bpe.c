/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/vec.h"
#include "worker/tokenizer/unicode.h"

#define PAIRS_MIN 64u
#define SHORT_WORD 64 /* up to so many symbols, merge_short() scans all pairs for the lowest rank */
#define NO_RANK UINT32_MAX

/* --- pairs -------------------------------------------------------------------------------------------------------- */

static inline uint64_t both_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static inline size_t place_of(const struct bpe *b, uint64_t both)
{
    size_t at = (size_t)(both * HASH_STEP >> 32) & (b->size - 1);
    while (b->pairs[at].both != both && b->pairs[at].both != PAIR_FREE)
        at = (at + 1) & (b->size - 1);
    return at;
}

/* Finds the pair of two tokens. NULL: the two do not merge. */
static inline const struct pair *find_pair(const struct bpe *b, int32_t left, int32_t right)
{
    const struct pair *p = &b->pairs[place_of(b, both_of(left, right))];
    return p->both == PAIR_FREE ? NULL : p;
}

titan_status bpe_add(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id, struct titan_error *err)
{
    titan_assert(left >= 0 && right >= 0 && id >= 0);
    if (2 * (b->n_pairs + 1) > b->size) {
        struct pair *old = b->pairs;
        const size_t old_size = b->size, size = old_size ? 2 * old_size : PAIRS_MIN;
        titan_assert((size & (size - 1)) == 0);
        struct pair *pairs = malloc(size * sizeof(*pairs));
        if (!pairs)
            return titan_fail(err, TITAN_ENOMEM, "no memory for %zu pairs of tokens", size);
        for (size_t i = 0; i < size; i++)
            pairs[i].both = PAIR_FREE;
        b->pairs = pairs;
        b->size = size;
        for (size_t i = 0; i < old_size; i++)
            if (old[i].both != PAIR_FREE)
                b->pairs[place_of(b, old[i].both)] = old[i];
        free(old);
    }
    titan_assert(2 * (b->n_pairs + 1) <= b->size);
    struct pair *p = &b->pairs[place_of(b, both_of(left, right))];
    b->n_pairs += p->both == PAIR_FREE;
    *p = (struct pair){.both = both_of(left, right), .rank = rank, .id = id};
    return TITAN_OK;
}

void bpe_free(struct bpe *b)
{
    free(b->pairs);
    *b = (struct bpe){0};
}

/* --- short words -------------------------------------------------------------------------------------------------- */

/* Merges n symbols in place, at most SHORT_WORD. Returns the number of symbols left. */
static size_t merge_short(const struct bpe *b, int32_t *ids, size_t n)
{
    titan_assert(n <= SHORT_WORD);
    struct {
        uint32_t rank;
        int32_t id;
    } pairs[SHORT_WORD]; /* pair i: symbols i and i + 1 */
    for (size_t i = 0; i + 1 < n; i++) {
        const struct pair *p = find_pair(b, ids[i], ids[i + 1]);
        pairs[i].rank = p ? p->rank : NO_RANK;
        pairs[i].id = p ? p->id : -1;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            best = pairs[i].rank < pairs[best].rank ? i : best;
        if (pairs[best].rank == NO_RANK)
            break;
        ids[best] = pairs[best].id;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof(*ids));
        memmove(pairs + best, pairs + best + 1, (n - best - 1) * sizeof(*pairs));
        for (size_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct pair *p = find_pair(b, ids[i], ids[i + 1]);
            pairs[i].rank = p ? p->rank : NO_RANK;
            pairs[i].id = p ? p->id : -1;
        }
    }
    return n;
}

/* --- long words --------------------------------------------------------------------------------------------------- */

/* Places of pairs of one rank. Most places come in order; the others go to a heap. */
struct bucket {
    uint32_t rank;
    bool queued;
    uint32_t *places;
    size_t n, cap, at; /* places[at..n) are left, ascending */
    uint32_t *late;    /* places that came out of order: a heap, the leftmost on top */
    size_t n_late, cap_late;
};

struct symbol {
    int32_t id; /* -1: the symbol was merged into the symbol before it */
    uint32_t before, behind;
};

struct long_word {
    const struct bpe *b;
    struct symbol *symbols;
    size_t n;
    struct bucket *buckets;
    size_t n_buckets, cap_buckets;
    uint32_t *table; /* by hash of the rank: bucket number + 1, 0 = free */
    size_t table_size;
    uint64_t *queue; /* a heap of rank << 32 | bucket: the buckets with places */
    size_t n_queue, cap_queue;
};

#define HEAP_UP(heap, n)                                                                                               \
    for (size_t i_ = (n)-1; i_ > 0 && (heap)[i_] < (heap)[(i_ - 1) / 2]; i_ = (i_ - 1) / 2) {                          \
        const __typeof__(*(heap)) swap_ = (heap)[i_];                                                                  \
        (heap)[i_] = (heap)[(i_ - 1) / 2];                                                                             \
        (heap)[(i_ - 1) / 2] = swap_;                                                                                  \
    }
/* Removes the heap's top; n: number of entries left. */
#define HEAP_POP(heap, n)                                                                                              \
    do {                                                                                                               \
        (heap)[0] = (heap)[n];                                                                                         \
        for (size_t i_ = 0, child_; (child_ = 2 * i_ + 1) < (n); i_ = child_) {                                        \
            child_ += child_ + 1 < (n) && (heap)[child_ + 1] < (heap)[child_];                                         \
            if ((heap)[i_] <= (heap)[child_])                                                                          \
                break;                                                                                                 \
            const __typeof__(*(heap)) swap_ = (heap)[i_];                                                              \
            (heap)[i_] = (heap)[child_];                                                                               \
            (heap)[child_] = swap_;                                                                                    \
        }                                                                                                              \
    } while (0)

static size_t table_place(const struct long_word *w, uint32_t rank)
{
    titan_assert((w->table_size & (w->table_size - 1)) == 0);
    size_t at = hash_mix(rank) & (w->table_size - 1);
    while (w->table[at] && w->buckets[w->table[at] - 1].rank != rank)
        at = (at + 1) & (w->table_size - 1);
    return at;
}

/* Puts the pair of symbol i and the next symbol into its rank's bucket, if the pair has a rank. False: no memory. */
static bool note_pair(struct long_word *w, uint32_t i)
{
    titan_assert(i < w->n);
    const uint32_t behind = w->symbols[i].behind;
    if (behind >= w->n)
        return true;
    const struct pair *p = find_pair(w->b, w->symbols[i].id, w->symbols[behind].id);
    if (!p)
        return true;

    /* Finds the bucket of the rank, and makes it if it is missing. */
    if (2 * (w->n_buckets + 1) > w->table_size) {
        const size_t size = w->table_size ? 2 * w->table_size : PAIRS_MIN;
        uint32_t *table = calloc(size, sizeof(*table));
        if (!table)
            return false;
        free(w->table);
        w->table = table;
        w->table_size = size;
        for (size_t b = 0; b < w->n_buckets; b++)
            table[table_place(w, w->buckets[b].rank)] = (uint32_t)b + 1;
    }
    const size_t at = table_place(w, p->rank);
    if (!w->table[at]) {
        if (!VEC_PUSH(w->buckets, w->n_buckets, w->cap_buckets, (struct bucket){.rank = p->rank}))
            return false;
        w->table[at] = (uint32_t)w->n_buckets;
    }
    titan_assert(w->table[at] > 0 && w->table[at] <= w->n_buckets);
    struct bucket *k = &w->buckets[w->table[at] - 1];

    if (k->at == k->n)
        k->at = k->n = 0;
    if (k->n == 0 || k->places[k->n - 1] < i) {
        if (!VEC_PUSH(k->places, k->n, k->cap, i))
            return false;
    } else {
        if (!VEC_PUSH(k->late, k->n_late, k->cap_late, i))
            return false;
        HEAP_UP(k->late, k->n_late)
    }
    if (!k->queued) {
        if (!VEC_PUSH(w->queue, w->n_queue, w->cap_queue, (uint64_t)p->rank << 32 | (uint64_t)(k - w->buckets)))
            return false;
        HEAP_UP(w->queue, w->n_queue)
        k->queued = true;
    }
    return true;
}

static void long_word_free(struct long_word *w)
{
    for (size_t i = 0; i < w->n_buckets; i++) {
        free(w->buckets[i].places);
        free(w->buckets[i].late);
    }
    free(w->buckets);
    free(w->symbols);
    free(w->table);
    free(w->queue);
}

/* Merges n symbols in place. *ret_n: number of symbols left. */
static titan_status encode_long(const struct bpe *b, int32_t *ids, size_t n, size_t *ret_n, struct titan_error *err)
{
    titan_assert(n > SHORT_WORD && n < UINT32_MAX);
    _cleanup_(long_word_free) struct long_word w = {.b = b, .n = n};
    w.symbols = malloc(n * sizeof(*w.symbols));
    for (size_t i = 0; w.symbols && i < n; i++)
        w.symbols[i] = (struct symbol){.id = ids[i], .before = (uint32_t)i - 1, .behind = (uint32_t)i + 1};
    bool room = w.symbols;
    for (uint32_t i = 0; room && i + 1 < n; i++)
        room = note_pair(&w, i);
    while (room && w.n_queue > 0) {
        struct bucket *k = &w.buckets[(uint32_t)w.queue[0]];
        uint32_t i;
        titan_assert(k->at <= k->n);
        if (k->n_late > 0 && (k->at == k->n || k->late[0] < k->places[k->at])) {
            i = k->late[0];
            k->n_late--;
            HEAP_POP(k->late, k->n_late);
        } else if (k->at < k->n) {
            i = k->places[k->at++];
        } else {
            k->queued = false;
            w.n_queue--;
            HEAP_POP(w.queue, w.n_queue);
            continue;
        }
        struct symbol *s = &w.symbols[i];
        titan_assert(i < n);
        const struct pair *p = s->id >= 0 && s->behind < n ? find_pair(b, s->id, w.symbols[s->behind].id) : NULL;
        if (!p || p->rank != k->rank)
            continue; /* a merge has changed one of the two symbols since */
        s->id = p->id;
        w.symbols[s->behind].id = -1;
        s->behind = w.symbols[s->behind].behind;
        if (s->behind < n)
            w.symbols[s->behind].before = i;
        room = note_pair(&w, i) && (s->before >= n || note_pair(&w, s->before));
    }
    if (!room)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a word of %zu bytes", n);
    *ret_n = 0;
    for (size_t i = 0; i < n; i = w.symbols[i].behind)
        ids[(*ret_n)++] = w.symbols[i].id;
    titan_assert(*ret_n >= 1 && *ret_n <= n);
    return TITAN_OK;
}

titan_status bpe_encode(const struct bpe *b, const struct vocabulary *v, const char *word, size_t n, struct tokens *out,
                        struct titan_error *err)
{
    if (!VEC_RESERVE(out->ids, out->cap, out->n + n))
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu tokens", out->n + n);
    const int32_t whole = b->whole_words ? vocabulary_find(v, word, n) : -1;
    if (whole >= 0) {
        out->ids[out->n++] = whole;
        return TITAN_OK;
    }
    const size_t begin = out->n;

    /* Splits the word into its first tokens. `out` has room for a token per byte. */
    titan_assert(n <= INT32_MAX);
    const unsigned char *p = (const unsigned char *)word;
    bool unknown = false;
    for (size_t at = 0, len = 1; at < n; at += len) {
        if (!b->by_bytes)
            (void)utf8_code(p + at, &len);
        const int32_t id = b->by_bytes ? b->of_byte[p[at]] : vocabulary_find(v, p + at, len);
        if (id >= 0) {
            out->ids[out->n++] = id;
        } else if (b->byte_fallback) {
            for (size_t i = 0; i < len; i++)
                out->ids[out->n++] = b->of_byte[p[at + i]];
        } else if (b->unknown >= 0 && !(unknown && b->fuse_unknown)) {
            out->ids[out->n++] = b->unknown;
        }
        unknown = id < 0;
    }

    size_t left = out->n - begin;
    if (b->n_pairs > 0 && left > SHORT_WORD)
        TRY(encode_long(b, out->ids + begin, left, &left, err));
    else if (b->n_pairs > 0)
        left = merge_short(b, out->ids + begin, left);
    titan_assert(begin + left <= out->n);
    out->n = begin + left;
    return TITAN_OK;
}
