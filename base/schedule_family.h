/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_family.h - what the generators share. Only for base/schedule*.c.
 *
 * docs/plan.md lists what a new schedule needs. tests/unit/base/test_schedule.c runs it over many sizes against the
 * check, a plain simulation and the formula. */
#ifndef TITAN_BASE_SCHEDULE_FAMILY_H
#define TITAN_BASE_SCHEDULE_FAMILY_H

#include "base/schedule.h"

struct schedule_family {
    const char *name, *alias; /* alias may be NULL */
    int stages_per_rank;      /* unless the recipe says otherwise */
    bool fixed;               /* no other number of stages per rank is legal */
    bool v_order;
    void (*generate)(struct schedule *s);
    /* Idle time of a rank between the start of the first cell of all and the end of the last; -1: no formula. */
    double (*bubble)(const struct schedule *s, double t_f, double t_i, double t_w);
};

/* NULL: no such name. */
const struct schedule_family *schedule_family(const char *name);

/* Without cells, and with room for one F, I and W of every stage and microbatch and one cell more on each rank. */
titan_status schedule_new(const char *name, int ranks, int stages, int microbatches, bool v_order,
                          struct schedule **ret, struct titan_error *err) TITAN_MUST_USE;
/* Append a cell. One of a microbatch the schedule does not have is dropped: cells depend on none of another microbatch,
 * so what is left of an order that runs, runs. That is how a schedule made for more microbatches is cut to size. */
void schedule_put(struct schedule *s, int rank, enum cell_kind kind, int stage, int microbatch);
static inline int schedule_local(const struct schedule *s) /* stages per rank */
{
    return s->stages / s->ranks;
}

/* "2I1" */
#define CELL_TEXT 40
const char *cell_text(struct cell cell, char text[CELL_TEXT]);

/* Run the ranks' cells in order, each as soon as its inputs are there; t: time of a cell by kind. */
struct schedule_walk {
    int *next;       /* per rank: cells done; below n_cells where it is stuck */
    double *clock;   /* per rank: end of its last cell */
    double *forward; /* per stage * microbatches + microbatch: end of F, NAN: not done */
    double *backward;
    int *queue; /* ranks to look at, each at most once */
    int queued;
    bool *in_queue;
};
titan_status schedule_walk(const struct schedule *s, const double t[4], struct schedule_walk *ret) TITAN_MUST_USE;
void schedule_walk_free(struct schedule_walk *w);
/* The cell that c waits for: false where it waits for nothing but its rank. */
bool cell_input(const struct schedule *s, struct cell c, struct cell *ret);

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
