/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_place.h - the checkpoint folder that a recipe names, as the coordinator sees it at submit. If the
 * coordinator does not see the folder, the workers check it (worker/checkpoint/folder.h). All functions may block. */
#ifndef TITAN_DAEMON_API_CHECKPOINT_PLACE_H
#define TITAN_DAEMON_API_CHECKPOINT_PLACE_H

#include <limits.h>

#include "base/folder_owner.h"
#include "base/recipe.h"
#include "daemon/auth/identity.h"

/* The rights by which a submit names checkpoint folders. */
struct place_rights {
    const struct auth_user *caller;
    struct folder_user user; /* the job's user */
    uint64_t store;          /* store_id */
    /* Old owner files name a job instead of a user. That job is looked up where the store is read. */
    struct {
        uint64_t job;
        struct folder_user user; /* unknown user = the job does not exist */
    } known[4];
    int n_known;
    uint64_t asks; /* job to look up before place_admit is called again; 0 = none */
};

/* Does the recipe name a checkpoint folder other than the job's own? The job's own is new and empty. */
bool place_named(const struct recipe *r);
/* If the recipe's folder is in use, gives the recipe the first of FOLDER-2, FOLDER-3, ... that does not exist. */
titan_status place_fresh(struct recipe *r, struct titan_error *err) TITAN_MUST_USE;
/* May the job have the folder that its recipe names, and begin from the checkpoint that it names? On success the
 * resolved recipe gets its owner and the admitted owners (job.owner, checkpoint.folder_owner and .initial_load_owner),
 * which its workers compare. before: the recipe of the resumed job; NULL = none. TITAN_EPERM reveals nothing about the
 * owner. */
titan_status place_admit(struct place_rights *p, struct recipe *r, const struct recipe *before,
                         struct titan_error *err) TITAN_MUST_USE;
/* The checkpoint folder of a recipe, for a run that is to begin there. */
struct place {
    bool empty;            /* the run needs a folder without checkpoints */
    bool local;            /* a folder invisible from here does not exist */
    struct buf *notes;     /* gets lines about the consequences */
    char folder[PATH_MAX]; /* its absolute path */
    uint64_t resumes_step; /* step of the checkpoint in it that the run continues; 0 = none */
    /* TITAN_ECONFLICT: the recipe cannot have the folder because of the checkpoints in it: they are of another recipe,
     * they exist although `empty` is set, or the checkpoint of checkpoint.load_step is missing */
    struct titan_error held;
};
titan_status place_look(const struct recipe *r, struct place *p, struct titan_error *err) TITAN_MUST_USE;
/* Does checkpoint.initial_load_path hold what the recipe says: a checkpoint, or Hugging Face weights? TITAN_EINVAL: it
 * does not. An empty key passes. */
titan_status place_check_beginning(const struct recipe *r, struct titan_error *err) TITAN_MUST_USE;

#endif
