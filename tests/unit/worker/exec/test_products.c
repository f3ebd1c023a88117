/* SPDX-License-Identifier: Apache-2.0 */
/* products.c on a device that notes products by their rows: which of them are timed here, which choice is taken where
 * another rank has one, and what others say that is no row. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "worker/exec/executor.h"

enum { MOST = 8, SHAPES = 3, ACTIONS = 5 };

/* --- the device --------------------------------------------------------------------------------------------------- */

static struct product_way known[MOST]; /* the product is its number of rows, and 1000 where its result is not aligned */
static int n_known, runs, timed;
static bool notes, refuses;

static titan_status matmul(struct stream *s, const struct matmul_args *a)
{
    const uint64_t product = (uint64_t)a->m + ((uintptr_t)a->c % 256 != 0 ? 1000 : 0);
    int i = 0;

    (void)s;
    runs++;
    while (i < n_known && known[i].product != product)
        i++;
    if (notes && i == n_known)
        known[n_known++] = (struct product_way){.product = product};
    return TITAN_OK;
}

static titan_status stream_sync(struct stream *s, struct titan_error *err)
{
    (void)s, (void)err;
    return TITAN_OK;
}

static void products_note(struct device *dev, bool on)
{
    (void)dev;
    notes = on;
}

static int products_noted(struct device *dev, struct product_way *ret, int most)
{
    (void)dev;
    memcpy(ret, known, (size_t)MIN(n_known, most) * sizeof *ret);
    return MIN(n_known, most);
}

static struct product_way *find(uint64_t product)
{
    for (int i = 0; i < n_known; i++)
        if (known[i].product == product)
            return &known[i];
    return NULL;
}

static titan_status product_choose(struct device *dev, const struct product_way *way, struct titan_error *err)
{
    (void)dev;
    assert_true(way->chosen);
    if (refuses)
        return titan_fail(err, TITAN_EUNSUPPORTED, "no such way");
    *find(way->product) = *way;
    return TITAN_OK;
}

static titan_status product_time(struct stream *s, struct product_way *way, struct titan_error *err)
{
    (void)s, (void)err;
    timed++;
    way->chosen = true;
    memset(way->how, 't', sizeof way->how);
    *find(way->product) = *way;
    return TITAN_OK;
}

static const struct device_ops ops = {.matmul = matmul,
                                      .stream_sync = stream_sync,
                                      .products_note = products_note,
                                      .products_noted = products_noted,
                                      .product_choose = product_choose,
                                      .product_time = product_time};

/* --- rank 1 of 2, and what rank 0 says ---------------------------------------------------------------------------- */

static struct product_way theirs[MOST];
static int n_theirs, rounds;
static double claimed; /* their number of products; 0: the true one */

/* Rows as products.c writes them: rank 0's are those that it would write of `theirs`. */
static titan_status gather(void *arg, const double *mine, int n, double *all, struct titan_error *err)
{
    (void)arg, (void)err;
    memcpy(all + n, mine, (size_t)n * sizeof *mine);
    rounds++;
    if (n == 1) {
        all[0] = claimed != 0 ? claimed : n_theirs;
        return TITAN_OK;
    }
    const int parts = (8 + PRODUCT_WAY_BYTES) / 4, each = parts + 1;
    assert_int_equal(n % each, 0);
    for (int i = 0; i < n / each; i++) {
        uint32_t words[(8 + PRODUCT_WAY_BYTES) / 4];
        double *const row = all + i * each;
        row[0] = -1;
        if (i >= n_theirs)
            continue;
        memcpy(words, &theirs[i].product, 8);
        memcpy(words + 2, theirs[i].how, PRODUCT_WAY_BYTES);
        row[0] = theirs[i].chosen;
        for (int w = 0; w < parts; w++)
            row[1 + w] = words[w];
    }
    return TITAN_OK;
}

static char memory[4096] __attribute__((aligned(256)));

/* Three shapes, the first one twice, and once more where its result has another alignment. */
static titan_status choose(bool alone, struct exec_products *ret)
{
    static struct action actions[ACTIONS];
    static struct op_params params[SHAPES];
    static struct operand operands[ACTIONS * 3];
    static struct buffer buffers[1] = {{.bytes = sizeof memory}};
    static const int shape_of[ACTIONS] = {0, 1, 0, 2, 0};
    static void *address[1] = {memory};
    struct program p = {.n_actions = ACTIONS, .actions = actions, .params = params, .operands = operands};
    struct device_handle device = {.ops = &ops, .info = {.host_memory = true}};
    struct exec e = {.p = &p, .ops = &ops, .address = address};

    p.buffers = buffers;
    p.mesh.world = 2;
    e.opt.rank = 1;
    e.opt.device = &device;
    for (int i = 0; i < SHAPES; i++)
        params[i] = (struct op_params){.matmul = {.M = 16 * (i + 1), .N = 8, .K = 8}};
    for (int i = 0; i < ACTIONS; i++) {
        actions[i] = (struct action){.op = OP_MATMUL, .params = shape_of[i], .operand = 3 * i, .n_operands = 3};
        operands[(size_t)3 * i] = (struct operand){.offset = i == 4 ? 16 : 0};
    }
    return exec_choose_products(&e, alone ? NULL : gather, NULL, ret, NULL);
}

static int set_up(void **state)
{
    (void)state;
    n_known = n_theirs = runs = timed = rounds = 0;
    refuses = false;
    claimed = 0;
    return 0;
}

static struct product_way way(uint64_t product, bool chosen, char how)
{
    struct product_way ret = {.product = product, .chosen = chosen};
    memset(ret.how, how, sizeof ret.how);
    return ret;
}

static void test_alone(void **state)
{
    struct exec_products found;

    (void)state;
    assert_int_equal(choose(true, &found), TITAN_OK);
    assert_int_equal(runs, 4); /* each different one once */
    assert_int_equal(timed, 4);
    assert_true(found.all == 4 && found.timed == 4 && found.refused == 0);
    assert_int_equal(choose(true, &found), TITAN_OK);
    assert_int_equal(timed, 4); /* once */
    assert_true(found.all == 4 && found.timed == 0);
}

/* Rank 0 has timed one, has another one that it is to time, and does not have the others. */
static void test_with_others(void **state)
{
    struct exec_products found;

    (void)state;
    theirs[n_theirs++] = way(16, true, 'a');
    theirs[n_theirs++] = way(32, false, 'b');
    theirs[n_theirs++] = way(7777, true, 'c');
    assert_int_equal(choose(false, &found), TITAN_OK);
    assert_int_equal(rounds, 4);
    assert_int_equal(timed, 2);
    assert_true(found.all == 4 && found.timed == 2 && found.refused == 0);
    assert_true(find(16)->chosen && find(16)->how[0] == 'a');
    assert_false(find(32)->chosen); /* the stand-in of rank 0 does not time it */
    assert_true(find(48)->how[0] == 't' && find(1016)->how[0] == 't');
    /* It has by the next epoch, and what was timed here gives way to it. */
    theirs[1] = way(32, true, 'd');
    theirs[2] = way(48, true, 'e');
    assert_int_equal(choose(false, &found), TITAN_OK);
    assert_int_equal(timed, 2);
    assert_true(find(32)->how[0] == 'd' && find(48)->how[0] == 'e' && find(1016)->how[0] == 't');
}

static void test_refused(void **state)
{
    struct exec_products found;

    (void)state;
    refuses = true;
    theirs[n_theirs++] = way(16, true, 'a');
    theirs[n_theirs++] = way(32, true, 'b');
    assert_int_equal(choose(false, &found), TITAN_OK);
    assert_int_equal(found.refused, 2);
    assert_false(find(16)->chosen);
}

static void test_nonsense(void **state)
{
    static const double counts[] = {-3, 1e9, NAN};
    struct exec_products found;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
        claimed = counts[i];
        assert_int_equal(choose(false, &found), TITAN_ECORRUPT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_alone, set_up),
        cmocka_unit_test_setup(test_with_others, set_up),
        cmocka_unit_test_setup(test_refused, set_up),
        cmocka_unit_test_setup(test_nonsense, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
