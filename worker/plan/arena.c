/* arena.c - placement of buffers whose lives are known beforehand.
 *
 * Two heaps grow towards each other: buffers that live long are placed from the bottom, others from the top, each in
 * the order in which lives begin, at the best fitting hole. Where the two meet is known afterwards only: the arena is
 * as large as the largest sum of both at any time, and what was counted from the top is turned round then. What counts
 * as long is tried: a handful of bounds, the smallest arena wins. Every try is linear but for the search among holes,
 * of which there are few, because lives end as they began. */
#include "worker/plan/arena.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define NONE (-1)

/* A stretch of a heap; stretches form a list in order of address. The last is free and ends nowhere. */
struct hole {
    size_t at, bytes;
    int previous, next;
    int free_slot; /* place in heap.holes, NONE: taken */
};

struct heap {
    struct hole *hole; /* pool of cap entries; entry 0 is the last stretch */
    int n, cap, unused;
    int *holes; /* those that are free, in no order, without the last */
    int n_holes;
};

static bool heap_init(struct heap *h, int cap)
{
    h->cap = cap;
    h->hole = malloc((size_t)cap * sizeof *h->hole);
    h->holes = malloc((size_t)cap * sizeof *h->holes);
    return h->hole && h->holes;
}

static void heap_reset(struct heap *h)
{
    h->hole[0] = (struct hole){0, SIZE_MAX, NONE, NONE, NONE};
    h->n = 1;
    h->unused = NONE;
    h->n_holes = 0;
}

static void heap_free(struct heap *h)
{
    free(h->hole);
    free(h->holes);
}

/* Bytes from the bottom to the end of the last buffer. */
static size_t heap_top(const struct heap *h)
{
    return h->hole[0].at;
}

static int new_hole(struct heap *h)
{
    const int i = h->unused;
    if (i == NONE)
        return h->n++;
    h->unused = h->hole[i].next;
    return i;
}

static void set_free(struct heap *h, int i)
{
    h->hole[i].free_slot = h->n_holes;
    h->holes[h->n_holes++] = i;
}

static void set_taken(struct heap *h, int i)
{
    const int slot = h->hole[i].free_slot, moved = h->holes[--h->n_holes];
    h->holes[slot] = moved;
    h->hole[moved].free_slot = slot;
    h->hole[i].free_slot = NONE;
}

/* A new stretch of these bytes in front of i, out of i's. */
static int cut(struct heap *h, int i, size_t bytes)
{
    const int n = new_hole(h);
    struct hole *rest = &h->hole[i];

    h->hole[n] = (struct hole){rest->at, bytes, rest->previous, i, NONE};
    if (rest->previous != NONE)
        h->hole[rest->previous].next = n;
    rest->previous = n;
    rest->at += bytes;
    if (i != 0)
        rest->bytes -= bytes;
    return n;
}

static int heap_take(struct heap *h, size_t bytes)
{
    int best = 0;

    for (int k = 0; k < h->n_holes; k++) {
        const struct hole *c = &h->hole[h->holes[k]], *b = &h->hole[best];
        if (c->bytes >= bytes && (c->bytes < b->bytes || (c->bytes == b->bytes && c->at < b->at)))
            best = h->holes[k];
    }
    if (best == 0 || h->hole[best].bytes > bytes)
        return cut(h, best, bytes);
    set_taken(h, best);
    return best;
}

/* Make i part of the stretch behind it. */
static void join_next(struct heap *h, int i)
{
    const struct hole gone = h->hole[i];
    struct hole *next = &h->hole[gone.next];

    next->at = gone.at;
    if (gone.next != 0)
        next->bytes += gone.bytes;
    next->previous = gone.previous;
    if (gone.previous != NONE)
        h->hole[gone.previous].next = gone.next;
    h->hole[i].next = h->unused;
    h->unused = i;
}

static void heap_give(struct heap *h, int i)
{
    const int previous = h->hole[i].previous, next = h->hole[i].next;

    if (previous != NONE && h->hole[previous].free_slot != NONE) {
        set_taken(h, previous);
        join_next(h, previous);
    }
    if (next == 0 || h->hole[next].free_slot != NONE)
        join_next(h, i);
    else
        set_free(h, i);
}

/* --- the walk over time ------------------------------------------------------------------------------------------- */

struct placer {
    struct program *p;
    int n;
    int *born, *dying; /* buffers in the order of first, of last */
    int *hole;         /* per buffer */
    struct heap bottom, top;
};

static bool in_arena(const struct buffer *b)
{
    return !buffer_is_external(b->kind) && b->first >= 0;
}

/* Buffers in order of a moment of their lives, by counting. */
static bool order_by(const struct placer *s, bool last, int *out)
{
    const struct program *p = s->p;
    _cleanup_free_ int *start = calloc((size_t)p->n_actions + 2, sizeof *start);

    if (!start)
        return false;
    for (int i = 0; i < p->n_buffers; i++)
        if (in_arena(&p->buffers[i]))
            start[(last ? p->buffers[i].last : p->buffers[i].first) + 1]++;
    for (int i = 0; i < p->n_actions; i++)
        start[i + 1] += start[i];
    for (int i = 0; i < p->n_buffers; i++)
        if (in_arena(&p->buffers[i]))
            out[start[last ? p->buffers[i].last : p->buffers[i].first]++] = i;
    return true;
}

/* Place all, buffers that live longer than `longest` actions at the bottom. offset is counted from the heap's own end.
 * Returns the size of the arena. */
static size_t walk(struct placer *s, int longest)
{
    struct buffer *const buffers = s->p->buffers;
    size_t arena = 0;
    int ended = 0;

    heap_reset(&s->bottom);
    heap_reset(&s->top);
    for (int k = 0; k < s->n; k++) {
        struct buffer *b = &buffers[s->born[k]];
        for (; buffers[s->dying[ended]].last < b->first; ended++) {
            const struct buffer *d = &buffers[s->dying[ended]];
            heap_give(d->last - d->first > longest ? &s->bottom : &s->top, s->hole[s->dying[ended]]);
        }
        struct heap *h = b->last - b->first > longest ? &s->bottom : &s->top;
        const int hole = heap_take(h, MAX(arena_round_up(b->bytes), ARENA_ALIGN));
        s->hole[s->born[k]] = hole;
        b->offset = h->hole[hole].at;
        arena = MAX(arena, heap_top(&s->bottom) + heap_top(&s->top));
    }
    return arena;
}

static bool placer_init(struct placer *s, struct program *p)
{
    const size_t n = (size_t)p->n_buffers + 1;

    *s = (struct placer){.p = p};
    for (int i = 0; i < p->n_buffers; i++)
        s->n += in_arena(&p->buffers[i]);
    s->born = malloc(n * sizeof *s->born);
    s->dying = malloc(n * sizeof *s->dying);
    s->hole = malloc(n * sizeof *s->hole);
    /* Taken stretches are no more than buffers, free ones no more than one beside each. */
    return s->born && s->dying && s->hole && heap_init(&s->bottom, 2 * s->n + 2) && heap_init(&s->top, 2 * s->n + 2) &&
           order_by(s, false, s->born) && order_by(s, true, s->dying);
}

static void placer_free(struct placer *s)
{
    free(s->born);
    free(s->dying);
    free(s->hole);
    heap_free(&s->bottom);
    heap_free(&s->top);
}

titan_status arena_place(struct program *p, struct titan_error *err)
{
    _cleanup_(placer_free) struct placer s;
    int best = 0;

    if (!placer_init(&s, p))
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    p->arena_bytes = SIZE_MAX;
    const size_t bound = program_peak(p, NULL, NULL);
    for (int longest = 1; longest < 4 * p->n_actions + 4 && p->arena_bytes > bound; longest *= 4) {
        const size_t bytes = walk(&s, longest);
        if (bytes < p->arena_bytes) {
            p->arena_bytes = bytes;
            best = longest;
        }
    }
    (void)walk(&s, best);
    for (int k = 0; k < s.n; k++) {
        struct buffer *b = &p->buffers[s.born[k]];
        if (b->last - b->first <= best)
            b->offset = p->arena_bytes - b->offset - MAX(arena_round_up(b->bytes), ARENA_ALIGN);
    }
    return TITAN_OK;
}
