/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_family.h - shared by the generators. Only for base/schedule*.c.
 *
 * docs/plan.md lists what a new schedule needs. tests/unit/base/test_schedule.c runs each schedule over many sizes
 * against the check, a plain simulation and the formula. */
#ifndef TITAN_BASE_SCHEDULE_FAMILY_H
#define TITAN_BASE_SCHEDULE_FAMILY_H

#include "base/schedule.h"

struct schedule_family {
    const char *name, *alias; /* alias may be NULL */
    int stages_per_rank;      /* default of the recipe */
    bool fixed;               /* other numbers of stages per rank are refused */
    bool v_order;
    void (*generate)(struct schedule *s);
    /* Idle time of a rank between the start of the first cell and the end of the last, over all ranks; -1: no
     * formula. */
    double (*bubble)(const struct schedule *s, double t_f, double t_i, double t_w);
};

/* A schedule without cells. Each rank has room for F, I and W of every stage and microbatch, and one cell more. */
titan_status schedule_new(const char *name, const struct schedule_shape *shape, bool v_order, struct schedule **ret,
                          struct titan_error *err) TITAN_MUST_USE;
/* Appends a cell. A cell of a microbatch outside the schedule is dropped: cells depend only on their own microbatch, so
 * the remaining order still runs. This cuts a schedule for more microbatches to size. */
void schedule_put(struct schedule *s, int rank, enum cell_kind kind, int stage, int microbatch);
static inline int schedule_local(const struct schedule *s) /* stages per rank */
{
    return s->stages / s->ranks;
}

/* "2I1" */
#define CELL_TEXT 40
const char *cell_text(struct cell cell, char text[CELL_TEXT]);

/* Runs the ranks' cells in order, each when its inputs are ready; t: time of a cell by kind. */
struct schedule_walk {
    int *next;       /* per rank: number of finished cells; below n_cells for a stuck rank */
    double *clock;   /* per rank: end of its last cell */
    double *forward; /* [stage * microbatches + microbatch]: end of F; NAN: not done */
    double *backward;
    int *queue; /* ranks to look at, each at most once */
    int queued;
    bool *in_queue;
};
titan_status schedule_walk(const struct schedule *s, const double t[4], struct schedule_walk *ret) TITAN_MUST_USE;
void schedule_walk_free(struct schedule_walk *w);

void schedule_generate_looped_bfs(struct schedule *s);
void schedule_generate_1f1b(struct schedule *s);
double schedule_bubble_looped_bfs(const struct schedule *s, double t_f, double t_i, double t_w);
double schedule_bubble_interleaved(const struct schedule *s, double t_f, double t_i, double t_w);
void schedule_generate_zero_bubble(struct schedule *s);
double schedule_bubble_zero_bubble(const struct schedule *s, double t_f, double t_i, double t_w);
void schedule_generate_zbv(struct schedule *s);
double schedule_bubble_zbv(const struct schedule *s, double t_f, double t_i, double t_w);
void schedule_generate_dualpipe_v(struct schedule *s);
double schedule_bubble_dualpipe_v(const struct schedule *s, double t_f, double t_i, double t_w);

#endif
