/* SPDX-License-Identifier: Apache-2.0 */
/* whole.h: the last token's logits alone are those of all, whatever was asked before; batches smaller than the room;
 * what does not fit is refused and changes nothing; biases of experts. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "worker/infer/whole.h"

enum { B = 2, T = 12, V = 40 };

static const struct model_dims dims = {.dim = 32,
                                       .n_layers = 2,
                                       .n_heads = 4,
                                       .n_kv_heads = 2,
                                       .ffn_hidden = 48,
                                       .vocab_size = V,
                                       .rope_theta = 1e4,
                                       .norm_eps = 1e-5,
                                       .tied_embeddings = true};

struct fixture {
    struct device_handle device;
    struct model *model;
    struct whole_model *whole;
    int32_t tokens[B * T], targets[B * T];
};

static void must(titan_status status, const struct titan_error *err)
{
    if (status != TITAN_OK)
        fail_msg("%s: %s", titan_status_name(status), err->msg);
}

static int set_up(void **state)
{
    static struct fixture f;
    struct titan_error err = {0};
    const struct device_options options = {.threads = 1};
    memset(&f, 0, sizeof f);
    must(device_open("cpu", &options, &f.device, &err), &err);
    must(model_open(&dims, &f.model, &err), &err);
    must(whole_model_open(&(struct whole_options){f.model, &f.device, DTYPE_F32, B, T}, &f.whole, &err), &err);
    must(whole_model_init(f.whole, 3, &err), &err);
    for (int i = 0; i < B * T; i++) {
        f.tokens[i] = (i * 17 + 3) % V;
        f.targets[i] = i % 5 == 2 ? -1 : (i * 7 + 1) % V;
    }
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    whole_model_close(f->whole);
    model_close(f->model);
    device_close(&f->device);
    return 0;
}

static void close_to(const float *x, const float *want, int n)
{
    for (int i = 0; i < n; i++)
        assert_true(fabsf(x[i] - want[i]) <= 1e-5f * (1 + fabsf(want[i])));
}

static void test_next(void **state)
{
    struct fixture *f = *state;
    struct titan_error err = {0};
    float all[T * V], next[V];
    must(whole_model_logits(f->whole, &(struct whole_batch){f->tokens, NULL, 1, T}, all, &err), &err);
    for (int t = 1; t <= T; t++) { /* causal: what follows changes nothing */
        must(whole_model_next(f->whole, f->tokens, t, next, &err), &err);
        close_to(next, all + (t - 1) * V, V);
    }
}

/* Rows of a batch do not see each other. */
static void test_rows(void **state)
{
    struct fixture *f = *state;
    struct titan_error err = {0};
    float both[B * T * V], one[T * V];
    must(whole_model_logits(f->whole, &(struct whole_batch){f->tokens, NULL, B, T}, both, &err), &err);
    for (int b = 0; b < B; b++) {
        must(whole_model_logits(f->whole, &(struct whole_batch){f->tokens + b * T, NULL, 1, T}, one, &err), &err);
        close_to(one, both + b * T * V, T * V);
    }
}

static double loss_of(struct fixture *f, const int32_t *tokens, const int32_t *targets, int64_t b, int64_t t)
{
    struct titan_error err = {0};
    double sum = 0;
    must(whole_model_loss(f->whole, &(struct whole_batch){tokens, targets, b, t}, &sum, NULL, &err), &err);
    return sum;
}

static void test_loss(void **state)
{
    struct fixture *f = *state;
    float logits[B * T * V];
    struct titan_error err = {0};
    double want = 0;
    must(whole_model_logits(f->whole, &(struct whole_batch){f->tokens, NULL, B, T}, logits, &err), &err);
    for (int i = 0; i < B * T; i++) {
        double sum = 0;
        for (int j = 0; f->targets[i] >= 0 && j < V; j++)
            sum += exp(logits[i * V + j]);
        want += f->targets[i] >= 0 ? log(sum) - logits[i * V + f->targets[i]] : 0;
    }
    assert_true(fabs(loss_of(f, f->tokens, f->targets, B, T) - want) <= 1e-5 * want);
    /* A sum: of its rows, run one by one. */
    const double rows = loss_of(f, f->tokens, f->targets, 1, T) + loss_of(f, f->tokens + T, f->targets + T, 1, T);
    assert_true(fabs(rows - want) <= 1e-5 * want);
}

static void test_refused(void **state)
{
    struct fixture *f = *state;
    struct titan_error err = {0};
    float before[V], after[V], none[V];
    int32_t bad[T];
    must(whole_model_next(f->whole, f->tokens, T, before, &err), &err);
    memcpy(bad, f->tokens, sizeof bad);
    bad[4] = V;
    assert_int_equal(whole_model_next(f->whole, bad, T, none, &err), TITAN_EINVAL);
    bad[4] = -1;
    assert_int_equal(whole_model_next(f->whole, bad, T, none, &err), TITAN_EINVAL);
    assert_int_equal(whole_model_next(f->whole, f->tokens, 0, none, &err), TITAN_EINVAL);
    assert_int_equal(whole_model_next(f->whole, f->tokens, T + 1, none, &err), TITAN_EINVAL);
    must(whole_model_next(f->whole, f->tokens, T, after, &err), &err);
    assert_memory_equal(before, after, sizeof before);
}

/* Logits of a model with experts after biases, and with another value in one expert's matrices. */
static void mixed_logits(const struct fixture *f, const float *biases, int changed_expert, float *ret)
{
    struct model_dims mixed = dims;
    struct titan_error err = {0};
    struct model *m = NULL;
    struct whole_model *w = NULL;
    mixed.n_experts = 6;
    mixed.top_k = 2;
    mixed.moe_hidden = 16;
    mixed.n_dense_layers = 1;
    mixed.route_scale = 1;
    mixed.balance_rate = 1e-3;
    must(model_open(&mixed, &m, &err), &err);
    must(whole_model_open(&(struct whole_options){m, &f->device, DTYPE_F32, 1, T}, &w, &err), &err);
    must(whole_model_init(w, 3, &err), &err);
    const int w2 = model_find(m, model_experts_unit(m, 1), ROLE_W2);
    const int64_t n = m->tensors[w2].numel, each = n / 6;
    float *values = malloc((size_t)n * sizeof *values);
    model_init_tensor(m, 3, w2, 0, n, values);
    for (int64_t i = 0; changed_expert >= 0 && i < each; i++)
        values[changed_expert * each + i] += 0.5f;
    must(whole_model_set(w, w2, values, &err), &err);
    free(values);
    if (biases)
        must(whole_model_set_biases(w, biases, &err), &err);
    must(whole_model_logits(w, &(struct whole_batch){f->tokens, NULL, 1, T}, ret, &err), &err);
    whole_model_close(w);
    model_close(m);
}

/* A bias beyond all scores decides which are chosen, and has no weight of its own. */
static void test_biases(void **state)
{
    struct fixture *f = *state;
    static const float only_1_and_4[6] = {0, 10, 0, 0, 10, 0}, even[6] = {2, 2, 2, 2, 2, 2};
    float plain[T * V], biased[T * V], other[T * V];
    mixed_logits(f, NULL, -1, plain);
    mixed_logits(f, even, -1, other);
    assert_memory_equal(plain, other, sizeof plain);
    mixed_logits(f, NULL, 0, other);
    assert_memory_not_equal(plain, other, sizeof plain);
    mixed_logits(f, only_1_and_4, -1, biased);
    assert_memory_not_equal(plain, biased, sizeof plain);
    for (int e = 0; e < 6; e++) {
        mixed_logits(f, only_1_and_4, e, other);
        assert_int_equal(memcmp(biased, other, sizeof biased) == 0, e != 1 && e != 4);
    }
}

int main(void)
{
    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_next, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_loss, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_biases, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
