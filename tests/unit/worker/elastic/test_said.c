/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks tell each other, one number or word of it out of range: every message is refused, and it says which rank
 * and what. The other rank here says what this one does, but for what a test sets. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "tests/support/memory_device.h"
#include "worker/elastic/restore.h"
#include "worker/epoch/attempt.h"

#define WORLD 2 /* this rank is 1 */

/* Doubles [first, end) of what rank 0 says in that call are this. */
struct set {
    int call, first, end;
    double value;
};

struct comm {
    int calls, n;
    const struct set *sets;
};

static titan_status echo(struct comm *c, void *recv, const void *send, size_t count, enum dtype dt, struct stream *s)
{
    double *const of_first = recv;
    (void)s;
    for (size_t r = 0; r < WORLD; r++)
        memcpy((char *)recv + r * count * dtype_bytes(dt), send, count * dtype_bytes(dt));
    for (int i = 0; i < c->n; i++)
        for (int at = c->sets[i].first; c->sets[i].call == c->calls && at < c->sets[i].end; at++)
            of_first[at] = c->sets[i].value;
    c->calls++;
    return TITAN_OK;
}

static titan_status give(struct comm *c, void *data, size_t bytes, int root, struct stream *s)
{
    (void)c;
    (void)root;
    (void)s;
    memset(data, 0, bytes);
    return TITAN_OK;
}

static const struct comm_ops echo_ops = {.all_gather = echo, .broadcast = give};

static struct peer_ranks ranks_of(struct comm *comm)
{
    return (struct peer_ranks){.device = &memory_device, .ops = &echo_ops, .comm = comm, .n = WORLD};
}

static const double wrong[] = {NAN, INFINITY, -INFINITY, 1e300, -1e300, 0.5, -2};

static struct recipe recipe;
static struct model *model;
static struct layout *cut;

static int set_up(void **state)
{
    struct titan_error err = {0};
    struct mesh mesh;
    (void)state;
    recipe_init(&recipe);
    if (recipe_load(&recipe, TITAN_SOURCE_DIR "/recipes/tiny.toml", &err) != TITAN_OK ||
        recipe_resolve(&recipe, &err) != TITAN_OK || model_open(&recipe.model.dims, &model, &err) != TITAN_OK ||
        mesh_build(&recipe, WORLD, &mesh, &err) != TITAN_OK ||
        layout_of_recipe(&recipe, model, &mesh, &cut, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    layout_close(cut);
    model_close(model);
    return 0;
}

static double words(const char eight[8])
{
    double d;
    memcpy(&d, eight, sizeof d);
    return d;
}

static void expect_refused(titan_status status, const struct titan_error *err, const char *says)
{
    if (status != TITAN_ECONFLICT || !strstr(err->msg, says))
        fail_msg("%s '%s', not: %s", titan_status_name(status), err->msg, says);
}

/* --- what is in memory -------------------------------------------------------------------------------------------- */

static const int holders[WORLD] = {0, 1};
static const struct epoch_view view = {.rank = 1, .world = WORLD, .holders = WORLD, .holder_ranks = holders};

static titan_status gather_holdings(const struct set *sets, int n, int64_t most, struct titan_error *err)
{
    struct comm comm = {.sets = sets, .n = n};
    const struct peer_ranks ranks = ranks_of(&comm);
    const struct brought mine = {.statistics_most = most};
    struct holdings h = {0};
    const titan_status status = holdings_gather(&view, cut, &mine, &ranks, &h, err);
    holdings_clear(&h);
    return status;
}

static void test_holdings(void **state)
{
    static const char *const fields[] = {
        "present",          "rank",          "world",        "total", "step",        "tokens",   "skipped",
        "skipped_in_a_row", "skipped_first", "skipped_last", "owner", "owner_total", "prepared", "statistics_size",
        "published",        "settled"};
    struct titan_error err = {0};
    char says[64];
    (void)state;
    assert_int_equal(ARRAY_SIZE(fields), sizeof(struct holding) / sizeof(double));
    for (int f = 0; f < (int)ARRAY_SIZE(fields); f++)
        for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
            const struct set set = {0, f, f + 1, wrong[i]};
            (void)snprintf(says, sizeof says, "rank 0 says %s ", fields[f]);
            expect_refused(gather_holdings(&set, 1, 100, &err), &err, says);
        }
    const struct set skipped[] = {{0, 4, 5, 7}, {0, 6, 7, 8}};
    expect_refused(gather_holdings(skipped, 2, 100, &err), &err, "rank 0 says skipped 8");
    const struct set statistics[] = {{0, 2, 3, WORLD}, {0, 13, 14, 101}};
    expect_refused(gather_holdings(statistics, 2, 100, &err), &err, "rank 0 says statistics_size 101");
    expect_refused(gather_holdings(statistics, 2, 101, &err), &err, "no rank holds any shard"); /* in range */
}

/* More statistics than a step can have: no room is made for them, and the state comes from elsewhere. */
static void test_statistics(void **state)
{
    struct titan_error err = {0};
    struct log log;
    struct train_state *own = NULL;
    (void)state;
    log_init(&log, "test", "%s", "");
    const struct state_options mine = {.device = &memory_device, .layout = cut, .rank = 1, .types.compute = DTYPE_F32};
    assert_int_equal(state_open(&mine, &own, &err), TITAN_OK);
    const struct set sets[] = {{0, 1, 2, 0}, {0, 3, 4, (double)layout_total(cut, 0)}, {0, 4, 5, 1}, {0, 10, 11, 1e12}};
    struct comm comm = {.sets = sets, .n = ARRAY_SIZE(sets)};
    struct epoch_view from_memory = view;
    from_memory.source = STATE_FROM_MEMORY;
    struct restore r = {.view = &from_memory,
                        .recipe = &recipe,
                        .model = model,
                        .ranks = ranks_of(&comm),
                        .log = &log,
                        .brought = {.shards.own = own, .prepared = true}};
    if (restore_agree(&r, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_false(r.covered || r.rolled_forward);
    assert_true(r.brought.statistics_most > 0 && r.brought.statistics_most < 1000000);
    restore_clear(&r);
    own->layout = NULL;
    state_close(own);
}

/* What the run has read, once the holdings are whole. */
static void test_course(void **state)
{
    static const struct {
        int place;
        const char *name;
    } fields[] = {{0, "step"},
                  {1, "samples"},
                  {2, "sources"},
                  {3, "first"},
                  {4, "from"},
                  {4 + MIXTURE_MAX, "branches"},
                  {5 + MIXTURE_MAX, "branch"},
                  {5 + MIXTURE_MAX + 2 * CHECKPOINT_BRANCHES_MAX, "from_step"}};
    const struct run_identity identity = {
        .known = true, .samples = 7, .data = {.n = 1, .first = 3}, .line = {.n = 1, .branch = {{1, 1}}}};
    struct titan_error err = {0};
    struct log log;
    struct train_state *own = NULL;
    (void)state;
    log_init(&log, "test", "%s", "");
    const struct state_options mine = {.device = &memory_device, .layout = cut, .rank = 1, .types.compute = DTYPE_F32};
    assert_int_equal(state_open(&mine, &own, &err), TITAN_OK);
    for (size_t f = 0; f < ARRAY_SIZE(fields); f++)
        for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
            const struct set sets[] = {{0, 1, 2, 0},
                                       {0, 3, 4, (double)layout_total(cut, 0)},
                                       {1, fields[f].place, fields[f].place + 1, wrong[i]}};
            struct comm comm = {.sets = sets, .n = ARRAY_SIZE(sets)};
            struct epoch_view from_memory = view;
            char says[64];
            from_memory.source = STATE_FROM_MEMORY;
            struct restore r = {.view = &from_memory,
                                .recipe = &recipe,
                                .identity = &identity,
                                .model = model,
                                .ranks = ranks_of(&comm),
                                .log = &log,
                                .brought = {.shards.own = own}};
            (void)snprintf(says, sizeof says, "rank 0 says %s ", fields[f].name);
            expect_refused(restore_agree(&r, &err), &err, says);
            restore_clear(&r);
        }
    own->layout = NULL;
    state_close(own);
}

/* --- hashes ------------------------------------------------------------------------------------------------------- */

static void test_hashes(void **state)
{
    static const char *const fields[] = {
        "own.rank",   "own.whole.low",   "own.whole.high",   "own.parameters.low",   "own.parameters.high",
        "owner.rank", "owner.whole.low", "owner.whole.high", "owner.parameters.low", "owner.parameters.high",
        "bytes.low",  "bytes.high"};
    struct titan_error err = {0};
    char says[64];
    (void)state;
    for (int f = 0; f < (int)ARRAY_SIZE(fields); f++)
        for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
            const struct set set = {0, f, f + 1, wrong[i]};
            struct comm comm = {.sets = &set, .n = 1};
            const struct peer_ranks ranks = ranks_of(&comm);
            struct verified v;
            (void)snprintf(says, sizeof says, "rank 0 says %s ", fields[f]);
            expect_refused(verify_shards(&cut->mesh, &(struct held_shards){0}, 0, &ranks, &v, &err), &err, says);
        }
}

/* --- checkpoints -------------------------------------------------------------------------------------------------- */

/* As a departing rank, with a folder of the run's or one that the recipe names: rank 0 alone looks into it. */
static titan_status fill(const char *folder, const char *initial, const struct set *sets, int n,
                         struct titan_error *err)
{
    static struct recipe with;
    struct comm comm = {.sets = sets, .n = n};
    struct log log;
    const struct epoch_view departing = {.rank = 1, .world = 1, .departing = 1};
    log_init(&log, "test", "%s", "");
    with = recipe;
    (void)snprintf(with.checkpoint.initial_load_path, sizeof with.checkpoint.initial_load_path, "%s", initial);
    struct restore r = {
        .view = &departing, .recipe = &with, .model = model, .ranks = ranks_of(&comm), .log = &log, .folder = folder};
    return restore_fill(&r, cut, NULL, err);
}

static void test_listing(void **state)
{
    enum { UNREADABLE, N, STEPS, BRANCHES = 64, NEWEST, ON_LINE, WHY, PLACE = WHY + 48, END = PLACE + PATH_MAX / 8 };
    struct titan_error err = {0};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        const struct set unreadable = {0, UNREADABLE, UNREADABLE + 1, wrong[i]}, n = {0, N, N + 1, wrong[i]},
                         steps[] = {{0, N, N + 1, 2}, {0, STEPS + 1, STEPS + 2, wrong[i]}};
        expect_refused(fill("/nowhere", "", &unreadable, 1, &err), &err, "rank 0 says unreadable ");
        expect_refused(fill("/nowhere", "", &n, 1, &err), &err, "rank 0 says n ");
        expect_refused(fill("/nowhere", "", steps, 2, &err), &err, "rank 0 says steps ");
        const struct set line[] = {{0, BRANCHES, BRANCHES + 1, wrong[i]},
                                   {0, NEWEST, NEWEST + 1, wrong[i]},
                                   {0, ON_LINE, ON_LINE + 1, wrong[i]}};
        static const char *const names[] = {"branches ", "newest ", "on_line "};
        for (size_t f = 0; f < ARRAY_SIZE(line); f++) {
            char says[64];
            (void)snprintf(says, sizeof says, "rank 0 says %s", names[f]);
            expect_refused(fill("/nowhere", "", &line[f], 1, &err), &err, says);
        }
    }
    const struct set many = {0, N, N + 1, 63}, wordless = {0, UNREADABLE, UNREADABLE + 1, 1},
                     endless = {0, WHY, PLACE, words("no end--")}, nowhere = {0, PLACE, END, words("/no/end/")};
    expect_refused(fill("/nowhere", "", &many, 1, &err), &err, "rank 0 says n 63");
    expect_refused(fill("/nowhere", "", &wordless, 1, &err), &err, "rank 0 says no why");
    expect_refused(fill("/nowhere", "", &endless, 1, &err), &err, "rank 0 says why of 384 bytes without an end");
    expect_refused(fill("/nowhere", "", &nowhere, 1, &err), &err, "rank 0 says place of 4096 bytes without an end");
    /* What is in range: there is a checkpoint, and as this rank reads nothing of it, it has no fault. */
    const struct set one[] = {{0, N, N + 1, 1}, {0, STEPS, STEPS + 1, 10}};
    assert_int_equal(fill("/nowhere", "", one, 2, &err), TITAN_OK);
}

static void test_vote(void **state)
{
    enum { OUTCOME, WHY, END = WHY + 48 };
    const struct set listed[] = {{0, 1, 2, 1}, {0, 2, 3, 10}};
    struct titan_error err = {0};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        const struct set sets[] = {listed[0], listed[1], {1, OUTCOME, OUTCOME + 1, wrong[i]}};
        expect_refused(fill("/nowhere", "", sets, 3, &err), &err, "rank 0 says outcome ");
    }
    const struct set above[] = {listed[0], listed[1], {1, OUTCOME, OUTCOME + 1, 6}},
                     endless[] = {listed[0], listed[1], {1, WHY, END, words("no end--")}};
    expect_refused(fill("/nowhere", "", above, 3, &err), &err, "rank 0 says outcome 6");
    expect_refused(fill("/nowhere", "", endless, 3, &err), &err, "rank 0 says why of 384 bytes without an end");
}

static titan_status agree(struct attempt *a, const struct set *sets, int n, struct titan_error *err)
{
    struct comm comm = {.sets = sets, .n = n};
    *a = (struct attempt){.stop = 1};
    const struct peer_ranks ranks = ranks_of(&comm);
    return attempt_agree(&ranks, a, err);
}

static void test_attempt(void **state)
{
    static const char *const fields[] = {"failed", "stop", "must"};
    struct titan_error err = {0};
    struct attempt a;
    char says[64];
    (void)state;
    for (int f = 0; f < (int)ARRAY_SIZE(fields); f++)
        for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
            const struct set set = {0, f, f + 1, wrong[i]};
            (void)snprintf(says, sizeof says, "rank 0 says %s ", fields[f]);
            expect_refused(agree(&a, &set, 1, &err), &err, says);
        }
    const struct set endless = {0, 3, 3 + PEER_WORDS / 8, words("no end--")},
                     failed[] = {{0, 0, 1, 1}, {0, 1, 2, 0}, {0, 2, 3, 1}, {0, 3, 4, words("no disk")}};
    expect_refused(agree(&a, failed, 1, &err), &err, "rank 0 says no why");
    expect_refused(agree(&a, &endless, 1, &err), &err, "rank 0 says why of 384 bytes without an end");
    assert_int_equal(agree(&a, failed, ARRAY_SIZE(failed), &err), TITAN_OK);
    assert_true(a.failed == 1 && a.stop == 1 && a.must == 1);
    assert_string_equal(a.why, "no disk");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_holdings), cmocka_unit_test(test_statistics), cmocka_unit_test(test_course),
        cmocka_unit_test(test_hashes),   cmocka_unit_test(test_listing),    cmocka_unit_test(test_vote),
        cmocka_unit_test(test_attempt),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
