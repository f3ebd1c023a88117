/* SPDX-License-Identifier: Apache-2.0 */
/* submit.h - the call used by submit, resume and run. */
#ifndef TITAN_CTL_SUBMIT_H
#define TITAN_CTL_SUBMIT_H

#include "ctl/client.h"
#include "ctl/live_stream.h"
#include "ctl/run_file.h"

/* The job that a new job continues. */
struct submit_from {
    uint64_t job; /* 0: none */
    bool resume;  /* the new job continues in the same folder */
    bool whole;   /* the caller may read that job's recipe, so differences are shown */
    Titan__V1__CheckpointFolder folder;
    /* The new job's place in a sweep. */
    size_t number;             /* index among the sweep's jobs, for name and idempotency key; 0: no sweep */
    const char *const *labels; /* in addition to --label; NULL ends the array; NULL: none */
};

/* Shared by submit and run. */
#define FRESH_OPTION                                                                                                   \
    {                                                                                                                  \
        "fresh", 0, NULL,                                                                                              \
            "where a run has had the folder of checkpoints, take a new one beside it: FOLDER-2, FOLDER-3, ...",        \
            WORD_NONE                                                                                                  \
    }
/* Options shared by submit and resume. */
#define SUBMIT_OPTIONS                                                                                                 \
    {"idempotency-key", 0, "KEY", "any text of yours, at most 128 bytes, that names this submit", WORD_NONE},          \
        {"priority", 'p', "N", "-1000 to 1000, as job.priority: higher comes first, and lower gives way", WORD_NONE},  \
        {"wait-for-nodes", 0, "DURATION",                                                                              \
         "with --follow: cancel it and end with 7 when for so long (90s, 10m) there are no nodes that can hold it",    \
         WORD_NONE},                                                                                                   \
        {"follow", 'f', NULL, "stay and show progress until the job has ended; Ctrl-C leaves, the job goes on",        \
         WORD_NONE},                                                                                                   \
        SERVER_GONE

struct submitted {
    uint64_t job;
    bool existed; /* an earlier submit with the same idempotency key made the job */
};
/* Submits a job. Name, labels and idempotency key come from the options. If `from` is NULL, the job continues no
 * other. */
titan_status submit_run(struct ctl *ctl, const struct run_file *file, const struct args *args,
                        const struct submit_from *from, struct submitted *ret, struct titan_error *err) TITAN_MUST_USE;
/* submit_run(), then prints the job's number on stdout, and its progress with --follow. */
titan_status submit_and_show(struct ctl *ctl, const struct run_file *file, const struct args *args,
                             const struct submit_from *from, struct titan_error *err) TITAN_MUST_USE;
/* Gets the recipe of a job. */
titan_status submit_recipe_of(struct ctl *ctl, uint64_t job, Titan__V1__GetRecipeResponse **ret,
                              struct titan_error *err) TITAN_MUST_USE;

#endif
