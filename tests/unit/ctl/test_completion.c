/* SPDX-License-Identifier: Apache-2.0 */
/* test_completion.c - what is offered for a word, without a server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "ctl/completion.h"

enum { WORDS = 16 };

/* The candidates for a line, blanks between them; '_' stands for the empty word. Freed by the caller. */
static char *complete(const char *line)
{
    char copy[256], *words[WORDS], *text = NULL;
    size_t len = 0;
    int n = 0;
    (void)snprintf(copy, sizeof(copy), "%s", line);
    for (char *word = strtok(copy, " "); word && n < WORDS; word = strtok(NULL, " "))
        words[n++] = strcmp(word, "_") == 0 ? word + 1 : word;
    FILE *out = open_memstream(&text, &len), *before = stdout;
    assert_non_null(out);
    stdout = out;
    completion_print(n, words);
    stdout = before;
    (void)fclose(out);
    for (char *c = text; *c; c++)
        *c = *c == '\n' ? ' ' : *c;
    return text;
}

static void offers(const char *line, const char *expected)
{
    _cleanup_free_ char *text = complete(line);
    if (strcmp(text, expected) != 0)
        fail_msg("'%s': got \"%s\", expected \"%s\"", line, text, expected);
}

static void test_words(void **state)
{
    (void)state;
    offers("st", "status ");
    offers("-s unix:/x su", "submit ");
    offers("--server=unix:/x su", "submit ");
    offers("-o _", "table json ");
    offers("-o j", "json ");
    offers("-ojson sub", "submit ");
    offers("help st", "status ");
    offers("completion _", "bash zsh fish ");
    offers("list --state CANCEL", "CANCELLING CANCELLED ");
    offers("frobnicate", "");
    offers("frobnicate _", "");
    offers("submit _", ":files ");
    offers("plan run.toml --picture _", ":files ");
    offers("list --limit _", "");
}

static void test_options(void **state)
{
    (void)state;
    offers("--ser", "--server ");
    offers("submit --fol", "--follow ");
    offers("submit --ser", "--server-gone --server ");
    offers("submit run.toml --idem", "--idempotency-key ");
    offers("list --foll", "");
    offers("list --state --ser", ""); /* a value, whatever it looks like */
}

/* bash takes words apart at '=' and ':'. */
static void test_breaks(void **state)
{
    (void)state;
    offers("list --state = FAI", "FAILED ");
    offers("list --output = _", "table json ");
    offers("list --output =", "table json ");
    offers("-s unix : /x lis", "list ");
    offers("-s 127.0.0.1 : 7070 lis", "list ");
}

/* No server answers: nothing is offered, and nothing is said. */
static void test_no_server(void **state)
{
    (void)state;
    offers("-s unix:/nowhere/titan.sock status _", "");
    offers("-s unix:/nowhere/titan.sock drain _", "");
    offers("-o nonsense status _", "");
    offers("status -- -", "");
}

int main(void)
{
    (void)setenv("TITAN_SERVER", "unix:/nowhere/titan.sock", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words), cmocka_unit_test(test_options),
                                       cmocka_unit_test(test_breaks), cmocka_unit_test(test_no_server)};
    return cmocka_run_group_tests_name("completion", tests, NULL, NULL);
}
