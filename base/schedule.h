/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.h - the work of a pipeline in order: for every rank of the pp axis, the order of its actions.
 *
 * A schedule is data: cells (action, stage, microbatch) in the order a rank issues them. Stages are numbered along the
 * model; a rank holds one stage (single), or several ("virtual") in loop order (stage s on rank s mod p) or V order
 * (stage s on rank s, then back: 2p-1-s). Actions: F forward; I gradient of the input; W gradient of the weights;
 * B both at once.
 *
 * Generators (p ranks, v stages a rank, m microbatches; t_F, t_I, t_W times of the actions of one stage; B = I + W, t_B
 * their sum). The bubble is the idle time of each rank from the start of the first cell of all to the end of the last,
 * because the optimizer waits for all ranks. held is the largest number of (stage, microbatch) in flight on rank r:
 *
 *   name                   order                                bubble / (p-1)               held
 *   GPipe                  all F, then all B                    t_F + t_B                    m
 *   1F1B                   warm-up p-r-1, then one of each      t_F + t_B                    min(m, p-r)
 *   Interleaved1F1B        v stages in a loop, rounds of p      t_F + t_B (a)                vp + p - 1 - 2r
 *   LoopedBFS              all microbatches of a stage at once  t_F + t_B (b)                vm
 *   ZB1P (ZB-H1)           1F1B with W deferred                 t_F + t_I - t_W (c)          p
 *   InterleavedZeroBubble  the same over v stages               t_F + t_I - t_W (a, c)       vp
 *   ZBVZeroBubble          two stages in V order                max(t_I, 2 (t_I - t_W)) (d)  2p
 *   DualPipeV              the same, F of one microbatch and    t_F + t_I - t_W (e)          2p + 1
 *                          B of another side by side
 *
 * (a) where m is a multiple of p. Otherwise the last round waits for the microbatches it lacks, and there is no
 *     formula, except that (b) holds for Interleaved1F1B with m < p. With v = 1 the two schedules are 1F1B and ZB1P.
 * (b) where m >= p. Otherwise each of the v - 1 turns of the loop costs (p-m)(t_F + t_B) more.
 * (c) where m >= p and t_W <= t_F, t_I, as published. In general min(t_F, t_I, t_W) is subtracted instead of t_W. The
 *     bubble has this term p-1 times, but with m < p only m-1 times.
 * (d) where m >= 2p-1 and t_F, t_W <= t_I. Otherwise there is no formula. With equal times the bubble is (p-1) t_F, the
 *     time until the last rank has its first input. Between its own first and last cell no rank is idle: this is the
 *     published zero.
 * (e) where m >= 2p and t_W <= t_I <= t_F <= t_I + t_W. For any t_I <= t_F the formula is
 *     t_F + max(t_I, t_F - t_W) - min(t_I, t_W); for t_I > t_F there is none. F and B side by side count one after the
 *     other.
 *
 * Sources: Huang et al. 2019 (arXiv:1811.06965), Narayanan et al. 2021 (arXiv:2104.04473), Lamy-Poirier 2022
 * (arXiv:2211.05953), Qi et al. 2024 (arXiv:2401.10241) and 2024 (arXiv:2405.15362), DeepSeek-AI 2024
 * (arXiv:2412.19437). Names are as in PyTorch's schedules and TorchTitan's recipes. A custom schedule is CSV with one
 * line per rank and cells like 0F3, 2I1, 2W1, 1B0 (stage, action, microbatch). An empty cell is idle.
 *
 * Pure: no clock, and no file except in schedule_load(). Submits, the planner and the worker use schedules. */
#ifndef TITAN_BASE_SCHEDULE_H
#define TITAN_BASE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

#define SCHEDULE_RANKS_MAX 1024
#define SCHEDULE_STAGES_MAX 8192
#define SCHEDULE_CELLS_MAX (1 << 23)        /* 3 * stages * microbatches */
#define SCHEDULE_CSV_MAX (64 * 1024 * 1024) /* bytes */

enum cell_kind { CELL_F, CELL_I, CELL_W, CELL_B };

struct cell {
    enum cell_kind kind;
    int stage, microbatch;
};

struct schedule {
    char name[32];
    int ranks, stages, microbatches; /* stages = ranks * stages per rank */
    bool v_order;                    /* stages are in V order; false: stage s is on rank s mod ranks */
    int *n_cells;                    /* per rank */
    struct cell **cells;             /* per rank */
};

/* Default stages per rank: 1, or 2 for the looped and V schedules. 0: no such name. Case is ignored; "ZB1P" and "ZBH1"
 * are the same. */
int schedule_stages_per_rank(const char *name);
/* "GPipe|1F1B|..." for messages and the table of keys. */
const char *schedule_names(void);
/* Generates a schedule. TITAN_EINVAL names the conflict and the nearest legal number: stages that do not divide evenly
 * among ranks, a number of stages per rank that the schedule does not allow, too many cells. Any m >= 1 is legal. A
 * schedule designed for more microbatches (a whole round of a loop, 2p of a V) drops the cells of the missing
 * microbatches. */
titan_status schedule_generate(const char *name, int ranks, int stages, int microbatches, struct schedule **ret,
                               struct titan_error *err) TITAN_MUST_USE;
/* Forwards alone, for an evaluation: rounds with one microbatch per rank, stage by stage within a round. */
titan_status schedule_forward(int ranks, int stages, int microbatches, bool v_order, struct schedule **ret,
                              struct titan_error *err) TITAN_MUST_USE;
struct schedule_shape {
    int ranks, stages, microbatches;
};
/* Parses CSV text; path is for messages. TITAN_EINVAL names line and cell. Checked by schedule_check(). */
titan_status schedule_parse(const char *text, const char *path, const struct schedule_shape *shape,
                            struct schedule **ret, struct titan_error *err) TITAN_MUST_USE;
titan_status schedule_load(const char *path, int ranks, int stages, int microbatches, struct schedule **ret,
                           struct titan_error *err) TITAN_MUST_USE;
void schedule_close(struct schedule *s);                /* NULL is fine */
static inline void schedule_clear(struct schedule **of) /* for _cleanup_ */
{
    schedule_close(*of);
}

int schedule_rank_of(const struct schedule *s, int stage);
/* Checks that every (stage, microbatch) has one F and one backward (B, or I and W) on the stage's own rank, F before I
 * before W. The schedule must also run to its end: a cell waits for its inputs (F waits for F of the previous stage, I
 * and B wait for I or B of the next stage), and ranks proceed in order. TITAN_EINVAL names the missing, double,
 * misplaced or deadlocked cell, and the input it waits for. */
titan_status schedule_check(const struct schedule *s, struct titan_error *err) TITAN_MUST_USE;
/* End time of the schedule, given times of F, I and W per stage (B: t_i + t_w); sending takes no time. *ret_busy
 * (ranks) gets each rank's working time; NULL is fine. Only for checked schedules. -1: no memory. */
double schedule_makespan(const struct schedule *s, double t_f, double t_i, double t_w, double *ret_busy);
/* Idle time of a rank by the generator's formula above; equals the idle time of schedule_makespan(). -1: no formula. */
double schedule_bubble(const struct schedule *s, double t_f, double t_i, double t_w);
/* Most microbatches in flight on a rank: F has run, W or B has not. */
int schedule_in_flight(const struct schedule *s, int rank);
/* Writes CSV in the notation of schedule_parse(). */
void schedule_print(const struct schedule *s, struct buf *out);

#endif
