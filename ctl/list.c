/* SPDX-License-Identifier: Apache-2.0 */
/* list.c - titanctl list: the jobs, newest first. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"

enum { PAGE = 500, STATES_MAX = 16 };

struct listing {
    struct ctl *ctl;
    struct json_writer json;
    struct table_out table;
    struct buf text;
    int64_t now_ms;
    bool more; /* jobs than the limit */
};

static void listing_begin(struct listing *l)
{
    if (l->ctl->json) {
        l->json = (struct json_writer){.out = &l->text, .pretty = true};
        json_begin_object(&l->json, NULL);
        json_begin_array(&l->json, "jobs");
    } else {
        table_begin(&l->table, (const char *const[]){"JOB>", "NAME~", "USER", "STATE", "STEP>", "LOSS>", "TOKENS/S>",
                                                     "WORKERS>", "RESTARTS>", "SUBMITTED", "REASON~", NULL});
    }
}

static void listing_add(struct listing *l, const Titan__V1__Job *job)
{
    if (l->ctl->json) {
        output_message(&l->json, NULL, &job->base);
        return;
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
    table_cell(t, "%s", ctl_state_final(job->state) ? "" : job->reason);
}

static void listing_end(struct listing *l)
{
    if (l->ctl->json) {
        json_end_array(&l->json);
        json_put_bool(&l->json, "more", l->more);
        json_end_object(&l->json);
    } else {
        table_end(&l->table, &l->text, 3, l->ctl->color);
    }
    (void)output_line(&l->text);
    if (l->more && !l->ctl->json)
        (void)fputs("titanctl: there are older ones (--limit N lists more)\n", stderr);
}

/* --state may be repeated and may hold several, with commas. */
static titan_status parse_states(const struct args *args, Titan__V1__JobState *states, size_t *ret_n,
                                 struct titan_error *err)
{
    const char *given;
    size_t n = 0;
    for (int i = 0; (given = args_each(args, "state", i)); i++) {
        while (*given) {
            char word[32];
            size_t len = strcspn(given, ",");
            (void)snprintf(word, sizeof(word), "%.*s", (int)MIN(len, sizeof(word) - 1), given);
            int state = ctl_state_parse(word);
            if (state < 0) {
                titan_status status = titan_fail(err, TITAN_EINVAL, "--state: there is no state '%s'", word);
                titan_error_hint(err, "PENDING FORMING RUNNING RECOVERING RESIZING CANCELLING COMPLETED FAILED "
                                      "CANCELLED");
                return status;
            }
            if (n == STATES_MAX)
                return titan_fail(err, TITAN_EINVAL, "--state: more than %d", STATES_MAX);
            states[n++] = (Titan__V1__JobState)state;
            given += len + (given[len] == ',');
        }
    }
    titan_assert(n <= STATES_MAX);
    *ret_n = n;
    return TITAN_OK;
}

static titan_status add_pages(struct listing *l, Titan__V1__ListJobsRequest *request, int64_t limit,
                              struct titan_error *err)
{
    titan_assert(limit > 0);
    _cleanup_free_ char *token = NULL;
    int64_t left = limit + 1; /* one that is not shown tells that there are more */
    do {
        request->page_size = (uint32_t)MIN(left, (int64_t)PAGE);
        request->page_token = token ? token : (char *)(uintptr_t) "";
        _cleanup_message_ Titan__V1__ListJobsResponse *page = NULL;
        TRY(ctl_call(l->ctl, TITAN_METHOD("ListJobs"), &request->base, &titan__v1__list_jobs_response__descriptor,
                     &page, err));
        for (size_t i = 0; i < page->n_jobs && left > 0; i++, left--)
            if (left > 1)
                listing_add(l, page->jobs[i]);
            else
                l->more = true;
        free(token);
        token = *page->next_page_token ? strdup(page->next_page_token) : NULL;
    } while (token && left > 0);
    return TITAN_OK;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    Titan__V1__JobState states[STATES_MAX];
    Titan__V1__ListJobsRequest request = TITAN__V1__LIST_JOBS_REQUEST__INIT;
    int64_t limit;
    TRY(parse_states(args, states, &request.n_states, err));
    TRY(args_int(args, "limit", 1, INT32_MAX, 100, &limit, err));
    request.states = states;
    request.user = (char *)(uintptr_t)args_text(args, "user", "");
    struct listing listing = {.ctl = ctl, .now_ms = clock_wall_ms()};
    listing_begin(&listing);
    listing.table.room = args_has(args, "wide") ? 0 : output_columns();
    titan_status status = add_pages(&listing, &request, limit, err);
    if (status == TITAN_OK)
        listing_end(&listing);
    buf_free(&listing.table.cells);
    buf_free(&listing.text);
    return status;
}

const struct command command_list = {
    .name = "list",
    .summary = "list jobs, newest first",
    .arguments = "",
    .options =
        (const struct option_spec[]){
            {"state", 0, "STATE", "only jobs in this state; several with commas", WORD_STATE},
            {"user", 'u', "USER", "only jobs of this user", WORD_NONE},
            {"limit", 'n', "N", "at most so many (default 100); it says when there are more", WORD_NONE},
            {"wide", 'w', NULL, "names and reasons in full; else a terminal's width cuts them", WORD_NONE},
            {NULL}},
    .examples = (const struct example[]){{"titanctl list --state PENDING,RUNNING", "what waits and what runs"},
                                         {"titanctl list --user alice --limit 10", "the last ten of one user"},
                                         {NULL}},
    .run = run,
};
