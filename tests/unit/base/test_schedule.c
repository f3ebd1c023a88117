/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.h: every generator over many sizes against its formula and a plain simulation, the published orders by hand,
 * the notation, and broken schedules, each of which is found and named. SCHEDULE_SEED repeats a run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <time.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/schedule.h"
#include "tests/support/child.h"
#include "tests/support/patience.h"

#define FOLDER TITAN_SOURCE_DIR "/tests/unit/base/"

static const struct {
    const char *name;
    int local_min, local_max; /* stages per rank */
} families[] = {
    {"GPipe", 1, 1},         {"1F1B", 1, 1},      {"Interleaved1F1B", 1, 4},
    {"LoopedBFS", 1, 4},     {"ZB1P", 1, 1},      {"InterleavedZeroBubble", 1, 4},
    {"ZBVZeroBubble", 2, 2}, {"DualPipeV", 2, 2},
};

/* t_F, t_I, t_W */
static const double times[][3] = {{1, 1, 1}, {1, 2, 3}, {2, 1, 2}, {3, 1, 1}, {2, 3, 1},
                                  {5, 7, 3}, {1, 1, 4}, {3, 2, 1}, {5, 1, 2}};

static struct rng_key key;
static uint64_t drawn;

static int draw(int below)
{
    uint32_t words[4];
    rng_philox(key, drawn++, 0, words);
    return (int)((uint64_t)words[0] * (uint64_t)below >> 32);
}

static void close_schedule(struct schedule **s)
{
    schedule_close(*s);
}
#define _cleanup_schedule_ _cleanup_(close_schedule)

static struct schedule *generate(const char *name, int ranks, int stages, int microbatches)
{
    struct schedule *s = NULL;
    struct titan_error err = {0};
    if (schedule_generate(name, ranks, stages, microbatches, &s, &err) != TITAN_OK)
        fail_msg("%s p=%d stages=%d m=%d: %s", name, ranks, stages, microbatches, err.msg);
    return s;
}

/* --- a plain simulation ------------------------------------------------------------------------------------------- */

/* Where the cell stands, on any rank; -1: nowhere. */
static int find(const struct schedule *s, bool forward, int stage, int mb, int *ret_rank)
{
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->n_cells[r]; i++) {
            struct cell c = s->cells[r][i];
            if (c.stage == stage && c.microbatch == mb && c.kind != CELL_W && (c.kind == CELL_F) == forward) {
                *ret_rank = r;
                return i;
            }
        }
    return -1;
}

/* Ends of all cells, by going over them again and again until nothing changes; false: some never end. A rank's idle
 * time between its own first and last cell into idle (may be NULL). */
static bool simulate(const struct schedule *s, const double *t, double *ret_makespan, double *idle)
{
    double **end = calloc((size_t)s->ranks, sizeof *end);
    const double cost[] = {t[0], t[1], t[2], t[1] + t[2]};
    for (int r = 0; r < s->ranks; r++) {
        end[r] = malloc(sizeof **end * (size_t)(s->n_cells[r] + 1));
        for (int i = 0; i <= s->n_cells[r]; i++)
            end[r][i] = INFINITY;
    }
    for (bool again = true; again;) {
        again = false;
        for (int r = 0; r < s->ranks; r++)
            for (int i = 0; i < s->n_cells[r] && (i == 0 || isfinite(end[r][i - 1])); i++) {
                struct cell c = s->cells[r][i];
                double start = i ? end[r][i - 1] : 0;
                int from = c.kind == CELL_F ? c.stage - 1 : c.stage + 1, rank = 0;
                if (isfinite(end[r][i]))
                    continue;
                if (c.kind != CELL_W && from >= 0 && from < s->stages) {
                    int at = find(s, c.kind == CELL_F, from, c.microbatch, &rank);
                    start = at < 0 ? INFINITY : fmax(start, end[rank][at]);
                }
                end[r][i] = start + cost[c.kind];
                again = again || isfinite(start);
            }
    }
    *ret_makespan = 0;
    for (int r = 0; r < s->ranks; r++) {
        double work = 0;
        for (int i = 0; i < s->n_cells[r]; i++) {
            *ret_makespan = fmax(*ret_makespan, end[r][i]);
            work += cost[s->cells[r][i].kind];
        }
        if (idle && s->n_cells[r])
            idle[r] = end[r][s->n_cells[r] - 1] - (end[r][0] - cost[s->cells[r][0].kind]) - work;
        free(end[r]);
    }
    free(end);
    return isfinite(*ret_makespan);
}

/* Every cell there once, forward before backward, on its rank: counted, with no care for speed. */
static bool complete(const struct schedule *s)
{
    for (int stage = 0; stage < s->stages; stage++)
        for (int mb = 0; mb < s->microbatches; mb++) {
            int n[4] = {0}, at[4] = {0}, count = 0;
            for (int r = 0; r < s->ranks; r++)
                for (int i = 0; i < s->n_cells[r]; i++) {
                    struct cell c = s->cells[r][i];
                    if (c.stage != stage || c.microbatch != mb)
                        continue;
                    if (schedule_rank_of(s, stage) != r)
                        return false;
                    n[c.kind]++;
                    at[c.kind] = i;
                    count++;
                }
            bool whole = count == 2 && n[CELL_F] == 1 && n[CELL_B] == 1 && at[CELL_F] < at[CELL_B];
            bool split = count == 3 && n[CELL_F] == 1 && n[CELL_I] == 1 && n[CELL_W] == 1 && at[CELL_F] < at[CELL_I] &&
                         at[CELL_I] < at[CELL_W];
            if (!whole && !split)
                return false;
        }
    return true;
}

/* --- generators --------------------------------------------------------------------------------------------------- */

static void test_names(void **state)
{
    (void)state;
    char all[256] = "";
    for (size_t i = 0; i < ARRAY_SIZE(families); i++) {
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? "|" : "", families[i].name);
        assert_int_equal(schedule_stages_per_rank(families[i].name), MIN(families[i].local_max, 2));
    }
    assert_string_equal(schedule_names(), all);
    assert_int_equal(schedule_stages_per_rank("1f1b"), 1);
    assert_int_equal(schedule_stages_per_rank("INTERLEAVED1F1B"), 2);
    assert_int_equal(schedule_stages_per_rank("ZBH1"), 1);
    assert_int_equal(schedule_stages_per_rank("2F2B"), 0);
    assert_int_equal(schedule_stages_per_rank(""), 0);
}

static void check_figures(const struct schedule *s)
{
    struct titan_error err = {0};
    int local = s->stages / s->ranks;
    double busy[16], reference = 0;
    if (schedule_check(s, &err) != TITAN_OK)
        fail_msg("%s p=%d v=%d m=%d: %s", s->name, s->ranks, local, s->microbatches, err.msg);
    for (size_t t = 0; t < ARRAY_SIZE(times); t++) {
        double work = s->microbatches * local * (times[t][0] + times[t][1] + times[t][2]);
        double makespan = schedule_makespan(s, times[t][0], times[t][1], times[t][2], busy);
        double bubble = schedule_bubble(s, times[t][0], times[t][1], times[t][2]);
        if (bubble >= 0 && fabs(makespan - work - bubble) > 1e-9)
            fail_msg("%s p=%d v=%d m=%d t=%g,%g,%g: %g idle, %g by the formula", s->name, s->ranks, local,
                     s->microbatches, times[t][0], times[t][1], times[t][2], makespan - work, bubble);
        for (int r = 0; r < s->ranks; r++)
            assert_true(fabs(busy[r] - work) < 1e-9);
        if (s->stages * s->microbatches > 60 || t > 2)
            continue;
        assert_true(simulate(s, times[t], &reference, NULL));
        assert_true(fabs(reference - makespan) < 1e-9);
    }
}

/* Every forward once, on its stage's rank, and none waits for a later one of its rank: in the order in which they
 * stand, each has its input. */
static void check_forward(const struct schedule *s)
{
    const size_t cells = (size_t)s->stages * (size_t)s->microbatches;
    bool *done = calloc(cells + 1, sizeof *done);
    int next[16] = {0};
    size_t n = 0;

    assert_non_null(done);
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->ranks; r++) {
            if (next[r] == s->n_cells[r])
                continue;
            const struct cell c = s->cells[r][next[r]];
            assert_true(c.kind == CELL_F && schedule_rank_of(s, c.stage) == r);
            if (c.stage > 0 && !done[(c.stage - 1) * s->microbatches + c.microbatch])
                continue;
            assert_false(done[c.stage * s->microbatches + c.microbatch]);
            done[c.stage * s->microbatches + c.microbatch] = moved = true;
            next[r]++;
            n++;
        }
    }
    assert_int_equal(n, cells);
    free(done);
}

static void test_forward(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 5; ranks++)
        for (int local = 1; local <= 3; local++)
            for (int m = 1; m <= 11; m++)
                for (int v = 0; v < 2; v++) {
                    struct schedule *s;
                    struct titan_error err = {0};
                    if (v && local != 2)
                        continue;
                    assert_int_equal(schedule_forward(ranks, ranks * local, m, v, &s, &err), TITAN_OK);
                    check_forward(s);
                    schedule_close(s);
                }
    assert_int_equal(schedule_forward(2, 3, 1, false, &(struct schedule *){0}, NULL), TITAN_EINVAL);
}

/* Everything there, in order, running to its end, and idle for as long as the formula says. */
static void test_bubbles(void **state)
{
    (void)state;
    for (size_t f = 0; f < ARRAY_SIZE(families); f++)
        for (int p = 1; p <= 9; p++)
            for (int v = families[f].local_min; v <= families[f].local_max; v++)
                for (int m = 1; m <= 36; m += m < 20 ? 1 : 4) {
                    _cleanup_schedule_ struct schedule *s = generate(families[f].name, p, p * v, m);
                    assert_int_equal(s->ranks * v, s->stages);
                    if (s->stages * m < 100)
                        assert_true(complete(s));
                    check_figures(s);
                }
}

/* Where a formula is promised there is one. */
static void test_formulas(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int p, v, m;
        double bubble; /* for t_F = 2, t_I = 3, t_W = 1 */
    } cases[] = {
        {"GPipe", 4, 1, 2, 18},
        {"GPipe", 4, 1, 9, 18},
        {"1F1B", 4, 1, 2, 18},
        {"1F1B", 4, 1, 9, 18},
        {"LoopedBFS", 4, 2, 8, 18},
        {"LoopedBFS", 4, 3, 2, 42},
        {"Interleaved1F1B", 4, 2, 8, 18},
        {"Interleaved1F1B", 4, 3, 2, 42},
        {"Interleaved1F1B", 4, 2, 6, -1},
        {"ZB1P", 4, 1, 8, 12},
        {"ZB1P", 4, 1, 2, 14},
        {"ZB1P", 1, 1, 2, 0},
        {"InterleavedZeroBubble", 4, 2, 8, 12},
        {"InterleavedZeroBubble", 4, 2, 6, -1},
        {"InterleavedZeroBubble", 4, 1, 6, 12},
        {"ZBVZeroBubble", 4, 2, 7, 12},
        {"ZBVZeroBubble", 4, 2, 6, -1},
        {"DualPipeV", 4, 2, 8, -1},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        _cleanup_schedule_ struct schedule *s =
            generate(cases[i].name, cases[i].p, cases[i].p * cases[i].v, cases[i].m);
        assert_true(schedule_bubble(s, 2, 3, 1) == cases[i].bubble);
    }
}

/* The zero of the zero bubble: with equal times and microbatches enough no rank is idle once it has begun. */
static void test_zero_bubble(void **state)
{
    (void)state;
    for (int p = 1; p <= 6; p++)
        for (int m = 2 * p - 1; m <= 2 * p + 6; m++) {
            _cleanup_schedule_ struct schedule *s = generate("ZBVZeroBubble", p, 2 * p, m), *h1 = NULL, *plain = NULL;
            double makespan = 0, idle[8] = {0};
            assert_true(simulate(s, times[0], &makespan, idle));
            for (int r = 0; r < p; r++)
                assert_true(idle[r] == 0);
            assert_true(makespan == 6 * m + p - 1);
            h1 = generate("ZB1P", p, p, m);
            plain = generate("1F1B", p, p, m);
            assert_true(schedule_makespan(plain, 1, 1, 1, NULL) == 3 * m + 3 * (p - 1));
            assert_true(schedule_makespan(h1, 1, 1, 1, NULL) == 3 * m + p - 1);
        }
}

/* DualPipeV with equal times waits as little as ZBV, at whole backwards in the middle; in the steady part the F of one
 * chunk stands before the B of the other. */
static void test_dualpipe_v(void **state)
{
    (void)state;
    for (int p = 1; p <= 6; p++) {
        int m = 4 * p + 3;
        _cleanup_schedule_ struct schedule *s = generate("DualPipeV", p, 2 * p, m);
        assert_true(schedule_bubble(s, 1, 1, 1) == p - 1);
        for (int r = 0; r < p; r++) {
            int pairs = 0, whole = 0;
            for (int i = 0; i + 1 < s->n_cells[r]; i++) {
                struct cell a = s->cells[r][i], b = s->cells[r][i + 1];
                pairs += a.kind == CELL_F && b.kind == CELL_B && (a.stage >= p) != (b.stage >= p) &&
                         a.microbatch != b.microbatch;
                whole += a.kind == CELL_B;
            }
            assert_true(pairs >= 2 * (m - 2 * p + r + 1));
            assert_int_equal(whole, 2 * m - (p - r - 1) - p); /* split: before the steady part and at the end */
        }
    }
}

static void test_in_flight(void **state)
{
    (void)state;
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 24; m++)
            for (size_t f = 0; f < ARRAY_SIZE(families); f++) {
                int v = MIN(families[f].local_max, 3);
                _cleanup_schedule_ struct schedule *s = generate(families[f].name, p, v * p, m);
                for (int r = 0; r < p; r++) {
                    const int held[] = {m, p - r, v * p + p - 1 - 2 * r, v * m, p, v * p, 2 * p, 2 * p + 1};
                    int most = MIN(held[f], v * m);
                    if (v == 1 || (s->v_order ? m >= 2 * p : m % p == 0))
                        assert_int_equal(schedule_in_flight(s, r), most);
                    assert_true(schedule_in_flight(s, r) <= most);
                }
            }
}

static void check_order(const char *name, int ranks, int stages, int microbatches, const char *csv)
{
    _cleanup_schedule_ struct schedule *s = generate(name, ranks, stages, microbatches);
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    schedule_print(s, &text);
    assert_string_equal(text.data, csv);
}

/* Small cases written down from the papers' figures. */
static void test_orders(void **state)
{
    (void)state;
    check_order("GPipe", 2, 2, 3, "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
    check_order("1F1B", 3, 3, 4,
                "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
                "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
                "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
    check_order("Interleaved1F1B", 2, 4, 4,
                "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
                "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n");
    check_order("ZB1P", 2, 2, 3,
                "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n"
                "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n");
    check_order("ZBVZeroBubble", 2, 4, 3,
                "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2\n"
                "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2\n");
    check_order("InterleavedZeroBubble", 2, 4, 2,
                "0F0,0F1,2F0,2F1,2I0,2W0,2I1,2W1,0I0,0W0,0I1,0W1\n"
                "1F0,1F1,3F0,3I0,3F1,3I1,3W0,1I0,3W1,1I1,1W0,1W1\n");
    check_order("DualPipeV", 2, 4, 4,
                "0F0,0F1,0F2,3F0,3I0,3W0,3F1,0F3,3B1,3F2,0B0,3B2,3F3,0B1,3B3,0I2,0W2,0I3,0W3\n"
                "1F0,2F0,1F1,2F1,1F2,2B0,2F2,1B0,1F3,2B1,2F3,1B1,2B2,1B2,2I3,1I3,2W3,1W3\n");
    check_order("LoopedBFS", 2, 4, 2, "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1\n");
}

static void refused(const char *name, int ranks, int stages, int microbatches, const char *msg, const char *hint)
{
    struct schedule *s = NULL;
    struct titan_error err = {0};
    assert_int_equal(schedule_generate(name, ranks, stages, microbatches, &s, &err), TITAN_EINVAL);
    assert_null(s);
    if (!strstr(err.msg, msg) || !strstr(err.hint, hint))
        fail_msg("'%s' (%s) does not say '%s' (%s)", err.msg, err.hint, msg, hint);
    assert_int_equal(schedule_generate(name, ranks, stages, microbatches, &s, NULL), TITAN_EINVAL);
}

static void test_refused(void **state)
{
    (void)state;
    refused("2F2B", 2, 2, 2, "\"2F2B\"; there are GPipe|1F1B|", "");
    refused("1F1B", 0, 0, 2, "0 pipeline ranks", "");
    refused("1F1B", SCHEDULE_RANKS_MAX + 1, 1, 2, "1025 pipeline ranks", "");
    refused("1F1B", 4, 4, 0, "0 microbatches", "");
    refused("1F1B", 4, 8, 4, "a rank holds 1 stage", "is 4");
    refused("Interleaved1F1B", 4, 10, 4, "10 stages", "stages is 12");
    refused("Interleaved1F1B", 4, 9, 4, "9 stages", "stages is 8");
    refused("ZBVZeroBubble", 4, 4, 8, "a rank holds 2 stages", "is 8");
    refused("DualPipeV", 4, 12, 8, "a rank holds 2 stages", "is 8");
    refused("LoopedBFS", 1000, 9000, 1, "9000 stages", "1000 ranks may have 8000 stages");
    refused("LoopedBFS", 4, 1, 4, "1 stages", "stages is 4");
    refused("LoopedBFS", 4, -7, 4, "-7 stages", "stages is 4");
    refused("LoopedBFS", 4, 8, INT32_MAX, "2147483647 microbatches", "at most 349525 microbatches");
}

/* --- CSV ---------------------------------------------------------------------------------------------------------- */

static struct schedule *parse(const char *text, int ranks, int stages, int microbatches)
{
    struct schedule *s = NULL;
    struct titan_error err = {0};
    if (schedule_parse(text, "test.csv", &(struct schedule_shape){ranks, stages, microbatches}, &s, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return s;
}

static void not_parsed(const char *text, int ranks, int stages, int microbatches, const char *msg)
{
    struct schedule *s = NULL;
    struct titan_error err = {0};
    assert_int_equal(schedule_parse(text, "test.csv", &(struct schedule_shape){ranks, stages, microbatches}, &s, &err),
                     TITAN_EINVAL);
    assert_null(s);
    assert_non_null(strstr(err.msg, "test.csv"));
    if (!strstr(err.msg, msg))
        fail_msg("'%s' does not say '%s'", err.msg, msg);
    assert_int_equal(schedule_parse(text, "test.csv", &(struct schedule_shape){ranks, stages, microbatches}, &s, NULL),
                     TITAN_EINVAL);
}

static void test_csv(void **state)
{
    (void)state;
    for (size_t f = 0; f < ARRAY_SIZE(families); f++)
        for (int p = 1; p <= 5; p++) {
            int stages = p * families[f].local_max;
            _cleanup_schedule_ struct schedule *s = generate(families[f].name, p, stages, 7), *back = NULL;
            _cleanup_(buf_free) struct buf text = BUF_INIT, again = BUF_INIT;
            schedule_print(s, &text);
            back = parse(text.data, p, stages, 7);
            schedule_print(back, &again);
            assert_string_equal(text.data, again.data);
            for (int stage = 0; stage < stages; stage++)
                assert_int_equal(schedule_rank_of(back, stage), schedule_rank_of(s, stage));
            assert_true(schedule_bubble(back, 1, 1, 1) == -1);
        }
    _cleanup_schedule_ struct schedule *s = parse(" 0F0 ,,\t0I0,0W0 ,,\r\n1F0,1B0,,\r\n\r\n \n", 2, 2, 1);
    assert_int_equal(s->n_cells[0], 3);
    assert_true(schedule_makespan(s, 1, 2, 3, NULL) == 1 + 1 + 5 + 2 + 3);
    _cleanup_schedule_ struct schedule *v = parse("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0", 2, 4, 1);
    assert_true(v->v_order && schedule_rank_of(v, 3) == 0);
    _cleanup_schedule_ struct schedule *loop = parse("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0", 2, 4, 1);
    assert_true(!loop->v_order && schedule_rank_of(loop, 3) == 1);
}

static void test_csv_refused(void **state)
{
    (void)state;
    not_parsed("", 2, 2, 1, "0 lines, and the pipeline has 2 ranks");
    not_parsed("0F0,0B0", 2, 2, 1, "1 line, and the pipeline has 2 ranks");
    not_parsed("0F0,0B0\n1F0,1B0\n0F0", 2, 2, 1, "test.csv:3: more lines than the 2 ranks");
    not_parsed("0F0,0B0\n1F0,,1X0", 2, 2, 1, "test.csv:2: cell 3 is not");
    not_parsed("0F0,0 B0\n1F0,1B0", 2, 2, 1, "test.csv:1: cell 2 is not");
    not_parsed("0F0,0B\n1F0,1B0", 2, 2, 1, "cell 2 is not");
    not_parsed("0F0,F0\n1F0,1B0", 2, 2, 1, "cell 2 is not");
    not_parsed("0F0,0F-1\n1F0,1B0", 2, 2, 1, "cell 2 is not");
    not_parsed("0F0,0f0\n1F0,1B0", 2, 2, 1, "cell 2 is not");
    not_parsed("0F0,0F99999999999\n1F0,1B0", 2, 2, 1, "cell 2 is not");
    not_parsed("0F0,\xff\x01\n1F0,1B0", 2, 2, 1, "cell 2 is not");
    not_parsed("0F0,2F0\n1F0,1B0", 2, 2, 1, "cell 2: there is no such stage, the last of 2 is 1");
    not_parsed("0F0,0F1\n1F0,1B0", 2, 2, 1, "cell 2: there is no such microbatch, the last of 1 is 0");
    not_parsed("0F0,0B0\n1B0,1F0", 2, 2, 1, "rank 1: cell 1B0 has no 1F0 before it");
    not_parsed("0F0,0W0,0I0\n1F0,1B0", 2, 2, 1, "rank 0: cell 0W0 has no 0I0 before it");
    not_parsed("0F0,0I0\n1F0,1B0", 2, 2, 1, "rank 0: cell 0W0 is missing");
    not_parsed("0F0\n1F0,1B0", 2, 2, 1, "rank 0: 0F0 has no backward: 0B0, or 0I0 and 0W0");
    not_parsed("0F0,0B0\n,", 2, 2, 1, "rank 1: cell 1F0 is missing");
    not_parsed("0F0,0B0,0B0\n1F0,1B0", 2, 2, 1, "rank 0: cell 0B0 stands there twice");
    not_parsed("0F0,0I0,0B0\n1F0,1B0", 2, 2, 1, "rank 0: cell 0B0 is double: B is I and W at once, and 0I0");
    not_parsed("0F0,0B0,0W0\n1F0,1B0", 2, 2, 1, "rank 0: cell 0W0 is double");
    not_parsed("0F0,1F0,0B0\n1F0,1B0", 2, 2, 1, "rank 0: cell 1F0 is misplaced: stage 1 belongs to rank 1");
    not_parsed("0F0,0B0,0B0,0B0,0B0,0B0,0B0\n1F0,1B0", 2, 2, 1, "rank 0: cell 0B0 stands there twice");
    not_parsed("0F0,2F0,3F0,2B0,0B0\n1F0,3F0,3B0,1B0", 2, 4, 1, "rank 0: cell 3F0 is misplaced");
    not_parsed("1F0,1B0,0F0,0B0", 1, 2, 1, "rank 0 stops at 1F0 (cell 1), which waits for 0F0, cell 3 of rank 0");
    not_parsed("0F0,0B0", 0, 2, 1, "0 pipeline ranks");
    _cleanup_free_ char *huge = malloc(SCHEDULE_CSV_MAX + 2);
    memset(huge, ',', SCHEDULE_CSV_MAX + 1);
    huge[SCHEDULE_CSV_MAX + 1] = '\0';
    not_parsed(huge, 2, 2, 1, "longer than");
}

/* A FIFO without a writer would be waited for without end. */
static void test_csv_fifo(void **state)
{
    (void)state;
    char path[] = "/tmp/titan-test-schedule-XXXXXX", fifo[64];
    struct titan_error err = {0};
    struct schedule *s = NULL;
    assert_non_null(mkdtemp(path));
    (void)snprintf(fifo, sizeof(fifo), "%s/fifo", path);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    (void)alarm((unsigned)patience_ms(60) / 1000);
    assert_int_equal(schedule_load(fifo, 2, 2, 1, &s, &err), TITAN_EINVAL);
    (void)alarm(0);
    assert_non_null(strstr(err.msg, "is a FIFO"));
    (void)unlink(fifo);
    (void)rmdir(path);
}

/* A link in place of the file, where none is followed: for good, so in a process of its own. */
static void test_csv_link(void **state)
{
    (void)state;
    char path[] = "/tmp/titan-test-schedule-XXXXXX", file[64], link_path[64];
    static const char text[] = "0F0,0B0\n1F0,1B0\n";
    assert_non_null(mkdtemp(path));
    (void)snprintf(file, sizeof(file), "%s/file", path);
    (void)snprintf(link_path, sizeof(link_path), "%s/link", path);
    assert_int_equal(file_replace(file, text, sizeof(text) - 1, NULL), TITAN_OK);
    assert_int_equal(symlink("file", link_path), 0);
    const pid_t child = child_fork();
    if (child == 0) {
        struct titan_error err = {0};
        struct schedule *s = NULL, *direct = NULL, *none = NULL;
        int failed = schedule_load(link_path, 2, 2, 1, &s, NULL) != TITAN_OK ? 1 : 0;
        file_refuse_links();
        failed |= schedule_load(link_path, 2, 2, 1, &none, &err) == TITAN_OK ? 2 : 0;
        failed |= strstr(err.msg, "symbolic link") ? 0 : 4;
        failed |= schedule_load(file, 2, 2, 1, &direct, NULL) != TITAN_OK ? 8 : 0;
        schedule_close(s);
        schedule_close(direct);
        _exit(failed);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    (void)unlink(link_path);
    (void)unlink(file);
    (void)rmdir(path);
}

static void test_samples(void **state)
{
    (void)state;
    _cleanup_schedule_ struct schedule *s = NULL;
    struct titan_error err = {0};
    assert_int_equal(schedule_load(FOLDER "schedule_right.csv", 3, 3, 2, &s, &err), TITAN_OK);
    assert_int_equal(schedule_in_flight(s, 0), 2);
    struct schedule *none = NULL;
    assert_int_equal(schedule_load(FOLDER "schedule_deadlock.csv", 2, 2, 2, &none, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg,
                           "schedule_deadlock.csv: deadlock: rank 0 stops at 0B0 (cell 2), which waits for 1B0, "
                           "cell 4 of rank 1; rank 1 stops at 1F1 (cell 1), which waits for 0F1, cell 3 of "
                           "rank 0"));
    assert_int_equal(schedule_load(FOLDER "schedule_no_backward.csv", 2, 2, 2, &none, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "rank 1: 1F1 has no backward"));
    assert_int_equal(schedule_load(FOLDER "schedule_nowhere.csv", 2, 2, 2, &none, &err), TITAN_ENOTFOUND);
    assert_null(none);
}

/* --- broken schedules --------------------------------------------------------------------------------------------- */

static struct cell *random_cell(struct schedule *s, int *ret_rank, int *ret_at)
{
    *ret_rank = draw(s->ranks);
    *ret_at = draw(s->n_cells[*ret_rank]);
    return &s->cells[*ret_rank][*ret_at];
}

enum { DROP, SWAP, DUPLICATE, OVERWRITE, CHANGE_KIND, CHANGE_STAGE, CHANGE_MICROBATCH, REVERSE, BREAKS };

/* Break s in one way; the cell that is wrong now, for the message. All but SWAP and REVERSE make it wrong for sure. */
static struct cell break_it(struct schedule *s, int how)
{
    int rank, at, other;
    struct cell *c = random_cell(s, &rank, &at), old = *c;
    struct cell *cells = s->cells[rank];
    switch (how) {
    case DROP:
        memmove(c, c + 1, sizeof *c * (size_t)(--s->n_cells[rank] - at));
        break;
    case SWAP:
        other = draw(s->n_cells[rank]);
        *c = cells[other];
        cells[other] = old;
        break;
    case DUPLICATE: /* on another rank it is misplaced; there is always room for one more */
        rank = draw(s->ranks);
        s->cells[rank][s->n_cells[rank]++] = old;
        break;
    case OVERWRITE: /* a double and a missing one */
        *c = cells[(at + 1 + draw(s->n_cells[rank] - 1)) % s->n_cells[rank]];
        break;
    case CHANGE_KIND:
        c->kind = (enum cell_kind)((c->kind + 1 + (unsigned)draw(3)) % 4);
        break;
    case CHANGE_STAGE:
        c->stage = draw(2) ? s->stages : (c->stage + 1 + draw(s->stages - 1)) % s->stages;
        break;
    case CHANGE_MICROBATCH:
        c->microbatch = draw(2) ? -1 : (c->microbatch + 1 + draw(s->microbatches - 1)) % s->microbatches;
        break;
    default:
        for (int i = at, j = s->n_cells[rank] - 1; i < j; i++, j--) {
            old = cells[i];
            cells[i] = cells[j];
            cells[j] = old;
        }
    }
    return old;
}

/* The check and the plain simulation agree on which broken schedules still run; for those that do not, the message
 * names a rank and, where one cell was dropped or doubled, its stage and microbatch. */
static void test_broken(void **state)
{
    (void)state;
    int refused_count[BREAKS] = {0}, deadlocks = 0;
    for (int i = 0; i < 4000; i++) {
        size_t f = (size_t)draw(ARRAY_SIZE(families));
        int p = 2 + draw(4), v = families[f].local_max == 1 ? 1 : 2, m = 2 + draw(6), how = i % BREAKS;
        _cleanup_schedule_ struct schedule *s = generate(families[f].name, p, p * v, m);
        struct titan_error err = {0};
        struct cell wrong = break_it(s, how);
        double makespan;
        bool runs = (how == SWAP || how == REVERSE) && complete(s) && simulate(s, times[0], &makespan, NULL);
        titan_status status = schedule_check(s, &err);
        if ((status == TITAN_OK) != runs)
            fail_msg("%s p=%d v=%d m=%d broken by %d: check says '%s'", s->name, p, v, m, how, err.msg);
        if (runs) {
            assert_true(fabs(schedule_makespan(s, 1, 1, 1, NULL) - makespan) < 1e-9);
            continue;
        }
        assert_int_equal(status, TITAN_EINVAL);
        assert_non_null(strstr(err.msg, "rank "));
        refused_count[how]++;
        deadlocks += strstr(err.msg, "deadlock") && strstr(err.msg, "waits for") && strstr(err.msg, " of rank ");
        if (how == DROP || how == DUPLICATE) {
            bool named = false;
            for (const char *kind = "FIWB"; *kind; kind++) {
                char text[32];
                snprintf(text, sizeof text, "%d%c%d", wrong.stage, *kind, wrong.microbatch);
                named = named || strstr(err.msg, text);
            }
            if (!named)
                fail_msg("'%s' does not name %d of microbatch %d", err.msg, wrong.stage, wrong.microbatch);
        }
    }
    for (int how = 0; how < BREAKS; how++)
        assert_true(refused_count[how] > (how == SWAP || how == REVERSE ? 100 : 499));
    assert_true(deadlocks > 50);
}

/* --- cost --------------------------------------------------------------------------------------------------------- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Printed, and bounded so loosely that only a wrong order of growth fails. */
static void test_cost(void **state)
{
    (void)state;
    for (size_t f = 0; f < ARRAY_SIZE(families); f++) {
        int v = families[f].local_max == 1 ? 1 : families[f].local_min == 2 ? 2 : 8;
        double t0 = seconds();
        _cleanup_schedule_ struct schedule *s = generate(families[f].name, 16, 16 * v, 512);
        double t1 = seconds();
        assert_int_equal(schedule_check(s, NULL), TITAN_OK);
        double t2 = seconds();
        assert_true(schedule_makespan(s, 1, 1, 1, NULL) > 0);
        double t3 = seconds();
        printf("# %-20s p=16 v=%d m=512: generate %.2f ms, check %.2f ms, makespan %.2f ms\n", families[f].name, v,
               (t1 - t0) * 1e3, (t2 - t1) * 1e3, (t3 - t2) * 1e3);
        assert_true(t3 - t0 < 1.0);
    }
}

static int setup(void **state)
{
    (void)state;
    const char *text = getenv("SCHEDULE_SEED");
    unsigned long long seed = text ? strtoull(text, NULL, 0) : 20261121;
    key = rng_key(seed, "schedule");
    printf("# SCHEDULE_SEED=%llu\n", seed);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),     cmocka_unit_test(test_forward),     cmocka_unit_test(test_bubbles),
        cmocka_unit_test(test_formulas),  cmocka_unit_test(test_zero_bubble), cmocka_unit_test(test_dualpipe_v),
        cmocka_unit_test(test_in_flight), cmocka_unit_test(test_orders),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_csv),       cmocka_unit_test(test_csv_refused), cmocka_unit_test(test_csv_fifo),
        cmocka_unit_test(test_csv_link),  cmocka_unit_test(test_samples),     cmocka_unit_test(test_broken),
        cmocka_unit_test(test_cost),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
