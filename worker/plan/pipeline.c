/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline.c - messages between stages, and when a rank asks for them.
 *
 * A SEND ends when the other side takes the message, and the sent memory is used again soon. A rank that asks only when
 * it needs a message can stop its sender, and two ranks can stop each other. Therefore a RECV stands before the first
 * cell of the receiver that begins no earlier than the sending cell. Times are those of the schedule's own clock. Then
 * no cell waits for a cell that begins after it. A SEND waits only for the end of cells that began before it. By
 * induction on the clock, everything ends. Empty slots count like full slots, so that ranks with different shares keep
 * the same clock.
 *
 * A sent tensor keeps its memory for one unit of this clock. Otherwise the first operations of the next cell would take
 * this memory, and would have to wait for the transfer. */
#include "worker/plan/builder.h"

#include <stdlib.h>

#include "base/cleanup.h"

struct message {
    int stage, slot; /* stage and slot of the receiver */
    bool gradient;
    double sent; /* begin of the sending cell */
};

struct sent {
    struct tensor t;
    double until; /* a cell may take the memory if it begins at this time or later */
    int stage, slot;
    bool gradient;
};

/* --- the schedule's clock ----------------------------------------------------------------------------------------- */

static const double cell_time[] = {[CELL_F] = 1, [CELL_I] = 1, [CELL_W] = 1, [CELL_B] = 2};
#define TRAVEL_TIME 1

struct walk {
    struct builder *b;
    int *next;                  /* per rank: next cell */
    double *clock;              /* per rank: end of its last cell */
    double *forward, *backward; /* [stage][slot]: end of cell F; end of cell I or B; negative: not yet run */
};

/* Runs a rank's cells up to the first cell whose input is not there. True: at least one cell has run. */
static bool advance(const struct walk *w, int rank)
{
    const struct schedule *s = w->b->opt->schedule;
    bool moved = false;

    for (; w->next[rank] < s->n_cells[rank]; w->next[rank]++, moved = true) {
        const struct cell *c = &s->cells[rank][w->next[rank]];
        if (c->microbatch >= w->b->share_max)
            continue;
        const int64_t slots = w->b->share_max, at = c->stage * slots + c->microbatch;
        const bool last = c->stage == w->b->layout->stages - 1;
        titan_assert(c->stage < w->b->layout->stages);
        double input = 0; /* time when the cell's input is there; negative: not yet known */
        if (c->kind == CELL_F && c->stage > 0)
            input = w->forward[at - slots];
        else if (c->kind == CELL_I || c->kind == CELL_B)
            input = last ? w->forward[at] : w->backward[at + slots];
        if (input < 0)
            break;
        const double start = MAX(input, w->clock[rank]), end = start + cell_time[c->kind];
        w->b->starts[rank][w->next[rank]] = start;
        w->clock[rank] = end;
        if (c->kind == CELL_F)
            w->forward[at] = end;
        else if (c->kind != CELL_W)
            w->backward[at] = end;
    }
    return moved;
}

/* --- what arrives ------------------------------------------------------------------------------------------------- */

/* With two ranks, the other rank is both the next rank and the previous rank. It counts as the next. */
static enum channel channel_to(const struct builder *b, int from, int to, bool gradient)
{
    titan_assert(from != to);
    if (to == (from + 1) % b->pp)
        return gradient ? CHANNEL_BACKWARD_NEXT : CHANNEL_FORWARD_NEXT;
    titan_assert(from == (to + 1) % b->pp);
    return gradient ? CHANNEL_BACKWARD_PREVIOUS : CHANNEL_FORWARD_PREVIOUS;
}

titan_status pipeline_plan(struct builder *b, struct titan_error *err)
{
    const struct schedule *s = b->opt->schedule;
    const size_t passes = (size_t)b->layout->stages * (size_t)b->share_max;

    if (b->pp == 1)
        return TITAN_OK;
    titan_assert(s && s->ranks == b->pp);
    _cleanup_free_ int *next_cell = calloc((size_t)s->ranks, sizeof *next_cell);
    _cleanup_free_ double *clock = calloc((size_t)s->ranks, sizeof *clock);
    _cleanup_free_ double *ends = malloc(2 * passes * sizeof *ends);
    b->starts = calloc((size_t)s->ranks, sizeof *b->starts);
    if (!next_cell || !clock || !ends || !b->starts)
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    for (int r = 0; r < s->ranks; r++) {
        b->starts[r] = calloc((size_t)s->n_cells[r] + 1, sizeof *b->starts[r]);
        if (!b->starts[r])
            return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    }
    for (size_t i = 0; i < 2 * passes; i++)
        ends[i] = -1;
    const struct walk w = {.b = b, .next = next_cell, .clock = clock, .forward = ends, .backward = ends + passes};
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->ranks; r++)
            moved |= advance(&w, r);
    }
    for (int r = 0; r < s->ranks; r++)
        if (next_cell[r] < s->n_cells[r])
            return titan_fail(err, TITAN_EINVAL, "schedule %s: pp rank %d waits for ever at cell %d", s->name, r,
                              next_cell[r]);

    for (int k = 0; k < P2P_CHANNELS; k++) { /* lists the arriving messages in the order of the sender's cells */
        const enum channel channel = (enum channel)(CHANNEL_FORWARD_NEXT + k);
        const bool next = channel == CHANNEL_FORWARD_NEXT || channel == CHANNEL_BACKWARD_NEXT;
        struct inbox *const in = &b->inboxes[k];
        in->sender = next ? (b->pp_rank + b->pp - 1) % b->pp : (b->pp_rank + 1) % b->pp;
        in->messages = calloc((size_t)s->n_cells[in->sender] + 1, sizeof *in->messages);
        if (!in->messages)
            return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
        for (int i = 0; i < s->n_cells[in->sender]; i++) {
            const struct cell *c = &s->cells[in->sender][i];
            const bool gradient = c->kind != CELL_F;
            const int stage = gradient ? c->stage - 1 : c->stage + 1;
            /* Skips cells that do not send to this rank on this channel. */
            if (c->kind == CELL_W || stage < 0 || stage >= b->layout->stages || c->microbatch >= b->share ||
                layout_stage_rank(b->layout, stage) != b->pp_rank ||
                channel_to(b, in->sender, b->pp_rank, gradient) != channel)
                continue;
            in->messages[in->n++] = (struct message){
                .stage = stage, .slot = c->microbatch, .gradient = gradient, .sent = b->starts[in->sender][i]};
        }
    }
    /* A cell sends one message at most. */
    b->sent = calloc((size_t)s->n_cells[b->pp_rank] + 1, sizeof *b->sent);
    return b->sent ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "program: out of memory");
}

void pipeline_free(struct builder *b)
{
    for (int c = 0; c < P2P_CHANNELS; c++)
        free(b->inboxes[c].messages);
    for (int r = 0; b->starts && r < b->pp; r++)
        free(b->starts[r]);
    free(b->starts);
    free(b->sent);
}

/* --- transfers ---------------------------------------------------------------------------------------------------- */

void pipeline_begin(struct builder *b, int place)
{
    const int64_t rows = block_tokens_sharded(&b->k), cols = b->model->dims.dim;

    if (b->pp == 1)
        return;
    titan_assert(place >= 0 && place < b->opt->schedule->n_cells[b->pp_rank]);
    const double now = b->starts[b->pp_rank][place];
    titan_assert(b->first_sent <= b->n_sent);
    for (; b->first_sent < b->n_sent && b->sent[b->first_sent].until <= now; b->first_sent++) {
        const struct sent *s = &b->sent[b->first_sent];
        builder_stamp(b, s->gradient ? PHASE_DGRAD : PHASE_FORWARD, NONE, s->stage, s->slot);
        EMIT(&b->e, release, s->t);
    }
    for (int c = 0; c < P2P_CHANNELS; c++) {
        struct inbox *const in = &b->inboxes[c];
        for (; in->next < in->n && in->messages[in->next].sent <= now; in->next++) {
            const struct message *m = &in->messages[in->next];
            struct stage_pass *const pass = stage_pass(b, m->stage, m->slot);
            builder_stamp(b, m->gradient ? PHASE_DGRAD : PHASE_FORWARD, NONE, m->stage, m->slot);
            const struct tensor t = emit_tensor(&b->e, m->gradient ? BUF_DACTIVATION : BUF_ACTIVATION,
                                                m->gradient ? "received gradient" : "received", b->opt->dt, rows, cols);
            emit_recv(&b->e, (enum channel)(CHANNEL_FORWARD_NEXT + c), in->sender, t);
            *(m->gradient ? &pass->dx : &pass->x) = t;
        }
    }
}

void pipeline_send(struct builder *b, const struct cell *cell, int place)
{
    const bool gradient = cell->kind != CELL_F;
    const int stage = cell->stage, slot = cell->microbatch, to_stage = gradient ? stage - 1 : stage + 1;
    if (cell->kind == CELL_W || to_stage < 0 || to_stage >= b->layout->stages)
        return;
    const struct stage_pass *pass = stage_pass(b, stage, slot);
    const int to = layout_stage_rank(b->layout, to_stage);
    const struct tensor t = gradient ? pass->dx : pass->x;

    if (to == b->pp_rank) {
        struct stage_pass *const other = stage_pass(b, to_stage, slot);
        *(gradient ? &other->dx : &other->x) = t;
        return;
    }
    builder_stamp(b, gradient ? PHASE_DGRAD : PHASE_FORWARD, NONE, stage, slot);
    emit_send(&b->e, channel_to(b, b->pp_rank, to, gradient), to, t);
    titan_assert(b->n_sent < b->opt->schedule->n_cells[b->pp_rank]);
    b->sent[b->n_sent++] = (struct sent){.t = t,
                                         .until = b->starts[b->pp_rank][place] + cell_time[cell->kind] + TRAVEL_TIME,
                                         .stage = stage,
                                         .slot = slot,
                                         .gradient = gradient};
}

/* --- a tied head -------------------------------------------------------------------------------------------------- */

/* The ranks of the embedding and of the head are neighbours on the ring of ranks. The messages of the table are the
 * first or the last of their channels. The head's copy of the table exists only within a step, because only the
 * embedding's rank has the table's state. */
void pipeline_share_table(struct builder *b)
{
    const struct unit_layout *table = &b->layout->units[0];
    const int head = layout_stage_rank(b->layout, b->layout->stages - 1);

    if (!layout_tied_across_ranks(b->layout) || (b->pp_rank != table->pp_rank && b->pp_rank != head))
        return;
    const enum channel channel = channel_to(b, table->pp_rank, head, false);
    builder_stamp(b, PHASE_FORWARD, 0, table->stage, NONE);
    if (b->pp_rank == head) {
        const struct tensor t = emit_tensor(&b->e, BUF_FULL, "received table", b->opt->dt, 1, table->shard);
        emit_recv(&b->e, channel, table->pp_rank, t);
        b->units[0].shard = t.buffer;
    } else {
        emit_send(&b->e, channel, head, tensor_at(b->units[0].shard, 0, b->opt->dt, 1, table->shard));
    }
}

void pipeline_share_gradient(struct builder *b)
{
    const struct unit_layout *table = &b->layout->units[0];
    const int head = layout_stage_rank(b->layout, b->layout->stages - 1);
    const struct tensor own = b->units[0].reduced;

    if (!layout_tied_across_ranks(b->layout))
        return;
    const enum channel channel = channel_to(b, head, table->pp_rank, true);
    titan_assert(b->pp_rank == head || b->pp_rank == table->pp_rank);
    if (b->pp_rank == head) {
        emit_send(&b->e, channel, table->pp_rank, own);
        return;
    }
    const struct tensor t = emit_tensor(&b->e, BUF_EXCHANGE, "the head's gradient", DTYPE_F32, own.rows, own.cols);
    emit_recv(&b->e, channel, head, t);
    EMIT(&b->e, accumulate, own, t);
}
