/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/unigram.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/vec.h"
#include "worker/tokenizer/unicode.h"

#define EDGES_MIN 64u
#define SHORT_WORD 64 /* bytes */
#define ROOT 0

/* --- scores ------------------------------------------------------------------------------------------------------- */

/* Computes the score from the shortest digits of the number. The digits are a whole number, which is multiplied or
 * divided by a power of ten. So the result is rounded twice, as in `tokenizers`. */
double unigram_score(double value)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(text, sizeof(text), "%.*e", digits - 1, value);
        if (strtod(text, NULL) == value)
            break;
    }
    uint64_t whole = 0;
    int places = 0;
    const char *at = text;
    for (bool point = false; *at != 'e'; at++) {
        if (*at >= '0' && *at <= '9') {
            whole = whole * 10 + (uint64_t)(*at - '0');
            places += point;
        }
        point |= *at == '.';
    }
    const int power = (int)strtol(at + 1, NULL, 10) - places;
    const double scale = pow(10, abs(power));
    const double size = power < 0 ? (double)whole / scale : (double)whole * scale;
    return value < 0 ? -size : size;
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

static size_t place_of(const struct unigram *u, uint64_t from)
{
    size_t at = (size_t)(from * HASH_STEP >> 32) & (u->size - 1);
    while (u->edges[at].from != from && u->edges[at].from != EDGE_FREE)
        at = (at + 1) & (u->size - 1);
    return at;
}

static titan_status add_node(struct unigram *u, struct titan_error *err)
{
    if (u->n_nodes < UINT32_MAX && VEC_PUSH(u->ids, u->n_nodes, u->cap_nodes, -1))
        return TITAN_OK;
    return titan_fail(err, TITAN_ENOMEM, "no memory for %zu bytes of tokens", u->n_nodes);
}

titan_status unigram_add(struct unigram *u, const char *token, size_t n, int32_t id, struct titan_error *err)
{
    uint32_t node = ROOT;
    if (u->n_nodes == 0)
        TRY(add_node(u, err));
    for (size_t i = 0; i < n; i++) {
        if (2 * (u->n_edges + 1) > u->size) {
            struct edge *old = u->edges;
            const size_t old_size = u->size, size = old_size ? 2 * old_size : EDGES_MIN;
            titan_assert((size & (size - 1)) == 0);
            struct edge *edges = malloc(size * sizeof(*edges));
            if (!edges)
                return titan_fail(err, TITAN_ENOMEM, "no memory for %zu bytes of tokens", size);
            for (size_t k = 0; k < size; k++)
                edges[k].from = EDGE_FREE;
            u->edges = edges;
            u->size = size;
            for (size_t k = 0; k < old_size; k++)
                if (old[k].from != EDGE_FREE)
                    u->edges[place_of(u, old[k].from)] = old[k];
            free(old);
        }
        struct edge *edge = &u->edges[place_of(u, (uint64_t)node << 8 | (unsigned char)token[i])];
        if (edge->from == EDGE_FREE) {
            *edge = (struct edge){(uint64_t)node << 8 | (unsigned char)token[i], (uint32_t)u->n_nodes};
            u->n_edges++;
            TRY(add_node(u, err));
        }
        node = edge->to;
    }
    titan_assert(node < u->n_nodes);
    if (n > 0)
        u->ids[node] = id;
    return TITAN_OK;
}

void unigram_free(struct unigram *u)
{
    free(u->scores);
    free(u->edges);
    free(u->ids);
    *u = (struct unigram){0};
}

/* --- the best cut ------------------------------------------------------------------------------------------------- */

#define NOWHERE UINT32_MAX

/* The best split of the word up to a place. */
struct arrival {
    double score;
    uint32_t from; /* begin of the split's last token; NOWHERE: no token ends at this place */
    int32_t id;
};

static void arrive(struct arrival *at, double score, size_t from, int32_t id)
{
    if (at->from == NOWHERE || score > at->score)
        *at = (struct arrival){.score = score, .from = (uint32_t)from, .id = id};
}

titan_status unigram_encode(const struct unigram *u, const struct vocabulary *v, const char *word, size_t n,
                            struct tokens *out, struct titan_error *err)
{
    struct arrival few[SHORT_WORD + 1];
    _cleanup_free_ struct arrival *many = n > SHORT_WORD ? malloc((n + 1) * sizeof(*many)) : NULL;
    struct arrival *const best = n > SHORT_WORD ? many : few;
    titan_assert(n > 0 && n < NOWHERE);
    if (!best || !VEC_RESERVE(out->ids, out->cap, out->n + n))
        return titan_fail(err, TITAN_ENOMEM, "no memory for a word of %zu bytes", n);
    const unsigned char *const p = (const unsigned char *)word;
    for (size_t i = 0; i <= n; i++)
        best[i] = (struct arrival){.from = NOWHERE};
    for (size_t at = 0, character; at < n; at += character) {
        bool known = false; /* the character is a token */
        uint32_t node = ROOT;
        (void)utf8_code(p + at, &character);
        for (size_t end = at; end < n && u->n_edges > 0;) {
            const struct edge *edge = &u->edges[place_of(u, (uint64_t)node << 8 | p[end])];
            if (edge->from == EDGE_FREE)
                break;
            node = edge->to;
            end++;
            if (u->ids[node] < 0)
                continue;
            arrive(&best[end], u->scores[u->ids[node]] + best[at].score, at, u->ids[node]);
            known |= end - at == character;
        }
        if (!known)
            arrive(&best[at + character], u->unknown_score + best[at].score, at, u->unknown);
    }
    titan_assert(best[n].from != NOWHERE);

    /* Reverses the chain of tokens. Afterwards `from` at a token's begin is the token's end. */
    uint32_t end = (uint32_t)n, after = NOWHERE;
    int32_t id = best[n].id;
    while (end > 0) {
        const uint32_t begin = best[end].from;
        const int32_t before = best[begin].id;
        best[end].from = after;
        best[begin].id = id;
        after = end;
        end = begin;
        id = before;
    }
    best[0].from = after;

    for (size_t at = 0; at < n;) {
        const size_t begin = at;
        while (at < n && best[at].id == u->unknown)
            at = best[at].from;
        if (at > begin) {
            /* Handles adjacent characters that are no tokens. Together they may be a token that is less likely. */
            const int32_t rare = vocabulary_find(v, word + begin, at - begin);
            bool in_bytes = u->byte_fallback;
            for (size_t i = begin; in_bytes && i < at; i++)
                in_bytes = u->of_byte[p[i]] >= 0;
            for (size_t i = begin; rare < 0 && in_bytes && i < at; i++)
                out->ids[out->n++] = u->of_byte[p[i]];
            if (rare >= 0 || !in_bytes)
                out->ids[out->n++] = rare >= 0 ? rare : u->unknown;

            continue;
        }
        out->ids[out->n++] = best[at].id;
        at = best[at].from;
    }
    return TITAN_OK;
}
