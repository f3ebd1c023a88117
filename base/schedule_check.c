/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that a schedule does everything once, in order, and runs to its end. */
#include <math.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/schedule_family.h"

const char *cell_text(struct cell cell, char text[CELL_TEXT])
{
    titan_assert(cell.kind <= CELL_B);
    snprintf(text, CELL_TEXT, "%d%c%d", cell.stage, "FIWB"[cell.kind], cell.microbatch);
    return text;
}

/* --- the walk ----------------------------------------------------------------------------------------------------- */

static size_t slot(const struct schedule *s, int stage, int microbatch)
{
    titan_assert(stage >= 0 && stage < s->stages && microbatch >= 0 && microbatch < s->microbatches);
    return (size_t)stage * (size_t)s->microbatches + (size_t)microbatch;
}

/* The input cell of c; false: c waits for its rank alone. */
static bool input_of(const struct schedule *s, struct cell c, struct cell *ret)
{
    titan_assert(c.kind <= CELL_B && c.stage >= 0 && c.stage < s->stages);
    int stage = c.kind == CELL_F ? c.stage - 1 : c.stage + 1;
    if (c.kind == CELL_W || stage < 0 || stage >= s->stages)
        return false;
    *ret = (struct cell){.kind = c.kind, .stage = stage, .microbatch = c.microbatch};
    return true;
}

void schedule_walk_free(struct schedule_walk *w)
{
    free(w->next);
    free(w->clock);
    free(w->forward);
    free(w->backward);
    free(w->queue);
    free(w->in_queue);
}

static void enqueue(struct schedule_walk *w, int rank)
{
    if (!w->in_queue[rank]) {
        w->in_queue[rank] = true;
        w->queue[w->queued++] = rank;
    }
}

titan_status schedule_walk(const struct schedule *s, const double t[4], struct schedule_walk *ret)
{
    const size_t ranks = (size_t)s->ranks, slots = (size_t)s->stages * (size_t)s->microbatches;
    ret->next = calloc(ranks, sizeof *ret->next);
    ret->clock = calloc(ranks, sizeof *ret->clock);
    ret->queue = calloc(ranks, sizeof *ret->queue);
    ret->in_queue = calloc(ranks, sizeof *ret->in_queue);
    ret->forward = malloc(slots * sizeof *ret->forward);
    ret->backward = malloc(slots * sizeof *ret->backward);
    if (!ret->next || !ret->clock || !ret->queue || !ret->in_queue || !ret->forward || !ret->backward)
        return TITAN_ENOMEM;
    for (size_t i = 0; i < slots; i++)
        ret->forward[i] = ret->backward[i] = NAN;
    for (int r = s->ranks - 1; r >= 0; r--)
        enqueue(ret, r);
    while (ret->queued) {
        int rank = ret->queue[--ret->queued];
        ret->in_queue[rank] = false;

        /* Runs one rank as far as possible and queues ranks that it may have unblocked. */
        titan_assert(rank >= 0 && rank < s->ranks);
        for (; ret->next[rank] < s->n_cells[rank]; ret->next[rank]++) {
            struct cell c = s->cells[rank][ret->next[rank]], input;
            double start = ret->clock[rank];
            if (input_of(s, c, &input)) {
                double there = (c.kind == CELL_F ? ret->forward : ret->backward)[slot(s, input.stage, c.microbatch)];
                if (isnan(there))
                    break;
                start = fmax(start, there);
            }
            ret->clock[rank] = start + t[c.kind];
            if (c.kind == CELL_W)
                continue;
            (c.kind == CELL_F ? ret->forward : ret->backward)[slot(s, c.stage, c.microbatch)] = ret->clock[rank];
            int reader = c.kind == CELL_F ? c.stage + 1 : c.stage - 1;
            if (reader >= 0 && reader < s->stages && schedule_rank_of(s, reader) != rank)
                enqueue(ret, schedule_rank_of(s, reader));
        }
    }
    return TITAN_OK;
}

/* --- the check ---------------------------------------------------------------------------------------------------- */

enum { DONE_F = 1 << CELL_F, DONE_I = 1 << CELL_I, DONE_W = 1 << CELL_W, DONE_B = 1 << CELL_B };

static titan_status check_cells(const struct schedule *s, struct titan_error *err)
{
    _cleanup_free_ uint8_t *done = calloc((size_t)s->stages * (size_t)s->microbatches, 1);
    if (!done)
        return titan_fail(err, TITAN_ENOMEM, "no memory to check a schedule");
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->n_cells[r]; i++) {
            struct cell c = s->cells[r][i];
            if (c.kind > CELL_B || c.stage < 0 || c.stage >= s->stages || c.microbatch < 0 ||
                c.microbatch >= s->microbatches)
                return titan_fail(err, TITAN_EINVAL,
                                  "rank %d: cell %d (stage %d, action %u, microbatch %d) is not of a "
                                  "schedule of %d stages and %d microbatches",
                                  r, i + 1, c.stage, (unsigned)c.kind, c.microbatch, s->stages, s->microbatches);

            /* Is c legal here, given the finished work of its stage and microbatch in *had? */
            uint8_t *had = &done[slot(s, c.stage, c.microbatch)];
            char text[CELL_TEXT];
            uint8_t needs = c.kind == CELL_F ? 0 : c.kind == CELL_W ? DONE_I : DONE_F;
            uint8_t excludes = c.kind == CELL_F ? 0 : c.kind == CELL_B ? DONE_I | DONE_W : DONE_B;
            if (schedule_rank_of(s, c.stage) != r)
                return titan_fail(err, TITAN_EINVAL, "rank %d: cell %s is misplaced: stage %d belongs to rank %d", r,
                                  cell_text(c, text), c.stage, schedule_rank_of(s, c.stage));
            if (*had & 1 << c.kind)
                return titan_fail(err, TITAN_EINVAL, "rank %d: cell %s stands there twice", r, cell_text(c, text));
            if (*had & excludes)
                return titan_fail(err, TITAN_EINVAL,
                                  "rank %d: cell %s is double: B is I and W at once, and %d%c%d stands before it", r,
                                  cell_text(c, text), c.stage, *had & DONE_B ? 'B' : 'I', c.microbatch);
            if ((*had & needs) != needs)
                return titan_fail(err, TITAN_EINVAL, "rank %d: cell %s has no %d%c%d before it", r, cell_text(c, text),
                                  c.stage, needs == DONE_I ? 'I' : 'F', c.microbatch);
            *had |= (uint8_t)(1 << c.kind);
        }
    for (int stage = 0; stage < s->stages; stage++)
        for (int mb = 0; mb < s->microbatches; mb++) {
            uint8_t has = done[slot(s, stage, mb)];
            int rank = schedule_rank_of(s, stage);
            if (!(has & DONE_F))
                return titan_fail(err, TITAN_EINVAL, "rank %d: cell %dF%d is missing", rank, stage, mb);
            if (!(has & (DONE_B | DONE_I)))
                return titan_fail(err, TITAN_EINVAL,
                                  "rank %d: %dF%d has no backward: %dB%d, or %dI%d and %dW%d, is missing", rank, stage,
                                  mb, stage, mb, stage, mb, stage, mb);
            if (!(has & (DONE_B | DONE_W)))
                return titan_fail(err, TITAN_EINVAL, "rank %d: cell %dW%d is missing, and %dI%d needs it", rank, stage,
                                  mb, stage, mb);
        }
    return TITAN_OK;
}

/* Returns the cell for which the stuck rank's next cell waits, with that cell's rank and position. An I of the waiting
 * stage may be a B in the next stage. */
static struct cell awaited(const struct schedule *s, const struct schedule_walk *w, int rank, int *ret_rank,
                           int *ret_at)
{
    struct cell input = {0};
    const bool waits = input_of(s, s->cells[rank][w->next[rank]], &input);
    titan_assert(waits);
    *ret_rank = schedule_rank_of(s, input.stage);
    const struct cell *cells = s->cells[*ret_rank];
    int at = w->next[*ret_rank];
    while (cells[at].stage != input.stage || cells[at].microbatch != input.microbatch || cells[at].kind == CELL_W ||
           (cells[at].kind == CELL_F) != (input.kind == CELL_F))
        at++;
    *ret_at = at + 1;
    return cells[at];
}

titan_status schedule_check(const struct schedule *s, struct titan_error *err)
{
    TRY(check_cells(s, err));
    static const double no_time[4];
    _cleanup_(schedule_walk_free) struct schedule_walk w = {0};
    if (schedule_walk(s, no_time, &w) != TITAN_OK)
        return titan_fail(err, TITAN_ENOMEM, "no memory to check a schedule");
    for (int r = 0; r < s->ranks; r++)
        if (w.next[r] < s->n_cells[r]) {
            /* Follows waiting ranks until the ring closes, then reports as many links of the ring as fit a message. */
            int rank = r, at;
            titan_assert(w.next[rank] < s->n_cells[rank]);
            for (int i = 0; i < s->ranks; i++) /* after as many steps as there are ranks the walk is in the ring */
                (void)awaited(s, &w, rank, &rank, &at);
            char story[320] = "";
            int first = rank;
            size_t len = 0;
            for (int link = 0; link < 3 && (link == 0 || rank != first); link++) {
                char stops[CELL_TEXT], wants[CELL_TEXT];
                int here = rank;
                cell_text(s->cells[here][w.next[here]], stops);
                cell_text(awaited(s, &w, here, &rank, &at), wants);
                int n = snprintf(story + len, sizeof story - len,
                                 "%srank %d stops at %s (cell %d), which waits for %s, cell %d of rank %d",
                                 len ? "; " : "", here, stops, w.next[here] + 1, wants, at, rank);
                len = MIN(len + (size_t)n, sizeof story - 1);
            }
            titan_status status = titan_fail(err, TITAN_EINVAL, "deadlock: %s%s", story, rank == first ? "" : "; ...");
            titan_error_hint(err, "a rank runs its cells in order: put the awaited cells before those that wait");
            return status;
        }
    return TITAN_OK;
}
