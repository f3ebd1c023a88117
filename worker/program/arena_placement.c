/* SPDX-License-Identifier: Apache-2.0 */
/* arena_placement.c - places buffers in memory; their lifetimes are known beforehand.
 *
 * The placement is greedy and offline. Buffers are placed in order of size squared times lifetime. Each gets the lowest
 * address that is free during its lifetime (first fit; Pisarchyk and Lee 2020, arXiv:2001.03288, order by size). So
 * large buffers lie on each other without holes, and small buffers fill the gaps. Where this order wastes more than
 * WASTE_MAX, plain order of size is tried, too.
 *
 * Time is cut into slices on several levels, so that a search sees only buffers that live at the same time. Each slice
 * lists the buffers that touch it, by address. Slices of a level overlap by half, so that a lifetime of up to half a
 * slice lies in one slice. A buffer is placed by the list of the smallest slice that contains its lifetime. If c of n
 * buffers are alive at a time, the lowest level has n/c slices, and the whole placement takes about n times c. */
#include "worker/program/arena_placement.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/vec.h"

#define LEVELS_MAX 16
#define SPREAD 4       /* slices of a level for each slice of the level above */
#define WASTE_MAX 1e-2 /* more waste tries another order; share of the lower bound that lifetimes set */

struct placed {
    size_t from, to; /* addresses */
    int first, last;
};

/* Buffers that touch a slice of time: n_sorted of them by address, then the buffers added since the last sort. */
struct slice {
    struct placed *list;
    int n_sorted, n, cap;
};

struct level {
    int stride; /* actions; slice k covers [k * stride, (k + 2) * stride) */
    int n;
    struct slice *slices;
};

struct placer {
    struct program *p;
    int n;
    struct buffer **order;
    struct placed *added; /* scratch */
    int cap_added;
    int n_levels;
    struct level level[LEVELS_MAX]; /* level[0] is one slice of all time */
};

static void placer_free(struct placer *s)
{
    free(s->order);
    free(s->added);
    for (int l = 0; l < s->n_levels; l++) {
        for (int k = 0; k < s->level[l].n; k++)
            free(s->level[l].slices[k].list);
        free(s->level[l].slices);
    }
}

static int by_address(const void *x, const void *y)
{
    const struct placed *a = x, *b = y;
    return (a->from > b->from) - (a->from < b->from);
}

/* Sorts the buffers added since the last sort into the list. */
static bool slice_sort(struct placer *s, struct slice *slice)
{
    int left = slice->n_sorted - 1, right = slice->n - slice->n_sorted - 1;

    titan_assert(slice->n_sorted <= slice->n && slice->n <= slice->cap);
    if (right < 0)
        return true;
    if (!VEC_RESERVE(s->added, s->cap_added, right + 1))
        return false;
    memcpy(s->added, slice->list + slice->n_sorted, (size_t)(right + 1) * sizeof *s->added);
    qsort(s->added, (size_t)right + 1, sizeof *s->added, by_address);
    for (int at = slice->n - 1; right >= 0; at--) /* merge from the end */
        slice->list[at] =
            left >= 0 && slice->list[left].from > s->added[right].from ? slice->list[left--] : s->added[right--];
    slice->n_sorted = slice->n;
    return true;
}

static int by_size_and_life(const void *x, const void *y)
{
    const struct buffer *a = *(struct buffer *const *)x, *b = *(struct buffer *const *)y;
    const double size_a = (double)a->bytes, size_b = (double)b->bytes;
    const double of_a = size_a * size_a * (a->last - a->first + 1), of_b = size_b * size_b * (b->last - b->first + 1);
    if (of_a < of_b || of_a > of_b)
        return of_a < of_b ? 1 : -1;
    return a->first != b->first ? a->first - b->first : (a > b) - (a < b);
}

static int by_size(const void *x, const void *y)
{
    const struct buffer *a = *(struct buffer *const *)x, *b = *(struct buffer *const *)y;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->first != b->first ? a->first - b->first : (a > b) - (a < b);
}

static titan_status place_in_order(struct placer *s, int (*order)(const void *, const void *), struct titan_error *err)
{
    for (int l = 0; l < s->n_levels; l++)
        for (int k = 0; k < s->level[l].n; k++)
            s->level[l].slices[k].n = s->level[l].slices[k].n_sorted = 0;
    qsort(s->order, (size_t)s->n, sizeof(struct buffer *), order);
    s->p->arena_bytes = 0;
    for (int i = 0; i < s->n; i++) {
        struct buffer *b = s->order[i];
        const size_t bytes = arena_round_up(b->bytes);
        titan_assert(b->first >= 0 && b->first <= b->last);

        /* The smallest slice that contains the buffer's lifetime. */
        int level = s->n_levels - 1;
        while (level > 0 && b->last >= (b->first / s->level[level].stride + 2) * (int64_t)s->level[level].stride)
            level--;
        struct slice *slice = &s->level[level].slices[level > 0 ? b->first / s->level[level].stride : 0];
        if (!slice_sort(s, slice))
            return titan_fail(err, TITAN_ENOMEM, "program: out of memory");

        /* The lowest address that is free during its lifetime. */
        size_t at = 0;
        for (int k = 0; k < slice->n; k++) {
            const struct placed *q = &slice->list[k];
            if (q->first > b->last || q->last < b->first)
                continue;
            if (q->from >= at + bytes)
                break;
            at = MAX(at, q->to);
        }
        b->offset = at;
        titan_assert(b->offset % ARENA_ALIGN == 0);
        s->p->arena_bytes = MAX(s->p->arena_bytes, at + bytes);

        const struct placed entry = {at, at + bytes, b->first, b->last};
        for (int l = 0; l < s->n_levels; l++) {
            const int stride = s->level[l].stride;
            for (int k = MAX(b->first / stride - 1, 0); k <= b->last / stride; k++) {
                struct slice *touched = &s->level[l].slices[k];
                if (!VEC_PUSH(touched->list, touched->n, touched->cap, entry))
                    return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
            }
        }
    }
    return TITAN_OK;
}

titan_status program_arena_place(struct program *p, struct titan_error *err)
{
    const double enough = (double)program_peak(p, NULL, NULL) * (1 + WASTE_MAX);
    _cleanup_(placer_free) struct placer s = {.p = p};
    int64_t alive = 0; /* buffers alive, summed over all actions */

    s.order = malloc(((size_t)p->n_buffers + 1) * sizeof(struct buffer *));
    if (!s.order)
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    for (int i = 0; i < p->n_buffers; i++) {
        struct buffer *b = &p->buffers[i];
        if (buffer_is_external(b->kind) || b->first < 0)
            continue;
        s.order[s.n++] = b;
        alive += b->last - b->first + 1;
    }
    const int64_t least = MAX(alive / (s.n + 1), 16); /* stride of the lowest level */
    for (int64_t stride = p->n_actions + 1; s.n_levels == 0 || (stride >= least && s.n_levels < LEVELS_MAX);
         stride /= SPREAD) {
        struct level *l = &s.level[s.n_levels];
        *l = (struct level){.stride = (int)stride, .n = (int)(p->n_actions / stride) + 1};
        l->slices = calloc((size_t)l->n, sizeof *l->slices);
        if (!l->slices)
            return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
        s.n_levels++;
    }
    titan_assert(s.n_levels >= 1 && s.level[0].n == 1);

    TRY(place_in_order(&s, by_size_and_life, err));
    const size_t first = p->arena_bytes;
    titan_assert((double)first * (1 + WASTE_MAX) >= enough);
    if ((double)first <= enough)
        return TITAN_OK;
    TRY(place_in_order(&s, by_size, err));
    return p->arena_bytes <= first ? TITAN_OK : place_in_order(&s, by_size_and_life, err);
}
