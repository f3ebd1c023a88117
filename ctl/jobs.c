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

titan_status jobs_each(struct ctl *ctl, struct jobs_search *search, bool (*each)(const Titan__V1__Job *job, void *data),
                       void *data, struct titan_error *err)
{
    const struct args *args = search->args;
    Titan__V1__ListJobsRequest request = TITAN__V1__LIST_JOBS_REQUEST__INIT;
    Titan__V1__JobState states[STATES_MAX];
    char *labels[LABELS_MAX];
    const char *given;
    uint32_t set = 0;

    /* --state may be repeated, and may list several states with commas. */
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
    if (search->among)
        set = args_has(args, "state") ? set & search->among : search->among;
    const bool none_matches = (search->among || args_has(args, "state")) && !set;
    for (int state = TITAN__V1__JOB_STATE__PENDING; state <= TITAN__V1__JOB_STATE__CANCELLED; state++)
        if (set & JOBS_BIT(state))
            states[request.n_states++] = (Titan__V1__JobState)state;
    for (int i = 0; (given = args_each(args, "label", i)); i++) {
        if (i == LABELS_MAX)
            return titan_fail(err, TITAN_EINVAL, "--label: more than %d", LABELS_MAX);
        labels[request.n_labels++] = (char *)(uintptr_t)given;
    }
    request.states = states;
    request.labels = labels;
    request.name = (char *)(uintptr_t)args_text(args, "name", "");
    request.user = (char *)(uintptr_t)args_text(args, "user", "");

    _cleanup_free_ char *token = NULL;
    /* asks for one job more, to learn whether more exist */
    int64_t left = (search->limit ? search->limit : INT32_MAX) + 1;
    search->more = false;
    if (none_matches)
        return TITAN_OK;
    do {
        request.page_size = (uint32_t)MIN(left, (int64_t)PAGE);
        request.page_token = token ? token : (char *)(uintptr_t) "";
        _cleanup_message_ Titan__V1__ListJobsResponse *page = NULL;
        TRY(ctl_call(ctl, TITAN_METHOD("ListJobs"), &request.base, &titan__v1__list_jobs_response__descriptor, &page,
                     err));
        for (size_t i = 0; i < page->n_jobs && left > 0; i++, left--) {
            search->more = left == 1;
            if (left > 1 && !each(page->jobs[i], data))
                return TITAN_OK;
        }
        free(token);
        token = *page->next_page_token ? strdup(page->next_page_token) : NULL;
    } while (token && left > 0);
    return TITAN_OK;
}

static bool add_found(const Titan__V1__Job *job, void *data)
{
    struct jobs *jobs = data;
    return VEC_PUSH(jobs->ids, jobs->n, jobs->cap, job->id);
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
    if (search) {
        struct jobs_search all_such = {.args = args, .among = among};
        TRY(jobs_each(ctl, &all_such, add_found, ret, err));
    }
    for (size_t i = 0; i < ret->n / 2; i++) { /* the oldest first */
        const uint64_t id = ret->ids[i];
        ret->ids[i] = ret->ids[ret->n - 1 - i];
        ret->ids[ret->n - 1 - i] = id;
    }
    for (int i = 0; i < args->n; i++) {
        uint64_t id;
        size_t k = 0;
        TRY(args_job(args, i, &id, err));
        while (k < ret->n && ret->ids[k] != id)
            k++;
        if (k == ret->n && !VEC_PUSH(ret->ids, ret->n, ret->cap, id))
            return titan_fail(err, TITAN_ENOMEM, "out of memory");
    }
    return TITAN_OK;
}

void jobs_free(struct jobs *jobs)
{
    free(jobs->ids);
    *jobs = (struct jobs){0};
}
