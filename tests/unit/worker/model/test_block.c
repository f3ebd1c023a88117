/* SPDX-License-Identifier: Apache-2.0 */
/* block.h: the operations of a layer, an embedding and a head for every tensor- and context-parallel degree - shapes,
 * how many collectives there are and over which axis - and, run by several processes, loss and every gradient against
 * one rank's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "support/ranks.h"
#include "worker/exec/exec.h"
#include "worker/infer/whole.h"
#include "worker/model/block.h"
#include "worker/plan/recompute.h"

enum { B = 2, T = 16, TOKENS = B * T, LAYERS = 2, SEED = 5, UNITS_MAX = 2 * LAYERS + 2 };

static const struct model_dims llama = {.dim = 48,
                                        .n_layers = LAYERS,
                                        .n_heads = 8,
                                        .n_kv_heads = 4,
                                        .ffn_hidden = 52,
                                        .vocab_size = 68,
                                        .rope_theta = 1e4,
                                        .norm_eps = 1e-5};
/* Latent attention; the second layer has experts. Rates make choices differ a little from plain scores. */
static const struct model_dims deepseek = {.dim = 48,
                                           .n_layers = LAYERS,
                                           .n_heads = 8,
                                           .n_kv_heads = 8,
                                           .head_dim = 10,
                                           .ffn_hidden = 52,
                                           .vocab_size = 68,
                                           .rope_theta = 1e4,
                                           .norm_eps = 1e-5,
                                           .q_lora_rank = 20,
                                           .kv_lora_rank = 12,
                                           .qk_nope_head_dim = 6,
                                           .qk_rope_head_dim = 4,
                                           .v_head_dim = 7,
                                           .n_experts = 8,
                                           .top_k = 3,
                                           .n_shared_experts = 2,
                                           .moe_hidden = 20,
                                           .n_dense_layers = 1,
                                           .sigmoid_scores = true,
                                           .normalize_scores = true,
                                           .route_scale = 2.5};
/* All layers have experts, none is shared; fewer experts on a rank than a token takes. */
static const struct model_dims mixed = {.dim = 48,
                                        .n_layers = LAYERS,
                                        .n_heads = 8,
                                        .n_kv_heads = 4,
                                        .vocab_size = 68,
                                        .rope_theta = 1e4,
                                        .norm_eps = 1e-5,
                                        .n_experts = 8,
                                        .top_k = 4,
                                        .moe_hidden = 28,
                                        .route_scale = 1.0};
static const struct model_dims qwen3 = {.dim = 48,
                                        .n_layers = LAYERS,
                                        .n_heads = 8,
                                        .n_kv_heads = 4,
                                        .head_dim = 10,
                                        .ffn_hidden = 52,
                                        .vocab_size = 68,
                                        .rope_theta = 1e6,
                                        .norm_eps = 1e-6,
                                        .tied_embeddings = true,
                                        .qk_norm = true};

/* One norm over the heads of all tensor-parallel ranks. */
static const struct model_dims olmo2 = {.dim = 48,
                                        .n_layers = LAYERS,
                                        .n_heads = 8,
                                        .n_kv_heads = 4,
                                        .ffn_hidden = 52,
                                        .vocab_size = 68,
                                        .rope_theta = 1e4,
                                        .norm_eps = 1e-5,
                                        .qk_norm = true,
                                        .qk_norm_whole = true};

struct shape {
    const struct model_dims *dims;
    int cp, tp, ep;       /* ep 0: 1 */
    bool cut;             /* experts are, over tp */
    int64_t sequences;    /* 0: B */
    bool ring, documents; /* documents: masks within them, also on one rank */
    int loss_chunks;
    double room;                                         /* block.expert_parallel_room */
    enum { KEEP_ALL, KEEP_PRODUCTS, KEEP_NOTHING } keep; /* of the forward; the rest is computed again */
};

static bool is_masked(const struct shape *s)
{
    return s->documents || s->cp > 1;
}

/* --- a whole step's forward and backward -------------------------------------------------------------------------- */

struct written {
    struct model *model;
    struct layout *layout;
    struct emitter e;
    struct block k;
    struct block_tokens tokens;
    struct unit_buffers units[UNITS_MAX];
    struct layer_saved saved[LAYERS];
    int from[LAYERS + 1]; /* first action of each layer's forward */
    struct layer_back back[LAYERS];
    struct tensor x, dx; /* behind the last layer; gradient of the embedding's output */
    int losses;
};

static bool ok(titan_status status, const struct titan_error *err)
{
    if (status != TITAN_OK)
        fprintf(stderr, "# %s: %s\n", titan_status_name(status), err->msg);
    return status == TITAN_OK;
}

static bool open_layout(struct written *w, const struct shape *s)
{
    struct titan_error err = {0};
    if (!ok(model_open(s->dims, &w->model, &err), &err))
        return false;
    const struct layout_options options = {.model = w->model,
                                           .mesh = {.world = s->cp * s->tp,
                                                    .size = {[AXIS_PP] = 1, 1, 1, s->cp, s->tp},
                                                    .ep = MAX(s->ep, 1),
                                                    .cut_experts = s->cut}};
    return ok(layout_open(&options, &w->layout, &err), &err);
}

static int table(struct written *w, enum table which, size_t bytes)
{
    w->e.unit = (int)which;
    return emit_buffer(&w->e, BUF_TABLE, "table", bytes);
}

static void declare(struct written *w, const struct shape *s)
{
    struct emitter *e = &w->e;
    const int64_t n = block_tokens_local(&w->k);
    const size_t rope = (size_t)(T * model_rope_dim(w->model) / 2) * 4;
    w->k.table[TABLE_COS] = table(w, TABLE_COS, rope);
    w->k.table[TABLE_SIN] = table(w, TABLE_SIN, rope);
    w->k.table[TABLE_KEYS_GATHERED] = table(w, TABLE_KEYS_GATHERED, (size_t)(s->cp * n) * 4);
    w->k.table[TABLE_KEYS_RING] = table(w, TABLE_KEYS_RING, (size_t)(s->cp * n) * 4);
    for (int u = 0; u < w->model->n_units; u++) {
        const size_t bytes = (size_t)w->layout->units[u].padded * sizeof(float);
        e->unit = u;
        w->units[u] = (struct unit_buffers){.unit = u,
                                            .params = emit_buffer(e, BUF_SHARD, "params", bytes),
                                            .grads = emit_buffer(e, BUF_OUTPUT, "grads", bytes),
                                            .first = true};
    }
    e->unit = -1;
    w->losses = emit_buffer(e, BUF_OUTPUT, "losses", (size_t)n * sizeof(float));
    block_tokens_view(&w->k, emit_buffer(e, BUF_TOKENS, "tokens", (size_t)(5 * n) * 4), &w->tokens);
    EMIT(e, load, w->tokens.all);
}

static bool keep_products(void *arg, const struct action *a, int buffer)
{
    (void)arg;
    (void)buffer;
    return a->op == OP_MATMUL;
}

static bool keep_nothing(void *arg, const struct action *a, int buffer)
{
    (void)arg;
    (void)a;
    (void)buffer;
    return false;
}

static struct layer_units units_of(const struct written *w, int l)
{
    const int experts = model_experts_unit(w->model, l);
    return (struct layer_units){.own = &w->units[model_layer_unit(w->model, l)],
                                .experts = experts < 0 ? NULL : &w->units[experts]};
}

/* Forward once more, for what is not kept. */
static void write_again(struct written *w, const struct shape *s, int l)
{
    struct tensor *needed[SAVED_COUNT];
    int n = 0;
    if (s->keep == KEEP_ALL)
        return;
    for (int i = 0; i < SAVED_COUNT; i++)
        if (i != SAVED_X && tensor_exists(w->saved[l].t[i]))
            needed[n++] = &w->saved[l].t[i];
    recompute_actions(&w->e, (struct action_range){w->from[l], w->from[l + 1]},
                      s->keep == KEEP_PRODUCTS ? keep_products : keep_nothing, NULL, needed, n);
}

static void write_backward(struct written *w, const struct shape *s, const struct unit_buffers *tied)
{
    for (int l = LAYERS - 1; l >= 0; l--) {
        w->e.unit = model_layer_unit(w->model, l);
        write_again(w, s, l);
        w->e.phase = PHASE_DGRAD;
        w->dx = layer_dgrad(&w->k, units_of(w, l), &w->tokens, &w->saved[l], w->dx, &w->back[l]);
        w->e.phase = PHASE_WGRAD;
        layer_wgrad(&w->k, units_of(w, l), &w->saved[l], &w->back[l]);
    }
    w->e.unit = 0;
    w->units[0].first = !tied;
    embedding_wgrad(&w->k, &w->units[0], &w->tokens, w->dx);
}

static bool write_step(struct written *w, const struct shape *s, const struct device_ops *ops, struct device *dev)
{
    struct titan_error err = {0};
    memset(w, 0, sizeof *w);
    if (!open_layout(w, s) || !ok(emit_open(w->layout, 0, &w->e, &err), &err))
        return false;
    w->e.p->share = w->e.p->share_max = 1;
    w->e.microbatch = w->e.stage = 0;
    statistics_init(&w->e.p->statistics, w->layout, 1, false, false);
    w->k = (struct block){.e = &w->e,
                          .layout = w->layout,
                          .dt = DTYPE_F32,
                          .b = s->sequences ? s->sequences : B,
                          .t = T,
                          .masked = is_masked(s),
                          .ring = s->ring,
                          .loss_chunks = s->loss_chunks,
                          .expert_parallel_room = s->room,
                          .ops = ops,
                          .dev = dev};
    declare(w, s);
    w->e.unit = 0;
    w->x = embedding_forward(&w->k, &w->units[0], &w->tokens);
    for (int l = 0; l < LAYERS; l++) {
        w->e.unit = model_layer_unit(w->model, l);
        w->from[l] = w->e.p->n_actions;
        w->x = layer_forward(&w->k, units_of(w, l), &w->tokens, w->x, TENSOR_NONE, &w->saved[l]);
    }
    w->from[LAYERS] = w->e.p->n_actions;
    w->e.unit = w->model->n_units - 1;
    const struct unit_buffers *tied = s->dims->tied_embeddings ? &w->units[0] : NULL;
    w->dx = head_step(&w->k, (struct head_units){&w->units[w->e.unit], tied}, &w->tokens, w->x, TENSOR_NONE,
                      tensor_at(w->losses, 0, DTYPE_F32, 1, block_tokens_local(&w->k)));
    write_backward(w, s, tied);
    return ok(w->e.status, &err) && ok(program_finish(w->e.p, &err), &err);
}

static void close_step(struct written *w)
{
    program_close(w->e.p);
    layout_close(w->layout);
    model_close(w->model);
}

/* --- shapes and counts -------------------------------------------------------------------------------------------- */

static size_t some_work(struct device *dev, const struct attention_shape *shape)
{
    (void)dev;
    return (size_t)(shape->b * shape->tq * shape->tk);
}
static const struct device_ops paper = {.attention_work_bytes = some_work};

static int count(const struct program *p, enum op op, int channel, int unit, int phase)
{
    int n = 0;
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        n += a->op == op && a->channel == channel && a->unit == unit && (phase < 0 || a->phase == phase);
    }
    return n;
}

static void check_size(struct tensor t, int64_t rows, int64_t cols)
{
    assert_true(tensor_exists(t));
    assert_int_equal(t.rows, rows);
    assert_int_equal(t.cols, cols);
}

static void check_layer(const struct written *w, const struct shape *s, int l)
{
    const int64_t n = TOKENS / s->cp, ns = n / s->tp, d = w->model->head_dim, c = s->dims->dim;
    const int64_t hd = s->dims->n_heads / s->tp * d, kd = s->dims->n_kv_heads / s->tp * d;
    const int64_t f = s->dims->ffn_hidden / s->tp, keys = s->cp > 1 && !s->ring ? TOKENS : n;
    const int64_t sequences = w->k.masked ? 1 : B;
    const struct tensor *t = w->saved[l].t, *g = w->back[l].t;
    check_size(t[SAVED_X], ns, c);
    check_size(t[SAVED_XN1], n, c);
    check_size(t[SAVED_Q], n, hd);
    check_size(t[SAVED_K], keys, kd);
    check_size(t[SAVED_V], keys, kd);
    check_size(t[SAVED_ATTN], n, hd);
    check_size(t[SAVED_LSE], sequences * s->dims->n_heads / s->tp, n / sequences);
    check_size(t[SAVED_H], ns, c);
    check_size(t[SAVED_XN2], n, c);
    check_size(t[SAVED_GATE], n, f);
    check_size(t[SAVED_UP], n, f);
    check_size(t[SAVED_ACT], n, f);
    check_size(g[BACK_DY], n, c);
    check_size(g[BACK_DH], n, c);
    check_size(g[BACK_DQKV], n, hd + 2 * kd);
    check_size(g[BACK_DXN1], ns, c);
    check_size(g[BACK_DXN2], ns, c);
    assert_int_equal(tensor_exists(t[SAVED_KV]), s->cp > 1);
    assert_int_equal(tensor_exists(t[SAVED_Q_RAW]), s->dims->qk_norm);
    assert_int_equal(tensor_exists(g[BACK_DK_NORMED]), s->dims->qk_norm);
}

static void check_collectives(const struct written *w, const struct shape *s)
{
    const struct program *p = w->e.p;
    const int tp = s->tp > 1, gathered = s->cp > 1 && !s->ring, round = s->cp > 1 && s->ring ? s->cp : 0;
    for (int u = 1; u <= LAYERS; u++) {
        for (int phase = PHASE_FORWARD; phase <= PHASE_DGRAD; phase += PHASE_DGRAD - PHASE_FORWARD) {
            assert_int_equal(count(p, OP_ALL_GATHER, CHANNEL_TP, u, phase), 2 * tp);
            assert_int_equal(count(p, OP_REDUCE_SCATTER, CHANNEL_TP, u, phase), 2 * tp);
            /* Queries and keys, there and back. */
            assert_int_equal(count(p, OP_ALL_TO_ALL, CHANNEL_TP, u, phase), s->dims->qk_norm_whole ? 4 * tp : 0);
        }
        assert_int_equal(count(p, OP_ALL_GATHER, CHANNEL_CP, u, PHASE_FORWARD), gathered);
        assert_int_equal(count(p, OP_REDUCE_SCATTER, CHANNEL_CP, u, PHASE_DGRAD), gathered);
        /* Keys need not come home again, their gradients must. */
        assert_int_equal(count(p, OP_SHIFT, CHANNEL_CP, u, PHASE_FORWARD), round ? round - 1 : 0);
        assert_int_equal(count(p, OP_SHIFT, CHANNEL_CP, u, PHASE_DGRAD), round ? 2 * round - 1 : 0);
        for (int op = 0; op < OP_COUNT; op++)
            assert_true(!op_is_transfer((enum op)op) || count(p, (enum op)op, CHANNEL_TP, u, PHASE_WGRAD) +
                                                                count(p, (enum op)op, CHANNEL_CP, u, PHASE_WGRAD) ==
                                                            0);
    }
    assert_int_equal(count(p, OP_REDUCE_SCATTER, CHANNEL_TP, 0, -1), tp);
    assert_int_equal(count(p, OP_ALL_GATHER, CHANNEL_TP, 0, -1), tp);
    assert_int_equal(count(p, OP_ALL_GATHER, CHANNEL_TP, LAYERS + 1, -1), tp * (1 + s->loss_chunks));
    assert_int_equal(count(p, OP_REDUCE_SCATTER, CHANNEL_TP, LAYERS + 1, -1), tp);
}

/* One piece's logits are all there ever is. */
static void check_head(const struct written *w, const struct shape *s)
{
    const int64_t n = TOKENS / s->cp, rows = (n + s->loss_chunks - 1) / s->loss_chunks;
    int pieces = 0;
    for (int i = 0; i < w->e.p->n_buffers; i++) {
        const struct buffer *b = &w->e.p->buffers[i];
        if (strcmp(b->name, "logits") != 0)
            continue;
        assert_true(b->bytes <= (size_t)(rows * s->dims->vocab_size / s->tp) * sizeof(float));
        pieces++;
    }
    assert_int_equal(pieces, s->loss_chunks);
}

static void test_emitted(void **state)
{
    static const int degrees[] = {1, 2, 4};
    (void)state;
    static const struct model_dims *const models[] = {&llama, &qwen3, &olmo2};
    for (int i = 0; i < 3 * 2 * 3 * 3; i++) {
        const struct shape s = {.dims = models[i % 3],
                                .ring = i / 3 % 2,
                                .tp = degrees[i / 6 % 3],
                                .cp = degrees[i / 18],
                                .loss_chunks = 3};
        struct written w;
        assert_true(write_step(&w, &s, &paper, NULL));
        check_size(w.x, TOKENS / s.cp / s.tp, s.dims->dim);
        check_size(w.dx, TOKENS / s.cp / s.tp, s.dims->dim);
        for (int l = 0; l < LAYERS; l++)
            check_layer(&w, &s, l);
        check_collectives(&w, &s);
        check_head(&w, &s);
        close_step(&w);
    }
}

/* Bytes of the largest buffer of this name. */
static size_t largest(const struct program *p, const char *name)
{
    size_t bytes = 0;
    for (int i = 0; i < p->n_buffers; i++)
        if (strcmp(p->buffers[i].name, name) == 0)
            bytes = MAX(bytes, p->buffers[i].bytes);
    return bytes;
}

/* What passes rows of a round looks at how many there are: SwiGLU and its gradient, and what sorts rows by rank. */
static void check_rows_counted(const struct program *p, bool shared, int64_t rounds)
{
    int counted = 0, all = 0, kept = 0;
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        const bool forward = a->op == OP_SWIGLU;
        if (forward || a->op == OP_SWIGLU_DGRAD) {
            all++;
            counted += a->n_operands > (forward ? OPERAND_OF(swiglu, counts) : OPERAND_OF(swiglu_dgrad, counts));
        }
        kept += a->op == OP_COMBINE_ROWS && action_params(p, a)->flags & OP_KEEP;
    }
    assert_int_equal(counted, shared ? all : 0);
    /* A layer: there and back in each round, forward and backward. */
    assert_int_equal(kept, shared ? LAYERS * 2 * rounds : 0);
}

/* Shared experts have room for all tokens of all ranks, or for as many even shares as is said, in rounds. */
static void test_room(void **state)
{
    enum { SEQUENCES = 64 };
    const size_t row = (size_t)mixed.dim * sizeof(float), tokens = SEQUENCES * T / 4;
    static const struct {
        int ep;
        double room;
        size_t rows; /* in those of one rank's tokens */
        int64_t rounds;
    } c[] = {{1, 0, 4, 1},    {1, 0.5, 4, 1}, {2, 0, 8, 1},   {2, 1.25, 5, 2},
             {2, 0.01, 4, 8}, {4, 0, 8, 1},   {4, 1.5, 6, 2}, {4, 99, 8, 1}};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(c); i++) {
        const struct shape s = {.dims = &mixed,
                                .cp = 1,
                                .tp = 4,
                                .ep = c[i].ep,
                                .sequences = SEQUENCES,
                                .loss_chunks = 1,
                                .room = c[i].room};
        struct written w;
        assert_true(write_step(&w, &s, &paper, NULL));
        assert_int_equal(experts_rounds(&w.k), c[i].rounds);
        check_rows_counted(w.e.p, c[i].ep > 1, c[i].rounds);
        assert_int_equal(largest(w.e.p, "rows_out"), c[i].rows * tokens * row);
        close_step(&w);
    }
}

/* What a microbatch that is not the first adds is added everywhere, and nothing is zeroed. */
static void test_added(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        const struct shape s = {.dims = &llama, .cp = 1, .tp = 1, .loss_chunks = 2};
        struct written w;
        assert_true(write_step(&w, &s, &paper, NULL));
        const int from = w.e.p->n_actions;
        w.units[1].first = first;
        layer_wgrad(&w.k, units_of(&w, 0), &w.saved[0], &w.back[0]);
        int products = 0, zeros = 0, adding = 0;
        for (int i = from; i < w.e.p->n_actions; i++) {
            const struct action *a = &w.e.p->actions[i];
            products += a->op == OP_MATMUL;
            adding += a->op == OP_MATMUL && action_params(w.e.p, a)->flags & OP_ADD_TO;
            zeros += a->op == OP_ZERO;
        }
        assert_int_equal(products, 4); /* w2, w1|w3, wo, wq|wk|wv */
        assert_int_equal(adding, first ? 0 : 4);
        assert_int_equal(zeros > 0, first);
        close_step(&w);
    }
}

/* --- run by several processes ------------------------------------------------------------------------------------- */

/* One rank's memory and what it gets back. */
struct member {
    struct device_handle device;
    struct stream *streams[STREAM_COUNT];
    struct comm *comms[CHANNEL_COUNT];
    struct written w;
    void *memory[UNITS_MAX][2]; /* parameters, gradients */
    float *losses;
};

static void *bind_buffer(void *arg, const struct buffer *b)
{
    struct member *m = arg;
    return b->kind == BUF_SHARD ? m->memory[b->unit][0] : b->unit < 0 ? m->losses : m->memory[b->unit][1];
}

static void fill_parameters(struct member *m, int rank)
{
    const struct model *model = m->w.model;
    for (int i = 0; i < model->n_tensors; i++) {
        const struct model_tensor *t = &model->tensors[i];
        const struct local_tensor *local = &m->w.layout->tensors[i];
        float *to = (float *)m->memory[t->unit][0] + local->offset;
        for (int64_t r = 0; r < local->rows; r++) {
            const int64_t stretch = layout_stretch(m->w.layout, i), first = r / stretch * stretch;
            int64_t row, col;
            layout_origin(m->w.layout, i, rank, first, &row, &col);
            model_init_tensor(model, SEED, i, (row + r - first) * (t->ndim == 2 ? t->shape[1] : 0) + col, local->cols,
                              to + r * local->cols);
        }
    }
}

/* Tokens of the microbatch in order; documents end where a token divides by 5. */
static void global_batch(bool documents, int32_t ret[5][TOKENS])
{
    for (int i = 0; i < TOKENS; i++) {
        ret[0][i] = (i * 29 + 7) % 68;
        ret[1][i] = i % 7 == 3 ? -1 : (i * 13 + 5) % 68;
        ret[3][i] = i;
        const bool begins = i % T == 0 || (documents && ret[0][i - 1] % 5 == 0);
        ret[4][i] = begins ? i : ret[4][i - 1];
        ret[2][i] = i - ret[4][i];
    }
}

static bool open_memory(struct member *m, int rank)
{
    struct titan_error err = {0};
    for (int u = 0; u < m->w.model->n_units; u++)
        for (int i = 0; i < 2; i++)
            if (!ok(m->device.ops->alloc(m->device.dev, (size_t)m->w.layout->units[u].padded * sizeof(float),
                                         &m->memory[u][i], &err),
                    &err))
                return false;
    fill_parameters(m, rank);
    /* A step's first gradients overwrite all there is, gaps included. */
    for (int u = 0; u < m->w.model->n_units; u++)
        memset(m->memory[u][1], 0xff, (size_t)m->w.layout->units[u].padded * sizeof(float)); /* not numbers */
    return ok(m->device.ops->alloc(m->device.dev, TOKENS * sizeof(float), (void **)&m->losses, &err), &err);
}

static bool run_step(struct member *m, const struct shape *s, int rank)
{
    struct titan_error err = {0};
    struct exec *exec = NULL;
    const struct sequence_cut cut = {.b = B, .t = T, .cp = s->cp, .balanced = true};
    int32_t index[TOKENS], all[5][TOKENS], local[5 * TOKENS];
    const int n = TOKENS / s->cp;
    for (int i = 0; i < STREAM_COUNT; i++)
        if ((m->w.e.p->streams >> i & 1 || i == STREAM_COMPUTE) &&
            !ok(m->device.ops->stream_open(m->device.dev, program_stream_name((enum stream_id)i), i == STREAM_COMPUTE,
                                           &m->streams[i], &err),
                &err))
            return false;
    global_batch(s->documents, all);
    sequence_index(&cut, rank / s->tp, index);
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < n; j++)
            local[i * n + j] = all[i][index[j]];
    struct exec_options options = {.program = m->w.e.p,
                                   .rank = rank,
                                   .cut = cut,
                                   .device = &m->device,
                                   .comm_ops = &comm_shm,
                                   .bind = bind_buffer,
                                   .arg = m};
    memcpy(options.streams, m->streams, sizeof options.streams);
    memcpy(options.comms, m->comms, sizeof options.comms);
    const struct exec_batch batch = {.tokens = local};
    bool done = ok(exec_open(&options, &exec, &err), &err) && ok(exec_run(exec, &batch, &err), &err);
    for (int i = 0; i < STREAM_COUNT; i++)
        done = (!m->streams[i] || ok(m->device.ops->stream_sync(m->streams[i], &err), &err)) && done;
    exec_close(exec);
    return done;
}

static bool open_member(struct member *m, const struct shape *s)
{
    struct titan_error err = {0};
    const struct device_options options = {.threads = 1};
    memset(m, 0, sizeof *m);
    return ok(device_open("cpu", &options, &m->device, &err), &err) &&
           write_step(&m->w, s, m->device.ops, m->device.dev);
}

static void close_member(struct member *m)
{
    for (int u = 0; u < UNITS_MAX; u++)
        for (int i = 0; i < 2; i++)
            if (m->memory[u][i])
                m->device.ops->release(m->device.dev, m->memory[u][i]);
    if (m->losses)
        m->device.ops->release(m->device.dev, m->losses);
    for (int i = 0; i < STREAM_COUNT; i++)
        if (m->streams[i])
            m->device.ops->stream_close(m->streams[i]);
    close_step(&m->w);
    device_close(&m->device);
}

/* Loss and gradients (global tensors) of one rank. */
struct reference {
    double loss;
    float *grads[LAYERS * 16 + 3];
};

static bool whole_reference(struct member *m, struct reference *ret)
{
    struct titan_error err = {0};
    struct whole_model *w = NULL;
    int32_t all[5][TOKENS];
    global_batch(false, all);
    const struct whole_options options = {m->w.model, &m->device, DTYPE_F32, B, T};
    const struct whole_batch batch = {all[0], all[1], B, T};
    const bool done = ok(whole_model_open(&options, &w, &err), &err) && ok(whole_model_init(w, SEED, &err), &err) &&
                      ok(whole_model_loss(w, &batch, &ret->loss, ret->grads, &err), &err);
    whole_model_close(w);
    return done;
}

/* The same program on one rank, for what whole.h cannot: documents. */
static bool single_reference(const struct shape *s, struct reference *ret)
{
    const struct shape single = {.dims = s->dims, .cp = 1, .tp = 1, .documents = s->documents, .loss_chunks = 1};
    struct member m;
    if (!open_member(&m, &single) || !open_memory(&m, 0) || !run_step(&m, &single, 0))
        return false;
    ret->loss = 0;
    for (int i = 0; i < TOKENS; i++)
        ret->loss += (double)m.losses[i];
    for (int i = 0; i < m.w.model->n_tensors; i++) {
        const struct model_tensor *t = &m.w.model->tensors[i];
        memcpy(ret->grads[i], (float *)m.memory[t->unit][1] + m.w.layout->tensors[i].offset,
               (size_t)t->numel * sizeof(float));
    }
    close_member(&m);
    return true;
}

static bool reference_of(struct member *m, const struct shape *s, struct reference *ret)
{
    for (int i = 0; i < m->w.model->n_tensors; i++)
        ret->grads[i] = calloc((size_t)m->w.model->tensors[i].numel, sizeof(float));
    return s->documents ? single_reference(s, ret) : whole_reference(m, ret);
}

/* |x - want| / |want| over this rank's part of a tensor. */
static double distance(const struct member *m, int tensor, int rank, const float *want)
{
    const struct model_tensor *t = &m->w.model->tensors[tensor];
    const struct local_tensor *local = &m->w.layout->tensors[tensor];
    const float *x = (const float *)m->memory[t->unit][1] + local->offset;
    double off = 0, square = 0;
    const int64_t stretch = layout_stretch(m->w.layout, tensor);
    for (int64_t r = 0; r < local->rows; r++)
        for (int64_t c = 0; c < local->cols; c++) {
            const int64_t first = r / stretch * stretch;
            int64_t row, col;
            layout_origin(m->w.layout, tensor, rank, first, &row, &col);
            const double v = want[(row + r - first) * (t->ndim == 2 ? t->shape[1] : 0) + col + c];
            off += (x[r * local->cols + c] - v) * (x[r * local->cols + c] - v);
            square += v * v;
        }
    return sqrt(off / square);
}

static struct comm *split_group(struct rank_context *ctx, struct comm *world, const struct mesh *mesh, enum group group)
{
    struct titan_error err = {0};
    struct comm *ret = NULL;
    int members[RANKS_MAX];
    mesh_group_members(mesh, group, ctx->rank, members);
    RANK_CHECK(ctx, ok(comm_shm.split(world, members, mesh_group_size(mesh, group), NULL, &ret, &err), &err));
    return ret;
}

static bool all_numbers(const struct member *m)
{
    for (int u = 0; u < m->w.model->n_units; u++)
        for (int64_t i = 0; i < m->w.layout->units[u].padded; i++)
            if (!isfinite(((const float *)m->memory[u][1])[i]))
                return false;
    return true;
}

/* Gradients are sums over this rank's tokens; those of whole tensors (norms) over a part of these. */
static void sum_gradients(struct rank_context *ctx, struct member *m)
{
    struct stream *s = m->streams[STREAM_COMPUTE];
    for (int u = 0; u < m->w.model->n_units; u++) {
        const struct unit_layout *l = &m->w.layout->units[u];
        float *g = m->memory[u][1];
        const enum channel others = l->group == GROUP_FSDP ? CHANNEL_CP : CHANNEL_EXPERT_REDUCE;
        RANK_CHECK(ctx, comm_shm.all_reduce(m->comms[others], g, (size_t)l->padded, DTYPE_F32, s) == TITAN_OK);
        if (l->group == GROUP_FSDP && l->numel > l->whole)
            RANK_CHECK(ctx, comm_shm.all_reduce(m->comms[CHANNEL_TP], g + l->whole, (size_t)(l->numel - l->whole),
                                                DTYPE_F32, s) == TITAN_OK);
    }
    RANK_CHECK(ctx, m->device.ops->stream_sync(s, NULL) == TITAN_OK);
}

static void check_rank(struct rank_context *ctx)
{
    const struct shape *s = ctx->arg;
    struct titan_error err = {0};
    struct reference want;
    struct member m;
    struct comm *world = NULL;
    double loss = 0;
    RANK_CHECK(ctx, open_member(&m, s) && open_memory(&m, ctx->rank) && reference_of(&m, s, &want));
    ctx->config.device = &m.device;
    RANK_CHECK(ctx, ok(comm_shm.open(&ctx->config, NULL, &world, &err), &err));
    m.comms[CHANNEL_CP] = split_group(ctx, world, &m.w.layout->mesh, GROUP_CP);
    m.comms[CHANNEL_TP] = split_group(ctx, world, &m.w.layout->mesh, GROUP_TP);
    m.comms[CHANNEL_EP] = split_group(ctx, world, &m.w.layout->mesh, GROUP_EP);
    m.comms[CHANNEL_EXPERT_REDUCE] = split_group(ctx, world, &m.w.layout->mesh, GROUP_EXPERT_SHARD);
    RANK_CHECK(ctx, run_step(&m, s, ctx->rank) && all_numbers(&m));
    sum_gradients(ctx, &m);
    for (int i = 0; i < TOKENS / s->cp; i++)
        loss += (double)m.losses[i];
    struct stream *compute = m.streams[STREAM_COMPUTE];
    RANK_CHECK(ctx, comm_shm.all_reduce(m.comms[CHANNEL_CP], &loss, 1, DTYPE_F64, compute) == TITAN_OK);
    RANK_CHECK(ctx, m.device.ops->stream_sync(compute, NULL) == TITAN_OK);
    RANK_CHECK(ctx, fabs(loss - want.loss) <= 1e-6 * fabs(want.loss));
    for (int i = 0; i < m.w.model->n_tensors; i++) {
        const double off = distance(&m, i, ctx->rank, want.grads[i]);
        if (!(off <= 1e-5)) {
            fprintf(stderr, "# rank %d: gradient of %s is off by %.2g\n", ctx->rank, m.w.model->tensors[i].name, off);
            _exit(1);
        }
        free(want.grads[i]);
    }
    comm_shm.close(m.comms[CHANNEL_EXPERT_REDUCE]);
    comm_shm.close(m.comms[CHANNEL_EP]);
    comm_shm.close(m.comms[CHANNEL_TP]);
    comm_shm.close(m.comms[CHANNEL_CP]);
    close_member(&m);
    comm_shm.close(world);
}

static void check_shape(const struct shape *s)
{
    struct ranks r;
    struct shape copy = *s;
    ranks_init(&r, &comm_shm, s->cp * s->tp, RANKS_INLINE);
    ranks_start(&r, false, check_rank, &copy);
    const int bad = ranks_join(&r);
    ranks_free(&r);
    if (bad > 0)
        fail_msg("cp %d%s, tp %d, ep %d%s, %s%s, %d loss chunks, keep %d: %d ranks failed", s->cp,
                 s->ring ? " (ring)" : "", s->tp, s->ep, s->cut ? " (cut)" : "",
                 s->dims == &qwen3      ? "qwen3"
                 : s->dims == &deepseek ? "deepseek"
                 : s->dims == &mixed    ? "mixed"
                                        : "llama",
                 s->documents ? ", documents" : "", s->loss_chunks, s->keep, bad);
}

static void check_shapes(const struct shape *s, int n)
{
    for (int i = 0; i < n; i++)
        check_shape(&s[i]);
}

static void test_one_rank(void **state)
{
    static const struct shape s[] = {
        {&llama, .cp = 1, .tp = 1, .loss_chunks = 1},
        {&llama, .cp = 1, .tp = 1, .loss_chunks = 5},
        {&qwen3, .cp = 1, .tp = 1, .loss_chunks = 3},
    };
    (void)state;
    check_shapes(s, ARRAY_SIZE(s));
}

static void test_tensor_parallel(void **state)
{
    static const struct shape s[] = {
        {&llama, .cp = 1, .tp = 2, .loss_chunks = 3},
        {&llama, .cp = 1, .tp = 4, .loss_chunks = 1},
        {&qwen3, .cp = 1, .tp = 4, .loss_chunks = 3},
        {&olmo2, .cp = 1, .tp = 4, .loss_chunks = 1},
        {&llama, .cp = 1, .tp = 2, .documents = true, .loss_chunks = 2},
    };
    (void)state;
    check_shapes(s, ARRAY_SIZE(s));
}

static void test_context_parallel(void **state)
{
    static const struct shape s[] = {
        {&llama, .cp = 2, .tp = 1, .loss_chunks = 1},
        {&llama, .cp = 4, .tp = 1, .documents = true, .loss_chunks = 3},
        {&qwen3, .cp = 4, .tp = 1, .loss_chunks = 2},
        {&llama, .cp = 2, .tp = 1, .ring = true, .loss_chunks = 1},
        {&llama, .cp = 4, .tp = 1, .ring = true, .documents = true, .loss_chunks = 1},
        {&qwen3, .cp = 4, .tp = 1, .ring = true, .loss_chunks = 3},
    };
    (void)state;
    check_shapes(s, ARRAY_SIZE(s));
}

static void test_both(void **state)
{
    static const struct shape s[] = {
        {&llama, .cp = 2, .tp = 2, .loss_chunks = 3},
        {&llama, .cp = 2, .tp = 2, .ring = true, .documents = true, .loss_chunks = 1},
        {&qwen3, .cp = 2, .tp = 2, .documents = true, .loss_chunks = 1},
        {&qwen3, .cp = 2, .tp = 2, .ring = true, .loss_chunks = 3},
        {&olmo2, .cp = 2, .tp = 2, .loss_chunks = 1},
        {&olmo2, .cp = 2, .tp = 2, .ring = true, .documents = true, .loss_chunks = 1},
    };
    (void)state;
    check_shapes(s, ARRAY_SIZE(s));
}

static void test_recomputed(void **state)
{
    static const struct shape s[] = {
        {&qwen3, .cp = 1, .tp = 1, .loss_chunks = 1, .keep = KEEP_NOTHING},
        {&llama, .cp = 1, .tp = 2, .loss_chunks = 1, .keep = KEEP_PRODUCTS},
        {&qwen3, .cp = 2, .tp = 2, .loss_chunks = 2, .keep = KEEP_PRODUCTS},
        {&olmo2, .cp = 1, .tp = 2, .loss_chunks = 1, .keep = KEEP_NOTHING},
        {&olmo2, .cp = 2, .tp = 2, .loss_chunks = 1, .keep = KEEP_PRODUCTS},
        {&llama, .cp = 2, .tp = 2, .ring = true, .loss_chunks = 1, .keep = KEEP_NOTHING},
        {&qwen3, .cp = 4, .tp = 1, .ring = true, .loss_chunks = 1, .keep = KEEP_PRODUCTS},
    };
    (void)state;
    check_shapes(s, ARRAY_SIZE(s));
}

static void test_latent_and_experts(void **state)
{
    static const struct shape s[] = {
        {&deepseek, .cp = 1, .tp = 1, .loss_chunks = 1},
        {&mixed, .cp = 1, .tp = 1, .loss_chunks = 1},
        {&deepseek, .cp = 1, .tp = 4, .loss_chunks = 2},
        {&deepseek, .cp = 2, .tp = 2, .documents = true, .loss_chunks = 1},
        {&deepseek, .cp = 4, .tp = 1, .ring = true, .loss_chunks = 1, .keep = KEEP_PRODUCTS},
        {&mixed, .cp = 2, .tp = 2, .loss_chunks = 1, .keep = KEEP_NOTHING},
    };
    (void)state;
    check_shapes(s, ARRAY_SIZE(s));
}

static void test_expert_parallel(void **state)
{
    static const struct shape s[] = {
        {&mixed, .cp = 2, .tp = 1, .ep = 2, .loss_chunks = 1},
        {&mixed, .cp = 1, .tp = 4, .ep = 4, .loss_chunks = 1},
        {&mixed, .cp = 1, .tp = 4, .ep = 4, .loss_chunks = 1, .room = 2},
        {&deepseek, .cp = 1, .tp = 2, .ep = 2, .loss_chunks = 1},
        {&deepseek, .cp = 4, .tp = 1, .ep = 2, .ring = true, .loss_chunks = 1},
        {&deepseek, .cp = 2, .tp = 2, .ep = 4, .documents = true, .loss_chunks = 1, .keep = KEEP_NOTHING},
        {&mixed, .cp = 2, .tp = 4, .ep = 8, .loss_chunks = 1, .keep = KEEP_PRODUCTS},
    };
    (void)state;
    check_shapes(s, ARRAY_SIZE(s));
}

static void test_cut_experts(void **state)
{
    static const struct shape s[] = {
        {&mixed, .cp = 1, .tp = 2, .cut = true, .loss_chunks = 1},
        {&mixed, .cp = 1, .tp = 4, .cut = true, .loss_chunks = 1, .keep = KEEP_NOTHING},
        {&mixed, .cp = 2, .tp = 2, .ep = 2, .cut = true, .loss_chunks = 1},
        {&mixed, .cp = 2, .tp = 2, .ep = 2, .cut = true, .loss_chunks = 1, .keep = KEEP_PRODUCTS},
        {&deepseek, .cp = 1, .tp = 2, .cut = true, .loss_chunks = 1, .keep = KEEP_PRODUCTS},
        {&deepseek, .cp = 2, .tp = 2, .ep = 2, .cut = true, .documents = true, .loss_chunks = 1},
        {&deepseek, .cp = 4, .tp = 2, .ep = 4, .cut = true, .ring = true, .loss_chunks = 1, .keep = KEEP_NOTHING},
    };
    (void)state;
    check_shapes(s, ARRAY_SIZE(s));
}

int main(void)
{
    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_emitted),
        cmocka_unit_test(test_added),
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_tensor_parallel),
        cmocka_unit_test(test_context_parallel),
        cmocka_unit_test(test_both),
        cmocka_unit_test(test_recomputed),
        cmocka_unit_test(test_latent_and_experts),
        cmocka_unit_test(test_cut_experts),
        cmocka_unit_test(test_expert_parallel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
