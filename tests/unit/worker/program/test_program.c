/* SPDX-License-Identifier: Apache-2.0 */
/* program.h and emit.h on random programs: buffers alive together lie apart, the arena is near its lower bound, and
 * waits order exactly what must be ordered, by the plain definition over all pairs of actions. The seed is printed. */
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
#include "tests/support/seeded.h"
#include "worker/plan/recompute.h"

#define ACTIONS 160

static uint64_t drawn;

static int draw(int n)
{
    return (int)(hash_draw(&drawn) % (uint64_t)n);
}

static const struct layout layout = {.mesh = {.world = 1, .size = {1, 1, 1, 1, 1}, .ep = 1}};

/* Buffers come and go; actions on random streams touch parts of a few of them. */
static struct program *random_program(void)
{
    struct emitter e;
    int alive[8];

    assert_int_equal(emit_open(&layout, 0, &e, NULL), TITAN_OK);
    for (int i = 0; i < 8; i++)
        alive[i] = emit_buffer(&e, i == 0 ? BUF_SHARD : BUF_WORK, "b", (size_t)(64 + 64 * draw(40)));
    for (int i = 0; i < ACTIONS; i++) {
        const int renewed = 1 + draw(7);
        if (draw(4) == 0)
            alive[renewed] = emit_buffer(&e, BUF_WORK, "b", (size_t)(64 + 64 * draw(40)));
        e.stream = (enum stream_id)draw(5);
        emit_action(&e, OP_COPY, NULL);
        for (int k = 1 + draw(3); k > 0; k--) {
            const int b = alive[draw(8)], rows = (int)(e.p->buffers[b].bytes / 64), from = draw(rows);
            emit_operand(&e, tensor_at(b, (size_t)from * 64, DTYPE_U8, 1 + draw(rows - from), 64),
                         (enum access)(1 + draw(3)));
        }
    }
    assert_int_equal(e.status, TITAN_OK);
    assert_int_equal(program_finish(e.p, NULL), TITAN_OK);
    return e.p;
}

static size_t address(const struct program *p, const struct operand *o)
{
    const struct buffer *b = &p->buffers[o->buffer];
    return (buffer_is_external(b->kind) ? p->arena_bytes : b->offset) + o->offset;
}

static bool conflict(const struct program *p, int i, int j)
{
    const struct operand *x = action_operands(p, &p->actions[i]), *y = action_operands(p, &p->actions[j]);

    for (int a = 0; a < p->actions[i].n_operands; a++)
        for (int b = 0; b < p->actions[j].n_operands; b++)
            if (((x[a].access | y[b].access) & ACCESS_WRITE) && address(p, &x[a]) < address(p, &y[b]) + y[b].bytes &&
                address(p, &y[b]) < address(p, &x[a]) + x[a].bytes)
                return true;
    return false;
}

/* before[j][i]: i is over before j begins, leaving out one wait. Returns whether all conflicts are ordered. */
static bool ordered(const struct program *p, int without)
{
    static bool before[ACTIONS][ACTIONS];

    memset(before, 0, sizeof before);
    for (int j = 0; j < p->n_actions; j++) {
        const struct action *a = &p->actions[j];
        for (int i = 0; i < j; i++) {
            bool direct = p->actions[i].stream == a->stream;
            for (int k = 0; k < a->n_waits; k++)
                direct |= a->wait + k != without && p->waits[a->wait + k] == i;
            for (int k = 0; direct && k <= i; k++)
                before[j][k] |= k == i || before[i][k];
        }
        for (int i = 0; i < j; i++)
            if (!before[j][i] && conflict(p, i, j))
                return false;
    }
    return true;
}

static void test_waits(void **state)
{
    (void)state;
    print_message("seed %llu\n", (unsigned long long)drawn);
    for (int round = 0; round < 12; round++) {
        struct program *p = random_program();
        assert_true(ordered(p, -1));
        for (int tries = 0; tries < 12; tries++) /* none is too many */
            assert_false(ordered(p, draw(p->n_waits)));
        program_close(p);
    }
}

static void test_arena(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct program *p = random_program();
        for (int i = 0; i < p->n_buffers; i++)
            for (int j = 0; j < i; j++) {
                const struct buffer *a = &p->buffers[i], *b = &p->buffers[j];
                if (buffer_is_external(b->kind) || a->first < 0 || b->first < 0 || a->first > b->last ||
                    b->first > a->last)
                    continue;
                assert_true(a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset);
            }
        const size_t peak = program_peak(p, NULL, NULL);
        assert_true(p->arena_bytes >= peak && p->arena_bytes <= peak + peak / 2);
        program_close(p);
    }
}

/* a = f(x); b = g(a); b changed in place; c = h(a, b). */
static bool keep_first(void *arg, const struct action *a, int buffer)
{
    (void)a;
    return buffer == *(int *)arg;
}

static void test_again(void **state)
{
    struct emitter e;

    (void)state;
    assert_int_equal(emit_open(&layout, 0, &e, NULL), TITAN_OK);
    struct tensor x = emit_tensor(&e, BUF_ACTIVATION, "x", DTYPE_F32, 4, 4), a = x, b = x, c = x;
    a.buffer = emit_buffer(&e, BUF_ACTIVATION, "a", 64);
    b.buffer = emit_buffer(&e, BUF_ACTIVATION, "b", 64);
    c.buffer = emit_buffer(&e, BUF_ACTIVATION, "c", 64);
    EMIT(&e, zero, x);
    const int from = e.p->n_actions;
    emit_copy(&e, a, x);
    emit_copy(&e, b, a);
    EMIT(&e, add_2d, b, x);
    EMIT(&e, add, c, a, b);
    const int to = e.p->n_actions;
    struct tensor again = b;
    recompute_actions(&e, (struct action_range){from, to}, keep_first, &a.buffer, (struct tensor *const[]){&again}, 1);
    assert_int_equal(e.p->n_actions - to, 2); /* b and its change; a is kept, c not needed */
    assert_int_not_equal(again.buffer, b.buffer);
    const struct operand *first = action_operands(e.p, &e.p->actions[to]);
    const struct operand *second = action_operands(e.p, &e.p->actions[to + 1]);
    assert_int_equal(first[0].buffer, again.buffer);
    assert_int_equal(first[1].buffer, a.buffer);
    assert_int_equal(second[0].buffer, again.buffer);
    assert_int_equal(e.p->actions[to].phase, PHASE_RECOMPUTE);
    /* Keeping b, which is changed in place by what c needs? c alone is made again, from b as it is. */
    struct tensor last = c;
    const int end = e.p->n_actions;
    recompute_actions(&e, (struct action_range){from, to}, keep_first, &b.buffer, (struct tensor *const[]){&last}, 1);
    assert_int_equal(e.p->n_actions - end, 2); /* a and c */
    program_close(e.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_waits), cmocka_unit_test(test_arena),
                                       cmocka_unit_test(test_again)};

    drawn = seeded_seed(0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
