/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules in V order: a rank's chunk 0 is on the way from the first rank to the last, its chunk 1 on the way back.
 * The first rank has the loss, and the last rank has both stages in the middle. */
#include <math.h>

#include "base/cleanup.h"
#include "base/schedule_family.h"

/* One rank, and the number of F, I and W placed for each of its chunks. */
struct v_rank {
    struct schedule *s;
    int rank;
    int done[3][2];
};

/* Appends the chunk's next microbatch. */
static void put(struct v_rank *v, enum cell_kind kind, int chunk)
{
    titan_assert((chunk == 0 || chunk == 1) && kind <= CELL_B);
    int stage = chunk ? v->s->stages - 1 - v->rank : v->rank;
    int mb = v->done[kind == CELL_B ? CELL_I : kind][chunk]++;
    if (kind == CELL_B)
        v->done[CELL_W][chunk]++;
    schedule_put(v->s, v->rank, kind, stage, mb);
}

/* Qi et al. 2024 (arXiv:2405.15362), figure of ZB-V. Every rank is busy from its first cell to its last if F, I and W
 * take equal times; the first I follows directly on the first forward through the V. */
void schedule_generate_zbv(struct schedule *s)
{
    const int p = s->ranks, microbatches = MAX(s->microbatches, 2 * p - 1);
    for (int r = 0; r < p; r++) {
        struct v_rank v = {.s = s, .rank = r};
        const int behind = p - 1 - r, ahead = r;
        for (int i = 0; i < 2 * behind + 1; i++) /* until the first microbatch returns */
            put(&v, CELL_F, 0);
        for (int i = 0; i < ahead; i++) { /* until the I of the first microbatch arrives */
            put(&v, CELL_F, 1);
            put(&v, CELL_F, 0);
        }
        for (int i = 0; i < behind + 1; i++) { /* until the I of chunk 0 arrives */
            put(&v, CELL_F, 1);
            put(&v, CELL_I, 1);
            put(&v, CELL_W, 1);
        }
        while (v.done[CELL_F][1] < microbatches) {
            if (v.done[CELL_F][0] < microbatches)
                put(&v, CELL_F, 0);
            put(&v, CELL_I, 0);
            put(&v, CELL_W, 0);
            put(&v, CELL_F, 1);
            put(&v, CELL_I, 1);
            put(&v, CELL_W, 1);
        }
        for (int i = 0; i < ahead; i++) {
            put(&v, CELL_I, 0);
            put(&v, CELL_I, 1);
        }
        for (int i = 0; i < behind + 1; i++) {
            put(&v, CELL_I, 0);
            put(&v, CELL_W, 0);
        }
        for (int chunk = 1; chunk >= 0; chunk--)
            while (v.done[CELL_W][chunk] < microbatches)
                put(&v, CELL_W, chunk);
    }
}

double schedule_bubble_zbv(const struct schedule *s, double t_f, double t_i, double t_w)
{
    if (s->microbatches < 2 * s->ranks - 1 || t_f > t_i || t_w > t_i)
        return -1;
    return (s->ranks - 1) * fmax(t_i, 2 * (t_i - t_w));
}

/* The schedule of DeepSeek-AI 2024 (arXiv:2412.19437) cut in half, known as DualPipeV: F of one chunk and B of the
 * other chunk are adjacent. Backwards are split where a rank would otherwise wait. */
void schedule_generate_dualpipe_v(struct schedule *s)
{
    const int p = s->ranks, microbatches = MAX(s->microbatches, 2 * p);
    for (int r = 0; r < p; r++) {
        struct v_rank v = {.s = s, .rank = r};
        const int behind = p - 1 - r, ahead = r;
        for (int i = 0; i < 2 * behind; i++)
            put(&v, CELL_F, 0);
        for (int i = 0; i < ahead + 1; i++) {
            put(&v, CELL_F, 0);
            put(&v, CELL_F, 1);
        }
        for (int i = 0; i < behind; i++) {
            put(&v, CELL_I, 1);
            put(&v, CELL_W, 1);
            put(&v, CELL_F, 1);
        }
        while (v.done[CELL_F][0] < microbatches) {
            put(&v, CELL_F, 0);
            put(&v, CELL_B, 1);
            put(&v, CELL_F, 1);
            put(&v, CELL_B, 0);
        }
        for (int i = 0; i < behind; i++) {
            put(&v, CELL_B, 1);
            put(&v, CELL_F, 1);
            put(&v, CELL_B, 0);
        }
        for (int i = 0; i < 2 * (ahead + 1); i++) /* the second half defers its W to fill later waits */
            put(&v, i < ahead + 1 ? CELL_B : CELL_I, (i + 1) % 2);
        for (int i = 0; i < p; i++) {
            put(&v, CELL_W, i < ahead + 1 ? (ahead + i) % 2 : 0);
            if (i < behind)
                put(&v, CELL_I, 0);
        }
    }
}

double schedule_bubble_dualpipe_v(const struct schedule *s, double t_f, double t_i, double t_w)
{
    if (s->microbatches < 2 * s->ranks || t_i > t_f)
        return -1;
    return (s->ranks - 1) * (t_f + fmax(t_i, t_f - t_w) - fmin(t_i, t_w));
}
