/* SPDX-License-Identifier: Apache-2.0 */
/* report_page.c - see report_page.h. Tables are written here; report.js draws curves from the page's JSON. */
#include "ctl/report_page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"
#include "base/utf8.h"
#include "base/version.h"
#include "ctl/client.h"

/* The assembler includes these files, so no source is generated from them. */
#define ASSET(symbol, shared, own)                                                                                     \
    __asm__(".pushsection .rodata\n" #symbol ":\n.incbin \"" shared "\"\n.incbin \"" own                               \
            "\"\n.byte 0\n.popsection\n");                                                                             \
    extern const char symbol[] __attribute__((visibility("hidden")))
ASSET(report_style, "daemon/page/chart.css", "ctl/report.css");
ASSET(report_script, "daemon/page/chart.js", "ctl/report.js");

void report_page_escape(const char *text, struct buf *out)
{
    const size_t len = strlen(text);
    for (size_t i = 0; i < len;) {
        const char *const special = "&<>\"'\n\t", *const found = strchr(special, text[i]);
        static const char *const instead[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;", "\n", "    "};
        if (found) {
            buf_puts(out, instead[found - special]);
            i++;
            continue;
        }
        const size_t run = strcspn(text + i, special), fit = text_unfit(text + i, run);
        (void)!buf_append(out, text + i, fit);
        i += fit;
        if (fit < run) {
            buf_puts(out, "?");
            for (i++; i < len && (text[i] & 0xc0) == 0x80;)
                i++;
        }
    }
}

static void put_heading(struct buf *out, const char *id, const char *text)
{
    buf_printf(out, "<h2 id=\"%s\">%s</h2>\n", id, text);
}

static void put_cell(struct buf *out, const char *class, const char *text)
{
    buf_printf(out, "<td class=\"%s\">", class);
    report_page_escape(text, out);
    buf_puts(out, "</td>");
}

static void put_number(struct buf *out, int64_t number)
{
    buf_printf(out, "<td class=\"n\">%lld</td>", (long long)number);
}

/* "NAME>" is a numeric column. */
static void begin_table(struct buf *out, const char *id, const char *const *headings)
{
    buf_printf(out, "<div class=\"scroll\"><table id=\"%s\"><thead><tr>", id);
    for (; *headings; headings++) {
        const size_t len = strlen(*headings);
        const bool number = len > 0 && (*headings)[len - 1] == '>';
        buf_printf(out, "<th%s>%.*s</th>", number ? " class=\"n\"" : "", (int)len - number, *headings);
    }
    buf_puts(out, "</tr></thead><tbody>\n");
}

static void end_table(struct buf *out)
{
    buf_puts(out, "</tbody></table></div>\n");
}

static void put_fact(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, "<div><dt>%s</dt><dd>", name);
    report_page_escape(value, out);
    buf_puts(out, "</dd></div>\n");
}

static void put_facts(const struct report_page *p, struct buf *out)
{
    const Titan__V1__Job *job = p->job;
    const struct curves *c = p->curves;
    char text[128], number[UNITS_TEXT];

    buf_puts(out, "<dl class=\"facts\" id=\"facts\">\n");
    (void)snprintf(text, sizeof(text), "%llu of %llu", (unsigned long long)job->step, (unsigned long long)job->steps);
    put_fact(out, "step", text);
    if (isfinite(c->last_loss)) {
        (void)snprintf(text, sizeof(text), "%.4f", c->last_loss);
        put_fact(out, "last loss", text);
    }
    if (job->validation) {
        (void)snprintf(text, sizeof(text), "%.4f", job->validation->loss);
        put_fact(out, "last validation loss", text);
    }
    if (c->tokens > 0)
        put_fact(out, "tokens", format_count((double)c->tokens, number));

    /* Tokens per time over the second half of the ranges, which leaves out a slow start. */
    double tokens = 0, seconds = 0;
    for (size_t i = c->n / 2; i < c->n; i++) {
        tokens += c->ranges[i].tokens;
        seconds += c->ranges[i].seconds;
    }
    const double rate = seconds > 0 ? tokens / seconds : 0;

    if (rate > 0)
        put_fact(out, "tokens/s", format_count(rate, number));
    if (job->mfu > 0) {
        (void)snprintf(text, sizeof(text), "%.1f %%", 100 * job->mfu);
        put_fact(out, "last MFU", text);
    }
    if (job->started_at_ms > 0) {
        const int64_t until_ms = job->finished_at_ms > 0 ? job->finished_at_ms : p->now_ms;
        put_fact(out, "since its start", format_duration((double)(until_ms - job->started_at_ms) / 1000, number));
    }
    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)p->history->recoveries);
    if (p->history->recoveries > 0)
        (void)snprintf(text, sizeof(text), "%llu in %s", (unsigned long long)p->history->recoveries,
                       format_duration(p->history->recovery_ms / 1000, number));
    put_fact(out, "recoveries", text);
    uint32_t slowest;
    if (curves_slowest(c, 1, &slowest) > 0) {
        (void)snprintf(text, sizeof(text), "rank %u", slowest);
        put_fact(out, "waited for longest", text);
    }
    if (c->skipped_steps > 0) {
        (void)snprintf(text, sizeof(text), "%u", c->skipped_steps);
        put_fact(out, "steps skipped", text);
    }
    buf_puts(out, "</dl>\n");
}

/* --- where the time of a step went -------------------------------------------------------------------------------- */

static void put_split(const struct report_page *p, struct buf *out)
{
    put_heading(out, "h-split", "Where the time of a step went");
    if (!isfinite(curves_mean_of_all(p->curves, CURVES_COMPUTE))) {
        buf_puts(out, "<p class=\"none\">Not measured.</p>\n");
        return;
    }

    static const struct {
        int curve;
        const char *name;
    } parts[] = {{CURVES_DATA, "data (samples)"},
                 {CURVES_COMPUTE, "compute"},
                 {CURVES_COMMUNICATION, "communication that no computing hid"},
                 {CURVES_CHECKPOINT, "checkpoint"},
                 {CURVES_STRAGGLERS, "waiting for stragglers"}};
    double total = 0, part[ARRAY_SIZE(parts)];
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        const double mean = curves_mean_of_all(p->curves, parts[i].curve);
        part[i] = isfinite(mean) ? mean : 0;
        total += part[i];
    }
    begin_table(out, "split", (const char *const[]){"Part", "ms a step>", "Share>", NULL});
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        buf_printf(out, "<tr><td>%s</td><td class=\"n\">%.1f</td><td class=\"n\">%.1f %%</td></tr>\n", parts[i].name,
                   part[i], total > 0 ? 100 * part[i] / total : 0);
    end_table(out);

    /* Each rank that was ever the slowest has a row. The rank with the longest wait of the others comes first. */
    enum { MOST = 16 };
    uint32_t ranks[MOST];
    const struct curves *c = p->curves;
    const size_t n = curves_slowest(c, MOST, ranks);
    if (n == 0)
        return;
    const struct curves_rank *first = &c->ranks[ranks[0]];
    buf_printf(
        out,
        "<p id=\"slowest-rank\">The others waited longest for <b>rank %u</b>: it was the slowest in %llu of %llu "
        "steps, busy %.1f ms in each, and the others waited %.1f ms for it.</p>\n",
        ranks[0], (unsigned long long)first->steps, (unsigned long long)c->splits,
        first->busy_ms / (double)first->steps, first->waited_ms / (double)first->steps);
    begin_table(out, "slowest",
                (const char *const[]){"Slowest rank>", "Node (last)", "Steps>", "Share>", "Busy, ms>",
                                      "Others waited, ms>", NULL});
    for (size_t i = 0; i < n; i++) {
        const struct curves_rank *r = &c->ranks[ranks[i]];
        const double steps = (double)r->steps;
        buf_puts(out, "<tr>");
        put_number(out, ranks[i]);
        put_cell(out, "", history_node_of(p->history, ranks[i]));
        put_number(out, (int64_t)r->steps);
        buf_printf(out, "<td class=\"n\">%.1f %%</td><td class=\"n\">%.1f</td><td class=\"n\">%.1f</td></tr>\n",
                   100 * steps / (double)c->splits, r->busy_ms / steps, r->waited_ms / steps);
    }
    end_table(out);
}

/* --- what the script draws ---------------------------------------------------------------------------------------- */

/* False: out of memory. */
static bool put_data(const struct report_page *p, struct buf *out)
{
    const struct history *t = p->history;
    /* The begin of a job's time axis: its first epoch or step. */
    int64_t begin_ms = p->job->started_at_ms > 0 ? p->job->started_at_ms : MAX(p->job->submitted_at_ms, 0);
    if (t->n_worlds > 0)
        begin_ms = MIN(begin_ms, t->worlds[0].at_ms);
    if (p->curves->n > 0)
        begin_ms = MIN(begin_ms, p->curves->ranges[0].at_ms);

    const int64_t until_ms = p->job->finished_at_ms > 0 ? p->job->finished_at_ms : p->now_ms;
    _cleanup_(buf_free) struct buf json = BUF_INIT;
    struct json_writer w = {.out = &json};

    json_begin_object(&w, NULL);
    json_put_int(&w, "until_ms", until_ms - begin_ms);
    curves_put(p->curves, "curves", begin_ms, &w);
    history_put(t, begin_ms, &w);
    json_end_object(&w);
    /* In JSON a '<' occurs only inside strings; escaping it keeps any text from closing the element. */
    for (const char *at = json.data ? json.data : ""; *at;) {
        const size_t run = strcspn(at, "<");
        (void)!buf_append(out, at, run);
        at += run;
        if (*at == '<') {
            buf_puts(out, "\\u003c");
            at++;
        }
    }
    return !buf_failed(&json);
}

/* --- tables ------------------------------------------------------------------------------------------------------- */

static void put_left_out(struct buf *out, uint64_t all, size_t shown, const char *what)
{
    if (all > shown)
        buf_printf(out, "<p class=\"none\">The newest %zu of %llu %s.</p>\n", shown, (unsigned long long)all, what);
}

static void put_ms(struct buf *out, double ms)
{
    if (isfinite(ms))
        buf_printf(out, "<td class=\"n\">%.0f</td>", ms);
    else
        buf_puts(out, "<td class=\"n\"></td>");
}

static void put_changes(const struct report_page *p, struct buf *out)
{
    const struct history *t = p->history;
    char at[32];
    put_heading(out, "h-recoveries", "Recoveries and resizes");
    if (t->n_changes == 0) {
        buf_puts(out, "<p class=\"none\">None.</p>\n");
        return;
    }
    put_left_out(out, t->all_changes, t->n_changes, "recoveries and resizes");
    begin_table(out, "recoveries",
                (const char *const[]){"Time", "What", "From step>", "Goes on at>", "Workers>", "State from",
                                      "Epochs lost>", "Total ms>", "Detect>", "Decide>", "Quiet>", "Form>", "State>",
                                      "Step>", NULL});
    for (size_t i = 0; i < t->n_changes; i++) {
        const struct history_change *c = &t->changes[i];
        buf_puts(out, "<tr>");
        put_cell(out, "time", clock_format(c->at_ms, at));
        buf_puts(out,
                 c->resize ? "<td class=\"kind-resize\">resize</td>" : "<td class=\"kind-recovery\">recovery</td>");
        if (c->from_step >= 0)
            put_number(out, c->from_step);
        else
            buf_puts(out, "<td></td>");
        put_number(out, c->resume_step);
        put_number(out, c->world);
        put_cell(out, "", c->source);
        if (c->resize)
            buf_puts(out, "<td></td>");
        else
            put_number(out, c->epochs);
        put_ms(out, c->ms);
        put_ms(out, c->detect_ms);
        put_ms(out, c->decide_ms);
        put_ms(out, c->quiet_ms);
        put_ms(out, c->form_ms);
        put_ms(out, c->state_ms);
        put_ms(out, c->step_ms);
        buf_puts(out, "</tr>\n");
    }
    end_table(out);
}

/* "pp 2 · dp_shard 4 · tp 2": the axes larger than 1. */
static void mesh_text(const struct report_page *p, int64_t world, char *out, size_t cap)
{
    struct recipe_mesh mesh;
    struct titan_error unsaid;
    *out = '\0';
    if (!p->resolved || world < 1 || recipe_check_world(p->resolved, world, &unsaid) != TITAN_OK ||
        recipe_mesh(p->resolved, world, &mesh, &unsaid) != TITAN_OK)
        return;
    const struct {
        const char *name;
        int64_t degree;
    } axes[] = {{"pp", mesh.pp},
                {"dp_replicate", mesh.dp_replicate},
                {"dp_shard", mesh.dp_shard},
                {"cp", mesh.cp},
                {"tp", mesh.tp},
                {"ep", mesh.ep}};
    for (size_t i = 0; i < ARRAY_SIZE(axes); i++) {
        const size_t used = strlen(out);
        if (axes[i].degree > 1)
            (void)snprintf(out + used, cap - used, "%s%s %lld", used ? " · " : "", axes[i].name,
                           (long long)axes[i].degree);
    }
    if (!*out)
        (void)snprintf(out, cap, "one rank");
}

static void put_epochs(const struct report_page *p, struct buf *out)
{
    const struct history *t = p->history;
    char at[32], text[160];
    put_heading(out, "h-epochs", "Epochs");
    if (t->n_worlds == 0) {
        buf_puts(out, "<p class=\"none\">None.</p>\n");
        return;
    }
    begin_table(out, "epochs",
                (const char *const[]){"From", "Epoch>", "Behind step>", "Workers>", "Mesh", "For", NULL});
    for (size_t i = 0; i < t->n_worlds; i++) {
        const struct history_world *x = &t->worlds[i];
        if (x->world == 0)
            continue;
        buf_puts(out, "<tr>");
        put_cell(out, "time", clock_format(x->at_ms, at));
        put_number(out, (int64_t)x->epoch);
        put_number(out, (int64_t)x->step);
        put_number(out, x->world);
        mesh_text(p, x->world, text, sizeof(text));
        put_cell(out, "", text);
        const int64_t until_ms = i + 1 < t->n_worlds          ? t->worlds[i + 1].at_ms
                                 : p->job->finished_at_ms > 0 ? p->job->finished_at_ms
                                                              : p->now_ms;
        put_cell(out, "", format_duration((double)(until_ms - x->at_ms) / 1000, text));
        buf_puts(out, "</tr>\n");
    }
    end_table(out);
}

static void put_events(const struct report_page *p, struct buf *out)
{
    const struct history *t = p->history;
    char at[32];
    put_heading(out, "h-events", "Events");
    if (t->all_checkpoints > 0)
        buf_printf(out, "<p class=\"none\">Besides: %llu checkpoints.</p>\n", (unsigned long long)t->all_checkpoints);
    put_left_out(out, t->all_events, t->n_events, "events");
    begin_table(out, "events", (const char *const[]){"Time", "Event", "Epoch>", "Step>", "Rank>", "Message", NULL});
    for (size_t i = 0; i < t->n_events; i++) {
        const struct history_event *e = &t->events[i];
        buf_puts(out, "<tr>");
        put_cell(out, "time", clock_format(e->at_ms, at));
        buf_printf(out, "<td class=\"kind-%s\">", e->kind);
        report_page_escape(e->type, out);
        buf_puts(out, "</td>");
        put_number(out, (int64_t)e->epoch);
        put_number(out, (int64_t)e->step);
        if (e->rank >= 0)
            put_number(out, e->rank);
        else
            buf_puts(out, "<td></td>");
        put_cell(out, "text", e->message);
        buf_puts(out, "</tr>\n");
    }
    end_table(out);
}

static void put_environment(const struct report_page *p, struct buf *out)
{
    const struct history *t = p->history;
    put_heading(out, "h-environment", "Environment");
    begin_table(out, "environment", (const char *const[]){"What", "", NULL});
    const struct {
        const char *name, *value;
    } rows[] = {{"server", p->server_version ? p->server_version : "not known"},
                {"page written by", titan_version},
                {"folder", p->job->directory},
                {"newest checkpoint", p->job->checkpoint}};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        if (!*rows[i].value)
            continue;
        buf_puts(out, "<tr>");
        put_cell(out, "", rows[i].name);
        put_cell(out, "text", rows[i].value);
        buf_puts(out, "</tr>\n");
    }
    end_table(out);
    if (t->n_nodes == 0)
        return;
    begin_table(out, "nodes",
                (const char *const[]){"Node", "Workers started>", "Slots>", "Device", "Version", "State now", NULL});
    for (size_t i = 0; i < t->n_nodes; i++) {
        const Titan__V1__Node *node = NULL;
        for (size_t k = 0; p->nodes && k < p->nodes->n_nodes && !node; k++)
            if (strcmp(p->nodes->nodes[k]->name, t->nodes[i].name) == 0)
                node = p->nodes->nodes[k];
        buf_puts(out, "<tr>");
        put_cell(out, "", t->nodes[i].name);
        put_number(out, t->nodes[i].workers);
        if (node) {
            put_number(out, node->slots);
            put_cell(out, "", node->device);
            put_cell(out, "", node->version);
            put_cell(out, "", node->state);
        } else {
            buf_puts(out, "<td></td><td></td><td></td><td class=\"none\">not known</td>");
        }
        buf_puts(out, "</tr>\n");
    }
    end_table(out);
}

bool report_page_put(const struct report_page *p, struct buf *out)
{
    titan_assert(p->job && p->curves && p->history && (p->recipe || p->why_no_recipe));
    const char *state = ctl_state_name(p->job->state);
    char at[32];

    buf_puts(out,
             "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
             "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
             "script-src 'unsafe-inline'\">\n"
             "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    buf_printf(out, "<title>Job %llu: ", (unsigned long long)p->job->id);
    report_page_escape(p->job->name, out);
    buf_puts(out, "</title>\n<style>\n");
    buf_puts(out, report_style);
    buf_printf(out, "</style>\n</head>\n<body>\n<h1>Job %llu: ", (unsigned long long)p->job->id);
    report_page_escape(p->job->name, out);
    buf_printf(out, " <span class=\"pill %s\">%s</span></h1>\n", state, state);

    const Titan__V1__Job *job = p->job;
    buf_puts(out, "<p class=\"under\">");
    if (*job->user) {
        buf_puts(out, "of ");
        report_page_escape(job->user, out);
        buf_puts(out, " · ");
    }
    buf_printf(out, "submitted %s", clock_format(job->submitted_at_ms, at));
    if (job->finished_at_ms > 0)
        buf_printf(out, " · finished %s", clock_format(job->finished_at_ms, at));
    if (*job->reason) {
        buf_puts(out, "<br>");
        report_page_escape(job->reason, out);
    }
    buf_puts(out, "</p>\n");

    put_facts(p, out);
    put_heading(out, "h-curves", "Curves");
    buf_puts(out, "<div class=\"controls\" id=\"controls\"></div>\n<div id=\"charts\"></div>\n"
                  "<noscript><p class=\"none\">The curves are drawn by a script.</p></noscript>\n");
    put_split(p, out);
    put_changes(p, out);
    put_epochs(p, out);
    put_events(p, out);
    put_environment(p, out);

    put_heading(out, "h-recipe", "Recipe");
    if (p->recipe) {
        buf_puts(out, "<pre id=\"recipe\">");
        report_page_escape(p->recipe, out);
        buf_puts(out, "</pre>\n");
    } else {
        buf_puts(out, "<p class=\"none\">");
        report_page_escape(p->why_no_recipe, out);
        buf_puts(out, "</p>\n");
    }

    buf_printf(out, "<footer>titanctl report, %s</footer>\n<script type=\"application/json\" id=\"data\">",
               clock_format(p->now_ms, at));
    const bool whole = put_data(p, out);
    buf_puts(out, "</script>\n<script>\n");
    buf_puts(out, report_script);
    buf_puts(out, "</script>\n</body>\n</html>\n");
    return whole && !buf_failed(out);
}
