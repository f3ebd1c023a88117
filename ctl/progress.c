/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/progress.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/recipe.h"
#include "base/units.h"
#include "ctl/client.h"
#include "ctl/output.h"
#include "ctl/plot.h"

enum {
    PLAIN_EVERY_MS = 2000,
    BAR = 20,
    BAR_FROM_WIDTH = 100,
    LATE_STEPS = 3,
    LATE_MS = 500,
};

void progress_init(struct progress *p, FILE *out)
{
    const char *no_color = getenv("NO_COLOR");
    *p = (struct progress){.out = out, .loss = NAN, .width = 80};
    p->live = output_terminal(fileno(out));
    p->color = p->live && !(no_color && *no_color);
    p->unicode = p->live && plot_unicode();
}

static void take_validation(struct progress *p, const Titan__V1__Evaluation *v)
{
    if (!v || v->step < p->validation_step)
        return;
    p->validation_step = v->step;
    p->validation_loss = v->loss;
}

void progress_job(struct progress *p, const Titan__V1__Job *job)
{
    p->state = job->state;
    p->steps = job->steps;
    p->workers = job->world_size;
    p->job_epoch = job->epoch;
    /* A point is usually newer than the job status. But steps that are trained again after a recovery bring no points,
     * so then the status counts. */
    if (job->step >= p->step || job->epoch > p->point_epoch) {
        p->step = job->step;
        if (isfinite(job->loss) && job->step > 0)
            p->loss = job->loss;
        p->tokens_per_second = job->tokens_per_second;
        p->mfu = job->mfu;
        take_validation(p, job->validation);
    }
}

void progress_point(struct progress *p, const Titan__V1__MetricPoint *point)
{
    if (point->epoch < p->job_epoch)
        return; /* the point is of an ended epoch: the epoch's last steps may be lost */
    p->point_epoch = point->epoch;
    if (p->state < TITAN__V1__JOB_STATE__RUNNING)
        p->state = TITAN__V1__JOB_STATE__RUNNING; /* a finished step proves this state */
    p->step = point->step;
    p->loss = point->loss;
    p->tokens_per_second = point->tokens_per_second;
    p->mfu = point->mfu;
    take_validation(p, point->validation);
    p->workers = point->world_size;
    /* Leaves out the first step: it includes warm-up and would distort the estimate for long. */
    if (isfinite(point->step_ms) && point->step_ms > 0 && p->points++ > 0)
        p->step_ms += (point->step_ms - p->step_ms) * fmax(0.1, 1.0 / (double)(p->points - 1));
}

/* Writes fields in order of importance. The last fields are left out if they do not fit. */
void progress_text(const struct progress *p, int width, struct buf *out)
{
    char count[UNITS_TEXT], duration[UNITS_TEXT], fields[8][64];
    int n = 0;
    (void)snprintf(fields[n++], 64, "step %llu/%llu", (unsigned long long)p->step, (unsigned long long)p->steps);
    if (isfinite(p->loss))
        (void)snprintf(fields[n++], 64, "loss %.4f", p->loss);
    if (p->validation_step > 0)
        (void)snprintf(fields[n++], 64, "validation %.4f", p->validation_loss);
    if (p->evaluates)
        (void)snprintf(fields[n++], 64, "evaluates");
    if (p->tokens_per_second > 0)
        (void)snprintf(fields[n++], 64, "%s tok/s", format_count(p->tokens_per_second, count));
    if (p->mfu > 0)
        (void)snprintf(fields[n++], 64, "mfu %.1f%%", 100 * p->mfu);
    if (p->workers > 0)
        (void)snprintf(fields[n++], 64, "%u worker%s", p->workers, p->workers == 1 ? "" : "s");
    if (p->step_ms > 0 && p->steps > p->step && !ctl_state_final(p->state)) {
        double left_ms = (double)(p->steps - p->step) * p->step_ms;
        if (p->recipe && p->recipe->validation.enable) {
            const uint64_t freq = (uint64_t)p->recipe->validation.freq;
            const uint64_t evaluations = p->steps / freq - p->step / freq;
            left_ms += (double)evaluations * p->evaluation_ms;
        }
        (void)snprintf(fields[n++], 64, "eta %s", format_duration(left_ms / 1000, duration));
    }

    titan_assert(n <= (int)ARRAY_SIZE(fields));
    char name[32];
    int used = snprintf(name, sizeof(name), "%s", ctl_state_name(p->state)) + 2;
    const char *paint = p->color ? output_state_color(name) : "";
    for (char *c = name; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    buf_printf(out, "%s%s%s  ", paint, name, *paint ? COLOR_OFF : "");
    if (p->live && width >= BAR_FROM_WIDTH) {
        double part = p->steps ? fmin((double)p->step / (double)p->steps, 1) : 0;
        int full = (int)(part * BAR);
        titan_assert(full >= 0 && full <= BAR);
        for (int i = 0; i < BAR; i++)
            buf_puts(out, p->unicode ? (i < full ? "█" : "░") : (i < full ? "#" : "."));
        buf_puts(out, "  ");
        used += BAR + 2;
    }
    for (int i = 0; i < n; i++) {
        int more = (int)strlen(fields[i]) + (i ? 2 : 0);
        if (width > 0 && used + more > width)
            break;
        buf_printf(out, "%s%s", i ? "  " : "", fields[i]);
        used += more;
    }
}

static void draw(struct progress *p, const char *end)
{
    titan_assert(!p->live || p->width > 0);
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct winsize size;
    if (p->live && ioctl(fileno(p->out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        p->width = size.ws_col;
    progress_text(p, p->live ? p->width - 1 : 0, &text);
    (void)fprintf(p->out, "%s%s%s", p->live ? "\r\033[K" : "", text.data ? text.data : "", end);
    (void)fflush(p->out);
}

void progress_show(struct progress *p, int64_t now_ms, bool last)
{
    if (p->state == TITAN__V1__JOB_STATE__JOB_STATE_UNSPECIFIED)
        return; /* no job status has arrived yet */

    /* A step is reported only after its evaluation. So if a step that is evaluated comes late, the evaluation is under
     * way. */
    if (p->step != p->seen_step || p->seen_ms == 0) {
        if (p->evaluates)
            p->evaluation_ms = fmax((double)(now_ms - p->seen_ms) - p->step_ms, 0);
        p->seen_step = p->step;
        p->seen_ms = now_ms;
    }
    p->evaluates = p->recipe && p->state == TITAN__V1__JOB_STATE__RUNNING && p->step_ms > 0 && p->step < p->steps &&
                   recipe_validates(p->recipe, p->step + 1) &&
                   (double)(now_ms - p->seen_ms) > LATE_STEPS * p->step_ms + LATE_MS;

    if (p->live) {
        draw(p, last ? "\n" : "");
        p->shown = !last;
        return;
    }
    bool news = p->step != p->last_step || p->last_line_ms == 0 || (p->evaluates && !p->last_evaluates);
    if (!last && (!news || p->step == 0 || now_ms - p->last_line_ms < PLAIN_EVERY_MS))
        return;
    draw(p, "\n");
    p->last_step = p->step;
    p->last_evaluates = p->evaluates;
    p->last_line_ms = now_ms;
}

void progress_clear(struct progress *p)
{
    if (p->shown)
        (void)fputs("\r\033[K", p->out);
    p->shown = false;
    (void)fflush(p->out);
}

void progress_print(struct progress *p, const char *text)
{
    bool again = p->shown;
    progress_clear(p);
    (void)fprintf(p->out, "%s\n", text);
    if (again) {
        draw(p, "");
        p->shown = true;
    }
    (void)fflush(p->out);
}
