/* SPDX-License-Identifier: Apache-2.0 */
/* picture.h: a picture is well-formed XML, has a lane for every stream a rank uses, and nothing lies outside of it. */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "tests/support/plans.h"
#include "worker/plan/forecast.h"
#include "worker/plan/picture.h"

/* Tags balance, attributes are quoted, '&' begins an entity, one root. Enough of XML for what a picture may contain. */
static void well_formed(const char *text)
{
    char open[16][16];
    int depth = 0, roots = 0;

    for (const char *c = text; *c; c++) {
        if (*c == '&' && strncmp(c, "&amp;", 5) && strncmp(c, "&lt;", 4) && strncmp(c, "&gt;", 4) &&
            strncmp(c, "&quot;", 6))
            fail_msg("a bare '&': %.40s", c);
        if (*c != '<')
            continue;
        const bool closing = c[1] == '/';
        const size_t n = strcspn(c + 1 + closing, " />");
        const char *name = c + 1 + closing, *end = name + n;
        assert_true(n > 0 && n < sizeof open[0] && isalpha((unsigned char)*name));
        for (bool quoted = false; *end && (quoted || *end != '>'); end++) {
            quoted ^= *end == '"';
            if (*end == '<')
                fail_msg("'<' inside a tag: %.40s", c);
        }
        assert_int_equal(*end, '>');
        if (closing) {
            assert_true(depth > 0);
            depth--;
            if (strlen(open[depth]) != n || strncmp(open[depth], name, n) != 0)
                fail_msg("<%s> ends with %.40s", open[depth], c);
        } else if (end[-1] != '/') {
            assert_true(depth < 16);
            roots += depth == 0;
            (void)snprintf(open[depth++], sizeof open[0], "%.*s", (int)n, name);
        }
        c = end;
    }
    assert_int_equal(depth, 0);
    assert_int_equal(roots, 1);
}

static double attribute(const char *tag, const char *name)
{
    char pattern[32];
    (void)snprintf(pattern, sizeof pattern, " %s=\"", name);
    const char *at = strstr(tag, pattern);
    assert_non_null(at);
    return strtod(at + strlen(pattern), NULL);
}

static void draw(const char *const *sets, int world, const char *title, struct buf *out, int *ret_lanes)
{
    struct titan_error err = {0};
    struct simulation *s = NULL;
    struct forecast f = {0};
    struct planned p;

    titan_status status = planned_open(&p, world, "h100", sets, &err);
    if (status == TITAN_OK)
        status = forecast_make(p.plan, p.programs, &p.cost, &f, &s, &err);
    if (status != TITAN_OK)
        fail_msg("%s", err.msg);
    picture_write(s, title, out);
    *ret_lanes = 0;
    for (int r = 0; r < s->n; r++)
        *ret_lanes += __builtin_popcount(s->ranks[r].program->streams | 1u << STREAM_COMPUTE);
    assert_int_equal(buf_append(out, "", 1), TITAN_OK); /* a string */
    forecast_clear(&f);
    simulation_close(s);
    planned_close(&p);
}

static void check_picture(const char *const *sets, int world, const char *title)
{
    _cleanup_(buf_free) struct buf out = {.limit = (size_t)1 << 28};
    int lanes, lines = 0;

    draw(sets, world, title, &out, &lanes);
    const char *text = (const char *)out.data;
    well_formed(text);
    const double width = attribute(text, "width"), height = attribute(text, "height");
    assert_true(width > 0 && height > 0);
    for (const char *c = text; (c = strstr(c, "<rect ")); c++) {
        if (strstr(c, "100%") == strstr(c, "width=\"") + 7)
            continue; /* the ground */
        assert_true(attribute(c, "x") >= 0 && attribute(c, "x") + attribute(c, "width") <= width + 0.1);
        assert_true(attribute(c, "y") >= 0 && attribute(c, "y") + attribute(c, "height") <= height + 0.1);
    }
    for (const char *c = text; (c = strstr(c, "<line ")); c++)
        lines++;
    assert_int_equal(lines, lanes);
}

static void pictures_are_well_formed(void **state)
{
    static const char *const alone[] = {NULL};
    static const char *const pipeline[] = {
        "parallelism.pipeline_parallel_degree=2", "parallelism.tensor_parallel_degree=2",
        "parallelism.pipeline_parallel_schedule=ZBVZeroBubble", "training.global_batch_size=8", NULL};

    (void)state;
    check_picture(alone, 1, "one rank");
    check_picture(pipeline, 8, "a pipeline");
}

static void titles_are_escaped(void **state)
{
    static const char *const alone[] = {NULL};

    (void)state;
    check_picture(alone, 1, "a < b & \"c\" > d");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_are_well_formed),
        cmocka_unit_test(titles_are_escaped),
    };
    return cmocka_run_group_tests_name("picture", tests, NULL, NULL);
}
