/* SPDX-License-Identifier: Apache-2.0 */
/* Every optimizer on the CPU against PyTorch and the authors' algorithms: two tensors behind each of five steps, from
 * the keys of a recipe on. Values: tests/golden/optimizers_reference.py. */
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
#include "base/file.h"
#include "base/json.h"
#include "worker/optim/update.h"

#define NEAR 2e-6 /* of a weight of about 1 after five steps in fp32 */

static void must(titan_status status, const struct titan_error *err)
{
    if (status != TITAN_OK)
        fail_msg("%s: %s", titan_status_name(status), err->msg);
}

static void read_reals(const struct json *list, double *ret, int n)
{
    int i = 0;

    for (const struct json *v = list->first; v; v = v->next) {
        assert_true(i < n);
        ret[i++] = v->type == JSON_INT ? (double)v->integer : v->real;
    }
    assert_int_equal(i, n);
}

static int count(const struct json *list)
{
    int n = 0;

    for (const struct json *v = list->first; v; v = v->next)
        n++;
    return n;
}

/* Runs a case's steps; returns the largest difference from the reference. */
static double run_case(const struct device_handle *d, const struct json *file, const struct json *c)
{
    enum { COLS = 10, CUT = 2 * COLS, N = 6 * COLS };
    struct model_tensor tensors[] = {
        {.name = "w1", .shape = {CUT / COLS, COLS}, .ndim = 2, .numel = CUT, .role = ROLE_W1},
        {.name = "w3", .shape = {(N - CUT) / COLS, COLS}, .ndim = 2, .numel = N - CUT, .role = ROLE_W3}};
    struct model_unit unit = {.name = "layers.0", .kind = UNIT_LAYER, .n_tensors = 2};
    const struct model model = {.n_tensors = 2, .n_units = 1, .tensors = tensors, .units = &unit};
    struct local_tensor local[] = {{0, CUT / COLS, COLS, CUT}, {CUT, (N - CUT) / COLS, COLS, N}};
    struct unit_layout whole = {.numel = N, .shard = N, .padded = N, .span = {N, N, N}, .group = GROUP_FSDP};
    struct layout layout = {.model = &model, .units = &whole, .tensors = local};
    struct titan_error err = {0};
    struct stream *s = NULL;
    struct recipe r;
    double want[N], w[N], g[N], sums[2], *device_sums = NULL, worst = 0;
    float *values = NULL, *grad = NULL, now[N];
    uint64_t number = 0;

    recipe_init(&r);
    r.optimizer.lr = json_real(file, "lr", 0);
    r.optimizer.weight_decay = json_real(file, "weight_decay", 0);
    for (const struct json *key = json_get(c, "keys")->first; key; key = key->next)
        must(recipe_set(&r, key->string, &err), &err);
    const struct state_kinds kinds = optimizer_kinds(&r);
    layout.kinds = kinds;
    must(mesh_build(&r, 1, &layout.mesh, &err), &err);
    const size_t bytes = (size_t)(1 + kinds.n) * sizeof now;
    must(d->ops->alloc(d->dev, bytes, (void **)&values, &err), &err);
    must(d->ops->alloc(d->dev, sizeof now, (void **)&grad, &err), &err);
    must(d->ops->alloc(d->dev, sizeof sums, (void **)&device_sums, &err), &err);
    must(d->ops->stream_open(d->dev, "compute", true, &s, &err), &err);
    must(d->ops->zero(s, values, bytes), &err);
    read_reals(json_get(file, "w"), w, N);
    for (int i = 0; i < N; i++)
        now[i] = (float)w[i];
    must(d->ops->copy(s, values, now, sizeof now), &err);
    must(d->ops->stream_sync(s, &err), &err);

    const struct json *gradient = json_get(file, "gradients")->first;
    for (const struct json *after = json_get(c, "after")->first; after;
         after = after->next, gradient = gradient->next) {
        const struct update_step step = {.rate = 1, .number = ++number, .tokens = 4, .clip = 0.5};
        struct update update = update_of_recipe(&r, &step);
        const struct update_range range = {.layout = &layout, .values = values, .grad = grad, .n = N};
        read_reals(gradient, g, N);
        for (int i = 0; i < N; i++)
            now[i] = (float)(g[i] * step.tokens / step.clip);
        must(d->ops->copy(s, grad, now, sizeof now), &err);
        if (optimizer_needs_sums(&r)) {
            must(d->ops->zero(s, device_sums, sizeof sums), &err);
            must(update_sums(&update, &range, device_sums, d->ops, s), &err);
            must(d->ops->copy(s, sums, device_sums, sizeof sums), &err);
            must(d->ops->stream_sync(s, &err), &err);
            update.sums = sums;
        }
        must(update_apply(&update, &range, 1, d->ops, DTYPE_F32, s), &err);
        must(d->ops->copy(s, now, values, sizeof now), &err);
        must(d->ops->stream_sync(s, &err), &err);
        read_reals(after, want, N);
        for (int i = 0; i < N; i++)
            worst = fmax(worst, fabs((double)now[i] - want[i]));
    }
    d->ops->stream_close(s);
    d->ops->release(d->dev, device_sums);
    d->ops->release(d->dev, grad);
    d->ops->release(d->dev, values);
    return worst;
}

static void test_references(void **state)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct titan_error err = {0};
    struct device_handle device;
    struct json *file = NULL;

    (void)state;
    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    must(file_read(TITAN_SOURCE_DIR "/tests/golden/optimizers.json", 1 << 20, &text, &err), &err);
    must(json_parse(text.data, text.len, &file, &err), &err);
    must(device_open("cpu", &(struct device_options){.threads = 1}, &device, &err), &err);
    for (const struct json *c = json_get(file, "cases")->first; c; c = c->next) {
        const double worst = run_case(&device, file, c);
        printf("# %s: %.1e\n", json_string(c, "case", ""), worst);
        assert_true(worst < NEAR);
    }
    assert_int_equal(count(json_get(file, "cases")), 10);
    device_close(&device);
    json_free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_references)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
