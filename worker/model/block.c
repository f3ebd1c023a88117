/* SPDX-License-Identifier: Apache-2.0 */
/* block.c - embedding, transformer layer and head as operations of a program. */
#include "worker/model/block.h"

#include "base/cleanup.h"
#include "worker/model/experts.h"
#include "worker/model/latent.h"
#include "worker/model/parts.h"

/* --- sizes and views ---------------------------------------------------------------------------------------------- */

int64_t block_tokens_local(const struct block *k)
{
    titan_assert(k->b > 0 && k->t > 0);
    return k->b * k->t / mesh_group_size(&k->layout->mesh, GROUP_CP);
}

int64_t block_tokens_sharded(const struct block *k)
{
    titan_assert(block_tokens_local(k) % mesh_group_size(&k->layout->mesh, GROUP_TP) == 0);
    return block_tokens_local(k) / mesh_group_size(&k->layout->mesh, GROUP_TP);
}

void block_tokens_view(const struct block *k, int buffer, struct block_tokens *ret)
{
    ret->all = tensor_at(buffer, 0, DTYPE_I32, batch_rows(k->layout->model->dims.mtp_layers), block_tokens_local(k));
    ret->inputs = tensor_rows(ret->all, 0, 1);
    ret->targets = tensor_rows(ret->all, 1, 1);
    ret->positions = tensor_rows(ret->all, 2, 1);
    ret->index = tensor_rows(ret->all, 3, 1);
    ret->start = tensor_rows(ret->all, 4, 1);
    ret->module = 0;
}

struct block_tokens block_tokens_of(const struct block_tokens *tokens, int module)
{
    struct block_tokens ret = *tokens;

    titan_assert(module > 0);
    ret.inputs = tensor_rows(tokens->all, batch_rows(module - 1), 1);
    ret.targets = tensor_rows(tokens->all, batch_rows(module - 1) + 1, 1);
    ret.module = module;
    return ret;
}

struct block_sizes block_sizes(const struct block *k)
{
    const struct model *m = k->layout->model;
    const struct model_dims *dims = &m->dims;
    const int tp = mesh_group_size(&k->layout->mesh, GROUP_TP);
    const int parts = tp * mesh_group_size(&k->layout->mesh, GROUP_ROTATE);
    const int64_t h = dims->n_heads / parts, kv = dims->n_kv_heads / parts;
    const int64_t dv = dims->kv_lora_rank > 0 ? dims->v_head_dim : m->head_dim;

    titan_assert(dims->n_heads % parts == 0);
    return (struct block_sizes){.tp = tp,
                                .cp = mesh_group_size(&k->layout->mesh, GROUP_CP),
                                .n = block_tokens_local(k),
                                .ns = block_tokens_sharded(k),
                                .c = dims->dim,
                                .h = h,
                                .kv = kv,
                                .d = m->head_dim,
                                .dv = dv,
                                .hd = h * m->head_dim,
                                .kd = kv * m->head_dim,
                                .od = h * dv,
                                .vd = kv * dv,
                                .v = dims->vocab_size / tp};
}

struct tensor block_new(struct block *k, enum buffer_kind kind, const char *name, int64_t rows, int64_t cols)
{
    return emit_tensor(k->e, kind, name, k->dt, rows, cols);
}

struct tensor block_new_f32(struct block *k, enum buffer_kind kind, const char *name, int64_t rows, int64_t cols)
{
    return emit_tensor(k->e, kind, name, DTYPE_F32, rows, cols);
}

static struct tensor unit_matrix(const struct block *k, int unit, enum tensor_role role, int count, int buffer,
                                 enum dtype dt)
{
    const struct model *m = k->layout->model;
    const int first = model_find(m, unit, role);
    titan_assert(first >= 0 && (buffer >= 0 || k->e->status != TITAN_OK));
    const struct local_tensor *t = &k->layout->tensors[first];
    const bool vector = m->tensors[first].ndim == 1;
    const int64_t from = buffer >= 0 ? k->e->p->buffers[buffer].from : 0;
    int64_t rows = t->rows, cols = t->cols;

    for (int i = 1; i < count; i++) {
        titan_assert(m->tensors[first + i].glued);
        *(vector ? &cols : &rows) += vector ? t[i].cols : t[i].rows;
    }
    titan_assert(t->offset >= from || k->e->status != TITAN_OK);
    return tensor_at(buffer, (size_t)(t->offset - from) * dtype_bytes(dt), dt, rows, cols);
}

/* Returns a tensor and the tensors glued to it, for a unit with codes. Its elements are codes, or of the compute type
 * if the tensor has no codes. */
static struct tensor coded_matrix(const struct block *k, const struct unit_buffers *u, int first, int count)
{
    const struct local_tensor *t = &k->layout->tensors[first];
    const bool codes = coded_place(u->coded, first - k->layout->model->units[u->unit].first_tensor) >= 0;
    const bool vector = k->layout->model->tensors[first].ndim == 1;
    int64_t rows = t->rows, cols = t->cols;

    for (int i = 1; i < count; i++)
        *(vector ? &cols : &rows) += vector ? t[i].cols : t[i].rows;
    return tensor_at(u->params, codes ? (size_t)t->offset : coded_offset(u->coded, t->offset), codes ? DTYPE_U8 : k->dt,
                     rows, cols);
}

struct tensor block_param(const struct block *k, const struct unit_buffers *u, enum tensor_role role, int count)
{
    if (!u->coded)
        return unit_matrix(k, u->unit, role, count, u->params, k->dt);
    titan_assert(model_find(k->layout->model, u->unit, role) >= 0);
    return coded_matrix(k, u, model_find(k->layout->model, u->unit, role), count);
}

struct tensor block_grad(const struct block *k, const struct unit_buffers *u, enum tensor_role role, int count)
{
    return unit_matrix(k, u->unit, role, count, u->grads, DTYPE_F32);
}

/* --- gradients of a whole unit ------------------------------------------------------------------------------------ */

static void zero_range(struct block *k, const struct unit_buffers *u, int64_t from, int64_t to)
{
    const int64_t begin = u->grads >= 0 ? k->e->p->buffers[u->grads].from : 0;

    titan_assert(from >= begin || k->e->status != TITAN_OK);
    if (from < to)
        EMIT(k->e, zero, tensor_at(u->grads, (size_t)(from - begin) * sizeof(float), DTYPE_F32, 1, to - from));
}

void block_zero_gaps(struct block *k, const struct unit_buffers *u, int64_t from, int64_t to)
{
    const struct model_unit *unit = &k->layout->model->units[u->unit];
    int64_t done = from; /* elements before `done` are zeroed in this loop, or a product writes them */

    for (;;) {
        const struct local_tensor *next = NULL; /* the first matrix at or behind `done` */
        for (int i = unit->first_tensor; i < unit->first_tensor + unit->n_tensors; i++) {
            const struct local_tensor *t = &k->layout->tensors[i];
            if (k->layout->model->tensors[i].ndim > 1 && t->offset >= done && (!next || t->offset < next->offset))
                next = t;
        }
        if (!next || next->offset >= to)
            break;
        zero_range(k, u, done, next->offset);
        done = next->offset + next->rows * next->cols;
    }
    zero_range(k, u, done, to);
}

void block_begin_grads(struct block *k, const struct unit_buffers *u)
{
    if (u->first)
        block_zero_gaps(k, u, 0, k->layout->units[u->unit].padded);
}

/* --- linear layers and norms -------------------------------------------------------------------------------------- */

void block_product(struct block *k, struct tensor c, struct tensor a, struct tensor b, uint32_t flags)
{
    titan_assert(!(flags & OP_F8));
    EMIT(k->e, matmul, c, a, b, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE, .flags = flags);
}

static uint32_t converted(const struct block *k, int tensor, enum linear_product product)
{
    return k->converters && k->converters->converted[tensor] ? k->converters->flags[product] : 0;
}

/* The static scale 2^power. */
static struct tensor power(const struct block *k, int power)
{
    titan_assert(power >= -POWERS_ZERO && power < POWERS - POWERS_ZERO);
    return tensor_cols(tensor_at(k->table[TABLE_POWERS], 0, DTYPE_F32, 1, POWERS), POWERS_ZERO + power, 1);
}

/* The scale of a weight that all ranks have found as the step began; TENSOR_NONE: a product finds it. */
static struct tensor weight_scale(const struct block *k, const struct unit_buffers *u, int tensor)
{
    const int at = tensor - k->layout->model->units[u->unit].first_tensor;

    if (at < 0 || at >= 64 || !(u->scaled >> at & 1))
        return TENSOR_NONE;
    return tensor_cols(u->scales, __builtin_popcountll(u->scaled & ((UINT64_C(1) << at) - 1)), 1);
}

/* A product of a linear layer, as the model's converters have it. tensor: the layer's weight, or the first of several
 * glued ones. */
static void product(struct block *k, const struct unit_buffers *u, int tensor, enum linear_product which,
                    struct tensor c, struct tensor a, struct tensor b, uint32_t flags)
{
    const struct tensor weight = which == LINEAR_WGRAD ? TENSOR_NONE : weight_scale(k, u, tensor);
    struct tensor work = TENSOR_NONE, b_scale = TENSOR_NONE, a_given = TENSOR_NONE, b_given = TENSOR_NONE;

    flags |= converted(k, tensor, which);
    if (flags & OP_I8) {
        const size_t bytes = k->ops->matmul_i8_work_bytes(k->dev, a.dt, c.rows, c.cols, a.cols);
        work = emit_tensor(k->e, BUF_WORK, "int8", DTYPE_U8, 1, (int64_t)MAX(bytes, 1));
    } else if (flags & OP_F8) {
        const int64_t sum = flags & OP_TA ? a.rows : a.cols;
        const size_t bytes = k->ops->matmul_f8_work_bytes(k->dev, a.dt, flags & OP_F8_BLOCKS, c.rows, c.cols, sum);
        work = emit_tensor(k->e, BUF_WORK, "float8", DTYPE_U8, 1, (int64_t)MAX(bytes, 1));
    }
    if (b.dt == DTYPE_U8) {
        flags |= OP_F8_B_CODES;
        b_scale = weight;
    }
    if (flags & OP_F8_GIVEN) {
        const struct product_powers powers = k->converters->powers[tensor];
        a_given = power(k, which == LINEAR_FORWARD ? powers.x : powers.dy);
        b_given = which == LINEAR_WGRAD ? power(k, powers.x) : flags & OP_F8_B_CODES ? TENSOR_NONE : weight;
    }
    EMIT(k->e, matmul, c, a, b, work, b_scale, a_given, b_given, .flags = flags);
}

void block_linear_part(struct block *k, const struct unit_buffers *u, enum tensor_role role, enum linear_product which,
                       struct tensor c, struct tensor a, struct tensor b, uint32_t flags)
{
    product(k, u, model_find(k->layout->model, u->unit, role), which, c, a, b, flags);
}

/* The layers that one product computes, and their rows of the glued matrix. */
struct layers {
    enum tensor_role role; /* role of the first of `all` glued layers, which one or more products compute */
    int all;
    enum linear_product product;
    int64_t from, rows;
    int first, count; /* tensors */
    int done;         /* layers of earlier products and of this product */
};

/* Finds the layers of the next product. The product takes all layers, or one if any layer is converted. Returns false
 * if no layer is left. */
static bool next_layers(const struct block *k, const struct unit_buffers *u, struct layers *l)
{
    const int first = model_find(k->layout->model, u->unit, l->role), at = l->done;
    bool alone = false;

    titan_assert(first >= 0 && at >= 0);
    for (int i = 0; i < l->all; i++)
        alone |= converted(k, first + i, l->product) != 0;
    l->from = at == 0 ? 0 : l->from + l->rows;
    l->rows = 0;
    l->done = alone ? MIN(at + 1, l->all) : l->all;
    l->first = first + at;
    l->count = l->done - at;
    for (int i = at; i < l->done; i++)
        l->rows += k->layout->tensors[first + i].rows;
    return l->rows > 0;
}

/* Returns the layers' weight: values, or codes. */
static struct tensor weight_of(const struct block *k, const struct unit_buffers *u, const struct layers *l)
{
    if (!u->coded)
        return tensor_rows(block_param(k, u, l->role, l->all), l->from, l->rows);
    titan_assert(l->count == 1 || coded_place(u->coded, l->first - k->layout->model->units[u->unit].first_tensor) < 0);
    return coded_matrix(k, u, l->first, l->count);
}

static enum tensor_role bias_of(enum tensor_role role)
{
    switch (role) {
    case ROLE_WQ:
        return ROLE_WQ_BIAS;
    case ROLE_WK:
        return ROLE_WK_BIAS;
    case ROLE_WV:
        return ROLE_WV_BIAS;
    case ROLE_WO:
        return ROLE_WO_BIAS;
    case ROLE_W1:
        return ROLE_W1_BIAS;
    case ROLE_W3:
        return ROLE_W3_BIAS;
    case ROLE_W2:
        return ROLE_W2_BIAS;
    case ROLE_GATE:
        return ROLE_GATE_BIAS;
    default:
        return ROLE_COUNT;
    }
}

static bool has_bias(const struct block *k, const struct unit_buffers *u, enum tensor_role role)
{
    return bias_of(role) != ROLE_COUNT && model_find(k->layout->model, u->unit, bias_of(role)) >= 0;
}

/* Does the layer have a bias that is cut like its output and added to it directly? ROLE_WO and ROLE_W2 do not: their
 * output on a rank is a part of a sum. */
static bool has_own_bias(const struct block *k, const struct unit_buffers *u, enum tensor_role role)
{
    return role != ROLE_WO && role != ROLE_W2 && has_bias(k, u, role);
}

void block_linear(struct block *k, const struct unit_buffers *u, enum tensor_role role, int count, struct tensor y,
                  struct tensor x)
{
    struct layers l = {.role = role, .all = count, .product = LINEAR_FORWARD};

    while (next_layers(k, u, &l))
        product(k, u, l.first, l.product, tensor_cols(y, l.from, l.rows), x, weight_of(k, u, &l), OP_TB);
    if (!has_own_bias(k, u, role))
        return;
    struct tensor bias = block_param(k, u, bias_of(role), count);
    if (bias.dt != y.dt) { /* a router's logits are fp32 */
        const struct tensor cast = emit_tensor(k->e, BUF_WORK, "bias", y.dt, bias.rows, bias.cols);
        EMIT(k->e, cast, cast, bias);
        bias = cast;
    }
    EMIT(k->e, add_bias, y, bias);
}

void block_linear_dgrad(struct block *k, const struct unit_buffers *u, enum tensor_role role, int count,
                        struct tensor dx, struct tensor dy)
{
    struct layers l = {.role = role, .all = count, .product = LINEAR_DGRAD};

    while (next_layers(k, u, &l))
        product(k, u, l.first, l.product, dx, tensor_cols(dy, l.from, l.rows), weight_of(k, u, &l),
                l.from > 0 ? OP_ADD_TO : 0);
}

void block_linear_wgrad(struct block *k, const struct unit_buffers *u, enum tensor_role role, int count,
                        struct tensor dy, struct tensor x)
{
    const struct tensor dw = block_grad(k, u, role, count);
    struct layers l = {.role = role, .all = count, .product = LINEAR_WGRAD};

    x = block_values(k, x, dw.cols);
    while (next_layers(k, u, &l))
        product(k, u, l.first, l.product, tensor_rows(dw, l.from, l.rows), tensor_cols(dy, l.from, l.rows), x,
                OP_TA | (u->first ? 0 : OP_ADD_TO));
    if (has_own_bias(k, u, role))
        EMIT(k->e, bias_wgrad, block_grad(k, u, bias_of(role), count), dy);
}

bool block_keeps_codes(const struct block *k, const struct unit_buffers *u, enum tensor_role role, int count)
{
    const int first = model_find(k->layout->model, u->unit, role);
    bool keeps = k->keeps_codes;

    titan_assert(first >= 0);
    for (int i = 0; i < count; i++)
        keeps = keeps && converted(k, first + i, LINEAR_FORWARD);
    return keeps;
}

struct tensor block_kept(struct block *k, const struct unit_buffers *u, enum tensor_role role, int count,
                         struct tensor x)
{
    if (!block_keeps_codes(k, u, role, count))
        return x;
    const struct tensor codes =
        emit_tensor(k->e, BUF_ACTIVATION, "codes of rows", DTYPE_U8, x.rows, int8_rows_bytes(1, x.cols));
    EMIT(k->e, rows_encode, codes, x);
    return codes;
}

struct tensor block_values(struct block *k, struct tensor kept, int64_t cols)
{
    if (kept.dt != DTYPE_U8)
        return kept;
    const struct tensor values = block_new(k, BUF_WORK, "values of rows", kept.rows, cols);
    EMIT(k->e, rows_decode, values, kept);
    return values;
}

static bool multiplies(double factor)
{
    return factor != 0 && factor != 1;
}

struct tensor block_norm(struct block *k, const char *name, struct tensor x, struct tensor gain,
                         struct tensor *ret_rstd)
{
    if (!tensor_exists(gain))
        return emit_all_gather(k->e, CHANNEL_TP, BUF_ACTIVATION, name, x);
    const struct tensor xn = block_new(k, BUF_ACTIVATION, name, x.rows, x.cols);
    *ret_rstd = block_new_f32(k, BUF_ACTIVATION, "rstd", 1, x.rows);
    EMIT(k->e, rmsnorm, xn, *ret_rstd, x, gain, .eps = k->layout->model->dims.norm_eps, .flags = block_norm_flags(k));
    return emit_all_gather(k->e, CHANNEL_TP, BUF_ACTIVATION, name, xn);
}

struct tensor block_norm_dgrad(struct block *k, const char *name, struct tensor residual, struct tensor dxn,
                               const struct norm_saved *saved, struct tensor gain)
{
    const struct tensor dx = block_new(k, BUF_DACTIVATION, name, saved->x.rows, saved->x.cols);

    if (!tensor_exists(gain)) {
        EMIT(k->e, add, dx, residual, dxn);
        return dx;
    }
    emit_copy(k->e, dx, residual);
    EMIT(k->e, rmsnorm_dgrad, dx, dxn, saved->x, gain, saved->rstd, .flags = OP_ADD_TO | block_norm_flags(k));
    return dx;
}

/* The tensors at the end of a half layer. half_end_of() finds them by the role of the half layer's last product. */
struct half_end {
    const char *out, *dout; /* names of the output and of its gradient */
    enum saved_tensor x;    /* input of the product */
    enum back_tensor dy;    /* gradient of the product's output */
    enum back_tensor own;   /* this gradient before its gather, where the product has a bias */
    /* What the norm of the output needs: */
    enum tensor_role gain;
    enum saved_tensor raw, rstd;
    enum back_tensor normed;
};

static const struct half_end *half_end_of(enum tensor_role role)
{
    static const struct half_end attention = {.out = "h",
                                              .dout = "dh",
                                              .x = SAVED_ATTN,
                                              .dy = BACK_DH,
                                              .gain = ROLE_ATTENTION_OUT_NORM,
                                              .raw = SAVED_ATTN_OUT,
                                              .rstd = SAVED_ATTN_OUT_RSTD,
                                              .normed = BACK_DH_NORMED,
                                              .own = BACK_DH_OWN};
    static const struct half_end feed_forward = {.out = "y",
                                                 .dout = "dy",
                                                 .x = SAVED_ACT,
                                                 .dy = BACK_DY,
                                                 .gain = ROLE_FFN_OUT_NORM,
                                                 .raw = SAVED_FFN_OUT,
                                                 .rstd = SAVED_FFN_OUT_RSTD,
                                                 .normed = BACK_DY_NORMED,
                                                 .own = BACK_DY_OWN};

    titan_assert(role == ROLE_WO || role == ROLE_W2);
    return role == ROLE_WO ? &attention : &feed_forward;
}

/* Returns a norm's gain; TENSOR_NONE: the layer does not have the norm. */
static struct tensor gain_of(const struct block *k, const struct unit_buffers *u, enum tensor_role role)
{
    return model_find(k->layout->model, u->unit, role) < 0 ? TENSOR_NONE : block_param(k, u, role, 1);
}

struct tensor block_project_out(struct block *k, const struct unit_buffers *u, enum tensor_role role,
                                struct tensor residual, struct layer_saved *saved)
{
    const struct half_end *end = half_end_of(role);
    const struct tensor x = saved->t[end->x];
    struct tensor out = block_new(k, BUF_ACTIVATION, end->out, x.rows, block_param(k, u, role, 1).rows);

    if (role == ROLE_W2) /* attention's gradient reads the input of ROLE_WO */
        saved->t[end->x] = block_kept(k, u, role, 1, x);
    block_linear(k, u, role, 1, out, x);
    out = emit_reduce_scatter(k->e, CHANNEL_TP, BUF_ACTIVATION, end->out, out);
    return block_half_end(k, u, role, out, residual, saved);
}

struct tensor block_half_end(struct block *k, const struct unit_buffers *u, enum tensor_role role, struct tensor out,
                             struct tensor residual, struct layer_saved *saved)
{
    const struct half_end *end = half_end_of(role);
    const struct tensor gain = gain_of(k, u, end->gain);
    const double by = k->layout->model->dims.residual_multiplier;

    if (has_bias(k, u, role))
        EMIT(k->e, add_bias, out, block_param(k, u, bias_of(role), 1));
    if (tensor_exists(gain)) {
        saved->t[end->raw] = out;
        saved->t[end->rstd] = block_new_f32(k, BUF_ACTIVATION, "out_rstd", 1, out.rows);
        out = block_new(k, BUF_ACTIVATION, end->out, out.rows, out.cols);
        EMIT(k->e, rmsnorm, out, saved->t[end->rstd], saved->t[end->raw], gain, .eps = k->layout->model->dims.norm_eps,
             .flags = block_norm_flags(k));
    }
    if (multiplies(by))
        EMIT(k->e, scale, out, out, .factor = by);
    EMIT(k->e, add, out, out, residual);
    return out;
}

void block_project_out_dgrad(struct block *k, const struct unit_buffers *u, enum tensor_role role, struct tensor dy,
                             const struct layer_saved *saved, struct layer_back *back)
{
    const struct half_end *end = half_end_of(role);
    const struct tensor gain = gain_of(k, u, end->gain);
    const double by = k->layout->model->dims.residual_multiplier;

    if (multiplies(by)) {
        const struct tensor scaled = block_new(k, BUF_DACTIVATION, end->dout, dy.rows, dy.cols);
        EMIT(k->e, scale, scaled, dy, .factor = by);
        dy = scaled;
    }
    if (tensor_exists(gain)) {
        back->t[end->normed] = dy;
        dy = block_new(k, BUF_DACTIVATION, end->dout, dy.rows, dy.cols);
        EMIT(k->e, rmsnorm_dgrad, dy, back->t[end->normed], saved->t[end->raw], gain, saved->t[end->rstd],
             .flags = block_norm_flags(k));
    }
    back->t[end->own] = has_bias(k, u, role) ? dy : TENSOR_NONE;
    back->t[end->dy] = emit_all_gather(k->e, CHANNEL_TP, BUF_DACTIVATION, end->dout, dy);
}

/* Computes weight gradients of a half layer's last product from BACK_DH or BACK_DY (N,C), and gradients of its bias and
 * of the half layer's end */
static void project_out_wgrad(struct block *k, const struct unit_buffers *u, enum tensor_role role,
                              const struct layer_saved *saved, const struct layer_back *back)
{
    const struct half_end *end = half_end_of(role);

    block_linear_wgrad(k, u, role, 1, back->t[end->dy], saved->t[end->x]);
    if (has_bias(k, u, role))
        EMIT(k->e, bias_wgrad, block_grad(k, u, bias_of(role), 1), back->t[end->own]);
    if (tensor_exists(back->t[end->normed]))
        EMIT(k->e, rmsnorm_dgain, block_grad(k, u, end->gain, 1), back->t[end->normed], saved->t[end->raw],
             saved->t[end->rstd]);
}

/* Computes the gain's gradient of the norm at the start of a half layer. Does nothing without such a norm. */
static void norm_wgrad(struct block *k, const struct unit_buffers *u, enum tensor_role role, struct tensor dxn,
                       struct tensor x, struct tensor rstd)
{
    if (model_find(k->layout->model, u->unit, role) >= 0)
        EMIT(k->e, rmsnorm_dgain, block_grad(k, u, role, 1), dxn, x, rstd);
}

/* --- embedding ---------------------------------------------------------------------------------------------------- */

struct tensor embedding_forward(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens)
{
    const struct block_sizes z = block_sizes(k);
    const struct tensor x = block_new(k, BUF_ACTIVATION, "x", z.n, z.c);
    const double by = k->layout->model->dims.embedding_multiplier;

    /* Each tp rank fills in the tokens of its part of the vocabulary; rows of other tokens are zero. */
    EMIT(k->e, embed, x, tokens->inputs, block_param(k, u, ROLE_EMBEDDING, 1));
    const struct tensor own = emit_reduce_scatter(k->e, CHANNEL_TP, BUF_ACTIVATION, "x", x);
    if (multiplies(by))
        EMIT(k->e, scale, own, own, .factor = by);
    return own;
}

void embedding_wgrad(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens, struct tensor dx)
{
    const double by = k->layout->model->dims.embedding_multiplier;

    if (multiplies(by)) {
        const struct tensor scaled = block_new(k, BUF_DACTIVATION, "dx", dx.rows, dx.cols);
        EMIT(k->e, scale, scaled, dx, .factor = by);
        dx = scaled;
    }
    const struct tensor all = emit_all_gather(k->e, CHANNEL_TP, BUF_DACTIVATION, "dx", dx);
    if (u->first)
        zero_range(k, u, 0, k->layout->units[u->unit].padded);
    EMIT(k->e, embed_wgrad, block_grad(k, u, ROLE_EMBEDDING, 1), tokens->inputs, all);
}

/* --- feed-forward ------------------------------------------------------------------------------------------------- */

void block_gate(struct block *k, struct tensor out, struct tensor gate, struct tensor up, struct tensor counts)
{
    const struct model_dims *d = &k->layout->model->dims;

    if (d->swiglu_limit > 0)
        EMIT(k->e, clamped_swiglu, out, gate, up, counts, .limit = d->swiglu_limit, .alpha = d->swiglu_alpha);
    else
        EMIT(k->e, swiglu, out, gate, up, counts, .flags = d->gelu ? OP_GELU : 0);
}

void block_gate_dgrad(struct block *k, struct tensor dgu, struct tensor dout, struct tensor gate, struct tensor up,
                      struct tensor counts)
{
    const struct model_dims *d = &k->layout->model->dims;
    const struct tensor dgate = tensor_cols(dgu, 0, gate.cols), dup = tensor_cols(dgu, gate.cols, up.cols);

    if (d->swiglu_limit > 0)
        EMIT(k->e, clamped_swiglu_dgrad, dgate, dup, dout, gate, up, counts, .limit = d->swiglu_limit,
             .alpha = d->swiglu_alpha);
    else
        EMIT(k->e, swiglu_dgrad, dgate, dup, dout, gate, up, counts, .flags = d->gelu ? OP_GELU : 0);
}

void block_feed_forward_in(struct block *k, const struct unit_buffers *u, struct layer_saved *saved)
{
    const int64_t n = block_tokens_local(k), f = block_param(k, u, ROLE_W1, 1).rows;
    struct tensor *s = saved->t;

    /* gate, up (N,F): side by side from one product, or in two tensors from two products */
    if (k->split_gate_up) {
        s[SAVED_GATE] = block_new(k, BUF_ACTIVATION, "gate", n, f);
        s[SAVED_UP] = block_new(k, BUF_ACTIVATION, "up", n, f);
        block_linear(k, u, ROLE_W1, 1, s[SAVED_GATE], s[SAVED_XN2]);
        block_linear(k, u, ROLE_W3, 1, s[SAVED_UP], s[SAVED_XN2]);
    } else {
        const struct tensor gu = block_new(k, BUF_ACTIVATION, "gate | up", n, 2 * f);
        block_linear(k, u, ROLE_W1, 2, gu, s[SAVED_XN2]);
        s[SAVED_GATE] = tensor_cols(gu, 0, f);
        s[SAVED_UP] = tensor_cols(gu, f, f);
    }
    if (model_find(k->layout->model, u->unit, ROLE_GATE) < 0) /* a router reads the same input in backward */
        s[SAVED_XN2] = block_kept(k, u, ROLE_W1, 2, s[SAVED_XN2]);
    /* act (N,F) */
    s[SAVED_ACT] = block_new(k, BUF_ACTIVATION, "act", n, f);
    block_gate(k, s[SAVED_ACT], s[SAVED_GATE], s[SAVED_UP], TENSOR_NONE);
}

/* y (Ns,C) = residual + w2 (silu(w1 n) * w3 n), or GELU in place of silu */
struct tensor block_feed_forward(struct block *k, const struct unit_buffers *u, struct tensor residual,
                                 struct layer_saved *saved)
{
    block_feed_forward_in(k, u, saved);
    return block_project_out(k, u, ROLE_W2, residual, saved);
}

void block_feed_forward_out_dgrad(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                                  struct tensor dy, struct layer_back *back)
{
    const struct tensor *s = saved->t;
    const int64_t n = block_tokens_local(k), f = s[SAVED_GATE].cols;

    /* dact (N,F) */
    const struct tensor dact = block_new(k, BUF_DACTIVATION, "dact", n, f);
    block_linear_dgrad(k, u, ROLE_W2, 1, dact, dy);
    /* dgu (N,2F) */
    back->t[BACK_DGU] = block_new(k, BUF_DACTIVATION, "dgu", n, 2 * f);
    block_gate_dgrad(k, back->t[BACK_DGU], dact, s[SAVED_GATE], s[SAVED_UP], TENSOR_NONE);
}

struct tensor block_feed_forward_dgrad(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                                       struct tensor dy, struct layer_back *back)
{
    const int64_t n = block_tokens_local(k);
    struct tensor *g = back->t;

    block_project_out_dgrad(k, u, ROLE_W2, dy, saved, back);
    block_feed_forward_out_dgrad(k, u, saved, g[BACK_DY], back);
    /* dxn2 (N,C) -> (Ns,C) */
    const struct tensor dxn2 = block_new(k, BUF_DACTIVATION, "dxn2", n, dy.cols);
    block_linear_dgrad(k, u, ROLE_W1, 2, dxn2, g[BACK_DGU]);
    return emit_reduce_scatter(k->e, CHANNEL_TP, BUF_DACTIVATION, "dxn2", dxn2);
}

void block_feed_forward_wgrad(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                              const struct layer_back *back)
{
    const struct tensor *s = saved->t, *g = back->t;

    /* dw2 (C,F) */
    project_out_wgrad(k, u, ROLE_W2, saved, back);
    /* dw1 | dw3 (2F,C) */
    block_linear_wgrad(k, u, ROLE_W1, 2, g[BACK_DGU], s[SAVED_XN2]);
}

/* --- layer -------------------------------------------------------------------------------------------------------- */

static bool is_latent(const struct block *k)
{
    return k->layout->model->dims.kv_lora_rank > 0;
}

struct tensor layer_forward(struct block *k, struct layer_units u, const struct block_tokens *tokens, struct tensor x,
                            struct tensor statistics, struct layer_saved *saved)
{
    titan_assert(u.own && saved);
    struct tensor *s = saved->t;

    for (int i = 0; i < SAVED_COUNT; i++)
        s[i] = TENSOR_NONE;
    s[SAVED_X] = x;
    /* xn1 (N,C) */
    s[SAVED_XN1] = block_norm(k, "xn1", x, gain_of(k, u.own, ROLE_ATTENTION_NORM), &s[SAVED_RSTD1]);
    if (tensor_exists(statistics) && tensor_exists(s[SAVED_RSTD1]))
        EMIT(k->e, check, statistics, s[SAVED_RSTD1]);
    /* attn (N,H*Dv) */
    (is_latent(k) ? latent_forward : attention_forward)(k, u.own, tokens, saved);
    /* h (Ns,C) = x + wo attn */
    s[SAVED_H] = block_project_out(k, u.own, ROLE_WO, x, saved);
    /* In a layer without a first norm, the rstd of the output norm shows whether the input was finite. */
    if (tensor_exists(statistics) && !tensor_exists(s[SAVED_RSTD1]))
        EMIT(k->e, check, statistics, s[SAVED_ATTN_OUT_RSTD]);
    /* y (Ns,C) = h + ffn(norm(h)) */
    if (u.experts)
        return experts_forward(k, u, tokens, saved);
    /* xn2 (N,C) */
    s[SAVED_XN2] = block_norm(k, "xn2", s[SAVED_H], gain_of(k, u.own, ROLE_FFN_NORM), &s[SAVED_RSTD2]);
    return block_feed_forward(k, u.own, s[SAVED_H], saved);
}

struct tensor layer_dgrad(struct block *k, struct layer_units u, const struct block_tokens *tokens,
                          const struct layer_saved *saved, struct tensor dy, struct layer_back *back)
{
    const struct block_sizes z = block_sizes(k);
    const struct tensor *s = saved->t;

    for (int i = 0; i < BACK_COUNT; i++)
        back->t[i] = TENSOR_NONE;
    struct tensor *g = back->t;
    g[BACK_DXN2] =
        u.experts ? experts_dgrad(k, u, tokens, saved, dy, back) : block_feed_forward_dgrad(k, u.own, saved, dy, back);
    /* dh (Ns,C) = dy + the gradient through the norm */
    const struct norm_saved ffn_norm = {s[SAVED_H], s[SAVED_RSTD2]};
    const struct tensor dh = block_norm_dgrad(k, "dh", dy, g[BACK_DXN2], &ffn_norm, gain_of(k, u.own, ROLE_FFN_NORM));
    block_project_out_dgrad(k, u.own, ROLE_WO, dh, saved, back);
    /* dattn (N,H*Dv) */
    const struct tensor dattn = block_new(k, BUF_DACTIVATION, "dattn", z.n, s[SAVED_ATTN].cols);
    block_linear_dgrad(k, u.own, ROLE_WO, 1, dattn, g[BACK_DH]);
    /* dxn1 (N,C) -> (Ns,C) */
    const struct tensor dxn1 = (is_latent(k) ? latent_dgrad : attention_dgrad)(k, u.own, tokens, saved, dattn, back);
    g[BACK_DXN1] = emit_reduce_scatter(k->e, CHANNEL_TP, BUF_DACTIVATION, "dxn1", dxn1);
    /* dx (Ns,C) = dh + the gradient through the norm */
    const struct norm_saved norm = {s[SAVED_X], s[SAVED_RSTD1]};
    return block_norm_dgrad(k, "dx", dh, g[BACK_DXN1], &norm, gain_of(k, u.own, ROLE_ATTENTION_NORM));
}

void layer_wgrad(struct block *k, struct layer_units u, const struct layer_saved *saved, const struct layer_back *back)
{
    const struct unit_buffers *own = u.own;
    const struct tensor *s = saved->t, *g = back->t;

    block_begin_grads(k, own);
    if (u.experts)
        experts_wgrad(k, u, saved, back);
    else
        block_feed_forward_wgrad(k, own, saved, back);
    norm_wgrad(k, own, ROLE_FFN_NORM, g[BACK_DXN2], s[SAVED_H], s[SAVED_RSTD2]);
    /* dwo (C,H*Dv) */
    project_out_wgrad(k, own, ROLE_WO, saved, back);
    (is_latent(k) ? latent_wgrad : attention_wgrad)(k, own, saved, back);
    norm_wgrad(k, own, ROLE_ATTENTION_NORM, g[BACK_DXN1], s[SAVED_X], s[SAVED_RSTD1]);
}

/* --- head --------------------------------------------------------------------------------------------------------- */

/* Returns the buffers with the head's matrix: the embedding's unit if the two are tied. */
static const struct unit_buffers *output_unit(const struct block *k, struct head_units u)
{
    titan_assert(!k->layout->model->dims.tied_embeddings || u.tied);
    return k->layout->model->dims.tied_embeddings ? u.tied : u.own;
}

static enum tensor_role output_role(const struct block *k)
{
    return k->layout->model->dims.tied_embeddings ? ROLE_EMBEDDING : ROLE_OUTPUT;
}

/* Values that all pieces of a head share. */
struct head {
    struct tensor xn, dxn;   /* (N,C); dxn is TENSOR_NONE without gradients */
    struct unit_buffers out; /* buffers with the matrix (V,C); `first` is for the gradient of the first piece */
    struct tensor statistics, losses;
    double factor; /* factor of gradients */
};

/* Scales an operand of a product. A product is linear in both operands, so callers scale the smaller one. */
static struct tensor scaled(struct block *k, struct tensor x, double by)
{
    if (!multiplies(by))
        return x;
    const struct tensor ret = block_new(k, BUF_WORK, "scaled", x.rows, x.cols);
    EMIT(k->e, scale, ret, x, .factor = by);
    return ret;
}

static void head_piece(struct block *k, const struct head *head, const struct block_tokens *tokens, int64_t from,
                       int64_t n)
{
    const enum phase phase = k->e->phase;
    const bool gradient = tensor_exists(head->dxn);
    const double cap = k->layout->model->dims.logits_softcap;
    const struct tensor xn = tensor_rows(head->xn, from, n);
    const struct tensor losses =
        tensor_exists(head->losses) ? tensor_cols(head->losses, from, n) : block_new_f32(k, BUF_WORK, "losses", 1, n);
    /* logits (n,V) */
    const struct tensor logits = block_new(k, BUF_ACTIVATION, "logits", n, block_sizes(k).v);
    const struct tensor uncapped =
        cap > 0 && gradient ? block_new(k, BUF_ACTIVATION, "uncapped", n, logits.cols) : logits;
    struct unit_buffers out = head->out;

    titan_assert(from >= 0 && n > 0 && from + n <= head->xn.rows);
    block_linear(k, &out, output_role(k), 1, uncapped, xn);
    if (cap > 0)
        EMIT(k->e, softcap, logits, uncapped, .cap = cap);
    /* losses (1,n). The logits are cut by vocabulary over tp, so ranks exchange 3 numbers per token. With `gradient`,
     * the gradient overwrites the logits. */
    const struct tensor targets = tensor_cols(tokens->targets, from, n);
    const struct tensor part = block_new_f32(k, BUF_WORK, "loss_stats", n, 3);
    EMIT(k->e, loss_stats, part, logits, targets);
    const struct tensor stats = emit_all_gather(k->e, CHANNEL_TP, BUF_WORK, "loss_stats", part);
    EMIT(k->e, loss_finish, losses, gradient ? logits : TENSOR_NONE, logits, targets, stats,
         .parts = block_sizes(k).tp);
    if (tensor_exists(head->statistics) && tokens->module > 0)
        EMIT(k->e, mtp_loss_sum, head->statistics, losses);
    else if (tensor_exists(head->statistics))
        EMIT(k->e, loss_sum, head->statistics, losses);
    if (!gradient)
        return;
    /* The gradient is of the losses' sum over tokens. The optimizer's factor turns it into the gradient of the mean
     * over the global batch. */
    k->e->phase = PHASE_DGRAD;
    if (cap > 0)
        EMIT(k->e, softcap_dgrad, logits, logits, uncapped, .cap = cap);
    block_linear_dgrad(k, &out, output_role(k), 1, tensor_rows(head->dxn, from, n), logits);
    k->e->phase = PHASE_WGRAD;
    out.first = head->out.first && from == 0;
    block_linear_wgrad(k, &out, output_role(k), 1, logits, scaled(k, xn, head->factor));
    k->e->phase = phase;
}

/* Divides xn, or its gradient, by logits_scaling. Logits are linear in xn, so there is no need to divide the larger
 * logits. */
static void scale_logits(struct block *k, struct tensor xn)
{
    const double by = k->layout->model->dims.logits_scaling;

    if (multiplies(by))
        EMIT(k->e, scale, xn, xn, .factor = 1 / by);
}

static struct tensor head_back(struct block *k, const struct unit_buffers *u, const struct head *head, struct tensor x,
                               struct tensor rstd)
{
    const enum phase phase = k->e->phase;
    const bool norm = tensor_exists(rstd);
    const struct tensor dx = norm ? block_new(k, BUF_DACTIVATION, "dx", x.rows, x.cols) : TENSOR_NONE;
    struct tensor dxn = head->dxn;

    k->e->phase = PHASE_DGRAD;
    scale_logits(k, dxn);
    if (multiplies(head->factor))
        EMIT(k->e, scale, dxn, dxn, .factor = head->factor);
    dxn = emit_reduce_scatter(k->e, CHANNEL_TP, BUF_DACTIVATION, "dxn", dxn);
    if (!norm) {
        k->e->phase = phase;
        return dxn;
    }
    EMIT(k->e, rmsnorm_dgrad, dx, dxn, x, block_param(k, u, ROLE_NORM, 1), rstd, .flags = block_norm_flags(k));
    k->e->phase = PHASE_WGRAD;
    EMIT(k->e, rmsnorm_dgain, block_grad(k, u, ROLE_NORM, 1), dxn, x, rstd);
    k->e->phase = phase;
    return dx;
}

struct tensor head_step(struct block *k, struct head_units u, const struct block_tokens *tokens, struct tensor x,
                        struct tensor statistics, struct tensor losses)
{
    const struct block_sizes z = block_sizes(k);
    const struct model_dims *d = &k->layout->model->dims;
    const double mtp_scale = d->mtp_loss_scale > 0 ? d->mtp_loss_scale : RECIPE_MTP_LOSS_SCALE;
    const struct unit_buffers *out = output_unit(k, u);
    const bool gradient = u.own->grads >= 0;
    const int64_t pieces = MAX(1, MIN(k->loss_chunks, z.n)), rows = (z.n + pieces - 1) / pieces;
    struct tensor rstd = TENSOR_NONE;
    struct head head = {.xn = block_norm(k, "xn", x, gain_of(k, u.own, ROLE_NORM), &rstd),
                        .dxn = TENSOR_NONE,
                        .out = *out,
                        .statistics = statistics,
                        .losses = losses,
                        /* the weight of the modules' losses is shared equally by the modules */
                        .factor = tokens->module > 0 ? mtp_scale / (double)d->mtp_layers : 1};

    titan_assert(rows >= 1 && pieces * rows >= z.n);
    scale_logits(k, head.xn);
    if (tensor_exists(statistics) && tensor_exists(rstd))
        EMIT(k->e, check, statistics, rstd);
    if (gradient) {
        const enum phase phase = k->e->phase;
        head.dxn = block_new(k, BUF_DACTIVATION, "dxn", z.n, z.c);
        k->e->phase = PHASE_WGRAD;
        block_begin_grads(k, u.own);
        if (out != u.own)
            block_begin_grads(k, out);
        k->e->phase = phase;
    }
    for (int64_t from = 0; from < z.n; from += rows)
        head_piece(k, &head, tokens, from, MIN(rows, z.n - from));
    return gradient ? head_back(k, u.own, &head, x, rstd) : TENSOR_NONE;
}

void head_logits(struct block *k, struct head_units u, struct tensor x, struct tensor logits)
{
    struct tensor rstd;
    const struct tensor xn = block_norm(k, "xn", x, gain_of(k, u.own, ROLE_NORM), &rstd);

    scale_logits(k, xn);
    block_linear(k, output_unit(k, u), output_role(k), 1, logits, xn);
    if (k->layout->model->dims.logits_softcap > 0)
        EMIT(k->e, softcap, logits, logits, .cap = k->layout->model->dims.logits_softcap);
}
