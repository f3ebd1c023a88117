/* whole.h: the last token's logits alone are those of all, whatever was asked before; batches smaller than the room;
 * what does not fit is refused and changes nothing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "worker/model/whole.h"

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
    must(whole_model_open(f.model, &f.device, DTYPE_F32, B, T, &f.whole, &err), &err);
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
    must(whole_model_logits(f->whole, f->tokens, 1, T, all, &err), &err);
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
    must(whole_model_logits(f->whole, f->tokens, B, T, both, &err), &err);
    for (int b = 0; b < B; b++) {
        must(whole_model_logits(f->whole, f->tokens + b * T, 1, T, one, &err), &err);
        close_to(one, both + b * T * V, T * V);
    }
}

static double loss_of(struct fixture *f, const int32_t *tokens, const int32_t *targets, int64_t b, int64_t t)
{
    struct titan_error err = {0};
    double sum = 0;
    must(whole_model_loss(f->whole, tokens, targets, b, t, &sum, NULL, &err), &err);
    return sum;
}

static void test_loss(void **state)
{
    struct fixture *f = *state;
    float logits[B * T * V];
    struct titan_error err = {0};
    double want = 0;
    must(whole_model_logits(f->whole, f->tokens, B, T, logits, &err), &err);
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

int main(void)
{
    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_next, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_loss, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
