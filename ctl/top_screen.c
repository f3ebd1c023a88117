/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/top_screen.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/units.h"
#include "ctl/client.h"
#include "ctl/output.h"
#include "ctl/plot.h"

enum { WIDTH_MIN = 40, HEIGHT_MIN = 12, CURVE = 16, FIXED = 6 }; /* FIXED: lines outside the tables */

size_t top_screen_jobs(int height)
{
    return (size_t)(MAX(height, HEIGHT_MIN) - FIXED) / 2;
}

/* A frame under construction; lines are cut at the terminal's width. */
struct frame {
    const struct top_screen *screen;
    struct buf *out;
    int width, left; /* left: remaining lines */
};

/* Puts a line, cut to the width; its colour sequences use no columns. before: text in front of the line, or "". */
static void put_line(struct frame *f, const char *line, size_t len, const char *before)
{
    titan_assert(f->width > 0);
    char text[1024];
    int columns = f->width;
    if (f->left <= 0)
        return;
    f->left--;
    (void)snprintf(text, sizeof(text), "%.*s", (int)MIN(len, sizeof(text) - 1), line);
    buf_puts(f->out, before);
    bool painted = *before != '\0';
    for (char *at = text; *at;) {
        if (*at == '\033') {
            const size_t bytes = strcspn(at, "m") + 1;
            if (!*before)
                (void)!buf_append(f->out, at, MIN(bytes, strlen(at)));
            painted = true;
            at += MIN(bytes, strlen(at));
            continue;
        }
        char *const end = at + strcspn(at, "\033"), kept = *end;
        *end = '\0';
        (void)!buf_append(f->out, at, output_text_fits(at, columns, &columns));
        *end = kept;
        at = end;
    }
    if (*before)
        buf_printf(f->out, "%*s", columns, ""); /* the bar extends to the edge */
    buf_printf(f->out, "%s\n", painted ? COLOR_OFF : "");
}

/* selected: the marked line of a table, not counting headings; -1 = none. */
static void put_table(struct frame *f, struct table_out *table, int state_column, int rows, int selected)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    const bool color = f->screen->color;
    table->room = f->width;
    table_end(table, &text, state_column, color);
    const char *at = text.data ? text.data : "";
    for (int row = -1; *at && row < rows; row++) {
        const size_t len = strcspn(at, "\n");
        put_line(f, at, len, row < 0 && color ? "\033[1m" : row >= 0 && row == selected && color ? "\033[7m" : "");
        at += len + (at[len] == '\n');
    }
}

static void put_text(struct frame *f, const char *before, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void put_text(struct frame *f, const char *before, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    put_line(f, text, strlen(text), f->screen->color ? before : "");
}

/* --- tables ------------------------------------------------------------------------------------------------------- */

/* A narrow terminal omits columns, the least important first. */
static void put_jobs(struct frame *f, int rows)
{
    const struct top_screen *s = f->screen;
    const bool rate = f->width >= 70, curve = f->width >= 84, mfu = f->width >= 94, more = f->width >= 120;
    const char *headings[TABLE_COLUMNS] = {" ", "JOB>", "NAME~", "STATE", "STEP>", "LOSS>"};
    struct table_out t;
    char count[UNITS_TEXT];
    int n = 6;
    if (curve)
        headings[n++] = "CURVE";
    if (rate)
        headings[n++] = "TOKENS/S>";
    if (mfu)
        headings[n++] = "MFU %>";
    headings[n++] = f->width >= 70 ? "WORKERS>" : "W>";
    if (more) {
        headings[n++] = "RESTARTS>";
        headings[n++] = "USER~";
        headings[n++] = "REASON~";
    }
    headings[n] = NULL;
    table_begin(&t, headings);
    for (size_t i = 0; i < s->n_jobs; i++) {
        const struct top_job *job = &s->jobs[i];
        table_cell(&t, "%s", i == s->selected ? ">" : " ");
        table_cell(&t, "%llu", (unsigned long long)job->id);
        table_cell(&t, "%s", job->name);
        table_cell(&t, "%s", ctl_state_name(job->state));
        table_cell(&t, "%llu/%llu", (unsigned long long)job->step, (unsigned long long)job->steps);
        if (job->step > 0)
            table_cell(&t, "%.4f", job->loss); /* NaN: the run has diverged */
        else
            table_cell(&t, "-");
        if (curve) {
            _cleanup_(buf_free) struct buf text = BUF_INIT;
            plot_spark(job->losses, job->n_losses, (int)MIN(job->n_losses, (size_t)CURVE), s->unicode, &text);
            table_cell(&t, "%s", text.data ? text.data : "");
        }
        if (rate)
            table_cell(&t, "%s", job->tokens_per_second > 0 ? format_count(job->tokens_per_second, count) : "-");
        if (mfu && job->mfu > 0)
            table_cell(&t, "%.1f", 100 * job->mfu);
        else if (mfu)
            table_cell(&t, "-");
        table_cell(&t, "%u", job->workers);
        if (more) {
            table_cell(&t, "%u", job->restarts);
            table_cell(&t, "%s", job->user);
            table_cell(&t, "%s", job->reason);
        }
    }
    put_table(f, &t, 3, rows, (int)s->selected);
}

static bool has_split(const struct top_job *job)
{
    return job->split && job->state != TITAN__V1__JOB_STATE__PENDING && !ctl_state_final(job->state);
}

static void put_splits(struct frame *f, int jobs, int rows)
{
    struct table_out t;
    table_begin(&t, (const char *const[]){"JOB>", "STEP MS>", "?DATA>", "?COMPUTE>", "?COMM.>", "?CHECKP.>",
                                          "?STRAGGL.>", "SLOWEST", "BUSY MS>", "OTHERS WAIT>", NULL});
    for (int i = 0; i < jobs; i++) {
        const struct top_job *job = &f->screen->jobs[i];
        if (!has_split(job))
            continue;
        const struct step_split *m = &job->split->split;
        const double total = step_split_total(m), percent = total > 0 ? 100 / total : 0;
        const double parts[] = {m->data, m->compute, m->communication, m->checkpoint, m->stragglers};
        table_cell(&t, "%llu", (unsigned long long)job->id);
        table_cell(&t, "%.1f", total);
        for (size_t k = 0; k < ARRAY_SIZE(parts); k++)
            table_cell(&t, "%.0f%%", percent * parts[k]);
        if (m->slowest >= 0) {
            table_cell(&t, "rank %d in %u of %u", m->slowest, job->split->slowest_steps, job->split->steps);
            table_cell(&t, "%.1f", m->slowest_busy);
            table_cell(&t, "%.1f", job->split->waited);
        } else {
            for (int k = 0; k < 3; k++)
                table_cell(&t, "-");
        }
    }
    put_table(f, &t, -1, rows, -1);
}

static const struct top_worker *slowest_of(const struct top_screen *s)
{
    const struct split_mean *split = s->jobs[s->selected].split;
    for (size_t i = 0; split && split->split.slowest >= 0 && i < s->n_workers; i++)
        if (s->workers[i].rank == split->split.slowest)
            return &s->workers[i];
    return NULL;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

static void put_selected(struct frame *f, bool split, int below)
{
    const struct top_screen *s = f->screen;
    titan_assert(s->n_jobs > 0 && below >= 0);
    const struct top_job *job = &s->jobs[s->selected];
    int events = 0;
    for (int i = 0; i < TOP_EVENTS; i++)
        events += s->events[i][0] != '\0';
    put_text(f, "\033[1m", "job %llu  %s%s%s", (unsigned long long)job->id, job->name, *job->reason ? ": " : "",
             job->reason);
    if (split && job->split) {
        /* Says where the newest steps' time went, and for which rank the others waited. Each line fits 80 columns
         * unless a node's name is long. */
        const struct split_mean *m = job->split;
        const struct step_split *t = &m->split;
        const struct top_worker *w = slowest_of(s);
        const double total = step_split_total(t), percent = total > 0 ? 100 / total : 0;
        titan_assert(m->steps > 0 && m->slowest_steps <= m->steps);
        if (f->left > below)
            put_text(f, "",
                     "step %.1f ms: data %.0f%%, compute %.0f%%, comm. %.0f%%, checkpoint %.0f%%, stragglers %.0f%%",
                     total, percent * t->data, percent * t->compute, percent * t->communication,
                     percent * t->checkpoint, percent * t->stragglers);
        if (f->left > below && t->slowest >= 0)
            put_text(f, "\033[1m", "slowest: rank %d in %u of %u steps, busy %.1f ms, the others wait %.1f%s%s",
                     t->slowest, m->slowest_steps, m->steps, t->slowest_busy, m->waited, w ? ", on " : "",
                     w ? w->node : "");
    }
    /* Puts the heading, the workers and a note on omitted workers; then the newest events. */
    const int room = f->left - below, for_events = MIN(events, MAX(room / 3, 1));
    const int rows = MIN((int)s->n_workers, MAX(room - for_events - 2, 0));
    if (s->n_workers > 0) {
        const struct split_mean *mean = s->jobs[s->selected].split;
        const struct top_worker *slowest = slowest_of(s);
        struct table_out t;
        char ago[48];
        table_begin(&t, (const char *const[]){"RANK>", "WORKER>", "NODE~", "STATE", "SINCE", "NOTE~", NULL});
        for (size_t i = 0; i < s->n_workers && (int)i < rows; i++) {
            const struct top_worker *w = &s->workers[i];
            if (w->rank >= 0)
                table_cell(&t, "%d", w->rank);
            else
                table_cell(&t, "-");
            table_cell(&t, "%llu", (unsigned long long)w->id);
            table_cell(&t, "%s", w->node);
            table_cell(&t, "%s", w->state);
            table_cell(&t, "%s", output_ago(w->since_ms, s->now_ms, ago));
            if (w == slowest && !*w->note)
                table_cell(&t, "slowest in %u of %u steps", mean->slowest_steps, mean->steps);
            else
                table_cell(&t, "%s", w->note);
        }
        put_table(f, &t, -1, rows, -1);
        if ((size_t)rows < s->n_workers)
            put_text(f, "", "... and %zu more workers", s->n_workers - (size_t)rows);
    }
    for (int i = TOP_EVENTS - MIN(events, MAX(f->left - below, 0)); i < TOP_EVENTS; i++)
        put_text(f, "", "%s", s->events[i]);
}

void top_screen_put(const struct top_screen *s, struct buf *out)
{
    titan_assert(s->n_jobs == 0 || s->selected < s->n_jobs);
    struct frame f = {s, out, MAX(s->width, WIDTH_MIN), MAX(s->height, HEIGHT_MIN)};
    const int below = s->live ? 1 : 0;
    char at[16], page[64] = "";
    if (s->more && s->rest > 0)
        (void)snprintf(page, sizeof(page), "  page %zu, %s%llu more jobs", s->page + 1, s->uncounted ? "over " : "",
                       (unsigned long long)s->rest);
    else if (s->page > 0 || s->more)
        (void)snprintf(page, sizeof(page), "  page %zu%s", s->page + 1, s->more ? ", there are more" : "");
    put_text(&f, "\033[1m", "titanctl top  %s%s  %s", output_clock(s->now_ms, at), page, s->server);
    if (s->trouble)
        put_text(&f, "\033[31;1m", "%s", s->trouble);
    const int jobs = MIN((int)s->n_jobs, (int)top_screen_jobs(s->height));
    if (s->n_jobs > 0)
        put_jobs(&f, jobs);
    else
        put_text(&f, "", "no jobs");

    /* A frame without keys has a table of all jobs' step times, unless the lines of the selected job suffice. */
    int splits = 0;
    for (int i = 0; i < jobs && !s->live; i++)
        splits += has_split(&s->jobs[i]);
    if (splits == 1 && has_split(&s->jobs[s->selected]))
        splits = 0;
    const int rows = MIN((int)s->n_nodes, MAX((f.left - below - splits) / 4, 1));
    struct table_out t;
    table_begin(&t, (const char *const[]){"NODE~", "STATE", "USED>", "SLOTS>", "DEVICE", "REASON~", NULL});
    for (size_t i = 0; i < s->n_nodes && (int)i < rows; i++) {
        const struct top_node *node = &s->nodes[i];
        table_cell(&t, "%s", node->name);
        table_cell(&t, "%s", node->state);
        table_cell(&t, "%u", node->slots_used);
        table_cell(&t, "%u", node->slots);
        table_cell(&t, "%s", node->device);
        table_cell(&t, "%s", node->reason);
    }
    put_table(&f, &t, -1, rows, -1);
    if ((size_t)rows < s->n_nodes)
        put_text(&f, "", "... and %zu more nodes", s->n_nodes - (size_t)rows);
    if (splits > 0)
        put_splits(&f, jobs, splits);
    if (s->n_jobs > 0)
        put_selected(&f, splits == 0 || !has_split(&s->jobs[s->selected]), below);
    if (s->live) {
        while (f.left > 1)
            put_text(&f, "", "%s", "");
        put_text(&f, "\033[2m",
                 "q quit  j/k or arrows: select  n/p: next, previous page  a: with or without those that have ended");
    }
}
