/* SPDX-License-Identifier: Apache-2.0 */
/* jobs.h - the jobs that a command acts on: by number, or by state, name, labels and user. */
#ifndef TITAN_CTL_JOBS_H
#define TITAN_CTL_JOBS_H

#include "base/options.h"
#include "ctl/client.h"

#define JOBS_FILTERS                                                                                                   \
    {"state", 0, "STATE", "only jobs in this state; several with commas", WORD_STATE},                                 \
        {"name", 0, "NAME", "only jobs of this name; 'NAME*': of names that begin so", WORD_NONE},                     \
        {"label", 'l', "KEY=VALUE", "only jobs with this label, or KEY alone; may be repeated: with all of them",      \
         WORD_NONE},                                                                                                   \
    {                                                                                                                  \
        "user", 'u', "USER", "only jobs of this user", WORD_NONE                                                       \
    }

/* Bit sets of states. */
#define JOBS_BIT(state) (1u << (state))
#define JOBS_ENDED                                                                                                     \
    (JOBS_BIT(TITAN__V1__JOB_STATE__COMPLETED) | JOBS_BIT(TITAN__V1__JOB_STATE__FAILED) |                              \
     JOBS_BIT(TITAN__V1__JOB_STATE__CANCELLED))
#define JOBS_OPEN (JOBS_BIT(TITAN__V1__JOB_STATE__CANCELLED + 1) - 2u - JOBS_ENDED)

/* Does args have an option of JOBS_FILTERS? */
bool jobs_filtered(const struct args *args);
struct jobs_search {
    const struct args *args; /* arguments with the filters */
    uint32_t among;          /* states of the jobs, a bit set; 0: all states */
    int64_t limit;           /* at most so many jobs; 0: all */
    bool more;               /* result: more jobs match */
};
/* Passes matching jobs to each(), newest first, page by page. each() returns false to stop. */
titan_status jobs_each(struct ctl *ctl, struct jobs_search *search, bool (*each)(const Titan__V1__Job *job, void *data),
                       void *data, struct titan_error *err) TITAN_MUST_USE;

struct jobs {
    uint64_t *ids;
    size_t n, cap;
};
/* Gives the jobs that the command's words name, in their order, each job once. With filters or `all`, it gives the
 * result of jobs_each(), oldest first. TITAN_EINVAL: there are both words and a search, or neither. */
titan_status jobs_chosen(struct ctl *ctl, const struct args *args, bool all, uint32_t among, struct jobs *ret,
                         struct titan_error *err) TITAN_MUST_USE;
void jobs_free(struct jobs *jobs);

#endif
