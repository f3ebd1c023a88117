/* model.c - parameter list, initialisation and rotary tables of the Llama 3 family. */
#include "worker/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/rng.h"

#define LAYER_TENSORS 9
#define TRUNCATE_AT 3.0f

static int64_t align_up(int64_t n)
{
    return (n + MODEL_ALIGN - 1) / MODEL_ALIGN * MODEL_ALIGN;
}

static titan_status check_dims(const struct model_dims *d, struct titan_error *err)
{
    if (d->dim < 1 || d->n_layers < 1 || d->n_heads < 1 || d->n_kv_heads < 1 || d->ffn_hidden < 1 || d->vocab_size < 1)
        return titan_fail(err, TITAN_EINVAL, "model: every dimension must be at least 1");
    if (d->dim % d->n_heads != 0)
        return titan_fail(err, TITAN_EINVAL, "model: dim %ld is not a multiple of n_heads %ld", (long)d->dim,
                          (long)d->n_heads);
    if (d->n_heads % d->n_kv_heads != 0)
        return titan_fail(err, TITAN_EINVAL, "model: n_heads %ld is not a multiple of n_kv_heads %ld", (long)d->n_heads,
                          (long)d->n_kv_heads);
    if (d->dim / d->n_heads % 2 != 0)
        return titan_fail(err, TITAN_EINVAL, "model: head width %ld is odd, rotary embedding needs pairs",
                          (long)(d->dim / d->n_heads));
    return TITAN_OK;
}

static struct model_unit *begin_unit(struct model *m, enum unit_kind kind, int layer)
{
    struct model_unit *u = &m->units[m->n_units++];
    u->kind = kind;
    u->layer = layer;
    u->first_tensor = m->n_tensors;
    if (kind == UNIT_LAYER)
        (void)snprintf(u->name, sizeof u->name, "layers.%d", layer);
    else
        (void)snprintf(u->name, sizeof u->name, "%s", kind == UNIT_EMBEDDING ? "embedding" : "head");
    return u;
}

/* cols 0: a vector. glued: continues the matrix before it, without a gap. */
static void add_tensor(struct model *m, const char *name, int64_t rows, int64_t cols, bool glued, enum init_rule init,
                       double std)
{
    struct model_unit *u = &m->units[m->n_units - 1];
    struct model_tensor *t = &m->tensors[m->n_tensors++];

    if (u->kind == UNIT_LAYER)
        (void)snprintf(t->name, sizeof t->name, "layers.%d.%s", u->layer, name);
    else
        (void)snprintf(t->name, sizeof t->name, "%s", name);
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->ndim = cols > 0 ? 2 : 1;
    t->numel = rows * (cols > 0 ? cols : 1);
    t->unit = m->n_units - 1;
    t->offset = glued ? u->numel : align_up(u->numel);
    t->init = init;
    t->std = (float)std;
    u->n_tensors++;
    u->numel = t->offset + t->numel;
}

titan_status model_open(const struct model_dims *dims, struct model **ret, struct titan_error *err)
{
    TRY(check_dims(dims, err));
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        return titan_fail(err, TITAN_ENOMEM, "model: out of memory");
    m->dims = *dims;
    m->head_dim = dims->dim / dims->n_heads;
    m->units = calloc((size_t)dims->n_layers + 2, sizeof *m->units);
    m->tensors = calloc((size_t)dims->n_layers * LAYER_TENSORS + 3, sizeof *m->tensors);
    if (!m->units || !m->tensors) {
        model_close(m);
        return titan_fail(err, TITAN_ENOMEM, "model: out of memory");
    }

    const int64_t c = dims->dim, f = dims->ffn_hidden, v = dims->vocab_size;
    const int64_t hd = dims->n_heads * m->head_dim, kd = dims->n_kv_heads * m->head_dim;

    begin_unit(m, UNIT_EMBEDDING, -1);
    add_tensor(m, "tok_embeddings.weight", v, c, false, INIT_NORMAL, 1.0);
    for (int l = 0; l < dims->n_layers; l++) {
        const double out_std = 0.02 / sqrt(2.0 * (l + 1));
        begin_unit(m, UNIT_LAYER, l);
        add_tensor(m, "attention_norm.weight", c, 0, false, INIT_ONES, 0);
        add_tensor(m, "attention.wq.weight", hd, c, false, INIT_NORMAL, 0.02);
        add_tensor(m, "attention.wk.weight", kd, c, true, INIT_NORMAL, 0.02);
        add_tensor(m, "attention.wv.weight", kd, c, true, INIT_NORMAL, 0.02);
        add_tensor(m, "attention.wo.weight", c, hd, false, INIT_NORMAL, out_std);
        add_tensor(m, "ffn_norm.weight", c, 0, false, INIT_ONES, 0);
        add_tensor(m, "feed_forward.w1.weight", f, c, false, INIT_NORMAL, 0.02);
        add_tensor(m, "feed_forward.w3.weight", f, c, true, INIT_NORMAL, out_std);
        add_tensor(m, "feed_forward.w2.weight", c, f, false, INIT_NORMAL, out_std);
    }
    begin_unit(m, UNIT_HEAD, -1);
    add_tensor(m, "norm.weight", c, 0, false, INIT_ONES, 0);
    add_tensor(m, "output.weight", v, c, false, INIT_TRUNCATED, 1.0 / sqrt((double)c));

    *ret = m;
    return TITAN_OK;
}

void model_close(struct model *model)
{
    if (!model)
        return;
    free(model->units);
    free(model->tensors);
    free(model);
}

static float redraw(uint64_t seed, const char *name, uint64_t index)
{
    for (int attempt = 1;; attempt++) {
        char stream[128];
        (void)snprintf(stream, sizeof stream, "%s#%d", name, attempt);
        const float n = rng_normal(rng_key(seed, stream), index);
        if (fabsf(n) <= TRUNCATE_AT)
            return n;
    }
}

static void init_tensor(const struct model_tensor *t, uint64_t seed, int64_t start, int64_t count, float *out)
{
    if (t->init == INIT_ONES) {
        for (int64_t i = 0; i < count; i++)
            out[i] = 1.0f;
        return;
    }
    const struct rng_key key = rng_key(seed, t->name);
    rng_normals(key, (uint64_t)start, (uint64_t)count, out);
    for (int64_t i = 0; i < count; i++) {
        if (t->init == INIT_TRUNCATED && fabsf(out[i]) > TRUNCATE_AT)
            out[i] = redraw(seed, t->name, (uint64_t)(start + i));
        out[i] *= t->std;
    }
}

void model_init_range(const struct model *model, uint64_t seed, int unit, int64_t start, int64_t count, float *out)
{
    const struct model_unit *u = &model->units[unit];

    memset(out, 0, (size_t)count * sizeof *out);
    for (int i = u->first_tensor; i < u->first_tensor + u->n_tensors; i++) {
        const struct model_tensor *t = &model->tensors[i];
        const int64_t from = MAX(start, t->offset), to = MIN(start + count, t->offset + t->numel);
        if (from < to)
            init_tensor(t, seed, from - t->offset, to - from, out + (from - start));
    }
}

/* Llama 3.1: long wavelengths are stretched by the factor, short ones kept, those between blended. */
static double scale_frequency(double freq)
{
    const double factor = 8, low = 1, high = 4, original = 8192;
    const double wavelength = 2 * M_PI / freq;

    if (wavelength < original / high)
        return freq;
    if (wavelength > original / low)
        return freq / factor;
    const double blend = (original / wavelength - low) / (high - low);
    return (1 - blend) * freq / factor + blend * freq;
}

void model_rope_tables(const struct model *model, int64_t positions, float *cos_out, float *sin_out)
{
    const int64_t half = model->head_dim / 2;

    for (int64_t i = 0; i < half; i++) {
        double freq = pow(model->dims.rope_theta, -2.0 * (double)i / (double)model->head_dim);
        if (model->dims.rope_scaling)
            freq = scale_frequency(freq);
        for (int64_t p = 0; p < positions; p++) {
            cos_out[p * half + i] = (float)cos((double)p * freq);
            sin_out[p * half + i] = (float)sin((double)p * freq);
        }
    }
}
