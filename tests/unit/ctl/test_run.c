/* SPDX-License-Identifier: Apache-2.0 */
/* How many slots the titand of `titanctl run` gets, on processors and on GPUs. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "ctl/run.c"

static void test_slots(void **state)
{
    (void)state;
    static const struct {
        const char *device, *visible;       /* CUDA_VISIBLE_DEVICES */
        int64_t most, mesh, workers, slots; /* mesh: the smallest */
        const char *refusal;                /* NULL: none */
    } rows[] = {
        {"cpu", "", 3, 1, 0, 3, NULL},
        {"cpu", "", 20, 1, 0, 8, NULL},
        {"cpu", "0", 20, 1, 0, 8, NULL}, /* the machine's GPU does not matter */
        {"cpu", "0", 24, 12, 0, 12, NULL},
        {"cpu", "", 20, 1, 2, 2, NULL},
        {"cpu", "", 20, 4, 2, 4, NULL},
        {"cuda", "0,1", 20, 1, 0, 2, NULL},
        {"cuda", "0,1", 20, 2, 0, 2, NULL},
        {"cuda", "0,1", 20, 4, 0, 0, "the run needs at least 4 workers; this machine has 2 GPUs"},
        {"cuda", "0", 20, 2, 0, 0, "the run needs at least 2 workers; this machine has 1 GPU"},
        {"cuda", "0", 20, 4, 4, 4, NULL}, /* asked for by number, they share it */
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct recipe r;
        struct titan_error err = {0};
        char text[512];
        int64_t slots = 0;
        (void)snprintf(text, sizeof(text),
                       "[model]\nflavor = \"tiny\"\ntokenizer = \"bytes\"\n[device]\nname = \"%s\"\n[training]\n"
                       "local_batch_size = 1\nglobal_batch_size = 240\nseq_len = 96\n[elastic]\nmin_workers = %lld\n"
                       "max_workers = %lld\n[parallelism]\ncontext_parallel_degree = %lld\n",
                       rows[i].device, (long long)rows[i].mesh, (long long)rows[i].most, (long long)rows[i].mesh);
        assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", rows[i].visible, 1), 0);
        recipe_init(&r);
        if (recipe_parse(&r, text, "f", &err) != TITAN_OK || recipe_resolve(&r, &err) != TITAN_OK)
            fail_msg("%s", err.msg);
        assert_int_equal(choose_slots(&r, rows[i].workers, &slots, &err),
                         rows[i].refusal ? TITAN_EUNPLACEABLE : TITAN_OK);
        assert_int_equal(slots, rows[i].slots);
        if (rows[i].refusal)
            assert_string_equal(err.msg, rows[i].refusal);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slots)};
    return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}
