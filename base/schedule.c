/* SPDX-License-Identifier: Apache-2.0 */
#include "base/schedule.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/schedule_family.h"

static const struct schedule_family families[] = {
    {.name = "GPipe",
     .stages_per_rank = 1,
     .fixed = true,
     .generate = schedule_generate_looped_bfs,
     .bubble = schedule_bubble_looped_bfs},
    {.name = "1F1B",
     .stages_per_rank = 1,
     .fixed = true,
     .generate = schedule_generate_1f1b,
     .bubble = schedule_bubble_looped_bfs},
    {.name = "Interleaved1F1B",
     .stages_per_rank = 2,
     .generate = schedule_generate_1f1b,
     .bubble = schedule_bubble_interleaved},
    {.name = "LoopedBFS",
     .stages_per_rank = 2,
     .generate = schedule_generate_looped_bfs,
     .bubble = schedule_bubble_looped_bfs},
    {.name = "ZB1P",
     .alias = "ZBH1",
     .stages_per_rank = 1,
     .fixed = true,
     .generate = schedule_generate_zero_bubble,
     .bubble = schedule_bubble_zero_bubble},
    {.name = "InterleavedZeroBubble",
     .stages_per_rank = 2,
     .generate = schedule_generate_zero_bubble,
     .bubble = schedule_bubble_zero_bubble},
    {.name = "ZBVZeroBubble",
     .stages_per_rank = 2,
     .fixed = true,
     .v_order = true,
     .generate = schedule_generate_zbv,
     .bubble = schedule_bubble_zbv},
    {.name = "DualPipeV",
     .stages_per_rank = 2,
     .fixed = true,
     .v_order = true,
     .generate = schedule_generate_dualpipe_v,
     .bubble = schedule_bubble_dualpipe_v},
};

/* Finds a family by a schedule's name; NULL: no such name. */
static const struct schedule_family *family_of(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(families); i++)
        if (strcasecmp(name, families[i].name) == 0 || (families[i].alias && strcasecmp(name, families[i].alias) == 0))
            return &families[i];
    return NULL;
}

int schedule_stages_per_rank(const char *name)
{
    const struct schedule_family *family = family_of(name);
    return family ? family->stages_per_rank : 0;
}

const char *schedule_names(void)
{
    return "GPipe|1F1B|Interleaved1F1B|LoopedBFS|ZB1P|InterleavedZeroBubble|ZBVZeroBubble|DualPipeV";
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static titan_status check_limits(const char *name, int ranks, int stages, int microbatches, struct titan_error *err)
{
    if (ranks < 1 || ranks > SCHEDULE_RANKS_MAX)
        return titan_fail(err, TITAN_EINVAL, "schedule %s: %d pipeline ranks; 1 to %d are possible", name, ranks,
                          SCHEDULE_RANKS_MAX);
    if (microbatches < 1)
        return titan_fail(err, TITAN_EINVAL, "schedule %s: %d microbatches; it takes at least 1", name, microbatches);
    if (stages < 1 || stages % ranks) {
        titan_status status = titan_fail(
            err, TITAN_EINVAL, "schedule %s: %d stages cannot be shared evenly by %d ranks", name, stages, ranks);
        int64_t nearest = ((int64_t)MAX(stages, 0) + ranks / 2) / ranks * ranks;
        titan_error_hint(err, "the nearest number of stages is %lld", (long long)MAX(nearest, ranks));
        return status;
    }
    if (stages > SCHEDULE_STAGES_MAX) {
        titan_status status =
            titan_fail(err, TITAN_EINVAL, "schedule %s: %d stages are more than %d", name, stages, SCHEDULE_STAGES_MAX);
        titan_error_hint(err, "%d ranks may have %d stages", ranks, SCHEDULE_STAGES_MAX / ranks * ranks);
        return status;
    }
    if ((int64_t)stages * microbatches > SCHEDULE_CELLS_MAX / 3) {
        titan_status status =
            titan_fail(err, TITAN_EINVAL, "schedule %s: %d stages and %d microbatches are more than %d cells", name,
                       stages, microbatches, SCHEDULE_CELLS_MAX);
        titan_error_hint(err, "with %d stages at most %d microbatches fit", stages, SCHEDULE_CELLS_MAX / 3 / stages);
        return status;
    }
    return TITAN_OK;
}

titan_status schedule_new(const char *name, const struct schedule_shape *shape, bool v_order, struct schedule **ret,
                          struct titan_error *err)
{
    const int ranks = shape->ranks, stages = shape->stages, microbatches = shape->microbatches;
    TRY(check_limits(name, ranks, stages, microbatches, err));
    _cleanup_(schedule_clear) struct schedule *s = calloc(1, sizeof *s);
    if (s) {
        s->n_cells = calloc((size_t)ranks, sizeof *s->n_cells);
        s->cells = calloc((size_t)ranks, sizeof(struct cell *));
    }
    /* One block for all ranks: untouched pages cost no memory. */
    size_t room = 3 * (size_t)(stages / ranks) * (size_t)microbatches + 1;
    if (s && s->n_cells && s->cells)
        s->cells[0] = malloc((size_t)ranks * room * sizeof **s->cells);
    if (!s || !s->n_cells || !s->cells || !s->cells[0])
        return titan_fail(err, TITAN_ENOMEM, "no memory for a schedule of %d stages and %d microbatches", stages,
                          microbatches);
    for (int r = 1; r < ranks; r++)
        s->cells[r] = s->cells[0] + (size_t)r * room;
    snprintf(s->name, sizeof s->name, "%s", name);
    s->ranks = ranks;
    s->stages = stages;
    s->microbatches = microbatches;
    s->v_order = v_order;
    *ret = TAKE(s);
    return TITAN_OK;
}

void schedule_close(struct schedule *s)
{
    if (!s)
        return;
    if (s->cells)
        free(s->cells[0]);
    free(s->cells);
    free(s->n_cells);
    free(s);
}

titan_status schedule_generate(const char *name, int ranks, int stages, int microbatches, struct schedule **ret,
                               struct titan_error *err)
{
    const struct schedule_family *family = family_of(name);
    if (!family)
        return titan_fail(err, TITAN_EINVAL, "no pipeline schedule is named \"%s\"; there are %s", name,
                          schedule_names());
    titan_assert(family->stages_per_rank >= 1 && family->generate);
    TRY(check_limits(family->name, ranks, stages, microbatches, err));
    if (family->fixed && stages != family->stages_per_rank * ranks) {
        titan_status status =
            titan_fail(err, TITAN_EINVAL, "schedule %s: a rank holds %d stage%s, so %d ranks have no %d stages",
                       family->name, family->stages_per_rank, family->stages_per_rank == 1 ? "" : "s", ranks, stages);
        titan_error_hint(err, "the number of stages is %d", family->stages_per_rank * ranks);
        return status;
    }
    struct schedule *s;
    TRY(schedule_new(family->name, &(struct schedule_shape){ranks, stages, microbatches}, family->v_order, &s, err));
    family->generate(s);
    *ret = s;
    return TITAN_OK;
}

/* All microbatches of a round pass a rank's first stage before any of them passes its second stage. By then the other
 * ranks have processed them. Cells are ordered by (round, place of the stage on its rank, microbatch). So no cell waits
 * for a later cell. */
titan_status schedule_forward(int ranks, int stages, int microbatches, bool v_order, struct schedule **ret,
                              struct titan_error *err)
{
    struct schedule *s;
    TRY(schedule_new("forward", &(struct schedule_shape){ranks, stages, microbatches}, v_order, &s, err));
    for (int round = 0; round < microbatches; round += ranks)
        for (int stage = 0; stage < stages; stage++)
            for (int mb = round; mb < round + ranks; mb++)
                schedule_put(s, schedule_rank_of(s, stage), CELL_F, stage, mb);
    *ret = s;
    return TITAN_OK;
}

/* --- figures ------------------------------------------------------------------------------------------------------ */

double schedule_makespan(const struct schedule *s, double t_f, double t_i, double t_w, double *ret_busy)
{
    titan_assert(t_f >= 0 && t_i >= 0 && t_w >= 0);
    const double t[] = {[CELL_F] = t_f, [CELL_I] = t_i, [CELL_W] = t_w, [CELL_B] = t_i + t_w};
    _cleanup_(schedule_walk_free) struct schedule_walk w = {0};
    if (schedule_walk(s, t, &w) != TITAN_OK)
        return -1;
    double end = 0;
    for (int r = 0; r < s->ranks; r++) {
        end = fmax(end, w.clock[r]);
        if (ret_busy) {
            ret_busy[r] = 0;
            for (int i = 0; i < s->n_cells[r]; i++)
                ret_busy[r] += t[s->cells[r][i].kind];
        }
    }
    return end;
}

double schedule_bubble(const struct schedule *s, double t_f, double t_i, double t_w)
{
    const struct schedule_family *family = family_of(s->name);
    return family ? family->bubble(s, t_f, t_i, t_w) : -1;
}

int schedule_in_flight(const struct schedule *s, int rank)
{
    titan_assert(rank >= 0 && rank < s->ranks);
    int now = 0, most = 0;
    for (int i = 0; i < s->n_cells[rank]; i++) {
        enum cell_kind kind = s->cells[rank][i].kind;
        now += kind == CELL_F ? 1 : kind == CELL_I ? 0 : -1;
        most = MAX(most, now);
    }
    return most;
}
