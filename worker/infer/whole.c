/* SPDX-License-Identifier: Apache-2.0 */
/* whole.c - the whole model on one device. */
#include "worker/infer/whole.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/exec/exec.h"
#include "worker/infer/weights.h"
#include "worker/model/block.h"

/* The result of a call on a batch. */
enum want { WANT_LOGITS, WANT_NEXT, WANT_LOSS, WANT_GRADIENTS };

/* The program of the newest call. It is kept because text generation and tests repeat calls that need the same
 * program. */
struct run {
    enum want want;
    int64_t b, t;
    struct program *program; /* NULL: none yet */
    struct exec *exec;
};

struct whole_model {
    const struct model *model;
    const struct device_handle *device;
    const struct device_ops *ops;
    enum dtype dt;
    int64_t b_max, t_max;
    double expert_capacity;
    struct layout *layout;
    struct stream *stream;
    struct weights weights;
    struct run run;
    int32_t *host; /* (batch_rows,b*t): the input of LOAD */
    /* device memory */
    float **grads; /* per unit, allocated at first use */
    double *sum;
    void *output; /* logits in the compute type, or losses */
    size_t output_room;
};

static titan_status no_memory(struct titan_error *err)
{
    return titan_fail(err, TITAN_ENOMEM, "model: out of memory");
}

/* --- opening and closing ------------------------------------------------------------------------------------------ */

static titan_status grab(struct whole_model *w, size_t bytes, void *ret, struct titan_error *err)
{
    titan_assert(bytes > 0);
    return w->ops->alloc(w->device->dev, bytes, (void **)ret, err);
}

static void drop(struct whole_model *w, void *ptr)
{
    if (ptr)
        w->ops->release(w->device->dev, ptr);
}

titan_status whole_model_open(const struct whole_options *options, struct whole_model **ret, struct titan_error *err)
{
    const struct model *m = options->model;
    const struct layout_options one_rank = {.model = m, .mesh = {.world = 1, .size = {1, 1, 1, 1, 1}, .ep = 1}};

    titan_assert(options->b >= 1 && options->t >= 1);
    struct whole_model *w = calloc(1, sizeof *w);
    if (!w)
        return no_memory(err);
    w->model = m;
    w->device = options->device;
    w->ops = options->device->ops;
    w->dt = options->dt;
    w->b_max = options->b;
    w->t_max = options->t;
    w->grads = calloc((size_t)m->n_units, sizeof *w->grads);
    w->host = calloc((size_t)(batch_rows(m->dims.mtp_layers) * w->b_max * w->t_max), sizeof *w->host);
    titan_status status = w->grads && w->host ? TITAN_OK : no_memory(err);
    if (status == TITAN_OK)
        status = w->ops->stream_open(w->device->dev, "model", true, &w->stream, err);
    if (status == TITAN_OK)
        status = layout_open(&one_rank, &w->layout, err);
    if (status == TITAN_OK)
        status = weights_open(w->layout, w->device, w->dt, w->stream, &w->weights, err);
    if (status == TITAN_OK)
        status = grab(w, sizeof *w->sum, &w->sum, err);
    if (status != TITAN_OK) {
        whole_model_close(w);
        return status;
    }
    *ret = w;
    return TITAN_OK;
}

static void close_run(struct whole_model *w)
{
    exec_close(w->run.exec);
    program_close(w->run.program);
    w->run = (struct run){0};
}

void whole_model_close(struct whole_model *w)
{
    if (!w)
        return;
    close_run(w);
    for (int u = 0; w->grads && u < w->model->n_units; u++)
        drop(w, w->grads[u]);
    weights_close(&w->weights);
    drop(w, w->sum);
    drop(w, w->output);
    if (w->stream)
        w->ops->stream_close(w->stream);
    layout_close(w->layout);
    free(w->grads);
    free(w->host);
    free(w);
}

/* --- parameters --------------------------------------------------------------------------------------------------- */

titan_status whole_model_set(struct whole_model *w, int tensor, const float *values, struct titan_error *err)
{
    return weights_set(&w->weights, tensor, values, err);
}

titan_status whole_model_set_biases(struct whole_model *w, const float *biases, struct titan_error *err)
{
    return weights_set_biases(&w->weights, biases, err);
}

void whole_model_set_expert_capacity(struct whole_model *w, double capacity)
{
    titan_assert(capacity >= 0);
    w->expert_capacity = capacity;
    close_run(w); /* the next call needs another program */
}

titan_status whole_model_load(struct whole_model *w, const struct trained *t, struct titan_error *err)
{
    return weights_load(&w->weights, t, err);
}

titan_status whole_model_init(struct whole_model *w, uint64_t seed, struct titan_error *err)
{
    _cleanup_free_ float *values = malloc((size_t)w->weights.unit_max * sizeof *values);
    if (!values)
        return no_memory(err);
    for (int i = 0; i < w->model->n_tensors; i++) {
        model_init_tensor(w->model, seed, i, 0, w->model->tensors[i].numel, values);
        TRY(whole_model_set(w, i, values, err));
    }
    return TITAN_OK;
}

/* --- the program -------------------------------------------------------------------------------------------------- */

struct writer {
    struct emitter e;
    struct block k;
    struct block_tokens tokens;
    struct unit_buffers *units;
    struct tensor *bias; /* per unit */
    const struct unit_buffers *head, *tied;
    struct layer_saved *saved;
    struct mtp_saved *mtp; /* [0]: the model's last norm; [m]: module m of multi-token prediction */
    struct tensor *dh;     /* gradients of the outputs of the norm and of the modules, numbered like `mtp` */
};

static void declare_buffers(const struct whole_model *w, struct writer *to, bool gradients)
{
    struct emitter *e = &to->e;
    const struct model *m = w->model;

    for (int i = 0; i < TABLE_COUNT; i++)
        to->k.table[i] = -1;
    const enum table angles[] = {TABLE_COS, TABLE_SIN, TABLE_COS_LOCAL, TABLE_SIN_LOCAL};
    for (int i = 0; i < (m->dims.rope_local_theta > 0 ? 4 : 2); i++) {
        e->unit = (int)angles[i];
        to->k.table[angles[i]] =
            emit_buffer(e, BUF_TABLE, "angles", (size_t)(to->k.t * (model_rope_dim(m) / 2)) * sizeof(float));
    }
    for (int u = 0; u < m->n_units; u++) {
        const size_t n = (size_t)w->layout->units[u].padded;
        e->unit = u;
        to->units[u] =
            (struct unit_buffers){.unit = u,
                                  .params = emit_buffer(e, BUF_SHARD, "parameters", n * dtype_bytes(w->dt)),
                                  .grads = gradients ? emit_buffer(e, BUF_OUTPUT, "gradient", n * sizeof(float)) : -1,
                                  .first = true};
        to->bias[u] = TENSOR_NONE;
        if (w->weights.biases && m->units[u].kind == UNIT_EXPERTS)
            to->bias[u] = emit_tensor(e, BUF_BIAS, "expert_bias", DTYPE_F32, 1, m->dims.n_experts);
    }
    to->k.bias = to->bias;
    e->unit = -1;
    const int64_t rows = batch_rows(m->dims.mtp_layers);
    const int tokens = emit_buffer(e, BUF_TOKENS, "tokens", (size_t)(rows * to->k.b * to->k.t) * sizeof(int32_t));
    block_tokens_view(&to->k, tokens, &to->tokens);
    EMIT(e, load, to->tokens.all);
}

static struct layer_units units_of(const struct whole_model *w, const struct writer *to, int layer)
{
    const int experts = model_experts_unit(w->model, layer);

    titan_assert(layer >= 0 && layer < model_all_layers(w->model));
    return (struct layer_units){.own = &to->units[model_layer_unit(w->model, layer)],
                                .experts = experts < 0 ? NULL : &to->units[experts]};
}

/* Writes the modules of multi-token prediction, forward and backward, with their losses (1, modules*n). Also writes the
 * backward of the norm before them. dh: gradient of the norm's output, from the head. Returns dx, the gradient of the
 * layers' output. */
static struct tensor write_modules(const struct whole_model *w, struct writer *to, struct tensor losses,
                                   struct tensor dh)
{
    struct emitter *e = &to->e;
    const int layers = (int)w->model->dims.n_layers, modules = (int)w->model->dims.mtp_layers;
    const int64_t n = to->k.b * to->k.t;
    struct unit_buffers head = *to->head;
    struct tensor *const h = to->dh;

    head.first = false;
    h[0] = dh;
    for (int m = 1; m <= modules; m++) {
        const int l = layers + m - 1;
        const struct layer_units u = units_of(w, to, l);
        const struct block_tokens tokens = block_tokens_of(&to->tokens, m);
        e->unit = u.own->unit;
        e->phase = PHASE_FORWARD;
        const struct tensor x = mtp_join(&to->k, u.own, &to->units[0], &tokens, to->mtp[m - 1].h, &to->mtp[m]);
        mtp_out(&to->k, u.own, layer_forward(&to->k, u, &tokens, x, TENSOR_NONE, &to->saved[l]), &to->mtp[m]);
        e->unit = head.unit;
        h[m] = head_step(&to->k, (struct head_units){.own = &head}, &tokens, to->mtp[m].h, TENSOR_NONE,
                         tensor_cols(losses, (m - 1) * n, n));
    }
    for (int m = modules; m > 0; m--) {
        const int l = layers + m - 1;
        const struct layer_units u = units_of(w, to, l);
        const struct block_tokens tokens = block_tokens_of(&to->tokens, m);
        struct layer_back back;
        struct mtp_back mtp;
        e->unit = u.own->unit;
        e->phase = PHASE_DGRAD;
        const struct tensor dy = mtp_out_dgrad(&to->k, u.own, &to->mtp[m], h[m], &mtp);
        const struct tensor dx = layer_dgrad(&to->k, u, &tokens, &to->saved[l], dy, &back);
        h[m - 1] = mtp_join_dgrad(&to->k, u.own, &to->mtp[m], dx, h[m - 1], &mtp);
        e->phase = PHASE_WGRAD;
        layer_wgrad(&to->k, u, &to->saved[l], &back);
        to->units[0].first = m == modules;
        mtp_wgrad(&to->k, u.own, &to->units[0], &tokens, &to->mtp[m], &mtp);
    }
    const struct unit_buffers *const norm = &to->units[model_layer_unit(w->model, layers) - 1];
    e->unit = norm->unit;
    mtp_norm_wgrad(&to->k, norm, &to->mtp[0].out, h[0]);
    e->phase = PHASE_DGRAD;
    return mtp_norm_dgrad(&to->k, norm, &to->mtp[0].out, h[0]);
}

static void write_backward(const struct whole_model *w, struct writer *to, struct tensor dx)
{
    struct emitter *e = &to->e;

    titan_assert(tensor_exists(dx));
    for (int l = (int)w->model->dims.n_layers - 1; l >= 0; l--) {
        struct layer_back back;
        e->unit = model_layer_unit(w->model, l);
        e->phase = PHASE_DGRAD;
        dx = layer_dgrad(&to->k, units_of(w, to, l), &to->tokens, &to->saved[l], dx, &back);
        e->phase = PHASE_WGRAD;
        layer_wgrad(&to->k, units_of(w, to, l), &to->saved[l], &back);
    }
    e->unit = 0;
    to->units[0].first = !to->tied && w->model->dims.mtp_layers == 0; /* otherwise the head or a module wrote before */
    embedding_wgrad(&to->k, &to->units[0], &to->tokens, dx);
}

static titan_status write_program(const struct whole_model *w, struct run *run, struct titan_error *err)
{
    titan_assert(!run->program);
    const struct model *m = w->model;
    _cleanup_free_ struct unit_buffers *units = calloc((size_t)m->n_units, sizeof *units);
    _cleanup_free_ struct layer_saved *saved = calloc((size_t)model_all_layers(m), sizeof *saved);
    _cleanup_free_ struct mtp_saved *mtp = calloc((size_t)m->dims.mtp_layers + 1, sizeof *mtp);
    _cleanup_free_ struct tensor *dh = calloc((size_t)m->dims.mtp_layers + 1, sizeof *dh);
    _cleanup_free_ struct tensor *bias = calloc((size_t)m->n_units, sizeof *bias);
    if (!units || !saved || !mtp || !dh || !bias)
        return no_memory(err);
    struct writer to = {.units = units,
                        .bias = bias,
                        .head = &units[m->n_units - 1],
                        .tied = m->dims.tied_embeddings ? units : NULL,
                        .saved = saved,
                        .mtp = mtp,
                        .dh = dh};

    TRY(emit_open(w->layout, 0, &to.e, err));
    run->program = to.e.p;
    run->program->share = run->program->share_max = 1;
    statistics_init(&run->program->statistics, w->layout, 1, false, false);
    to.k = (struct block){.e = &to.e,
                          .layout = w->layout,
                          .dt = w->dt,
                          .b = run->b,
                          .t = run->t,
                          .loss_chunks = 1,
                          .expert_capacity = w->expert_capacity,
                          .ops = w->ops,
                          .dev = w->device->dev};
    to.e.phase = PHASE_FORWARD;
    to.e.stream = STREAM_COMPUTE;
    to.e.stage = to.e.microbatch = 0;
    declare_buffers(w, &to, run->want == WANT_GRADIENTS);

    to.e.unit = 0;
    struct tensor x = embedding_forward(&to.k, &units[0], &to.tokens);
    for (int l = 0; l < m->dims.n_layers; l++) {
        to.e.unit = model_layer_unit(m, l);
        x = layer_forward(&to.k, units_of(w, &to, l), &to.tokens, x, TENSOR_NONE, &saved[l]);
    }
    if (m->dims.mtp_layers > 0) {
        to.e.unit = model_layer_unit(m, (int)m->dims.n_layers) - 1;
        x = mtp[0].h = mtp_norm_forward(&to.k, &units[to.e.unit], x, TENSOR_NONE, &mtp[0].out);
    }
    if (run->want == WANT_NEXT)
        x = tensor_rows(x, x.rows - 1, 1);
    to.e.unit = -1;
    if (run->want == WANT_LOGITS || run->want == WANT_NEXT) {
        const struct tensor logits = emit_tensor(&to.e, BUF_OUTPUT, "logits", w->dt, x.rows, m->dims.vocab_size);
        to.e.unit = to.head->unit;
        head_logits(&to.k, (struct head_units){to.head, to.tied}, x, logits);
    } else {
        const int64_t n = run->b * run->t, modules = run->want == WANT_GRADIENTS ? m->dims.mtp_layers : 0;
        const struct tensor losses = emit_tensor(&to.e, BUF_OUTPUT, "losses", DTYPE_F32, 1, (1 + modules) * n);
        to.e.unit = to.head->unit;
        struct tensor dx = head_step(&to.k, (struct head_units){to.head, to.tied}, &to.tokens, x, TENSOR_NONE,
                                     tensor_cols(losses, 0, n));
        if (modules > 0)
            dx = write_modules(w, &to, tensor_cols(losses, n, modules * n), dx);
        if (tensor_exists(dx))
            write_backward(w, &to, dx);
    }
    if (to.e.status != TITAN_OK)
        return titan_fail(err, to.e.status, "model: %s", titan_status_text(to.e.status));
    return program_finish(run->program, err);
}

static void *bind_buffer(void *arg, const struct buffer *buffer)
{
    struct whole_model *w = arg;

    if (buffer->kind == BUF_SHARD || buffer->kind == BUF_BIAS)
        return weights_bind(&w->weights, buffer);
    return buffer->unit < 0 ? w->output : w->grads[buffer->unit];
}

/* Opens the program of a call, with room for its results. */
static titan_status open_run(struct whole_model *w, enum want want, int64_t b, int64_t t, struct titan_error *err)
{
    struct run *run = &w->run;
    const bool logits = want == WANT_LOGITS || want == WANT_NEXT;
    const size_t losses = want == WANT_GRADIENTS ? 1 + (size_t)w->model->dims.mtp_layers : 1;
    const size_t rows = want == WANT_NEXT ? 1 : losses * (size_t)(b * t);
    const size_t bytes = rows * (logits ? (size_t)w->model->dims.vocab_size * dtype_bytes(w->dt) : sizeof(float));

    titan_assert(b >= 1 && t >= 1 && b * t <= w->b_max * w->t_max);
    if (run->exec && run->want == want && run->b == b && run->t == t)
        return TITAN_OK;
    close_run(w);
    *run = (struct run){.want = want, .b = b, .t = t};
    TRY(write_program(w, run, err));
    if (bytes > w->output_room) {
        drop(w, w->output);
        w->output = NULL;
        w->output_room = 0;
        TRY(grab(w, bytes, &w->output, err));
        w->output_room = bytes;
    }
    for (int u = 0; want == WANT_GRADIENTS && u < w->model->n_units; u++)
        if (!w->grads[u])
            TRY(grab(w, (size_t)w->layout->units[u].padded * sizeof(float), &w->grads[u], err));
    const struct exec_options options = {.program = run->program,
                                         .cut = {.b = b, .t = t, .cp = 1, .modules = (int)w->model->dims.mtp_layers},
                                         .device = w->device,
                                         .streams = {[STREAM_COMPUTE] = w->stream},
                                         .bind = bind_buffer,
                                         .arg = w};
    return exec_open(&options, &run->exec, err);
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

/* Runs the program for a batch. Afterwards the results are on the device. */
static titan_status run_batch(struct whole_model *w, enum want want, const struct whole_batch *batch,
                              struct titan_error *err)
{
    const int64_t b = batch->b, t = batch->t, n = b * t;

    if (b < 1 || t < 1 || t > w->t_max || n > w->b_max * w->t_max)
        return titan_fail(err, TITAN_EINVAL, "model: batch of %ld x %ld tokens, room for %ld x %ld", (long)b, (long)t,
                          (long)w->b_max, (long)w->t_max);
    for (int64_t i = 0; i < n; i++)
        if (batch->tokens[i] < 0 || batch->tokens[i] >= w->model->dims.vocab_size)
            return titan_fail(err, TITAN_EINVAL, "model: token %d is outside the vocabulary of %ld", batch->tokens[i],
                              (long)w->model->dims.vocab_size);
    TRY(open_run(w, want, b, t, err));
    for (int64_t i = 0; i < n; i++) {
        w->host[i] = batch->tokens[i];
        w->host[n + i] = batch->targets ? batch->targets[i] : -1;
        w->host[2 * n + i] = (int32_t)(i % t);     /* position */
        w->host[3 * n + i] = (int32_t)i;           /* index */
        w->host[4 * n + i] = (int32_t)(i - i % t); /* start */
    }
    for (int64_t k = 1; k <= w->model->dims.mtp_layers; k++)
        for (int64_t i = 0; i < n; i++) { /* rows of each module, as in batch_fill() */
            const bool there = i % t + k < t;
            w->host[batch_rows(k - 1) * n + i] = there ? batch->tokens[i + k] : 0;
            w->host[(batch_rows(k - 1) + 1) * n + i] = there && batch->targets ? batch->targets[i + k] : -1;
        }
    TRY(exec_run(w->run.exec, &(struct exec_batch){.tokens = w->host}, err));
    return w->ops->stream_sync(w->stream, err);
}

/* Copies rows of logits to the host as fp32. */
static titan_status fetch_logits(struct whole_model *w, int64_t rows, float *logits, struct titan_error *err)
{
    const int64_t v = w->model->dims.vocab_size, chunk = MAX(1, w->weights.unit_max / v);

    titan_assert(rows >= 1);
    for (int64_t r = 0; r < rows; r += chunk) {
        const int64_t n = MIN(chunk, rows - r) * v;
        const char *src = (const char *)w->output + (size_t)(r * v) * dtype_bytes(w->dt);
        TRY(w->ops->cast(w->stream, w->weights.staging, DTYPE_F32, src, w->dt, (size_t)n));
        TRY(w->ops->copy(w->stream, logits + r * v, w->weights.staging, (size_t)n * sizeof(float)));
        TRY(w->ops->stream_sync(w->stream, err));
    }
    return TITAN_OK;
}

titan_status whole_model_logits(struct whole_model *w, const struct whole_batch *batch, float *logits,
                                struct titan_error *err)
{
    TRY(run_batch(w, WANT_LOGITS, batch, err));
    return fetch_logits(w, batch->b * batch->t, logits, err);
}

titan_status whole_model_next(struct whole_model *w, const int32_t *tokens, int64_t t, float *logits,
                              struct titan_error *err)
{
    TRY(run_batch(w, WANT_NEXT, &(struct whole_batch){.tokens = tokens, .b = 1, .t = t}, err));
    return fetch_logits(w, 1, logits, err);
}

titan_status whole_model_loss(struct whole_model *w, const struct whole_batch *batch, double *ret_loss_sum,
                              float *const *grads, struct titan_error *err)
{
    const size_t n = (size_t)(batch->b * batch->t);

    TRY(run_batch(w, grads ? WANT_GRADIENTS : WANT_LOSS, batch, err));
    TRY(w->ops->block_sums(w->stream, w->sum, w->output, n, n, false));
    TRY(w->ops->copy(w->stream, ret_loss_sum, w->sum, sizeof *w->sum));
    TRY(w->ops->stream_sync(w->stream, err));
    for (int i = 0; grads && i < w->model->n_tensors; i++) {
        const struct model_tensor *tensor = &w->model->tensors[i];
        TRY(w->ops->copy(w->stream, grads[i], w->grads[tensor->unit] + w->layout->tensors[i].offset,
                         (size_t)tensor->numel * sizeof(float)));
    }
    return grads ? w->ops->stream_sync(w->stream, err) : TITAN_OK;
}

titan_status whole_model_mtp_loss(struct whole_model *w, double *ret, struct titan_error *err)
{
    const size_t n = (size_t)(w->run.b * w->run.t), modules = (size_t)w->model->dims.mtp_layers;

    titan_assert(w->run.want == WANT_GRADIENTS && modules > 0);
    TRY(w->ops->block_sums(w->stream, w->sum, (const float *)w->output + n, modules * n, modules * n, false));
    TRY(w->ops->copy(w->stream, ret, w->sum, sizeof *w->sum));
    return w->ops->stream_sync(w->stream, err);
}
