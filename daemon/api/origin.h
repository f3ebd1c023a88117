/* SPDX-License-Identifier: Apache-2.0 */
/* origin.h - the job that a submitted job continues: SubmitRequest.resume_job, or "job:ID" in
 * checkpoint.initial_load_path. It is looked up on the loop, where the store is read, and applied to the recipe on the
 * thread that checks it. */
#ifndef TITAN_DAEMON_API_ORIGIN_H
#define TITAN_DAEMON_API_ORIGIN_H

#include <limits.h>

#include "base/recipe.h"
#include "daemon/api/api.h"

struct origin {
    uint64_t job_id; /* 0 = none */
    bool resumed;    /* true: reuse its folder; false: load a checkpoint of it */
    bool whole;      /* the caller may know its recipe (owner or operator) */
    bool shared;     /* the caller may begin from its checkpoints */
    enum job_state state;
    uint64_t step;        /* last committed step */
    uint64_t newest_step; /* newest step among its own checkpoints; 0 = none */
    char name[API_NAME_MAX + 1], user[sizeof(((struct auth_user *)0)->name)];
    int64_t uid, gid;
    char *text;             /* the job's stored recipe; NULL until looked up */
    struct recipe *recipe;  /* text, resolved; made by origin_apply */
    const char *granted[3]; /* paths that the caller may use only through this job; NULL ends them */
    char jobs_dir[PATH_MAX];
    char folder[PATH_MAX]; /* the job's checkpoint folder; made by origin_apply */
    /* checkpoint that "job:ID" stands for; "" = none, or the run takes the newest checkpoint when it begins */
    char begins[PATH_MAX];
};

void origin_init(struct origin *o);

/* TITAN_EPERM; TITAN_ENOTFOUND (also for a job that the caller may not know of); TITAN_ECONFLICT: the job to resume has
 * not ended. */
titan_status origin_find(struct coordinator *c, const struct auth_user *u, uint64_t job_id, bool resume,
                         struct origin *ret, struct titan_error *err) TITAN_MUST_USE;
/* Puts the job's folder, or its checkpoint, into u's recipe r, which is parsed and not yet resolved. May block. local:
 * paths invisible from here do not exist. */
titan_status origin_apply(struct origin *o, const struct auth_user *u, struct recipe *r, bool local,
                          struct titan_error *err) TITAN_MUST_USE;
/* Checks a resumed job against the resolved recipe: the keys that determine the numbers are equal, and steps are left
 * to do. Of a job that a new run takes the optimizer's state of: the optimizers are the same (TITAN_ECONFLICT). */
titan_status origin_check(const struct origin *o, const struct recipe *r, struct titan_error *err) TITAN_MUST_USE;
void origin_clear(struct origin *o);

#endif
