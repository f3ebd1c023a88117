/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c - titanctl metrics: the steps of a job as numbers or curves. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "ctl/args.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/live_stream.h"
#include "ctl/output.h"
#include "ctl/plot.h"
#include "proto/curves.h"
#include "proto/message_json.h"

enum { REDRAW_MS = 250, PLOT_HEIGHT = 18, PLOT_WIDTH = 100 };

/* A job's curve; with many steps each point is the mean of several. */
struct series {
    uint64_t job;
    struct curves curves;
    double *x, *y, *validation; /* CURVES_RANGES each, as last drawn; missing values in `validation` are NaN */
    double tokens_per_second;
    char legend[200];
};

struct view {
    struct ctl *ctl;
    bool plot, live; /* live: redraw as points arrive */
    bool split;      /* print the step times */
    bool rates;      /* print the rates and the experts' load */
    struct series *series;
    size_t n, at; /* at: index of the job whose points arrive */
    uint64_t job; /* id of the job whose points arrive */
    Titan__V1__MetricsRequest request;
    int room;                 /* columns of the terminal; 0: unlimited */
    uint64_t printed, points; /* points: of the current job */
    int drawn_lines;
    int64_t drawn_ns;
};

static void draw(struct view *v)
{
    titan_assert(v->plot && v->n > 0 && v->n <= PLOT_CURVES);
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct plot_curve curves[PLOT_CURVES];
    struct winsize size = {0};
    char title[160] = "loss";
    int width = PLOT_WIDTH;
    if (v->ctl->online && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        width = MIN(size.ws_col - 1, 2 * PLOT_WIDTH);
    for (size_t i = 0; i < v->n; i++) {
        struct series *s = &v->series[i];
        char count[UNITS_TEXT];
        size_t validated = s->curves.n;

        /* A range is drawn at its first step. The newest range is drawn at its last step, where the axis ends. */
        for (size_t k = 0; k < s->curves.n; k++) {
            const struct curves_range *r = &s->curves.ranges[k];
            s->x[k] = (double)(k + 1 < s->curves.n ? r->step : r->last_step);
            s->y[k] = curves_mean(&r->values[CURVES_LOSS]);
            s->validation[k] = curves_mean(&r->values[CURVES_VALIDATION]);
        }

        /* "loss 10.5000 -> 2.3456, 61.2k tokens/s, validation (+) 2.4000" */
        (void)snprintf(title, sizeof(title), "loss");
        if (s->curves.n > 0)
            (void)snprintf(title, sizeof(title), "loss %.4f -> %.4f, %s tokens/s", s->curves.first_loss,
                           s->curves.last_loss, format_count(s->tokens_per_second, count));
        while (validated > 0 && !isfinite(s->validation[validated - 1]))
            validated--;
        const size_t used = strlen(title);
        if (validated > 0)
            (void)snprintf(title + used, sizeof(title) - used, ", validation (+) %.4f", s->validation[validated - 1]);
        (void)snprintf(s->legend, sizeof(s->legend), "job %llu: %s", (unsigned long long)s->job, title);
        curves[i] = (struct plot_curve){
            .x = s->x, .y = s->y, .n = s->curves.n, .marks = s->validation, .legend = v->n > 1 ? s->legend : NULL};
    }
    const struct plot plot = {.curves = curves,
                              .n = v->n,
                              .width = width,
                              .height = size.ws_row > 4 ? MIN(PLOT_HEIGHT, size.ws_row - 2) : PLOT_HEIGHT,
                              .unicode = plot_unicode(),
                              .color = v->ctl->color,
                              .title = v->n > 1 ? "loss" : title,
                              .x_name = "step"};
    if (v->drawn_lines)
        buf_printf(&text, "\033[%dA\033[J", v->drawn_lines);
    plot_draw(&plot, &text);
    v->drawn_lines = 0;
    for (size_t i = 0; i < text.len; i++)
        v->drawn_lines += text.data[i] == '\n';
    v->drawn_ns = clock_mono_ns();
    (void)output_line(&text);
}

enum { JOB_COLUMN = 8 };

/* Prints the right-aligned columns that fit the terminal. widths include the preceding blank; 0 ends them. With several
 * jobs, a first column names the job. head: the line is the heading. */
static bool print_fitting(const struct view *v, const int *widths, const struct buf *line, bool head)
{
    int fits = 0;
    const int room = v->n > 1 && v->room > 0 ? MAX(v->room - JOB_COLUMN, 1) : v->room;
    if (v->n > 1 && head)
        (void)printf("%*s", JOB_COLUMN, "job");
    else if (v->n > 1)
        (void)printf("%*llu", JOB_COLUMN, (unsigned long long)v->job);
    for (; *widths && (room <= 0 || fits + *widths <= room); widths++)
        fits += *widths;
    (void)printf("%.*s\n", *widths ? MIN(fits, (int)line->len) : (int)line->len, line->len ? line->data : "");
    return fflush(stdout) == 0;
}

static bool print_point(struct view *v, const Titan__V1__MetricPoint *p)
{
    if (v->ctl->json) { /* the point's fields follow the job's number */
        _cleanup_(buf_free) struct buf json = BUF_INIT;
        struct json_writer w = {.out = &json};
        json_begin_object(&w, NULL);
        json_put_uint(&w, "job_id", v->job);
        message_json_fields(&w, &p->base);
        json_end_object(&w);
        return !buf_failed(&json) && output_line(&json);
    }
    if (v->split) {
        static const int widths[] = {8, 11, 10, 10, 10, 10, 10, 10, 8, 10, 11, 0};
        const Titan__V1__StepSplit *const t = p->split;
        _cleanup_(buf_free) struct buf line = BUF_INIT;
        char memory[UNITS_TEXT];
        if (v->printed++ == 0) {
            buf_printf(&line, "%8s %10s %9s %9s %9s %9s %9s %9s %7s %9s %10s", "step", "max loss", "step ms", "data ms",
                       "compute", "comm.", "checkp.", "straggl.", "slowest", "its busy", "memory");
            (void)print_fitting(v, widths, &line, true);
            buf_clear(&line);
        }
        buf_printf(&line, "%8llu %10.4f %9.1f", (unsigned long long)p->step, p->loss_max, p->step_ms);
        if (t)
            buf_printf(&line, " %9.1f %9.1f %9.1f %9.1f %9.1f %7u %9.1f", t->data_ms, t->compute_ms,
                       t->communication_ms, t->checkpoint_ms, t->straggler_ms, t->slowest_rank, t->slowest_busy_ms);
        else
            buf_printf(&line, " %9s %9s %9s %9s %9s %7s %9s", "-", "-", "-", "-", "-", "-", "-");
        buf_printf(&line, " %10s", format_bytes(p->memory_bytes, memory));
        return print_fitting(v, widths, &line, false);
    }
    if (v->rates) {
        static const int widths[] = {8, 10, 11, 10, 8, 9, 28, 0};
        _cleanup_(buf_free) struct buf line = BUF_INIT, experts = BUF_INIT;
        char rate[UNITS_TEXT];
        if (v->printed++ == 0) {
            buf_printf(&line, "%8s %9s %10s %9s %7s %8s %27s", "step", "step ms", "tokens/s", "TFLOP/s", "mfu %",
                       "causal %", "tokens of an expert");
            (void)print_fitting(v, widths, &line, true);
            buf_clear(&line);
        }
        buf_printf(&line, "%8llu %9.1f %10s %9.4g %7.1f %8.1f", (unsigned long long)p->step, p->step_ms,
                   format_count(p->tokens_per_second, rate), p->tflops, 100 * p->mfu, 100 * p->mfu_causal);
        if (p->experts) {
            /* "12 to 80, mean 32", and if any ", 5 dropped, 3 more rounds (room 1.71)" */
            buf_printf(&experts, "%.0f to %.0f, mean %.4g", p->experts->least, p->experts->most, p->experts->mean);
            if (p->experts->dropped > 0)
                buf_printf(&experts, ", %.0f dropped", p->experts->dropped);
            if (p->experts->further_rounds > 0)
                buf_printf(&experts, ", %.0f more rounds (room %.2f)", p->experts->further_rounds,
                           ceil(p->experts->room_needed * 100) / 100);
            buf_printf(&line, " %27s", experts.data);
        }
        return print_fitting(v, widths, &line, false);
    }
    static const int widths[] = {8, 11, 11, 11, 11, 8, 10, 9, 7, 11, 0};
    _cleanup_(buf_free) struct buf line = BUF_INIT;
    char rate[UNITS_TEXT];
    if (v->printed++ == 0) {
        buf_printf(&line, "%8s %10s %10s %10s %10s %7s %9s %8s %6s %10s", "step", "loss", "grad norm", "rate",
                   "tokens/s", "mfu %", "step ms", "workers", "epoch", "validation");
        (void)print_fitting(v, widths, &line, true);
        buf_clear(&line);
    }
    buf_printf(&line, "%8llu %10.4f %10.4f %10.3g %10s %7.1f %9.1f %8u %6llu", (unsigned long long)p->step, p->loss,
               p->grad_norm, p->learning_rate, format_count(p->tokens_per_second, rate), 100 * p->mfu, p->step_ms,
               p->world_size, (unsigned long long)p->epoch);
    if (p->validation)
        buf_printf(&line, " %10.4f", p->validation->loss);
    return print_fitting(v, widths, &line, false);
}

static bool each(const ProtobufCMessage *message, void *data)
{
    struct view *v = data;
    const Titan__V1__MetricPoint *point = (const Titan__V1__MetricPoint *)message;
    v->points++;
    v->request.after_step = point->step;
    v->request.after_epoch = point->epoch;
    if (!v->plot)
        return print_point(v, point);
    titan_assert(v->at < v->n);
    struct series *s = &v->series[v->at];
    curves_add(&s->curves, point);
    s->tokens_per_second = point->tokens_per_second;
    if (v->live && clock_mono_ns() - v->drawn_ns > REDRAW_MS * INT64_C(1000000))
        draw(v);
    return true;
}

static titan_status show(struct view *v, const struct args *args, struct titan_error *err)
{
    struct live_stream live = {
        .ctl = v->ctl,
        .call = {TITAN_METHOD("Metrics"), &v->request.base, &titan__v1__metric_point__descriptor, each, v}};
    int64_t after;
    TRY(args_int(args, "after", (struct int_range){0, INT64_MAX}, 0, &after, err));
    TRY(live_stream_patience(args, &live.patience_ms, err));
    v->live = v->plot && args_has(args, "follow") && output_terminal(STDOUT_FILENO);
    titan_status status = TITAN_OK;
    uint64_t seen = 0;
    for (v->at = 0; v->at < v->n && status == TITAN_OK; v->at++) {
        v->points = 0;
        titan__v1__metrics_request__init(&v->request);
        TRY(args_job(args, (int)v->at, &v->job, err));
        v->request.job_id = live.job_id = v->job;
        v->request.after_step = (uint64_t)after;
        v->request.follow = args_has(args, "follow");
        live.once = !v->request.follow;
        if (v->plot) {
            struct series *s = &v->series[v->at];
            s->job = v->job;
            s->x = calloc(CURVES_RANGES, sizeof(*s->x));
            s->y = calloc(CURVES_RANGES, sizeof(*s->y));
            s->validation = calloc(CURVES_RANGES, sizeof(*s->validation));
            if (!s->x || !s->y || !s->validation || !curves_init(&s->curves))
                return titan_fail(err, TITAN_ENOMEM, "metrics: out of memory");
        }
        status = live_stream_read(&live, err);
        seen += v->points;
        if (status != TITAN_OK || v->points > 0)
            continue;

        /* The note goes to stderr, because stdout is for numbers. */
        _cleanup_message_ Titan__V1__GetJobResponse *reply = NULL;
        struct titan_error ignored = {0};
        const bool known = ctl_job(v->ctl, v->job, &reply, &ignored) == TITAN_OK,
                   over = known && ctl_state_final(reply->job->state);
        (void)fprintf(stderr, "titanctl: job %llu has no steps", (unsigned long long)v->job);
        if (after > 0)
            (void)fprintf(stderr, " after step %lld", (long long)after);
        if (known)
            (void)fprintf(stderr, "%s: it is %s", over ? "" : " yet", ctl_state_name(reply->job->state));
        (void)fputs("\n", stderr);
    }
    if (v->plot && seen > 0 && (status == TITAN_OK || status == TITAN_ECANCELLED))
        draw(v);
    return status;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    struct view view = {.ctl = ctl,
                        .plot = args_has(args, "plot") && !ctl->json,
                        .split = args_has(args, "split"),
                        .rates = args_has(args, "rates"),
                        .room = output_columns(),
                        .n = (size_t)args->n};
    if (view.n > 1 && args_has(args, "follow"))
        return titan_fail(err, TITAN_EINVAL, "metrics: --follow follows one job, and these are %zu", view.n);
    if (view.plot && view.n > PLOT_CURVES)
        return titan_fail(err, TITAN_EINVAL, "metrics: %zu jobs; a picture has at most %d", view.n, PLOT_CURVES);
    if (view.split && view.rates)
        return titan_fail(err, TITAN_EINVAL, "metrics: --split and --rates are two tables; one at a time");
    if (args_has(args, "plot") && (view.split || view.rates))
        return titan_fail(err, TITAN_EINVAL, "metrics: --plot draws the loss; --%s is a table",
                          view.split ? "split" : "rates");
    view.series = calloc(view.n, sizeof(*view.series));
    if (!view.series)
        return titan_fail(err, TITAN_ENOMEM, "metrics: out of memory");
    const titan_status status = show(&view, args, err);
    for (size_t i = 0; i < view.n; i++) {
        curves_free(&view.series[i].curves);
        free(view.series[i].x);
        free(view.series[i].y);
        free(view.series[i].validation);
    }
    free(view.series);
    return status;
}

const struct command command_metrics = {
    .name = "metrics",
    .summary = "print the steps of jobs: loss, gradient norm, speed, validation loss; or draw the losses",
    .arguments = "JOB...",
    .min_args = 1,
    .max_args = ANY_NUMBER,
    .word = WORD_JOB,
    .options =
        (const struct option_spec[]){
            {"follow", 'f', NULL, "go on until the job has ended", WORD_NONE},
            {"plot", 'p', NULL,
             "draw the loss curve instead of printing numbers, the validation loss as crosses; "
             "of several jobs in one picture",
             WORD_NONE},
            {"split", 0, NULL,
             "print where the time of each step went, which rank was the slowest, the largest loss of a rank, and "
             "memory",
             WORD_NONE},
            {"rates", 0, NULL,
             "print how fast each step was: TFLOP/s of a worker, MFU as TorchTitan counts it and without what a causal "
             "mask takes out, and the tokens of an expert",
             WORD_NONE},
            {"after", 0, "STEP", "only steps after this one", WORD_NONE},
            SERVER_GONE,
            {NULL}},
    .examples = (const struct example[]){{"titanctl metrics 12 --plot", "the loss curve so far"},
                                         {"titanctl metrics 12 -f --plot", "the loss curve as it grows"},
                                         {"titanctl metrics 12 -f --split", "what the run waits for"},
                                         {"titanctl metrics 12 15 16 --plot", "three runs in one picture"},
                                         {"titanctl -o json metrics 12 15 > steps.jsonl",
                                          "for another program: job_id, step, loss, ... a line each"},
                                         {NULL}},
    .run = run,
};
