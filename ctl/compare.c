/* SPDX-License-Identifier: Apache-2.0 */
/* compare.c - titanctl compare: differences between two jobs, in run files and in losses. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/recipe.h"
#include "base/units.h"
#include "base/vec.h"
#include "ctl/args.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"
#include "ctl/submit.h"

enum { POINTS_MAX = 10000000, ROWS = 12 };

struct point {
    uint64_t step;
    double loss, tokens_per_second, step_ms;
};

/* A compared job, as the server has it. */
struct side {
    uint64_t job;
    struct recipe recipe;
    struct point *points; /* by step, each step once */
    size_t n, cap;
};

/* The points of both jobs at a common step. */
struct pair {
    uint64_t step;
    double loss[2];
};

struct comparison {
    struct side side[2];
    struct buf changes; /* differing keys, one per line */
    struct pair *pairs;
    size_t n;
    size_t first;      /* index of the first different loss; n: no such loss, also in the next two fields */
    size_t largest;    /* index of the largest finite difference */
    size_t not_finite; /* index of the first non-finite loss */
};

/* Adds a point. If a step was trained again, its newer point replaces the older. */
static bool add_point(const ProtobufCMessage *message, void *data)
{
    const Titan__V1__MetricPoint *p = (const Titan__V1__MetricPoint *)message;
    struct side *s = data;

    while (s->n > 0 && s->points[s->n - 1].step >= p->step)
        s->n--;
    if (s->n == POINTS_MAX || !VEC_RESERVE(s->points, s->cap, s->n + 1))
        return false;
    s->points[s->n++] = (struct point){p->step, p->loss, p->tokens_per_second, p->step_ms};
    return true;
}

static double distance(const struct pair *p)
{
    return fabs(p->loss[1] - p->loss[0]);
}

static titan_status match(struct comparison *c, struct titan_error *err)
{
    const struct side *a = &c->side[0], *b = &c->side[1];

    c->pairs = calloc(MIN(a->n, b->n) + 1, sizeof *c->pairs);
    if (!c->pairs)
        return titan_fail(err, TITAN_ENOMEM, "compare: out of memory");
    for (size_t i = 0, k = 0; i < a->n && k < b->n;) {
        if (a->points[i].step == b->points[k].step) {
            c->pairs[c->n++] = (struct pair){a->points[i].step, {a->points[i].loss, b->points[k].loss}};
            i++;
            k++;
        } else if (a->points[i].step < b->points[k].step) {
            i++;
        } else {
            k++;
        }
    }
    c->first = c->largest = c->not_finite = c->n;
    for (size_t i = 0; i < c->n; i++) {
        const double *loss = c->pairs[i].loss, apart = distance(&c->pairs[i]);
        if (loss[0] == loss[1] || (isnan(loss[0]) && isnan(loss[1])))
            continue;
        if (c->first == c->n)
            c->first = i;
        if (!isfinite(apart))
            c->not_finite = MIN(c->not_finite, i);
        else if (c->largest == c->n || apart > distance(&c->pairs[c->largest]))
            c->largest = i;
    }
    return TITAN_OK;
}

/* --- output ------------------------------------------------------------------------------------------------------- */

/* Tokens per time over the second half of the steps, which leaves out a slow start. */
static double usual_rate(const struct side *s)
{
    double tokens = 0, ms = 0;

    for (size_t i = s->n / 2; i < s->n; i++) {
        const struct point *p = &s->points[i];
        if (!isfinite(p->tokens_per_second) || !isfinite(p->step_ms))
            continue;
        tokens += p->tokens_per_second * p->step_ms / 1000;
        ms += p->step_ms;
    }
    return ms > 0 ? tokens / ms * 1000 : 0;
}

static void print(const struct comparison *c, struct buf *out)
{
    const unsigned long long a = c->side[0].job, b = c->side[1].job;
    char rate[2][UNITS_TEXT];

    if (c->changes.len > 0)
        buf_printf(out, "keys of job %llu that are others in job %llu (there):\n%s", a, b, c->changes.data);
    else
        buf_printf(out, "jobs %llu and %llu have the same run file\n", a, b);

    if (c->n > 0) {
        buf_printf(out, "\n%10s %14s %14s %12s\n", "step", "loss", "", "");
        buf_printf(out, "%10s %10s%4llu %10s%4llu %12s\n", "", "job ", a, "job ", b, "difference");
    }
    for (size_t i = 0; i < MIN(c->n, (size_t)ROWS); i++) { /* the first, the last, and some in between */
        const struct pair *p = &c->pairs[c->n <= ROWS ? i : i * (c->n - 1) / (ROWS - 1)];
        buf_printf(out, "%10llu %14.6f %14.6f ", (unsigned long long)p->step, p->loss[0], p->loss[1]);
        if (isfinite(distance(p)))
            buf_printf(out, "%+12.3g\n", p->loss[1] - p->loss[0]);
        else
            buf_printf(out, "%12s\n", "-");
    }

    if (c->n == 0) {
        buf_puts(out, "\nthere is no step that both have trained\n");
    } else if (c->first == c->n) {
        buf_printf(out, "\nlosses are the same, bit for bit, at all %zu steps that both have\n", c->n);
    } else {
        buf_printf(out, "\nlosses are the same up to step %llu",
                   c->first ? (unsigned long long)c->pairs[c->first - 1].step : 0ULL);
        if (c->largest < c->n)
            buf_printf(out, "; they differ most at step %llu: by %.3g", (unsigned long long)c->pairs[c->largest].step,
                       distance(&c->pairs[c->largest]));
        if (c->not_finite < c->n) {
            const struct pair *p = &c->pairs[c->not_finite];
            buf_printf(out, "; at step %llu the loss of job %llu is not a number", (unsigned long long)p->step,
                       isfinite(p->loss[1]) ? a : b);
        }
        buf_puts(out, "\n");
    }
    buf_printf(out, "tokens/s: %s and %s\n", format_count(usual_rate(&c->side[0]), rate[0]),
               format_count(usual_rate(&c->side[1]), rate[1]));
}

static void print_json(const struct comparison *c, struct buf *out)
{
    struct json_writer w = {.out = out};

    json_begin_object(&w, NULL);
    json_begin_array(&w, "jobs");
    for (int k = 0; k < 2; k++) {
        json_begin_object(&w, NULL);
        json_put_uint(&w, "job_id", c->side[k].job);
        json_put_uint(&w, "steps", c->side[k].n ? c->side[k].points[c->side[k].n - 1].step : 0);
        json_put_real(&w, "tokens_per_second", usual_rate(&c->side[k]));
        json_end_object(&w);
    }
    json_end_array(&w);
    json_begin_array(&w, "changes");
    for (char *at = c->changes.len ? c->changes.data : NULL; at && *at;) {
        char *const end = strchr(at, '\n');
        *end = '\0';
        json_put_string(&w, NULL, at);
        at = end + 1;
    }
    json_end_array(&w);
    json_put_uint(&w, "common_steps", c->n);
    json_put_uint(&w, "first_difference", c->first < c->n ? c->pairs[c->first].step : 0);
    json_put_uint(&w, "largest_difference_step", c->largest < c->n ? c->pairs[c->largest].step : 0);
    json_put_real(&w, "largest_difference", c->largest < c->n ? distance(&c->pairs[c->largest]) : 0);
    json_put_uint(&w, "first_not_finite", c->not_finite < c->n ? c->pairs[c->not_finite].step : 0);
    json_end_object(&w);
}

static void comparison_free(struct comparison *c)
{
    for (int k = 0; k < 2; k++)
        free(c->side[k].points);
    free(c->pairs);
    buf_free(&c->changes);
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    _cleanup_(comparison_free) struct comparison c = {0};
    _cleanup_(buf_free) struct buf text = BUF_INIT;

    for (int k = 0; k < 2; k++) {
        _cleanup_message_ Titan__V1__GetRecipeResponse *reply = NULL;
        Titan__V1__MetricsRequest request = TITAN__V1__METRICS_REQUEST__INIT;
        struct side *s = &c.side[k];
        char named[32];
        TRY(args_job(args, k, &s->job, err));
        request.job_id = s->job;
        (void)snprintf(named, sizeof named, "job %llu", (unsigned long long)s->job);
        TRY(submit_recipe_of(ctl, s->job, &reply, err));
        recipe_init(&s->recipe);
        TRY(recipe_parse(&s->recipe, reply->recipe, named, err));
        TRY(recipe_resolve(&s->recipe, err));
        TRY(ctl_stream(ctl,
                       &(struct stream_call){TITAN_METHOD("Metrics"), &request.base,
                                             &titan__v1__metric_point__descriptor, add_point, s},
                       err));
    }
    TRY(match(&c, err));
    recipe_changes(&c.side[0].recipe, &c.side[1].recipe, &c.changes);
    if (ctl->json)
        print_json(&c, &text);
    else
        print(&c, &text);
    if (buf_failed(&text) || buf_failed(&c.changes))
        return titan_fail(err, TITAN_ENOMEM, "compare: out of memory");
    if (ctl->json)
        (void)output_line(&text);
    else
        (void)fwrite(text.data, 1, text.len, stdout);
    return TITAN_OK;
}

const struct command command_compare = {
    .name = "compare",
    .summary = "what differs between two jobs: keys of their run files, losses, speed",
    .arguments = "JOB JOB",
    .text = "Losses are compared at the steps that both have trained; a step that was trained again counts as it was "
            "trained\nlast. Speed is tokens over time of the second half of each job's steps.",
    .min_args = 2,
    .max_args = 2,
    .word = WORD_JOB,
    .options = (const struct option_spec[]){{NULL}},
    .examples = (const struct example[]){{"titanctl compare 12 15", "did the change of the learning rate help?"},
                                         {"titanctl -o json compare 12 15 | jq .first_difference", "in a script"},
                                         {NULL}},
    .run = run,
};

const struct command command_diff = {
    .name = "diff",
    .summary = "what differs between two jobs; the same as compare",
    .arguments = "JOB JOB",
    .min_args = 2,
    .max_args = 2,
    .word = WORD_JOB,
    .options = (const struct option_spec[]){{NULL}},
    .examples = (const struct example[]){{"titanctl diff 12 15", "keys, losses, speed"}, {NULL}},
    .run = run,
};
