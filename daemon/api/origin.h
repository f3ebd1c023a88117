/* SPDX-License-Identifier: Apache-2.0 */
/* origin.h - the job that a submitted one goes on from: SubmitRequest.resume_job, or "job:ID" in
 * checkpoint.initial_load_path. It is looked up on the loop, where the store is read, and applied to the recipe on the
 * thread that checks it. */
#ifndef TITAN_DAEMON_API_ORIGIN_H
#define TITAN_DAEMON_API_ORIGIN_H

#include <limits.h>

#include "base/recipe.h"
#include "daemon/api/api.h"

struct origin {
    uint64_t job_id; /* 0: none */
    bool resumed;    /* its folder is used again; otherwise a checkpoint of it is read */
    bool whole;      /* the caller may know its recipe: the owner or an operator */
    bool shared;     /* the caller may begin from its checkpoints */
    enum job_state state;
    uint64_t step;        /* the last one it has committed */
    uint64_t newest_step; /* of the checkpoints that it has written itself; 0: none */
    char name[API_NAME_MAX + 1], user[sizeof(((struct auth_user *)0)->name)];
    int64_t uid, gid;
    char *text;             /* its recipe, as stored; NULL until it is looked up */
    struct recipe *recipe;  /* that, resolved; made by origin_apply */
    const char *granted[3]; /* paths that the caller has by this job, without a right of its own; NULL ends them */
    char jobs_dir[PATH_MAX];
    char folder[PATH_MAX]; /* of its checkpoints; made by origin_apply */
    char begins[PATH_MAX]; /* the checkpoint that "job:ID" came to; "": none, or the newest when the run begins */
};

void origin_init(struct origin *o);

/* TITAN_EPERM, TITAN_ENOTFOUND (also for one that the caller may not know of); to resume one that has not ended:
 * TITAN_ECONFLICT. */
titan_status origin_find(struct coordinator *c, const struct auth_user *u, uint64_t job_id, bool resume,
                         struct origin *ret, struct titan_error *err) TITAN_MUST_USE;
/* The folder, or the checkpoint, into a recipe of u's that is parsed and not yet resolved. May block. local: what
 * cannot be seen from here is not there. */
titan_status origin_apply(struct origin *o, const struct auth_user *u, struct recipe *r, bool local,
                          struct titan_error *err) TITAN_MUST_USE;
/* Of a resumed job and the recipe, resolved: same numbers, and steps left to do. */
titan_status origin_check(const struct origin *o, const struct recipe *r, struct titan_error *err) TITAN_MUST_USE;
void origin_clear(struct origin *o);

#endif
