/* SPDX-License-Identifier: Apache-2.0 */
/* The table of methods and roles, cell by cell: what policy.c says against what is expected here, and what is served
 * against both. A method that is new, in the .proto, in api.c or in the table, fails until it has its line here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "daemon/auth/policy.h"
#include "daemon/api/methods.h"
#include "titan/internal/agent.pb-c.h"
#include "titan/internal/enrol.pb-c.h"
#include "titan/v1/titan.pb-c.h"

/* By role, what it may: all jobs, others' jobs unless they are private, its own jobs only. What is not named, it may
 * not.
 */
static const struct expected {
    enum policy_role role;
    const char *all, *seen, *own;
} expected[] = {
    {POLICY_UNAUTHENTICATED, "Enroll", "", ""},
    {POLICY_ANONYMOUS,
     "Submit GetJob GetRecipe ListJobs CancelJob RemoveJob ResizeJob CheckpointJob WatchEvents Logs Metrics "
     "ListCheckpoints "
     "ListNodes "
     "Counters Version ListCoordinators HandOver CheckNodes DrainNode UndrainNode ForgetNode RemoveNode Enroll",
     "", ""},
    {POLICY_USER, "Submit ListNodes Counters Version Enroll", "GetJob ListJobs WatchEvents Metrics ListCheckpoints",
     "GetRecipe CancelJob RemoveJob ResizeJob CheckpointJob Logs"},
    {POLICY_OPERATOR,
     "Submit GetJob GetRecipe ListJobs CancelJob RemoveJob ResizeJob CheckpointJob WatchEvents Logs Metrics "
     "ListCheckpoints "
     "ListNodes "
     "Counters Version ListCoordinators HandOver CheckNodes DrainNode UndrainNode ForgetNode RemoveNode Audit Enroll",
     "", ""},
    {POLICY_ADMIN,
     "Submit GetJob GetRecipe ListJobs CancelJob RemoveJob ResizeJob CheckpointJob WatchEvents Logs Metrics "
     "ListCheckpoints "
     "ListNodes "
     "Counters Version ListCoordinators HandOver CheckNodes DrainNode UndrainNode ForgetNode RemoveNode Audit Backup "
     "CreateToken ListTokens "
     "RevokeToken "
     "JoinNode ListJoins RevokeJoin RevokeCertificate Enroll",
     "", ""},
    {POLICY_NODE, "Version Session Enroll Renew", "", ""},
    {POLICY_SCRAPER, "Version Enroll", "", ""},
};
/* Calls that are on record when they succeed. */
static const char changing[] =
    "Submit CancelJob RemoveJob ResizeJob CheckpointJob DrainNode UndrainNode ForgetNode RemoveNode HandOver Backup "
    "CreateToken RevokeToken JoinNode RevokeJoin RevokeCertificate Enroll Renew";

static bool names(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
            return true;
    return false;
}

static void test_every_cell(void **state)
{
    (void)state;
    size_t cells = 0;
    assert_int_equal(ARRAY_SIZE(expected), POLICY_ROLES);
    for (unsigned m = POLICY_NOTHING + 1; m < POLICY_METHODS; m++) {
        const char *method = policy_method_short(m);
        bool served = false;
        for (size_t i = 0; i < ARRAY_SIZE(expected); i++, cells++) {
            const struct expected *e = &expected[i];
            enum policy_cell should = names(e->all, method)    ? POLICY_YES
                                      : names(e->seen, method) ? POLICY_VIEW
                                      : names(e->own, method)  ? POLICY_OWN
                                                               : POLICY_NO;
            enum policy_cell is = policy_look_up(m, POLICY_BIT(e->role));
            if (is != should)
                fail_msg("%s by role %d: %d, expected %d", method, (int)e->role, (int)is, (int)should);
            served |= is != POLICY_NO;
        }
        if (!served)
            fail_msg("%s is served to no role", method);
        if (policy_audits(m) != names(changing, method))
            fail_msg("%s: on record or not?", method);
    }
    print_message("# %zu cells\n", cells);
}

/* Each word of the lists above is a method of the table. */
static void test_no_word_too_many(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(expected); i++) {
        char words[512], *rest = words;
        (void)snprintf(words, sizeof(words), "%s %s %s", expected[i].all, expected[i].seen, expected[i].own);
        for (const char *word; (word = strsep(&rest, " "));) {
            bool there = !*word;
            for (unsigned m = POLICY_NOTHING + 1; m < POLICY_METHODS; m++)
                there |= strcmp(policy_method_short(m), word) == 0;
            if (!there)
                fail_msg("there is no %s", word);
        }
    }
}

static const struct rpc_method *find_served(const char *path)
{
    size_t n = 0;
    const struct rpc_method *methods = api_methods(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(methods[i].path, path) == 0)
            return &methods[i];
    return NULL;
}

/* What is served has the row of its name, and what has a row is served. */
static void test_served_methods_have_rows(void **state)
{
    (void)state;
    size_t n = 0;
    const struct rpc_method *methods = api_methods(&n);
    for (size_t i = 0; i < n; i++) {
        const char *row = policy_method(methods[i].needs);
        if (!row || strcmp(row, methods[i].path) != 0)
            fail_msg("%s has the row of %s", methods[i].path, row ? row : "nothing");
    }
    for (unsigned m = POLICY_NOTHING + 1; m < POLICY_METHODS; m++)
        if (!find_served(policy_method(m)))
            fail_msg("%s has a row and is not served", policy_method(m));
    const ProtobufCServiceDescriptor *const services[] = {&titan__v1__titan__descriptor,
                                                          &titan__internal__coordinator__descriptor,
                                                          &titan__internal__enrolment__descriptor};
    for (size_t s = 0; s < ARRAY_SIZE(services); s++)
        for (unsigned i = 0; i < services[s]->n_methods; i++) {
            char path[128];
            (void)snprintf(path, sizeof(path), "/%s/%s", services[s]->name, services[s]->methods[i].name);
            if (!find_served(path))
                fail_msg("%s is in the .proto and is not served", path);
        }
}

/* docs/security.md shows the same table. */
static void test_documented(void **state)
{
    (void)state;
    static const char *const words[] = {
        [POLICY_NO] = "", [POLICY_OWN] = "own", [POLICY_VIEW] = "seen", [POLICY_YES] = "yes"};
    struct buf text = BUF_INIT;
    assert_int_equal(file_read(TITAN_SOURCE_DIR "/docs/security.md", 1 << 20, &text, NULL), TITAN_OK);
    for (unsigned m = POLICY_NOTHING + 1; m < POLICY_METHODS; m++) {
        char line[256];
        int n = snprintf(line, sizeof(line), "\n| `%s` |", policy_method_short(m));
        for (unsigned role = 0; role < POLICY_ROLES; role++)
            n += snprintf(line + n, sizeof(line) - (size_t)n, " %s |", words[policy_look_up(m, POLICY_BIT(role))]);
        if (!strstr(text.data, line))
            fail_msg("docs/security.md lacks the line %s", line + 1);
    }
    buf_free(&text);
}

static void test_union_of_roles(void **state)
{
    (void)state;
    const unsigned user = POLICY_BIT(POLICY_USER), operates = POLICY_BIT(POLICY_OPERATOR);
    assert_int_equal(policy_look_up(POLICY_CANCEL_JOB, user | operates), POLICY_YES);
    assert_int_equal(policy_look_up(POLICY_CANCEL_JOB, 0), POLICY_NO);
    assert_int_equal(policy_look_up(POLICY_NOTHING, POLICY_BIT(POLICY_ROLES) - 1), POLICY_NO);
    assert_int_equal(policy_look_up(POLICY_METHODS, POLICY_BIT(POLICY_ROLES) - 1), POLICY_NO);
    assert_int_equal(policy_look_up(UINT32_MAX, POLICY_BIT(POLICY_ROLES) - 1), POLICY_NO);
    assert_null(policy_method(POLICY_NOTHING));
    assert_string_equal(policy_needs(POLICY_DRAIN_NODE), "an operator or admin");
    assert_string_equal(policy_needs(POLICY_SESSION), "a node");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_cell),
        cmocka_unit_test(test_no_word_too_many),
        cmocka_unit_test(test_served_methods_have_rows),
        cmocka_unit_test(test_documented),
        cmocka_unit_test(test_union_of_roles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
