/* SPDX-License-Identifier: Apache-2.0 */
/* The model on a device (the CPU; TITAN_TEST_DEVICE names another) against PyTorch: initial values, loss, logits and
 * every gradient of twenty-four models, 50 AdamW steps, and each gradient once more by finite differences. Values and
 * digests: tests/golden/reference.py, and transformers_reference.py from transformers' classes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/rng.h"
#include "tests/support/sets.h"
#include "worker/device/device.h"
#include "worker/infer/whole.h"
#include "worker/tensor/layout.h"

/* --- fixture ------------------------------------------------------------------------------------------------------ */

struct fixture {
    struct json *file;
    struct device_handle device;
    struct model *model;
    struct whole_model *whole;
    int64_t b, t, counted;
    uint64_t seed;
    int32_t *tokens, *targets;
    float **values, **grads; /* per tensor */
};

static void must(titan_status status, const struct titan_error *err)
{
    if (status != TITAN_OK)
        fail_msg("%s: %s", titan_status_name(status), err->msg);
}

static struct json *load(const char *name)
{
    char path[512];
    struct buf text = BUF_INIT;
    struct json *root = NULL;
    struct titan_error err = {0};
    snprintf(path, sizeof(path), "%s/tests/golden/%s.json", TITAN_SOURCE_DIR, name);
    must(file_read(path, 1 << 24, &text, &err), &err);
    must(json_parse(text.data, text.len, &root, &err), &err);
    buf_free(&text);
    return root;
}

static double real_of(const struct json *v)
{
    assert_non_null(v);
    return v->type == JSON_INT ? (double)v->integer : v->real;
}
static double member(const struct json *object, const char *key)
{
    return real_of(json_get(object, key));
}

static void read_factors(const struct json *list, struct recipe_reals *ret)
{
    for (const struct json *v = list ? list->first : NULL; v; v = v->next) {
        assert_true(ret->n < RECIPE_REALS_MAX);
        ret->value[ret->n++] = real_of(v);
    }
}

/* A rule's name; files may have a boolean, as reference.py has for Llama's. */
static void read_rope_scaling(const struct json *d, struct model_dims *dims)
{
    const struct json *v = json_get(d, "rope_scaling");
    snprintf(dims->rope_scaling, sizeof(dims->rope_scaling), "%s",
             v && v->type == JSON_STRING ? v->string
             : v && v->boolean           ? "llama3"
                                         : "none");
    dims->rope_factor = json_real(d, "rope_factor", 8);
    dims->rope_original_length = json_int(d, "rope_original_length", 8192);
    dims->rope_low_freq_factor = 1;
    dims->rope_high_freq_factor = 4;
    dims->rope_beta_fast = json_real(d, "rope_beta_fast", 0);
    dims->rope_beta_slow = json_real(d, "rope_beta_slow", 0);
    dims->rope_between_pairs = json_get(d, "rope_between_pairs") && json_get(d, "rope_between_pairs")->boolean;
    dims->rope_attention_factor = json_real(d, "rope_attention_factor", 0);
    read_factors(json_get(d, "rope_short_factor"), &dims->rope_short_factor);
    read_factors(json_get(d, "rope_long_factor"), &dims->rope_long_factor);
    dims->rope_mscale = json_real(d, "rope_mscale", 0);
    dims->rope_mscale_all_dim = json_real(d, "rope_mscale_all_dim", 0);
}

static bool flag(const struct json *object, const char *key)
{
    const struct json *v = json_get(object, key);
    return v && v->boolean;
}

static struct model_dims dims_of(const struct json *d)
{
    struct model_dims ret = {.dim = json_int(d, "dim", 0),
                             .n_layers = json_int(d, "n_layers", 0),
                             .n_heads = json_int(d, "n_heads", 0),
                             .n_kv_heads = json_int(d, "n_kv_heads", 0),
                             .head_dim = json_int(d, "head_dim", 0),
                             .ffn_hidden = json_int(d, "ffn_hidden", 0),
                             .vocab_size = json_int(d, "vocab_size", 0),
                             .rope_theta = member(d, "rope_theta"),
                             .norm_eps = member(d, "norm_eps"),
                             .tied_embeddings = flag(d, "tied_embeddings"),
                             .qk_norm = flag(d, "qk_norm"),
                             .norm_offset = flag(d, "norm_offset"),
                             .gelu = flag(d, "gelu"),
                             .qkv_bias = flag(d, "qkv_bias"),
                             .output_bias = flag(d, "output_bias"),
                             .mlp_bias = flag(d, "mlp_bias"),
                             .attention_sinks = flag(d, "attention_sinks"),
                             .router_bias = flag(d, "router_bias"),
                             .swiglu_limit = json_real(d, "swiglu_limit", 0),
                             .swiglu_alpha = json_real(d, "swiglu_alpha", 0),
                             .rope_dim = json_int(d, "rope_dim", 0),
                             .no_rope_every = json_int(d, "no_rope_every", 0),
                             .sliding_window = json_int(d, "sliding_window", 0),
                             .full_attention_every = json_int(d, "full_attention_every", 0),
                             .attention_softcap = json_real(d, "attention_softcap", 0),
                             .logits_softcap = json_real(d, "logits_softcap", 0),
                             .rope_local_theta = json_real(d, "rope_local_theta", 0),
                             .output_norms = flag(d, "output_norms"),
                             .no_input_norms = flag(d, "no_input_norms"),
                             .qk_norm_whole = flag(d, "qk_norm_whole"),
                             .embedding_multiplier = json_real(d, "embedding_multiplier", 0),
                             .residual_multiplier = json_real(d, "residual_multiplier", 0),
                             .attention_multiplier = json_real(d, "attention_multiplier", 0),
                             .logits_scaling = json_real(d, "logits_scaling", 0),
                             .q_lora_rank = json_int(d, "q_lora_rank", 0),
                             .kv_lora_rank = json_int(d, "kv_lora_rank", 0),
                             .qk_nope_head_dim = json_int(d, "qk_nope_head_dim", 0),
                             .qk_rope_head_dim = json_int(d, "qk_rope_head_dim", 0),
                             .v_head_dim = json_int(d, "v_head_dim", 0),
                             .n_experts = json_int(d, "n_experts", 0),
                             .top_k = json_int(d, "top_k", 0),
                             .n_shared_experts = json_int(d, "n_shared_experts", 0),
                             .moe_hidden = json_int(d, "moe_hidden", 0),
                             .n_dense_layers = json_int(d, "n_dense_layers", 0),
                             .sigmoid_scores = flag(d, "sigmoid_scores"),
                             .normalize_scores = flag(d, "normalize_scores"),
                             .route_scale = json_get(d, "route_scale") ? member(d, "route_scale") : 1,
                             .latent_norm_eps = json_real(d, "latent_norm_eps", 0),
                             .n_expert_groups = json_int(d, "n_expert_groups", 0),
                             .n_limited_groups = json_int(d, "n_limited_groups", 0),
                             .group_top_k = json_int(d, "group_top_k", 0),
                             .balance_rate = json_real(d, "balance_rate", 0),
                             .balance_loss = json_real(d, "balance_loss", 0),
                             .mtp_layers = json_int(d, "mtp_layers", 0),
                             .mtp_loss_scale = json_real(d, "mtp_loss_scale", 0)};
    read_rope_scaling(d, &ret);
    return ret;
}

/* Rows of an array of arrays, one after the other; returns how many numbers. */
static int64_t flatten(const struct json *rows, int32_t *out)
{
    int64_t n = 0;
    for (const struct json *row = rows->first; row; row = row->next)
        for (const struct json *v = row->first; v; v = v->next, n++)
            if (out)
                out[n] = (int32_t)v->integer;
    return n;
}

static void load_batch(struct fixture *f)
{
    const struct json *rows = json_get(f->file, "tokens");
    assert_non_null(rows);
    int64_t n = flatten(rows, NULL);
    for (const struct json *row = rows->first; row; row = row->next)
        f->b++;
    f->t = n / f->b;
    f->tokens = calloc((size_t)n, 4);
    f->targets = calloc((size_t)n, 4);
    flatten(rows, f->tokens);
    assert_int_equal(flatten(json_get(f->file, "targets"), f->targets), n);
    for (int64_t i = 0; i < n; i++)
        f->counted += f->targets[i] >= 0;
}

/* Gains other than 1 and biases other than 0, as the reference draws them. */
static void move_gains(struct fixture *f, float by)
{
    struct titan_error err = {0};
    for (int i = 0; i < f->model->n_tensors; i++) {
        const struct model_tensor *x = &f->model->tensors[i];
        char stream[128];
        if (x->init > INIT_ONES)
            continue;
        snprintf(stream, sizeof(stream), "golden.%s", x->name);
        float *draws = calloc((size_t)x->numel, sizeof(float));
        rng_normals(rng_key(f->seed, stream), 0, (uint64_t)x->numel, draws);
        for (int64_t j = 0; j < x->numel; j++)
            f->values[i][j] += by * draws[j];
        free(draws);
        must(whole_model_set(f->whole, i, f->values[i], &err), &err);
    }
}

/* Biases of the choice of experts, as the reference draws them. */
static void move_biases(struct fixture *f, float by)
{
    struct titan_error err = {0};
    const int64_t n = layout_biases(f->model);
    float *biases = calloc((size_t)n, sizeof(float));
    assert_true(n > 0);
    rng_normals(rng_key(f->seed, "golden.biases"), 0, (uint64_t)n, biases);
    for (int64_t i = 0; i < n; i++)
        biases[i] *= by;
    must(whole_model_set_biases(f->whole, biases, &err), &err);
    free(biases);
}

static void open_fixture(struct fixture *f, const char *name, enum dtype dt, int threads)
{
    struct titan_error err = {0};
    struct device_options options = {.threads = threads};
    memset(f, 0, sizeof(*f));
    f->file = load(name);
    f->seed = (uint64_t)json_int(f->file, "seed", 0);
    const char *device = getenv("TITAN_TEST_DEVICE");
    must(device_open(device ? device : "cpu", &options, &f->device, &err), &err);
    struct model_dims dims = dims_of(json_get(f->file, "dims"));
    must(model_open(&dims, &f->model, &err), &err);
    if (json_get(f->file, "tokens")) {
        load_batch(f);
    } else {
        f->b = json_int(f->file, "batch", 0);
        f->t = json_int(f->file, "seq_len", 0);
        f->tokens = calloc((size_t)(f->b * f->t), 4);
        f->targets = calloc((size_t)(f->b * f->t), 4);
        f->counted = f->b * f->t;
    }
    const struct whole_options whole = {f->model, &f->device, dt, f->b, f->t};
    must(whole_model_open(&whole, &f->whole, &err), &err);
    must(whole_model_init(f->whole, f->seed, &err), &err);
    f->values = calloc((size_t)f->model->n_tensors, sizeof(float *));
    f->grads = calloc((size_t)f->model->n_tensors, sizeof(float *));
    for (int i = 0; i < f->model->n_tensors; i++) {
        const struct model_tensor *x = &f->model->tensors[i];
        f->values[i] = calloc((size_t)x->numel, sizeof(float));
        f->grads[i] = calloc((size_t)x->numel, sizeof(float));
        model_init_tensor(f->model, f->seed, i, 0, x->numel, f->values[i]);
    }
    if (json_get(f->file, "gains"))
        move_gains(f, (float)member(f->file, "gains"));
    whole_model_set_expert_capacity(f->whole, json_real(json_get(f->file, "dims"), "expert_capacity", 0));
    if (json_get(f->file, "biases"))
        move_biases(f, (float)member(f->file, "biases"));
}

static void close_fixture(struct fixture *f)
{
    for (int i = 0; i < f->model->n_tensors; i++) {
        free(f->values[i]);
        free(f->grads[i]);
    }
    free(f->values);
    free(f->grads);
    free(f->tokens);
    free(f->targets);
    whole_model_close(f->whole);
    model_close(f->model);
    device_close(&f->device);
    json_free(f->file);
}

static double mean_loss(struct fixture *f, bool with_grads)
{
    double sum = 0.0;
    struct titan_error err = {0};
    const struct whole_batch batch = {f->tokens, f->targets, f->b, f->t};
    must(whole_model_loss(f->whole, &batch, &sum, with_grads ? f->grads : NULL, &err), &err);
    return sum / (double)f->counted;
}

/* The mean of the modules' losses of the last mean_loss() with gradients must be the reference's. */
static void check_mtp_loss(struct fixture *f, const struct json *reference, double limit)
{
    struct titan_error err = {0};
    const double want = json_real(reference, "mtp_loss", 0);
    double sum = 0;

    assert_int_equal(f->model->dims.mtp_layers > 0, want > 0);
    if (want == 0)
        return;
    must(whole_model_mtp_loss(f->whole, &sum, &err), &err);
    const double loss = sum / ((double)f->model->dims.mtp_layers * (double)f->counted);
    print_message("# modules: loss %.9f, PyTorch in fp64 %.9f\n", loss, want);
    assert_true(fabs(loss - want) <= limit * want);
}

/* --- digests ------------------------------------------------------------------------------------------------------ */

/* How far x is from a digest, in units of the tensor's l2 norm: the norm, the root mean square error of the projections
 * (an estimate of |x - want| / |want|) and, per sample, against the tensor's root mean square element. */
struct distance {
    double l2, projections, samples;
};

static struct distance distance_to(const struct json *digest, const float *x, int64_t n, double factor)
{
    double p[8] = {0}, square = 0.0, want_l2 = member(digest, "l2");
    for (int64_t i = 0; i < n; i++) {
        double v = (double)x[i] * factor;
        uint64_t signs = hash_mix((uint64_t)i);
        square += v * v;
        for (int k = 0; k < 8; k++)
            p[k] += (signs >> k) & 1 ? -v : v;
    }
    struct distance d = {.l2 = fabs(sqrt(square) - want_l2) / want_l2};
    int k = 0;
    for (const struct json *v = json_get(digest, "projections")->first; v; v = v->next, k++)
        d.projections += (p[k] - real_of(v)) * (p[k] - real_of(v));
    assert_int_equal(k, 8);
    d.projections = sqrt(d.projections / 8.0) / want_l2;
    uint64_t j = 0;
    double rms = want_l2 / sqrt((double)n);
    for (const struct json *v = json_get(digest, "samples")->first; v; v = v->next, j++) {
        double got = (double)x[(j * 2654435761u + 12345u) % (uint64_t)n] * factor;
        d.samples = fmax(d.samples, fabs(got - real_of(v)) / (rms + fabs(real_of(v))));
    }
    assert_true(j > 0);
    return d;
}

static void check_shape(const struct json *shape, const struct model_tensor *t)
{
    int64_t want[3];
    const int n = model_tensor_shape(t, want);
    int i = 0;
    for (const struct json *v = shape->first; v; v = v->next, i++)
        assert_true(i < n && v->integer == want[i]);
    assert_int_equal(i, n);
}

/* Every tensor's digest `what` ("weight", "grad"). Fails on the first one beyond the limit, naming it. */
static void check_tensors(const struct fixture *f, const char *what, float *const *x, double factor, double limit)
{
    int i = 0;
    struct distance worst = {0};
    for (const struct json *t = json_get(f->file, "tensors")->first; t; t = t->next, i++) {
        const struct model_tensor *m = &f->model->tensors[i];
        assert_true(i < f->model->n_tensors);
        assert_string_equal(json_string(t, "name", ""), m->name);
        check_shape(json_get(t, "shape"), m);
        struct distance d = distance_to(json_get(t, what), x[i], m->numel, factor);
        /* Projections of the difference are as large as the difference; one element may be some times its mean. */
        if (!(d.l2 <= limit && d.projections <= 3.0 * limit && d.samples <= 10.0 * limit))
            fail_msg("%s of %s: norm off by %.2g, difference %.2g, worst sample %.2g (limit %.2g)", what, m->name, d.l2,
                     d.projections, d.samples, limit);
        worst.l2 = fmax(worst.l2, d.l2);
        worst.projections = fmax(worst.projections, d.projections);
        worst.samples = fmax(worst.samples, d.samples);
    }
    assert_int_equal(i, f->model->n_tensors);
    print_message("# %s: %d tensors, worst norm %.2g, difference %.2g, sample %.2g\n", what, i, worst.l2,
                  worst.projections, worst.samples);
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

static void check_model(const char *name, enum dtype dt, double loss_limit, double limit)
{
    struct fixture f;
    struct titan_error err = {0};
    open_fixture(&f, name, dt, 2);
    double want = member(f.file, "loss"), loss = mean_loss(&f, true);
    print_message("# %s: loss %.9f, PyTorch in fp64 %.9f\n", name, loss, want);
    assert_true(fabs(loss - want) <= loss_limit * want);
    check_mtp_loss(&f, f.file, loss_limit);
    assert_true(fabs(mean_loss(&f, false) - loss) <= 1e-12 * want);
    check_tensors(&f, "grad", f.grads, 1.0 / (double)f.counted, limit);
    int64_t n = f.b * f.t * f.model->dims.vocab_size;
    float *logits = calloc((size_t)n, sizeof(*logits));
    must(whole_model_logits(f.whole, &(struct whole_batch){f.tokens, NULL, f.b, f.t}, logits, &err), &err);
    struct distance d = distance_to(json_get(f.file, "logits"), logits, n, 1.0);
    print_message("# logits: norm %.2g, difference %.2g, sample %.2g\n", d.l2, d.projections, d.samples);
    assert_true(d.l2 <= limit && d.projections <= 3.0 * limit && d.samples <= 10.0 * limit);
    free(logits);
    close_fixture(&f);
}

static void test_initial_values(void **state)
{
    static const char *const names[] = {"tiny",           "debugmodel",       "qwen3",         "moe",
                                        "deepseek",       "hf_llama",         "hf_qwen3_yarn", "hf_qwen3_moe",
                                        "hf_deepseek_v2", "hf_deepseek_v3",   "hf_granite",    "hf_smollm3",
                                        "hf_glm4_moe",    "hf_mistral",       "hf_olmo2",      "hf_gemma3",
                                        "hf_gemma2",      "hf_llama_dynamic", "hf_gpt_oss",    "hf_phi3_long",
                                        "hf_phi3_short",  "deepseek_gelu",    "mtp",           "deepseek_mtp"};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        struct fixture f;
        open_fixture(&f, names[i], DTYPE_F32, 1);
        check_tensors(&f, "weight", f.values, 1.0, 1e-7);
        close_fixture(&f);
    }
}

static void test_tiny_fp32(void **state)
{
    (void)state;
    check_model("tiny", DTYPE_F32, 1e-6, 1e-5);
}
static void test_debugmodel_fp32(void **state)
{
    (void)state;
    check_model("debugmodel", DTYPE_F32, 1e-6, 1e-5);
}
static void test_qwen3_fp32(void **state)
{
    (void)state;
    check_model("qwen3", DTYPE_F32, 1e-6, 1e-5);
}
/* Which experts a token goes to does not hang on the last bits: reference.py looks at the gaps. */
static void test_moe_fp32(void **state)
{
    (void)state;
    check_model("moe", DTYPE_F32, 1e-6, 1e-5);
}
/* Rows beyond three quarters of an even share are dropped: a zero in the sum, and its gradient. */
static void test_moe_drop_fp32(void **state)
{
    (void)state;
    check_model("moe_drop", DTYPE_F32, 1e-6, 1e-5);
}
static void test_deepseek_fp32(void **state)
{
    (void)state;
    check_model("deepseek", DTYPE_F32, 1e-6, 1e-5);
}
/* GELU in experts, and gains less 1 in latent attention: no family has them together. */
static void test_deepseek_gelu_fp32(void **state)
{
    (void)state;
    check_model("deepseek_gelu", DTYPE_F32, 1e-6, 1e-5);
}
/* Gradients of a balance loss beside the main one: of softmax scores, and of sigmoid ones. Sequences have other numbers
 * of counted tokens. */
static void test_moe_balance_fp32(void **state)
{
    (void)state;
    check_model("moe_balance", DTYPE_F32, 1e-6, 1e-5);
}
static void test_deepseek_balance_fp32(void **state)
{
    (void)state;
    check_model("deepseek_balance", DTYPE_F32, 1e-6, 1e-5);
}

/* Modules of multi-token prediction: three, of odd dimensions, and two with experts beside a balance loss. */
static void test_mtp_fp32(void **state)
{
    (void)state;
    check_model("mtp", DTYPE_F32, 1e-6, 1e-5);
}
static void test_deepseek_mtp_fp32(void **state)
{
    (void)state;
    check_model("deepseek_mtp", DTYPE_F32, 1e-6, 1e-5);
}
static void test_mtp_bf16(void **state)
{
    (void)state;
    check_model("mtp", DTYPE_BF16, 2e-3, 0.02);
}

/* Against transformers' classes; those compute angles in fp32. */
static void test_transformers_llama(void **state)
{
    (void)state;
    check_model("hf_llama", DTYPE_F32, 1e-6, 1e-5);
}
static void test_transformers_llama_dynamic(void **state)
{
    (void)state;
    check_model("hf_llama_dynamic", DTYPE_F32, 1e-6, 1e-5);
}
/* Sequences longer than the original length, and shorter ones. */
static void test_transformers_phi3_long(void **state)
{
    (void)state;
    check_model("hf_phi3_long", DTYPE_F32, 1e-6, 1e-5);
}
static void test_transformers_phi3_short(void **state)
{
    (void)state;
    check_model("hf_phi3_short", DTYPE_F32, 1e-6, 1e-5);
}
static void test_transformers_qwen3_yarn(void **state)
{
    (void)state;
    check_model("hf_qwen3_yarn", DTYPE_F32, 1e-6, 1e-5);
}
static void test_transformers_qwen3_moe(void **state)
{
    (void)state;
    check_model("hf_qwen3_moe", DTYPE_F32, 1e-6, 1e-5);
}
static void test_transformers_deepseek_v2(void **state)
{
    (void)state;
    check_model("hf_deepseek_v2", DTYPE_F32, 1e-6, 1e-5);
}
static void test_transformers_deepseek_v3(void **state)
{
    (void)state;
    check_model("hf_deepseek_v3", DTYPE_F32, 1e-6, 1e-5);
}
static void test_transformers_granite(void **state)
{
    (void)state;
    check_model("hf_granite", DTYPE_F32, 1e-6, 1e-5);
}
static void test_transformers_smollm3(void **state)
{
    (void)state;
    check_model("hf_smollm3", DTYPE_F32, 1e-6, 1e-5);
}
static void test_transformers_olmo2(void **state)
{
    (void)state;
    check_model("hf_olmo2", DTYPE_F32, 1e-6, 1e-5);
}
static void test_transformers_mistral(void **state)
{
    (void)state;
    check_model("hf_mistral", DTYPE_F32, 1e-6, 1e-5);
}
static void test_transformers_gemma3(void **state)
{
    (void)state;
    check_model("hf_gemma3", DTYPE_F32, 1e-6, 1e-5);
}
static void test_transformers_gemma2(void **state)
{
    (void)state;
    check_model("hf_gemma2", DTYPE_F32, 1e-6, 1e-5);
}
static void test_transformers_gpt_oss(void **state)
{
    (void)state;
    check_model("hf_gpt_oss", DTYPE_F32, 1e-6, 1e-5);
}
static void test_transformers_glm4_moe(void **state)
{
    (void)state;
    check_model("hf_glm4_moe", DTYPE_F32, 1e-6, 1e-5);
}

/* bf16 has 8 bits: each of some hundred roundings on the way moves a value by up to 0.4 %. */
static void test_tiny_bf16(void **state)
{
    (void)state;
    check_model("tiny", DTYPE_BF16, 2e-3, 0.02);
}
static void test_debugmodel_bf16(void **state)
{
    (void)state;
    check_model("debugmodel", DTYPE_BF16, 2e-3, 0.02);
}
static void test_qwen3_bf16(void **state)
{
    (void)state;
    check_model("qwen3", DTYPE_BF16, 2e-3, 0.02);
}

/* Along its own gradient g the loss changes by |g| per unit: the central difference over a step that moves the loss
 * well above fp32 noise must agree for each tensor alone. */
static void check_differences(const char *name)
{
    struct fixture f;
    struct titan_error err = {0};
    double worst = 0.0;
    open_fixture(&f, name, DTYPE_F32, 2);
    (void)mean_loss(&f, true);
    for (int i = 0; i < f.model->n_tensors; i++) {
        const struct model_tensor *x = &f.model->tensors[i];
        double square = 0.0, loss[2];
        for (int64_t j = 0; j < x->numel; j++)
            square += (double)f.grads[i][j] * f.grads[i][j];
        double norm = sqrt(square), step = 3e-3 * (double)f.counted / norm; /* moves the mean loss by some 3e-3 */
        step = fmin(step, x->ndim == 1 ? 0.3 : 0.1);
        float *moved = calloc((size_t)x->numel, sizeof(*moved));
        for (int side = 0; side < 2; side++) {
            for (int64_t j = 0; j < x->numel; j++)
                moved[j] = (float)((double)f.values[i][j] + (side ? -step : step) * f.grads[i][j] / norm);
            must(whole_model_set(f.whole, i, moved, &err), &err);
            loss[side] = mean_loss(&f, false) * (double)f.counted;
        }
        free(moved);
        must(whole_model_set(f.whole, i, f.values[i], &err), &err);
        double slope = (loss[0] - loss[1]) / (2.0 * step), off = fabs(slope / norm - 1.0);
        if (!(off <= 0.01))
            fail_msg("%s: gradient norm %.6g, slope by differences %.6g", x->name, norm, slope);
        worst = fmax(worst, off);
    }
    print_message("# %s: %d tensors, slope off by at most %.2g\n", name, f.model->n_tensors, worst);
    close_fixture(&f);
}

static void test_differences_tiny(void **state)
{
    (void)state;
    check_differences("tiny");
}
static void test_differences_debugmodel(void **state)
{
    (void)state;
    check_differences("debugmodel");
}

/* --- training ----------------------------------------------------------------------------------------------------- */

/* The reference's sequence with a rule to learn. */
static void train_batch(struct fixture *f, int step)
{
    int64_t v = f->model->dims.vocab_size;
    for (int64_t r = 0; r < f->b; r++) {
        int64_t x = (37 * step + 101 * r) % v;
        for (int64_t i = 0; i < f->t; i++) {
            f->tokens[r * f->t + i] = (int32_t)x;
            x = (5 * x + 17 + i % 3) % v;
            f->targets[r * f->t + i] = (int32_t)x;
        }
    }
}

struct adam_state {
    struct stream *s;
    float *w, *g, **m, **v; /* device; w and g are of one tensor at a time */
};

static void *zeros(struct fixture *f, int64_t n)
{
    void *p = NULL;
    struct titan_error err = {0};
    must(f->device.ops->alloc(f->device.dev, (size_t)n * sizeof(float), &p, &err), &err);
    return p;
}

static void optimizer_open(struct fixture *f, struct adam_state *o)
{
    struct titan_error err = {0};
    int64_t largest = 0;
    must(f->device.ops->stream_open(f->device.dev, "optimizer", true, &o->s, &err), &err);
    o->m = calloc((size_t)f->model->n_tensors, sizeof(float *));
    o->v = calloc((size_t)f->model->n_tensors, sizeof(float *));
    for (int i = 0; i < f->model->n_tensors; i++) {
        int64_t n = f->model->tensors[i].numel;
        o->m[i] = zeros(f, n);
        o->v[i] = zeros(f, n);
        largest = MAX(largest, n);
    }
    o->w = zeros(f, largest);
    o->g = zeros(f, largest);
}

static void optimizer_close(struct fixture *f, struct adam_state *o)
{
    const struct device_ops *ops = f->device.ops;
    for (int i = 0; i < f->model->n_tensors; i++) {
        ops->release(f->device.dev, o->m[i]);
        ops->release(f->device.dev, o->v[i]);
    }
    ops->release(f->device.dev, o->w);
    ops->release(f->device.dev, o->g);
    ops->stream_close(o->s);
    free(o->m);
    free(o->v);
}

/* New values of every tensor, through the device's operation. */
static void optimizer_step(struct fixture *f, struct adam_state *o, const struct update_args *a)
{
    const struct device_ops *ops = f->device.ops;
    struct titan_error err = {0};
    for (int i = 0; i < f->model->n_tensors; i++) {
        size_t n = (size_t)f->model->tensors[i].numel;
        must(ops->copy(o->s, o->w, f->values[i], n * 4), &err);
        must(ops->copy(o->s, o->g, f->grads[i], n * 4), &err);
        must(ops->update(o->s, &(struct update_piece){o->w, {o->m[i], o->v[i]}, o->g, NULL, n, a->rounding, 0}, 1, a),
             &err);
        must(ops->copy(o->s, f->values[i], o->w, n * 4), &err);
        must(ops->stream_sync(o->s, &err), &err);
        must(whole_model_set(f->whole, i, f->values[i], &err), &err);
    }
}

static double grad_norm(const struct fixture *f)
{
    double square = 0.0;
    for (int i = 0; i < f->model->n_tensors; i++)
        for (int64_t j = 0; j < f->model->tensors[i].numel; j++)
            square += (double)f->grads[i][j] * f->grads[i][j];
    return sqrt(square) / (double)f->counted;
}

static void check_training(const char *name, enum dtype dt, double limit, double weight_limit)
{
    struct fixture f;
    struct adam_state o;
    open_fixture(&f, name, dt, 1);
    optimizer_open(&f, &o);
    struct update_args a = {.beta1 = (float)member(f.file, "beta1"),
                            .beta2 = (float)member(f.file, "beta2"),
                            .eps = (float)member(f.file, "eps"),
                            .weight_decay = (float)member(f.file, "weight_decay"),
                            .l2 = strcmp(json_string(f.file, "optimizer", "AdamW"), "Adam") == 0};
    double max_norm = member(f.file, "max_norm"), worst = 0.0, worst_norm = 0.0;
    int step = 0;
    for (const struct json *row = json_get(f.file, "steps")->first; row; row = row->next, step++) {
        train_batch(&f, step);
        double loss = mean_loss(&f, true), want = member(row, "loss"), norm = grad_norm(&f);
        worst = fmax(worst, fabs(loss - want) / want);
        worst_norm = fmax(worst_norm, fabs(norm - member(row, "grad_norm")) / member(row, "grad_norm"));
        if (!(fabs(loss - want) <= limit * want))
            fail_msg("step %d: loss %.9f, PyTorch %.9f", step, loss, want);
        check_mtp_loss(&f, row, limit);
        a.lr = (float)member(row, "lr");
        a.grad_scale = (float)(fmin(1.0, max_norm / (norm + 1e-6)) / (double)f.counted);
        a.bias1 = (float)(1.0 - pow(member(f.file, "beta1"), step + 1));
        a.bias2 = (float)(1.0 - pow(member(f.file, "beta2"), step + 1));
        optimizer_step(&f, &o, &a);
    }
    assert_true(step >= 20);
    print_message("# %d steps: loss off by at most %.2g, gradient norm by %.2g\n", step, worst, worst_norm);
    check_tensors(&f, "weight", f.values, 1.0, weight_limit);
    optimizer_close(&f, &o);
    close_fixture(&f);
}

static void test_training_fp32(void **state)
{
    (void)state;
    check_training("tiny_train", DTYPE_F32, 1e-6, 1e-4);
}
static void test_adam_fp32(void **state)
{
    (void)state;
    check_training("tiny_adam", DTYPE_F32, 1e-6, 1e-4);
}
static void test_training_balance_fp32(void **state)
{
    (void)state;
    check_training("moe_balance_train", DTYPE_F32, 1e-6, 1e-4);
}
static void test_training_mtp_fp32(void **state)
{
    (void)state;
    check_training("mtp_train", DTYPE_F32, 1e-6, 1e-4);
}
static void test_training_bf16(void **state)
{
    (void)state;
    check_training("tiny_train", DTYPE_BF16, 3e-3, 0.03);
}

int main(void)
{
    setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 1);
    const struct CMUnitTest tests[] = {
        quick(test_initial_values),
        quick(test_tiny_fp32),
        quick(test_debugmodel_fp32),
        quick(test_tiny_bf16),
        quick(test_debugmodel_bf16),
        quick(test_differences_tiny),
        slow(test_differences_debugmodel),
        quick(test_moe_fp32),
        quick(test_moe_drop_fp32),
        quick(test_deepseek_fp32),
        quick(test_deepseek_gelu_fp32),
        quick(test_moe_balance_fp32),
        quick(test_deepseek_balance_fp32),
        quick(test_mtp_fp32),
        quick(test_deepseek_mtp_fp32),
        quick(test_mtp_bf16),
        quick(test_qwen3_fp32),
        quick(test_qwen3_bf16),
        quick(test_transformers_llama),
        quick(test_transformers_llama_dynamic),
        quick(test_transformers_phi3_long),
        quick(test_transformers_phi3_short),
        quick(test_transformers_qwen3_yarn),
        quick(test_transformers_qwen3_moe),
        quick(test_transformers_deepseek_v2),
        quick(test_transformers_deepseek_v3),
        quick(test_transformers_granite),
        quick(test_transformers_smollm3),
        quick(test_transformers_glm4_moe),
        quick(test_transformers_mistral),
        quick(test_transformers_olmo2),
        quick(test_transformers_gemma3),
        quick(test_transformers_gemma2),
        quick(test_transformers_gpt_oss),
        quick(test_training_fp32),
        quick(test_adam_fp32),
        quick(test_training_balance_fp32),
        quick(test_training_mtp_fp32),
        quick(test_training_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
