/* SPDX-License-Identifier: Apache-2.0 */
/* ops.def as its readers see it: names, numbers, which operands an action takes, and writers that refuse what does not
 * fit. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "tests/support/child.h"
#include "worker/program/emit.h"

static void names_are_of_one_operation(void **state)
{
    (void)state;
    for (int i = 0; i < OP_COUNT; i++) {
        const char *numbers = op_numbers((enum op)i);
        int n = 0;
        for (int j = 0; j < i; j++)
            assert_string_not_equal(op_name((enum op)i), op_name((enum op)j));
        for (const char *c = numbers; c && *c; c++)
            n += *c == ' ';
        assert_true(n <= op_words((enum op)i) && op_words((enum op)i) <= OP_WORDS);
        assert_true(numbers || op_words((enum op)i) == OP_PARTS);
    }
    assert_string_equal(op_name(OP_SWIGLU_DGRAD), "SWIGLU_DGRAD");
    assert_string_equal(op_numbers(OP_SWIGLU_DGRAD), "N F lddgu ldgu parts ");
    assert_string_equal(op_numbers(OP_RMSNORM), "N C "); /* eps is none that is printed */
    assert_int_equal(op_words(OP_RMSNORM), 3);
    assert_int_equal(OPERAND_OF(swiglu_dgrad, gate), 3);
}

/* "access name access name ..." of those that it takes when it has n. */
static void takes(enum op op, const struct op_params *params, int n, int want, const char *operands)
{
    struct operand_form forms[FORMS_MAX];
    char text[256] = "";
    const int count = op_forms(op, params, 4, n, forms);

    assert_int_equal(count, want);
    for (int k = 0; k < count && strlen(text) < 200; k++) {
        const size_t at = strlen(text);
        (void)snprintf(text + at, sizeof text - at, "%s%c %s", k > 0 ? " " : "", " rwu"[forms[k].access],
                       forms[k].name);
    }
    assert_string_equal(text, operands);
}

static void operands_depend_on_flags_and_number(void **state)
{
    (void)state;
    takes(OP_ATTENTION, &(struct op_params){0}, 8, 5, "w out w lse r q r k r v");
    takes(OP_ATTENTION, &(struct op_params){.flags = OP_MASKED}, 6, 8,
          "w out w lse r q r k r v r index r start r key_index");
    takes(OP_LOSS_FINISH, &(struct op_params){.flags = OP_NO_GRADIENT}, 5, 4, "w losses r logits r targets r stats");
    takes(OP_LOSS, &(struct op_params){0}, 5, 5, "w losses w stats r logits r targets w dlogits");
    takes(OP_LOSS, &(struct op_params){.flags = OP_NO_GRADIENT}, 5, 4, "w losses w stats r logits r targets");
    takes(OP_ROUTE, &(struct op_params){0}, 3, 3, "w chosen w weights r logits");
    takes(OP_ROUTE, &(struct op_params){0}, 4, 4, "w chosen w weights r logits u expert_tokens");
    takes(OP_ROUTE, &(struct op_params){.flags = OP_BIASED}, 4, 4, "w chosen w weights r logits r bias");
    takes(OP_ROUTE, &(struct op_params){.flags = OP_BIASED}, 9, 5,
          "w chosen w weights r logits r bias u expert_tokens");
    takes(OP_ROUTE, &(struct op_params){.flags = OP_ROUND_ROBIN}, 4, 4, "w chosen w weights r logits r index");
    takes(OP_ROUTE, &(struct op_params){.flags = OP_ROUND_ROBIN | OP_BIASED}, 9, 6,
          "w chosen w weights r logits r index r bias u expert_tokens");
    takes(OP_MATMUL, &(struct op_params){.flags = OP_ADD_TO}, 3, 3, "u c r a r b");
    takes(OP_MATMUL, &(struct op_params){0}, 3, 3, "w c r a r b");
    takes(OP_MATMUL, &(struct op_params){.flags = OP_F8}, 4, 4, "w c r a r b w work");
    takes(OP_MATMUL, &(struct op_params){.flags = OP_F8 | OP_F8_B_CODES}, 5, 5, "w c r a r b w work r b_scale");
    takes(OP_MATMUL, &(struct op_params){.flags = OP_F8 | OP_F8_GIVEN}, 6, 6, "w c r a r b w work r a_given r b_given");
    takes(OP_MATMUL, &(struct op_params){.flags = OP_F8 | OP_F8_GIVEN | OP_F8_B_CODES}, 6, 6,
          "w c r a r b w work r b_scale r a_given");
    takes(OP_PACK, &(struct op_params){0}, 1, 1, "w slices"); /* a rank without a microbatch */
    takes(OP_PACK, &(struct op_params){0}, 3, 3, "w slices r gradient r gradient");
    takes(OP_ALL_GATHER, &(struct op_params){0}, 3, 4, "w out r in w out r in");
    takes(OP_ENCODE, &(struct op_params){.encode = {.codec = CODEC_INT4}}, 2, 2, "w codes r x");
    takes(OP_ENCODE, &(struct op_params){.encode = {.codec = CODEC_INT4}}, 3, 3, "w codes r x r largest");
    takes(OP_ENCODE, &(struct op_params){.encode = {.codec = CODEC_LOCO}}, 2, 3, "w codes r x u error");
    takes(OP_ENCODE, &(struct op_params){.encode = {.codec = CODEC_LOCO}}, 4, 4, "w codes r x u error r largest");
}

static void sizes_follow_from_numbers(void **state)
{
    struct operand_form forms[FORMS_MAX];
    const struct op_params product = {
        .matmul = {.M = 3, .N = 5, .K = 7, .lda = 3, .ldb = 6, .ldc = 10}, .flags = OP_TA | OP_F32, .dt = DTYPE_BF16};
    const struct op_params bucket = {.part = {10, 20}, .dt = DTYPE_F32};

    (void)state;
    assert_int_equal(op_forms(OP_MATMUL, &product, 1, 3, forms), 3);
    assert_int_equal(form_bytes(&forms[OPERAND_OF(matmul, c)]), (2 * 10 + 5) * 4);
    assert_int_equal(form_bytes(&forms[OPERAND_OF(matmul, a)]), 7 * 3 * 2); /* (K,M) */
    assert_int_equal(form_bytes(&forms[OPERAND_OF(matmul, b)]), (6 * 6 + 5) * 2);
    assert_true(op_flops(OP_MATMUL, &product) == 2.0 * 3 * 5 * 7);
    assert_int_equal(op_forms(OP_REDUCE_SCATTER, &bucket, 4, 4, forms), 4);
    assert_int_equal(form_bytes(&forms[2]), 20 * 4);
    assert_int_equal(form_bytes(&forms[3]), 4 * 20 * 4);
}

static const struct layout layout = {.mesh = {.world = 1, .size = {1, 1, 1, 1, 1}, .ep = 1}};

enum misuse { NONE_AT_ALL, FORGOTTEN, OTHER_SHAPE, OTHER_TYPE, LEFT_OUT };

static void write_sum(enum misuse how)
{
    struct emitter e;

    if (emit_open(&layout, 0, &e, NULL) != TITAN_OK)
        exit(1);
    const struct tensor a = emit_tensor(&e, BUF_WORK, "a", DTYPE_F32, 4, 8);
    const struct tensor b = emit_tensor(&e, BUF_WORK, "b", how == OTHER_TYPE ? DTYPE_I32 : DTYPE_F32, 4, 8);
    const struct tensor other = how == OTHER_SHAPE ? tensor_rows(b, 0, 3) : how == LEFT_OUT ? TENSOR_NONE : b;
    if (how == FORGOTTEN)
        EMIT(&e, add, .out = a, .a = a);
    else
        EMIT(&e, add, .out = a, .a = a, .b = other);
    const struct program *p = e.p;
    const bool written = e.status == TITAN_OK && p->n_actions == 1 && p->actions[0].n_operands == 3 &&
                         action_params(p, &p->actions[0])->add.n == 32 && p->operands[0].access == ACCESS_WRITE &&
                         p->operands[2].access == ACCESS_READ;
    program_close(e.p);
    exit(written ? 0 : 1);
}

/* A writer that is given what does not fit ends the process. */
static void misuse_is_a_bug(void **state)
{
    (void)state;
    for (int how = NONE_AT_ALL; how <= LEFT_OUT; how++) {
        int status;
        (void)fflush(NULL);
        const pid_t pid = child_fork();
        if (pid == 0) {
            (void)signal(SIGABRT, SIG_DFL);
            (void)!freopen("/dev/null", "w", stderr);
            write_sum((enum misuse)how);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (how == NONE_AT_ALL)
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        else
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_of_one_operation),
        cmocka_unit_test(operands_depend_on_flags_and_number),
        cmocka_unit_test(sizes_follow_from_numbers),
        cmocka_unit_test(misuse_is_a_bug),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
