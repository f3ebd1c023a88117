/* build.h and check.h: programs of every kind pass; a program with one action dropped, doubled, exchanged or bent does
 * not; memory stays within what formulas say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "worker/plan/build.h"
#include "worker/plan/check.h"

static const struct model_dims dims = {.dim = 64,
                                       .n_layers = 3,
                                       .n_heads = 4,
                                       .n_kv_heads = 2,
                                       .ffn_hidden = 128,
                                       .vocab_size = 256,
                                       .rope_theta = 1e4,
                                       .norm_eps = 1e-5};

static size_t work_bytes(struct device *dev, enum dtype dt, int64_t b, int64_t t, int64_t h, int64_t kv, int64_t d)
{
    (void)dev;
    (void)dt;
    return (size_t)(b * t * h * kv * d);
}

static const struct device_ops sizes = {.attention_work_bytes = work_bytes};

struct variant {
    int world;
    int64_t microbatches;
    enum reshard reshard;
    bool canonical, recompute;
    enum dtype dt;
    int prefetch;
};

struct fixture {
    struct model *model;
    struct layout *layout;
    struct layer_ctx shape;
    struct build_options options;
};

static void set_up(struct fixture *f, const struct variant *v)
{
    memset(f, 0, sizeof *f);
    assert_int_equal(model_open(&dims, &f->model, NULL), TITAN_OK);
    assert_int_equal(layout_open(f->model, v->world, &f->layout, NULL), TITAN_OK);
    f->shape = (struct layer_ctx){.ops = &sizes, .model = f->model, .dt = v->dt, .b = 2, .t = 32};
    f->options = (struct build_options){.layout = f->layout,
                                        .shape = &f->shape,
                                        .microbatches = v->microbatches,
                                        .reshard = v->reshard,
                                        .prefetch = v->prefetch,
                                        .canonical = v->canonical,
                                        .recompute = v->recompute};
}

static void tear_down(struct fixture *f)
{
    layout_close(f->layout);
    model_close(f->model);
}

static struct program *build(const struct fixture *f, int rank)
{
    struct program *p = NULL;
    struct titan_error err = {0};
    if (program_build(&f->options, rank, &p, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return p;
}

static void test_all_variants_pass(void **state)
{
    (void)state;
    int n = 0;
    for (int world = 1; world <= 7; world++)
        for (int64_t mbs = 1; mbs <= 9; mbs += 2)
            for (int kind = 0; kind < 3 * 2 * 2 * 3; kind++) {
                const struct variant v = {.world = world,
                                          .microbatches = mbs,
                                          .reshard = (enum reshard)(kind % 3),
                                          .canonical = kind / 3 % 2,
                                          .recompute = kind / 6 % 2,
                                          .prefetch = kind / 12,
                                          .dt = kind % 2 ? DTYPE_BF16 : DTYPE_F32};
                struct fixture f;
                struct titan_error err = {0};
                struct program *first = NULL;
                set_up(&f, &v);
                for (int rank = 0; rank < world; rank++, n++) {
                    struct program *p = build(&f, rank);
                    if (program_check(p, 0, &err) != TITAN_OK ||
                        (first && program_check_pair(first, p, &err) != TITAN_OK))
                        fail_msg("world %d, %ld microbatches, kind %d: %s", world, (long)mbs, kind, err.msg);
                    program_close(first);
                    first = p;
                }
                program_close(first);
                tear_down(&f);
            }
    assert_true(n > 4000);
}

/* --- mutations
 * ------------------------------------------------------------------------------------------------------------- */

static void drop(struct program *p, int i)
{
    memmove(&p->actions[i], &p->actions[i + 1], (size_t)(p->n_actions - i - 1) * sizeof *p->actions);
    p->n_actions--;
}

static void duplicate(struct program *p, int i)
{
    p->actions = realloc(p->actions, (size_t)(p->n_actions + 1) * sizeof *p->actions);
    memmove(&p->actions[i + 1], &p->actions[i], (size_t)(p->n_actions - i) * sizeof *p->actions);
    p->n_actions++;
}

/* Refused alone or beside another rank's program. Lifetimes, memory and waits are made anew, so that only meaning
 * counts. */
static bool refused(struct program *p, const struct program *other)
{
    struct titan_error err = {0};
    if (program_finish(p, &err) != TITAN_OK || program_check(p, 0, &err) != TITAN_OK)
        return true;
    return other && program_check_pair(other, p, &err) != TITAN_OK;
}

static const struct variant mutated[] = {
    {.world = 1, .microbatches = 3, .dt = DTYPE_F32, .prefetch = 1},
    {.world = 3, .microbatches = 5, .dt = DTYPE_BF16, .prefetch = 1},
    {.world = 2, .microbatches = 4, .dt = DTYPE_BF16, .prefetch = 1, .reshard = RESHARD_NEVER, .recompute = true},
    {.world = 3, .microbatches = 7, .dt = DTYPE_F32, .prefetch = 2, .canonical = true},
};

static void test_drop_and_duplicate(void **state)
{
    (void)state;
    int n = 0;
    for (size_t k = 0; k < ARRAY_SIZE(mutated); k++) {
        struct fixture f;
        set_up(&f, &mutated[k]);
        struct program *other = mutated[k].world > 1 ? build(&f, 0) : NULL;
        const int rank = mutated[k].world > 1;
        struct program *p = build(&f, rank);
        const int actions = p->n_actions;
        program_close(p);
        for (int i = 0; i < actions; i++)
            for (int how = 0; how < 2; how++, n++) {
                p = build(&f, rank);
                const enum action_kind kind = p->actions[i].kind;
                const bool recompute = kind == ACT_LAYER_FORWARD && p->actions[i].n_out == 1;
                (how == 0 ? drop : duplicate)(p, i);
                /* Harmless twice: the same data to the same place. */
                const bool harmless =
                    how == 1 && (kind == ACT_LOAD || kind == ACT_ZERO || kind == ACT_PACK || recompute);
                if (refused(p, other) == harmless)
                    fail_msg("variant %zu: %s action %d (%s) %s", k, how == 0 ? "dropped" : "doubled", i,
                             action_name(kind), harmless ? "refused" : "not noticed");
                program_close(p);
            }
        program_close(other);
        tear_down(&f);
    }
    assert_true(n > 500);
}

/* Neighbours exchanged: refused, unless they have nothing to do with each other on this rank and are not both
 * collectives. */
static void test_exchange(void **state)
{
    (void)state;
    int noticed = 0;
    for (size_t k = 0; k < ARRAY_SIZE(mutated); k++) {
        struct fixture f;
        set_up(&f, &mutated[k]);
        struct program *other = mutated[k].world > 1 ? build(&f, 0) : NULL;
        const int rank = mutated[k].world > 1;
        struct program *p = build(&f, rank);
        const int actions = p->n_actions;
        program_close(p);
        for (int i = 0; i + 1 < actions; i++) {
            p = build(&f, rank);
            struct action a = p->actions[i], b = p->actions[i + 1];
            p->actions[i] = b;
            p->actions[i + 1] = a;
            bool related = action_is_collective(a.kind) && action_is_collective(b.kind);
            for (int x = 0; x < a.n_out; x++) {
                for (int y = 0; y < b.n_in; y++)
                    related = related || a.out[x] == b.in[y];
                for (int y = 0; y < b.n_out; y++)
                    related = related || (a.out[x] == b.out[y] && action_adds(&b, y));
            }
            related = related && !(a.kind == ACT_GATHER && b.kind == ACT_GATHER && a.unit == b.unit);
            const bool no = refused(p, other);
            if (related && !no)
                fail_msg("variant %zu: actions %d (%s) and %d (%s) exchanged, not noticed", k, i, action_name(a.kind),
                         i + 1, action_name(b.kind));
            noticed += no;
            program_close(p);
        }
        program_close(other);
        tear_down(&f);
    }
    assert_true(noticed > 50);
}

/* Every wait is needed, every offset matters. */
static void test_waits_and_memory(void **state)
{
    (void)state;
    int waits = 0;
    struct titan_error err = {0};
    for (size_t k = 1; k < ARRAY_SIZE(mutated); k++) {
        struct fixture f;
        set_up(&f, &mutated[k]);
        struct program *p = build(&f, 1);
        for (int i = 0; i < p->n_actions; i++) {
            const int wait = p->actions[i].wait;
            if (wait < 0)
                continue;
            p->actions[i].wait = -1;
            if (program_check(p, 0, &err) == TITAN_OK)
                fail_msg("variant %zu: action %d (%s) without its wait for %d is not noticed", k, i,
                         action_name(p->actions[i].kind), wait);
            p->actions[i].wait = wait;
            waits++;
        }
        for (int i = 0; i < p->n_buffers; i++) {
            struct buffer *b = &p->buffers[i];
            if (b->external || b->first < 0)
                continue;
            const int last = b->last;
            b->last = b->first; /* a life cut short */
            if (last > b->first)
                assert_int_not_equal(program_check(p, 0, &err), TITAN_OK);
            b->last = last;
        }
        assert_int_equal(program_check(p, 0, &err), TITAN_OK);
        program_close(p);
        tear_down(&f);
    }
    assert_true(waits > 30);
}

static void test_too_large(void **state)
{
    (void)state;
    struct fixture f;
    struct titan_error err = {0};
    set_up(&f, &mutated[0]);
    struct program *p = build(&f, 0);
    const uint64_t need = p->arena_bytes + p->external_bytes;
    assert_int_equal(program_check(p, need, &err), TITAN_OK);
    assert_int_equal(program_check(p, need - 1, &err), TITAN_EUNPLACEABLE);
    assert_non_null(strstr(err.msg, "GiB"));
    program_close(p);
    tear_down(&f);
}

/* Resharding bounds gathered parameters to the units in flight; recomputation frees activations. */
static size_t arena_of(const struct variant *v)
{
    struct fixture f;
    set_up(&f, v);
    struct program *p = build(&f, 0);
    const size_t bytes = p->arena_bytes;
    program_close(p);
    tear_down(&f);
    return bytes;
}

static void test_memory_of_choices(void **state)
{
    (void)state;
    struct variant v = {.world = 4, .microbatches = 4, .dt = DTYPE_BF16, .prefetch = 1};
    const size_t normal = arena_of(&v);
    v.reshard = RESHARD_NEVER;
    assert_true(arena_of(&v) > normal);
    v.reshard = RESHARD_DEFAULT;
    v.recompute = true;
    assert_true(arena_of(&v) < normal);
}

static void test_print(void **state)
{
    (void)state;
    struct fixture f;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    set_up(&f, &mutated[1]);
    struct program *p = build(&f, 2);
    program_print(p, &text);
    assert_false(buf_failed(&text));
    assert_non_null(strstr(text.data, "rank 2 of 3"));
    assert_non_null(strstr(text.data, "LAYER_WGRAD"));
    program_close(p);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_variants_pass),
        cmocka_unit_test(test_drop_and_duplicate),
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_waits_and_memory),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_memory_of_choices),
        cmocka_unit_test(test_print),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
