/* SPDX-License-Identifier: Apache-2.0 */
/* labels.h: one text in one order; what is refused; what is found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/labels.h"

static void join(char *const *labels, size_t n, titan_status expected, const char *text)
{
    struct buf out = BUF_INIT;
    struct titan_error err = {0};
    assert_int_equal(labels_join(labels, n, "--label", &out, &err), expected);
    if (expected == TITAN_OK)
        assert_string_equal(out.len ? out.data : "", text);
    else
        assert_non_null(strstr(err.msg, text));
    buf_free(&out);
}

static void test_join(void **state)
{
    (void)state;
    join(NULL, 0, TITAN_OK, "");
    join((char *[]){"team=nlp", "optimizer.lr=3e-4", "a=", "ab=x=y"}, 4, TITAN_OK,
         "a=\nab=x=y\noptimizer.lr=3e-4\nteam=nlp\n");
}

static void test_refused(void **state)
{
    (void)state;
    char key[LABEL_KEY_MAX + 4], value[LABEL_VALUE_MAX + 4], *many[LABELS_MAX + 1], names[LABELS_MAX + 1][16];
    const char *const wrong[] = {"", "k", "=v", ".k=v", "-k=v", "a b=v", "k\n=v"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        join((char *[]){(char *)(uintptr_t)wrong[i]}, 1, TITAN_EINVAL, "KEY=VALUE");
    join((char *[]){"k=a\nb"}, 1, TITAN_EINVAL, "cannot be seen");
    join((char *[]){"k=\xff"}, 1, TITAN_EINVAL, "no UTF-8");
    join((char *[]){"k=a", "l=b", "k=c"}, 3, TITAN_EINVAL, "k is given twice");
    memset(key, 'k', sizeof(key));
    memcpy(key + LABEL_KEY_MAX + 1, "=v", 3);
    join((char *[]){key}, 1, TITAN_EINVAL, "at most 64 bytes");
    memset(value, 'v', sizeof(value));
    memcpy(value, "k=", 2);
    value[sizeof(value) - 1] = '\0';
    join((char *[]){value}, 1, TITAN_EINVAL, "128 for the value");
    for (size_t i = 0; i <= LABELS_MAX; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "k%zu=v", i);
        many[i] = names[i];
    }
    join(many, LABELS_MAX + 1, TITAN_EINVAL, "at most 32");
}

static void test_have(void **state)
{
    (void)state;
    const char *labels = "lr=1e-4\nteam=nlp\n";
    assert_true(labels_have(labels, "lr=1e-4") && labels_have(labels, "team=nlp") && labels_have(labels, "team"));
    assert_false(labels_have(labels, "lr=1e-") || labels_have(labels, "lr=1e-44") || labels_have(labels, "tea") ||
                 labels_have(labels, "nlp") || labels_have(labels, "r=1e-4") || labels_have("", "lr"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
