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
#include "worker/model/model.h"

/* Llama 3: TorchTitan's table of flavors. Qwen 3: sum over the shapes in the models' published configurations. */
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
};

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
            assert_int_equal(model_experts_unit(m, l), -1);
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
    struct model *m = open_model(&published[ARRAY_SIZE(published) - 1].dims);
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
        cmocka_unit_test(test_sizes), cmocka_unit_test(test_units),   cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_tied),  cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
