/* schedule.h - who does what when in a pipeline: for every rank of the pp axis, the order of its actions.
 *
 * A schedule is data: cells (action, stage, microbatch) in the order a rank issues them. Stages are numbered along the
 * model; a rank holds one stage (single), or several ("virtual") in loop order (stage s on rank s mod p) or V order
 * (stage s on rank s, then back: 2p-1-s). Actions: F forward; I gradient of the input; W gradient of the weights;
 * B both at once.
 *
 * Generators (p ranks, v stages a rank, m microbatches; t_F, t_I, t_W times of the actions of one stage; B = I + W):
 *
 *   GPipe                 all F, then all B                     bubble (p-1)(t_F+t_B)
 *   1F1B                  warm-up p-r-1, then one of each       bubble (p-1)(t_F+t_B)
 *   Interleaved1F1B       v stages in a loop                    bubble (p-1)(t_F+t_B), stages being 1/v as large
 *   LoopedBFS             all microbatches of a stage at a time bubble as interleaved
 *   ZB1P (ZB-H1)          1F1B with W deferred                  bubble (p-1)(t_F+t_I-t_W)
 *   InterleavedZeroBubble the same over v stages
 *   ZBVZeroBubble         two stages in V order                 bubble 0 where t_F = t_I = t_W and m is large enough
 *   DualPipeV             two stages in V order, F of one and B of the other microbatch side by side
 *
 * Sources: Huang et al. 2019 (arXiv:1811.06965), Narayanan et al. 2021 (arXiv:2104.04473), Qi et al. 2024
 * (arXiv:2401.10241) and 2024 (arXiv:2405.15362), DeepSeek-AI 2024 (arXiv:2412.19437). Names as PyTorch's schedules and
 * TorchTitan's recipes have them. Custom: CSV with one line a rank, cells like 0F3, 2I1, 2W1, 1B0 (stage, action,
 * microbatch), empty cells are idle.
 *
 * Pure: no clock, no file but schedule_load's. Used at submit, by the planner and by the worker. */
#ifndef TITAN_BASE_SCHEDULE_H
#define TITAN_BASE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

#define SCHEDULE_RANKS_MAX 1024
#define SCHEDULE_CELLS_MAX (1 << 23)        /* 3 * stages * microbatches */
#define SCHEDULE_CSV_MAX (64 * 1024 * 1024) /* bytes */

enum cell_kind { CELL_F, CELL_I, CELL_W, CELL_B };

struct cell {
    enum cell_kind kind;
    int stage, microbatch;
};

struct schedule {
    char name[32];
    int ranks, stages, microbatches; /* stages = ranks * (stages a rank has) */
    bool v_order;                    /* rank of stage s: s mod ranks, or the V */
    int *n_cells;                    /* per rank */
    struct cell **cells;             /* per rank */
};

/* Stages a rank has unless the recipe says otherwise: 1, or 2 for the looped and V schedules. 0: no such name. Names
 * are matched in any case; "ZB1P" and "ZBH1" are the same. */
int schedule_stages_per_rank(const char *name);
/* "GPipe|1F1B|..." for messages and the table of keys. */
const char *schedule_names(void);
/* Generate. TITAN_EINVAL names what does not fit (stages not a multiple of ranks, microbatches too few for a V) and the
 * nearest legal number. Any m >= 1 is legal where the schedule allows it: a looped schedule whose m is no multiple of p
 * runs its last round short. */
titan_status schedule_generate(const char *name, int ranks, int stages, int microbatches, struct schedule **ret,
                               struct titan_error *err) TITAN_MUST_USE;
/* From CSV text; path is for messages. TITAN_EINVAL names line and cell. Checked as schedule_check does. */
titan_status schedule_parse(const char *text, const char *path, int ranks, int stages, int microbatches,
                            struct schedule **ret, struct titan_error *err) TITAN_MUST_USE;
titan_status schedule_load(const char *path, int ranks, int stages, int microbatches, struct schedule **ret,
                           struct titan_error *err) TITAN_MUST_USE;
void schedule_close(struct schedule *s); /* NULL is fine */

int schedule_rank_of(const struct schedule *s, int stage);
/* Every (stage, microbatch) has one F and one backward (B, or I and W) on the stage's own rank, F before I before W,
 * and the whole thing runs to its end when a cell waits for its inputs (F for F of the stage before, I and B for the
 * one behind) and ranks go on in order. TITAN_EINVAL names the cell that is missing, double, misplaced, or stands in a
 * deadlock, and what it waits for. */
titan_status schedule_check(const struct schedule *s, struct titan_error *err) TITAN_MUST_USE;
/* When everything ends if F, I and W of a stage take these times (B: t_i + t_w) and sending takes none; *ret_busy
 * (ranks) gets each rank's working time, NULL is fine. Only for checked schedules. */
double schedule_makespan(const struct schedule *s, double t_f, double t_i, double t_w, double *ret_busy);
/* Idle time of a rank by the generator's formula above; -1 where there is none. */
double schedule_bubble(const struct schedule *s, double t_f, double t_i, double t_w);
/* Largest number of microbatches whose F has run on a rank and whose W or B has not. */
int schedule_in_flight(const struct schedule *s, int rank);
/* As CSV, in the notation schedule_parse reads. */
void schedule_print(const struct schedule *s, struct buf *out);

#endif
