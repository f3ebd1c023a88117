/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "tests/support/root_dir.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/hf_export.h"
#include "worker/checkpoint/hf_weights.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/trained.h"
#include "worker/infer/generate.h"
#include "worker/tensor/layout.h"

/* Our row in transformers' order: two heads of four rows; behind rows that stay; rows of experts; before rows that
 * stay, in a matrix with others above. */
static void test_rows_move(void **state)
{
    (void)state;
    static const int64_t halves[8] = {0, 2, 1, 3, 4, 6, 5, 7}, still[8] = {0, 1, 2, 3, 4, 6, 5, 7};
    const struct hf_tensor whole = {.step = 1, .parts = 1, .rows = 8, .cols = 1, .head = 4, .moved = 4},
                           latent = {.step = 1, .parts = 1, .rows = 8, .cols = 1, .head = 8, .still = 4, .moved = 4},
                           part = {.step = 1, .parts = 1, .rows = 8, .cols = 1, .head = 8, .moved = 4, .from = 8},
                           plain = {.step = 1, .parts = 3, .rows = 8, .cols = 1};
    for (int64_t i = 0; i < 8; i++) {
        assert_int_equal(hf_row(&whole, i), halves[i]);
        assert_int_equal(hf_row(&latent, i), still[i]);
        assert_int_equal(hf_row(&plain, i), i);
        assert_int_equal(hf_row(&part, i), 8 + (i < 4 ? halves[i] : i));
    }
}

/* w (heads*d, cols), as transformers has it. */
static void to_halves(float *out, const float *in, int64_t heads, int64_t d, int64_t cols)
{
    const struct hf_tensor t = {.step = 1, .parts = 1, .rows = heads * d, .cols = cols, .head = d, .moved = d};
    for (int64_t r = 0; r < t.rows; r++)
        memcpy(out + hf_row(&t, r) * cols, in + r * cols, (size_t)cols * sizeof(*out));
}

/* What the two layouts are for: a rotary score q.k computed either way is the same. */
static void test_scores_are_kept(void **state)
{
    (void)state;
    enum { D = 16 };
    float w[2][D], h[2][D];
    double ours = 0, theirs = 0, x[2][D], y[2][D];
    for (int i = 0; i < D; i++) {
        w[0][i] = (float)sin(i * 1.7);
        w[1][i] = (float)cos(i * 0.9);
    }
    for (int side = 0; side < 2; side++) {
        to_halves(h[side], w[side], 1, D, 1);
        for (int i = 0; i < D / 2; i++) {
            double angle = (side ? 3 : 11) * pow(10000.0, -2.0 * i / D), c = cos(angle), s = sin(angle);
            x[side][2 * i] = w[side][2 * i] * c - w[side][2 * i + 1] * s;
            x[side][2 * i + 1] = w[side][2 * i] * s + w[side][2 * i + 1] * c;
            y[side][i] = h[side][i] * c - h[side][i + D / 2] * s; /* rotate_half */
            y[side][i + D / 2] = h[side][i + D / 2] * c + h[side][i] * s;
        }
    }
    for (int i = 0; i < D; i++) {
        ours += x[0][i] * x[1][i];
        theirs += y[0][i] * y[1][i];
    }
    assert_true(fabs(ours - theirs) < 1e-12);
}

/* --- a whole checkpoint ------------------------------------------------------------------------------------------- */

static float gain_step = 1;

/* Initial values; of gains, which are all ones then, others. */
static void values_of(const struct model *m, int tensor, float *out)
{
    model_init_tensor(m, 5, tensor, 0, m->tensors[tensor].numel, out);
    for (int64_t i = 0; m->tensors[tensor].ndim == 1 && i < m->tensors[tensor].numel; i++)
        out[i] = gain_step * (float)i;
}

/* A checkpoint of the tiny model, or of the tiny Qwen 3. */
static void write_tiny(bool qwen, struct model **ret)
{
    struct recipe r;
    struct titan_error err = {0};
    char path[PATH_MAX];
    _cleanup_(buf_free) struct buf text = BUF_INIT, entry = BUF_INIT;
    recipe_init(&r);
    assert_int_equal(recipe_load(&r, TITAN_SOURCE_DIR "/recipes/tiny.toml", &err), TITAN_OK);
    assert_int_equal(recipe_set(&r, qwen ? "model.name=qwen3" : "model.rope_scaling=true", &err), TITAN_OK);
    assert_int_equal(recipe_resolve(&r, &err), TITAN_OK);
    recipe_print(&r, &text);
    struct model *m;
    assert_int_equal(model_open(&r.model.dims, &m, &err), TITAN_OK);
    struct tensor_spec *specs = NULL;
    int n;
    assert_int_equal(layout_weight_specs(m, &specs, &n, &err), TITAN_OK); /* parameters come first */
    struct shard_slice *slices = calloc((size_t)m->n_tensors, sizeof(*slices));
    for (int i = 0; i < m->n_tensors; i++) {
        slices[i] = (struct shard_slice){.tensor = i, .data = malloc((size_t)specs[i].numel * sizeof(float))};
        shard_slice_matrix(&specs[i], &slices[i].rows, &slices[i].cols);
        values_of(m, i, slices[i].data);
    }
    struct checkpoint_info info = {.step = 3, .epoch = 1, .world = 1, .recipe = text.data};
    assert_int_equal(checkpoint_write_shard(-1, root, &info,
                                            &(struct checkpoint_part){specs, m->n_tensors, slices, m->n_tensors, 0},
                                            &entry, &err),
                     TITAN_OK);
    assert_int_equal(
        checkpoint_commit(-1, root, &info, &(struct checkpoint_parts){specs, m->n_tensors, &entry, 1}, path, &err),
        TITAN_OK);
    for (int i = 0; i < m->n_tensors; i++)
        free(slices[i].data);
    free(slices);
    free(specs);
    *ret = m;
}

static void check_tensor(const struct safetensors *st, const struct model *m, const char *ours, const char *theirs,
                         int64_t heads)
{
    const struct safetensors_tensor *s = safetensors_find(st, theirs);
    int tensor = 0;
    while (tensor < m->n_tensors && strcmp(m->tensors[tensor].name, ours) != 0)
        tensor++;
    assert_true(tensor < m->n_tensors);
    assert_non_null(s);
    const struct model_tensor *t = &m->tensors[tensor];
    assert_string_equal(s->dtype, "BF16");
    size_t n = (size_t)t->numel;
    _cleanup_free_ float *x = malloc(n * sizeof(*x)), *y = malloc(n * sizeof(*y));
    _cleanup_free_ uint16_t *got = malloc(n * sizeof(*got));
    values_of(m, tensor, x);
    if (heads)
        to_halves(y, x, heads, m->head_dim, t->ndim == 2 ? t->shape[1] : 1);
    else
        memcpy(y, x, n * sizeof(*y));
    assert_int_equal(safetensors_read(st, s, 0, got, n * sizeof(*got), NULL), TITAN_OK);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(got[i], bf16_from_f32(y[i]));
}

static void test_checkpoint(void **state)
{
    (void)state;
    struct model *m = NULL;
    struct titan_error err = {0};
    char out[128], file[192];
    struct safetensors *st = NULL;
    struct json *config = NULL;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    write_tiny(false, &m);
    (void)snprintf(out, sizeof(out), "%s/hf/model", root);
    if (hf_export(root, -1, out, "BF16", NULL, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    (void)snprintf(file, sizeof(file), "%s/model.safetensors", out);
    assert_int_equal(safetensors_open(file, &st, &err), TITAN_OK);
    assert_int_equal(st->ntensors, m->n_tensors);
    check_tensor(st, m, "tok_embeddings.weight", "model.embed_tokens.weight", 0);
    check_tensor(st, m, "layers.1.attention.wq.weight", "model.layers.1.self_attn.q_proj.weight", m->dims.n_heads);
    check_tensor(st, m, "layers.0.attention.wk.weight", "model.layers.0.self_attn.k_proj.weight", m->dims.n_kv_heads);
    check_tensor(st, m, "layers.0.attention.wv.weight", "model.layers.0.self_attn.v_proj.weight", 0);
    check_tensor(st, m, "layers.0.feed_forward.w2.weight", "model.layers.0.mlp.down_proj.weight", 0);
    check_tensor(st, m, "output.weight", "lm_head.weight", 0);
    safetensors_close(st);
    (void)snprintf(file, sizeof(file), "%s/config.json", out);
    assert_int_equal(file_read(file, 1 << 20, &text, &err), TITAN_OK);
    assert_int_equal(json_parse(text.data, text.len, &config, &err), TITAN_OK);
    assert_int_equal(json_int(config, "hidden_size", 0), m->dims.dim);
    assert_int_equal(json_int(config, "head_dim", 0), m->head_dim);
    assert_string_equal(json_string(json_get(config, "rope_scaling"), "rope_type", ""), "llama3");
    json_free(config);
    model_close(m);
    assert_int_equal(hf_export("/nonexistent", -1, out, "BF16", NULL, &err), TITAN_ENOTFOUND);
}

/* Heads' norms under their names, in the order of the rows they belong to; tied: no head, and the config says so. */
static void test_qwen(void **state)
{
    (void)state;
    struct model *m = NULL;
    struct titan_error err = {0};
    char out[128], file[192];
    struct safetensors *st = NULL;
    struct json *config = NULL;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    write_tiny(true, &m);
    (void)snprintf(out, sizeof(out), "%s/hf/qwen", root);
    if (hf_export(root, -1, out, "BF16", NULL, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    (void)snprintf(file, sizeof(file), "%s/model.safetensors", out);
    assert_int_equal(safetensors_open(file, &st, &err), TITAN_OK);
    assert_int_equal(st->ntensors, m->n_tensors);
    check_tensor(st, m, "layers.1.attention.q_norm.weight", "model.layers.1.self_attn.q_norm.weight", 1);
    check_tensor(st, m, "layers.0.attention.k_norm.weight", "model.layers.0.self_attn.k_norm.weight", 1);
    check_tensor(st, m, "layers.0.attention.wq.weight", "model.layers.0.self_attn.q_proj.weight", m->dims.n_heads);
    check_tensor(st, m, "norm.weight", "model.norm.weight", 0);
    assert_null(safetensors_find(st, "lm_head.weight"));
    safetensors_close(st);
    (void)snprintf(file, sizeof(file), "%s/config.json", out);
    assert_int_equal(file_read(file, 1 << 20, &text, &err), TITAN_OK);
    assert_int_equal(json_parse(text.data, text.len, &config, &err), TITAN_OK);
    assert_string_equal(json_string(config, "model_type", ""), "qwen3");
    assert_string_equal(json_get(config, "architectures")->first->string, "Qwen3ForCausalLM");
    assert_true(json_get(config, "tie_word_embeddings")->boolean);
    assert_int_equal(json_int(config, "head_dim", 0), 32);
    json_free(config);
    model_close(m);
}

/* A value that f16 has not is refused, by its tensor; the wider types have it. */
static void test_beyond_f16(void **state)
{
    (void)state;
    struct model *m = NULL;
    struct titan_error err = {0};
    char out[128];
    gain_step = 65504.0F;
    write_tiny(false, &m);
    gain_step = 1;
    (void)snprintf(out, sizeof(out), "%s/hf/half", root);
    assert_int_equal(hf_export(root, -1, out, "F16", NULL, &err), TITAN_EINVAL);
    char want[200];
    (void)snprintf(want, sizeof(want),
                   "tensor 'model.layers.0.input_layernorm.weight' has magnitudes up to %g, f16 none above 65504",
                   65504.0 * (double)(m->dims.dim - 1));
    assert_non_null(strstr(err.msg, want));
    if (hf_export(root, -1, out, "BF16", NULL, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    model_close(m);
}

/* --- drawing ------------------------------------------------------------------------------------------------------ */

static void test_draw(void **state)
{
    (void)state;
    int32_t work[4];
    const float logits[4] = {(float)log(0.1), (float)log(0.4), (float)log(0.2), (float)log(0.3)};
    assert_int_equal(generate_draw(logits, 4, 0, 0, 0.99, work), 1);
    /* In order of likelihood: 1 up to 0.4, 3 up to 0.7, 2 up to 0.9, 0. */
    assert_int_equal(generate_draw(logits, 4, 1, 0, 0.39, work), 1);
    assert_int_equal(generate_draw(logits, 4, 1, 0, 0.41, work), 3);
    assert_int_equal(generate_draw(logits, 4, 1, 0, 0.71, work), 2);
    assert_int_equal(generate_draw(logits, 4, 1, 0, 0.91, work), 0);
    /* The likeliest two alone: 4/7 and 3/7. */
    assert_int_equal(generate_draw(logits, 4, 1, 2, 0.56, work), 1);
    assert_int_equal(generate_draw(logits, 4, 1, 2, 0.58, work), 3);
    assert_int_equal(generate_draw(logits, 4, 1, 2, 0.9999999, work), 3);
    assert_int_equal(generate_draw(logits, 4, 1, 1, 0.9999999, work), 1);
    /* Half the temperature squares the odds: 16/30, 9/30, 4/30, 1/30. */
    assert_int_equal(generate_draw(logits, 4, 0.5, 0, 0.53, work), 1);
    assert_int_equal(generate_draw(logits, 4, 0.5, 0, 0.54, work), 3);
    const float equal[4] = {1, 1, 1, 1};
    assert_int_equal(generate_draw(equal, 4, 0, 0, 0, work), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_move),
        cmocka_unit_test(test_scores_are_kept),
        cmocka_unit_test_setup_teardown(test_checkpoint, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_qwen, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_beyond_f16, make_root, remove_root),
        cmocka_unit_test(test_draw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
