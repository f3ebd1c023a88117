/* SPDX-License-Identifier: Apache-2.0 */
/* cost_table.h: what is written is read back, looked up and interpolated; a table that is cut, changed or of another
 * machine is refused; a plan takes what the table has and asks the model for the rest. */
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
#include "base/hash.h"
#include "tests/support/plans.h"
#include "worker/plan/forecast.h"

static void put(struct cost_table *t, enum cost_kind kind, int size, uint64_t bytes, double seconds, const char *key)
{
    struct cost_row row = {.kind = kind, .size = size, .bytes = bytes, .seconds = seconds};
    struct titan_error err = {0};

    *(kind == COST_TRANSFER ? &row.processor : &row.spread) = seconds / 2;
    (void)snprintf(row.key, sizeof row.key, "%s", key);
    assert_int_equal(cost_table_put(t, &row, &err), TITAN_OK);
}

static void example(struct cost_table *t)
{
    *t = (struct cost_table){
        .host = {.device = "cpu", .machine = "A processor", .isa = "avx2", .version = "1", .cores = 4, .mhz = 2000}};
    put(t, COST_TRANSFER, 2, 4000, 3e-5, "f32 ALL_GATHER");
    put(t, COST_OPERATION, 2, 0, 1e-3, "f32 MATMUL M=1");
    put(t, COST_OPERATION, 1, 0, 2e-3, "f32 MATMUL M=1");
    put(t, COST_TRANSFER, 2, 2000, 1e-5, "f32 ALL_GATHER");
    put(t, COST_TRANSFER, 4, 3000, 9e-5, "f32 ALL_GATHER");
    put(t, COST_OPERATION, 1, 0, 4e-3, "f32 MATMUL M=1"); /* in place of the one before */
}

static void check_example(const struct cost_table *t)
{
    double seconds = 0, processor = 0;

    assert_int_equal(t->n, 5);
    assert_string_equal(t->host.machine, "A processor");
    assert_int_equal(t->host.cores, 4);
    assert_true(fabs(cost_table_operation(t, 1, "f32 MATMUL M=1")->seconds - 4e-3) < 1e-12);
    assert_true(fabs(cost_table_operation(t, 2, "f32 MATMUL M=1")->seconds - 1e-3) < 1e-12);
    assert_true(fabs(cost_table_operation(t, 1, "f32 MATMUL M=1")->spread - 2e-3) < 1e-12);
    assert_null(cost_table_operation(t, 3, "f32 MATMUL M=1"));
    assert_null(cost_table_operation(t, 1, "f32 MATMUL M=2"));
    assert_true(cost_table_transfer(t, 2, "f32 ALL_GATHER", 2000, &seconds, &processor));
    assert_true(fabs(seconds - 1e-5) < 1e-12 && fabs(processor - 0.5e-5) < 1e-12);
    assert_true(cost_table_transfer(t, 2, "f32 ALL_GATHER", 2500, &seconds, &processor));
    assert_true(fabs(seconds - 1.5e-5) < 1e-12 && fabs(processor - 0.75e-5) < 1e-12);
    assert_false(cost_table_transfer(t, 2, "f32 ALL_GATHER", 1999, &seconds, &processor));
    assert_false(cost_table_transfer(t, 2, "f32 ALL_GATHER", 4001, &seconds, &processor));
    assert_false(cost_table_transfer(t, 3, "f32 ALL_GATHER", 3000, &seconds, &processor));
    assert_false(cost_table_transfer(t, 4, "f32 ALL_GATHER", 3001, &seconds, &processor));
    assert_false(cost_table_transfer(t, 2, "bf16 ALL_GATHER", 2000, &seconds, &processor));
}

static void written_and_read(void **state)
{
    _cleanup_(buf_free) struct buf first = BUF_INIT, second = BUF_INIT;
    _cleanup_(cost_table_clear) struct cost_table t = {0}, again = {0};
    struct titan_error err = {0};

    (void)state;
    example(&t);
    check_example(&t);
    cost_table_print(&t, &first);
    assert_int_equal(cost_table_parse(first.data, first.len, "x", &again, &err), TITAN_OK);
    check_example(&again);
    cost_table_print(&again, &second);
    assert_int_equal(first.len, second.len);
    assert_memory_equal(first.data, second.data, first.len);
}

/* The format before had no spreads. */
static void an_older_one(void **state)
{
    static const char head[] =
        "titan-costs\t1\ndevice\tcpu\nmachine\tA processor\nisa\tavx2\ncores\t4\nmhz\t0\nversion\t1\n"
        "operation\t1\t2e-3\tf32 MATMUL M=1\ntransfer\t2\t8\t1e-5\t5e-6\tf32 ALL_GATHER\n";
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    _cleanup_(cost_table_clear) struct cost_table t = {0};
    struct titan_error err = {0};

    (void)state;
    buf_printf(&text, "%send\t2\t%016lx\n", head, (unsigned long)hash_bytes(HASH_INIT, head, sizeof head - 1));
    assert_int_equal(cost_table_parse(text.data, text.len, "x", &t, &err), TITAN_OK);
    const struct cost_row *row = cost_table_operation(&t, 1, "f32 MATMUL M=1");
    assert_true(row && fabs(row->seconds - 2e-3) < 1e-12 && row->spread == 0);
    assert_true(t.n == 2 && fabs(t.rows[1].processor - 5e-6) < 1e-12);
}

static bool refused(const char *text, size_t len)
{
    struct cost_table t;
    struct titan_error err = {0};

    const titan_status status = cost_table_parse(text, len, "some.tsv", &t, &err);
    if (status == TITAN_OK) {
        cost_table_clear(&t);
        return false;
    }
    assert_int_equal(status, TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "some.tsv"));
    assert_null(t.rows);
    return true;
}

/* Every cut, and bytes changed, taken out and put in at random places. */
static void damaged(void **state)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    _cleanup_(cost_table_clear) struct cost_table t = {0};
    unsigned seed = 20261125;

    (void)state;
    printf("# seed %u\n", seed);
    example(&t);
    cost_table_print(&t, &text);
    assert_false(refused(text.data, text.len));
    for (size_t len = 0; len < text.len; len++)
        assert_true(refused(text.data, len));
    _cleanup_free_ char *copy = malloc(text.len + 1);
    assert_non_null(copy);
    for (int i = 0; i < 20000; i++) {
        const size_t at = (size_t)rand_r(&seed) % text.len;
        size_t len = text.len;
        memcpy(copy, text.data, len);
        switch (rand_r(&seed) % 3) {
        case 0:
            copy[at] = (char)(copy[at] + 1 + rand_r(&seed) % 255);
            break;
        case 1:
            memmove(copy + at, copy + at + 1, --len - at);
            break;
        default:
            memmove(copy + at + 1, copy + at, len++ - at);
            copy[at] = (char)rand_r(&seed);
            break;
        }
        if (len == text.len && memcmp(copy, text.data, len) == 0)
            continue;
        assert_true(refused(copy, len));
    }
}

static void another_machine(void **state)
{
    _cleanup_(cost_table_clear) struct cost_table t = {0};
    struct titan_error err = {0};

    (void)state;
    example(&t);
    struct cost_host here = t.host;
    here.mhz = 1;
    (void)snprintf(here.version, sizeof here.version, "2");
    assert_int_equal(cost_host_check(&t.host, &here, "x", &err), TITAN_OK);
    (void)snprintf(here.machine, sizeof here.machine, "Another one");
    assert_int_equal(cost_host_check(&t.host, &here, "x", &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "A processor"));
    assert_non_null(strstr(err.msg, "Another one"));
    here = t.host;
    here.cores = 8;
    assert_int_equal(cost_host_check(&t.host, &here, "x", &err), TITAN_EINVAL);
    cost_host_of_cpu(&here);
    assert_true(here.cores > 0 && here.machine[0] && here.isa[0]);
}

/* A table with one operation of the program, ten times as slow as the model has it. */
static void plans_ask_it_first(void **state)
{
    static const char *const sets[] = {NULL};
    _cleanup_(cost_table_clear) struct cost_table t = {0};
    struct titan_error err = {0};
    struct forecast model = {0}, f = {0};
    struct planned p;
    char key[COST_KEY_MAX];
    long times = 0;

    (void)state;
    assert_int_equal(planned_open(&p, 1, "cpu", sets, &err), TITAN_OK);
    const struct program *q = p.programs[0];
    const struct action *a = q->actions;
    while (a->op != OP_ATTENTION)
        a++;
    const double modelled = cost_action(&p.cost, q, a);
    for (int i = 0; i < q->n_actions; i++)
        times += q->actions[i].op == a->op && q->actions[i].params == a->params;
    example(&t);
    cost_key(q, a, key);
    put(&t, COST_OPERATION, 1, 0, 10 * modelled, key);
    assert_int_equal(forecast_make(p.plan, p.programs, &p.cost, &model, NULL, &err), TITAN_OK);
    p.cost.table = &t;
    p.cost.threads = 1;
    assert_true(fabs(cost_action(&p.cost, q, a) / modelled - 10) < 1e-6);
    assert_true(fabs(cost_spread(&p.cost, q, a) / modelled - 5) < 1e-6);
    assert_int_equal(forecast_make(p.plan, p.programs, &p.cost, &f, NULL, &err), TITAN_OK);
    assert_int_equal(f.measured, times);
    assert_true(f.costed > f.measured && model.measured == 0);
    assert_true(fabs(f.step - model.step - 9 * modelled * (double)times) < 1e-6 * f.step);
    assert_true(f.hash == model.hash);
    p.cost.threads = 2; /* was not measured */
    assert_true(fabs(cost_action(&p.cost, q, a) / modelled - 1) < 1e-9);
    assert_true(cost_spread(&p.cost, q, a) == 0);
    forecast_clear(&f);
    forecast_clear(&model);
    planned_close(&p);
}

/* A GPU updates several units in a launch, and the last launch has fewer of them: what one takes is not the other's. */
static void updates_by_all_their_units(void **state)
{
    static const char *const sets[] = {"model.n_layers=20", NULL};
    struct titan_error err = {0};
    struct planned p;
    char keys[8][COST_KEY_MAX];
    int units[8], n = 0, unlike = 0;

    (void)state;
    assert_int_equal(planned_open(&p, 1, "h100", sets, &err), TITAN_OK);
    const struct program *q = p.programs[0];
    for (int i = 0; i < q->n_actions && n < 8; i++)
        if (q->actions[i].op == OP_OPTIMISE) {
            units[n] = q->actions[i].n_operands;
            cost_key(q, &q->actions[i], keys[n++]);
        }
    for (int i = 1; i < n; i++) {
        unlike += units[i] != units[i - 1];
        assert_int_equal(strcmp(keys[i], keys[i - 1]) != 0, units[i] != units[i - 1]);
    }
    assert_true(unlike > 0);
    planned_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_and_read),
        cmocka_unit_test(an_older_one),
        cmocka_unit_test(damaged),
        cmocka_unit_test(another_machine),
        cmocka_unit_test(plans_ask_it_first),
        cmocka_unit_test(updates_by_all_their_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
