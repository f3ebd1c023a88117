/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c - titanctl metrics: the steps of a job as numbers or as a curve. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "base/vec.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"
#include "ctl/plot.h"

enum { POINTS_MAX = 10000000, REDRAW_MS = 250, PLOT_HEIGHT = 18, PLOT_WIDTH = 100 };

struct series {
    struct ctl *ctl;
    bool plot, live;            /* live: draw again as points come */
    double *x, *y, *validation; /* NaN in the last where there was none */
    size_t n, cap_x, cap_y, cap_validation;
    double tokens_per_second;
    int drawn_lines;
    int64_t drawn_ns;
};

static bool add_point(struct series *s, const Titan__V1__MetricPoint *point)
{
    titan_assert(s->n <= POINTS_MAX && s->plot);
    if (s->n == POINTS_MAX || !VEC_RESERVE(s->x, s->cap_x, s->n + 1) || !VEC_RESERVE(s->y, s->cap_y, s->n + 1) ||
        !VEC_RESERVE(s->validation, s->cap_validation, s->n + 1))
        return false;
    s->x[s->n] = (double)point->step;
    s->validation[s->n] = point->validation ? point->validation->loss : (double)NAN;
    s->y[s->n++] = point->loss;
    s->tokens_per_second = point->tokens_per_second;
    return true;
}

static void draw(struct series *s)
{
    titan_assert(s->plot);
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    char title[160] = "loss", count[UNITS_TEXT];
    struct winsize size = {0};
    int width = PLOT_WIDTH;
    if (s->ctl->online && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        width = MIN(size.ws_col - 1, 2 * PLOT_WIDTH);
    if (s->n > 0)
        (void)snprintf(title, sizeof(title), "loss %.4f -> %.4f, %s tokens/s", s->y[0], s->y[s->n - 1],
                       format_count(s->tokens_per_second, count));
    for (size_t i = s->n; i-- > 0;) {
        if (!isfinite(s->validation[i]))
            continue;
        const size_t used = strlen(title);
        (void)snprintf(title + used, sizeof(title) - used, ", validation (+) %.4f", s->validation[i]);
        break;
    }
    const struct plot plot = {.x = s->x,
                              .y = s->y,
                              .marks = s->validation,
                              .n = s->n,
                              .width = width,
                              .height = size.ws_row > 4 ? MIN(PLOT_HEIGHT, size.ws_row - 2) : PLOT_HEIGHT,
                              .unicode = plot_unicode(),
                              .title = title,
                              .x_name = "step"};
    if (s->drawn_lines)
        buf_printf(&text, "\033[%dA\033[J", s->drawn_lines);
    plot_draw(&plot, &text);
    s->drawn_lines = 0;
    for (size_t i = 0; i < text.len; i++)
        s->drawn_lines += text.data[i] == '\n';
    s->drawn_ns = clock_mono_ns();
    (void)output_line(&text);
}

static bool print_point(struct series *s, const Titan__V1__MetricPoint *p)
{
    if (s->ctl->json)
        return output_json(&p->base, false);
    char rate[UNITS_TEXT];
    if (s->n++ == 0)
        (void)printf("%8s %10s %10s %10s %10s %7s %9s %8s %6s %10s\n", "step", "loss", "grad norm", "rate", "tokens/s",
                     "mfu %", "step ms", "workers", "epoch", "validation");
    (void)printf("%8llu %10.4f %10.4f %10.3g %10s %7.1f %9.1f %8u %6llu", (unsigned long long)p->step, p->loss,
                 p->grad_norm, p->learning_rate, format_count(p->tokens_per_second, rate), 100 * p->mfu, p->step_ms,
                 p->world_size, (unsigned long long)p->epoch);
    if (p->validation)
        (void)printf(" %10.4f", p->validation->loss);
    (void)puts("");
    return fflush(stdout) == 0;
}

static bool each(const ProtobufCMessage *message, void *data)
{
    struct series *s = data;
    const Titan__V1__MetricPoint *point = (const Titan__V1__MetricPoint *)message;
    if (!s->plot)
        return print_point(s, point);
    if (!add_point(s, point))
        return false;
    if (s->live && clock_mono_ns() - s->drawn_ns > REDRAW_MS * INT64_C(1000000))
        draw(s);
    return true;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    titan_assert(args->n == 1);
    struct ctl *ctl = with;
    int64_t after;
    uint64_t id;
    TRY(args_job(args, 0, &id, err));
    TRY(args_int(args, "after", 0, INT64_MAX, 0, &after, err));
    Titan__V1__MetricsRequest request = TITAN__V1__METRICS_REQUEST__INIT;
    request.job_id = id;
    request.after_step = (uint64_t)after;
    request.follow = args_has(args, "follow");
    struct series series = {.ctl = ctl, .plot = args_has(args, "plot") && !ctl->json};
    series.live = series.plot && request.follow && ctl->online;
    titan_status status = ctl_stream(ctl, TITAN_METHOD("Metrics"), &request.base, &titan__v1__metric_point__descriptor,
                                     each, &series, err);
    if (series.plot && (status == TITAN_OK || status == TITAN_ECANCELLED))
        draw(&series);
    free(series.x);
    free(series.y);
    free(series.validation);
    return status;
}

const struct command command_metrics = {
    .name = "metrics",
    .summary = "print a job's steps: loss, gradient norm, speed, validation loss; or draw the losses",
    .arguments = "JOB",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_JOB,
    .options =
        (const struct option_spec[]){{"follow", 'f', NULL, "go on until the job has ended", WORD_NONE},
                                     {"plot", 'p', NULL,
                                      "draw the loss curve instead of printing numbers, the validation loss as crosses",
                                      WORD_NONE},
                                     {"after", 0, "STEP", "only steps behind this one", WORD_NONE},
                                     {NULL}},
    .examples = (const struct example[]){{"titanctl metrics 12 --plot", "the loss curve so far"},
                                         {"titanctl metrics 12 -f --plot", "the loss curve as it grows"},
                                         {"titanctl -o json metrics 12 > steps.jsonl", "for another program"},
                                         {NULL}},
    .run = run,
};
