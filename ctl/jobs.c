/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/labels.h"
#include "base/vec.h"
#include "ctl/args.h"
#include "ctl/command.h"

enum { PAGE = 500, STATES_MAX = 16 };

bool jobs_filtered(const struct args *args)
{
    return args_has(args, "state") || args_has(args, "name") || args_has(args, "label") || args_has(args, "user");
}

/* --state may be repeated, and may list several states with commas. */
static titan_status parse_states(const struct args *args, uint32_t *ret, struct titan_error *err)
{
    const char *given;
    uint32_t set = 0;
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
            set |= JOBS_BIT(state);
            given += len + (given[len] == ',');
        }
    }
    *ret = set;
    return TITAN_OK;
}

/* Storage that the request borrows: states and labels. */
struct question {
    Titan__V1__ListJobsRequest request;
    Titan__V1__JobState states[STATES_MAX];
    char *labels[LABELS_MAX];
    bool nothing; /* no job can match the states */
};

static titan_status ask(const struct args *args, uint32_t among, struct question *q, struct titan_error *err)
{
    uint32_t states = 0;
    const char *label;
    titan__v1__list_jobs_request__init(&q->request);
    TRY(parse_states(args, &states, err));
    if (among)
        states = args_has(args, "state") ? states & among : among;
    q->nothing = (among || args_has(args, "state")) && !states;
    for (int state = TITAN__V1__JOB_STATE__PENDING; state <= TITAN__V1__JOB_STATE__CANCELLED; state++)
        if (states & JOBS_BIT(state))
            q->states[q->request.n_states++] = (Titan__V1__JobState)state;
    for (int i = 0; (label = args_each(args, "label", i)); i++) {
        if (i == LABELS_MAX)
            return titan_fail(err, TITAN_EINVAL, "--label: more than %d", LABELS_MAX);
        q->labels[q->request.n_labels++] = (char *)(uintptr_t)label;
    }
    q->request.states = q->states;
    q->request.labels = q->labels;
    q->request.name = (char *)(uintptr_t)args_text(args, "name", "");
    q->request.user = (char *)(uintptr_t)args_text(args, "user", "");
    return TITAN_OK;
}

titan_status jobs_each(struct ctl *ctl, const struct args *args, uint32_t among, int64_t limit,
                       bool (*each)(const Titan__V1__Job *job, void *data), void *data, bool *ret_more,
                       struct titan_error *err)
{
    titan_assert(limit > 0);
    _cleanup_free_ char *token = NULL;
    struct question q = {.nothing = false};
    int64_t left = limit + 1; /* one more than shown tells that more exist */
    *ret_more = false;
    TRY(ask(args, among, &q, err));
    if (q.nothing)
        return TITAN_OK;
    do {
        q.request.page_size = (uint32_t)MIN(left, (int64_t)PAGE);
        q.request.page_token = token ? token : (char *)(uintptr_t) "";
        _cleanup_message_ Titan__V1__ListJobsResponse *page = NULL;
        TRY(ctl_call(ctl, TITAN_METHOD("ListJobs"), &q.request.base, &titan__v1__list_jobs_response__descriptor, &page,
                     err));
        for (size_t i = 0; i < page->n_jobs && left > 0; i++, left--) {
            *ret_more = left == 1;
            if (left > 1 && !each(page->jobs[i], data))
                return TITAN_OK;
        }
        free(token);
        token = *page->next_page_token ? strdup(page->next_page_token) : NULL;
    } while (token && left > 0);
    return TITAN_OK;
}

static bool add(struct jobs *jobs, uint64_t id)
{
    for (size_t i = 0; i < jobs->n; i++)
        if (jobs->ids[i] == id)
            return true;
    return VEC_PUSH(jobs->ids, jobs->n, jobs->cap, id);
}

static bool add_found(const Titan__V1__Job *job, void *data)
{
    struct jobs *jobs = data;
    return VEC_PUSH(jobs->ids, jobs->n, jobs->cap, job->id);
}

static titan_status find(struct ctl *ctl, const struct args *args, uint32_t among, struct jobs *ret,
                         struct titan_error *err)
{
    bool more;
    TRY(jobs_each(ctl, args, among, INT32_MAX, add_found, ret, &more, err));
    for (size_t i = 0; i < ret->n / 2; i++) {
        const uint64_t id = ret->ids[i];
        ret->ids[i] = ret->ids[ret->n - 1 - i];
        ret->ids[ret->n - 1 - i] = id;
    }
    return TITAN_OK;
}

titan_status jobs_chosen(struct ctl *ctl, const struct args *args, bool all, uint32_t among, struct jobs *ret,
                         struct titan_error *err)
{
    const bool search = all || jobs_filtered(args);
    titan_assert(ret->n == 0);
    if (search && args->n > 0)
        return titan_fail(err, TITAN_EINVAL, "jobs are named by their numbers or found by options, not both");
    if (!search && args->n == 0)
        return titan_fail(err, TITAN_EINVAL,
                          "%s needs a JOB, or options that find some: --state, --name, --label, --user",
                          args->command->name);
    if (search)
        return find(ctl, args, among, ret, err);
    for (int i = 0; i < args->n; i++) {
        uint64_t id;
        TRY(args_job(args, i, &id, err));
        if (!add(ret, id))
            return titan_fail(err, TITAN_ENOMEM, "out of memory");
    }
    return TITAN_OK;
}

void jobs_free(struct jobs *jobs)
{
    free(jobs->ids);
    *jobs = (struct jobs){0};
}
