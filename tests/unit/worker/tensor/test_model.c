/* SPDX-License-Identifier: Apache-2.0 */
/* model.h: the parameter list against published sizes, and what it says of each tensor. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "worker/tensor/model.h"

/* Llama 3: TorchTitan's table of flavors. Others: sum over the shapes in the models' published configurations (DeepSeek
 * V3 without its experts' biases, which are no parameters here). */
static const struct {
    struct model_dims dims;
    int64_t parameters;
} published[] = {
    {{.dim = 256, .n_layers = 6, .n_heads = 16, .n_kv_heads = 16, .ffn_hidden = 768, .vocab_size = 2048}, 6163712},
    {{.dim = 2048,
      .n_layers = 16,
      .n_heads = 32,
      .n_kv_heads = 8,
      .ffn_hidden = 8192,
      .vocab_size = 128256,
      .tied_embeddings = true},
     1235814400},
    {{.dim = 3072,
      .n_layers = 28,
      .n_heads = 24,
      .n_kv_heads = 8,
      .ffn_hidden = 8192,
      .vocab_size = 128256,
      .tied_embeddings = true},
     3212749824},
    {{.dim = 4096, .n_layers = 32, .n_heads = 32, .n_kv_heads = 8, .ffn_hidden = 14336, .vocab_size = 128256},
     8030261248},
    {{.dim = 8192, .n_layers = 80, .n_heads = 64, .n_kv_heads = 8, .ffn_hidden = 28672, .vocab_size = 128256},
     70553706496},
    {{.dim = 16384, .n_layers = 126, .n_heads = 128, .n_kv_heads = 8, .ffn_hidden = 53248, .vocab_size = 128256},
     405853388800},
    {{.dim = 1024,
      .n_layers = 28,
      .n_heads = 16,
      .n_kv_heads = 8,
      .head_dim = 128,
      .ffn_hidden = 3072,
      .vocab_size = 151936,
      .tied_embeddings = true,
      .qk_norm = true},
     596049920},
    {{.dim = 4096,
      .n_layers = 36,
      .n_heads = 32,
      .n_kv_heads = 8,
      .head_dim = 128,
      .ffn_hidden = 12288,
      .vocab_size = 151936,
      .qk_norm = true},
     8190735360},
    {{.dim = 2048, /* Qwen3 30B-A3B: experts in all layers, none shared */
      .n_layers = 48,
      .n_heads = 32,
      .n_kv_heads = 4,
      .head_dim = 128,
      .vocab_size = 151936,
      .qk_norm = true,
      .n_experts = 128,
      .top_k = 8,
      .moe_hidden = 768},
     30532122624},
    {{.dim = 2048, /* DeepSeek V2 Lite */
      .n_layers = 27,
      .n_heads = 16,
      .n_kv_heads = 16,
      .head_dim = 192,
      .ffn_hidden = 10944,
      .vocab_size = 102400,
      .kv_lora_rank = 512,
      .qk_nope_head_dim = 128,
      .qk_rope_head_dim = 64,
      .v_head_dim = 128,
      .n_experts = 64,
      .top_k = 6,
      .n_shared_experts = 2,
      .moe_hidden = 1408,
      .n_dense_layers = 1},
     15706484224},
    {{.dim = 7168, /* DeepSeek V3 */
      .n_layers = 61,
      .n_heads = 128,
      .n_kv_heads = 128,
      .head_dim = 192,
      .ffn_hidden = 18432,
      .vocab_size = 129280,
      .q_lora_rank = 1536,
      .kv_lora_rank = 512,
      .qk_nope_head_dim = 128,
      .qk_rope_head_dim = 64,
      .v_head_dim = 128,
      .n_experts = 256,
      .top_k = 8,
      .n_shared_experts = 1,
      .moe_hidden = 2048,
      .n_dense_layers = 3},
     671026404352},
};
enum { QWEN3_8B = 7, DEEPSEEK_V2_LITE = 9, DEEPSEEK_V3 = 10 };

static struct model *open_model(const struct model_dims *dims)
{
    struct model *m = NULL;
    assert_int_equal(model_open(dims, &m, NULL), TITAN_OK);
    return m;
}

static void test_sizes(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(published); i++) {
        struct model *m = open_model(&published[i].dims);
        int64_t n = 0;
        for (int j = 0; j < m->n_tensors; j++)
            n += m->tensors[j].numel;
        assert_int_equal(n, published[i].parameters);
        model_close(m);
    }
}

static void test_units(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(published); i++) {
        struct model *m = open_model(&published[i].dims);
        int next = 0;
        assert_int_equal(m->units[0].kind, UNIT_EMBEDDING);
        assert_int_equal(m->units[m->n_units - 1].kind, UNIT_HEAD);
        for (int u = 0; u < m->n_units; u++) { /* in flat order, none left out */
            assert_int_equal(m->units[u].first_tensor, next);
            next += m->units[u].n_tensors;
            for (int t = m->units[u].first_tensor; t < next; t++)
                assert_int_equal(m->tensors[t].unit, u);
        }
        assert_int_equal(next, m->n_tensors);
        for (int l = 0; l < m->dims.n_layers; l++) {
            assert_int_equal(m->units[model_layer_unit(m, l)].layer, l);
            assert_int_equal(m->units[model_layer_unit(m, l)].kind, UNIT_LAYER);
            const int experts = model_experts_unit(m, l);
            const bool mixed = m->dims.n_experts > 0 && l >= m->dims.n_dense_layers;
            assert_int_equal(experts, mixed ? model_layer_unit(m, l) + 1 : -1);
            assert_true(!mixed || (m->units[experts].kind == UNIT_EXPERTS && m->units[experts].layer == l));
        }
        model_close(m);
    }
}

static void check_tensor(const struct model *m, int unit, enum tensor_role role, const char *name, enum split split,
                         bool glued)
{
    const int i = model_find(m, unit, role);
    assert_true(i >= 0);
    assert_string_equal(m->tensors[i].name, name);
    assert_int_equal(m->tensors[i].role, role);
    assert_int_equal(m->tensors[i].split, split);
    assert_int_equal(m->tensors[i].glued, glued);
}

static void test_tensors(void **state)
{
    (void)state;
    struct model *m = open_model(&published[QWEN3_8B].dims);
    const int unit = model_layer_unit(m, 2), head = m->n_units - 1;
    check_tensor(m, 0, ROLE_EMBEDDING, "tok_embeddings.weight", SPLIT_ROWS, false);
    check_tensor(m, unit, ROLE_ATTENTION_NORM, "layers.2.attention_norm.weight", SPLIT_NONE, false);
    check_tensor(m, unit, ROLE_WQ, "layers.2.attention.wq.weight", SPLIT_ROWS, false);
    check_tensor(m, unit, ROLE_WK, "layers.2.attention.wk.weight", SPLIT_ROWS, true);
    check_tensor(m, unit, ROLE_WV, "layers.2.attention.wv.weight", SPLIT_ROWS, true);
    check_tensor(m, unit, ROLE_WO, "layers.2.attention.wo.weight", SPLIT_COLS, false);
    check_tensor(m, unit, ROLE_Q_NORM, "layers.2.attention.q_norm.weight", SPLIT_NONE, false);
    check_tensor(m, unit, ROLE_K_NORM, "layers.2.attention.k_norm.weight", SPLIT_NONE, false);
    check_tensor(m, unit, ROLE_FFN_NORM, "layers.2.ffn_norm.weight", SPLIT_NONE, false);
    check_tensor(m, unit, ROLE_W1, "layers.2.feed_forward.w1.weight", SPLIT_ROWS, false);
    check_tensor(m, unit, ROLE_W3, "layers.2.feed_forward.w3.weight", SPLIT_ROWS, true);
    check_tensor(m, unit, ROLE_W2, "layers.2.feed_forward.w2.weight", SPLIT_COLS, false);
    check_tensor(m, head, ROLE_NORM, "norm.weight", SPLIT_NONE, false);
    check_tensor(m, head, ROLE_OUTPUT, "output.weight", SPLIT_ROWS, false);
    assert_int_equal(model_find(m, head, ROLE_WQ), -1);
    assert_int_equal(model_find(m, unit, ROLE_OUTPUT), -1);
    assert_int_equal(m->tensors[model_find(m, unit, ROLE_Q_NORM)].numel, m->head_dim);
    model_close(m);
}

static void check_shape(const struct model *m, int unit, enum tensor_role role, int n, int64_t a, int64_t b, int64_t c)
{
    int64_t shape[3] = {0};
    assert_int_equal(model_tensor_shape(&m->tensors[model_find(m, unit, role)], shape), n);
    assert_int_equal(shape[0], a);
    assert_int_equal(shape[1], b);
    assert_int_equal(shape[2], c);
}

/* Modules of multi-token prediction are layers with four tensors more, behind the model's last norm. */
static void test_modules(void **state)
{
    (void)state;
    struct model_dims dims = published[DEEPSEEK_V3].dims;
    struct model *m = open_model(&dims), *with;
    int64_t own = 0;
    dims.mtp_layers = 2;
    with = open_model(&dims);
    const int layer = (int)dims.n_layers, unit = model_layer_unit(with, layer), last = with->n_units - 1;
    assert_int_equal(with->n_units, m->n_units + 5);
    for (int i = 0; i < unit - 1; i++)
        assert_string_equal(with->units[i].name, m->units[i].name);
    assert_string_equal(with->units[unit - 1].name, "norm");
    assert_int_equal(with->units[unit - 1].kind, UNIT_NORM);
    assert_int_equal(with->units[last].kind, UNIT_HEAD);
    assert_int_equal(with->units[last].n_tensors, 1);
    check_tensor(with, unit - 1, ROLE_NORM, "norm.weight", SPLIT_NONE, false);
    check_tensor(with, unit, ROLE_EMBEDDING_NORM, "layers.61.enorm.weight", SPLIT_NONE, false);
    check_tensor(with, unit, ROLE_HIDDEN_NORM, "layers.61.hnorm.weight", SPLIT_NONE, false);
    check_tensor(with, unit, ROLE_JOIN, "layers.61.eh_proj.weight", SPLIT_NONE, false);
    check_tensor(with, unit, ROLE_NORM, "layers.61.shared_head.norm.weight", SPLIT_NONE, false);
    check_tensor(with, unit, ROLE_WKV_A, "layers.61.attention.wkv_a.weight", SPLIT_NONE, false);
    check_tensor(with, last, ROLE_OUTPUT, "output.weight", SPLIT_ROWS, false);
    assert_int_equal(model_experts_unit(with, layer), unit + 1);
    assert_int_equal(model_layer_unit(with, layer + 1), unit + 2);
    assert_int_equal(model_module(with, layer - 1), 0);
    assert_int_equal(model_module(with, layer + 1), 2);
    assert_false(model_layers_alike(with, layer, layer + 1) || model_layers_alike(with, layer - 1, layer));
    for (int i = 0; i < with->n_tensors; i++) { /* of a module less those of the layer before it */
        const int of = with->tensors[i].unit;
        own += of == unit || of == unit + 1 ? with->tensors[i].numel : 0;
        own -= of == unit - 3 || of == unit - 2 ? with->tensors[i].numel : 0;
    }
    assert_int_equal(own, dims.dim * (2 * dims.dim + 3));
    model_close(m);
    model_close(with);
}

/* Latent attention with and without a narrow vector of queries; experts in three dimensions. */
static void test_latent_and_experts(void **state)
{
    (void)state;
    struct model *m = open_model(&published[DEEPSEEK_V3].dims);
    const int unit = model_layer_unit(m, 3), experts = model_experts_unit(m, 3);
    check_tensor(m, unit, ROLE_WQ_A, "layers.3.attention.wq_a.weight", SPLIT_NONE, false);
    check_tensor(m, unit, ROLE_Q_NORM, "layers.3.attention.q_norm.weight", SPLIT_NONE, false);
    check_tensor(m, unit, ROLE_WQ_B, "layers.3.attention.wq_b.weight", SPLIT_ROWS, false);
    check_tensor(m, unit, ROLE_WKV_A, "layers.3.attention.wkv_a.weight", SPLIT_NONE, false);
    check_tensor(m, unit, ROLE_KV_NORM, "layers.3.attention.kv_norm.weight", SPLIT_NONE, false);
    check_tensor(m, unit, ROLE_WKV_B, "layers.3.attention.wkv_b.weight", SPLIT_ROWS, false);
    check_tensor(m, unit, ROLE_WO, "layers.3.attention.wo.weight", SPLIT_COLS, false);
    check_tensor(m, unit, ROLE_GATE, "layers.3.moe.router.gate.weight", SPLIT_NONE, false);
    check_tensor(m, unit, ROLE_W1, "layers.3.moe.shared_experts.w1.weight", SPLIT_ROWS, false);
    check_tensor(m, unit, ROLE_W3, "layers.3.moe.shared_experts.w3.weight", SPLIT_ROWS, true);
    check_tensor(m, unit, ROLE_W2, "layers.3.moe.shared_experts.w2.weight", SPLIT_COLS, false);
    check_tensor(m, experts, ROLE_W1, "layers.3.moe.experts.w1", SPLIT_EXPERTS, false);
    check_tensor(m, experts, ROLE_W3, "layers.3.moe.experts.w3", SPLIT_EXPERTS, false);
    check_tensor(m, experts, ROLE_W2, "layers.3.moe.experts.w2", SPLIT_EXPERTS, false);
    check_shape(m, experts, ROLE_W1, 3, 256, 2048, 7168);
    check_shape(m, experts, ROLE_W2, 3, 256, 7168, 2048);
    check_shape(m, unit, ROLE_WKV_A, 2, 576, 7168, 0);
    check_shape(m, unit, ROLE_KV_NORM, 1, 512, 0, 0);
    assert_int_equal(model_find(m, unit, ROLE_WQ), -1);
    assert_int_equal(model_find(m, model_layer_unit(m, 2), ROLE_GATE), -1);
    assert_int_equal(model_rope_dim(m), 64);
    model_close(m);
    m = open_model(&published[DEEPSEEK_V2_LITE].dims);
    check_tensor(m, model_layer_unit(m, 1), ROLE_WQ, "layers.1.attention.wq.weight", SPLIT_ROWS, false);
    assert_int_equal(model_find(m, model_layer_unit(m, 1), ROLE_WQ_A), -1);
    model_close(m);
}

/* One matrix, drawn as the head's: cut at three deviations of 1/sqrt(width). */
static void test_tied(void **state)
{
    (void)state;
    const struct model_dims dims = {.dim = 64,
                                    .n_layers = 1,
                                    .n_heads = 2,
                                    .n_kv_heads = 1,
                                    .ffn_hidden = 64,
                                    .vocab_size = 2000,
                                    .tied_embeddings = true};
    struct model *m = open_model(&dims);
    assert_int_equal(model_find(m, m->n_units - 1, ROLE_OUTPUT), 0);
    assert_int_equal(model_find(m, 0, ROLE_EMBEDDING), 0);
    assert_int_equal(m->units[m->n_units - 1].n_tensors, 1);
    const int64_t n = m->tensors[0].numel;
    float *x = malloc((size_t)n * sizeof *x);
    double largest = 0, square = 0;
    model_init_tensor(m, 11, 0, 0, n, x);
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)x[i]));
        square += (double)x[i] * x[i];
    }
    assert_true(largest <= 3.0 / 8 && largest > 2.9 / 8);
    /* Deviation of a normal distribution cut at 3 of its own: 0.98658; of 128000 draws, known to 0.2 %. */
    assert_true(fabs(sqrt(square / (double)n) * 8 - 0.98658) < 0.01);
    free(x);
    model_close(m);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        struct model_dims dims;
        const char *why;
    } bad[] = {
        {{.dim = 30, .n_layers = 1, .n_heads = 4, .n_kv_heads = 2, .ffn_hidden = 8, .vocab_size = 8},
         "multiple of n_heads"},
        {{.dim = 32, .n_layers = 1, .n_heads = 4, .n_kv_heads = 3, .ffn_hidden = 8, .vocab_size = 8}, "n_kv_heads 3"},
        {{.dim = 20, .n_layers = 1, .n_heads = 4, .n_kv_heads = 2, .ffn_hidden = 8, .vocab_size = 8}, "width 5 is odd"},
        {{.dim = 32, .n_layers = 1, .n_heads = 4, .n_kv_heads = 2, .head_dim = 7, .ffn_hidden = 8, .vocab_size = 8},
         "width 7 is odd"},
        {{.dim = 32, .n_layers = 1, .n_heads = 4, .n_kv_heads = 2, .ffn_hidden = 8}, "at least 1"},
#define LATENT .dim = 32, .n_layers = 1, .n_heads = 4, .ffn_hidden = 8, .vocab_size = 8, .kv_lora_rank = 4
        {{LATENT, .n_kv_heads = 4, .head_dim = 7, .qk_nope_head_dim = 4, .qk_rope_head_dim = 3, .v_head_dim = 4},
         "qk_rope_head_dim 3 is odd"},
        {{LATENT, .n_kv_heads = 4, .head_dim = 6, .qk_nope_head_dim = 4, .qk_rope_head_dim = 2}, "v_head_dim"},
        {{LATENT, .n_kv_heads = 2, .head_dim = 6, .qk_nope_head_dim = 4, .qk_rope_head_dim = 2, .v_head_dim = 4},
         "keys for each"},
#define MIXED .dim = 32, .n_layers = 1, .n_heads = 4, .n_kv_heads = 2, .vocab_size = 8, .n_experts = 4
        {{MIXED, .moe_hidden = 8, .top_k = 5}, "top_k 5"},
        {{MIXED, .top_k = 1}, "moe_hidden"},
#define LONGROPE                                                                                                       \
    .dim = 32, .n_layers = 1, .n_heads = 4, .n_kv_heads = 2, .ffn_hidden = 8, .vocab_size = 8, .head_dim = 4,          \
    .rope_scaling = "longrope", .rope_factor = 2, .rope_original_length = 8
        {{LONGROPE, .rope_short_factor = {2, {1, 1}}, .rope_long_factor = {1, {1}}}, "each of 2 pairs"},
        {{LONGROPE, .rope_short_factor = {2, {1, 0}}, .rope_long_factor = {2, {1, 1}}}, "each of 2 pairs"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct model *m = NULL;
        struct titan_error err = {0};
        assert_int_equal(model_open(&bad[i].dims, &m, &err), TITAN_EINVAL);
        assert_null(m);
        if (!strstr(err.msg, bad[i].why))
            fail_msg("'%s' does not say '%s'", err.msg, bad[i].why);
    }
    /* An explicit head width need not be dim / n_heads. */
    const struct model_dims good = {
        .dim = 30, .n_layers = 1, .n_heads = 4, .n_kv_heads = 2, .head_dim = 6, .ffn_hidden = 8, .vocab_size = 8};
    model_close(open_model(&good));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),   cmocka_unit_test(test_units),   cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_tied),    cmocka_unit_test(test_refused), cmocka_unit_test(test_latent_and_experts),
        cmocka_unit_test(test_modules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
