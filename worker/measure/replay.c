/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c - see replay.h. */
#include "worker/measure/replay.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "worker/data/batch.h"
#include "worker/exec/exec.h"
#include "worker/measure/echo.h"
#include "worker/plan/plan.h"
#include "worker/state/state.h"

enum { STEPS_LEAST = 4, STEPS_MOST = 32, BRACKETS = 65 };

struct replay {
    const struct replay_options *options;
    struct device_handle device;
    struct model *model;
    struct plan *plan;
    struct program **programs;
    const struct program *program; /* this rank's */
    struct train_state *state;
    struct stream *streams[STREAM_COUNT];
    struct comm *comms[CHANNEL_COUNT];
    struct exec *exec;
    int32_t *tokens;
    double *counts;
    double bracket; /* seconds that two timestamps around an action add */
    int steps;
    float *seconds; /* [action][STEPS_MOST] */
};

static titan_status no_memory(struct titan_error *err)
{
    return titan_fail(err, TITAN_ENOMEM, "measure: out of memory");
}

/* --- set-up ------------------------------------------------------------------------------------------------------- */

static void *bind_state(void *arg, const struct buffer *buffer)
{
    return state_bind(arg, buffer);
}

static titan_status open_replay(struct replay *r, struct titan_error *err)
{
    const struct replay_options *o = r->options;
    const struct device_options device = {.threads = o->threads};
    struct layout *layout = NULL;

    TRY(model_open(&o->recipe->model.dims, &r->model, err));
    TRY(device_open(o->recipe->device.name, &device, &r->device, err));
    struct plan_options plan = plan_options_of_device(o->recipe, r->model, &r->device);
    plan.world = o->world;
    TRY(plan_open(&plan, &r->plan, err));
    TRY(plan_programs(r->plan, &r->programs, err));
    r->program = r->programs[program_class(&r->plan->build, o->rank)];

    for (int s = 0; s < STREAM_COUNT; s++)
        if (s == STREAM_COMPUTE || r->program->streams >> s & 1)
            TRY(r->device.ops->stream_open(r->device.dev, program_stream_name((enum stream_id)s), s == STREAM_COMPUTE,
                                           &r->streams[s], err));
    TRY(layout_of_recipe(o->recipe, r->model, &r->plan->mesh, &layout, err));
    const struct state_options state = {.device = &r->device,
                                        .layout = layout,
                                        .rank = o->rank,
                                        .types = r->plan->build.types,
                                        .offload = o->recipe->training.enable_cpu_offload,
                                        .errors = codec_row(r->plan->build.codec)->error,
                                        .replica_errors = codec_row(r->plan->build.replicate_codec)->error};
    const titan_status status = state_open(&state, &r->state, err);
    if (status != TITAN_OK) {
        layout_close(layout);
        return status;
    }
    TRY(state_init(r->state, (uint64_t)o->recipe->training.seed, r->streams[STREAM_COMPUTE], err));

    struct exec_options exec = {.program = r->program,
                                .rank = o->rank,
                                .cut = r->plan->cut,
                                .device = &r->device,
                                .comm_ops = &comm_echo,
                                .bind = bind_state,
                                .arg = r->state};
    struct exec_products products;
    for (int c = 0; c < CHANNEL_COUNT; c++) {
        r->comms[c] = echo_open(r->device.ops, &r->plan->mesh, (enum channel)c, o->rank);
        if (!r->comms[c])
            return no_memory(err);
        exec.comms[c] = exec.inbound[c] = r->comms[c];
    }
    memcpy(exec.streams, r->streams, sizeof exec.streams);
    TRY(exec_open(&exec, &r->exec, err));
    /* A run chooses its products the same way, together with the other ranks (epoch.c). */
    return r->plan->build.order == ATTENTION_ANY ? exec_choose_products(r->exec, NULL, NULL, &products, err) : TITAN_OK;
}

/* Draws tokens over the whole vocabulary, so that the rows of the embedding that are read are at least as far apart as
 * in text. */
static titan_status make_batch(struct replay *r, struct titan_error *err)
{
    const struct sequence_cut *cut = &r->plan->cut;
    const int64_t all = cut->b * cut->t, mine = batch_tokens(cut), share = r->program->share;
    const uint64_t vocabulary = (uint64_t)r->options->recipe->model.dims.vocab_size;
    _cleanup_free_ int32_t *inputs = calloc((size_t)all + 1, sizeof *inputs);
    int at[AXIS_COUNT];
    uint64_t draw = (uint64_t)r->options->rank;

    titan_assert(all > 0 && vocabulary > 0);
    r->tokens = calloc((size_t)(share * batch_rows(cut->modules) * mine) + 1, sizeof *r->tokens);
    r->counts = calloc((size_t)share + 1, sizeof *r->counts);
    if (!inputs || !r->tokens || !r->counts)
        return no_memory(err);
    mesh_coords(&r->plan->mesh, r->options->rank, at);
    for (int64_t m = 0; m < share; m++) {
        for (int64_t i = 0; i < all; i++)
            inputs[i] = (int32_t)(hash_draw(&draw) % vocabulary);
        r->counts[m] =
            (double)batch_fill(cut, at[AXIS_CP], inputs, inputs, NULL, r->tokens + m * batch_rows(cut->modules) * mine);
    }
    return TITAN_OK;
}

/* --- times -------------------------------------------------------------------------------------------------------- */

static int by_value(const void *x, const void *y)
{
    const float *a = x, *b = y;
    return *a < *b ? -1 : *a > *b;
}

/* Measures the time that two timestamps around an action add. */
static titan_status measure_bracket(struct replay *r, struct titan_error *err)
{
    const struct device_ops *ops = r->device.ops;
    struct stream *const s = r->streams[STREAM_COMPUTE];
    struct timestamps *p = NULL;
    int64_t ns[2 * BRACKETS];
    float took[BRACKETS];

    titan_status status = ops->timestamps_open(r->device.dev, 2 * BRACKETS, &p, err);
    if (status == TITAN_OK)
        status = ops->timestamps_begin(p, err);
    for (int i = 0; i < 2 * BRACKETS && status == TITAN_OK; i++)
        status = ops->timestamp(p, i, s, err);
    if (status == TITAN_OK)
        status = ops->stream_sync(s, err);
    if (status == TITAN_OK)
        status = ops->timestamps_read(p, ns, err);
    for (int i = 0; i < BRACKETS && status == TITAN_OK; i++)
        took[i] = (float)(ns[2 * i + 1] - ns[2 * i]) * 1e-9f;
    ops->timestamps_close(p);
    if (status == TITAN_OK) {
        qsort(took, BRACKETS, sizeof took[0], by_value);
        r->bracket = took[BRACKETS / 2];
    }
    return status;
}

static titan_status run_step(struct replay *r, uint64_t number, struct titan_error *err)
{
    const struct exec_batch batch = {.tokens = r->tokens, .counts = r->counts};
    const struct update update = update_of_recipe(
        r->options->recipe, &(struct update_step){.rate = 1e-4, .number = number, .tokens = 1000, .clip = 1});
    const double *statistics = NULL;

    TRY(exec_gradients(r->exec, &batch, err));
    TRY(exec_agree(r->exec, &statistics, err));
    TRY(exec_commit(r->exec, &update, err));
    TRY(exec_update(r->exec, &update, err));
    return exec_wait_for_update(r->exec, err);
}

static titan_status run_steps(struct replay *r, struct board *board, struct titan_error *err)
{
    const struct program *p = r->program;

    r->seconds = calloc((size_t)p->n_actions * STEPS_MOST, sizeof *r->seconds);
    if (!r->seconds)
        return no_memory(err);
    TRY(run_step(r, 1, err)); /* the first step has cold caches and does the one-time work */
    exec_take_times(r->exec, true);
    TRY(measure_bracket(r, err));
    (void)pthread_barrier_wait(&board->ready);
    const int64_t began_ns = clock_mono_ns();
    for (; r->steps < STEPS_MOST; r->steps++) {
        if (r->steps >= STEPS_LEAST && (double)(clock_mono_ns() - began_ns) * 1e-9 > r->options->seconds)
            break;
        TRY(run_step(r, (uint64_t)r->steps + 2, err));
        struct exec_times times;
        TRY(exec_times(r->exec, &times, err));
        for (int i = 0; i < p->n_actions; i++)
            r->seconds[(size_t)i * STEPS_MOST + (size_t)r->steps] = (float)(times.ended[i] - times.began[i]) * 1e-9f;
    }
    return TITAN_OK;
}

/* --- what is written down ----------------------------------------------------------------------------------------- */

struct step_total {
    double seconds;
    int step;
};

static int by_seconds(const void *x, const void *y)
{
    const struct step_total *a = x, *b = y;
    return a->seconds < b->seconds ? -1 : a->seconds > b->seconds;
}

/* Chooses the middle half of the steps, ordered by the total time of all operations. A plan is compared with a run's
 * median step, and the actions' means over the chosen steps add up to such a step. The actions' medians do not add up
 * to it, because different actions are slow in different steps (measured: the sum of the medians is up to 4 % less). */
static int choose_steps(const struct replay *r, int ret[STEPS_MOST])
{
    struct step_total all[STEPS_MOST] = {0};
    const int left = (r->steps + 1) / 4, n = r->steps - 2 * left;

    titan_assert(n >= 2 && r->steps <= STEPS_MOST);
    for (int k = 0; k < r->steps; k++) {
        all[k].step = k;
        for (int i = 0; i < r->program->n_actions; i++)
            if (!op_is_transfer((enum op)r->program->actions[i].op))
                all[k].seconds += (double)r->seconds[(size_t)i * STEPS_MOST + (size_t)k];
    }
    qsort(all, (size_t)r->steps, sizeof all[0], by_seconds);
    for (int k = 0; k < n; k++)
        ret[k] = all[left + k].step;
    return n;
}

/* Finds this rank's row of an operation or transfer, or adds a row. */
static struct board_row *row_of(struct board *board, int *mine, int *n, const struct cost_row *cost)
{
    for (int i = 0; i < *n; i++) {
        const struct cost_row *c = &board->rows[mine[i]].cost;
        if (c->kind == cost->kind && c->size == cost->size && c->bytes == cost->bytes && strcmp(c->key, cost->key) == 0)
            return &board->rows[mine[i]];
    }
    titan_assert(*n < BOARD_ROWS && cost->key[0]);
    const int at = atomic_fetch_add(&board->n, 1);
    if (at >= BOARD_ROWS)
        return NULL;
    mine[(*n)++] = at;
    board->rows[at].cost = *cost;
    return &board->rows[at];
}

/* Writes the times to the board. Actions with the same operation and numbers have the same key and share a row. */
static titan_status write_down(struct replay *r, struct board *board, struct titan_error *err)
{
    const struct program *p = r->program;
    const int threads = r->device.info.host_memory ? r->options->threads : 1; /* GPU plans look up rows with 1 thread */
    const double least = 1e-9;
    _cleanup_free_ int *mine = calloc(BOARD_ROWS, sizeof *mine);
    int n = 0, steps[STEPS_MOST];

    titan_assert(r->steps >= STEPS_LEAST && r->steps <= STEPS_MOST);
    if (!mine)
        return no_memory(err);
    if (r->options->first) {
        struct cost_host *const host = &board->host;
        cost_host_of_cpu(host);
        if (!r->device.info.host_memory) {
            (void)snprintf(host->device, sizeof host->device, "%s", r->device.plugin->name);
            (void)snprintf(host->machine, sizeof host->machine, "%s", r->device.info.name);
            (void)snprintf(host->isa, sizeof host->isa, "gpu");
            host->cores = 1;
            host->mhz = 0;
        }
    }
    const int n_steps = choose_steps(r, steps);
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        const bool transfer = op_is_transfer((enum op)a->op);
        struct cost_row cost = {.kind = transfer ? COST_TRANSFER : COST_OPERATION, .size = threads};
        if (op_class((enum op)a->op) == OP_CLASS_NO_TIME)
            continue;
        cost_key(p, a, cost.key);
        cost.bytes = cost_bytes(p, a);
        if (transfer)
            cost.size = cost_members(p, a);
        if (transfer && (cost.size == 1 || cost.bytes == 0))
            continue;
        struct board_row *row = row_of(board, mine, &n, &cost);
        if (!row)
            return titan_fail(err, TITAN_ELIMIT, "measure: more than %d distinct operations", BOARD_ROWS);
        row->op = (enum op)a->op;
        row->dt = (enum dtype)action_params(p, a)->dt;
        if (transfer)
            continue;

        const float *seconds = r->seconds + (size_t)i * STEPS_MOST;
        double sum = 0, squares = 0;
        for (int k = 0; k < n_steps; k++)
            sum += (double)seconds[steps[k]];
        const double mean = sum / n_steps;
        for (int k = 0; k < n_steps; k++)
            squares += ((double)seconds[steps[k]] - mean) * ((double)seconds[steps[k]] - mean);
        const double spread = sqrt(squares / (n_steps - 1));
        row->cost.seconds = (row->cost.seconds * row->count + MAX(mean - r->bracket, least)) / (row->count + 1);
        row->cost.spread = (row->cost.spread * row->count + spread) / (row->count + 1);
        row->count++;
    }
    return TITAN_OK;
}

titan_status replay_rank(const struct replay_options *options, struct board *board, struct titan_error *err)
{
    struct replay r = {.options = options};

    titan_assert(options->rank >= 0 && options->rank < options->world && options->threads > 0);
    titan_status status = open_replay(&r, err);
    if (status == TITAN_OK)
        status = make_batch(&r, err);
    if (status == TITAN_OK)
        status = run_steps(&r, board, err);
    if (status == TITAN_OK)
        status = write_down(&r, board, err);

    exec_close(r.exec);
    for (int c = 0; c < CHANNEL_COUNT; c++)
        free(r.comms[c]);
    for (int s = 0; s < STREAM_COUNT; s++)
        if (r.streams[s])
            r.device.ops->stream_close(r.streams[s]);
    state_close(r.state);
    if (r.programs)
        plan_free_programs(r.plan, r.programs);
    plan_close(r.plan);
    model_close(r.model);
    if (r.device.dev)
        device_close(&r.device);
    free(r.tokens);
    free(r.counts);
    free(r.seconds);
    return status;
}
