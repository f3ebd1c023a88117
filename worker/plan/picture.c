/* SPDX-License-Identifier: Apache-2.0 */
/* picture.c - timelines as SVG. */
#include "worker/plan/picture.h"

#include <stdio.h>

#include "base/cleanup.h"

#define LEFT 150.0
#define WIDTH 1050.0
#define LANE 22.0
#define GAP 14.0 /* between ranks */
#define TOP 64.0
#define LABEL_MIN 16.0 /* a box this wide has room for its label */

struct canvas {
    const struct simulation *s;
    struct buf *out;
    double y, scale;
};

static const char *const phase_colors[PHASE_COUNT] = {
    [PHASE_FORWARD] = "#4c78a8", [PHASE_RECOMPUTE] = "#9ecae9", [PHASE_DGRAD] = "#e45756",
    [PHASE_WGRAD] = "#72b7b2",   [PHASE_REDUCE] = "#b279a2",    [PHASE_UPDATE] = "#54a24b",
};
static const char phase_letters[PHASE_COUNT] = {[PHASE_FORWARD] = 'F', [PHASE_RECOMPUTE] = 'R', [PHASE_DGRAD] = 'I',
                                                [PHASE_WGRAD] = 'W',   [PHASE_REDUCE] = 'S',    [PHASE_UPDATE] = 'U'};
#define TRANSFER_COLOR "#f58518"

/* Consecutive work on one stream, of one direction, stage and microbatch. */
struct stretch {
    const struct action *a; /* its first action */
    int last;
    double start, end;
};

static void draw_box(const struct canvas *c, const struct stretch *w)
{
    const struct action *a = w->a;
    const double x = LEFT + w->start * c->scale, wide = MAX(0.4, (w->end - w->start) * c->scale);
    const bool transfer = a->channel >= 0;

    buf_printf(c->out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"><title>", x, c->y + 2,
               wide, LANE - 4, transfer ? TRANSFER_COLOR : phase_colors[a->phase]);
    if (transfer)
        buf_printf(c->out, "%s over %s", op_name((enum op)a->op), channel_name((enum channel)a->channel));
    else
        buf_printf(c->out, "%s", phase_name((enum phase)a->phase));
    buf_printf(c->out, ", stage %d, microbatch %d, %.1f us</title></rect>\n", a->stage, a->microbatch,
               (w->end - w->start) * 1e6);
    if (!transfer && a->microbatch >= 0 && wide >= LABEL_MIN)
        buf_printf(c->out,
                   "<text x=\"%.1f\" y=\"%.1f\" fill=\"#fff\" text-anchor=\"middle\" font-size=\"10\">%d%c%d</text>\n",
                   x + wide / 2, c->y + LANE - 8, a->stage, phase_letters[a->phase], a->microbatch);
}

static void draw_lane(struct canvas *c, int rank, enum stream_id stream)
{
    const struct simulated_rank *k = &c->s->ranks[rank];
    struct stretch w = {0};

    buf_printf(c->out, "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\" font-size=\"10\">%s</text>\n", LEFT - 6,
               c->y + LANE - 8, program_stream_name(stream));
    buf_printf(c->out, "<line x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", LEFT, LEFT + WIDTH,
               c->y + LANE / 2, c->y + LANE / 2);
    for (int i = 0; i < k->program->n_actions; i++) {
        const struct action *a = &k->program->actions[i];
        if (a->stream != stream || k->end[i] <= k->start[i])
            continue;
        const bool same = w.a && w.a->phase == a->phase && w.a->stage == a->stage && w.a->microbatch == a->microbatch &&
                          (stream == STREAM_COMPUTE || w.a->op == a->op);
        if (same && (k->start[i] - w.end) * c->scale < 0.6) {
            w.end = k->end[i];
            continue;
        }
        if (w.a)
            draw_box(c, &w);
        w = (struct stretch){.a = a, .start = k->start[i], .end = k->end[i]};
    }
    if (w.a)
        draw_box(c, &w);
    c->y += LANE;
}

void picture_write(const struct simulation *s, const char *title, struct buf *out)
{
    struct canvas canvas = {.s = s, .out = out, .y = TOP, .scale = WIDTH / MAX(s->step, 1e-12)};
    int lanes = 0;
    for (int r = 0; r < s->n; r++)
        lanes += __builtin_popcount(s->ranks[r].program->streams | 1u << STREAM_COMPUTE);
    const double height = TOP + lanes * LANE + s->n * GAP + 30;

    buf_printf(out,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\">\n"
               "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text x=\"10\" y=\"20\" font-size=\"14\">",
               LEFT + WIDTH + 20, height);
    for (const char *c = title; *c; c++)
        if (*c == '&' || *c == '<' || *c == '>')
            buf_puts(out, *c == '&' ? "&amp;" : *c == '<' ? "&lt;" : "&gt;");
        else
            buf_printf(out, "%c", *c);
    buf_puts(out, "</text>\n");
    for (int p = 0; p <= PHASE_COUNT; p++) {
        const double x = LEFT + 100 * p;
        buf_printf(out, "<rect x=\"%.0f\" y=\"34\" width=\"12\" height=\"12\" fill=\"%s\"/>", x,
                   p < PHASE_COUNT ? phase_colors[p] : TRANSFER_COLOR);
        buf_printf(out, "<text x=\"%.0f\" y=\"44\" font-size=\"11\">%s</text>\n", x + 16,
                   p < PHASE_COUNT ? phase_name((enum phase)p) : "transfer");
    }
    for (int r = 0; r < s->n; r++) {
        buf_printf(out, "<text x=\"10\" y=\"%.1f\" font-size=\"12\" font-weight=\"bold\">pp rank %d</text>\n",
                   canvas.y + LANE - 8, r);
        for (int k = 0; k < STREAM_COUNT; k++)
            if (k == STREAM_COMPUTE || s->ranks[r].program->streams >> k & 1)
                draw_lane(&canvas, r, (enum stream_id)k);
        canvas.y += GAP;
    }
    buf_printf(out, "<text x=\"%.0f\" y=\"%.1f\" font-size=\"11\">0</text>", LEFT, canvas.y + 12);
    buf_printf(out, "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\" font-size=\"11\">%.3f ms</text>\n</svg>\n",
               LEFT + WIDTH, canvas.y + 12, s->step * 1e3);
}
