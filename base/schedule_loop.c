/* SPDX-License-Identifier: Apache-2.0 */
/* GPipe, 1F1B and their looped forms: stage s is on rank s mod p; the n-th stage of a rank is its chunk n. */
#include <math.h>

#include "base/cleanup.h"
#include "base/schedule_family.h"

/* Runs all microbatches of a chunk, then of the next chunk, and then back. GPipe has one chunk. Microbatches ascend in
 * both directions, so gradients are summed in the order of a single rank. */
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

/* A microbatch returns to rank 0 after p forwards. With fewer than p microbatches every turn of the loop waits for that
 * return, forwards and backwards. */
double schedule_bubble_looped_bfs(const struct schedule *s, double t_f, double t_i, double t_w)
{
    int p = s->ranks, turns = schedule_local(s) - 1;
    return (p - 1 + turns * MAX(p - s->microbatches, 0)) * (t_f + t_i + t_w);
}

/* Appends the i-th forward (or backward) of a rank in interleaved order: rounds of p microbatches, chunk by chunk;
 * backwards go from the last chunk to the first. */
static void put_nth(struct schedule *s, int rank, enum cell_kind kind, int i)
{
    int p = s->ranks, chunks = schedule_local(s);
    titan_assert(i >= 0 && chunks >= 1);
    int chunk = i / p % chunks;
    if (kind != CELL_F)
        chunk = chunks - 1 - chunk;
    schedule_put(s, rank, kind, chunk * p + rank, i / (p * chunks) * p + i % p);
}

/* Appends the warm-up forwards, then forwards and backwards in turn, then the remaining cells. A last round of fewer
 * than p microbatches omits the cells of the missing microbatches. hold 0: whole backwards. Otherwise backwards are
 * split: a W runs once `hold` forwards have no W yet, and after each I when no forwards are left. */
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

/* Narayanan et al. 2021, figures 3 and 4. With one chunk every rank starts one forward earlier than the next rank. Its
 * warm-up has as many forwards as ranks follow. In the looped form the last rank starts at the first forward of its
 * last chunk, and each earlier rank two forwards before: in lock-step, a microbatch reaches the neighbour after one
 * forward and one backward. */
void schedule_generate_1f1b(struct schedule *s)
{
    int chunks = schedule_local(s);
    for (int r = 0; r < s->ranks; r++) {
        int behind = s->ranks - 1 - r;
        put_1f1b(s, r, chunks == 1 ? behind : (chunks - 1) * s->ranks + 2 * behind, 0);
    }
}

/* A short round waits for its missing microbatches at every turn. After whole rounds there are other waits, and the
 * total has no simple form. */
double schedule_bubble_interleaved(const struct schedule *s, double t_f, double t_i, double t_w)
{
    if (s->stages > s->ranks && s->microbatches > s->ranks && s->microbatches % s->ranks)
        return -1;
    return schedule_bubble_looped_bfs(s, t_f, t_i, t_w);
}

/* ZB-H1 of Qi et al. 2024, and its looped form. A microbatch returns after F and I alone. So each rank starts one
 * forward earlier than the next. Every rank holds as many microbatches as the first rank, p per chunk. */
void schedule_generate_zero_bubble(struct schedule *s)
{
    int p = s->ranks, chunks = schedule_local(s);
    for (int r = 0; r < p; r++)
        put_1f1b(s, r, (chunks - 1) * p + p - 1 - r, chunks * p);
}

/* The way to the last rank and back costs the first of p ranks p - 1 times F + I. W that were put off fill this at the
 * end; each fills the shortest of F, I and W. So at least p - 1 times the longer of F and I remains: for F it is the
 * last rank's wait for its first F, for I the first rank's wait for its first I. With fewer than p microbatches, fewer
 * W are put off. */
double schedule_bubble_zero_bubble(const struct schedule *s, double t_f, double t_i, double t_w)
{
    int p = s->ranks, filled = MIN(p, s->microbatches) - 1;
    if (s->stages > p && s->microbatches % p)
        return -1;
    return (p - 1) * (t_f + t_i) - filled * fmin(t_w, fmin(t_f, t_i));
}
