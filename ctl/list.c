/* SPDX-License-Identifier: Apache-2.0 */
/* list.c - titanctl list: jobs, newest first. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/jobs.h"
#include "ctl/output.h"
#include "proto/message_json.h"

struct listing {
    struct ctl *ctl;
    struct json_writer json;
    struct table_out table;
    struct buf text;
    int64_t now_ms;
    bool labels; /* show the column of labels */
};

static bool listing_add(const Titan__V1__Job *job, void *data)
{
    struct listing *l = data;
    if (l->ctl->json) {
        message_json(&l->json, NULL, &job->base);
        return true;
    }
    char count[UNITS_TEXT], ago[48];
    struct table_out *t = &l->table;
    table_cell(t, "%llu", (unsigned long long)job->id);
    table_cell(t, "%s", job->name);
    table_cell(t, "%s", job->user);
    table_cell(t, "%s", ctl_state_name(job->state));
    table_cell(t, "%llu/%llu", (unsigned long long)job->step, (unsigned long long)job->steps);
    if (isfinite(job->loss) && job->step > 0)
        table_cell(t, "%.4f", job->loss);
    else
        table_cell(t, "-");
    table_cell(t, "%s", job->tokens_per_second > 0 ? format_count(job->tokens_per_second, count) : "-");
    table_cell(t, "%u", job->world_size);
    table_cell(t, "%u", job->restarts);
    table_cell(t, "%s", output_ago(job->submitted_at_ms, l->now_ms, ago));
    if (l->labels) {
        _cleanup_(buf_free) struct buf labels = BUF_INIT;
        for (size_t i = 0; i < job->n_labels; i++) /* "optimizer.lr=3e-4 team=nlp" */
            buf_printf(&labels, "%s%s", i ? " " : "", job->labels[i]);
        table_cell(t, "%s", labels.len ? labels.data : "");
    }
    table_cell(t, "%s", job->reason);
    return true;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    struct jobs_search search = {.args = args};
    TRY(args_int(args, "limit", (struct int_range){1, INT32_MAX}, 100, &search.limit, err));
    struct listing listing = {
        .ctl = ctl, .now_ms = clock_wall_ms(), .labels = args_has(args, "labels") || args_has(args, "label")};

    if (ctl->json) {
        listing.json = (struct json_writer){.out = &listing.text, .pretty = true};
        json_begin_object(&listing.json, NULL);
        json_begin_array(&listing.json, "jobs");
    } else {
        table_begin(&listing.table, (const char *const[]){"JOB>", "NAME~", "?USER", "STATE", "STEP>", "?LOSS>",
                                                          "?TOKENS/S>", "?WORKERS>", "?RESTARTS>", "?SUBMITTED",
                                                          listing.labels ? "LABELS~" : "REASON~",
                                                          listing.labels ? "REASON~" : NULL, NULL});
    }

    listing.table.room = args_has(args, "wide") ? 0 : output_columns();
    titan_status status = jobs_each(ctl, &search, listing_add, &listing, err);
    if (status == TITAN_OK) {
        if (ctl->json) {
            json_end_array(&listing.json);
            json_put_bool(&listing.json, "more", search.more);
            json_end_object(&listing.json);
        } else {
            table_end(&listing.table, &listing.text, 3, ctl->color);
        }
        (void)output_line(&listing.text);
        if (search.more && !ctl->json)
            (void)fputs("titanctl: there are older ones (--limit N lists more)\n", stderr);
    }
    buf_free(&listing.table.cells);
    buf_free(&listing.text);
    return status;
}

const struct command command_list = {
    .name = "list",
    .summary = "list jobs, newest first",
    .arguments = "",
    .options = (const struct option_spec[]){JOBS_FILTERS,
                                            {"labels", 'L', NULL, "show labels, as it does with --label", WORD_NONE},
                                            {"limit", 'n', "N",
                                             "at most so many (default 100); it says when there are more", WORD_NONE},
                                            TABLE_WIDE(""),
                                            {NULL}},
    .examples = (const struct example[]){{"titanctl list --state PENDING,RUNNING", "what waits and what runs"},
                                         {"titanctl list --user alice --limit 10", "the last ten of one user"},
                                         {"titanctl list --label team=nlp --name 'lr-*'", "by label and name"},
                                         {NULL}},
    .run = run,
};
