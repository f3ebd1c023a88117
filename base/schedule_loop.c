/* SPDX-License-Identifier: Apache-2.0 */
/* GPipe, 1F1B and their looped forms: stage s is on rank s mod p, the n-th stage of a rank is called its chunk n. */
#include <math.h>

#include "base/cleanup.h"
#include "base/schedule_family.h"

/* GPipe is this with one chunk: all microbatches of a chunk, then the next chunk; then back. Microbatches run in
 * ascending order in both directions, so gradients are summed in the order in which one rank alone would. */
void schedule_generate_looped_bfs(struct schedule *s)
{
    int chunks = schedule_local(s);
    for (int r = 0; r < s->ranks; r++) {
        for (int chunk = 0; chunk < chunks; chunk++)
            for (int mb = 0; mb < s->microbatches; mb++)
                schedule_put(s, r, CELL_F, chunk * s->ranks + r, mb);
        for (int chunk = chunks - 1; chunk >= 0; chunk--)
            for (int mb = 0; mb < s->microbatches; mb++)
                schedule_put(s, r, CELL_B, chunk * s->ranks + r, mb);
    }
}

/* A microbatch comes back to rank 0 after p forwards: with fewer than p of them every turn of the loop waits for that,
 * and so it is on the way back. */
double schedule_bubble_looped_bfs(const struct schedule *s, double t_f, double t_i, double t_w)
{
    int p = s->ranks, turns = schedule_local(s) - 1;
    return (p - 1 + turns * MAX(p - s->microbatches, 0)) * (t_f + t_i + t_w);
}

/* The i-th forward (or backward) of a rank in interleaved order: rounds of p microbatches, within them chunk by chunk,
 * the backward from the last chunk to the first. */
static void put_nth(struct schedule *s, int rank, enum cell_kind kind, int i)
{
    int p = s->ranks, chunks = schedule_local(s);
    titan_assert(i >= 0 && chunks >= 1);
    int chunk = i / p % chunks;
    if (kind != CELL_F)
        chunk = chunks - 1 - chunk;
    schedule_put(s, rank, kind, chunk * p + rank, i / (p * chunks) * p + i % p);
}

/* Some forwards to begin with, then one forward and one backward in turn, then the rest. A last round of fewer than p
 * microbatches is the whole round without the cells of those that do not exist. hold: 0, or backwards are split, and
 * a W runs as soon as that many forwards have had none, and behind each I when there are no more forwards. */
static void put_1f1b(struct schedule *s, int rank, int warmup, int hold)
{
    titan_assert(warmup >= 0 && hold >= 0);
    int p = s->ranks, total = (s->microbatches + p - 1) / p * p * schedule_local(s);
    int f = 0, w = 0;
    while (f < MIN(warmup, total))
        put_nth(s, rank, CELL_F, f++);
    for (int b = 0; b < total; b++) {
        if (f < total)
            put_nth(s, rank, CELL_F, f++);
        put_nth(s, rank, hold ? CELL_I : CELL_B, b);
        if (hold && (f - w >= hold || f == total))
            put_nth(s, rank, CELL_W, w++);
    }
    titan_assert(f == total && w <= total);
    while (hold && w < total)
        put_nth(s, rank, CELL_W, w++);
}

/* Narayanan et al. 2021, figures 3 and 4. With one chunk every rank starts one forward earlier than the next, and as
 * many are in flight as ranks follow. Looped, the last rank starts when its last chunk has its first forward, and the
 * ranks before it two forwards earlier each: in step with each other, a microbatch takes one forward and one backward
 * to get to the neighbour. */
void schedule_generate_1f1b(struct schedule *s)
{
    int chunks = schedule_local(s);
    for (int r = 0; r < s->ranks; r++) {
        int behind = s->ranks - 1 - r;
        put_1f1b(s, r, chunks == 1 ? behind : (chunks - 1) * s->ranks + 2 * behind, 0);
    }
}

/* A short round waits for its missing microbatches at every turn. Behind whole rounds it is not the only one, and what
 * it costs has no simple form. */
double schedule_bubble_interleaved(const struct schedule *s, double t_f, double t_i, double t_w)
{
    if (s->stages > s->ranks && s->microbatches > s->ranks && s->microbatches % s->ranks)
        return -1;
    return schedule_bubble_looped_bfs(s, t_f, t_i, t_w);
}

/* ZB-H1 of Qi et al. 2024 and the same looped. A microbatch comes back after F and I alone, so one forward earlier than
 * the next rank is enough; every rank holds as many as the first, p per chunk. */
void schedule_generate_zero_bubble(struct schedule *s)
{
    int p = s->ranks, chunks = schedule_local(s);
    for (int r = 0; r < p; r++)
        put_1f1b(s, r, (chunks - 1) * p + p - 1 - r, chunks * p);
}

/* The first rank waits for the way there and back once, which is p - 1 of F and I. What it waits in the end it has
 * saved up in W, and there the shortest of the three counts: with longer W than F or I the first or the last rank's
 * wait at the beginning is what remains. Fewer microbatches than p leave it as many W fewer. */
double schedule_bubble_zero_bubble(const struct schedule *s, double t_f, double t_i, double t_w)
{
    int p = s->ranks, filled = MIN(p, s->microbatches) - 1;
    if (s->stages > p && s->microbatches % p)
        return -1;
    return (p - 1) * (t_f + t_i) - filled * fmin(t_w, fmin(t_f, t_i));
}
